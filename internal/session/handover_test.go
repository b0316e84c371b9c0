package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Inside a process the lock is handed off without a command: same owner string, same lease, a larger token. The last
// holder releases it.
func TestHandover_insideAProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		waiters := w.waiters(5)
		time.Sleep(time.Millisecond) // the clock of a bubble does not move by itself, and tokens need it to move
		sent := w.scripts()
		for _, waiter := range waiters {
			before := h
			w.unlock(h)
			w.wantErr(before.Unlock(w.Context()), lock.ErrNotHeld)
			h = w.next(waiter)
			if h.Owner() != before.Owner() || h.Token() <= before.Token() {
				w.Errorf("owner %s after %s, token %d after %d", h.Owner(), before.Owner(), h.Token(), before.Token())
			}
			w.wantCount(h, 1)
			w.wantHeld(h)
			w.wantErr(context.Cause(before.Context()), lock.ErrUnlocked)
			w.wantErr(before.Err(), lock.ErrUnlocked)
		}
		w.wantSent(sent, 0)
		time.Sleep(3 * leaseTime) // it is renewed, whichever acquisition has it
		w.wantHeld(h)
		w.wantCount(h, 1)
		w.unlock(h)
		w.wantFree()
	})
}

// While its own process has the lock, a new waiter retries once per poll interval, because the process may have lost
// the lock without detecting it.
func TestHandover_polls(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		sent := w.scripts()
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		w.wantSent(sent, 0)
		w.mini.Del("orders") // publishes no message
		start := time.Now()
		got := <-waiter
		w.wantWithin(start, pollTime)
		w.unlockLost(h)
		w.wantHeld(got)
		w.wantCount(got, 1)
		w.unlock(got)
	})
}

// Two processes compete for the lock continuously. Each has it for at most MaxHandOffs hand-offs. Then the other process
// gets it, with one command and the message that the command publishes.
func TestHandover_takesTurns(t *testing.T) {
	inBubble(t, func(w *world) {
		var mu sync.Mutex
		var turns []*Session
		sent := w.scripts()
		w.use(w.Context(), plain, []*Session{w.a, w.b}, 10, 30, func(s *Session) {
			mu.Lock()
			turns = append(turns, s)
			mu.Unlock()
			time.Sleep(time.Millisecond)
		})()
		const limit = int(lockstate.MaxHandOffTime/time.Millisecond) + 1
		var lengths []int // number of holds per turn
		for i, s := range turns {
			if i == 0 || s != turns[i-1] {
				lengths = append(lengths, 0)
			}
			lengths[len(lengths)-1]++
		}
		for _, n := range lengths[:len(lengths)-1] { // the last one may be incomplete
			if n > limit {
				w.Errorf("%d in a row, want at most %d", n, limit)
			}
		}
		// Session a sends a request at the start, one after its subscription, and a request and a release per turn.
		// At the end it sends another request for each waiter without a successor.
		if n, most := int(sent.Load()), len(lengths)+7; n > most {
			w.Errorf("a sent %d scripts for %d turns, want at most %d", n, len(lengths), most)
		}
	})
}

// A client that cannot queue listens, and takes a while to wake. It still acquires the lock repeatedly, and the waiters
// of the session wait only while it has the lock.
func TestHandover_othersFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		published, enter := w.outsider(ctx)
		ours := 0
		wait := w.use(ctx, plain, []*Session{w.a, w.b}, 3, math.MaxInt, func(*Session) {
			ours++ // guarded by the lock
			time.Sleep(time.Millisecond)
		})
		start := time.Now()
		const rounds = 20
		for round := range rounds {
			<-published
			time.Sleep(asideTime / 2)
			if w.mini.Exists("orders") {
				w.Fatalf("round %d: the waiters of the session were faster", round)
			}
			enter()
		}
		// Four grants between processes, each held for lockstate.MaxHandOffTime and one more section.
		w.wantWithin(start, rounds*(5*(lockstate.MaxHandOffTime+time.Millisecond)+asideTime))
		cancel()
		wait()
		if ours < rounds {
			w.Errorf("the session had the lock %d times in %d rounds", ours, rounds)
		}
	})
}

// Two callers take turns, in one process or in two, and no other caller exists. Each has the lock as soon as the other
// releases it: no waiter steps aside.
func TestHandover_noBackoffWithoutOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		for name, second := range map[string]*Session{"in a process": w.a, "between processes": w.b} {
			// With this odd duration, no release coincides with the end of the other case's subscriptions, which end one by one.
			const each, work = 150, 20*time.Millisecond + 7*time.Microsecond
			start := time.Now()
			w.use(w.Context(), plain, []*Session{w.a, second}, 1, each, func(*Session) { time.Sleep(work) })()
			if took, want := time.Since(start), 2*each*work; took >= want+asideTime {
				w.Errorf("%s: the batches took %v, want %v", name, took, want)
			}
		}
	})
}

// Two processes take turns, each for a long time. A caller of TryLock, which is not in the queue, still acquires the
// lock about once per second.
func TestHandover_yieldsToTryLock(t *testing.T) {
	inBubble(t, func(w *world) {
		c := New(w.mini.Client(w.T), testConfig())
		ctx, cancel := context.WithCancel(w.Context())
		const work = 100 * time.Millisecond
		wait := w.use(ctx, plain, []*Session{w.a, w.b}, 1, math.MaxInt, func(*Session) { time.Sleep(work) })
		time.Sleep(work / 2)
		start := time.Now()
		const times = 10
		for got := 0; got < times; time.Sleep(4 * time.Millisecond) {
			h, err := c.TryLock(w.Context(), c.NewSpec(plain, "orders", nil))
			if err == nil {
				got++
				w.unlock(h)
			} else if !errors.Is(err, lock.ErrNotAcquired) {
				w.Fatal(err)
			}
		}
		w.wantWithin(start, times*(time.Second+2*work))
		cancel()
		wait()
		w.close(c)
	})
}

// A session does not mistake an idle process for a client that cannot queue. The idle process is still subscribed
// because it waited just before.
func TestHandover_idleProcesses(t *testing.T) {
	inBubble(t, func(w *world) {
		c := New(w.mini.Client(w.T), testConfig())
		h := w.lock(w.a, w.Context())
		waiter := w.waiting(c, w.Context())
		w.unlock(h)
		w.unlock(w.next(waiter)) // and stays subscribed
		start := time.Now()
		const goroutines, each = 3, 40
		w.use(w.Context(), plain, []*Session{w.a, w.b}, goroutines, each, func(*Session) { time.Sleep(time.Millisecond) })()
		if took, want := time.Since(start), 2*goroutines*each*time.Millisecond; took >= want+asideTime {
			w.Errorf("the hand-off took %v, want %v: the lock was released, and no client acquired it", took, want)
		}
		w.close(c)
	})
}

