package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
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

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// These tests use virtual time and the real rueidis client with an in-memory server, so durations are exact. Package
// reentrant tests the decisions of a real server.

var plain = &Kind{
	WaitPolicy: lockstate.OnlyFirst,
	Mode:       lock.Exclusive,
	Batches:    true,
	Scripts: Scripts{
		Keys:    keys.Plain,
		Acquire: luascripts.AcquireReentrant,
		Release: luascripts.ReleaseReentrant,
		HandOff: luascripts.HandOffReentrant,
		Retain:  luascripts.RetainReentrant,
		Renew:   luascripts.RenewReentrant,
	},
}

// hookable returns a plain kind with functions that a test can replace. Its changes are never sent in batches, which
// bypass the functions.
func hookable() *Kind {
	k := *plain
	k.Batches = false
	return &k
}

const (
	leaseTime = 30 * time.Second
	opTime    = 3 * time.Second
	pollTime  = time.Second
)

// world is a server and two sessions on it, as two processes would have.
type world struct {
	*testing.T
	mini *redistest.Mini
	wire *redistest.Proxy // between a and the server
	rdb  rueidis.Client   // to inspect the server
	a, b *Session

	witness   *witness // of a, in tests that set no other observer
	witnesses *lock.Observer
}

func inBubble(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		w := &world{T: t, mini: m, wire: m.Proxy(t), rdb: m.Client(t), witness: newWitness(t)}
		w.witnesses = w.witness.observer()
		observed := testConfig()
		observed.Observer = w.witnesses
		w.a = w.session(observed)
		w.b = New(m.Client(t), testConfig())
		f(w)
		for _, s := range []*Session{w.a, w.b} {
			if err := s.Close(context.Background()); err != nil {
				t.Errorf("Close: %v", err)
			}
			if len(s.table.known) != 0 || s.hub.Channels() != 0 || s.dog.Len() != 0 {
				t.Errorf("left after Close: %d entries, %d channels, %d leases", len(s.table.known), s.hub.Channels(), s.dog.Len())
			}
		}
		m.Del("leasehold_forced:{orders}") // the audit record of a force-unlock stays for a week
		if keys := m.Keys(); len(keys) != 0 {
			t.Errorf("left in Redis: %q", keys)
		}
		if w.a.Observer == w.witnesses {
			synctest.Wait()
			w.witness.check()
		}
	})
}

func testConfig() Config {
	return Config{Lease: leaseTime, OpTimeout: opTime, Poll: pollTime, Logger: slog.New(slog.DiscardHandler)}
}

// session returns a session whose commands pass the wire.
func (w *world) session(c Config) *Session {
	return New(w.mini.Client(w, redistest.Via(w.wire), oneConnection), c)
}

// oneConnection makes a client send all commands on one connection, so that none overtakes another.
func oneConnection(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }

// must returns h. It ends the test if the call that returned it failed.
func (w *world) must(h lock.Hold, err error) lock.Hold {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
	return h
}

// take locks "orders" as kind.
func (w *world) take(s *Session, kind *Kind, ctx context.Context, opts ...lock.Option) lock.Hold {
	w.Helper()
	return w.must(s.Lock(ctx, s.NewSpec(kind, "orders", opts)))
}

func (w *world) lock(s *Session, ctx context.Context, opts ...lock.Option) lock.Hold {
	w.Helper()
	return w.take(s, plain, ctx, opts...)
}

// mustLock locks by spec, which is of session a.
func (w *world) mustLock(ctx context.Context, spec *Spec) lock.Hold {
	w.Helper()
	return w.must(w.a.Lock(ctx, spec))
}

func (w *world) unlock(h lock.Hold) {
	w.Helper()
	w.wantNoErr(h.Unlock(w.Context()))
}

// count is the server's hold count of h's owner.
func (w *world) count(h lock.Hold) int {
	n, _ := strconv.Atoi(w.mini.HGet("orders", h.Owner()))
	return n
}

func TestUntil_countsFromTheSend(t *testing.T) {
	inBubble(t, func(w *world) {
		w.onNext(redistest.Action{DelayReply: 2 * time.Second})
		sent := time.Now()
		h := w.lock(w.a, w.Context())
		if took := time.Since(sent); took != 2*time.Second {
			w.Fatalf("the lock took %v", took)
		}
		if want := sent.Add(leaseTime - leaseTime/100 - 2*time.Millisecond); !h.Until().Equal(want) {
			w.Errorf("Until is %v after the send, want %v", h.Until().Sub(sent), want.Sub(sent))
		}
		w.unlock(h)
	})
}

type key struct{}

// lostOnly returns err if it matches lock.ErrLost, and nil otherwise.
func lostOnly(err error) error {
	if errors.Is(err, lock.ErrLost) {
		return err
	}
	return nil
}

