package bloom_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/bloom"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// filter has the methods of a Filter and of a Sharded.
type filter interface {
	Init(ctx context.Context, n uint64, p float64) (bool, error)
	Add(ctx context.Context, elements ...[]byte) (int, error)
	Contains(ctx context.Context, elements ...[]byte) ([]bool, error)
	Count(ctx context.Context) (int64, error)
	Delete(ctx context.Context) error
}

// calls has each call of a filter with one of its commands, in an order in which all of them succeed.
var calls = []struct {
	op, command string
	do          func(ctx context.Context, f filter) error
}{
	{"init", "EVALSHA", func(ctx context.Context, f filter) error { return second(f.Init(ctx, 1000, 0.01)) }},
	{"add", "HMGET", func(ctx context.Context, f filter) error { return second(f.Add(ctx, []byte("a"))) }},
	{"add", "BITFIELD", func(ctx context.Context, f filter) error { return second(f.Add(ctx, []byte("b"))) }},
	{"contains", "BITFIELD_RO", func(ctx context.Context, f filter) error { return second(f.Contains(ctx, []byte("a"))) }},
	{"contains", "GETRANGE", func(ctx context.Context, f filter) error { return second(f.Contains(ctx, bytes(hundred)...)) }},
	{"count", "HMGET", func(ctx context.Context, f filter) error { return second(f.Count(ctx)) }},
	{"count", "BITCOUNT", func(ctx context.Context, f filter) error { return second(f.Count(ctx)) }},
	{"config", "HMGET", func(ctx context.Context, f filter) error {
		if f, ok := f.(*bloom.Filter); ok {
			return second(f.Config(ctx))
		}
		return second(f.Count(ctx)) // a Sharded has no such call
	}},
	{"delete", "EVALSHA", func(ctx context.Context, f filter) error { return f.Delete(ctx) }},
}

var hundred = func() (all []string) {
	for i := range 100 {
		all = append(all, fmt.Sprint(i))
	}
	return all
}()

// filters returns a filter of each type, by name.
func filters(s *command.Sender) map[string]filter {
	return map[string]filter{"one": bloom.On(s, "one"), "some": bloom.ShardedOn(s, "some", 3)}
}

// named fails the test unless err names an operation on the filter or one of its shards, and matches want.
func named(t *testing.T, what, name string, err, want error) {
	t.Helper()
	var e *lock.Error
	if !errors.Is(err, want) || !errors.As(err, &e) || e.Op == "" || e.Name != name && e.Name[:len(name)+2] != name+":{" {
		t.Errorf("%s of %s: %v", what, name, err)
	}
}

// A lost request or reply causes an error, for each command, and the call can be repeated.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for what, act := range map[string]redistest.Action{"request": {DropRequest: true}, "reply": {DropReply: true}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr())
			sender := command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: patient})
			made(t, bloom.On(sender, "other"), 10, 0.1) // loads the script on the server
			for name, f := range filters(sender) {
				for _, c := range calls {
					p.OnRequest(redistest.Once(c.command, act))
					err := c.do(t.Context(), f)
					if c.op == "count" && c.command == "HMGET" && err == nil {
						t.Errorf("%s: nothing was lost", c.op) // the call reads the parameters first
					}
					named(t, c.op+" without an answer to "+c.command, name, err, lock.ErrUnavailable)
					p.OnRequest(nil)
					err = c.do(t.Context(), f)
					for errors.Is(err, lock.ErrUnavailable) { // rueidis may use the broken connection again
						err = c.do(t.Context(), f)
					}
					if err != nil {
						t.Errorf("%s of %s, repeated: %v", c.op, name, err)
					}
					if c.command == "BITFIELD" { // executed once or twice
						if there, err := f.Contains(t.Context(), bytes([]string{"a", "b", "c"})...); err != nil || !there[0] || !there[1] || there[2] {
							t.Errorf("%s: %v, %v", name, there, err)
						}
					}
				}
			}
		})
	}
}

