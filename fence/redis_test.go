package fence_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/fencetest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

func newGuard(t *testing.T, rdb rueidis.Client, opts ...fence.RedisOption) *fence.Redis {
	t.Helper()
	g, err := fence.NewRedis(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// text returns the reply to a command, or "" for nil.
func text(t *testing.T, s *redistest.Server, args ...string) string {
	t.Helper()
	m := s.Do(t, args...)
	if m.IsNil() {
		return ""
	}
	if n, err := m.AsInt64(); err == nil {
		return strconv.FormatInt(n, 10)
	}
	v, err := m.ToString()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

var push = fence.NewScript(`return redis.call('RPUSH', KEYS[1], ARGV[1])`)

// writes has every way to write to a key.
var writes = map[string]func(ctx context.Context, g *fence.Redis, token uint64, key string) error{
	"fenced set": func(ctx context.Context, g *fence.Redis, token uint64, key string) error {
		return g.Set(ctx, token, key, "v")
	},
	"fenced hset": func(ctx context.Context, g *fence.Redis, token uint64, key string) error {
		return g.HSet(ctx, token, key, map[string]string{"a": "1", "b": "2"})
	},
	"fenced del": func(ctx context.Context, g *fence.Redis, token uint64, key string) error {
		return g.Del(ctx, token, key)
	},
	"fenced script": func(ctx context.Context, g *fence.Redis, token uint64, key string) error {
		_, err := g.Run(ctx, token, push, []string{key}, "v")
		return err
	},
}

func TestRedis(t *testing.T) {
	s := redistest.Start(t)
	g := newGuard(t, s.Client(t))
	for op, write := range writes {
		t.Run(op, func(t *testing.T) {
			s.Do(t, "FLUSHALL")
			for _, token := range []uint64{older, older, younger, younger} {
				if err := write(t.Context(), g, token, "data"); err != nil {
					t.Fatal(err)
				}
			}
			before := text(t, s, "TYPE", "data")
			err := write(t.Context(), g, older, "data")
			fencetest.IsStale(t, op, err, older, younger)
			if want := fmt.Sprintf(`leasehold: %s "data": stale fencing token %d: highest token seen is %d`, op, older, younger); err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
			if after := text(t, s, "TYPE", "data"); after != before {
				t.Errorf("a %s became a %s", before, after)
			}
			if register := text(t, s, "GET", "leasehold_fence:{data}"); register != fmt.Sprint(younger) {
				t.Errorf("the register is %q", register)
			}
			if n := text(t, s, "DBSIZE"); n != map[bool]string{true: "1", false: "2"}[op == "fenced del"] {
				t.Errorf("%s keys", n)
			}

			s.Do(t, "SET", "leasehold_fence:{data}", "something")
			if err := write(t.Context(), g, younger, "data"); !errors.Is(err, lock.ErrWrongType) {
				t.Errorf("over a register that is none: %v", err)
			}

			why := errors.New("shutting down")
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(why)
			if err := write(ctx, g, younger, "data"); err == nil || err.Error() != fmt.Sprintf(`leasehold: %s "data": context canceled: shutting down`, op) || !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
				t.Errorf("with a context that is over: %v", err)
			}

			s.Freeze(t)
			ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
			defer stop()
			if err := write(ctx, g, younger, "data"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, why) || errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), ": no reply from Redis after ") {
				t.Errorf("without a reply before the deadline: %v", err)
			}
			s.Thaw(t)
		})
	}
}

// Each write stores the right value, and the reply of a script is returned.
func TestRedis_writes(t *testing.T) {
	s := redistest.Start(t)
	g := newGuard(t, s.Client(t), fence.WithHighestTokenExpiry(time.Hour))
	if err := g.Set(t.Context(), older, "s", "one\x00\xff"); err != nil {
		t.Error(err)
	}
	if got := text(t, s, "GET", "s"); got != "one\x00\xff" {
		t.Errorf("s is %q", got)
	}
	if left := text(t, s, "TTL", "leasehold_fence:{s}"); left < "3500" || left > "3600" {
		t.Errorf("its register ends in %s s", left)
	}
	s.Do(t, "HSET", "h", "kept", "1")
	if err := g.HSet(t.Context(), older, "h", map[string]string{"a": "1", "b": "2"}); err != nil {
		t.Error(err)
	}
	if got := text(t, s, "HGET", "h", "a") + text(t, s, "HGET", "h", "b") + text(t, s, "HLEN", "h"); got != "123" {
		t.Errorf("a, b and the number of fields are %s", got)
	}
	if err := g.Del(t.Context(), older, "h"); err != nil {
		t.Error(err)
	}
	if n := text(t, s, "EXISTS", "h"); n != "0" {
		t.Error("h is there")
	}
	for want := range int64(3) {
		reply, err := g.Run(t.Context(), older, push, []string{"l"}, "v")
		if n, _ := reply.AsInt64(); err != nil || n != want+1 {
			t.Errorf("push %d: %d, %v", want, n, err)
		}
	}
	reply, err := g.Run(t.Context(), older, fence.NewScript(`return redis.call('GET', KEYS[2])`), []string{"l", "nothing"})
	if err != nil || !reply.IsNil() {
		t.Errorf("nothing: %v, %v", reply, err)
	}

	// A lock of the same name is not overwritten.
	s.Do(t, "HSET", "lock", "6f1c4c5e-7f5c-4c84-9a53-1f3a7a1b2c3d:1", "1")
	if err := g.Set(t.Context(), older, "lock", "v"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("a string over a lock: %v", err)
	}
	if kind := text(t, s, "TYPE", "lock") + text(t, s, "EXISTS", "leasehold_fence:{lock}"); kind != "hash0" {
		t.Errorf("the lock and its register: %s", kind)
	}
}

