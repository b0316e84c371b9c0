package ratelimit_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// isNear fails the test if two durations differ by more than rounding.
func isNear(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if d := got - want; max(d, -d) > 10*time.Microsecond {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Redis serves the waiters of two processes first-come, first-served, with one command each.
func TestWait_inOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		limit := ratelimit.Limit{Rate: 10, Per: time.Second, Burst: 2}
		a, scriptsOfA := counted(t, m)
		b, scriptsOfB := counted(t, m)
		processes := []*ratelimit.Limiter{ratelimit.New(a, "api", closed, limit), ratelimit.New(b, "api", closed, limit)}
		for _, l := range processes {
			peek(t, l, "k")
		}
		before, start := scriptsOfA.Load()+scriptsOfB.Load(), time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var order []int
		for i := range 20 {
			wg.Go(func() {
				if err := processes[i%2].Wait(t.Context(), "k", 1); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				isNear(t, "its turn", time.Since(start), time.Duration(max(0, i-1))*100*time.Millisecond)
			})
			synctest.Wait()
		}
		// A Take does not overtake the waiters.
		if d := take(t, processes[0], "k", 1); d.OK {
			t.Errorf("%+v, before the waiters", d)
		}
		wg.Wait()
		for i := range order {
			if order[i] != i {
				t.Fatalf("served in the order %d", order)
			}
		}
		if n := scriptsOfA.Load() + scriptsOfB.Load() - before; n != 21 {
			t.Errorf("%d scripts for 21 callers", n)
		}
	})
}

// Wait and Reserve fail immediately if the turn would come too late, and take nothing.
func TestWait_tooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := ratelimit.New(redistest.NewMini(t).Client(t), "api", closed, ratelimit.Limit{Rate: 6, Per: time.Minute, Burst: 3})
		take(t, l, "k", 3)
		start := time.Now()
		var limited *ratelimit.LimitedError
		err := l.Wait(soon(t, 9*time.Second), "k", 1)
		if !errors.As(err, &limited) || !errors.Is(err, ratelimit.ErrLimited) {
			t.Fatal(err)
		}
		isNear(t, "retry after", limited.RetryAfter, 10*time.Second)
		if err := l.Wait(t.Context(), "k", 4); !errors.As(err, &limited) || limited.RetryAfter != ratelimit.Never {
			t.Errorf("more than the burst: %v", err)
		}
		slow := l.With(ratelimit.Limit{Rate: 1, Per: 2 * time.Hour, Burst: 1})
		take(t, slow, "slow", 1)
		if err := slow.Wait(t.Context(), "slow", 1); !errors.As(err, &limited) || limited.RetryAfter <= ratelimit.MaxWait {
			t.Errorf("two hours: %v", err)
		}
		if passed := time.Since(start); passed > time.Millisecond {
			t.Errorf("refused after %v", passed)
		}
		if err := l.Wait(soon(t, 11*time.Second), "k", 1); err != nil {
			t.Error(err)
		}
		isNear(t, "served after", time.Since(start), 10*time.Second)
	})
}

// An error reply means that nothing was executed. It arrives so late that rueidis may have sent the command twice. Wait fails,
// because another attempt could take the permits twice.
func TestWait_lateError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "api", closed, daily)
		peek(t, l, "k")
		wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{Refuse: "LOADING x", Execute: true, DelayReply: time.Second}))
		if err := l.Wait(t.Context(), "k", 3); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Wait: %v", err)
		}
		if d := peek(t, l, "k"); d.Remaining != 7 {
			t.Errorf("%+v, want 7 left", d)
		}
	})
}

// The connection breaks after the reply is overdue, and the server may have executed the command. Wait fails, because another
// attempt could take the permits twice.
func TestWait_breaksLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "api", ratelimit.FailClosed(), daily)
		peek(t, l, "k")
		wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true, DelayReply: 200 * time.Millisecond}))
		if err := l.Wait(t.Context(), "k", 3); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Wait: %v", err)
		}
		if d := peek(t, l, "k"); d.Remaining != 7 {
			t.Errorf("%+v, want 7 left", d)
		}
	})
}

