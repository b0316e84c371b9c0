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

// places returns how many places s knows, and how many it keeps to use again.
func (w *world) places(s *Session) (known, spare int) {
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	return len(s.places.known), len(s.places.spare)
}

// A place is forgotten with the last hold, and its memory is used again.
func TestPlaces_areForgotten(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.places.most = 0
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

// A hold is lost, and its application does not give it back. Its place is forgotten all the same.
func TestPlaces_ofWhatIsLost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.places.most = 0
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

// Some places stay, to be used again, and no more. A handle finds the place of its lock, also when
// the one that it had is that of another lock by now.
func TestPlaces_stay(t *testing.T) {
	inBubble(t, func(w *world) {
		const most, locks = 4, 10
		w.a.places.most = most
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
				w.a.places.mu.Lock()
				if at := w.a.places.known[spec.id()]; at == nil || at != spec.at || at != h.(*hold).tenure().at {
					w.Errorf("%s is taken at a place that is not its own", spec.Name)
				}
				w.a.places.mu.Unlock()
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

// A lock that was let go is remembered while others come first. After that, and at Close,
// it is forgotten.
func TestPlaces_rememberWhatWasLetGo(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.places.most = 0
		letGo := func(i int) {
			spec := w.a.NewSpec(plain, fmt.Sprint("orders", i), nil)
			at, err := w.a.begin(spec)
			if err != nil {
				w.Fatal(err)
			}
			at.lock()
			at.place.LetGo(&spec.terms, time.Now().Add(asideTime))
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

// A lock that was let go is held again. That keeps no other lock from being forgotten.
func TestPlaces_areForgottenBesideOneThatIsHeld(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.places.most = 0
		letGo := func(i int) {
			spec := w.a.NewSpec(plain, fmt.Sprint("orders", i), nil)
			at, err := w.a.begin(spec)
			if err != nil {
				w.Fatal(err)
			}
			at.lock()
			at.place.LetGo(&spec.terms, time.Now().Add(asideTime))
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
