package session

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/mask"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// acquisition adds to a lockstate.Acquisition the lease that the watchdog watches.
type acquisition struct {
	lockstate.Acquisition
	at        *entry          // set once: its mutex guards the embedded Acquisition
	spec      *Spec           // of the first hold; of a ticket, its waiter's. Guarded by at.mu until lease is set, then constant
	lease     *watchdog.Lease // set under at.mu before the grant is visible to others, then constant
	keepUntil *time.Time      // the lock stays locked until then: lock.WithMinHold; otherwise nil. Guarded by at.mu
	first     hold            // preallocated first hold
	own       watchdog.Lease  // preallocated lease; unused after a hand-off, which keeps the lease
}

var _ watchdog.Subject = (*acquisition)(nil)

func acquisitionOf(t *lockstate.Acquisition) *acquisition { return t.Of.(*acquisition) }

// NewAcquisition returns an acquisition in its first phase, with a new owner string. It implements lockstate.Maker.
func (at *entry) NewAcquisition(c *lockstate.Terms, now time.Time) *lockstate.Acquisition {
	spec := specOf(c)
	t := &acquisition{at: at, spec: spec}
	t.Of, t.Terms, t.Name, t.Came = t, c, at.s.newOwner(now, spec.Keys.Permits, spec.Mark)+spec.lingerMark, now
	if c.MayShare() {
		t.Turn = make(chan struct{}, 1)
	}
	return &t.Acquisition
}

// identity generates the owner strings of one client.
type identity struct {
	id     string        // set once: the UUID in every owner string
	number atomic.Uint64 // later owners have larger numbers
}

// newOwner returns a unique owner string for an acquisition that begins at now. A command still in flight for an
// earlier acquisition cannot affect it.
//
// The number is the time in µs and ten random bits. The string therefore shows when the owner began to wait, and is hard
// to guess. The mark before the number distinguishes a plain lock from a fair lock (luascripts.FairOwner).
//
// A semaphore owner reserves one number per permit. The string has the first number and the count. The number after
// the last one stays unused, so that adjacent permit numbers always belong to the same owner.
func (i *identity) newOwner(now time.Time, permits int, mark string) string {
	n := uint64(now.UnixMicro())<<10 | rand.Uint64N(1<<10)
	for {
		last := i.number.Load()
		if n = max(n, last+1); i.number.CompareAndSwap(last, n+uint64(permits)) {
			break
		}
	}
	var b [64]byte
	text := strconv.AppendUint(append(append(append(b[:0], i.id...), ':'), mark...), n, 10)
	if permits > 0 {
		text = strconv.AppendInt(append(text, ':'), int64(permits), 10)
	}
	return string(text)
}

// turn returns the channel that serializes commands for t: the acquisition's own if readers can share t, otherwise
// the owner's.
func (t *acquisition) turn(o *lockstate.Owner) chan struct{} {
	if t.Turn != nil {
		return t.Turn
	}
	return o.Turn
}

// endsByItself reports whether Redis expires the lock no later than the fixed lease of t. That is not guaranteed after
// an unconfirmed extension or an offer with a longer lease, nor for a writer whose owner also reads or has read. The
// caller holds the mutex of the state.
func (t *acquisition) endsByItself() bool { return !t.MayLast(t.spec.terms.Lease) && !t.Reads() }

// watch returns the lease of t. It needs the mutex because the watchdog may renew the lease before the goroutine that
// set it has unlocked the state.
func (t *acquisition) watch() *watchdog.Lease {
	t.at.lock()
	defer t.at.unlock()
	return t.lease
}

// end ends the acquisition, and all its holds with cause. It returns the holds and the previous phase.
//
// counted reports that this call ended the acquisition as lost before Close closed its entry. The caller must then
// reconcile it and call s.sender.Done. Otherwise Close reconciles it.
func (t *acquisition) end(how lockstate.Phase, cause error) (ended []*lockstate.Hold, before lockstate.Phase, counted bool) {
	t.at.lock()
	ended, before = t.at.state.End(&t.Acquisition, how)
	if counted = before.Lives() && !t.at.state.IsClosed(); counted { // mutant: operand 2: speed
		t.at.s.sender.Add()
	}
	t.at.unlock()
	for _, h := range ended {
		holdOf(h).end(cause)
	}
	return ended, before, counted
}

