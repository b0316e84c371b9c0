package watchdog_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/watchdog"
)

const interval = lease / 3

// renewer is a renew function that takes some time, and counts the batches in flight.
type renewer struct {
	t     *testing.T
	s     *server
	takes func(batch []watchdog.Subject) time.Duration

	mu     sync.Mutex
	under  map[watchdog.Group]int // batches in flight
	most   map[watchdog.Group]int // the maximum number of batches in flight at the same time
	sizes  []int
	sentAt []time.Time                      // of each batch
	passes map[watchdog.Subject][]time.Time // when each renewal was sent
}

func newRenewer(t *testing.T, takes func([]watchdog.Subject) time.Duration) *renewer {
	return &renewer{
		t: t, s: newServer(), takes: takes,
		under: map[watchdog.Group]int{}, most: map[watchdog.Group]int{}, passes: map[watchdog.Subject][]time.Time{},
	}
}

var errNoReply = errors.New("no reply")

func (r *renewer) renew(ctx context.Context, batch []watchdog.Subject) []error {
	g := batch[0].Group()
	r.mu.Lock()
	r.under[g]++
	r.most[g] = max(r.most[g], r.under[g])
	r.sizes = append(r.sizes, len(batch))
	r.sentAt = append(r.sentAt, time.Now())
	for _, b := range batch {
		r.passes[b] = append(r.passes[b], time.Now())
		if b.Group() != g {
			r.t.Errorf("a batch of group %v has a lease of group %v", g, b.Group())
		}
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.under[g]--
	}()
	d := r.takes(batch)
	select {
	case <-ctx.Done():
		d = lease
	case <-time.After(min(d, lease/4)): // a command may remain without a reply that long
	}
	if d > lease/4 {
		errs := make([]error, len(batch))
		for i := range errs {
			errs[i] = errNoReply
		}
		return errs
	}
	return r.s.renew(ctx, batch)
}

// burst watches n leases of a group, all acquired now.
func (r *renewer) burst(w *watchdog.Watchdog, g watchdog.Group, n int) (subs []*subject, leases []*watchdog.Lease) {
	for range n {
		sub := &subject{group: g}
		r.s.grant(sub, lease)
		subs, leases = append(subs, sub), append(leases, w.Watch(sub, time.Now(), lease, true))
	}
	return subs, leases
}

func (r *renewer) lost(subs []*subject) {
	r.t.Helper()
	for i, sub := range subs {
		if _, cause := sub.lost(); cause != nil {
			r.t.Fatalf("lease %d: %v", i, cause)
		}
	}
}

func quick([]watchdog.Subject) time.Duration { return time.Millisecond }

// However many leases are due, a batch is small, and the next one follows its reply.
func TestLane_oneSmallBatchAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRenewer(t, quick)
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		subs, _ := r.burst(w, watchdog.Group{}, 5000)
		before := runtime.NumGoroutine()
		time.Sleep(interval + 20*time.Millisecond) // in the middle of the first pass
		if extra := runtime.NumGoroutine() - before; extra > 1 {
			t.Errorf("%d goroutines more than between the passes, want one", extra)
		}
		time.Sleep(3 * lease)
		synctest.Wait()
		r.lost(subs)
		for _, n := range r.sizes {
			if n > most {
				t.Fatalf("a batch of %d, want at most %d", n, most)
			}
		}
		if n := r.most[watchdog.Group{}]; n != 1 {
			t.Errorf("%d batches at the same time, want 1", n)
		}
	})
}

// Leases that were acquired together are due together only at first: after a few passes, the renewals
// are spread over the interval. That adds almost no commands.
func TestLane_spreadsABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, parts = 10_000, 16
		r := newRenewer(t, quick)
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		subs, _ := r.burst(w, watchdog.Group{}, many)
		start := time.Now()
		time.Sleep(20 * interval)
		synctest.Wait()
		r.lost(subs)
		var per [20 * parts]int
		for i, at := range r.sentAt {
			per[min(int(at.Sub(start)*parts/interval), len(per)-1)] += r.sizes[i]
		}
		worst := 0
		for _, n := range per[6*parts:] {
			worst = max(worst, n)
		}
		if worst > 2*many/parts {
			t.Errorf("%d renewals in a sixteenth of an interval, want about %d", worst, many/parts)
		}
		sent := 0
		for _, n := range r.sizes {
			sent += n
		}
		if most := 21 * many; sent > most {
			t.Errorf("%d renewals in 20 intervals, want at most %d", sent, most)
		}
		if n := len(r.sizes); n > 22*many/most {
			t.Errorf("%d batches, want not many more than %d", n, 20*many/most)
		}
		for _, times := range r.passes {
			for i, at := range times[1:] {
				if gap := at.Sub(times[i]); gap < interval*3/4-interval/16 || gap > interval+interval/16 {
					t.Fatalf("%v between two renewals of one lease, want %v or up to a quarter less", gap, interval)
				}
			}
		}
	})
}

