package bloom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

var (
	// ErrNotInitialized is returned when there is no filter in Redis. Call Init first.
	ErrNotInitialized = errors.New("not initialized: call Init first")

	// ErrConfigMismatch is returned when there is a filter with different parameters. The error is
	// also a [*ConfigError], with the parameters of that filter.
	ErrConfigMismatch = errors.New("parameters do not match")

	// ErrTooLarge is returned by Init when the server does not have enough memory left for the filter.
	// The error has the sizes in bytes. Nothing was written. Raise maxmemory, choose a smaller filter,
	// or use NewSharded on a cluster.
	ErrTooLarge = errors.New("too large for the server's memory")

	// ErrConfigLost is returned when there are bits in Redis and their configuration is gone. Call
	// Delete. Init retries for a second before it returns this error, because an Add that arrives
	// after a Delete removes its bits again.
	ErrConfigLost = errors.New("filter configuration lost")
)

// A ConfigError has the parameters that are stored in Redis. It matches [ErrConfigMismatch].
type ConfigError struct{ Config Config }

// Error names the parameters.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("%v: filter has %+v", ErrConfigMismatch, e.Config)
}

// Is reports whether target is [ErrConfigMismatch].
func (e *ConfigError) Is(target error) bool { return target == ErrConfigMismatch }

// Config has the parameters of a filter.
type Config struct {
	Size     uint64  // number of bits
	Hashes   uint64  // number of bits that an element sets
	Expected uint64  // n of Init
	P        float64 // p of Init
}

// A Filter is a handle of a Bloom filter in Redis. It is safe for concurrent use.
//
// A call waits for a reply for the operation timeout of the client, or for 3 s without a client. If
// an Add fails because no reply came in time, or because its context was canceled, some of its bits
// may be set. The Add can be repeated.
type Filter struct {
	send   *command.Sender
	name   string
	bits   string
	config string
	kryo   bool
	shards uint64 // number of filters of a Sharded; 0 for a single filter
	bad    error
	asking *command.Batcher[call] // the callers of Contains
	adding *command.Batcher[call] // the callers of Add

	known   atomic.Pointer[luascripts.BloomConfig] // nil before the first reply
	without atomic.Bool                            // the server does not have BITFIELD
}

// Option is an option of [New].
type Option interface{ apply(*Filter) }

type option func(*Filter)

func (o option) apply(f *Filter) { o(f) }

// WithKryo5 makes the filter hash elements as Redisson's default codec encodes them (Kryo5, since
// 3.19). The elements must be strings in UTF-8. All users of a filter must use the same codec.
func WithKryo5() Option { return option(func(f *Filter) { f.kryo = true }) }

// New returns a handle of the filter called name. The handle uses rdb and never closes it. New
// sends no command. With an invalid name, every call returns the error.
//
// With a client of this module, use its NewBloomFilter.
func New(rdb rueidis.Client, name string, opts ...Option) *Filter {
	return On(command.New(rdb, command.Config{Timeout: command.DefaultTimeout}), name, opts...)
}

// On is [New] with the sender of a client of this module.
func On(s *command.Sender, name string, opts ...Option) *Filter {
	f := &Filter{send: s, name: name, bad: keys.Check(s.Prefix, name)}
	f.bits, f.config = keys.Bloom(s.Prefix + name)
	f.asking, f.adding = f.batcher(false), f.batcher(true)
	if s.Redis == nil {
		f.bad = errors.New("the rueidis client is nil")
	}
	for i, o := range opts {
		if o == nil {
			f.bad = fmt.Errorf("option %d of %d is nil", i+1, len(opts))
			continue
		}
		o.apply(f)
	}
	return f
}

