package session

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// The methods in this file are for kinds whose callers wait without an owner, such as latches.

// Enter registers a call or a goroutine. Close waits for its Leave. Enter fails after Close.
func (s *Session) Enter() error { return s.sender.Enter() }

// Leave unregisters a call that Enter registered.
func (s *Session) Leave() { s.sender.Done() }

// Closing returns a channel that is closed when Close begins.
func (s *Session) Closing() <-chan struct{} { return s.sender.Closing() }

// Subscribe calls look when a message is published to channel, and when a message may have been missed. look must not
// block. The caller closes the subscription.
func (s *Session) Subscribe(channel string, look func()) *pubsub.Subscription {
	sub, already := s.hub.Subscribe(channel, func(string) { look() }, look)
	if already {
		look()
	}
	return sub
}

// Share calls f with the connection of the subscriptions, for a command about key. It reports false, and does not call f,
// if that connection is at another node.
func (s *Session) Share(ctx context.Context, key string, f func(rueidis.DedicatedClient) error) (bool, error) {
	return s.hub.Share(ctx, key, f)
}

// MayLive returns how long a command that was sent for h, a hold of s, can keep it in Redis.
func (s *Session) MayLive(h lock.Hold) time.Duration {
	t := h.(*hold).acquisition()
	return locked(t.at, t.MayLive)
}

// Clients adds the clients of the holders to state, if Redis replies in time.
func (s *Session) Clients(ctx context.Context, state *lock.State) { s.name(ctx, state) }

// AskedSince returns the time in an owner string at which the owner began to wait. It returns the zero time for owner
// strings of other libraries.
func AskedSince(owner string) time.Time { return askedSince(owner) }
