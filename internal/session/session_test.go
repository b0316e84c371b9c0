package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/hint"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// These tests run on virtual time, with the real client library over a server
// in memory: durations are exact. What a server decides is tested on a real one,
// in package reentrant.

var plain = &Kind{
	Waits: place.FirstAsks,
	Mode:  lock.Exclusive,
	Joins: true,
	Scripts: Scripts{
		Keys:    keys.Plain,
		Acquire: luascripts.AcquireReentrant,
		Release: luascripts.ReleaseReentrant,
		Pass:    luascripts.PassReentrant,
		Retain:  luascripts.RetainReentrant,
		Renew:   luascripts.RenewReentrant,
	},
}

// hookable returns a plain kind whose functions a test can replace: changes that travel with others
// do not come to them.
func hookable() *Kind {
	k := *plain
	k.Joins = false
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
	rdb  rueidis.Client   // to look at the server with
	a, b *Session

	witness   *witness // of a, in each test that sets no other observer
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
		w.a = New(m.Client(t, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }), observed)
		w.b = New(m.Client(t), testConfig())
		f(w)
		for _, s := range []*Session{w.a, w.b} {
			if err := s.Close(context.Background()); err != nil {
				t.Errorf("Close: %v", err)
			}
			if len(s.places.known) != 0 || s.hub.Channels() != 0 || s.dog.Len() != 0 {
				t.Errorf("left after Close: %d places, %d channels, %d leases", len(s.places.known), s.hub.Channels(), s.dog.Len())
			}
		}
		m.Del("leasehold_forced:{orders}") // the record of a forced unlock stays for a week
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

func (w *world) lock(s *Session, ctx context.Context, opts ...lock.Option) lock.Hold {
	w.Helper()
	h, err := s.Lock(ctx, s.NewSpec(plain, "orders", opts))
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *world) unlock(h lock.Hold) {
	w.Helper()
	if err := h.Unlock(w.Context()); err != nil {
		w.Error(err)
	}
}

// count is the server's hold count of h's owner.
func (w *world) count(h lock.Hold) int {
	n, _ := strconv.Atoi(w.mini.HGet("orders", h.Owner()))
	return n
}

func TestUntil_countsFromTheSend(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 2 * time.Second}))
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

func TestHold_livesForHours(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		for range 12 {
			time.Sleep(20 * time.Minute)
			if err := h.Err(); err != nil {
				w.Fatal(err)
			}
			if w.count(h) != 1 {
				w.Fatal("the server does not have it any more")
			}
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

// A process was stopped: no goroutine of the session ran, and the first look must
// be right. In the test none has run because none could: the look comes before
// the bubble's timers.
func TestContext_tellsTheTruthAtTheFirstLook(t *testing.T) {
	for name, look := range map[string]func(h lock.Hold) error{
		"Err":             func(h lock.Hold) error { return h.Err() },
		"Context().Err()": func(h lock.Hold) error { return h.Context().Err() },
		"Cause":           func(h lock.Hold) error { return lostOnly(context.Cause(h.Context())) },
		"Cause of a value": func(h lock.Hold) error {
			return lostOnly(context.Cause(context.WithValue(h.Context(), key{}, "v")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				// At one instant of virtual time the sleeper or the watchdog's
				// timer runs first, by chance; only the former is a first look.
				for range 100 {
					h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Second))
					ended := h.Context().Done()
					time.Sleep(time.Until(h.Until()))
					select {
					case <-ended:
						time.Sleep(time.Second)
						continue
					default:
					}
					if err := look(h); err == nil {
						w.Error("valid at Until")
					}
					if err := context.Cause(h.Context()); !errors.Is(err, lock.ErrLost) {
						w.Errorf("cause %v", err)
					}
					time.Sleep(time.Second) // until Redis has let the key expire
					return
				}
				w.Error("the timer was first a hundred times")
			})
		})
	}
}

func TestLoss_isToldAtUntilWhenTheServerIsCutOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		time.Sleep(leaseTime)
		synctest.Wait()
		until := h.Until()
		w.wire.Refuse(true)
		w.wire.CutAll()
		<-h.Context().Done()
		if late := time.Since(until); late != 0 {
			w.Errorf("told %v after Until", late)
		}
		if err := h.Err(); !errors.Is(err, lock.ErrLost) {
			w.Errorf("cause %v", err)
		}
		w.wire.Refuse(false)
	})
}

