package locktest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// The causes of a loss can be distinguished with the errors of package lock alone.
func TestCausesOfLoss(t *testing.T) {
	causes := []error{lock.ErrExpired, lock.ErrGone, lock.ErrForceUnlocked, lock.ErrMaxHold, lock.ErrAbandoned}
	for name, c := range map[string]struct {
		opts []lock.Option
		lose func(t *testing.T, s *locktest.Server)
		want []error
	}{
		"lease expired": {[]lock.Option{lock.WithFixedLease(time.Second)}, nil, []error{lock.ErrExpired}},
		"the key is deleted": {nil, func(t *testing.T, s *locktest.Server) {
			r := s.Redis()
			if err := r.Do(t.Context(), r.B().Del().Key("report").Build()).Error(); err != nil {
				t.Error(err)
			}
		}, []error{lock.ErrGone}},
		"WithMaxHold": {[]lock.Option{lock.WithMaxHold(time.Second)}, nil, []error{lock.ErrMaxHold}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := locktest.NewServer(t)
				h, err := s.Client(t).NewLock("report", c.opts...).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if c.lose != nil {
					c.lose(t, s)
				}
				<-h.Context().Done()
				for _, cause := range causes {
					want := errors.Is(errors.Join(c.want...), cause)
					if errors.Is(h.Err(), cause) != want || !errors.Is(h.Err(), lock.ErrLost) {
						t.Errorf("%v: it matches %v: %v", h.Err(), cause, !want)
					}
				}
				_ = h.Unlock(t.Context())
			})
		})
	}
}
