package admin

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// FilterState is the state of a Bloom filter of package bloom, or of Redisson's RBloomFilter. For a
// filter that is split into several (bloom.Sharded), the numbers are totals, except Hashes and P.
type FilterState struct {
	Size     uint64  // number of bits
	Hashes   uint64  // number of bits that an element sets
	Expected uint64  // number of elements that it was created for
	P        float64 // rate of false positives with that number of elements

	Shards  int   // number of filters that it is split into; 0 if it is not split
	OneOf   int   // number of filters of the split filter that this one is a part of; 0 if it is a whole filter
	Missing int   // number of the Shards that do not exist; only Inspect sets it
	Bytes   int64 // size of its bits in memory; only Inspect sets it

	// Fill is the share of the bits that are set. It comes from a sample of 64 KB in a list and of 4
	// MB from Inspect. If the filter is no larger than that, Exact is set.
	Fill  float64
	Exact bool
}

// Elements estimates the number of elements that were added, as Redisson does. It is math.MaxInt64
// if all bits are set.
func (f *FilterState) Elements() int64 {
	n := math.Round(-float64(f.Size) / float64(f.Hashes) * math.Log(1-f.Fill))
	if !(n < math.MaxInt64) {
		return math.MaxInt64
	}
	return int64(n)
}

// FalsePositives estimates the current rate of false positives. Below 0.001 the real rate can be
// several times as large, because the bits of an element are not independent.
func (f *FilterState) FalsePositives() float64 { return math.Pow(f.Fill, float64(f.Hashes)) }

// The bits of a filter are counted in parts, so that no command takes long.
const (
	countBytes = 64 << 10 // bytes that one command counts
	listCounts = 1        // commands for a filter in a list
	fullCounts = 64       // commands for Inspect
)

// The limits of the parameters of a filter.
const (
	mostExpected = math.MaxInt64 / mostShards
	mostShards   = 1024
)

// one is a filter with its own keys. It can be a part of a split filter.
type one struct {
	name   string
	config luascripts.BloomConfig
	length int64 // of its bits, in bytes
	there  bool
}

