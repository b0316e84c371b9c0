package latch

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

var (
	// ErrNotInitialized is returned when there is no latch or wait group of that name. It is also
	// returned when the wait group has no workers because all were dismissed.
	ErrNotInitialized = errors.New("not initialized")

	// ErrDeleted is returned when the latch or wait group was deleted, expired, or was lost by Redis
	// while the caller waited.
	ErrDeleted = errors.New("deleted before it was done")
)

// The advice in the error depends on the type.
var (
	errNoLatch     = fmt.Errorf("%w: call TrySetCount first", ErrNotInitialized)
	errNoWaitGroup = fmt.Errorf("%w: no worker was added, or all were dismissed", ErrNotInitialized)
)

// MaxCount is the maximum count of a latch.
const MaxCount = 1<<53 - 1

const (
	keptCalls   = time.Hour      // how long Redis remembers a call, so that a delayed duplicate has no effect
	keptParts   = 24 * time.Hour // how long Redis stores a named part, and the minimum lifetime of the extra keys of a latch after a call
	keptTraces  = 2 * keptParts  // the TTL of these keys, which the scripts renew when less than half is left
	keptLost    = time.Minute    // how long a client remembers the mark of a worker after its lease; must exceed the clock skew
	maxPartName = 256            // maximum size of a part name in bytes
)

var kind = &session.Kind{
	Name:        "latch",
	DisplayName: "a latch",
	Scripts: session.Scripts{
		Keys: keys.Latch,
	},
}

// A Latch is a handle of one countdown latch. It is safe for concurrent use. It holds no resources
// and need not be closed.
type Latch struct {
	all  *Latches      // set once
	name string        // set once
	spec *session.Spec // set once
}

// New is for package client. Use client.Client.NewLatch.
func (all *Latches) New(name string) *Latch {
	spec := all.session.NewSpec(kind, name, nil)
	if err := keys.CheckLatch(all.session.KeyPrefix, name); err != nil {
		spec.Err = err
	}
	return &Latch{all: all, name: name, spec: spec}
}

// Name returns the name as the caller gave it.
func (l *Latch) Name() string { return l.name }

// newCall returns a call with a unique ID.
func newCall() luascripts.LatchCall {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return luascripts.LatchCall{ID: string(id[:]), Keep: keptCalls, Stay: keptTraces}
}

type script = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.LatchState, luascripts.Verdict, error)

type change = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, call luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error)

// change runs a script that changes the latch. The ID of the call makes it safe to repeat.
func (l *Latch) change(ctx context.Context, op string, call luascripts.LatchCall, f change) (luascripts.LatchState, error) {
	return l.run(ctx, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.LatchState, luascripts.Verdict, error) {
		defer func() { call.Again = true }() // copies are sent one after the other
		return f(ctx, rdb, k, call)
	})
}

// run executes an idempotent script.
func (l *Latch) run(ctx context.Context, op string, f script) (luascripts.LatchState, error) {
	return session.Ask(ctx, l.all.session, l.spec, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.LatchState, error) {
		state, verdict, err := f(ctx, rdb, k)
		return state, command.Foreign(verdict, err)
	})
}

// wrap adds the operation and the name to err. It returns nil for nil.
func (l *Latch) wrap(op string, err error) error {
	if _, named := err.(*lock.Error); named || err == nil {
		return err
	}
	return &lock.Error{Op: op, Name: l.name, Err: err}
}

// TrySetCount creates the latch with the count n if it was released, deleted or never created. The
// count must be at least 1 and at most [MaxCount]. If there is a latch, TrySetCount reports false
// and its count stays.
//
// If no reply comes within the operation timeout of the client, or ctx is canceled first, the latch
// may have been created. A repeated call then reports false because of the latch of the first call.
func (l *Latch) TrySetCount(ctx context.Context, n int64) (created bool, err error) {
	const op = "set count"
	if n < 1 || n > MaxCount {
		return false, l.wrap(op, fmt.Errorf("count %d: must be from 1 to %d", n, int64(MaxCount)))
	}
	s, err := l.change(ctx, op, newCall(), func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, call luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error) {
		return luascripts.InitLatch(ctx, rdb, k, n, call)
	})
	return s.Did > 0, err
}

// CountDown decrements the count by one and returns the remaining count. It counts once, however
// often the command is sent. At 0 the latch is released, and all callers of Wait return, in Java as
// well. It has no effect on a released latch, and returns 0 then. If there is no latch, the error
// matches [ErrNotInitialized].
//
// If the reply is lost and the command is repeated, the returned count can include later calls. It
// is still 0 only for the call that released the latch.
//
// Calls of one client are batched. Calls that arrive while commands of the latch are in flight wait
// for the next command, which counts all of them. If ctx is canceled before that command is sent,
// the call does not count.
//
// If no reply comes within the operation timeout of the client, or ctx is canceled or the client is
// closed first, it is not known whether the call counted. The call is not undone. To repeat calls,
// use [Latch.CountDownOnce].
func (l *Latch) CountDown(ctx context.Context) (left int64, err error) {
	if l.spec.Err != nil {
		return l.counted(luascripts.LatchState{}, l.spec.Err)
	}
	c := l.all.enter(l)
	defer l.all.leave(l, c)
	r, err := c.batcher.Ask(ctx, count{})
	return l.counted(r.state, cmp.Or(err, r.err))
}

