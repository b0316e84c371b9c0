package session

import (
	"context"
	"errors"
	"math"
	"slices"
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
)

// What readers of a process share, and what they do not share.

// known loads the scripts of both sides, so that each later request is one command.
func (w *world) known() {
	w.unlock(w.take(w.a, writing, w.Context()))
	w.unlock(w.take(w.a, reading, w.Context()))
}

// goRead is goLock for the read lock.
func (w *world) goRead(s *Session, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	w.Helper()
	return w.goLock(s, reading, ctx, opts...)
}

// Readers join and leave a reading acquisition without a command; the last one releases the lock, whichever that is.
func TestShare_noCommands(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		n := w.scripts()
		first := w.take(w.a, reading, w.Context())
		var others []lock.Hold
		for range 30 {
			h := w.take(w.a, reading, w.Context())
			if h.Owner() != first.Owner() || h.Token() != 0 || !h.Until().Equal(first.Until()) {
				t.Fatalf("owner %s, token %d, until %v, want those of the first", h.Owner(), h.Token(), h.Until())
			}
			others = append(others, h)
		}
		w.wantCount(first, 1)
		w.unlock(first)
		w.wantErr(first.Err(), lock.ErrUnlocked)
		w.wantErr(first.Unlock(w.Context()), lock.ErrNotHeld)
		for _, h := range others {
			w.wantHeld(h)
			if !w.mini.Exists("orders") {
				t.Fatal("the lock is free, and there are readers")
			}
			w.unlock(h)
		}
		w.wantFree()
		w.wantSent(n, 2) // one request and one release
	})
}

// Many readers request a free lock at the same time. One of them sends a request, and all enter before any of them
// leaves.
func TestShare_oneRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		n := w.slowScripts(50 * time.Millisecond)
		start := time.Now()
		var owners sync.Map
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // even later than lockstate.ShareTime
				acquire := w.lockOrTry(i%2 == 1)
				h, err := acquire(w.Context(), w.a.NewSpec(reading, "orders", nil))
				if err != nil {
					t.Error(err)
					return
				}
				w.wantTook(start, 50*time.Millisecond)
				owners.Store(h.Owner(), true)
				w.unlock(h)
			})
		}
		wg.Wait()
		w.wantSent(n, 2)
		many := 0
		owners.Range(func(any, any) bool { many++; return true })
		if many != 1 {
			t.Errorf("30 readers are %d owners", many)
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
	forEach(t, processes, func(w *world, of func(w *world) *Session) {
		w.known()
		n := w.scripts()
		s, bound := of(w), lockstate.ShareTime+stay+2*time.Millisecond
		if s == w.a {
			bound = stay + time.Millisecond
		}
		var wg sync.WaitGroup
		var pairs atomic.Int64
		ctx, cancel := context.WithCancel(w.Context())
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * stay / 100)
				w.use(ctx, reading, []*Session{w.a}, 1, math.MaxInt, func(*Session) {
					time.Sleep(stay)
					pairs.Add(1)
				})()
			})
		}
		time.Sleep(time.Second / 4)
		if each := float64(n.Load()) / float64(pairs.Load()); each > 0.02 {
			t.Errorf("%d commands for %d readings", n.Load(), pairs.Load())
		}
		for i := range writings {
			time.Sleep(37*time.Millisecond + time.Duration(i+1)*313*time.Microsecond)
			came := time.Now()
			h := w.take(s, writing, w.Context())
			w.wantWithin(came, bound)
			w.unlock(h)
		}
		cancel()
		wg.Wait()
	})
}

// A reader that came long after the first request sends its own request. So does every reader after one was refused.
func TestShare_notPastAKnownWriter(t *testing.T) {
	forEach(t, map[string]lock.Option{
		"a lease of its own": lock.WithFixedLease(time.Second),
		"a token":            lock.WithFencing(),
	}, func(w *world, alone lock.Option) {
		first := w.take(w.a, reading, w.Context())
		time.Sleep(lockstate.ShareTime)
		second := w.take(w.a, reading, w.Context())
		time.Sleep(time.Millisecond)
		third := w.take(w.a, reading, w.Context())
		if first.Owner() != second.Owner() || third.Owner() == first.Owner() {
			w.Errorf("owners %s, %s and then %s", first.Owner(), second.Owner(), third.Owner())
		}
		w.unlockAll(first, second)
		writer := w.goLock(w.b, writing, w.Context())
		time.Sleep(time.Millisecond)
		past := w.take(w.a, reading, w.Context()) // this process does not know of the writer
		w.unlock(past)
		if past.Owner() != third.Owner() {
			w.Error("it sent a request")
		}
		// A reader that cannot share sends a request, and is refused. Now the process knows of the writer.
		w.refused(w.a, reading, alone)
		w.refused(w.a, reading)
		w.unlock(w.take(w.a, reading, w.Context(), lock.WithReaderPreference()))
		again := w.take(w.a, reading, third.Context()) // an owner that reads may re-enter
		w.unlockAll(again, third)
		w.unlock(<-writer)
	})
}