// A group without replies loses its leases, each at its own end, after a few attempts. Another group
// is unaffected.
func TestLane_unavailableGroupDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 3000
		well, unavailable := watchdog.Group{At: 1}, watchdog.Group{At: 2}
		r := newRenewer(t, func(batch []watchdog.Subject) time.Duration {
			if batch[0].Group() == unavailable {
				return lease
			}
			return time.Millisecond
		})
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		wells, _ := r.burst(w, well, many)
		unavailables, leases := r.burst(w, unavailable, many)
		var until []time.Time
		for _, l := range leases {
			until = append(until, l.Until())
		}
		time.Sleep(5 * lease)
		synctest.Wait()
		r.lost(wells)
		for _, sub := range wells {
			for i, at := range r.passes[sub][1:] {
				if gap := at.Sub(r.passes[sub][i]); gap > interval+interval/16 {
					t.Fatalf("%v between two renewals of one lease, want %v", gap, interval)
				}
			}
		}
		for i, sub := range unavailables {
			at, cause := sub.lost()
			if !errors.Is(cause, watchdog.ErrExpired) || !at.Equal(until[i]) {
				t.Fatalf("lease %d of the unavailable group: lost by %v at %v, want %v", i, cause, at, until[i])
			}
			if len(r.passes[sub]) == 0 {
				t.Fatalf("lease %d of the unavailable group was never tried", i)
			}
		}
		if n := r.most[unavailable]; n > 4 {
			t.Errorf("%d batches of the unavailable group at the same time, want at most 4", n)
		}
		if w.Len() != many {
			t.Errorf("%d leases are left, want %d", w.Len(), many)
		}
	})
}

// The server is far away, so sequential small batches would take twice the available time. Late
// leases are therefore renewed together.
func TestLane_renewsLateLeasesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRenewer(t, func([]watchdog.Subject) time.Duration { return 200 * time.Millisecond })
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		subs, _ := r.burst(w, watchdog.Group{}, 15_000)
		time.Sleep(10 * lease)
		synctest.Wait()
		r.lost(subs)
		if n := r.most[watchdog.Group{}]; n != 1 {
			t.Errorf("%d batches at the same time, want 1", n)
		}
	})
}

// A slow batch delays the other batches of its group only for a while.
func TestLane_overtakesASlowBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang *subject
		r := newRenewer(t, func(batch []watchdog.Subject) time.Duration {
			if batch[0] == watchdog.Subject(hang) {
				return lease
			}
			return time.Millisecond
		})
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		hangs, _ := r.burst(w, watchdog.Group{}, 1)
		hang = hangs[0]
		time.Sleep(3 * time.Second)
		subs, _ := r.burst(w, watchdog.Group{}, 10)
		time.Sleep(interval)
		synctest.Wait()
		for _, sub := range subs {
			if n := len(r.passes[sub]); n != 1 {
				t.Fatalf("sent %d times, want 1", n)
			}
		}
	})
}

// More leases expire while the machine sleeps than one turn moves. None of them is sent.
func TestLane_expiredLeaseIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		skew := watchdog.NewSkew(t)
		r := newRenewer(t, quick)
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		r.burst(w, watchdog.Group{}, 2000)
		time.Sleep(interval / 2)
		skew.Set(lease)
		time.Sleep(lease)
		synctest.Wait()
		if len(r.sizes) > 0 {
			t.Errorf("batches of %v were sent", r.sizes)
		}
		if n := w.Len(); n != 0 {
			t.Errorf("%d leases have not expired", n)
		}
	})
}

// A slice begins while the slow batch of the previous slice is in flight. It does not use that batch.
func TestLane_doesNotUseABatchInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches atomic.Int32
		r := newRenewer(t, func([]watchdog.Subject) time.Duration {
			if batches.Add(1) == 2 {
				return interval / 2
			}
			return time.Millisecond
		})
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		for range 3 {
			r.burst(w, watchdog.Group{}, 1)
			time.Sleep(interval * 3 / 10) // longer than the lane waits for one batch
		}
		time.Sleep(interval) // the third batch is sent, and the second has no reply
		synctest.Wait()
		if want := []int{1, 1, 1}; len(r.sizes) < 3 || !slices.Equal(r.sizes[:3], want) {
			t.Errorf("batches of %v, want %v first", r.sizes, want)
		}
	})
}

