package semaphore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// A free permit compared with a free plain lock: two round trips each.
func BenchmarkFree(b *testing.B) {
	s := redistest.Start(b)
	c := kindtest.NewClient(b, s.Client(b))
	for name, l := range map[string]lock.Locker{
		"lock":      c.NewLock("lock"),
		"permit":    c.NewSemaphore("gpus", 10),
		"4 permits": c.NewSemaphore("more", 10).N(4),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				h, err := l.Lock(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if err := h.Unlock(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The cost for the server of 10,000 held permits compared with 10,000 held locks, by its own statistics, in µs per
// round of renewals.
func BenchmarkHeld(b *testing.B) {
	for _, what := range []string{"locks", "permits"} {
		b.Run(what, func(b *testing.B) {
			const n = 10_000
			s := redistest.Start(b)
			c := kindtest.NewClient(b, s.Client(b), kindtest.Fast...)
			sem := c.NewSemaphore("gpus", n)
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					for j := i; j < n; j += 50 {
						var l lock.Locker = sem
						if what == "locks" {
							l = c.NewLock(fmt.Sprint("lock", j))
						}
						if _, err := l.Lock(b.Context()); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			s.ResetStats(b)
			const rounds = 3
			<-time.After(rounds * kindtest.WatchdogTimeout / 3)
			stats := kindtest.Text(s.Do(b, "INFO", "commandstats"))
			var calls, usec int64
			for line := range strings.Lines(stats) {
				if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,usec=%d", &calls, &usec); err == nil {
					break
				}
			}
			for b.Loop() {
			}
			b.ReportMetric(float64(usec)/rounds/n, "server-µs/renewal")
			b.ReportMetric(float64(calls)/rounds, "calls/round")
		})
	}
}
