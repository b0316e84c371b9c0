package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/observetest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// All observers of a client get all events for which they have a function, with the caller's context.
func TestWithObserver_several(t *testing.T) {
	t.Parallel()
	type key struct{}
	var events []string
	notify := func(who string) func(context.Context, lock.Event) {
		return func(ctx context.Context, e lock.Event) {
			events = append(events, fmt.Sprint(who, " ", e.Kind, " ", ctx.Value(key{})))
		}
	}
	c := open(t, redistest.Start(t).Client(t),
		client.WithObserver(lock.Observer{Acquired: notify("first")}),
		client.WithObserver(lock.Observer{}),
		client.WithObserver(lock.Observer{Acquired: notify("second"), Released: notify("second")}),
	)
	ctx := context.WithValue(t.Context(), key{}, "caller")
	for kind, l := range map[string]lock.Locker{"plain": c.NewLock("a"), "fair": c.NewFairLock("b"), "read": c.NewRWLock("c").Read(), "semaphore": c.NewSemaphore("d", 2)} {
		events = nil
		h, err := l.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Unlock(context.Background()); err != nil { // not the context of the call
			t.Error(err)
		}
		want := []string{"first " + kind + " caller", "second " + kind + " caller", "second " + kind + " caller"}
		if !slices.Equal(events, want) {
			t.Errorf("got events %q, want %q", events, want)
		}
	}
}

// Each event of an observer occurs with a real server, has correct fields, and has the context of its
// call.
func TestObserver(t *testing.T) {
	t.Parallel()
	r := observetest.Play(t, client.WithName("observed"))
	for _, what := range []string{"Waiting", "Acquired", "NotAcquired", "TimedOut", "Canceled", "Unavailable", "Failed", "Renewed", "RenewalFailed", "Draining", "StillRunning", "Abandoned", "HandedOff", "Kept", "Released", "Lost"} {
		all := r.Of(what)
		if len(all) == 0 {
			t.Errorf("the observer got no %s", what)
		}
		for _, e := range all {
			if e.Name == "" || e.Kind == "" || e.Mode == "" || e.ID == 0 || e.Ctx == nil {
				t.Errorf("%s: %+v", what, e)
			}
		}
	}
	one := func(what, name string) observetest.Told {
		t.Helper()
		return r.Await(t, what, name)
	}
	for name, cause := range map[string]error{"expired": lock.ErrLost, "aged": lock.ErrMaxHold, "forced": lock.ErrForceUnlocked, "gone": lock.ErrLost, "abandoned": lock.ErrAbandoned} {
		if e := one("Lost", name); !errors.Is(e.Err, cause) || !errors.Is(e.Err, lock.ErrLost) || e.Held <= 0 || e.ID != one("Acquired", name).ID || e.Ctx != one("Acquired", name).Ctx {
			t.Errorf("%s is lost by %v: %+v", name, e.Err, e)
		}
	}
	if e := one("Released", "drains"); e.Err != nil || e.Draining <= 0 || e.Draining >= e.Held || e.ID != one("Draining", "drains").ID || e.ID != one("StillRunning", "drains").ID {
		t.Errorf("a release after a drain: %+v", e)
	}
	if e := one("Lost", "abandoned"); e.Draining <= 0 || e.ID != one("Draining", "abandoned").ID || e.ID != one("Abandoned", "abandoned").ID {
		t.Errorf("a loss after a drain: %+v", e)
	}
	if e := one("Released", "unconfirmed"); !errors.Is(e.Err, lock.ErrUnavailable) {
		t.Errorf("a release without a reply: %v", e.Err)
	}
	if e := one("RenewalFailed", "held"); !errors.Is(e.Err, lock.ErrUnavailable) || e.Left <= 0 {
		t.Errorf("a renewal without a reply: %v, %v left", e.Err, e.Left)
	}
	if e := one("Renewed", "held"); e.Left <= 0 || e.Until.IsZero() {
		t.Errorf("a renewal: %v left, until %v", e.Left, e.Until)
	}
	if e := one("Canceled", "canceled"); e.Ctx.Err() != context.Canceled || e.Waited <= 0 || e.Took < e.Waited {
		t.Errorf("a canceled wait: %+v", e)
	}
	if e := one("Failed", "no lock"); !errors.Is(e.Err, lock.ErrWrongType) || e.Waited != 0 {
		t.Errorf("a key that is no lock: %+v", e)
	}
	if e := one("Released", "held"); e.Err != nil || e.Held <= 0 {
		t.Errorf("a release: %+v", e)
	}
}
