package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// waiting starts a call for the lock and returns when it waits. The hold, or what it
// failed with, comes later.
func (w *world) waiting(s *Session, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	w.Helper()
	return w.waitingFor(s, ctx, s.NewSpec(plain, "orders", opts))
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

// next is the hold that came to a waiter by now.
func (w *world) next(holds <-chan lock.Hold) lock.Hold {
	w.Helper()
	synctest.Wait()
	select {
	case h := <-holds:
		if h == nil {
			w.Fatal("it gave up")
		}
		return h
	default:
		w.Fatal("it still waits")
		return nil
	}
}

// Inside a process the lock goes on without a command: same owner, same lease, a
// larger token; and the server hears of the end of it.
func TestHandover_insideAProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		var waiters []<-chan lock.Hold
		for range 5 {
			waiters = append(waiters, w.waiting(w.a, w.Context()))
		}
		time.Sleep(time.Millisecond) // the clock of a bubble stands still, and tokens need it to move
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
		// It is renewed, whichever owner has it.
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

// A newcomer does not ask while its own process has the lock, but once a poll
// interval: the process may have lost it without knowing.
func TestHandover_asksInTime(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		sent := w.scripts()
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		if n := sent.Load(); n != 0 {
			w.Errorf("%d questions at once", n)
		}
		w.mini.Del("orders") // publishes nothing
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

// Two processes want it all the time. Each has it for no more than its passes, and
// then it is the other's turn, by one command and the message that it publishes.
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
		const limit = int(place.MaxPassTime/time.Millisecond) + 1
		var lengths []int // of the turns
		for i, s := range turns {
			if i == 0 || s != turns[i-1] {
				lengths = append(lengths, 0)
			}
			lengths[len(lengths)-1]++
		}
		for _, n := range lengths[:len(lengths)-1] { // at the end one may be left
			if n > limit {
				w.Errorf("%d in a row, want %d at the most", n, limit)
			}
		}
		// Session a asks at the start and when it listens, asks at the begin and releases at
		// the end of each of its turns, and at the end of the test again for each waiter that
		// has no next one.
		if n, most := int(sent.Load()), len(lengths)+7; n > most {
			w.Errorf("a sent %d scripts for %d turns, want %d at the most", n, len(lengths), most)
		}
	})
}

// A client that cannot stand in line listens, and takes a while to wake. It still gets the
// lock, again and again, and the waiters of the session wait only while it has the lock.
func TestHandover_othersFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		const channel = "redisson_lock__channel:{orders}"
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		heard := make(chan struct{}, 1)
		wg.Go(func() {
			_ = w.rdb.Receive(ctx, w.rdb.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {
				select {
				case heard <- struct{}{}:
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
			<-heard
			time.Sleep(asideTime / 2)
			if w.mini.Exists("orders") {
				w.Fatalf("round %d: the waiters of the session were faster", round)
			}
			w.mini.HSet("orders", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1")
			time.Sleep(time.Millisecond)
			w.mini.Del("orders")
			w.rdb.Do(ctx, w.rdb.B().Publish().Channel(channel).Message("0").Build())
			<-heard // that
		}
		// Four grants between processes, each of them for place.MaxPassTime and a section more.
		if took, most := time.Since(start), rounds*(5*(place.MaxPassTime+time.Millisecond)+asideTime); took > most {
			w.Errorf("%d rounds took %v, want %v at the most", rounds, took, most)
		}
		cancel()
		wg.Wait()
		if ours < rounds {
			w.Errorf("the session had the lock %d times in %d rounds", ours, rounds)
		}
	})
}

// A session does not take an idle process, which still listens as it waited a moment ago,
// for a client that cannot stand in line.
func TestHandover_idleProcesses(t *testing.T) {
	inBubble(t, func(w *world) {
		c := New(w.mini.Client(w.T), testConfig())
		h := w.lock(w.a, w.Context())
		waiter := w.waiting(c, w.Context())
		w.unlock(h)
		w.unlock(w.next(waiter)) // and listens on
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
			w.Errorf("the hand-over took %v, want %v: the lock was let go, and no client took it", took, want)
		}
		if err := c.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A process is heard of in line, and dead when its turn comes. That costs the
// others an offer and no more.
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
			w.Errorf("a message of %v ago gave it the lock: %v", time.Since(start), h.Err())
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

// Where the server cannot count listeners, a process that is long dead costs nothing: the session
// forgets its place in line.
func TestHandover_pastTheLongDead(t *testing.T) {
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
		time.Sleep((patiencePolls + 1) * pollTime)
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

// The message after a grant is lost. The next question finds the lock granted.
func TestHandover_lostMessage(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		note := "leasehold_channel:{orders}:" + w.a.id
		other, _ := w.a.hub.Subscribe(note, func(string) {}, func() {}) // so that the process counts as listening
		defer other.Close()
		spec := w.a.NewSpec(plain, "orders", nil)
		earsOf(w.a.find(spec.id()).place.Line(&spec.terms)).own.Close()
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

// A message grants nothing, whatever it says: it is a reason to ask.
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

// A lock that comes to a process in line has a full lease, which counts from the question
// that finds it granted.
func TestHandover_leaseOfAGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		freed := time.Now()
		w.unlock(h)
		got := w.next(waiter)
		if want := freed.Add(watchdog.Trusted(leaseTime)); !got.Until().Equal(want) {
			w.Errorf("Until is %v after the release, want %v", got.Until().Sub(freed), want.Sub(freed))
		}
		if left := w.mini.TTL("orders"); left != leaseTime {
			w.Errorf("the key lives for %v, want %v", left, leaseTime)
		}
		w.unlock(got)
	})
}

// The lock comes to a process whose waiter does nothing about it, as where an observer
// never returns. It is not renewed: it costs the others an offer.
func TestHandover_notRenewedForNobody(t *testing.T) {
	inBubble(t, func(w *world) {
		stuck := make(chan struct{})
		w.observer().Waiting = func(context.Context, lock.Event) { <-stuck }
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		time.Sleep(pollTime + pollTime/2) // the waiter asked, and tells the observer
		start := time.Now()
		w.unlock(h) // the waiter is its heir
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

// With a lease or replicas of its own, a waiter takes nothing that has other ones.
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
				freed := time.Now()
				w.unlock(h)
				got := w.next(fixed)
				if want := freed.Add(watchdog.Trusted(7 * time.Second)); !got.Until().Equal(want) {
					w.Errorf("Until is %v after the release, want %v", got.Until().Sub(freed), want.Sub(freed))
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

// A first waiter cannot take what comes to the line: a group, or a waiter that gave up at that
// moment. The waiters behind it are not forgotten.
func TestHandover_pastAWaiterThatCannotTakeIt(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		group := make(chan []lock.Hold, 1)
		go func() { group <- w.takeAll(w.a, w.Context(), "orders", "stock") }()
		synctest.Wait()
		last := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		cancel()
		w.unlock(h) // at the same instant
		if h := <-gone; h != nil {
			w.unlock(h)
		}
		for _, h := range <-group {
			w.unlock(h)
		}
		w.unlock(<-last)
	})
}

// The lock is unlocked by force, by this process and by another, in the middle of a chain: its
// holder learns of it, and a waiter goes on.
func TestHandover_byForce(t *testing.T) {
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
					w.Errorf("told after %v: %v", took, h.Err())
				}
				w.unlock(got)
			})
		})
	}
}

