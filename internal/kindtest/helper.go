package kindtest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// The watchdog timeout of these tests is eight seconds, and one command may take two, the maximum
// that this timeout allows. A machine that is busy with the race detector would not keep up with
// one second. Tests that wait for the end of a lease run in parallel.
const (
	WatchdogTimeout = 8 * time.Second
	OpTimeout       = WatchdogTimeout / 4
)

// Fast has these timeouts.
var Fast = []client.Option{client.WithWatchdogTimeout(WatchdogTimeout), client.WithOpTimeout(OpTimeout)}

// Patient has timeouts for clients whose commands are delayed or must arrive in time, so that a machine that stalls for
// seconds does not exceed them.
var Patient = []client.Option{client.WithWatchdogTimeout(2 * time.Minute), client.WithOpTimeout(30 * time.Second)}

// patience is long enough for a slow machine, and shorter than the default lease. An event within
// it did not wait for the end of a lease.
const patience = 20 * time.Second

// NewClient returns a client that uses rdb. It is closed at the end of t, and must close cleanly.
// It sends only commands about locks, because tests count and delay commands.
func NewClient(t testing.TB, rdb rueidis.Client, opts ...client.Option) *client.Client {
	t.Helper()
	return NewRegistered(t, rdb, append(slices.Clone(opts), client.WithoutRegistry())...)
}

