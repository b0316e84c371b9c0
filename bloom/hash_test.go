package bloom_test

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/bloom"
)

// The expected numbers come from Redisson 4.7.0. TestJavaBloom compares whole filters.
func TestHash(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]uint64{
		"hello": {0x7fd1d0bcd0c085e1, 0x70f5d2de26f6a7d9}, "": {0xb7aad9c226c6a36b, 0xb2d4e4a63557bca6},
	} {
		if h1, h2 := bloom.Hash([]byte(text)); h1 != want[0] || h2 != want[1] {
			t.Errorf("%q: %x %x, want %x", text, h1, h2, want)
		}
	}
	size, hashes := bloom.SizeOf(100, 0.03)
	h1, h2 := bloom.Hash([]byte("hello"))
	if got := bloom.Indexes(nil, h1, h2, uint64(size), hashes); size != 729 || !slices.Equal(got, []uint64{662, 410, 398, 146, 134}) {
		t.Errorf("%v bits, %d", size, got)
	}
}

func TestKryo5(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"hello": "0368656c6cef", "": "0381", "x": "038278", "🔒": "0383eda0bdedb492", "ab": "0361e2", "é": "0382c3a9", "aé": "038361c3a9", "€": "0382e282ac",
		strings.Repeat("x", 32): "03" + strings.Repeat("78", 31) + "f8",
		strings.Repeat("x", 33): "03a2" + strings.Repeat("78", 33),
		strings.Repeat("x", 63): "03c001" + strings.Repeat("78", 63),
	} {
		got, ok := bloom.Kryo5([]byte(text))
		if !ok || hex.EncodeToString(got) != want {
			t.Errorf("%q: %x, want %s", text, got, want)
		}
	}
	if long, ok := bloom.Kryo5([]byte(strings.Repeat("x", 100_000))); !ok || hex.EncodeToString(long[:4]) != "03e19a0c" {
		t.Errorf("a long string begins with %x", long[:4])
	}
	if _, ok := bloom.Kryo5([]byte{0xff}); ok {
		t.Error("an element that is no UTF-8 was encoded")
	}
}

func TestJavaText(t *testing.T) {
	t.Parallel()
	for p, want := range map[float64]string{0.03: "0.03", 1e-4: "1.0E-4", 0.001: "0.001", 0.00099: "9.9E-4", 0.5: "0.5", 1.25e-10: "1.25E-10", 0.1: "0.1"} {
		if got := bloom.JavaText(p); got != want {
			t.Errorf("%v: %s, want %s", p, got, want)
		}
	}
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	for set, want := range map[int64]int64{0: 0, 5: 1, 365: 101, 728: 961, 729: math.MaxInt64} {
		if got := bloom.Estimate(729, 5, set); got != want {
			t.Errorf("%d of 729: %d, want %d", set, got, want)
		}
	}
}

// The measured rates of false positives equal those of the package comment, within three standard deviations. No
// added element is missing.
func TestFalsePositives(t *testing.T) {
	t.Parallel()
	const n, probes = 20_000, 300_000
	for _, c := range []struct{ p, worst float64 }{{0.03, 0.035}, {0.01, 0.011}, {1e-3, 1.9e-3}, {1e-4, 3.4e-4}} {
		f := func(i int) []byte { return fmt.Appendf(nil, "element %d", i) }
		size, hashes := bloom.SizeOf(n, c.p)
		set := make([]bool, uint64(size))
		of := func(i int) []uint64 {
			h1, h2 := bloom.Hash(f(i))
			return bloom.Indexes(nil, h1, h2, uint64(size), hashes)
		}
		for i := range n {
			for _, bit := range of(i) {
				set[bit] = true
			}
		}
		there := func(i int) bool {
			return !slices.ContainsFunc(of(i), func(bit uint64) bool { return !set[bit] })
		}
		for i := range n {
			if !there(i) {
				t.Fatalf("%v: element %d is not there", c.p, i)
			}
		}
		found := 0
		for i := range probes {
			if there(n + i) {
				found++
			}
		}
		got := float64(found) / probes
		t.Logf("promised %g, measured %.2g, %d bits", c.p, got, uint64(size))
		if most := c.worst + 3*math.Sqrt(c.worst/probes); got > most {
			t.Errorf("promised %g, documented %g, measured %g", c.p, c.worst, got)
		}
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	for range 1000 {
		n, p := 1+rand.Uint64N(1_000_000), math.Pow(10, -6*rand.Float64())
		got := bloom.SuggestProbability(n, p)
		if size, _ := bloom.SizeOf(n, got); got > p || n > 1000 && (got < p*0.99 || uint64(size)%2 == 0) {
			t.Errorf("%d at %v: %v, %v bits", n, p, got, size)
		}
	}
}

// Elements spread evenly over shards, and over the bits of each.
func TestShard(t *testing.T) {
	t.Parallel()
	const n, shards, size = 100_000, 8, 997
	var counts [shards]int
	var bits [shards][size / 100]int
	for i := range n {
		h1, h2 := bloom.Hash(fmt.Appendf(nil, "%d", i))
		s := bloom.ShardOf(h1, h2, shards)
		counts[s]++
		for _, bit := range bloom.Indexes(nil, h1, h2, size, 7) {
			if part := bit / 100; part < size/100 {
				bits[s][part]++
			}
		}
	}
	within := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 5*math.Sqrt(want) {
			t.Errorf("%s: %v, want about %v", what, got, want)
		}
	}
	for s := range counts {
		within(fmt.Sprint("shard ", s), float64(counts[s]), n/shards)
		for part, got := range bits[s] {
			within(fmt.Sprint("part ", part, " of shard ", s), float64(got), float64(counts[s])*7*100/size)
		}
	}
}
