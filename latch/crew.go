package latch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A Crew is a handle of one crew: processes that work on one thing, and others that wait until all are done. It is safe for
// concurrent use. It has no resources and need not be closed.
//
// A member holds a lease, which is renewed while its process lives. Unlock says that the member is done. A member is lost when its lease ends before that, when
// its client is closed, when its hold is given up because Unlock did not follow the cancellation of the context given to Join in time (lock.WithGrace), or
// when it says so by [Member.Fail]; a lost member is never done. A crew is one key, leasehold_crew:{<name>},
// which stays for a day after it was last used, and longer than any lease. Use another name for each piece of work, or [Crew.Delete].
type Crew struct {
	all  *Latches      // set once
	name string        // set once
	spec *session.Spec // set once
}

// NewCrew is for package client; use client.Client.NewCrew.
func (all *Latches) NewCrew(name string, opts ...lock.Option) *Crew {
	return &Crew{all: all, name: name, spec: all.session.NewSpec(all.crews, name, opts)}
}

// newCrews returns the kind of the crews of a client: its Release has to know what each member of the client has to say.
func (all *Latches) newCrews() *session.Kind {
	return &session.Kind{
		Name:   "crew",
		Called: "a crew",
		Mode:   lock.Member,
		Waits:  place.AllAsk,
		Anew:   true,
		Scripts: session.Scripts{
			Keys:    keys.Crew,
			Acquire: luascripts.JoinCrew,
			Renew:   luascripts.RenewCrew,
			Release: func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, leave int) (luascripts.Verdict, error) {
				return luascripts.LeaveCrew(ctx, rdb, k, owner, leave, all.mark(owner))
			},
		},
	}
}

// mark returns what a member of this client leaves behind if it leaves now.
func (all *Latches) mark(owner string) luascripts.Mark {
	all.mu.Lock()
	defer all.mu.Unlock()
	if as, began := all.members[owner]; began {
		return as
	}
	return luascripts.NoMember // Join has not returned it
}

// setMark sets what a member of this client leaves behind.
func (all *Latches) setMark(owner string, as luascripts.Mark) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.members[owner] = as
}

// forget forgets a member of which Redis knows the mark.
func (all *Latches) forget(owner string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.members, owner)
}

// forgetLost forgets a member whose context has ended, also if nobody calls Unlock, or Redis did not hear of that. It waits until Redis does not
// count the member as alive: from then on a release leaves no mark. A member of which only the caller's context has ended can be renewed for longer.
func (all *Latches) forgetLost(h lock.Hold) {
	left := time.Until(h.Until())
	if left < -keptLost {
		all.forget(h.Owner())
		return
	}
	time.AfterFunc(left+keptLost+time.Millisecond, func() { all.forgetLost(h) })
}

// Name returns the name as it was given.
func (c *Crew) Name() string { return c.name }

// Member is a hold of a member of a crew. Its context ends as soon as the member is not certainly one, and with the context given to Join.
type Member struct {
	lock.Hold
	all  *Latches
	stop func() bool // the loss of the member is of no interest any more
}

// Join makes the caller a member of the crew, which the first one begins. It never has to wait for other members. While Redis is unavailable, it retries until
// ctx is canceled. Each call is a member of its own.
//
// If Redis does not respond for a whole lease during the call, Wait can name the caller as lost before Join returns; it is a member when Join returns. A
// copy of the command that comes after that changes nothing, however late it is: only [Crew.Delete] and the end of the crew's day forget its members.
func (c *Crew) Join(ctx context.Context) (*Member, error) {
	h, err := c.all.session.Lock(ctx, c.spec)
	if err != nil {
		var e *lock.Error
		if errors.As(err, &e) && e.Op == "lock" {
			err = &lock.Error{Op: "join", Name: e.Name, Err: e.Err}
		}
		return nil, err
	}
	c.all.setMark(h.Owner(), luascripts.MemberLost) // by Close, or until Unlock
	return &Member{h, c.all, context.AfterFunc(h.Context(), func() { c.all.forgetLost(h) })}, nil
}

// Do joins the crew, calls fn, and says that the member is done if fn returns nil. If fn returns an error, or
// panics, the member is lost. The error is that of Join, or those of fn and of the end of the membership, joined.
//
// The context of fn is canceled with ctx, and as soon as the membership can no longer be guaranteed. After ctx is canceled the caller stays a member until fn
// has returned, as for [lock.Do]; lock.HoldFrom gives fn the hold of the member.
func (c *Crew) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	w := worker{c: c}
	return lock.Do(ctx, &w, func(ctx context.Context) error {
		err := fn(ctx)
		w.done = err == nil // not when fn panics
		return err
	})
}