// NewRegistered is like NewClient, and the client writes its registry entry.
func NewRegistered(t testing.TB, rdb rueidis.Client, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := c.Close(ctx)
		for errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil { // a test that killed the server: in that case nothing must continue
			err = c.Close(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return c
}

// MustLock returns a hold of l.
func MustLock(t *testing.T, l lock.Locker) lock.Hold {
	t.Helper()
	return Go(t.Context(), l).Hold(t)
}

// MustLockUnder returns a hold of l under ctx, which may carry an owner.
func MustLockUnder(t *testing.T, ctx context.Context, l lock.Locker) lock.Hold {
	t.Helper()
	return Go(ctx, l).Hold(t)
}

// MustUnlock releases holds, in order.
func MustUnlock(t *testing.T, holds ...lock.Hold) {
	t.Helper()
	for _, h := range holds {
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Waiter is a Lock in a separate goroutine.
type Waiter struct {
	done chan struct{} // closed when Lock has returned
	hold lock.Hold
	err  error
}

// Go calls Lock in a separate goroutine.
func Go(ctx context.Context, l lock.Locker) *Waiter {
	w := &Waiter{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.hold, w.err = l.Lock(ctx)
	}()
	return w
}

// Hold waits until Lock has returned with a hold.
func (w *Waiter) Hold(t *testing.T) lock.Hold {
	t.Helper()
	if err := w.Err(t); err != nil {
		t.Fatal(err)
	}
	return w.hold
}

// Err waits until Lock has returned, and returns its error.
func (w *Waiter) Err(t *testing.T) error {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		t.Fatal("Lock waits on, although nothing keeps it waiting any more")
	}
	return w.err
}

// Waits reports whether Lock has not returned yet.
func (w *Waiter) Waits() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// ServeAll waits until each of the waiters has held the lock, and returns the order in which they
// did.
func ServeAll(t *testing.T, waiters ...*Waiter) (order []int) {
	t.Helper()
	left := make(map[int]*Waiter)
	for i, w := range waiters {
		left[i] = w
	}
	for len(left) > 0 {
		WaitFor(t, "the next of the waiters is served", func() bool {
			for i, w := range left {
				if !w.Waits() {
					order = append(order, i)
					delete(left, i)
					MustUnlock(t, w.Hold(t))
					return true
				}
			}
			return false
		})
	}
	return order
}

// WaitFor returns when done returns true. It fails the test after a time that is long enough for a slow machine.
func WaitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// Lost waits for the end of the hold's context and checks its cause.
func Lost(t *testing.T, h lock.Hold, also ...error) {
	t.Helper()
	select {
	case <-h.Context().Done():
	case <-time.After(patience):
		t.Fatal("the holder was not told")
	}
	for _, err := range []error{h.Err(), context.Cause(h.Context())} {
		for _, want := range append(also, lock.ErrLost) {
			if !errors.Is(err, want) {
				t.Errorf("cause %v, want one that matches %v", err, want)
			}
		}
	}
	if h.Until().After(time.Now()) {
		t.Error("Until of a lost hold lies ahead")
	}
	if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
		t.Errorf("unlock of a lost hold: %v", err)
	}
}

// Text returns a reply as text, or "" if it is not text.
func Text(m rueidis.RedisMessage) string { s, _ := m.ToString(); return s }

// Number returns a reply as a number, or 0 if it is not a number.
func Number(m rueidis.RedisMessage) int64 { n, _ := m.ToInt64(); return n }

// List returns a reply as a list of texts, or an empty one if it is not a list.
func List(m rueidis.RedisMessage) []string { all, _ := m.AsStrSlice(); return all }

// Keys returns all keys of locks on the server, sorted.
func Keys(t testing.TB, s *redistest.Server) []string {
	t.Helper()
	return slices.Sorted(slices.Values(s.LockKeys(t)))
}

// WantEmpty fails if there is a key of a lock on the server.
func WantEmpty(t testing.TB, s *redistest.Server) {
	t.Helper()
	if keys := Keys(t, s); len(keys) != 0 {
		t.Errorf("%d keys left: %q", len(keys), keys)
	}
}

// SoonEmpty waits until there are no keys on the server, because calls undo some of their work in
// the background.
func SoonEmpty(t *testing.T, s *redistest.Server) {
	t.Helper()
	WaitFor(t, "nothing is left", func() bool { return len(Keys(t, s)) == 0 })
}

// Hash returns the fields of a hash on the server. They are empty if there is none.
func Hash(t testing.TB, s *redistest.Server, key string) map[string]string {
	t.Helper()
	reply := s.Do(t, "HGETALL", key)
	hash, err := reply.AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// WantHash fails unless key is that hash; an empty one means none.
func WantHash(t testing.TB, s *redistest.Server, key string, want map[string]string) {
	t.Helper()
	if got := Hash(t, s, key); !maps.Equal(got, want) {
		t.Errorf("%q is %v on the server, want %v", key, got, want)
	}
}

// Channels returns the channels that match pattern and have subscribers.
func Channels(t testing.TB, s *redistest.Server, pattern string) []string {
	t.Helper()
	return List(s.Do(t, "PUBSUB", "CHANNELS", pattern))
}

// Messages has the messages since Listen.
type Messages struct {
	mu  sync.Mutex
	all []rueidis.PubSubMessage // guarded by mu
}

// Listen receives everything published to the channels that match pattern, until the end of t.
func Listen(t *testing.T, s *redistest.Server, pattern string) *Messages {
	t.Helper()
	var m Messages
	rdb := s.Client(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = rdb.Receive(ctx, rdb.B().Psubscribe().Pattern(pattern).Build(), func(message rueidis.PubSubMessage) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.all = append(m.all, message)
		}) // ends with ctx's error
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	WaitFor(t, "it listens", func() bool { return Number(s.Do(t, "PUBSUB", "NUMPAT")) > 0 })
	return &m
}

// On returns the messages on channel so far.
func (m *Messages) On(channel string) (texts []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, message := range m.all {
		if message.Channel == channel {
			texts = append(texts, message.Message)
		}
	}
	return texts
}

// Flushing makes the server drop all scripts, repeatedly while f runs.
func Flushing(t *testing.T, s *redistest.Server, f func()) {
	t.Helper()
	rdb := s.Client(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := rdb.Do(context.Background(), rdb.B().ScriptFlush().Build()).Error(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	f()
}

// UnderOwner returns ctx with the owner of h.
func UnderOwner(ctx context.Context, h lock.Hold) context.Context {
	return ownerOf{ctx, h.Context()}
}

type ownerOf struct {
	context.Context
	owner context.Context
}

func (c ownerOf) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.owner.Value(key)
}
