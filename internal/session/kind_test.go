package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// Each test here fails without one guard of the rules of a kind.

// A kind accepts the options that it supports, and rejects the others.
func TestNewSpec_options(t *testing.T) {
	inBubble(t, func(w *world) {
		for name, c := range map[string]struct {
			option lock.Option
			known  []*Kind
		}{
			"WithWaiterTimeout":    {lock.WithWaiterTimeout(time.Second), []*Kind{fair, reading, writing}},
			"WithMinHold":          {lock.WithMinHold(time.Second), []*Kind{plain, fair}},
			"WithLinger":           {lock.WithLinger(time.Second), []*Kind{plain, fair, reading, writing}}, // the write side of both
			"WithReaderPreference": {lock.WithReaderPreference(), []*Kind{reading, writing}},
			"WithFencing":          {lock.WithFencing(), []*Kind{plain, fair, reading, writing}}, // no token of a semaphore is the latest
			"WithMaxHold":          {lock.WithMaxHold(time.Second), []*Kind{plain, fair, reading, writing, many, workers}},
			"WithAsyncUnlock":      {lock.WithAsyncUnlock(), []*Kind{plain, fair, reading, writing, many}},
		} {
			for kind, k := range map[string]*Kind{"plain": plain, "fair": fair, "read": reading, "write": writing, "semaphore": many, "wait group": workers} {
				err := w.a.NewSpec(k, "orders", []lock.Option{c.option}).Err
				if known := slices.Contains(c.known, k); known != (err == nil) || !known && !errors.Is(err, errors.ErrUnsupported) {
					w.Errorf("%s of %s: %v", name, kind, err)
				}
			}
		}
	})
}

// workers is a kind whose holds are workers of a wait group.
var workers = &Kind{Mode: lock.Worker, NonReentrant: true, Scripts: Scripts{Keys: keys.WaitGroup}}

// many is a kind that several owners can hold at once.
var many = &Kind{Mode: lock.Permit, NonReentrant: true, Scripts: Scripts{Keys: keys.Semaphore}}

// Each invalid name or option has its own error, and the spec then has no keys.
func TestNewSpec_wrong(t *testing.T) {
	inBubble(t, func(w *world) {
		half := leaseTime / 2
		for name, c := range map[string]struct {
			name string
			opts []lock.Option
			want string
			is   error
		}{
			"no name":                            {"", nil, "", lock.ErrBadName},
			"no name, and replicas for too long": {"", []lock.Option{lock.WithReplicas(1, half+time.Millisecond)}, "", lock.ErrBadName},
			"replicas for too long":              {"orders", []lock.Option{lock.WithReplicas(1, half+time.Millisecond)}, "half of the lease (30s)", nil},
			"longer than half a fixed lease":     {"orders", []lock.Option{lock.WithFixedLease(time.Second), lock.WithReplicas(1, time.Second)}, "half of the lease (1s)", nil},
		} {
			spec := w.a.NewSpec(plain, c.name, c.opts)
			if spec.Err == nil || !strings.Contains(spec.Err.Error(), c.want) || c.is != nil && !errors.Is(spec.Err, c.is) {
				w.Errorf("%s: %v, want %q and %v", name, spec.Err, c.want, c.is)
			}
			if spec.Keys != (luascripts.Keys{}) {
				w.Errorf("%s: %+v", name, spec.Keys)
			}
		}
		if spec := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithReplicas(1, half)}); spec.Err != nil {
			w.Error(spec.Err)
		}
	})
}

// A lock with a minimum hold time has the lease of other locks, or a longer one if it must.
func TestNewSpec_lease(t *testing.T) {
	inBubble(t, func(w *world) {
		const little, much = time.Second, 2 * leaseTime
		for least, want := range map[time.Duration]time.Duration{little: leaseTime, much: much + much/50 + opTime} {
			if spec := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithMinHold(least)}); spec.terms.Lease != want {
				w.Errorf("at least %v: a lease of %v, want %v", least, spec.terms.Lease, want)
			}
		}
	})
}

// An offer lasts no longer than the lease of the waiter.
func TestNewSpec_offer(t *testing.T) {
	inBubble(t, func(w *world) {
		for lease, want := range map[time.Duration]time.Duration{pollTime: pollTime, leaseTime: offerPolls * pollTime} {
			if got := w.a.offer(w.a.NewSpec(plain, "orders", []lock.Option{lock.WithFixedLease(lease)})); got != want {
				w.Errorf("an offer of %v for a lease of %v, want %v", got, lease, want)
			}
		}
	})
}

// The messages of a client use the type of Pub/Sub that is configured.
func TestNewSpec_publishes(t *testing.T) {
	for sharded, want := range map[bool]string{false: "PUBLISH", true: "SPUBLISH"} {
		s := &Session{Config: Config{Sharded: sharded}}
		if got := s.NewSpec(plain, "orders", nil).Keys.Publish; got != want {
			t.Errorf("sharded: %v, and messages go by %s", sharded, got)
		}
	}
}

// cluster makes s treat its server as a cluster, until undo.
func cluster(s *Session) (undo func()) {
	s.nodes.sliced = true
	return func() { s.nodes.sliced = false }
}

// slotted returns the spec of a plain lock on a cluster.
func slotted(s *Session, name string) *Spec {
	spec := s.NewSpec(plain, name, nil)
	spec.slot &= 1<<14 - 1 // rueidis marks the slots of a client of a single server
	return spec
}

