package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"golang.org/x/sync/errgroup"
)

// Do acquires the lock, calls the function, and releases the lock. It renews the lock until the function returns.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	orders := c.NewLock("orders:42", lock.WithWait(5*time.Second)) // waits for another holder

	err = lock.Do(ctx, orders, func(ctx context.Context) error {
		for _, item := range []string{"tea", "cake"} {
			if ctx.Err() != nil { // canceled as soon as the lock can no longer be guaranteed
				return context.Cause(ctx)
			}
			fmt.Println("packing", item)
		}
		return nil
	})
	switch {
	case errors.Is(err, lock.ErrNotAcquired):
		fmt.Println("another owner has the lock")
	case errors.Is(err, lock.ErrUnavailable):
		fmt.Println("Redis is unavailable")
	case err != nil:
		fmt.Println("failed, or lost the lock:", err)
	}
	// Output:
	// packing tea
	// packing cake
}

// All goroutines that share the work stop when the lock is lost, or when one of them fails.
func ExampleDo_errgroup() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	var pages [3]int
	err = lock.Do(ctx, c.NewLock("rebuild"), func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for i := range pages {
			group.Go(func() error {
				select {
				case <-ctx.Done(): // lost, or another one failed
					return context.Cause(ctx)
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

// Code that takes a lock as a parameter depends on this package alone, and works with every type of lock.
func Example_parameter() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	report := func(ctx context.Context, l lock.Locker) error {
		return lock.TryDo(ctx, l, func(context.Context) error {
			fmt.Println("reporting under", l.Name())
			return nil
		})
	}
	fmt.Println(report(ctx, c.NewLock("plain", lock.WithWait(time.Second))))
	fmt.Println(report(ctx, c.NewRWLock("catalog").Read()))
	// Output:
	// reporting under plain
	// <nil>
	// reporting under catalog
	// <nil>
}

// A hold that the caller manages. It reports whether it is valid and until when, and is released once.
func ExampleHold() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	h, err := c.NewLock("orders:43").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("valid:", h.Err() == nil && h.Context().Err() == nil)
	fmt.Println("for at least 25 seconds:", time.Until(h.Until()) > 25*time.Second)
	fmt.Println("has a token:", h.Token() > 0)
	if err := h.Extend(ctx, time.Hour); err != nil { // before a planned pause
		log.Print(err)
	}
	fmt.Println("for at least 59 minutes:", time.Until(h.Until()) > 59*time.Minute)
	fmt.Println(h.Unlock(ctx))
	fmt.Println(errors.Is(h.Unlock(ctx), lock.ErrNotHeld), errors.Is(h.Err(), lock.ErrUnlocked))
	// Output:
	// valid: true
	// for at least 25 seconds: true
	// has a token: true
	// for at least 59 minutes: true
	// <nil>
	// true true
}

// Each error names the operation and the lock. Use errors.Is to find the reason.
func ExampleError() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	_, err = c.NewLock("").TryLock(ctx)
	var e *lock.Error
	if errors.As(err, &e) {
		fmt.Println(e.Op, errors.Is(err, lock.ErrBadName))
	}
	fmt.Println(err)
	// Output:
	// trylock true
	// leasehold: trylock: bad lock name: empty
}

// Show who holds a lock, how, and who waits for it.
func ExampleState() {
	ctx := context.Background()
	billing, err := client.Open(ctx, "redis://"+addr, client.WithName("billing"))
	if err != nil {
		log.Fatal(err)
	}
	defer billing.Close(ctx)
	cron, err := client.Open(ctx, "redis://"+addr, client.WithName("cron")) // as another process
	if err != nil {
		log.Print(err)
		return
	}
	defer cron.Close(ctx)

	desk := billing.NewFairLock("desk")
	h, err := desk.Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	served := make(chan error)
	go func() {
		served <- lock.Do(ctx, cron.NewFairLock("desk"), func(context.Context) error { return nil })
	}()

	for range time.Tick(10 * time.Millisecond) {
		state, err := desk.Inspect(ctx)
		if err != nil {
			log.Print(err)
			return
		}
		if len(state.Waiters) == 0 || !state.Holders[0].Client.Known() || !state.Waiters[0].Client.Known() {
			continue // its request, or the entry of a client, has not arrived yet
		}
		holder, waiter := state.Holders[0], state.Waiters[0]
		fmt.Println(state.Locked(), state.Mode, state.HoldCount(h.Owner()))
		fmt.Println("held by", holder.Client.Name, "and this process:", holder.Client.PID == os.Getpid())
		fmt.Println("requested less than a minute ago:", time.Since(holder.Since) < time.Minute)
		fmt.Println("waiter:", waiter.Client.Name)
		break
	}
	fmt.Println(h.Unlock(ctx), <-served)
	// Output:
	// true exclusive 1
	// held by billing and this process: true
	// requested less than a minute ago: true
	// waiter: cron
	// <nil> <nil>
}

// Count what happens to the locks of a client. Packages leaseholdprom and leaseholdotel do so for Prometheus and OpenTelemetry.
func ExampleObserver() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr, client.WithObserver(lock.Observer{
		Acquired:    func(_ context.Context, e lock.Event) { fmt.Println("granted", e.Kind, e.Name) },
		NotAcquired: func(_ context.Context, e lock.Event) { fmt.Println("refused:", e.Err) },
		Released:    func(_ context.Context, e lock.Event) { fmt.Println("released after", e.Held > 0) },
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	l := c.NewLock("orders:44")

	fmt.Println(lock.Do(ctx, l, func(context.Context) error {
		_, err := l.TryLock(ctx) // another owner, because ctx is not the context of the hold
		return err
	}))
	// Output:
	// granted plain orders:44
	// refused: leasehold: trylock "orders:44": not acquired
	// released after true
	// leasehold: trylock "orders:44": not acquired
}

// Report the age of the oldest hold, which no duration shows before the hold ends. Packages leaseholdprom and leaseholdotel do so.
func ExampleOldest() {
	ctx := context.Background()
	var holds lock.Oldest
	c, err := client.Open(ctx, "redis://"+addr, client.WithObserver(lock.Observer{
		Acquired: func(_ context.Context, e lock.Event) { holds.Begin(e) },
		Released: func(_ context.Context, e lock.Event) { holds.End(e) },
		Lost:     func(_ context.Context, e lock.Event) { holds.End(e) },
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	err = lock.Do(ctx, c.NewLock("orders:45"), func(context.Context) error {
		fmt.Println("held:", holds.Age() > 0)
		return nil
	})
	fmt.Println(err, holds.Age())
	// Output:
	// held: true
	// <nil> 0s
}

// Two holds of one owner that do not nest. The first is released while the second continues.
func ExampleContextWithNewOwner() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	album := c.NewLock("album")

	one := lock.ContextWithNewOwner(ctx)
	first, err := album.Lock(one)
	if err != nil {
		log.Print(err)
		return
	}
	second, err := album.Lock(one) // re-enters
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(first.Unlock(ctx), second.Err())
	fmt.Println(second.Unlock(ctx))
	// Output:
	// <nil> <nil>
	// <nil>
}

// A quick job must not run twice within a minute in several replicas. The lock stays locked after Unlock.
func ExampleWithMinHold() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	minutely := c.NewLock("cron:minutely", lock.WithMinHold(50*time.Second))

	for _, replica := range []string{"a", "b"} {
		err := lock.TryDo(ctx, minutely, func(context.Context) error {
			fmt.Println("replica", replica, "does it")
			return nil
		})
		switch {
		case errors.Is(err, lock.ErrNotAcquired):
			fmt.Println("replica", replica, "need not do it")
		case err != nil:
			log.Print("Redis is unavailable, or the job failed or lost the lock: ", err)
		}
	}
	// Output:
	// replica a does it
	// replica b need not do it
}

// A consumer handles the messages of its customers one after the other. Other processes hardly ever lock the same
// customers, so most calls of Lock and Unlock send no command.
func ExampleWithLinger() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	for _, customer := range []string{"ada", "bob", "ada", "ada", "bob"} {
		l := c.NewLock("customer:"+customer, lock.WithLinger(time.Second))
		err := lock.Do(ctx, l, func(context.Context) error {
			fmt.Println("a message of", customer)
			return nil
		})
		if err != nil {
			log.Print("Redis is unavailable, or the lock was lost: ", err)
		}
	}
	// Output:
	// a message of ada
	// a message of bob
	// a message of ada
	// a message of ada
	// a message of bob
}

// A service far from Redis saves a round trip for each order.
func ExampleWithAsyncUnlock() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx) // waits for the releases

	for _, order := range []string{"17", "18"} {
		l := c.NewLock("orders:"+order, lock.WithAsyncUnlock())
		err := lock.Do(ctx, l, func(context.Context) error {
			fmt.Println("order", order)
			return nil
		})
		if err != nil {
			log.Print(err)
			return
		}
	}
	// Output:
	// order 17
	// order 18
}

// Tokens grow even if the clock of the server moves backward. Readers have tokens too.
func ExampleWithFencing() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	price := c.NewLock("price", lock.WithFencing())

	var tokens []uint64
	for range 2 {
		h, err := price.Lock(ctx)
		if err != nil {
			log.Print(err)
			return
		}
		tokens = append(tokens, h.Token()) // send it with each write, and reject smaller ones: see package fence
		if err := h.Unlock(ctx); err != nil {
			log.Print(err)
			return
		}
	}
	fmt.Println(tokens[0] < tokens[1])
	// Output: true
}