// A delayed duplicate of a Delete does not delete a filter that was created since.
func TestDelete_lateCopies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	f, other := bloom.On(command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: patient}), "f"), bloom.On(command.New(s.Client(t), command.Config{Timeout: patient}), "f")
	for what, lose := range map[string]redistest.Action{"request": {DropRequest: true}, "reply": {DropReply: true}} {
		if err := other.Delete(t.Context()); err != nil { // loads the script on the server
			t.Fatal(err)
		}
		copied := p.LoseDated(lose, true)
		for copied() == nil {
			if err := f.Delete(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
				t.Fatalf("a lost %s: %v", what, err)
			}
		}
		p.OnRequest(nil)
		if err := f.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		made(t, other, 1000, 0.01)
		s.Do(t, copied()...)
		if n, err := other.Count(t.Context()); err != nil {
			t.Errorf("a lost %s: %d, %v", what, n, err)
		}
	}
}

// A caller that leaves gets its error immediately. Its command is still executed, and Close waits for it. A Delete that was only
// reading the server's time deletes nothing.
func TestCancelled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	others := filters(command.New(s.Client(t), command.Config{Timeout: patient}))
	for _, c := range calls {
		for _, phase := range []string{"request", "reply"} {
			for name, other := range others {
				p := redistest.NewProxy(t, s.Addr()) // a shard of an earlier call may send its command late
				sender := command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: patient})
				f := filters(sender)[name]
				if c.op != "init" {
					if _, err := other.Init(t.Context(), 1000, 0.01); err != nil {
						t.Fatal(err)
					}
				}
				held, asked := make(chan struct{}), make(chan struct{})
				act := redistest.Action{HoldRequest: held}
				if phase == "reply" {
					act = redistest.Action{HoldReply: held}
				}
				once := redistest.Once(c.command, act)
				p.OnRequest(func(req [][]byte) redistest.Action {
					a := once(req)
					if a != (redistest.Action{}) {
						close(asked)
					}
					return a
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.do(ctx, f) }()
				select {
				case <-asked:
				case err := <-done:
					t.Fatalf("%s of %s: %v before a %s", c.op, name, err, c.command)
				}
				cancel(kindtest.Why)
				err := <-done
				named(t, c.op+", left while its "+phase+" is on its way", name, err, context.Canceled)
				named(t, c.op+", left while its "+phase+" is on its way", name, err, kindtest.Why)
				named(t, c.op+", after its context was canceled", name, c.do(ctx, f), kindtest.Why)
				// a shard may not have sent its command yet
				if name == "one" && !strings.Contains(fmt.Sprint(err), ": no reply from Redis after ") {
					t.Errorf("%s of %s: %v does not say that there was no reply", c.op, name, err)
				}
				close(held)
				if err := sender.Close(t.Context()); err != nil {
					t.Error(err)
				}
				switch {
				case name == "some": // some of its shards may exist
				case c.op == "init":
					if created, err := other.Init(t.Context(), 1000, 0.01); created || err != nil {
						t.Errorf("%s: the caller left, and its filter was not made: %v, %v", name, created, err)
					}
				case c.op == "delete":
					if _, err := other.Count(t.Context()); err != nil {
						t.Errorf("%s: the caller left before it knew the server's time, and its filter was deleted: %v", name, err)
					}
				}
				if err := other.Delete(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// Without replies each call ends after the timeout. When the server responds again, all calls work.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	hasty := command.New(rdb, command.Config{Timeout: 50 * time.Millisecond})
	slow, quick := filters(command.New(rdb, command.Config{Timeout: patient})), filters(hasty)
	for name, f := range slow {
		for _, c := range calls[:3] {
			if err := c.do(t.Context(), f); err != nil {
				t.Fatal(name, err)
			}
		}
	}
	s.Freeze(t)
	for name, f := range quick {
		for _, c := range calls {
			named(t, c.op+" on a frozen server", name, c.do(t.Context(), f), lock.ErrUnavailable)
		}
	}
	s.Thaw(t)
	// The server now runs the commands that were sent, in any order, because the connections of the client are independent.
	if err := hasty.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for name, f := range slow {
		if err := f.Delete(t.Context()); err != nil {
			t.Fatal(name, err)
		}
		for _, c := range calls {
			if err := c.do(t.Context(), f); err != nil {
				t.Errorf("%s of %s afterwards: %v", c.op, name, err)
			}
		}
	}
}

// Close ends waiting and later calls, and waits for their commands.
func TestClose(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, c := range calls {
		for name := range filters(command.New(nil, command.Config{Timeout: patient})) {
			p := redistest.NewProxy(t, s.Addr())
			sender := command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: patient})
			f, other := filters(sender)[name], filters(command.New(s.Client(t), command.Config{Timeout: patient}))[name]
			if c.op != "init" {
				if _, err := other.Init(t.Context(), 1000, 0.01); err != nil {
					t.Fatal(err)
				}
			}
			held, asked := make(chan struct{}), make(chan struct{})
			once := redistest.Once(c.command, redistest.Action{HoldReply: held})
			p.OnRequest(func(req [][]byte) redistest.Action {
				a := once(req)
				if a != (redistest.Action{}) {
					close(asked)
				}
				return a
			})
			done, closed := make(chan error, 1), make(chan error, 1)
			go func() { done <- c.do(t.Context(), f) }()
			<-asked
			go func() { closed <- sender.Close(t.Context()) }()
			if err := <-done; !errors.Is(err, lock.ErrClosed) {
				t.Errorf("%s: %v", c.op, err)
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			if err := sender.Close(over); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: Close without time: %v", c.op, err)
			}
			if len(closed) > 0 {
				t.Errorf("%s: Close did not wait: %v", c.op, <-closed)
			}
			close(held)
			if err := <-closed; err != nil {
				t.Error(err)
			}
			named(t, c.op+" after Close", name, c.do(t.Context(), f), lock.ErrClosed)
			if err := other.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// While memory is full, no filter is created and nothing is added, and the error reports it. Contains still works.
func TestMemoryFull(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	f := made(t, open(s.Client(t), "f"), 1000, 0.01)
	add(t, f, "a")
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	_, errOfAdd := f.Add(t.Context(), []byte("b"))
	_, errOfInit := open(s.Client(t), "new").Init(t.Context(), 1000, 0.01)
	for op, err := range map[string]error{"add": errOfAdd, "init": errOfInit} {
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s: %v", op, err)
		}
	}
	if there := contains(t, f, "a", "b"); !there[0] || there[1] {
		t.Errorf("%v", there)
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	made(t, open(s.Client(t), "new"), 1000, 0.01)
}

// roomFor sets the maxmemory of a server so that this many bytes are left.
func roomFor(t *testing.T, s *redistest.Server, bytes int64) {
	t.Helper()
	used := memory(t, s)
	s.Do(t, "CONFIG", "SET", "maxmemory", fmt.Sprint(used+bytes))
}

// memory returns the number of bytes that a server uses.
func memory(t *testing.T, s *redistest.Server) int64 {
	t.Helper()
	m := s.Do(t, "INFO", "memory")
	text, err := m.ToString()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(text, "\nused_memory:")
	var used int64
	if _, err := fmt.Sscan(rest, &used); err != nil {
		t.Fatal(err)
	}
	return used
}

const (
	mb    = 1 << 20
	bits1 = 9.585 // bits per element at 0.01
)

// elements returns the number of elements for which a filter at 0.01 takes this many bytes, or slightly fewer.
func elements(bytes int) uint64 { return uint64(float64(bytes) * 8 / (bits1 + 0.001)) }

// writes fails the test if the server rejects a write that needs memory, like that of a lock.
func writes(t *testing.T, s *redistest.Server) {
	t.Helper()
	s.Do(t, "SET", "a lock", "1")
	s.Do(t, "DEL", "a lock")
}

// hasKeys fails the test unless the server has n keys.
func hasKeys(t *testing.T, what string, s *redistest.Server, n int64) {
	t.Helper()
	m := s.Do(t, "DBSIZE")
	if is, err := m.AsInt64(); err != nil || is != n {
		t.Errorf("%s: %d keys, %v, want %d", what, is, err, n)
	}
}

// tooLarge fails the test unless err reports that a filter does not fit, with the sizes. It returns the number of bytes that the
// filter needs.
func tooLarge(t *testing.T, what string, err error) (needs int64) {
	t.Helper()
	if !errors.Is(err, bloom.ErrTooLarge) || errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("%s: %v", what, err)
		return 0
	}
	m := regexp.MustCompile(`init ".*": too large for the server's memory: needs (\d+) bytes.*, maxmemory \d+, used \d+; raise maxmemory`).FindStringSubmatch(err.Error())
	if m == nil {
		t.Errorf("%s: no figures: %v", what, err)
		return 0
	}
	needs, _ = strconv.ParseInt(m[1], 10, 64)
	return needs
}

// A filter for which the server does not have enough memory is rejected before anything is written. Otherwise the server
// would then reject every lock. Smaller filters fit, and leave enough memory for locks.
func TestInit_tooLarge(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	roomFor(t, s, 32*mb)
	for what, bytes := range map[string]int{"much too large": 500 * mb, "a little too large": 33 * mb} {
		_, err := open(rdb, "f").Init(t.Context(), elements(bytes), 0.01)
		if needs := tooLarge(t, what, err); needs < int64(bytes)*99/100 || needs > int64(bytes)*5/4 {
			t.Errorf("%s: %d bytes are needed, the filter has %d", what, needs, bytes)
		}
		hasKeys(t, what, s, 0)
		writes(t, s)
	}
	f := made(t, open(rdb, "f"), elements(19*mb), 0.01)
	writes(t, s)
	add(t, f, "a")

	// A second filter of that size does not fit. An existing filter needs no memory.
	_, err := open(rdb, "g").Init(t.Context(), elements(19*mb), 0.01)
	tooLarge(t, "a second one", err)
	if created, err := open(rdb, "f").Init(t.Context(), elements(19*mb), 0.01); created || err != nil {
		t.Errorf("a filter that exists: %v, %v", created, err)
	}
	if _, err := open(rdb, "f").Init(t.Context(), elements(500*mb), 0.01); !errors.Is(err, bloom.ErrConfigMismatch) {
		t.Errorf("a filter that exists with other parameters: %v", err)
	}
}

// The reported size is at least what the server will use, because it allocates memory in size classes.
func TestInit_needs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	for _, bytes := range []int{2*mb + 1, 3 * mb, 10 * mb, 17 * mb, 1<<25 - 1000} {
		roomFor(t, s, mb)
		_, err := open(rdb, "f").Init(t.Context(), elements(bytes), 0.01)
		needs := tooLarge(t, fmt.Sprint(bytes), err)
		s.Do(t, "CONFIG", "SET", "maxmemory", "0")
		before := memory(t, s)
		f := made(t, open(rdb, "f"), elements(bytes), 0.01)
		if grew := memory(t, s) - before; grew > needs+mb/4 || grew < needs-mb/4 {
			t.Errorf("a filter of %d bytes: %d are needed, and the server took %d", bytes, needs, grew)
		}
		if err := f.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// With an allkeys policy, the server can make room for a filter that is smaller than maxmemory. With a volatile policy, it
// would evict locks, and may find no key to evict.
func TestInit_evictingServer(t *testing.T) {
	t.Parallel()
	for policy, fits := range map[string]bool{"noeviction": false, "volatile-lru": false, "volatile-ttl": false, "allkeys-lru": true, "allkeys-random": true} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			rdb := s.Client(t)
			s.Do(t, "CONFIG", "SET", "maxmemory-policy", policy)
			s.Do(t, "SETRANGE", "others", fmt.Sprint(12*mb), "x")
			roomFor(t, s, 8*mb)
			_, err := open(rdb, "f").Init(t.Context(), elements(9*mb), 0.01)
			switch {
			case !fits:
				tooLarge(t, "more than is left", err)
			case err != nil:
				t.Error(err)
			}
			writes(t, s)
			_, err = open(rdb, "g").Init(t.Context(), elements(30*mb), 0.01)
			tooLarge(t, "more than there is", err)
		})
	}
}

