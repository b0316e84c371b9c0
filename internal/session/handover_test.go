package session

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// waiting starts a call for the lock and returns when it waits. The hold or the error is received later.
func (w *world) waiting(s *Session, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	w.Helper()
	return w.goLock(s, plain, ctx, opts...)
}

func (w *world) waitingFor(s *Session, ctx context.Context, spec *Spec) <-chan lock.Hold {
	w.Helper()
	holds := make(chan lock.Hold, 1)
	go func() {
		defer close(holds)
		h, err := s.Lock(ctx, spec)
		if err != nil {
			if ctx.Err() == nil {
				w.Errorf("lock: %v", err)
			}
			return
		}
		holds <- h
	}()
	synctest.Wait()
	return holds
}

// next returns the hold that the waiter has received by now.
func (w *world) next(holds <-chan lock.Hold) lock.Hold {
	w.Helper()
	synctest.Wait()
	select {
	case h := <-holds:
		if h == nil {
			w.Fatal("the wait ended")
		}
		return h
	default:
		w.Fatal("it still waits")
		return nil
	}
}

// Inside a process the lock is handed off without a command: same owner string, same lease, a larger token. The last
// holder releases it.
func TestHandover_insideAProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		var waiters []<-chan lock.Hold
		for range 5 {
			waiters = append(waiters, w.waiting(w.a, w.Context()))
		}
		time.Sleep(time.Millisecond) // the clock of a bubble does not move by itself, and tokens need it to move
		sent := w.scripts()
		for _, waiter := range waiters {
			before := h
			w.unlock(h)
			if err := before.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) {
				w.Errorf("a second unlock: %v", err)
			}
			h = w.next(waiter)
			if h.Owner() != before.Owner() || h.Token() <= before.Token() || w.count(h) != 1 || h.Err() != nil {
				w.Errorf("owner %s after %s, token %d after %d, count %d, %v", h.Owner(), before.Owner(), h.Token(), before.Token(), w.count(h), h.Err())
			}
			if before.Err() == nil || !errors.Is(context.Cause(before.Context()), lock.ErrUnlocked) {
				w.Errorf("the hold before: %v", before.Err())
			}
		}
		if n := sent.Load(); n != 0 {
			w.Errorf("%d scripts were sent", n)
		}
		// It is renewed, whichever acquisition has it.
		time.Sleep(3 * leaseTime)
		if err := h.Err(); err != nil || w.count(h) != 1 {
			w.Errorf("after three leases: %v, count %d", err, w.count(h))
		}
		w.unlock(h)
		if w.mini.Exists("orders") {
			w.Error("it is not free")
		}
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
		if n := sent.Load(); n != 0 {
			w.Errorf("%d requests at once", n)
		}
		w.mini.Del("orders") // publishes no message
		start := time.Now()
		got := <-waiter
		if took := time.Since(start); took > pollTime {
			w.Errorf("it got the lock after %v", took)
		}
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lost hold: %v", err)
		}
		if got.Err() != nil || w.count(got) != 1 {
			w.Errorf("the next: %v, count %d", got.Err(), w.count(got))
		}
		w.unlock(got)
	})
}

// Two processes compete for the lock continuously. Each has it for at most MaxHandOffs hand-offs. Then the other process
// gets it, with one command and the message that the command publishes.
func TestHandover_takesTurns(t *testing.T) {
	inBubble(t, func(w *world) {
		var mu sync.Mutex
		var turns []*Session
		var wg sync.WaitGroup
		sent := w.scripts()
		const goroutines, each = 10, 30
		for _, s := range []*Session{w.a, w.b} {
			for range goroutines {
				wg.Go(func() {
					for range each {
						h := w.lock(s, w.Context())
						mu.Lock()
						turns = append(turns, s)
						mu.Unlock()
						time.Sleep(time.Millisecond)
						w.unlock(h)
					}
				})
			}
		}
		wg.Wait()
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
		const channel = "redisson_lock__channel:{orders}"
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		published := make(chan struct{}, 1)
		wg.Go(func() {
			_ = w.rdb.Receive(ctx, w.rdb.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {
				select {
				case published <- struct{}{}:
				default:
				}
			})
		})
		synctest.Wait()
		ours := 0
		for _, s := range []*Session{w.a, w.b} {
			for range 3 {
				wg.Go(func() {
					for ctx.Err() == nil {
						h := w.lock(s, w.Context())
						ours++ // guarded by the lock
						time.Sleep(time.Millisecond)
						w.unlock(h)
					}
				})
			}
		}
		start := time.Now()
		const rounds = 20
		for round := range rounds {
			<-published
			time.Sleep(asideTime / 2)
			if w.mini.Exists("orders") {
				w.Fatalf("round %d: the waiters of the session were faster", round)
			}
			w.mini.HSet("orders", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1")
			time.Sleep(time.Millisecond)
			w.mini.Del("orders")
			w.rdb.Do(ctx, w.rdb.B().Publish().Channel(channel).Message("0").Build())
			<-published // that
		}
		// Four grants between processes, each held for lockstate.MaxHandOffTime and one more section.
		if took, most := time.Since(start), rounds*(5*(lockstate.MaxHandOffTime+time.Millisecond)+asideTime); took > most {
			w.Errorf("%d rounds took %v, want %v at the most", rounds, took, most)
		}
		cancel()
		wg.Wait()
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
			var wg sync.WaitGroup
			for _, s := range []*Session{w.a, second} {
				wg.Go(func() {
					for range each {
						h := w.lock(s, w.Context())
						time.Sleep(work)
						w.unlock(h)
					}
				})
			}
			wg.Wait()
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
		var wg sync.WaitGroup
		for _, s := range []*Session{w.a, w.b} {
			wg.Go(func() {
				for ctx.Err() == nil {
					h := w.lock(s, w.Context())
					time.Sleep(work)
					w.unlock(h)
				}
			})
		}
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
		if took, most := time.Since(start), times*(time.Second+2*work); took > most {
			w.Errorf("it acquired the lock %d times in %v, want %v at the most", times, took, most)
		}
		cancel()
		wg.Wait()
		if err := c.Close(w.Context()); err != nil {
			w.Error(err)
		}
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
		var wg sync.WaitGroup
		for _, s := range []*Session{w.a, w.b} {
			for range goroutines {
				wg.Go(func() {
					for range each {
						h := w.lock(s, w.Context())
						time.Sleep(time.Millisecond)
						w.unlock(h)
					}
				})
			}
		}
		wg.Wait()
		if took, want := time.Since(start), 2*goroutines*each*time.Millisecond; took >= want+asideTime {
			w.Errorf("the hand-off took %v, want %v: the lock was released, and no client acquired it", took, want)
		}
		if err := c.Close(w.Context()); err != nil {
			w.Error(err)
		}
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
		synctest.Wait()
		select {
		case h := <-dead:
			w.Errorf("a message of %v ago granted the lock: %v", time.Since(start), h.Err())
		default:
		}
		cancel()
		<-dead
		w.unlock(got)
		if err := c.Close(w.Context()); err != nil {
			w.Error(err)
		}
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
		if took := time.Since(start); took != 0 {
			w.Errorf("it was served after %v", took)
		}
		w.wire.Freeze(false)
		cancel()
		<-dead
		if err := c.Close(w.Context()); err != nil {
			w.Error(err)
		}
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
		if !strings.HasPrefix(got.Owner(), w.a.id) || w.count(got) != 1 {
			w.Errorf("owner %s, count %d", got.Owner(), w.count(got))
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
			w.rdb.Do(w.Context(), w.rdb.B().Publish().Channel("leasehold_channel:{orders}:"+w.a.id).Message(m).Build())
			synctest.Wait()
		}
		select {
		case <-waiter:
			w.Error("it believed a message")
		default:
		}
		w.unlock(h)
		w.unlock(w.next(waiter))
	})
}

// A lock granted to a queued process gets the full lease, counted from the request that claims it.
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
		if got := <-w.waiting(w.b, w.Context()); got == nil || time.Since(start) > offerPolls*pollTime+10*time.Millisecond {
			w.Errorf("another process was served after %v", time.Since(start))
		} else {
			w.unlock(got)
		}
		cancel()
		close(stuck)
		if h := <-gone; h != nil {
			w.unlock(h)
		}
	})
}

