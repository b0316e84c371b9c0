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

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// Lock is several locks as one, all or none. It is safe for concurrent use. Goroutines that share
// it exclude each other. It holds no resources and need not be closed.
type Lock struct {
	locks []lock.Locker // in the order in which they were given
	order []int         // of locks, by their names
	batch bool          // attempts at all of them travel together
	err   error         // why they make no multi-lock
}

var _ lock.Locker = (*Lock)(nil)

// New returns a lock that is held when all of locks are. They may be of any type and of any
// clients. A [Lock] among them is replaced by the locks that it is made of. New sends no command.
// An empty list, or a nil in it, is an error of the first call.
//
// A lock that is given twice is acquired twice, because one owner acquires all. Both sides of a
// read/write lock are therefore allowed. The same lock through two clients is not, because two
// clients are two owners, which wait for each other. To acquire several permits of one semaphore,
// use the Locker that its N returns. Two Lockers of one semaphore are an error.
func New(locks ...lock.Locker) *Lock {
	m := &Lock{}
	for i, l := range locks {
		if inner, ok := l.(*Lock); ok && inner != nil {
			m.locks = append(m.locks, inner.locks...)
			m.err = errors.Join(m.err, inner.err)
		} else if ok || l == nil {
			m.err = errors.Join(m.err, fmt.Errorf("lock %d of %d is nil", i+1, len(locks)))
		} else {
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
	m.err = errors.Join(m.err, oncePermits(m.locks))
	if m.err != nil {
		return m
	}
	for i := range m.locks {
		m.order = append(m.order, i)
	}
	slices.SortStableFunc(m.order, func(i, j int) int { return strings.Compare(m.locks[i].Name(), m.locks[j].Name()) })
	m.batch = oneBatch(m.locks)
	return m
}

// oneBatch reports whether attempts at locks travel together: they are different locks of one
// [lockimpl.Batched].
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
	return len(locks) > 1
}

// checkOptions returns an error if l has an option that delays its release. A call that cannot
// acquire all locks must release the others immediately.
func checkOptions(l lock.Locker) error {
	c, ok := l.(lockimpl.Configured)
	switch {
	case ok && c.Config().MinHold > 0:
		return fmt.Errorf("WithMinHold: not supported in a multi-lock; omit the option: %w", errors.ErrUnsupported)
	case ok && c.Config().Linger > 0: // a quorum checks the server when it grants a vote
		return fmt.Errorf("WithLinger: not supported in a multi-lock; omit the option: %w", errors.ErrUnsupported)
	}
	return nil
}

// oncePermits returns an error if two of locks take permits of one semaphore. Each of them is an
// owner of its own there, so they could wait for each other.
func oncePermits(locks []lock.Locker) error {
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
	holds, err := m.take(ctx, op)
	if err != nil {
		if errors.Is(err, lock.ErrUnavailable) && errors.Is(err, lock.ErrNotAcquired) {
			err = without{err, []error{lock.ErrNotAcquired}} // some lock had no reply to its last command
		}
		return nil, err
	}
	return newHold(ctx, m, holds), nil
}

// take takes a hold of each lock. If it does not come to that, also because the observer of a
// lock panics, it gives back what it has.
func (m *Lock) take(ctx context.Context, op string) (holds []lock.Hold, err error) {
	t := &taking{m: m, op: op, holds: make([]lock.Hold, len(m.locks)), lost: make([]int, len(m.locks))}
	taken := false
	defer func() {
		if !taken {
			releaseErr := releaseHolds(ctx, m.locks, t.holds)
			if err = errors.Join(err, releaseErr); releaseFailed(releaseErr) {
				err = without{err, []error{lock.ErrNotAcquired}}
			}
		}
	}()
	if m.batch {
		err = t.together(ctx)
	}
	if err == nil {
		err = t.oneByOne(ctx) // of what is missing, or lost again by now
	}
	if err != nil {
		return nil, err
	}
	taken = true
	return t.holds, nil
}

// tooOften is how often one lock may run out while others are waited for: once or
// twice can be chance.
const tooOften = 3

// taking is one call that takes the locks.
type taking struct {
	m     *Lock
	op    string
	holds []lock.Hold // of each lock; nil where there is none
	lost  []int       // how often each ran out meanwhile
	last  error       // the refusal of the latest attempt; nil if that had another result
}

// tooBusy is how often a call waits for one of its locks, and then finds that another owner has
// another one, before it takes them one by one.
const tooBusy = 4

// together takes all locks at once: the attempts travel in one batch. If one of them fails, it
// gives the others back, and waits for that one. If the locks are so busy that they are hardly ever
// free together, it returns with that one alone.
func (t *taking) together(ctx context.Context) error {
	for range tooBusy {
		i, err := t.tryOthers(ctx)
		if err == nil {
			return nil
		}
		if t.op == "trylock" {
			return named(t.op, t.m.locks[i], err)
		}
		if ctx.Err() != nil {
			if err = bare(err); !errors.Is(err, ctx.Err()) {
				err = canceledError(ctx, err)
			}
			return &lock.Error{Op: t.op, Name: t.m.locks[i].Name(), Err: err}
		}
		_ = releaseHolds(ctx, t.m.locks, t.holds)
		if t.holds[i], err = t.ask(ctx, i, false); err != nil { // it says what is wrong, and waits if that passes
			return named(t.op, t.m.locks[i], err)
		}
	}
	return nil
}

// tryOthers makes one attempt, at the same time, at each lock of which there is no hold, unless
// others of this process wait for one of them. It returns a fault before a refusal, and a refusal
// before the end of ctx, of these the first in the order of the names, and the lock that it is about.
func (t *taking) tryOthers(ctx context.Context) (failed int, err error) {
	for _, i := range t.m.order {
		if t.holds[i] == nil {
			if err := t.m.locks[i].(lockimpl.Batched).Ahead(); err != nil {
				return i, err
			}
		}
	}
	errs := make([]error, len(t.holds))
	ends := make(chan func(), len(t.holds)) // nil, or what ended the goroutine of an attempt: an observer can do that
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
	weight := func(err error) int {
		switch {
		case errors.Is(err, lock.ErrNotAcquired):
			return 2
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return 1
		case err != nil:
			return 3
		}
		return 0
	}
	for _, i := range t.m.order {
		if weight(errs[i]) > weight(err) {
			failed, err = i, errs[i]
		}
	}
	return failed, err
}

// oneByOne takes the locks in the order of their names. While it waits for a lock, it
// holds none that comes later, nor another of that name. So callers that wait for each
// other cannot form a ring: the one that waits for the last name of all would wait for
// a caller that does not wait.
//
// It tries to take a lock out of order in two cases: when it holds others of that name,
// whose order is not known; and when the lease of that lock ran out
// while it waited for later ones. There it does not wait. If the attempt is refused, it gives
// the later ones back, and then waits.
func (t *taking) oneByOne(ctx context.Context) error {
	order := slices.Clone(t.m.order)
	for {
		at := slices.IndexFunc(order, func(i int) bool { return t.holds[i] == nil || t.holds[i].Err() != nil })
		if at < 0 {
			return nil
		}
		i := order[at]
		if ctx.Err() != nil { // that ends the holds, too
			return named(t.op, t.m.locks[i], canceledError(ctx, t.last))
		}
		if cause := t.ranOut(ctx, i); cause != nil {
			return &lock.Error{Op: t.op, Name: t.m.locks[i].Name(), Err: fmt.Errorf("the hold was lost %d times while the call waited for the other locks: %w", tooOften, bare(cause))}
		}
		later := t.later(i)
		h, err := t.ask(ctx, i, len(later) > 0)
		t.last = nil
		switch {
		case err == nil:
			t.holds[i] = h
		case len(later) > 0 && t.mayBeOrder(err):
			t.last = bare(err)
			for _, j := range later {
				t.release(ctx, j)
			}
			first := slices.IndexFunc(order, func(j int) bool { return t.m.locks[j].Name() == t.m.locks[i].Name() })
			order = slices.Insert(slices.Delete(order, at, at+1), first, i)
			rest(ctx, rand.N(10*time.Millisecond)) // so that two callers that give way to each other do not do it in step
		default:
			return named(t.op, t.m.locks[i], err)
		}
	}
}

// ranOut releases a hold on lock i that has ended, for what may be left of it. It returns the cause
// of the end if that happened too often.
func (t *taking) ranOut(ctx context.Context, i int) error {
	if t.holds[i] == nil {
		return nil
	}
	cause := t.holds[i].Err()
	t.release(ctx, i)
	if t.lost[i]++; t.lost[i] < tooOften {
		return nil
	}
	return cause
}

// release releases the hold on lock i. If Redis does not confirm it, the release continues in the
// background, and delays the next owner of that lock.
func (t *taking) release(ctx context.Context, i int) {
	_ = releaseHolds(ctx, t.m.locks[i:i+1], t.holds[i:i+1])
}

// later returns the held locks that come after lock i, or have its name.
func (t *taking) later(i int) (later []int) {
	for j, h := range t.holds {
		if h != nil && t.m.locks[j].Name() >= t.m.locks[i].Name() {
			later = append(later, j)
		}
	}
	return later
}

func (t *taking) ask(ctx context.Context, i int, outOfOrder bool) (lock.Hold, error) {
	if t.op == "lock" && !outOfOrder {
		return t.m.locks[i].Lock(ctx)
	}
	return t.m.locks[i].TryLock(ctx)
}

// mayBeOrder reports whether err, of an attempt out of order, may not occur in order. Both
// sides of a read/write lock can be held, if the one for writing is taken first.
func (t *taking) mayBeOrder(err error) bool {
	return errors.Is(err, lock.ErrUpgrade) || t.op == "lock" && errors.Is(err, lock.ErrNotAcquired)
}

// rest sleeps for d, and reports false if ctx ended before.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// bare returns err without the name of its lock.
func bare(err error) error {
	if e, ok := err.(*lock.Error); ok {
		return e.Err
	}
	return err
}

// named returns err with the name of the lock that it is about. The locks of this
// module do that themselves.
func named(op string, l lock.Locker, err error) error {
	if errors.As(err, new(*lock.Error)) {
		return err
	}
	return &lock.Error{Op: op, Name: l.Name(), Err: err}
}
