package watchdog

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// However leases are added, moved and removed, first returns the lease due first, and none is lost.
func TestQueue(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		disorder := []int64{1, 10, 1000}[seed%3]
		var w Watchdog
		var q queue
		var in []*Lease
		now := int64(0)
		at := func() instant { // often equal
			now += r.Int64N(2)
			return instant{}.add(time.Duration(now/5*10 + r.Int64N(disorder)))
		}
		check := func() {
			t.Helper()
			if q.size != len(in) {
				t.Fatalf("seed %d: %d leases, want %d", seed, q.size, len(in))
			}
			first := q.first()
			if len(in) == 0 {
				if first != nil {
					t.Fatalf("seed %d: an empty queue has %v", seed, first)
				}
				return
			}
			least := slices.MinFunc(in, func(a, b *Lease) int { return int(a.renewAt.mono - b.renewAt.mono) })
			if first == nil || first.renewAt != least.renewAt || !slices.Contains(in, first) {
				t.Fatalf("seed %d: %v is the first, want %v", seed, first, least.renewAt.mono)
			}
		}
		for range 600 {
			switch n := r.IntN(10); {
			case n < 5 || len(in) == 0:
				l := &Lease{w: &w, queued: inDue}
				l.renewAt = at()
				q.add(l)
				in = append(in, l)
			case n < 7:
				l := in[r.IntN(len(in))]
				l.renewAt = at() // before it is removed, as by Extend
				q.remove(l)
				q.add(l)
			default:
				i := r.IntN(len(in))
				if n == 9 {
					i = slices.Index(in, q.first())
				}
				q.remove(in[i])
				if in[i].next != nil || in[i].prev != nil {
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
			q.remove(l)
			i := slices.Index(in, l)
			in = slices.Delete(in, i, i+1)
			check()
		}
	}
}
