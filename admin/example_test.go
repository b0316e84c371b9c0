package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// hold starts a server in memory with a lock that is held, and an Admin of it.
func hold(ctx context.Context, name string, opts ...admin.Option) (a *admin.Admin, h lock.Hold, closeAll func()) {
	redis := exampletest.Start()
	a, err := admin.New(redis.Redis(), opts...)
	if err != nil {
		log.Fatal(err)
	}
	h, err = redis.Client(client.WithName("billing")).NewLock(name).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	return a, h, redis.Close
}

// Which locks are held, and by whom?
func ExampleAdmin() {
	ctx := context.Background()
	a, h, closeAll := hold(ctx, "orders:42")
	defer closeAll()

	for l, err := range a.Locks(ctx, admin.Query{Match: admin.Prefix("orders:"), Kind: admin.Plain}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(l.Name, l.Kind, l.Mode, l.Holding, l.Waiting, l.Holders[0].Owner == h.Owner())
	}
	// Output: orders:42 plain exclusive 1 0 true
}

// A web page that lists locks asks for one page after the other.
func ExampleAdmin_Page() {
	ctx := context.Background()
	a, _, closeAll := hold(ctx, "orders:42")
	defer closeAll()

	for cursor := ""; ; {
		page, err := a.Page(ctx, admin.Query{}, cursor)
		if err != nil {
			log.Fatal(err)
		}
		for _, l := range page.Locks {
			fmt.Println(l.Name)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	// Output: orders:42
}

// How do rate limiters and filters stand?
func ExampleAdmin_Inspect() {
	ctx := context.Background()
	redis := exampletest.Start()
	defer redis.Close()
	c := redis.Client()
	_, err1 := c.NewRateLimiter("api", ratelimit.Closed(), ratelimit.PerHour(10)).Take(ctx, "alice", 5)
	_, err2 := c.NewWindow("sms").Init(ctx, 10, time.Hour)
	_, err3 := c.NewWindow("sms").Take(ctx, 7)
	_, err4 := c.NewBloomFilter("seen").Init(ctx, 1000, .01)
	_, err5 := c.NewBloomFilter("seen").Add(ctx, []byte("a"), []byte("b"))
	a, err6 := admin.New(redis.Redis())
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		log.Fatal(err)
	}

	for _, kind := range []admin.Kind{admin.RateLimit, admin.Window, admin.Bloom} {
		for l, err := range a.Locks(ctx, admin.Query{Kind: kind}) {
			if err == nil {
				l, err = a.Inspect(ctx, l.Name)
			}
			switch {
			case err != nil:
				log.Fatal(err)
			case l.Limit != nil:
				fmt.Println(l.Name, "has a full bucket again in", l.Limit.Owed[0].Full.Round(time.Minute))
			case l.Window != nil:
				fmt.Println(l.Name, "has", l.Window.Left, "of", l.Window.Rate, "units left")
			case l.Filter != nil:
				fmt.Println(l.Name, "has", l.Filter.Elements(), "elements and room for", l.Filter.Expected)
			}
		}
	}
	// Output:
	// api:alice has a full bucket again in 30m0s
	// sms has 3 of 10 units left
	// seen has 2 elements and room for 1000
}

// Which keys of Redis belong to a lock?
func ExampleAdmin_Keys() {
	ctx := context.Background()
	a, _, closeAll := hold(ctx, "orders:42")
	defer closeAll()

	l, err := a.Inspect(ctx, "orders:42")
	if err != nil {
		log.Fatal(err)
	}
	keys, err := a.Keys(ctx, l)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(keys[0].Name, keys[0].Type, keys[0].Left > 0)
	// Output: orders:42 hash true
}

// An operator takes a lock from a holder that is stuck, and from no other.
func ExampleAdmin_Unlock() {
	ctx := context.Background()
	a, h, closeAll := hold(ctx, "orders:42", admin.WithOperator("alice"), admin.WithOpTimeout(10*time.Second))
	defer closeAll()

	unlocked, err := a.Unlock(ctx, "orders:42", h.Owner(), "stuck, ticket 815")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(unlocked.Holders), unlocked.NoteErr)
	l, err := a.Inspect(ctx, "orders:42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Locked(), l.Forced.By, l.Forced.Reason)
	// Output:
	// 1 <nil>
	// false alice stuck, ticket 815
}

// What happens to a lock, until the loop ends.
func ExampleAdmin_Watch() {
	ctx := context.Background()
	a, h, closeAll := hold(ctx, "orders:42")
	defer closeAll()

	for e, err := range a.Watch(ctx, "orders:42") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.What, e.Lock.Name, e.Owner == h.Owner())
		switch e.What {
		case admin.Seen:
			_ = h.Unlock(ctx)
		case admin.Released:
			return
		}
	}
	// Output:
	// seen orders:42 true
	// released orders:42 true
}