// worker is a member of a crew as a lock for [lock.Do].
type worker struct {
	c    *Crew
	done bool // the function has returned, without an error
}

func (w *worker) Name() string { return w.c.name }

func (w *worker) Lock(ctx context.Context) (lock.Hold, error) {
	m, err := w.c.Join(ctx)
	if err != nil {
		return nil, err
	}
	return workerHold{m, w}, nil
}

// TryLock is Lock: a member waits for no other.
func (w *worker) TryLock(ctx context.Context) (lock.Hold, error) { return w.Lock(ctx) }

// workerHold is a hold of a worker.
type workerHold struct {
	*Member
	w *worker
}

func (h workerHold) Unlock(ctx context.Context) error {
	if h.w.done {
		return h.Member.Unlock(ctx)
	}
	return h.Fail(ctx)
}

// Unlock says that the member is done, also when the context given to Join has ended. It fails as that of every hold does; if the member was lost
// before, it stays lost, and the error matches lock.ErrLost.
func (m *Member) Unlock(ctx context.Context) error { return m.end(ctx, luascripts.MemberDone) }

// Fail ends the membership of a member that is not done: it counts as lost from now on.
func (m *Member) Fail(ctx context.Context) error { return m.end(ctx, luascripts.MemberLost) }

func (m *Member) end(ctx context.Context, as luascripts.Mark) error {
	m.stop()
	if time.Now().Before(m.Until()) { // Err does not tell: a member whose caller's context has ended is one all the same
		m.all.setMark(m.Owner(), as)
	}
	err := m.Hold.Unlock(ctx)
	if err == nil {
		m.all.forget(m.Owner())
	} else { // a release may be on its way, which says the mark
		m.all.forgetLost(m.Hold)
	}
	return err
}

// ErrMemberLost: a member of the crew was lost. The error is also a [*LostError].
var ErrMemberLost = errors.New("a member was lost")

// A LostError names the members that were lost. It matches [ErrMemberLost].
type LostError struct {
	Lost    int64         // how many there are
	Members []lock.Holder // a hundred of them at most; Client says on which host, as far as Redis still knows that
}

// Error names the clients of the members, not their owner strings.
func (e *LostError) Error() string {
	var who []string
	for _, m := range e.Members {
		if len(who) == 10 {
			who = append(who, "…")
			break
		}
		who = append(who, m.Client.String())
	}
	return fmt.Sprintf("%v: %d, of %s", ErrMemberLost, e.Lost, strings.Join(who, ", "))
}

// Is reports whether target is [ErrMemberLost].
func (e *LostError) Is(target error) bool { return target == ErrMemberLost }

// Wait waits until all members of the crew are done. If members are lost, it fails at once with a [*LostError] that names them: another
// worker can do their part, and [Crew.Dismiss] lets Wait go on. If nobody has joined, or all that have joined were dismissed, the error matches
// [ErrNotInitialised]; [Crew.WaitFor] waits for members that have not come yet. If the crew is deleted, or Redis loses it, the error matches [ErrDeleted]. While Redis is
// unavailable, Wait retries. If ctx is canceled then, the error matches ctx.Err() and lock.ErrUnavailable.
//
// It costs as much as that of a latch. A lost member is seen within a second after the end of its lease.
func (c *Crew) Wait(ctx context.Context) error { return c.wait(ctx, "wait", 0) }

// WaitFor is Wait for a crew of n members or more: it waits until as many have joined, and all are done.
func (c *Crew) WaitFor(ctx context.Context, n int) error {
	const op = "wait for"
	if n < 1 {
		return c.wrap(op, fmt.Errorf("%d members: it must be 1 at least", n))
	}
	return c.wait(ctx, op, int64(n))
}

func (c *Crew) wait(ctx context.Context, op string, n int64) error {
	if c.spec.Err != nil {
		return c.wrap(op, c.spec.Err)
	}
	j := &crewRound{wants: n}
	err := c.all.wait(ctx, c.spec.Keys.Lock, c.spec.Keys.Channel, func(ctx context.Context) (any, error) { return c.look(ctx, op) }, j)
	var lost *LostError
	if errors.As(err, &lost) {
		c.who(ctx, lost)
	}
	return c.wrap(op, err)
}