// A process is alive in the queue, and dead when its turn comes. That delays the others by one offer.
func TestHandover_toADeadProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		dead := w.waiting(w.a, ctx)
		w.wire.Freeze(true)
		c := New(w.mini.Client(w.T), testConfig())
		waiter := w.waiting(c, w.Context())
		start := time.Now()
		w.unlock(h)
		got := <-waiter
		if took := time.Since(start); took < pollTime || took > offerPolls*pollTime+10*time.Millisecond {
			w.Errorf("it was served after %v, and the offer to the dead is %v", took, offerPolls*pollTime)
		}
		w.wire.Freeze(false)
		w.waitsOn(dead) // an old message grants nothing
		cancel()
		<-dead
		w.unlock(got)
		w.close(c)
	})
}

// If the server cannot count subscribers, a process that died long ago costs nothing: its queue position has expired.
func TestHandover_skipsTheLongDead(t *testing.T) {
	inBubble(t, func(w *world) {
		scattered := func(s *Session, ctx context.Context) <-chan lock.Hold {
			spec := s.NewSpec(plain, "orders", nil)
			spec.Keys.Scattered = true
			return w.waitingFor(s, ctx, spec)
		}
		h := w.next(scattered(w.b, w.Context()))
		ctx, cancel := context.WithCancel(w.Context())
		dead := scattered(w.a, ctx)
		w.wire.Freeze(true)
		c := New(w.mini.Client(w.T), testConfig())
		waiter := scattered(c, w.Context())
		time.Sleep((queueTTLPolls + 1) * pollTime)
		start := time.Now()
		w.unlock(h)
		w.unlock(<-waiter)
		w.wantTook(start, 0)
		w.wire.Freeze(false)
		cancel()
		<-dead
		w.close(c)
	})
}

// The message after a grant is lost. The next request finds the lock granted.
func TestHandover_lostMessage(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		note := "leasehold_channel:{orders}:" + w.a.id
		other, _ := w.a.hub.Subscribe(note, func(string) {}, func() {}) // so that the process counts as subscribed
		defer other.Close()
		spec := w.a.NewSpec(plain, "orders", nil)
		subscriptionsOf(w.a.find(spec.id).state.Queue(&spec.terms)).own.Close()
		start := time.Now()
		w.unlock(h)
		got := <-waiter
		if took := time.Since(start); took == 0 || took > pollTime {
			w.Errorf("it was served after %v", took)
		}
		w.wantCount(got, 1)
		if !strings.HasPrefix(got.Owner(), w.a.id) {
			w.Errorf("owner %s", got.Owner())
		}
		w.unlock(got)
	})
}

// A message grants nothing, whatever its content: it only triggers a request.
func TestHandover_falseMessages(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		for _, m := range []string{"", "0", w.a.id + ":1 9", w.b.id + ":1 9", h.Owner() + " 9", "x y z"} {
			w.publish("leasehold_channel:{orders}:"+w.a.id, m)
			synctest.Wait()
		}
		w.waitsOn(waiter)
		w.unlock(h)
		w.unlock(w.next(waiter))
	})
}

// A lock that is granted to a queued process gets the full lease, counted from the request that claims it.
func TestHandover_leaseOfAGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		released := time.Now()
		w.unlock(h)
		got := w.next(waiter)
		if want := released.Add(watchdog.Trusted(leaseTime)); !got.Until().Equal(want) {
			w.Errorf("Until is %v after the release, want %v", got.Until().Sub(released), want.Sub(released))
		}
		if left := w.mini.TTL("orders"); left != leaseTime {
			w.Errorf("the TTL is %v, want %v", left, leaseTime)
		}
		w.unlock(got)
	})
}

// A lock is granted to a process whose waiter is blocked, for example in an observer. The lock is not renewed, so it
// delays the others by one offer.
func TestHandover_notRenewedUnclaimed(t *testing.T) {
	inBubble(t, func(w *world) {
		stuck := make(chan struct{})
		w.observer().Waiting = func(context.Context, lock.Event) { <-stuck }
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		time.Sleep(pollTime + pollTime/2) // the waiter was refused and notifies the observer
		start := time.Now()
		w.unlock(h) // the waiter is the next owner
		w.unlock(<-w.waiting(w.b, w.Context()))
		w.wantWithin(start, offerPolls*pollTime+10*time.Millisecond)
		cancel()
		close(stuck)
		if h := <-gone; h != nil {
			w.unlock(h)
		}
	})
}

// A waiter with its own lease does not claim a lock with a different one, nor does the next waiter.
func TestHandover_fixedLeases(t *testing.T) {
	forEach(t, processes, func(w *world, s func(w *world) *Session) {
		h := w.lock(s(w), w.Context())
		fixed := w.waiting(w.a, w.Context(), lock.WithFixedLease(7*time.Second))
		renewed := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		released := time.Now()
		w.unlock(h)
		got := w.next(fixed)
		if want := released.Add(watchdog.Trusted(7 * time.Second)); !got.Until().Equal(want) {
			w.Errorf("Until is %v after the release, want %v", got.Until().Sub(released), want.Sub(released))
		}
		w.unlock(got)
		got = w.next(renewed)
		time.Sleep(3 * leaseTime)
		w.wantHeld(got)
		w.unlock(got)
	})
}

// The first waiter cannot claim the lock granted to its queue, because it has a fixed lease or has just left. The
// waiters behind it are not forgotten.
func TestHandover_skipsAWaiterThatCannotClaim(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		fixed := w.waiting(w.a, w.Context(), lock.WithFixedLease(leaseTime))
		last := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		cancel()
		w.unlock(h) // at the same time
		if h := <-gone; h != nil {
			w.unlock(h)
		}
		w.unlockEach(fixed, last)
	})
}

// The lock is force-unlocked, by this process or another, during a chain of hand-offs: its holder detects it, and a
// waiter acquires the lock.
func TestHandover_forceUnlock(t *testing.T) {
	forEach(t, processes, func(w *world, s func(w *world) *Session) {
		h := w.lock(w.a, w.Context())
		waiters := w.waiters(2)
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(waiters[0])
		w.force(s(w), plain)
		start := time.Now()
		got := <-waiters[1]
		w.wantWithin(start, pollTime)
		w.wantLaterToken(got, h)
		<-h.Context().Done()
		w.wantWithin(start, leaseTime/3)
		w.wantErr(context.Cause(h.Context()), lock.ErrLost)
		w.unlock(got)
	})
}

