package latch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A WaitGroup is a handle of one wait group. Its workers do a job together, and callers wait until
// all workers are done. It is safe for concurrent use. It holds no resources and need not be
// closed.
//
// A worker holds a lease, which is renewed while its process lives. Done reports that the worker is
// done. A worker is lost if its lease expires before that, if its client is closed, or by
// [Worker.Fail]. It is also lost if the context given to Add is canceled, and Done does not follow
// in time (lock.WithGrace). A lost worker is never done.
//
// The wait group stays in Redis for at least a day after its last use, and longer than any of its leases. Use a new
// name for each job, or call [WaitGroup.Delete].
type WaitGroup struct {
	all  *Latches      // set once
	name string        // set once
	spec *session.Spec // set once
}

// NewWaitGroup is for package client. Use client.Client.NewWaitGroup.
func (all *Latches) NewWaitGroup(name string, opts ...lock.Option) *WaitGroup {
	return &WaitGroup{all: all, name: name, spec: all.session.NewSpec(all.waitGroups, name, opts)}
}

// newWaitGroups returns the kind of the wait groups of a client. It is created per client, because its Release uses the
// marks of the client's workers.
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

// mark returns the mark that a release of this worker sets.
func (all *Latches) mark(owner string) luascripts.Mark {
	all.mu.Lock()
	defer all.mu.Unlock()
	if as, began := all.workers[owner]; began {
		return as
	}
	return luascripts.NoWorker // Add has not returned it
}

// setMark sets the mark that a release of this worker sets.
func (all *Latches) setMark(owner string, as luascripts.Mark) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.workers[owner] = as
}

// forget removes the mark of a worker.
func (all *Latches) forget(owner string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.workers, owner)
}

// forgetLost removes the mark of a worker whose context is canceled, even if Unlock is never called. It first waits until
// Redis no longer counts the worker as alive, because a release then sets no mark. A worker is still renewed if only the
// caller's context is canceled.
func (all *Latches) forgetLost(h lock.Hold) {
	left := time.Until(h.Until()) + all.session.MayLive(h)
	if left < -keptLost {
		all.forget(h.Owner())
		return
	}
	time.AfterFunc(left+keptLost+time.Millisecond, func() { all.forgetLost(h) })
}

// Name returns the name as the caller gave it.
func (c *WaitGroup) Name() string { return c.name }

// Worker is the hold of a worker. Its context is canceled with the context given to Add. It is also
// canceled as soon as it can no longer be guaranteed that the worker counts as alive.
type Worker struct {
	lock.Hold
	c       *WaitGroup
	stop    func() bool // cancels forgetLost
	reports atomic.Bool // Done or Fail was called while the worker was alive
}

// Add adds the caller to the wait group as a worker, and creates the wait group if it is the first.
// It never waits for other workers. While Redis is unavailable, it retries until ctx is canceled.
// Each call adds a new worker.
//
// If Redis does not respond for a whole lease during the call, Wait can report the caller as lost
// before Add returns. The caller counts as alive again if Add succeeds, and stays lost if it fails.
// Any other Add that fails leaves no worker. A delayed duplicate of the command changes nothing.
// Only [WaitGroup.Delete], and the expiry of the key, remove the workers.
func (c *WaitGroup) Add(ctx context.Context) (*Worker, error) {
	h, err := c.all.session.Lock(ctx, c.spec)
	if err == nil {
		c.all.setMark(h.Owner(), luascripts.WorkerLost) // the mark until Unlock, for example for Close
		if time.Now().Before(h.Until()) {
			return &Worker{Hold: h, c: c, stop: context.AfterFunc(h.Context(), func() { c.all.forgetLost(h) })}, nil
		}
		c.all.forgetLost(h) // it has ended, perhaps with the mark of a worker that never started
		err = h.Err()
	}
	return nil, renamed(err, "add", "lock", "hold")
}

// renamed returns err with the operation op instead of one of the others. It returns nil for nil.
func renamed(err error, op string, others ...string) error {
	var e *lock.Error
	if errors.As(err, &e) && slices.Contains(others, e.Op) {
		return &lock.Error{Op: op, Name: e.Name, Err: e.Err}
	}
	return err
}

// Do adds a worker, calls fn, and reports the worker as done if fn returns nil. If fn returns an
// error or panics, the worker is lost. Do returns the error of Add, or joins the errors of fn
// and of the end of the hold.
//
// The context of fn is canceled with ctx, and as soon as it can no longer be guaranteed that the
// worker counts as alive. After ctx is canceled, the worker counts as alive until fn has returned,
// as for [lock.Do]. lock.HoldFromContext gives fn the hold.
func (c *WaitGroup) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	w := worker{c: c}
	return lock.Do(ctx, &w, func(ctx context.Context) error {
		w.began = true
		err := fn(ctx)
		w.done = err == nil // stays false if fn panics
		return err
	})
}

// worker adapts a wait group to the lock.Locker of [lock.Do].
type worker struct {
	c     *WaitGroup
	began bool // fn was called
	done  bool // fn has returned nil
}

func (w *worker) Name() string { return w.c.name }

func (w *worker) Lock(ctx context.Context) (lock.Hold, error) {
	m, err := w.c.Add(ctx)
	if err != nil {
		return nil, err
	}
	return workerHold{m, w}, nil
}

// TryLock is Lock, because a worker never waits for other workers.
func (w *worker) TryLock(ctx context.Context) (lock.Hold, error) { return w.Lock(ctx) }

