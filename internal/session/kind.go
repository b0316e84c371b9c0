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

// Kind is what a kind of lock adds to the session: its scripts, and how its waiters wait.
// The two sides of a read/write lock are a kind each. It never changes.
type Kind struct {
	Name        string // as an observer knows it
	DisplayName string // what errors call it: "a plain lock"
	Scripts

	// Joins says that Acquire, Release and Pass are those of plain locks, so that the
	// commands of several calls can travel together: luascripts.ChangeReentrant.
	Batches bool

	// Waits is how the waiters wait.
	WaitPolicy lockstate.WaitPolicy

	// Queues says that waiting leaves a trace in Redis for the waiter's patience, which a
	// Release that leaves nothing takes back: a position in a fair queue, a writer's wish, a
	// reader's claim to a turn.
	Queues bool

	// Mode says how an owner holds the lock. Several owners can hold it for
	// reading at once.
	Mode lock.Mode

	// Beside is the other side of a read/write lock. Other kinds have none.
	Sibling *Kind

	// Within says how often leases are renewed at least, however long they are: for a kind whose
	// locks another client can shorten. 0 stands for each third of the lease.
	MaxRenewInterval time.Duration

	// Mark comes before the number in the owner strings of a plain or a fair lock, whose hashes are alike: luascripts.FairOwner.
	Mark string

	// Anew says that each Lock is that of a new owner, also under the context of another hold: a
	// kind that is never entered again. Its holds carry on the owner of their caller.
	NonReentrant bool
}

// Scripts are the keys and the scripts of a kind.
type Scripts struct {
	Keys    func(name string) luascripts.Keys
	Acquire func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error)
	Release func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, leave int) (luascripts.Verdict, error)
	Renew   func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed

	// Pass is the Release of a kind whose locks are handed off: they go from one holder to
	// the next without becoming free in between, inside a process, and a plain lock from one
	// process to another. Other kinds have none.
	Pass func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error)

	// Keep is the heartbeat of a kind whose waiters queue in Redis. Other kinds have none.
	Keep func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, waiting []luascripts.Waiter) (luascripts.Kept, error)

	// Retain lets a lock that its owner is done with stand for a while. Kinds that have none do
	// not know lock.WithMinHold.
	Retain func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, rest time.Duration) (luascripts.Verdict, error)
}

// knows returns the options that a lock of the kind takes.
func (k *Kind) knows() lockimpl.Options {
	known := lockimpl.FixedLease | lockimpl.Wait | lockimpl.Fencing | lockimpl.Replicas | lockimpl.MaxHold | lockimpl.Grace
	if k.Queues {
		known |= lockimpl.WaiterTimeout
	}
	if k.Retain != nil {
		known |= lockimpl.MinHold
	}
	if k.Sibling != nil {
		known |= lockimpl.ReaderPreference
	}
	if k.NonReentrant {
		known &^= lockimpl.Fencing // several hold it at once, and no token is the latest
	}
	return known
}

func (k *Kind) reads() bool { return k.Mode == lock.Read }

// free releases all holds of owner, in favour of the next owner that p names if the kind passes
// its locks on.
func (k *Kind) free(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, p luascripts.Pass) (r luascripts.Passed, err error) {
	if k.Pass != nil {
		return k.Pass(ctx, rdb, keys, owner, p)
	}
	r.Verdict, err = k.Release(ctx, rdb, keys, owner, 0)
	return r, err
}

// batches reports whether the changes of the lock travel with those of others, and to which node.
func (s *Session) batches(spec *Spec) (node uint16, joins bool) {
	if spec.Batches && s.sliced() {
		node = s.node(spec.slot)
	}
	return node, spec.Batches
}

// encode fills in a change of the lock.
func (spec *Spec) encode(c *luascripts.Change, q luascripts.Question) {
	c.Keys, c.Slot, c.Question = &spec.Keys, spec.slot, q
}

// family is the kind by which the session finds the entry of k: both sides of a
// read/write lock are one place.
func (k *Kind) family() *Kind {
	if k.reads() {
		return k.Sibling
	}
	return k
}

// Spec is one lock: a kind, a name and its options. It never changes, except for at.
type Spec struct {
	*Kind
	Name   string          // as the caller gave it
	As     string          // the kind of lock that observers are told; empty for that of Kind
	Keys   luascripts.Keys // as it stands in Redis
	Config lockimpl.Config // what the options say
	Err    error           // what is wrong with the name or the options; then the fields below are zero
	slot   uint16          // on a cluster
	spare  int             // how many tokens beyond its own a holder takes from the register, as this process gives them out when it hands the lock off
	at     *entry          // the latest entry of the lock, which may be that of another lock by now. Guarded by the mutex of the table
	terms  lockstate.Terms // what the state needs to know
}

// NewSpec makes the spec of a lock. If the name or the options are wrong, Spec.Err says so.
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
	if s.Sharded {
		spec.Keys.Publish = "SPUBLISH"
	}
	if s.sliced() {
		spec.Keys.Scattered = true // its listeners can be at a replica
		spec.slot = slots.OfKey(s.rdb, spec.Keys.Lock)
	}
	if config.Fencing {
		spec.Keys.Register = keys.Tokens(mapped)
	}
	spec.terms = spec.newTerms(s.lease(spec))
	if spec.terms.Passes && config.Fencing {
		spec.spare = MaxSpare // without a register, the server's clock leaves room enough
	}
	return spec
}

// newTerms returns what the state of a lock by spec needs to know.
func (spec *Spec) newTerms(lease time.Duration) lockstate.Terms {
	terms := lockstate.Terms{
		Kind:     lockstate.Kind{WaitPolicy: spec.WaitPolicy, Reads: spec.reads(), Sided: spec.Sibling != nil, Passes: spec.Pass != nil},
		Of:       spec,
		Lease:    lease,
		Fixed:    spec.Config.Lease != 0,
		Replicas: spec.Config.Replicas > 0,
		Register: spec.Keys.Register,
		Yield:    !spec.Config.ReaderPreference,
	}
	if spec.Queues && (terms.Yield || terms.Reads) { // a writer that lets readers go first leaves no wish
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

// limits reports whether the options bound a hold.
func (spec *Spec) limits() bool { return spec.Config.MaxHold > 0 || spec.Config.Grace > 0 }

// lease returns how long a grant of spec lives without a renewal.
func (s *Session) lease(spec *Spec) time.Duration {
	switch {
	case spec.Config.Lease != 0:
		return spec.Config.Lease
	case spec.Config.MinHold != 0:
		return max(s.Lease, s.minHoldLease(spec.Config.MinHold))
	}
	return s.Lease
}

const (
	offerPolls    = 3  // for how many poll intervals a release gives the lock to the next process: what a dead process costs the others
	queueTTLPolls = 10 // for how many poll intervals a process that does not ask keeps its position in the queue, where the server cannot count listeners

	// asideTime is for how long our waiters do not ask for a lock that was released for
	// others. Redisson wakes a thread before it asks, which takes it a few times as long as
	// us.
	asideTime = 5 * time.Millisecond
)

// offer returns the lease with which a release gives spec's lock to this process, if it
// stands in the queue. The request that finds the lock given makes it a full lease.
func (s *Session) offer(spec *Spec) time.Duration { return min(offerPolls*s.Poll, spec.terms.Lease) }

// queueTTL returns how long a process that does not ask keeps its position in the queue, where the
// server cannot count listeners.
func (s *Session) queueTTL() time.Duration { return queueTTLPolls * s.Poll }

// MaxSpare is how far the register can be ahead of the token of the holder of a plain or fair lock.
const MaxSpare = lockstate.MaxPasses
