package multilock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// MultiLock is several locks as one: all or none. It is safe for concurrent use;
// goroutines that share it exclude each other. It holds nothing and need not be
// closed.
type MultiLock struct {
	locks []lock.Locker // in the order in which they were given
	order []int         // of locks, by their names
	group lock.Group    // takes all of them at once; nil if nothing can
	err   error         // what is wrong with them
}

var _ lock.Locker = (*MultiLock)(nil)

// New returns a lock that is held when all of locks are. They may be of any kind
// and of any clients. A [MultiLock] among them stands for the locks that it is made
// of. It does no I/O; no locks at all, or a nil among them, show as an error of the
// first call.
//
// A lock that is given twice is entered twice, as all are taken by one owner; so
// both sides of a read/write lock are fine too. The same lock by two clients is
// not: two clients are two owners, each of which waits for the other.
func New(locks ...lock.Locker) *MultiLock {
	m := &MultiLock{}
	for i, l := range locks {
		if inner, ok := l.(*MultiLock); ok && inner != nil {
			m.locks = append(m.locks, inner.locks...)
			m.err = errors.Join(m.err, inner.err)
		} else if ok || l == nil {
			m.err = errors.Join(m.err, fmt.Errorf("lock %d of %d is nil", i+1, len(locks)))
		} else {
			m.locks = append(m.locks, l)
		}
	}
	if len(locks) == 0 {
		m.err = errors.New("a multi-lock of no locks")
	}
	if m.err != nil {
		return m
	}
	for i := range m.locks {
		m.order = append(m.order, i)
	}
	slices.SortStableFunc(m.order, func(i, j int) int { return strings.Compare(m.locks[i].Name(), m.locks[j].Name()) })
	if g, ok := m.locks[0].(lock.Grouper); ok && len(m.locks) > 1 {
		m.group = g.Group(slices.Clone(m.locks))
	}
	return m
}

// Name returns the names of the locks in the order in which they were given,
// joined by "+". It is for people: no lock in Redis is called so.
func (m *MultiLock) Name() string { return joined(m.locks) }

func joined(locks []lock.Locker) string {
	var names []string
	for _, l := range locks {
		if l != nil {
			names = append(names, l.Name())
		}
	}
	return strings.Join(names, "+")
}

// Lock waits until all locks are held or ctx ends. Under a context that carries an
// owner, it re-enters those which the owner holds already.
//
// What an error says of a lock names that lock. None of them is held then, or else
// the error says also which could not be given back, and that is repeated in the
// background. When ctx ends, Lock returns at once, and what it had taken is given back
// behind it. lock.WithWait of a lock says for how long that one is waited for at most.
func (m *MultiLock) Lock(ctx context.Context) (lock.Hold, error) { return m.acquire(ctx, "lock") }

// TryLock makes one attempt at each lock. It fails with lock.ErrNotAcquired when one
// of them is another owner's, or another caller of this process is ahead at it. What
// it had taken before is given back then, as by Lock.
func (m *MultiLock) TryLock(ctx context.Context) (lock.Hold, error) { return m.acquire(ctx, "trylock") }

func (m *MultiLock) acquire(ctx context.Context, op string) (lock.Hold, error) {
	if m.err != nil {
		return nil, &lock.Error{Op: op, Name: m.Name(), Err: m.err}
	}
	if _, ok := lock.OwnerFrom(ctx); !ok {
		ctx = lock.WithOwner(ctx)
	}
	holds, err := m.together(ctx, op)
	if errors.Is(err, errors.ErrUnsupported) {
		t := &taking{MultiLock: m, op: op, holds: make([]lock.Hold, len(m.locks)), lost: make([]int, len(m.locks))}
		if err = t.all(ctx); err != nil {
			err = errors.Join(err, giveBack(ctx, m.locks, t.holds))
		}
		holds = t.holds
	}
	if err != nil {
		return nil, err
	}
	return newHold(ctx, m, holds), nil
}

// together takes all at once, if there is a way.
func (m *MultiLock) together(ctx context.Context, op string) ([]lock.Hold, error) {
	switch {
	case m.group == nil:
		return nil, errors.ErrUnsupported
	case op == "lock":
		return m.group.Lock(ctx)
	default:
		return m.group.TryLock(ctx)
	}
}

// tooOften is how often one lock may run out while others are waited for: once or
// twice can be chance.
const tooOften = 3

