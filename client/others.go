package client

import (
	"github.com/leasehold-go/leasehold/bloom"
	"github.com/leasehold-go/leasehold/fairlock"
	"github.com/leasehold-go/leasehold/internal/board"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// NewLatch returns a handle of the countdown latch called name. Callers wait until its count
// reaches zero. NewLatch sends no command. An invalid name makes the first call fail. The name,
// with the key prefix of the client, must not contain braces.
//
// Java services use RedissonClient.getCountDownLatch(name).
func (c *Client) NewLatch(name string) *latch.Latch {
	return c.latches.New(name)
}

// NewWaitGroup returns a handle of the wait group called name. Its workers have leases, and callers
// wait until all workers are done. NewWaitGroup sends no command. An invalid name or option makes
// the first call fail.
func (c *Client) NewWaitGroup(name string, opts ...lock.Option) *latch.WaitGroup {
	c.used()
	return c.latches.NewWaitGroup(name, opts...)
}

// NewElection returns a handle of the leader election called name. The holder of the fair lock of
// that name is the leader, and candidates become leader first-come, first-served. NewElection sends
// no command. An invalid name or option makes the first call fail. With [lock.WithFencing], a
// leader can publish its value even after the clock of the server moved backward.
func (c *Client) NewElection(name string, opts ...lock.Option) *leader.Election {
	return leader.New(fairlock.NewForElection(c.used(), name, opts...), c.NewLeaderStore(name))
}

// NewLeaderStore returns the value store of the leader called name. Use it for an election by a
// lock other than a fair lock, as in leader.New(l, c.NewLeaderStore(l.Name())). It sends no
// command. An invalid name makes the first call fail.
func (c *Client) NewLeaderStore(name string) leader.Store {
	return board.New(c.session, name)
}

// NewRateLimiter returns a rate limiter whose limits apply to each key, across all processes that
// use the name. The policy onFailure sets what the limiter decides when Redis is unavailable. There
// is no default. NewRateLimiter sends no command. An invalid name, policy or limit makes the
// first call fail. A name must not contain a colon. Create the limiter once, because it batches the
// calls of its callers.
func (c *Client) NewRateLimiter(name string, onFailure ratelimit.Policy, limits ...ratelimit.Limit) *ratelimit.Limiter {
	return ratelimit.On(c.sender, name, onFailure, limits...)
}

// NewRedissonRateLimiter returns a handle of the Redisson-compatible rate limiter called name. It
// sends no command. An invalid name makes the first call fail. If no Java service shares the
// limiter, NewRateLimiter costs less and does more.
//
// Java services use RedissonClient.getRateLimiter(name) with RateType.OVERALL.
func (c *Client) NewRedissonRateLimiter(name string) *ratelimit.RedissonLimiter {
	return ratelimit.RedissonLimiterOn(c.sender, name)
}

// NewBloomFilter returns a handle of the Bloom filter called name. It sends no command. An invalid
// name makes the first call fail.
//
// Java services use RedissonClient.getBloomFilter(name, StringCodec.INSTANCE), or no codec if the
// handle has [bloom.WithKryo5].
func (c *Client) NewBloomFilter(name string, opts ...bloom.Option) *bloom.Filter {
	return bloom.On(c.sender, name, opts...)
}

// NewShardedBloomFilter returns a handle of the Bloom filter called name, split into several
// filters. Use it for a cluster or for more than 512 MB. It sends no command. An invalid name or
// number makes the first call fail.
func (c *Client) NewShardedBloomFilter(name string, shards int, opts ...bloom.Option) *bloom.Sharded {
	return bloom.ShardedOn(c.sender, name, shards, opts...)
}