// The host does not respond, so no connection is established and nothing was sent, however long that took. Wait retries.
func TestWait_slowDialError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		var failures atomic.Int64 // number of dials that still fail
		l := ratelimit.New(m.Client(t, func(o *rueidis.ClientOption) {
			o.PipelineMultiplex = -1 // one connection
			o.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
				if failures.Add(-1) < 0 {
					return wire.Dial()
				}
				time.Sleep(3 * time.Second)
				return nil, retry.Undialled{Err: &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}}
			}
		}), "api", ratelimit.FailClosed(), daily)
		peek(t, l, "k")
		wire.CutAll()
		if _, err := l.Peek(t.Context(), "k"); !errors.Is(err, lock.ErrUnavailable) { // rueidis detects that its connection is closed
			t.Fatalf("Peek: %v", err)
		}
		failures.Store(2)
		if err := l.Wait(t.Context(), "k", 3); err != nil {
			t.Fatalf("Wait: %v", err)
		}
		if n := failures.Load(); n >= 0 {
			t.Errorf("%d dials are still to fail", n)
		}
		if d := peek(t, l, "k"); d.Remaining != 7 {
			t.Errorf("%+v, want 7 left", d)
		}
	})
}

// The error of a Wait that is canceled while its first reply is overdue matches both causes.
func TestWait_cancelledWhileOverdue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailClosed())
		wire.Freeze(true)
		start := time.Now()
		if err := l.Wait(soon(t, time.Second), "k", 1); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
		isNear(t, "canceled", time.Since(start), time.Second)
	})
}

// The cause that cancels a Wait can be the error of another call whose reply is overdue. The Wait does not report the outcome of
// that call.
func TestWait_causeIsAnOverdueCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailClosed())
		wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true, DelayReply: time.Second}))
		_, overdue := l.Reserve(t.Context(), "k", 1)
		time.Sleep(2 * time.Second) // in the bubble: then that call has failed
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(overdue)
		err := l.Wait(ctx, "k", 1)
		var e *lock.Error
		if !errors.As(err, &e) || e.Err.Error() != fmt.Sprintf("%v: %v", context.Canceled, overdue) || errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Wait: %v", err)
		}
	})
}

// If a waiter leaves, the next waiter can take its permits immediately.
func TestWait_cancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := ratelimit.New(redistest.NewMini(t).Client(t), "api", closed, ratelimit.Limit{Rate: 1, Per: time.Minute})
		take(t, l, "k", 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		for range 5 {
			go func() { done <- l.Wait(ctx, "k", 1) }()
			synctest.Wait()
		}
		cancel()
		for range 5 {
			var e *lock.Error
			if err := <-done; !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Op != "wait" {
				t.Error(err)
			}
		}
		synctest.Wait()
		r, err := l.Reserve(t.Context(), "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		if r.Delay() > 5*time.Minute {
			t.Errorf("a delay of %v: all five are still in line", r.Delay())
		}
	})
}

// After a Wait is canceled, the next call of this process can take its permits, under any limits. The test repeats this,
// because without ordering one call in two would come too early.
func TestWait_cancelledBeforeTheNextCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		limit := ratelimit.Limit{Rate: 3, Per: time.Second}
		l := ratelimit.New(redistest.NewMini(t).Client(t), "api", closed, limit)
		other := l.With(limit, ratelimit.PerHour(1000))
		for i := range 60 {
			key := fmt.Sprint(i)
			take(t, l, key, 3)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- l.Wait(ctx, key, 3) }()
			synctest.Wait()
			if d := take(t, l, key, 1); d.OK { // caches a rejection
				t.Fatalf("%+v, before the waiter", d)
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			r, err := []*ratelimit.Limiter{l, other}[i%2].Reserve(t.Context(), key, 1)
			if err != nil {
				t.Fatal(err)
			}
			isNear(t, "after a canceled Wait, the next call of key "+key, r.Delay(), time.Second/3)
		}
	})
}

