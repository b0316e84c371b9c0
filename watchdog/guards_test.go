package watchdog_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/watchdog"
)

// An answer that comes when the lease is stopped or lost tells nobody anything: the subject was told, or asked not to be.
func TestLease_answeredWhenOver(t *testing.T) {
	for _, answer := range []error{nil, watchdog.ErrGone} {
		inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
			sent := time.Now()
			stopped, l := s.watch(w, lease, true)
			l.Stop(t.Context())
			l.Answered(sent, answer)
			if stopped.losses != 0 || stopped.renewed != 0 || l.Check() != watchdog.ErrStopped {
				t.Errorf("%v, when stopped: %d losses, %d renewals, and then %v", answer, stopped.losses, stopped.renewed, l.Check())
			}
			lost, l := s.watch(w, lease, true)
			l.Lose(errors.New("taken"))
			until := l.Until()
			l.Answered(sent, answer)
			if lost.losses != 1 || lost.renewed != 0 || !l.Until().Equal(until) || w.Len() != 0 {
				t.Errorf("%v, when lost: %d losses, %d renewals, until %v after %v, %d leases", answer, lost.losses, lost.renewed, l.Until(), until, w.Len())
			}
		})
	}
}

// A renewal that failed is no cause of an end any more once a later answer has confirmed the lease.
func TestLease_answeredAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent time.Time
		refused := errors.New("refused")
		w := watchdog.New(lease, most, func(context.Context, []watchdog.Subject) []error {
			sent = time.Now()
			return []error{refused}
		})
		defer w.Close()
		sub := &subject{}
		l := w.Watch(sub, time.Now(), lease, true)
		time.Sleep(lease/3 + time.Millisecond)
		synctest.Wait()
		if len(sub.failed) != 1 {
			t.Fatalf("%d renewals have failed, want one", len(sub.failed))
		}
		l.KeepAlive(false)
		l.Answered(sent, nil)
		time.Sleep(2 * lease)
		synctest.Wait()
		if _, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) || errors.Is(cause, refused) {
			t.Errorf("lost by %v, want the end of the lease alone", cause)
		}
	})
}

// To turn the renewals of a lease on or off that is over does not bring it back.
func TestLease_keepAliveWhenOver(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		for _, alive := range []bool{true, false} {
			sub, l := s.watch(w, lease, alive)
			l.Stop(t.Context())
			before := s.renewals()
			l.KeepAlive(!alive)
			if w.Len() != 0 {
				t.Errorf("%d leases are watched after KeepAlive(%v)", w.Len(), !alive)
			}
			time.Sleep(2 * lease)
			synctest.Wait()
			if n := s.renewals() - before; n != 0 || sub.losses != 0 {
				t.Errorf("KeepAlive(%v): %d renewals, %d losses", !alive, n, sub.losses)
			}
		}
	})
}

// The first renewal comes an interval after renewals are turned on; to turn them on once more does not put it off.
func TestLease_keepAliveBegins(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		_, l := s.watch(w, 10*lease, false)
		time.Sleep(lease)
		l.KeepAlive(true)
		time.Sleep(lease/3 - time.Millisecond)
		synctest.Wait()
		if n := s.renewals(); n != 0 {
			t.Errorf("%d renewals before the interval is over", n)
		}
		l.KeepAlive(true)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n := s.renewals(); n != 1 {
			t.Errorf("%d renewals when the interval is over, want 1", n)
		}
	})
}

// A group can ask for renewals that come more often than each third of a long lease, and not for fewer. Leases of other groups are not
// renewed more often.
func TestGroup_within(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		for _, c := range []struct {
			within time.Duration
			want   int
		}{{0, 2}, {5 * time.Second, 5}, {time.Hour, 2}} {
			for _, alive := range []bool{true, false} {
				before := s.renewals()
				sub := &subject{group: watchdog.Group{Within: c.within}}
				s.grant(sub, lease)
				l := w.Watch(sub, time.Now(), lease, alive)
				l.KeepAlive(true)
				time.Sleep(29 * time.Second)
				synctest.Wait()
				l.Stop(t.Context())
				if n := s.renewals() - before; n != c.want {
					t.Errorf("within %v, renewed from the beginning: %t: %d renewals in 29 s, want %d", c.within, alive, n, c.want)
				}
			}
		}
	})
}

// A call that is wanted of a lease that is over does not come, and does not bring the lease back.
func TestLease_callAtWhenOver(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub, l := s.watch(w, lease, true)
		l.Stop(t.Context())
		l.CallAt(time.Now().Add(time.Second))
		if w.Len() != 0 {
			t.Errorf("%d leases are watched", w.Len())
		}
		time.Sleep(2 * lease)
		synctest.Wait()
		if n := len(sub.calls()); n != 0 || s.renewals() != 0 || sub.losses != 0 {
			t.Errorf("%d calls, %d renewals, %d losses", n, s.renewals(), sub.losses)
		}
	})
}

// A renewal failed, and the next one is confirmed. When the lease ends later, the failure is no cause of that.
func TestWatchdog_aRenewalAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, sent := errors.New("refused"), 0
		w := watchdog.New(lease, most, func(_ context.Context, batch []watchdog.Subject) []error {
			if sent++; sent == 1 {
				return []error{refused}
			}
			return nil
		})
		defer w.Close()
		sub := &subject{}
		l := w.Watch(sub, time.Now(), lease, true)
		time.Sleep(lease/3 + lease/6)
		synctest.Wait()
		if len(sub.failed) != 1 || sub.renewed != 1 {
			t.Fatalf("%d renewals have failed, and %d are confirmed, want one of each", len(sub.failed), sub.renewed)
		}
		l.KeepAlive(false)
		time.Sleep(2 * lease)
		synctest.Wait()
		if _, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) || errors.Is(cause, refused) {
			t.Errorf("lost by %v, want the end of the lease alone", cause)
		}
	})
}

// The lock of a lease is at another node by the time of its renewal. It is renewed with those of that node, and with no others.
func TestLane_aBatchIsOfOneGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := watchdog.Group{What: "locks", At: 1}, watchdog.Group{What: "locks", At: 2}
		var batches atomic.Int32
		w := watchdog.New(lease, most, func(_ context.Context, batch []watchdog.Subject) []error {
			batches.Add(1)
			for _, s := range batch[1:] {
				if s.Group() != batch[0].Group() {
					t.Error("a batch of two groups")
				}
			}
			return nil
		})
		defer w.Close()
		var subs []*subject
		for range 2 {
			sub := &subject{}
			sub.move(here)
			w.Watch(sub, time.Now(), lease, true)
			subs = append(subs, sub)
		}
		subs[1].move(there)
		time.Sleep(lease / 2)
		synctest.Wait()
		if batches.Load() != 2 || subs[0].renewed != 1 || subs[1].renewed != 1 {
			t.Errorf("%d batches, %d and %d renewals", batches.Load(), subs[0].renewed, subs[1].renewed)
		}
	})
}