// The server is unreachable. A chain of hand-offs ends when its lease expires, even if the last hold has just begun.
func TestHandover_outlivesNoLease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		until := h.Until()
		ctx, cancel := context.WithCancel(w.Context())
		waiter := w.waiting(w.a, ctx)
		w.cut()
		time.Sleep(lockstate.MaxHandOffTime / 2)
		w.unlock(h)
		h = w.next(waiter)
		if !h.Until().Equal(until) {
			w.Errorf("the lease grew by %v", h.Until().Sub(until))
		}
		<-h.Context().Done()
		w.wantTook(until, 0)
		w.wantErr(h.Err(), lock.ErrLost)
		cancel()
		w.wire.Refuse(false)
	})
}

// Close during a chain of hand-offs: the lock is free, and each waiter gets ErrClosed.
func TestHandover_close(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		waiter := w.waiting(w.a, w.Context())
		var others []<-chan error
		for range 3 {
			others = append(others, w.beginLock(w.a, plain, w.Context()))
		}
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(waiter)
		w.close(w.a)
		for _, other := range others {
			w.wantErr(<-other, lock.ErrClosed)
		}
		w.wantErr(h.Err(), lock.ErrClosed)
		w.wantFree()
	})
}

// A waiter gives up while a release that names it as next owner is in flight. The lock does not stay with it.
func TestHandover_nextOwnerGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		leave := w.leaving(plain)
		time.Sleep(2 * lockstate.MaxHandOffTime) // too long for a hand-off
		release := make(chan struct{})
		w.onNext(redistest.Action{HoldRequest: release})
		unlocked := w.beginUnlock(h)
		leave()
		time.Sleep(opTime / 2) // the command that removes its queue position was sent, and may arrive first
		close(release)
		w.wantNoErr(<-unlocked)
		time.Sleep(10 * time.Millisecond)
		w.wantFree()
	})
}

// Tokens of the counter increase during a chain of hand-offs and after it, while other processes use the counter.
func TestHandover_tokenCounter(t *testing.T) {
	inBubble(t, func(w *world) {
		fenced := lock.WithFencing()
		h := w.lock(w.a, w.Context(), fenced)
		waiters := []<-chan lock.Hold{w.waiting(w.a, w.Context(), fenced), w.waiting(w.a, w.Context(), fenced)}
		plainly := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond)
		last := h.Token()
		for _, waiter := range waiters {
			w.unlock(h)
			h = w.next(waiter)
			if h.Token() != last+1 {
				w.Errorf("token %d after %d", h.Token(), last)
			}
			last = h.Token()
		}
		// The holder does not hand off the lock to a waiter without the token counter. It releases the lock: first to
		// the other queued process, and then to that waiter.
		other := w.waiting(w.b, w.Context(), fenced)
		for _, waiter := range []<-chan lock.Hold{other, plainly} {
			time.Sleep(time.Microsecond) // the clock of a bubble does not move by itself, and tokens need it to move
			w.unlock(h)
			h = w.next(waiter)
			if h.Token() <= last {
				w.Errorf("token %d after %d", h.Token(), last)
			}
			last = h.Token()
		}
		w.unlock(h)
		w.mini.Del("redisson_lock_token:{orders}") // it is kept by design
	})
}

// Each test here fails without one guard of the hand-off: a condition that always seems true, until two events cross.

// A holder of this process has lost the lock without detecting it, and the next in the queue has acquired it. Releasing
// the first hold does not hand off the lock again.
func TestGuard_lostHoldIsNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		waiters := w.waiters(3)
		time.Sleep(pollTime - lockstate.MaxHandOffTime/5) // just before the first in the queue polls
		w.unlock(h)
		lost := w.next(waiters[0]) // by the release; it may hand off the lock for lockstate.MaxHandOffTime
		w.mini.Del("orders")       // publishes no message
		time.Sleep(lockstate.MaxHandOffTime / 2)
		h = w.next(waiters[1])
		w.unlockLost(lost)
		w.waitsOn(waiters[2])
		w.ours(h)
		w.unlock(h)
		next := w.next(waiters[2])
		if next.Owner() != h.Owner() {
			w.Error("the lock was not handed off again")
		}
		w.unlock(next)
	})
}

// The first request fails without a reply, and the second is granted. The server executes the first one after every
// hold has ended, however it ended. The lock is free again soon.
func TestGuard_requestExecutedLate(t *testing.T) {
	type test struct {
		opts []lock.Option
		end  func(w *world, k *Kind, h lock.Hold)
	}
	forEach(t, map[string]test{
		"released": {end: func(w *world, _ *Kind, h lock.Hold) { w.unlock(h) }},
		"handed off before": {end: func(w *world, k *Kind, h lock.Hold) {
			next := w.goLock(w.a, k, w.Context())
			time.Sleep(time.Millisecond)
			w.unlock(h)
			w.unlock(w.next(next))
		}},
		"released, with a late reply": {end: func(w *world, k *Kind, h lock.Hold) {
			late := make(chan struct{})
			slow, _ := slowRelease(k, 1, late)
			*k = *slow
			w.wantNotErrs(h.Unlock(w.within(time.Second)))
			close(late)
		}},
		"lost": {end: func(w *world, _ *Kind, h lock.Hold) {
			w.mini.Del("orders") // publishes no message
			<-h.Context().Done()
		}},
		"limited": {[]lock.Option{lock.WithMaxHold(leaseTime / 3)}, func(_ *world, _ *Kind, h lock.Hold) { <-h.Context().Done() }},
	}, func(w *world, c test) {
		k, execute := w.failOnce()
		c.end(w, k, w.take(w.a, k, w.Context(), c.opts...))
		synctest.Wait()
		execute()
		time.Sleep(opTime + time.Millisecond)
		w.wantFree()
	})
}

// A lock with a fixed lease, or with the long lease of an outer hold that was released first, is not handed off: the
// next holder has its own lease, which is renewed.
func TestGuard_longLeaseIsNotHandedOff(t *testing.T) {
	forEach(t, map[string]func(w *world) []lock.Hold{
		"fixed": func(w *world) []lock.Hold {
			return []lock.Hold{w.lock(w.a, w.Context(), lock.WithFixedLease(7*time.Second))}
		},
		"outer": func(w *world) []lock.Hold {
			outer := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Hour))
			return []lock.Hold{outer, w.lock(w.a, outer.Context())}
		},
	}, func(w *world, acquire func(w *world) []lock.Hold) {
		holds := acquire(w)
		next := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond)
		w.unlockAll(holds...)
		h := w.next(next)
		if left := w.mini.TTL("orders"); left > leaseTime {
			w.Errorf("the TTL of the next holder's key is %v", left)
		}
		time.Sleep(3 * leaseTime)
		w.wantHeld(h)
		w.unlock(h)
	})
}

