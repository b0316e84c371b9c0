package ratelimit_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/ratelimit"
)

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	locktest.RunLimiter(t, locktest.LimiterHarness{
		New: func(name string, limits ...ratelimit.Limit) locktest.Limiter {
			return a.NewRateLimiter(name, closed, limits...)
		},
		Other: func(name string, limits ...ratelimit.Limit) locktest.Limiter {
			return b.NewRateLimiter(name, closed, limits...)
		},
	})
}