// Every answer takes longer than the operation time-out. What the server says of a renewal
// counts all the same, as its lease lasts longer than that.
func TestHold_livesOnLateAnswers(t *testing.T) {
	inBubble(t, func(w *world) {
		const lease, op, late = 3 * time.Second, 300 * time.Millisecond, 400 * time.Millisecond
		c := testConfig()
		c.Lease, c.OpTimeout = lease, op
		var renewed atomic.Int64
		c.Observer = new(lock.Observer)
		c.Observer.Renewed = func(context.Context, lock.Event) { renewed.Add(1) }
		s := New(w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }), c)
		h := w.lock(s, w.Context())
		start := time.Now()
		sent := w.slowScripts(late)
		time.Sleep(10*lease + late)
		if err := h.Err(); err != nil {
			w.Errorf("%v, after %d renewals", err, sent.Load())
		}
		if n := sent.Load(); n > 40 {
			w.Errorf("%d commands in ten leases, want about one in each third", n)
		}
		if want := start.Add(11*lease - lease/100 - 2*time.Millisecond); h.Until().After(want) || h.Until().Before(want.Add(-lease/3)) {
			w.Errorf("Until is %v before the end of the latest renewal", want.Sub(h.Until()))
		}
		if n := renewed.Load(); n < 29 {
			w.Errorf("%d renewals were told", n)
		}
		w.wire.OnRequest(nil)
		time.Sleep(late) // no late answer is under way any more
		w.unlock(h)
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A server that was started anew does not know the script. The renewal has to be sent with
// the text then, and comes in time all the same.
func TestHold_livesOnWhenTheScriptIsUnknown(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.rdb.Do(w.Context(), w.rdb.B().ScriptFlush().Build())
		sent := w.slowScripts(opTime/2 - time.Millisecond)
		time.Sleep(leaseTime / 2)
		if n := sent.Load(); n != 2 {
			w.Errorf("%d commands for a renewal by a script that the server does not know, want 2", n)
		}
		time.Sleep(leaseTime)
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.wire.OnRequest(nil)
		w.unlock(h)
	})
}

func TestLoss_isToldAtTheNextRenewal(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		start := time.Now()
		w.mini.Del("orders")
		<-h.Context().Done()
		if took := time.Since(start); took > leaseTime/3 {
			w.Errorf("told after %v, a renewal is due every %v", took, leaseTime/3)
		}
	})
}

func TestWaiter_isWokenByTheMessage(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		var served time.Time
		done := make(chan struct{})
		go func() {
			defer close(done)
			h := w.lock(w.b, w.Context())
			served = time.Now()
			w.unlock(h)
		}()
		time.Sleep(10*time.Second + pollTime/2) // not at a poll
		freed := time.Now()
		w.unlock(h)
		<-done
		if late := served.Sub(freed); late != 0 {
			w.Errorf("served %v after the release", late)
		}
	})
}

// Without any message a waiter asks every poll interval, and when the lease it
// was told of is over.
func TestWaiter_asksByItself(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			return redistest.Action{DropRequest: string(req[0]) == "SUBSCRIBE"}
		})
		w.rdb.Do(w.Context(), w.rdb.B().Hset().Key("orders").FieldValue().FieldValue("0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1").Build())
		w.mini.SetTTL("orders", 300*time.Millisecond)
		start := time.Now()
		h := w.lock(w.a, w.Context())
		if took := time.Since(start); took < 300*time.Millisecond || took > 310*time.Millisecond {
			w.Errorf("served after %v, the other's lease was 300ms", took)
		}
		w.unlock(h)

		w.rdb.Do(w.Context(), w.rdb.B().Hset().Key("orders").FieldValue().FieldValue("0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1").Build())
		time.AfterFunc(10*time.Second, func() { w.mini.Del("orders") }) // publishes nothing
		start = time.Now()
		h = w.lock(w.a, w.Context())
		if took := time.Since(start); took < 10*time.Second || took > 10*time.Second+pollTime {
			w.Errorf("served after %v, it was freed after 10s", took)
		}
		w.unlock(h)
	})
}

// The release falls between the waiter's question and its subscription.
func TestWaiter_asksAgainWhenItListens(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		subscribe := make(chan struct{})
		w.wire.OnRequest(redistest.Once("SUBSCRIBE", redistest.Action{HoldRequest: subscribe}))
		done := make(chan time.Time)
		go func() {
			h := w.lock(w.a, w.Context())
			w.unlock(h)
			done <- time.Now()
		}()
		synctest.Wait() // it was refused, and its subscription is under way
		w.unlock(h)     // publishes without a listener
		start := time.Now()
		close(subscribe)
		if took := (<-done).Sub(start); took != 0 {
			w.Errorf("served %v after it listened", took)
		}
	})
}

