package watchdog_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/watchdog"
)

// A lease is 24 ticks of the model, so everything that a watchdog does happens at a tick. A renewal
// is due after a third of the lease, and one tick after a failed one. Only the end of the trust is
// earlier than its tick, by the margin.
const (
	traceTick  = time.Second
	traceLease = 24 * traceTick
)

// The events of plain.pml that concern a lease, with their numbers there.
const (
	eventStart          = 1
	eventRequest        = 2
	eventClaim          = 3
	eventUnlock         = 5
	eventExecute        = 6
	eventReplyToRequest = 7
	eventReplyToRelease = 8
	eventDisconnect     = 9
	eventLose           = 12
	eventReconcile      = 13
	eventExpire         = 14
	eventRenew          = 15
	eventReplyToRenewal = 16
	eventTicks          = 17
	eventTrust          = 18

	noOwner   = 255 // no owner
	handedOff = 254 // to the next waiter of the process

	granted  = 1
	freed    = 3
	noEffect = 6
)

type traceEvent [5]int

// Histories of the leases of a process. proof/model/check.sh has SPIN follow them in the model of the
// plain lock. TestTraces writes them to the file "leases" of the directory that LEASEHOLD_TRACES
// names, one per line. In a history, owners of a lock follow each other by release or hand-off, and a
// watchdog renews their leases, in virtual time. Renewals and replies take any time, and connections
// break. LEASEHOLD_SEED selects other histories.
func TestTraces(t *testing.T) {
	dir := os.Getenv("LEASEHOLD_TRACES")
	if dir == "" {
		t.Skip("LEASEHOLD_TRACES is not set")
	}
	f, err := os.Create(filepath.Join(dir, "leases"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	seed, _ := strconv.ParseUint(os.Getenv("LEASEHOLD_SEED"), 10, 64)
	synctest.Test(t, func(*testing.T) {
		for n := range uint64(10000) {
			fmt.Fprint(out, "1 ") // process
			for _, e := range anyHistory(rand.New(rand.NewPCG(seed+n, 0))) {
				for _, number := range e {
					fmt.Fprint(out, number, " ")
				}
			}
			fmt.Fprintln(out)
		}
	})
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
}

// history is a process that acquires a lock repeatedly, and a server.
type history struct {
	*rand.Rand
	dog         *watchdog.Watchdog
	caller      int          // the owner, or the caller that requests the lock; the next one has the other number
	acquisition *acquisition // the latest; nil before the first
	flying      []*flight
	named       int
	sent        int

	holder, left int // the server's state: an owner string, and the remaining ticks of its lease

	mu      sync.Mutex
	events  []traceEvent
	pending []timedEvent // by the goroutines of the watchdog
}

// timedEvent is an event with its time.
type timedEvent struct {
	at time.Time
	traceEvent
}

// acquisition is a subject of the watchdog.
type acquisition struct {
	h     *history
	name  int
	lease *watchdog.Lease
	owes  bool // it was lost, and the server's state for it was not reconciled yet
}

// flight is a command in flight.
type flight struct {
	what   int // eventRequest, eventUnlock or eventRenew
	t      *acquisition
	number int
	sent   time.Time
	result int        // 0 before it was executed
	reply  chan error // for a renewal: the call that waits for the reply; nil if none does
	copy   bool
}

var errBroke = errors.New("the connection broke")

func anyHistory(r *rand.Rand) []traceEvent {
	h := &history{Rand: r, caller: 1, holder: noOwner}
	h.dog = watchdog.New(traceLease, most, h.renew)
	for len(h.events) < 100 && h.sent < 30 && h.named < 16 {
		h.step()
		synctest.Wait()
		h.flush()
		h.recordTrust()
	}
	for _, f := range h.flying {
		if f.reply != nil {
			f.reply <- errBroke
		}
	}
	h.dog.Close()
	return h.events
}

func (h *history) record(verb int, args ...int) {
	e := traceEvent{verb}
	copy(e[1:], args)
	h.events = append(h.events, e)
}

// flush records what the watchdog did.
func (h *history) flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.pending {
		h.events = append(h.events, e.traceEvent)
	}
	h.pending = nil
}

// recordTrust records for how many ticks the latest acquisition is trusted.
func (h *history) recordTrust() {
	if h.acquisition == nil {
		return
	}
	trust := 0
	if h.acquisition.lease.Check() == nil {
		trust = int((time.Until(h.acquisition.lease.Until()) + traceTick - 1) / traceTick)
	}
	h.flush()
	h.record(eventTrust, h.acquisition.name, trust)
}

// renew is the watchdog's Renew function.
func (h *history) renew(_ context.Context, batch []watchdog.Subject) []error {
	t := batch[0].(*acquisition) // all earlier ones have ended
	h.mu.Lock()
	f := h.send(eventRenew, t)
	f.reply = make(chan error)
	h.pending = append(h.pending, timedEvent{time.Now(), traceEvent{eventRenew, t.name}})
	h.mu.Unlock()
	return []error{<-f.reply}
}

func (h *history) send(what int, t *acquisition) *flight {
	f := &flight{what: what, t: t, number: h.sent, sent: time.Now()}
	h.sent++
	h.flying = append(h.flying, f)
	return f
}

// Lost records a loss, unless the reply to a renewal was the cause: that has its own event.
func (t *acquisition) Lost(cause error) {
	t.h.mu.Lock()
	defer t.h.mu.Unlock()
	if t.owes = true; !errors.Is(cause, watchdog.ErrGone) {
		t.h.pending = append(t.h.pending, timedEvent{time.Now(), traceEvent{eventLose, t.name}})
	}
}

func (t *acquisition) Renewed(time.Time, time.Duration) {}
func (t *acquisition) Unrenewed(error, time.Duration)   {}
func (t *acquisition) Due()                             {}
func (t *acquisition) Group() watchdog.Group            { return watchdog.Group{} }

func (t *acquisition) holds() bool { return t != nil && t.lease.Check() == nil }

// step performs one event.
func (h *history) step() {
	if len(h.flying) > 0 && h.IntN(2) == 0 {
		h.command(h.flying[h.IntN(len(h.flying))])
		return
	}
	t, requesting := h.acquisition, slices.ContainsFunc(h.flying, func(f *flight) bool { return f.what != eventRenew })
	switch n := h.IntN(12); {
	case t.holds() && n == 0:
		t.lease.End()
		h.record(eventUnlock, h.caller, noOwner)
		h.send(eventUnlock, t)
	case t.holds() && n == 1:
		next := &acquisition{h: h, name: t.name, lease: t.lease}
		if t.lease.Hand(next, 0) {
			h.record(eventStart, 1-h.caller)
			h.record(eventUnlock, h.caller, handedOff)
			h.caller = 1 - h.caller
			h.record(eventClaim, h.caller, t.name)
			h.acquisition = next
		}
	case t.holds() && n == 2:
		t.lease.Lose(errBroke)
	case h.holder != noOwner && n == 3:
		h.holder = noOwner // an operator deletes the key
		h.record(eventExpire)
	case t != nil && t.owes && n < 7:
		if t.owes = false; h.holder == t.name {
			h.holder = noOwner
		}
		h.record(eventReconcile, t.name)
	case !requesting && !t.holds() && h.holder == noOwner && n > 6:
		h.caller = 1 - h.caller
		h.record(eventStart, h.caller)
		h.record(eventRequest, h.caller, h.named)
		h.send(eventRequest, &acquisition{h: h, name: h.named})
		h.named++
	default:
		h.tick()
	}
}

// tick lets time pass.
func (h *history) tick() {
	for _, f := range h.flying {
		if f.what == eventRequest && time.Since(f.sent) > traceLease-3*traceTick {
			h.command(f)
			return
		}
	}
	n := 1 + h.IntN(3)
	for range n {
		time.Sleep(traceTick)
		synctest.Wait()
		now := time.Now()
		h.mu.Lock()
		for len(h.pending) > 0 && h.pending[0].at.Before(now) { // a lost acquisition
			h.events = append(h.events, h.pending[0].traceEvent)
			h.pending = h.pending[1:]
		}
		h.mu.Unlock()
		if last := len(h.events) - 1; last >= 0 && h.events[last][0] == eventTicks {
			h.events[last][1]++
		} else {
			h.record(eventTicks, 1)
		}
		h.flush()
		if h.left--; h.left == 0 {
			h.holder = noOwner
		}
	}
}

// command performs one event of a command in flight.
func (h *history) command(f *flight) {
	switch n := h.IntN(6); {
	case f.result == 0 && f.what == eventRenew && !f.copy && n == 0:
		f.copy = h.IntN(2) == 0
		h.record(eventDisconnect, f.number, map[bool]int{true: 1}[f.copy])
		if !f.copy {
			h.over(f)
		}
		h.deliver(f, errBroke)
	case f.what == eventRenew && f.reply != nil && n == 1:
		h.deliver(f, errBroke) // it stops waiting, and the reply comes later
	case f.result == 0:
		f.result = h.execute(f)
		h.record(eventExecute, f.number, f.result)
		if f.copy {
			h.over(f)
		}
	default:
		h.over(f)
		h.answered(f)
	}
}

func (h *history) over(f *flight) {
	h.flying = slices.DeleteFunc(h.flying, func(other *flight) bool { return other == f })
}

// execute executes a command on the server.
func (h *history) execute(f *flight) int {
	switch {
	case f.what == eventRequest:
		h.holder, h.left = f.t.name, int(traceLease/traceTick)
	case h.holder != f.t.name:
		return noEffect
	case f.what == eventUnlock:
		h.holder = noOwner
		return freed
	default:
		h.left = int(traceLease / traceTick)
	}
	return granted
}

// answered delivers the reply to a command.
func (h *history) answered(f *flight) {
	switch f.what {
	case eventRequest:
		h.record(eventReplyToRequest, f.number, h.caller)
		h.acquisition = f.t
		f.t.lease = h.dog.Watch(f.t, f.sent, traceLease, true)
	case eventUnlock:
		h.record(eventReplyToRelease, f.number)
	case eventRenew:
		h.record(eventReplyToRenewal, f.number)
		var err error
		if f.result == noEffect {
			err = watchdog.ErrGone
		}
		if !h.deliver(f, err) {
			f.t.lease.Answered(f.sent, err)
		}
	}
}

// deliver ends the call that waits for the reply to a renewal. It reports whether there was one.
func (h *history) deliver(f *flight, err error) bool {
	if f.reply == nil {
		return false
	}
	f.reply <- err
	f.reply = nil
	return true
}
