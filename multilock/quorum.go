package multilock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// Quorum is one lock on several independent servers: Redlock. It is held while its owner has
// it on a majority of them. It is safe for concurrent use; goroutines that
// share it exclude each other, and are served in the order of their arrival. It has no resources and need
// not be closed.
type Quorum struct {
	config
	locks    []lock.Locker // one of each server
	majority int
	name     string
	fixed    time.Duration // how long a majority of fixed leases lasts; 0 if a majority is renewed
	fenced   bool          // its holds have tokens
	err      error         // what is wrong with the locks or the options
	turn     chan struct{} // cap 1; the caller that has put a value in may make attempts
	apart    atomic.Bool   // set once it is known that no two of them are on one server
}

var _ lock.Locker = (*Quorum)(nil)

// NewQuorum returns a lock that is held when more than half of locks are. There must
// be an odd number of them, three at least, each on a server of its own: one that
// shares nothing with the others and has no replica that takes over. Five let two
// servers fail.
//
// A hold of fixed leases (lock.WithFixedLease) lasts until a majority of these has run out, even
// if a server is asked again.
//
// It does no I/O. A wrong number of locks, a wrong option, or a semaphore of more than one permit is an
// error of the first call. Locks that turn out to be on one server have one vote
// together.
//
// To start while a minority of the servers is down, open their clients with
// client.WithLazyConnect.
//
// The locks should be [lockimpl.Witness]es, as all of this module are; see
// [WithDurableServers]. Other Lockers must give back by themselves a grant that arrives
// after the context of their TryLock ended.
func NewQuorum(locks []lock.Locker, opts ...Option) *Quorum {
	q := &Quorum{locks: append([]lock.Locker(nil), locks...), majority: len(locks)/2 + 1, turn: make(chan struct{}, 1)}
	q.config, q.err = configure(opts)
	if len(locks) < 3 || len(locks)%2 == 0 {
		q.err = errors.Join(q.err, fmt.Errorf("a quorum of %d locks: an odd number is needed, and three at least", len(locks)))
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
		err := mayGiveBack(l)
		if c, ok := l.(lockimpl.Counted); ok {
			if _, permits := c.Semaphore(); permits != 1 {
				err = errors.Join(err, fmt.Errorf("a semaphore of %d permits: two majorities could have permits of other servers, and more than %d owners hold it; a quorum takes semaphores of one permit only", permits, permits))
			}
		}
		if err != nil {
			q.err = errors.Join(q.err, fmt.Errorf("lock %d of %d: %w", i+1, len(locks), err))
		}
	}
	if q.err == nil {
		q.fixed = q.lasts()
		q.fenced, q.err = q.fencing()
	}
	return q
}