func TestLine_firstComeFirstServed(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				ctx := w.Context()
				if i%5 == 4 { // every fifth goes away
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				}
				h, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
				if err != nil {
					if i%5 != 4 || !errors.Is(err, context.DeadlineExceeded) {
						w.Errorf("waiter %d: %v", i, err)
					}
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				w.unlock(h)
			})
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		w.unlock(h)
		wg.Wait()
		if len(order) != 40 {
			w.Fatalf("%d were served, want 40", len(order))
		}
		for i := 1; i < len(order); i++ {
			if order[i] < order[i-1] {
				w.Fatalf("served in the order %v", order)
			}
		}
	})
}

// TryLock neither overtakes nor waits.
func TestTryLock_doesNotOvertake(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if _, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, context.Canceled) {
				w.Error(err)
			}
		}()
		synctest.Wait()
		start := time.Now()
		if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, lock.ErrNotAcquired) || time.Since(start) != 0 {
			w.Errorf("%v after %v", err, time.Since(start))
		}
		cancel()
		<-gone
		w.unlock(h)
	})
}

// Two calls of one owner go one after the other, and the second re-enters.
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
		if _, err := w.a.TryLock(ctx, spec); !errors.Is(err, lock.ErrNotAcquired) {
			w.Errorf("TryLock while the same owner waits: %v", err)
		}
		w.unlock(first)
		a, b := <-holds, <-holds
		if a.Owner() != b.Owner() || w.count(a) != 2 {
			w.Errorf("owners %s and %s, count %d", a.Owner(), b.Owner(), w.count(a))
		}
		w.unlock(a)
		w.unlock(b)
	})
}

// A TryLock waits for the turn of its owner, whose lock is lost meanwhile: then another call of the owner is ahead, and waits for another
// owner. Redis answers all the time.
func TestTryLock_behindAWaitOfItsOwner(t *testing.T) {
	for name, try := range map[string]func(w *world, ctx context.Context) error{
		"one": func(w *world, ctx context.Context) error {
			_, err := w.a.TryLock(ctx, w.a.NewSpec(plain, "orders", nil))
			return err
		},
		"several": func(w *world, ctx context.Context) error {
			_, err := w.a.LockAll(ctx, w.all(w.a, "orders", "other"), luascripts.AcquireAllReentrant, false)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				ctx := lock.ContextWithNewOwner(w.Context())
				lost := w.lock(w.a, ctx)
				w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: opTime / 2}))
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, lock.ErrLost) { // has the turn
						w.Errorf("the re-entry: %v", err)
					}
				})
				synctest.Wait()
				wg.Go(func() { w.unlock(w.lock(w.a, ctx)) }) // has the next turn
				synctest.Wait()
				wg.Go(func() {
					start := time.Now()
					err := try(w, ctx)
					if !errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) || time.Since(start) != opTime {
						w.Errorf("%v after %v", err, time.Since(start))
					}
				})
				synctest.Wait()
				w.mini.Del("orders")
				other := w.lock(w.b, w.Context())
				time.Sleep(2 * opTime)
				w.unlock(other)
				wg.Wait()
				if err := lost.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
					w.Errorf("the lost one: %v", err)
				}
			})
		})
	}
}

// A grant whose reply takes longer than its lease is no hold.
func TestGrantBornTooLate(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			if string(req[0]) == "EVALSHA" || string(req[0]) == "EVAL" {
				return redistest.Action{DelayReply: 200 * time.Millisecond}
			}
			return redistest.Action{}
		})
		spec := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithFixedLease(100 * time.Millisecond)})
		for name, f := range map[string]func(context.Context, *Spec) (lock.Hold, error){"Lock": w.a.Lock, "TryLock": w.a.TryLock} {
			h, err := f(w.Context(), spec)
			if h != nil || !errors.As(err, new(tooLate)) {
				w.Errorf("%s: %v, %v", name, h, err)
			}
		}
		w.wire.OnRequest(nil)
		time.Sleep(3 * opTime)
	})
}

// The reply is lost, the caller is gone: nothing may stay.
func TestAbandoned_isTakenBack(t *testing.T) {
	for _, fault := range []string{"reply is slow", "reply is lost", "request is slow"} {
		t.Run(fault, func(t *testing.T) {
			inBubble(t, func(w *world) {
				act := map[string]redistest.Action{
					"reply is slow":   {DelayReply: 2 * time.Second},
					"reply is lost":   {DelayReply: 2 * time.Second, DropReply: true},
					"request is slow": {DelayRequest: 8 * time.Second}, // arrives when all is settled twice
				}[fault]
				w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts from now on
				w.wire.OnRequest(redistest.Once("EVALSHA", act))
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				start := time.Now()
				_, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
				if errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
					w.Errorf("%v after %v", err, time.Since(start))
				}
				time.Sleep(8*time.Second + 2*opTime)
				synctest.Wait()
				if keys := w.mini.Keys(); len(keys) != 0 {
					w.Errorf("left: %q", keys)
				}
			})
		})
	}
}

