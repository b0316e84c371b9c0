//go:build linux

package integration_test

import (
	"context"
	"errors"
	"math/rand/v2"
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

// Does a call count once when its reply is lost? 10,000 acquisitions, a half of
// them re-entries, and as many unlocks: the wire executes each command, loses
// its first reply and breaks the connection. After each step the hold count is
// read at the server itself.
//
//	callers, each on a connection of its own:
//	  1 lock        the reply is lost; it returns a hold, and the count is 1
//	  2 lock again  as the same owner, up to twice; the count is 2, 3
//	  3 unlock      each: nil, and the count is one less; after the last the key is gone
func TestLostReply(t *testing.T) {
	const callers = 32
	n := amount(10_000)
	s := seed(t)
	server := redistest.Start(t)
	direct := server.Client(t)
	proxy := redistest.NewProxy(t, server.Addr())
	knowScripts(t, direct)

	// A repeated command is byte for byte the same; one that is new is lost.
	var seen sync.Map
	var commands, lost atomic.Int64
	proxy.OnRequest(func(req [][]byte) redistest.Action {
		if command := strings.ToUpper(string(req[0])); command != "EVALSHA" && command != "EVAL" {
			return redistest.Action{}
		}
		commands.Add(1)
		var all strings.Builder
		for _, word := range req {
			all.Write(word)
			all.WriteByte(0)
		}
		if _, again := seen.LoadOrStore(all.String(), true); again {
			return redistest.Action{}
		}
		lost.Add(1)
		return redistest.Action{DropReply: true}
	})

	var left, grants, reentries, unlocks atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		rdb := server.Client(t, redistest.Via(proxy), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
		c, err := client.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(s, uint64(i)))
		name := "lost" + string(rune('A'+i))
		l := c.NewLock(name)
		counted := func(owner string, want int64) {
			got, err := direct.Do(t.Context(), direct.B().Hget().Key(name).Field(owner).Build()).AsInt64()
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
				ctx := lock.WithOwner(t.Context())
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
							t.Errorf("%s: a re-entry has the token %d of %d", name, h.Token(), holds[0].Token())
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
			ctx, cancel := context.WithTimeout(context.Background(), patience)
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
	t.Logf("%d acquisitions (%d of them re-entries) and %d unlocks in %v: %d of %d replies were lost",
		grants.Load(), reentries.Load(), unlocks.Load(), time.Since(began).Round(time.Millisecond), lost.Load(), commands.Load())
}

// The wire that TestLostReply relies on: a script that adds one, on a client
// that repeats it, has added two when it answers.
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

// knowScripts makes the server know the scripts of a plain lock, so that each
// call is one command.
func knowScripts(t *testing.T, rdb rueidis.Client) {
	t.Helper()
	c, err := client.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewLock("warm").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.NewLock("warm").Lock(h.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []lock.Hold{again, h} {
		if err := h.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
