package luascripts_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// How each script of a Bloom filter handles full memory, and keys that are not a filter.
func TestBloom_transcript(t *testing.T) {
	play(t, `
		# a filter is made once, if there is the memory
		info run_id:abc12
		bloom_init [c b] 80 3 5 0.03 0 1 0 = abc12
		EXISTS c b = 0
		info
		bloom_init [c b] 80 3 5 0.03 0 1 0 = ''
		bloom_init [c b] 80 3 5 0.03 0 1 1 = 1
		HGETALL c = [expectedInsertions 5 falseProbability 0.03 hashIterations 3 size 80]
		STRLEN b = 10
		bloom_init [c b] 90 4 6 0.04 2 1 1 = [80 3 5 0.03 0]
		HSET c leasehold_shards 7
		bloom_init [c b] 90 4 6 0.04 2 1 1 = [80 3 5 0.03 7]
		HDEL c expectedInsertions falseProbability leasehold_shards
		bloom_init [c b] 90 4 6 0.04 2 1 1 = [80 3 0 0 0]
		DEL c b
		bloom_init [c b] 81 3 5 0.03 2 1 1 = 1
		HGETALL c = [expectedInsertions 5 falseProbability 0.03 hashIterations 3 leasehold_shards 2 size 81]
		STRLEN b = 11
		DEL c b

		# a hundredth of the memory must be left
		info maxmemory:10000 used_memory:9900 mem_not_counted_for_evict:20
		bloom_init [c b] 80 3 5 0.03 0 1 1 = 1
		info maxmemory:10000 used_memory:9900 mem_not_counted_for_evict:19
		bloom_init [c b] 80 3 5 0.03 0 1 1 = [80 3 5 0.03 0]
		info maxmemory:10000 used_memory:9860
		bloom_init [d e] 80 3 5 0.03 0 2 1 = 1
		info maxmemory:10000 used_memory:9861
		bloom_init [f g] 80 3 5 0.03 0 2 1 = [40 9861 10000]
		info maxmemory:10000 used_memory:9999
		bloom_init [f g] 80 3 5 0.03 0 2 1 = [40 9999 10000]
		info maxmemory:10000 used_memory:10000
		bloom_init [f g] 80 3 5 0.03 0 2 1 = !OOM
		info maxmemory:10000 used_memory:10000 maxmemory_policy:allkeys-lru
		bloom_init [f g] 80 3 5 0.03 0 2 0 = ''
		bloom_init [f g] 80 3 5 0.03 0 495 0 = ''
		bloom_init [f g] 80 3 5 0.03 0 496 0 = [9920 0 10000]
		bloom_init [f g] 72 3 5 0.03 0 496 0 = ''
		info maxmemory:100000 used_memory:0 mem_allocator:jemalloc-5
		bloom_init [f g] 7920 3 5 0.03 0 97 0 = [99328 0 100000]
		bloom_init [f g] 6400 3 5 0.03 0 111 0 = [99456 0 100000]
		without INFO
		bloom_init [f g] 80 3 5 0.03 0 9999 0 = ''
		without
		info

		# bits without a configuration, and a configuration without its fields
		SET b2 x
		bloom_init [f b2] 80 3 5 0.03 0 1 1 = -6
		SET b2 ''
		bloom_init [f b2] 80 3 5 0.03 0 1 0 = ''
		HSET h a 1
		bloom_init [h b2] 80 3 5 0.03 0 1 1 = -4
		HSET h size 1
		bloom_init [h b2] 80 3 5 0.03 0 1 1 = -4
		HDEL h size
		HSET h hashIterations 1
		bloom_init [h b2] 80 3 5 0.03 0 1 1 = -4
		bloom_init [b b2] 80 3 5 0.03 0 1 1 = -4
		bloom_init [f h] 80 3 5 0.03 0 1 1 = -4
		without HMGET
		bloom_init [f g] 80 3 5 0.03 0 1 1 = !NOPERM
		without STRLEN
		bloom_init [f g] 80 3 5 0.03 0 1 1 = !NOPERM
		without HSET
		bloom_init [f g] 80 3 5 0.03 0 1 1 = !NOPERM
		EXISTS f g = 0
		without

		# bits of a filter that is gone are cleared, and the string is deleted when nothing is left of it
		SETBIT g 5 1
		SETBIT g 9 1
		bloom_undo [f g] 0 5 = 1
		GETBIT g 5 = 0
		bloom_undo [f g] 1 = 1
		EXISTS g = 1
		bloom_undo [f g] 0 9 = 1
		EXISTS g = 1
		bloom_undo [f g] 1 9 = 1
		EXISTS g = 0
		bloom_undo [f g] 1 9 = 1
		sent SETBIT = 0
		SETBIT b 5 1
		bloom_undo [c b] 1 5 = 0
		GETBIT b 5 = 1
		bloom_undo [f h] 1 5 = -4
		SETBIT g 5 1
		without SETBIT
		bloom_undo [f g] 1 5 = !NOPERM
		without
		DEL g

		# a filter is deleted before the given time
		wait 10
		bloom_delete [c b] 0 = @10
		bloom_delete [c b] @10 = @10
		bloom_delete [h b2] @11 = -4
		bloom_delete [b2 g] @11 = -4
		bloom_delete [f h] @11 = -4
		HSET i size 1
		bloom_delete [i b2] @11 = -4
		HSET j hashIterations 1
		bloom_delete [j b2] @11 = -4
		without STRLEN
		bloom_delete [c b] @11 = !NOPERM
		without HMGET
		bloom_delete [c b] @11 = !NOPERM
		without
		EXISTS c b = 2
		bloom_delete [c b] @11 = 1
		EXISTS c b = 0
		bloom_delete [c b] @11 = 1
		bloom_delete [f b2] @11 = 1
		EXISTS b2 = 0
	`)
}

// An Add can fill the memory, because it creates the string again. Its bits are cleared anyway.
func TestUndoBloom_memoryFull(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	s.Do(t, "SETBIT", "bits", "80000", "1")
	full(t, s)
	if v, err := luascripts.UndoBloom(t.Context(), rdb, "config", "bits", []uint64{80000}); err != nil || v != luascripts.Done {
		t.Errorf("%v, %v", v, err)
	}
	if n, _ := rdb.Do(t.Context(), rdb.B().Exists().Key("bits").Build()).AsInt64(); n != 0 {
		t.Error("the string stays")
	}
}
