package session

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Readers and writers of two processes run at random: with canceled contexts, reentries, several goroutines per owner,
// and writers that read. In half of the rounds the network delays and loses replies. A writer is always alone, and no
// key is left in Redis.
func TestShare_everything(t *testing.T) {
	rounds := 4
	if n, err := strconv.Atoi(os.Getenv("LEASEHOLD_ROUNDS")); err == nil {
		rounds = n
	}
	for round := range rounds {
		faults := round%2 == 1
		inBubble(t, func(w *world) {
			w.a.table.most = 0
			seed := rand.Uint64()
			r := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex // also for r
			n := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
			inside := make(map[lock.Hold]*Kind)
			owners := make(map[lock.Hold]context.Context) // the owner of each hold
			enter := func(h lock.Hold, k *Kind, owner context.Context) {
				mu.Lock()
				defer mu.Unlock()
				for other, kind := range inside {
					if (kind == writing || k == writing) && owners[other] != owner && other.Err() == nil && h.Err() == nil {
						t.Errorf("seed %d: %s of %s and %s of %s are inside", seed, kind.Mode, other.Owner(), k.Mode, h.Owner())
					}
				}
				inside[h], owners[h] = k, owner
			}
			leave := func(h lock.Hold) {
				mu.Lock()
				delete(inside, h)
				delete(owners, h)
				mu.Unlock()
				good := h.Err() == nil
				if err := h.Unlock(w.Context()); err != nil && !faults && good {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
			w.wire.OnRequest(func(req [][]byte) redistest.Action {
				if string(req[0]) != "EVALSHA" {
					return redistest.Action{} // the in-memory server blocks if a subscriber does not read
				}
				if !faults {
					return redistest.Action{DelayReply: time.Duration(n(3000)) * time.Microsecond}
				}
				switch n(150) {
				case 0:
					return redistest.Action{DelayReply: time.Duration(n(4000)) * time.Millisecond}
				case 1:
					return redistest.Action{DelayRequest: time.Duration(n(4000)) * time.Millisecond}
				case 2:
					return redistest.Action{DropReply: true}
				default:
					return redistest.Action{DelayReply: time.Duration(n(3)) * time.Millisecond}
				}
			})
			shared := []context.Context{lock.ContextWithNewOwner(w.Context()), lock.ContextWithNewOwner(w.Context())}
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for range 25 {
						s, kind := w.a, reading
						if i%8 == 0 {
							s = w.b
						}
						if i%6 == 5 {
							kind = writing
						}
						owner := lock.ContextWithNewOwner(w.Context())
						if s == w.a && kind == reading && n(4) == 0 {
							owner = shared[n(2)]
						}
						ctx, cancel := owner, context.CancelFunc(func() {})
						if n(3) == 0 {
							ctx, cancel = context.WithTimeout(owner, time.Duration(n(20000))*time.Microsecond)
						}
						var opts []lock.Option
						switch n(12) {
						case 0:
							opts = append(opts, lock.WithReaderPreference())
						case 1:
							opts = append(opts, lock.WithFixedLease(time.Minute))
						}
						lockIt := s.Lock
						if n(4) == 0 {
							lockIt = s.TryLock
						}
						h, err := lockIt(ctx, s.NewSpec(kind, "orders", opts))
						if err != nil {
							if !faults && !errors.Is(err, lock.ErrNotAcquired) && ctx.Err() == nil {
								t.Errorf("seed %d: %v", seed, err)
							}
							cancel()
							continue
						}
						enter(h, kind, owner)
						time.Sleep(time.Duration(n(3000)) * time.Microsecond)
						if n(3) == 0 {
							in, done := context.WithTimeout(owner, time.Duration(n(5000))*time.Microsecond)
							if more, err := s.Lock(in, s.NewSpec(reading, "orders", nil)); err == nil {
								enter(more, reading, owner)
								if n(2) == 0 { // release the outer one first
									leave(h)
									h, more = more, nil
								}
								time.Sleep(time.Duration(n(3000)) * time.Microsecond)
								if more != nil {
									leave(more)
								}
							}
							done()
						}
						leave(h)
						cancel()
						time.Sleep(time.Duration(n(2000)) * time.Microsecond)
					}
				})
			}
			wg.Wait()
			w.wire.OnRequest(nil)
			time.Sleep(leaseTime + 4*opTime)
			w.a.table.mu.Lock()
			if n := len(w.a.table.known); n != 0 {
				t.Errorf("seed %d: %d entries are left", seed, n)
			}
			w.a.table.mu.Unlock()
			if keys := w.mini.Keys(); len(keys) != 0 {
				t.Errorf("seed %d: left %q", seed, keys)
			}
		})
		if t.Failed() {
			return
		}
	}
}