// The same where the copy and what takes it back travel on connections of their
// own, so that nothing keeps them in order.
func TestAbandoned_onManyConnections(t *testing.T) {
	inBubble(t, func(w *world) {
		s := New(w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = 3 }), testConfig())
		w.unlock(w.lock(s, w.Context())) // the server knows the scripts from now on
		for i := range 8 {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: 8 * time.Second}))
			// Without a deadline: with one, the client library may close the
			// connection at its end, and the copy would be gone with it.
			ctx, cancel := context.WithCancel(w.Context())
			time.AfterFunc(time.Second, cancel)
			if _, err := s.Lock(ctx, s.NewSpec(plain, fmt.Sprint("orders", i), nil)); err == nil {
				w.Error("granted")
			}
			time.Sleep(8*time.Second + 2*opTime)
			synctest.Wait()
			if keys := w.mini.Keys(); len(keys) != 0 {
				w.Fatalf("left: %q", keys)
			}
		}
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A caller that cannot be cancelled sends in its own goroutine. It returns in time all the
// same, whether the client library waits at the connection, which it closes then, or behind
// others; and what the server gets long after that is given back.
func TestAbandoned_inline(t *testing.T) {
	for name, pipelining := range map[string]bool{"alone on the connection": false, "behind others": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := New(w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.AlwaysPipelining = pipelining }), testConfig())
				spec, ctx := s.NewSpec(hookable(), "orders", nil), context.Background()
				w.unlock(w.take(s, spec.Kind, ctx))
				var inline atomic.Int32
				slow := redistest.Once("EVALSHA", redistest.Action{DelayRequest: 20 * time.Second})
				w.wire.OnRequest(func(req [][]byte) redistest.Action {
					if string(req[0]) == "EVALSHA" {
						inline.Add(int32(s.sender.Load().Inline))
					}
					return slow(req)
				})
				start := time.Now()
				_, err := s.TryLock(ctx, spec)
				if took := time.Since(start); !errors.As(err, new(command.NoAnswer)) || took > opTime || took < opTime-opTime/8 {
					w.Errorf("TryLock: %v after %v", err, took)
				}
				if n := inline.Load(); n != 1 {
					w.Errorf("%d commands were sent by their callers, want 1", n)
				}
				time.Sleep(20*time.Second - time.Since(start))
				synctest.Wait()
				if n := len(w.mini.Keys()); n != 1 {
					w.Fatalf("%d keys when the request arrives, want 1", n)
				}
				time.Sleep(25 * time.Second) // it looked about 3, 6, 12 and 24 s after the time-out, or after the end of the connection
				if keys := w.mini.Keys(); len(keys) != 0 {
					w.Errorf("left: %q", keys)
				}

				h := w.take(s, spec.Kind, ctx)
				w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 20 * time.Second}))
				start = time.Now()
				err = h.Unlock(ctx)
				if took := time.Since(start); !errors.As(err, new(command.NoAnswer)) || took > opTime {
					w.Errorf("Unlock: %v after %v", err, took)
				}
				w.wire.OnRequest(nil)
				time.Sleep(time.Minute)
				w.unlock(w.take(s, spec.Kind, ctx))
				if err := s.Close(ctx); err != nil {
					w.Error(err)
				}
			})
		})
	}
}

// The connection of a question comes to the end of its ConnLifetime, and the client library sends the question again, without
// a word. Nothing stays, whether the copy is sent or the library cannot dial, and whenever the first one is carried out.
func TestAbandoned_byALifetime(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("down %v", down), func(t *testing.T) {
			inBubble(t, func(w *world) {
				var refuses atomic.Bool
				rdb := w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) {
					o.ConnLifetime, o.AlwaysPipelining = time.Second, true
					dial := o.DialCtxFn
					o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
						if refuses.Load() {
							return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
						}
						return dial(ctx, addr, d, c)
					}
				})
				s := New(rdb, testConfig())
				w.unlock(w.lock(s, w.Context())) // the server knows the scripts from now on
				first := make(chan []string, 1)
				act := redistest.Action{HoldRequest: w.Context().Done()} // arrives below
				if down {
					act = redistest.Action{HoldReply: w.Context().Done()}
				}
				once := redistest.Once("EVALSHA", act)
				w.wire.OnRequest(func(req [][]byte) redistest.Action {
					act := once(req)
					if act.HoldRequest != nil || act.HoldReply != nil {
						refuses.Store(down)
						var words []string
						for _, word := range req {
							words = append(words, string(word))
						}
						first <- words
					}
					return act
				})
				h, err := s.TryLock(w.Context(), s.NewSpec(plain, "orders", nil))
				if down != errors.Is(err, lock.ErrUnavailable) {
					w.Fatal(err)
				}
				refuses.Store(false)
				if !down {
					w.unlock(h)
					synctest.Wait() // the look for a copy that follows the release is over
					if err := w.rdb.Do(w.Context(), w.rdb.B().Arbitrary(<-first...).Build()).Error(); err != nil || !w.mini.Exists("orders") {
						w.Errorf("the copy did nothing: %v", err)
					}
				}
				time.Sleep(opTime + pollTime)
				if w.mini.Exists("orders") {
					w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
				}
				if err := s.Close(w.Context()); err != nil {
					w.Error(err)
				}
			})
		})
	}
}