// If a call is canceled while its reply is in flight, the next call can take its permits, too.
func TestTake_cancelledBeforeTheNextCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		limit := ratelimit.Limit{Rate: 3, Per: time.Hour}
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "api", closed, limit)
		other := l.With(limit, ratelimit.PerHour(1000))
		peek(t, l, "k")
		for i := range 60 {
			key := fmt.Sprint(i)
			asked, release := hold(wire, "reply")
			ctx, cancel := context.WithCancel(t.Context())
			done, next := make(chan error), make(chan ratelimit.Decision)
			go func() {
				if i%4 < 2 {
					done <- second(l.Take(ctx, key, 3))
				} else {
					done <- l.Wait(ctx, key, 3)
				}
			}()
			<-asked
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			go func() {
				d, err := []*ratelimit.Limiter{l, other}[i%2].Take(t.Context(), key, 3)
				if err != nil {
					t.Error(err)
				}
				next <- d
			}()
			synctest.Wait() // it is queued
			close(release)
			if d := <-next; !d.OK {
				t.Errorf("after a canceled call, the next call of key %s: %+v", key, d)
			}
			wire.OnRequest(nil)
		}
	})
}

// No call overtakes an earlier refund, even with other limits, although such calls go in a separate command.
func TestTake_behindARefund(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "api", closed, ratelimit.PerHour(3))
		other := l.With(ratelimit.PerHour(3), ratelimit.PerHour(1000))
		d := take(t, l, "k", 3)
		asked, release := hold(wire, "reply")
		var calls sync.WaitGroup
		for i, call := range []func() (ratelimit.Decision, error){
			func() (ratelimit.Decision, error) { return l.Take(t.Context(), "k", 1) },     // in flight
			func() (ratelimit.Decision, error) { return other.Take(t.Context(), "k", 1) }, // sent next
			func() (ratelimit.Decision, error) { return d, l.Refund(t.Context(), "k", d) },
			func() (ratelimit.Decision, error) { return other.Take(t.Context(), "k", 2) },
			func() (ratelimit.Decision, error) { return l.Take(t.Context(), "k", 1) },
		} {
			calls.Go(func() {
				if d, err := call(); err != nil || d.OK != (i >= 2) {
					t.Errorf("call %d: %+v, %v", i, d, err)
				}
			})
			if synctest.Wait(); i == 0 {
				<-asked
			}
		}
		close(release)
		calls.Wait()
	})
}

// A deferred refund is sent even if its context is already canceled.
func TestRefund_canceledBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := redistest.NewMini(t).Client(t)
		l, w := ratelimit.New(rdb, "api", closed, ratelimit.PerHour(4)), newWindow(t, rdb, "w", 4, time.Hour)
		d, own := take(t, l, "k", 1), takeOf(t, w, 4)
		r, err := l.Reserve(t.Context(), "k", 3)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for op, err := range map[string]error{"refund": l.Refund(ctx, "k", d), "cancel": r.Cancel(ctx), "refund of Redisson's": w.Refund(ctx, own)} {
			if err != nil {
				t.Errorf("%s: %v", op, err)
			}
		}
		if d, own := peek(t, l, "k"), takeOf(t, w, 0); d.Remaining != 4 || own.Remaining != 4 {
			t.Errorf("%+v, %+v", d, own)
		}
	})
}

// A refund is sent even if its caller leaves while the refund is queued behind a call in flight.
func TestRefund_cancelledInLine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "api", closed, ratelimit.PerHour(4))
		d := take(t, l, "k", 3)
		asked, release := hold(wire, "reply")
		var calls sync.WaitGroup
		calls.Go(func() { peek(t, l, "k") })
		<-asked
		ctx, cancel := context.WithCancel(t.Context())
		calls.Go(func() {
			if err := l.Refund(ctx, "k", d); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(release)
		calls.Wait()
		if d := take(t, l, "k", 4); !d.OK {
			t.Errorf("%+v", d)
		}
	})
}