// taking is one call that takes the locks one by one.
type taking struct {
	*MultiLock
	op    string
	holds []lock.Hold // of each lock; nil where there is none
	lost  []int       // how often each ran out meanwhile
}

// all takes the locks in the order of their names. While it waits for a lock, it
// holds none that comes later, nor another of that name. So those who wait for each
// other cannot form a ring: whoever waits for the last name of all would wait for
// somebody who waits for nothing.
//
// It asks for a lock out of order in two cases: when it holds others of that name,
// as nobody knows which of them is first; and when the lease of that lock ran out
// while later ones were waited for. Then it only tries. If that is refused, it gives
// the later ones back, and waits.
func (t *taking) all(ctx context.Context) error {
	order := slices.Clone(t.order)
	for {
		at := slices.IndexFunc(order, func(i int) bool { return t.holds[i] == nil || t.holds[i].Err() != nil })
		if at < 0 {
			return nil
		}
		i := order[at]
		if err := ctx.Err(); err != nil { // the holds are over by that, too
			return named(t.op, t.locks[i], interrupted(ctx, nil))
		}
		if cause := t.ranOut(ctx, i); cause != nil {
			return named(t.op, t.locks[i], fmt.Errorf("%w: it ran out while the others were waited for, %d times: %w", lock.ErrNotAcquired, tooOften, cause))
		}
		later := t.later(i)
		h, err := t.ask(ctx, i, len(later) > 0)
		switch {
		case err == nil:
			t.holds[i] = h
		case len(later) > 0 && t.mayBeOrder(err):
			for _, j := range later {
				t.giveBack(ctx, j)
			}
			first := slices.IndexFunc(order, func(j int) bool { return t.locks[j].Name() == t.locks[i].Name() })
			order = slices.Insert(slices.Delete(order, at, at+1), first, i)
			rest(ctx, rand.N(10*time.Millisecond)) // two who give way to each other shall not do it in step
		default:
			return named(t.op, t.locks[i], err)
		}
	}
}

// ranOut gives back what is left of a hold on lock i that is over, and returns what
// ended it if that was once too often.
func (t *taking) ranOut(ctx context.Context, i int) error {
	if t.holds[i] == nil {
		return nil
	}
	cause := t.holds[i].Err()
	t.giveBack(ctx, i)
	if t.lost[i]++; t.lost[i] < tooOften {
		return nil
	}
	return cause
}

// giveBack gives back the hold on lock i. What Redis does not confirm goes on
// behind us, and costs whoever wants that lock some time.
func (t *taking) giveBack(ctx context.Context, i int) {
	_ = giveBack(ctx, t.locks[i:i+1], t.holds[i:i+1])
}

// later returns what is held that comes after lock i, or has its name.
func (t *taking) later(i int) (later []int) {
	for j, h := range t.holds {
		if h != nil && t.locks[j].Name() >= t.locks[i].Name() {
			later = append(later, j)
		}
	}
	return later
}

func (t *taking) ask(ctx context.Context, i int, outOfOrder bool) (lock.Hold, error) {
	if t.op == "lock" && !outOfOrder {
		return t.locks[i].Lock(ctx)
	}
	return t.locks[i].TryLock(ctx)
}

// mayBeOrder reports whether what failed out of order may go well in order. Both
// sides of a read/write lock can be had, the one for writing first.
func (t *taking) mayBeOrder(err error) bool {
	return errors.Is(err, lock.ErrUpgrade) || t.op == "lock" && errors.Is(err, lock.ErrNotAcquired)
}

// interrupted is the error of a wait that ctx ended, as the locks of this module
// have it: it matches ErrNotAcquired, ctx.Err() and the context's cause, and last, if
// there is something that went wrong before.
func interrupted(ctx context.Context, last error) error {
	ended := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(ended, cause) {
		ended = fmt.Errorf("%w: %w", ended, cause)
	}
	if last == nil {
		return fmt.Errorf("%w: %w", lock.ErrNotAcquired, ended)
	}
	return fmt.Errorf("%w: %w (before that: %w)", lock.ErrNotAcquired, ended, last)
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

// named returns err with the name of the lock that it is about. The locks of this
// module do that themselves.
func named(op string, l lock.Locker, err error) error {
	if errors.As(err, new(*lock.Error)) {
		return err
	}
	return &lock.Error{Op: op, Name: l.Name(), Err: err}
}
