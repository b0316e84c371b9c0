package watchdog_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/watchdog"
)

const (
	lease = 30 * time.Second
	most  = 100 // maximum number of leases in a batch
)

// server simulates Redis: it has the real end of each subject's lease, and a clock that may run
// faster than the client's.
type server struct {
	rate  float64 // seconds of the server's clock for one of the client's
	start time.Time
	fail  func(call int) error // the error of a renewal that is not executed
	lost  func(call int) bool  // whether the reply to an executed renewal is lost

	mu    sync.Mutex
	ends  map[*subject]time.Duration // by the server's clock
	calls int
	sizes []int
}

func newServer() *server {
	return &server{rate: 1, start: time.Now(), ends: make(map[*subject]time.Duration)}
}

func (s *server) now() time.Duration {
	return time.Duration(float64(time.Since(s.start)) * s.rate)
}

// grant grants sub a lease of d, as an acquire would.
func (s *server) grant(sub *subject, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends[sub] = s.now() + d
}

func (s *server) free(sub *subject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ends, sub)
}

// held reports whether the server has the lease.
func (s *server) held(sub *subject) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.ends[sub]
	return ok && s.now() < end
}

func (s *server) renew(_ context.Context, batch []watchdog.Subject) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.sizes = append(s.sizes, len(batch))
	var failed error
	if s.fail != nil {
		failed = s.fail(s.calls)
	}
	errs := make([]error, len(batch))
	for i, b := range batch {
		sub := b.(*subject)
		end, ok := s.ends[sub]
		switch {
		case failed != nil:
			errs[i] = failed
		case !ok || s.now() >= end:
			errs[i] = watchdog.ErrGone
		default:
			s.ends[sub] = s.now() + lease
			if s.lost != nil && s.lost(s.calls) {
				errs[i] = errors.New("EOF")
			}
		}
	}
	return errs
}

func (s *server) renewals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// subject records the calls of its methods.
type subject struct {
	mu      sync.Mutex
	group   watchdog.Group
	cause   error
	lostAt  time.Time
	losses  int
	renewed int
	until   time.Time
	left    time.Duration // from the latest Renewed or Unrenewed
	failed  []error       // from Unrenewed
	called  []time.Time
}

func (s *subject) Group() watchdog.Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.group
}

func (s *subject) move(g watchdog.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group = g
}

func (s *subject) Lost(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cause, s.lostAt = cause, time.Now()
	s.losses++
}

func (s *subject) Renewed(until time.Time, left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewed++
	s.until, s.left = until, left
}

func (s *subject) Unrenewed(err error, left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, err)
	s.left = left
}

// renewedUntil returns the end passed to the latest Renewed; the zero time before the first.
func (s *subject) renewedUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

func (s *subject) Due() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called = append(s.called, time.Now())
}

// calls returns when Due was called.
func (s *subject) calls() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.called)
}

func (s *subject) lost() (at time.Time, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lostAt, s.cause
}

// inBubble runs f with a watchdog and its own server, in virtual time.
func inBubble(t *testing.T, f func(t *testing.T, w *watchdog.Watchdog, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		w := watchdog.New(lease, most, s.renew)
		defer w.Close()
		f(t, w, s)
	})
}

func (s *server) watch(w *watchdog.Watchdog, d time.Duration, alive bool) (*subject, *watchdog.Lease) {
	sub := &subject{}
	sent := time.Now()
	s.grant(sub, d)
	return sub, w.Watch(sub, sent, d, alive)
}

func TestLease_countsFromTheSendWithAMargin(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub := &subject{}
		sent := time.Now()
		time.Sleep(time.Second) // the reply took this long
		s.grant(sub, lease)
		l := w.Watch(sub, sent, lease, false)
		want := sent.Add(lease - lease/100 - 2*time.Millisecond)
		if got := l.Until(); !got.Equal(want) {
			t.Errorf("Until is %v after the send, want %v: it must not count from the reply", got.Sub(sent), want.Sub(sent))
		}
		time.Sleep(time.Until(want) - 1)
		if l.Check() != nil {
			t.Error("Check reports a loss 1 ns before Until")
		}
		time.Sleep(time.Nanosecond)
		if l.Check() == nil {
			t.Error("Check reports no loss at Until")
		}
		if at, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) || !at.Equal(want) {
			t.Errorf("lost by %v at %v, want ErrExpired at %v", cause, at.Sub(sent), want.Sub(sent))
		}
	})
}

func TestLease_endsByTheTimer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub, l := s.watch(w, time.Second, false)
		until := l.Until()
		time.Sleep(2 * time.Second)
		if at, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) || !at.Equal(until) {
			t.Errorf("lost by %v at %v, want ErrExpired at %v", cause, at, until)
		}
		if sub.losses != 1 {
			t.Errorf("notified %d times", sub.losses)
		}
	})
}

