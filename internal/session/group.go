package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// TakeAll is a script that takes several locks at once, all or none.
type TakeAll func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (a luascripts.Acquired, first int, err error)

// CanGroup reports whether one script can take the locks of specs: they are
// different ones, ask for nothing that such a script does not know of, and share
// a slot where there are slots.
func (s *Session) CanGroup(specs []*Spec) bool {
	seen := make(map[string]bool)
	for _, spec := range specs {
		if spec.Err != nil || spec.Replicas > 0 || spec.Keys.Register != "" || seen[spec.Keys.Lock] {
			return false
		}
		seen[spec.Keys.Lock] = true
		if s.rdb.Mode() == rueidis.ClientModeCluster && keys.Tag(spec.Keys.Lock) != keys.Tag(specs[0].Keys.Lock) {
			return false
		}
	}
	return len(specs) > 0
}

// group is one call that takes several locks at once.
type group struct {
	s       *Session
	script  TakeAll
	specs   []*Spec   // in the order of their keys
	claims  []*claim  // of each; this call has their turns
	tenures []*tenure // of each
}

// LockAll waits for all locks of specs, or tries once, and takes them together by
// script: a hold for each, in order, or none. It fails with errors.ErrUnsupported
// when they must be taken one by one: the owner holds one of them already, or the
// server keeps them in different slots.
//
// While one of them is another's it holds none, and stands in the line of that
// one. So nobody ever waits for a call that waits itself. But locks that are busy all
// the time are hardly ever free together. Once they have changed hands too often before
// its eyes, LockAll fails with errors.ErrUnsupported, too: one by one, each comes in turn.
func (s *Session) LockAll(ctx context.Context, specs []*Spec, script TakeAll, wait bool) ([]lock.Hold, error) {
	g := &group{s: s, script: script, specs: slices.Clone(specs)}
	slices.SortFunc(g.specs, func(a, b *Spec) int { return strings.Compare(a.Keys.Lock, b.Keys.Lock) })
	holds, about, err := g.enter(ctx, wait)
	if errors.Is(err, errors.ErrUnsupported) {
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
		return nil, &lock.Error{Op: op, Name: about.Name, Err: err}
	}
	inOrder := make([]lock.Hold, len(specs))
	for i, spec := range specs {
		h := holds[slices.Index(g.specs, spec)]
		s.limit(h, spec)
		inOrder[i] = h
	}
	return inOrder, nil
}

// enter also returns which lock an error is about.
func (g *group) enter(ctx context.Context, wait bool) (holds []*hold, about *Spec, err error) {
	s := g.s
	if err := ctx.Err(); err != nil {
		return nil, g.specs[0], err
	}
	if err := s.begin(); err != nil {
		return nil, g.specs[0], err
	}
	defer s.work.Done()
	number, ok := lock.OwnerFrom(ctx)
	if !ok {
		number = owner.New()
	}

	began := time.Now()
	waiting, limit := ctx, time.Duration(0)
	for _, spec := range g.specs {
		if spec.Wait > 0 && (limit == 0 || spec.Wait < limit) {
			limit = spec.Wait
		}
	}
	if wait && limit > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	// In the order of the keys, as two groups of one owner may share some.
	for _, spec := range g.specs {
		c := s.claim(claimID{spec.place(), number})
		defer s.drop(c)
		if !wait && s.asking(c) {
			return nil, spec, s.behind(spec.place()) // another goroutine of this owner waits for it already
		}
		within := time.Duration(0)
		if !wait {
			within = max(s.OpTimeout-time.Since(began), time.Millisecond)
		}
		if err := s.take(waiting, c.turn, within); err != nil {
			return nil, spec, s.ended(c, err)
		}
		defer c.leave()
		if s.tenure(c) != nil {
			return nil, spec, errors.ErrUnsupported
		}
		g.claims = append(g.claims, c)
	}
	if !wait {
		return g.try(ctx)
	}
	holds, about, err = g.wait(ctx, waiting)
	if err != nil && faultOf(err).again && waiting.Err() != nil && ctx.Err() == nil {
		err = waited{limit, err}
	}
	return holds, about, err
}

// begin makes the tenures of the next questions.
func (g *group) begin() {
	g.tenures = nil
	for i, spec := range g.specs {
		g.tenures = append(g.tenures, g.s.newTenure(spec, g.claims[i]))
	}
}

// fail ends the tenures, and sees to it that nothing of them is left in Redis.
func (g *group) fail(err error) error {
	for _, t := range g.tenures {
		_ = t.fail(err)
	}
	return err
}

// unsure reports whether an earlier question may have been carried out.
func (g *group) unsure() bool {
	return slices.ContainsFunc(g.tenures, (*tenure).isUnsure)
}

// ahead returns a lock for which others of this process wait, or -1.
func (g *group) ahead() int {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return slices.IndexFunc(g.specs, func(spec *Spec) bool { return g.s.lines[spec.place()] != nil })
}

func (g *group) try(ctx context.Context) ([]*hold, *Spec, error) {
	if i := g.ahead(); i >= 0 {
		return nil, g.specs[i], g.s.behind(g.specs[i].place())
	}
	g.begin()
	end := time.Now().Add(g.s.OpTimeout)
	pause := retry.Backoff{Most: g.s.OpTimeout / 4}
	for {
		holds, at, _, err := g.ask(ctx, ctx, max(time.Until(end), time.Millisecond))
		switch {
		case holds != nil:
			return holds, nil, nil
		case err == nil:
			return nil, g.specs[at], g.fail(lock.ErrNotAcquired)
		}
		d := pause.Next()
		if !g.s.mayPass(err) || time.Until(end) <= d || !rest(ctx, d) {
			return nil, g.specs[at], g.fail(err)
		}
	}
}