// The server rejects the renewals immediately. They are retried after a 24th of the lease, but not more often than every
// 5 ms, and at least every second.
func TestLane_pausesAfterAFailure(t *testing.T) {
	tests := []struct{ lease, pause time.Duration }{
		{20 * lease, time.Second},
		{2400 * time.Millisecond, 100 * time.Millisecond},
		{60 * time.Millisecond, 5 * time.Millisecond},
	}
	for _, test := range tests {
		for _, many := range []int{1, 3 * most} {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				w := watchdog.New(test.lease, most, func(_ context.Context, batch []watchdog.Subject) []error {
					sent.Add(int64(len(batch)))
					time.Sleep(test.pause / 1000)
					return slices.Repeat([]error{errNoReply}, len(batch))
				})
				defer w.Close()
				for range many {
					w.Watch(&subject{}, time.Now(), test.lease, true)
				}
				time.Sleep(test.lease/3 + test.pause/2)
				before := sent.Load()
				time.Sleep(5 * test.pause)
				if n := (sent.Load() - before) / int64(many); n < 4 || n > 6 {
					t.Errorf("%d renewals of each of %d leases of %v in %v, want one every %v", n, many, test.lease, 5*test.pause, test.pause)
				}
			})
		}
	}
}

// A lease whose group changes, for example because a shard takes over, is renewed with the new group
// from the next renewal on.
func TestLane_leaseChangesItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 1000
		r := newRenewer(t, quick) // reports a batch with two groups
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		subs, _ := r.burst(w, watchdog.Group{At: 1}, many)
		time.Sleep(interval / 2)
		synctest.Wait()
		for _, sub := range subs[:many/2] {
			sub.move(watchdog.Group{At: 2})
		}
		time.Sleep(10 * lease)
		synctest.Wait()
		r.lost(subs)
		if w.Len() != many {
			t.Errorf("%d leases, want %d", w.Len(), many)
		}
		if r.most[watchdog.Group{At: 2}] == 0 {
			t.Error("the new group was never renewed")
		}
	})
}

// In the middle of a pass, Stop of a lease in flight waits only for that batch. Stop of another lease
// does not wait, and no later batch includes that lease.
func TestLane_stopDuringAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 100 * time.Millisecond
		r := newRenewer(t, func([]watchdog.Subject) time.Duration { return takes })
		w := watchdog.New(lease, most, r.renew)
		defer w.Close()
		subs, leases := r.burst(w, watchdog.Group{}, most) // no more than one batch, so not renewed early
		time.Sleep(interval - 10*time.Millisecond)
		for range 2 { // they are due in the middle of it
			more, more2 := r.late(w, most)
			subs, leases = append(subs, more...), append(leases, more2...)
		}
		time.Sleep(60 * time.Millisecond) // the first batch is in flight, the others wait
		start := time.Now()
		leases[len(leases)-1].Stop(t.Context())
		if d := time.Since(start); d != 0 {
			t.Errorf("Stop of a waiting lease took %v", d)
		}
		unwanted := len(leases) - 2
		leases[unwanted].KeepAlive(false) // it waits, too
		leases[0].Stop(t.Context())
		if d := time.Since(start); d != takes/2 {
			t.Errorf("Stop of a lease in flight took %v, want the rest of its batch, %v", d, takes/2)
		}
		time.Sleep(lease)
		synctest.Wait()
		if n := len(r.passes[subs[len(subs)-1]]); n != 0 {
			t.Errorf("a lease that was stopped while it waited was sent %d times", n)
		}
		if n := len(r.passes[subs[0]]); n != 1 {
			t.Errorf("a stopped lease was sent %d times, want once", n)
		}
		if n := len(r.passes[subs[unwanted]]); n != 0 {
			t.Errorf("a lease that is not to be renewed was sent %d times", n)
		}
		r.lost(slices.Delete(subs, unwanted, unwanted+1))
	})
}

// late watches n leases that are due in 20 ms.
func (r *renewer) late(w *watchdog.Watchdog, n int) (subs []*subject, leases []*watchdog.Lease) {
	for range n {
		sub := &subject{}
		r.s.grant(sub, lease)
		subs, leases = append(subs, sub), append(leases, w.Watch(sub, time.Now().Add(20*time.Millisecond-interval), lease, true))
	}
	return subs, leases
}

