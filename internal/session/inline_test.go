package session

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// alone is the kind of plain locks whose commands travel alone, as those of all other kinds.
var alone = hookable()

// shared returns a session, and its client, which others use as well. Its only connection
// leads through the wire.
func (w *world) shared() (*Session, rueidis.Client) {
	rdb := w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	s := New(rdb, testConfig())
	w.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			w.Error(err)
		}
	})
	return s, rdb
}

// A command of the application gives up, and the client library closes the connection. All
// commands there fail with its error. For the session that is no time-out.
func TestInline_timeoutOfAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		s, rdb := w.shared()
		h := w.take(s, alone, context.Background())
		w.wire.OnRequest(redistest.Once("GET", redistest.Action{DelayReply: time.Minute}))
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		go rdb.Do(ctx, rdb.B().Get().Key("x").Build())
		synctest.Wait()
		start := time.Now()
		if err := h.Unlock(context.Background()); err != nil {
			w.Errorf("Unlock: %v after %v, want that it is sent again", err, time.Since(start))
		}
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q", keys)
		}
	})
}

// A question that waits for replicas needs a connection of its own, and the library gets it
// without regard to a context. So its caller does not send it itself, also not when the caller
// asks again and has less time.
func TestInline_notForReplicas(t *testing.T) {
	inBubble(t, func(w *world) {
		asked := 0
		safe := *hookable()
		safe.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			if asked++; q.Replicas > 0 && w.a.sender.Load().Inline > 0 {
				w.Errorf("question %d is sent by its caller", asked)
			}
			a, err := luascripts.AcquireReentrant(ctx, rdb, k, luascripts.Question{Owner: q.Owner, Lease: q.Lease, Want: 1})
			w.mini.SetError("")
			a.Confirmed = q.Replicas
			return a, err
		}
		w.unlock(w.take(w.a, &safe, context.Background()))
		w.mini.SetError("LOADING it will pass")
		h, err := w.a.TryLock(context.Background(), w.a.NewSpec(&safe, "orders", []lock.Option{lock.WithReplicas(1, time.Millisecond)}))
		if err != nil || asked != 3 {
			w.Fatalf("%v after %d questions", err, asked-1)
		}
		w.unlock(h)
	})
}

// Renewals without an answer do not count as a sign of life.
func TestInline_notAfterRenewalsThatBrokeOff(t *testing.T) {
	inBubble(t, func(w *world) {
		s, _ := w.shared()
		h := w.take(s, alone, context.Background())
		if !s.sender.Load().Answering {
			w.Fatal("a grant is no answer")
		}
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
		before := time.Now()
		for time.Sleep(leaseTime / 24); s.sender.Load().Answering && time.Since(before) < leaseTime/2; {
			time.Sleep(time.Millisecond)
		}
		if s.sender.Load().Answering {
			w.Error("it counts as one")
		}
		w.unlock(h)
	})
}

// The commands of others fill the client library's queue of commands under way. The next
// command would wait for a free place without regard to any context.
func TestInline_notBehindTooManyOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		s, _ := w.shared()
		w.unlock(w.take(s, alone, context.Background()))
		w.wire.Freeze(true)
		for i := range 1100 {
			go func() {
				h, err := s.TryLock(w.Context(), s.NewSpec(alone, "other"+strconv.Itoa(i), nil))
				if err == nil { // the answer and the end of its time came together
					w.unlock(h)
				}
			}()
		}
		synctest.Wait()
		start := time.Now()
		_, err := s.TryLock(context.Background(), s.NewSpec(alone, "orders", nil))
		if took := time.Since(start); !errors.As(err, new(command.NoAnswer)) || took > opTime {
			w.Errorf("%v after %v, want no answer after %v", err, took, opTime)
		}
		w.wire.Freeze(false)
		time.Sleep(2 * time.Minute)
	})
}

// A caller that can be cancelled is the first after a break, and its command connects, which may
// take long. The next caller waits for that, but not in its own goroutine.
func TestInline_notBehindADial(t *testing.T) {
	inBubble(t, func(w *world) {
		var dials atomic.Int32
		rdb := w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) {
			o.PipelineMultiplex, o.AlwaysPipelining = -1, true
			dial := o.DialCtxFn
			o.DialCtxFn = func(ctx context.Context, a string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
				if dials.Add(1) == 2 && !command.Rest(ctx, 5*time.Second) {
					return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
				}
				return dial(ctx, a, d, c)
			}
		})
		s := New(rdb, testConfig())
		w.unlock(w.take(s, alone, context.Background()))
		w.wire.CutAll()
		synctest.Wait()
		go func() { _, _ = s.TryLock(w.Context(), s.NewSpec(alone, "other", nil)) }()
		synctest.Wait()
		if n := dials.Load(); n != 2 {
			w.Fatalf("%d dials, want the second under way", n)
		}
		start := time.Now()
		_, err := s.TryLock(context.Background(), s.NewSpec(alone, "orders", nil))
		if took := time.Since(start); !errors.As(err, new(command.NoAnswer)) || took > opTime {
			w.Errorf("%v after %v, want no answer after %v", err, took, opTime)
		}
		time.Sleep(2 * time.Minute) // the server grants the lock, and the session gives it back as its caller has gone
		if err := s.Close(context.Background()); err != nil {
			w.Error(err)
		}
	})
}

// A goroutine that waits for its next command keeps nothing of the last command alive, such
// as the context of a caller that has gone.
func TestIdlers_keepNothingAlive(t *testing.T) {
	m := redistest.NewMini(t)
	s := New(m.Client(t), testConfig())
	type large [1 << 16]byte
	value := func() weak.Pointer[large] {
		v := new(large)
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, v))
		defer cancel()
		h, err := s.Lock(ctx, s.NewSpec(alone, "orders", nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
		return weak.Make(v)
	}()
	for s.sender.Load().Idle == 0 {
		runtime.Gosched()
	}
	runtime.GC()
	runtime.GC()
	if value.Value() != nil {
		t.Error("a value of the caller's context is alive")
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