// who adds the clients of lost members.
func (c *Crew) who(ctx context.Context, e *LostError) {
	state := lock.State{Name: c.name, Holders: e.Members}
	c.all.session.Clients(ctx, &state)
}

// look asks how the crew stands.
func (c *Crew) look(ctx context.Context, op string) (luascripts.CrewState, error) {
	return session.Ask(ctx, c.all.session, c.spec, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.CrewState, error) {
		s, v, err := luascripts.LookAtCrew(ctx, rdb, k)
		return s, command.Foreign(v, err)
	})
}

// crewRound is the crew that a caller waits for.
type crewRound struct {
	wants int64 // how many members must have joined; 0 is any number, and then nobody waits for the first one
	round int64 // 0 before the first look that found it
}

// judge says whether the wait is over by what a look has found, and with which error.
func (r *crewRound) judge(found any) (over bool, err error) {
	s := found.(luascripts.CrewState)
	switch {
	case r.round != 0 && s.Round != r.round:
		return true, ErrDeleted
	case s.Done+s.Alive+s.Lost == 0: // nobody has joined, or all are dismissed: nobody has done anything
		return r.wants == 0, ErrNotInitialised
	}
	r.round = s.Round
	if s.Lost > 0 {
		e := &LostError{Lost: s.Lost}
		for _, owner := range s.Some {
			e.Members = append(e.Members, lock.Holder{Owner: owner, Count: 1, Mode: lock.Member, Since: session.AskedSince(owner)})
		}
		return true, e
	}
	return s.Alive == 0 && s.Done >= r.wants, nil
}

// Dismiss takes lost members out of the crew, as another worker does their part: callers of Wait wait for the others again. The other worker joins
// before that, as Wait does not know of members that have not come; WaitFor does. Dismiss returns how many of the members are dismissed, now or by an
// earlier call. Members that are alive or done cannot be dismissed.
func (c *Crew) Dismiss(ctx context.Context, members ...lock.Holder) (dismissed int, err error) {
	owners := make([]string, len(members))
	for i, m := range members {
		owners[i] = m.Owner
	}
	n, err := session.Ask(ctx, c.all.session, c.spec, "dismiss", func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (int64, error) {
		n, v, err := luascripts.DismissFromCrew(ctx, rdb, k, owners)
		return n, command.Foreign(v, err)
	})
	return int(n), err
}

// Delete deletes the crew. Its members are lost, and learn of it at their next renewals; callers of Wait fail with [ErrDeleted]. It succeeds if
// there is no crew.
func (c *Crew) Delete(ctx context.Context) error {
	const op = "delete"
	s, err := c.look(ctx, op)
	if err != nil || s.Round == 0 {
		return err
	}
	_, err = session.Ask(ctx, c.all.session, c.spec, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (struct{}, error) {
		v, err := luascripts.DeleteCrew(ctx, rdb, k, s.Round)
		return struct{}{}, command.Foreign(v, err)
	})
	return err
}

// CrewState is a snapshot of a crew.
type CrewState struct {
	Name  string
	Done  int             // how many members are done
	Alive []lock.Holder   // the members at work
	Left  []time.Duration // what is left of the lease of each of them
	Lost  []lock.Holder   // the members that were lost
}

// Inspect returns a snapshot of the crew. It is consistent for up to a thousand members; more are read in parts. A crew that nobody has joined is
// empty.
func (c *Crew) Inspect(ctx context.Context) (CrewState, error) {
	all, err := session.Ask(ctx, c.all.session, c.spec, "inspect", func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) ([]luascripts.CrewMember, error) {
		all, v, err := luascripts.InspectCrew(ctx, rdb, k)
		return all, command.Foreign(v, err)
	})
	if err != nil {
		return CrewState{}, err
	}
	s := CrewState{Name: c.name}
	for _, m := range all {
		h := lock.Holder{Owner: m.Owner, Count: 1, Mode: lock.Member, Since: session.AskedSince(m.Owner)}
		switch m.Left {
		case luascripts.NoExpiry:
			s.Done++
		case 0:
			s.Lost = append(s.Lost, h)
		default:
			s.Alive, s.Left = append(s.Alive, h), append(s.Left, m.Left)
		}
	}
	for _, some := range [][]lock.Holder{s.Alive, s.Lost} {
		c.all.session.Clients(ctx, &lock.State{Name: c.name, Holders: some})
	}
	return s, nil
}

// wrap adds the operation and the name to err. It returns nil for nil.
func (c *Crew) wrap(op string, err error) error {
	var e *lock.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &lock.Error{Op: op, Name: c.name, Err: err}
}
