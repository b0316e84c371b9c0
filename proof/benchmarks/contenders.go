//go:build linux

package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/leaseholdprom"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// contender is a library, or a floor, opened in one process.
type contender interface {
	// Lock returns a handle of the lock called name, for one goroutine. It does no
	// I/O.
	Lock(name string) locker
	// Close closes connections and stops goroutines.
	Close()
}

// locker is a handle of a lock.
type locker interface {
	Lock(ctx context.Context) (held, error) // waits
}

// held is one acquisition.
type held interface {
	Unlock(ctx context.Context) error
}

// reader is a contender that also has read locks.
type reader interface {
	ReadLock(name string) locker
}

// extender is an acquisition that only the caller can renew.
type extender interface {
	Extend(ctx context.Context) error
}

// settings are a cell's settings for a contender.
type settings struct {
	Addr  string        // of the server, or of the proxy to it
	Lease time.Duration // the lease of a lock
	Poll  time.Duration // how often a polling contender polls; 0 is its default
	Fair  bool          // only for leasehold: fair locks

	Cluster bool // the server is a node of a cluster
}

type entry struct {
	what string // short description
	kind kind
	sets bool   // sends SET as a plain command, not in a script
	asks string // a command that requires a server with the contender's module; empty if every server will do
	open func(settings) (contender, error)
}

type kind string

const (
	ours  kind = "ours"
	peer  kind = "peer"
	floor kind = "floor" // a bound, not a lock to use
	java  kind = "java"  // not for Go users; runs in a different type of process
)

// contenders lists all contenders, by their names in the tables.
var contenders = map[string]entry{
	"leasehold":        {what: "this library, on a rueidis client like that of f1", kind: ours, open: openLeasehold},
	"leasehold-open":   {what: "this library, with client.Open and no options", kind: ours, open: openLeaseholdByURL},
	"async":            {what: "this library, with lock.WithAsyncUnlock", kind: ours, open: openAsync},
	"observed":         {what: "this library, with the metrics of leaseholdprom", kind: ours, open: openWith(observed)},
	"unregistered":     {what: "this library, without the registry entry of the client", kind: ours, open: openWith(unregistered)},
	"lingering":        {what: "this library, with locks that linger for 100 ms", kind: ours, open: openLingering},
	"permits":          {what: "this library: permits of one semaphore instead of locks", kind: ours, open: openPermits},
	"decr":             {what: "a floor: a latch counted down by a script with DECR and PUBLISH", kind: floor, open: openDecr},
	"gcra":             {what: "a floor: GCRA for one limit in a minimal script", kind: floor, open: openGCRA},
	"redis_rate":       {what: "redis_rate on go-redis", kind: peer, open: openRedisRate},
	"rueidislimiter":   {what: "rueidislimiter, which counts in fixed windows", kind: peer, open: openRueidislimiter},
	"throttled":        {what: "throttled on go-redis: TIME and GET, then compare and swap by a script", kind: peer, open: openThrottled},
	"scripted":         {what: "a bound: a Bloom filter with Redisson's layout, read bit by bit in a script", kind: floor, open: openScripted},
	"redisbloom":       {what: "RedisBloom: a module with its own commands and filter format", kind: peer, asks: "BF.EXISTS none none", open: openRedisBloom},
	"memory":           {what: "a bound: bits-and-blooms, in the memory of one process", kind: floor, open: openMemory},
	"f1":               {what: "a floor: SET NX PX, and compare-and-delete by a script; no waiting", kind: floor, sets: true, open: openF1},
	"f2":               {what: "a floor: a minimal hash lock with Redisson's layout", kind: floor, open: openF2},
	"f3":               {what: "a floor: unlock and grant in one script", kind: floor, open: openF3},
	"f4":               {what: "a floor: f3, with up to 32 hand-offs in a row inside a process", kind: floor, open: openF4},
	"rueidislock":      {what: "rueidislock as its README recommends for one server: KeyMajority 1, NoLoopTracking", kind: peer, open: openRueidislock(true)},
	"rueidislock-loop": {what: "rueidislock with KeyMajority 1 alone", kind: peer, open: openRueidislock(false)},
	"redsync-rueidis":  {what: "redsync on rueidis", kind: peer, sets: true, open: openRedsyncRueidis},
	"redsync-goredis":  {what: "redsync on go-redis", kind: peer, sets: true, open: openRedsyncGoredis},
	"redisson":         {what: "Redisson, in Java, with operating system threads", kind: java},
	"redislock":        {what: "bsm/redislock on go-redis", kind: peer, open: openRedislock},
}

