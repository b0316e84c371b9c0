package session

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// lingerTime is how long the locks of these tests linger.
const lingerTime = 200 * time.Millisecond

var lingers = lock.WithLinger(lingerTime)

// lingerKinds are the types of locks that linger. Their owner strings have the marks of package luascripts.
var lingerKinds = func() map[string]*Kind {
	plain, fair := *plain, *fair
	plain.Mark, fair.Mark = luascripts.PlainMark, luascripts.FairMark
	return map[string]*Kind{"plain": &plain, "fair": &fair, "write": writing}
}()

// onLingering runs a test with each type of lock that lingers.
func onLingering(t *testing.T, f func(w *world, k *Kind)) { forEach(t, lingerKinds, f) }

// keepLock makes session a keep the lock, and returns the latest hold.
func (w *world) keepLock(k *Kind, opts ...lock.Option) lock.Hold {
	w.Helper()
	w.unlock(w.take(w.a, k, w.Context(), opts...)) // subscribes, and does not linger
	synctest.Wait()
	h := w.take(w.a, k, w.Context(), opts...)
	w.unlock(h)
	w.wantKept(k, true)
	return h
}

// wantKept fails the test unless session a keeps the lock, or does not.
func (w *world) wantKept(k *Kind, want bool) {
	w.Helper()
	synctest.Wait()
	if kept := w.kept(k); kept != want || want && !w.mini.Exists("orders") {
		w.Fatalf("kept: %t, want %t; in Redis: %t", kept, want, w.mini.Exists("orders"))
	}
}

// kept reports whether session a keeps the lock.
func (w *world) kept(k *Kind) bool {
	at := w.a.find(w.a.NewSpec(k, "orders", nil).id)
	return at != nil && locked(at, func() bool { return at.state.Kept() != nil })
}

// keptForItsTime fails the test unless session a keeps the lock for lingerTime from now, and no longer.
func (w *world) keptForItsTime(k *Kind) {
	w.Helper()
	time.Sleep(lingerTime - 1)
	w.wantKept(k, true)
	time.Sleep(time.Nanosecond)
	w.free(k)
}

// claimed fails the test unless h is a later hold of the lock that was kept after before.
func (w *world) claimed(h, before lock.Hold) {
	w.Helper()
	if h.Owner() != before.Owner() || h.Token() <= before.Token() || h.Err() != nil {
		w.Errorf("owner %s after %s, token %d after %d, %v", h.Owner(), before.Owner(), h.Token(), before.Token(), h.Err())
	}
}

// sendsNothing fails the test if f sends a script.
func (w *world) sendsNothing(f func()) {
	w.Helper()
	sent := w.scripts()
	f()
	w.wantSent(sent, 0)
}

// free fails the test if the lock is not free, in Redis and in session a.
func (w *world) free(k *Kind) {
	w.Helper()
	w.wantKept(k, false)
	w.wantFree()
}

// No Lock and no Unlock after the first ones sends a command. Each hold has the same owner string and a larger token. The
// lock is released once no caller came for the time of the option.
func TestLinger_noCommands(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		before := w.keepLock(k, lingers)
		sent := w.scripts()
		for i := range 20 {
			time.Sleep(20 * time.Millisecond)
			call := w.lockOrTry(i%2 == 1)
			h := w.must(call(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lingers})))
			w.claimed(h, before)
			if now := time.Now().UnixMicro(); h.Token() > uint64(now) {
				w.Errorf("token %d at %d", h.Token(), now)
			}
			w.unlock(h)
			w.wantErr(h.Unlock(w.Context()), lock.ErrNotHeld)
			before = h
		}
		w.wantSent(sent, 0)
		w.keptForItsTime(k)
		w.wantSent(sent, 1)
		h := w.take(w.a, k, w.Context(), lingers)
		w.wantLaterToken(h, before)
		w.unlock(h)
	})
}

