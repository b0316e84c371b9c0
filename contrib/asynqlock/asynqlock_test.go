package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/asynqlock"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// quiet is a logger that discards everything.
type quiet struct{}

func (quiet) Debug(...any) {}
func (quiet) Info(...any)  {}
func (quiet) Warn(...any)  {}
func (quiet) Error(...any) {}
func (quiet) Fatal(...any) {}

// start starts a server of asynq that uses its own leasehold client, like a separate process.
func start(t *testing.T, redis *redistest.Server, process asynq.HandlerFunc, refused func(failures int)) {
	c, err := client.New(redis.Client(t), client.WithKeyPrefix("leasehold:"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	server := asynq.NewServer(asynq.RedisClientOpt{Addr: redis.Addr()}, asynq.Config{
		Concurrency:              4,
		Logger:                   quiet{},
		IsFailure:                asynqlock.IsFailure,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		DelayedTaskCheckInterval: 50 * time.Millisecond,
		TaskCheckInterval:        50 * time.Millisecond,
		ErrorHandler: asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, _ error) {
			failures, _ := asynq.GetRetryCount(ctx)
			refused(failures)
		}),
	})
	mux := asynq.NewServeMux()
	mux.Use(asynqlock.Middleware(func(task *asynq.Task) lock.Locker { return c.NewLock(string(task.Payload())) }))
	mux.Handle("bill", process)
	if err := server.Start(mux); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
}

// Two servers with four workers each process the tasks of a customer one at a time, and each task once.
func TestMiddleware(t *testing.T) {
	redis := redistest.Start(t)
	const tasks, customers = 30, 3
	var (
		inside [customers]atomic.Int32
		done   sync.WaitGroup
		busy   atomic.Int32
	)
	refused := func(failures int) {
		busy.Add(1)
		if failures > 0 {
			t.Error("a busy lock counts as a failure, and asynq gives the task up")
			done.Done()
		}
	}
	process := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		var customer int
		if _, err := fmt.Sscanf(string(task.Payload()), "customer %d", &customer); err != nil {
			return err
		}
		if n := inside[customer].Add(1); n != 1 {
			t.Errorf("%d tasks of customer %d at once", n, customer)
		}
		defer done.Done()
		defer inside[customer].Add(-1)
		select { // long enough for another task to overlap
		case <-time.After(20 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	queue := asynq.NewClient(asynq.RedisClientOpt{Addr: redis.Addr()})
	defer queue.Close()
	done.Add(tasks)
	for i := range tasks {
		task := asynq.NewTask("bill", fmt.Appendf(nil, "customer %d", i%customers))
		// A busy lock does not count as a failure, however often it occurs. A single failure would exceed the limit.
		if _, err := queue.EnqueueContext(t.Context(), task, asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		start(t, redis, process, refused)
	}
	done.Wait()
	if busy.Load() == 0 {
		t.Error("no lock was busy, so the test shows nothing")
	}
}

// On its last attempt, a task waits for the lock, because asynq would archive it otherwise.
func TestMiddleware_lastAttempt(t *testing.T) {
	redis := redistest.Start(t)
	c, err := client.New(redis.Client(t), client.WithKeyPrefix("leasehold:"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	l := c.NewLock("customer")
	h, err := l.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	failures, done := make(chan int, 1), make(chan int, 1)
	process := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		n, _ := asynq.GetRetryCount(ctx)
		done <- n
		return nil
	})
	start(t, redis, process, func(n int) { failures <- n })
	queue := asynq.NewClient(asynq.RedisClientOpt{Addr: redis.Addr()})
	defer queue.Close()
	if _, err := queue.EnqueueContext(t.Context(), asynq.NewTask("bill", []byte("customer")), asynq.MaxRetry(0)); err != nil {
		t.Fatal(err)
	}
	for waits := false; !waits; {
		s, err := l.Inspect(t.Context())
		if err != nil || len(failures) > 0 {
			t.Fatalf("it does not wait: %v", err)
		}
		waits = len(s.Waiters) > 0
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-done:
	case <-failures:
		t.Error("it was not processed")
	}
}

// When the lock is lost, the context of the handler is canceled. The error of the task matches the loss, whatever the handler
// returns, and includes the handler's error.
func TestMiddleware_lost(t *testing.T) {
	for name, result := range map[string]func(context.Context) error{
		"nil":                      func(context.Context) error { return nil },
		"the error of the context": context.Context.Err,
		"its cause":                context.Cause,
		"SkipRetry":                func(context.Context) error { return fmt.Errorf("the bill is wrong: %w", asynq.SkipRetry) },
	} {
		l := locktest.NewServer(t).Client(t).NewLock("customer")
		var returned error
		err := asynqlock.Middleware(func(*asynq.Task) lock.Locker { return l })(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			if _, err := l.ForceUnlock(ctx); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), lock.ErrForceUnlocked) {
				t.Errorf("%s: the cause is %v", name, context.Cause(ctx))
			}
			returned = result(ctx)
			return returned
		})).ProcessTask(t.Context(), asynq.NewTask("bill", nil))
		if !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrForceUnlocked) || returned != nil && !errors.Is(err, returned) || !asynqlock.IsFailure(err) {
			t.Errorf("%s: %v", name, err)
		}
		if n := strings.Count(err.Error(), "force-unlocked"); n != 1 {
			t.Errorf("%s: the error names the loss %d times: %v", name, n, err)
		}
		if errors.Is(err, asynq.SkipRetry) != (name == "SkipRetry") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// If a loss is not detected before Unlock, the error still includes it.