// A waiter with its own lease continues the request of a waiter that left. The hold has the lease and the waiting time
// of the continuing waiter.
func TestGuard_leaseOfTheSendingWaiter(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		leave := w.leaving(plain)
		time.Sleep(pollTime / 2)
		var waited time.Duration
		w.observer().Acquired = func(_ context.Context, e lock.Event) { waited = e.Took }
		fixed := w.waiting(w.a, w.Context(), lock.WithFixedLease(7*time.Second))
		leave()
		time.Sleep(pollTime / 2)
		w.unlock(h)
		got := w.next(fixed)
		if left := w.mini.TTL("orders"); time.Until(got.Until()) > left {
			w.Errorf("trusted for %v, and the TTL is %v", time.Until(got.Until()), left)
		}
		if waited != pollTime/2 {
			w.Errorf("the observer got a wait of %v", waited)
		}
		w.unlock(got)
	})
}

// The reply to a release grants the lock to a waiter of the same process. From then on it is handed off again without a
// command.
func TestGuard_handsOffAgainAfterARelease(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context())) // loads the scripts
		h := w.lock(w.a, w.Context())
		waiters := w.waiters(3)
		time.Sleep(2 * lockstate.MaxHandOffTime)
		sent := w.scripts()
		for _, waiter := range waiters {
			w.unlock(h)
			h = w.next(waiter)
			time.Sleep(time.Millisecond)
		}
		w.wantSent(sent, 1) // the release
		w.unlock(h)
	})
}

// The lock is handed off in this process while others wait. Each waiter that becomes the first sends one request per
// poll interval, and none earlier.
func TestGuard_onePollPerInterval(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		var waiters []<-chan lock.Hold
		for range 4 {
			waiters = append(waiters, w.waiting(w.a, w.Context()))
			time.Sleep(pollTime / 10)
		}
		time.Sleep(pollTime * 55 / 100)
		w.unlock(h) // after 0.95 of a poll interval
		h = w.next(waiters[0])
		time.Sleep(pollTime / 10) // the next waiter sends its request
		w.unlock(h)
		h = w.next(waiters[1])
		sent := w.scripts()
		time.Sleep(pollTime * 9 / 10)
		w.wantSent(sent, 0)
		time.Sleep(pollTime) // the next waiter has sent its request, and the lease was renewed
		w.unlock(h)
		h = w.next(waiters[2])
		time.Sleep(pollTime * 3 / 2) // here, too
		w.mini.Del("orders")         // publishes no message
		time.Sleep(pollTime)
		next := w.next(waiters[3])
		w.unlockLost(h)
		w.unlock(next)
	})
}

// The lease of a short-lived lock is almost over when the reply arrives. The lock is released and not handed off, so
// that the next holder has a full lease.
func TestGuard_expiringLeaseIsNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		short := testConfig()
		short.Lease = opTime
		s := w.session(short)
		w.unlock(w.lock(s, w.Context())) // loads the script
		w.onNext(redistest.Action{DelayReply: opTime * 8 / 10})
		k := onRenewal(hookable(), func(r renews) []luascripts.Renewed {
			time.Sleep(opTime / 10) // a renewal takes a while
			return r.send()
		})
		first, next := w.goLock(s, k, w.Context()), w.goLock(s, k, w.Context())
		h := <-first
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		if left := time.Until(h.Until()); left < opTime/3 {
			w.Errorf("the next has it for %v", left)
		}
		w.unlock(h)
		w.close(s)
	})
}

// A reentry, or a release of one of two holds, is not confirmed, and reconciling it fails. The lock is not handed off
// with a count that may be wrong.
func TestGuard_uncertainCountIsNotHandedOff(t *testing.T) {
	forEach(t, map[string]bool{"after a reentry": true, "after a release": false}, func(w *world, reentry bool) {
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			if reentry && r.Want > 1 {
				return luascripts.Acquired{}, errGarbled
			}
			return a, err
		})
		k.Release = func(context.Context, rueidis.Client, luascripts.Keys, string, int) (luascripts.Verdict, error) {
			return 0, errGarbled
		}
		h := w.take(w.a, k, w.Context())
		again, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil))
		next := w.goLock(w.a, k, w.Context())
		time.Sleep(time.Millisecond)
		if !reentry && err == nil {
			err = again.Unlock(w.Context())
		}
		if err == nil {
			w.Error("the server did not confirm")
		}
		w.unlock(h)
		h = w.next(next)
		w.ours(h)
		w.unlock(h)
	})
}

// A process without Pub/Sub retries after 10 ms, 20 ms and so on, up to a poll interval, and reports the interval in
// its requests. When it receives a message again, it retries once per poll interval.
func TestGuard_pollsWithoutPubSub(t *testing.T) {
	inBubble(t, func(w *world) {
		var noPubSub atomic.Bool
		var mu sync.Mutex // guards the following variables
		var requests, again []time.Duration
		var before time.Time
		take := func() (retried, announced []time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			retried, announced = requests, again
			requests, again = nil, nil
			return retried, announced
		}
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			mu.Lock()
			requests, before = append(requests, time.Since(before)), time.Now()
			again = append(again, r.RetryAfter)
			mu.Unlock()
			a, err := r.send()
			a.NoPubSub = a.Verdict == luascripts.Held && (noPubSub.Load() || r.n == 1) // the first waiter is not subscribed yet
			return a, err
		})
		h := w.lock(w.b, w.Context())
		waiter := w.goLock(w.a, k, w.Context())
		if requests, _ := take(); len(requests) != 2 { // the first request, and one after the subscription
			w.Errorf("got %d requests at first", len(requests))
		}
		time.Sleep(pollTime / 2)
		noPubSub.Store(true)
		time.Sleep(3 * pollTime)
		retried, announced := take()
		const ms = time.Millisecond
		want := []time.Duration{pollTime, 10 * ms, 20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 640 * ms, 10 * ms, 20 * ms}
		for i, d := range want {
			if i >= len(retried) || retried[i] != d {
				w.Fatalf("got a request after %v, want %v", retried, want)
			}
			if i > 1 && announced[i-1] != d {
				w.Errorf("announced a retry after %v, retried after %v", announced[i-1], d)
			}
		}
		noPubSub.Store(false)
		time.Sleep(pollTime)
		take()
		time.Sleep(2 * pollTime)
		if retried, announced := take(); len(retried) != 2 || announced[1] != pollTime {
			w.Errorf("got %d requests in two poll intervals, announced retries after %v", len(retried), announced)
		}
		w.unlock(h)
		w.unlock(w.next(waiter))
	})
}

