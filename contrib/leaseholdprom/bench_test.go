package leaseholdprom_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/contrib/leaseholdprom"
	"github.com/leasehold-go/leasehold/lock"
)

// What the metrics cost for each hold of a lock that goes from one goroutine to the next.
func BenchmarkObserver(b *testing.B) {
	m, err := leaseholdprom.New()
	if err != nil {
		b.Fatal(err)
	}
	o, ctx := m.Observer(), context.Background()
	e := lock.Event{Name: "orders", Kind: "plain", Took: 50 * time.Microsecond, Waited: 40 * time.Microsecond, Held: 10 * time.Microsecond}
	b.ReportAllocs()
	for b.Loop() {
		o.Waiting(ctx, e)
		o.HandedOff(ctx, e)
		o.Acquired(ctx, e)
		o.Released(ctx, e)
	}
}