func TestWatchdog_renewsAfterAThird(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		start := time.Now()
		sub, l := s.watch(w, lease, true)
		time.Sleep(10 * lease)
		synctest.Wait()
		if _, cause := sub.lost(); cause != nil {
			t.Fatalf("lost: %v", cause)
		}
		// A renewal may be a little early, to join others.
		if n := s.renewals(); n < 30 || n > 34 {
			t.Errorf("%d renewals in ten leases, want 30", n)
		}
		if left := l.Until().Sub(start); left < 10*lease {
			t.Errorf("Until is %v after the start, after %v of renewals", left, 10*lease)
		}
	})
}

// A lease that is shorter than the others, such as the lease of an offer, is renewed before it ends.
func TestWatchdog_shortLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		_, l := s.watch(w, lease/6, true)
		time.Sleep(lease / 6)
		if err := l.Check(); err != nil || s.renewals() != 1 {
			t.Errorf("%v after %d renewals", err, s.renewals())
		}
	})
}

func TestWatchdog_fixedLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub, _ := s.watch(w, lease, false)
		time.Sleep(2 * lease)
		if n := s.renewals(); n != 0 {
			t.Errorf("%d renewals of a fixed lease", n)
		}
		if _, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) {
			t.Errorf("cause %v, want ErrExpired", cause)
		}
	})
}

func TestWatchdog_gone(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub, l := s.watch(w, lease, true)
		start := time.Now()
		s.free(sub)
		time.Sleep(lease/3 + 1)
		synctest.Wait()
		at, cause := sub.lost()
		if !errors.Is(cause, watchdog.ErrGone) || at.Sub(start) > lease/3 {
			t.Errorf("lost by %v after %v, want ErrGone at the first renewal", cause, at.Sub(start))
		}
		if l.Check() == nil || l.Until().After(time.Now()) {
			t.Error("still trusted")
		}
	})
}

func TestWatchdog_failedRenewalIsNoLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		down := errors.New("connection refused")
		s.fail = func(call int) error {
			if call%7 != 0 { // six failures, then a success
				return down
			}
			return nil
		}
		sub, _ := s.watch(w, lease, true)
		time.Sleep(100 * lease)
		synctest.Wait()
		if _, cause := sub.lost(); cause != nil {
			t.Errorf("lost: %v", cause)
		}
	})
}

func TestWatchdog_lossHasTheLastError(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		down := errors.New("connection refused")
		s.fail = func(int) error { return down }
		sub, l := s.watch(w, lease, true)
		until := l.Until()
		time.Sleep(2 * lease)
		at, cause := sub.lost()
		if !errors.Is(cause, watchdog.ErrExpired) || !errors.Is(cause, down) || !at.Equal(until) {
			t.Errorf("lost by %v at %v, want ErrExpired by the refused connection at %v", cause, at, until)
		}
		tries := s.renewals()
		if tries < 15 {
			t.Errorf("%d tries in the window, want one about every second", tries)
		}
		time.Sleep(lease)
		if s.renewals() != tries {
			t.Error("tries go on after the loss")
		}
	})
}

// A renewal without a reply neither hides the end of its own lease nor delays the renewals of
// others.
func TestWatchdog_hangingRenewalDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		stuck := make(chan struct{})
		var hang *subject
		w := watchdog.New(lease, most, func(ctx context.Context, batch []watchdog.Subject) []error {
			if batch[0] == watchdog.Subject(hang) {
				<-stuck
				return []error{nil} // confirmed, but far too late
			}
			return s.renew(ctx, batch)
		})
		defer w.Close()
		hang, l := s.watch(w, lease, true)
		until := l.Until()
		time.Sleep(4 * time.Second) // so that they do not go together
		other, _ := s.watch(w, lease, true)

		time.Sleep(5 * lease)
		if at, _ := hang.lost(); !at.Equal(until) {
			t.Errorf("the hanging lease was lost at %v, want %v", at, until)
		}
		if _, cause := other.lost(); cause != nil {
			t.Errorf("the other lease was lost: %v", cause)
		}
		close(stuck)
		synctest.Wait()
		if l.Check() == nil || hang.losses != 1 || hang.renewed != 0 {
			t.Error("a late confirmation brought a lost lease back")
		}
	})
}

func TestStop_waitsForTheRenewalInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		sent, reply := make(chan struct{}), make(chan struct{})
		w := watchdog.New(lease, most, func(ctx context.Context, batch []watchdog.Subject) []error {
			close(sent)
			<-reply
			return s.renew(ctx, batch)
		})
		defer w.Close()
		sub, l := s.watch(w, lease, true)
		<-sent
		stopped := make(chan struct{})
		go func() { l.Stop(t.Context()); close(stopped) }()
		synctest.Wait()
		select {
		case <-stopped:
			t.Fatal("Stop returned while a renewal of the lease was in flight")
		default:
		}
		s.free(sub) // its reply must not reach the subject
		close(reply)
		<-stopped
		time.Sleep(lease)
		if sub.losses != 0 || s.renewals() != 1 {
			t.Errorf("after Stop: got %d losses and %d renewals, want 0 and 1", sub.losses, s.renewals())
		}
	})
}

