package latch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A WaitGroup is a handle of one wait group: workers that do a job together, and callers that wait
// until all workers are done. It is safe for concurrent use. It holds no resources and need not be
// closed.
//
// A worker holds a lease, which is renewed while its process lives. Done reports that the worker is
// done. A worker is lost if its lease expires before that, if its client is closed, if its hold is
// given up because Done did not follow the cancellation of the context given to Add in time
// (lock.WithGrace), or by [Worker.Fail]. A lost worker is never done.
//
// The wait group is one key, leasehold_crew:{<name>}, which stays for a day after its last use, and
// longer than any lease. Use a new name for each job, or call [WaitGroup.Delete].
type WaitGroup struct {
	all  *Latches      // set once
	name string        // set once
	spec *session.Spec // set once
}

// NewWaitGroup is for package client. Use client.Client.NewWaitGroup.
func (all *Latches) NewWaitGroup(name string, opts ...lock.Option) *WaitGroup {
	return &WaitGroup{all: all, name: name, spec: all.session.NewSpec(all.waitGroups, name, opts)}
}

// newWaitGroups returns the kind of the wait groups of a client: its Release has to know what each worker of the client has to say.
func (all *Latches) newWaitGroups() *session.Kind {
	return &session.Kind{
		Name:         "waitgroup",
		DisplayName:  "a wait group",
		Mode:         lock.Worker,
		WaitPolicy:   lockstate.AllAtOnce,
		NonReentrant: true,
		Scripts: session.Scripts{
			Keys:    keys.WaitGroup,
			Acquire: luascripts.JoinWaitGroup,
			Renew:   luascripts.RenewWaitGroup,
			Release: func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, leave int) (luascripts.Verdict, error) {
				return luascripts.LeaveWaitGroup(ctx, rdb, k, owner, leave, all.mark(owner))
			},
		},
	}
}

// mark returns what a worker of this client leaves behind if it leaves now.
func (all *Latches) mark(owner string) luascripts.Mark {
	all.mu.Lock()
	defer all.mu.Unlock()
	if as, began := all.workers[owner]; began {
		return as
	}
	return luascripts.NoWorker // Join has not returned it
}

// setMark sets what a worker of this client leaves behind.
func (all *Latches) setMark(owner string, as luascripts.Mark) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.workers[owner] = as
}

// forget forgets a worker of which Redis knows the mark.
func (all *Latches) forget(owner string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.workers, owner)
}

// forgetLost forgets a worker whose context has ended, also if nobody calls Unlock, or Redis did not hear of that. It waits until Redis does not
// count the worker as alive: from then on a release leaves no mark. A worker of which only the caller's context has ended can be renewed for longer.
func (all *Latches) forgetLost(h lock.Hold) {
	left := time.Until(h.Until())
	if left < -keptLost {
		all.forget(h.Owner())
		return
	}
	time.AfterFunc(left+keptLost+time.Millisecond, func() { all.forgetLost(h) })
}

// Name returns the name as the caller gave it.
func (c *WaitGroup) Name() string { return c.name }

// Worker is the hold of a worker. Its context is canceled as soon as it can no longer be guaranteed
// that the worker counts as alive, and with the context given to Add.
type Worker struct {
	lock.Hold
	all  *Latches
	stop func() bool // the loss of the worker is of no interest any more
}

// Add adds the caller to the wait group as a worker, and creates the wait group if it is the first.
// It never waits for other workers. While Redis is unavailable, it retries until ctx is canceled.
// Each call adds a new worker.
//
// If Redis does not respond for a whole lease during the call, Wait can report the caller as lost
// before Add returns; the caller counts as alive again when Add returns. A delayed duplicate of the
// command changes nothing: only [WaitGroup.Delete], and the expiry of the key, remove the workers.
func (c *WaitGroup) Add(ctx context.Context) (*Worker, error) {
	h, err := c.all.session.Lock(ctx, c.spec)
	if err != nil {
		var e *lock.Error
		if errors.As(err, &e) && e.Op == "lock" {
			err = &lock.Error{Op: "add", Name: e.Name, Err: e.Err}
		}
		return nil, err
	}
	c.all.setMark(h.Owner(), luascripts.WorkerLost) // by Close, or until Unlock
	return &Worker{h, c.all, context.AfterFunc(h.Context(), func() { c.all.forgetLost(h) })}, nil
}

