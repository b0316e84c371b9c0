package watchdog

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// However leases are added, moved and removed, the first is due first, and none is lost.
func TestQueue(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		disorder := []int64{1, 10, 1000}[seed%3]
		var q queue
		var in []*Lease
		now := int64(0)
		at := func() time.Duration { now += 3; return time.Duration(now + r.Int64N(disorder)) }
		check := func() {
			t.Helper()
			if len(q) != len(in) {
				t.Fatalf("seed %d: %d leases, want %d", seed, len(q), len(in))
			}
			first := q.first()
			if len(in) == 0 {
				if first != nil {
					t.Fatalf("seed %d: an empty queue has %v", seed, first)
				}
				return
			}
			least := slices.MinFunc(in, func(a, b *Lease) int { return int(a.at - b.at) })
			if first == nil || first.at != least.at || !slices.Contains(in, first) {
				t.Fatalf("seed %d: %v is the first, want %v", seed, first, least.at)
			}
		}
		for range 600 {
			switch n := r.IntN(10); {
			case n < 5 || len(in) == 0:
				l := new(Lease)
				l.at = at()
				heap.Push(&q, l)
				in = append(in, l)
			case n < 7:
				l := in[r.IntN(len(in))]
				l.at = at()
				heap.Fix(&q, l.index)
			default:
				i := r.IntN(len(in))
				if n == 9 {
					i = slices.Index(in, q.first())
				}
				heap.Remove(&q, in[i].index)
				if in[i].queue != nil {
					t.Fatalf("seed %d: %+v was removed", seed, in[i].inQueue)
				}
				in = slices.Delete(in, i, i+1)
			}
			check()
		}
		for len(in) > 0 { // in order, or in random order
			l := q.first()
			if seed%2 == 1 {
				l = in[r.IntN(len(in))]
			}
			heap.Remove(&q, l.index)
			i := slices.Index(in, l)
			in = slices.Delete(in, i, i+1)
			check()
		}
	}
}