func TestStop_canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		reply := make(chan struct{})
		w := watchdog.New(lease, most, func(ctx context.Context, batch []watchdog.Subject) []error {
			<-reply
			return s.renew(ctx, batch)
		})
		defer w.Close()
		_, l := s.watch(w, lease, true)
		time.Sleep(lease/3 + 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		l.Stop(ctx)
		if took := time.Since(start); took != time.Second {
			t.Errorf("Stop took %v, want its context's second", took)
		}
		close(reply)
	})
}

func TestKeepAlive(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub, l := s.watch(w, 10*lease, false) // a long fixed lease
		l.KeepAlive(true)
		time.Sleep(lease)
		synctest.Wait()
		on := s.renewals()
		if on < 2 {
			t.Errorf("%d renewals in a lease with KeepAlive", on)
		}
		l.KeepAlive(false)
		time.Sleep(lease)
		if s.renewals() != on {
			t.Error("renewals go on after KeepAlive(false)")
		}
		if _, cause := sub.lost(); cause != nil {
			t.Errorf("a renewal shortened the long lease: %v", cause)
		}
	})
}

// The renewals of a lease are turned off while it waits for the batch before it. It is not renewed.
func TestKeepAlive_offWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		leases := make(map[watchdog.Subject]*watchdog.Lease)
		sent := make(map[watchdog.Subject]int)
		w := watchdog.New(lease, 1, func(_ context.Context, batch []watchdog.Subject) []error {
			mu.Lock()
			defer mu.Unlock()
			if sent[batch[0]]++; len(sent) == 1 {
				for sub, l := range leases {
					l.KeepAlive(sub == batch[0])
				}
			}
			time.Sleep(time.Millisecond)
			return nil
		})
		defer w.Close()
		for range 2 {
			sub := &subject{}
			mu.Lock()
			leases[sub] = w.Watch(sub, time.Now(), lease, true)
			mu.Unlock()
		}
		time.Sleep(2 * lease)
		synctest.Wait()
		if len(sent) != 1 || w.Len() != 1 {
			t.Errorf("%d leases were renewed, and %d are left; want the first", len(sent), w.Len())
		}
	})
}

// A lease whose group has changed leaves the former group when its renewals are turned off.
func TestKeepAlive_changedGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub, l := s.watch(w, lease, true)
		sub.move(watchdog.Group{At: 1})
		l.KeepAlive(false)
		if n := w.Len(); n != 1 {
			t.Errorf("%d leases, want 1", n)
		}
		l.KeepAlive(true)
		time.Sleep(2 * lease)
		synctest.Wait()
		if err := l.Check(); err != nil {
			t.Errorf("not renewed with the new group: %v", err)
		}
	})
}

func TestLease_neverShortened(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		_, l := s.watch(w, lease, false)
		before := l.Until()
		l.Extend(time.Now(), time.Second)
		if !l.Until().Equal(before) {
			t.Errorf("a shorter lease moved Until from %v to %v", before, l.Until())
		}
		l.Extend(time.Now(), 2*lease)
		if got := l.Until(); !got.After(before) {
			t.Errorf("a longer lease left Until at %v", got)
		}
	})
}

func TestLose_isFinalAndNotifiedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub, l := s.watch(w, lease, true)
		why := errors.New("by force")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { l.Lose(why) })
		}
		wg.Wait()
		l.Extend(time.Now(), lease)
		if _, cause := sub.lost(); l.Check() == nil || sub.losses != 1 || !errors.Is(cause, why) {
			t.Errorf("Check: %v; notified %d times, cause %v", l.Check(), sub.losses, cause)
		}
		if l.Stop(t.Context()) {
			t.Error("Stop reports that the lease was still watched")
		}
		if err := l.Check(); !errors.Is(err, why) {
			t.Errorf("after Stop, the cause is %v", err)
		}
	})
}

// On a machine that slept, the wall clock continued, and the monotonic clock did not.
func TestLease_usesTheLaterClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		skew := watchdog.NewSkew(t)
		sub, l := s.watch(w, lease, false)
		skew.Set(-time.Hour) // the wall clock was moved backward: the monotonic one counts
		if l.Check() != nil {
			t.Error("lost by a wall clock that moved backward")
		}
		time.Sleep(watchdog.Trusted(lease) - 1)
		if l.Check() != nil {
			t.Error("lost early")
		}
		_ = sub

		sub, l = s.watch(w, lease, true)
		skew.Set(time.Hour)
		if l.Check() == nil {
			t.Error("an hour of sleep was not detected")
		}
		if _, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) {
			t.Errorf("cause %v", cause)
		}
	})
}

// The machine slept. Soon after that, a lease that Redis still has is renewed, and the loss of one that has expired is
// reported, although the timers stopped in the meantime.
func TestWatchdog_afterASleep(t *testing.T) {
	for slept, lost := range map[time.Duration]bool{lease - 5*time.Second: false, lease: true} {
		inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
			skew := watchdog.NewSkew(t)
			sub, _ := s.watch(w, lease, true)
			time.Sleep(time.Second)
			skew.Set(slept)
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if _, cause := sub.lost(); errors.Is(cause, watchdog.ErrExpired) != lost || s.renewals() == 0 != lost {
				t.Errorf("slept for %v: %d renewals, lost by %v", slept, s.renewals(), cause)
			}
		})
	}
}

