package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Kind describes a type of lock: its scripts, and how its waiters wait. Each side of a read/write lock has its own
// Kind. A Kind is immutable.
type Kind struct {
	Name        string // in observer events
	DisplayName string // in errors: "a plain lock"
	Scripts

	// Batches is true if Acquire and Release are the scripts of plain locks. Requests, and releases without a next
	// owner, are then sent in batches (luascripts.ChangeReentrant).
	Batches bool

	// WaitPolicy is how waiters wait.
	WaitPolicy lockstate.WaitPolicy

	// HasWaiterTimeout is true if a waiter leaves a queue position, a writer intent or a reader reservation in Redis,
	// which expires after the waiter timeout. A Release of all holds removes it. The queue of processes that wait for a
	// plain lock has a fixed time instead (queueTTL).
	HasWaiterTimeout bool

	// Mode is how an owner holds the lock. Several owners can hold it in mode Read at once.
	Mode lock.Mode

	// Sibling is the other side of a read/write lock; nil for other kinds.
	Sibling *Kind

	// MaxRenewInterval limits the renewal interval of a kind whose leases another client can shorten. The default, 0,
	// is a third of the lease.
	MaxRenewInterval time.Duration

	// Mark precedes the number in owner strings. It distinguishes plain locks from fair locks, whose hashes have the
	// same format (luascripts.FairOwner).
	Mark string

	// NonReentrant is true if each Lock has a new owner, even under the context of another hold. The contexts of its
	// holds carry the caller's owner.
	NonReentrant bool
}

// Scripts are the keys and the scripts of a kind.
type Scripts struct {
	Keys    func(name string) luascripts.Keys
	Acquire func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error)
	Release func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, leave int) (luascripts.Verdict, error)
	Renew   func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed

	// HandOff is the Release of a kind that supports hand-off: the lock goes to the next holder without becoming free.
	// The next holder of a plain lock can be in another process. Nil for other kinds.
	HandOff func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, r luascripts.Release) (luascripts.Released, error)

	// Keep is the heartbeat of a kind whose waiters queue in Redis; nil for other kinds.
	Keep func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, waiting []luascripts.Waiter) (luascripts.Kept, error)

	// Retain ends all holds but keeps the lock until rest has passed. Nil for kinds that do not support
	// lock.WithMinHold.
	Retain func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, rest time.Duration) (luascripts.Verdict, error)
}

// knows returns the options that the kind supports.
func (k *Kind) knows() lockimpl.Options {
	known := lockimpl.FixedLease | lockimpl.Wait | lockimpl.Fencing | lockimpl.Replicas | lockimpl.MaxHold | lockimpl.Grace | lockimpl.AsyncUnlock
	if k.HasWaiterTimeout {
		known |= lockimpl.WaiterTimeout
	}
	if k.Retain != nil {
		known |= lockimpl.MinHold
	}
	if k.Sibling != nil {
		known |= lockimpl.ReaderPreference
	}
	if k.Retain != nil || k.Sibling != nil {
		known |= lockimpl.Linger
	}
	if k.Mode == lock.Worker {
		known &^= lockimpl.AsyncUnlock // Done reports that the worker counts as done
	}
	if k.NonReentrant {
		known &^= lockimpl.Fencing // several owners hold it at once, so no token is the latest
	}
	return known
}

func (k *Kind) reads() bool { return k.Mode == lock.Read }

// free releases all holds of owner. If the kind supports hand-off, the lock goes to the next owner in r, if any.
func (k *Kind) free(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, r luascripts.Release) (reply luascripts.Released, err error) {
	if k.HandOff != nil {
		return k.HandOff(ctx, rdb, keys, owner, r)
	}
	reply.Verdict, err = k.Release(ctx, rdb, keys, owner, 0)
	return reply, err
}

// Spec is one lock: a kind, a name and options. It is immutable.
type Spec struct {
	*Kind
	Name    string          // without the key prefix
	As      string          // the kind in observer events; "" for Kind.Name
	Keys    luascripts.Keys // with the key prefix
	Config  lockimpl.Config // from the options
	Err     error           // set if the name or an option is invalid; the fields below are then zero
	slot    uint16          // on a cluster
	id      lockID
	channel string          // the channel on which waiters are notified; for a kind with a heartbeat, only the waiters of this client
	terms   lockstate.Terms // for package lockstate

	// Again returns the spec for a retry after err, or nil if the call must not retry. ctx ends the wait of the call: if it
	// ends before the retry, the call has timed out or is canceled. Again is nil for a spec that never changes.
	Again func(ctx context.Context, err error) *Spec

	lingerMark string // what follows the number in owner strings, with lock.WithLinger; otherwise ""
}