// A caller of another process acquires a kept lock after a round trip and a message, with TryLock, too.
func TestLinger_anotherProcess(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		for _, call := range []lockCall{w.b.Lock, w.b.TryLock} {
			before := w.keepLock(k, lingers)
			time.Sleep(time.Millisecond) // the clock of a bubble does not move by itself, and tokens need it to move
			start := time.Now()
			h, err := call(w.Context(), w.b.NewSpec(k, "orders", nil))
			if took := time.Since(start); err != nil || took > 5*time.Millisecond {
				w.Fatalf("%v after %v", err, took)
			}
			w.wantLaterToken(h, before)
			w.wantKept(k, false)
			w.unlock(h)
			time.Sleep(time.Minute) // subscriptions end
		}
	})
}

// useLingering has a goroutine of a's process acquire and unlock the lock in a loop, and returns while it is in use.
func (w *world) useLingering(k *Kind) (stop func()) {
	w.keepLock(k, lingers)
	var stopped atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stopped.Load() {
			h := w.take(w.a, k, w.Context(), lingers)
			time.Sleep(time.Millisecond)
			w.unlock(h)
		}
	}()
	time.Sleep(100*time.Millisecond + 500*time.Microsecond)
	return func() {
		stopped.Store(true)
		<-done
	}
}

// A lock is in use when another process is refused, TryLock, too. The next Unlock hands it to that process, although callers of
// the holder's process come continuously.
func TestLinger_anotherProcessWhileInUse(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		for _, call := range []lockCall{w.b.Lock, w.b.TryLock} {
			stop := w.useLingering(k)
			start := time.Now()
			h, err := call(w.Context(), w.b.NewSpec(k, "orders", nil))
			if took := time.Since(start); err != nil || took > 20*time.Millisecond {
				w.Fatalf("%v after %v", err, took)
			}
			w.unlock(h)
			time.Sleep(time.Minute)
			w.wantKept(k, false)
			stop()
			time.Sleep(time.Minute) // subscriptions end
		}
	})
}

// A caller times out while its process lets other processes come first. Its error does not report Redis as unavailable.
func TestLinger_timesOutWhileItYields(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lingers)
		h := w.take(w.a, k, w.Context(), lingers)
		w.wantFail(w.b.TryLock, w.within(time.Millisecond/2), w.b.NewSpec(k, "orders", nil))
		w.unlock(h)
		start := time.Now()
		spec := w.a.NewSpec(k, "orders", []lock.Option{lingers, lock.WithWait(2 * time.Millisecond)})
		w.wantFail(w.a.Lock, w.Context(), spec, os.ErrDeadlineExceeded, lock.ErrNotAcquired)
		w.wantTook(start, 2*time.Millisecond)
		w.unlock(w.take(w.a, k, w.Context()))
	})
}

// TryLock of another process fails after the time that the holder's option allows, at most 250 ms, or when its context is
// canceled. The error names the possible reason.
func TestLinger_tryLockFails(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		for linger, c := range map[time.Duration]struct{ ctx, want time.Duration }{
			50 * time.Millisecond: {time.Minute, 50 * time.Millisecond},
			time.Minute:           {time.Minute, 250 * time.Millisecond},
			time.Hour:             {20 * time.Millisecond, 20 * time.Millisecond},
		} {
			h := w.take(w.a, k, w.Context(), lock.WithLinger(linger))
			start := time.Now()
			_, err := w.b.TryLock(w.within(c.ctx), w.b.NewSpec(k, "orders", nil))
			w.wantErr(err, lock.ErrNotAcquired)
			if c.ctx == time.Minute && !strings.Contains(err.Error(), "kept idle") {
				w.Errorf("%v: %v", linger, err)
			}
			if took := time.Since(start); took > c.want || took < c.want-20*time.Millisecond {
				w.Errorf("%v: it took %v", linger, took)
			}
			w.unlock(h)
			time.Sleep(time.Minute)
		}
	})
}

// A holder that may keep the lock refuses a TryLock. The retries end with the operation timeout, whether Redis replies or not.
func TestLinger_tryLockTakesTheOperationTimeout(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		c := testConfig()
		c.OpTimeout = 100 * time.Millisecond // less than the time that the option allows
		s := w.session(c)
		h := w.take(w.b, k, w.Context(), lock.WithLinger(time.Minute))
		for _, slow := range []bool{false, true} {
			w.onScripts(func(n int) (a redistest.Action) {
				if slow && n > 7 {
					a.DelayReply = c.OpTimeout
				}
				return a
			})
			start := time.Now()
			w.wantFail(s.TryLock, w.Context(), s.NewSpec(k, "orders", nil), lock.ErrNotAcquired)
			if took := time.Since(start); took > c.OpTimeout || took < c.OpTimeout-20*time.Millisecond || slow && took != c.OpTimeout {
				w.Errorf("slow: %t: it took %v", slow, took)
			}
			w.wire.OnRequest(nil)
			time.Sleep(time.Minute)
		}
		w.unlock(h)
		w.close(s)
	})
}