// The lease was extended before the machine slept. By the monotonic clock, a renewal then ends before
// that extension. It still counts, because by the wall clock the extension is almost over.
func TestWatchdog_renewsAnExtensionAfterASleep(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		skew := watchdog.NewSkew(t)
		sub, l := s.watch(w, time.Hour, true)
		skew.Set(50 * time.Minute)
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if _, cause := sub.lost(); cause != nil {
			t.Errorf("lost by %v, after %d renewals", cause, s.renewals())
		}
		if left := time.Until(l.Until()); left < lease/2 {
			t.Errorf("%v left after a renewal of %v", left, lease)
		}
		before := l.Until()
		l.Extend(time.Now(), 10*time.Minute) // it counts too, as soon as the machine is awake
		if got := l.Until().Sub(before); got < 9*time.Minute {
			t.Errorf("Extend moved Until by %v", got)
		}
	})
}

// A lease is extended right after the machine slept, before the watchdog has detected the sleep.
func TestExtend_afterASleep(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		skew := watchdog.NewSkew(t)
		_, l := s.watch(w, time.Minute, false)
		time.Sleep(time.Millisecond)
		skew.Set(40 * time.Second)
		l.Extend(time.Now(), 45*time.Second)
		if left := time.Until(l.Until()); left != watchdog.Trusted(45*time.Second) {
			t.Errorf("%v left after an extension by 45 s", left)
		}
	})
}

// The machine slept for most of a lease. A lease that is watched after that is due earlier by the
// monotonic clock. The loss of the first is reported in time, whichever event detects the sleep.
func TestWatchdog_orderAfterASleep(t *testing.T) {
	for _, by := range []string{"a turn", "the next turn", "Until", "Extend", "Answered", "CallAt", "a renewal"} {
		synctest.Test(t, func(t *testing.T) {
			skew := watchdog.NewSkew(t)
			w := watchdog.New(time.Hour, most, func(context.Context, []watchdog.Subject) []error {
				if by == "a renewal" {
					skew.Set(38 * time.Minute)
				}
				return nil
			})
			defer w.Close()
			first, other := &subject{}, &subject{}
			w.Watch(first, time.Now(), time.Hour, false)
			l := w.Watch(other, time.Now(), 2*time.Hour, by == "a renewal" || by == "Answered")
			if by == "a renewal" {
				time.Sleep(20*time.Minute + time.Second)
			} else {
				time.Sleep(time.Second)
				skew.Set(58 * time.Minute)
			}
			switch by {
			case "a turn":
				time.Sleep(10 * time.Second)
			case "Until":
				l.Until()
			case "Extend":
				l.Extend(time.Now(), time.Second)
			case "Answered":
				l.Answered(time.Now(), nil)
			case "CallAt":
				l.CallAt(time.Now().Add(time.Hour))
			}
			w.Watch(&subject{}, time.Now(), 10*time.Minute, false)
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if _, cause := first.lost(); !errors.Is(cause, watchdog.ErrExpired) {
				t.Errorf("noticed by %s: lost by %v", by, cause)
			}
			if _, cause := other.lost(); cause != nil {
				t.Errorf("noticed by %s: the longer one was lost by %v", by, cause)
			}
		})
	}
}

// Of two times for Due, the earlier by any clock counts, although the machine slept in between.
func TestCallAt_afterASleep(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		skew := watchdog.NewSkew(t)
		sub, l := s.watch(w, 70*time.Minute, false)
		l.CallAt(time.Now().Add(time.Hour))
		time.Sleep(time.Second)
		skew.Set(58 * time.Minute)
		l.Extend(time.Now(), 30*time.Minute)
		l.CallAt(time.Now().Add(10 * time.Minute))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(sub.calls()); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
}

// A time is earlier only if the wall clock reaches it first.
func TestEarlier(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		skew := watchdog.NewSkew(t)
		end := time.Now().Add(time.Hour)
		for by, want := range map[time.Duration]time.Duration{0: time.Hour, 50 * time.Minute: 10 * time.Minute, 2 * time.Hour: -time.Hour, -time.Hour: time.Hour} {
			skew.Set(by)
			if got := time.Until(watchdog.Earlier(end)); got != want {
				t.Errorf("the wall clock is ahead by %v: in %v, want %v", by, got, want)
			}
		}
		skew.Set(time.Microsecond)
		if got := watchdog.Earlier(end); got != end {
			t.Errorf("%v, want %v: two readings are not at the same time", got, end)
		}
	})
}