// A release gets an invalid reply and was not executed. It is repeated in the background, and then a waiter of the
// process has the lock. This includes a reentry with an unknown outcome that waits to be reconciled again.
func TestGuard_failedRelease(t *testing.T) {
	forEach(t, map[string]bool{"nothing broke off": false, "a reentry broke off": true}, func(w *world, reentry bool) {
		k := onRelease(garbledReentries(), func(r release) (luascripts.Released, error) {
			if r.n == 1 {
				return luascripts.Released{}, errGarbled
			}
			return r.send()
		})
		h := w.take(w.a, k, w.Context())
		if reentry {
			w.breakOff(k, h)
		}
		next := w.goLock(w.a, k, w.Context())
		time.Sleep(2 * lockstate.MaxHandOffTime)
		start := time.Now()
		w.wantNotErrs(h.Unlock(w.Context()))
		w.unlock(<-next)
		w.wantWithin(start, pollTime)
	})
}

// The holder has no fencing, and the next owner in its process has. The next owner's token comes from the counter,
// which the release increases by the maximum number of hand-offs.
func TestGuard_tokenCounterOfTheNextOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		const tokenCounter = "redisson_lock_token:{orders}"
		w.wantNoErr(w.mini.Set(tokenCounter, "4000000000000000"))
		w.unlock(w.lock(w.a, w.Context())) // loads the scripts
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.a, w.Context(), lock.WithFencing())
		time.Sleep(2 * lockstate.MaxHandOffTime)
		sent := w.scripts()
		w.unlock(h)
		h = w.next(next)
		w.wantSent(sent, 1)
		if h.Token() != 4000000000000001 {
			w.Errorf("token %d", h.Token())
		}
		w.wantTokensLeft(h)
		w.unlock(h)
		w.mini.Del(tokenCounter) // it is kept by design
	})
}

// wantTokensLeft fails the test unless the counter leaves tokens for the hand-offs of h.
func (w *world) wantTokensLeft(h lock.Hold) {
	w.Helper()
	counter, err := w.mini.Get("redisson_lock_token:{orders}")
	if latest, _ := strconv.ParseUint(counter, 10, 64); err != nil || latest < h.Token()+lockstate.MaxHandOffs {
		w.Errorf("the token counter is at %q, and the holder's token is %d", counter, h.Token())
	}
}

// withNextOwnerInFlight makes a waiter of this process send a request while a release grants the lock to it. The request
// waits for goes. Another waiter is queued behind it.
func (w *world) withNextOwnerInFlight(ctx context.Context) (first, next <-chan lock.Hold, goes chan struct{}) {
	w.Helper()
	goes = make(chan struct{})
	k := delayNthRequest(2, true, goes)
	h := w.take(w.a, k, w.Context())
	first, next = w.goLock(w.a, k, ctx), w.goLock(w.a, k, w.Context())
	time.Sleep(pollTime + time.Millisecond) // the first in the queue polls
	w.unlock(h)
	synctest.Wait()
	return first, next, goes
}

// A release grants the lock, with a short lease, to a waiter whose own request is in flight. The reply to the request
// extends it to the full lease.
func TestGuard_replyExtendsTheLease(t *testing.T) {
	inBubble(t, func(w *world) {
		first, next, goes := w.withNextOwnerInFlight(w.Context())
		close(goes)
		h := w.next(first)
		if left := time.Until(h.Until()); left < leaseTime/2 {
			w.Errorf("it is trusted for %v", left)
		}
		w.unlock(h)
		w.unlock(w.next(next))
	})
}

// The next waiter requires the confirmation of replicas. The lock is not handed off to it, because no replica has
// confirmed.
func TestGuard_notHandedOffToAWaiterWithReplicas(t *testing.T) {
	inBubble(t, func(w *world) {
		k, confirmed := confirmingReplicas(plain, 0)
		h := w.take(w.a, k, w.Context())
		next := w.goLock(w.a, k, w.Context(), lock.WithReplicas(1, time.Millisecond))
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		if n := confirmed.Load(); n != 1 {
			w.Errorf("got WAIT for %d grants", n)
		}
		w.unlock(h)
	})
}

// A reentry has an unknown outcome. The session reconciles it again when the lock has been handed off and no waiter
// has claimed it yet. The lock stays with the process.
func TestGuard_handedOffLockIsNotReconciled(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		var requests atomic.Int32
		var breaks atomic.Bool
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			switch {
			case r.Want > 1 && breaks.CompareAndSwap(true, false):
				return luascripts.Acquired{}, errGarbled
			case r.Want == 1 && requests.Add(1) == 2:
				<-late
			}
			return a, err
		})
		h := w.take(w.a, k, w.Context())
		first, second := w.goLock(w.a, k, w.Context()), w.goLock(w.a, k, w.Context())
		time.Sleep(pollTime - lockstate.MaxHandOffTime/5) // just before the first in the queue polls
		w.unlock(h)
		h = w.next(first)
		breaks.Store(true)
		w.breakOff(k, h)
		w.unlock(w.take(w.a, k, h.Context())) // resolves the count
		time.Sleep(lockstate.MaxHandOffTime / 2)
		w.unlock(h)                              // hands off the lock
		time.Sleep(opTime + 10*time.Millisecond) // the reentry is reconciled again
		w.wantCount(h, 1)
		close(late)
		h = w.next(second)
		w.ours(h)
		w.unlock(h)
	})
}

// A grant that too few replicas confirmed is released. The next waiter of the queue uses another owner string, because
// a duplicate of the release may arrive late.
func TestGuard_newOwnerStringAfterAnUnconfirmedGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		goes, owners := make(chan struct{}), make(chan string, 10)
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			owners <- r.Owner
			if r.Replicas > 0 {
				<-goes
				r.Replicas, r.ReplicaTimeout = 0, 0 // nothing confirms it
			}
			return r.send()
		})
		failed := w.beginLock(w.a, k, w.Context(), lock.WithReplicas(1, time.Second))
		next := w.goLock(w.a, k, w.Context())
		close(goes)
		w.wantErr(<-failed, lock.ErrReplicas)
		h := <-next
		if first := <-owners; h.Owner() == first {
			t.Error("the next waiter has the lock under the released owner string")
		}
		w.unlock(h)
	})
}

