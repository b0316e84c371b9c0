package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// batchSize is how many locks one renewal takes along: few enough that a server is
// back for others within a fraction of a millisecond.
const batchSize = 100

// nodes says which node of a cluster has a slot.
type nodes struct {
	sliced bool // set once: it is a cluster, and keys have slots
	slots  slots.Table
}

// sliced reports whether the server is a cluster, where keys have slots.
func (s *Session) sliced() bool { return s.nodes.sliced }

// node returns the node of a slot. It does not block. Once in each interval between renewals
// it has a goroutine ask the cluster.
func (s *Session) node(slot uint16) uint16 {
	if s.nodes.slots.Due(s.Lease / 3) {
		s.sender.Go(func() {
			_, _, _ = command.Send[struct{}](context.Background(), s.sender, s.OpTimeout, command.Func[struct{}](func(ctx context.Context) (struct{}, error) {
				return struct{}{}, s.nodes.slots.Refresh(ctx, s.rdb)
			}))
		})
	}
	return s.nodes.slots.Of(slot)
}

// renewal is what one command renews: a command.Call. It is used again once it was replied to.
type renewal struct {
	command.Unbatched[[]luascripts.Renewed]
	s       *Session
	order   []int // the index of each acquisition in the watchdog's batch
	tenures []*acquisition
	locks   []luascripts.Renewal
	holds   []*hold // of acquisitions: those whose callers' contexts are to be checked
	sent    time.Time

	givenUp atomic.Bool // the watchdog does not wait any more
	sending atomic.Bool // the client library has taken it, or is about to
}

var unusedRenewals = sync.Pool{New: func() any { return new(renewal) }}

// renew is what the watchdog renews with. All of a batch are of one kind, and on a
// cluster at one node, as far as is known.
func (s *Session) renew(_ context.Context, batch []watchdog.Subject) []error {
	r := unusedRenewals.Get().(*renewal)
	r.s = s
	errs := r.choose(batch)
	if len(r.tenures) == 0 {
		unusedRenewals.Put(r)
		return errs
	}
	r.holds = s.checkCallers(r.holds)
	r.sent = time.Now()
	r.sending.Store(false)
	replies, answered, err := command.Send[[]luascripts.Renewed](context.Background(), s.sender, s.OpTimeout, r)
	if !answered {
		r.givenUp.Store(true) // before the watchdog is notified of it, and an Unlock that waits for this renewal
	}
	if s.CheckEviction {
		s.CheckEvictionOnce()
	}
	silence := s.sender.Explain(err)
	var lost []*acquisition
	for j := range r.order {
		if err == nil && replies[j].Err == nil && replies[j].Verdict == luascripts.Gone {
			lost = append(lost, r.tenures[j])
		}
	}
	causes := s.allGone(lost)
	for j, i := range r.order {
		e := silence
		switch {
		case err != nil:
		case len(lost) > 0 && lost[0] == r.tenures[j]:
			e, lost, causes = causes[0], lost[1:], causes[1:]
		default:
			e = s.renewed(replies[j])
		}
		if e != nil {
			errs = withError(errs, len(batch), i, e)
		}
	}
	s.unrenewed(r.tenures, r.order, errs)
	if answered { // else the command may still use r
		clear(r.tenures)
		clear(r.locks)
		r.tenures, r.locks = r.tenures[:0], r.locks[:0]
		unusedRenewals.Put(r)
	}
	return errs
}

// choose takes the acquisitions of the batch that are to be renewed into r, and returns errors for
// the others.
func (r *renewal) choose(batch []watchdog.Subject) (errs []error) {
	s := r.s
	r.order = r.order[:0]
	for i := range batch {
		r.order = append(r.order, i)
	}
	if s.sliced() { // the locks of a slot share a script
		slices.SortFunc(r.order, func(i, j int) int {
			return int(batch[i].(*acquisition).spec.slot) - int(batch[j].(*acquisition).spec.slot)
		})
	}
	taken := r.order[:0]
	for _, i := range r.order {
		if r.take(batch[i].(*acquisition)) {
			taken = append(taken, i)
		} else {
			errs = withError(errs, len(batch), i, errUntaken)
		}
	}
	r.order = taken
	return errs
}

