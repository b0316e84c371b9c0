package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// List the held locks and their holders.
func Example() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	a, err := admin.New(rdb)
	if err != nil {
		log.Print(err)
		return
	}
	c, err := client.New(rdb) // of an application
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close(ctx)
	h, err := c.NewLock("orders:42").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)

	for l, err := range a.Locks(ctx, admin.Query{Match: admin.Prefix("orders:"), Kind: admin.Plain}) {
		var part *admin.IncompleteError
		if errors.As(err, &part) { // a primary of a cluster did not respond
			fmt.Println("missing: the locks of", part.Missing[0].Server)
			break
		}
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Println(l.Name, l.Kind, l.Mode, l.Holding, l.Waiting, l.Holders[0].Owner == h.Owner())
	}
	// Output: orders:42 plain exclusive 1 0 true
}

// A survey lists what it has found so far, and continues with the next call.
func ExampleAdmin_Survey() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	a, err := admin.New(rdb)
	if err != nil {
		log.Print(err)
		return
	}
	c, err := client.New(rdb) // of an application
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close(ctx)
	h, err := c.NewLock("survey:1").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)

	survey := a.Survey(admin.Query{Match: admin.Prefix("survey:")})
	for complete := false; !complete; {
		found, err := survey.Look(ctx, 100*time.Millisecond)
		if err != nil {
			log.Print(err)
			return
		}
		if complete = found.Complete; complete {
			for _, l := range found.Locks {
				fmt.Println(l.Name)
			}
		}
	}
	// Output: survey:1
}

// List locks page by page, as a web page does.
func ExampleAdmin_Page() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	a, err := admin.New(rdb)
	if err != nil {
		log.Print(err)
		return
	}
	c, err := client.New(rdb) // of an application
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close(ctx)
	h, err := c.NewLock("pages:1").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)

	for cursor := ""; ; {
		page, err := a.Page(ctx, admin.Query{Match: admin.Prefix("pages:")}, cursor)
		if err != nil {
			log.Print(err)
			return
		}
		for _, l := range page.Locks {
			fmt.Println(l.Name)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	// Output: pages:1
}

// Show the state of rate limiters and filters.
func ExampleAdmin_Inspect() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	a, err := admin.New(rdb)
	if err != nil {
		log.Print(err)
		return
	}
	c, err := client.New(rdb) // of an application
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close(ctx)
	_, err1 := c.NewRateLimiter("api", ratelimit.FailClosed().After(time.Second), ratelimit.PerHour(10)).Take(ctx, "alice", 5)
	_, err2 := c.NewRedissonRateLimiter("sms").Init(ctx, 10, time.Hour)
	_, err3 := c.NewRedissonRateLimiter("sms").Take(ctx, 7)
	_, err4 := c.NewBloomFilter("seen").Init(ctx, 1000, .01)
	_, err5 := c.NewBloomFilter("seen").Add(ctx, []byte("a"), []byte("b"))
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		log.Print(err)
		return
	}

	for _, name := range []string{"api:alice", "sms", "seen"} {
		l, err := a.Inspect(ctx, name)
		switch {
		case err != nil:
			log.Print(err)
			return
		case l.Limit != nil:
			fmt.Println(l.Name, "is refilled in", l.Limit.Usage[0].Full.Round(time.Minute))
		case l.RedissonLimit != nil:
			fmt.Println(l.Name, "has", l.RedissonLimit.Left, "of", l.RedissonLimit.Rate, "permits left")
		case l.Filter != nil:
			fmt.Println(l.Name, "has", l.Filter.Elements(), "elements and room for", l.Filter.Expected)
		}
	}
	// Output:
	// api:alice is refilled in 30m0s
	// sms has 3 of 10 permits left
	// seen has 2 elements and room for 1000
}

// Show which keys in Redis belong to a lock.
func ExampleAdmin_Keys() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	a, err := admin.New(rdb)
	if err != nil {
		log.Print(err)
		return
	}
	c, err := client.New(rdb) // of an application
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close(ctx)
	h, err := c.NewLock("keys:1").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)

	l, err := a.Inspect(ctx, "keys:1")
	if err != nil {
		log.Print(err)
		return
	}
	keys, err := a.Keys(ctx, l)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(keys[0].Name, keys[0].Type, keys[0].Left > 0)
	// Output: keys:1 hash true
}

// An operator force-unlocks a lock, and removes only the holder that is stuck.
func ExampleAdmin_ForceUnlock() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	a, err := admin.New(rdb, admin.WithOperator("alice"), admin.WithOpTimeout(10*time.Second))
	if err != nil {
		log.Print(err)
		return
	}
	c, err := client.New(rdb) // of an application
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close(ctx)
	h, err := c.NewLock("stuck").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)

	unlocked, err := a.ForceUnlock(ctx, "stuck", h.Owner(), "ticket 815") // the owner that Inspect returned
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(len(unlocked.Holders), unlocked.RecordErr)
	l, err := a.Inspect(ctx, "stuck")
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(l.Locked(), l.ForceUnlock.By, l.ForceUnlock.Reason)
	// Output:
	// 1 <nil>
	// false alice ticket 815
}

// Print the events of a lock until it is released.
func ExampleAdmin_Watch() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	a, err := admin.New(rdb)
	if err != nil {
		log.Print(err)
		return
	}
	c, err := client.New(rdb) // of an application
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close(ctx)
	h, err := c.NewLock("watched").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}

	for e, err := range a.Watch(ctx, "watched") {
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Println(e.Type, e.Lock.Name, e.Owner == h.Owner())
		switch e.Type {
		case admin.Seen:
			if err := h.Unlock(ctx); err != nil {
				log.Print(err)
				return
			}
		case admin.Released:
			return
		}
	}
	// Output:
	// seen watched true
	// released watched true
}
