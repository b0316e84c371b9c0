package session

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// What readers of a process share, and what they do not share.

// known loads the scripts of both sides, so that each later request is one command.
func (w *world) known() {
	w.unlock(w.take(w.a, writing, w.Context()))
	w.unlock(w.take(w.a, reading, w.Context()))
}

// goRead returns a channel that receives the hold when s grants the read lock.
func (w *world) goRead(s *Session, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	return w.goLockKind(s, reading, ctx, opts...)
}

// goLockKind is goRead for any kind. The hold is nil after an error.
func (w *world) goLockKind(s *Session, kind *Kind, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	got := make(chan lock.Hold, 1)
	go func() {
		h, err := s.Lock(ctx, s.NewSpec(kind, "orders", opts))
		if err != nil {
			got <- nil
			return
		}
		got <- h
	}()
	synctest.Wait()
	return got
}

// Readers join and leave a reading acquisition without a command; the last one releases the lock, whichever that is.
func TestShare_noCommands(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		n := w.scripts()
		first := w.take(w.a, reading, w.Context())
		holds := []lock.Hold{first}
		for range 30 {
			h := w.take(w.a, reading, w.Context())
			if h.Owner() != first.Owner() || h.Token() != 0 || !h.Until().Equal(first.Until()) {
				t.Fatalf("owner %s, token %d, until %v, want those of the first", h.Owner(), h.Token(), h.Until())
			}
			holds = append(holds, h)
		}
		if c := w.count(first); c != 1 {
			t.Errorf("Redis has %d holds, want one for all", c)
		}
		w.unlock(first)
		if !errors.Is(first.Err(), lock.ErrUnlocked) || !errors.Is(first.Unlock(w.Context()), lock.ErrNotHeld) {
			t.Errorf("the first has left: %v", first.Err())
		}
		for _, h := range holds[1:] {
			if err := h.Err(); err != nil {
				t.Error(err)
			}
			if !w.mini.Exists("orders") {
				t.Fatal("the lock is free, and there are readers")
			}
			w.unlock(h)
		}
		if w.mini.Exists("orders") {
			t.Error("the last has left, and it is not free")
		}
		if got := n.Load(); got != 2 {
			t.Errorf("31 readers sent %d commands, want one request and one release", got)
		}
	})
}

// Many readers request a free lock at the same time. One of them sends a request, and all enter before any of them
// leaves.
func TestShare_oneRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		n := w.scripts()
		w.wire.OnRequest(func([][]byte) redistest.Action { n.Add(1); return redistest.Action{DelayReply: 50 * time.Millisecond} })
		start := time.Now()
		var owners sync.Map
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // even later than lockstate.ShareTime
				lock := w.a.Lock
				if i%2 == 1 {
					lock = w.a.TryLock
				}
				h, err := lock(w.Context(), w.a.NewSpec(reading, "orders", nil))
				if err != nil {
					t.Error(err)
					return
				}
				if took := time.Since(start); took != 50*time.Millisecond {
					t.Errorf("in after %v", took)
				}
				owners.Store(h.Owner(), true)
				w.unlock(h)
			})
		}
		wg.Wait()
		many := 0
		owners.Range(func(any, any) bool { many++; return true })
		if got := n.Load(); got != 2 || many != 1 {
			t.Errorf("30 readers sent %d commands as %d owners", got, many)
		}
	})
}

// Readers of one process come and go without a gap. A writer elsewhere acquires the lock within lockstate.ShareTime and
// the hold time of a reader. A writer of this process does so, too, and before any later reader.
func TestShare_admitsAWriter(t *testing.T) {
	const stay = 5 * time.Millisecond
	writings := 50
	if testing.Short() {
		writings = 12
	}
	for _, from := range []string{"the same process", "another process"} {
		t.Run(from, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.known()
				n := w.scripts()
				s, bound := w.b, lockstate.ShareTime+stay+2*time.Millisecond
				if from == "the same process" {
					s, bound = w.a, stay+time.Millisecond
				}
				var wg sync.WaitGroup
				var pairs, gone atomic.Int64
				done := make(chan struct{})
				for i := range 100 {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * stay / 100)
						for {
							h, err := w.a.Lock(w.Context(), w.a.NewSpec(reading, "orders", nil))
							if err != nil {
								t.Error(err)
								return
							}
							time.Sleep(stay)
							if err := h.Unlock(w.Context()); err != nil {
								t.Error(err)
							}
							pairs.Add(1)
							select {
							case <-done:
								return
							default:
							}
						}
					})
				}
				time.Sleep(time.Second / 4)
				if each := float64(n.Load()) / float64(pairs.Load()); each > 0.02 {
					t.Errorf("%d commands for %d readings", n.Load(), pairs.Load())
				}
				for range writings {
					time.Sleep(37*time.Millisecond + time.Duration(gone.Add(1))*313*time.Microsecond)
					came := time.Now()
					h := w.take(s, writing, w.Context())
					if took := time.Since(came); took > bound {
						t.Errorf("the writer was in after %v, want %v", took, bound)
					}
					w.unlock(h)
				}
				close(done)
				wg.Wait()
			})
		})
	}
}