// An inner and the outer hold are given back at once. The Unlock that has to say "one less"
// comes second, and must not say "none" in the place of the other.
func TestReduce_leavesTheEndToRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		renewal := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: renewal}))
		time.Sleep(leaseTime / 3)
		synctest.Wait() // a renewal is under way, and holds the release up

		turn := outer.(*hold).By.Turn
		turn <- struct{}{} // another call of this owner has the turn
		errs := make(chan error, 2)
		go func() { errs <- inner.Unlock(w.Context()) }()
		synctest.Wait()
		go func() { errs <- outer.Unlock(w.Context()) }()
		synctest.Wait()
		<-turn
		synctest.Wait()
		close(renewal)
		for range 2 {
			if err := <-errs; err != nil {
				w.Error(err)
			}
		}
	})
}

// The lock is lost while an Unlock waits to say so to Redis.
func TestUnlock_crossedByALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		held, turn := outer.(*hold).tenure(), outer.(*hold).By.Turn
		turn <- struct{}{} // another call of this owner has the turn
		answer := make(chan error)
		go func() { answer <- inner.Unlock(w.Context()) }()
		synctest.Wait()
		w.mini.Del("orders")
		held.lease.Lose(watchdog.ErrGone)
		<-turn
		if err := <-answer; !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lock that is lost: %v", err)
		}
	})
}

// The answer comes between two questions of a wait, and then the wait ends. The
// session gives the grant back.
func TestAbandoned_betweenTwoQuestions(t *testing.T) {
	for _, end := range []string{"context", "wait", "close"} {
		t.Run(end, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.wire.OnRequest(func(req [][]byte) redistest.Action {
					if string(req[0]) == "EVALSHA" {
						return redistest.Action{DelayReply: opTime + time.Millisecond} // just too late for its question
					}
					return redistest.Action{}
				})
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				var opts []lock.Option
				switch end {
				case "context":
					time.AfterFunc(opTime+2*time.Millisecond, cancel)
				case "wait":
					opts = append(opts, lock.WithWait(opTime+2*time.Millisecond))
				case "close":
					time.AfterFunc(opTime+2*time.Millisecond, func() { _ = w.a.Close(context.Background()) })
				}
				if h, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", opts)); err == nil {
					w.Errorf("granted: %v", h)
				}
				w.wire.OnRequest(nil)
				time.Sleep(3 * opTime)
				synctest.Wait()
				if keys := w.mini.Keys(); len(keys) != 0 {
					w.Errorf("left: %q", keys)
				}
			})
		})
	}
}

func TestWithWait(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		spec := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithWait(5 * time.Second)})
		start := time.Now()
		_, err := w.a.Lock(w.Context(), spec)
		if took := time.Since(start); took != 5*time.Second || !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, os.ErrDeadlineExceeded) {
			w.Errorf("%v after %v", err, took)
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if _, err := w.a.Lock(ctx, spec); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("the context ended first: %v", err)
		}
		time.AfterFunc(4*time.Second, func() { w.unlock(other) })
		h, err := w.a.Lock(w.Context(), spec)
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := h.Context().Err(); err != nil {
			w.Errorf("the limit of the wait ended the hold: %v", err)
		}
		w.unlock(h)
	})
}

// Close while Redis does not answer: waiters end with ErrClosed all the same.
func TestClose_wakesWaitersOfADeadServer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.Refuse(true)
		w.wire.CutAll()
		errs := make(chan error)
		go func() { _, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, "orders", nil)); errs <- err }()
		time.Sleep(5500 * time.Millisecond)
		go func() { _ = w.a.Close(w.Context()) }()
		if err := <-errs; !errors.Is(err, lock.ErrClosed) {
			w.Errorf("a waiter: %v", err)
		}
		w.wire.Refuse(false)
	})
}

