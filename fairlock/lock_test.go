package fairlock_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fairlock"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/multilock"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

var _ lock.Locker = (*fairlock.Lock)(nil)

var fair = kind()

func kind() kindtest.Kind {
	k := kindtest.OneHash(
		func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
			return c.NewFairLock(name, opts...)
		},
		func(c *client.Client, name string) kindtest.Operator { return c.NewFairLock(name) },
	)
	k.Patterns = func(prefix string) []string {
		return []string{"~" + prefix + "*", "~redisson_lock_queue:{" + prefix + "*", "~redisson_lock_timeout:{" + prefix + "*"}
	}
	k.Queue = func(name string) string { return "redisson_lock_queue:{" + name + "}" }
	k.TellsHashes = true
	k.Patient = true
	k.Requests = 1 // the request that puts it into the queue
	return k
}

func TestFaults(t *testing.T) { t.Parallel(); kindtest.Faults(t, fair) }

func TestModel(t *testing.T) { t.Parallel(); kindtest.Model(t, fair) }

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	b := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	t.Run("on Redis", func(t *testing.T) { rules(t, a, b) })
	kindtest.SoonEmpty(t, s)
}

func rules(t *testing.T, a, b *client.Client) {
	h := locktest.Harness{
		New:      func(name string, opts ...lock.Option) lock.Locker { return a.NewFairLock(name, opts...) },
		Other:    func(name string, opts ...lock.Option) lock.Locker { return b.NewFairLock(name, opts...) },
		Watchdog: kindtest.WatchdogTimeout,
		Waiters: func(ctx context.Context, name string) (int, error) {
			state, err := a.NewFairLock(name).Inspect(ctx)
			return len(state.Waiters), err
		},
	}
	locktest.Run(t, h)
	locktest.RunFair(t, h)
}

// The permissions listed in docs/operate/security.md suffice for all operations of a fair lock. This includes dead
// waiters, owners of Redisson, and a queue that was deleted manually.
func TestRules_withMinimalPermissions(t *testing.T) {
	t.Parallel()
	kindtest.Rights(t, fair, []string{"NewFairLock", "WithLinger"}, func(t *testing.T, s *redistest.Server, a, b *client.Client) {
		t.Run("rules", func(t *testing.T) { rules(t, a, b) })

		q := queueOf{s, "orders:orders"}
		l := a.NewFairLock("orders", forever)
		h := kindtest.MustLock(t, l)
		q.put(t, redissonOwner, time.Hour)
		first := q.join(t, b, "orders", forever)
		s.Do(t, "ZADD", q.timeouts(), "1", redissonOwner) // a dead owner
		q.put(t, redissons, time.Hour+5*time.Minute)
		kindtest.MustUnlock(t, h)
		kindtest.MustUnlock(t, first.Hold(t))
		s.Do(t, "DEL", q.queue())
		h = kindtest.MustLock(t, l)
		second := q.join(t, b, "orders", forever)
		if was, err := l.ForceUnlock(t.Context()); !was || err != nil {
			t.Errorf("ForceUnlock: %v, %v", was, err)
		}
		kindtest.MustUnlock(t, second.Hold(t))
		kindtest.Lost(t, h)

		args := []string{"RPUSH", q.queue()}
		for n := range 300 { // more than one script reads
			args = append(args, redissonOwner+strconv.Itoa(n))
		}
		s.Do(t, args...)
		if state, err := l.Inspect(t.Context()); len(state.Waiters) != 300 || err != nil {
			t.Errorf("Inspect: %d waiters, %v", len(state.Waiters), err)
		}
		s.Do(t, "DEL", q.queue())
	})
}

// forever is a waiter timeout that no test exceeds: a waiter that is no longer in the queue was removed.
var forever = lock.WithWaiterTimeout(time.Hour)

// Owners of other programs: one of leasehold, and one of Redisson, which sends no heartbeats. The version of the UUID
// distinguishes them.
const (
	redissonOwner = "01890000-0000-7000-8000-000000000000:1"
	redissons     = "3f0c2a52-6f8e-4a3b-9d53-2f9b1c6f5a10:1"
)

// queueOf is the queue of one fair lock in Redis.
type queueOf struct {
	s    *redistest.Server
	name string
}