// A reader that came long after the first request sends its own request. So does every reader after one was refused.
func TestShare_notPastAKnownWriter(t *testing.T) {
	for name, alone := range map[string]lock.Option{"a lease of its own": lock.WithFixedLease(time.Second), "a token": lock.WithFencing()} {
		t.Run(name, func(t *testing.T) { testNotPastAKnownWriter(t, alone) })
	}
}

func testNotPastAKnownWriter(t *testing.T, alone lock.Option) {
	inBubble(t, func(w *world) {
		first := w.take(w.a, reading, w.Context())
		time.Sleep(lockstate.ShareTime)
		second := w.take(w.a, reading, w.Context())
		time.Sleep(time.Millisecond)
		third := w.take(w.a, reading, w.Context())
		if first.Owner() != second.Owner() || third.Owner() == first.Owner() {
			t.Errorf("owners %s, %s and then %s", first.Owner(), second.Owner(), third.Owner())
		}
		w.unlock(first)
		w.unlock(second)
		writer := w.goLockKind(w.b, writing, w.Context())
		time.Sleep(time.Millisecond)
		past := w.take(w.a, reading, w.Context()) // this process does not know of the writer
		w.unlock(past)
		if past.Owner() != third.Owner() {
			t.Error("it sent a request")
		}
		// A reader that cannot share sends a request, and is refused. Now the process knows of the writer.
		w.refused(reading, alone)
		w.refused(reading)
		w.unlock(w.take(w.a, reading, w.Context(), lock.WithReaderPreference()))
		again := w.take(w.a, reading, third.Context()) // an owner that reads may re-enter
		w.unlock(again)
		w.unlock(third)
		w.unlock(<-writer)
	})
}

// Readers with different leases or token counters do not share a hold. A reader with writer preference does not join
// one with reader preference; in the other order they share.
func TestShare_sameTermsOnly(t *testing.T) {
	inBubble(t, func(w *world) {
		first := w.take(w.a, reading, w.Context())
		same := w.take(w.a, reading, w.Context(), lock.WithReaderPreference())
		fixed := w.take(w.a, reading, w.Context(), lock.WithFixedLease(time.Second))
		fenced := w.take(w.a, reading, w.Context(), lock.WithFencing())
		if same.Owner() != first.Owner() || fixed.Owner() == first.Owner() || fenced.Owner() == first.Owner() || fenced.Token() == 0 {
			t.Errorf("owners %s; %s, %s, %s; token %d", first.Owner(), same.Owner(), fixed.Owner(), fenced.Owner(), fenced.Token())
		}
		if more := w.take(w.a, reading, w.Context(), lock.WithFencing()); more.Owner() != fenced.Owner() || more.Token() != fenced.Token() {
			t.Errorf("token %d of %s, want %d of %s", more.Token(), more.Owner(), fenced.Token(), fenced.Owner())
		} else {
			w.unlock(more)
		}
		for _, h := range []lock.Hold{first, same, fixed, fenced} {
			w.unlock(h)
		}

		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Millisecond}))
		plain := w.goRead(w.a, w.Context())
		fenced = w.take(w.a, reading, w.Context(), lock.WithFencing())
		if fenced.Token() == 0 {
			t.Error("it rode along with a request for no token")
		}
		w.unlock(<-plain)
		w.unlock(fenced)

		rude := w.take(w.a, reading, w.Context(), lock.WithReaderPreference())
		polite := w.take(w.a, reading, w.Context())
		if polite.Owner() == rude.Owner() {
			t.Error("the reader joined one with reader preference")
		}
		w.unlock(rude)
		w.unlock(polite)
		w.mini.Del("redisson_lock_token:{orders}")
	})
}