// On a cluster no script has keys in two slots, even if it is for several locks.
func TestCluster_eachSlotForItself(t *testing.T) {
	inBubble(t, func(w *world) {
		defer cluster(w.a)()
		var scripts atomic.Int32
		w.wire.OnRequest(func(args [][]byte) (none redistest.Action) {
			if name := string(args[0]); name != "EVALSHA" && name != "EVAL" {
				return none
			}
			scripts.Add(1)
			tags := make(map[string]bool)
			for _, arg := range args[3:] {
				if tag := string(arg); strings.HasPrefix(tag, "{") {
					tags[keys.Tag(tag)] = true
				}
			}
			if len(tags) != 1 {
				w.Errorf("%q", args[2:])
			}
			return none
		})
		var holds []lock.Hold
		for _, name := range []string{"{a}1", "{b}1", "{a}2"} {
			h := w.mustLock(w.Context(), slotted(w.a, name))
			holds = append(holds, h)
		}
		taken := scripts.Load()
		time.Sleep(leaseTime)
		if scripts.Load() == taken {
			w.Error("nothing was renewed")
		}
		w.unlockAll(holds...)
	})
}

// On a cluster, subscribers can be connected to a replica, so the server cannot count them. A queued waiter then keeps
// its position for a fixed time.
func TestCluster_waitersKeepTheirPosition(t *testing.T) {
	inBubble(t, func(w *world) {
		defer cluster(w.b)()
		h := w.lock(w.a, w.Context())
		waiter := w.waitingFor(w.b, w.Context(), slotted(w.b, "orders"))
		state, err := Inspect(w.Context(), w.a, w.a.NewSpec(plain, "orders", nil), luascripts.InspectReentrant)
		if err != nil || len(state.Waiters) != 1 {
			w.Fatalf("%+v, %v", state, err)
		}
		if got := state.Waiters[0].WaiterTimeout; got <= 0 || got > w.b.queueTTL() {
			w.Errorf("it counts as alive for %v", got)
		}
		w.unlock(h)
		w.unlock(w.next(waiter))
	})
}

// A session without a cluster sends no CLUSTER command. This uses the real clock, because in a bubble the refresh is
// never due.
func TestNoCluster_noSlots(t *testing.T) {
	m := redistest.NewMini(t)
	wire := m.Proxy(t)
	s := New(m.Client(t, redistest.Via(wire)), testConfig())
	var scripts atomic.Int32
	wire.OnRequest(func(args [][]byte) (none redistest.Action) {
		switch strings.ToUpper(string(args[0])) {
		case "CLUSTER":
			t.Errorf("%q", args)
		case "EVALSHA":
			scripts.Add(1)
		}
		return none
	})
	h, err := s.Lock(t.Context(), s.NewSpec(plain, "orders", nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.Unlock(t.Context()), s.Close(t.Context())); err != nil { // Close waits for commands in flight
		t.Error(err)
	}
	if scripts.Load() == 0 {
		t.Error("nothing was sent")
	}
}

// A waiter of a kind that leaves no trace in Redis retries once per poll interval, however long that is.
func TestWaiter_withoutATrace(t *testing.T) {
	inBubble(t, func(w *world) {
		c := testConfig()
		c.Poll = 2 * lock.DefaultWaiterTimeout
		s := New(w.mini.Client(w, redistest.Via(w.wire)), c)
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(s, w.Context())
		time.Sleep(c.Poll / 2)
		sent := w.scripts()
		time.Sleep(5 * c.Poll)
		w.wantSent(sent, 5)
		w.unlock(h)
		w.unlock(w.next(waiter))
		w.wantNoErr(s.Close(w.Context()))
	})
}

// Waiters of a read/write lock leave traces: a writer its intent, unless it has reader preference, and each reader its
// reservation.
func TestWaiters_traces(t *testing.T) {
	first := []lock.Option{lock.WithReaderPreference()}
	type test struct {
		kind         *Kind
		opts         []lock.Option
		intent, turn bool
	}
	forEach(t, map[string]test{
		"a writer":                      {writing, nil, true, false},
		"a writer, readers first":       {writing, first, false, false},
		"a reader":                      {reading, nil, false, true},
		"a reader that is let in first": {reading, first, false, true},
	}, func(w *world, c test) {
		spec := w.a.NewSpec(c.kind, "orders", c.opts)
		h := w.take(w.b, writing, w.Context())
		waiter := w.waitingFor(w.a, w.Context(), spec)
		if intent, turn := w.mini.Exists(spec.Keys.Intent), w.mini.Exists(spec.Keys.Reservation); intent != c.intent || turn != c.turn {
			w.Errorf("an intent: %v, a reservation: %v", intent, turn)
		}
		w.unlock(h)
		w.unlock(<-waiter)
	})
}

// Leases on one node of a cluster are renewed together, and separately from those on another node, which may be
// unavailable.
func TestCluster_renewedNodeByNode(t *testing.T) {
	inBubble(t, func(w *world) {
		defer cluster(w.a)()
		groups := make(map[uint16]watchdog.Group) // by node
		nodes := make(map[watchdog.Group]bool)
		var holds []lock.Hold
		for i := range 20 {
			spec := slotted(w.a, fmt.Sprint("orders", i))
			h := w.mustLock(w.Context(), spec)
			holds = append(holds, h)
			node, group := w.a.node(spec.slot), h.(*hold).acquisition().Group()
			if before, ok := groups[node]; ok && before != group {
				w.Errorf("two groups of one node: %v and %v", before, group)
			}
			groups[node], nodes[group] = group, true
		}
		if len(nodes) != len(groups) || len(nodes) < 2 {
			w.Errorf("%d groups of %d nodes", len(nodes), len(groups))
		}
		w.unlockAll(holds...)
	})
}
