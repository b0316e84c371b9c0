package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// All observers of a client hear of everything, each only of what it asks for, and with the
// caller's context.
func TestWithObserver_several(t *testing.T) {
	t.Parallel()
	type key struct{}
	var told []string
	tell := func(who string) func(context.Context, lock.Event) {
		return func(ctx context.Context, e lock.Event) {
			told = append(told, fmt.Sprint(who, " ", e.Kind, " ", ctx.Value(key{})))
		}
	}
	c := open(t, redistest.Start(t).Client(t),
		client.WithObserver(lock.Observer{Granted: tell("first")}),
		client.WithObserver(lock.Observer{}),
		client.WithObserver(lock.Observer{Granted: tell("second"), Released: tell("second")}),
	)
	ctx := context.WithValue(t.Context(), key{}, "caller")
	for kind, l := range map[string]lock.Locker{"plain": c.NewLock("a"), "fair": c.NewFairLock("b"), "rw": c.NewRWLock("c").Read()} {
		told = nil
		h, err := l.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Unlock(context.Background()); err != nil { // another context than the call's
			t.Error(err)
		}
		want := []string{"first " + kind + " caller", "second " + kind + " caller", "second " + kind + " caller"}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	}
}