// A process was paused: no goroutine of the session ran, and the first check must be right. The test checks before the
// bubble's timers run.
func TestContext_detectsALossAtTheFirstCheck(t *testing.T) {
	forEach(t, map[string]func(h lock.Hold) error{
		"Err":             func(h lock.Hold) error { return h.Err() },
		"Context().Err()": func(h lock.Hold) error { return h.Context().Err() },
		"Cause":           func(h lock.Hold) error { return lostOnly(context.Cause(h.Context())) },
		"Cause of a value": func(h lock.Hold) error {
			return lostOnly(context.Cause(context.WithValue(h.Context(), key{}, "v")))
		},
	}, func(w *world, check func(h lock.Hold) error) {
		h := w.untilTheClock(lock.WithFixedLease(time.Second))
		if err := check(h); err == nil {
			w.Error("valid at Until")
		}
		w.wantErr(context.Cause(h.Context()), lock.ErrLost)
		time.Sleep(time.Second) // until Redis has expired the key
	})
}

func TestLoss_notifiedAtUntilWhenDisconnected(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		time.Sleep(leaseTime)
		synctest.Wait()
		until := h.Until()
		w.cut()
		<-h.Context().Done()
		if late := time.Since(until); late != 0 {
			w.Errorf("notified %v after Until", late)
		}
		w.wantErr(h.Err(), lock.ErrLost)
		w.wire.Refuse(false)
	})
}

// Every reply takes longer than the operation timeout. A late reply to a renewal still extends the lease, which is
// longer.
func TestHold_survivesLateReplies(t *testing.T) {
	inBubble(t, func(w *world) {
		const lease, op, late = 3 * time.Second, 300 * time.Millisecond, 400 * time.Millisecond
		c := testConfig()
		c.Lease, c.OpTimeout = lease, op
		var renewed atomic.Int64
		c.Observer = new(lock.Observer)
		c.Observer.Renewed = func(context.Context, lock.Event) { renewed.Add(1) }
		s := w.session(c)
		h := w.lock(s, w.Context())
		start := time.Now()
		sent := w.slowScripts(late)
		time.Sleep(10*lease + late)
		w.wantHeld(h)
		if n := sent.Load(); n > 40 {
			w.Errorf("%d commands in ten leases, want about one in each third", n)
		}
		if want := start.Add(11*lease - lease/100 - 2*time.Millisecond); h.Until().After(want) || h.Until().Before(want.Add(-lease/3)) {
			w.Errorf("Until is %v before the end of the latest renewal", want.Sub(h.Until()))
		}
		if n := renewed.Load(); n < 29 {
			w.Errorf("got %d Renewed events", n)
		}
		w.wire.OnRequest(nil)
		time.Sleep(late) // no late reply is in flight any more
		w.unlock(h)
		w.wantNoErr(s.Close(w.Context()))
	})
}

// A restarted server does not have the script. The renewal must be resent with the source, and still arrives in time.
func TestHold_survivesAnEmptyScriptCache(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.rdb.Do(w.Context(), w.rdb.B().ScriptFlush().Build())
		sent := w.slowScripts(opTime/2 - time.Millisecond)
		time.Sleep(leaseTime / 2)
		w.wantSent(sent, 2)
		time.Sleep(leaseTime)
		w.wantNoErr(h.Err())
		w.wire.OnRequest(nil)
		w.unlock(h)
	})
}

func TestLoss_notifiedAtTheNextRenewal(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		start := time.Now()
		w.mini.Del("orders")
		<-h.Context().Done()
		w.wantWithin(start, leaseTime/3)
	})
}

func TestQueue_firstComeFirstServed(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		var stay []<-chan lock.Hold
		var leave []<-chan error
		for i := range 50 {
			if i%5 == 4 {
				leave = append(leave, w.beginLock(w.a, plain, w.within(time.Second)))
			} else {
				stay = append(stay, w.waiting(w.a, w.Context()))
			}
		}
		for _, left := range leave {
			w.wantErr(<-left, context.DeadlineExceeded)
		}
		w.unlock(h)
		for _, waiter := range stay {
			w.unlock(w.next(waiter))
		}
	})
}

// Two calls of one owner are executed one after the other, and the second re-enters.
func TestSameOwner_onTwoGoroutines(t *testing.T) {
	inBubble(t, func(w *world) {
		first := w.lock(w.b, w.Context())
		ctx := lock.ContextWithNewOwner(w.Context())
		holds := make(chan lock.Hold, 2)
		for range 2 {
			go func() { holds <- w.lock(w.a, ctx) }()
		}
		synctest.Wait()
		spec := w.a.NewSpec(plain, "orders", nil)
		w.wantFail(w.a.TryLock, ctx, spec, lock.ErrNotAcquired)
		w.unlock(first)
		a, b := <-holds, <-holds
		if a.Owner() != b.Owner() || w.count(a) != 2 {
			w.Errorf("owners %s and %s, count %d", a.Owner(), b.Owner(), w.count(a))
		}
		w.unlockAll(a, b)
	})
}