// The lock expires after a fixed time, because it is not renewed. Most callers do not need this option.
func ExampleWithFixedLease() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	imports := c.NewLock("import", lock.WithFixedLease(time.Second)) // in your program, for example a minute
	err = lock.Do(ctx, imports, func(ctx context.Context) error {
		<-ctx.Done() // it is not renewed
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrExpired))
	// Output: true true
}

// A holder that hangs keeps other owners out for at most that time.
func ExampleWithMaxHold() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	export := c.NewLock("export", lock.WithMaxHold(200*time.Millisecond)) // in your program, for example an hour
	err = lock.Do(ctx, export, func(ctx context.Context) error {
		<-ctx.Done() // it hangs
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrMaxHold))
	// Output: true true
}

// A hold that is not unlocked after its context was canceled is renewed for that time, and is then lost.
func ExampleWithGrace() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr, client.WithWatchdogTimeout(6*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	upload := c.NewLock("upload", lock.WithGrace(10*time.Millisecond))

	request, cancel := context.WithCancel(ctx)
	defer cancel()
	h, err := upload.Lock(request)
	if err != nil {
		log.Print(err)
		return
	}
	cancel() // and Unlock is forgotten
	fmt.Println("next owner:", lock.Do(ctx, upload, func(context.Context) error { return nil }))
	fmt.Println(errors.Is(h.Unlock(ctx), lock.ErrAbandoned))
	// Output:
	// next owner: <nil>
	// true
}

