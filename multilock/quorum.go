package multilock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// Quorum is one lock on several independent servers (Redlock). It is held while its owner has it on
// a majority of them. It is safe for concurrent use. Goroutines that share it exclude each other,
// first-come, first-served. It holds no resources and need not be closed.
type Quorum struct {
	config
	locks      []lock.Locker // one for each server
	majority   int
	name       string
	fixedLease time.Duration         // how long a majority of the leases lasts; 0 if a majority is renewed
	fenced     bool                  // its holds have fencing tokens
	err        error                 // an error in the locks or the options
	turn       chan struct{}         // capacity 1; the caller that has sent a value may make attempts
	distinct   atomic.Bool           // set when it is known that no two locks are on one server
	latest     atomic.Pointer[error] // the error of the latest attempt in this turn; nil before the first
}

var _ lock.Locker = (*Quorum)(nil)

// NewQuorum returns a lock that is held when more than half of locks are. It needs an odd number of
// locks, at least 3, each on its own server. The servers must share nothing, and have no replica
// that takes over. With five servers, two may fail.
//
// NewQuorum sends no command. A wrong number of locks, an invalid option, or a semaphore with more
// than one permit makes the first call fail. Locks that are on one server have one vote
// together. If the other servers are no majority, each call fails. The client compares the run IDs
// of the servers, even behind a proxy. If INFO is denied, it compares the owners that have the
// lock.
//
// A hold of fixed leases (lock.WithFixedLease) lasts until the leases of a majority have expired,
// even if a server is retried. To start while a minority of the servers is down, open their clients
// with client.WithLazyConnect.
//
// The locks should implement [lockimpl.Witness], as all locks of this module do (see
// [WithDurableServers]). In other Lockers, a grant can arrive after the context of TryLock was
// canceled. They must release it on their own.
func NewQuorum(locks []lock.Locker, opts ...Option) *Quorum {
	q := &Quorum{locks: append([]lock.Locker(nil), locks...), majority: len(locks)/2 + 1, turn: make(chan struct{}, 1)}
	q.config, q.err = configure(opts)
	if len(locks) < 3 || len(locks)%2 == 0 {
		q.err = errors.Join(q.err, fmt.Errorf("quorum needs an odd number of locks, at least 3; got %d", len(locks)))
	}
	for i, l := range locks {
		if l == nil {
			q.err = errors.Join(q.err, fmt.Errorf("lock %d of %d is nil", i+1, len(locks)))
		} else if q.name == "" {
			q.name = l.Name()
		} else if l.Name() != q.name {
			q.name = joined(locks)
			break
		}
	}
	for i, l := range locks {
		err := checkOptions(l)
		if c, ok := l.(lockimpl.Counted); ok {
			if _, permits := c.Semaphore(); permits != 1 {
				err = errors.Join(err, fmt.Errorf("semaphore of %d permits: a quorum supports only semaphores with 1 permit", permits))
			}
		}
		if err != nil {
			q.err = errors.Join(q.err, fmt.Errorf("lock %d of %d: %w", i+1, len(locks), err))
		}
	}
	if q.err == nil {
		q.fixedLease = q.majorityLease()
		q.fenced, q.err = q.fencing()
	}
	return q
}

