package bloom_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/bloom"
	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"pgregory.net/rapid"
)

// addr is the address of a server in memory, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// patient is a timeout for a busy machine.
const patient = time.Minute

func open(rdb rueidis.Client, name string, opts ...bloom.Option) *bloom.Filter {
	return bloom.On(command.New(rdb, command.Config{Timeout: patient}), name, opts...)
}

func made(t testing.TB, f *bloom.Filter, n uint64, p float64) *bloom.Filter {
	t.Helper()
	if created, err := f.Init(t.Context(), n, p); err != nil || !created {
		t.Fatalf("init: %v, %v", created, err)
	}
	return f
}

func add(t testing.TB, f *bloom.Filter, elements ...string) int {
	t.Helper()
	n, err := f.Add(t.Context(), bytes(elements)...)
	if err != nil {
		t.Fatalf("add: %v", err)
	}
	return n
}

func contains(t testing.TB, f *bloom.Filter, elements ...string) []bool {
	t.Helper()
	all, err := f.Contains(t.Context(), bytes(elements)...)
	if err != nil || len(all) != len(elements) {
		t.Fatalf("contains: %v, %v", all, err)
	}
	return all
}

func bytes(texts []string) (all [][]byte) {
	for _, text := range texts {
		all = append(all, []byte(text))
	}
	return all
}

// onBoth runs a test on a real server and on the in-memory one, which does not support BITFIELD.
func onBoth(t *testing.T, f func(t *testing.T, rdb rueidis.Client)) {
	t.Run("redis", func(t *testing.T) { t.Parallel(); f(t, redistest.Start(t).Client(t)) })
	t.Run("memory", func(t *testing.T) { t.Parallel(); f(t, redistest.NewMini(t).Client(t)) })
}

// The bits in Redis and the replies always equal those of a reference, a plain list of bits.
func TestModel(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		rapid.Check(t, func(rt *rapid.T) {
			if err := rdb.Do(t.Context(), rdb.B().Flushall().Build()).Error(); err != nil {
				t.Fatal(err)
			}
			n, p := rapid.Uint64Range(1, 500).Draw(rt, "n"), rapid.Float64Range(1e-6, 0.6).Draw(rt, "p")
			size, hashes := bloom.SizeOf(n, p)
			if size < 1 {
				return
			}
			f := made(t, open(rdb, "f"), n, p)
			set := make([]bool, uint64(size))
			of := func(e string) []uint64 {
				h1, h2 := bloom.Hash([]byte(e))
				return bloom.Indexes(nil, h1, h2, uint64(size), hashes)
			}
			there := func(e string) bool {
				return !slices.ContainsFunc(of(e), func(bit uint64) bool { return !set[bit] })
			}
			elements := rapid.SliceOfN(rapid.StringN(0, 4, 8), 1, 20)
			rt.Repeat(map[string]func(*rapid.T){
				"add": func(rt *rapid.T) {
					some, want := elements.Draw(rt, "elements"), 0
					for _, e := range some {
						if !there(e) {
							want++
						}
						for _, bit := range of(e) {
							set[bit] = true
						}
					}
					if got := add(t, f, some...); got != want {
						rt.Fatalf("%d were new, want %d", got, want)
					}
				},
				"contains": func(rt *rapid.T) {
					some := elements.Draw(rt, "elements")
					for i, got := range contains(t, f, some...) {
						if got != there(some[i]) {
							rt.Fatalf("%q: %v", some[i], got)
						}
					}
				},
				"": func(rt *rapid.T) {
					text, err := rdb.Do(t.Context(), rdb.B().Get().Key("f").Build()).ToString()
					if err != nil || len(text) != (len(set)+7)/8 {
						rt.Fatalf("%d bytes for %d bits, %v", len(text), len(set), err)
					}
					ones := int64(0)
					for i, want := range set {
						if got := text[i/8]>>(7-i%8)&1 == 1; got != want {
							rt.Fatalf("bit %d is %v", i, got)
						}
						if want {
							ones++
						}
					}
					if got, err := f.Count(t.Context()); err != nil || got != bloom.Estimate(uint64(size), hashes, ones) {
						rt.Fatalf("count: %d, %v", got, err)
					}
				},
			})
		})
	})
}

func TestInit(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do := func(args ...string) {
			t.Helper()
			if err := rdb.Do(t.Context(), rdb.B().Arbitrary(args...).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		var created atomic.Int64
		for range 50 {
			wg.Go(func() {
				made, err := open(rdb, "race").Init(t.Context(), 1000, 0.01)
				if err != nil {
					t.Error(err)
				}
				if made {
					created.Add(1)
				}
			})
		}
		wg.Wait()
		if created.Load() != 1 {
			t.Errorf("%d of 50 made it", created.Load())
		}
		f := open(rdb, "race")
		if c, err := f.Config(t.Context()); err != nil || c != (bloom.Config{Size: 9585, Hashes: 7, Expected: 1000, P: 0.01}) {
			t.Errorf("%+v, %v", c, err)
		}
		fields, err := rdb.Do(t.Context(), rdb.B().Hgetall().Key("{race}:config").Build()).AsStrMap()
		if err != nil || len(fields) != 4 || fields["size"] != "9585" || fields["hashIterations"] != "7" || fields["expectedInsertions"] != "1000" || fields["falseProbability"] != "0.01" {
			t.Errorf("%q, %v", fields, err)
		}

		var other *bloom.ConfigError
		if _, err := f.Init(t.Context(), 1000, 0.02); !errors.Is(err, bloom.ErrConfigMismatch) || !errors.As(err, &other) || other.Config.P != 0.01 {
			t.Errorf("other parameters: %v", err)
		}
		for op, err := range map[string]error{
			"add": second(open(rdb, "none").Add(t.Context(), nil)), "contains": second(open(rdb, "none").Contains(t.Context(), nil)),
			"count": second(open(rdb, "none").Count(t.Context())), "config": second(open(rdb, "none").Config(t.Context())),
		} {
			var e *lock.Error
			if !answered(err, bloom.ErrNotInitialized) || !errors.As(err, &e) || e.Op != op || e.Name != "none" {
				t.Errorf("%s of nothing: %v", op, err)
			}
		}

		// Another handle changes the parameters, or they are lost. The handle never returns a false negative.
		add(t, f, "a", "b")
		again := open(rdb, "race")
		if err := again.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		made(t, again, 77, 0.001)
		add(t, again, "c")
		if got := contains(t, f, "c", "a"); !got[0] || got[1] {
			t.Errorf("after a change: %v", got)
		}
		if n := add(t, f, "d"); n != 1 || !contains(t, again, "d")[0] {
			t.Error("an element added after a change is not there")
		}
		do("DEL", "{race}:config")
		if _, err := f.Contains(t.Context(), []byte("c")); !answered(err, bloom.ErrNotInitialized) {
			t.Errorf("a lost configuration: %v", err)
		}
		if _, err := f.Init(t.Context(), 77, 0.001); !errors.Is(err, bloom.ErrConfigLost) {
			t.Errorf("init of bits without a configuration: %v", err)
		}
		if err := f.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		made(t, f, 77, 0.001)

		do("SET", "{text}:config", "x")
		do("HSET", "hash", "a", "b")
		do("HSET", "{partly}:config", "size", "100")
		made(t, open(rdb, "beside"), 77, 0.001)
		do("DEL", "beside")
		do("RPUSH", "beside", "x")
		for key, says := range map[string]string{"text": `"{text}:config" is a string`, "hash": `"hash" is a hash`, "partly": `"{partly}:config" is a hash`, "beside": `"beside" is a list`} {
			if err := open(rdb, key).Delete(t.Context()); !answered(err, lock.ErrWrongType) || !strings.Contains(err.Error(), says) {
				t.Errorf("delete of %s: %v, want %q", key, err, says)
			}
		}
		do("DEL", "beside", "{beside}:config")
		for _, name := range []string{"text", "hash", "partly"} {
			if _, err := open(rdb, name).Init(t.Context(), 10, 0.1); !errors.Is(err, lock.ErrWrongType) {
				t.Errorf("%s: %v", name, err)
			}
		}
		do("HSET", "{words}:config", "size", "x", "hashIterations", "3")
		if _, err := open(rdb, "words").Add(t.Context(), nil); !answered(err, lock.ErrWrongType) {
			t.Errorf("words: %v", err)
		}
		// A number stored in Redis cannot make a client work for an arbitrarily long time.
		for _, bad := range [][]string{{"100", "1000000000000"}, {"1000000000000", "3"}, {"100", "0"}, {"0", "3"}} {
			do("HSET", "{words}:config", "size", bad[0], "hashIterations", bad[1])
			if _, err := open(rdb, "words").Contains(t.Context(), nil); !answered(err, lock.ErrWrongType) {
				t.Errorf("%q: %v", bad, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// answered reports whether err matches want, and not ErrUnavailable, after which a caller would retry.
func answered(err, want error) bool {
	return errors.Is(err, want) && !errors.Is(err, lock.ErrUnavailable)
}

// An Add that arrives after a Delete fails, and leaves nothing behind that prevents others from creating the filter again.
func TestAdd_afterDelete(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		exists := func(keys ...string) int64 {
			t.Helper()
			n, err := rdb.Do(t.Context(), rdb.B().Exists().Key(keys...).Build()).ToInt64()
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		f, other := made(t, open(rdb, "f"), 5000, 0.01), open(rdb, "f")
		add(t, f, "a")
		if err := other.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		var many []string
		for i := range 400 { // more bits than one script clears
			many = append(many, fmt.Sprint(i))
		}
		if _, err := f.Add(t.Context(), bytes(many)...); !errors.Is(err, bloom.ErrNotInitialized) {
			t.Errorf("add after a delete: %v", err)
		}
		if n := exists("f"); n != 0 {
			t.Error("bits are left of an Add that failed")
		}
		made(t, other, 5000, 0.01)

		// Bits whose configuration is lost stay as they are.
		add(t, f, "a", "b", "c")
		bits := func() string {
			text, err := rdb.Do(t.Context(), rdb.B().Get().Key("f").Build()).ToString()
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		before := bits()
		if err := rdb.Do(t.Context(), rdb.B().Del().Key("{f}:config").Build()).Error(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Add(t.Context(), []byte("c"), []byte("d")); !errors.Is(err, bloom.ErrNotInitialized) {
			t.Errorf("add without a configuration: %v", err)
		}
		if bits() != before {
			t.Error("an Add that failed changed the bits")
		}
		if _, err := other.Init(t.Context(), 5000, 0.01); !errors.Is(err, bloom.ErrConfigLost) {
			t.Errorf("init of bits without a configuration: %v", err)
		}
	})
}

// A filter is created again and again, while others add to it. The bits of an Add that arrived after a Delete are removed before
// Init fails. On a busy machine that can take longer, so Init must succeed on the first attempt only in virtual time.
func TestInit_whileOthersAdd(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, rdb rueidis.Client, again bool) {
		made(t, open(rdb, "f"), 500, 0.01)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				f := open(rdb, "f")
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					switch _, err := f.Add(t.Context(), fmt.Append(nil, i, n)); {
					case errors.Is(err, bloom.ErrNotInitialized):
						time.Sleep(time.Millisecond) // until it is created
					case err != nil:
						t.Error(err)
					}
				}
			})
		}
		f := open(rdb, "f")
		for range 100 {
			if err := f.Delete(t.Context()); err != nil {
				t.Error(err)
			}
			created, err := f.Init(t.Context(), 500, 0.01)
			for again && errors.Is(err, bloom.ErrConfigLost) {
				created, err = f.Init(t.Context(), 500, 0.01)
			}
			if !created || err != nil {
				t.Errorf("made anew: %v, %v", created, err)
				break
			}
		}
		close(stop)
		wg.Wait()
	}
	t.Run("redis", func(t *testing.T) { t.Parallel(); test(t, redistest.Start(t).Client(t), true) })
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(t, redistest.NewMini(t).Client(t), false) })
	})
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	f := open(rdb, "f")
	s.ResetStats(t)
	for _, c := range []struct {
		n uint64
		p float64
	}{{0, 0.1}, {10, 0}, {10, 1}, {10, -1}, {10, 2}, {10, math.NaN()}, {10, math.Inf(1)}, {1 << 40, 0.01}, {math.MaxUint64, 0.5}, {1, 0.9999}, {1, 1e-306}} {
		var e *lock.Error
		if _, err := f.Init(t.Context(), c.n, c.p); !errors.As(err, &e) || e.Op != "init" || e.Name != "f" {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for what, bad := range map[string]*bloom.Filter{
		"": open(rdb, ""), "}{": open(rdb, "}{"), "of others": open(rdb, "{x}:config"), "nil": bloom.New(nil, "x"), "option": open(rdb, "x", nil),
	} {
		for op, err := range map[string]error{
			"init": second(bad.Init(t.Context(), 10, 0.1)), "add": second(bad.Add(t.Context(), nil)), "contains": second(bad.Contains(t.Context(), nil)),
			"count": second(bad.Count(t.Context())), "config": second(bad.Config(t.Context())), "delete": bad.Delete(t.Context()),
		} {
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op {
				t.Errorf("%q, %s: %v", what, op, err)
			}
		}
	}
	for what, bad := range map[string]*bloom.Sharded{
		"": bloom.NewSharded(rdb, "", 2), "{x}": bloom.NewSharded(rdb, "{x}", 2), "none": bloom.NewSharded(rdb, "x", 0), "many": bloom.NewSharded(rdb, "x", 5000), "nil": bloom.NewSharded(nil, "x", 2),
	} {
		for op, err := range map[string]error{
			"init": second(bad.Init(t.Context(), 10, 0.1)), "add": second(bad.Add(t.Context(), nil)), "contains": second(bad.Contains(t.Context(), nil)),
			"count": second(bad.Count(t.Context())), "delete": bad.Delete(t.Context()),
		} {
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op {
				t.Errorf("%q, %s: %v", what, op, err)
			}
		}
	}
	for _, c := range []struct {
		n uint64
		p float64
	}{{0, 0.1}, {math.MaxUint64, 0.1}, {10, 0}, {10, 1}, {10, math.NaN()}, {1 << 40, 0.01}} {
		var e *lock.Error
		if _, err := bloom.NewSharded(rdb, "x", 2).Init(t.Context(), c.n, c.p); !errors.As(err, &e) || e.Op != "init" {
			t.Errorf("sharded, %+v: %v", c, err)
		}
	}
	if _, err := open(rdb, "f", bloom.WithKryo5()).Add(t.Context(), []byte{0xff}); err == nil {
		t.Error("an element that is no text was encoded")
	}
	if n, err := f.Add(t.Context()); n != 0 || err != nil {
		t.Errorf("nothing added: %d, %v", n, err)
	}
	if n := s.CommandCalls(t, "evalsha") + s.CommandCalls(t, "hmget"); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
}

// A nil context is a bug of the caller. Each call panics where the caller can recover.
func TestSharded_nilContext(t *testing.T) {
	t.Parallel()
	var none context.Context
	f := bloom.NewSharded(redistest.NewMini(t).Client(t), "f", 2)
	for op, call := range map[string]func() error{
		"init":     func() error { return second(f.Init(none, 10, 0.1)) },
		"add":      func() error { return second(f.Add(none, nil)) },
		"contains": func() error { return second(f.Contains(none, nil)) },
		"count":    func() error { return second(f.Count(none)) },
		"delete":   func() error { return f.Delete(none) },
	} {
		func() {
			defer func() {
				if p := recover(); p != "leasehold: nil context" {
					t.Errorf("%s: panicked with %v", op, p)
				}
			}()
			t.Errorf("%s: %v", op, call())
		}()
	}
}

// A call sends two commands in one round trip, for up to a thousand bits.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	f := made(t, open(s.Client(t), "f"), 1_000_000, 0.01) // 7 bits
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprint(i))
	}
	for _, c := range []struct {
		elements []string
		commands int64
	}{{many[:1], 1}, {many[:100], 1}, {many, 3}} {
		s.ResetStats(t)
		add(t, f, c.elements...)
		if a, b := s.CommandCalls(t, "bitfield"), s.CommandCalls(t, "hmget"); a != c.commands || b != 1 {
			t.Errorf("%d added: %d BITFIELD, %d HMGET, want %d and 1", len(c.elements), a, b, c.commands)
		}
		if all := contains(t, f, c.elements...); slices.Contains(all, false) {
			t.Errorf("%v", all)
		}
		if n := s.CommandCalls(t, "bitfield_ro"); n != c.commands {
			t.Errorf("%d asked for: %d BITFIELD_RO", len(c.elements), n)
		}
	}
	small := made(t, open(s.Client(t), "small"), 1000, 0.01) // 1,199 bytes
	add(t, small, many[:100]...)
	for elements, whole := range map[int]int64{3: 0, 4: 1, 300: 1} {
		s.ResetStats(t)
		contains(t, small, many[:elements]...)
		if a, b := s.CommandCalls(t, "getrange"), s.CommandCalls(t, "bitfield_ro"); a != whole || b != 1-whole {
			t.Errorf("%d of a small filter asked for: %d GETRANGE, %d BITFIELD_RO, want %d and %d", elements, a, b, whole, 1-whole)
		}
	}
}

// A call with very many elements sends several pipelines, so that each of them ends within the timeout.
func TestAdd_veryMany(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	f := made(t, open(s.Client(t), "f"), 1_000_000, 0.01)
	elements := make([]string, 70_000)
	for i := range elements {
		elements[i] = strconv.Itoa(i)
	}
	s.ResetStats(t)
	if added := add(t, f, elements...); added < 69_900 || added > 70_000 {
		t.Errorf("%d added", added)
	}
	if all := contains(t, f, elements...); len(all) != len(elements) || slices.Contains(all, false) {
		t.Errorf("%d of %d found", len(slices.DeleteFunc(all, func(there bool) bool { return !there })), len(elements))
	}
	if n := s.CommandCalls(t, "hmget"); n != 10 {
		t.Errorf("%d pipelines, want 5 for each call", n)
	}
}

// Calls of many goroutines are batched, and each gets the reply for its own elements. Each element is new to exactly one of them.
func TestAdd_together(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	f := made(t, open(s.Client(t), "f"), 1_000_000, 1e-9)
	var added, commands atomic.Int64
	commands.Store(-s.CommandCalls(t, "bitfield"))
	var callers sync.WaitGroup
	for i := range 200 {
		callers.Go(func() {
			n, err := f.Add(t.Context(), []byte(fmt.Sprint(i%50)), []byte(fmt.Sprint(i%50+1)), []byte(fmt.Sprint("of ", i)))
			if err != nil {
				t.Error(err)
			}
			added.Add(int64(n))
			there, err := f.Contains(t.Context(), []byte(fmt.Sprint("not ", i)), []byte(fmt.Sprint("of ", i)))
			if err != nil || !slices.Equal(there, []bool{false, true}) {
				t.Errorf("%v, %v", there, err)
			}
		})
	}
	callers.Wait()
	if n := added.Load(); n != 51+200 {
		t.Errorf("%d elements were new, want 251", n)
	}
	if n := commands.Add(s.CommandCalls(t, "bitfield")); n >= 200 {
		t.Errorf("%d commands for 200 calls at once", n)
	}
}

// Two calls may detect concurrently that the server does not support BITFIELD.
func TestAdd_besideContains(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for i := range 50 {
			f := made(t, open(rdb, fmt.Sprint("f", i)), 100_000, 0.01)
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if _, err := f.Add(t.Context(), []byte("a")); err != nil {
						t.Errorf("add: %v", err)
					}
				})
				wg.Go(func() {
					if _, err := f.Contains(t.Context(), []byte("a")); err != nil {
						t.Errorf("contains: %v", err)
					}
				})
			}
			wg.Wait()
		}
	})
}

// A call whose reply is lost fails with an error that reports it. Its elements are added anyway.
func TestLostReply(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	f := made(t, open(s.Client(t, redistest.Via(p)), "f"), 1000, 0.01)
	add(t, f, "a")
	p.OnRequest(redistest.Once("BITFIELD", redistest.Action{DropReply: true}))
	if _, err := f.Add(t.Context(), []byte("b")); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if n := add(t, f, "b"); n != 0 {
		t.Errorf("the repetition added %d", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Add(ctx, []byte("c")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	hold := make(chan struct{})
	defer close(hold)
	p.OnRequest(redistest.Once("BITFIELD_RO", redistest.Action{HoldReply: hold}))
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := f.Contains(ctx, []byte("c")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that ends: %v", err)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	for _, name := range []string{"f", "{f}:of:ann"} {
		f := made(t, open(rdb, name), 100, 0.001)
		if add(t, f, "a", "b") != 2 || !slices.Equal(contains(t, f, "a", "b", "c"), []bool{true, true, false}) {
			t.Errorf("%s: not as it was filled", name)
		}
		if err := f.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s := bloom.ShardedOn(command.New(rdb, command.Config{Timeout: patient}), "s", 12)
	if created, err := s.Init(t.Context(), 2000, 0.001); !created || err != nil {
		t.Fatal(created, err)
	}
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprint(i))
	}
	n, err := s.Add(t.Context(), bytes(many)...)
	if err != nil || n < 995 {
		t.Errorf("%d added, %v", n, err)
	}
	there, err := s.Contains(t.Context(), bytes(append(many, "x", "y"))...)
	if err != nil || slices.Contains(there[:1000], false) || there[1000] && there[1001] {
		t.Errorf("%v, %v", there, err)
	}
	if n, err := s.Count(t.Context()); err != nil || n < 950 || n > 1050 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := bloom.ShardedOn(command.New(rdb, command.Config{Timeout: patient}), "s", 11).Add(t.Context(), bytes(many)...); !answered(err, bloom.ErrConfigMismatch) {
		t.Errorf("another number of shards: %v", err)
	}
	if _, err := open(rdb, "s:{1}").Contains(t.Context(), []byte("1")); !answered(err, bloom.ErrConfigMismatch) {
		t.Errorf("one shard alone: %v", err)
	}
	if created, err := s.Init(t.Context(), 2000, 0.001); created || err != nil {
		t.Errorf("again: %v, %v", created, err)
	}
	if err := s.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	slots := map[int]bool{}
	for i := range 12 {
		slots[c.Slot(t, fmt.Sprintf("s:{%d}", i))] = true
	}
	if len(slots) != 12 {
		t.Errorf("12 shards in %d slots", len(slots))
	}
}

// If the user is not allowed to write the configuration, Init leaves no bits either.
func TestInit_denied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rights := slices.DeleteFunc(redistest.RightsWithoutLocks(t, "NewBloomFilter"), func(r string) bool { return r == "+hset" })
	rdb := s.Client(t, s.AddUser(t, "less", rights...), func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	if _, err := bloom.On(command.New(rdb, command.Config{Prefix: "orders:", Timeout: patient}), "f").Init(t.Context(), 1000, 0.1); err == nil {
		t.Error("it was not denied")
	}
	made(t, bloom.On(command.New(s.Client(t), command.Config{Prefix: "orders:", Timeout: patient}), "f"), 1000, 0.1)
}

func TestRights(t *testing.T) {
	t.Parallel()
	rights := redistest.RightsWithoutLocks(t, "NewBloomFilter")
	s := redistest.Start(t)
	play := func(t *testing.T, user string, rights []string) {
		s.Do(t, "SCRIPT", "FLUSH")
		s.Do(t, "FLUSHALL")
		rdb := s.Client(t, s.AddUser(t, user, rights...), func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
		f := bloom.On(command.New(rdb, command.Config{Prefix: "orders:", Timeout: patient}), "f")
		_, _ = f.Init(t.Context(), 1000, 0.1)
		_, _ = f.Add(t.Context(), []byte("a"))
		_, _ = f.Contains(t.Context(), []byte("a"))
		_, _ = f.Contains(t.Context(), slices.Repeat([][]byte{[]byte("a")}, 10)...) // reads the whole filter, which is shorter
		_, _ = f.Count(t.Context())
		_ = f.Delete(t.Context())
		_, _ = f.Add(t.Context(), []byte("late")) // with its cached parameters
		some := bloom.ShardedOn(command.New(rdb, command.Config{Prefix: "orders:", Timeout: patient}), "some", 3)
		_, _ = some.Init(t.Context(), 1000, 0.1)
		_, _ = some.Add(t.Context(), []byte("a"))
		_, _ = some.Contains(t.Context(), []byte("a"))
		_, _ = some.Count(t.Context())
		_ = some.Delete(t.Context())
	}
	play(t, "all", rights)
	// Before Redis 7.0 a script cannot find out whether it is allowed to call INFO, which is not a required permission.
	if denied := slices.DeleteFunc(s.Denied(t, "all"), func(d string) bool { return d == "command info" || d == "command ping" }); len(denied) > 0 {
		t.Errorf("the rights of docs/operate/security.md do not cover %q", denied)
	}
	for i, right := range rights {
		user := fmt.Sprint("less", i)
		play(t, user, slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == right }))
		if len(s.Denied(t, user)) == 0 {
			t.Errorf("docs/operate/security.md asks for %s, and nothing is denied without it", right)
		}
	}
}