// A waiter with its own lease or replicas does not claim a lock with different terms.
func TestHandover_fixedLeases(t *testing.T) {
	for _, from := range []string{"the same process", "another process"} {
		t.Run(from, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.b
				if from == "the same process" {
					s = w.a
				}
				h := w.lock(s, w.Context())
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
				if err := got.Err(); err != nil {
					w.Error(err)
				}
				w.unlock(got)
			})
		})
	}
}

// The first waiter cannot claim the lock granted to its queue, because it has a fixed lease or has just left. The
// waiters behind it are not forgotten.
func TestHandover_skipsAWaiterThatCannotClaim(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		fixed := w.waitingFor(w.a, w.Context(), w.a.NewSpec(plain, "orders", []lock.Option{lock.WithFixedLease(leaseTime)}))
		last := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		cancel()
		w.unlock(h) // at the same time
		if h := <-gone; h != nil {
			w.unlock(h)
		}
		w.unlock(<-fixed)
		w.unlock(<-last)
	})
}

// The lock is force-unlocked, by this process or another, during a chain of hand-offs: its holder detects it, and a
// waiter acquires the lock.
func TestHandover_forceUnlock(t *testing.T) {
	for _, by := range []string{"the same process", "another process"} {
		t.Run(by, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.lock(w.a, w.Context())
				waiters := []<-chan lock.Hold{w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context())}
				time.Sleep(time.Millisecond)
				w.unlock(h)
				h = w.next(waiters[0])
				s := w.b
				if by == "the same process" {
					s = w.a
				}
				if done, err := s.Force(w.Context(), s.NewSpec(plain, "orders", nil), luascripts.ForceReentrant); err != nil || !done {
					w.Fatal(done, err)
				}
				start := time.Now()
				got := <-waiters[1]
				if took := time.Since(start); took > pollTime {
					w.Errorf("the next was served after %v", took)
				}
				if got.Token() <= h.Token() {
					w.Errorf("token %d after %d", got.Token(), h.Token())
				}
				<-h.Context().Done()
				if took := time.Since(start); took > leaseTime/3 || !errors.Is(context.Cause(h.Context()), lock.ErrLost) {
					w.Errorf("notified after %v: %v", took, h.Err())
				}
				w.unlock(got)
			})
		})
	}
}

// The server is unreachable. A chain of hand-offs ends when its lease expires, even if the last hold has just begun.
func TestHandover_outlivesNoLease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		until := h.Until()
		ctx, cancel := context.WithCancel(w.Context())
		waiter := w.waiting(w.a, ctx)
		w.wire.Refuse(true)
		w.wire.CutAll()
		time.Sleep(lockstate.MaxHandOffTime / 2)
		w.unlock(h)
		h = w.next(waiter)
		if !h.Until().Equal(until) {
			w.Errorf("the lease grew by %v", h.Until().Sub(until))
		}
		<-h.Context().Done()
		if late := time.Since(until); late != 0 || !errors.Is(h.Err(), lock.ErrLost) {
			w.Errorf("notified %v after the end: %v", late, h.Err())
		}
		cancel()
		w.wire.Refuse(false)
	})
}

// Close during a chain of hand-offs: the lock is free, and each waiter gets ErrClosed.
func TestHandover_close(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		waiter := w.waiting(w.a, w.Context())
		losses := make(chan error)
		for range 3 {
			go func() {
				_, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, "orders", nil))
				losses <- err
			}()
		}
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(waiter)
		if err := w.a.Close(w.Context()); err != nil {
			w.Error(err)
		}
		for range 3 {
			if err := <-losses; !errors.Is(err, lock.ErrClosed) {
				w.Errorf("a waiter: %v", err)
			}
		}
		if !errors.Is(h.Err(), lock.ErrClosed) || w.mini.Exists("orders") {
			w.Errorf("the holder: %v; the key is there: %v", h.Err(), w.mini.Exists("orders"))
		}
	})
}

// A waiter gives up while a release that names it as next owner is in flight. The lock does not stay with it.
func TestHandover_nextOwnerGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		waiter := w.waiting(w.a, ctx)
		time.Sleep(2 * lockstate.MaxHandOffTime) // too long for a hand-off
		release := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldRequest: release}))
		unlocked := make(chan struct{})
		go func() { w.unlock(h); close(unlocked) }()
		synctest.Wait()
		cancel()
		<-waiter
		time.Sleep(opTime / 2) // the command that removes its queue position was sent, and may arrive first
		close(release)
		<-unlocked
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		if w.mini.Exists("orders") {
			w.Errorf("it is not free: %v", w.mini.HGet("orders", luascripts.QueueField))
		}
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

// waitsOn fails the test if the waiter already has the lock.
func (w *world) waitsOn(holds <-chan lock.Hold) {
	w.Helper()
	synctest.Wait()
	select {
	case h := <-holds:
		w.Errorf("a waiter has the lock, too: %v", h.Owner())
	default:
	}
}