// A Lock that is refused by a holder that may keep the lock waits as for any other holder.
func TestLinger_lockTimesOut(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		h := w.take(w.b, k, w.Context(), lingers)
		w.wantFail(w.a.Lock, w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithWait(time.Second)}), lock.ErrNotAcquired)
		w.wantEvents("waiting", "timed out")
		w.unlock(h)
	})
}

// A reader does not keep its lock, and its owner string does not say that it may.
func TestLinger_notAReader(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, reading, w.Context(), lingers)
		if _, marked := luascripts.Lingers(h.Owner()); marked || w.a.hub.Confirmed(keys.OfKeeper("orders", w.a.id)) {
			w.Errorf("owner %s", h.Owner())
		}
		w.unlock(h)
	})
}

// A lock is kept again soon after another process had it. It is released after the time of the option.
func TestLinger_keptAgain(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lingers)
		time.Sleep(lingerTime / 2)
		w.unlock(w.take(w.b, k, w.Context()))
		w.keepLock(k, lingers)
		time.Sleep(lingerTime)
		w.free(k)
	})
}

// A lock that was kept leaves nothing in memory.
func TestLinger_removesTheEntry(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.a.table.most = 0
		w.keepLock(k, lingers)
		time.Sleep(lingerTime)
		synctest.Wait()
		w.wantEntries(0)
	})
}

// A lock is lost while its Unlock is in progress. The Unlock reports the loss.
func TestLinger_lossDuringUnlock(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lingers)
		h := w.take(w.a, k, w.Context(), lingers).(*hold)
		h.end(lock.ErrUnlocked) // the first step of Unlock
		w.loseLock(h.acquisition())
		w.wantErr(w.a.unlockEnded(w.Context(), h, time.Now(), true), lock.ErrLost)
	})
}

// Readers of a process call TryLock together, and share a request. A client that keeps the write lock refuses it, and is
// notified. Each of the readers then acquires the lock.
func TestLinger_readersTryTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		for range 2 {
			w.unlock(w.take(w.b, writing, w.Context(), lingers)) // the second time it is kept
			synctest.Wait()
		}
		sent := w.slowScripts(10 * time.Millisecond)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				h, err := w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", nil))
				if err != nil {
					w.Error(err)
					return
				}
				w.unlock(h)
			})
		}
		synctest.Wait()
		w.wantSent(sent, 1)
		all.Wait()
	})
}

// Clients that notify no one acquire the lock when the maximum keep time has passed: the lock is then free for some
// milliseconds, however often callers of the holder's process come.
func TestLinger_maxKeepTime(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		if k == lingerKinds["fair"] {
			return // all clients are in the queue
		}
		for _, linger := range []time.Duration{lingerTime, 3 * time.Second} {
			w.keepLock(k, lock.WithLinger(linger))
			if k == lingerKinds["plain"] { // a client that listens, as Redisson's waiters do
				sub, _ := w.b.hub.Subscribe("redisson_lock__channel:{orders}", func(string) {}, func() {})
				defer sub.Close()
				synctest.Wait()
			}
			start, released := time.Now(), time.Duration(0)
			ctx, cancel := context.WithCancel(w.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil {
					h := w.take(w.a, k, w.Context(), lock.WithLinger(linger))
					time.Sleep(10 * time.Millisecond)
					w.unlock(h)
				}
			}()
			for released == 0 && time.Since(start) < time.Minute {
				time.Sleep(2 * time.Millisecond)
				if !w.mini.Exists("orders") {
					released = time.Since(start)
				}
			}
			if want := max(linger, lockstate.MinKeepTime); released < want-20*time.Millisecond || released > want+20*time.Millisecond {
				w.Errorf("%v: it was free after %v", linger, released)
			}
			cancel()
			<-done
			time.Sleep(time.Minute)
		}
	})
}

