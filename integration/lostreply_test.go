//go:build linux

package integration_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// A call takes effect once even if its reply is lost. Half of the 10,000 acquisitions are reentries, and there are as
// many unlocks: the proxy forwards each command, loses its first reply and breaks the connection. After each step the
// test reads the hold count from the server.
//
// Each caller has its own connection:
//
//	1 lock        the reply is lost; it returns a hold, and the count is 1
//	2 lock again  as the same owner, up to twice; the count is 2, 3
//	3 unlock      each: nil, and the count is one less; after the last the key is gone
func TestLostReply(t *testing.T) { eachKind(t, testLostReply, plain, fair, read, write) }

// firstLost makes a proxy that loses the first reply to each command of a lock. A retry has the same owner and the same
// effect, but possibly a different waiting time.
func firstLost(t *testing.T, server *redistest.Server) (proxy *redistest.Proxy, commands, lost *atomic.Int64) {
	proxy, commands, lost = redistest.NewProxy(t, server.Addr()), new(atomic.Int64), new(atomic.Int64)
	var seen sync.Map
	proxy.OnRequest(func(req [][]byte) redistest.Action {
		if command := strings.ToUpper(string(req[0])); command != "EVALSHA" && command != "EVAL" {
			return redistest.Action{}
		}
		commands.Add(1)
		keys, err := strconv.Atoi(string(req[2]))
		if err != nil {
			t.Errorf("a script with %q keys", req[2])
		}
		args, words := req[3+keys:], 3
		if keys == 1 {
			// The third argument of a plain lock's request is how long it has waited, which varies. The hold count that
			// it requests, or that a release leaves, comes later.
			args, words = slices.Concat(args[:2], args[min(3, len(args)):]), 4
		}
		what := bytes.Join(slices.Concat(req[:3+keys], args[:min(words, len(args))]), []byte{0})
		if _, again := seen.LoadOrStore(string(what), true); again {
			return redistest.Action{}
		}
		lost.Add(1)
		return redistest.Action{DropReply: true}
	})
	return proxy, commands, lost
}