// A holder of this process has lost the lock without detecting it, and the next in the queue has acquired it. Releasing
// the first hold does not hand off the lock again.
func TestGuard_lostHoldIsNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		waiters := []<-chan lock.Hold{w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context())}
		time.Sleep(pollTime - lockstate.MaxHandOffTime/5) // just before the first in the queue polls
		w.unlock(h)
		lost := w.next(waiters[0]) // by the release; it may hand off the lock for lockstate.MaxHandOffTime
		w.mini.Del("orders")       // publishes no message
		time.Sleep(lockstate.MaxHandOffTime / 2)
		h = w.next(waiters[1])
		if err := lost.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lost hold: %v", err)
		}
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

// failOnce is the plain kind whose first request fails without a reply; execute makes the server execute it.
func (w *world) failOnce() (k *Kind, execute func()) {
	var requests atomic.Int32
	k = gated(func(acquire acquireFunc) acquireFunc {
		return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			if requests.Add(1) > 1 {
				return acquire(ctx, rdb, k, q)
			}
			execute = func() {
				w.Helper()
				if a, err := luascripts.AcquireReentrant(w.Context(), w.rdb, k, q); err != nil || a.Verdict != luascripts.Done {
					w.Fatalf("%+v, %v", a, err)
				}
			}
			return luascripts.Acquired{}, io.EOF
		}
	}, nil)
	return k, func() { w.Helper(); execute() }
}

// The first request fails without a reply, and the second is granted. The server executes the first one after every
// hold is released. The lock is free again soon, even if another caller of the process waited for it in between.
func TestGuard_requestExecutedLate(t *testing.T) {
	for _, more := range []string{"no waiter", "a waiter"} {
		t.Run(more, func(t *testing.T) {
			inBubble(t, func(w *world) {
				k, execute := w.failOnce()
				h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
				if err != nil {
					w.Fatal(err)
				}
				if more == "a waiter" {
					next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
					time.Sleep(time.Millisecond)
					w.unlock(h)
					h = w.next(next)
				}
				w.unlock(h)
				execute()
				time.Sleep(opTime + time.Millisecond)
				if w.mini.Exists("orders") {
					w.Errorf("the lock is held for another %v, without a holder", w.mini.TTL("orders"))
				}
			})
		})
	}
}

// An outer hold requested a long lease and is released first. The lock is not handed off with that lease: if the next
// holder dies, its own lease must apply.
func TestGuard_longLeaseIsNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Hour))
		inner := w.lock(w.a, outer.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond)
		w.unlock(outer)
		w.unlock(inner)
		h := w.next(next)
		if left := w.mini.TTL("orders"); left > leaseTime {
			w.Errorf("the TTL of the next holder's key is %v", left)
		}
		w.unlock(h)
	})
}

// A waiter with its own lease continues the request of a waiter that left. The hold has the lease and the waiting time
// of the continuing waiter.
func TestGuard_leaseOfTheSendingWaiter(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		time.Sleep(pollTime / 2)
		var waited time.Duration
		w.observer().Acquired = func(_ context.Context, e lock.Event) { waited = e.Took }
		fixed := w.waiting(w.a, w.Context(), lock.WithFixedLease(7*time.Second))
		cancel()
		<-gone
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
		waiters := []<-chan lock.Hold{w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context())}
		time.Sleep(2 * lockstate.MaxHandOffTime)
		sent := w.scripts()
		for _, waiter := range waiters {
			w.unlock(h)
			h = w.next(waiter)
			time.Sleep(time.Millisecond)
		}
		if n := sent.Load(); n != 1 {
			w.Errorf("%d scripts were sent, want the release alone", n)
		}
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
		if n := sent.Load(); n != 0 {
			w.Errorf("%d scripts within a poll interval", n)
		}
		time.Sleep(pollTime) // the next waiter has sent its request, and the lease was renewed
		w.unlock(h)
		h = w.next(waiters[2])
		time.Sleep(pollTime * 3 / 2) // here, too
		w.mini.Del("orders")         // publishes no message
		time.Sleep(pollTime)
		next := w.next(waiters[3])
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lost hold: %v", err)
		}
		w.unlock(next)
	})
}

// A lock with a fixed lease is not handed off, because the next waiter needs a renewed lease.
func TestGuard_fixedLeaseIsNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithFixedLease(7*time.Second))
		next := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		time.Sleep(3 * leaseTime)
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// The lease of a short-lived lock is almost over when the reply arrives. The lock is released and not handed off, so
// that the next holder has a full lease.
func TestGuard_expiringLeaseIsNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		short := testConfig()
		short.Lease = opTime
		s := New(w.mini.Client(w.T, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }), short)
		w.unlock(w.lock(s, w.Context())) // loads the script
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: opTime * 8 / 10}))
		k := gated(nil, nil)
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			time.Sleep(opTime / 10) // a renewal takes a while
			return luascripts.RenewReentrant(ctx, rdb, batch, lease, perCall)
		}
		first := w.waitingFor(s, w.Context(), s.NewSpec(k, "orders", nil))
		next := w.waitingFor(s, w.Context(), s.NewSpec(k, "orders", nil))
		h := <-first
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		if left := time.Until(h.Until()); left < opTime/3 {
			w.Errorf("the next has it for %v", left)
		}
		w.unlock(h)
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A release of one of two holds is not confirmed. The lock is not handed off with a count that may be wrong.
func TestGuard_uncertainCountIsNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		k := gated(nil, nil)
		k.Release = func(context.Context, rueidis.Client, luascripts.Keys, string, int) (luascripts.Verdict, error) {
			return 0, &luascripts.ReplyError{Script: "a garbled reply"}
		}
		h := w.take(w.a, k, w.Context())
		again := w.take(w.a, k, h.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(time.Millisecond)
		if err := again.Unlock(w.Context()); err == nil {
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
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				mu.Lock()
				first := before.IsZero()
				requests, before = append(requests, time.Since(before)), time.Now()
				again = append(again, q.RetryAfter)
				mu.Unlock()
				a, err := acquire(ctx, rdb, k, q)
				a.NoPubSub = a.Verdict == luascripts.Held && (noPubSub.Load() || first) // the first waiter is not subscribed yet
				return a, err
			}
		}, nil)
		h := w.lock(w.b, w.Context())
		waiter := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
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
	for _, before := range []string{"nothing", "a reentry"} {
		t.Run(before+" broke off", func(t *testing.T) {
			inBubble(t, func(w *world) {
				var handedOff atomic.Int32
				k := gated(func(acquire acquireFunc) acquireFunc {
					return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
						if q.Want > 1 {
							return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
						}
						return acquire(ctx, rdb, k, q)
					}
				}, func(handOff handOffFunc) handOffFunc {
					return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
						if handedOff.Add(1) == 1 {
							return luascripts.Released{}, &luascripts.ReplyError{Script: "a garbled reply"}
						}
						return handOff(ctx, rdb, k, owner, p)
					}
				})
				spec := w.a.NewSpec(k, "orders", nil)
				h := w.take(w.a, k, w.Context())
				if before == "a reentry" {
					if _, err := w.a.Lock(h.Context(), spec); err == nil {
						w.Error("the reentry did not break off")
					}
				}
				next := w.waitingFor(w.a, w.Context(), spec)
				time.Sleep(2 * lockstate.MaxHandOffTime)
				start := time.Now()
				if err := h.Unlock(w.Context()); err == nil {
					w.Error("the server did not confirm")
				}
				h = <-next
				if took := time.Since(start); took > pollTime {
					w.Errorf("the next has it after %v", took)
				}
				w.unlock(h)
			})
		})
	}
}