const (
	maxSize     = 4_294_967_294 // the limit of Redisson
	maxHashes   = 1_000         // the most bits of an element, and in one command
	maxTogether = 4_096         // the most elements of several callers in one pipeline
	maxAtOnce   = 16_384        // the most elements of one caller in one pipeline, which must end within the timeout

	// bitWords is the number of bytes of a whole filter that cost as much as reading one bit. A bit takes at
	// least 28 bytes of request and reply, and 0.2 µs of server time, in which a network transfers about as
	// many bytes.
	bitWords = 48
)

// orphans is how long Init waits for bits without a configuration to be removed. An Add that arrives after a Delete
// removes its own.
const orphans = time.Second

// Init creates the filter for n elements. With n elements in it, Contains reports about the share p
// of all other elements as present. If the filter exists, Init has no effect, and fails with
// [ErrConfigMismatch] if that filter has different parameters.
//
// Init allocates the whole filter at once. If less than 1 % of the server's maxmemory would remain,
// Init writes nothing and fails with [ErrTooLarge]. A server with full memory grants no lock. With
// an allkeys eviction policy, the server evicts other keys, so it is enough that the filter is
// smaller than maxmemory. Init cannot check this if the user lacks permission for INFO.
func (f *Filter) Init(ctx context.Context, n uint64, p float64) (created bool, err error) {
	const op = "init"
	c, err := f.parameters(n, p)
	if err != nil {
		return false, f.wrap(ctx, op, err)
	}
	r, err := f.init(ctx, c, p, 1, false)
	return err == nil && r.Verdict == luascripts.Done, f.wrap(ctx, op, err)
}

// init creates the filter. With check it only checks whether it can, and whether there is enough memory for room filters.
func (f *Filter) init(ctx context.Context, c luascripts.BloomConfig, p float64, room int, check bool) (r luascripts.BloomReply, err error) {
	for end := time.Now().Add(orphans); ; {
		r, err = command.Ask(ctx, f.send, f.send.Timeout, func(ctx context.Context) (luascripts.BloomReply, error) {
			return luascripts.InitBloom(ctx, f.send.Redis, f.config, f.bits, c, room, check)
		})
		if err != nil || r.Verdict != luascripts.Orphaned || time.Now().After(end) {
			break
		}
		if err = f.send.Sleep(ctx, orphans/20); err != nil {
			break
		}
	}
	is := r.Config
	switch {
	case err != nil:
	case r.Verdict == luascripts.Large:
		err = fmt.Errorf("%w: needs %d bytes%s, maxmemory %d, used %d; raise maxmemory", ErrTooLarge, r.Needed, inAll(room), r.Max, r.Used)
	case r.Verdict == luascripts.Foreign:
		err = lock.ErrWrongType
	case r.Verdict == luascripts.Orphaned:
		err = ErrConfigLost
	case r.Verdict == luascripts.Other && is != c && !(is.Size == c.Size && is.Hashes == c.Hashes && is.Expected == c.Expected && is.Shards == c.Shards && configOf(is).P == p):
		err = f.other(is)
	case r.Verdict != luascripts.Free:
		f.known.Store(&c)
	}
	return r, err
}

// inAll returns the number of shards for an error about their total size, or "" for one filter.
func inAll(filters int) string {
	if filters == 1 {
		return ""
	}
	return fmt.Sprintf(" for %d shards", filters)
}

// parameters returns the parameters of a filter for n and p, or an error if n or p is not valid.
func (f *Filter) parameters(n uint64, p float64) (c luascripts.BloomConfig, err error) {
	if f.bad != nil {
		return c, f.bad
	}
	switch {
	case n == 0 || n > math.MaxInt64:
		return c, fmt.Errorf("%d elements: must be from 1 to %d", n, int64(math.MaxInt64))
	case !(p > 0 && p < 1):
		return c, fmt.Errorf("false-positive rate %v: must be between 0 and 1", p)
	}
	size, hashes := sizeOf(n, p)
	switch {
	case size < 1:
		return c, fmt.Errorf("%d elements at rate %v: the filter would have no bits", n, p)
	case size > maxSize:
		return c, fmt.Errorf("%d elements at rate %v: needs %.0f bits, must be at most %d; see NewSharded", n, p, size, int64(maxSize))
	case hashes > maxHashes:
		return c, fmt.Errorf("%d elements at rate %v: needs %d hashes, must be at most %d", n, p, hashes, maxHashes)
	}
	return luascripts.BloomConfig{Size: uint64(size), Hashes: hashes, Expected: n, Probability: javaText(p), Shards: f.shards}, nil
}