// Readers with different leases or token counters do not share a hold. A reader with writer preference does not join
// one with reader preference; in the other order they share.
func TestShare_sameTermsOnly(t *testing.T) {
	inBubble(t, func(w *world) {
		read := func(opts ...lock.Option) lock.Hold { return w.take(w.a, reading, w.Context(), opts...) }
		first := read()
		same, fixed, fenced := read(lock.WithReaderPreference()), read(lock.WithFixedLease(time.Second)), read(lock.WithFencing())
		if same.Owner() != first.Owner() || fixed.Owner() == first.Owner() || fenced.Owner() == first.Owner() || fenced.Token() == 0 {
			t.Errorf("owners %s; %s, %s, %s; token %d", first.Owner(), same.Owner(), fixed.Owner(), fenced.Owner(), fenced.Token())
		}
		more := read(lock.WithFencing())
		if more.Owner() != fenced.Owner() || more.Token() != fenced.Token() {
			t.Errorf("token %d of %s, want %d of %s", more.Token(), more.Owner(), fenced.Token(), fenced.Owner())
		}
		w.unlockAll(more, first, same, fixed, fenced)

		w.onNext(redistest.Action{DelayReply: time.Millisecond})
		plain := w.goRead(w.a, w.Context())
		fenced = read(lock.WithFencing())
		if fenced.Token() == 0 {
			t.Error("it rode along with a request for no token")
		}
		w.unlockAll(<-plain, fenced)

		rude, polite := read(lock.WithReaderPreference()), read()
		if polite.Owner() == rude.Owner() {
			t.Error("the reader joined one with reader preference")
		}
		w.unlockAll(rude, polite)
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
		w.wantCount(first, 3)
		w.unlock(first) // its owner has another hold
		w.wantCount(first, 2)
		w.unlock(second)
		w.wantCount(first, 1)
		time.Sleep(5 * time.Minute) // again is renewed
		third := w.take(w.a, reading, w.Context())
		if third.Owner() == first.Owner() {
			t.Error("it shares what was granted minutes ago")
		}
		w.unlockAll(third, again)
		w.wantCount(first, 1)
		time.Sleep(4 * time.Minute)
		w.wantHeld(under) // for 10 minutes
		w.wantFail(w.a.TryLock, under.Context(), w.a.NewSpec(writing, "orders", nil), lock.ErrUpgrade)
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
		w.onNext(redistest.Action{DelayReply: time.Second})
		again := w.goRead(w.a, ctx)
		w.unlock(h)
		got := <-again
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		w.wantCount(stays, 1)
		w.wantHeld(got, stays)
		w.unlockAll(got, stays)
	})
}

// A writer that reads shares its hold with no other reader, because no other owner may read while it writes.
func TestShare_notWithAWriter(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		write := w.take(w.a, writing, ctx)
		read := w.take(w.a, reading, ctx)
		w.refused(w.a, reading)
		w.unlock(write)
		other := w.take(w.a, reading, w.Context())
		if other.Owner() == read.Owner() {
			t.Error("shared")
		}
		w.unlockAll(read, other)
	})
}