// lasts returns how long a majority of fixed leases lasts; 0 if a majority is renewed.
func (q *Quorum) lasts() time.Duration {
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

// fencing reports whether the locks have tokens from registers.
func (q *Quorum) fencing() (bool, error) {
	n := 0
	for _, l := range q.locks {
		if c, ok := l.(lockimpl.Configured); ok && c.Config().Fencing {
			n++
		}
	}
	if n > 0 && n < len(q.locks) {
		return false, fmt.Errorf("%d of %d locks are made with lock.WithFencing: all must be, or none", n, len(q.locks))
	}
	return n > 0, nil
}

// Name returns the name of the locks; if they differ, all of them, joined by "+".
func (q *Quorum) Name() string { return q.name }

// Lock makes attempts, with pauses of random length between them, until one wins a
// majority or ctx ends. Then the error matches lock.ErrNotAcquired and says of each
// server why it had no vote. It matches lock.ErrUnavailable as well when fewer than a
// majority of the servers answered the last attempt, or are up too briefly to vote.
//
// An error that waiting will not change, such as a denied command, is returned when
// a majority gave such errors in three attempts in a row.
//
// Under a context that carries an owner that holds the lock already, it re-enters the lock on
// each server where that owner has it, and takes it on the others. If that reaches no
// majority, further attempts follow until ctx ends, at the latest with the
// outer hold, which keeps what it has.
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

// TryLock makes one attempt. It fails with lock.ErrNotAcquired when that wins no
// majority, for whatever reasons; the error says them, and matches lock.ErrUnavailable
// as well when fewer than a majority of the servers answered. It takes the timeout of one
// server at the most, and as long again to give back; when ctx ends, it returns at once, and
// gives back in the background.
func (q *Quorum) TryLock(ctx context.Context) (lock.Hold, error) {
	h, err := q.try(ctx)
	if err != nil {
		return nil, &lock.Error{Op: "trylock", Name: q.name, Err: err}
	}
	return h, nil
}

// tries is how many attempts in a row a majority must refuse for lasting reasons
// before Lock gives up.
const tries = 3

func (q *Quorum) wait(ctx context.Context) (lock.Hold, error) {
	ctx, stands, err := q.enter(ctx)
	if err != nil {
		return nil, err
	}
	waiting := ctx
	if q.limit > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, q.limit)
		defer cancel()
	}
	if stands {
		select {
		case q.turn <- struct{}{}:
			defer func() { <-q.turn }()
		case <-waiting.Done():
		}
	}
	var last error
	pause, gate, hopeless := time.Duration(0), -1, 0
	for waiting.Err() == nil {
		h := newQuorumHold(ctx, q)
		atGate := gate >= 0 && h.wait(waiting, gate)
		began := time.Now()
		err := h.poll(waiting, true)
		switch {
		case err == nil:
			return h, nil
		case waiting.Err() != nil:
			if last == nil && errors.Is(err, lock.ErrUnavailable) {
				last = err // no attempt has ended before
			}
			continue
		case !q.stays(err):
			hopeless = 0
		default:
			if hopeless++; hopeless == tries {
				return nil, err
			}
		}
		last = err
		if gate = h.gate(); atGate || gate < 0 {
			gate = -1
			pause = min(max(2*pause, 10*time.Since(began)), mostPause)
			rest(waiting, about(pause))
		}
	}
	if ctx.Err() != nil {
		return nil, interrupted(ctx, last)
	}
	return nil, waited{q.limit, last}
}

func (q *Quorum) try(ctx context.Context) (lock.Hold, error) {
	ctx, stands, err := q.enter(ctx)
	if err != nil {
		return nil, err
	}
	if stands {
		select {
		case q.turn <- struct{}{}:
			defer func() { <-q.turn }()
		default:
			return nil, lock.ErrNotAcquired
		}
	}
	h := newQuorumHold(ctx, q)
	switch err := h.poll(ctx, false); {
	case err == nil:
		return h, nil
	case ctx.Err() != nil && errors.Is(err, lock.ErrUnavailable):
		return nil, interrupted(ctx, err)
	case ctx.Err() != nil:
		return nil, interrupted(ctx, nil)
	default:
		return nil, err
	}
}

// enter returns ctx with an owner, and whether the caller has to stand in line. An owner that holds the lock
// does not: the others in the line wait for it.
func (q *Quorum) enter(ctx context.Context) (_ context.Context, stands bool, err error) {
	if q.err != nil {
		return nil, false, q.err
	}
	if ctx.Err() != nil {
		return nil, false, interrupted(ctx, nil)
	}
	if _, ok := lockimpl.OwnerFrom(ctx); !ok {
		return lock.WithOwner(ctx), true, nil
	}
	return ctx, len(q.held(ctx)) == 0, nil
}

// mostPause is the mean of the longest pause between two attempts, which varies by half of it. A waiter
// asks at least once a second.
const mostPause = 600 * time.Millisecond

// about returns a random duration between half of d and one and a half of it.
func about(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// ballot is the error that there is no majority.
type ballot struct {
	verdict  error // ErrNotAcquired or ErrLost
	votes    int
	majority int
	reasons  []error // why each server has no vote; nil where it has one
}

// answered returns how many servers gave an answer.
func (b *ballot) answered() (n int) {
	for _, err := range b.reasons {
		if !silent(err) {
			n++
		}
	}
	return n
}

// depends reports whether the answers that are still to come decide if the quorum is unavailable.
func (b *ballot) depends() bool {
	open := 0
	for _, err := range b.reasons {
		if err == errOpen {
			open++
		}
	}
	most := b.answered() // open ones count
	return most-open < b.majority && most >= b.majority
}

// silent reports whether err means that the server gave no answer.
func silent(err error) bool {
	if errors.Is(err, lock.ErrUnavailable) {
		return true
	}
	return !errors.Is(err, lock.ErrNotAcquired) &&
		(errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) || errors.As(err, new(net.Error)))
}