// One of the sharing readers re-enters, and again with its own lease. The others leave, the first reader among them.
// Redis has one hold for all, and one for each reentry.
func TestShare_reentry(t *testing.T) {
	inBubble(t, func(w *world) {
		owner, ctx := lock.ContextWithNewOwner(w.Context()), lock.ContextWithNewOwner(w.Context())
		first := w.take(w.a, reading, owner)
		second := w.take(w.a, reading, ctx)
		again := w.take(w.a, reading, ctx)
		under := w.take(w.a, reading, owner, lock.WithFixedLease(10*time.Minute))
		want := func(n int) {
			t.Helper()
			if got := w.count(first); got != n {
				t.Errorf("Redis has %d holds, want %d", got, n)
			}
		}
		want(3)
		w.unlock(first) // its owner has another hold
		want(2)
		w.unlock(second)
		want(1)
		time.Sleep(5 * time.Minute) // again is renewed
		third := w.take(w.a, reading, w.Context())
		if third.Owner() == first.Owner() {
			t.Error("it shares what was granted minutes ago")
		}
		w.unlock(third)
		w.unlock(again)
		want(1)
		time.Sleep(4 * time.Minute)
		if err := under.Err(); err != nil {
			t.Errorf("the lease of 10m: %v", err)
		}
		if _, err := w.a.TryLock(under.Context(), w.a.NewSpec(writing, "orders", nil)); !errors.Is(err, lock.ErrUpgrade) {
			t.Errorf("write under a read hold: %v", err)
		}
		w.unlock(under)
	})
}

// An owner leaves while it re-enters; the others stay. It acquires a new hold, and Redis has no hold too many.
func TestShare_reentryDuringUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		stays := w.take(w.a, reading, w.Context())
		ctx := lock.ContextWithNewOwner(w.Context())
		h := w.take(w.a, reading, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Second}))
		again := w.goRead(w.a, ctx)
		w.unlock(h)
		got := <-again
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		if c := w.count(stays); c != 1 {
			t.Errorf("Redis has %d holds", c)
		}
		for _, h := range []lock.Hold{got, stays} {
			if err := h.Err(); err != nil {
				t.Error(err)
			}
			w.unlock(h)
		}
	})
}

// A writer that reads shares its hold with no other reader, because no other owner may read while it writes.
func TestShare_notWithAWriter(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		write := w.take(w.a, writing, ctx)
		read := w.take(w.a, reading, ctx)
		if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", nil)); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("a reader was admitted while a writer had the lock: %v", err)
		}
		w.unlock(write)
		other := w.take(w.a, reading, w.Context())
		if other.Owner() == read.Owner() {
			t.Error("shared")
		}
		w.unlock(read)
		w.unlock(other)
	})
}

// Every reader of a shared hold detects its loss and the cause, and the observer is notified of each.
func TestShare_loss(t *testing.T) {
	for _, how := range []string{"disconnected", "deleted", "by force", "by force elsewhere", "Close"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var in, out, lost atomic.Int64
				w.a.Observer = &lock.Observer{
					Acquired: func(context.Context, lock.Event) { in.Add(1) },
					Released: func(context.Context, lock.Event) { out.Add(1) },
					Lost:     func(context.Context, lock.Event) { lost.Add(1) },
				}
				var holds []lock.Hold
				for range 5 {
					holds = append(holds, w.take(w.a, reading, w.Context()))
				}
				until, cause := holds[0].Until(), lock.ErrLost
				switch how {
				case "disconnected":
					w.wire.Refuse(true)
					w.wire.CutAll()
					defer w.wire.Refuse(false)
				case "deleted":
					w.mini.Del("orders")
					w.mini.Del("{orders}:" + holds[0].Owner() + ":rwlock_timeout:1")
				case "Close":
					cause = lock.ErrClosed
					if err := w.a.Close(w.Context()); err != nil {
						t.Error(err)
					}
				default:
					s := w.b
					if how == "by force" {
						s = w.a
					}
					if done, err := s.Force(w.Context(), s.NewSpec(reading, "orders", nil), luascripts.ForceRW); err != nil || !done {
						t.Fatal(done, err)
					}
				}
				for _, h := range holds {
					<-h.Context().Done()
					if !errors.Is(h.Err(), cause) || !errors.Is(context.Cause(h.Context()), cause) {
						t.Errorf("cause %v", h.Err())
					}
					if h.Unlock(w.Context()) == nil {
						t.Error("it could be unlocked")
					}
				}
				if late := time.Since(until); late > 0 {
					t.Errorf("notified %v after the end", late)
				}
				synctest.Wait() // for the observer, which runs in the background
				ended := &lost
				if how == "Close" {
					ended = &out
				}
				if in.Load() != 5 || ended.Load() != 5 || out.Load()+lost.Load() != 5 {
					t.Errorf("observed %d, %d released and %d lost", in.Load(), out.Load(), lost.Load())
				}
			})
		})
	}
}