// Every reader of a shared hold detects its loss and the cause, and the observer is notified of each.
func TestShare_loss(t *testing.T) {
	type test struct {
		cause error
		event string
		end   func(w *world, owner string)
	}
	forEach(t, map[string]test{
		"disconnected": {lock.ErrLost, "lost", func(w *world, _ string) { w.cut() }},
		"deleted": {lock.ErrLost, "lost", func(w *world, owner string) {
			w.mini.Del("orders")
			w.mini.Del("{orders}:" + owner + ":rwlock_timeout:1")
		}},
		"by force":           {lock.ErrLost, "lost", func(w *world, _ string) { w.force(w.a, reading) }},
		"by force elsewhere": {lock.ErrLost, "lost", func(w *world, _ string) { w.force(w.b, reading) }},
		"Close":              {lock.ErrClosed, "released", func(w *world, _ string) { w.close(w.a) }},
	}, func(w *world, c test) {
		var holds []lock.Hold
		for range 5 {
			holds = append(holds, w.take(w.a, reading, w.Context()))
		}
		w.wantEvents(slices.Repeat([]string{"granted"}, 5)...)
		until := holds[0].Until()
		c.end(w, holds[0].Owner())
		for _, h := range holds {
			<-h.Context().Done()
			w.wantErr(h.Err(), c.cause)
			w.wantErr(context.Cause(h.Context()), c.cause)
			w.wantErr(h.Unlock(w.Context()))
		}
		w.wantWithin(until, 0)
		events, _ := w.witness.take()
		events = slices.DeleteFunc(events, func(e string) bool { return strings.HasPrefix(e, "renew") })
		if !slices.Equal(events, slices.Repeat([]string{c.event}, 5)) {
			w.Errorf("observer events: %q", events)
		}
		w.wire.Refuse(false)
	})
}

// One renewal keeps the hold of all readers, until the last of them leaves.
func TestShare_renewedTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		first, last := w.take(w.a, reading, w.Context()), w.take(w.a, reading, w.Context())
		n := w.scripts()
		time.Sleep(2 * leaseTime)
		w.unlock(first)
		time.Sleep(2 * leaseTime)
		w.wantHeld(last)
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
		start := time.Now()
		_, err := w.a.Lock(w.within(time.Second), w.a.NewSpec(reading, "orders", nil))
		w.wantErr(err, context.DeadlineExceeded)
		w.wantTook(start, time.Second)
		start = time.Now()
		_, err = w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", nil))
		w.wantNotErrs(err, lock.ErrNotAcquired)
		w.wantWithin(start, opTime)
		cancel()
		<-sender
		w.wire.Freeze(false)
		time.Sleep(2*opTime + time.Second)
		w.wantFree()

		w.wire.Freeze(true)
		first, joiner := w.beginLock(w.a, reading, w.Context()), w.beginLock(w.a, reading, w.Context())
		closed := w.beginClose()
		start = time.Now()
		w.wantErr(<-joiner, lock.ErrClosed)
		w.wantTook(start, 0)
		w.wire.Freeze(false)
		w.wantErr(<-first, lock.ErrClosed)
		w.wantNoErr(<-closed)
	})
}

// The context of a joined reader is canceled when the reply arrives. The lock does not stay with it, and if the observer
// was notified of its grant, it is notified of the release.
func TestShare_joinerLeavesAtTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		for range 50 {
			w.onNext(redistest.Action{DelayReply: 10 * time.Millisecond})
			sender := w.goRead(w.a, w.Context())
			joiner := w.goRead(w.a, w.within(10*time.Millisecond))
			w.unlock(<-sender)
			if h := <-joiner; h != nil {
				_ = h.Unlock(w.Context())
			}
			time.Sleep(time.Millisecond)
			w.wantFree()
		}
	})
}

// The reader that sent the request gives up, or its request is refused. A joined reader then sends its own request, or
// waits like the first one.
func TestShare_senderGivesUp(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		w.onNext(redistest.Action{DelayReply: time.Second})
		w.goRead(w.a, w.within(10*time.Millisecond))
		start := time.Now()
		w.unlock(<-w.goRead(w.a, w.Context()))
		w.wantWithin(start, time.Second+10*time.Millisecond)
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
		w.unlockEach(waiting...)
	})
}