// One goroutine re-enters while two others of its owner release everything: the second of them must not wait for the
// turn that the first one has.
func TestSameOwner_unlockDoesNotWaitForALock(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h1, h2 := w.lock(w.a, ctx), w.lock(w.a, ctx)
		served := make(chan struct{})
		go func() { // another process acquires it next, for ten seconds
			defer close(served)
			h := w.lock(w.b, w.Context())
			time.Sleep(10 * time.Second)
			w.unlock(h)
		}()
		synctest.Wait()
		w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayRequest: 5 * time.Millisecond} })
		var wg sync.WaitGroup
		wg.Go(func() { w.unlock(w.lock(w.a, ctx)) })
		time.Sleep(time.Millisecond)
		for _, h := range []lock.Hold{h1, h2} {
			wg.Go(func() {
				start := time.Now()
				if err := h.Unlock(w.Context()); err != nil || time.Since(start) > time.Second {
					w.Errorf("unlock: %v after %v", err, time.Since(start))
				}
			})
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		<-served
	})
}

// Goroutines of one owner lock and unlock in random order. No hold is lost.
func TestSameOwner_anyOrder(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(func([][]byte) redistest.Action {
			return redistest.Action{DelayRequest: time.Duration(rand.IntN(3)) * time.Millisecond}
		})
		ctx := lock.ContextWithNewOwner(w.Context())
		spec := w.a.NewSpec(plain, "orders", nil)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 200 {
					h, err := w.a.Lock(ctx, spec)
					if err != nil {
						w.Errorf("lock: %v", err)
						return
					}
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
					if err := h.Unlock(w.Context()); err != nil {
						w.Errorf("unlock: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// A goroutine that checks its hold while others are still being notified must also detect the loss.
func TestLoss_detectedByAllAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		notify := make(chan struct{})
		w.observer().Lost = func(context.Context, lock.Event) { <-notify } // a slow one
		var holds []lock.Hold
		for i := range 10 {
			spec := w.a.NewSpec(plain, fmt.Sprint("orders", i), []lock.Option{lock.WithFixedLease(time.Second)})
			holds = append(holds, w.mustLock(w.Context(), spec))
		}
		time.Sleep(2 * time.Second)
		for _, h := range holds {
			w.wantErr(h.Context().Err())
			w.wantErr(h.Err(), lock.ErrLost)
			w.wantErr(h.Unlock(w.Context()), lock.ErrLost)
		}
		close(notify)
	})
}

func TestUntil_endsWithTheHold(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, lock.ContextWithNewOwner(w.Context()))
		inner := w.lock(w.a, outer.Context())
		time.Sleep(time.Second)
		w.unlock(inner)
		if left := time.Until(inner.Until()); left > 0 {
			w.Errorf("Until of the inner hold lies %v ahead after its Unlock", left)
		}
		if left := time.Until(outer.Until()); left < leaseTime/2 {
			w.Errorf("Until of the outer hold is %v ahead", left)
		}
		w.unlock(outer)
		if left := time.Until(outer.Until()); left > 0 {
			w.Errorf("Until of the outer hold lies %v ahead after its Unlock", left)
		}
	})
}

// The holder gave up, but the server executed the renewal: the lock is released.
func TestLoss_releasesTheLock(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		time.Sleep(leaseTime / 2) // the first renewal loads the script
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			return redistest.Action{DropReply: string(req[0]) == "EVALSHA"}
		})
		<-h.Context().Done()
		if left := w.mini.TTL("orders"); left < leaseTime/2 {
			w.Fatalf("the server has it for only %v more: the renewals did not arrive", left)
		}
		w.wire.OnRequest(nil)
		time.Sleep(2 * opTime)
		synctest.Wait()
		w.wantEmpty()
	})
}

// A reentry without a reply keeps the owner's turn. Other calls wait for the turn no longer than for Redis.
func TestTurn_waitIsLimited(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		w.onNext(redistest.Action{DelayRequest: 8 * time.Second})
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := w.a.Lock(short, w.a.NewSpec(plain, "orders", nil)); err == nil {
			w.Error("granted without a reply")
		}
		start := time.Now()
		if _, err := w.a.TryLock(ctx, w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != opTime {
			w.Errorf("TryLock: %v after %v", err, time.Since(start))
		}
		start = time.Now()
		if err := inner.Unlock(w.Context()); err == nil || time.Since(start) > opTime {
			w.Errorf("Unlock: %v after %v", err, time.Since(start))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := w.count(outer); n != 1 || outer.Err() != nil {
			w.Errorf("count %d, outer %v", n, outer.Err())
		}
		w.unlock(outer)
	})
}

// A duplicate of a request that arrives long after its acquisition has ended must neither leave a lock nor affect the
// owner's next acquisition.
func TestRequest_ofAnEarlierAcquisition(t *testing.T) {
	inBubble(t, func(w *world) {
		delayed := make(chan struct{})
		w.onNext(redistest.Action{HoldRequest: delayed})
		ctx := lock.ContextWithNewOwner(w.Context())
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if _, err := w.a.Lock(short, w.a.NewSpec(plain, "orders", nil)); err == nil {
			w.Fatal("granted")
		}
		other := w.lock(w.b, w.Context()) // another owner has the lock in the meantime
		w.unlock(other)
		close(delayed) // now the old request arrives, and is granted
		h := w.lock(w.a, ctx)
		time.Sleep(2 * opTime)
		if err := h.Err(); err != nil || w.count(h) != 1 {
			w.Errorf("the new acquisition: %v, count %d", err, w.count(h))
		}
		w.unlock(h)
	})
}