// The limit of a wait is for all of it: for the owner's turn, for a re-entry,
// and for the lock.
func TestWithWait_isForTheWhole(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithWait(5 * time.Second)})
		check := func(what string, ctx context.Context, says error) {
			w.Helper()
			start := time.Now()
			_, err := w.a.Lock(ctx, spec)
			if took := time.Since(start); took != 5*time.Second || !errors.Is(err, says) || !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("%s: %v after %v", what, err, took)
			}
		}
		other := w.lock(w.b, w.Context())
		ctx := lock.ContextWithNewOwner(w.Context())
		short, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		go func() { _, _ = w.a.Lock(short, w.a.NewSpec(plain, "orders", nil)) }() // has the turn for four seconds
		synctest.Wait()
		check("behind another goroutine of the owner", ctx, lock.ErrNotAcquired)
		w.unlock(other)

		h := w.lock(w.a, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: 8 * time.Second}))
		check("a re-entry that is not answered", ctx, lock.ErrUnavailable)
		w.wire.OnRequest(nil)
		time.Sleep(10 * time.Second)
		w.unlock(h)
	})
}

// TryLock and Unlock take no longer than the operation time-out, whatever they
// wait for first.
func TestOpTimeout_isForTheWhole(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h := w.lock(w.a, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: opTime - time.Millisecond}))
		go func() {
			if h, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)); err == nil { // has the turn for nearly that time
				_ = h.Unlock(w.Context()) // the answer does not come in time
			}
		}()
		synctest.Wait()
		w.wire.OnRequest(func(req [][]byte) redistest.Action { return redistest.Action{DelayRequest: 2 * opTime} })
		start := time.Now()
		if _, err := w.a.TryLock(ctx, w.a.NewSpec(plain, "orders", nil)); err == nil || time.Since(start) > opTime+time.Millisecond {
			w.Errorf("TryLock: %v after %v", err, time.Since(start))
		}
		w.wire.OnRequest(nil)
		time.Sleep(4 * opTime)
		w.unlock(h)

		h = w.lock(w.a, w.Context())
		time.Sleep(leaseTime/3 - time.Millisecond)
		w.wire.Freeze(true)
		time.Sleep(2 * time.Millisecond) // a renewal is under way now
		start = time.Now()
		if err := h.Unlock(w.Context()); err == nil || time.Since(start) > opTime+20*time.Millisecond {
			w.Errorf("Unlock: %v after %v", err, time.Since(start))
		}
		w.wire.Freeze(false)
		time.Sleep(4 * opTime)
	})
}

// One goroutine re-enters while two others of its owner give everything back:
// the second of them must not wait for what the first one waits for now.
func TestSameOwner_unlockDoesNotWaitForALock(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h1, h2 := w.lock(w.a, ctx), w.lock(w.a, ctx)
		served := make(chan struct{})
		go func() { // another process, which has it for ten seconds next
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

// Goroutines of one owner that lock and unlock as they like: nothing is ever
// lost, as nothing ever happens to the lock.
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

// A goroutine that looks while others are still being told must see the loss, too.
func TestLoss_isSeenByAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		c := testConfig()
		tell := make(chan struct{})
		c.Observer = &lock.Observer{Lost: func(context.Context, lock.Event) { <-tell }} // a slow one
		s := New(m.Client(t), c)
		w := &world{T: t, mini: m, a: s}
		var holds []lock.Hold
		for i := range 10 {
			h, err := s.Lock(t.Context(), s.NewSpec(plain, fmt.Sprint("orders", i), []lock.Option{lock.WithFixedLease(time.Second)}))
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, h)
		}
		time.Sleep(2 * time.Second)
		for i, h := range holds {
			if err := h.Context().Err(); err == nil || !errors.Is(h.Err(), lock.ErrLost) {
				t.Errorf("hold %d: %v a second after Until", i, h.Err())
			}
			if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
				t.Errorf("hold %d: unlock says %v", i, err)
			}
		}
		close(tell)
		_ = w
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
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

// What a re-entry asked for and could not hear about may keep the lock for its
// own lease, which is longer than that of the first hold.
func TestSettle_outlastsTheLongestLease(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer := w.lock(w.a, ctx, lock.WithFixedLease(2*time.Second))
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
		w.wire.Refuse(true)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := w.a.Lock(short, w.a.NewSpec(plain, "orders", []lock.Option{lock.WithFixedLease(time.Hour)})); err == nil {
			w.Error("granted without a connection")
		}
		time.Sleep(time.Minute) // the outer lease is long over
		if w.mini.TTL("orders") < 30*time.Minute {
			w.Fatalf("the server has it for %v", w.mini.TTL("orders"))
		}
		w.wire.Refuse(false)
		time.Sleep(2 * opTime)
		synctest.Wait()
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q for %v", keys, w.mini.TTL("orders"))
		}
		if !errors.Is(outer.Err(), lock.ErrLost) {
			w.Errorf("outer: %v", outer.Err())
		}
	})
}