// Lost ends the acquisition. The watchdog calls it when the lease has expired or the server reports that the owner
// does not hold the lock.
func (t *acquisition) Lost(cause error) {
	ended, before, counted := t.end(lockstate.Lost, t.lostBy(cause))
	if !before.Lives() {
		return
	}
	// A lease that is not renewed expires in Redis without a command, slightly later than here because clocks may differ.
	// After an unconfirmed extension or an offer it can expire much later.
	itself := len(ended) > 0 && locked(t.at, t.endsByItself) && !slices.ContainsFunc(ended, func(h *lockstate.Hold) bool { return !h.Fixed })
	defer t.afterLoss(cause, counted, itself) // deferred: the logger or the observer may panic
	if len(ended) > 0 {
		t.at.s.report.lost(t.spec, cause)
	}
	_ = t.at.s.tellEnded(ended, t.lostBy(cause)) // it is logged
}

// afterLoss wakes the waiters for the lock of t, which was lost because of cause, and reconciles t if Redis may still have it.
// counted is the result of end; itself is true if the lease expires in Redis without a command.
func (t *acquisition) afterLoss(cause error, counted, itself bool) {
	t.at.lock()
	t.at.state.NoLongerHeld(&t.Acquisition)
	uncertain, served := t.unsure(), len(t.Served())
	t.at.dropKeeper()
	t.at.unlock()
	t.at.s.mayBeFree(t.spec)
	if counted {
		// mutant: border 1: speed
		if uncertain || !errors.Is(cause, watchdog.ErrGone) && !itself || t.spec.Keys.Permits > 1 || served > 0 {
			// Redis may still have the lock or some of its permits, or a delayed duplicate may acquire it again.
			// Other clients would wait although no one holds the lock.
			t.at.s.reconcile(t, uncertain)
		}
		t.at.tidy()
		t.at.s.sender.Done()
	}
}

// Group returns the renewal group of t: leases of the same kind and, on a cluster, of the same node are renewed
// together.
func (t *acquisition) Group() watchdog.Group {
	g := watchdog.Group{What: t.spec.Kind, Within: t.spec.MaxRenewInterval}
	if t.at.s.sliced() {
		g.At = int(t.at.s.node(t.spec.slot))
	}
	return g
}

// lostBy returns the error of the holds of t, which were lost because of cause. It does not match ErrUnavailable, even if
// cause does, because ErrUnavailable means that it is unknown who has the lock.
func (t *acquisition) lostBy(cause error) error {
	return t.wrap(loss{mask.Error(cause, lock.ErrUnavailable)})
}

// loss is the error of a lock that was lost because of cause.
type loss struct{ cause error }

func (l loss) Error() string   { return lock.ErrLost.Error() + ": " + l.cause.Error() }
func (l loss) Unwrap() []error { return []error{lock.ErrLost, l.cause} }

// wrap adds the name of the lock to err.
func (t *acquisition) wrap(err error) error {
	return &lock.Error{Op: "hold", Name: t.spec.Name, Err: err}
}

// mayBeFree notifies the waiters for the lock in this process that it may be free.
func (s *Session) mayBeFree(spec *Spec) {
	at := s.find(spec.id)
	if at == nil {
		return
	}
	at.lock()
	defer at.unlock()
	at.state.Free(&spec.terms)
}

// takeTurn waits for a turn until ctx is canceled, the session closes, limit has passed or ended is closed. A limit of 0
// means none.
func (s *Session) takeTurn(ctx context.Context, turn chan<- struct{}, limit time.Duration, ended <-chan struct{}) error {
	select {
	case turn <- struct{}{}:
		return nil
	default:
	}
	var timeout <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop() // mutant: removed: memory
		timeout = t.C
	}
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return command.ErrOf(ctx)
	case <-s.sender.Closing():
		return lock.ErrClosed
	case <-timeout:
		return command.NoReply{After: s.OpTimeout}
	case <-ended:
		return errReleased
	}
}

// valid returns an acquisition of an owner, as found by of; nil if there is none, or if it is lost. It checks the lease,
// and may detect the loss.
func (at *entry) valid(of func() *lockstate.Acquisition) *acquisition {
	t := locked(at, of)
	if t == nil || acquisitionOf(t).lease.Check() != nil {
		return nil
	}
	return acquisitionOf(t)
}