// A user who lacks permission for INFO creates filters without the check, and the server logs no denial.
func TestInit_withoutInfo(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t, s.AddUser(t, "less", redistest.RightsWithoutLocks(t, "NewBloomFilter")...), func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	roomFor(t, s, 8*mb)
	made(t, bloom.On(command.New(rdb, command.Config{Prefix: "orders:", Timeout: patient}), "f"), elements(9*mb), 0.01)
	idle := func(denied string) bool { return denied == "command ping" }
	if denied := slices.DeleteFunc(s.Denied(t, "less"), idle); len(denied) > 0 && tellsWhatIsAllowed(t, s) {
		t.Errorf("denied: %q", denied)
	}
}

// tellsWhatIsAllowed reports whether a script can find out which commands its user is allowed to run, as of Redis 7.0.
func tellsWhatIsAllowed(t *testing.T, s *redistest.Server) bool {
	t.Helper()
	m := s.Do(t, "EVAL", "return redis.acl_check_cmd and 1 or 0", "0")
	n, err := m.AsInt64()
	return err == nil && n == 1
}

// All shards on one server must fit into its memory together. Otherwise none is created.
func TestInit_shardsTooLarge(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	sender := command.New(rdb, command.Config{Timeout: patient})
	roomFor(t, s, 32*mb)
	_, err := bloom.ShardedOn(sender, "s", 10).Init(t.Context(), elements(40*mb), 0.01)
	if needs := tooLarge(t, "shards", err); needs < 40*mb*99/100 || !strings.Contains(err.Error(), "for 10 shards") {
		t.Errorf("ten shards: %v", err)
	}
	hasKeys(t, "ten shards", s, 0)
	some := bloom.ShardedOn(sender, "s", 10)
	if created, err := some.Init(t.Context(), elements(19*mb), 0.01); !created || err != nil {
		t.Fatalf("shards that fit: %v, %v", created, err)
	}
	writes(t, s)
	// Two shards are lost. There is enough memory for these two, but not for all ten.
	for _, i := range []string{"3", "7"} {
		s.Do(t, "DEL", "s:{"+i+"}", "s:{"+i+"}:config")
	}
	if created, err := bloom.ShardedOn(sender, "s", 10).Init(t.Context(), elements(19*mb), 0.01); !created || err != nil {
		t.Errorf("two of the shards: %v, %v", created, err)
	}
	if created, err := some.Init(t.Context(), elements(19*mb), 0.01); created || err != nil {
		t.Errorf("shards that exist: %v, %v", created, err)
	}
}