// Error returns how many votes there were, and why there were no more.
func (b *ballot) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%v: %d of %d votes", b.verdict, b.votes, len(b.reasons))
	if n := b.answered(); n < b.majority {
		fmt.Fprintf(&text, "; %v: %d of %d servers answered", lock.ErrUnavailable, n, len(b.reasons))
	}
	for i, err := range b.reasons {
		if err == nil {
			continue
		}
		if e, ok := err.(*lock.Error); ok {
			err = e.Err // the lock has the same name on all servers
		}
		fmt.Fprintf(&text, "; server %d: %v", i+1, err)
	}
	return text.String()
}

// Unwrap returns the verdict and the reasons. A reason that matches ErrNotAcquired is left out
// of a loss. A quorum is unavailable when fewer than a majority of its servers answered, and not
// when a minority gives no answer.
func (b *ballot) Unwrap() []error {
	all := []error{b.verdict}
	unavailable := b.answered() < b.majority
	if unavailable {
		all = append(all, lock.ErrUnavailable)
	}
	for _, err := range b.reasons {
		switch {
		case err == nil, b.verdict != lock.ErrNotAcquired && errors.Is(err, lock.ErrNotAcquired):
		case !unavailable && errors.Is(err, lock.ErrUnavailable):
			all = append(all, ofMinority{err})
		default:
			all = append(all, err)
		}
	}
	return all
}

// ofMinority is the error of a server that gave no answer, in a quorum that did. It
// matches all that the error does but ErrUnavailable.
type ofMinority struct{ error }

func (e ofMinority) Is(target error) bool {
	return target != lock.ErrUnavailable && errors.Is(e.error, target)
}

func (e ofMinority) As(target any) bool { return errors.As(e.error, target) }

// stays reports whether an attempt failed for reasons that another attempt will meet
// again.
func (q *Quorum) stays(err error) bool {
	var b *ballot
	if !errors.As(err, &b) {
		return !passes(err)
	}
	left := len(q.locks)
	for _, err := range b.reasons {
		if err != nil && !passes(err) {
			left--
		}
	}
	return left < q.majority
}

// passes reports whether another attempt may not meet err: another owner had the lock, or
// there was no answer, or no connection.
func passes(err error) bool {
	for _, target := range []error{lock.ErrNotAcquired, lock.ErrLost, os.ErrDeadlineExceeded, errOpen, io.EOF} {
		if errors.Is(err, target) {
			return true
		}
	}
	return errors.As(err, new(net.Error))
}

// waited is the error of a Lock that WithWait ended.
type waited struct {
	limit time.Duration
	last  error // why the last attempt failed; nil if none ended
}

// Error says how long Lock waited.
func (e waited) Error() string {
	text := fmt.Sprintf("%v: waited for %v", lock.ErrNotAcquired, e.limit)
	if e.last != nil {
		text += fmt.Sprintf(" (before that: %v)", e.last)
	}
	return text
}

// Unwrap returns the errors that it matches; the end of a context is not one of them.
func (e waited) Unwrap() []error {
	all := []error{lock.ErrNotAcquired, os.ErrDeadlineExceeded}
	if errors.Is(e.last, lock.ErrUnavailable) {
		all = append(all, lock.ErrUnavailable)
	}
	return all
}

// Timeout reports true.
func (e waited) Timeout() bool { return true }

// errOpen is the reason of a server whose answer would not have changed the outcome.
var errOpen = errors.New("its answer was not waited for")

// noVote is the reason of a server that did not vote in time.
type noVote struct {
	within time.Duration
	said   error // the error of its Locker when it was told to stop; nil if none
}

// Error says how long the attempt waited.
func (e noVote) Error() string {
	text := fmt.Sprintf("no vote within %v", e.within)
	if e.said != nil {
		text += fmt.Sprintf(" (%v)", e.said)
	}
	return text
}

// Is makes it match os.ErrDeadlineExceeded, and ErrUnavailable unless the server said
// that another owner has the lock. The context that ended was not the caller's, so
// it matches no context error.
func (e noVote) Is(target error) bool {
	if target == lock.ErrUnavailable {
		return errors.Is(e.said, lock.ErrUnavailable) || !errors.Is(e.said, lock.ErrNotAcquired)
	}
	return target == os.ErrDeadlineExceeded
}

// Timeout reports true.
func (e noVote) Timeout() bool { return true }