// Set how long a dead waiter of a fair lock delays the waiters behind it.
func ExampleWithWaiterTimeout() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	fair := c.NewFairLock("counter", lock.WithWaiterTimeout(2*time.Second))
	fmt.Println(lock.Do(ctx, fair, func(context.Context) error { return nil }))
	plain := c.NewLock("plain", lock.WithWaiterTimeout(2*time.Second)) // waiters of a plain lock have no queue position to lose
	_, err = plain.TryLock(ctx)
	fmt.Println(errors.Is(err, errors.ErrUnsupported))
	// Output:
	// <nil>
	// true
}

// Readers do not wait behind a waiting writer. Use it for data that is written when there are no readers.
func ExampleWithReaderPreference() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	prices := c.NewRWLock("prices")

	h, err := prices.Read().Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	written := make(chan error)
	go func() {
		written <- lock.Do(ctx, prices.Write(), func(context.Context) error { return nil })
	}()
	for range time.Tick(10 * time.Millisecond) {
		state, err := prices.Inspect(ctx)
		if err != nil {
			log.Print(err)
			return
		}
		if len(state.Waiters) > 0 {
			break // the writer
		}
	}
	second := c.NewRWLock("prices", lock.WithReaderPreference()).Read()
	err = lock.Do(ctx, second, func(context.Context) error {
		fmt.Println("reads, although a writer waits")
		return nil
	})
	fmt.Println(err, h.Unlock(ctx), <-written)
	// Output:
	// reads, although a writer waits
	// <nil> <nil> <nil>
}

// The lock must be confirmed by a replica. This server has none, so the lock is released.
func ExampleWithReplicas() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	_, err = c.NewLock("payout", lock.WithReplicas(1, 100*time.Millisecond)).TryLock(ctx)
	fmt.Println(errors.Is(err, lock.ErrReplicas))
	// Output: true
}

// Limit the wait, but not the hold. A deadline on the context would end the hold too.
func ExampleWithWait() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	err = lock.Do(ctx, c.NewLock("report"), func(context.Context) error {
		_, err := c.NewLock("report", lock.WithWait(2*time.Second)).Lock(ctx) // another owner, because ctx is not the context of the hold
		return err
	})
	fmt.Println(errors.Is(err, lock.ErrNotAcquired), errors.Is(err, os.ErrDeadlineExceeded))
	// Output: true true
}
