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

// batchSize is the maximum number of locks in one renewal. It blocks the server for a fraction of a millisecond.
const batchSize = 100

// nodes maps the slots of a cluster to nodes.
type nodes struct {
	sliced bool // set once: it is a cluster, and keys have slots
	slots  slots.Table
}

// sliced reports whether the server is a cluster.
func (s *Session) sliced() bool { return s.nodes.sliced }

// node returns the node of a slot of a cluster. It does not block. At most once per renewal interval, it starts a goroutine
// that refreshes the table.
func (s *Session) node(slot uint16) uint16 {
	if s.nodes.slots.Due(watchdog.Interval(s.Lease)) {
		s.sender.Go(func() {
			_ = command.SendFunc(context.Background(), s.sender, s.OpTimeout, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, s.nodes.slots.Refresh(ctx, s.rdb)
			})
		})
	}
	return s.nodes.slots.Of(slot)
}

// renewal renews a batch of leases with one command. It implements command.Call.
type renewal struct {
	command.Unbatched[[]luascripts.Renewed]
	s            *Session
	order        []int // the index of each acquisition in the watchdog's batch
	acquisitions []*acquisition
	locks        []luascripts.Renewal
	holds        []*hold // the holds whose callers' contexts must be checked
	sent         time.Time

	givenUp atomic.Bool // the watchdog has stopped waiting
	sending atomic.Bool // rueidis has accepted the command, or is about to
}

// renew renews a batch of leases for the watchdog. They are of one kind and, on a cluster, usually on one node.
func (s *Session) renew(_ context.Context, batch []watchdog.Subject) []error {
	r := &renewal{s: s}
	errs := r.choose(batch)
	if len(r.acquisitions) == 0 {
		return errs
	}
	for _, h := range r.holds { // without the mutex: the context is the caller's
		if h.caller().Err() != nil {
			s.callerCanceled(h)
		}
	}
	r.sent = time.Now()
	o := command.Send[[]luascripts.Renewed](context.Background(), s.sender, s.OpTimeout, r)
	r.givenUp.Store(true) // before the watchdog, or an Unlock that waits for this renewal, can continue; no effect after a reply
	if s.CheckEviction {
		s.CheckEvictionOnce()
	}
	failure := s.sender.Explain(o.Err)
	var causes sync.WaitGroup
	for j, i := range r.order {
		switch {
		case o.Err != nil:
			errs[i] = failure
		case o.Value[j].Verdict == luascripts.Gone:
			causes.Go(func() { errs[i] = s.gone(r.acquisitions[j], luascripts.Gone) })
		default:
			errs[i] = s.renewalError(o.Value[j])
		}
	}
	causes.Wait()
	r.warnFailed(errs)
	return errs
}

// choose adds the acquisitions of the batch that need a renewal to r, and returns errors for the others.
func (r *renewal) choose(batch []watchdog.Subject) (errs []error) {
	n := len(batch)
	errs, r.order = make([]error, n), make([]int, n)
	// mutant: removed: speed
	r.acquisitions, r.locks, r.holds = make([]*acquisition, 0, n), make([]luascripts.Renewal, 0, n), make([]*hold, 0, n)
	for i := range batch {
		r.order[i] = i
	}
	// mutant: always: speed
	if r.s.sliced() { // locks in the same slot are renewed by one call of the script
		slices.SortFunc(r.order, func(i, j int) int {
			return int(batch[i].(*acquisition).spec.slot) - int(batch[j].(*acquisition).spec.slot)
		})
	}
	taken := r.order[:0]
	for _, i := range r.order {
		if r.take(batch[i].(*acquisition)) {
			taken = append(taken, i)
		} else {
			errs[i] = errUntaken
		}
	}
	r.order = taken
	return errs
}

// take adds t to r, unless t is granted but no waiter has claimed it. It reports whether it did.
func (r *renewal) take(t *acquisition) bool {
	t.at.lock()
	defer t.at.unlock()
	if t.Phase() == lockstate.Offered {
		return false
	}
	r.acquisitions, r.locks = append(r.acquisitions, t), append(r.locks, t.renewal())
	for _, held := range t.Holds() {
		if h := holdOf(held); !h.Fixed && !h.isCanceled() {
			r.holds = append(r.holds, h)
		}
	}
	return true
}

// renewal returns the arguments of the renewal script for t. The caller holds the mutex of the state.
func (t *acquisition) renewal() luascripts.Renewal {
	return luascripts.Renewal{Keys: &t.spec.Keys, Owner: t.Name, Slot: t.spec.slot}
}

// Send sends the batch. It returns an error only if the server replied to none of the renewals.
func (r *renewal) Send(ctx context.Context) ([]luascripts.Renewed, error) {
	renewed := r.acquisitions[0].spec.Renew(untilSent{ctx, r}, r.s.rdb, r.locks, r.s.Lease, batchSize)
	if !slices.ContainsFunc(renewed, func(r luascripts.Renewed) bool { return command.IsReply(r.Err) }) {
		return nil, renewed[0].Err
	}
	return renewed, nil
}

// untilSent is the context of a renewal. It cancels the renewal until rueidis accepts the command, because rueidis calls
// Err first. After that the renewal is not canceled, because a late confirmation still extends the lease. The context
// therefore has no Done channel, and a script that is missing on the server is resent with its source.
type untilSent struct {
	context.Context
	r *renewal
}

// Err returns an error if the watchdog had stopped waiting at the first call of Err.
func (c untilSent) Err() error {
	if !c.r.sending.Load() {
		if c.r.givenUp.Load() {
			return command.ErrUnsent
		}
		c.r.sending.Store(true)
	}
	return c.Context.Err()
}

// Late extends the leases after a late confirmation. They count from the time of the send.
func (r *renewal) Late(replies []luascripts.Renewed, err error) {
	for j, t := range r.acquisitions {
		if err == nil {
			t.watch().Answered(r.sent, r.s.renewalError(replies[j]))
		}
	}
}

// errUntaken is the error of a renewal of an Offered acquisition. A lock that no waiter has claimed is not renewed.
var errUntaken = errors.New("not claimed yet")

// renewalError converts the reply to a renewal into an error for the watchdog.
func (s *Session) renewalError(r luascripts.Renewed) error {
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

// warnFailed logs one warning for all renewals that failed, if any. It skips losses, which acquisition.Lost logs.
func (r *renewal) warnFailed(errs []error) {
	var last *acquisition
	var err error // of last
	failed := 0
	for j, i := range r.order {
		if errs[i] != nil && !errors.Is(errs[i], watchdog.ErrGone) {
			failed++
			last, err = r.acquisitions[j], errs[i]
		}
	}
	if failed > 0 {
		r.s.report.warn("lease renewal failed, will retry", last.spec.Name, "lock", last.spec.Name, "locks", failed, "err", err)
	}
}