// On a cluster each node needs memory only for its own shards.
func TestInit_shardsTooLargeForANode(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	sender := command.New(c.Client(t), command.Config{Timeout: patient})
	for _, n := range c.Nodes {
		roomFor(t, n, 24*mb)
	}
	_, err := bloom.ShardedOn(sender, "s", 12).Init(t.Context(), elements(100*mb), 0.01)
	tooLarge(t, "more than all nodes have", err)
	for _, n := range c.Nodes {
		hasKeys(t, "more than all nodes have", n, 0)
	}
	if created, err := bloom.ShardedOn(sender, "s", 12).Init(t.Context(), elements(30*mb), 0.01); !created || err != nil {
		t.Errorf("more than one node has: %v, %v", created, err)
	}
	roomFor(t, c.Nodes[0], 2*mb)
	small := 0
	for i := range 12 {
		if _, err := open(sender.Redis, fmt.Sprint("f", i)).Init(t.Context(), elements(3*mb), 0.01); err != nil {
			tooLarge(t, "on the small node", err)
			small++
		}
	}
	if small == 0 || small == 12 {
		t.Errorf("%d of 12 filters do not fit, on one of %d nodes", small, len(c.Nodes))
	}
}

// Each call handles error replies as listed in the table, and does not retry.
func TestReplies(t *testing.T) {
	t.Parallel()
	kindtest.Replies(t, func(t *testing.T, c *client.Client, name string) (all []kindtest.Call) {
		f, fresh := c.NewBloomFilter(name), c.NewBloomFilter(name+"new")
		made(t, f, 1000, 0.01)
		add(t, f, "a")
		return []kindtest.Call{
			{Op: "init", Name: name + "new", Once: true, Do: func(ctx context.Context) error { return second(fresh.Init(ctx, 1000, 0.01)) }},
			{Op: "add", Name: name, Once: true, Do: func(ctx context.Context) error { return second(f.Add(ctx, []byte("b"))) }},
			{Op: "contains", Name: name, Once: true, Do: func(ctx context.Context) error { return second(f.Contains(ctx, []byte("a"))) }},
			{Op: "count", Name: name, Once: true, Do: func(ctx context.Context) error { return second(f.Count(ctx)) }},
			{Op: "delete", Name: name, Once: true, Do: f.Delete},
		}
	})
}
