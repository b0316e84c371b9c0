package dashboard

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/admin"
)

// LimitSurvey returns a function that continues a survey of limiters and filters for about limit for each kind. It returns their number and
// what the page says of the look.
func LimitSurvey(a *admin.Admin, limit time.Duration) func(context.Context) (found int, says string, err error) {
	s := newLimitSurveyor(a)
	s.limit = limit
	return func(ctx context.Context) (int, string, error) {
		seen := s.look(ctx)
		return len(seen.all), seen.note().Scanning, seen.err
	}
}
