package session

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// wantEntries fails the test unless session a knows n entries.
func (w *world) wantEntries(n int) {
	w.Helper()
	w.a.table.mu.Lock()
	defer w.a.table.mu.Unlock()
	if known := len(w.a.table.known); known != n {
		w.Errorf("%d entries are known, want %d", known, n)
	}
}

// An entry is removed with the last hold.
func TestTable_removesEntries(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		for range 3 {
			h := w.lock(w.a, w.Context())
			w.wantEntries(1)
			w.unlock(h)
			w.wantEntries(0)
		}
	})
}

// A hold is lost, and its application does not release it. Its entry is still removed.
func TestTable_removesLostLocks(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		h := w.lock(w.a, w.Context())
		w.mini.Del("orders")
		time.Sleep(w.a.Lease)
		w.wantErr(h.Err(), lock.ErrLost)
		synctest.Wait()
		w.wantEntries(0)
	})
}

// Some unused entries stay known, up to a maximum.
func TestTable_keepsSomeEntries(t *testing.T) {
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
				h := w.must(w.a.TryLock(w.Context(), spec))
				w.a.table.mu.Lock()
				if at := w.a.table.known[spec.id]; at == nil || at != h.(*hold).acquisition().at {
					w.Errorf("%s is held in a wrong entry", spec.Name)
				}
				w.a.table.mu.Unlock()
				w.wantFail(w.a.TryLock, w.Context(), w.a.NewSpec(plain, spec.Name, nil), lock.ErrNotAcquired)
				holds = append(holds, h)
			}
			w.wantEntries(locks)
			w.unlockAll(holds...)
			w.wantEntries(most)
			slices.Reverse(specs) // so that others stay
		}
	})
}

// The entry of a released lock is kept while other clients have precedence. After that, and at Close, its entry is removed.
func TestTable_keepsYieldedLocks(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		for i := range 20 {
			w.yield(fmt.Sprint("orders", i%10))
		}
		w.wantEntries(10)
		time.Sleep(asideTime)
		synctest.Wait()
		w.wantEntries(0)
		w.yield("orders")
		w.wantNoErr(w.a.Close(context.Background()))
		w.wantEntries(0)
	})
}

// Each test here fails without one guard of the lock table.

// beginCall registers a call for the lock with this name.
func (w *world) beginCall(name string) *entry {
	w.Helper()
	at, err := w.a.begin(w.a.NewSpec(plain, name, nil))
	if err != nil {
		w.Fatal(err)
	}
	return at
}

// yield yields the lock with this name to other clients, in a separate call.
func (w *world) yield(name string) {
	w.Helper()
	spec := w.a.NewSpec(plain, name, nil)
	at := w.beginCall(name)
	at.lock()
	at.state.YieldUntil(&spec.terms, time.Now().Add(asideTime))
	at.unlock()
	w.a.done(at)
}

// A process uses very many locks at once. When it has released them, the number of known entries is limited.
func TestTable_isLimited(t *testing.T) {
	inBubble(t, func(w *world) {
		var all []*entry
		for i := range idleEntries + 10 {
			all = append(all, w.beginCall(fmt.Sprint("orders", i)))
		}
		for _, at := range all {
			w.a.done(at)
		}
		w.wantEntries(idleEntries)
	})
}

// A lock was released, and a call has begun that has not changed its state yet. When the precedence of the others ends,
// the next call for the lock finds the same entry.
func TestTable_keepsAnEntryDuringACall(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		w.yield("orders")
		first := w.beginCall("orders")
		time.Sleep(asideTime)
		synctest.Wait()
		second := w.beginCall("orders")
		if first != second {
			w.Error("two calls for one lock have different entries")
		}
		w.a.done(first)
		w.a.done(second)
	})
}

// The entry of a lock was removed, and a new call has another one. When the former is removed again, for example because
// its lease expired only now, the new one stays.
func TestTable_keepsTheNewEntry(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		former := w.beginCall("orders")
		w.a.done(former)
		at := w.beginCall("orders")
		former.tidy()
		if found := w.a.find(at.id); former == at || found != at {
			w.Errorf("the entries are %p and %p, and %p is known", former, at, found)
		}
		w.a.done(at)
	})
}

// One spec is used by two clients. Each has its own entry for the lock, and sends its own requests.
func TestTable_perClient(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", nil)
		for range 2 {
			for _, pair := range [][2]*Session{{w.a, w.b}, {w.b, w.a}} {
				h := w.must(pair[0].Lock(w.Context(), spec))
				w.wantFail(pair[1].TryLock, w.Context(), spec, lock.ErrNotAcquired)
				if h.(*hold).acquisition().at.s != pair[0] {
					w.Error("the hold is in an entry of the other client")
				}
				w.unlock(h)
			}
		}
	})
}

// The session is closed. No call begins, and none sends a command.
func TestTable_emptyAfterClose(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		w.close(w.a)
		w.sendsNothing(func() {
			for _, k := range []*Kind{plain, reading} {
				for _, call := range []lockCall{w.a.Lock, w.a.TryLock} {
					w.wantFail(call, w.Context(), w.a.NewSpec(k, "orders", nil), lock.ErrClosed)
				}
			}
			w.wantErr(w.a.Enter(), lock.ErrClosed)
		})
	})
}