// A rejection caused by a caller that had left by then is not cached either. Both calls go in one command.
func TestTake_refusedBesideACanceledCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "api", closed, ratelimit.PerHour(4))
		var calls sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		call := func(check func() error) {
			calls.Go(func() {
				if err := check(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		asked, release := hold(wire, "reply")
		call(func() error { return second(l.Peek(t.Context(), "k")) })
		<-asked
		call(func() error {
			if d, err := l.Take(ctx, "k", 3); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("%+v, %w", d, err)
			}
			return nil
		})
		call(func() error {
			if d, err := l.Take(t.Context(), "k", 2); err != nil || d.OK {
				return fmt.Errorf("%+v, %w", d, err)
			}
			return nil
		})
		both, answered := hold(wire, "reply")
		close(release)
		<-both
		cancel()
		synctest.Wait()
		close(answered)
		calls.Wait()
		if d := take(t, l, "k", 2); !d.OK || d.Remaining != 2 {
			t.Errorf("%+v", d)
		}
	})
}

// A rejection of a request sent before permits were returned is not cached, whatever returned them.
func TestTake_refusedBeforeUnitsComeBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "api", closed, ratelimit.Limit{Rate: 6, Per: time.Hour, Burst: 3})
		other := l.With(ratelimit.Limit{Rate: 6, Per: time.Hour, Burst: 3}, ratelimit.PerHour(1000))
		start := func(call func() error) (end chan error) {
			end = make(chan error, 1)
			go func() { end <- call() }()
			synctest.Wait()
			return end
		}
		for what, give := range map[string]func(key string, d ratelimit.Decision, cancel func()) error{
			"a canceled Wait":            func(_ string, _ ratelimit.Decision, cancel func()) error { cancel(); return nil },
			"a Refund":                   func(key string, d ratelimit.Decision, _ func()) error { return l.Refund(t.Context(), key, d) },
			"a Refund with other limits": func(key string, d ratelimit.Decision, _ func()) error { return other.Refund(t.Context(), key, d) },
			"a Reset":                    func(key string, _ ratelimit.Decision, _ func()) error { return l.Reset(t.Context(), key) },
			"a Reset with other limits":  func(key string, _ ratelimit.Decision, _ func()) error { return other.Reset(t.Context(), key) },
		} {
			d := take(t, l, what, 2)
			ctx, cancel := context.WithCancel(t.Context())
			var wait chan error
			if what == "a canceled Wait" {
				if err := l.Refund(t.Context(), what, d); err != nil {
					t.Fatal(err)
				}
				wait = start(func() error { take(t, l, what, 1); return l.Wait(ctx, what, 3) })
			}
			asked, release := hold(wire, "reply")
			refused := start(func() error {
				if d := take(t, l, what, 2); d.OK {
					return fmt.Errorf("%+v, before units came back", d)
				}
				return nil
			})
			<-asked
			given := start(func() error { return give(what, d, cancel) })
			close(release)
			if err := errors.Join(<-refused, <-given); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			wire.OnRequest(nil)
			synctest.Wait()
			if d := take(t, l, what, 2); !d.OK {
				t.Errorf("after %s: %+v", what, d)
			}
			cancel()
			if wait != nil {
				<-wait
			}
		}
	})
}

// Canceling the last reservation in the queue returns all its permits. A later reservation keeps its turn.
func TestReservation_Cancel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := ratelimit.New(redistest.NewMini(t).Client(t), "api", closed, ratelimit.Limit{Rate: 1, Per: time.Second})
		reserve := func() *ratelimit.Reservation {
			t.Helper()
			r, err := l.Reserve(t.Context(), "k", 1)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		cancel := func(r *ratelimit.Reservation) {
			t.Helper()
			if err := r.Cancel(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		a, b, c := reserve(), reserve(), reserve()
		isNear(t, "the first", a.Delay(), 0)
		isNear(t, "the second", b.Delay(), time.Second)
		isNear(t, "the third", c.Delay(), 2*time.Second)
		cancel(c)
		cancel(c) // the first call counts
		d := reserve()
		isNear(t, "in the place of the third", d.Delay(), 2*time.Second)
		cancel(b) // d was given the time after b
		e := reserve()
		isNear(t, "behind the others", e.Delay(), 3*time.Second)
		time.Sleep(10 * time.Second)
		isNear(t, "a turn that came", e.Delay(), 0)
		cancel(e) // its permits were used long ago, so none is returned
		if d := peek(t, l, "k"); d.Remaining != 1 || e.Err() != nil {
			t.Errorf("%+v", d)
		}

		// Without earlier reservations, a call does not wait.
		wide := l.With(ratelimit.Limit{Rate: 1, Per: time.Second, Burst: 5})
		take(t, wide, "wide", 5)
		f, err := wide.Reserve(t.Context(), "wide", 5)
		if err != nil {
			t.Fatal(err)
		}
		isNear(t, "five of five", f.Delay(), 5*time.Second)
		cancel(f)
		time.Sleep(time.Second)
		if d := take(t, wide, "wide", 1); !d.OK {
			t.Errorf("%+v, after everybody had left", d)
		}
	})
}