// Add adds elements, and returns the number of those that were not present before. An element that
// was probably present counts as present. After an error some elements may have been added.
func (f *Filter) Add(ctx context.Context, elements ...[]byte) (added int, err error) {
	return news(f.all(ctx, "add", elements, true))
}

// Contains reports for each element whether it is probably present. An element for which it reports
// false was never added, provided that the primary replied.
func (f *Filter) Contains(ctx context.Context, elements ...[]byte) ([]bool, error) {
	return f.all(ctx, "contains", elements, false)
}

// news counts the elements that were not present before.
func news(there []bool, err error) (n int, _ error) {
	for _, was := range there {
		if !was {
			n++
		}
	}
	return n, err
}

// all sets or reads the bits of elements. It reports for each element whether all its bits were set.
func (f *Filter) all(ctx context.Context, op string, elements [][]byte, set bool) (there []bool, err error) {
	if f.bad != nil {
		return nil, f.wrap(ctx, op, f.bad)
	}
	hashes, err := f.hashes(elements)
	if err == nil && len(hashes) > 0 {
		there, err = f.do(ctx, hashes, set)
	}
	return there, f.wrap(ctx, op, err)
}

// hashes returns the two hashes of each element.
func (f *Filter) hashes(elements [][]byte) ([]pair, error) {
	hashes := make([]pair, len(elements))
	for i, e := range elements {
		if f.kryo {
			encoded, ok := kryo5(e)
			if !ok {
				return nil, fmt.Errorf("element %d is not valid UTF-8", i+1)
			}
			e = encoded
		}
		hashes[i].h1, hashes[i].h2 = hash(e)
	}
	return hashes, nil
}

// do sets or reads the bits of hashed elements, batched with those of other callers. It reports for each element
// whether all its bits were set.
func (f *Filter) do(ctx context.Context, hashes []pair, set bool) (there []bool, err error) {
	callers := f.asking
	if set {
		callers = f.adding
	}
	for some := range slices.Chunk(hashes, maxAtOnce) {
		c, err := callers.Ask(ctx, call{hashes: some})
		if err = cmp.Or(err, c.err); err != nil {
			return nil, err
		}
		there = append(there, c.there...)
	}
	return there, nil
}

// call is the call of one caller. It is sent in a batch with others.
type call struct {
	hashes []pair
	there  []bool // the reply
	err    error
}

// batcher returns a batcher for callers that set or read bits.
func (f *Filter) batcher(set bool) *command.Batcher[call] {
	exec := func(calls []*call) (replied bool) {
		var all []pair
		for _, c := range calls {
			all = append(all, c.hashes...)
		}
		there, err := f.repeat(context.Background(), all, set)
		replied = command.IsReply(err)
		err = f.send.Explain(command.DetectClosed(context.Background(), f.send.Redis, err))
		for _, c := range calls {
			if c.err = err; err == nil {
				n := len(c.hashes)
				c.there, there = there[:n:n], there[n:]
			}
		}
		return replied
	}
	return command.NewBatcher(f.send, exec, func(c *call) int { return len(c.hashes) }, maxTogether, func(*call) bool { return true })
}