// After a Close in the middle of a pass, nothing is sent, and no subject is called.
func TestLane_closeDuringAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRenewer(t, func([]watchdog.Subject) time.Duration { return 100 * time.Millisecond })
		w := watchdog.New(lease, most, r.renew)
		subs, leases := r.burst(w, watchdog.Group{}, 5000)
		time.Sleep(interval + 250*time.Millisecond)
		synctest.Wait()
		batches := len(r.sizes)
		start := time.Now()
		w.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("Close took %v, although the renewals respect their context", d)
		}
		if w.Len() != 0 {
			t.Errorf("%d leases are left", w.Len())
		}
		time.Sleep(2 * lease)
		synctest.Wait()
		r.lost(subs)
		if len(r.sizes) != batches || batches == 0 {
			t.Errorf("%d batches, %d before Close", len(r.sizes), batches)
		}
		for _, l := range leases {
			if l.Check() != watchdog.ErrStopped {
				t.Fatal(l.Check())
			}
		}
	})
}

// Leases of all lengths are acquired, extended and stopped in any order: only the subject of a lease
// that ended is notified, at its end.
func TestWatchdog_endsInAnyOrder(t *testing.T) {
	seed := rand.Uint64()
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := watchdog.New(lease, most, newServer().renew)
		defer w.Close()
		type one struct {
			sub   *subject
			lease *watchdog.Lease
			until time.Time // zero once it is stopped
		}
		var all []*one
		for range 5000 {
			switch o := random.IntN(4); {
			case o == 0 && len(all) > 0:
				x := all[random.IntN(len(all))]
				if x.lease.Stop(t.Context()) {
					x.until = time.Time{}
				}
			case o == 1 && len(all) > 0:
				x := all[random.IntN(len(all))]
				x.lease.Extend(time.Now(), time.Duration(random.Int64N(int64(lease))))
				if x.lease.Check() == nil {
					x.until = x.lease.Until()
				}
			default:
				sub := &subject{}
				l := w.Watch(sub, time.Now(), time.Second+time.Duration(random.Int64N(int64(lease))), false)
				all = append(all, &one{sub, l, l.Until()})
			}
			time.Sleep(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
			synctest.Wait()
		}
		time.Sleep(2 * lease)
		synctest.Wait()
		for i, x := range all {
			if at, cause := x.sub.lost(); x.until.IsZero() != (cause == nil) || !at.Equal(x.until) {
				t.Fatalf("lease %d: notified at %v of %v, want %v (seed %d)", i, at, cause, x.until, seed)
			}
		}
		if w.Len() != 0 {
			t.Errorf("%d leases are left", w.Len())
		}
	})
}

// A renewal allocates only the function that notifies its subject, plus a few objects per batch.
func TestLane_allocatesLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, passes = 10_000, 5
		w := watchdog.New(lease, most, func(context.Context, []watchdog.Subject) []error { return nil })
		defer w.Close()
		for range many {
			w.Watch(&subject{}, time.Now(), lease, true)
		}
		time.Sleep(6 * interval)
		synctest.Wait()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		time.Sleep(passes * interval)
		synctest.Wait()
		runtime.ReadMemStats(&after)
		if n := float64(after.Mallocs-before.Mallocs) / (many * passes); n > 1.5 {
			t.Errorf("%.2f allocations for each renewal, want one and a few for each batch", n)
		}
	})
}

// The lock of a lease is on another node by the time of its renewal. It is renewed only with the
// leases of that node.
func TestLane_oneGroupPerBatch(t *testing.T) {
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

// slow is a subject whose Renewed takes some time.
type slow struct{ subject }

func (s *slow) Renewed(until time.Time, left time.Duration) {
	time.Sleep(time.Second)
	s.subject.Renewed(until, left)
}

// A reply confirms one renewal and reports that another lease is gone. The loss is not delayed by the slow subject of the
// first lease.
func TestLane_lossesAreReportedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchdog.New(lease, most, func(context.Context, []watchdog.Subject) []error {
			return []error{nil, watchdog.ErrGone}
		})
		defer w.Close()
		start := time.Now()
		w.Watch(&slow{}, start, lease, true)
		gone := &subject{}
		w.Watch(gone, start, lease, true)
		time.Sleep(interval + 2*time.Second)
		synctest.Wait()
		if gone.losses != 1 || gone.lostAt.Sub(start) != interval {
			t.Errorf("%d losses, the latest after %v, want one after %v", gone.losses, gone.lostAt.Sub(start), interval)
		}
	})
}