// Callers can leave the queue in any order. All their permits are returned once no caller is behind them. A caller that stays
// keeps its turn.
func TestReservation_Cancel_inAnyOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := redistest.NewMini(t).Client(t)
		slow, odd := ratelimit.Limit{Rate: 1, Per: time.Second, Burst: 3}, ratelimit.Limit{Rate: 100, Per: time.Hour, Burst: 50}
		for name, limits := range map[string][]ratelimit.Limit{"one": {slow}, "two": {odd, slow}} {
			for _, c := range []struct {
				leave []int         // in this order, of six that wait for 1 s to 6 s
				next  time.Duration // the delay of the next caller
			}{
				{[]int{0, 1, 2, 3, 4, 5}, time.Second},
				{[]int{5, 4, 3, 2, 1, 0}, time.Second},
				{[]int{3, 1, 5, 2, 0, 4}, time.Second},
				{[]int{0, 1, 2, 3, 4}, 7 * time.Second}, // the last stays
				{[]int{1, 3, 4, 5}, 4 * time.Second},    // the first and the third stay
				{[]int{4, 5, 3, 1, 2}, 2 * time.Second}, // the first stays
			} {
				l := ratelimit.New(rdb, "line", closed, limits...)
				key := fmt.Sprint(name, c.leave)
				take(t, l, key, 3)
				var line []*ratelimit.Reservation
				for range 6 {
					r, err := l.Reserve(t.Context(), key, 1)
					if err != nil {
						t.Fatal(err)
					}
					line = append(line, r)
				}
				for _, i := range c.leave {
					if err := line[i].Cancel(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				r, err := l.Reserve(t.Context(), key, 1)
				if err != nil {
					t.Fatal(err)
				}
				isNear(t, key, r.Delay(), c.next)
			}
		}
		// With different numbers of permits, after the first turn has passed.
		l := ratelimit.New(rdb, "line", closed, slow)
		take(t, l, "k", 3)
		a, err1 := l.Reserve(t.Context(), "k", 3)
		b, err2 := l.Reserve(t.Context(), "k", 1)
		c, err3 := l.Reserve(t.Context(), "k", 2)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		for i, r := range []*ratelimit.Reservation{a, b, c} {
			isNear(t, fmt.Sprint("reservation ", i), r.Delay(), []time.Duration{3 * time.Second, 4 * time.Second, 6 * time.Second}[i])
		}
		if err := a.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3500 * time.Millisecond) // the turn of a has passed
		if err := b.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := peek(t, l, "k"); d.Remaining != 3 {
			t.Errorf("%+v, want all three: nobody used any", d)
		}
	})
}

// Two callers leave, one ahead of and one behind a caller that stays. Neither lets another caller overtake it.
func TestReservation_Cancel_aroundOneThatStays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := ratelimit.New(redistest.NewMini(t).Client(t), "line", closed, ratelimit.Limit{Rate: 1, Per: time.Second, Burst: 3})
		d := take(t, l, "k", 3)
		reserve := func(n int64, delay time.Duration) (leave func()) {
			t.Helper()
			r, err := l.Reserve(t.Context(), "k", n)
			if err != nil {
				t.Fatal(err)
			}
			isNear(t, "the delay", r.Delay(), delay)
			return func() {
				t.Helper()
				if err := r.Cancel(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		before, stays := reserve(3, 3*time.Second), reserve(1, 4*time.Second)
		before()
		after := reserve(1, 5*time.Second)
		after()
		if err := l.Refund(t.Context(), "k", d); err != nil { // for a caller that took its permits before all of them
			t.Fatal(err)
		}
		after = reserve(1, 5*time.Second)
		after()
		stays()
		if d := peek(t, l, "k"); d.Remaining != 3 {
			t.Errorf("%+v, want all three: nobody used any", d)
		}
	})
}

