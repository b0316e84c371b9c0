package fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/redis/rueidis"
)

// A holder locks, works, and writes its result behind a guard.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Print(err)
		return
	}
	defer rdb.Close()
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		log.Print(err)
		return
	}

	h, err := c.NewLock("report").Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)
	// … write the report, however long that takes …
	err = guard.Set(h.Context(), h.Token(), "report:text", "all is well")
	switch {
	case errors.Is(err, fence.ErrStale):
		fmt.Println("somebody else has begun anew; this report is for the bin")
	case err != nil:
		log.Print(err)
	default:
		fmt.Println("written")
	}
	// Output: written
}

func ExampleRedis() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		log.Print(err)
		return
	}

	const first, second = 1795225388576199, 1795225388576200 // of two holders, as Hold.Token returns them
	fmt.Println(guard.Set(ctx, second, "stock:7", "9"))
	fmt.Println(guard.Set(ctx, first, "stock:7", "11")) // this holder was paused
	// Output:
	// <nil>
	// leasehold: fenced set "stock:7": stale fencing token 1795225388576199: highest token seen is 1795225388576200
}

// Your script gets its own KEYS and ARGV, and runs only if the token is not stale.
func ExampleRedis_Run() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		log.Print(err)
		return
	}

	const first, second = 1795225388576199, 1795225388576200 // of two holders, as Hold.Token returns them
	setFor := fence.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])`)
	reply, err := guard.Run(ctx, second, setFor, []string{"session:7"}, "open", "60000")
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(reply.ToString())
	_, err = guard.Run(ctx, first, setFor, []string{"session:7"}, "closed", "60000")
	fmt.Println(errors.Is(err, fence.ErrStale))
	// Output:
	// OK <nil>
	// true
}

// A mark guards data of one process: check and write are one step.
func ExampleMark_Do() {
	const first, second = 1795225388576199, 1795225388576200 // of two holders, as Hold.Token returns them
	var mark fence.Mark
	price := 0
	set := func(token uint64, to int) error {
		return mark.Do(token, func() error { price = to; return nil })
	}
	fmt.Println(set(second, 20), price)
	fmt.Println(set(first, 10), price)
	// Output:
	// <nil> 20
	// leasehold: fence: stale fencing token 1795225388576199: highest token seen is 1795225388576200 20
}

func ExampleMarks() {
	const first, second = 1795225388576199, 1795225388576200 // of two holders, as Hold.Token returns them
	var marks fence.Marks
	fmt.Println(marks.Of("account:1").Check(second))
	fmt.Println(marks.Of("account:2").Check(first)) // another account, another lock
	fmt.Println(marks.Of("account:1").Check(first))
	// Output:
	// <nil>
	// <nil>
	// leasehold: fence "account:1": stale fencing token 1795225388576199: highest token seen is 1795225388576200
}

// The error has both tokens.
func ExampleStaleError() {
	const first, second = 1795225388576199, 1795225388576200 // of two holders, as Hold.Token returns them
	err := fence.Check(first, second)
	var stale *fence.StaleError
	if errors.As(err, &stale) {
		fmt.Println(errors.Is(err, fence.ErrStale), stale.Token, stale.Highest)
	}
	// Output: true 1795225388576199 1795225388576200
}

// The token counters of short-lived keys expire. No holder resumes after three days.
func ExampleWithHighestTokenExpiry() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	guard, err := fence.NewRedis(rdb, fence.WithHighestTokenExpiry(72*time.Hour))
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(guard.Set(ctx, 1795225388576199, "session:8", "open"))
	// Output: <nil>
}