// Each key has its own token counter, whatever braces it contains, so the first write to a key is
// never stale.
func TestRedis_registersAreApart(t *testing.T) {
	s := redistest.Start(t)
	g := newGuard(t, s.Client(t))
	keys := []string{"{x}", "x", "{x}:", "x:", "{x:}", "{{x}}", "{{x}"}
	for i, key := range keys {
		token := uint64(len(keys) - i) // smaller than all previous ones
		if err := g.Set(t.Context(), token, key, "value"); err != nil {
			t.Errorf("the first write to %s: %v", key, err)
		}
	}
	for i, key := range keys {
		token := uint64(len(keys) - i)
		if err := g.Set(t.Context(), token-1, key, "value"); token > 1 && !errors.Is(err, fence.ErrStale) {
			t.Errorf("a stale write to %s: %v, want ErrStale", key, err)
		}
	}
	if n := text(t, s, "DBSIZE"); n != fmt.Sprint(2*len(keys)) {
		t.Errorf("%s keys, want a register for each of %d", n, len(keys))
	}
}

// A call with invalid arguments does not reach the server.
func TestRedis_refusesBeforeSending(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	g := newGuard(t, rdb)
	for op, write := range writes {
		fencetest.IsNoToken(t, op, write(t.Context(), g, 0, "data"))
		for _, key := range []string{"", "a}b", "a{b", "a{}b", "}{a}", "leasehold_fence:{a}"} {
			err := write(t.Context(), g, younger, key)
			ok := key == "}{a}" // its hash tag is a
			if ok != (err == nil) {
				t.Errorf("%s of %q: %v", op, key, err)
			}
			var e *lock.Error
			if err != nil && (!errors.As(err, &e) || e.Op != op || e.Name != key) {
				t.Errorf("%s of %q: %#v", op, key, err)
			}
		}
		s.Do(t, "DEL", "}{a}", "leasehold_fence:}{a}:")
	}
	if err := g.HSet(t.Context(), younger, "data", nil); err == nil {
		t.Error("no fields are set")
	}
	if _, err := g.Run(t.Context(), younger, push, nil); err == nil {
		t.Error("a script of no key runs")
	}
	for _, script := range []*fence.Script{nil, {}} {
		if _, err := g.Run(t.Context(), younger, script, []string{"data"}); err == nil || err.Error() != `leasehold: fenced script "data": no script: call NewScript` {
			t.Errorf("without a script: %v", err)
		}
	}
	if n := text(t, s, "DBSIZE"); n != "0" {
		t.Errorf("%s keys are left", n)
	}

	if _, err := fence.NewRedis(nil); err == nil {
		t.Error("a guard of no client")
	}
	for _, d := range []time.Duration{0, -time.Hour, time.Microsecond} {
		if _, err := fence.NewRedis(rdb, fence.WithHighestTokenExpiry(d)); err == nil {
			t.Errorf("an expiry of %v", d)
		}
	}
}

// On a cluster, the token counter and the data share a slot, whatever the key is.
func TestRedis_onACluster(t *testing.T) {
	s := redistest.Start(t, "--cluster-enabled", "yes")
	s.AddSlots(t, 0, 16384)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(text(t, s, "CLUSTER", "INFO"), "cluster_state:ok"); {
		if time.Now().After(deadline) {
			t.Fatal("the cluster does not come up")
		}
		time.Sleep(10 * time.Millisecond)
	}
	g := newGuard(t, s.Client(t))
	for _, key := range []string{"data", "{user}:1", "a:{user}:1", "{{user}}", "}{user}", "{a}{b}", "ключ", "with space"} {
		for op, write := range writes {
			s.Do(t, "DEL", key)
			if err := write(t.Context(), g, younger, key); err != nil {
				t.Errorf("%s of %q: %v", op, key, err)
			}
			fencetest.IsStale(t, op, write(t.Context(), g, older, key), older, younger)
		}
	}
	set := fence.NewScript("return redis.call('SET', KEYS[2], ARGV[1])")
	if _, err := g.Run(t.Context(), 1000, set, []string{"{k}", "k"}, "v"); err != nil {
		t.Error(err)
	}
	if _, err := g.Run(t.Context(), 1001, set, []string{"{k}", "elsewhere"}, "v"); err == nil || !strings.Contains(err.Error(), `"elsewhere" is in a different hash slot`) {
		t.Errorf("a key in another slot: %v", err)
	}
}

