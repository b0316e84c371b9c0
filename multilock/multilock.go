package multilock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/mask"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// Lock is several locks as one, all or none. It is safe for concurrent use. Goroutines that share
// it exclude each other. It holds no resources and need not be closed.
type Lock struct {
	locks []lock.Locker // in the order in which they were given
	order []int         // the indexes of locks, in the order of their names
	batch bool          // attempts at all locks are sent in one batch
	err   error         // why they cannot form a multi-lock
}

var _ lock.Locker = (*Lock)(nil)

// New returns a lock that is held when all of locks are. They may be of any type and of any
// clients. A [Lock] among them is replaced by the locks that it is made of. New sends no command.
// An empty list, or a nil in it, makes the first call fail.
//
// A lock that is given twice is acquired twice, because one owner acquires all. Both sides of a
// read/write lock are therefore allowed. The same lock through two clients is not, because two
// clients are two owners, which wait for each other. The first call then fails, if Redis shows the
// owners of the lock. To acquire several permits of one semaphore, use the Locker that its N
// returns. Two Lockers of one semaphore are an error if they have the same client. Otherwise, Lock
// waits for as long as the semaphore has only one permit.
func New(locks ...lock.Locker) *Lock {
	m := &Lock{}
	for i, l := range locks {
		switch inner, ok := l.(*Lock); {
		case inner != nil:
			m.locks = append(m.locks, inner.locks...)
			m.err = errors.Join(m.err, inner.err)
		case ok || l == nil:
			m.err = errors.Join(m.err, fmt.Errorf("lock %d of %d is nil", i+1, len(locks)))
		default:
			m.locks = append(m.locks, l)
		}
	}
	for i, l := range m.locks {
		if err := checkOptions(l); err != nil {
			m.err = errors.Join(m.err, fmt.Errorf("lock %d of %d: %w", i+1, len(m.locks), err))
		}
	}
	if len(locks) == 0 {
		m.err = errors.New("multi-lock needs at least 1 lock; got 0")
	}
	m.err = errors.Join(m.err, checkPermits(m.locks))
	if m.err != nil { // mutant: never: nothing reads the order then
		return m
	}
	for i := range m.locks {
		m.order = append(m.order, i)
	}
	slices.SortStableFunc(m.order, func(i, j int) int { return strings.Compare(m.locks[i].Name(), m.locks[j].Name()) })
	m.batch = oneBatch(m.locks)
	return m
}

// oneBatch reports whether attempts at locks are sent in one batch. They are if all are different
// locks of one [lockimpl.Batched].
func oneBatch(locks []lock.Locker) bool {
	var batch any
	seen := map[string]bool{}
	for i, l := range locks {
		b, ok := l.(lockimpl.Batched)
		if !ok || seen[l.Name()] || i > 0 && b.Batch() != batch {
			return false
		}
		seen[l.Name()], batch = true, b.Batch()
	}
	return len(locks) > 1 // mutant: always, border: speed
}

// checkOptions returns an error if l has an option that delays its release. A call that cannot
// acquire all locks must release the others immediately.
func checkOptions(l lock.Locker) error {
	c, ok := l.(lockimpl.Configured)
	switch {
	case ok && c.Config().MinHold > 0:
		return fmt.Errorf("WithMinHold: not supported in a multi-lock; omit the option: %w", errors.ErrUnsupported)
	case ok && c.Config().Linger > 0: // a quorum reads the state of the server for each vote
		return fmt.Errorf("WithLinger: not supported in a multi-lock; omit the option: %w", errors.ErrUnsupported)
	}
	return nil
}

// checkPermits returns an error if two of locks acquire permits of one semaphore. Each has its own
// owner there, so they could wait for each other.
func checkPermits(locks []lock.Locker) error {
	seen := map[any]int{}
	for i, l := range locks {
		c, ok := l.(lockimpl.Counted)
		if !ok {
			continue
		}
		of, _ := c.Semaphore()
		if first, twice := seen[of]; twice {
			return fmt.Errorf("locks %d and %d of %d are permits of one semaphore: use its method N instead", first+1, i+1, len(locks))
		}
		seen[of] = i
	}
	return nil
}