// tooBusy is how often locks of a group may change hands while it waits for them.
const tooBusy = 3

// wait asks until all are granted together, or waiting ends. It stands in the line
// of the lock it was last refused, and in no other.
func (g *group) wait(ctx, waiting context.Context) (holds []*hold, about *Spec, err error) {
	g.begin()
	pause := retry.Backoff{Most: g.s.Poll}
	at, late := g.ahead(), 0
	var w *waiter // for the lock at
	defer func() {
		if w != nil {
			w.leave()
		}
	}()
	if at >= 0 {
		w = g.s.join(g.specs[at], passer)
	}
	var quiet silence
	var holder string
	told, changes := false, 0
	for {
		if w != nil {
			if err := w.turn(waiting); err != nil {
				if d := quiet.lasts(true, g.s.overdue()); d > 0 && err != lock.ErrClosed {
					err = g.s.silentFor(d, quiet.err)
				} else {
					err = g.s.ended(g.claims[at], err)
				}
				return nil, g.specs[at], g.fail(err)
			}
		}
		sent := time.Now()
		quiet.asks(sent)
		if w != nil {
			w.asks = sent
		}
		holds, refused, reply, err := g.ask(ctx, waiting, g.s.OpTimeout)
		switch {
		case holds != nil:
			if w != nil {
				w.granted(g.specs[at])
			}
			return holds, nil, nil
		case err == nil:
			if reply.Holder != holder {
				if changes++; changes > tooBusy {
					return nil, g.specs[refused], g.fail(final{errors.ErrUnsupported})
				}
				holder = reply.Holder
			}
			quiet.hears(sent)
			pause.Reset()
			if g.unsure() {
				// A question that broke off may have been carried out, and others
				// would wait for what it took.
				_ = g.fail(lock.ErrNotAcquired)
				g.begin()
			}
			if w != nil && refused != at {
				w.pass()
				w.leave()
				w = nil
			}
			if w == nil {
				at = refused
				w = g.s.join(g.specs[at], passer)
				w.asks = sent
			}
			if w.isFirst() {
				w.refused(g.tenures[at], reply.Left)
			}
			if !told {
				told = true
				g.s.observe(g.s.Observer.Waiting, g.tenures[at], lock.Event{})
			}
			continue
		case errors.As(err, new(tooLate)) && late < 2:
			late++
			_ = g.fail(err)
			g.begin()
			continue
		case !faultOf(err).again:
			return nil, g.specs[refused], g.fail(err)
		}
		over := waiting.Err() != nil // turn will say which of the two ended
		if !over {
			quiet.fails(sent, err)
		}
		if w == nil {
			at = refused
			w = g.s.join(g.specs[at], passer)
			w.asks = sent
		}
		if d := pause.Next(); w.isFirst() && !over {
			g.s.silent(g.specs[at], w.retryIn(err, d), err)
		}
	}
}

// ask sends one question for all locks. It returns a hold of each, or which lock
// was refused and what is known of its holder, or an error about one of them.
func (g *group) ask(ctx, waiting context.Context, limit time.Duration) (holds []*hold, at int, refusal luascripts.Acquired, err error) {
	s := g.s
	all := make([]luascripts.Taking, len(g.specs))
	tenures := g.tenures
	for i, t := range tenures {
		all[i] = luascripts.Taking{Keys: t.spec.Keys, Owner: t.owner, Lease: s.lease(t.spec)}
		t.mayTake(all[i].Lease)
	}
	type answer struct {
		luascripts.Acquired
		at int
	}
	sent := time.Now()
	reply, answered, err := await(waiting, s, limit, func(ctx context.Context) (answer, error) {
		a, at, err := g.script(ctx, s.rdb, all)
		return answer{a, at}, err
	}, func(a answer, err error) {
		if err == nil && a.Verdict != luascripts.Done || err != nil && !faultOf(err).mayHaveRun {
			return
		}
		for _, t := range tenures {
			if t.doubt() != lives {
				s.work.Go(func() { s.settle(t, err != nil) })
			} else {
				s.hint(t.spec)
			}
		}
	})
	switch {
	case !answered:
		return nil, 0, refusal, s.cutOff(sent, err) // the answer will go to late
	case err != nil:
		if reply, ok := rueidis.IsRedisErr(err); ok && strings.Contains(reply.Error(), "CROSSSLOT") {
			return nil, 0, refusal, final{errors.ErrUnsupported} // a cluster that looks like one server
		}
		if faultOf(err).mayHaveRun {
			for _, t := range tenures {
				t.doubt()
			}
		}
		return nil, 0, refusal, s.told(err)
	}
	switch reply.Verdict {
	case luascripts.Done:
		holds, at, err = g.granted(ctx, waiting, sent, reply.Token)
		return holds, at, refusal, err
	case luascripts.Held:
		return nil, reply.at, reply.Acquired, nil
	default:
		return nil, reply.at, refusal, s.foreign(waiting, g.specs[reply.at], final{lock.ErrForeignKey})
	}
}

// granted makes the first hold of each tenure, or of none.
func (g *group) granted(ctx, waiting context.Context, sent time.Time, token uint64) (holds []*hold, at int, err error) {
	err = waiting.Err() // crossed the end of the wait
	for i := 0; err == nil && i < len(g.tenures); i++ {
		var h *hold
		if h, err = g.s.granted(ctx, g.tenures[i], sent, token); err == nil {
			holds = append(holds, h)
		}
		at = i
	}
	if err == nil {
		return holds, 0, nil
	}
	for _, t := range g.tenures {
		t.end(released, t.wrap(err))
		t.doubt() // failing takes it back
	}
	return nil, at, err
}