// Without a renewal, Until returns the same end every time, on the real clocks. After a renewal it
// returns the end that the subject was notified of.
func TestLease_untilIsStable(t *testing.T) {
	w := watchdog.New(lease, most, func(context.Context, []watchdog.Subject) []error { return nil })
	defer w.Close()
	for _, alive := range []bool{false, true} {
		sub := &subject{}
		l := w.Watch(sub, time.Now().Add(-lease/3), lease, alive) // its renewal is due
		for alive && sub.renewedUntil().IsZero() {
			runtime.Gosched()
		}
		first, moved := l.Until(), 0
		for range 1000 {
			if l.Until() != first {
				moved++
			}
		}
		if moved > 0 {
			t.Errorf("renewed %v: Until changed in %d of 1000 calls", alive, moved)
		}
		if notified := sub.renewedUntil(); alive && notified != first {
			t.Errorf("the subject got %v, and Until returns %v", notified, first)
		}
	}
}

// Until follows a clock that is changed.
func TestLease_untilFollowsAClockChange(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		skew := watchdog.NewSkew(t)
		_, l := s.watch(w, time.Hour, false)
		before := l.Until()
		for _, by := range []time.Duration{time.Minute, time.Second, 0, time.Millisecond, -time.Minute} {
			skew.Set(by)
			if got, want := before.Sub(l.Until()), max(by, 0); got != want {
				t.Errorf("the wall clock is set by %v: Until is %v earlier, want %v", by, got, want)
			}
		}
	})
}

// Until does not follow a single wrong reading of the clocks.
func TestLease_untilIgnoresAWrongReading(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		skew := watchdog.NewSkew(t)
		_, l := s.watch(w, time.Hour, false)
		before := l.Until()
		for range 2 {
			skew.Once(time.Minute)
			if got := l.Until(); got != before {
				t.Errorf("Until moved by %v", got.Sub(before))
			}
		}
	})
}

// Until shows every change of a lease, however small.
func TestLease_untilFollowsASmallChange(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		const little = 500 * time.Microsecond
		_, l := s.watch(w, lease, false)
		before := l.Until()
		time.Sleep(little)
		l.Extend(time.Now(), lease)
		if got := l.Until().Sub(before); got != little {
			t.Errorf("Until moved by %v, want %v", got, little)
		}
		time.Sleep(time.Until(l.Until()) - little)
		l.Lose(watchdog.ErrGone)
		if left := time.Until(l.Until()); left > 0 {
			t.Errorf("%v are left of what is lost", left)
		}
	})
}

// The trust counts from the send of a renewal, even if its reply is slow.
func TestWatchdog_slowRenewalCountsFromItsSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var sent time.Time
		answered := make(chan struct{})
		w := watchdog.New(lease, most, func(ctx context.Context, batch []watchdog.Subject) []error {
			sent = time.Now()
			errs := s.renew(ctx, batch)
			time.Sleep(5 * time.Second)
			close(answered)
			return errs
		})
		defer w.Close()
		_, l := s.watch(w, lease, true)
		<-answered
		synctest.Wait()
		if want := sent.Add(watchdog.Trusted(lease)); !l.Until().Equal(want) {
			t.Errorf("Until is %v after the send of the renewal, want %v", l.Until().Sub(sent), watchdog.Trusted(lease))
		}
	})
}

// The trust expired while a renewal was in flight, and no call has detected it yet: the confirmation
// still comes too late. So does an error, which the cause includes.
func TestWatchdog_replyAfterTheEnd(t *testing.T) {
	for _, reply := range []error{nil, errNoReply} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			s.fail = func(int) error { return reply }
			skew := watchdog.NewSkew(t)
			w := watchdog.New(lease, most, func(ctx context.Context, batch []watchdog.Subject) []error {
				skew.Set(time.Hour) // the machine sleeps, and wakes before the reply is read
				return s.renew(ctx, batch)
			})
			defer w.Close()
			sub, l := s.watch(w, lease, true)
			time.Sleep(lease/3 + 1)
			synctest.Wait()
			if _, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) || sub.renewed != 0 || !errors.Is(cause, cmp.Or(reply, watchdog.ErrExpired)) {
				t.Errorf("reply %v: cause %v, renewed %d times", reply, cause, sub.renewed)
			}
			if ago := time.Since(l.Until()); ago < time.Hour-lease {
				t.Errorf("reply %v: Until is %v ago, want about an hour", reply, ago)
			}
		})
	}
}