// An owner writes by the time its read request is sent. No other reader may share or overtake that request.
func TestShare_notWithAReaderThatCameToWrite(t *testing.T) {
	inBubble(t, func(w *world) {
		stuck := make(chan struct{})
		defer close(stuck)
		read, write := sides(func(r request) (luascripts.Acquired, error) {
			if r.n == 1 {
				<-stuck
			}
			return r.send()
		})
		ctx, cancel := context.WithCancel(w.Context())
		sender := w.goLock(w.a, read, ctx)
		owner := lock.ContextWithNewOwner(w.Context())
		joiner := w.goLock(w.a, read, owner)
		writer := w.take(w.a, write, owner)
		cancel() // the shared request fails; it sends its own
		<-sender
		reader := <-joiner
		if reader == nil {
			t.Fatal("an owner that writes cannot read")
		}
		w.refused(w.a, read)
		w.unlockAll(writer, reader)
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
		w.onNext(redistest.Action{DelayReply: time.Second})
		more := w.goRead(w.a, first.Context()) // sends
		again := w.goRead(w.a, ctx)            // is next
		var wg sync.WaitGroup
		wg.Go(func() { w.unlock(third) })
		wg.Go(func() { w.unlock(fourth) })
		holds := []lock.Hold{<-more, <-again, second, first}
		wg.Wait()
		w.wantCount(first, 3)
		if key := "{orders}:" + first.Owner() + ":rwlock_timeout:4"; w.mini.Exists(key) {
			t.Errorf("%s is left", key)
		}
		w.unlockAll(holds...)
	})
}

// A request shared by thirty readers fails. One of them sends the next request for all, with the same timeout as the
// first.
func TestShare_oneRetries(t *testing.T) {
	const reply = 50 * time.Millisecond
	forEach(t, map[string]time.Duration{"canceled": reply / 2, "no reply": opTime}, func(w *world, ends time.Duration) {
		w.known()
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		if ends < opTime {
			time.AfterFunc(ends, cancel)
		}
		var sent atomic.Int64
		w.onScripts(func(n int) redistest.Action {
			sent.Add(1)
			if n == 1 {
				return redistest.Action{DelayReply: ends + reply/2}
			}
			return redistest.Action{DelayReply: reply}
		})
		start := time.Now()
		sender := w.goRead(w.a, ctx)
		var joiners []<-chan lock.Hold
		for range 30 {
			time.Sleep(lockstate.ShareTime / 60)
			joiners = append(joiners, w.goRead(w.a, w.Context()))
		}
		var holds []lock.Hold
		for _, r := range joiners {
			holds = append(holds, <-r)
		}
		w.wantWithin(start, ends+2*reply)
		if got := sent.Load(); got > 3 { // and the abandoned request is reconciled, or repeated
			w.Errorf("%d commands", got)
		}
		w.wire.OnRequest(nil)
		if ends == opTime {
			holds = append(holds, <-sender)
		}
		w.unlockAll(holds...)
	})
}

// Redis cannot execute a request. All readers that wait for the reply get the error.
func TestShare_errorOfAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		w.wantNoErr(w.mini.Set("orders", "1"))
		var n atomic.Int64
		w.wire.OnRequest(func([][]byte) redistest.Action { n.Add(1); return redistest.Action{DelayReply: 10 * time.Millisecond} })
		var readers []<-chan error
		for range 30 {
			readers = append(readers, w.beginLock(w.a, reading, w.Context()))
		}
		for _, ended := range readers {
			w.wantErr(<-ended, lock.ErrWrongType)
		}
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
		first, second := w.take(w.a, reading, w.Context()).(*hold), w.take(w.a, reading, w.Context())
		w.witness.take()
		n := w.scripts()
		turn := first.acquisition().Turn
		first.acquisition().Turn = nil // so that it detects the others only after it has begun to leave
		w.unlock(first)
		first.acquisition().Turn = turn
		w.wantEvents("released")
		w.wantSent(n, 0)
		w.unlock(second)
	})
}

// Owners acquire, re-enter and release both holds at random. Every acquisition that is reported to the observer is also
// reported as released: the witness of inBubble checks that.
func TestShare_observedInPairsAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
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
	})
}

// An acquisition is lost while others join it. The witness of inBubble checks that an observer that is notified of a loss
// was notified of the grant before.
func TestShare_lossAtTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		for range 100 {
			synctest.Wait()
			w.onNext(redistest.Action{DelayReply: 10 * time.Millisecond})
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
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					w.refused(w.a, reading)
				}
			})
		}
		time.Sleep(10*time.Millisecond + time.Microsecond)
		start := time.Now()
		w.unlock(first)
		h := <-before
		w.wantWithin(start, 5*time.Millisecond)
		cancel()
		wg.Wait()
		w.unlock(h)
		w.mini.Del(intent)
	})
}