// The lease is renewed while the lock is kept. If the lock is lost, no hold ends, and the next caller acquires it.
func TestLinger_lease(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lock.WithLinger(5*leaseTime))
		time.Sleep(3 * leaseTime)
		w.wantKept(k, true)
		w.mini.Del("orders")
		time.Sleep(leaseTime)
		w.wantKept(k, false)
		h := w.take(w.a, k, w.Context(), lock.WithLinger(5*leaseTime))
		w.wantHeld(h)
		w.unlock(h)
	})
}

// A disconnected process does not give a kept lock to a caller if too little of its lease remains.
func TestLinger_leaseExpired(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lock.WithLinger(5*leaseTime))
		w.cut()
		time.Sleep(leaseTime - 500*time.Millisecond)
		w.wantFail(w.a.TryLock, w.within(time.Second), w.a.NewSpec(k, "orders", []lock.Option{lingers}))
		w.wire.Refuse(false)
		time.Sleep(leaseTime)
		w.free(k)
	})
}

// The lease of a lock expires while the lock is kept, because the replies to its renewals are lost. The lock is released,
// because Redis has executed them. No hold ended, so nothing is logged.
func TestLinger_lostReplies(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		k := lingerKinds["plain"]
		w.keepLock(k, lock.WithLinger(5*leaseTime))
		time.Sleep(leaseTime / 2) // the first renewal loads the script
		w.onScripts(func(int) redistest.Action { return redistest.Action{DropReply: true} })
		time.Sleep(leaseTime)
		w.wantKept(k, false)
		w.wire.OnRequest(nil)
		time.Sleep(2 * opTime)
		w.free(k)
		log.want(w, 0, "lock lost")
	})
}

// Close releases a lock that is kept.
func TestLinger_close(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lock.WithLinger(time.Hour))
		w.close(w.a)
		w.wantFree()
	})
}

// A lock that is kept can be force-unlocked by its own process and by another one. The next caller acquires it.
func TestLinger_forceUnlock(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		before := w.keepLock(k, lingers)
		w.force(w.a, k)
		w.free(k)
		time.Sleep(time.Millisecond)
		h := w.take(w.b, k, w.Context())
		w.wantLaterToken(h, before)
		w.unlock(h)
	})
}

// A client that receives no messages does not linger.
func TestLinger_noPubSub(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.withoutPubSub()
		for range 3 {
			w.unlock(w.take(w.a, k, w.Context(), lingers))
			w.free(k)
		}
	})
}

// A client that receives no messages still hands the lock off between its callers, even if its connection breaks while the lock
// is in use.
func TestLinger_noPubSubHandsOff(t *testing.T) {
	forEach(t, map[string]bool{"from the start": false, "while in use": true}, func(w *world, breaks bool) {
		k := lingerKinds["plain"]
		if breaks {
			w.keepLock(k, lingers)
		} else {
			w.withoutPubSub()
		}
		h := w.take(w.a, k, w.Context(), lingers)
		next := w.goLockSoon(k, w.Context(), lingers)
		if breaks {
			w.withoutPubSub()
			w.wire.CutAll()
			synctest.Wait()
		}
		w.sendsNothing(func() {
			w.unlock(h)
			h = w.next(next)
		})
		w.unlock(h)
		w.free(k)
	})
}

// With WithAsyncUnlock, an Unlock that keeps the lock sends nothing. Any other Unlock is sent in the background.
func TestLinger_asyncUnlock(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		opts := []lock.Option{lock.WithLinger(time.Hour), lock.WithAsyncUnlock()}
		for range 3 {
			w.keepLock(k, opts...)
			w.sendsNothing(func() {
				for range 5 {
					w.unlock(w.take(w.a, k, w.Context(), opts...))
				}
				w.wantKept(k, true)
			})
			h := w.take(w.a, k, w.Context(), opts...)
			next := w.goLock(w.b, k, w.Context())
			w.unlock(h)
			again := w.goLock(w.a, k, w.Context(), opts...)
			for range 2 {
				select { // a caller of the process can overtake the release of a write lock
				case h = <-next:
					next = nil
				case h = <-again:
					again = nil
				}
				w.unlock(h)
			}
			// If the process came last and its first request was granted, it keeps the lock until another client wants it.
			w.unlock(w.next(w.goLock(w.b, k, w.Context())))
			w.free(k)
		}
	})
}

