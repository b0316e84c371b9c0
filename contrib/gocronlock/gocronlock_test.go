package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// scheduler runs job every minute, until the end of the test.
func scheduler(t *testing.T, job func(), opts ...gocron.SchedulerOption) gocron.Scheduler {
	s, err := gocron.NewScheduler(opts...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(job), gocron.WithName("invoices")); err != nil {
		t.Fatal(err)
	}
	s.Start()
	return s
}

// One of three processes runs the job of each minute, although the job is short and their clocks differ.
func TestLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		var runs atomic.Int32
		var all []gocron.Scheduler
		for range 3 {
			c := server.Client(t)
			locker := NewLocker(func(job string) lock.Locker {
				return c.NewLock("cron:"+job, lock.WithMinHold(50*time.Second))
			})
			all = append(all, scheduler(t, func() { runs.Add(1) }, gocron.WithDistributedLocker(locker)))
			time.Sleep(5 * time.Second) // the clocks differ by this much
		}
		time.Sleep(10*time.Minute - 10*time.Second)
		for _, s := range all {
			if err := s.Shutdown(); err != nil {
				t.Error(err)
			}
		}
		if n := runs.Load(); n != 10 {
			t.Errorf("%d runs in ten minutes", n)
		}
		time.Sleep(time.Minute) // until the last lock is free
	})
}

// A job that outlives its lease and the shutdown keeps its lock, and releases it at the end.
func TestLocker_longJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		c := server.Client(t)
		ctx, cancel := context.WithCancel(t.Context())
		l, err := NewLocker(func(job string) lock.Locker { return c.NewLock(job) }).Lock(ctx, "invoices")
		if err != nil {
			t.Fatal(err)
		}
		cancel() // like gocron at a shutdown
		time.Sleep(10 * time.Minute)
		other := server.Client(t).NewLock("invoices")
		if _, err := other.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("while the job runs: %v", err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("with a context that is over: %v", err)
		}
		h, err := other.TryLock(t.Context())
		if err != nil {
			t.Fatalf("afterwards: %v", err)
		}
		_ = h.Unlock(t.Context())
	})
}

// There is one leader, another one after it closes, and none that has lost the lock.
func TestElector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		var electors []*Elector
		for range 3 {
			c := server.Client(t, client.WithWatchdogTimeout(time.Second))
			electors = append(electors, NewElector(c.NewLock("leader")))
		}
		leads := func() (who string) {
			time.Sleep(3 * time.Second)
			for i, e := range electors {
				if err := e.IsLeader(t.Context()); err == nil {
					who += fmt.Sprint(i)
				} else if !errors.Is(err, ErrNotLeader) {
					t.Error(err)
				}
			}
			return who
		}
		first := leads()
		if len(first) != 1 {
			t.Fatalf("the leaders are %q", first)
		}
		electors[first[0]-'0'].Close()
		second := leads()
		if len(second) != 1 || second == first {
			t.Errorf("after %s closed, the leaders are %q", first, second)
		}
		r := server.Redis()
		if err := r.Do(t.Context(), r.B().Del().Key("leader").Build()).Error(); err != nil { // as a failover would
			t.Fatal(err)
		}
		if who := leads(); len(who) != 1 {
			t.Errorf("after the loss, the leaders are %q", who)
		}
		for _, e := range electors {
			e.Close()
			e.Close() // a second call has no effect
		}
		if who := leads(); who != "" {
			t.Errorf("after all closed, the leaders are %q", who)
		}
	})
}

// Close also releases a lock of lock.UntilUnlock, whose hold outlives the context of the campaign.
func TestElector_untilUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		e := NewElector(lock.UntilUnlock(server.Client(t).NewLock("leader")))
		synctest.Wait()
		if err := e.IsLeader(t.Context()); err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() {
			e.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatal("Close does not return")
		}
		h, err := server.Client(t).NewLock("leader").TryLock(t.Context())
		if err != nil {
			t.Fatalf("another process: %v", err)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// An Elector that cannot lead reports the reason, until it can.
func TestElector_saysWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		r := server.Redis()
		if err := r.Do(t.Context(), r.B().Set().Key("leader").Value("something else").Build()).Error(); err != nil {
			t.Fatal(err)
		}
		e := NewElector(server.Client(t).NewLock("leader"))
		defer e.Close()
		time.Sleep(500 * time.Millisecond)
		if err := e.IsLeader(t.Context()); !errors.Is(err, ErrNotLeader) || !errors.Is(err, lock.ErrWrongType) {
			t.Errorf("%v", err)
		}
		if err := r.Do(t.Context(), r.B().Del().Key("leader").Build()).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if err := e.IsLeader(t.Context()); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// Only the leader runs jobs.
func TestElector_scheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		var runs atomic.Int32
		for range 2 {
			e := NewElector(server.Client(t).NewLock("leader"))
			defer e.Close()
			s := scheduler(t, func() { runs.Add(1) }, gocron.WithDistributedElector(e))
			defer s.Shutdown()
		}
		time.Sleep(10*time.Minute + time.Second)
		if n := runs.Load(); n != 10 {
			t.Errorf("%d runs in ten minutes", n)
		}
	})
}

// frozen is the hold of a process that was paused for an hour. Its context is not canceled yet.
type frozen struct{ lock.Hold }

func (frozen) Err() error { return lock.ErrLost }

func TestElector_looksAtTheClocks(t *testing.T) {
	e := &Elector{hold: frozen{}}
	if err := e.IsLeader(t.Context()); !errors.Is(err, ErrNotLeader) {
		t.Errorf("%v", err)
	}
}

// Two runs of a job exclude each other even if their context is the context of a hold (gocron.WithContext).
func TestLocker_contextOfAHold(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	leader, err := c.NewLock("leader").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Unlock(context.Background())
	locker := NewLocker(func(job string) lock.Locker { return c.NewLock(job) })
	first, err := locker.Lock(leader.Context(), "invoices")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Lock(leader.Context(), "invoices"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("the second run: %v", err)
	}
	if err := first.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