// The holder has no fencing, and the next owner in its process has. The next owner's token comes from the counter,
// which the release increases by the maximum number of hand-offs.
func TestGuard_tokenCounterOfTheNextOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		const tokenCounter = "redisson_lock_token:{orders}"
		if err := w.mini.Set(tokenCounter, "4000000000000000"); err != nil {
			w.Fatal(err)
		}
		w.unlock(w.lock(w.a, w.Context())) // loads the scripts
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.a, w.Context(), lock.WithFencing())
		time.Sleep(2 * lockstate.MaxHandOffTime)
		sent := w.scripts()
		w.unlock(h)
		h = w.next(next)
		if n := sent.Load(); h.Token() != 4000000000000001 || n != 1 {
			w.Errorf("token %d, by %d scripts", h.Token(), n)
		}
		raised, err := w.mini.Get(tokenCounter)
		if latest, _ := strconv.ParseUint(raised, 10, 64); err != nil || latest < h.Token()+lockstate.MaxHandOffs {
			w.Errorf("the token counter is at %s, %v", raised, err)
		}
		w.unlock(h)
		w.mini.Del(tokenCounter) // it is kept by design
	})
}

// withNextOwnerInFlight makes a waiter of this process send a request while a release grants the lock to it. The request
// waits for go. Another waiter is queued behind it.
func (w *world) withNextOwnerInFlight(ctx context.Context) (first, next <-chan lock.Hold, goes chan struct{}) {
	w.Helper()
	goes = make(chan struct{})
	var requests atomic.Int32
	k := gated(func(acquire acquireFunc) acquireFunc {
		return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			if requests.Add(1) == 2 {
				<-goes
			}
			return acquire(ctx, rdb, k, q)
		}
	}, nil)
	h := w.take(w.a, k, w.Context())
	first = w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
	next = w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
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

// A release gets its reply after its caller has left. An earlier request for the same hold failed without a reply, and
// is executed now: the lock is free again soon.
func TestGuard_requestExecutedAfterALateReply(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		k, execute := w.failOnce()
		k.HandOff = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
			reply, err := luascripts.HandOffReentrant(ctx, rdb, k, owner, p)
			<-late
			return reply, err
		}
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if err := h.Unlock(ctx); err == nil {
			w.Error("the server did not reply")
		}
		close(late)
		synctest.Wait()
		execute()
		time.Sleep(opTime + time.Millisecond)
		if w.mini.Exists("orders") {
			w.Errorf("the lock is held for another %v, without a holder", w.mini.TTL("orders"))
		}
	})
}

// The next waiter requires the confirmation of replicas. The lock is not handed off to it, because no replica has
// confirmed.
func TestGuard_notHandedOffToAWaiterWithReplicas(t *testing.T) {
	inBubble(t, func(w *world) {
		var confirmed atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				n := q.Replicas
				q.Replicas = 0 // the in-memory server has none
				a, err := acquire(ctx, rdb, k, q)
				if a.Confirmed = n; a.Verdict == luascripts.Done && n > 0 {
					confirmed.Add(1)
				}
				return a, err
			}
		}, nil)
		h := w.take(w.a, k, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithReplicas(1, time.Millisecond)}))
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
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				a, err := acquire(ctx, rdb, k, q)
				switch {
				case q.Want > 1 && breaks.CompareAndSwap(true, false):
					return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
				case q.Want == 1 && requests.Add(1) == 2:
					<-late
				}
				return a, err
			}
		}, nil)
		spec := w.a.NewSpec(k, "orders", nil)
		h := w.take(w.a, k, w.Context())
		waiters := []<-chan lock.Hold{w.waitingFor(w.a, w.Context(), spec), w.waitingFor(w.a, w.Context(), spec)}
		time.Sleep(pollTime - lockstate.MaxHandOffTime/5) // just before the first in the queue polls
		w.unlock(h)
		h = w.next(waiters[0])
		breaks.Store(true)
		if _, err := w.a.Lock(h.Context(), spec); err == nil {
			w.Fatal("the reentry did not break off")
		}
		w.unlock(w.take(w.a, k, h.Context())) // resolves the count
		time.Sleep(lockstate.MaxHandOffTime / 2)
		w.unlock(h) // hands off the lock
		owner := h.Owner()
		time.Sleep(opTime + 10*time.Millisecond) // the reentry is reconciled again
		if w.mini.HGet("orders", owner) != "1" {
			w.Error("the lock was released")
		}
		close(late)
		h = w.next(waiters[1])
		w.ours(h)
		w.unlock(h)
	})
}

// A grant that too few replicas confirmed is released. The next waiter of the queue uses another owner string, because
// a duplicate of the release may arrive late.
func TestGuard_newOwnerStringAfterAnUnconfirmedGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		goes, requests := make(chan struct{}), make(chan string, 10)
		k := *hookable()
		k.Acquire = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			requests <- q.Owner
			if q.Replicas == 0 {
				return luascripts.AcquireReentrant(ctx, rdb, keys, q)
			}
			<-goes
			q.Replicas, q.ReplicaTimeout = 0, 0 // nothing confirms it
			return luascripts.AcquireReentrant(ctx, rdb, keys, q)
		}
		failed := make(chan error)
		go func() {
			_, err := w.a.Lock(w.Context(), w.a.NewSpec(&k, "orders", []lock.Option{lock.WithReplicas(1, time.Second)}))
			failed <- err
		}()
		synctest.Wait()
		next := w.goLockKind(w.a, &k, w.Context())
		close(goes)
		if err := <-failed; !errors.Is(err, lock.ErrReplicas) {
			t.Error(err)
		}
		h := <-next
		if first := <-requests; h.Owner() == first {
			t.Error("the next waiter has the lock under the released owner string")
		}
		w.unlock(h)
	})
}

// Each test here fails without one guard of what follows from the reply to a release, or from a missing reply.

// withoutPubSub makes session a receive no messages.
func (w *world) withoutPubSub() {
	w.wire.OnRequest(func(req [][]byte) redistest.Action {
		return redistest.Action{DropRequest: string(req[0]) == "SUBSCRIBE"}
	})
}

