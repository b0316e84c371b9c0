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
	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const (
	name  = "orders"
	lease = 8 * time.Second // for locks that are renewed or lost; long, because a renewal on a busy machine can be seconds late
	long  = time.Minute     // for locks that are not renewed: redsync and redislock do not renew theirs
)

// servers has each type of deployment, with the way in which each library connects to it.
var servers = map[string]func(t *testing.T) deployment{
	"server": func(t *testing.T) deployment {
		s := redistest.Start(t)
		return deployment{
			lease: lease,
			goredis: func() redis.UniversalClient {
				return redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: adaptertest.ReplyTime})
			},
			rueidis: rueidis.ClientOption{InitAddress: []string{s.Addr()}},
			client:  s.Client,
		}
	},
	"sentinel": func(t *testing.T) deployment {
		s := redistest.StartSentinel(t, 2)
		var sentinels []string
		for _, sentinel := range s.Sentinels {
			sentinels = append(sentinels, sentinel.Addr())
		}
		return deployment{
			lease: lease,
			goredis: func() redis.UniversalClient {
				return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.PrimaryName, SentinelAddrs: sentinels, ReadTimeout: adaptertest.ReplyTime})
			},
			rueidis: rueidis.ClientOption{InitAddress: sentinels, Sentinel: rueidis.SentinelOption{MasterSet: redistest.PrimaryName}},
			client:  s.Client,
		}
	},
	"cluster": func(t *testing.T) deployment {
		c := redistest.StartCluster(t)
		return deployment{
			lease: lease,
			goredis: func() redis.UniversalClient {
				return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), ReadTimeout: adaptertest.ReplyTime})
			},
			rueidis: rueidis.ClientOption{InitAddress: c.Addrs()},
			client:  c.Client,
		}
	},
}

type deployment struct {
	lease   time.Duration
	goredis func() redis.UniversalClient
	rueidis rueidis.ClientOption
	client  func(tb testing.TB, edit ...func(*rueidis.ClientOption)) rueidis.Client
}

// libraries has each old library, with its key in Redis.
var libraries = map[string]struct {
	open func(t *testing.T, d deployment) OldLock
	key  string
}{
	"redsync": {func(t *testing.T, d deployment) OldLock {
		// By default, a request is limited to a twentieth of the lease.
		return Redsync(redsync.New(goredis.NewPool(open(t, d))), name, d.lease, redsync.WithRetryDelay(5*time.Millisecond), redsync.WithTimeoutFactor(0.5))
	}, name},
	"redislock": {func(t *testing.T, d deployment) OldLock {
		return Redislock(redislock.New(open(t, d)), name, d.lease, 5*time.Millisecond)
	}, name},
	"rueidislock": {func(t *testing.T, d deployment) OldLock {
		// By default, an attempt is canceled after 20 ms, and reports that a deadline was exceeded.
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: d.rueidis, KeyMajority: 1, KeyValidity: d.lease, TryNextAfter: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		return Rueidislock(l, name)
	}, "rueidislock:0:" + name},
}

