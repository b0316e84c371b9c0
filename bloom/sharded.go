package bloom

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A Sharded is one Bloom filter that is split into several. Their keys are <name>:{0}, <name>:{1}
// and so on. They spread over a cluster, and none is too large. The hash of an element selects its
// filter. Each configuration has the number of filters, and a handle with a different number fails
// with [ErrConfigMismatch]. Java cannot use such a filter. A Sharded is safe for concurrent use.
type Sharded struct {
	name    string
	filters []*Filter
	bad     error
}

// maxShards is the maximum number of filters of a Sharded.
const maxShards = 1024

// NewSharded returns a handle of the filter called name, split into shards filters. The handle uses
// rdb and never closes it. The name must not contain braces. NewSharded sends no command. With an
// invalid name or number, every call returns the error.
func NewSharded(rdb rueidis.Client, name string, shards int, opts ...Option) *Sharded {
	return ShardedOn(command.New(rdb, command.Config{Timeout: command.DefaultTimeout}), name, shards, opts...)
}

// ShardedOn is [NewSharded] with the sender of a client of this module.
func ShardedOn(s *command.Sender, name string, shards int, opts ...Option) *Sharded {
	sh := &Sharded{name: name}
	switch {
	case name == "":
		sh.bad = fmt.Errorf("%w: empty", lock.ErrBadName)
	case strings.ContainsAny(s.Prefix+name, "{}"):
		sh.bad = fmt.Errorf("%w: braces would put all shards into one slot", lock.ErrBadName)
	case shards < 1 || shards > maxShards:
		sh.bad = fmt.Errorf("%d shards: must be from 1 to %d", shards, maxShards)
	default:
		for i := range shards {
			f := On(s, name+":{"+strconv.Itoa(i)+"}", opts...)
			f.shards = uint64(shards)
			sh.filters = append(sh.filters, f)
			sh.bad = errors.Join(sh.bad, f.bad)
		}
	}
	return sh
}

// Init creates the filters for n elements together, as [Filter.Init] does. It checks all of them
// first, so it writes nothing if the filters of one server do not fit into its memory. After any
// other error some of them may exist, and the next Init creates the others.
func (s *Sharded) Init(ctx context.Context, n uint64, p float64) (created bool, err error) {
	if s.bad != nil {
		return false, s.wrap("init", s.bad)
	}
	if n == 0 || n > math.MaxInt64 {
		return false, s.wrap("init", fmt.Errorf("%d elements: must be from 1 to %d", n, int64(math.MaxInt64)))
	}
	each := (n-1)/uint64(len(s.filters)) + 1
	missing, err := s.missing(ctx, each, p)
	if err != nil {
		return false, err
	}
	var mu sync.Mutex
	err = s.each(ctx, func(i int, f *Filter) error {
		if !missing[i] {
			return nil
		}
		made, err := f.Init(ctx, each, p)
		mu.Lock()
		defer mu.Unlock()
		created = created || made
		return err
	})
	return created, err
}

// missing reports which filters have to be created. It fails if a filter exists with different parameters, or if a server lacks
// the memory for its new filters.
func (s *Sharded) missing(ctx context.Context, n uint64, p float64) (missing []bool, err error) {
	missing = make([]bool, len(s.filters))
	servers := make([]string, len(s.filters))
	check := func(i int, f *Filter, room int) error {
		c, err := f.parameters(n, p)
		if err != nil {
			return f.wrap(ctx, "init", err)
		}
		r, err := f.init(ctx, c, p, room, true)
		missing[i], servers[i] = err == nil && r.Verdict == luascripts.Free, r.Server
		return f.wrap(ctx, "init", err)
	}
	if err := s.each(ctx, func(i int, f *Filter) error { return check(i, f, 1) }); err != nil {
		return nil, err
	}
	count, last := map[string]int{}, map[string]int{}
	for i, server := range servers {
		if missing[i] && server != "" {
			count[server]++
			last[server] = i
		}
	}
	for server, room := range count {
		if room > 1 {
			if err := check(last[server], s.filters[last[server]], room); err != nil {
				return nil, err
			}
		}
	}
	return missing, nil
}

// Add is like [Filter.Add].
func (s *Sharded) Add(ctx context.Context, elements ...[]byte) (added int, err error) {
	return news(s.all(ctx, "add", elements, true))
}

// Contains is like [Filter.Contains].
func (s *Sharded) Contains(ctx context.Context, elements ...[]byte) ([]bool, error) {
	return s.all(ctx, "contains", elements, false)
}

func (s *Sharded) all(ctx context.Context, op string, elements [][]byte, set bool) ([]bool, error) {
	if s.bad != nil {
		return nil, s.wrap(op, s.bad)
	}
	hashes, err := s.filters[0].hashes(elements)
	if err != nil {
		return nil, s.wrap(op, err)
	}
	parts, places := make([][]pair, len(s.filters)), make([][]int, len(s.filters))
	for i, h := range hashes {
		n := shard(h.h1, h.h2, uint64(len(s.filters)))
		parts[n], places[n] = append(parts[n], h), append(places[n], i)
	}
	all := make([]bool, len(elements))
	err = s.each(ctx, func(i int, f *Filter) error {
		if len(parts[i]) == 0 {
			return nil
		}
		there, err := f.do(ctx, parts[i], set)
		for j, is := range there {
			all[places[i][j]] = is
		}
		return f.wrap(ctx, op, err)
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Count is like [Filter.Count], for all filters together.
func (s *Sharded) Count(ctx context.Context) (int64, error) {
	if s.bad != nil {
		return 0, s.wrap("count", s.bad)
	}
	counts := make([]int64, len(s.filters))
	err := s.each(ctx, func(i int, f *Filter) (err error) {
		counts[i], err = f.Count(ctx)
		return err
	})
	sum := int64(0)
	for _, n := range counts {
		if sum += n; sum < n {
			return math.MaxInt64, err
		}
	}
	return sum, err
}

// Delete deletes all filters.
func (s *Sharded) Delete(ctx context.Context) error {
	if s.bad != nil {
		return s.wrap("delete", s.bad)
	}
	return s.each(ctx, func(_ int, f *Filter) error { return f.Delete(ctx) })
}

// each calls f for every filter, with limited concurrency, and returns the first error. ctx is the context of the call.
func (s *Sharded) each(ctx context.Context, f func(i int, filter *Filter) error) error {
	if ctx == nil {
		panic("leasehold: nil context") // here, where the caller can recover, and not in a goroutine of a filter
	}
	const atOnce = 16
	errs := make([]error, len(s.filters))
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, filter := range s.filters {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			errs[i] = f(i, filter)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// wrap adds the operation and the name to err. It returns nil for nil.
func (s *Sharded) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &lock.Error{Op: op, Name: s.name, Err: err}
}
