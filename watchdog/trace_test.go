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

// The events of plain.pml that concern a lease, by their numbers there.
const (
	tellStart         = 1
	tellAsk           = 2
	tellTake          = 3
	tellUnlock        = 5
	tellRun           = 6
	tellAnswerAsk     = 7
	tellAnswerRelease = 8
	tellBreak         = 9
	tellLose          = 12
	tellSettle        = 13
	tellExpire        = 14
	tellRenew         = 15
	tellAnswerRenewal = 16
	tellTicks         = 17
	tellTrust         = 18

	toldNone   = 255 // no owner
	toldPassed = 254 // to the next waiter of the process

	toldGrant   = 1
	toldFreed   = 3
	toldNothing = 6
)

type telling [5]int

// Histories of the leases of a process. proof/model/check.sh has SPIN follow them in the model of the
// plain lock. TestTraces writes them to the file "leases" of the directory that LEASEHOLD_TRACES
// names, one per line. In a history, owners of a lock follow each other by release or hand-off, and a
// watchdog renews their leases, in virtual time. Renewals and replies take any time, and connections
// break. LEASEHOLD_SEED selects other histories.
func TestTraces(t *testing.T) {
	dir := os.Getenv("LEASEHOLD_TRACES")
	if dir == "" {
		t.Skip("LEASEHOLD_TRACES names no directory")
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
	dog    *watchdog.Watchdog
	caller int     // the owner, or the caller that requests the lock; the next one has the other number
	tenure *tenure // the latest; nil before the first
	flying []*flight
	named  int
	sent   int

	holder, left int // the server's state: an owner string, and the remaining ticks of its lease

	mu   sync.Mutex
	told []telling
	news []told // by the goroutines of the watchdog
}

// told is a telling at a time.
type told struct {
	at time.Time
	telling
}

// tenure is an acquisition of the lock: a subject of the watchdog.
type tenure struct {
	h     *history
	name  int
	lease *watchdog.Lease
	owes  bool // it was lost, and the server's state for it was not reconciled yet
}

// flight is a command in flight.
type flight struct {
	what   int // tellAsk, tellUnlock or tellRenew
	t      *tenure
	number int
	sent   time.Time
	answer int        // 0 before it was executed
	heard  chan error // for a renewal: the call that waits for the reply; nil if none does
	copy   bool
}

var errBroke = errors.New("the connection broke")

func anyHistory(r *rand.Rand) []telling {
	h := &history{Rand: r, caller: 1, holder: toldNone}
	h.dog = watchdog.New(traceLease, most, h.renew)
	for len(h.told) < 100 && h.sent < 30 && h.named < 16 {
		h.step()
		synctest.Wait()
		h.tell()
		h.tellTrust()
	}
	for _, f := range h.flying {
		if f.heard != nil {
			f.heard <- errBroke
		}
	}
	h.dog.Close()
	return h.told
}

func (h *history) says(verb int, args ...int) {
	e := telling{verb}
	copy(e[1:], args)
	h.told = append(h.told, e)
}

// tell tells what the watchdog did.
func (h *history) tell() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.news {
		h.told = append(h.told, e.telling)
	}
	h.news = nil
}

// tellTrust tells how many ticks the latest tenure is trusted.
func (h *history) tellTrust() {
	if h.tenure == nil {
		return
	}
	trust := 0
	if h.tenure.lease.Check() == nil {
		trust = int((time.Until(h.tenure.lease.Until()) + traceTick - 1) / traceTick)
	}
	h.tell()
	h.says(tellTrust, h.tenure.name, trust)
}

// renew is the watchdog's Renew function.
func (h *history) renew(_ context.Context, batch []watchdog.Subject) []error {
	t := batch[0].(*tenure) // all earlier ones have ended
	h.mu.Lock()
	f := h.send(tellRenew, t)
	f.heard = make(chan error)
	h.news = append(h.news, told{time.Now(), telling{tellRenew, t.name}})
	h.mu.Unlock()
	return []error{<-f.heard}
}

func (h *history) send(what int, t *tenure) *flight {
	f := &flight{what: what, t: t, number: h.sent, sent: time.Now()}
	h.sent++
	h.flying = append(h.flying, f)
	return f
}

// Lost tells of a loss, unless the reply to a renewal was the cause, which has its own telling.
func (t *tenure) Lost(cause error) {
	t.h.mu.Lock()
	defer t.h.mu.Unlock()
	if t.owes = true; !errors.Is(cause, watchdog.ErrGone) {
		t.h.news = append(t.h.news, told{time.Now(), telling{tellLose, t.name}})
	}
}