// The renew function returns before the server has replied. A later reply still counts, from the send
// of that renewal.
func TestAnswered_late(t *testing.T) {
	for name, c := range map[string]struct {
		result error
		after  time.Duration // when the renewal is sent
		lost   error
		until  time.Duration // after the grant
		next   time.Duration // after the grant: when it is renewed again
	}{
		"confirmed":          {nil, 3500 * time.Millisecond, nil, lease/3 + lease - lease/100 - 2*time.Millisecond, 2 * lease / 3},
		"gone":               {watchdog.ErrGone, 3500 * time.Millisecond, watchdog.ErrGone, lease/3 + 3500*time.Millisecond, 0},
		"no reply after all": {errors.New("EOF"), 3100 * time.Millisecond, nil, lease - lease/100 - 2*time.Millisecond, lease/3 + 3*time.Second + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent []time.Time
				w := watchdog.New(lease, most, func(_ context.Context, batch []watchdog.Subject) []error {
					sent = append(sent, time.Now())
					time.Sleep(3 * time.Second)
					return []error{errNoReply}
				})
				defer w.Close()
				sub, start := &subject{}, time.Now()
				l := w.Watch(sub, start, lease, true)
				time.Sleep(lease/3 + c.after)
				synctest.Wait()
				l.Answered(sent[0], c.result)
				if _, cause := sub.lost(); !errors.Is(cause, c.lost) {
					t.Errorf("lost by %v, want %v", cause, c.lost)
				}
				if got := l.Until().Sub(start); got != c.until {
					t.Errorf("trusted until %v after the grant, want %v", got, c.until)
				}
				if notified := sub.renewed == 1; notified != (c.result == nil) {
					t.Errorf("notified of %d renewals", sub.renewed)
				}
				if c.next == 0 {
					return
				}
				time.Sleep(lease / 3)
				synctest.Wait()
				if len(sent) < 2 || sent[1].Sub(start) != c.next {
					t.Errorf("renewed at %v, want again at %v after the grant", sent, c.next)
				}
			})
		})
	}
}

// A subject is notified of the remaining lease time when its renewal fails, succeeds, or is confirmed
// late.
func TestWatchdog_reportsTheRemainingTime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		refused := errors.New("refused")
		s.fail = func(call int) error {
			if call == 1 {
				return refused
			}
			return nil
		}
		start := time.Now()
		sub, l := s.watch(w, lease, true)
		end := l.Until().Sub(start)
		wantLeft := func(what string, after time.Duration, failed, renewed int) {
			t.Helper()
			sub.mu.Lock()
			defer sub.mu.Unlock()
			if want := end - after; sub.left != want || len(sub.failed) != failed || sub.renewed != renewed {
				t.Errorf("%s: %v were left, want %v; %d failed and %d succeeded, want %d and %d", what, sub.left, want, len(sub.failed), sub.renewed, failed, renewed)
			}
		}
		time.Sleep(lease/3 + time.Millisecond)
		synctest.Wait()
		wantLeft("failed", lease/3, 1, 0)
		if len(sub.failed) == 1 && sub.failed[0] != refused {
			t.Errorf("notified of %v", sub.failed[0])
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		wantLeft("renewed", lease/3+min(lease/24, time.Second), 1, 1)
		end = l.Until().Sub(start)
		sent := time.Now()
		time.Sleep(time.Second)
		l.Answered(sent, nil)
		wantLeft("confirmed late", sent.Sub(start)+time.Second, 1, 2)
	})
}

// A confirmation after the end does not revive the lease, whether or not a call has detected the end.
func TestAnswered_tooLate(t *testing.T) {
	for _, seen := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			skew := watchdog.NewSkew(t)
			w := watchdog.New(lease, most, newServer().renew)
			defer w.Close()
			sub, sent := &subject{}, time.Now()
			l := w.Watch(sub, sent, time.Second, false)
			if seen {
				time.Sleep(time.Second)
			} else {
				skew.Set(time.Second)
			}
			l.Answered(sent, nil)
			if _, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) || l.Check() == nil || sub.renewed != 0 {
				t.Errorf("detected %v: lost by %v, Check returns %v, %d renewals", seen, cause, l.Check(), sub.renewed)
			}
		})
	}
}

// The wall clock was moved backward. A lease that is not renewed still ends by the monotonic clock.
func TestCheck_wallClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		skew := watchdog.NewSkew(t)
		w := watchdog.New(lease, most, newServer().renew)
		defer w.Close()
		sub := &subject{}
		l := w.Watch(sub, time.Now(), time.Second, false)
		skew.Set(-time.Hour)
		time.Sleep(time.Second)
		if err := l.Check(); !errors.Is(err, watchdog.ErrExpired) {
			t.Errorf("at its end: %v", err)
		}
	})
}

// A Check during the notification of the subject reports the loss, too.
func TestLease_lossIsVisibleToAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		w := watchdog.New(lease, most, s.renew)
		defer w.Close()
		release := make(chan struct{})
		slow := &slowSubject{release: release}
		s.grant(&slow.subject, lease)
		l := w.Watch(slow, time.Now(), lease, false)
		go l.Check()
		time.Sleep(time.Until(l.Until()))
		go l.Check() // this Check notifies the subject, which is slow
		synctest.Wait()
		if err := l.Check(); !errors.Is(err, watchdog.ErrExpired) {
			t.Errorf("Check returns %v while the subject is being notified", err)
		}
		close(release)
	})
}

type slowSubject struct {
	subject
	release chan struct{}
}

func (s *slowSubject) Lost(cause error) {
	<-s.release
	s.subject.Lost(cause)
}