// The permissions listed in the documentation are sufficient.
func TestRedis_rights(t *testing.T) {
	s := redistest.Start(t)
	for op, more := range map[string][]string{"fenced set": {"+strlen"}, "fenced hset": {"+hlen", "+hset"}, "fenced del": {"+persist", "+del"}, "fenced script": {"+rpush"}} {
		s.Do(t, "DEL", "data")
		name := strings.ReplaceAll(op, " ", "-")
		s.Do(t, append([]string{"ACL", "SETUSER", name, "reset", "on", "nopass", "~data", "~leasehold_fence:*",
			"+hello", "+ping", "+cluster|slots", "+evalsha", "+eval", "+get", "+set"}, more...)...)
		g := newGuard(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = name, "x" }))
		if err := writes[op](t.Context(), g, younger, "data"); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		fencetest.IsStale(t, op, writes[op](t.Context(), g, older, "data"), older, younger)
	}
}

// Many writers write concurrently with tokens in all orders. The tokens of the executed writes never decrease.
func TestRedis_inOrder(t *testing.T) {
	s := redistest.Start(t)
	g := newGuard(t, s.Client(t))
	var wg sync.WaitGroup
	var tokens atomic.Uint64
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				token := younger + tokens.Add(1) - uint64(i*i%7) // grows, with some steps back
				_, err := g.Run(t.Context(), token, push, []string{"log"}, fmt.Sprint(token))
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	reply := s.Do(t, "LRANGE", "log", "0", "-1")
	log, err := reply.AsStrSlice()
	if err != nil || len(log) < 200 || len(log) == 8*200 {
		t.Fatalf("%d writes of %d passed, %v: that proves little", len(log), 8*200, err)
	}
	for i := range log[1:] {
		if log[i+1] < log[i] { // all have the same length
			t.Fatalf("write %d has token %s, the one before it %s", i+1, log[i+1], log[i])
		}
	}
}

// The whole sequence: a holder is paused past its lease, another one writes, then the first one
// resumes and writes, too.
func TestRedis_turnsAStaleHolderAway(t *testing.T) {
	s := redistest.Start(t)
	g := newGuard(t, s.Client(t))
	hold := func() lock.Hold {
		t.Helper()
		c, err := client.New(s.Client(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		h, err := c.NewLock("orders").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := hold()
	if err := g.Set(t.Context(), first.Token(), "stock", "10"); err != nil {
		t.Fatal(err)
	}
	s.Do(t, "DEL", "orders") // its lease expires, and the holder has not checked yet
	second := hold()
	if err := g.Set(t.Context(), second.Token(), "stock", "9"); err != nil {
		t.Fatal(err)
	}
	fencetest.IsStale(t, "the first holder", g.Set(t.Context(), first.Token(), "stock", "11"), first.Token(), second.Token())
	if got := text(t, s, "GET", "stock"); got != "9" {
		t.Errorf("stock is %s", got)
	}
}

// A server that temporarily cannot write is unavailable. Other errors match what the error reference lists, and the error of a
// denied command contains advice.
func TestRedis_unavailable(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p))
	g := newGuard(t, rdb)
	fails := func(what, text string, want error) {
		t.Helper()
		for op, write := range writes {
			err := write(t.Context(), g, older, "data")
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s, %s: %v", op, what, err)
			}
			for _, sentinel := range []error{lock.ErrUnavailable, lock.ErrWrongType, lock.ErrClosed} {
				if errors.Is(err, sentinel) != (sentinel == want) {
					t.Errorf("%s, %s: %v, want %v", op, what, err, want)
				}
			}
		}
	}
	for reply, want := range map[string]error{
		"NOREPLICAS Not enough good replicas to write.": lock.ErrUnavailable,
		"OOM command not allowed":                       lock.ErrUnavailable,
		"WRONGTYPE Operation against a key":             lock.ErrWrongType,
		"NOPERM this user has no permissions":           nil,
	} {
		p.OnRequest(func(req [][]byte) (a redistest.Action) {
			if string(req[0]) == "EVALSHA" {
				a.Refuse = reply
			}
			return a
		})
		fails(reply, reply, want)
		if want == nil {
			fails(reply, "grant the permissions", nil)
		}
	}
	rdb.Close()
	fails("the client is closed", "", lock.ErrClosed)
}
