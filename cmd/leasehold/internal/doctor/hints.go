package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/redis/rueidis"
)

// hintLimit is the maximum time for the subscription and a notification together.
const hintLimit = 2 * patient

// pubsub checks whether a subscriber receives a notification. Notifications tell waiters that a
// lock is released; without them, waiters poll once per second. Rate limiters and filters send none.
func (e *exam) pubsub(ctx context.Context) []Check {
	channel := "redisson_lock__channel:{" + e.name + "}"
	if e.Role != "" && e.Role != "application" {
		return nil // without notifications, watch polls once per second
	}
	if !e.locks() {
		if channel = e.channel(); channel == "" {
			return nil
		}
	}
	sharded, kind := false, "plain"
	if e.rdb.Mode() == rueidis.ClientModeCluster {
		sharded = len(e.nodes) > 0 && ask(ctx, e.nodes[0], "PUBSUB", "SHARDNUMSUB").Error() == nil
	}
	if sharded {
		kind = "sharded"
	}
	took, err := e.hint(ctx, channel, sharded)
	c := Check{Name: "pubsub", Status: OK, Found: fmt.Sprintf("%s; message received in %v", kind, round(took))}
	switch {
	case denied(err):
		c.Status, c.Found, c.Advice = Warning, kind+": "+err.Error(), "grant the permissions below: until then, waiters poll once per second"
	case err != nil:
		c.Status, c.Found, c.Advice = Warning, kind+": "+err.Error(), "check why messages are lost: until then, waiters poll once per second"
	}
	return []Check{c}
}

// errLost is the error for a lost message.
var errLost = errors.New("no message received")

// hint publishes a message to a channel to which it is subscribed.
func (e *exam) hint(ctx context.Context, channel string, sharded bool) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, hintLimit, errLost)
	defer cancel()
	subscribe := e.rdb.B().Subscribe().Channel(channel).Build()
	publish := []string{"PUBLISH", channel, "doctor"}
	if sharded {
		subscribe = e.rdb.B().Ssubscribe().Channel(channel).Build()
		publish[0] = "SPUBLISH"
	}
	sent := make(chan time.Time, 1)
	sending := make(chan error, 1)
	listening := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind != "subscribe" && s.Kind != "ssubscribe" {
			return
		}
		go func() { // the hook blocks reading from the connection
			sent <- time.Now()
			err := e.rdb.Do(ctx, e.rdb.B().Arbitrary(publish[0]).Keys(channel).Args(publish[2]).Build()).Error()
			if err != nil {
				cancel()
			}
			sending <- err
		}()
	})
	arrived := false
	err = e.rdb.Receive(listening, subscribe, func(rueidis.PubSubMessage) {
		if !arrived {
			arrived, took = true, time.Since(<-sent)
			cancel()
		}
	})
	switch {
	case arrived:
		return took, nil
	case ctx.Err() == nil: // the subscription was rejected
		return 0, err
	}
	select {
	case err := <-sending:
		if err != nil {
			return 0, err
		}
	default:
	}
	return 0, context.Cause(ctx)
}

// lock acquires and releases a lock, which is the purpose of all other checks. A user that needs no locks lacks
// the permissions for that.
func (e *exam) lock(ctx context.Context) []Check {
	if !e.locks() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 4*patient) // there are two requests, and each is repeated if the server does not have the script
	defer cancel()
	c, err := client.New(e.rdb, client.WithWatchdogTimeout(8*patient), client.WithOpTimeout(2*patient), client.WithoutRegistry())
	if err != nil {
		return []Check{{Name: "lock", Status: Failure, Found: err.Error()}}
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patient)
		defer cancel()
		_ = c.Close(ctx)
	}()
	began := time.Now()
	hold, err := c.NewLock(e.name).TryLock(ctx)
	if err == nil {
		err = hold.Unlock(ctx)
	}
	if err != nil {
		return []Check{{Name: "lock", Status: Failure, Found: err.Error(), Advice: "fix the failures above"}}
	}
	return []Check{{Name: "lock", Status: OK, Found: fmt.Sprintf("acquired and released in %v", round(time.Since(began)))}}
}