// One renewal keeps the hold of all readers, until the last of them leaves.
func TestShare_renewedTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		first := w.take(w.a, reading, w.Context())
		last := w.take(w.a, reading, w.Context())
		n := w.scripts()
		time.Sleep(2 * leaseTime)
		w.unlock(first)
		time.Sleep(2 * leaseTime)
		if err := last.Err(); err != nil {
			t.Error(err)
		}
		if got := n.Load(); got < 11 || got > 15 {
			t.Errorf("%d commands in four leases, want three a lease", got)
		}
		w.unlock(last)
	})
}

// The server does not reply to a shared request. A joined reader stops waiting at the end of its context, after the
// operation timeout, or at Close.
func TestShare_joinerGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		w.wire.Freeze(true)
		ctx, cancel := context.WithCancel(w.Context())
		sender := w.goRead(w.a, ctx)
		joinerCtx, leave := context.WithTimeout(w.Context(), time.Second)
		defer leave()
		start := time.Now()
		if _, err := w.a.Lock(joinerCtx, w.a.NewSpec(reading, "orders", nil)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		start = time.Now()
		if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", nil)); err == nil || errors.Is(err, lock.ErrNotAcquired) || time.Since(start) > opTime {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		cancel()
		<-sender
		w.wire.Freeze(false)
		time.Sleep(2*opTime + time.Second)
		if w.mini.Exists("orders") {
			t.Error("a reader is in")
		}

		w.wire.Freeze(true)
		sender = w.goRead(w.a, w.Context())
		joiner := w.goRead(w.a, w.Context())
		closed := make(chan error)
		go func() { closed <- w.a.Close(w.Context()) }()
		synctest.Wait()
		start = time.Now()
		if h := <-joiner; h != nil || time.Since(start) > 0 {
			t.Errorf("it reads: %t, after %v", h != nil, time.Since(start))
		}
		w.wire.Freeze(false)
		if h := <-sender; h != nil {
			t.Error("it reads")
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// The context of a joined reader is canceled when the reply arrives. The lock does not stay with it.
func TestShare_joinerLeavesAtTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		for range 50 {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 10 * time.Millisecond}))
			sender := w.goRead(w.a, w.Context())
			ctx, cancel := context.WithTimeout(w.Context(), 10*time.Millisecond)
			joiner := w.goRead(w.a, ctx)
			w.unlock(<-sender)
			if h := <-joiner; h != nil {
				_ = h.Unlock(w.Context())
			}
			cancel()
			synctest.Wait()
			cancel()
			time.Sleep(time.Millisecond)
			if w.mini.Exists("orders") {
				t.Fatal("a reader is in")
			}
		}
	})
}

// The reader that sent the request gives up, or its request is refused. A joined reader then sends its own request, or
// waits like the first one.
func TestShare_senderGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Second}))
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Millisecond)
		defer cancel()
		w.goRead(w.a, ctx)
		start := time.Now()
		joiner := w.goRead(w.a, w.Context())
		w.unlock(<-joiner)
		if took := time.Since(start); took > time.Second+10*time.Millisecond {
			t.Errorf("in after %v", took)
		}
		time.Sleep(3*opTime + pollTime) // the grant of the first reader is released

		h := w.take(w.b, writing, w.Context())
		n := w.scripts()
		var waiting []<-chan lock.Hold
		for range 10 {
			waiting = append(waiting, w.goRead(w.a, w.Context()))
		}
		time.Sleep(pollTime / 2)
		if got := n.Load(); got > 3 { // and the confirmation of the subscription
			t.Errorf("10 waiting readers sent %d commands", got)
		}
		w.unlock(h)
		for _, r := range waiting {
			w.unlock(<-r)
		}
	})
}

