package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// TakeAll is a script that takes several locks at once, all or none.
type TakeAll func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (a luascripts.Acquired, first int, err error)

// CanGroup reports whether one script can take the locks of specs: they are
// different locks without replicas and registers, and share a slot where there are slots.
func (s *Session) CanGroup(specs []*Spec) bool {
	seen := make(map[string]bool)
	for _, spec := range specs {
		if spec.Err != nil || spec.terms.Replicas || spec.Keys.Register != "" || seen[spec.Keys.Lock] {
			return false
		}
		seen[spec.Keys.Lock] = true
		if s.sliced() && keys.Tag(spec.Keys.Lock) != keys.Tag(specs[0].Keys.Lock) {
			return false
		}
	}
	return len(specs) > 0
}

// tooBusy is how often locks of a group may change hands while a call waits for them.
const tooBusy = 3

// several is what only an attempt for several locks at once knows.
type several struct {
	script  TakeAll   // takes them; nil in an attempt for one lock
	sent    time.Time // when the latest question was sent
	holder  string    // the owner string that the latest refusal named
	changes int       // how often a refusal named another one than the refusal before
}

// LockAll waits for all locks of specs, or tries once, and takes them together by
// script: a hold for each, in order, or none. It fails with errors.ErrUnsupported
// when they must be taken one by one: the owner holds one of them already, or the
// server keeps them in different slots.
//
// While another owner has one of them, the call holds none, and stands in the line of that
// one. So no call ever waits for a call that waits itself. But locks that are busy all
// the time are hardly ever free together. Once they have changed hands more than tooBusy
// times while LockAll waited, it fails with errors.ErrUnsupported, too: one by one, each comes
// in turn.
func (s *Session) LockAll(ctx context.Context, specs []*Spec, script TakeAll, wait bool) ([]lock.Hold, error) {
	a := &attempt{s: s, ctx: ctx, waiting: ctx, now: time.Now(), several: several{script: script}}
	a.began = a.now
	for _, spec := range specs {
		a.parts = append(a.parts, part{spec: spec, call: s.observe(ctx, spec)})
	}
	slices.SortFunc(a.parts, func(a, b part) int { return strings.Compare(a.spec.Keys.Lock, b.spec.Keys.Lock) })
	err := a.all(wait)
	if errors.Is(err, errors.ErrUnsupported) {
		a.tellFallback()
		return nil, err
	}
	if err != nil {
		op := "trylock"
		if wait {
			op = "lock"
		}
		if ctx.Err() != nil {
			err = interrupted(ctx, err)
		}
		err = &lock.Error{Op: op, Name: a.parts[a.current].spec.Name, Err: err}
		a.tellFailed(err)
		return nil, err
	}
	s.hearSoon()
	returned := false
	defer func() {
		if !returned { // the observer did not, when it was told of one of them: nobody gets the others
			for _, p := range a.parts {
				_ = s.unlock(ctx, p.h)
			}
		}
	}()
	inOrder := make([]lock.Hold, len(specs))
	for i, spec := range specs {
		p := &a.parts[slices.IndexFunc(a.parts, func(p part) bool { return p.spec == spec })]
		s.limit(p.h, spec)
		p.call.tellGranted(p.h)
		inOrder[i] = p.h
	}
	returned = true
	return inOrder, nil
}

// all acquires a hold of each lock. An error is about the one that a.current names.
func (a *attempt) all(wait bool) error {
	s := a.s
	if err := a.ctx.Err(); err != nil {
		return err
	}
	number, known := lockimpl.OwnerFrom(a.ctx)
	if !known {
		number = owner.New()
	}
	limit := time.Duration(0)
	for _, p := range a.parts {
		wait = wait && !p.spec.Config.Once
		if w := p.spec.Config.Wait; w > 0 && (limit == 0 || w < limit) {
			limit = w
		}
	}
	if !wait {
		a.limit = s.OpTimeout
	} else if limit > 0 {
		var cancel context.CancelFunc
		a.waiting, cancel = context.WithTimeout(a.ctx, limit)
		defer cancel()
	}
	defer func() {
		a.done()
		for _, p := range a.parts {
			if p.at != nil {
				s.done(p.at)
			}
		}
	}()
	// In the order of the keys, as two groups of one owner may share some.
	for i := range a.parts {
		a.current = i
		p := &a.parts[i]
		at, err := s.begin(p.spec)
		if err != nil {
			return err
		}
		p.at, p.owner = at, at.enter(p.spec, number, false)
		if !wait && at.acquires(p.owner) {
			return at.behind(p.spec) // another goroutine of this owner waits for it already
		}
		err = s.takeTurn(a.waiting, p.owner.Turn, a.timeLeft())
		a.now = time.Now()
		if err != nil {
			return a.waited(a.ended(err), limit)
		}
		defer func() { <-p.owner.Turn }()
		if at.held(p.owner) != nil {
			return errors.ErrUnsupported
		}
	}
	a.current = 0
	if i := a.ahead(); i >= 0 && !wait {
		a.current = i
		return a.parts[i].at.behind(a.parts[i].spec)
	} else if i >= 0 {
		a.stand(i, time.Time{})
	}
	a.anew()
	return a.waited(a.run(), limit)
}

// ahead returns the index of a lock for which others of this process wait, or -1.
func (a *attempt) ahead() int {
	return slices.IndexFunc(a.parts, func(p part) bool {
		p.at.lock()
		defer p.at.unlock()
		return p.at.place.Line(&p.spec.terms) != nil
	})
}