// workerHold is the hold of a worker. Unlock calls Fail unless fn has returned nil. If ctx was canceled just after the
// grant, fn was not called, and Unlock leaves no worker.
type workerHold struct {
	*Worker
	w *worker
}

func (h workerHold) Unlock(ctx context.Context) error {
	switch {
	case h.w.done:
		return h.Worker.Unlock(ctx)
	case h.w.began:
		return h.Fail(ctx)
	}
	return h.end(ctx, "unlock", luascripts.NoWorker)
}

// Done reports that the worker is done. It works even after the context given to Add is canceled.
// If the worker was lost before, it stays lost, and the error matches lock.ErrLost. Other errors
// are those of lock.Hold.Unlock.
func (m *Worker) Done(ctx context.Context) error { return m.end(ctx, "done", luascripts.WorkerDone) }

// Unlock is the same as Done, so that a Worker is a [lock.Hold].
func (m *Worker) Unlock(ctx context.Context) error {
	return m.end(ctx, "unlock", luascripts.WorkerDone)
}

// Fail reports that the worker failed. From then on it counts as lost.
func (m *Worker) Fail(ctx context.Context) error { return m.end(ctx, "fail", luascripts.WorkerLost) }

func (m *Worker) end(ctx context.Context, op string, as luascripts.Mark) error {
	if ctx == nil {
		return m.Hold.Unlock(ctx) // it panics, and the worker can still report its end
	}
	all := m.c.all
	m.stop()
	if time.Now().Before(m.Until()) { // Err is not sufficient: a worker remains alive after its caller's context is canceled
		if m.reports.Swap(true) { // another goroutine has set its mark, and is about to end the hold
			return m.c.wrap(op, lock.ErrNotHeld)
		}
		all.setMark(m.Owner(), as)
	}
	err := m.Hold.Unlock(ctx)
	if err == nil {
		all.forget(m.Owner())
	} else { // a release that sets the mark may still be in flight
		all.forgetLost(m.Hold)
	}
	return renamed(err, op, "unlock")
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
	var clients []string
	for _, m := range e.Workers {
		if len(clients) == 10 {
			clients = append(clients, "…")
			break
		}
		clients = append(clients, m.Client.String())
	}
	return fmt.Sprintf("%v: %d, of %s", ErrWorkerLost, e.Lost, strings.Join(clients, ", "))
}

// Is reports whether target is [ErrWorkerLost].
func (e *LostError) Is(target error) bool { return target == ErrWorkerLost }

// Wait waits until all workers are done. If workers are lost, it fails immediately with a
// [*LostError] that names them. Another worker can then do their part, and [WaitGroup.Dismiss] lets Wait
// continue.
//
// If no worker was added, or all were dismissed, the error matches [ErrNotInitialized]. Use
// [WaitGroup.WaitFor] to wait for workers that have not been added yet. If the wait group is
// deleted, or Redis loses it, the error matches [ErrDeleted]. While Redis is unavailable, Wait
// retries. If ctx is canceled then, the error matches ctx.Err() and lock.ErrUnavailable.
//
// Wait requires as many commands as Wait of a latch. It detects a lost worker within a second after
// its lease expired.
func (c *WaitGroup) Wait(ctx context.Context) error { return c.wait(ctx, "wait", 0) }

// WaitFor waits until at least n workers were added and all are done. Otherwise it is like
// [WaitGroup.Wait].
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
	err := c.all.wait(ctx, c.spec.Keys.Lock, c.spec.Keys.Channel, func(ctx context.Context) (any, error) { return c.read(ctx, op) }, j)
	var lost *LostError
	if errors.As(err, &lost) {
		c.addClients(ctx, lost)
	}
	return c.wrap(op, err)
}

// addClients adds the clients of lost workers to e.
func (c *WaitGroup) addClients(ctx context.Context, e *LostError) {
	state := lock.State{Name: c.name, Holders: e.Workers}
	c.all.session.Clients(ctx, &state)
}

// read returns the state of the wait group.
func (c *WaitGroup) read(ctx context.Context, op string) (luascripts.WaitGroupState, error) {
	return session.Ask(ctx, c.all.session, c.spec, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.WaitGroupState, error) {
		s, v, err := luascripts.WaitGroupStatus(ctx, rdb, k)
		return s, command.Foreign(v, err)
	})
}

// waitGroupRound is the wait group that a caller waits for.
type waitGroupRound struct {
	wants int64 // minimum number of workers; 0 fails if there is none
	round int64 // 0 until a read has found the wait group
}

// check reports whether the state that was read ends the wait, and with which error.
func (r *waitGroupRound) check(found any) (done bool, err error) {
	s := found.(luascripts.WaitGroupState)
	switch {
	case r.round != 0 && s.Round != r.round:
		return true, ErrDeleted
	case s.Done+s.Alive+s.Lost == 0: // no worker was added, or all were dismissed
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

// Dismiss removes lost workers from the wait group because other workers do their part. Callers of
// Wait then wait for the rest again. Add the new worker first, because Wait does not wait for
// workers that have not been added. WaitFor does. Dismiss returns how many of the workers are
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

// Delete deletes the wait group. Its workers are lost, and detect that at their next renewals.
// Callers of Wait fail with [ErrDeleted]. Delete succeeds if there is no wait group.
func (c *WaitGroup) Delete(ctx context.Context) error {
	const op = "delete"
	s, err := c.read(ctx, op)
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

// Inspect returns a snapshot of the wait group. It is consistent for up to 1,000 workers. More are
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
	if _, named := err.(*lock.Error); named || err == nil {
		return err
	}
	return &lock.Error{Op: op, Name: c.name, Err: err}
}