// Each test here fails without one guard of what follows from the reply to a release, or from a missing reply.

// The next waiter in this process receives no messages. If the reply to a release says that the lock was released for
// others, it sends its request after the others had their time, and not later. If the release was executed but gets no
// reply, it acquires the lock immediately.
func TestGuard_replyWakesTheNext(t *testing.T) {
	forEach(t, map[string]time.Duration{"released for others": asideTime, "no reply": 0}, func(w *world, took time.Duration) {
		yields := took > 0
		w.withoutPubSub()
		k := onRelease(plain, func(r release) (luascripts.Released, error) {
			switch {
			case r.n > 1:
				return r.send()
			case yields:
				r.NextOwner = ""
				reply, err := r.send()
				reply.Aside = true
				return reply, err
			default:
				_, _ = r.send()
				return luascripts.Released{}, errGarbled
			}
		})
		h := w.take(w.a, k, w.Context())
		next := w.goLock(w.a, k, w.Context())
		time.Sleep(pollTime * 3 / 2)
		start := time.Now()
		if err := h.Unlock(w.Context()); (err == nil) != yields {
			w.Errorf("Unlock: %v", err)
		}
		h = <-next
		w.wantTook(start, took)
		w.unlock(h)
	})
}

// A release grants the lock to another process. The next waiter in this process retries when its subscription is
// confirmed, and not before. If it is already subscribed, it does not retry.
func TestGuard_retriesWhenSubscribed(t *testing.T) {
	forEach(t, map[string]int64{"not yet": 2, "already": 1}, func(w *world, scripts int64) {
		h := w.lock(w.b, w.Context())
		if scripts == 1 {
			next := w.waiting(w.a, w.Context())
			w.unlock(h)
			w.unlock(w.next(next)) // and it stays subscribed for a while
		} else {
			w.unlock(h)
			w.unlock(w.lock(w.a, w.Context())) // loads the scripts
		}
		h = w.lock(w.a, w.Context())
		there, here := w.waiting(w.b, w.Context()), w.waiting(w.a, w.Context())
		time.Sleep(2 * lockstate.MaxHandOffTime)
		sent := w.scripts()
		w.unlock(h)
		h = w.next(there)
		w.wantSent(sent, scripts)
		w.unlock(h)
		w.unlock(w.next(here))
	})
}

// The next waiter in the process retries a poll interval after its first request. A release finds that the lock is
// gone: the waiter acquires it immediately.
func TestGuard_releaseFindsTheLockGone(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(pollTime * 3 / 2)
		w.mini.Del("orders") // publishes no message
		w.unlockLost(h)
		w.unlock(w.next(next))
	})
}

// A release fails without a reply and is executed late. The next owner that it names gives up before or after that
// failure. The lock does not stay with that owner for an offer.
func TestGuard_nextOwnerOfALateRelease(t *testing.T) {
	forEach(t, map[string]bool{"before": true, "after": false}, func(w *world, before bool) {
		breaks, reconciles := make(chan struct{}), make(chan struct{})
		var execute func()
		var holder string
		k := onRelease(plain, func(r release) (luascripts.Released, error) {
			switch {
			case execute == nil:
				execute = func() {
					r.ctx, r.rdb = w.Context(), w.rdb
					if reply, err := r.send(); err != nil || reply.Token == 0 {
						w.Errorf("%+v, %v", reply, err)
					}
				}
				<-breaks
				return luascripts.Released{}, errGarbled
			case r.owner == holder:
				<-reconciles // reconciling the release is late, too
			}
			return r.send()
		})
		h := w.take(w.a, k, w.Context())
		holder = h.Owner()
		leave := w.leaving(k)
		time.Sleep(2 * lockstate.MaxHandOffTime)
		unlocked := w.beginUnlock(h)
		if before {
			leave()
			synctest.Wait()
		}
		close(breaks)
		w.wantNotErrs(<-unlocked)
		synctest.Wait()
		if !before {
			leave()
			synctest.Wait()
		}
		time.Sleep(opTime - time.Millisecond)
		execute()
		time.Sleep(2 * time.Millisecond)
		w.wantFree()
		close(reconciles)
	})
}

// A request is executed but gets no reply. Its caller gives up before the retry: nothing is left in Redis.
func TestGuard_lostReplyAndTheCallerGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		requests := 0
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			requests = r.n
			a, err := r.send()
			if r.n == 1 {
				return luascripts.Acquired{}, io.EOF
			}
			return a, err
		})
		ended := w.goLock(w.a, k, w.within(time.Millisecond)) // the pause is longer
		<-ended
		synctest.Wait()
		if requests != 1 {
			w.Errorf("got %d requests", requests)
		}
		w.wantFree()
	})
}

// A caller gives up while its request has no reply. The request is reconciled after the reply, and no command is sent
// before.
func TestGuard_requestIsReconciledOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		k := delayNthRequest(1, true, goes)
		k, sent := slowRelease(k, 0, nil)
		w.leaving(k)()
		synctest.Wait()
		w.wantSent(sent, 0)
		close(goes)
		synctest.Wait()
		w.wantSent(sent, 1)
		w.wantFree()
	})
}

// A release grants the lock to another process, and queues this one for a waiter that has never sent a request. This
// process is disconnected, and the waiter gives up. The queue position is removed when the server is reachable again,
// even if that takes longer than a command.
func TestReconcile_queuePositionByARelease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		us, _, _ := strings.Cut(h.Owner(), ":")
		queued := func() bool { return strings.Contains(w.mini.HGet("orders", luascripts.QueueField), us) }
		w.withoutPubSub()
		there := w.waiting(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		here := w.waiting(w.a, ctx)
		time.Sleep(2 * lockstate.MaxHandOffTime)
		w.unlock(h)
		h = w.next(there)
		if !queued() {
			w.Error("it is not in the queue")
		}
		time.AfterFunc(time.Millisecond, cancel)
		w.disconnected((queueTTLPolls - 1) * pollTime)
		<-here
		time.Sleep(pollTime + pollTime/2)
		if queued() {
			w.Error("it is still in the queue")
		}
		w.wire.OnRequest(nil)
		w.unlock(h)
	})
}