// The reply to a release says that the lock was released for others. The next waiter in this process receives no
// messages. It sends its request after the others had their time, and not later.
func TestGuard_replySaysYield(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub()
		var handedOff atomic.Int32
		k := gated(nil, func(handOff handOffFunc) handOffFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
				first := handedOff.Add(1) == 1
				if first {
					p.NextOwner = ""
				}
				reply, err := handOff(ctx, rdb, k, owner, p)
				reply.Aside = first
				return reply, err
			}
		})
		h := w.take(w.a, k, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(2 * lockstate.MaxHandOffTime)
		start := time.Now()
		w.unlock(h)
		h = <-next
		if took := time.Since(start); took != asideTime {
			w.Errorf("the next waiter sent a request after %v, want %v", took, asideTime)
		}
		w.unlock(h)
	})
}

// A release grants the lock to another process. The next waiter in this process retries when its subscription is
// confirmed, and not before. If it is already subscribed, it does not retry.
func TestGuard_retriesWhenSubscribed(t *testing.T) {
	for name, want := range map[string]int64{"not yet": 2, "already": 1} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.lock(w.b, w.Context())
				if name == "already" {
					next := w.waiting(w.a, w.Context())
					w.unlock(h)
					w.unlock(w.next(next)) // and it stays subscribed for a while
				} else {
					w.unlock(h)
					w.unlock(w.lock(w.a, w.Context())) // loads the scripts
				}
				h = w.lock(w.a, w.Context())
				there := w.waiting(w.b, w.Context())
				here := w.waiting(w.a, w.Context())
				time.Sleep(2 * lockstate.MaxHandOffTime)
				sent := w.scripts()
				w.unlock(h)
				h = w.next(there)
				if n := sent.Load(); n != want {
					w.Errorf("%d scripts for a release, want %d", n, want)
				}
				w.unlock(h)
				w.unlock(w.next(here))
			})
		})
	}
}

// The next waiter in the process retries a poll interval after its first request. A release finds that the lock is
// gone: the waiter acquires it immediately.
func TestGuard_releaseFindsTheLockGone(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(pollTime * 3 / 2)
		w.mini.Del("orders") // publishes no message
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lost hold: %v", err)
		}
		w.unlock(w.next(next))
	})
}

// A release fails without a reply and is executed late. The next owner that it names gives up before or after that
// failure. The lock does not stay with that owner for an offer.
func TestGuard_nextOwnerOfALateRelease(t *testing.T) {
	for _, gone := range []string{"before", "after"} {
		t.Run(gone, func(t *testing.T) {
			inBubble(t, func(w *world) {
				breaks, reconciles := make(chan struct{}), make(chan struct{})
				var handedOff atomic.Int32
				var execute func()
				var holder string
				k := gated(nil, func(handOff handOffFunc) handOffFunc {
					return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
						switch n := handedOff.Add(1); {
						case n == 1:
							execute = func() {
								if reply, err := handOff(w.Context(), w.rdb, k, owner, p); err != nil || reply.Token == 0 {
									w.Errorf("%+v, %v", reply, err)
								}
							}
							<-breaks
							return luascripts.Released{}, &luascripts.ReplyError{Script: "a garbled reply"}
						case owner == holder:
							<-reconciles // reconciling the release is late, too
						}
						return handOff(ctx, rdb, k, owner, p)
					}
				})
				h := w.take(w.a, k, w.Context())
				holder = h.Owner()
				ctx, cancel := context.WithCancel(w.Context())
				nextOwner := w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
				time.Sleep(2 * lockstate.MaxHandOffTime)
				unlocked := make(chan error, 1)
				go func() { unlocked <- h.Unlock(w.Context()) }()
				synctest.Wait()
				leave := func() { cancel(); <-nextOwner; synctest.Wait() }
				if gone == "before" {
					leave()
				}
				close(breaks)
				if err := <-unlocked; err == nil {
					w.Error("the server did not confirm")
				}
				synctest.Wait()
				if gone == "after" {
					leave()
				}
				time.Sleep(opTime - time.Millisecond)
				execute()
				time.Sleep(2 * time.Millisecond)
				if w.mini.Exists("orders") {
					w.Errorf("the lock is held for another %v, without a holder", w.mini.TTL("orders"))
				}
				close(reconciles)
			})
		})
	}
}

// A request is executed but gets no reply. Its caller gives up before the retry: nothing is left in Redis.
func TestGuard_lostReplyAndTheCallerGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		var requests atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				a, err := acquire(ctx, rdb, k, q)
				if requests.Add(1) == 1 {
					return luascripts.Acquired{}, io.EOF
				}
				return a, err
			}
		}, nil)
		ctx, cancel := context.WithTimeout(w.Context(), time.Millisecond) // the pause is longer
		defer cancel()
		<-w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
		synctest.Wait()
		if n := requests.Load(); n != 1 || w.mini.Exists("orders") {
			w.Errorf("got %d requests; the lock is held for %v more, without a holder", n, w.mini.TTL("orders"))
		}
	})
}

// A caller gives up while its request has no reply. The request is reconciled after the reply, and no command is sent
// before.
func TestGuard_requestIsReconciledOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		k := delayNthRequest(1, true, goes)
		never := make(chan struct{})
		sent := kindWithSlowRelease(k, 0, never)
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
		cancel()
		<-gone
		synctest.Wait()
		if n := sent.Load(); n != 0 {
			w.Errorf("got %d releases before the request was executed", n)
		}
		close(goes)
		synctest.Wait()
		if n := sent.Load(); n != 1 || w.mini.Exists("orders") {
			w.Errorf("got %d releases of an unclaimed grant; the lock is held for another %v", n, w.mini.TTL("orders"))
		}
	})
}

