package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// states returns how many states s knows, and how many it keeps to use again.
func (w *world) places(s *Session) (known, spare int) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return len(s.table.known), len(s.table.spare)
}

// A state is forgotten with the last hold, and its memory is used again.
func TestPlaces_areForgotten(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		for i := range 3 {
			h := w.lock(w.a, w.Context())
			if known, spare := w.places(w.a); known != 1 || spare != 0 {
				w.Errorf("held: %d places, %d to be used again, want 1 and 0", known, spare)
			}
			w.unlock(h)
			if known, spare := w.places(w.a); known != 0 || spare != 1 {
				w.Errorf("round %d: %d places, %d to be used again, want 0 and 1", i, known, spare)
			}
		}
	})
}

// A hold is lost, and its application does not release it. Its place is forgotten all the same.
func TestPlaces_ofWhatIsLost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		h := w.lock(w.a, w.Context())
		w.mini.Del("orders")
		time.Sleep(w.a.Lease)
		if err := h.Err(); !errors.Is(err, lock.ErrLost) {
			w.Fatalf("%v, want ErrLost", err)
		}
		synctest.Wait()
		if known, _ := w.places(w.a); known != 0 {
			w.Errorf("%d places", known)
		}
	})
}

// Some states stay, to be used again, and no more. A handle finds the state of its lock, also when
// the one that it had is that of another lock by now.
func TestPlaces_stay(t *testing.T) {
	inBubble(t, func(w *world) {
		const most, locks = 4, 10
		w.a.table.most = most
		var specs []*Spec
		for i := range locks {
			specs = append(specs, w.a.NewSpec(plain, fmt.Sprint("orders", i), nil))
		}
		for range 3 {
			var holds []lock.Hold
			for _, spec := range append(specs, w.a.NewSpec(plain, "orders0", nil))[:locks] {
				h, err := w.a.TryLock(w.Context(), spec)
				if err != nil {
					w.Fatal(err)
				}
				w.a.table.mu.Lock()
				if at := w.a.table.known[spec.id()]; at == nil || at != spec.at || at != h.(*hold).acquisition().at {
					w.Errorf("%s is taken at a place that is not its own", spec.Name)
				}
				w.a.table.mu.Unlock()
				if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, spec.Name, nil)); !errors.Is(err, lock.ErrNotAcquired) {
					w.Errorf("%s is taken twice: %v", spec.Name, err)
				}
				holds = append(holds, h)
			}
			if known, _ := w.places(w.a); known != locks {
				w.Errorf("%d places are known of %d locks that are held", known, locks)
			}
			for _, h := range holds {
				w.unlock(h)
			}
			if known, _ := w.places(w.a); known != most {
				w.Errorf("%d places stay, want %d", known, most)
			}
			slices.Reverse(specs) // so that others stay
		}
		for _, spec := range specs { // one after the other, so that one memory serves many
			for range 2 {
				h, err := w.a.TryLock(w.Context(), spec)
				if err != nil {
					w.Fatal(err)
				}
				if n := w.mini.HGet(spec.Name, h.Owner()); n != "1" {
					w.Errorf("%s has %q holds in Redis", spec.Name, n)
				}
				w.unlock(h)
			}
		}
	})
}

// A lock that was released is remembered while others come first. After that, and at Close,
// it is forgotten.
func TestPlaces_rememberWhatWasLetGo(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		letGo := func(i int) {
			spec := w.a.NewSpec(plain, fmt.Sprint("orders", i), nil)
			at, err := w.a.begin(spec)
			if err != nil {
				w.Fatal(err)
			}
			at.lock()
			at.state.YieldUntil(&spec.terms, time.Now().Add(asideTime))
			at.unlock()
			w.a.done(at)
		}
		for i := range 10 {
			letGo(i)
		}
		if known, _ := w.places(w.a); known != 10 {
			w.Errorf("%d places are known, want all that were let go", known)
		}
		time.Sleep(asideTime)
		letGo(10)
		if known, _ := w.places(w.a); known != 1 {
			w.Errorf("%d places are known, want the latest", known)
		}
		if err := w.a.Close(context.Background()); err != nil {
			w.Error(err)
		}
		if known, _ := w.places(w.a); known != 0 {
			w.Errorf("%d places are known after Close", known)
		}
	})
}

// A lock that was released is held again. That keeps no other lock from being forgotten.
func TestPlaces_areForgottenBesideOneThatIsHeld(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		letGo := func(i int) {
			spec := w.a.NewSpec(plain, fmt.Sprint("orders", i), nil)
			at, err := w.a.begin(spec)
			if err != nil {
				w.Fatal(err)
			}
			at.lock()
			at.state.YieldUntil(&spec.terms, time.Now().Add(asideTime))
			at.unlock()
			w.a.done(at)
		}
		letGo(0)
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, "orders0", nil))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 9 {
			letGo(1 + i)
		}
		time.Sleep(asideTime)
		letGo(10)
		if known, _ := w.places(w.a); known != 2 {
			t.Errorf("%d places are known, want the one that is held and the latest", known)
		}
		w.unlock(h)
	})
}