// A request fails with an unknown outcome; then its reader joins another. If the request was executed, its grant is
// released.
func TestShare_joinsAfterItsOwnRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		far := onRequest(reading, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			if r.n == 1 {
				err = context.DeadlineExceeded // the outcome is unknown
			}
			return a, err
		})
		first := w.goLock(w.a, far, w.Context())
		second := w.take(w.a, far, w.Context())
		h := <-first
		if h.Owner() != second.Owner() {
			t.Error("it sent another request")
		}
		time.Sleep(2 * opTime)
		w.unlockAll(h, second)
		w.wantEmpty()
	})
}

// Readers with replicas share nothing: each grant is confirmed individually.
func TestShare_notWithReplicas(t *testing.T) {
	inBubble(t, func(w *world) {
		safe, _ := confirmingReplicas(reading, 0)
		first := w.take(w.a, safe, w.Context())
		second := w.take(w.a, safe, w.Context(), lock.WithReplicas(1, time.Second))
		third := w.take(w.a, safe, w.Context(), lock.WithReplicas(1, time.Second))
		if first.Owner() == second.Owner() || second.Owner() == third.Owner() {
			t.Errorf("shared: %s, %s, %s", first.Owner(), second.Owner(), third.Owner())
		}
		w.unlockAll(first, second, third)
	})
}

// Two of the sharing readers re-enter at the same time. Redis has a hold for each.
func TestShare_reentriesOfTwo(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		one, two := lock.ContextWithNewOwner(w.Context()), lock.ContextWithNewOwner(w.Context())
		holds := []lock.Hold{w.take(w.a, reading, one), w.take(w.a, reading, two)}
		w.onNext(redistest.Action{DelayReply: time.Millisecond})
		first, second := w.goRead(w.a, one), w.goRead(w.a, two)
		holds = append(holds, <-first, <-second)
		w.wantCount(holds[0], 3) // one for both, and one for each
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
		replies := make(chan struct{})
		read := onRequest(reading, func(r request) (luascripts.Acquired, error) {
			<-replies
			return r.send()
		})
		ctx, cancel := context.WithCancel(w.Context())
		readers := []<-chan lock.Hold{w.goLock(w.a, read, ctx)}
		time.AfterFunc(opTime*2/3, cancel)
		all, enough := context.WithCancel(w.Context())
		for range 20 {
			readers = append(readers, w.goLock(w.a, read, all))
		}
		start := time.Now()
		_, err := w.a.TryLock(w.Context(), w.a.NewSpec(read, "orders", nil))
		w.wantNotErrs(err)
		w.wantWithin(start, opTime+time.Millisecond)
		enough()
		for _, h := range readers {
			if <-h != nil {
				t.Error("it reads")
			}
		}
		close(replies)
	})
}

// The context of a joined reader is canceled while it is admitted, before it returns. The lock does not stay with it.
func TestShare_joinerLeavesWhenAdmitted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		var leave context.CancelFunc
		w.a.Observer = &lock.Observer{Acquired: func(context.Context, lock.Event) { leave() }} // of the reader that sent the request, before the others are admitted
		for range 100 {
			w.onNext(redistest.Action{DelayReply: time.Millisecond})
			ctx, cancel := context.WithCancel(w.Context())
			leave = cancel
			sender := w.goRead(w.a, w.Context())
			var joiners []<-chan lock.Hold
			for range 10 {
				joiners = append(joiners, w.goRead(w.a, ctx))
			}
			w.unlock(<-sender)
			for _, r := range joiners {
				if h := <-r; h != nil {
					_ = h.Unlock(w.Context())
				}
			}
			cancel()
			time.Sleep(time.Millisecond)
			w.wantFree()
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
			w.wantTook(start, 0)
			if other.Owner() != first.Owner() {
				w.Errorf("the first reader is %s, another is %s", first.Owner(), other.Owner())
			}
			w.unlock(other)
		}
		w.unlock(first)
		w.unlockLost(h)
	})
}

// lingering keeps session a subscribed to the channel of the lock, without waiters.
func (w *world) lingering(k *Kind) {
	w.Helper()
	h := w.take(w.b, k, w.Context())
	next := w.goLock(w.a, k, w.Context())
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
		w.onNext(redistest.Action{DelayReply: 20 * time.Millisecond})
		time.AfterFunc(10*time.Millisecond, func() { w.unlock(h) })
		go w.refused(w.a, reading)
		synctest.Wait()
		start := time.Now()
		w.unlock(w.take(w.a, reading, w.Context()))
		w.wantWithin(start, pollTime/2)
	})
}
