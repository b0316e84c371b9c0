package cronlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/robfig/cron/v3"
)

// One of three processes runs the job of each minute, although the job is short and their clocks
// differ.
func TestSkipIfLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		var runs atomic.Int32
		job := cron.FuncJob(func() { runs.Add(1) })
		for range 3 {
			l := server.Client(t).NewLock("cron:invoices", lock.WithMinHold(50*time.Second))
			s := cron.New()
			s.Schedule(cron.Every(time.Minute), cron.NewChain(SkipIfLocked(l, func(err error) { t.Error(err) })).Then(job))
			s.Start()
			defer func() { <-s.Stop().Done() }()
			time.Sleep(5 * time.Second) // the clocks differ by this much
		}
		time.Sleep(10*time.Minute - 10*time.Second)
		if n := runs.Load(); n != 10 {
			t.Errorf("%d runs in ten minutes", n)
		}
	})
}

// A job that outlives its interval and its lease runs alone, and is notified of a loss.
func TestFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		var inside, runs atomic.Int32
		reported := make(chan error, 10)
		for range 2 {
			l := server.Client(t).NewLock("cron:long")
			job := Func(l, func(err error) { reported <- err }, func(ctx context.Context) error {
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d are inside", n)
				}
				defer inside.Add(-1)
				runs.Add(1)
				<-ctx.Done()
				return context.Cause(ctx)
			})
			s := cron.New()
			s.Schedule(cron.Every(time.Minute), job)
			s.Start()
			defer func() { <-s.Stop().Done() }()
		}
		time.Sleep(5*time.Minute + time.Second)
		if n := runs.Load(); n != 1 {
			t.Errorf("%d runs of a job that does not end", n)
		}
		for range 2 {
			r := server.Redis()
			if err := r.Do(t.Context(), r.B().Del().Key("cron:long").Build()).Error(); err != nil {
				t.Fatal(err)
			}
			if err := <-reported; !errors.Is(err, lock.ErrLost) {
				t.Errorf("%v", err)
			}
			time.Sleep(time.Minute) // the next run
		}
		r := server.Redis()
		_ = r.Do(t.Context(), r.B().Del().Key("cron:long").Build()).Error() // so that the last run ends
		<-reported
	})
}

// A busy lock is not reported, and an unavailable Redis is.
func TestSkipIfLocked_silence(t *testing.T) {
	c, err := client.Open(t.Context(), "redis://127.0.0.1:1", client.WithLazyConnect(), client.WithWatchdogTimeout(time.Second)) // no server listens there
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Close(ctx)
	}()
	var reported error
	SkipIfLocked(c.NewLock("cron:invoices"), func(err error) { reported = err })(cron.FuncJob(func() { t.Error("it ran") })).Run()
	if !errors.Is(reported, lock.ErrUnavailable) {
		t.Errorf("%v", reported)
	}
}

// A loss is reported even if the job panics, as a job may do after a loss.
func TestFunc_panicsAfterLoss(t *testing.T) {
	l := locktest.NewServer(t).Client(t).NewLock("cron:invoices")
	var reported []error
	defer func() {
		if recover() == nil || len(reported) != 1 || !errors.Is(reported[0], lock.ErrLost) {
			t.Errorf("reported %v", reported)
		}
	}()
	Func(l, func(err error) { reported = append(reported, err) }, func(ctx context.Context) error {
		if _, err := l.ForceUnlock(t.Context()); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		panic("out of paper")
	}).Run()
}

// A panic of a job reaches cron's own recovery, and the lock is released.
func TestSkipIfLocked_panics(t *testing.T) {
	server := locktest.NewServer(t)
	l := server.Client(t).NewLock("cron:invoices")
	func() {
		defer func() { _ = recover() }()
		SkipIfLocked(l, nil)(cron.FuncJob(func() { panic("out of paper") })).Run()
		t.Error("the panic is gone")
	}()
	h, err := l.TryLock(t.Context())
	if err != nil {
		t.Fatalf("the lock is left: %v", err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
