//go:build linux

package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// seconds returns how long a test without a natural end should run.
func seconds(t *testing.T) time.Duration {
	t.Helper()
	given := os.Getenv("LEASEHOLD_SECONDS")
	if given == "" {
		return time.Duration(amount(10)) * time.Second
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("LEASEHOLD_SECONDS: %q is not a number of seconds", given)
	}
	return time.Duration(n) * time.Second
}

// Callers never deadlock. 16 goroutines of two clients acquire random subsets of 8 locks, in random order, and
//
//	1 each of them waits not much longer than the others hold their locks
//	2 no two owners hold a lock at once
//	3 in the end no key is left
//
// The locks are plain ones, which a script acquires together; then locks of several types, on two servers, acquired one
// by one; then plain ones again, which some callers acquire together and others one by one.
func TestMultiLock(t *testing.T) {
	const (
		goroutines = 16
		names      = 8
		stuck      = promptTimeout // no owner holds a lock for a thousandth of that
	)
	for _, way := range []struct {
		name string
		lock func(c []*client.Client, goroutine, i int) lock.Locker
	}{
		{"together", func(c []*client.Client, _, i int) lock.Locker {
			return c[0].NewLock(fmt.Sprint("lock", i))
		}},
		{"one by one", func(c []*client.Client, _, i int) lock.Locker {
			return []kind{plain, fair, write}[i%3].lock(c[i%2], fmt.Sprint("lock", i))
		}},
		{"both ways", func(c []*client.Client, goroutine, i int) lock.Locker {
			l := c[0].NewLock(fmt.Sprint("lock", i))
			if goroutine%4 < 2 {
				return l
			}
			return struct{ lock.Locker }{l} // hides that it can be acquired together with others
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			s, end := seed(t), seconds(t)/3
			servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
			var clients [2][]*client.Client
			for i := range clients {
				for _, server := range servers {
					clients[i] = append(clients[i], ours(t, server.Client(t)))
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), end)
			defer cancel()
			var inside [names]atomic.Int32
			var taken, locks, refused, cancelled, worst atomic.Int64
			// On a busy machine it takes longer until each of these has happened.
			mixed := func() bool { return taken.Load() > 0 && refused.Load() > 0 && cancelled.Load() > 0 }
			var wg sync.WaitGroup
			for g := range goroutines {
				random := rand.New(rand.NewPCG(s, uint64(g)))
				wg.Go(func() {
					for start := time.Now(); (ctx.Err() == nil || !mixed() && time.Since(start) < stuck) && !t.Failed(); {
						subset := random.Perm(names)[:1+random.IntN(names)]
						var members []lock.Locker
						for _, i := range subset {
							members = append(members, way.lock(clients[g%2], g, i))
						}
						m := multilock.New(members...)
						acquire, limit := m.Lock, stuck
						switch random.IntN(8) {
						case 0:
							acquire = m.TryLock
						case 1: // with a short timeout
							limit = time.Duration(random.IntN(int(20 * time.Millisecond)))
						}
						waiting, cancel := context.WithTimeout(t.Context(), limit)
						start := time.Now()
						h, err := acquire(waiting)
						if took := int64(time.Since(start)); limit == stuck && took > worst.Load() {
							worst.Store(took)
						}
						switch {
						case err == nil:
							taken.Add(1)
							locks.Add(int64(len(subset)))
							for _, i := range subset {
								if n := inside[i].Add(1); n != 1 {
									t.Errorf("%d inside lock %d", n, i)
								}
							}
							for _, i := range subset {
								inside[i].Add(-1)
							}
							if err := h.Err(); err != nil && waiting.Err() == nil {
								t.Errorf("lost: %v", err)
							}
							if err := h.Unlock(t.Context()); err != nil {
								t.Errorf("unlock: %v", err)
							}
						case waiting.Err() != nil && limit == stuck:
							t.Errorf("stuck: %v", err) // 1
						case waiting.Err() != nil:
							cancelled.Add(1)
						default:
							refused.Add(1)
						}
						cancel()
					}
				})
			}
			wg.Wait()
			for _, all := range clients {
				for _, c := range all {
					if err := c.Close(t.Context()); err != nil { // waits for abandoned requests
						t.Error(err)
					}
				}
			}
			for _, server := range servers {
				noKeys(t, server) // 3
			}
			t.Logf("in %v acquired %d times, %.1f locks each; %d attempts rejected, %d waits canceled; the longest wait was %v",
				end, taken.Load(), float64(locks.Load())/float64(taken.Load()), refused.Load(), cancelled.Load(), time.Duration(worst.Load()))
			if !mixed() {
				t.Error("the mix lacks something that it should have")
			}
		})
	}
}
