package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// 1,000 callers are batched and leave at random times, before and after their changes are sent, and while connections
// break. Their grants are released, and each lock has as many holds as its owner.
func TestBatch_callersLeave(t *testing.T) {
	for callers, breaks := range map[int]bool{1000: false, 200: true} {
		t.Run(fmt.Sprintf("breaks=%t", breaks), func(t *testing.T) {
			server := redistest.Start(t)
			wire := redistest.NewProxy(t, server.Addr())
			var requests atomic.Int64
			wire.OnRequest(func(req [][]byte) (act redistest.Action) {
				n := requests.Add(1)
				if n%10 == 0 {
					act.DelayReply = 2 * time.Millisecond
				}
				if breaks && len(req) > 3 && n%100 == 0 {
					act.DropReply = n%200 == 0
					act.DropRequest = !act.DropReply
				}
				return act
			})
			config := testConfig()
			config.OpTimeout, config.Lease = 10*time.Second, time.Minute
			s := New(server.Client(t, redistest.Via(wire), oneConnection), config)
			direct := server.Client(t)
			var granted, refused atomic.Int64
			var all sync.WaitGroup
			for n := range callers {
				all.Go(func() {
					spec := s.NewSpec(plain, fmt.Sprint("orders-", n), nil)
					owner := lock.ContextWithNewOwner(t.Context())
					var holds []lock.Hold
					for i := range 4 { // the first hold, and reentries
						waiterTimeout := rand.N(30 * time.Millisecond)
						if n%4 == 0 && i == 0 {
							waiterTimeout = time.Minute
						}
						ctx, cancel := context.WithTimeout(owner, waiterTimeout)
						h, err := s.Lock(ctx, spec)
						ended := ctx.Err() != nil
						cancel()
						switch {
						case err == nil:
							granted.Add(1)
							holds = append(holds, h)
						case !ended && !breaks:
							t.Error(err)
						default:
							refused.Add(1)
						}
					}
					for i, h := range holds {
						lost := errors.Is(h.Err(), lock.ErrLost)
						if lost && !breaks {
							t.Errorf("lost: %v", h.Err())
						}
						left := int64(len(holds) - i)
						count, err := direct.Do(t.Context(), direct.B().Hget().Key(spec.Keys.Lock).Field(h.Owner()).Build()).AsInt64()
						if more := count - left; !lost && (err != nil || more < 0 || more > 4) {
							t.Errorf("%d holds in Redis, and the owner has %d: %v", count, left, err)
						}
						if err := h.Unlock(t.Context()); err != nil && !breaks {
							t.Errorf("unlock: %v", err)
						}
					}
				})
			}
			all.Wait()
			if granted.Load() == 0 || refused.Load() == 0 {
				t.Errorf("%d granted, %d refused: the test tests nothing", granted.Load(), refused.Load())
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if left, err := direct.Do(t.Context(), direct.B().Keys().Pattern("*orders*").Build()).AsStrSlice(); len(left) > 0 || err != nil {
				t.Errorf("left in Redis: %q, %v", left, err)
			}
			if n := s.sender.Waiting(); n != 0 {
				t.Errorf("%d goroutines of the sender are left", n)
			}
		})
	}
}

// A node of a cluster does not respond. Locks on other nodes are acquired and released while calls for locks of that
// node wait.
func TestBatch_unavailableNode(t *testing.T) {
	cluster := redistest.StartCluster(t)
	config := testConfig()
	config.OpTimeout, config.Lease = 15*time.Second, time.Minute
	s := New(cluster.Client(t), config)
	if err := s.nodes.slots.Refresh(t.Context(), s.rdb); err != nil {
		t.Fatal(err)
	}
	paused := cluster.Master(t, "orders-0")
	var there, elsewhere []*Spec
	for n := range 60 {
		spec := s.NewSpec(plain, fmt.Sprint("orders-", n), nil)
		if cluster.Master(t, spec.Keys.Lock) == paused {
			there = append(there, spec)
		} else {
			elsewhere = append(elsewhere, spec)
		}
	}
	paused.Freeze(t)
	var waiting atomic.Int64
	var stuck, quick sync.WaitGroup
	for _, spec := range there {
		waiting.Add(1)
		stuck.Go(func() {
			_, err := s.TryLock(t.Context(), spec)
			waiting.Add(-1)
			if !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("%s: %v", spec.Name, err)
			}
		})
	}
	for _, spec := range elsewhere {
		quick.Go(func() {
			for range 10 {
				h, err := s.TryLock(t.Context(), spec)
				if err == nil {
					err = h.Unlock(t.Context())
				}
				if err != nil {
					t.Errorf("%s: %v", spec.Name, err)
				}
			}
		})
	}
	quick.Wait()
	if n := waiting.Load(); n != int64(len(there)) || n == 0 {
		t.Errorf("%d of %d calls still wait for the unavailable node: the others were not faster", n, len(there))
	}
	stuck.Wait()
	paused.Thaw(t)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A call with two releases and a request is rejected, and each is sent again alone. If the reply says that the server may
// have executed the call, as that of a proxy does, the second copy of a release finds no lock: that is not a loss. The first
// copy of the request may still be executed.
func TestBatch_rejected(t *testing.T) {
	for reply, executed := range map[string]bool{"upstream failure": true, "CROSSSLOT Keys in request don't hash to the same slot": false} {
		t.Run(reply, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var holds []lock.Hold
				for n := range 4 {
					h := w.mustLock(w.Context(), w.a.NewSpec(plain, fmt.Sprint("orders-", n), nil))
					holds = append(holds, h)
				}
				near := make(chan struct{})
				rejected := 0
				w.wire.OnRequest(func(req [][]byte) (act redistest.Action) {
					switch {
					case len(req) < 3 || string(req[2]) == "1":
						act.HoldReply = near
					case string(req[0]) == "EVAL" && string(req[2]) == "3":
						rejected++
						act.Refuse, act.Execute = reply, executed
					}
					return act
				})
				var all sync.WaitGroup
				unlock := func(h lock.Hold) {
					all.Go(func() {
						if err := h.Unlock(w.Context()); errors.Is(err, lock.ErrLost) != (h == holds[3] && !executed) {
							w.Errorf("Unlock: %v", err)
						}
					})
				}
				for _, h := range holds[:2] { // these are in flight while the others wait for the next batch
					unlock(h)
					synctest.Wait()
				}
				if !executed {
					w.mini.Del("orders-3")
				}
				unlock(holds[2])
				unlock(holds[3])
				all.Go(func() {
					h := w.take(w.a, plain, w.Context())
					if got := h.(*hold).acquisition(); locked(got.at, got.Uncertain) != executed {
						w.Errorf("uncertain: %t", !executed)
					}
					w.unlock(h)
				})
				time.Sleep(time.Millisecond)
				close(near)
				all.Wait()
				if rejected != 1 {
					w.Errorf("%d calls were rejected", rejected)
				}
			})
		})
	}
}