// A release grants the lock to another process, and queues this one for a waiter that has never sent a request. This
// process is disconnected, and the waiter gives up. The queue position is removed when the server is reachable again,
// even if that takes longer than a command.
func TestReconcile_queuePositionByARelease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		us, _, _ := strings.Cut(h.Owner(), ":")
		w.withoutPubSub()
		there := w.waiting(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		here := w.waiting(w.a, ctx)
		time.Sleep(2 * lockstate.MaxHandOffTime)
		w.unlock(h)
		h = w.next(there)
		if queue := w.mini.HGet("orders", "leasehold_line"); !strings.Contains(queue, us) {
			w.Errorf("it is not in the queue: %q", queue)
		}
		time.AfterFunc(time.Millisecond, cancel)
		w.disconnected((queueTTLPolls - 1) * pollTime)
		<-here
		time.Sleep(pollTime + pollTime/2)
		if queue := w.mini.HGet("orders", "leasehold_line"); strings.Contains(queue, us) {
			w.Errorf("it is still in the queue: %q", queue)
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
		k := gated(nil, nil)
		kindWithSlowRelease(k, 2, reply)
		spec := w.a.NewSpec(k, "orders", nil)
		h := w.lock(w.b, w.Context())
		here := w.waitingFor(w.a, w.Context(), spec)
		w.unlock(h)
		w.unlock(w.next(here)) // it stays subscribed for a while
		h = w.take(w.a, k, w.Context())
		there := w.waiting(w.b, w.Context())
		here = w.waitingFor(w.a, w.Context(), spec)
		time.Sleep(2 * lockstate.MaxHandOffTime)
		unlocked := make(chan struct{})
		go func() { w.unlock(h); close(unlocked) }()
		w.unlock(<-there)
		synctest.Wait()
		start := time.Now()
		close(reply)
		<-unlocked
		h = <-here
		if took := time.Since(start); took != 0 {
			w.Errorf("it has the lock after %v", took)
		}
		w.unlock(h)
	})
}

// A release is executed but gets no reply. The next waiter in this process, which receives no messages and retries once
// per poll interval, acquires the lock immediately.
func TestGuard_releaseWithoutAReplyWakesTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub()
		var handedOff atomic.Int32
		k := gated(nil, func(handOff handOffFunc) handOffFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
				first := handedOff.Add(1) == 1
				reply, err := handOff(ctx, rdb, k, owner, p)
				if first {
					return luascripts.Released{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return reply, err
			}
		})
		h := w.take(w.a, k, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(pollTime * 3 / 2)
		start := time.Now()
		if err := h.Unlock(w.Context()); err == nil {
			w.Error("the server did not confirm")
		}
		h = <-next
		if took := time.Since(start); took != 0 {
			w.Errorf("the next has it after %v", took)
		}
		w.unlock(h)
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
				w.rdb.Do(ctx, w.rdb.B().Publish().Channel("leasehold_channel:{orders}").Message(luascripts.Aside).Build())
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
		const channel, outsider = "redisson_lock__channel:{orders}", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1"
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		published := make(chan struct{}, 1)
		wg.Go(func() {
			_ = w.rdb.Receive(ctx, w.rdb.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {
				select {
				case published <- struct{}{}:
				default:
				}
			})
		})
		synctest.Wait()
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
			if w.mini.Exists("orders") {
				continue
			}
			w.mini.HSet("orders", outsider, "1")
			got++
			time.Sleep(time.Millisecond)
			w.mini.Del("orders")
			w.rdb.Do(ctx, w.rdb.B().Publish().Channel(channel).Message("0").Build())
			<-published // that
		}
		cancel()
		wg.Wait()
		if got < tries {
			w.Errorf("a client outside the queue acquired the lock %d times of %d releases", got, tries)
		}
	})
}

type (
	acquireFunc = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error)
	handOffFunc = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error)
)

// gated is the plain kind with replies that a test can delay individually, like commands of one owner on several
// connections.
func gated(acquire func(acquireFunc) acquireFunc, handOff func(handOffFunc) handOffFunc) *Kind {
	k := *hookable()
	if acquire != nil {
		k.Acquire = acquire(k.Acquire)
	}
	if handOff != nil {
		k.HandOff = handOff(k.HandOff)
	}
	return &k
}

// goLock locks in a separate goroutine.
func (w *world) goLock(s *Session, k *Kind, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	w.Helper()
	return w.waitingFor(s, ctx, s.NewSpec(k, "orders", opts))
}

// ours fails the test unless Redis has exactly one hold for the owner of h.
func (w *world) ours(h lock.Hold) {
	w.Helper()
	synctest.Wait()
	if w.count(h) != 1 || h.Err() != nil {
		w.Errorf("Redis has %d holds of the owner; the hold: %v", w.count(h), h.Err())
	}
	if other, err := w.b.TryLock(w.Context(), w.b.NewSpec(plain, "orders", nil)); err == nil {
		w.Errorf("another has it too: %v", other.Unlock(w.Context()))
	}
}

// A reply arrives after the lock has been handed off under the same owner string: reconciling it must not release the
// lock of the next holder.
func TestHandOff_withARequestInFlight(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		var requests atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				first := requests.Add(1) == 1
				a, err := acquire(ctx, rdb, k, q)
				if first {
					<-late
				}
				return a, err
			}
		}, nil)
		got := w.goLock(w.a, k, w.Context())
		time.Sleep(opTime / 2)
		next := w.goLock(w.a, k, w.Context())
		h := <-got
		time.Sleep(time.Millisecond)
		w.unlock(h)
		after := <-next
		close(late)
		w.ours(after)
		time.Sleep(3 * opTime)
		w.ours(after)
		w.unlock(after)
	})
}

// A reentry has an unknown outcome and is reconciled twice; the second time is after the lock has been handed off.
func TestHandOff_whileAReentryIsReconciled(t *testing.T) {
	inBubble(t, func(w *world) {
		var breaks atomic.Bool
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				a, err := acquire(ctx, rdb, k, q)
				if q.Want == 2 && breaks.CompareAndSwap(true, false) {
					return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return a, err
			}
		}, nil)
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		next := w.goLock(w.a, k, w.Context())
		synctest.Wait()
		breaks.Store(true)
		if _, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil)); err == nil {
			w.Fatal("the reentry did not break off")
		}
		again, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(again)
		time.Sleep(time.Millisecond)
		w.unlock(h)
		after := <-next
		time.Sleep(3 * opTime)
		w.ours(after)
		w.unlock(after)
	})
}

// The next owner of a release sends a request, is granted the lock, and hands it off before the release gets its reply.
func TestHandOff_beforeTheReplyToTheRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		var handedOff atomic.Int32
		k := gated(nil, func(handOff handOffFunc) handOffFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
				first := handedOff.Add(1) == 1
				reply, err := handOff(ctx, rdb, k, owner, p)
				if first {
					<-late
				}
				return reply, err
			}
		})
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // too long for a hand-off
		second := w.goLock(w.a, k, w.Context())
		synctest.Wait()
		third := w.goLock(w.a, k, w.Context())
		synctest.Wait()
		go w.unlock(h)
		nextOwner := <-second // it has sent its request
		time.Sleep(time.Millisecond)
		w.unlock(nextOwner)
		after := <-third
		close(late)
		w.ours(after)
		time.Sleep(3 * opTime)
		w.ours(after)
		w.unlock(after)
	})
}

// errOnly is a context whose cancellation is visible only through Err.
type errOnly struct {
	context.Context
	canceled atomic.Bool
}

func (c *errOnly) Done() <-chan struct{} { return nil }

