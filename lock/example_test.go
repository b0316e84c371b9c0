package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// Work that is split among goroutines ends as a whole when the lock is lost, or when one of them fails.
func ExampleDo_errgroup() {
	redis := exampletest.Start()
	defer redis.Close()
	rebuild := redis.Client().NewLock("rebuild")

	var pages [3]int
	err := lock.Do(context.Background(), rebuild, func(ctx context.Context) error {
		group, inGroup := errgroup.WithContext(ctx)
		for i := range pages {
			group.Go(func() error {
				select {
				case <-inGroup.Done(): // lost, or another one failed
					return context.Cause(inGroup)
				case <-time.After(time.Millisecond):
					pages[i] = i + 1
					return nil
				}
			})
		}
		return group.Wait() // before Unlock
	})
	fmt.Println(pages, err)
	// Output: [1 2 3] <nil>
}

// Code that takes a lock as a parameter depends on this package alone, and works with every kind.
func Example_parameter() {
	redis := exampletest.Start()
	defer redis.Close()
	c := redis.Client()

	report := func(ctx context.Context, l lock.Locker) error {
		return lock.TryDo(ctx, l, func(context.Context) error {
			fmt.Println("reporting under", l.Name())
			return nil
		})
	}
	ctx := context.Background()
	fmt.Println(report(ctx, c.NewLock("plain", lock.WithWait(time.Second))))
	fmt.Println(report(ctx, c.NewRWLock("catalogue").Read()))
	// Output:
	// reporting under plain
	// <nil>
	// reporting under catalogue
	// <nil>
}

// A hold in the caller's own hands: it says whether it is valid and until when, and is given back once.
func ExampleHold() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()

	h, err := redis.Client().NewLock("orders:42").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("valid:", h.Err() == nil && h.Context().Err() == nil)
	fmt.Println("for 25 seconds at least:", time.Until(h.Until()) > 25*time.Second)
	fmt.Println("has a token:", h.Token() > 0)
	if err := h.Extend(ctx, time.Hour); err != nil { // before a pause that is planned
		log.Print(err)
	}
	fmt.Println("for 59 minutes at least:", time.Until(h.Until()) > 59*time.Minute)
	fmt.Println(h.Unlock(ctx))
	fmt.Println(errors.Is(h.Unlock(ctx), lock.ErrNotHeld), errors.Is(h.Err(), lock.ErrUnlocked))
	// Output:
	// valid: true
	// for 25 seconds at least: true
	// has a token: true
	// for 59 minutes at least: true
	// <nil>
	// true true
}

// Each error names the operation and the lock; errors.Is tells the reason.
func ExampleError() {
	redis := exampletest.Start()
	defer redis.Close()

	_, err := redis.Client().NewLock("").TryLock(context.Background())
	var e *lock.Error
	if errors.As(err, &e) {
		fmt.Println(e.Op, errors.Is(err, lock.ErrBadName))
	}
	fmt.Println(err)
	// Output:
	// trylock true
	// leasehold: trylock: bad lock name: it is empty
}

// Who holds a lock, how, and who waits for it.
func ExampleState() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	billing := redis.Client(client.WithName("billing"))
	l := billing.NewFairLock("orders:42")
	h, err := l.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	waiting, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = redis.Client(client.WithName("cron")).NewFairLock("orders:42").Lock(waiting)
	}()
	defer func() { cancel(); <-gone }()

	for {
		state, err := l.Inspect(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if len(state.Waiters) == 0 || !state.Holders[0].Client.Known() || !state.Waiters[0].Client.Known() {
			continue // its question, or a client's entry, is on its way
		}
		holder, waiter := state.Holders[0], state.Waiters[0]
		fmt.Println(state.Locked(), state.Mode, state.HoldCount(h.Owner()))
		fmt.Println("held by", holder.Client.Name, "and this process:", holder.Client.PID == os.Getpid())
		fmt.Println("since less than a minute:", time.Since(holder.Since) < time.Minute)
		fmt.Println("waits:", waiter.Client.Name)
		break
	}
	fmt.Println(h.Unlock(ctx))
	// Output:
	// true exclusive 1
	// held by billing and this process: true
	// since less than a minute: true
	// waits: cron
	// <nil>
}

// Count what happens to the locks of a client. Packages leaseholdprom and leaseholdotel do so for Prometheus and OpenTelemetry.
func ExampleObserver() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	c := redis.Client(client.WithObserver(lock.Observer{
		Granted:  func(_ context.Context, e lock.Event) { fmt.Println("granted", e.Kind, e.Name) },
		Refused:  func(_ context.Context, e lock.Event) { fmt.Println("refused:", e.Err) },
		Released: func(_ context.Context, e lock.Event) { fmt.Println("released after", e.Held > 0) },
	}))

	h, err := c.NewLock("orders:42").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, _ = c.NewLock("orders:42").TryLock(ctx)
	_ = h.Unlock(ctx)
	// Output:
	// granted plain orders:42
	// refused: leasehold: trylock "orders:42": not acquired
	// released after true
}