// The holder gave up, but the server was renewed and does not know: it is told.
func TestLoss_givesBackWhatTheServerStillHas(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		time.Sleep(leaseTime / 2) // the first renewal tells the server the script
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
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q", keys)
		}
	})
}

// The hub dials a server that is down while a caller waits, and leaves it
// alone otherwise.
func TestHub_doesNotDialForNobody(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithTimeout(w.Context(), pollTime/2) // at a poll the last question could be in doubt, and settled later
		defer cancel()
		_, _ = w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)) // makes the hub connect
		synctest.Wait()
		var mu sync.Mutex
		dials := 0
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			mu.Lock()
			defer mu.Unlock()
			if string(req[0]) == "HELLO" { // the first of a connection
				dials++
			}
			return redistest.Action{DropRequest: true}
		})
		w.wire.CutAll()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if dials > 0 {
			w.Errorf("%d tries to connect in a minute, and no caller waits", dials)
		}
		w.wire.OnRequest(nil)
		w.unlock(h)
	})
}

// A re-entry whose answer does not come keeps the owner's turn. Other calls wait for
// the turn no longer than for Redis.
func TestTurn_isWaitedForNoLongerThanRedis(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: 8 * time.Second}))
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := w.a.Lock(short, w.a.NewSpec(plain, "orders", nil)); err == nil {
			w.Error("granted without an answer")
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

// A copy of a question that arrives when its tenure is long over must not leave
// a lock behind, nor touch the owner's next tenure.
func TestGhostOfAnEarlierTenure(t *testing.T) {
	inBubble(t, func(w *world) {
		ghost := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldRequest: ghost}))
		ctx := lock.ContextWithNewOwner(w.Context())
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if _, err := w.a.Lock(short, w.a.NewSpec(plain, "orders", nil)); err == nil {
			w.Fatal("granted")
		}
		other := w.lock(w.b, w.Context()) // another owner has the lock meanwhile
		w.unlock(other)
		close(ghost) // now the old question arrives, and is granted
		h := w.lock(w.a, ctx)
		time.Sleep(2 * opTime)
		if err := h.Err(); err != nil || w.count(h) != 1 {
			w.Errorf("the new tenure: %v, count %d", err, w.count(h))
		}
		w.unlock(h)
	})
}

// An Unlock whose answer does not come returns in time, and the release goes on.
func TestUnlock_onASlowServer(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, deadline := range []time.Duration{0, time.Second} {
			h := w.lock(w.a, w.Context())
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: 5 * time.Second}))
			ctx, want := w.Context(), opTime
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
				want = deadline
			}
			start := time.Now()
			err := h.Unlock(ctx)
			if took := time.Since(start); err == nil || errors.Is(err, lock.ErrNotHeld) || took != want {
				w.Errorf("%v after %v, want some other error after %v", err, took, want)
			}
			if err := h.Err(); !errors.Is(err, lock.ErrUnlocked) {
				w.Errorf("the hold: %v", err)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if keys := w.mini.Keys(); len(keys) != 0 {
				w.Errorf("left: %q", keys)
			}
		}
	})
}

// The session makes up for an unconfirmed partial release in the background.
func TestReduce_isSettled(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, lock.ContextWithNewOwner(w.Context()))
		inner := w.lock(w.a, outer.Context())
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropRequest: true}))
		if err := inner.Unlock(w.Context()); err != nil {
			w.Errorf("%v: within the operation time-out it is sent again", err)
		}
		if n := w.count(outer); n != 1 {
			w.Errorf("count %d", n)
		}
		inner = w.lock(w.a, outer.Context())
		w.wire.Refuse(true)
		w.wire.CutAll()
		if err := inner.Unlock(w.Context()); err == nil {
			w.Error("the release was confirmed, without an answer")
		}
		w.wire.Refuse(false)
		time.Sleep(2 * opTime)
		synctest.Wait()
		if n := w.count(outer); n != 1 || outer.Err() != nil {
			w.Errorf("count %d, outer %v", n, outer.Err())
		}
		w.unlock(outer)
	})
}