// An owner writes by the time its read request is sent. No other reader may share or overtake that request.
func TestShare_notWithAReaderThatCameToWrite(t *testing.T) {
	inBubble(t, func(w *world) {
		read, write := *reading, *writing
		read.Sibling, write.Sibling = &write, &read
		stuck := make(chan struct{})
		var requests atomic.Bool
		read.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			if !requests.Swap(true) {
				<-stuck
			}
			return luascripts.AcquireRead(ctx, rdb, k, q)
		}
		defer close(stuck)
		ctx, cancel := context.WithCancel(w.Context())
		sender := w.goLockKind(w.a, &read, ctx)
		owner := lock.ContextWithNewOwner(w.Context())
		joiner := w.goLockKind(w.a, &read, owner)
		writer := w.take(w.a, &write, owner)
		cancel() // the shared request fails; it sends its own
		<-sender
		reader := <-joiner
		if reader == nil {
			t.Fatal("an owner that writes cannot read")
		}
		if h, err := w.a.TryLock(w.Context(), w.a.NewSpec(&read, "orders", nil)); err == nil {
			t.Error("a reader was admitted while a writer had the lock")
			w.unlock(h)
		}
		w.unlock(writer)
		w.unlock(reader)
	})
}

// An observer that was notified of a reader's grant is notified of its release, even if that crosses the end of the
// reader's context.
func TestShare_observedInPairs(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		var in, out, admitted atomic.Int64
		w.a.Observer = &lock.Observer{
			Acquired: func(context.Context, lock.Event) { in.Add(1) },
			Released: func(context.Context, lock.Event) { out.Add(1) },
		}
		for range 50 {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 10 * time.Millisecond}))
			sender := w.goRead(w.a, w.Context())
			ctx, cancel := context.WithTimeout(w.Context(), 10*time.Millisecond)
			joiner := w.goRead(w.a, ctx)
			w.unlock(<-sender)
			if h := <-joiner; h != nil {
				admitted.Add(1)
				_ = h.Unlock(w.Context())
			}
			cancel()
			time.Sleep(time.Millisecond)
		}
		if in.Load() != out.Load() {
			t.Errorf("%d came and %d left; %d joined readers were admitted", in.Load(), out.Load(), admitted.Load())
		}
	})
}

// Two holds are released, and a reader re-enters before the commands are sent. No hold is left behind.
func TestShare_reentryOvertakesTheUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		ctx := lock.ContextWithNewOwner(w.Context())
		first := w.take(w.a, reading, w.Context())
		second := w.take(w.a, reading, ctx)
		third, fourth := w.take(w.a, reading, ctx), w.take(w.a, reading, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Second}))
		more := w.goRead(w.a, first.Context()) // sends
		again := w.goRead(w.a, ctx)            // is next
		var wg sync.WaitGroup
		wg.Go(func() { w.unlock(third) })
		wg.Go(func() { w.unlock(fourth) })
		holds := []lock.Hold{<-more, <-again, second, first}
		wg.Wait()
		if c := w.count(first); c != 3 {
			t.Errorf("Redis has %d holds", c)
		}
		if key := "{orders}:" + first.Owner() + ":rwlock_timeout:4"; w.mini.Exists(key) {
			t.Errorf("%s is left", key)
		}
		for _, h := range holds {
			w.unlock(h)
		}
	})
}

// delayedRead returns the two sides of a lock. The first read request is not sent before sent is closed, and its reply is
// not delivered before told is closed.
func delayedRead() (read, write *Kind, sent, losses chan struct{}) {
	r, wr := *reading, *writing
	r.Sibling, wr.Sibling = &wr, &r
	sent, losses = make(chan struct{}), make(chan struct{})
	var requests atomic.Bool
	r.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
		if requests.Swap(true) {
			return luascripts.AcquireRead(ctx, rdb, k, q)
		}
		<-sent
		a, err := luascripts.AcquireRead(ctx, rdb, k, q)
		<-losses
		return a, err
	}
	return &r, &wr, sent, losses
}