// Name returns the names of the locks in the order in which they were given, joined by "+". It is
// for people. No lock in Redis has that name.
func (m *Lock) Name() string { return joined(m.locks) }

func joined(locks []lock.Locker) string {
	var names []string
	for _, l := range locks {
		if l != nil {
			names = append(names, l.Name())
		}
	}
	return strings.Join(names, "+")
}

// Lock waits until all locks are held or ctx is canceled. If ctx carries an owner, it re-enters the
// locks that the owner already holds.
//
// An error about a lock names that lock, and is the one that the lock returned. After an error,
// none of the locks is held. If one could not be released, the error reports it, and the release is
// repeated in the background. If ctx is canceled, Lock returns immediately and releases in the
// background.
//
// The lock.WithWait of a lock limits each wait for that lock.
func (m *Lock) Lock(ctx context.Context) (lock.Hold, error) { return m.acquire(ctx, "lock") }

// TryLock makes one attempt at each lock. It fails with lock.ErrNotAcquired if another owner has
// one of them, or another caller of this process is ahead in its queue. Locks that it had acquired
// before are released. If a release fails, the error matches that failure instead of
// lock.ErrNotAcquired, which is then only in the text.
func (m *Lock) TryLock(ctx context.Context) (lock.Hold, error) { return m.acquire(ctx, "trylock") }

func (m *Lock) acquire(ctx context.Context, op string) (lock.Hold, error) {
	if m.err != nil {
		return nil, &lock.Error{Op: op, Name: m.Name(), Err: m.err}
	}
	if _, ok := lockimpl.OwnerFrom(ctx); !ok {
		ctx = lock.ContextWithNewOwner(ctx)
	}
	holds, err := m.acquireAll(ctx, op)
	if err != nil {
		if errors.Is(err, lock.ErrUnavailable) && errors.Is(err, lock.ErrNotAcquired) { // mutant: operand 2: the same error in a wrapping
			err = mask.Error(err, lock.ErrNotAcquired) // the last command of some lock had no reply
		}
		return nil, err
	}
	return newHold(ctx, m, holds), nil
}

// acquireAll acquires a hold of each lock. If that fails, even by a panic of a lock's observer, it
// releases what it has acquired.
func (m *Lock) acquireAll(ctx context.Context, op string) (holds []lock.Hold, err error) {
	t := &acquisition{m: m, op: op, holds: make([]lock.Hold, len(m.locks)), lost: make([]int, len(m.locks))}
	defer func() {
		if holds == nil {
			releaseErr := releaseHolds(ctx, m.locks, t.holds)
			if err = errors.Join(err, releaseErr); releaseFailed(releaseErr) {
				err = mask.Error(err, lock.ErrNotAcquired)
			}
		}
	}()
	if m.batch {
		err = t.acquireBatch(ctx)
	}
	if err == nil {
		err = t.acquireInOrder(ctx) // those that are missing, or lost in the meantime
	}
	if err != nil {
		return nil, err
	}
	return t.holds, nil
}

// maxLosses is how often the hold of one lock may be lost while the call waits for the others. Then
// the call fails. One or two losses can be chance.
const maxLosses = 3

// acquisition is one call that acquires the locks.
type acquisition struct {
	m     *Lock
	op    string
	holds []lock.Hold // one for each lock; nil if it is not held
	lost  []int       // how often each hold was lost
	last  error       // why the latest attempt out of order failed; nil if it had another result
}

// maxBatches is how often a call waits for one of its locks and then finds another one held by
// another owner. After that, it acquires the locks one by one.
const maxBatches = 4