// A process that waits often finds the subscription still there, and need not ask a second time.
func TestHub_lingers(t *testing.T) {
	inBubble(t, func(w *world) {
		for i, want := range []int64{2, 1, 1} {
			h := w.lock(w.b, w.Context())
			sent := w.scripts()
			done := make(chan struct{})
			go func() {
				defer close(done)
				w.unlock(w.lock(w.a, w.Context()))
			}()
			synctest.Wait()
			if n := sent.Load(); n != want {
				w.Errorf("wait %d: %d questions, want %d", i, n, want)
			}
			w.unlock(h)
			<-done
			time.Sleep(hint.Linger / 2)
		}
	})
}

// A waiter hears the messages between its question and the answer.
func TestHub_lingersAndHears(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		w.unlock(h)
		w.unlock(w.next(waiter)) // now it lingers
		time.Sleep(hint.Linger / 2)
		h = w.lock(w.b, w.Context())
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: pollTime / 2}))
		start := time.Now()
		waiter = w.waiting(w.a, w.Context())
		w.unlock(h)
		got := <-waiter
		if took := time.Since(start); took != pollTime/2 {
			w.Errorf("served after %v, and the answer came after %v", took, pollTime/2)
		}
		w.unlock(got)
	})
}

// Hints and polls end with the last waiter, and begin again with the next.
func TestHub_subscribesWhileSomebodyWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		const channel = "redisson_lock__channel:{orders}"
		for range 3 {
			h := w.lock(w.b, w.Context())
			ctx, cancel := context.WithCancel(w.Context())
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() { _, _ = w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)) })
			}
			synctest.Wait()
			if n := w.mini.PubSubNumSub(channel)[channel]; n != 1 {
				w.Errorf("%d subscriptions for five waiters of a process", n)
			}
			cancel()
			wg.Wait()
			time.Sleep(hint.Linger - time.Second)
			if n := w.mini.PubSubNumSub(channel)[channel]; n != 1 {
				w.Errorf("%d subscriptions, and a caller waited a moment ago", n)
			}
			time.Sleep(time.Second + time.Millisecond)
			if n := w.mini.PubSubNumSub(channel)[channel]; n != 0 {
				w.Errorf("%d subscriptions, and no caller waits", n)
			}
			w.unlock(h)
		}
	})
}

// The hub's connection breaks: it comes back, and the first waiter asks at once.
func TestHub_asksAfterABreak(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		served := make(chan time.Time)
		go func() {
			h := w.lock(w.a, w.Context())
			w.unlock(h)
			served <- time.Now()
		}()
		time.Sleep(5*time.Second + pollTime/2)
		w.wire.CutAll()
		w.unlock(h) // the message reaches no listener
		start := time.Now()
		if took := (<-served).Sub(start); took > 50*time.Millisecond {
			w.Errorf("served after %v, want as soon as the subscription is back", took)
		}
	})
}

func TestClose_wakesWaiters(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		errs := make(chan error, 10)
		for range 10 {
			go func() { _, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, "orders", nil)); errs <- err }()
		}
		time.Sleep(time.Minute)
		start := time.Now()
		if err := w.a.Close(w.Context()); err != nil || time.Since(start) != 0 {
			w.Errorf("Close: %v after %v", err, time.Since(start))
		}
		for range 10 {
			if err := <-errs; !errors.Is(err, lock.ErrClosed) {
				w.Errorf("a waiter: %v", err)
			}
		}
		w.unlock(h)
	})
}

// A TryLock that is refused subscribes nothing: it does not wait.
func TestTryLock_doesNotListen(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, lock.ErrNotAcquired) {
			t.Error(err)
		}
		if n := w.a.hub.Channels(); n != 0 {
			t.Errorf("%d channels are subscribed", n)
		}
		w.unlock(h)
	})
}

// A waiter behind a TryLock asks when that is refused: it wants to be in the queue.
func TestTryLock_leavesTheQuestionToTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		if _, err := w.a.Lock(w.within(10*time.Millisecond), w.a.NewSpec(plain, "orders", nil)); !errors.Is(err, lock.ErrNotAcquired) {
			t.Error(err) // it leaves its subscriptions for a while
		}
		goes := make(chan struct{})
		var asked, slow atomic.Int64
		k := *hookable()
		k.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			if slow.Add(1) == 1 {
				<-goes
			}
			if q.Offer > 0 {
				asked.Add(1)
			}
			return luascripts.AcquireReentrant(ctx, rdb, k, q)
		}
		go func() { _, _ = w.a.TryLock(w.Context(), w.a.NewSpec(&k, "orders", nil)) }()
		synctest.Wait()
		next := w.gets(w.a, &k, w.Context())
		close(goes)
		synctest.Wait()
		if asked.Load() == 0 {
			t.Error("the waiter does not stand in the queue")
		}
		w.unlock(h)
		w.unlock(<-next)
	})
}
