package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
)

// A Limit allows Rate permits in each Per, and Burst of them at once. It is a bucket of Burst
// permits that starts full. In each Per, Rate permits flow into it, one after the other. In any
// time W callers take at most Burst + Rate·W/Per permits.
type Limit struct {
	Rate int64
	Per  time.Duration // whole µs
	// Burst is the size of the bucket. 0 means Rate. With Burst 1, permits are Per/Rate apart.
	Burst int64
	// Aligned makes the limit count in windows instead, like a calendar quota. It admits at most
	// Rate permits in each window. A window begins at a multiple of Per since 1970 (UTC). A Per of
	// 24 h is a day in UTC, and one of seven days begins on a Thursday. Around the start of a
	// window callers can take up to 2·Rate permits. Burst must be 0 if Aligned is set.
	Aligned bool
}

// PerSecond returns the limit of n permits per second, with a burst of n.
func PerSecond(n int64) Limit { return Limit{Rate: n, Per: time.Second} }

// PerMinute returns the limit of n permits per minute, with a burst of n.
func PerMinute(n int64) Limit { return Limit{Rate: n, Per: time.Minute} }

// PerHour returns the limit of n permits per hour, with a burst of n.
func PerHour(n int64) Limit { return Limit{Rate: n, Per: time.Hour} }

const (
	maxLimits = 8
	maxUnits  = 1_000_000_000_000_000 // a double represents this number, and sums of such numbers, exactly
	maxPer    = 10 * 366 * 24 * time.Hour
)

// full returns l with its Burst filled in.
func (l Limit) full() Limit {
	if l.Burst == 0 {
		l.Burst = l.Rate
	}
	return l
}

// check returns an error if l is not valid.
func (l Limit) check() error {
	switch {
	case l.Rate < 1 || l.Rate > maxUnits:
		return fmt.Errorf("rate %d: must be from 1 to %d", l.Rate, int64(maxUnits))
	case l.Per < time.Microsecond || l.Per > maxPer:
		return fmt.Errorf("rate per %v: must be from 1µs to %v", l.Per, maxPer)
	case l.Per%time.Microsecond != 0:
		return fmt.Errorf("rate per %v: must be a multiple of 1µs", l.Per)
	case l.Burst < 0 || l.Burst > maxUnits:
		return fmt.Errorf("burst %d: must be from 1 to %d, or 0 for the rate", l.Burst, int64(maxUnits))
	case l.Aligned && l.Burst != 0 && l.Burst != l.Rate:
		return errors.New("aligned limits do not support a burst")
	case float64(l.full().Burst)/float64(l.Rate)*float64(l.Per) > float64(maxPer):
		return fmt.Errorf("burst %d at %d per %v: must refill within %v", l.Burst, l.Rate, l.Per, maxPer)
	}
	return nil
}

// checkLimits returns an error if limits are not valid for one limiter.
func checkLimits(limits []Limit) error {
	if len(limits) == 0 || len(limits) > maxLimits {
		return fmt.Errorf("%d limits: must be from 1 to %d", len(limits), maxLimits)
	}
	for i, l := range limits {
		if err := l.check(); err != nil {
			return fmt.Errorf("limit %d: %w", i+1, err)
		}
	}
	return nil
}

// rules returns limits in the form that the scripts take.
func rules(limits []Limit) luascripts.LimitRules {
	all := make([]luascripts.LimitRule, len(limits))
	for i, l := range limits {
		all[i] = luascripts.LimitRule{Rate: l.Rate, Burst: l.Burst, Per: l.Per, Aligned: l.Aligned}
	}
	return luascripts.NewLimitRules(all...)
}
