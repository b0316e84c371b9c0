package admin

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A Key is a Redis key that belongs to a lock.
type Key struct {
	Name string
	Type string        // Redis type: hash, list, zset or string
	Role string        // short description of its content
	Left time.Duration // time until the key expires; lock.NoExpiry if it does not
}

// Keys returns the Redis keys of l, which Inspect or a list has returned. The key of the lock is
// first. The entries of the clients that hold it or wait for it are last. Keys omits the lease keys
// of readers, whose names contain the owners. For a split filter it returns only the first four. It
// omits keys that the user lacks permission to read.
func (a *Admin) Keys(ctx context.Context, l Lock) ([]Key, error) {
	found, err := a.keysOf(ctx, l)
	if err != nil {
		return nil, a.failed(ctx, "list keys", l.Name, err)
	}
	return found, nil
}

func (a *Admin) keysOf(ctx context.Context, l Lock) (found []Key, err error) {
	if err := keys.Check("", l.Name); err != nil && l.Kind != RateLimit {
		return nil, err
	}
	if all := others(l); all != nil {
		return a.there(ctx, all)
	}
	all := []Key{{Name: l.Name, Type: "hash", Role: "the holders"}}
	switch l.Kind {
	case Fair:
		k := keys.Fair(l.Name)
		all = append(all, Key{Name: k.Queue, Type: "list", Role: "the queue"}, Key{Name: k.Timeouts, Type: "zset", Role: "the waiter timeouts"})
	case ReadWrite:
		k := keys.ReadWrite(l.Name)
		all = append(all, Key{Name: k.Intent, Type: "string", Role: "the writer intent, which readers wait for"}, Key{Name: k.Reservation, Type: "string", Role: "the reader reservation, which writers wait for"})
	}
	if l.Kind == Latch {
		k := keys.Latch(l.Name)
		all = []Key{{Name: l.Name, Type: "string", Role: "the count"}, {Name: k.Rounds, Type: "hash", Role: "the rounds of the latch"},
			{Name: k.Calls, Type: "zset", Role: "the counted calls"}}
	}
	if l.Kind == WaitGroup {
		all = []Key{{Name: keys.WaitGroup(l.Name).Lock, Type: "zset", Role: "the workers and their leases"}}
	}
	if l.Kind == Semaphore {
		k := keys.Semaphore(l.Name)
		all[0] = Key{Name: l.Name, Type: "string", Role: "the number of free permits"}
		all = append(all, Key{Name: k.Leases, Type: "zset", Role: "the held permits and their leases"},
			Key{Name: k.Queue, Type: "list", Role: "the queue"}, Key{Name: k.Timeouts, Type: "zset", Role: "the waiter timeouts"},
			Key{Name: k.Slots, Type: "hash", Role: "the slots of permits and their fencing tokens"})
	}
	all = append(all, Key{Name: keys.Tokens(l.Name), Type: "string", Role: "the highest fencing token"},
		Key{Name: keys.Forced(l.Name), Type: "string", Role: "the audit record of a force-unlock"},
		Key{Name: keys.Leader(l.Name).Lock, Type: "hash", Role: "the leader value"})
	seen := make(map[string]bool)
	entry := func(owner string, c lock.Client) {
		if id := lock.ClientID(owner); c.Known() && !seen[id] {
			seen[id] = true
			all = append(all, Key{Name: keys.Client(id), Type: "hash", Role: "the registry entry of " + c.String()})
		}
	}
	for _, h := range l.Holders {
		entry(h.Owner, h.Client)
	}
	for _, w := range l.Waiters {
		entry(w.Owner, w.Client)
	}
	return a.there(ctx, all)
}

// mostListed is the maximum number of parts of a split filter whose keys are listed.
const mostListed = 4

// others returns the keys of a rate limiter or a filter, or nil for anything else.
func others(l Lock) (all []Key) {
	switch l.Kind {
	case RateLimit:
		return []Key{{Name: l.Name, Type: "string", Role: "the used quota of each limit"}}
	case RedissonRateLimit:
		k := keys.Window(l.Name)
		return []Key{{Name: k.Config, Type: "hash", Role: "the rate"}, {Name: k.Value, Type: "string", Role: "the number of remaining permits"},
			{Name: k.Permits, Type: "zset", Role: "the used permits, with the time of each"}}
	case Bloom:
		names := []string{l.Name}
		for i := range min(l.Filter.Shards, mostListed) {
			names = append(names, shardName(l.Name, i))
		}
		if len(names) > 1 {
			names = names[1:]
		}
		for _, name := range names {
			bits, config := keys.Bloom(name)
			all = append(all, Key{Name: config, Type: "hash", Role: "the parameters"}, Key{Name: bits, Type: "string", Role: "the bits"})
		}
	}
	return all
}

// there returns the keys that exist in Redis, with their remaining time.
func (a *Admin) there(ctx context.Context, all []Key) (found []Key, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	questions := make(rueidis.Commands, len(all))
	for i, k := range all {
		questions[i] = a.rdb.B().Pttl().Key(k.Name).Build()
	}
	for i, reply := range a.rdb.DoMulti(ctx, questions...) {
		left, err := reply.AsInt64()
		if _, refused := rueidis.IsRedisErr(err); err != nil && !refused {
			return nil, luascripts.Discreet(err)
		}
		if err != nil || left == -2 {
			continue
		}
		k := all[i]
		k.Left = lock.NoExpiry
		if left >= 0 {
			k.Left = ms(left)
		}
		found = append(found, k)
	}
	return found, nil
}