var orders = func(s *redistest.Server) queueOf { return queueOf{s, "orders"} }

func (q queueOf) queue() string    { return "redisson_lock_queue:{" + q.name + "}" }
func (q queueOf) timeouts() string { return "redisson_lock_timeout:{" + q.name + "}" }

// channel returns the channel of an owner's client, and number the message that notifies the owner of its turn.
func (q queueOf) channel(owner string) string {
	client, _, _ := strings.Cut(owner, ":")
	return fair.Channel(q.name) + ":" + client + luascripts.TurnChannelSuffix
}

func number(owner string) string {
	_, number, _ := strings.Cut(owner, ":")
	return number
}

// owners returns the owners in the queue, in order.
func (q queueOf) owners(t *testing.T) []string {
	t.Helper()
	return kindtest.List(q.s.Do(t, "LRANGE", q.queue(), "0", "-1"))
}

// deadlines returns when each owner counts as dead, in ms by the server's clock.
func (q queueOf) deadlines(t *testing.T) map[string]int64 {
	t.Helper()
	reply := q.s.Do(t, "ZRANGE", q.timeouts(), "0", "-1", "WITHSCORES")
	scores, err := reply.AsZScores()
	if err != nil {
		t.Fatal(err)
	}
	deadlines := make(map[string]int64)
	for _, z := range scores {
		deadlines[z.Member] = int64(z.Score)
	}
	return deadlines
}

// now is the server's time in ms.
func (q queueOf) now(t *testing.T) int64 {
	t.Helper()
	time := kindtest.List(q.s.Do(t, "TIME"))
	seconds, err1 := strconv.ParseInt(time[0], 10, 64)
	micros, err2 := strconv.ParseInt(time[1], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("TIME: %q", time)
	}
	return seconds*1000 + micros/1000
}

// put adds an owner to the end of the queue. It counts as alive for the given time.
func (q queueOf) put(t *testing.T, owner string, alive time.Duration) {
	t.Helper()
	q.s.Do(t, "RPUSH", q.queue(), owner)
	q.s.Do(t, "ZADD", q.timeouts(), strconv.FormatInt(q.now(t)+alive.Milliseconds(), 10), owner)
}

// join starts a Lock of name, and returns when it is queued.
func (q queueOf) join(t *testing.T, c *client.Client, name string, opts ...lock.Option) *kindtest.Waiter {
	t.Helper()
	return q.joinUnder(t, t.Context(), c, name, opts...)
}

func (q queueOf) joinUnder(t *testing.T, ctx context.Context, c *client.Client, name string, opts ...lock.Option) *kindtest.Waiter {
	t.Helper()
	n := len(q.owners(t))
	w := kindtest.Go(ctx, c.NewFairLock(name, opts...))
	q.want(t, "the waiter is queued", n+1)
	return w
}

// want waits until n owners are in the queue.
func (q queueOf) want(t *testing.T, what string, n int) {
	t.Helper()
	kindtest.WaitFor(t, what, func() bool { return len(q.owners(t)) == n })
}

// wantOwners fails the test unless exactly these owners are queued, in this order, and no other owner has a deadline.
func (q queueOf) wantOwners(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := q.owners(t); !slices.Equal(got, want) {
		t.Errorf("%s: in the queue are %q, want %q", what, got, want)
	}
	deadlines := q.deadlines(t)
	for _, owner := range want {
		if deadlines[owner] == 0 {
			t.Errorf("%s: %s is in the queue without a deadline", what, owner)
		}
		delete(deadlines, owner)
	}
	if len(deadlines) > 0 {
		t.Errorf("%s: deadlines of owners that are not in the queue: %v", what, deadlines)
	}
}

// serveInOrder waits until each of the waiters has held the lock, in order.
func serveInOrder(t *testing.T, waiters ...*kindtest.Waiter) {
	t.Helper()
	for _, w := range waiters {
		kindtest.MustUnlock(t, w.Hold(t))
	}
}