func testLostReply(t *testing.T, k kind) {
	const callers = 32
	n := amount(2_500)
	if k == plain {
		n = amount(10_000)
	}
	s := seed(t)
	server := redistest.Start(t)
	direct := server.Client(t)
	proxy, commands, lost := firstLost(t, server)
	knowScripts(t, direct, k)

	var left, grants, reentries, unlocks atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	start := time.Now()
	for i := range callers {
		rdb := server.Client(t, redistest.Via(proxy), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
		c, err := client.New(rdb, client.WithoutRegistry(), client.WithOpTimeout(client.DefaultWatchdogTimeout/4)) // the maximum: slow replies do not matter here
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(s, uint64(i)))
		name := "lost" + string(rune('A'+i))
		l := k.lock(c, name)
		counted := func(owner string, want int64) {
			got, err := direct.Do(t.Context(), direct.B().Hget().Key(name).Field(k.field(owner)).Build()).AsInt64()
			if rueidis.IsRedisNil(err) {
				err = nil
			}
			if err != nil || got != want {
				t.Errorf("%s: the hold count is %d, want %d (%v)", name, got, want, err)
			}
		}
		wg.Go(func() {
			for left.Load() > 0 && !t.Failed() {
				var holds []lock.Hold
				ctx := lock.ContextWithNewOwner(t.Context())
				for depth := 1 + random.IntN(3); len(holds) < depth; {
					take := l.Lock
					if random.IntN(2) == 0 {
						take = l.TryLock
					}
					h, err := take(ctx)
					if err != nil {
						t.Errorf("%s, hold %d: %v", name, len(holds)+1, err)
						break
					}
					left.Add(-1)
					grants.Add(1)
					if len(holds) > 0 {
						reentries.Add(1)
						if h.Token() != holds[0].Token() || h.Owner() != holds[0].Owner() {
							t.Errorf("%s: a reentry has the token %d of %d", name, h.Token(), holds[0].Token())
						}
					}
					holds = append(holds, h)
					counted(h.Owner(), int64(len(holds)))
				}
				for i, h := range holds {
					if err := h.Unlock(ctx); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					unlocks.Add(1)
					counted(h.Owner(), int64(len(holds)-1-i))
					if err := h.Unlock(ctx); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
						t.Errorf("%s: a second unlock: %v", name, err)
					}
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), promptTimeout)
			defer cancel()
			if err := c.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	noKeys(t, server)
	if lost.Load() < grants.Load()+unlocks.Load() {
		t.Errorf("%d replies were lost, in %d calls", lost.Load(), grants.Load()+unlocks.Load())
	}
	t.Logf("%d acquisitions (%d of them reentries) and %d unlocks in %v: %d of %d replies were lost",
		grants.Load(), reentries.Load(), unlocks.Load(), time.Since(start).Round(time.Millisecond), lost.Load(), commands.Load())
}

// The proxy of TestLostReply works: a script that increments a counter, on a client that retries, has incremented it
// twice when it replies.
func TestLostReply_bites(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	rdb := server.Client(t, redistest.Via(proxy))
	naive := rueidis.NewLuaScriptRetryable("return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)")
	if err := naive.Exec(t.Context(), server.Client(t), []string{"warm"}, []string{"me"}).Error(); err != nil {
		t.Fatal(err)
	}
	proxy.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
	n, err := naive.Exec(t.Context(), rdb, []string{"lock"}, []string{"me"}).AsInt64()
	if err != nil || n != 2 {
		t.Errorf("a naive lock, entered once, is held %d times (%v); want the mistake, 2", n, err)
	}
}

// A waiter whose first replies are lost keeps its position in a fair lock's queue, and has only one.
//
//	1 the lock is held; waiters come one after the other, through a proxy that
//	loses the first reply to each command
//	2 each is queued once, in the order of arrival
//	3 they are served in that order
//	4 waiters that stop waiting, through that proxy, leave the queue
func TestLostReply_queue(t *testing.T) {
	const n, name = 20, "fair"
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := ours(t, rdb)
	proxy, _, lost := firstLost(t, server)
	knowScripts(t, rdb, fair)
	h, err := c.NewFairLock(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var tokens []uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	var quit []context.CancelFunc
	for i := range n { // 1
		// Two on each connection, so that each also loses the other's replies.
		waiters := ours(t, server.Client(t, redistest.Via(proxy)))
		for j := range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if j == 1 {
				quit = append(quit, cancel)
			}
			wg.Go(func() {
				h, err := waiters.NewFairLock(name).Lock(ctx)
				if j == 1 {
					if !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrNotAcquired) && errors.Is(err, lock.ErrUnavailable) {
						t.Errorf("a waiter that gives up: %v", err)
					}
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if len(tokens) != i {
					t.Errorf("number %d was served as number %d", i+1, len(tokens)+1)
				}
				tokens = append(tokens, h.Token())
				mu.Unlock()
				if err := h.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
			until(t, func() bool { return queued(t, rdb, name) >= int64(2*i+j+1) })
		}
	}
	state, err := fair.inspect(t.Context(), c, name) // 2
	if err != nil {
		t.Fatal(err)
	}
	owners := make(map[string]bool)
	for _, w := range state.Waiters {
		owners[w.Owner] = true
	}
	if len(state.Waiters) != 2*n || len(owners) != 2*n {
		t.Errorf("%d waiters have %d queue positions; want %d", len(owners), len(state.Waiters), 2*n)
	}
	for _, cancel := range quit { // 4
		cancel()
	}
	until(t, func() bool { return queued(t, rdb, name) == n })
	if err := h.Unlock(t.Context()); err != nil { // 3
		t.Error(err)
	}
	wg.Wait()
	if !slices.IsSorted(tokens) {
		t.Errorf("the order of the tokens is %v", tokens)
	}
	t.Logf("%d waiters, %d of which gave up; %d replies were lost", 2*n, n, lost.Load())
	// Their commands continue for a while, because their connections break repeatedly.
	until(t, func() bool { return dbsize(t, rdb) == 0 })
}

// knowScripts loads the scripts of some types, so that each call is one command.
func knowScripts(t *testing.T, rdb rueidis.Client, kinds ...kind) {
	t.Helper()
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		h, err := k.lock(c, "warm").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		again, err := k.lock(c, "warm").Lock(h.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range []lock.Hold{again, h} {
			if err := h.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