// A request shared by thirty readers fails. One of them sends the next request for all, with the same timeout as the
// first.
func TestShare_oneRetries(t *testing.T) {
	const reply = 50 * time.Millisecond
	for how, ends := range map[string]time.Duration{"canceled": reply / 2, "no reply": opTime} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.known()
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				if ends < opTime {
					time.AfterFunc(ends, cancel)
				}
				var n atomic.Int64
				w.wire.OnRequest(func(req [][]byte) redistest.Action {
					switch {
					case string(req[0]) != "EVALSHA":
						return redistest.Action{}
					case n.Add(1) == 1:
						return redistest.Action{DelayReply: ends + reply/2}
					default:
						return redistest.Action{DelayReply: reply}
					}
				})
				start := time.Now()
				sender := w.goRead(w.a, ctx)
				var joiner []<-chan lock.Hold
				for range 30 {
					time.Sleep(lockstate.ShareTime / 60)
					joiner = append(joiner, w.goRead(w.a, w.Context()))
				}
				var holds []lock.Hold
				for _, r := range joiner {
					holds = append(holds, <-r)
				}
				if took := time.Since(start); took > ends+2*reply {
					t.Errorf("in after %v", took)
				}
				if got := n.Load(); got > 3 { // and the abandoned request is reconciled, or repeated
					t.Errorf("%d commands", got)
				}
				w.wire.OnRequest(nil)
				if ends == opTime {
					holds = append(holds, <-sender)
				}
				for _, h := range holds {
					w.unlock(h)
				}
			})
		})
	}
}

// Redis cannot execute a request. All readers that wait for the reply get the error.
func TestShare_errorOfAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		if err := w.rdb.Do(w.Context(), w.rdb.B().Set().Key("orders").Value("1").Build()).Error(); err != nil {
			t.Fatal(err)
		}
		n := w.scripts()
		w.wire.OnRequest(func([][]byte) redistest.Action { n.Add(1); return redistest.Action{DelayReply: 10 * time.Millisecond} })
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				if _, err := w.a.Lock(w.Context(), w.a.NewSpec(reading, "orders", nil)); !errors.Is(err, lock.ErrWrongType) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := n.Load(); got > 3 { // two read the type of the key
			t.Errorf("%d requests", got)
		}
		w.mini.Del("orders")
	})
}

// A reader joins while the last one leaves. Its release is reported, and no command is sent for it.
func TestShare_joinedAsTheLastLeaves(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		var out atomic.Int64
		w.a.Observer = &lock.Observer{Released: func(context.Context, lock.Event) { out.Add(1) }}
		first, second := w.take(w.a, reading, w.Context()).(*hold), w.take(w.a, reading, w.Context())
		n := w.scripts()
		turn := first.acquisition().Turn
		first.acquisition().Turn = nil // so that it detects the others only after it has begun to leave
		w.unlock(first)
		first.acquisition().Turn = turn
		if out.Load() != 1 || n.Load() != 0 {
			t.Errorf("%d were seen to leave, and %d commands were sent", out.Load(), n.Load())
		}
		w.unlock(second)
	})
}

// Owners acquire, re-enter and release both holds at random. Every acquisition that is reported to the observer is also
// reported as released.
func TestShare_observedInPairsAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		var in, out atomic.Int64
		w.a.Observer = &lock.Observer{
			Acquired: func(context.Context, lock.Event) { in.Add(1) },
			Released: func(context.Context, lock.Event) { out.Add(1) },
		}
		for range 300 {
			stays := w.take(w.a, reading, w.Context())
			ctx := lock.ContextWithNewOwner(w.Context())
			var wg sync.WaitGroup
			for _, h := range []lock.Hold{w.take(w.a, reading, ctx), w.take(w.a, reading, ctx), stays} {
				wg.Go(func() { w.unlock(h) })
			}
			wg.Go(func() {
				if h, err := w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", nil)); err == nil {
					w.unlock(h)
				}
			})
			wg.Wait()
		}
		synctest.Wait()
		if in.Load() != out.Load() {
			t.Errorf("%d came and %d left", in.Load(), out.Load())
		}
	})
}

// An acquisition is lost while others join it. An observer that is notified of a loss was notified of the grant before.
func TestShare_lossAtTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		var in, out atomic.Int64
		w.a.Observer = &lock.Observer{
			Acquired: func(context.Context, lock.Event) { in.Add(1) },
			Released: func(context.Context, lock.Event) { out.Add(1) },
			Lost:     func(context.Context, lock.Event) { out.Add(1) },
		}
		for range 100 {
			synctest.Wait()
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 10 * time.Millisecond}))
			var wg sync.WaitGroup
			wg.Go(func() {
				h := w.take(w.a, reading, w.Context())
				h.(*hold).acquisition().lease.Lose(errors.New("chance"))
			})
			synctest.Wait()
			for range 10 {
				wg.Go(func() { _ = w.take(w.a, reading, w.Context()).Unlock(w.Context()) })
			}
			wg.Wait()
		}
		synctest.Wait()
		if in.Load() != out.Load() {
			t.Errorf("%d came and %d left", in.Load(), out.Load())
		}
	})
}