// Do adds a worker, calls fn, and reports the worker as done if fn returns nil. If fn returns an
// error or panics, the worker is lost. Do returns the error of Add, or joins the errors of fn
// and of the end of the hold.
//
// The context of fn is canceled with ctx, and as soon as it can no longer be guaranteed that the
// worker counts as alive. After ctx is canceled the worker counts as alive until fn has returned,
// as for [lock.Do]; lock.HoldFromContext gives fn the hold.
func (c *WaitGroup) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	w := worker{c: c}
	return lock.Do(ctx, &w, func(ctx context.Context) error {
		err := fn(ctx)
		w.done = err == nil // not when fn panics
		return err
	})
}

// worker is a worker of a wait group as a lock for [lock.Do].
type worker struct {
	c    *WaitGroup
	done bool // the function has returned, without an error
}

func (w *worker) Name() string { return w.c.name }

func (w *worker) Lock(ctx context.Context) (lock.Hold, error) {
	m, err := w.c.Add(ctx)
	if err != nil {
		return nil, err
	}
	return workerHold{m, w}, nil
}

// TryLock is Lock: a worker waits for no other worker.
func (w *worker) TryLock(ctx context.Context) (lock.Hold, error) { return w.Lock(ctx) }

// workerHold is a hold of a worker.
type workerHold struct {
	*Worker
	w *worker
}

func (h workerHold) Unlock(ctx context.Context) error {
	if h.w.done {
		return h.Worker.Unlock(ctx)
	}
	return h.Fail(ctx)
}

// Done reports that the worker is done. It works even after the context given to Add is canceled.
// If the worker was lost before, it stays lost, and the error matches lock.ErrLost. Other errors
// are those of lock.Hold.Unlock.
func (m *Worker) Done(ctx context.Context) error { return m.end(ctx, luascripts.WorkerDone) }

// Unlock is Done, so that a Worker is a [lock.Hold].
func (m *Worker) Unlock(ctx context.Context) error { return m.Done(ctx) }

// Fail reports that the worker failed: from now on it counts as lost.
func (m *Worker) Fail(ctx context.Context) error { return m.end(ctx, luascripts.WorkerLost) }