func (c *errOnly) Err() error {
	if c.canceled.Load() {
		return context.Canceled
	}
	return nil
}

// A fenced lock is handed off to a waiter that leaves before the lock arrives. The session reconciles it, so a release
// in the background grants the lock to the next process. That process may hand it off as often as any other holder.
func TestReconcile_leavesTokensForTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		fenced := lock.WithFencing()
		h := w.lock(w.a, w.Context(), fenced)
		next := w.goLock(w.b, plain, w.Context(), fenced)
		synctest.Wait()
		h.Unlock(w.Context())
		h = <-next
		far := w.goLock(w.a, plain, w.Context(), fenced)
		synctest.Wait()
		ctx := &errOnly{Context: w.Context()}
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = w.b.Lock(ctx, w.b.NewSpec(plain, "orders", []lock.Option{fenced}))
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		ctx.canceled.Store(true)
		w.unlock(h)
		<-left
		after := <-far
		tokenCounter, err := w.mini.Get("redisson_lock_token:{orders}")
		if latest, _ := strconv.ParseUint(tokenCounter, 10, 64); err != nil || latest < after.Token()+lockstate.MaxHandOffs {
			w.Errorf("the token counter is at %s, and the holder's token is %d", tokenCounter, after.Token())
		}
		w.unlock(after)
		w.mini.Del("redisson_lock_token:{orders}")
	})
}

// Each test here fails without one guard of the hand-off, when a release crosses a request, another grant or Close.

// delayNthRequest is the plain kind. The nth request for "orders" waits until goes is closed, either before it is sent or
// before its reply.
func delayNthRequest(nth int32, before bool, goes <-chan struct{}) *Kind {
	var requests atomic.Int32
	return gated(func(acquire acquireFunc) acquireFunc {
		return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			waits := k.Lock == "orders" && requests.Add(1) == nth
			if waits && before {
				<-goes
			}
			a, err := acquire(ctx, rdb, k, q)
			if waits && !before {
				<-goes
			}
			return a, err
		}
	}, nil)
}

// tryElsewhere fails the test if session b cannot acquire the lock now.
func (w *world) tryElsewhere() {
	w.Helper()
	h, err := w.b.TryLock(w.Context(), w.b.NewSpec(plain, "orders", nil))
	if err != nil {
		w.Errorf("another process does not get it: %v", err)
		return
	}
	w.unlock(h)
}

// errHook is a context. The first call of Err runs f.
type errHook struct {
	context.Context
	once sync.Once
	f    func()
}

func (c *errHook) Err() error {
	c.once.Do(c.f)
	return c.Context.Err()
}

// Close begins while a holder releases the lock. The next waiter in the process has a request in flight, so it is still
// queued. The lock is not handed off to it: it is free for others.
func TestGuard_notHandedOffDuringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		const many = 1000 // Close releases a limited number at a time, so it reaches this lock late
		reply, released := make(chan struct{}), make(chan struct{})
		k := delayNthRequest(2, true, reply)
		k.HandOff = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
			if k.Lock != "orders" {
				<-released
			}
			return luascripts.HandOffReentrant(ctx, rdb, k, owner, p)
		}
		for i := range many {
			if _, err := w.a.Lock(w.Context(), w.a.NewSpec(k, fmt.Sprint("x", i), nil)); err != nil {
				w.Fatal(err)
			}
		}
		left := make(chan error, 1)
		h := w.take(w.a, k, w.Context())
		first := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		go func() {
			_, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
			left <- err
		}()
		time.Sleep(pollTime - lockstate.MaxHandOffTime/5) // just before the first in the queue polls
		w.unlock(h)
		h = w.next(first)
		time.Sleep(lockstate.MaxHandOffTime / 2)
		closed := make(chan error, 1)
		ctx := &errHook{Context: w.Context(), f: func() {
			go func() { closed <- w.a.Close(context.Background()) }()
			synctest.Wait()
		}}
		if err := h.Unlock(ctx); err != nil {
			w.Error(err)
		}
		w.tryElsewhere()
		close(reply)
		if err := <-left; !errors.Is(err, lock.ErrClosed) {
			w.Errorf("the waiter: %v", err)
		}
		close(released)
		if err := <-closed; err != nil {
			w.Error(err)
		}
	})
}

// Close releases the lock. The next waiter in the process has a request in flight, so it is still queued. The release
// does not name it: the lock is free for others.
func TestGuard_closeNamesNoNextOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		reply := make(chan struct{})
		k := delayNthRequest(2, true, reply)
		w.take(w.a, k, w.Context())
		left := make(chan error, 1)
		go func() {
			_, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
			left <- err
		}()
		time.Sleep(pollTime + time.Millisecond) // it polls
		closed := make(chan error, 1)
		go func() { closed <- w.a.Close(context.Background()) }()
		synctest.Wait()
		w.tryElsewhere()
		close(reply)
		if err := <-left; !errors.Is(err, lock.ErrClosed) {
			w.Errorf("the waiter: %v", err)
		}
		if err := <-closed; err != nil {
			w.Error(err)
		}
	})
}

// The reply to a release is lost, and its repetition finds the lock gone. The lock was released, and not lost.
func TestGuard_repeatedRelease(t *testing.T) {
	for _, ctx := range []context.Context{context.Background(), t.Context()} {
		t.Run(fmt.Sprintf("can be canceled %v", ctx.Done() != nil), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.unlock(w.lock(w.a, w.Context())) // loads the scripts
				var lost, released atomic.Int32
				w.observer().Lost = func(context.Context, lock.Event) { lost.Add(1) }
				w.observer().Released = func(context.Context, lock.Event) { released.Add(1) }
				h := w.lock(w.a, w.Context())
				w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
				if ctx.Done() != nil {
					ctx = w.Context()
				}
				if err := h.Unlock(ctx); err != nil {
					w.Error(err)
				}
				if lost.Load() != 0 || released.Load() != 1 {
					w.Errorf("the observer got %d losses and %d releases", lost.Load(), released.Load())
				}
			})
		})
	}
}

