package session

import (
	"context"
	"io"
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
	"github.com/redis/rueidis"
)

// Which waiters send requests, and when, for kinds with special wait policies.

var fair = &Kind{
	WaitPolicy:       lockstate.FairQueue,
	Mode:             lock.Exclusive,
	HasWaiterTimeout: true,
	Scripts: Scripts{
		Keys:    keys.Fair,
		Acquire: luascripts.AcquireFair,
		Release: luascripts.ReleaseFair,
		Retain:  luascripts.RetainReentrant,
		Renew:   luascripts.RenewReentrant,
		HandOff: luascripts.HandOffFair,
		Keep:    luascripts.KeepFair,
	},
}

var reading, writing = func() (r, w *Kind) {
	r = &Kind{Mode: lock.Read, WaitPolicy: lockstate.AllAtOnce, HasWaiterTimeout: true, Scripts: Scripts{Keys: keys.ReadWrite, Acquire: luascripts.AcquireRead, Release: luascripts.ReleaseRead, Renew: luascripts.RenewRead}}
	w = &Kind{Mode: lock.Write, WaitPolicy: lockstate.OnlyFirst, HasWaiterTimeout: true, Scripts: Scripts{Keys: keys.ReadWrite, Acquire: luascripts.AcquireWrite, Release: luascripts.ReleaseWrite, Renew: luascripts.RenewWrite}}
	r.Sibling, w.Sibling = w, r
	return r, w
}()

// scripts counts the scripts that session a sends.
func (w *world) scripts() *atomic.Int64 { return w.slowScripts(0) }

// onScripts lets do decide what happens to each call of a loaded script. n is 1 for the first call.
func (w *world) onScripts(do func(n int) redistest.Action) {
	n := 0
	w.wire.OnRequest(func(args [][]byte) redistest.Action {
		if string(args[0]) != "EVALSHA" {
			return redistest.Action{}
		}
		n++
		return do(n)
	})
}

// slowScripts also counts the scripts, and delays their replies.
func (w *world) slowScripts(delay time.Duration) *atomic.Int64 {
	var n atomic.Int64
	w.wire.OnRequest(func(req [][]byte) (a redistest.Action) {
		if name := string(req[0]); name == "EVALSHA" || name == "EVAL" {
			n.Add(1)
			a.DelayReply = delay
		}
		return a
	})
	return &n
}

// inOrder starts n waiters one after the other, each after the previous one is queued. It returns a function that waits
// for all and returns the order in which they acquired the lock.
func (w *world) inOrder(n int, wait func(i int) lock.Hold) (served func() []int) {
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			h := wait(i)
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			w.unlock(h)
		})
		synctest.Wait()
	}
	return func() []int {
		wg.Wait()
		return order
	}
}

func TestReaders_enterTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		const readers = 30
		h := w.take(w.b, writing, w.Context())
		var in atomic.Int64
		var wg sync.WaitGroup
		leave := make(chan struct{})
		read := func() {
			h := w.take(w.a, reading, w.Context())
			in.Add(1)
			<-leave
			w.unlock(h)
		}
		for range readers {
			wg.Go(read)
		}
		time.Sleep(pollTime * 3 / 2) // not at a poll
		n := w.scripts()
		for range readers { // a later reader finds others waiting, and sends no request
			time.Sleep(2 * time.Second)
			wg.Go(read)
		}
		if got := n.Load(); got < 39 || got > 43 { // one a second, and after some time one every third of the waiter timeout
			w.Errorf("%d waiting readers sent %d commands in a minute, want 41", readers, got)
		}
		w.unlock(h)
		synctest.Wait()
		if got := in.Load(); got != 2*readers {
			w.Errorf("%d of %d readers are in", got, 2*readers)
		}
		close(leave)
		wg.Wait()
	})
}

// Readers that need not wait are not queued: the first requests of many readers are in flight together.
func TestReaders_doNotWaitForEachOther(t *testing.T) {
	inBubble(t, func(w *world) {
		const trip = 10 * time.Millisecond
		far := onRequest(reading, func(r request) (luascripts.Acquired, error) {
			time.Sleep(trip)
			return r.send()
		})
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 30 {
			acquire := w.lockOrTry(i%2 == 1)
			wg.Go(func() {
				h, err := acquire(w.Context(), w.a.NewSpec(far, "orders", nil))
				if err != nil {
					w.Error(err)
					return
				}
				w.wantTook(start, trip)
				w.unlock(h)
			})
		}
		wg.Wait()
	})
}