// rueidisClient connects with the same options for all contenders on rueidis that accept a client.
func rueidisClient(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
}

// goRedisClient connects with the same options for all contenders on go-redis.
func goRedisClient(s settings) redis.UniversalClient {
	if s.Cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr}})
	}
	return redis.NewClient(&redis.Options{Addr: s.Addr})
}

type leasehold struct {
	client  *client.Client
	rdb     rueidis.Client // nil if the contender makes its own
	fair    bool
	options []lock.Option
}

func openLeasehold(s settings) (contender, error) { return openWith(nil)(s) }

// openWith returns a function that opens leasehold with more options.
func openWith(more func() (client.Option, error)) func(settings) (contender, error) {
	return func(s settings) (contender, error) {
		options := []client.Option{client.WithWatchdogTimeout(s.Lease)}
		if more != nil {
			o, err := more()
			if err != nil {
				return nil, err
			}
			options = append(options, o)
		}
		rdb, err := rueidisClient(s.Addr)
		if err != nil {
			return nil, err
		}
		c, err := client.New(rdb, options...)
		return leasehold{client: c, rdb: rdb, fair: s.Fair}, err
	}
}

func observed() (client.Option, error) {
	m, err := leaseholdprom.New()
	if err != nil {
		return nil, err
	}
	return client.WithObserver(m.Observer()), nil
}

func unregistered() (client.Option, error) { return client.WithoutRegistry(), nil }

func openLeaseholdByURL(s settings) (contender, error) {
	c, err := client.Open(context.Background(), "redis://"+s.Addr, client.WithWatchdogTimeout(s.Lease))
	return leasehold{client: c, fair: s.Fair}, err
}

func (l leasehold) Lock(name string) locker {
	if l.fair {
		return leaseholdLock{l.client.NewFairLock(name, l.options...)}
	}
	return leaseholdLock{l.client.NewLock(name, l.options...)}
}

func openAsync(s settings) (contender, error) {
	// The server is flushed between slices, perhaps before the last release, which then logs an error.
	c, err := openWith(func() (client.Option, error) { return client.WithLogger(slog.New(slog.DiscardHandler)), nil })(s)
	if err != nil {
		return nil, err
	}
	l := c.(leasehold)
	l.options = []lock.Option{lock.WithAsyncUnlock()}
	return l, nil
}

func (l leasehold) ReadLock(name string) locker {
	return leaseholdLock{l.client.NewRWLock(name).Read()}
}

// lingering has locks that linger.
type lingering struct{ leasehold }

func openLingering(s settings) (contender, error) {
	l, err := openLeasehold(s)
	if err != nil {
		return nil, err
	}
	return lingering{l.(leasehold)}, nil
}

func (l lingering) Lock(name string) locker {
	// Less than the time between two slices, which begin with an empty server.
	return leaseholdLock{l.client.NewLock(name, lock.WithLinger(100*time.Millisecond))}
}

// permits acquires a permit of a single semaphore for each lock.
type permits struct{ leasehold }

func openPermits(s settings) (contender, error) {
	l, err := openLeasehold(s)
	if err != nil {
		return nil, err
	}
	return permits{l.(leasehold)}, nil
}

func (p permits) Lock(string) locker { return leaseholdLock{p.client.NewSemaphore("bench", 100_000)} }

func (l leasehold) Close() {
	_ = l.client.Close(context.Background())
	if l.rdb != nil {
		l.rdb.Close()
	}
}

type leaseholdLock struct{ lock.Locker }

func (l leaseholdLock) Lock(ctx context.Context) (held, error) { return l.Locker.Lock(ctx) }