// A release waits for a renewal in flight. A reentry with an unknown outcome is reconciled in the meantime, which
// frees the lock. The release finds it gone: it was released, and not lost.
func TestGuard_releaseAfterReconciling(t *testing.T) {
	inBubble(t, func(w *world) {
		const ms = time.Millisecond
		renewal := make(chan struct{})
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				if q.Want > 1 {
					return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return acquire(ctx, rdb, k, q)
			}
		}, nil)
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			<-renewal
			return luascripts.RenewReentrant(ctx, rdb, batch, lease, perCall)
		}
		start := time.Now()
		h := w.take(w.a, k, w.Context())
		const checks = (1 + 2) * opTime // the third command is sent after this time
		time.Sleep(leaseTime/3 + 10*ms - checks)
		if _, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil)); err == nil {
			w.Error("the reentry did not break off")
		}
		time.Sleep(time.Until(start.Add(leaseTime/3 + 5*ms))) // it is being renewed
		unlocked := make(chan error, 1)
		go func() { unlocked <- h.Unlock(w.Context()) }()
		time.Sleep(25 * ms) // and reconciled again: this late if the first command found the turn taken
		synctest.Wait()
		select {
		case err := <-unlocked:
			w.Errorf("the release did not wait for the renewal: %v", err)
		default:
		}
		if w.mini.Exists("orders") {
			w.Error("the request was not reconciled again")
		}
		close(renewal)
		if err := <-unlocked; err != nil {
			w.Error(err)
		}
	})
}

// Each test here fails without one guard of what follows from a loss, from a limit, or from a reply that crosses the
// end of a call.

// A renewal finds that the lock is gone. The next waiter in this process sends a request immediately, whether it has
// sent one before or not.
func TestGuard_lossWakesTheNext(t *testing.T) {
	for name, joins := range map[string]time.Duration{"has sent a request": pollTime / 4, "has sent no request": leaseTime/3 - pollTime/2} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.lock(w.a, w.Context())
				start := time.Now()
				time.Sleep(joins)
				next := w.waiting(w.a, w.Context())
				time.Sleep(leaseTime/3 - pollTime/10 - time.Since(start))
				w.mini.Del("orders") // publishes no message
				got := <-next
				if took := time.Since(start); took != leaseTime/3 {
					w.Errorf("the next has it after %v, and the renewal was after %v", took, leaseTime/3)
				}
				if err := h.Err(); !errors.Is(err, lock.ErrLost) {
					w.Errorf("the hold: %v", err)
				}
				w.unlock(got)
			})
		})
	}
}

// A request fails without a reply, and the next one is granted. The hold is lost, on the server or by its limit, and
// then the server executes the first request: the lock is free again soon.
func TestGuard_requestExecutedAfterALoss(t *testing.T) {
	for name, opts := range map[string][]lock.Option{"gone": nil, "limit": {lock.WithMaxHold(leaseTime / 3)}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				k, execute := w.failOnce()
				h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", opts))
				if err != nil {
					w.Fatal(err)
				}
				if name == "gone" {
					w.mini.Del("orders") // publishes no message
				}
				<-h.Context().Done()
				synctest.Wait()
				execute()
				time.Sleep(opTime + time.Millisecond)
				if w.mini.Exists("orders") {
					w.Errorf("the lock is held for another %v, without a holder", w.mini.TTL("orders"))
				}
			})
		})
	}
}

// A hold ends by its limit. The next waiter in this process acquires the lock immediately, even if it has sent no
// request yet.
func TestGuard_limitWakesTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		const most = 2 * time.Second
		start := time.Now()
		w.lock(w.a, w.Context(), lock.WithMaxHold(most))
		time.Sleep(most - pollTime/2)
		next := w.waiting(w.a, w.Context())
		h := <-next
		if took := time.Since(start); took != most {
			w.Errorf("the next has it after %v, and the limit was %v", took, most)
		}
		w.unlock(h)
	})
}

// A reentry is executed but gets no reply; reconciling it fails. The lock is not handed off with a count that may be
// wrong.
func TestGuard_notHandedOffAfterAReentryWithoutAReply(t *testing.T) {
	inBubble(t, func(w *world) {
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				a, err := acquire(ctx, rdb, k, q)
				if q.Want > 1 {
					return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return a, err
			}
		}, nil)
		k.Release = func(context.Context, rueidis.Client, luascripts.Keys, string, int) (luascripts.Verdict, error) {
			return 0, &luascripts.ReplyError{Script: "a garbled reply"}
		}
		spec := w.a.NewSpec(k, "orders", nil)
		h := w.take(w.a, k, w.Context())
		if _, err := w.a.Lock(h.Context(), spec); err == nil {
			w.Error("the reentry did not break off")
		}
		next := w.waitingFor(w.a, w.Context(), spec)
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		w.ours(h)
		w.unlock(h)
	})
}

// The call ends while the reply to its request arrives. It does not have the lock, and the lock is free.
func TestGuard_replyAtTheEndOfTheWait(t *testing.T) {
	for _, waits := range []bool{true, false} {
		inBubble(t, func(w *world) {
			ctx := &errOnly{Context: w.Context()}
			k := gated(func(acquire acquireFunc) acquireFunc {
				return func(c context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
					a, err := acquire(c, rdb, k, q)
					ctx.canceled.Store(true)
					return a, err
				}
			}, nil)
			try := map[bool]func(context.Context, *Spec) (lock.Hold, error){true: w.a.Lock, false: w.a.TryLock}[waits]
			if h, err := try(ctx, w.a.NewSpec(k, "orders", nil)); h != nil || errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
				w.Errorf("%v, %v", h, err)
			}
			synctest.Wait()
			if w.mini.Exists("orders") {
				w.Errorf("the lock is held for another %v, without a holder", w.mini.TTL("orders"))
			}
		})
	}
}

// The reply to a release grants the lock to a waiter here, after most of the lease of that grant has passed. The
// waiter's own request is in flight, and its reply brings a longer lease. With the rest of the first lease, the waiter
// would lose the lock and retry.
func TestGuard_lateGrantByARelease(t *testing.T) {
	inBubble(t, func(w *world) {
		const offer = offerPolls * pollTime
		w.withoutPubSub()
		goes := make(chan struct{})
		var requests, handedOff atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
				if requests.Add(1) == 2 {
					<-goes
				}
				return acquire(ctx, rdb, k, q)
			}
		}, func(handOff handOffFunc) handOffFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
				first := handedOff.Add(1) == 1
				reply, err := handOff(ctx, rdb, k, owner, p)
				if first {
					time.Sleep(offer * 5 / 6)
				}
				return reply, err
			}
		})
		h := w.take(w.a, k, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(2 * lockstate.MaxHandOffTime)
		start := time.Now()
		w.unlock(h)
		time.Sleep(time.Until(start.Add(offer + pollTime/2)))
		close(goes)
		h = <-next
		if n := requests.Load(); n != 2 {
			w.Errorf("%d requests, want 2", n)
		}
		w.unlock(h)
	})
}

// A message makes a process retry slightly later, and the next one says that it has the lock. It sends its request immediately.
func TestGuard_grantAfterYield(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		next := w.waiting(w.a, w.Context())
		w.rdb.Do(w.Context(), w.rdb.B().Publish().Channel("leasehold_channel:{orders}").Message(luascripts.Aside).Build())
		synctest.Wait()
		w.unlock(h)
		w.unlock(w.next(next))
	})
}
