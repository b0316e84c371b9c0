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

// Do locks, works and unlocks, whatever happens.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	err = lock.Do(ctx, c.NewLock("orders:42"), func(ctx context.Context) error {
		for _, item := range []string{"tea", "cake"} {
			if ctx.Err() != nil { // over as soon as the lock is not certainly held
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

// Work that need not be done if another process does it already. "Busy" and "no answer" are
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
		log.Fatal(err)
	}
	defer h.Unlock(ctx)

	err = lock.TryDo(ctx, c.NewLock("report"), func(context.Context) error { return nil })
	switch {
	case errors.Is(err, lock.ErrUnavailable):
		fmt.Println("Redis gives no answer: try again later")
	case errors.Is(err, lock.ErrNotAcquired):
		fmt.Println("another process does it")
	case err != nil:
		fmt.Println("it failed:", err)
	}
	// Output: another process does it
}

// A job of several replicas runs once a minute, although it is quick and their clocks differ: the
// lock stays locked for 50 seconds, and longer if the job takes longer.
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

// Owners are served in the order in which they asked, across all processes.
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

// Any number of readers, or one writer, which may go on as a reader.
func Example_readWrite() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	catalogue := c.NewRWLock("catalogue")

	w, err := catalogue.Write().Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("writing")
	r, err := catalogue.Downgrade(ctx, w) // no other writer comes in between
	if err != nil {
		log.Fatal(err)
	}
	err = lock.TryDo(ctx, catalogue.Read(), func(context.Context) error {
		fmt.Println("two are reading")
		return nil
	})
	fmt.Println(err, r.Unlock(ctx))
	// Output:
	// writing
	// two are reading
	// <nil> <nil>
}

// Several locks, all or none: calls for {a, b} and for {b, a} never wait for each other in a ring.
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

// A nested call re-enters by the context of the hold, and by nothing else.
func Example_reentry() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	account := c.NewLock("account:7")

	deposit := func(ctx context.Context) error { // locks by itself, as its other callers need that
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

// The keeper of the data refuses a holder that is late: its token is smaller than one that was seen.
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
			log.Fatal(err)
		}
		defer h.Unlock(ctx)
		return h.Token()
	}
	late, newer := token(), token()

	var mark fence.Mark // for data in memory; fencesql and fence.Redis are for data in servers
	fmt.Println(mark.Check(newer))
	fmt.Println(errors.Is(mark.Check(late), fence.ErrStale))
	// Output:
	// <nil>
	// true
}

// The holder is told when somebody takes the lock away.
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
		log.Fatal(err)
	}
	if _, err := l.ForceUnlock(ctx); err != nil { // as an operator would by: leasehold unlock import
		log.Fatal(err)
	}
	<-h.Context().Done()
	fmt.Println(errors.Is(h.Err(), lock.ErrLost), errors.Is(h.Err(), lock.ErrForceUnlocked))
	fmt.Println(errors.Is(h.Unlock(ctx), lock.ErrNotHeld))
	// Output:
	// true true
	// true
}

// Two calls in an hour for each user, across all processes.
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
