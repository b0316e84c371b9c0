package luascripts

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var (
	bloomInit   = load("bloom_init")
	bloomUndo   = load("bloom_undo")
	bloomDelete = load("bloom_delete")
)

const (
	Orphaned Verdict = -6 // a Bloom filter has bits and no configuration
	Large    Verdict = -7 // a Bloom filter does not fit into the memory of the server; no script returns this number
)

// BloomConfig is the configuration of a Bloom filter.
type BloomConfig struct {
	Size, Hashes, Expected uint64
	Probability            string // as Java writes it
	Shards                 uint64 // 0 for a filter that is not split
}

// BloomReply is the reply of [InitBloom].
type BloomReply struct {
	Verdict Verdict
	Config  BloomConfig // Other: the configuration of the filter that exists
	Server  string      // Free: the run ID of the server, "" if the server does not report one

	// Large: the bytes that the filters need, the bytes that are used, and the server's maxmemory.
	Needed, Used, Max int64
}

// InitBloom creates a Bloom filter. It returns Done, Other if there is one, Foreign or Orphaned. It
// returns Large if the memory of the server is too small for the filter.
//
// With check, InitBloom only reports what it would do. Free then means that the filter can be
// created, and that the server has the memory for room filters of that size.
func InitBloom(ctx context.Context, rdb rueidis.Client, config, bits string, c BloomConfig, room int, check bool) (r BloomReply, err error) {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	args := []string{number(c.Size), number(c.Hashes), number(c.Expected), c.Probability, number(c.Shards), strconv.Itoa(room), bit(!check)}
	reply := bloomInit.exec(ctx, rdb, []string{config, bits}, args)
	msg, err := reply.ToMessage()
	if err != nil {
		return r, err
	}
	if check && msg.IsString() {
		r.Server, err = msg.ToString()
		return r, err
	}
	if words, err := msg.AsStrSlice(); err == nil && len(words) == 5 {
		is, ok := NewBloomConfig(words)
		if !ok {
			return BloomReply{Verdict: Foreign}, nil
		}
		return BloomReply{Verdict: Other, Config: is}, nil
	}
	if n, err := msg.AsIntSlice(); err == nil && len(n) == 3 {
		return BloomReply{Verdict: Large, Needed: n[0], Used: n[1], Max: n[2]}, nil
	}
	r.Verdict, err = verdict(bloomInit, reply, Done, Foreign, Orphaned)
	return r, err
}

// DeleteBloom deletes a Bloom filter, and returns Done or Foreign. It does so only while the
// server's time in ms is less than before. After that, DeleteBloom does nothing and returns the
// server's time. Otherwise now is 0.
func DeleteBloom(ctx context.Context, rdb rueidis.Client, config, bits string, before int64) (v Verdict, now int64, err error) {
	return dated(bloomDelete, bloomDelete.exec(ctx, rdb, []string{config, bits}, []string{strconv.FormatInt(before, 10)}), before, Done, Foreign)
}

// UndoBloom clears bits that the caller set in a filter whose configuration no longer exists. It
// returns Done, Free if there is a configuration again, or Foreign.
func UndoBloom(ctx context.Context, rdb rueidis.Client, config, bits string, set []uint64) (v Verdict, err error) {
	const atOnce = 1000
	for v = Done; len(set) > 0 && err == nil && v == Done; {
		some := set[:min(atOnce, len(set))]
		set = set[len(some):]
		args := []string{bit(len(set) == 0)}
		for _, i := range some {
			args = append(args, strconv.FormatUint(i, 10))
		}
		v, err = verdict(bloomUndo, bloomUndo.exec(ctx, rdb, []string{config, bits}, args), Done, Free, Foreign)
	}
	return v, err
}

// No filter has more bits, because SETBIT accepts no more. None has as many hashes. The smallest
// false positive rate that Java supports needs 1,075.
const (
	maxBloomSize   = 1 << 32
	maxBloomHashes = 2000
)

// NewBloomConfig reads a configuration from its words, in the order of BloomConfig. It reports
// false if they are not a configuration of a filter.
func NewBloomConfig(words []string) (c BloomConfig, ok bool) {
	var errs [4]error
	c.Probability = words[3]
	c.Size, errs[0] = strconv.ParseUint(words[0], 10, 64)
	c.Hashes, errs[1] = strconv.ParseUint(words[1], 10, 64)
	c.Expected, errs[2] = strconv.ParseUint(words[2], 10, 64)
	c.Shards, errs[3] = strconv.ParseUint(words[4], 10, 64)
	return c, errs == [4]error{} && c.Size > 0 && c.Size <= maxBloomSize && c.Hashes > 0 && c.Hashes <= maxBloomHashes
}