// repeat sets or reads the bits of hashed elements according to the parameters in Redis, which come with each reply.
// If they differ from the assumed parameters, the reply is useless, and an Add has set a few extra bits. These cause
// no false negatives, but can enlarge the string to the size of the earlier filter. See [Filter.Delete].
func (f *Filter) repeat(ctx context.Context, hashes []pair, set bool) (there []bool, err error) {
	for tries := 0; ; tries++ {
		c := f.known.Load()
		if c == nil {
			if c, err = f.read(ctx); err != nil {
				return nil, err
			}
		}
		var is *luascripts.BloomConfig
		there, is, err = f.ask(ctx, c, hashes, set)
		switch {
		case err != nil:
			return nil, err
		case is.Size == c.Size && is.Hashes == c.Hashes && is.Shards == f.shards:
			return there, nil
		case is.Shards != f.shards || tries == 2:
			return nil, command.Final{Err: f.other(*is)}
		}
		f.known.Store(is)
	}
}

type pair struct{ h1, h2 uint64 }

// ask sets or reads bits according to the configuration c, and returns the configuration in Redis.
func (f *Filter) ask(ctx context.Context, c *luascripts.BloomConfig, elements []pair, set bool) (there []bool, is *luascripts.BloomConfig, err error) {
	var all []uint64
	for _, e := range elements {
		all = indexes(all, e.h1, e.h2, c.Size, c.Hashes)
	}
	whole := !set && c.Size/8 < bitWords*uint64(len(all)) // reading the whole filter costs less than requesting the bits
	var replies []rueidis.RedisResult
	without := f.without.Load()
	for {
		var commands []rueidis.Completed
		if whole {
			commands = append(commands, f.wholeCommand(c.Size))
		} else {
			commands = f.commands(all, int(c.Hashes), set, without)
		}
		replies = f.pipeline(ctx, append(commands, f.configCommand()), without)
		if err := replies[0].Error(); err == nil || without || !strings.Contains(err.Error(), "unknown command") {
			break
		}
		without = true
		f.without.Store(true)
	}
	last := len(replies) - 1
	bits, err := bitsOf(replies[:last], all, whole, without)
	if err != nil {
		return nil, nil, err
	}
	text, gone, err := words(replies[last])
	switch {
	case err != nil:
		return nil, nil, err
	case gone:
		if set {
			// If this fails, Init detects bits without a configuration and reports them.
			_, _ = luascripts.UndoBloom(ctx, f.send.Redis, f.config, f.bits, unset(all, bits))
		}
		f.known.Store(nil)
		return nil, nil, command.Final{Err: ErrNotInitialized}
	case len(bits) != len(all):
		return nil, nil, command.Final{Err: fmt.Errorf("unexpected reply: got %d bits, want %d", len(bits), len(all))}
	}
	found, ok := luascripts.NewBloomConfig(text)
	if !ok {
		return nil, nil, command.Final{Err: lock.ErrWrongType}
	}
	for some := range slices.Chunk(bits, int(c.Hashes)) {
		there = append(there, !slices.Contains(some, 0))
	}
	return there, &found, nil
}

// bitsOf reads the replies for all bits, or for the whole filter.
func bitsOf(replies []rueidis.RedisResult, all []uint64, whole, without bool) (bits []int64, err error) {
	for _, r := range replies {
		var some []int64
		switch {
		case whole:
			text, err := r.ToString()
			if err != nil {
				return nil, err
			}
			return pick(text, all), nil
		case without:
			bit, err := r.ToInt64()
			if err != nil {
				return nil, err
			}
			some = []int64{bit}
		default:
			if some, err = r.AsIntSlice(); err != nil {
				return nil, err
			}
		}
		bits = append(bits, some...)
	}
	return bits, nil
}

// unset returns the bits that were 0.
func unset(all []uint64, was []int64) (zero []uint64) {
	for i := range min(len(all), len(was)) {
		if was[i] == 0 {
			zero = append(zero, all[i])
		}
	}
	return zero
}

