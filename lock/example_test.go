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

// Do locks, works and unlocks. The lock is renewed for as long as the work takes.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	orders := c.NewLock("orders:42", lock.WithWait(5*time.Second)) // until another process is ready

	err = lock.Do(ctx, orders, func(ctx context.Context) error {
		for _, item := range []string{"tea", "cake"} {
			if ctx.Err() != nil { // over as soon as the lock is not certainly held
				return context.Cause(ctx)
			}
			fmt.Println("packing", item)
		}
		return nil
	})
	switch {
	case errors.Is(err, lock.ErrNotAcquired):
		fmt.Println("another process has it")
	case errors.Is(err, lock.ErrUnavailable):
		fmt.Println("Redis is unavailable")
	case err != nil:
		fmt.Println("failed, or lost the lock:", err)
	}
	// Output:
	// packing tea
	// packing cake
}

// Work that is split among goroutines ends as a whole when the lock is lost, or when one of them fails.
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

// Code that takes a lock as a parameter depends on this package alone, and works with every kind.
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
	fmt.Println(report(ctx, c.NewRWLock("catalogue").Read()))
	// Output:
	// reporting under plain
	// <nil>
	// reporting under catalogue
	// <nil>
}

// A hold in the caller's own hands: it says whether it is valid and until when, and is given back once.
func ExampleHold() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	h, err := c.NewLock("orders:43").Lock(ctx)
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

// Who holds a lock, how, and who waits for it.
func ExampleState() {
	ctx := context.Background()
	billing, err := client.Open(ctx, "redis://"+addr, client.WithName("billing"))
	if err != nil {
		log.Fatal(err)
	}
	defer billing.Close(ctx)
	cron, err := client.Open(ctx, "redis://"+addr, client.WithName("cron")) // as another process
	if err != nil {
		log.Fatal(err)
	}
	defer cron.Close(ctx)

	desk := billing.NewFairLock("desk")
	h, err := desk.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() {
		served <- lock.Do(ctx, cron.NewFairLock("desk"), func(context.Context) error { return nil })
	}()

	for range time.Tick(10 * time.Millisecond) {
		state, err := desk.Inspect(ctx)
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
	fmt.Println(h.Unlock(ctx), <-served)
	// Output:
	// true exclusive 1
	// held by billing and this process: true
	// since less than a minute: true
	// waits: cron
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
		_, err := l.TryLock(ctx) // another owner, as ctx is not that of the hold
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

// Two holds of one owner that do not nest: the first is given back while the second goes on.
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
		log.Fatal(err)
	}
	second, err := album.Lock(one) // re-enters
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Unlock(ctx), second.Err())
	fmt.Println(second.Unlock(ctx))
	// Output:
	// <nil> <nil>
	// <nil>
}

// A job of several replicas that is quick must not run twice within a minute: the lock outlives its Unlock.
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
			log.Fatal(err)
		}
	}
	// Output:
	// order 17
	// order 18
}

// Tokens that grow whatever the server's clock does, for readers as well.
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
			log.Fatal(err)
		}
		tokens = append(tokens, h.Token()) // write with it, and refuse what comes with a smaller one: see package fence
		if err := h.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(tokens[0] < tokens[1])
	// Output: true
}

// A lock that ends by itself, whatever its holder does. Most callers want no such option.
func ExampleWithFixedLease() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	imports := c.NewLock("import", lock.WithFixedLease(200*time.Millisecond)) // yours is a minute, say
	err = lock.Do(ctx, imports, func(ctx context.Context) error {
		<-ctx.Done() // it is not renewed
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrExpired))
	// Output: true true
}

// A holder that hangs keeps the others out for no longer than that.
func ExampleWithMaxHold() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	export := c.NewLock("export", lock.WithMaxHold(200*time.Millisecond)) // yours is an hour, say
	err = lock.Do(ctx, export, func(ctx context.Context) error {
		<-ctx.Done() // it hangs
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrMaxHold))
	// Output: true true
}

// A hold whose context has ended is renewed for so long, if nobody unlocks it, and is then lost.
func ExampleWithGrace() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr, client.WithWatchdogTimeout(6*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	upload := c.NewLock("upload", lock.WithGrace(10*time.Millisecond))

	request, cancel := context.WithCancel(ctx)
	h, err := upload.Lock(request)
	if err != nil {
		log.Fatal(err)
	}
	cancel() // and Unlock is forgotten
	fmt.Println("the next one:", lock.Do(ctx, upload, func(context.Context) error { return nil }))
	fmt.Println(errors.Is(h.Unlock(ctx), lock.ErrAbandoned))
	// Output:
	// the next one: <nil>
	// true
}

// How long the others wait for a waiter of a fair lock whose process died.
func ExampleWithWaiterTimeout() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	fair := c.NewFairLock("counter", lock.WithWaiterTimeout(2*time.Second))
	fmt.Println(lock.Do(ctx, fair, func(context.Context) error { return nil }))
	plain := c.NewLock("plain", lock.WithWaiterTimeout(2*time.Second)) // whose waiters have no place to keep
	_, err = plain.TryLock(ctx)
	fmt.Println(errors.Is(err, errors.ErrUnsupported))
	// Output:
	// <nil>
	// true
}

// Readers that do not wait behind a writer, for data that is written when nobody reads.
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
		log.Fatal(err)
	}
	written := make(chan error)
	go func() {
		written <- lock.Do(ctx, prices.Write(), func(context.Context) error { return nil })
	}()
	for range time.Tick(10 * time.Millisecond) {
		state, err := prices.Inspect(ctx)
		if err != nil {
			log.Fatal(err)
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

// A lock that counts only if a replica has it too. This server has none, so the lock is given back.
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

// Wait for a moment, hold for as long as the work takes. A deadline on the context would end the hold as well.
func ExampleWithWait() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	report := c.NewLock("report", lock.WithWait(200*time.Millisecond))

	err = lock.Do(ctx, report, func(context.Context) error {
		_, err := report.Lock(ctx) // another owner, as ctx is not that of the hold
		return err
	})
	fmt.Println(errors.Is(err, lock.ErrNotAcquired), errors.Is(err, os.ErrDeadlineExceeded))
	// Output: true true
}
