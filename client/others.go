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

// What a client hands out that holds no lease.

// NewLatch returns a handle of the latch called name, which opens after so many count downs. It does no I/O; a bad name shows
// as an error of the first call. The name, with the client's key prefix, must have no braces.
//
// Java services share it by RedissonClient.getCountDownLatch(name).
func (c *Client) NewLatch(name string) *latch.Latch {
	return c.latches.New(name)
}

// NewCrew returns a handle of the crew called name: members with leases, and others that wait until all are done. It does no
// I/O; a bad name or option shows as an error of the first call.
func (c *Client) NewCrew(name string, opts ...lock.Option) *latch.Crew {
	c.used()
	return c.latches.NewCrew(name, opts...)
}

// NewElection returns a handle of the election called name: the one that holds the fair lock of that name leads, and those that want to lead
// do so in turn. It does no I/O; a bad name or option shows as an error of the first call.
func (c *Client) NewElection(name string, opts ...lock.Option) *leader.Election {
	return leader.New(fairlock.NewForElection(c.used(), name, opts...), c.NewBoard(name))
}

// NewBoard returns the board of the leader called name, for an election by another lock than a fair one: leader.New(l, c.NewBoard(l.Name())). It
// does no I/O; a bad name shows as an error of the first call.
func (c *Client) NewBoard(name string) leader.Board {
	return board.New(c.session, name)
}

// NewRateLimiter returns a limiter whose limits hold for each key, in all processes that use
// the name. onFailure says what it decides when Redis gives no answer; there is no default. It
// does no I/O; a bad name, policy or limit shows as an error of the first call. Make it
// once: what callers have in common is kept in it.
func (c *Client) NewRateLimiter(name string, onFailure ratelimit.Policy, limits ...ratelimit.Limit) *ratelimit.Limiter {
	return ratelimit.On(c.sender, name, onFailure, limits...)
}

// NewWindow returns a handle of the rate limiter called name in Redisson's layout. It does no I/O; a bad
// name shows as an error of the first call. Where no Java service has a part in it, NewRateLimiter
// costs less and does more.
//
// Java services have it by RedissonClient.getRateLimiter(name), with RateType.OVERALL.
func (c *Client) NewWindow(name string) *ratelimit.Window {
	return ratelimit.WindowOn(c.sender, name)
}

// NewBloomFilter returns a handle of the Bloom filter called name. It does no I/O; a bad name shows as an error of the
// first call.
//
// Java services have it by RedissonClient.getBloomFilter(name, StringCodec.INSTANCE), or without a codec and
// [bloom.WithKryo5] here.
func (c *Client) NewBloomFilter(name string, opts ...bloom.Option) *bloom.Filter {
	return bloom.On(c.sender, name, opts...)
}

// NewShardedBloomFilter returns a handle of the filter called name that is made of several, for a cluster or for more
// than 512 MB. It does no I/O; a bad name or number shows as an error of the first call.
func (c *Client) NewShardedBloomFilter(name string, shards int, opts ...bloom.Option) *bloom.Sharded {
	return bloom.ShardedOn(c.sender, name, shards, opts...)
}
