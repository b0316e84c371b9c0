package reentrant_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Two round trips: one to lock and one to unlock.
func BenchmarkLockUnlock(b *testing.B) {
	c, err := client.New(redistest.Start(b).Client(b))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(b.Context())
	l := c.NewLock("orders")
	b.ReportAllocs()
	for b.Loop() {
		h, err := l.Lock(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Unlock(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// No round trip: the process keeps the lock.
func BenchmarkLinger(b *testing.B) {
	c, err := client.New(redistest.Start(b).Client(b))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(b.Context())
	l := c.NewLock("orders", lock.WithLinger(time.Second))
	b.ReportAllocs()
	for b.Loop() {
		h, err := l.Lock(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Unlock(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// The same two round trips without the library: the cost of a bare SET NX PX and a compare-and-delete.
func BenchmarkFloor(b *testing.B) {
	rdb := redistest.Start(b).Client(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := rdb.Do(b.Context(), rdb.B().Set().Key("orders").Value("me").Nx().PxMilliseconds(30000).Build()).Error(); err != nil {
			b.Fatal(err)
		}
		if err := rdb.Do(b.Context(), rdb.B().Del().Key("orders").Build()).Error(); err != nil {
			b.Fatal(err)
		}
	}
}

// The cost of checking a hold.
func BenchmarkErr(b *testing.B) {
	c, err := client.New(redistest.Start(b).Client(b))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(b.Context())
	h, err := c.NewLock("orders").Lock(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if h.Err() != nil {
			b.Fatal(h.Err())
		}
	}
}