// The intent of a writer stays while the writer waits, even longer than the waiter timeout of one request, and is
// removed with the writer.
func TestWriter_holdsReadersBackWhileItWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, reading, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.beginLock(w.a, writing, ctx, lock.WithWaiterTimeout(900*time.Millisecond))
		time.Sleep(time.Millisecond) // the writer came first
		reader := w.goRead(w.b, w.Context())
		for range 20 {
			time.Sleep(450 * time.Millisecond)
			w.refused(w.b, reading)
		}
		w.unlock(w.take(w.b, reading, h.Context())) // an owner that already reads may
		left := time.Now()
		cancel()
		w.wantErr(<-gone, context.Canceled)
		w.unlock(<-reader)
		w.wantTook(left, 0)
		w.unlock(h)
	})
}

// A reader of this process waits for a writer, which then requests a read hold. The writer is admitted immediately:
// otherwise the two would wait for each other.
func TestWriter_readsAtOnce(t *testing.T) {
	forEach(t, map[string][]lock.Option{
		"as others":     nil,
		"readers first": {lock.WithReaderPreference()},
	}, func(w *world, opts []lock.Option) {
		ctx := lock.ContextWithNewOwner(w.Context())
		write := w.take(w.a, writing, ctx)
		waits := w.goRead(w.a, w.Context())
		time.Sleep(pollTime / 2)
		n := w.scripts()
		start := time.Now()
		read := w.take(w.a, reading, ctx, opts...)
		w.wantTook(start, 0)
		synctest.Wait()
		w.wantSent(n, 1) // that of the writer alone: no other caller can get in
		w.unlock(write)
		other := <-waits
		w.unlockAll(read, other)
	})
}

// An owner requests a read hold behind another reader. Then the same owner acquires the write side, and with it the
// read hold.
func TestWriter_readsAlthoughItWasQueued(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, writing, w.Context())
		first := w.goRead(w.a, w.Context())
		ctx := lock.ContextWithNewOwner(w.Context())
		read := w.goRead(w.a, ctx)
		time.Sleep(pollTime / 2)
		w.mini.Del("orders") // no message notifies the readers
		write := w.take(w.a, writing, ctx)
		r := w.next(read)
		w.unlock(write)
		w.unlock(<-first)
		w.unlock(r)
		w.unlockLost(h)
	})
}

// A reader waits behind a waiting writer. A second reader, with reader preference, does not wait behind the first.
func TestReaders_preferenceDoesNotWaitBehindOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, reading, w.Context())
		writer := w.goLock(w.b, writing, w.Context())
		time.Sleep(time.Millisecond)
		polite := w.goRead(w.a, w.Context())
		time.Sleep(pollTime / 2)
		start := time.Now()
		rude := w.take(w.a, reading, w.Context(), lock.WithReaderPreference())
		w.wantTook(start, 0)
		w.waitsOn(polite)
		w.unlockAll(rude, h)
		w.unlockEach(writer, polite)
	})
}

// A writer with reader preference waits, and behind it in the same process a writer without. The second has its intent
// in Redis, and acquires the lock although others read without a gap.
func TestWriter_intentBehindAWriterWithoutIt(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, reading, w.Context())
		rude := w.goLock(w.a, writing, w.Context(), lock.WithReaderPreference())
		time.Sleep(pollTime / 2)
		w.unlock(w.take(w.b, reading, w.Context(), lock.WithFixedLease(leaseTime))) // no waiting writer blocks the reader
		polite := w.goLock(w.a, writing, w.Context())
		time.Sleep(time.Millisecond)
		w.refused(w.b, reading)
		w.unlock(h)
		for range 2 {
			select {
			case h = <-rude:
				rude = nil
			case h = <-polite:
				polite = nil
			}
			w.unlock(h)
		}
	})
}

// The first reader in the queue waits for replicas after it was granted the lock. The others need not wait for them.
func TestReaders_doNotWaitForReplicasOfOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		const wait = 2 * time.Second
		kind, _ := confirmingReplicas(reading, wait)
		h := w.take(w.b, writing, w.Context())
		slow := w.goLock(w.a, kind, w.Context(), lock.WithReplicas(1, wait))
		other := w.goLock(w.a, kind, w.Context())
		time.Sleep(pollTime / 2)
		released := time.Now()
		w.unlock(h)
		w.unlock(<-other)
		w.wantTook(released, 0)
		w.unlock(<-slow)
		w.wantTook(released, wait)
	})
}

// A writer of this process leaves, and no message arrives: the readers of every queue send requests.
func TestReaders_wokenByALocalWriter(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub()
		h := w.take(w.a, writing, w.Context())
		polite, rude := w.goRead(w.a, w.Context()), w.goRead(w.a, w.Context(), lock.WithReaderPreference())
		time.Sleep(10*pollTime + pollTime/2)
		released := time.Now()
		w.unlock(h)
		w.unlockEach(polite, rude)
		w.wantTook(released, 0)
	})
}

