package leaseholdprom_test

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/contrib/leaseholdprom"
	"github.com/leasehold-go/leasehold/lock"
)

// The cost of the metrics per hold, for a lock that is handed off between goroutines.
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