// A step of the wall clock must not make the watchdog spin: work that is due by one clock is done,
// and other work is waited for.
func TestWatchdog_doesNotSpinAfterAClockStep(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, -5 * time.Second, 5 * time.Second, 12 * time.Second} {
		t.Run(by.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
				skew := watchdog.NewSkew(t)
				sub, _ := s.watch(w, lease, true)
				time.Sleep(time.Second)
				skew.Set(by)
				s.watch(w, time.Second, false) // its end wakes the watchdog while the other lease waits
				time.Sleep(10 * lease)
				synctest.Wait()
				if _, cause := sub.lost(); cause != nil {
					t.Errorf("lost: %v", cause)
				}
				if turns := w.Turns(); turns < s.renewals() || turns > 200 {
					t.Errorf("%d turns for %d renewals", turns, s.renewals())
				}
			})
		})
	}
}

// Most leases end before anything is due. They must not wake the watchdog one after the other, and it
// must not wake up in vain after they have ended.
func TestWatchdog_sleepsThroughShortLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		for range 100 {
			_, l := s.watch(w, lease, true)
			l.Stop(t.Context())
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		if turns := w.Turns(); turns > 3 {
			t.Errorf("%d turns for leases that were never due", turns)
		}
		time.Sleep(100 * lease)
		if turns := w.Turns(); turns > 6 {
			t.Errorf("%d turns, most of them without work", turns)
		}
	})
}

func TestWatchdog_batchesRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		const many = 10_000
		before := runtime.NumGoroutine()
		subs := make([]*subject, many)
		for i := range subs {
			subs[i], _ = s.watch(w, lease, true)
			time.Sleep(100 * time.Microsecond) // spread over a second
		}
		if extra := runtime.NumGoroutine() - before; extra > 2 {
			t.Errorf("%d goroutines more for %d leases, want one", extra, many)
		}
		time.Sleep(10 * lease)
		synctest.Wait()
		for i, sub := range subs {
			if _, cause := sub.lost(); cause != nil {
				t.Fatalf("lease %d lost: %v", i, cause)
			}
		}
		if n := s.renewals(); n > 36*many/most {
			t.Errorf("%d batches for %d leases in ten leases of time", n, many)
		}
		if w.Len() != many {
			t.Errorf("Len is %d", w.Len())
		}
	})
}

func TestClose_notifiesNoOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		w := watchdog.New(lease, most, s.renew)
		sub, l := s.watch(w, lease, true)
		w.Close()
		if l.Check() == nil || sub.losses != 0 || w.Len() != 0 {
			t.Errorf("after Close: check %v, losses %d, len %d", l.Check(), sub.losses, w.Len())
		}
		late, l := s.watch(w, lease, true)
		time.Sleep(2 * lease)
		if l.Check() == nil || late.losses != 0 || s.renewals() != 0 {
			t.Error("a lease watched after Close is trusted")
		}
		w.Close() // again
	})
}

// For thirty days, renewals go to a server whose clock is one percent off. Renewals and replies get
// lost, in bursts that a lease survives and in some that it does not. The client must never treat a
// lease as valid after the server has freed it, and must not lose a lease that it could have kept.
func TestWatchdog_thirtyDays(t *testing.T) {
	for _, rate := range []float64{0.99, 1, 1.01} {
		t.Run(fmt.Sprintf("rate %v", rate), func(t *testing.T) {
			seed := rand.Uint64()
			synctest.Test(t, func(t *testing.T) {
				faults, checker := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
				s := newServer()
				s.rate = rate
				var burst int // remaining failures
				roll := func(int) bool {
					if burst > 0 {
						burst--
						return true
					}
					if faults.IntN(20) == 0 {
						burst = faults.IntN(3) // one to three in a row
						return true
					}
					return false
				}
				lostReply := false
				down := errors.New("down")
				s.fail = func(call int) error {
					failed := roll(call)
					lostReply = failed && faults.IntN(2) == 0
					if failed && !lostReply {
						return down
					}
					return nil
				}
				s.lost = func(int) bool { return lostReply }
				w := watchdog.New(lease, most, s.renew)
				defer w.Close()

				days := 30
				if testing.Short() {
					days = 5
				}
				sub, l := s.watch(w, lease, true)
				end := time.Now().AddDate(0, 0, days)
				checks := 0
				for time.Now().Before(end) {
					time.Sleep(time.Duration(checker.Int64N(int64(2 * time.Minute))))
					synctest.Wait()
					checks++
					if l.Check() == nil && !s.held(sub) {
						t.Fatalf("missed loss at %v (seed %d)", time.Now(), seed)
					}
					if _, cause := sub.lost(); cause != nil {
						t.Fatalf("false loss at %v: %v (seed %d)", time.Now(), cause, seed)
					}
				}
				// The last outage is one that no lease survives.
				s.mu.Lock()
				s.fail = func(int) error { return down }
				s.mu.Unlock()
				until := l.Until()
				for time.Now().Before(until.Add(lease)) {
					time.Sleep(50 * time.Millisecond)
					if l.Check() == nil && !s.held(sub) {
						t.Fatalf("missed loss in the outage (seed %d)", seed)
					}
				}
				if at, cause := sub.lost(); !errors.Is(cause, down) || at.After(until.Add(lease/3)) {
					t.Errorf("the outage ended it by %v at %v, trusted until %v", cause, at, until)
				}
				t.Logf("%d checks, %d renewals, seed %d", checks, s.renewals(), seed)
			})
		})
	}
}

