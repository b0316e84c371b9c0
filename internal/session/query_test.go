package session

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// A look at a lock shows since when its holder and its waiters ask for it, also the processes in the
// queue of a plain lock.
func TestInspect_since(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		held := time.Now()
		time.Sleep(time.Minute)
		waiter := w.waiting(w.b, w.Context())
		waits := time.Now()
		time.Sleep(time.Minute)
		state, err := Inspect(w.Context(), w.b, w.b.NewSpec(plain, "orders", nil), luascripts.InspectReentrant)
		if err != nil || len(state.Holders) != 1 || len(state.Waiters) != 1 {
			w.Fatalf("%+v, %v", state, err)
		}
		if got := state.Holders[0]; !got.Since.Equal(held) || got.Owner != h.Owner() {
			w.Errorf("held since %v, want %v", got.Since, held)
		}
		if got := state.Waiters[0]; !got.Since.Equal(waits) || got.WaiterTimeout != lock.NoExpiry || !strings.HasPrefix(got.Owner, w.b.id) {
			w.Errorf("%+v waits, want since %v", got, waits)
		}
		w.unlock(h)
		w.unlock(w.next(waiter))
	})
}

// Owners made at the same instant differ, and an owner of Redisson's tells no time.
func TestOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Session{identity: identity{id: "01a202b8-4bbe-7c35-bc27-051edccf1eeb"}}
		seen := make(map[string]bool)
		for range 5000 {
			owner := s.newOwner(time.Now(), 0, "")
			if seen[owner] {
				t.Fatalf("%s twice", owner)
			}
			seen[owner] = true
			if late := time.Until(askedSince(owner)); late < 0 || late > 10*time.Microsecond {
				t.Fatalf("%s is %v late", owner, late)
			}
		}
		for _, owner := range []string{"0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:7", "", "x", "x:1", s.id, s.id + ":", s.id + ":-1"} {
			if since := askedSince(owner); !since.IsZero() {
				t.Errorf("%q asks since %v", owner, since)
			}
		}
	})
}

// An owner of a semaphore has as many numbers as it wants permits, and no other owner has one of them. Those that were made at the same
// instant are told apart by their permits.
func TestNewOwner_permits(t *testing.T) {
	s := new(Session)
	s.id = owner.NewClient()
	seen := make(map[string]bool)
	var stock luascripts.Stock
	var owners []string
	now := time.Now()
	for _, permits := range []int{1, 1000, 3, 1, 1000} {
		o := s.newOwner(now, permits, "")
		owners = append(owners, o)
		for _, id := range luascripts.Permits(o) {
			if seen[id] {
				t.Fatalf("two owners have the permit %x", id)
			}
			seen[id] = true
			stock.Held = append(stock.Held, luascripts.Permit{ID: id, Left: time.Second})
		}
	}
	if len(seen) != 2005 {
		t.Errorf("%d permits", len(seen))
	}
	state, _, _ := StockOf("gpus", stock)
	var held []string
	for _, h := range state.Holders {
		held = append(held, h.Owner)
	}
	if !slices.Equal(held, owners) {
		t.Errorf("%q hold it, want %q", held, owners)
	}
}