// Two holds of one owner that do not nest: the first is given back while the second goes on.
func ExampleWithOwner() {
	redis := exampletest.Start()
	defer redis.Close()
	l := redis.Client().NewLock("album")

	one := lock.WithOwner(context.Background())
	first, err := l.Lock(one)
	if err != nil {
		log.Fatal(err)
	}
	second, err := l.Lock(one) // re-enters
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Unlock(one), second.Err())
	fmt.Println(second.Unlock(one))
	// Output:
	// <nil> <nil>
	// <nil>
}

// A job of several replicas that is quick must not run twice within a minute: the lock outlives its Unlock.
func ExampleWithAtLeast() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()

	for _, replica := range []*client.Client{redis.Client(), redis.Client()} {
		l := replica.NewLock("cron:minutely", lock.WithAtLeast(50*time.Second))
		err := lock.TryDo(ctx, l, func(context.Context) error { return nil })
		fmt.Println("has been done:", errors.Is(err, lock.ErrNotAcquired))
	}
	// Output:
	// has been done: false
	// has been done: true
}

// Tokens that grow whatever the server's clock does, for readers as well.
func ExampleWithFencing() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	l := redis.Client().NewLock("price", lock.WithFencing())

	var tokens []uint64
	for range 2 {
		h, err := l.Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		tokens = append(tokens, h.Token())
		_ = h.Unlock(ctx)
	}
	fmt.Println(tokens[0] < tokens[1])
	// Output: true
}

// A lock that ends by itself, whatever its holder does. Most callers want no such option.
func ExampleWithFixedLease() {
	redis := exampletest.Start()
	defer redis.Close()

	h, err := redis.Client().NewLock("import", lock.WithFixedLease(50*time.Millisecond)).Lock(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	<-h.Context().Done() // it is not renewed
	fmt.Println(errors.Is(h.Err(), lock.ErrExpired))
	// Output: true
}

// A holder that hangs keeps the others out for no longer than that.
func ExampleWithMaxHold() {
	redis := exampletest.Start()
	defer redis.Close()

	l := redis.Client().NewLock("import", lock.WithMaxHold(50*time.Millisecond)) // yours is an hour, say
	err := lock.Do(context.Background(), l, func(ctx context.Context) error {
		<-ctx.Done() // it hangs
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrMaxHold))
	// Output: true true
}

// A hold whose context has ended is renewed for so long, if nobody unlocks it, and is then lost.
func ExampleWithGrace() {
	redis := exampletest.Start()
	defer redis.Close()
	c := redis.Client(client.WithWatchdogTimeout(3 * time.Second))

	ctx, cancel := context.WithCancel(context.Background())
	h, err := c.NewLock("upload", lock.WithGrace(10*time.Millisecond)).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	cancel() // and Unlock is forgotten
	other, err := c.NewLock("upload").Lock(context.Background())
	fmt.Println(err, errors.Is(h.Unlock(ctx), lock.ErrAbandoned))
	_ = other.Unlock(context.Background())
	// Output: <nil> true
}

// How long the others wait for a waiter of a fair lock whose process died.
func ExampleWithPatience() {
	redis := exampletest.Start()
	defer redis.Close()

	desk := redis.Client().NewFairLock("desk", lock.WithPatience(2*time.Second))
	fmt.Println(lock.Do(context.Background(), desk, func(context.Context) error { return nil }))
	plain := redis.Client().NewLock("plain", lock.WithPatience(2*time.Second)) // whose waiters have no place to keep
	_, err := plain.TryLock(context.Background())
	fmt.Println(errors.Is(err, errors.ErrUnsupported))
	// Output:
	// <nil>
	// true
}

// Readers that do not wait behind a writer, for data that is written when nobody reads.
func ExampleWithReadersFirst() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	c := redis.Client()

	r, err := c.NewRWLock("catalogue").Read().Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	waiting, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = redis.Client().NewRWLock("catalogue").Write().Lock(waiting)
	}()
	second, err := redis.Client().NewRWLock("catalogue", lock.WithReadersFirst()).Read().Lock(ctx)
	fmt.Println("reads, although a writer waits:", err == nil)
	cancel()
	<-gone
	_ = second.Unlock(ctx)
	_ = r.Unlock(ctx)
	// Output: reads, although a writer waits: true
}

// A lock that counts only if a replica has it too. This server has none, so the lock is given back.
func ExampleWithReplicas() {
	redis := exampletest.Start()
	defer redis.Close()

	l := redis.Client().NewLock("payout", lock.WithReplicas(1, 100*time.Millisecond))
	_, err := l.TryLock(context.Background())
	fmt.Println(errors.Is(err, lock.ErrReplicas))
	// Output: true
}

// Wait for a moment, hold for as long as the work takes. A deadline on the context would end the hold as well.
func ExampleWithWait() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	h, err := redis.Client().NewLock("report").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Unlock(ctx)

	_, err = redis.Client().NewLock("report", lock.WithWait(200*time.Millisecond)).Lock(ctx)
	fmt.Println(errors.Is(err, lock.ErrNotAcquired), errors.Is(err, os.ErrDeadlineExceeded))
	// Output: true true
}