// When the connection of the subscription breaks, messages may be lost. A lock that is in use then does not linger, and one
// that is kept is released when the client is subscribed again.
func TestLinger_reconnects(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		for _, c := range []struct{ inUse, subscribedAgain bool }{{false, true}, {true, true}, {true, false}} {
			w.keepLock(k, lock.WithLinger(time.Hour))
			var h lock.Hold
			if c.inUse {
				h = w.take(w.a, k, w.Context(), lock.WithLinger(time.Hour))
			}
			if !c.subscribedAgain {
				w.withoutPubSub()
			}
			w.wire.CutAll()
			time.Sleep(2 * time.Second)
			if c.inUse {
				w.unlock(h)
			}
			w.free(k)
		}
	})
}

// Callers with other terms cannot claim a kept lock. They acquire it after a release.
func TestLinger_otherTerms(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		for _, opt := range []lock.Option{lock.WithFixedLease(time.Minute), lock.WithFencing()} {
			before := w.keepLock(k, lock.WithLinger(time.Hour))
			time.Sleep(time.Millisecond)
			start := time.Now()
			h := w.must(w.a.TryLock(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{opt})))
			if h.Owner() == before.Owner() || h.Token() <= before.Token() || time.Since(start) > time.Millisecond {
				w.Errorf("owner %s after %s, token %d after %d, after %v", h.Owner(), before.Owner(), h.Token(), before.Token(), time.Since(start))
			}
			w.unlock(h)
			w.free(k)
		}
		w.mini.Del("redisson_lock_token:{orders}")
	})
}

// A handle without the option may claim a kept lock. After its Unlock the lock is free.
func TestLinger_handleWithoutIt(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		before := w.keepLock(k, lingers)
		h := w.take(w.a, k, w.Context())
		w.claimed(h, before)
		w.unlock(h)
		w.free(k)
	})
}

// A lock acquired by a handle with a short keep time is kept for that time.
func TestLinger_shorterTime(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lock.WithLinger(time.Hour))
		w.unlock(w.take(w.a, k, w.Context(), lingers))
		w.keptForItsTime(k)
	})
}

// A reentry counts in Redis, and the lock lingers after the last hold.
func TestLinger_reentry(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lingers)
		h := w.take(w.a, k, w.Context(), lingers)
		again := w.take(w.a, k, h.Context(), lingers)
		w.unlock(again)
		w.wantKept(k, false)
		w.unlock(h)
		w.wantKept(k, true)
	})
}

// Waiters of the holder's process acquire the lock in their order, as without the option.
func TestLinger_waitersOfTheProcess(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lingers)
		h := w.take(w.a, k, w.Context(), lingers)
		first, second := w.goLock(w.a, k, w.Context(), lingers), w.goLock(w.a, k, w.Context(), lingers)
		for _, waiter := range []<-chan lock.Hold{first, second} {
			token := h.Token()
			time.Sleep(time.Millisecond)
			w.unlock(h)
			if h = <-waiter; h == nil || h.Token() <= token {
				w.Fatal("no hold, or an old token")
			}
		}
		w.unlock(h)
	})
}

// Readers of the process share a kept write lock, and exclude its writers.
func TestLinger_readers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.keepLock(writing, lock.WithLinger(time.Hour))
		r := w.must(w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", []lock.Option{lock.WithLinger(time.Hour)})))
		w.wantKept(writing, false)
		w.wantFail(w.a.TryLock, w.Context(), w.a.NewSpec(writing, "orders", []lock.Option{lingers}), lock.ErrNotAcquired)
		w.unlock(r)

		// A writer that reads at its Unlock leaves a read lock.
		w.keepLock(writing, lock.WithLinger(time.Hour))
		h := w.take(w.a, writing, w.Context(), lock.WithLinger(time.Hour))
		r = w.take(w.a, reading, h.Context())
		w.unlock(h)
		w.wantKept(writing, false)
		other, err := w.b.TryLock(w.Context(), w.b.NewSpec(reading, "orders", nil))
		if err != nil {
			w.Fatalf("a reader of another process: %v", err)
		}
		w.unlockAll(other, r)
	})
}