func open(t *testing.T, d deployment) redis.UniversalClient {
	rdb := d.goredis()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// newLock returns leasehold's lock, with a separate client.
func newLock(t *testing.T, d deployment) lock.Locker {
	c, err := client.New(d.client(t), client.WithKeyPrefix("leasehold:"), client.WithWatchdogTimeout(d.lease), client.WithOpTimeout(d.lease/4))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c.NewLock(name)
}

// oldDo does what an old process does.
func oldDo(ctx context.Context, old OldLock, fn func(context.Context) error) error {
	held, unlock, err := old.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(fn(held), unlock(context.WithoutCancel(ctx)))
}

// In both halves of a rollout, no two callers hold the lock at the same time: first old processes
// and bridges, then bridges and new processes. This applies to a single server, to Sentinel and to
// a cluster.
func TestRollout(t *testing.T) {
	for server, start := range servers {
		t.Run(server, func(t *testing.T) {
			d := start(t)
			d.lease = long
			rollout(t, d)
		})
	}
}

func rollout(t *testing.T, d deployment) {
	for library, l := range libraries {
		for half, with := range map[string]func(ctx context.Context, old OldLock, new lock.Locker, fn func(context.Context) error) error{
			"old and bridges": func(ctx context.Context, old OldLock, _ lock.Locker, fn func(context.Context) error) error {
				return oldDo(ctx, old, fn)
			},
			"bridges and new": func(ctx context.Context, _ OldLock, new lock.Locker, fn func(context.Context) error) error {
				return lock.Do(ctx, new, fn)
			},
		} {
			t.Run(library+"/"+half, func(t *testing.T) {
				var inside, entered atomic.Int32
				work := func(ctx context.Context) error {
					if n := inside.Add(1); n != 1 {
						t.Errorf("%d are inside", n)
					}
					entered.Add(1)
					defer inside.Add(-1)
					select { // long enough for another caller to overlap
					case <-time.After(time.Millisecond):
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				const processes, times = 2, 20
				var wg sync.WaitGroup
				for range processes {
					old, new := l.open(t, d), newLock(t, d)
					wg.Go(func() {
						for range times {
							if err := Do(t.Context(), old, new, work); err != nil {
								t.Errorf("a bridge: %v", err)
							}
						}
					})
					old, new = l.open(t, d), newLock(t, d)
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

// A bridge holds both locks for longer than a lease, and its context is canceled with the first loss.
func TestLoss(t *testing.T) {
	t.Parallel()
	for library, l := range libraries {
		for which, key := range map[string]string{"old": l.key, "new": "leasehold:" + name} {
			t.Run(library+"/"+which, func(t *testing.T) {
				t.Parallel()
				d := servers["server"](t)
				rdb := open(t, d)
				err := Do(t.Context(), l.open(t, d), newLock(t, d), func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						t.Errorf("over before anything was lost: %v", context.Cause(ctx))
					case <-time.After(2 * d.lease): // longer than a lease, so that both locks are renewed
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

// A caller that stops waiting holds neither lock afterward.
func TestGivesUp(t *testing.T) {
	for library, l := range libraries {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			d := servers["server"](t)
			new := newLock(t, d)
			h, err := new.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			old := l.open(t, d)
			err = Do(ctx, old, newLock(t, d), func(context.Context) error {
				t.Error("it was called")
				return nil
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			other := l.open(t, d) // as another process
			if err := Do(t.Context(), other, new, func(context.Context) error { return nil }); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// A caller that does not wait acquires both locks or none, and its error matches leasehold's errors. The same applies to a caller
// whose wait times out.
func TestTryDo(t *testing.T) {
	d := servers["server"](t)
	d.lease = long
	for library, l := range libraries {
		t.Run(library, func(t *testing.T) {
			ctx := t.Context()
			mine, other, new := l.open(t, d), l.open(t, d), newLock(t, d)
			runs := 0
			try := func(want error) {
				t.Helper()
				before := runs
				err := TryDo(ctx, mine, new, func(context.Context) error { runs++; return nil })
				if !errors.Is(err, want) || (want == nil) != (runs > before) {
					t.Errorf("%v, and not %v; the job ran: %t", err, want, runs > before)
				}
			}
			try(nil)
			_, unlock, err := other.TryLock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			try(lock.ErrNotAcquired)
			for wait := 100 * time.Millisecond; !errors.Is(err, lock.ErrNotAcquired) && wait < time.Minute; wait *= 2 { // until it is long enough for a reply
				waits, cancel := context.WithTimeout(ctx, wait)
				err = Do(waits, mine, new, func(context.Context) error { runs++; return nil })
				cancel()
			}
			if !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("the end of a wait: %v", err)
			}
			if err := unlock(ctx); err != nil {
				t.Fatal(err)
			}
			h, err := newLock(t, d).TryLock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			try(lock.ErrNotAcquired)
			if err := h.Unlock(ctx); err != nil {
				t.Fatal(err)
			}
			try(nil) // the old lock was released each time
		})
	}
}

// A job that returns immediately keeps both locks for the minimum time, but not after its context is canceled.
func TestMinHold(t *testing.T) {
	d := servers["server"](t)
	d.lease = long
	mine, other, new := libraries["redsync"].open(t, d), libraries["redsync"].open(t, d), newLock(t, d)
	done := make(chan struct{})
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() {
		err := TryDo(ctx, mine, new, MinHold(time.Hour, func(context.Context) error { close(done); return nil }))
		if err != nil {
			t.Error(err)
		}
	})
	<-done
	if _, _, err := other.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("the old lock is free: %v", err)
	}
	cancel()
	all.Wait()
	const least = 50 * time.Millisecond
	began := time.Now()
	if err := TryDo(t.Context(), mine, new, MinHold(least, func(context.Context) error { return nil })); err != nil || time.Since(began) < least {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// The context of the function is canceled, or its deadline passes, and the function continues for several leases. Both locks are
// held until it returns.
func TestDo_heldUntilTheFunctionReturns(t *testing.T) {
	t.Parallel()
	for library, l := range libraries {
		for end, of := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"canceled": context.WithCancel,
			"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 10*time.Second) // long enough for the function to be called
			},
		} {
			t.Run(library+"/"+end, func(t *testing.T) {
				t.Parallel()
				d := servers["server"](t)
				others, oldOther := newLock(t, d), l.open(t, d)
				mine, oldMine := newLock(t, d), l.open(t, d)
				ctx, cancel := of(t.Context())
				defer cancel()
				if err := Do(ctx, oldMine, mine, func(ctx context.Context) error {
					if end == "canceled" {
						cancel()
					}
					<-ctx.Done()
					time.Sleep(2 * d.lease)
					if err := lock.HoldFromContext(ctx).Err(); err != nil {
						t.Errorf("the hold: %v", err)
					}
					if _, err := others.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
						t.Errorf("the lock: %v", err)
					}
					if _, _, err := oldOther.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
						t.Errorf("the old lock: %v", err)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