// The script stores up to 100 callers that left, so it stays fast however many leave.
func TestReservation_Cancel_many(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		l := ratelimit.New(m.Client(t), "line", closed, ratelimit.Limit{Rate: 1, Per: time.Second, Burst: 1})
		take(t, l, "k", 1)
		var line []*ratelimit.Reservation
		for range 300 {
			r, err := l.Reserve(t.Context(), "k", 1)
			if err != nil {
				t.Fatal(err)
			}
			line = append(line, r)
		}
		for _, r := range line {
			if err := r.Cancel(t.Context()); err != nil {
				t.Fatal(err)
			}
			if text, _ := m.Get("line:k"); len(text) > 8000 {
				t.Fatalf("%d bytes", len(text))
			}
		}
		r, err := l.Reserve(t.Context(), "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		isNear(t, "behind those that it forgot", r.Delay(), 200*time.Second)
	})
}

// With aligned windows, a caller that is too late for one window waits for the next one.
func TestWait_aligned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := ratelimit.New(redistest.NewMini(t).Client(t), "api", closed, ratelimit.Limit{Rate: 3, Per: time.Hour, Aligned: true})
		time.Sleep(15 * time.Minute) // a bubble starts at midnight
		d := take(t, l, "k", 2)
		isNear(t, "the window ends", d.ResetAfter, 45*time.Minute)
		if d := take(t, l, "k", 2); d.OK || d.Remaining != 1 {
			t.Errorf("%+v", d)
		}
		r, err := l.Reserve(t.Context(), "k", 2)
		if err != nil {
			t.Fatal(err)
		}
		isNear(t, "the next window", r.Delay(), 45*time.Minute)
		if d := take(t, l, "k", 1); d.OK {
			t.Errorf("%+v, though a caller waits", d)
		}
		if err := l.Wait(t.Context(), "k", 1); err != nil {
			t.Fatal(err)
		}
		if now := time.Now(); now.Minute() != 0 || now.Hour() != 1 {
			t.Errorf("served at %v", now)
		}

		// When all callers that wait for the next window have left, this window has the same permits as before.
		time.Sleep(15 * time.Minute)
		for key, left := range map[string]int64{"used": 1, "refunded": 3} {
			d := take(t, l, key, 2)
			r, err := l.Reserve(t.Context(), key, 2)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			waits := make(chan error)
			go func() { waits <- l.Wait(ctx, key, 1) }()
			synctest.Wait()
			if key == "refunded" {
				err = l.Refund(t.Context(), key, d)
			}
			if err := errors.Join(err, r.Cancel(t.Context())); err != nil {
				t.Fatal(err)
			}
			if d := take(t, l, key, 1); d.OK {
				t.Errorf("%s: %+v, though a caller waits", key, d)
			}
			cancel()
			if err := <-waits; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if d := take(t, l, key, left); !d.OK || d.Remaining != 0 {
				t.Errorf("%s: %+v, want %d", key, d, left)
			}
		}

		// A reservation for a later window is charged to the other limit from that time on, not from now on.
		both := l.With(ratelimit.Limit{Rate: 3, Per: time.Hour, Aligned: true}, ratelimit.Limit{Rate: 1, Per: 10 * time.Minute, Burst: 2})
		take(t, both, "both", 2)
		if r, err = both.Reserve(t.Context(), "both", 2); err != nil {
			t.Fatal(err)
		}
		time.Sleep(r.Delay() + time.Minute)
		d = take(t, both, "both", 1)
		isNear(t, "refused for", d.RetryAfter, 9*time.Minute)
	})
}
