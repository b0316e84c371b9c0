package dashboard

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/admin"
)

// LimitSurvey returns a function that continues a survey of limiters and filters, for about limit for each type. The function returns their
// number, and the progress as the page shows it.
func LimitSurvey(a *admin.Admin, limit time.Duration) func(context.Context) (found int, says string, err error) {
	s := newLimitSurveyor(a)
	s.limit = limit
	return func(ctx context.Context) (int, string, error) {
		seen := s.look(ctx)
		return len(seen.all), seen.note().Scanning, seen.err
	}
}
