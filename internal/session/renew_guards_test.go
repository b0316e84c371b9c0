package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// A session on a cluster guesses which slots are on the same node, and asks the cluster, once in an interval between renewals.
func TestNode_asksTheCluster(t *testing.T) { // in no bubble: the interval counts from the start of the process
	m := redistest.NewMini(t)
	wire := m.Proxy(t)
	var asked atomic.Int64
	wire.OnRequest(func(words [][]byte) redistest.Action {
		if string(words[0]) == "CLUSTER" {
			asked.Add(1)
		}
		return redistest.Action{}
	})
	c := testConfig()
	c.Lease = 24 * time.Hour
	s := New(m.Client(t, redistest.Via(wire)), c)
	for range 3 {
		s.node(0)
	}
	if err := s.Close(t.Context()); err != nil { // after the answer
		t.Error(err)
	}
	if n := asked.Load(); n != 1 || s.nodes.slots.Of(0) != s.nodes.slots.Of(16383) {
		t.Errorf("asked %d times; slots of one server are together: %v", n, s.nodes.slots.Of(0) == s.nodes.slots.Of(16383))
	}
}

// On a cluster the locks of a slot are renewed together, whatever the order of the batch. Each answer goes to its own lock.
func TestRenewal_bySlot(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.nodes.sliced = true
		var slots []int
		k := hookable()
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			for i := range batch {
				slots = append(slots, int(batch[i].Slot))
			}
			return plain.Renew(ctx, rdb, batch, lease, perCall)
		}
		var holds []lock.Hold
		var batch []watchdog.Subject
		for i, slot := range []uint16{7, 3, 5, 7, 3} {
			spec := w.a.NewSpec(k, fmt.Sprint("orders", i), nil)
			spec.slot = slot
			h, err := w.a.Lock(w.Context(), spec)
			if err != nil {
				w.Fatal(err)
			}
			holds, batch = append(holds, h), append(batch, h.(*hold).tenure())
		}
		w.mini.Del("orders1")
		errs := w.a.renew(w.Context(), batch)
		if !slices.IsSorted(slots) || len(slots) != len(batch) {
			w.Errorf("renewed in the order of the slots %d", slots)
		}
		for i := range batch {
			if gone := i == 1; len(errs) != len(batch) || errors.Is(errs[i], watchdog.ErrGone) != gone || (errs[i] != nil) != gone {
				w.Fatalf("the errors are %v", errs)
			}
		}
		for i, h := range holds {
			if err := h.Unlock(w.Context()); errors.Is(err, lock.ErrLost) != (i == 1) {
				w.Error(err)
			}
		}
	})
}

// A release has given a lock to a waiter that has not taken it yet. A batch of renewals leaves that lock out, and renews the others.
func TestRenewal_leavesOutWhatNobodyTook(t *testing.T) {
	inBubble(t, func(w *world) {
		first, next, goes := w.heirAsks(w.Context())
		var offered []watchdog.Subject
		for _, at := range w.a.places.known {
			for _, of := range at.place.Offered() {
				offered = append(offered, tenureOf(of))
			}
		}
		if len(offered) != 1 {
			w.Fatalf("%d are offered", len(offered))
		}
		batch := offered
		var holds []lock.Hold
		for i := range 2 {
			h, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, fmt.Sprint("other", i), nil))
			if err != nil {
				w.Fatal(err)
			}
			holds, batch = append(holds, h), append(batch, h.(*hold).tenure())
		}
		w.mini.Del("other1")
		if errs := w.a.renew(w.Context(), batch); len(errs) != 3 || errs[0] != errUntaken || errs[1] != nil || !errors.Is(errs[2], watchdog.ErrGone) {
			w.Errorf("the errors are %v", errs)
		}
		w.unlock(holds[0])
		_ = holds[1].Unlock(w.Context()) // it is gone
		close(goes)
		w.unlock(w.next(first))
		w.unlock(w.next(next))
	})
}

// An owner reads a lock twice. The key that is the lease of both holds is renewed.
func TestRenewal_ofAllReadings(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		holds := []lock.Hold{w.take(w.a, reading, ctx), w.take(w.a, reading, ctx)}
		time.Sleep(2 * leaseTime)
		if left := w.mini.TTL("{orders}:" + holds[0].Owner() + ":rwlock_timeout:2"); left < leaseTime/2 {
			w.Errorf("the read lease has %v left", left)
		}
		for _, h := range holds {
			w.unlock(h)
		}
	})
}
