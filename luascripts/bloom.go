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

// Orphaned is the verdict when a Bloom filter has bits and no configuration.
const Orphaned Verdict = -6

// BloomConfig is the configuration of a Bloom filter.
type BloomConfig struct {
	Size, Hashes, Expected uint64
	Probability            string // as Java writes it
	Shards                 uint64 // 0 for a filter that is not one of several
}

// InitBloom makes a Bloom filter. It returns Done if it made the filter, Other with the configuration of a filter
// that exists, Foreign or Orphaned.
func InitBloom(ctx context.Context, rdb rueidis.Client, config, bits string, c BloomConfig) (Verdict, BloomConfig, error) {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	reply := bloomInit.exec(ctx, rdb, []string{config, bits}, []string{number(c.Size), number(c.Hashes), number(c.Expected), c.Probability, number(c.Shards)})
	if words, err := reply.AsStrSlice(); err == nil && len(words) == 5 {
		is, ok := NewBloomConfig(words)
		if !ok {
			return Foreign, is, nil
		}
		return Other, is, nil
	}
	v, err := verdict(bloomInit, reply, Done, Foreign, Orphaned)
	return v, BloomConfig{}, err
}

// DeleteBloom deletes a Bloom filter, before a time of the server, in ms: Done or Foreign. If that has come, DeleteBloom does nothing and
// returns the server's time; otherwise now is 0.
func DeleteBloom(ctx context.Context, rdb rueidis.Client, config, bits string, before int64) (v Verdict, now int64, err error) {
	return dated(bloomDelete, bloomDelete.exec(ctx, rdb, []string{config, bits}, []string{strconv.FormatInt(before, 10)}), before, Done, Foreign)
}

// UndoBloom clears bits that the caller set in a filter of which there is no configuration any more: Done, Free if
// there is one again, or Foreign.
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

// No filter has more bits: it is the most that SETBIT takes. None has as many hashes: the smallest share of false positives
// that Java knows needs 1,075.
const (
	maxBloomSize   = 1 << 32
	maxBloomHashes = 2000
)

// NewBloomConfig reads a configuration from its words, in the order of BloomConfig. It reports false if that is not
// one of a filter.
func NewBloomConfig(words []string) (c BloomConfig, ok bool) {
	var errs [4]error
	c.Probability = words[3]
	c.Size, errs[0] = strconv.ParseUint(words[0], 10, 64)
	c.Hashes, errs[1] = strconv.ParseUint(words[1], 10, 64)
	c.Expected, errs[2] = strconv.ParseUint(words[2], 10, 64)
	c.Shards, errs[3] = strconv.ParseUint(words[4], 10, 64)
	return c, errs == [4]error{} && c.Size > 0 && c.Size <= maxBloomSize && c.Hashes > 0 && c.Hashes <= maxBloomHashes
}