// A reader has been waiting since before a writer came. Other readers, with writer preference, come continuously. Their
// refusals do not prevent the first reader from sending requests.
func TestShare_cameBeforeTheWriter(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		first := w.take(w.b, writing, w.Context())
		before := w.goRead(w.a, w.Context())
		time.Sleep(pollTime / 4)
		const intent = "leasehold_rwlock_wish:{orders}"
		_ = w.mini.Set(intent, "somebody "+strconv.FormatInt(time.Now().UnixMilli(), 10))
		w.mini.SetTTL(intent, time.Hour)
		time.Sleep(pollTime / 4)
		w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayReply: time.Millisecond} })
		done := make(chan struct{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					if h, err := w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", nil)); err == nil {
						t.Error("past a writer")
						w.unlock(h)
					}
				}
			})
		}
		time.Sleep(10*time.Millisecond + time.Microsecond)
		start := time.Now()
		w.unlock(first)
		h := <-before
		if took := time.Since(start); took > 5*time.Millisecond {
			t.Errorf("in after %v", took)
		}
		close(done)
		wg.Wait()
		w.unlock(h)
		w.mini.Del(intent)
	})
}

// refused fails the test unless a reader in a is refused because others have the lock.
func (w *world) refused(kind *Kind, opts ...lock.Option) {
	w.Helper()
	start := time.Now()
	if h, err := w.a.TryLock(w.Context(), w.a.NewSpec(kind, "orders", opts)); err == nil {
		w.Error("past a writer")
		w.unlock(h)
	} else if took := time.Since(start); !errors.Is(err, lock.ErrNotAcquired) || took > opTime/2 {
		w.Errorf("after %v: %v", took, err)
	}
}

// A request fails with an unknown outcome; then its reader joins another. If the request was executed, its grant is
// released.
func TestShare_joinsAfterItsOwnRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		var n atomic.Int64
		far := *reading
		far.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			a, err := luascripts.AcquireRead(ctx, rdb, k, q)
			if n.Add(1) == 1 {
				err = context.DeadlineExceeded // the outcome is unknown
			}
			return a, err
		}
		first := w.goLockKind(w.a, &far, w.Context())
		second := w.take(w.a, &far, w.Context())
		h := <-first
		if h.Owner() != second.Owner() {
			t.Error("it sent another request")
		}
		time.Sleep(2 * opTime)
		w.unlock(h)
		w.unlock(second)
		if keys := w.mini.Keys(); len(keys) > 0 {
			t.Errorf("left %q", keys)
		}
	})
}

// Readers with replicas share nothing: each grant is confirmed individually.
func TestShare_notWithReplicas(t *testing.T) {
	inBubble(t, func(w *world) {
		safe := *reading
		safe.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			a, err := luascripts.AcquireRead(ctx, rdb, k, q)
			a.Confirmed = q.Replicas
			return a, err
		}
		first := w.take(w.a, &safe, w.Context())
		second := w.take(w.a, &safe, w.Context(), lock.WithReplicas(1, time.Second))
		third := w.take(w.a, &safe, w.Context(), lock.WithReplicas(1, time.Second))
		if first.Owner() == second.Owner() || second.Owner() == third.Owner() {
			t.Errorf("shared: %s, %s, %s", first.Owner(), second.Owner(), third.Owner())
		}
		for _, h := range []lock.Hold{first, second, third} {
			w.unlock(h)
		}
	})
}

// Two of the sharing readers re-enter at the same time. Redis has a hold for each.
func TestShare_reentriesOfTwo(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		one, two := lock.ContextWithNewOwner(w.Context()), lock.ContextWithNewOwner(w.Context())
		holds := []lock.Hold{w.take(w.a, reading, one), w.take(w.a, reading, two)}
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Millisecond}))
		again := []<-chan lock.Hold{w.goRead(w.a, one), w.goRead(w.a, two)}
		for _, h := range again {
			holds = append(holds, <-h)
		}
		if c := w.count(holds[0]); c != 3 {
			t.Errorf("Redis has %d holds, want one for both and one for each", c)
		}
		for i, h := range holds {
			w.unlock(h)
			if c := w.count(h); i < 3 && c == 0 || i == 3 && c != 0 {
				t.Errorf("%d have left, and Redis has %d holds", i+1, c)
			}
		}
	})
}