// A release grants the lock to another process, which releases it before the reply arrives here. The next waiter in
// this process acquires it with the reply, because its subscription had received the message.
func TestGuard_messageBeforeTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		reply := make(chan struct{})
		k, _ := slowRelease(plain, 2, reply)
		h := w.lock(w.b, w.Context())
		here := w.goLock(w.a, k, w.Context())
		w.unlock(h)
		w.unlock(w.next(here)) // it stays subscribed for a while
		h = w.take(w.a, k, w.Context())
		there := w.waiting(w.b, w.Context())
		here = w.goLock(w.a, k, w.Context())
		time.Sleep(2 * lockstate.MaxHandOffTime)
		unlocked := w.beginUnlock(h)
		w.unlock(<-there)
		synctest.Wait()
		start := time.Now()
		close(reply)
		w.wantNoErr(<-unlocked)
		w.unlock(<-here)
		w.wantTook(start, 0)
	})
}

// A client publishes "aside" repeatedly. The waiters of the session still retry, and acquire a lock that becomes free
// without a message.
func TestYield_repeatedMessages(t *testing.T) {
	inBubble(t, func(w *world) {
		w.lock(w.a, w.Context())
		waiter := w.waiting(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				w.publish("leasehold_channel:{orders}", luascripts.Aside)
				time.Sleep(asideTime - time.Millisecond)
			}
		})
		time.Sleep(2 * asideTime)
		w.mini.Del("orders") // publishes no message
		time.Sleep(pollTime)
		synctest.Wait()
		w.unlock(w.next(waiter))
		cancel()
		wg.Wait()
	})
}

// A lock that is released for others is free for them for a moment, even if each process has one goroutine that locks
// again immediately.
func TestYield_whileCallersComeBack(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		published, enter := w.outsider(ctx)
		var wg sync.WaitGroup
		for _, s := range []*Session{w.a, w.b} {
			for _, pause := range []time.Duration{20 * time.Microsecond, time.Millisecond} { // the first is about one round trip
				wg.Go(func() {
					for ctx.Err() == nil {
						h := w.lock(s, w.Context())
						time.Sleep(time.Millisecond)
						w.unlock(h)
						time.Sleep(pause)
					}
				})
			}
		}
		const tries = 20
		got := 0
		for range tries {
			<-published
			time.Sleep(asideTime / 2) // the time to wake
			if !w.mini.Exists("orders") {
				got++
				enter()
			}
		}
		cancel()
		wg.Wait()
		if got < tries {
			w.Errorf("a client outside the queue acquired the lock %d times of %d releases", got, tries)
		}
	})
}

// staysOurs fails the test if Redis releases h, while everything is reconciled or later.
func (w *world) staysOurs(h lock.Hold) {
	w.Helper()
	w.ours(h)
	time.Sleep(3 * opTime)
	w.ours(h)
	w.unlock(h)
}

// A reply arrives after the lock has been handed off under the same owner string: reconciling it must not release the
// lock of the next holder.
func TestHandOff_withARequestInFlight(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		k := delayNthRequest(1, false, late)
		got := w.goLock(w.a, k, w.Context())
		time.Sleep(opTime / 2)
		next := w.goLock(w.a, k, w.Context())
		h := <-got
		time.Sleep(time.Millisecond)
		w.unlock(h)
		after := <-next
		close(late)
		w.staysOurs(after)
	})
}

// A reentry has an unknown outcome and is reconciled twice; the second time is after the lock has been handed off.
func TestHandOff_whileAReentryIsReconciled(t *testing.T) {
	inBubble(t, func(w *world) {
		var breaks atomic.Bool
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			if r.Want == 2 && breaks.CompareAndSwap(true, false) {
				return luascripts.Acquired{}, errGarbled
			}
			return a, err
		})
		h := w.take(w.a, k, w.Context())
		next := w.goLock(w.a, k, w.Context())
		breaks.Store(true)
		w.breakOff(k, h)
		w.unlock(w.take(w.a, k, h.Context()))
		time.Sleep(time.Millisecond)
		w.unlock(h)
		w.staysOurs(<-next)
	})
}

// The next owner of a release sends a request, is granted the lock, and hands it off before the release gets its reply.
func TestHandOff_beforeTheReplyToTheRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		k, _ := slowRelease(plain, 1, late)
		h := w.take(w.a, k, w.Context())
		time.Sleep(20 * time.Millisecond) // too long for a hand-off
		second, third := w.goLock(w.a, k, w.Context()), w.goLock(w.a, k, w.Context())
		go w.unlock(h)
		nextOwner := <-second // it has sent its request
		time.Sleep(time.Millisecond)
		w.unlock(nextOwner)
		after := <-third
		close(late)
		w.staysOurs(after)
	})
}

// A fenced lock is handed off to a waiter that leaves before the lock arrives. The session reconciles it, so a release
// in the background grants the lock to the next process. That process may hand it off as often as any other holder.
func TestReconcile_leavesTokensForTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		fenced := lock.WithFencing()
		h := w.lock(w.a, w.Context(), fenced)
		next := w.waiting(w.b, w.Context(), fenced)
		w.unlock(h)
		h = <-next
		far := w.waiting(w.a, w.Context(), fenced)
		ctx := &errOnly{Context: w.Context()}
		left := w.beginLock(w.b, plain, ctx, fenced)
		time.Sleep(time.Millisecond)
		ctx.canceled.Store(true)
		w.unlock(h)
		<-left
		after := <-far
		w.wantTokensLeft(after)
		w.unlock(after)
		w.mini.Del("redisson_lock_token:{orders}")
	})
}

// Each test here fails without one guard of the hand-off, when a release crosses a request, another grant or Close.

// tryElsewhere fails the test if session b cannot acquire the lock now.
func (w *world) tryElsewhere(k *Kind) {
	w.Helper()
	h, err := w.b.TryLock(w.Context(), w.b.NewSpec(k, "orders", nil))
	if err != nil {
		w.Errorf("another process does not get it: %v", err)
		return
	}
	w.unlock(h)
}

// Close begins while a holder releases the lock. The next waiter in the process has a request in flight, so it is still
// queued. The lock is not handed off to it: it is free for others.
func TestGuard_notHandedOffDuringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		const many = 1000 // Close releases a limited number at a time, so it reaches this lock late
		reply, released := make(chan struct{}), make(chan struct{})
		k := delayNthRequest(2, true, reply)
		k = onRelease(k, func(r release) (luascripts.Released, error) {
			if r.keys.Lock != "orders" {
				<-released
			}
			return r.send()
		})
		for i := range many {
			if _, err := w.a.Lock(w.Context(), w.a.NewSpec(k, fmt.Sprint("x", i), nil)); err != nil {
				w.Fatal(err)
			}
		}
		h := w.take(w.a, k, w.Context())
		first, left := w.goLock(w.a, k, w.Context()), w.beginLock(w.a, k, w.Context())
		time.Sleep(pollTime - lockstate.MaxHandOffTime/5) // just before the first in the queue polls
		w.unlock(h)
		h = w.next(first)
		time.Sleep(lockstate.MaxHandOffTime / 2)
		var closed <-chan error
		ctx := &errHook{Context: w.Context(), f: func() {
			closed = w.beginClose()
		}}
		w.wantNoErr(h.Unlock(ctx))
		w.tryElsewhere(plain)
		close(reply)
		w.wantErr(<-left, lock.ErrClosed)
		close(released)
		w.wantNoErr(<-closed)
	})
}

