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

// The watchdog timeout of these tests is eight seconds, and one command may take two, the most
// that it allows: a machine that is busy with the race detector does not keep up with one.
// Tests that wait for the end of a lease run in parallel.
const (
	WatchdogTimeout = 8 * time.Second
	OpTimeout       = WatchdogTimeout / 4
)

// Fast has those timeouts.
var Fast = []client.Option{client.WithWatchdogTimeout(WatchdogTimeout), client.WithOpTimeout(OpTimeout)}

// Patient has the timeouts of a client whose commands are held up, or have to be in time: a machine that stands still for
// seconds must not end them.
var Patient = []client.Option{client.WithWatchdogTimeout(2 * time.Minute), client.WithOpTimeout(30 * time.Second)}

// patience is long enough for a slow machine, and shorter than the default lease:
// an event within it did not wait for the end of a lease.
const patience = 20 * time.Second

// NewClient returns a client on rdb that is closed, and must close cleanly, at
// the end of t. It sends nothing that is not about a lock, as tests count commands, and
// hold some up.
func NewClient(t testing.TB, rdb rueidis.Client, opts ...client.Option) *client.Client {
	t.Helper()
	return NewRegistered(t, rdb, append(slices.Clone(opts), client.WithoutRegistry())...)
}

// NewRegistered returns a client as NewClient does, which tells who it is.
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
		for errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil { // a test that killed the server: then nothing must go on
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

// MustUnlock gives holds back, in order.
func MustUnlock(t *testing.T, holds ...lock.Hold) {
	t.Helper()
	for _, h := range holds {
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Waiter is a Lock in a goroutine of its own.
type Waiter struct {
	done chan struct{} // closed when Lock has returned
	hold lock.Hold
	err  error
}

// Go calls Lock in a goroutine of its own.
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

// ServeAll waits until each of the waiters has held the lock, and returns the order
// in which they did.
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

// WaitFor returns when done returns true. It fails after a time that is long enough for a slow machine.
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

// Text returns a reply as text, "" if it is none.
func Text(m rueidis.RedisMessage) string { s, _ := m.ToString(); return s }

// Number returns a reply as a number, 0 if it is none.
func Number(m rueidis.RedisMessage) int64 { n, _ := m.ToInt64(); return n }

// List returns a reply as a list of texts, empty if it is none.
func List(m rueidis.RedisMessage) []string { all, _ := m.AsStrSlice(); return all }

// Keys are all keys of the server's locks, sorted.
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

// SoonEmpty waits until there is no key on the server: calls undo some of their work in the
// background.
func SoonEmpty(t *testing.T, s *redistest.Server) {
	t.Helper()
	WaitFor(t, "nothing is left", func() bool { return len(Keys(t, s)) == 0 })
}

// Hash returns the fields of a hash on the server, empty if there is none.
func Hash(t testing.TB, s *redistest.Server, key string) map[string]string {
	t.Helper()
	reply := s.Do(t, "HGETALL", key)
	hash, err := reply.AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// WantHash fails unless key is that hash; none is an empty one.
func WantHash(t testing.TB, s *redistest.Server, key string, want map[string]string) {
	t.Helper()
	if got := Hash(t, s, key); !maps.Equal(got, want) {
		t.Errorf("%q is %v on the server, want %v", key, got, want)
	}
}

// Channels returns the channels that have listeners and match pattern.
func Channels(t testing.TB, s *redistest.Server, pattern string) []string {
	t.Helper()
	return List(s.Do(t, "PUBSUB", "CHANNELS", pattern))
}

// Messages are the messages since Listen.
type Messages struct {
	mu  sync.Mutex
	all []rueidis.PubSubMessage // guarded by mu
}

// Listen hears all that is published to the channels that match pattern, until
// the end of t.
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

// On returns the messages that came on channel so far.
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

// Flushing makes the server forget all scripts, again and again while f runs.
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