// Readers are renewed individually: the lease of a disconnected reader expires, although others continue.
func TestReaders_keepOnlyThemselvesAlive(t *testing.T) {
	inBubble(t, func(w *world) {
		stays := w.take(w.b, reading, w.Context())
		dies := w.take(w.a, reading, w.Context())
		time.Sleep(time.Minute)
		w.cut()
		cut := time.Now()
		<-dies.Context().Done()
		w.wantErr(dies.Err(), lock.ErrLost)
		w.wantWithin(cut, leaseTime)
		time.Sleep(leaseTime)
		writer := w.goLock(w.b, writing, w.Context())
		released := time.Now()
		w.unlock(stays)
		w.unlock(<-writer)
		w.wantTook(released, 0)
		w.wire.Refuse(false)
	})
}

// The lease of a read hold covers the owner's other read holds, and is not
// shortened by any of them.
func TestReaders_mixedLeases(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		long := w.take(w.a, reading, ctx, lock.WithFixedLease(10*time.Minute))
		w.unlock(w.take(w.a, reading, ctx, lock.WithFixedLease(time.Second)))
		time.Sleep(5 * time.Minute)
		w.wantHeld(long)
		w.refused(w.b, writing)
		w.unlock(long)
	})
}

// A writer of this process does not send a request at each release of a reader of this process, but after the last one.
func TestWriter_wokenByTheLastReader(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		var readers []lock.Hold
		for range 20 { // each separately
			readers = append(readers, w.take(w.a, reading, w.Context(), lock.WithFixedLease(leaseTime)))
		}
		writer := w.goLock(w.a, writing, w.Context())
		time.Sleep(pollTime / 2)
		n := w.scripts()
		for _, h := range readers {
			w.unlock(h)
			synctest.Wait()
		}
		w.unlock(<-writer)
		w.wantSent(n, 20+2) // 20 releases, one request and one release
	})
}

// A reader that came before a waiting writer ignores its intent; one that comes later does not.
func TestReaders_passAWriterThatCameLater(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, writing, w.Context())
		first := w.goRead(w.a, w.Context())
		time.Sleep(pollTime / 2)
		writer := w.goLock(w.b, writing, w.Context())
		time.Sleep(pollTime / 4)
		// A reader holds the lock now, and the writer must wait for it. The writer is not notified of the reader.
		w.mini.Del("orders")
		stays := w.take(w.b, reading, w.Context(), lock.WithReaderPreference())
		in := <-first
		w.refused(w.a, reading)
		w.unlockLost(h)
		w.unlockAll(in, stays)
		w.unlock(<-writer)
	})
}

// A writer waits, and then readers come. When the current writer leaves, all these readers enter before the waiting
// writer. Readers that come later wait for it.
func TestReaders_batchWhenAWriterLeaves(t *testing.T) {
	forEach(t, processes, func(w *world, of func(w *world) *Session) {
		h := w.take(w.b, writing, w.Context())
		next := w.goLock(of(w), writing, w.Context())
		time.Sleep(pollTime / 2)
		var readers []<-chan lock.Hold
		for range 5 {
			readers = append(readers, w.goRead(w.a, w.Context()))
		}
		time.Sleep(pollTime / 2)
		w.unlock(h)
		var in []lock.Hold
		for _, r := range readers {
			in = append(in, w.next(r))
		}
		time.Sleep(time.Millisecond)
		late := w.goRead(w.b, w.Context())
		for _, h := range in {
			w.waitsOn(next)
			w.waitsOn(late)
			w.unlock(h)
		}
		w.unlockEach(next, late)
		synctest.Wait()
		w.wantEmpty()
	})
}

// slow returns a kind whose replies are delayed by d.
func slow(k Kind, d time.Duration) *Kind {
	acquire, keep := k.Acquire, k.Keep
	k.Acquire = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
		a, err := acquire(ctx, rdb, keys, q)
		time.Sleep(d)
		return a, err
	}
	if keep != nil {
		k.Keep = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, all []luascripts.Waiter) (luascripts.Kept, error) {
			kept, err := keep(ctx, rdb, keys, all)
			time.Sleep(d)
			return kept, err
		}
	}
	return &k
}

// Redis does not respond. Readers retry with backoff, like all waiters.
func TestReaders_pauseAfterErrors(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		requests := 0
		broken := onRequest(reading, func(r request) (luascripts.Acquired, error) {
			if requests = r.n; r.n > 1000 {
				cancel()
			}
			return luascripts.Acquired{}, io.EOF
		})
		broken.Release = func(context.Context, rueidis.Client, luascripts.Keys, string, int) (luascripts.Verdict, error) {
			return luascripts.Gone, nil
		}
		w.wantFail(w.a.Lock, ctx, w.a.NewSpec(broken, "orders", nil), context.DeadlineExceeded, io.EOF)
		if requests > 100 {
			w.Errorf("%d requests in ten seconds", requests)
		}
	})
}