// With a token counter, the tokens of local holders are reserved, and the lock is released when they are used. A write lock
// does not linger with one.
func TestLinger_fencing(t *testing.T) {
	inBubble(t, func(w *world) {
		for name, k := range map[string]*Kind{"plain": lingerKinds["plain"], "fair": lingerKinds["fair"]} {
			before := w.keepLock(k, lock.WithLinger(10*time.Second), lock.WithFencing())
			time.Sleep(time.Second)
			n := 0
			for n <= 2*MaxSpare && w.kept(k) {
				n++
				h := w.take(w.a, k, w.Context(), lock.WithLinger(10*time.Second), lock.WithFencing())
				if h.Token() != before.Token()+1 {
					w.Fatalf("%s: token %d after %d", name, h.Token(), before.Token())
				}
				before = h
				w.unlock(h)
			}
			if n != MaxSpare {
				w.Errorf("%s: it was released after %d holders", name, n)
			}
			h := w.take(w.b, k, w.Context(), lock.WithFencing())
			if h.Token() <= before.Token() {
				w.Errorf("%s: token %d after %d", name, h.Token(), before.Token())
			}
			w.unlock(h)
			time.Sleep(time.Minute)
		}
		for range 3 {
			w.unlock(w.take(w.a, writing, w.Context(), lingers, lock.WithFencing()))
			w.free(writing)
		}
		h, start := w.take(w.a, writing, w.Context(), lingers, lock.WithFencing()), time.Now()
		w.wantFail(w.b.TryLock, w.Context(), w.b.NewSpec(writing, "orders", nil), lock.ErrNotAcquired)
		w.wantTook(start, 0)
		w.unlock(h)
		w.mini.Del("redisson_lock_token:{orders}")
	})
}

// The token counter does not run ahead of the server's clock, so a token is larger than that of a holder whose grant was lost
// in a failover.
func TestLinger_fencingFailover(t *testing.T) {
	inBubble(t, func(w *world) {
		k, counter := lingerKinds["plain"], "redisson_lock_token:{orders}"
		take := func(s *Session) lock.Hold {
			time.Sleep(time.Millisecond) // as long as a round trip
			return w.take(s, k, w.Context(), lingers, lock.WithFencing())
		}
		for range 6 {
			w.unlock(take(w.a))
			w.unlock(take(w.b))
		}
		w.unlock(take(w.a))
		replicated, _ := w.mini.Get(counter)
		latest, err := strconv.ParseInt(replicated, 10, 64)
		if ahead := latest - time.Now().UnixMicro(); err != nil || ahead > time.Millisecond.Microseconds() {
			w.Errorf("the counter is %d µs ahead of the clock: %v", ahead, err)
		}
		lost := take(w.b)
		w.mini.Del("orders")
		w.mini.Set(counter, replicated)
		if h := take(w.a); h.Token() <= lost.Token() {
			w.Errorf("token %d after %d, which was lost", h.Token(), lost.Token())
		} else {
			w.unlock(h)
		}
		_ = lost.Unlock(w.Context()) // it is lost
		time.Sleep(time.Minute)
		w.mini.Del(counter)
	})
}

// Tokens stay behind the server's clock, however fast callers come.
func TestLinger_pace(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		h := w.keepLock(k, lingers)
		first, start := h.Token(), time.Now()
		for range 1000 {
			h = w.take(w.a, k, w.Context(), lingers)
			if ahead := int64(h.Token()-first) - time.Since(start).Microseconds(); ahead > 0 {
				w.Fatalf("the token is %d µs ahead of the clock", ahead)
			}
			w.unlock(h)
		}
	})
}

// A caller that overtakes the release of a lock that was kept is not refused because of it.
func TestLinger_overtakesTheRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		k := onRelease(plain, func(r release) (luascripts.Released, error) {
			time.Sleep(20 * time.Millisecond)
			return r.send()
		})
		w.keepLock(k, lingers)
		time.Sleep(lingerTime + 10*time.Millisecond)
		h := w.must(w.a.TryLock(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lingers})))
		w.unlock(h)
	})
}

