package multilock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// Two accounts, all or none. The order in which they are given does not matter.
func ExampleLock() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	c := redis.Client()
	from, to := c.NewLock("account:1"), c.NewLock("account:2")

	err := lock.Do(ctx, multilock.New(from, to), func(ctx context.Context) error {
		_, err := multilock.New(to, from).TryLock(context.Background()) // another owner
		fmt.Println("another owner:", errors.Is(err, lock.ErrNotAcquired))
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// another owner: true
	// <nil>
}

// The members of a hold, each with the token for its own resource.
func ExampleHolds() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	c := redis.Client()
	h, err := multilock.New(c.NewLock("account:1"), c.NewLock("account:2")).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Unlock(ctx)
	for _, member := range multilock.Holds(h) {
		fmt.Println(member.Token() > 0)
	}
	// Output:
	// true
	// true
}

// servers starts three servers that share nothing, and returns the lock called leader on each.
func servers() (locks []lock.Locker, closeAll func()) {
	var all []*exampletest.Server
	for range 3 {
		redis := exampletest.Start()
		all = append(all, redis)
		locks = append(locks, redis.Client().NewLock("leader", lock.WithFencing()))
	}
	return locks, func() {
		for _, redis := range all {
			redis.Close()
		}
	}
}

// A lock that a majority of three servers has to grant.
func ExampleQuorum() {
	locks, closeAll := servers()
	defer closeAll()
	leader := multilock.NewQuorum(locks, multilock.WithDurableServers())

	h, err := leader.Lock(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(h.Err(), h.Token() > 0) // a token, as all locks are made with lock.WithFencing
	fmt.Println(h.Unlock(context.Background()))
	// Output:
	// <nil> true
	// <nil>
}

// How long a call waits, and how long its hold may last.
func ExampleQuorum_options() {
	locks, closeAll := servers()
	defer closeAll()
	leader := multilock.NewQuorum(locks, multilock.WithDurableServers(),
		multilock.WithWait(5*time.Second), // and not lock.WithWait of the locks
		multilock.WithMaxHold(time.Hour),
	)
	fmt.Println(lock.Do(context.Background(), leader, func(context.Context) error { return nil }))
	// Output: <nil>
}

// Servers that write each command to disk before they answer (appendfsync always) forget nothing when they start again, and
// have a vote at once. Without the option, servers that have just started have none.
func ExampleWithDurableServers() {
	locks, closeAll := servers()
	defer closeAll()
	durable := multilock.NewQuorum(locks, multilock.WithDurableServers())
	fmt.Println(lock.Do(context.Background(), durable, func(context.Context) error { return nil }))

	_, err := multilock.NewQuorum(locks).TryLock(context.Background())
	fmt.Println(err == nil)
	// Output:
	// <nil>
	// false
}

// The longest lease of any process that uses the lock: for so long a server that has just started has no vote.
func ExampleWithLongestLease() {
	locks, closeAll := servers()
	defer closeAll()
	leader := multilock.NewQuorum(locks, multilock.WithLongestLease(time.Minute))
	_, err := leader.TryLock(context.Background())
	fmt.Println("servers that have just started grant nothing:", err != nil)
	// Output: servers that have just started grant nothing: true
}

// A caller that needs ten seconds at least gets no hold that is almost over.
func ExampleWithMinValidity() {
	locks, closeAll := servers()
	defer closeAll()
	leader := multilock.NewQuorum(locks, multilock.WithDurableServers(), multilock.WithMinValidity(10*time.Second))
	h, err := leader.Lock(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(time.Until(h.Until()) > 9*time.Second)
	_ = h.Unlock(context.Background())
	// Output: true
}

// Servers on other continents need longer than 50 ms to answer.
func ExampleWithServerTimeout() {
	locks, closeAll := servers()
	defer closeAll()
	leader := multilock.NewQuorum(locks, multilock.WithDurableServers(), multilock.WithServerTimeout(time.Second))
	fmt.Println(lock.Do(context.Background(), leader, func(context.Context) error { return nil }))
	// Output: <nil>
}
