package session

import (
	"context"
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// Each Lock allocates an acquisition, which fits the 512-byte size class. The next class has 576 bytes, 8 of which the
// runtime uses. State that few locks need belongs in a record that is allocated on first use.
func TestAcquisition_size(t *testing.T) {
	const most = 512
	if size := reflect.TypeFor[acquisition]().Size(); size > most {
		t.Errorf("an acquisition has %d bytes, want at most %d", size, most)
	}
}

// A lock is lost because Redis did not respond until its lease expired. The errors are about the loss: a caller that retries
// after ErrUnavailable must not take them for a lock that was not acquired.
func TestLost_whileUnavailable(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.wire.Freeze(true)
		<-h.Context().Done()
		w.wire.Freeze(false)
		for what, err := range map[string]error{"Err": h.Err(), "cause": context.Cause(h.Context()), "Unlock": h.Unlock(w.Context()), "Extend": h.Extend(w.Context(), leaseTime)} {
			if !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrExpired) || !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, lock.ErrUnavailable) {
				w.Errorf("%s: %v", what, err)
			}
		}
	})
}

// A lease expires just after an Unlock has ended the acquisition. That is not a loss: the next waiter still waits for the
// release, and Close waits for nothing else.
func TestLost_afterUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		var requests atomic.Int64
		releases := make(chan struct{})
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			requests.Add(1)
			return r.send()
		})
		k = onRelease(k, func(r release) (luascripts.Released, error) {
			<-releases
			return r.send()
		})
		h := w.take(w.a, k, w.Context())
		next := w.goLock(w.a, k, w.Context())
		released := w.beginUnlock(h)
		h.(*hold).acquisition().Lost(watchdog.ErrExpired)
		synctest.Wait()
		w.wantSent(&requests, 1) // none before the release
		close(releases)
		w.wantNoErr(<-released)
		w.unlock(w.next(next))
	})
}

// One permit of a holder is lost. Its other permits are released, and do not stay in Redis until their leases expire.
func TestLost_onePermit(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(permits, "orders", nil)
		spec.Keys.Total, spec.Keys.Permits = 2, 2
		h := w.mustLock(w.Context(), spec)
		if _, err := w.mini.ZRem(spec.Keys.Leases, luascripts.Permits(h.Owner())[0]); err != nil {
			w.Fatal(err)
		}
		<-h.Context().Done()
		synctest.Wait()
		w.noHold()
	})
}

// Goroutines create owners concurrently. Each owner has a unique number, even if the clock was moved backward, so that
// only the numbers differ.
func TestNewOwner_concurrent(t *testing.T) {
	const many, each, before = 4, 1_000_000, 1 << 62
	i := &identity{id: owner.NewClient()}
	i.number.Store(before)
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			for range each {
				i.newOwner(time.Unix(0, 0), 0, "")
			}
		})
	}
	all.Wait()
	if numbers := i.number.Load() - before; numbers != many*each {
		t.Errorf("%d owners have %d numbers", many*each, numbers)
	}
}

// Knowing when an owner was created does not suffice to guess its string: it has ten random bits.
func TestNewOwner_random(t *testing.T) {
	different := make(map[string]bool)
	now := time.Unix(1_800_000_000, 0)
	for range 200 {
		i := &identity{id: "01a202b8-4bbe-7c35-bc27-051edccf1eeb"}
		o := i.newOwner(now, 0, "")
		different[o] = true
		if since := AskedSince(o); !since.Equal(now) {
			t.Fatalf("%s: got the time %v, want %v", o, since, now)
		}
	}
	if len(different) < 100 {
		t.Errorf("200 clients have %d different owners of the same instant", len(different))
	}
}

// The permit count follows the number of an owner, and the string still shows when the owner was created. An owner
// without permits has no count.
func TestNewOwner_text(t *testing.T) {
	i := &identity{id: owner.NewClient()}
	now := time.Unix(1_800_000_000, 0)
	for permits, parts := range map[int]int{0: 2, 1: 3, 1000: 3} {
		o := i.newOwner(now, permits, "")
		args := strings.Split(o, ":")
		if len(args) != parts || args[0] != i.id || permits > 0 && args[2] != strconv.Itoa(permits) {
			t.Errorf("%d permits: %s", permits, o)
		}
		if late := AskedSince(o).Sub(now); late < 0 || late > 10*time.Microsecond {
			t.Errorf("%s is %v late", o, late)
		}
	}
}
