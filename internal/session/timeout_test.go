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
	"github.com/redis/rueidis"
)

// alone is the kind of plain locks whose commands are never batched, like the commands of all other kinds.
var alone = hookable()

// shared returns a session, and its client, which others also use. Its only connection goes through the wire.
func (w *world) shared() (*Session, rueidis.Client) {
	rdb := w.mini.Client(w, redistest.Via(w.wire), oneConnection)
	s := New(rdb, testConfig())
	w.Cleanup(func() {
		w.wantNoErr(s.Close(context.Background()))
	})
	return s, rdb
}

// A command of the application times out, and rueidis closes the connection. All commands on it fail with its error.
// For the session that is not a timeout.
func TestTimeout_ofTheApplicationsCommand(t *testing.T) {
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
		w.wantEmpty()
	})
}

// The commands of others fill rueidis's queue of commands in flight. The next command would wait for a free slot
// regardless of any context.
func TestTimeout_fullPipeline(t *testing.T) {
	inBubble(t, func(w *world) {
		s, _ := w.shared()
		w.unlock(w.take(s, alone, context.Background()))
		w.wire.Freeze(true)
		for i := range 1100 {
			go func() {
				h, err := s.TryLock(w.Context(), s.NewSpec(alone, "other"+strconv.Itoa(i), nil))
				if err == nil { // the reply and the timeout came together
					w.unlock(h)
				}
			}()
		}
		synctest.Wait()
		start := time.Now()
		_, err := s.TryLock(context.Background(), s.NewSpec(alone, "orders", nil))
		if took := time.Since(start); !errors.As(err, new(command.NoReply)) || took > opTime {
			w.Errorf("%v after %v, want no reply after %v", err, took, opTime)
		}
		w.wire.Freeze(false)
		time.Sleep(2 * time.Minute)
	})
}

// A cancelable caller is the first after a disconnect, and its command dials, which may take long. The next caller
// waits for that, but no longer than its own timeout.
func TestTimeout_behindADial(t *testing.T) {
	inBubble(t, func(w *world) {
		var dials atomic.Int32
		rdb := w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) {
			o.PipelineMultiplex, o.AlwaysPipelining = -1, true
			dial := o.DialCtxFn
			o.DialCtxFn = func(ctx context.Context, a string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
				if dials.Add(1) == 2 && !command.Sleep(ctx, 5*time.Second) {
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
			w.Fatalf("%d dials, want the second in flight", n)
		}
		start := time.Now()
		_, err := s.TryLock(context.Background(), s.NewSpec(alone, "orders", nil))
		if took := time.Since(start); !errors.As(err, new(command.NoReply)) || took > opTime {
			w.Errorf("%v after %v, want no reply after %v", err, took, opTime)
		}
		time.Sleep(2 * time.Minute) // the server grants the lock, and the session releases it because its caller has left
		w.wantNoErr(s.Close(context.Background()))
	})
}

// A goroutine that waits for its next command references nothing of the last one, such as the context of its caller.
func TestIdleWorkers_keepNothingAlive(t *testing.T) {
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
	for s.sender.Waiting() == 0 {
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