// majorityLease returns how long a majority of the leases lasts, or 0 if a majority is renewed.
func (q *Quorum) majorityLease() time.Duration {
	var leases []time.Duration
	for _, l := range q.locks {
		if c, ok := l.(lockimpl.Configured); ok && c.Config().Lease > 0 {
			leases = append(leases, c.Config().Lease)
		}
	}
	renewed := len(q.locks) - len(leases)
	if renewed >= q.majority {
		return 0
	}
	slices.SortFunc(leases, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	return leases[q.majority-renewed-1]
}

// fencing reports whether the locks use fencing tokens.
func (q *Quorum) fencing() (bool, error) {
	n := 0
	for _, l := range q.locks {
		if c, ok := l.(lockimpl.Configured); ok && c.Config().Fencing {
			n++
		}
	}
	if n > 0 && n < len(q.locks) {
		return false, fmt.Errorf("%d of %d locks use lock.WithFencing: use it for all locks or for none", n, len(q.locks))
	}
	return n > 0, nil
}

// Name returns the name of the locks. If they differ, it returns all of them, joined by "+".
func (q *Quorum) Name() string { return q.name }

// Lock makes attempts, with random pauses between them, until one has a majority or ctx is
// canceled. If ctx is canceled, the error matches ctx.Err() and the error that TryLock would return
// for the last attempt. If no attempt had a result, it matches only ctx.Err().
//
// Some errors can only be fixed by an operator, such as a denied command. If servers fail with one
// of these errors and the others are no majority, Lock fails after three attempts in a row.
//
// If ctx carries an owner that already holds the lock, Lock re-enters on each server where that
// owner has it. It acquires the lock on the others. If that reaches no majority, further attempts
// follow until ctx is canceled, or the outer hold ends.
func (q *Quorum) Lock(ctx context.Context) (lock.Hold, error) {
	attempt := q.wait
	if q.once {
		attempt = q.try
	}
	h, err := attempt(ctx)
	if err != nil {
		return nil, &lock.Error{Op: "lock", Name: q.name, Err: err}
	}
	return h, nil
}

// TryLock makes one attempt. If it has no majority, the error gives the reason of each server, and
// matches one of these:
//
//   - lock.ErrNotAcquired, if servers reported another owner and the others are no majority.
//     TryLock also returns it, without an attempt, while another caller of this Quorum makes
//     attempts, unless the latest of them had a different result.
//   - The errors of the servers, if only an operator can fix them. Examples are a missing
//     permission, a key that is not a lock, or several locks on one server. This applies if these
//     servers, and the ones that reported another owner, leave no majority.
//   - lock.ErrUnavailable otherwise. Servers did not respond, started too recently to vote, or
//     voted too late, or no majority confirmed the token.
//
// TryLock takes at most the timeout of one server, and as long again to confirm a token. If it
// fails, it takes up to 200 ms to release. If ctx is canceled, it returns immediately and releases
// in the background.
func (q *Quorum) TryLock(ctx context.Context) (lock.Hold, error) {
	h, err := q.try(ctx)
	if err != nil {
		return nil, &lock.Error{Op: "trylock", Name: q.name, Err: err}
	}
	return h, nil
}

// maxFaults is the number of attempts in a row with persistent errors after which Lock fails.
const maxFaults = 3

func (q *Quorum) wait(ctx context.Context) (lock.Hold, error) {
	ctx, mustQueue, err := q.prepare(ctx)
	if err != nil {
		return nil, err
	}
	waiting := ctx
	if q.maxWait > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, q.maxWait)
		defer cancel() // mutant: removed: memory
	}
	var last error
	if mustQueue {
		select {
		case q.turn <- struct{}{}:
			q.latest.Store(nil)
			defer func() { <-q.turn }()
		case <-waiting.Done():
			last = q.errAhead()
		}
	}
	pause, server, faults := time.Duration(0), -1, 0
	for waiting.Err() == nil {
		h := newQuorumHold(ctx, q)
		early := server >= 0 && h.wait(waiting, server)
		began := time.Now()
		err := h.poll(waiting, true)
		var e *majorityError
		switch {
		case err == nil:
			return h, nil
		case err == errInterrupted, waiting.Err() != nil && !newResult(err, last): // it had no result, or no new one
			continue
		case errors.As(err, &e) && e.persists():
			if faults++; faults == maxFaults {
				return nil, err
			}
		default:
			faults = 0
		}
		last = err
		if mustQueue {
			q.latest.Store(&err)
		}
		if server = h.serverToWaitAt(); early || server < 0 {
			server = -1
			pause = min(max(2*pause, 10*time.Since(began)), maxPause)
			sleep(waiting, jitter(pause))
		}
	}
	if ctx.Err() != nil {
		return nil, canceledError(ctx, last)
	}
	return nil, waited{q.maxWait, last}
}

func (q *Quorum) try(ctx context.Context) (lock.Hold, error) {
	ctx, mustQueue, err := q.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if mustQueue {
		select {
		case q.turn <- struct{}{}:
			q.latest.Store(nil)
			defer func() { <-q.turn }()
		default:
			return nil, q.errAhead()
		}
	}
	h := newQuorumHold(ctx, q)
	switch err := h.poll(ctx, false); {
	case err == nil:
		return h, nil
	case err == errInterrupted: // mutant: never: text
		return nil, canceledError(ctx, nil)
	case ctx.Err() != nil:
		return nil, canceledError(ctx, err)
	default:
		return nil, err
	}
}

// errInterrupted is the result of an attempt whose context was canceled before it had another result.
var errInterrupted = errors.New("cut short")

// newResult reports whether err, of an attempt whose context was canceled, has more information
// than last, the error of the attempt before it. It does if the verdict is a different one, and the
// replies that were not waited for could not have changed it.
func newResult(err, last error) bool {
	var e, before *majorityError
	return !errors.As(err, &e) || last == nil || !(e.undecided() || errors.As(last, &before) && e.verdict == before.verdict)
}

// errAhead returns the error of a caller that made no attempt because another caller of this Quorum
// is making attempts. It includes the result of the latest of those, unless another owner had the
// lock.
func (q *Quorum) errAhead() error {
	if latest := q.latest.Load(); latest != nil && !errors.Is(*latest, lock.ErrNotAcquired) { // mutant: operand 2: text
		return fmt.Errorf("another call of this process is ahead: %w", *latest)
	}
	return fmt.Errorf("%w: another call of this process is ahead", lock.ErrNotAcquired)
}

// prepare returns ctx with an owner, and whether the caller must wait in the queue. An owner that
// holds the lock need not, because the callers in the queue wait for it.
func (q *Quorum) prepare(ctx context.Context) (_ context.Context, mustQueue bool, err error) {
	if q.err != nil {
		return nil, false, q.err
	}
	if ctx.Err() != nil {
		return nil, false, canceledError(ctx, nil)
	}
	if _, ok := lockimpl.OwnerFrom(ctx); !ok {
		return lock.ContextWithNewOwner(ctx), true, nil
	}
	return ctx, len(q.held(ctx)) == 0, nil
}

// maxPause is the mean of the longest pause between two attempts, which varies by half of it. With
// it, a waiter retries at least once per second.
const maxPause = 600 * time.Millisecond

// jitter returns a random duration between half of d and one and a half of it.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
