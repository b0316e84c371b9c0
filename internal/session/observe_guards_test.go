package session

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Each test here fails without one guard of what the observer is told.

// permits is a semaphore: each waiter asks when it comes, and stands in the queue in Redis by that.
var permits = &Kind{
	Waits:  place.QueueInRedis,
	Mode:   lock.Permit,
	Queues: true,
	Anew:   true,
	Scripts: Scripts{
		Keys:    keys.Semaphore,
		Acquire: luascripts.AcquireSemaphore,
		Release: luascripts.ReleaseSemaphore,
		Renew:   luascripts.RenewSemaphore,
		Keep:    luascripts.KeepSemaphore,
	},
}

// ofOne returns a spec of "orders" as kind; a semaphore has one permit.
func (w *world) ofOne(s *Session, kind *Kind) *Spec {
	spec := s.NewSpec(kind, "orders", nil)
	if kind == permits {
		spec.Keys.Total, spec.Keys.Permits = 1, 1
	}
	return spec
}

// Redis refused a call, which waits in its own name. The observer hears the owner string that its hold has later.
func TestObserver_hearsWhoWaits(t *testing.T) {
	for name, kind := range allKinds {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				rival := kind
				if kind.Beside != nil {
					rival = writing
				}
				h := w.take(w.b, rival, w.Context())
				got := w.gets(w.a, kind, w.Context())
				waiting := w.wantTold("waiting")[0]
				w.unlock(h)
				h = <-got
				if waiting.Owner != h.Owner() {
					w.Errorf("%q waits, and %q has the lock", waiting.Owner, h.Owner())
				}
				w.unlock(h)
			})
		})
	}
}

// A call comes behind another of its process, and Redis answers neither its question nor its entry into the queue. It waits for Redis
// alone, and the observer hears of a wait when it has a place in the queue.
func TestObserver_waitsOnceItIsInTheQueue(t *testing.T) {
	for name, kind := range map[string]*Kind{"fair": fair, "semaphore": permits} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h, err := w.b.Lock(w.Context(), w.ofOne(w.b, kind))
				if err != nil {
					w.Fatal(err)
				}
				first := w.waitingFor(w.a, w.Context(), w.ofOne(w.a, kind))
				w.wantTold("waiting")
				w.mini.SetError("LOADING Redis is loading the dataset in memory")
				second := w.waitingFor(w.a, w.Context(), w.ofOne(w.a, kind))
				time.Sleep(3 * pollTime)
				w.wantTold()
				w.mini.SetError("")
				time.Sleep(pollTime)
				w.wantTold("waiting")
				w.unlock(h)
				w.unlock(<-first)
				w.unlock(<-second)
				w.mini.FlushAll() // the number of permits
			})
		})
	}
}

// Locks that cannot be taken together are taken one by one, by calls of their own. Of the call for all of them the observer hears
// nothing, as it has not waited.
func TestObserver_oneByOneInstead(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, s := range []*Session{w.a, w.b} { // b has no observer
			h := w.lock(s, w.Context())
			w.witness.take()
			if _, err := s.LockAll(h.Context(), w.all(s, "orders", "other"), luascripts.AcquireAllReentrant, true); !errors.Is(err, errors.ErrUnsupported) {
				w.Error(err)
			}
			w.wantTold()
			w.unlock(h)
			w.witness.take()
		}
	})
}

// The observer takes its time over the grant, and the lease is renewed meanwhile. It hears of the grant first, and of the next renewal.
func TestObserver_hearsOfNoRenewalBeforeTheGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		var told []string
		w.observer().Acquired = func(context.Context, lock.Event) {
			time.Sleep(leaseTime / 2)
			told = append(told, "granted")
		}
		w.observer().Renewed = func(context.Context, lock.Event) { told = append(told, "renewed") }
		h := w.lock(w.a, w.Context())
		time.Sleep(leaseTime / 3)
		w.unlock(h)
		if !slices.Equal(told, []string{"granted", "renewed"}) {
			w.Errorf("the observer hears of %q", told)
		}
	})
}

// A renewal leaves a lock out that no waiter has taken yet, and a waiter takes it before the watchdog says so. To the observer
// of that hold, no renewal has failed.
func TestObserver_takenAfterTheRenewal(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.wantTold("granted")
		h.(*hold).tenure().Unrenewed(errUntaken, leaseTime/2)
		w.wantTold()
		w.unlock(h)
		synctest.Wait()
	})
}