// Inspect reports that the holder lingers, and since when the waiter waits.
func TestLinger_inspect(t *testing.T) {
	inspect := map[*Kind]inquiry[luascripts.Snapshot]{
		lingerKinds["plain"]: luascripts.InspectReentrant, lingerKinds["fair"]: luascripts.InspectFair, writing: luascripts.InspectRW,
	}
	onLingering(t, func(w *world, k *Kind) {
		for _, lingers := range []bool{true, false} {
			h := w.take(w.b, k, w.Context())
			if lingers {
				w.unlock(h)
				h = w.keepLock(k, lock.WithLinger(time.Second))
			}
			state, err := Inspect(w.Context(), w.b, w.b.NewSpec(k, "orders", nil), inspect[k])
			if err != nil || len(state.Holders) != 1 {
				w.Fatalf("%+v, %v", state, err)
			}
			if got := state.Holders[0]; got.Owner != h.Owner() || got.Lingers != lingers || time.Since(got.Since) > time.Second || got.Since.IsZero() {
				w.Errorf("%+v", got)
			}
			if lingers {
				time.Sleep(time.Minute)
			} else {
				w.unlock(h)
			}
		}
	})
}

// The observer is notified that the lock was kept.
func TestLinger_observer(t *testing.T) {
	inBubble(t, func(w *world) {
		var kept atomic.Int32
		w.witnesses.Kept = func(context.Context, lock.Event) { kept.Add(1) }
		w.keepLock(lingerKinds["plain"], lingers)
		w.unlock(w.take(w.a, lingerKinds["plain"], w.Context(), lingers))
		if n := kept.Load(); n != 2 {
			w.Errorf("%d times", n)
		}
	})
}

// The subscription ends when the lock is no longer used.
func TestLinger_subscription(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		noneAfterAMinute := func() {
			w.Helper()
			time.Sleep(time.Minute)
			w.wantChannels(0)
		}
		channel := keys.OfKeeper("orders", w.a.id)
		w.keepLock(k, lingers)
		if n := w.mini.PubSubNumSub(channel)[channel]; n != 1 {
			w.Errorf("%d listen", n)
		}
		noneAfterAMinute()
		for _, ctx := range []context.Context{w.Context(), lock.ContextWithNewOwner(w.Context())} {
			h := w.take(w.b, k, w.Context())
			w.wantFail(w.a.TryLock, ctx, w.a.NewSpec(k, "orders", []lock.Option{lingers}), lock.ErrNotAcquired)
			w.unlock(h)
			noneAfterAMinute()
		}
		h := w.take(w.a, k, w.Context(), lingers)
		w.mini.Del("orders")
		<-h.Context().Done()
		noneAfterAMinute()
	})
}

// A hold that ends because of a limit leaves no subscription, and keeps the lock only if the client receives messages.
func TestLinger_maxHold(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		opts := []lock.Option{lock.WithLinger(time.Hour), lock.WithMaxHold(lingerTime)}
		w.take(w.a, k, w.Context(), opts...)
		time.Sleep(2 * time.Minute)
		w.free(k)
		w.wantChannels(0)

		w.keepLock(k, opts...)
		w.take(w.a, k, w.Context(), opts...)
		w.withoutPubSub()
		w.wire.CutAll()
		time.Sleep(2 * lingerTime)
		w.free(k)
	})
}

// A notification that another client wants the lock is not a hand-off: no waiter of the process sends a request for it.
func TestLinger_wantedIsNoHandOff(t *testing.T) {
	inBubble(t, func(w *world) {
		k := lingerKinds["plain"]
		h := w.take(w.b, k, w.Context())
		next := w.goLock(w.a, k, w.Context(), lingers)
		time.Sleep(10 * time.Millisecond)
		w.sendsNothing(func() {
			for _, message := range []string{luascripts.WantedByTry, luascripts.WantedByWaiter} {
				w.mini.Publish(keys.OfKeeper("orders", w.a.id), message)
				synctest.Wait()
			}
		})
		w.unlock(h)
		w.unlock(w.next(next))
	})
}