// acquireBatch acquires all locks at the same time, by attempts in one batch. If one of them fails,
// it releases the others and waits for that one. If the locks are so busy that they are rarely free
// together, it returns with that one alone.
func (t *acquisition) acquireBatch(ctx context.Context) error {
	for range maxBatches {
		i, err := t.tryOthers(ctx)
		if err == nil {
			return nil
		}
		if t.op == "trylock" {
			return withName(t.op, t.m.locks[i], err)
		}
		if ctx.Err() != nil {
			if err = withoutName(err); !errors.Is(err, ctx.Err()) { // mutant: always: text
				err = canceledError(ctx, err)
			}
			return &lock.Error{Op: t.op, Name: t.m.locks[i].Name(), Err: err}
		}
		_ = releaseHolds(ctx, t.m.locks, t.holds)
		if t.holds[i], err = t.acquireOne(ctx, i, false); err != nil { // returns a persistent error again, and waits otherwise
			return withName(t.op, t.m.locks[i], err)
		}
	}
	return nil
}

// tryOthers makes one attempt at each lock without a hold, at the same time, unless other callers of
// this process wait for one of them. It returns one error and the index of its lock: a failure
// rather than a rejection, a rejection rather than a cancellation, and otherwise the first in the
// order of the names.
func (t *acquisition) tryOthers(ctx context.Context) (failed int, err error) {
	for _, i := range t.m.order {
		if t.holds[i] != nil || t.m.locks[i].(lockimpl.Batched).Ahead() == nil {
			continue
		}
		// An owner that holds the lock re-enters. For any other owner, TryLock sends no command.
		if t.holds[i], err = t.m.locks[i].TryLock(ctx); err != nil { // mutant: always: speed
			return i, err
		}
	}
	errs := make([]error, len(t.holds))
	ends := make(chan func(), len(t.holds)) // nil, or how an observer ended the goroutine of an attempt
	attempts := 0
	for i, h := range t.holds {
		if h != nil {
			continue
		}
		attempts++
		go func() {
			end := runtime.Goexit
			defer func() {
				if p := recover(); p != nil {
					end = func() { panic(p) }
				}
				ends <- end
			}()
			t.holds[i], errs[i] = t.m.locks[i].TryLock(ctx)
			end = nil
		}()
	}
	var end func()
	for range attempts {
		if e := <-ends; e != nil {
			end = e
		}
	}
	if end != nil {
		end()
	}
	priority := func(err error) int {
		switch {
		case err == nil:
			return 0
		case errors.Is(err, lock.ErrNotAcquired):
			return 2
		case errors.Is(err, ctx.Err()):
			return 1
		default:
			return 3
		}
	}
	for _, i := range t.m.order {
		if priority(errs[i]) > priority(err) {
			failed, err = i, errs[i]
		}
	}
	return failed, err
}

// acquireInOrder acquires the locks in the order of their names. While it waits for a lock, it holds
// none that comes later, and no other of that name. Callers therefore cannot deadlock: a caller that
// waits for the last name waits for a caller that does not wait.
//
// It tries to acquire a lock out of order in two cases: if it holds others of that name, whose order
// is not known, or if the lease of that lock expired while it waited for later ones. It does not
// wait there. If the attempt is rejected, it releases the later ones and then waits.
func (t *acquisition) acquireInOrder(ctx context.Context) error {
	order := slices.Clone(t.m.order)
	for {
		at := slices.IndexFunc(order, func(i int) bool { return t.holds[i] == nil || t.holds[i].Err() != nil })
		if at < 0 {
			return nil
		}
		i := order[at]
		if ctx.Err() != nil { // the holds have ended, too
			// Not by withName: the cause can be the error of another lock, which has that lock's name.
			return &lock.Error{Op: t.op, Name: t.m.locks[i].Name(), Err: canceledError(ctx, t.last)}
		}
		if cause := t.releaseEnded(ctx, i); cause != nil {
			return &lock.Error{Op: t.op, Name: t.m.locks[i].Name(), Err: fmt.Errorf("the hold was lost %d times while the call waited for the other locks: %w", maxLosses, withoutName(cause))}
		}
		later := t.later(i)
		h, err := t.acquireOne(ctx, i, len(later) > 0)
		if same := t.heldByOther(ctx, i, err); same != nil {
			err = same
		}
		t.last = nil
		switch {
		case err == nil:
			t.holds[i] = h
		case len(later) > 0 && t.failedByOrder(err):
			t.last = withoutName(err)
			for _, j := range later {
				t.release(ctx, j)
			}
			first := slices.IndexFunc(order, func(j int) bool { return t.m.locks[j].Name() == t.m.locks[i].Name() })
			order = slices.Insert(slices.Delete(order, at, at+1), first, i)
			sleep(ctx, rand.N(10*time.Millisecond)) // so that two callers do not keep releasing for each other at the same time
		default:
			return withName(t.op, t.m.locks[i], err)
		}
	}
}