// NewSpec returns the spec of a lock. If the name or an option is invalid, it sets Spec.Err.
func (s *Session) NewSpec(k *Kind, name string, opts []lock.Option) *Spec {
	mapped := s.KeyPrefix + name
	config, err := lockimpl.NewConfig(k.DisplayName, k.knows(), opts...)
	spec := &Spec{Kind: k, Name: name, Config: config, Err: errors.Join(keys.Check(s.KeyPrefix, name), err)}
	if lease := s.lease(spec); spec.Err == nil && config.ReplicaTimeout > lease/2 {
		spec.Err = fmt.Errorf("WithReplicas(%d, %v): timeout must be at most half of the lease (%v)", config.Replicas, config.ReplicaTimeout, lease)
	}
	if spec.Err != nil {
		return spec
	}
	spec.Keys = k.Keys(mapped)
	spec.id = lockID{k, spec.Keys.Lock}
	if k.reads() {
		spec.id.kind = k.Sibling // both sides of a read/write lock share one entry
	}
	if s.Sharded {
		spec.Keys.Publish = "SPUBLISH"
	}
	if s.sliced() {
		spec.Keys.Scattered = true // its subscribers can be connected to a replica
		spec.slot = slots.OfKey(s.rdb, spec.Keys.Lock)
	}
	spec.channel = spec.Keys.Channel
	if k.Keep != nil {
		spec.channel = keys.OfTurns(spec.Keys.Channel, s.id)
	}
	if config.Fencing {
		spec.Keys.TokenCounter = keys.Tokens(mapped)
	}
	spec.terms = spec.newTerms(s.lease(spec))
	spec.lingerTerms()
	return spec
}

func specOf(c *lockstate.Terms) *Spec { return c.Of.(*Spec) }

// newTerms returns the terms of spec for package lockstate.
func (spec *Spec) newTerms(lease time.Duration) lockstate.Terms {
	terms := lockstate.Terms{
		Kind:         lockstate.Kind{WaitPolicy: spec.WaitPolicy, Reads: spec.reads(), Sided: spec.Sibling != nil, HandsOff: spec.HandOff != nil},
		Of:           spec,
		Lease:        lease,
		Fixed:        spec.Config.Lease != 0,
		Replicas:     spec.Config.Replicas > 0,
		TokenCounter: spec.Keys.TokenCounter,
		Yield:        !spec.Config.ReaderPreference,
	}
	if spec.HasWaiterTimeout && (terms.Yield || terms.Reads) { // with reader preference, a writer leaves no intent
		terms.WaiterTimeout = spec.Config.WaiterTimeout
	}
	if !terms.Yield {
		terms.QueueKey |= lockstate.ReaderPreference
	}
	if terms.Reads && terms.Replicas {
		terms.QueueKey |= lockstate.Replicated
	}
	return terms
}

// lease returns the lease that a grant of spec has.
func (s *Session) lease(spec *Spec) time.Duration {
	switch {
	case spec.Config.Lease != 0:
		return spec.Config.Lease
	case spec.Config.MinHold != 0: // mutant: always: the lease is longer than the operation timeout
		return max(s.Lease, s.minHoldLease(spec.Config.MinHold))
	}
	return s.Lease
}

const (
	offerPolls    = 3  // how many poll intervals an offer to another process lasts; a dead process blocks the lock for that long
	queueTTLPolls = 10 // how many poll intervals a process that does not retry keeps its queue position, if the server cannot count subscribers

	// asideTime is how long waiters of this client do not request a lock that was released for Redisson's waiters.
	// Redisson wakes a thread before it sends a request, which takes a few times as long as one of our requests.
	asideTime = 5 * time.Millisecond
)

// offer returns the lease of a lock that a release grants to the queue of this process. The request that claims the
// lock extends it to the full lease.
func (s *Session) offer(spec *Spec) time.Duration { return min(offerPolls*s.Poll, spec.terms.Lease) }

// queueTTL returns how long a process that does not retry keeps its queue position, if the server cannot count
// subscribers.
func (s *Session) queueTTL() time.Duration { return queueTTLPolls * s.Poll }

// MaxSpare is how many extra tokens the holder of a plain or fair lock reserves in the token counter, for hand-offs in
// its process. Without a counter, tokens come from the server's clock, which leaves gaps. It is small, because a counter
// that ran ahead of the server's clock would repeat tokens after a failover.
const MaxSpare = lockstate.MaxHandOffs
