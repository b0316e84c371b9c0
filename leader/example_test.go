package leader_test

import (
	"context"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/leader"
)

// Each replica of a service is a candidate. The leader works, and all replicas can look up its address.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	e := c.NewElection("billing")

	err = e.Run(ctx, "http://10.0.0.7:8080", func(ctx context.Context) error {
		// ctx is canceled as soon as the leadership can no longer be guaranteed. From now on others can read the value:
		if err := e.Publish(ctx, "http://10.0.0.7:8080/ready"); err != nil {
			return err
		}
		l, leads, err := c.NewElection("billing").Leader(ctx)
		fmt.Println(l.Value, leads)
		return err
	})
	fmt.Println(err)
	_, leads, err := e.Leader(ctx)
	fmt.Println(leads, err)
	// Output:
	// http://10.0.0.7:8080/ready true
	// <nil>
	// false <nil>
}

// Any lock can elect a leader, even one of another library.
func ExampleRun() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	rounds := 0
	err = leader.Run(ctx, c.NewLock("compactor"), func(ctx context.Context) error {
		rounds++
		fmt.Println("turn", rounds)
		if rounds < 2 {
			return leader.ErrResigned // the next candidate leads, which is this process if there is no other
		}
		return nil // done
	})
	fmt.Println(err)
	// Output:
	// turn 1
	// turn 2
	// <nil>
}