func (t *tenure) Renewed(time.Time, time.Duration) {}
func (t *tenure) Unrenewed(error, time.Duration)   {}
func (t *tenure) Due()                             {}
func (t *tenure) Group() watchdog.Group            { return watchdog.Group{} }

func (t *tenure) holds() bool { return t != nil && t.lease.Check() == nil }

// step makes one thing happen.
func (h *history) step() {
	if len(h.flying) > 0 && h.IntN(2) == 0 {
		h.command(h.flying[h.IntN(len(h.flying))])
		return
	}
	t, asking := h.tenure, slices.ContainsFunc(h.flying, func(f *flight) bool { return f.what != tellRenew })
	switch n := h.IntN(12); {
	case t.holds() && n == 0:
		t.lease.End()
		h.says(tellUnlock, h.caller, toldNone)
		h.send(tellUnlock, t)
	case t.holds() && n == 1:
		next := &tenure{h: h, name: t.name, lease: t.lease}
		if t.lease.Hand(next, 0) {
			h.says(tellStart, 1-h.caller)
			h.says(tellUnlock, h.caller, toldPassed)
			h.caller = 1 - h.caller
			h.says(tellTake, h.caller, t.name)
			h.tenure = next
		}
	case t.holds() && n == 2:
		t.lease.Lose(errBroke)
	case h.holder != toldNone && n == 3:
		h.holder = toldNone // an operator deletes the key
		h.says(tellExpire)
	case t != nil && t.owes && n < 7:
		if t.owes = false; h.holder == t.name {
			h.holder = toldNone
		}
		h.says(tellSettle, t.name)
	case !asking && !t.holds() && h.holder == toldNone && n > 6:
		h.caller = 1 - h.caller
		h.says(tellStart, h.caller)
		h.says(tellAsk, h.caller, h.named)
		h.send(tellAsk, &tenure{h: h, name: h.named})
		h.named++
	default:
		h.tick()
	}
}

// tick lets time pass.
func (h *history) tick() {
	for _, f := range h.flying {
		if f.what == tellAsk && time.Since(f.sent) > traceLease-3*traceTick {
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
		for len(h.news) > 0 && h.news[0].at.Before(now) { // a lost tenure
			h.told = append(h.told, h.news[0].telling)
			h.news = h.news[1:]
		}
		h.mu.Unlock()
		if last := len(h.told) - 1; last >= 0 && h.told[last][0] == tellTicks {
			h.told[last][1]++
		} else {
			h.says(tellTicks, 1)
		}
		h.tell()
		if h.left--; h.left == 0 {
			h.holder = toldNone
		}
	}
}

// command makes something happen to a command.
func (h *history) command(f *flight) {
	switch n := h.IntN(6); {
	case f.answer == 0 && f.what == tellRenew && !f.copy && n == 0:
		f.copy = h.IntN(2) == 0
		h.says(tellBreak, f.number, map[bool]int{true: 1}[f.copy])
		if !f.copy {
			h.over(f)
		}
		h.hears(f, errBroke)
	case f.what == tellRenew && f.heard != nil && n == 1:
		h.hears(f, errBroke) // it stops waiting, and the reply comes later
	case f.answer == 0:
		f.answer = h.carryOut(f)
		h.says(tellRun, f.number, f.answer)
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

// carryOut executes a command on the server.
func (h *history) carryOut(f *flight) int {
	switch {
	case f.what == tellAsk:
		h.holder, h.left = f.t.name, int(traceLease/traceTick)
	case h.holder != f.t.name:
		return toldNothing
	case f.what == tellUnlock:
		h.holder = toldNone
		return toldFreed
	default:
		h.left = int(traceLease / traceTick)
	}
	return toldGrant
}

// answered delivers the reply to a command.
func (h *history) answered(f *flight) {
	switch f.what {
	case tellAsk:
		h.says(tellAnswerAsk, f.number, h.caller)
		h.tenure = f.t
		f.t.lease = h.dog.Watch(f.t, f.sent, traceLease, true)
	case tellUnlock:
		h.says(tellAnswerRelease, f.number)
	case tellRenew:
		h.says(tellAnswerRenewal, f.number)
		var err error
		if f.answer == toldNothing {
			err = watchdog.ErrGone
		}
		if !h.hears(f, err) {
			f.t.lease.Answered(f.sent, err)
		}
	}
}

// hears ends the call that waits for the reply to a renewal. It reports whether there was one.
func (h *history) hears(f *flight, err error) bool {
	if f.heard == nil {
		return false
	}
	f.heard <- err
	f.heard = nil
	return true
}