// questions is one question for all locks of a group: a command.Call.
type questions struct {
	command.Alone[acquiredAll]
	s       *Session
	script  TakeAll
	tenures []*tenure
	all     []luascripts.Taking
}

// acquiredAll is the answer. A refusal is about the lock with that index.
type acquiredAll struct {
	luascripts.Acquired
	index int
}

// Send sends the question.
func (q questions) Send(ctx context.Context) (acquiredAll, error) {
	a, at, err := q.script(ctx, q.s.rdb, q.all)
	return acquiredAll{a, at}, err
}

// Late hears the answer for which the call did not wait, as question.Late does.
func (q questions) Late(reply acquiredAll, err error) {
	for _, t := range q.tenures {
		t.at.lock()
		settle := t.at.place.Unheard(nil, &t.Tenure, err == nil && reply.Verdict == luascripts.Done || err != nil && retry.FaultOf(err).MayHaveRun())
		if !settle && t.Unsure() {
			t.at.place.Free(t.Terms) // the call may have the locks: a reason to ask
		}
		t.at.unlock()
		if settle {
			q.s.settle(t, err != nil)
		}
	}
}

// askAll sends one question for all locks and records the answer, as ask does.
func (a *attempt) askAll() error {
	s := a.s
	q := questions{s: s, script: a.script}
	for i := range a.parts {
		p := &a.parts[i]
		lease := p.spec.terms.Lease
		q.tenures = append(q.tenures, p.t)
		q.all = append(q.all, luascripts.Taking{Keys: p.spec.Keys, Owner: p.t.Name, Lease: lease})
		p.at.lock()
		p.at.place.Asks(&p.t.Tenure, lease, 0)
		p.at.unlock()
	}
	limit := s.OpTimeout
	if a.limit > 0 {
		limit = a.timeLeft()
	}
	a.sent = time.Now()
	reply, answered, err := command.Await[acquiredAll](a.waiting, s.sender, limit, q)
	a.now = time.Now()
	resent := answered && command.Resent(a.now.Sub(a.sent))
	for i := range a.parts {
		if resent {
			a.parts[i].t.doubt()
		}
	}
	switch {
	case !answered:
		return s.sender.CutOff(err) // the answer goes to Late
	case err != nil:
		a.answeredAll(resent || retry.FaultOf(err).MayHaveRun())
		if reply, ok := rueidis.IsRedisErr(err); ok && strings.Contains(reply.Error(), "CROSSSLOT") {
			return command.Final{Err: errors.ErrUnsupported} // a cluster that looks like one server
		}
		return s.sender.Explain(err)
	case reply.Verdict == luascripts.Done:
		return a.grantedAll(reply.Token)
	}
	a.answeredAll(false)
	if reply.Verdict != luascripts.Held {
		a.quit()
		a.current = reply.index
		return s.sender.Foreign(a.waiting, a.parts[reply.index].spec.Keys.Lock, command.Final{Err: lock.ErrWrongType})
	}
	return a.refusedAll(reply)
}

// answeredAll records that the question was answered, and granted nothing.
func (a *attempt) answeredAll(mayHaveRun bool) {
	for i := range a.parts {
		p := &a.parts[i]
		p.at.lock()
		p.at.place.Broke(nil, &p.t.Tenure, mayHaveRun, nil)
		p.at.unlock()
	}
}

// refusedAll has the attempt stand in line for the lock that another owner has.
func (a *attempt) refusedAll(reply acquiredAll) error {
	if a.limit > 0 {
		a.current = reply.index
		return errRefused
	}
	if reply.Holder != a.holder {
		if a.changes++; a.changes > tooBusy {
			return command.Final{Err: errors.ErrUnsupported}
		}
		a.holder = reply.Holder
	}
	if slices.ContainsFunc(a.parts, func(p part) bool { return p.t.isUnsure() }) {
		// A question that broke off may have been carried out. What it took must not
		// be held while the call waits.
		_ = a.giveUp(lock.ErrNotAcquired)
		a.anew()
	}
	if a.w == nil || reply.index != a.current {
		if a.w != nil {
			p := &a.parts[a.current]
			p.at.lock()
			a.w.PassOver()
			p.at.unlock()
		}
		a.stand(reply.index, a.sent)
	}
	p := &a.parts[a.current]
	p.at.lock()
	p.at.place.Waits(a.w, place.Refusal{Sent: a.sent, Left: reply.Left}, a.now)
	p.at.unlock()
	return errRefused
}

// betweenGrants is a variable, so that a test can come between the holds of a group.
var betweenGrants = func() {}

// grantedAll makes the first hold of each lock, or of none.
func (a *attempt) grantedAll(token uint64) error {
	err := a.waiting.Err() // the grant crossed the end of the wait
	for i := range a.parts {
		p := &a.parts[i]
		if err != nil {
			p.at.lock()
			p.at.place.Cross(nil, &p.t.Tenure)
			p.at.unlock()
			continue
		}
		var w *place.Waiter
		if i == a.current {
			w = a.w
		}
		if err = a.grant(p, w, a.sent, token); err != nil {
			a.blame(i)
			continue
		}
		betweenGrants()
	}
	if err == nil {
		return nil
	}
	for i := range a.parts {
		p := &a.parts[i]
		if p.h != nil {
			p.h = nil
			p.t.end(place.Released, p.t.wrap(err))
			p.t.doubt() // giving up takes it back
		}
	}
	return err
}

// blame has the attempt leave its line, as its error is about part i.
func (a *attempt) blame(i int) {
	if i != a.current {
		a.quit()
		a.current = i
	}
}
