package session

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/lock"
)

// What a kind needs whose callers wait without an owner, as those of a latch do.

// Enter counts a call or a goroutine, for whose Leave Close waits. It fails after Close.
func (s *Session) Enter() error { return s.enter() }

// Leave ends what Enter began.
func (s *Session) Leave() { s.sender.Done() }

// Closing returns a channel that is closed when Close begins.
func (s *Session) Closing() <-chan struct{} { return s.closer.closing }

// Subscribe calls look when something is published to channel, and when a message may have been missed. look must not
// block. The caller closes the subscription.
func (s *Session) Subscribe(channel string, look func()) *pubsub.Subscription {
	sub, already := s.hub.Subscribe(channel, func(string) { look() }, look)
	if already {
		look()
	}
	return sub
}

// Clients adds to state which clients the holders are of, if Redis says it in time.
func (s *Session) Clients(ctx context.Context, state *lock.State) { s.name(ctx, state) }

// AskedSince returns since when an owner asks, as its string tells; the zero time if the string is not one of ours.
func AskedSince(owner string) time.Time { return askedSince(owner) }