func TestMiddleware_lostUnnoticed(t *testing.T) {
	for _, returned := range []error{nil, io.EOF} {
		server := locktest.NewServer(t)
		l := server.Client(t).NewLock("customer")
		err := asynqlock.Middleware(func(*asynq.Task) lock.Locker { return l })(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			server.Lose("customer")
			return returned
		})).ProcessTask(t.Context(), asynq.NewTask("bill", nil))
		if !errors.Is(err, lock.ErrLost) || returned != nil && !errors.Is(err, returned) || !asynqlock.IsFailure(err) {
			t.Errorf("the handler returned %v: %v", returned, err)
		}
	}
}

// A task without a lock is processed, and the error of a handler is returned. If the lock is unavailable, the handler is not
// called.
func TestMiddleware_errors(t *testing.T) {
	server := locktest.NewServer(t)
	silent, err := client.Open(t.Context(), "redis://127.0.0.1:1", client.WithLazyConnect()) // no server listens there
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close(context.Background())
	busy := server.Client(t).NewLock("busy")
	h, err := busy.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Unlock(context.Background())
	for name, test := range map[string]struct {
		l       lock.Locker
		want    error
		failure bool
	}{
		"no lock": {nil, io.EOF, true},
		"a lock":  {server.Client(t).NewLock("free"), io.EOF, true},
		"busy":    {busy, lock.ErrNotAcquired, false},
		"silent":  {silent.NewLock("free"), lock.ErrUnavailable, false},
	} {
		middleware := asynqlock.Middleware(func(*asynq.Task) lock.Locker { return test.l })
		err := middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return io.EOF })).
			ProcessTask(t.Context(), asynq.NewTask("bill", nil))
		if !errors.Is(err, test.want) || asynqlock.IsFailure(err) != test.failure {
			t.Errorf("%s: %v", name, err)
		}
	}

	// The handler's own lock is busy.
	err = asynqlock.Middleware(func(*asynq.Task) lock.Locker { return server.Client(t).NewLock("free") })(
		asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { _, err := busy.TryLock(ctx); return err }),
	).ProcessTask(t.Context(), asynq.NewTask("bill", nil))
	if !errors.Is(err, lock.ErrNotAcquired) || !asynqlock.IsFailure(err) {
		t.Errorf("an error of the handler: %v", err)
	}
}

// asynq abandons a handler at the time limit of its task, and retries the task. The retry finds the lock busy until the first
// handler has returned.
func TestMiddleware_timeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := locktest.NewServer(t)
		process := func(ctx context.Context, handle asynq.HandlerFunc) error {
			c := redis.Client(t)
			return asynqlock.Middleware(func(*asynq.Task) lock.Locker { return c.NewLock("customers:42") })(handle).ProcessTask(ctx, asynq.NewTask("bill", nil))
		}
		retry := func() error {
			return process(t.Context(), func(context.Context, *asynq.Task) error { return nil })
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := process(ctx, func(ctx context.Context, _ *asynq.Task) error {
			<-ctx.Done()
			if err := ctx.Err(); err != context.DeadlineExceeded {
				t.Error(err)
			}
			for range 10 {
				time.Sleep(time.Minute)
				if err := lock.HoldFromContext(ctx).Err(); err != nil {
					t.Error(err)
				}
				if err := retry(); !errors.Is(err, lock.ErrNotAcquired) || asynqlock.IsFailure(err) {
					t.Errorf("the retry: %v", err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := retry(); err != nil {
			t.Errorf("the retry after the first run: %v", err)
		}
	})
}

// Tasks exclude each other even if asynq.Config.BaseContext returns the context of a hold, and all of them carry its owner. The
// middlewares of one task share its owner.
func TestMiddleware_ownerOfTheServer(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	leader, err := c.NewLock("leader").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Unlock(context.Background())
	one := asynqlock.Middleware(func(*asynq.Task) lock.Locker { return c.NewLock("customers:42") })
	process := func(handle asynq.HandlerFunc) error {
		return one(one(handle)).ProcessTask(leader.Context(), asynq.NewTask("bill", nil))
	}
	err = process(func(context.Context, *asynq.Task) error {
		second := process(func(context.Context, *asynq.Task) error { t.Error("two tasks at once"); return nil })
		if !errors.Is(second, lock.ErrNotAcquired) || asynqlock.IsFailure(second) {
			t.Errorf("the second task: %v", second)
		}
		return nil
	})
	if err != nil {
		t.Errorf("the first task: %v", err)
	}
}

// A task whose client is closed while it runs has lost its lock, so it is retried, whatever the handler returns.
func TestMiddleware_closedMeanwhile(t *testing.T) {
	for _, returned := range []error{nil, context.Canceled, io.EOF} {
		c := locktest.NewServer(t).Client(t)
		err := asynqlock.Middleware(func(*asynq.Task) lock.Locker { return c.NewLock("customers:42") })(
			asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				if err := c.Close(context.Background()); err != nil {
					t.Error(err)
				}
				return returned
			}),
		).ProcessTask(t.Context(), asynq.NewTask("bill", nil))
		if !errors.Is(err, lock.ErrClosed) || returned != nil && !errors.Is(err, returned) || !asynqlock.IsFailure(err) {
			t.Errorf("the handler returned %v: %v", returned, err)
		}
	}
}