// ones reads the parameters of filters. A hash with other fields is not a filter, and neither is a key that is not a string.
func (a *Admin) ones(ctx context.Context, names []string, skipDenied bool) (all []one, err error) {
	for some := range slices.Chunk(names, atOnce) {
		more, err := a.someOnes(ctx, some, skipDenied)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func (a *Admin) someOnes(ctx context.Context, names []string, skipDenied bool) ([]one, error) {
	configs := make([]string, len(names))
	for i, name := range names {
		_, configs[i] = keys.Bloom(name)
	}
	hashes, err := a.parts(ctx, configs, skipDenied)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	all := make([]one, len(names))
	for i, reply := range a.rdb.DoMulti(ctx, a.lengths(names)...) {
		all[i].name = names[i]
		if all[i].length, err = reply.AsInt64(); wrongType(err) || skipDenied && command.RefusedKey(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		if at := slices.IndexFunc(hashes, func(p part) bool { return p.name == configs[i] }); at >= 0 {
			all[i].config, all[i].there = filterShape(hashes[at])
		}
	}
	return all, nil
}

// lengths returns the commands that read the sizes of filters in bytes.
func (a *Admin) lengths(names []string) (questions rueidis.Commands) {
	for _, name := range names {
		questions = append(questions, a.rdb.B().Strlen().Key(name).Build())
	}
	return questions
}

// filterShape returns the parameters of a hash that has the fields of a filter, and no others.
func filterShape(p part) (c luascripts.BloomConfig, ok bool) {
	words, fields := make([]string, 5), [...]string{"size", "hashIterations", "expectedInsertions", "falseProbability", "leasehold_shards"}
	for _, f := range p.fields {
		at := slices.Index(fields[:], f.Name)
		if at < 0 {
			return c, false
		}
		words[at] = f.Value
	}
	words[4] = cmp.Or(words[4], "0")
	c, ok = luascripts.NewBloomConfig(words)
	share, err := strconv.ParseFloat(c.Probability, 64)
	return c, ok && p.whole && err == nil && share > 0 && share < 1 && c.Expected > 0 && c.Expected <= mostExpected && c.Shards <= mostShards
}

// alone returns the parameters of o itself.
func (o one) alone() *FilterState {
	p, _ := strconv.ParseFloat(o.config.Probability, 64)
	return &FilterState{Size: o.config.Size, Hashes: o.config.Hashes, Expected: o.config.Expected, P: p, OneOf: int(o.config.Shards)}
}

// whole returns the parameters of the split filter that o is a part of.
func (o one) whole() *FilterState {
	s, n := o.alone(), o.config.Shards
	s.Size, s.Expected, s.Shards, s.OneOf = n*s.Size, n*s.Expected, int(n), 0
	return s
}

// fill returns the share of set bits in filters of equal size, and whether all bits were counted. It counts each filter
// with at most this number of commands, and takes a sample of a larger filter.
func (a *Admin) fill(ctx context.Context, all []one, commands int) (share float64, exact bool, err error) {
	size := all[0].config.Size
	bytes := (size-1)/8 + 1
	parts := (bytes-1)/countBytes + 1
	counts := min(parts, uint64(commands))
	var questions rueidis.Commands
	var bits float64
	for _, o := range all {
		for i := range counts {
			from := i * parts / counts * countBytes
			to := min(from+countBytes, bytes)
			bits += float64(min(8*to, size) - 8*from)
			questions = append(questions, a.rdb.B().Bitcount().Key(o.name).Start(int64(from)).End(int64(to)-1).Build())
		}
	}
	set := int64(0)
	for some := range slices.Chunk(questions, fullCounts) {
		n, err := a.sum(ctx, some)
		if err != nil {
			return 0, false, err
		}
		set += n
	}
	return min(float64(set)/bits, 1), counts == parts, nil
}

// sum returns the sum of the replies to questions.
func (a *Admin) sum(ctx context.Context, questions rueidis.Commands) (n int64, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	for _, reply := range a.rdb.DoMulti(ctx, questions...) {
		some, err := reply.AsInt64()
		if err != nil && !wrongType(err) {
			return 0, err
		}
		n += some
	}
	return n, nil
}

// filters returns the filters whose parameters are in the hashes configs, and whose names match pattern.
func (a *Admin) filters(ctx context.Context, configs []string, pattern string) (found []Lock, err error) {
	var names []string
	for _, key := range configs {
		for _, name := range namesOf(key, ":config") {
			if _, config := keys.Bloom(name); config == key && keys.Check("", name) == nil && wanted(pattern, name) {
				names = append(names, name)
			}
		}
	}
	all, err := a.ones(ctx, names, pattern == "*")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(o one) bool { return !o.there })
	twins := make(map[string]int) // how many of x and {x}, which share config, have bits
	for _, o := range all {
		if o.length > 0 {
			_, config := keys.Bloom(o.name)
			twins[config]++
		}
	}
	seen := make(map[string]bool)
	for _, o := range all {
		name, state := o.name, o.alone()
		_, config := keys.Bloom(name)
		if base, ok := shardOf(name, o.config.Shards); ok {
			name, state = base, o.whole()
		}
		if seen[name] || !matches(pattern, name) || o.length == 0 && twins[config] > 0 {
			continue
		}
		if o.length == 0 && seen[config] { // x and {x} without bits
			continue
		}
		seen[name], seen[config] = true, true
		l := Lock{State: lock.State{Name: name}, Kind: Bloom, Filter: state, Ambiguous: unsure(o)}
		if twins[config] > 1 {
			l.Ambiguous = "x and {x} have bits and share the parameters: one of them may not be a filter"
		}
		if l.Filter.Fill, l.Filter.Exact, err = a.fill(ctx, []one{o}, listCounts); err != nil {
			return nil, err
		}
		l.Filter.Exact = l.Filter.Exact && state.Shards < 2
		found = append(found, l)
	}
	return found, nil
}

// wanted reports whether a pattern matches a filter, or the split filter that it is a part of.
func wanted(pattern, name string) bool {
	whole, ok := shardOf(name, mostShards)
	return matches(pattern, name) || ok && matches(pattern, whole)
}

// unsure returns the reason why o may not be a filter, or "".
func unsure(o one) string {
	if o.length == 0 {
		return "no bits: nothing was added, or they were lost"
	}
	return ""
}

// shardOf returns the name of the split filter with this number of shards that name is a part of. ok is false if there is none.
func shardOf(name string, shards uint64) (whole string, ok bool) {
	whole, number, ok := strings.Cut(name, ":{")
	i, err := strconv.ParseUint(strings.TrimSuffix(number, "}"), 10, 64)
	return whole, ok && err == nil && i < shards
}

// shardName returns the name of the i-th part of a split filter.
func shardName(name string, i int) string { return name + ":{" + strconv.Itoa(i) + "}" }

// filter reads name as a filter, or as a split filter.
func (a *Admin) filter(ctx context.Context, name string) (l Lock, ok bool, err error) {
	asked := []string{name}
	if !strings.ContainsAny(name, "{}") {
		// On a cluster, the shards are in other slots than name, and a primary that does not respond must not hide a free lock.
		_, _ = a.masters(ctx) // after an error, the commands below report what is wrong
		for i := range 2 {
			if _, config := keys.Bloom(shardName(name, i)); !a.lacks(shardName(name, i)) && !a.lacks(config) {
				asked = append(asked, shardName(name, i))
			}
		}
	}
	all, err := a.ones(ctx, asked, false)
	if err != nil {
		return Lock{}, false, err
	}
	at := slices.IndexFunc(all, func(o one) bool { return o.there })
	if at < 0 {
		return Lock{}, false, nil
	}
	o := all[at]
	all = []one{o}
	l = Lock{State: lock.State{Name: name}, Kind: Bloom, Filter: o.alone(), Ambiguous: unsure(o)}
	if n := int(o.config.Shards); n > 0 && at > 0 {
		l.Filter = o.whole()
		names := make([]string, n)
		for i := range names {
			names[i] = shardName(name, i)
		}
		if all, err = a.ones(ctx, names, false); err != nil {
			return Lock{}, false, err
		}
		all = slices.DeleteFunc(all, func(other one) bool { return !other.there || other.config != o.config })
		if len(all) == 0 { // they were deleted in the meantime
			return Lock{}, false, nil
		}
		l.Filter.Missing = n - len(all)
	}
	for _, o := range all {
		l.Filter.Bytes += o.length
	}
	l.Filter.Fill, l.Filter.Exact, err = a.fill(ctx, all, max(fullCounts/len(all), 1))
	return l, err == nil, err
}