// pipeline sends commands. An in-memory server behind a pipe reads nothing until its client reads the
// replies, so without BITFIELD pipeline sends only a few commands at a time.
func (f *Filter) pipeline(ctx context.Context, commands []rueidis.Completed, without bool) (replies []rueidis.RedisResult) {
	atOnce := len(commands)
	if without {
		atOnce = 32
	}
	for some := range slices.Chunk(commands, atOnce) {
		replies = append(replies, f.send.Redis.DoMulti(ctx, some...)...)
	}
	return replies
}

// commands returns the commands that set or read bits, with up to a thousand bits in each, or a single bit without BITFIELD. All
// bits of an element are in one command, so if two callers add it at the same time, only one of them finds it new.
func (f *Filter) commands(all []uint64, hashes int, set, without bool) (commands []rueidis.Completed) {
	if without {
		for _, i := range all {
			if set {
				commands = append(commands, f.send.Redis.B().Setbit().Key(f.bits).Offset(int64(i)).Value(1).Build())
			} else {
				commands = append(commands, f.send.Redis.B().Arbitrary("GETBIT").Keys(f.bits).Args(strconv.FormatUint(i, 10)).Build())
			}
		}
		return commands
	}
	for some := range slices.Chunk(all, max(hashes, maxHashes/hashes*hashes)) {
		var args []string
		for _, i := range some {
			if set {
				args = append(args, "SET", "u1", strconv.FormatUint(i, 10), "1")
			} else {
				args = append(args, "GET", "u1", strconv.FormatUint(i, 10))
			}
		}
		// A command built with Arbitrary does not count as read-only, so rueidis does not send it to replicas.
		verb := "BITFIELD_RO"
		if set {
			verb = "BITFIELD"
		}
		commands = append(commands, f.send.Redis.B().Arbitrary(verb).Keys(f.bits).Args(args...).Build())
	}
	return commands
}

// wholeCommand returns the command that reads all bits of a filter of this size.
func (f *Filter) wholeCommand(size uint64) rueidis.Completed {
	return f.send.Redis.B().Arbitrary("GETRANGE").Keys(f.bits).Args("0", strconv.FormatUint((size-1)/8, 10)).Build()
}

// pick returns bits of a filter. The text ends after the last bit that was ever set.
func pick(text string, all []uint64) []int64 {
	bits := make([]int64, len(all))
	for n, i := range all {
		if i/8 < uint64(len(text)) {
			bits[n] = int64(text[i/8] >> (7 - i%8) & 1)
		}
	}
	return bits
}

func (f *Filter) configCommand() rueidis.Completed {
	return f.send.Redis.B().Arbitrary("HMGET").Keys(f.config).Args("size", "hashIterations", "expectedInsertions", "falseProbability", "leasehold_shards").Build()
}

// words reads the reply to configCommand. gone reports that there is no configuration.
func words(r rueidis.RedisResult) (words []string, gone bool, err error) {
	all, err := r.ToArray()
	if err != nil {
		return nil, false, err
	}
	for i, m := range all {
		text, err := m.ToString()
		if rueidis.IsRedisNil(err) {
			if i < 2 {
				return nil, true, nil
			}
			text = "0"
		} else if err != nil {
			return nil, false, err
		}
		words = append(words, text)
	}
	if len(words) != 5 {
		return nil, false, command.Final{Err: fmt.Errorf("unexpected configuration of %d fields", len(words))}
	}
	return words, false, nil
}

// read reads the configuration.
func (f *Filter) read(ctx context.Context) (*luascripts.BloomConfig, error) {
	text, gone, err := words(f.send.Redis.Do(ctx, f.configCommand()))
	if err != nil {
		return nil, err
	}
	if gone {
		return nil, command.Final{Err: ErrNotInitialized}
	}
	c, ok := luascripts.NewBloomConfig(text)
	if !ok {
		return nil, command.Final{Err: lock.ErrWrongType}
	}
	f.known.Store(&c)
	return &c, nil
}