// Due is called once at the time of CallAt, even while the lease is renewed. The renewals continue as
// before.
func TestCallAt(t *testing.T) {
	for _, alive := range []bool{true, false} {
		inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
			start := time.Now()
			sub, l := s.watch(w, lease, alive)
			for _, after := range []time.Duration{25 * time.Second, 7 * time.Second, 28 * time.Second} { // the earliest counts
				l.CallAt(start.Add(after))
			}
			time.Sleep(29 * time.Second)
			if len(sub.calls()) != 1 || sub.calls()[0].Sub(start) != 7*time.Second {
				t.Errorf("renewed %v: called at %v, want once after 7s", alive, sub.calls())
			}
			if alive && s.renewals() != 2 {
				t.Errorf("%d renewals in 29s, want 2", s.renewals())
			}
			l.CallAt(time.Now()) // that is now
			synctest.Wait()
			if len(sub.calls()) != 2 {
				t.Errorf("renewed %v: called %d times, want twice", alive, len(sub.calls()))
			}
			other, next := &subject{}, time.Now().Add(100*time.Millisecond)
			l.CallAt(next)
			if handed := l.Hand(other, 0); handed != alive {
				t.Errorf("renewed %v: handed %v", alive, handed)
			} else if !handed {
				other = sub
			}
			time.Sleep(200 * time.Millisecond)
			if n := len(other.calls()); n == 0 || !other.calls()[n-1].Equal(next) {
				t.Errorf("renewed %v: called at %v, want %v", alive, other.calls(), next)
			}
			l.CallAt(time.Now().Add(time.Second))
			l.Stop(t.Context())
			n := len(other.calls())
			time.Sleep(2 * time.Second)
			if len(other.calls()) != n {
				t.Error("called after Stop")
			}
		})
	}
}

// An event that passed is handled at the next turn, and the end of the lease before all others.
func TestCallAt_afterTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		sub, l := s.watch(w, time.Second, false)
		until := l.Until()
		l.CallAt(time.Now().Add(2 * time.Second))
		time.Sleep(3 * time.Second)
		if at, cause := sub.lost(); !errors.Is(cause, watchdog.ErrExpired) || !at.Equal(until) || len(sub.calls()) != 0 {
			t.Errorf("lost by %v at %v, and called %d times", cause, at, len(sub.calls()))
		}
	})
}

// A reply for a lease that was stopped or lost calls no subject: the subject was notified, or called
// Stop.
func TestAnswered_afterTheEnd(t *testing.T) {
	for _, reply := range []error{nil, watchdog.ErrGone} {
		inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
			sent := time.Now()
			stopped, l := s.watch(w, lease, true)
			l.Stop(t.Context())
			l.Answered(sent, reply)
			if stopped.losses != 0 || stopped.renewed != 0 || l.Check() != watchdog.ErrStopped {
				t.Errorf("%v, when stopped: %d losses, %d renewals, and then %v", reply, stopped.losses, stopped.renewed, l.Check())
			}
			lost, l := s.watch(w, lease, true)
			l.Lose(errors.New("taken"))
			until := l.Until()
			l.Answered(sent, reply)
			if lost.losses != 1 || lost.renewed != 0 || !l.Until().Equal(until) || w.Len() != 0 {
				t.Errorf("%v, when lost: %d losses, %d renewals, until %v after %v, %d leases", reply, lost.losses, lost.renewed, l.Until(), until, w.Len())
			}
		})
	}
}

// A failed renewal is no longer the cause of an end once a later reply has confirmed the lease.
func TestAnswered_afterAFailure(t *testing.T) {
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

// Turning the renewals of an ended lease on or off does not revive it.
func TestKeepAlive_onAnEndedLease(t *testing.T) {
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

// The first renewal is due an interval after renewals are turned on. Turning them on again does not
// postpone it.
func TestKeepAlive_firstRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watchdog.Watchdog, s *server) {
		_, l := s.watch(w, 10*lease, false)
		time.Sleep(lease)
		l.KeepAlive(true)
		time.Sleep(lease/3 - time.Millisecond)
		synctest.Wait()
		if n := s.renewals(); n != 0 {
			t.Errorf("%d renewals before the interval has passed", n)
		}
		l.KeepAlive(true)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n := s.renewals(); n != 1 {
			t.Errorf("%d renewals when the interval has passed, want 1", n)
		}
	})
}

// A group can require more frequent renewals than each third of a long lease, but not fewer. Leases
// of other groups are not renewed more often.
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

// CallAt on an ended lease calls nothing, and does not revive the lease.
func TestCallAt_onAnEndedLease(t *testing.T) {
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

// A renewal failed, and the next one is confirmed. When the lease ends later, the failure is not the
// cause.
func TestWatchdog_renewalAfterAFailure(t *testing.T) {
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
