package bridge

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const (
	name  = "orders"
	lease = time.Second
)

// libraries are the old ones, each with its key in Redis.
var libraries = map[string]struct {
	open func(t *testing.T, addr string) Old
	key  string
}{
	"redsync": {func(t *testing.T, addr string) Old {
		return Redsync(redsync.New(goredis.NewPool(open(t, addr))), name, lease, redsync.WithRetryDelay(5*time.Millisecond))
	}, name},
	"redislock": {func(t *testing.T, addr string) Old {
		return Redislock(redislock.New(open(t, addr)), name, lease, 5*time.Millisecond)
	}, name},
	"rueidislock": {func(t *testing.T, addr string) Old {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{addr}},
			KeyMajority:  1, KeyValidity: lease,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		return Rueidislock(l, name)
	}, "rueidislock:0:" + name},
}

func open(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// newLock is leasehold's lock, of a client of its own.
func newLock(t *testing.T, s *redistest.Server) lock.Locker {
	c, err := client.New(s.Client(t), client.WithKeyPrefix("leasehold:"), client.WithWatchdogTimeout(5*lease))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c.NewLock(name)
}

// oldDo is what an old process does.
func oldDo(ctx context.Context, old Old, fn func(context.Context) error) error {
	held, unlock, err := old.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(fn(held), unlock(context.WithoutCancel(ctx)))
}

// In both halves of a rollout no two callers are inside together: old processes with bridges, and
// bridges with new processes.
func TestRollout(t *testing.T) {
	for library, l := range libraries {
		for half, with := range map[string]func(ctx context.Context, old Old, new lock.Locker, fn func(context.Context) error) error{
			"old and bridges": func(ctx context.Context, old Old, _ lock.Locker, fn func(context.Context) error) error {
				return oldDo(ctx, old, fn)
			},
			"bridges and new": func(ctx context.Context, _ Old, new lock.Locker, fn func(context.Context) error) error {
				return lock.Do(ctx, new, fn)
			},
		} {
			t.Run(library+"/"+half, func(t *testing.T) {
				t.Parallel()
				s := redistest.Start(t)
				var inside, entered atomic.Int32
				work := func(ctx context.Context) error {
					if n := inside.Add(1); n != 1 {
						t.Errorf("%d are inside", n)
					}
					entered.Add(1)
					defer inside.Add(-1)
					select { // it takes a while, so that another would overlap
					case <-time.After(time.Millisecond):
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				const processes, times = 2, 20
				var wg sync.WaitGroup
				for range processes {
					old, new := l.open(t, s.Addr()), newLock(t, s)
					wg.Go(func() {
						for range times {
							if err := Do(t.Context(), old, new, work); err != nil {
								t.Errorf("a bridge: %v", err)
							}
						}
					})
					old, new = l.open(t, s.Addr()), newLock(t, s)
					wg.Go(func() {
						for range times {
							if err := with(t.Context(), old, new, work); err != nil {
								t.Errorf("the others: %v", err)
							}
						}
					})
				}
				wg.Wait()
				if n := entered.Load(); n != 2*processes*times {
					t.Errorf("%d were inside", n)
				}
			})
		}
	}
}

// A bridge holds both for longer than a lease, and its context ends with the first that is lost.
func TestLoss(t *testing.T) {
	for library, l := range libraries {
		for which, key := range map[string]string{"old": l.key, "new": "leasehold:" + name} {
			t.Run(library+"/"+which, func(t *testing.T) {
				t.Parallel()
				s := redistest.Start(t)
				rdb := open(t, s.Addr())
				err := Do(t.Context(), l.open(t, s.Addr()), newLock(t, s), func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						t.Errorf("over before anything was lost: %v", context.Cause(ctx))
					case <-time.After(2 * lease): // the time for which it is to be renewed
					}
					if n, err := rdb.Del(t.Context(), key).Result(); err != nil || n != 1 {
						t.Errorf("there is no key %s: %v", key, err)
					}
					<-ctx.Done()
					return context.Cause(ctx)
				})
				if err == nil {
					t.Error("no error")
				}
				if which == "new" && !errors.Is(err, lock.ErrLost) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// A caller that gives up leaves neither lock behind.
func TestGivesUp(t *testing.T) {
	for library, l := range libraries {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			new := newLock(t, s)
			h, err := new.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			old := l.open(t, s.Addr())
			err = Do(ctx, old, newLock(t, s), func(context.Context) error {
				t.Error("it was called")
				return nil
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			other := l.open(t, s.Addr()) // as another process
			if err := Do(t.Context(), other, new, func(context.Context) error { return nil }); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }
