//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	inmemory "github.com/bits-and-blooms/bloom/v3"
	"github.com/leasehold-go/leasehold/bloom"
	"github.com/redis/rueidis"
)

// Bloom filters, for the cells that begin with bloom.

// filterer is a contender that has Bloom filters.
type filterer interface {
	// Filter makes a filter for n elements at p.
	Filter(ctx context.Context, n uint64, p float64) (filter, error)
}

// filter adds elements, or reports which are probably there.
type filter interface {
	Add(ctx context.Context, elements ...[]byte) (int, error)
	Contains(ctx context.Context, elements ...[]byte) ([]bool, error)
}

func (l leasehold) Filter(ctx context.Context, n uint64, p float64) (filter, error) {
	f := l.client.NewBloomFilter("filter")
	_, err := f.Init(ctx, n, p)
	return f, err
}

// scripted is a bound, not a filter to use. It shapes its calls like Redisson: a script that first compares the
// parameters, then reads and sets the bits of this library one by one.
type scripted struct {
	noLocks
	rdb rueidis.Client
}

var (
	scriptedContains = rueidis.NewLuaScript(`
if redis.call('HGET', KEYS[2], 'size') ~= ARGV[1] or redis.call('HGET', KEYS[2], 'hashIterations') ~= ARGV[2] then return redis.error_reply('other parameters') end
local there = {}
local k = tonumber(ARGV[2])
for i = 3, #ARGV, k do
  local all = 1
  for j = i, i + k - 1 do
    if redis.call('GETBIT', KEYS[1], ARGV[j]) == 0 then all = 0 end
  end
  there[#there + 1] = all
end
return there`)
	scriptedAdd = rueidis.NewLuaScript(`
if redis.call('HGET', KEYS[2], 'size') ~= ARGV[1] or redis.call('HGET', KEYS[2], 'hashIterations') ~= ARGV[2] then return redis.error_reply('other parameters') end
local added = 0
local k = tonumber(ARGV[2])
for i = 3, #ARGV, k do
  local new = 0
  for j = i, i + k - 1 do
    if redis.call('SETBIT', KEYS[1], ARGV[j], 1) == 0 then new = 1 end
  end
  added = added + new
end
return added`)
)

func openScripted(s settings) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	return scripted{rdb: rdb}, err
}

func (s scripted) Close() { s.rdb.Close() }

func (s scripted) Filter(ctx context.Context, n uint64, p float64) (filter, error) {
	if _, err := bloom.New(s.rdb, "filter").Init(ctx, n, p); err != nil {
		return nil, err
	}
	c, err := bloom.New(s.rdb, "filter").Config(ctx)
	return scriptedFilter{s.rdb, c}, err
}

type scriptedFilter struct {
	rdb    rueidis.Client
	config bloom.Config
}

var scriptedKeys = []string{"filter", "{filter}:config"}

// args returns the parameters and the bits of each element. The bits are arbitrary: all cost the same.
func (f scriptedFilter) args(elements [][]byte) []string {
	args := []string{strconv.FormatUint(f.config.Size, 10), strconv.FormatUint(f.config.Hashes, 10)}
	for _, e := range elements {
		x := uint64(14695981039346656037)
		for _, b := range e {
			x = (x ^ uint64(b)) * 1099511628211
		}
		bits := rand.New(rand.NewPCG(x, x>>32))
		for range f.config.Hashes {
			args = append(args, strconv.FormatUint(bits.Uint64N(f.config.Size), 10))
		}
	}
	return args
}

func (f scriptedFilter) Add(ctx context.Context, elements ...[]byte) (int, error) {
	n, err := scriptedAdd.Exec(ctx, f.rdb, scriptedKeys, f.args(elements)).AsInt64()
	return int(n), err
}

func (f scriptedFilter) Contains(ctx context.Context, elements ...[]byte) ([]bool, error) {
	all, err := scriptedContains.Exec(ctx, f.rdb, scriptedKeys, f.args(elements)).AsIntSlice()
	there := make([]bool, len(all))
	for i, is := range all {
		there[i] = is == 1
	}
	return there, err
}

// redisBloom sends the BF commands of RedisBloom, a module of the server.
type redisBloom struct {
	noLocks
	rdb rueidis.Client
}

func openRedisBloom(s settings) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	return redisBloom{rdb: rdb}, err
}

func (r redisBloom) Close() { r.rdb.Close() }

func (r redisBloom) Filter(ctx context.Context, n uint64, p float64) (filter, error) {
	return r, r.rdb.Do(ctx, r.rdb.B().BfReserve().Key("filter").ErrorRate(p).Capacity(int64(n)).Build()).Error()
}

func (r redisBloom) Add(ctx context.Context, elements ...[]byte) (int, error) {
	add := r.rdb.B().BfMadd().Key("filter").Item()
	for _, e := range elements {
		add = add.Item(rueidis.BinaryString(e))
	}
	added, err := r.rdb.Do(ctx, add.Build()).ToArray()
	return len(added), err
}

func (r redisBloom) Contains(ctx context.Context, elements ...[]byte) ([]bool, error) {
	ask := r.rdb.B().BfMexists().Key("filter").Item()
	for _, e := range elements {
		ask = ask.Item(rueidis.BinaryString(e))
	}
	all, err := r.rdb.Do(ctx, ask.Build()).ToArray()
	there := make([]bool, len(all))
	for i, is := range all {
		if there[i], err = is.AsBool(); err != nil {
			return nil, err
		}
	}
	return there, err
}

// memory is a bound, not a filter to share: it lives in the memory of one process.
type memory struct{ noLocks }

func openMemory(settings) (contender, error) { return memory{}, nil }

func (memory) Close() {}

func (memory) Filter(_ context.Context, n uint64, p float64) (filter, error) {
	return &memoryFilter{f: inmemory.NewWithEstimates(uint(n), p)}, nil
}

type memoryFilter struct {
	mu sync.RWMutex
	f  *inmemory.BloomFilter // guarded by mu
}

func (m *memoryFilter) Add(_ context.Context, elements ...[]byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range elements {
		m.f.Add(e)
	}
	return len(elements), nil
}

func (m *memoryFilter) Contains(_ context.Context, elements ...[]byte) ([]bool, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	there := make([]bool, len(elements))
	for i, e := range elements {
		there[i] = m.f.Test(e)
	}
	return there, nil
}

const (
	filled   = 100_000 // capacity of a filter, and how many elements fill it
	promised = 0.01    // false positive rate at capacity
)

func element(word string, n int64) []byte { return append([]byte(word), strconv.FormatInt(n, 10)...) }

// fill makes the filter and adds all its elements. The worker keeps it for lookUp.
func (w *working) fill(_ job, res *result) error {
	f, ok := w.contender.(filterer)
	if !ok {
		return errors.New("has no filters")
	}
	ctx := context.Background()
	var err error
	if w.filter, err = f.Filter(ctx, filled, promised); err != nil {
		return err
	}
	return fillUp(ctx, w.filter)
}

// fillUp adds all elements to a filter.
func fillUp(ctx context.Context, f filter) error {
	const atOnce = 1000
	for i := int64(0); i < filled; i += atOnce {
		var some [][]byte
		for j := range int64(atOnce) {
			some = append(some, element("in", i+j))
		}
		if _, err := f.Add(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}

// lookUp makes goroutines look up elements that were never added, Names in each call, from Begin to End.
func (w *working) lookUp(j job, res *result) error {
	var next, found atomic.Int64
	err := w.spin(j, res, func(ctx context.Context) error {
		some := make([][]byte, j.Names)
		for i := range some {
			some[i] = element("out", next.Add(1))
		}
		there, err := w.filter.Contains(ctx, some...)
		for _, is := range there {
			if is {
				found.Add(1)
			}
		}
		return err
	})
	res.Admitted = found.Load()
	return err
}

// fill makes and fills the contender's filter. Redisson's is filled by this library, because the format is the
// same.
func (s *stage) fill() error {
	if contenders[s.contender].kind != java {
		_, err := s.one(0, job{Do: "fill"})
		return err
	}
	rdb, err := rueidisClient(s.server.addr)
	if err != nil {
		return err
	}
	defer rdb.Close()
	f := bloom.New(rdb, "filter")
	if _, err := f.Init(context.Background(), filled, promised); err != nil {
		return err
	}
	return fillUp(context.Background(), f)
}

// lookUps is the slice of goroutines that look up elements for d.
func lookUps(goroutines, atOnce int, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		if err := s.fill(); err != nil {
			return nil, err
		}
		j := job{Do: "look up", Goroutines: goroutines, Names: atOnce}
		if err := s.warmUp(j); err != nil {
			return nil, err
		}
		r, got, err := s.spun(s.timed(j, s.time(d)))
		if err != nil {
			return nil, err
		}
		got["elements/s"] = got["calls/s"] * float64(atOnce)
		got["server us"] /= float64(atOnce)
		got["cpu/call"] /= float64(atOnce)
		got["false"] = float64(r.Admitted) / float64(r.Total) / float64(atOnce) / promised
		return got, nil
	}
}

var bloomColumns = []column{
	{"elements/s", "elements/s", false, 0}, {"× leasehold", "elements/s", true, 2}, {"server µs/element", "server us", false, 2}, {"× leasehold", "server us", true, 2},
	{"client CPU µs/element", "cpu/call", false, 2}, {"false positives ÷ expected", "false", false, 2}, {"p99 ms", "p99 ms", false, 2},
}

var bloomCells = []*cell{
	lookingUp("bloom", "A Bloom filter of 100,000 elements at 1 %, full: 64 goroutines look up one element at a time", 64, 1, 4),
	lookingUp("bloom-bulk", "The same, 8 goroutines and 100 elements at a time", 8, 100, 10),
	lookingUp("bloom-bulk-1000", "The same, 1,000 elements at a time", 8, 1000, 10),
}

func lookingUp(name, title string, goroutines, atOnce int, less float64) *cell {
	return &cell{
		name: name, title: title, module: true,
		contenders: []string{"leasehold", "scripted", "redisbloom", "redisson", "memory"}, reference: "leasehold", processes: 1,
		slice:   lookUps(goroutines, atOnce, time.Second),
		columns: bloomColumns,
		aims: []aim{
			{what: "server µs per element: Redisson ÷ leasehold", of: "redisson", metric: "server us", over: "leasehold", atLeast: less},
			{what: "false positives ÷ expected", metric: "false", atMost: 1.25},
		},
	}
}