// Config returns the parameters of the filter.
func (f *Filter) Config(ctx context.Context) (Config, error) {
	const op = "config"
	if f.bad != nil {
		return Config{}, f.wrap(ctx, op, f.bad)
	}
	c, err := command.Ask(ctx, f.send, f.send.Timeout, f.read)
	if err != nil {
		return Config{}, f.wrap(ctx, op, err)
	}
	return configOf(*c), nil
}

func configOf(c luascripts.BloomConfig) Config {
	p, _ := strconv.ParseFloat(c.Probability, 64)
	return Config{Size: c.Size, Hashes: c.Hashes, Expected: c.Expected, P: p}
}

// Count returns an estimate of the number of elements. It is math.MaxInt64 if all bits are set.
func (f *Filter) Count(ctx context.Context) (int64, error) {
	const op = "count"
	if f.bad != nil {
		return 0, f.wrap(ctx, op, f.bad)
	}
	c, err := command.Ask(ctx, f.send, f.send.Timeout, f.read)
	if err != nil {
		return 0, f.wrap(ctx, op, err)
	}
	set, err := command.Ask(ctx, f.send, f.send.Timeout, func(ctx context.Context) (int64, error) {
		return f.send.Redis.Do(ctx, f.send.Redis.B().Arbitrary("BITCOUNT").Keys(f.bits).Build()).ToInt64()
	})
	if err != nil {
		return 0, f.wrap(ctx, op, err)
	}
	return estimate(c.Size, c.Hashes, set), nil
}

// estimate returns the number of elements that Redisson estimates.
func estimate(size, hashes uint64, set int64) int64 {
	n := math.Floor(-float64(size)/float64(hashes)*math.Log(1-float64(set)/float64(size)) + 0.5)
	if !(n < math.MaxInt64) {
		return math.MaxInt64
	}
	return int64(n)
}

// Delete deletes the filter. It succeeds if there is no filter. If one of its keys has the wrong
// type, such as a lock of that name, Delete changes nothing and fails with [lock.ErrWrongType]. It
// deletes a string without a configuration, because that can be a filter whose configuration is
// lost. Delete requires two round trips.
//
// Another handle keeps the size that it read. Its first Add after Delete allocates the bits of that
// size again, without a memory check, and deletes them. For 512 MB, that blocks the server for about
// a second. If a smaller filter was created under the name, the string keeps that size. Stop adding
// elements before Delete if the filter is large.
//
// A delayed duplicate of the command deletes no filter that was created since. Each copy may run
// for at most one second. If a connection broke, Delete returns when that time has passed. If ctx
// is canceled before, a copy can still run within that second.
func (f *Filter) Delete(ctx context.Context) error {
	const op = "delete"
	if f.bad != nil {
		return f.wrap(ctx, op, f.bad)
	}
	copies := f.send.Dated()
	_, err := command.Ask(ctx, f.send, f.send.Timeout, func(sent context.Context) (struct{}, error) {
		return struct{}{}, copies.Send(ctx, func(before int64) (int64, error) {
			v, now, err := luascripts.DeleteBloom(sent, f.send.Redis, f.config, f.bits, before)
			if err == nil && v == luascripts.Foreign {
				err = command.Final{Err: lock.ErrWrongType}
			}
			return now, err
		})
	})
	copies.Over(ctx)
	f.known.Store(nil)
	return f.wrap(ctx, op, err)
}

// other returns the error for a filter whose parameters differ from those that the caller expects.
func (f *Filter) other(is luascripts.BloomConfig) error {
	err := error(&ConfigError{configOf(is)})
	if is.Shards != f.shards {
		err = fmt.Errorf("%w: filter is one of %d shards, handle wants %d", err, is.Shards, f.shards)
	}
	return err
}

// wrap adds the operation and the name to err, and which key has the wrong type. It returns nil for nil.
func (f *Filter) wrap(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	err = f.send.Foreign(ctx, err, command.Key{Name: f.config, Type: "hash"}, command.Key{Name: f.bits, Type: "string"})
	return &lock.Error{Op: op, Name: f.name, Err: err}
}