// The server is cut off. A chain ends with the lease that it goes on, also when the
// last of it has just begun.
func TestHandover_outlivesNoLease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		until := h.Until()
		ctx, cancel := context.WithCancel(w.Context())
		waiter := w.waiting(w.a, ctx)
		w.wire.Refuse(true)
		w.wire.CutAll()
		time.Sleep(place.MaxPassTime / 2)
		w.unlock(h)
		h = w.next(waiter)
		if !h.Until().Equal(until) {
			w.Errorf("the lease grew by %v", h.Until().Sub(until))
		}
		<-h.Context().Done()
		if late := time.Since(until); late != 0 || !errors.Is(h.Err(), lock.ErrLost) {
			w.Errorf("told %v after the end: %v", late, h.Err())
		}
		cancel()
		w.wire.Refuse(false)
	})
}

// Close in the middle of a chain: the lock is free, and each waiter is told.
func TestHandover_close(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		taken := w.waiting(w.a, w.Context())
		told := make(chan error)
		for range 3 {
			go func() {
				_, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, "orders", nil))
				told <- err
			}()
		}
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(taken)
		if err := w.a.Close(w.Context()); err != nil {
			w.Error(err)
		}
		for range 3 {
			if err := <-told; !errors.Is(err, lock.ErrClosed) {
				w.Errorf("a waiter: %v", err)
			}
		}
		if !errors.Is(h.Err(), lock.ErrClosed) || w.mini.Exists("orders") {
			w.Errorf("the holder: %v; the key is there: %v", h.Err(), w.mini.Exists("orders"))
		}
	})
}

// A waiter gives up while the release that names it as heir is under way. The lock is
// not left with it.
func TestHandover_heirGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		waiter := w.waiting(w.a, ctx)
		time.Sleep(2 * place.MaxPassTime) // too long to be passed on
		release := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldRequest: release}))
		unlocked := make(chan struct{})
		go func() { w.unlock(h); close(unlocked) }()
		synctest.Wait()
		cancel()
		<-waiter
		time.Sleep(opTime / 2) // what takes its place back has been sent, and may come first
		close(release)
		<-unlocked
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		if w.mini.Exists("orders") {
			w.Errorf("it is not free: %v", w.mini.HGet("orders", luascripts.LineField))
		}
	})
}

// Tokens of the register grow in a chain, and after it, while others count on in the register.
func TestHandover_registeredTokens(t *testing.T) {
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
		// The holder does not pass the lock on to a waiter that does not count on the register. The holder
		// releases it: to the other process, which stands in line, and then to that waiter.
		other := w.waiting(w.b, w.Context(), fenced)
		for _, waiter := range []<-chan lock.Hold{other, plainly} {
			time.Sleep(time.Microsecond) // the clock of a bubble stands still, and tokens need it to move
			w.unlock(h)
			h = w.next(waiter)
			if h.Token() <= last {
				w.Errorf("token %d after %d", h.Token(), last)
			}
			last = h.Token()
		}
		w.unlock(h)
		w.mini.Del("redisson_lock_token:{orders}") // is meant to stay
	})
}