// An attempt has the operation timeout in total, even if it joins several requests that get no reply.
func TestShare_attemptsEnd(t *testing.T) {
	inBubble(t, func(w *world) {
		read, _, sent, losses := delayedRead()
		close(losses)
		stuck := read.Acquire
		read.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			<-sent
			return stuck(ctx, rdb, k, q)
		}
		ctx, cancel := context.WithCancel(w.Context())
		sender := w.goLockKind(w.a, read, ctx)
		time.AfterFunc(opTime*2/3, cancel)
		all, enough := context.WithCancel(w.Context())
		var others []<-chan lock.Hold
		for range 20 {
			others = append(others, w.goLockKind(w.a, read, all))
		}
		start := time.Now()
		if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(read, "orders", nil)); err == nil || time.Since(start) > opTime+time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		enough()
		for _, h := range append(others, sender) {
			if h := <-h; h != nil {
				t.Error("it reads")
			}
		}
		close(sent)
	})
}

// The context of a joined reader is canceled while it is admitted, before it returns. The lock does not stay with it.
func TestShare_joinerLeavesWhenAdmitted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		var leave context.CancelFunc
		w.a.Observer = &lock.Observer{Acquired: func(context.Context, lock.Event) { leave() }} // of the reader that sent the request, before the others are admitted
		for range 100 {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Millisecond}))
			ctx, cancel := context.WithCancel(w.Context())
			leave = cancel
			sender := w.goRead(w.a, w.Context())
			var joiner []<-chan lock.Hold
			for range 10 {
				joiner = append(joiner, w.goRead(w.a, ctx))
			}
			w.unlock(<-sender)
			for _, r := range joiner {
				if h := <-r; h != nil {
					_ = h.Unlock(w.Context())
				}
			}
			cancel()
			time.Sleep(time.Millisecond)
			if w.mini.Exists("orders") {
				t.Fatal("a reader is in")
			}
		}
	})
}

// Readers with reader preference wait for a writer. The writer is gone, and the first of them joins a reader that came just
// now. The others are admitted at the same time.
func TestShare_joinerLetsOthersIn(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, writing, w.Context())
		var waits []<-chan lock.Hold
		for range 3 {
			waits = append(waits, w.goRead(w.a, w.Context(), lock.WithReaderPreference()))
		}
		time.Sleep(pollTime / 2)
		w.mini.Del("orders")
		first := w.take(w.a, reading, w.Context())
		start := time.Now()
		w.a.mayBeFree(w.a.NewSpec(writing, "orders", nil))
		for _, wait := range waits {
			other := <-wait
			if took := time.Since(start); took != 0 || other.Owner() != first.Owner() {
				w.Errorf("%s is in after %v, and the first reader is %s", other.Owner(), took, first.Owner())
			}
			w.unlock(other)
		}
		w.unlock(first)
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Error(err)
		}
	})
}

// lingering keeps session a subscribed to the channel of the lock, without waiters.
func (w *world) lingering(k *Kind) {
	w.Helper()
	h := w.take(w.b, k, w.Context())
	next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
	w.unlock(h)
	w.unlock(<-next)
	time.Sleep(time.Second)
}

// A reader shares the request of a TryLock, which is refused. The lock is released before that reply. The reader retries
// immediately, because its session was subscribed.
func TestShare_releasedBeforeTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.take(w.a, reading, w.Context())) // loads the script
		w.lingering(writing)
		h := w.take(w.b, writing, w.Context())
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 20 * time.Millisecond}))
		time.AfterFunc(10*time.Millisecond, func() { w.unlock(h) })
		go func() {
			if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", nil)); !errors.Is(err, lock.ErrNotAcquired) {
				w.Error(err)
			}
		}()
		synctest.Wait()
		start := time.Now()
		w.unlock(w.take(w.a, reading, w.Context()))
		if took := time.Since(start); took > pollTime/2 {
			w.Errorf("it waited for %v", took)
		}
	})
}
