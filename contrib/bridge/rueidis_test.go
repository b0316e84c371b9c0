package bridge

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis/rueidislock"
)

// deafLocker is a rueidislock that misses the messages of the server. Its first `deaf` calls wait until their contexts end.
type deafLocker struct {
	rueidislock.Locker
	deaf, calls, given int
	late               bool // the lock comes just when the call ends
}

func (l *deafLocker) WithContext(ctx context.Context, _ string) (context.Context, context.CancelFunc, error) {
	l.calls++
	if l.calls <= l.deaf {
		<-ctx.Done()
		if !l.late {
			return nil, nil, ctx.Err()
		}
	}
	held, cancel := context.WithCancel(ctx)
	return held, func() { l.given++; cancel() }, nil
}

func TestRueidislock_asksAgain(t *testing.T) {
	for name, late := range map[string]bool{"no lock": false, "a lock that came too late": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &deafLocker{deaf: 2, late: late}
				began := time.Now()
				held, unlock, err := Rueidislock(l, "orders").Lock(t.Context())
				if err != nil || held.Err() != nil || time.Since(began) != 2*askAgain {
					t.Fatalf("after %v: %v", time.Since(began), err)
				}
				time.Sleep(time.Minute)
				if held.Err() != nil {
					t.Errorf("the lock ended: %v", held.Err())
				}
				if err := unlock(t.Context()); err != nil {
					t.Error(err)
				}
				want := 1
				if late {
					want = 3
				}
				if held.Err() == nil || l.given != want {
					t.Errorf("given back %d times, want %d; the context: %v", l.given, want, held.Err())
				}
			})
		})
	}
}

// The end of the caller's wait is the end.
func TestRueidislock_givesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*askAgain/2)
		defer cancel()
		l := &deafLocker{deaf: 100}
		if _, _, err := Rueidislock(l, "orders").Lock(ctx); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if l.calls != 3 {
			t.Errorf("asked %d times", l.calls)
		}
	})
}
