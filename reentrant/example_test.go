package reentrant_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/reentrant"
)

// A nested call re-enters by the context of the hold. An operator takes the lock away by force.
func ExampleLock() {
	redis := exampletest.Start()
	defer redis.Close()
	var account *reentrant.Lock = redis.Client().NewLock("account:7")

	err := lock.Do(context.Background(), account, func(held context.Context) error {
		fmt.Println("nested:", lock.Do(held, account, func(context.Context) error { return nil }))
		state, err := account.Inspect(held)
		fmt.Println(state.Mode, err)
		forced, err := account.ForceUnlock(held)
		fmt.Println("taken away:", forced, err)
		return nil
	})
	fmt.Println(errors.Is(err, lock.ErrLost))
	// Output:
	// nested: <nil>
	// exclusive <nil>
	// taken away: true <nil>
	// true
}
