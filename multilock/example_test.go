package multilock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// Two accounts, all or none. The order of the arguments does not matter.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addrs[0])
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	from, to := c.NewLock("account:1"), c.NewLock("account:2")

	err = lock.Do(ctx, multilock.New(from, to), func(ctx context.Context) error {
		fmt.Println("transferring") // ctx is canceled as soon as one of them can no longer be guaranteed
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// transferring
	// <nil>
}

// The members of a hold, each with the token for its own resource.
func ExampleHolds() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addrs[0])
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	h, err := multilock.New(c.NewLock("account:1"), c.NewLock("account:2")).Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)
	for _, member := range multilock.Holds(h) {
		fmt.Println(member.Token() > 0)
	}
	// Output:
	// true
	// true
}

// A lock that a majority of three servers must grant.
func ExampleQuorum() {
	ctx := context.Background()
	var locks []lock.Locker
	for _, addr := range addrs { // three servers that share nothing
		c, err := client.Open(ctx, "redis://"+addr, client.WithLazyConnect()) // starts although one is down
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close(ctx)
		locks = append(locks, c.NewLock("leader", lock.WithFencing()))
	}
	leader := multilock.NewQuorum(locks, multilock.WithDurableServers()) // servers that keep their data when they restart

	h, err := leader.Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(h.Err(), h.Token() > 0) // the hold has a token, because all locks use lock.WithFencing
	fmt.Println(h.Unlock(ctx))
	// Output:
	// <nil> true
	// <nil>
}

// Options for how long a call waits, how long its hold may last, and the minimum validity of a hold.
func ExampleQuorum_options() {
	ctx := context.Background()
	var locks []lock.Locker
	for _, addr := range addrs { // three servers that share nothing
		c, err := client.Open(ctx, "redis://"+addr, client.WithLazyConnect()) // starts although one is down
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close(ctx)
		locks = append(locks, c.NewLock("leader"))
	}
	leader := multilock.NewQuorum(locks, multilock.WithDurableServers(),
		multilock.WithWait(5*time.Second), // instead of lock.WithWait of the locks
		multilock.WithMaxHold(time.Hour),
		multilock.WithMinValidity(10*time.Second), // no hold that is about to expire
		multilock.WithServerTimeout(time.Second),  // for servers on other continents, which take longer than 50 ms to reply
	)

	h, err := leader.Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(time.Until(h.Until()) > 9*time.Second)
	fmt.Println(h.Unlock(ctx))
	// Output:
	// true
	// <nil>
}

// Servers that write each command to disk before they reply (appendfsync always) keep their data when they restart, and vote
// immediately. Other servers vote only after the longest lease of any process that uses the lock has passed.
func ExampleWithDurableServers() {
	ctx := context.Background()
	var locks []lock.Locker
	for _, addr := range addrs { // three servers that share nothing
		c, err := client.Open(ctx, "redis://"+addr, client.WithLazyConnect()) // starts although one is down
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close(ctx)
		locks = append(locks, c.NewLock("leader"))
	}

	durable := multilock.NewQuorum(locks, multilock.WithDurableServers())
	fmt.Println(lock.Do(ctx, durable, func(context.Context) error { return nil }))

	others := multilock.NewQuorum(locks, multilock.WithMaxLease(time.Minute))
	err := lock.TryDo(ctx, others, func(context.Context) error { return nil })
	if err != nil && !errors.Is(err, lock.ErrNotAcquired) { // the lock is free
		fmt.Println("no majority has a vote yet")
	}
	// Output:
	// <nil>
	// no majority has a vote yet
}