// The hashes of plain and fair locks have the same format. The owner string shows the type, so each fails on the other
// instead of waiting indefinitely.
func TestKinds_areDistinguished(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	type handle interface {
		lock.Locker
		kindtest.Operator
	}
	plain, fair := handle(b.NewLock("orders")), handle(b.NewFairLock("orders"))
	wantWrongType := func(what string, err error, want string) {
		t.Helper()
		if !errors.Is(err, lock.ErrWrongType) || !strings.Contains(err.Error(), want) || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("%s: %v, want ErrWrongType, and %q", what, err, want)
		}
	}
	for want, c := range map[string]struct {
		held   lock.Locker
		others []handle
	}{
		": a plain lock": {a.NewLock("orders"), []handle{fair, b.NewFairLock("orders", lock.WithFencing())}},
		": a fair lock":  {a.NewFairLock("orders"), []handle{plain, b.NewLock("orders", lock.WithFencing())}},
	} {
		h := kindtest.MustLock(t, c.held)
		for _, other := range c.others {
			wantWrongType("Lock", kindtest.Go(t.Context(), other).Err(t), want)
			_, err := other.TryLock(t.Context())
			wantWrongType("TryLock", err, want)
			_, err = other.Inspect(t.Context())
			wantWrongType("Inspect", err, want)
			_, err = other.ForceUnlock(t.Context())
			wantWrongType("ForceUnlock", err, want)
		}
		_, err := multilock.New(b.NewLock("first"), c.others[0]).TryLock(t.Context())
		wantWrongType("a multi-lock", err, want)
		kindtest.MustUnlock(t, h)
	}

	for _, l := range []lock.Locker{plain, fair} { // owners of Redisson and of earlier versions show no type
		for _, owner := range []string{"0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", a.ID() + ":1800000000000000002", a.ID() + ":1800000000000000003"} {
			s.Do(t, "HSET", "orders", owner, "1")
			if _, err := l.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("with %s: %v", owner, err)
			}
			s.Do(t, "DEL", "orders")
		}
	}

	// A fair waiter that is already queued gets the error from its heartbeat, and leaves the queue.
	h := kindtest.MustLock(t, a.NewFairLock("orders"))
	q := queueOf{s, "orders"}
	waiter := q.join(t, b, "orders")
	s.Do(t, "EVAL", "redis.call('DEL', KEYS[1]); return redis.call('HSET', KEYS[1], ARGV[1], 1)", "1", "orders", b.ID()+":001800000000000000002")
	wantWrongType("a waiter in the queue", waiter.Err(t), ": a plain lock")
	q.want(t, "it left the queue", 0)
	s.Do(t, "DEL", "orders")
	_ = h.Unlock(t.Context())

	// Goroutines of one process keep a plain lock busy: it is never free, and no process is queued in Redis.
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = lock.Do(ctx, a.NewLock("hot"), func(context.Context) error { return nil })
			}
		})
	}
	kindtest.WaitFor(t, "the lock is held", func() bool { return kindtest.Number(s.Do(t, "EXISTS", "hot")) == 1 })
	for {
		h, err := b.NewFairLock("hot").Lock(t.Context())
		if err != nil {
			wantWrongType("a hot lock", err, "")
			break
		}
		kindtest.MustUnlock(t, h) // it was free at that moment
	}
	stop()
	all.Wait()
}

// Locks that linger keep the rules of all locks, and those of the queue once the process that keeps the lock has received
// the notification of a waiter. Before, a caller of that process can come first.
func TestRules_linger(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := kindtest.NewSettling(s.Client(t))
	a := kindtest.NewRegistered(t, rdb, kindtest.Fast...)
	b := kindtest.NewRegistered(t, rdb, kindtest.Fast...)
	t.Run("on Redis", func(t *testing.T) {
		h := locktest.Harness{
			New: func(name string, opts ...lock.Option) lock.Locker {
				return a.NewFairLock(name, kindtest.Lingering(opts)...)
			},
			Other: func(name string, opts ...lock.Option) lock.Locker {
				return b.NewFairLock(name, kindtest.Lingering(opts)...)
			},
			Watchdog: kindtest.WatchdogTimeout,
			Waiters: func(ctx context.Context, name string) (int, error) {
				state, err := a.NewFairLock(name).Inspect(ctx)
				rdb.Settle(t)
				return len(state.Waiters), err
			},
		}
		locktest.Run(t, h)
		locktest.RunFair(t, h)
	})
	kindtest.SoonEmpty(t, s)
}