func (m *Worker) end(ctx context.Context, as luascripts.Mark) error {
	m.stop()
	if time.Now().Before(m.Until()) { // Err does not tell: a worker whose caller's context has ended is one all the same
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

// ErrWorkerLost is returned when a worker was lost. The error is also a [*LostError].
var ErrWorkerLost = errors.New("worker lost")

// A LostError names the workers that were lost. It matches [ErrWorkerLost].
type LostError struct {
	Lost    int64         // how many there are
	Workers []lock.Holder // at most 100 of them; Client names the host, as far as Redis still stores it
}

// Error names the clients of the workers, not their owner strings.
func (e *LostError) Error() string {
	var who []string
	for _, m := range e.Workers {
		if len(who) == 10 {
			who = append(who, "…")
			break
		}
		who = append(who, m.Client.String())
	}
	return fmt.Sprintf("%v: %d, of %s", ErrWorkerLost, e.Lost, strings.Join(who, ", "))
}

// Is reports whether target is [ErrWorkerLost].
func (e *LostError) Is(target error) bool { return target == ErrWorkerLost }

// Wait waits until all workers are done. If workers are lost, it fails immediately with a
// [*LostError] that names them. Another worker can then do their part, and [WaitGroup.Dismiss] lets Wait
// continue.
//
// If no worker was added, or all were dismissed, the error matches [ErrNotInitialized]; use
// [WaitGroup.WaitFor] to wait for workers that have not been added yet. If the wait group is deleted, or
// Redis loses it, the error matches [ErrDeleted]. While Redis is unavailable, Wait retries. If ctx
// is canceled then, the error matches ctx.Err() and lock.ErrUnavailable.
//
// Wait costs as much as Wait of a latch. It detects a lost worker within a second after its lease
// expired.
func (c *WaitGroup) Wait(ctx context.Context) error { return c.wait(ctx, "wait", 0) }

// WaitFor is Wait for at least n workers: it waits until that many were added and all are done.
func (c *WaitGroup) WaitFor(ctx context.Context, n int) error {
	const op = "wait for"
	if n < 1 {
		return c.wrap(op, fmt.Errorf("%d workers: must be at least 1", n))
	}
	return c.wait(ctx, op, int64(n))
}

func (c *WaitGroup) wait(ctx context.Context, op string, n int64) error {
	if c.spec.Err != nil {
		return c.wrap(op, c.spec.Err)
	}
	j := &waitGroupRound{wants: n}
	err := c.all.wait(ctx, c.spec.Keys.Lock, c.spec.Keys.Channel, func(ctx context.Context) (any, error) { return c.look(ctx, op) }, j)
	var lost *LostError
	if errors.As(err, &lost) {
		c.who(ctx, lost)
	}
	return c.wrap(op, err)
}

// who adds the clients of lost workers.
func (c *WaitGroup) who(ctx context.Context, e *LostError) {
	state := lock.State{Name: c.name, Holders: e.Workers}
	c.all.session.Clients(ctx, &state)
}

// look asks how the wait group stands.
func (c *WaitGroup) look(ctx context.Context, op string) (luascripts.WaitGroupState, error) {
	return session.Ask(ctx, c.all.session, c.spec, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.WaitGroupState, error) {
		s, v, err := luascripts.LookAtWaitGroup(ctx, rdb, k)
		return s, command.Foreign(v, err)
	})
}

// waitGroupRound is the wait group that a caller waits for.
type waitGroupRound struct {
	wants int64 // how many workers must have joined; 0 is any number, and then nobody waits for the first one
	round int64 // 0 before the first look that found it
}

// judge says whether the wait is over by what a look has found, and with which error.
func (r *waitGroupRound) judge(found any) (over bool, err error) {
	s := found.(luascripts.WaitGroupState)
	switch {
	case r.round != 0 && s.Round != r.round:
		return true, ErrDeleted
	case s.Done+s.Alive+s.Lost == 0: // nobody has joined, or all are dismissed: nobody has done anything
		return r.wants == 0, errNoWaitGroup
	}
	r.round = s.Round
	if s.Lost > 0 {
		e := &LostError{Lost: s.Lost}
		for _, owner := range s.Some {
			e.Workers = append(e.Workers, lock.Holder{Owner: owner, Count: 1, Mode: lock.Worker, Since: session.AskedSince(owner)})
		}
		return true, e
	}
	return s.Alive == 0 && s.Done >= r.wants, nil
}

// Dismiss removes lost workers from the wait group because other workers do their part: callers of
// Wait then wait for the rest again. Add the new worker first, because Wait does not know of
// workers that have not been added; WaitFor does. Dismiss returns how many of the workers are
// dismissed, now or by an earlier call. Workers that are alive or done cannot be dismissed.
func (c *WaitGroup) Dismiss(ctx context.Context, workers ...lock.Holder) (dismissed int, err error) {
	owners := make([]string, len(workers))
	for i, m := range workers {
		owners[i] = m.Owner
	}
	n, err := session.Ask(ctx, c.all.session, c.spec, "dismiss", func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (int64, error) {
		n, v, err := luascripts.DismissFromWaitGroup(ctx, rdb, k, owners)
		return n, command.Foreign(v, err)
	})
	return int(n), err
}

// Delete deletes the wait group. Its workers are lost, and detect that with their next renewals.
// Callers of Wait fail with [ErrDeleted]. Delete succeeds if there is no wait group.
func (c *WaitGroup) Delete(ctx context.Context) error {
	const op = "delete"
	s, err := c.look(ctx, op)
	if err != nil || s.Round == 0 {
		return err
	}
	_, err = session.Ask(ctx, c.all.session, c.spec, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (struct{}, error) {
		v, err := luascripts.DeleteWaitGroup(ctx, rdb, k, s.Round)
		return struct{}{}, command.Foreign(v, err)
	})
	return err
}

// WaitGroupState is a snapshot of a wait group.
type WaitGroupState struct {
	Name  string
	Done  int             // number of workers that are done
	Alive []lock.Holder   // workers that are alive
	Left  []time.Duration // remaining lease time of each of them
	Lost  []lock.Holder   // workers that were lost
}

// Inspect returns a snapshot of the wait group. It is consistent for up to 1,000 workers; more are
// read in parts. A wait group without workers is empty.
func (c *WaitGroup) Inspect(ctx context.Context) (WaitGroupState, error) {
	all, err := session.Ask(ctx, c.all.session, c.spec, "inspect", func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) ([]luascripts.WaitGroupWorker, error) {
		all, v, err := luascripts.InspectWaitGroup(ctx, rdb, k)
		return all, command.Foreign(v, err)
	})
	if err != nil {
		return WaitGroupState{}, err
	}
	s := WaitGroupState{Name: c.name}
	for _, m := range all {
		h := lock.Holder{Owner: m.Owner, Count: 1, Mode: lock.Worker, Since: session.AskedSince(m.Owner)}
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
func (c *WaitGroup) wrap(op string, err error) error {
	var e *lock.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &lock.Error{Op: op, Name: c.name, Err: err}
}