// Close releases the lock. The next waiter in the process has a request in flight, so it is still queued. The release
// does not name it: the lock is free for others.
func TestGuard_closeNamesNoNextOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		reply := make(chan struct{})
		k := delayNthRequest(2, true, reply)
		w.take(w.a, k, w.Context())
		left := w.beginLock(w.a, k, w.Context())
		time.Sleep(pollTime + time.Millisecond) // it polls
		closed := w.beginClose()
		w.tryElsewhere(plain)
		close(reply)
		w.wantErr(<-left, lock.ErrClosed)
		w.wantNoErr(<-closed)
	})
}

// The reply to a release is lost, and its repetition finds the lock gone. The lock was released, and not lost.
func TestGuard_repeatedRelease(t *testing.T) {
	forEach(t, map[string]bool{"can be canceled": true, "cannot be canceled": false}, func(w *world, cancelable bool) {
		w.unlock(w.lock(w.a, w.Context())) // loads the scripts
		w.wantEvents("granted", "released")
		h := w.lock(w.a, w.Context())
		w.onNext(redistest.Action{DropReply: true})
		ctx := w.Context()
		if !cancelable {
			ctx = context.Background()
		}
		w.wantNoErr(h.Unlock(ctx))
		w.wantEvents("granted", "released")
	})
}

// A release waits for a renewal in flight. A reentry with an unknown outcome is reconciled in the meantime, which
// frees the lock. The release finds it gone: it was released, and not lost.
func TestGuard_releaseAfterReconciling(t *testing.T) {
	inBubble(t, func(w *world) {
		const ms = time.Millisecond
		renewal := make(chan struct{})
		k := onRenewal(garbledReentries(), func(r renews) []luascripts.Renewed {
			<-renewal
			return r.send()
		})
		start := time.Now()
		h := w.take(w.a, k, w.Context())
		const checks = (1 + 2) * opTime // the third command is sent after this time
		time.Sleep(leaseTime/3 + 10*ms - checks)
		w.breakOff(k, h)
		time.Sleep(time.Until(start.Add(leaseTime/3 + 5*ms))) // it is being renewed
		unlocked := w.beginUnlock(h)
		time.Sleep(25 * ms) // and reconciled again: this late if the first command found the turn taken
		synctest.Wait()
		if len(unlocked) > 0 {
			w.Error("the release did not wait for the renewal")
		}
		if w.mini.Exists("orders") {
			w.Error("the request was not reconciled again")
		}
		close(renewal)
		w.wantNoErr(<-unlocked)
	})
}

// Each test here fails without one guard of what follows from a loss, from a limit, or from a reply that crosses the
// end of a call.

// A renewal finds that the lock is gone, or the hold ends by its limit. The next waiter in this process sends a request
// immediately, whether it has sent one before or not.
func TestGuard_lossWakesTheNext(t *testing.T) {
	const limit = 2 * time.Second
	type row struct {
		opts        []lock.Option
		joins, ends time.Duration
	}
	forEach(t, map[string]row{
		"gone, has sent a request":     {nil, pollTime / 4, leaseTime / 3},
		"gone, has sent no request":    {nil, leaseTime/3 - pollTime/2, leaseTime / 3},
		"limited, has sent no request": {[]lock.Option{lock.WithMaxHold(limit)}, limit - pollTime/2, limit},
	}, func(w *world, c row) {
		h := w.lock(w.a, w.Context(), c.opts...)
		start := time.Now()
		time.Sleep(c.joins)
		next := w.waiting(w.a, w.Context())
		time.Sleep(c.ends - pollTime/10 - time.Since(start))
		if c.opts == nil {
			w.mini.Del("orders") // publishes no message
		}
		got := <-next
		w.wantTook(start, c.ends)
		w.wantErr(h.Err(), lock.ErrLost)
		w.unlock(got)
	})
}

// The call ends while the reply to its request arrives. It does not have the lock, and the lock is free.
func TestGuard_replyAtTheEndOfTheWait(t *testing.T) {
	forEach(t, map[string]bool{"Lock": false, "TryLock": true}, func(w *world, tries bool) {
		ctx := &errOnly{Context: w.Context()}
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			ctx.canceled.Store(true)
			return a, err
		})
		h, err := w.lockOrTry(tries)(ctx, w.a.NewSpec(k, "orders", nil))
		if h != nil || errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
			w.Errorf("%v, %v", h, err)
		}
		synctest.Wait()
		w.wantFree()
	})
}

// The reply to a release grants the lock to a waiter here, after most of the lease of that grant has passed. The
// waiter's own request is in flight, and its reply brings a longer lease. With the rest of the first lease, the waiter
// would lose the lock and retry.
func TestGuard_lateGrantByARelease(t *testing.T) {
	inBubble(t, func(w *world) {
		const offer = offerPolls * pollTime
		w.withoutPubSub()
		goes := make(chan struct{})
		requests := 0
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			if requests = r.n; r.n == 2 {
				<-goes
			}
			return r.send()
		})
		k = onRelease(k, func(r release) (luascripts.Released, error) {
			reply, err := r.send()
			if r.n == 1 {
				time.Sleep(offer * 5 / 6)
			}
			return reply, err
		})
		h := w.take(w.a, k, w.Context())
		next := w.goLock(w.a, k, w.Context())
		time.Sleep(2 * lockstate.MaxHandOffTime)
		start := time.Now()
		w.unlock(h)
		time.Sleep(time.Until(start.Add(offer + pollTime/2)))
		close(goes)
		w.unlock(<-next)
		if requests != 2 {
			w.Errorf("%d requests, want 2", requests)
		}
	})
}

// A message makes a process retry slightly later, and the next one says that it has the lock. It sends its request immediately.
func TestGuard_grantAfterYield(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		next := w.waiting(w.a, w.Context())
		w.publish("leasehold_channel:{orders}", luascripts.Aside)
		synctest.Wait()
		w.unlock(h)
		w.unlock(w.next(next))
	})
}