// CountDownOnce is CountDown for a named part of the work. A name counts once in each round of the
// latch, whichever process calls it, and however often. A caller can therefore repeat the call
// after an error. A restarted worker can count a part that may have been counted before. The name
// must have 1 to 256 bytes. It is stored for a day.
//
// A command of a call that returned an error can still arrive. If the latch was created again
// before that, the command counts in the new round. If a latch has several rounds, use different
// names in each round.
func (l *Latch) CountDownOnce(ctx context.Context, part string) (left int64, err error) {
	if part == "" || len(part) > maxPartName {
		return 0, l.wrap(countDown, fmt.Errorf("part name of %d bytes: must be from 1 to %d bytes", len(part), maxPartName))
	}
	call := newCall()
	call.Part, call.Keep = part, keptParts
	return l.counted(l.change(ctx, countDown, call, luascripts.CountDownLatch))
}

const countDown = "count down"

// counted returns the result of a call that counts down.
func (l *Latch) counted(s luascripts.LatchState, err error) (left int64, _ error) {
	if err == nil && s.Did == 0 && !s.IsOpen() {
		err = errNoLatch
	}
	return s.Left, l.wrap(countDown, err)
}

// counter counts one latch down for all callers of a client.
type counter struct {
	batcher *command.Batcher[count]
	callers int // guarded by Latches.mu
}

// count is a call of CountDown, and its reply.
type count struct {
	state luascripts.LatchState
	err   error
}

// enter returns the counter of a latch, for a caller that must leave it.
func (all *Latches) enter(l *Latch) *counter {
	key := l.spec.Keys.Lock
	all.mu.Lock()
	defer all.mu.Unlock()
	c := all.counters[key]
	if c == nil {
		one, drop := func(*count) int { return 1 }, func(*count) bool { return true }
		c = &counter{batcher: command.NewBatcher(all.sender, l.countDown, one, luascripts.MostCounts, drop)}
		all.counters[key] = c
	}
	c.callers++
	return c
}

// leave ends an enter.
func (all *Latches) leave(l *Latch, c *counter) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if c.callers--; c.callers == 0 {
		delete(all.counters, l.spec.Keys.Lock)
	}
}

// countDown counts for several calls. All copies of its command count for all of them, so one record in Redis is enough.
func (l *Latch) countDown(calls []*count) (replied bool) {
	call := newCall()
	call.Count = int64(len(calls))
	s, err := l.change(context.Background(), countDown, call, luascripts.CountDownLatch)
	for i, c := range calls {
		c.state, c.err = s, err
		after := s.Did - 1 - int64(i) // how many of the others counted after this one
		c.state.Left, c.state.Did = s.Left+max(after, 0), 0
		if after >= 0 {
			c.state.Did = 1
		}
	}
	return err == nil
}

// Count returns the remaining count, which is 0 for a released latch. If there is no latch, the
// error matches [ErrNotInitialized].
func (l *Latch) Count(ctx context.Context) (left int64, err error) {
	const op = "count"
	s, err := l.read(ctx, op)
	if err == nil && s.Left == 0 && !s.IsOpen() {
		err = errNoLatch
	}
	return s.Left, l.wrap(op, err)
}

func (l *Latch) read(ctx context.Context, op string) (luascripts.LatchState, error) {
	return l.run(ctx, op, func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.LatchState, luascripts.Verdict, error) {
		return luascripts.LatchStatus(ctx, rdb, k, keptTraces)
	})
}

// Delete deletes the latch. Callers of Wait fail with [ErrDeleted]. Waiters in Java continue to
// wait, because Redisson does not notify them. Delete succeeds if there is no latch.
func (l *Latch) Delete(ctx context.Context) error {
	_, err := l.change(ctx, "delete", newCall(), luascripts.DeleteLatch)
	return err
}

// Wait waits until the latch is released or ctx is canceled. It returns immediately if the latch is
// already released. If the latch is created again in the meantime, that is a new round, and Wait
// still waits for the round that it found.
//
// If there is no latch of that name, the error matches [ErrNotInitialized]. If a caller may come
// before the latch is created, it should call TrySetCount first. Any participant can. If the latch is
// deleted, expires, or is lost by Redis before it is released, the error matches [ErrDeleted].
// While Redis is unavailable, Wait retries. If ctx is canceled then, the error matches ctx.Err()
// and lock.ErrUnavailable. Redis stores only the latest round that was released and the latest that
// was deleted. If several rounds pass while Redis is unavailable, and a later round was deleted or
// Redis lost its keys, the error matches [ErrDeleted] even if the round that Wait found was
// released.
//
// Wait requires one round trip. All callers of a client that wait for one latch share a
// subscription and one poll per second.
func (l *Latch) Wait(ctx context.Context) error {
	const op = "wait"
	if l.spec.Err != nil {
		return l.wrap(op, l.spec.Err)
	}
	return l.wrap(op, l.all.wait(ctx, l.spec.Keys.Lock, l.spec.Keys.Channel, func(ctx context.Context) (any, error) { return l.read(ctx, op) }, &round{}))
}

// round is the round of a latch that a caller waits for.
type round struct{ number int64 } // 0 before the first read; guarded by Latches.mu

// check reports whether the state that was read ends the wait, and with which error.
func (r *round) check(found any) (done bool, err error) {
	s := found.(luascripts.LatchState)
	switch {
	case r.number == 0 && s.IsOpen():
		return true, nil
	case r.number == 0 && s.Left == 0:
		return true, errNoLatch
	case r.number == 0:
		r.number = s.Round
		return false, nil
	case s.Open == r.number: // even if it was deleted after its release
		return true, nil
	case s.Gone >= r.number:
		return true, ErrDeleted
	case s.Open > r.number:
		return true, nil
	case s.Round != r.number || s.Left == 0: // Redis lost the extra keys
		return true, ErrDeleted
	}
	return false, nil
}