// take has r renew t, unless no waiter has taken that yet.
func (r *renewal) take(t *acquisition) bool {
	t.at.lock()
	defer t.at.unlock()
	if t.Phase() == lockstate.Offered {
		return false
	}
	r.tenures, r.locks = append(r.tenures, t), append(r.locks, t.renewalLocked())
	for _, held := range t.Holds() {
		if h := held.Of.(*hold); !h.Fixed && !h.canceled {
			r.holds = append(r.holds, h)
		}
	}
	return true
}

// renewal is what a script needs to know to renew t.
func (t *acquisition) renewal() luascripts.Renewal {
	t.at.lock()
	defer t.at.unlock()
	return t.renewalLocked()
}

func (t *acquisition) renewalLocked() luascripts.Renewal {
	return luascripts.Renewal{Keys: &t.spec.Keys, Owner: t.Name, Slot: t.spec.slot}
}

// Send sends the renewals.
func (r *renewal) Send(ctx context.Context) ([]luascripts.Renewed, error) {
	renewed := r.tenures[0].spec.Renew(untilSent{ctx, r}, r.s.rdb, r.locks, r.s.Lease, batchSize)
	if !slices.ContainsFunc(renewed, func(r luascripts.Renewed) bool { return command.IsReply(r.Err) }) {
		return nil, renewed[0].Err // the server replied to none of them
	}
	return renewed, nil
}

// untilSent is the context of a renewal. rueidis asks Err before it takes a command: it takes none of a renewal that was given up before. What
// has been sent goes on without regard to that, as a reply counts for longer than the watchdog waits; so it has no Done, and a
// script that the server does not know is sent once more, with its text.
type untilSent struct {
	context.Context
	r *renewal
}

// Err returns an error if no one waited any more when it was asked first.
func (c untilSent) Err() error {
	if !c.r.sending.Load() {
		if c.r.givenUp.Load() {
			return command.ErrUnsent
		}
		c.r.sending.Store(true)
	}
	return c.Context.Err()
}

// Late tells the leases of confirmations that come late: they count from their send.
func (r *renewal) Late(replies []luascripts.Renewed, err error) {
	for j, t := range r.tenures {
		if err == nil {
			t.watch().Answered(r.sent, r.s.renewed(replies[j]))
		}
	}
}

// errUntaken is the reply to the renewal of an Offered acquisition: no waiter has taken it yet, and
// nothing is renewed for no one.
var errUntaken = errors.New("not claimed yet")

// withError returns errs, of n, with err at i.
func withError(errs []error, n, i int, err error) []error {
	if errs == nil {
		errs = make([]error, n)
	}
	errs[i] = err
	return errs
}

// renewed returns the reply to a renewal as the watchdog wants it.
func (s *Session) renewed(r luascripts.Renewed) error {
	switch {
	case r.Err != nil:
		return s.sender.Explain(r.Err)
	case r.Verdict == luascripts.Foreign:
		return fmt.Errorf("%w: %w", watchdog.ErrGone, lock.ErrWrongType)
	case r.Verdict == luascripts.Gone:
		return watchdog.ErrGone
	default:
		return nil
	}
}

// unrenewed warns of a renewal that failed, or of several that Redis did not reply. What the
// server said is not ours is lost, and Lost warns of that.
func (s *Session) unrenewed(tenures []*acquisition, order []int, errs []error) {
	var first error
	var t *acquisition
	failed := 0
	for j, i := range order {
		if errs == nil || errs[i] == nil || errors.Is(errs[i], watchdog.ErrGone) {
			continue
		}
		if failed++; failed == 1 {
			t, first = tenures[j], errs[i]
		}
	}
	if failed > 0 {
		s.report.warn("lease renewal failed, will retry", t.spec.Name, "lock", t.spec.Name, "locks", failed, "err", first)
	}
}
