package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// Do acquires the lock, calls the function, and releases the lock, even if the function panics.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	err = lock.Do(ctx, c.NewLock("orders:42"), func(ctx context.Context) error {
		for _, item := range []string{"tea", "cake"} {
			if ctx.Err() != nil { // canceled as soon as the lock can no longer be guaranteed
				return context.Cause(ctx)
			}
			fmt.Println("packing", item)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// packing tea
	// packing cake
	// <nil>
}

// Skip the work if another process is already doing it. A busy lock and an unavailable Redis are
// different errors.
func Example_unlessBusy() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	h, err := c.NewLock("report").Lock(ctx) // as another process does
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)

	err = lock.TryDo(ctx, c.NewLock("report"), func(context.Context) error { return nil })
	switch {
	case errors.Is(err, lock.ErrUnavailable):
		fmt.Println("Redis is unavailable: retry later")
	case errors.Is(err, lock.ErrNotAcquired):
		fmt.Println("another process does it")
	case err != nil:
		fmt.Println("it failed:", err)
	}
	// Output: another process does it
}

// One of several replicas runs a job each minute, although it is quick and their clocks differ. The
// lock stays locked for at least 50 seconds.
func Example_onceAMinute() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	for _, replica := range []string{"a", "b", "c"} {
		l := c.NewLock("cron:minutely", lock.WithMinHold(50*time.Second))
		err := lock.TryDo(ctx, l, func(context.Context) error {
			fmt.Println("replica", replica, "runs it")
			return nil
		})
		if err != nil && !errors.Is(err, lock.ErrNotAcquired) {
			log.Print(err)
		}
	}
	// Output: replica a runs it
}

// Callers are served first-come, first-served, across all processes.
func Example_fair() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	desk := c.NewFairLock("desk", lock.WithWait(5*time.Second))
	err = lock.Do(ctx, desk, func(context.Context) error {
		fmt.Println("next, please")
		return nil
	})
	fmt.Println(err)
	// Output:
	// next, please
	// <nil>
}

// Any number of readers, or one writer, which can continue as a reader.
func Example_readWrite() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	catalog := c.NewRWLock("catalog")

	w, err := catalog.Write().Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("writing")
	r, err := catalog.Downgrade(ctx, w) // no other writer enters in between
	if err != nil {
		log.Print(err)
		return
	}
	err = lock.TryDo(ctx, catalog.Read(), func(context.Context) error {
		fmt.Println("two are reading")
		return nil
	})
	fmt.Println(err, r.Unlock(ctx))
	// Output:
	// writing
	// two are reading
	// <nil> <nil>
}

// Several locks, all or none. Calls for {a, b} and for {b, a} cannot deadlock.
func Example_severalLocks() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	both := multilock.New(c.NewLock("account:1"), c.NewLock("account:2"))
	err = lock.Do(ctx, both, func(context.Context) error {
		fmt.Println("transferring")
		return nil
	})
	fmt.Println(err)
	// Output:
	// transferring
	// <nil>
}

// A nested call re-enters only with the context of the hold.
func Example_reentry() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	account := c.NewLock("account:7")

	deposit := func(ctx context.Context) error { // acquires the lock itself, for its other callers
		return lock.TryDo(ctx, account, func(context.Context) error { return nil })
	}
	err = lock.Do(ctx, account, func(held context.Context) error {
		fmt.Println("under the hold's context:", deposit(held))
		fmt.Println("under another one:", errors.Is(deposit(ctx), lock.ErrNotAcquired))
		return nil
	})
	fmt.Println(err)
	// Output:
	// under the hold's context: <nil>
	// under another one: true
	// <nil>
}

// The protected resource rejects a stale holder, because it has seen a larger token.
func Example_fencing() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	l := c.NewLock("price", lock.WithFencing())

	token := func() uint64 {
		h, err := l.Lock(ctx)
		if err != nil {
			panic(err)
		}
		defer h.Unlock(ctx)
		return h.Token()
	}
	stale, newer := token(), token()

	var mark fence.Mark // for data in memory; fencesql and fence.Redis are for data in servers
	fmt.Println(mark.Check(newer))
	fmt.Println(errors.Is(mark.Check(stale), fence.ErrStale))
	// Output:
	// <nil>
	// true
}

// The holder is notified when an operator force-unlocks the lock.
func Example_lost() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	l := c.NewLock("import")

	h, err := l.Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	if _, err := l.ForceUnlock(ctx); err != nil { // as an operator does with: leasehold unlock import
		log.Print(err)
		return
	}
	<-h.Context().Done()
	fmt.Println(errors.Is(h.Err(), lock.ErrLost), errors.Is(h.Err(), lock.ErrForceUnlocked))
	fmt.Println(errors.Is(h.Unlock(ctx), lock.ErrNotHeld))
	// Output:
	// true true
	// true
}

// At most two calls per hour for each user, across all processes.
func Example_rateLimit() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	logins := c.NewRateLimiter("logins", ratelimit.FailClosed().After(time.Second), ratelimit.PerHour(2))
	for range 3 {
		d, err := logins.Take(ctx, "alice", 1)
		fmt.Println(d.OK, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}