// releaseEnded releases a hold on lock i that has ended, because Redis may still have it. It returns
// the cause of the end if that happened too often.
func (t *acquisition) releaseEnded(ctx context.Context, i int) error {
	if t.holds[i] == nil {
		return nil
	}
	cause := t.holds[i].Err()
	t.release(ctx, i)
	if t.lost[i]++; t.lost[i] < maxLosses {
		return nil
	}
	return cause
}

// release releases the hold on lock i. If Redis does not confirm it, the release continues in the
// background, and delays the next owner of that lock.
func (t *acquisition) release(ctx context.Context, i int) {
	_ = releaseHolds(ctx, t.m.locks[i:i+1], t.holds[i:i+1])
}

// later returns the held locks that come after lock i, or have its name.
func (t *acquisition) later(i int) (later []int) {
	for j, h := range t.holds {
		if h != nil && t.m.locks[j].Name() >= t.m.locks[i].Name() {
			later = append(later, j)
		}
	}
	return later
}

// heldByOther returns an error if another lock of this call holds lock i, whose attempt failed with
// err. They are then one lock through two clients, and no attempt acquires both.
func (t *acquisition) heldByOther(ctx context.Context, i int, err error) error {
	l, ok := t.m.locks[i].(interface {
		Inspect(ctx context.Context) (lock.State, error)
	})
	others := slices.DeleteFunc(t.later(i), func(j int) bool { return t.m.locks[j].Name() != t.m.locks[i].Name() })
	if !ok || len(others) == 0 || !errors.Is(err, lock.ErrNotAcquired) {
		return nil
	}
	state, err := l.Inspect(ctx)
	for _, j := range others {
		// A hold that has ended is released before the next attempt.
		if err == nil && t.holds[j].Err() == nil && state.HoldCount(t.holds[j].Owner()) > 0 {
			return fmt.Errorf("locks %d and %d of %d are the same lock through two clients, which exclude each other: use one client", min(i, j)+1, max(i, j)+1, len(t.holds))
		}
	}
	return nil
}

func (t *acquisition) acquireOne(ctx context.Context, i int, outOfOrder bool) (lock.Hold, error) {
	if t.op == "lock" && !outOfOrder {
		return t.m.locks[i].Lock(ctx)
	}
	return t.m.locks[i].TryLock(ctx)
}

// failedByOrder reports whether err, of an attempt out of order, may not occur in order. Both sides
// of a read/write lock can be held if the write side is acquired first. In order, Lock waits for
// another owner, and while Redis is unavailable.
func (t *acquisition) failedByOrder(err error) bool {
	return errors.Is(err, lock.ErrUpgrade) || t.op == "lock" && (errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable))
}

// sleep sleeps for d. It reports false if ctx is canceled first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// withoutName returns err without the name of its lock.
func withoutName(err error) error {
	if e, ok := err.(*lock.Error); ok {
		return e.Err
	}
	return err
}

// withName returns err with the operation and the name of its lock. The errors of locks of this
// module have them already.
func withName(op string, l lock.Locker, err error) error {
	if errors.As(err, new(*lock.Error)) {
		return err
	}
	return &lock.Error{Op: op, Name: l.Name(), Err: err}
}