// Each test here fails without one guard of which states there are.

// begins enters a call about the lock of this name, as each call does.
func (w *world) begins(name string) *entry {
	w.Helper()
	at, err := w.a.begin(w.a.NewSpec(plain, name, nil))
	if err != nil {
		w.Fatal(err)
	}
	return at
}

// letGo lets the lock of this name go for others, by a call of its own.
func (w *world) letGo(name string) {
	w.Helper()
	spec := w.a.NewSpec(plain, name, nil)
	at := w.begins(name)
	at.lock()
	at.state.YieldUntil(&spec.terms, time.Now().Add(asideTime))
	at.unlock()
	w.a.done(at)
}

// A process has to do with very many locks at once. When it is done with them, some states stay known, the memory of some is kept,
// and no more.
func TestPlaces_noMoreStayThanThat(t *testing.T) {
	inBubble(t, func(w *world) {
		var all []*entry
		for i := range idleEntries + spareEntries + 10 {
			all = append(all, w.begins(fmt.Sprint("orders", i)))
		}
		for _, at := range all {
			w.a.done(at)
		}
		if known, spare := w.places(w.a); known != idleEntries || spare != spareEntries {
			w.Errorf("%d places are known, and %d are kept to be used again, want %d and %d", known, spare, idleEntries, spareEntries)
		}
	})
}

// A lock was released, and a call has begun that no one in its state knows of yet. When the time of the others is over, the next
// call about the lock comes to the same place.
func TestPlaces_areNotForgottenUnderACall(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		w.letGo("orders")
		first := w.begins("orders")
		time.Sleep(asideTime)
		w.letGo("another")
		second := w.begins("orders")
		if first != second {
			w.Error("two calls about one lock have a place each")
		}
		w.a.done(first)
		w.a.done(second)
	})
}

// What was released is forgotten as soon as any call ends, also one about a lock with which others are busy all the time.
func TestPlaces_areForgottenBesideABusyOne(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		busy := w.begins("busy")
		w.letGo("orders")
		time.Sleep(asideTime)
		w.a.done(w.begins("busy"))
		if known, _ := w.places(w.a); known != 1 {
			w.Errorf("%d places are known, want the busy one", known)
		}
		w.a.done(busy)
	})
}

// The end of a hold comes to a state that is forgotten already. Its memory is there once, for one other lock.
func TestPlaces_areForgottenOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		busy := w.begins("busy")
		at := w.begins("orders")
		w.a.done(at)
		at.tidy()
		one, other := w.begins("one"), w.begins("other")
		if one == other {
			w.Error("two locks have one place")
		}
		for _, at := range []*entry{one, other, busy} {
			w.a.done(at)
		}
	})
}

// A call does not wait any longer for the reply to its request. The state is forgotten, and does not become that of another lock:
// the reply comes back to it.
func TestPlaces_areNotUsedAgainBeforeTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		w.unlock(w.lock(w.a, w.Context())) // now the server knows the script
		at := w.begins("orders")
		w.a.done(at)
		w.slowScripts(opTime / 2)
		if _, err := w.a.Lock(w.within(opTime/4), w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		if known, _ := w.places(w.a); known != 0 {
			w.Errorf("%d places", known)
		}
		other := w.begins("other")
		if other == at {
			w.Error("another lock has the place before the answer is there")
		}
		w.a.done(other)
		time.Sleep(opTime)
		w.wire.OnRequest(nil)
	})
}

// One spec serves two clients. Each has a state of its own for the lock, and asks Redis for itself.
func TestPlaces_areOfOneClient(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", nil)
		for range 2 {
			for _, pair := range [][2]*Session{{w.a, w.b}, {w.b, w.a}} {
				h, err := pair[0].Lock(w.Context(), spec)
				if err != nil {
					w.Fatal(err)
				}
				if _, err := pair[1].TryLock(w.Context(), spec); !errors.Is(err, lock.ErrNotAcquired) {
					w.Error(err)
				}
				if h.(*hold).acquisition().at.s != pair[0] {
					w.Error("the hold is at a place of the other client")
				}
				w.unlock(h)
			}
		}
	})
}

// The session is closed. A TryLock asks for nothing any more, and no other call begins.
func TestPlaces_noneAfterClose(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		if err := w.a.Close(w.Context()); err != nil {
			w.Fatal(err)
		}
		n := w.scripts()
		if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, lock.ErrClosed) {
			w.Error(err)
		}
		if err := w.a.Enter(); err == nil {
			w.Error("another call begins")
			w.a.Leave()
		} else if !errors.Is(err, lock.ErrClosed) {
			w.Error(err)
		}
		if n.Load() != 0 {
			w.Errorf("%d commands", n.Load())
		}
	})
}
