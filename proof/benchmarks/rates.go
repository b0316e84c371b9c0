//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislimiter"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
)

// Rate limiters, for the cells that begin with rate.

// rater is a contender that limits rates.
type rater interface {
	// Limit returns a function that takes a permit for a key: at most perSecond per second, in bursts of up to as many.
	Limit(perSecond int) (take, error)
}

// take reports whether it took a permit for the key.
type take func(ctx context.Context, key string) (bool, error)

// noLocks is embedded in contenders that have no locks.
type noLocks struct{}

func (noLocks) Lock(string) locker { panic("it has no locks") }

func (l leasehold) Limit(perSecond int) (take, error) {
	limiter := l.client.NewRateLimiter("bench", ratelimit.FailClosed().After(10*time.Second), ratelimit.PerSecond(int64(perSecond)))
	return func(ctx context.Context, key string) (bool, error) {
		d, err := limiter.Take(ctx, key, 1)
		return d.OK, err
	}, nil
}

// gcra is a floor, not a limiter to use: GCRA for one limit and one permit, in a minimal script. It does not report
// what remains, has no reservations, and does not survive a clock that moves backward.
type gcra struct {
	noLocks
	rdb rueidis.Client
}

var gcraTake = rueidis.NewLuaScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now)) + ARGV[1]
if tat - now > tonumber(ARGV[2]) then return {0, tat - now - ARGV[2]} end
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.max(1, math.ceil((tat - now) / 1000)))
return {1, 0}`)

func openGCRA(s settings) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	return gcra{rdb: rdb}, err
}

func (g gcra) Close() { g.rdb.Close() }

func (g gcra) Limit(perSecond int) (take, error) {
	args := []string{strconv.FormatFloat(1e6/float64(perSecond), 'f', -1, 64), "1000000"}
	return func(ctx context.Context, key string) (bool, error) {
		reply, err := gcraTake.Exec(ctx, g.rdb, []string{key}, args).AsIntSlice()
		return len(reply) > 0 && reply[0] == 1, err
	}, nil
}

// redis_rate

type redisRate struct {
	noLocks
	rdb *redis.Client
}

func openRedisRate(s settings) (contender, error) {
	return redisRate{rdb: redis.NewClient(&redis.Options{Addr: s.Addr})}, nil
}

func (r redisRate) Close() { _ = r.rdb.Close() }

func (r redisRate) Limit(perSecond int) (take, error) {
	limiter, limit := redis_rate.NewLimiter(r.rdb), redis_rate.PerSecond(perSecond)
	return func(ctx context.Context, key string) (bool, error) {
		got, err := limiter.Allow(ctx, key, limit)
		return err == nil && got.Allowed > 0, err
	}, nil
}

// rueidislimiter

type rueidisLimits struct {
	noLocks
	rdb rueidis.Client
}

func openRueidislimiter(s settings) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	return rueidisLimits{rdb: rdb}, err
}

func (r rueidisLimits) Close() { r.rdb.Close() }

func (r rueidisLimits) Limit(perSecond int) (take, error) {
	limiter, err := rueidislimiter.NewRateLimiter(rueidislimiter.RateLimiterOption{
		ClientBuilder: func(rueidis.ClientOption) (rueidis.Client, error) { return r.rdb, nil },
		Limit:         perSecond, Window: time.Second,
	})
	return func(ctx context.Context, key string) (bool, error) {
		got, err := limiter.Allow(ctx, key)
		return got.Allowed, err
	}, err
}

// throttled

type throttles struct {
	noLocks
	rdb *redis.Client
}

func openThrottled(s settings) (contender, error) {
	return throttles{rdb: redis.NewClient(&redis.Options{Addr: s.Addr})}, nil
}

func (t throttles) Close() { _ = t.rdb.Close() }

func (t throttles) Limit(perSecond int) (take, error) {
	store, err := goredisstore.NewCtx(t.rdb, "throttled:")
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(perSecond), MaxBurst: perSecond - 1})
	return func(ctx context.Context, key string) (bool, error) {
		limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}, err
}

// rate makes goroutines take permits from Begin to End.
func (w *working) rate(j job, res *result) error {
	r, ok := w.contender.(rater)
	if !ok {
		return errors.New("limits no rates")
	}
	take, err := r.Limit(j.PerSecond)
	if err != nil {
		return err
	}
	var admitted, failed atomic.Int64
	err = w.spin(j, res, func(ctx context.Context) error {
		key := "k0"
		if j.Names > 1 {
			key = "k" + strconv.Itoa(rand.IntN(j.Names))
		}
		ok, err := take(ctx, key)
		switch {
		case err != nil:
			failed.Add(1) // throttled returns an error after losing ten races
		case ok:
			admitted.Add(1)
		}
		return nil
	})
	res.Admitted, res.Failed = admitted.Load(), failed.Load()
	return err
}

// spin makes goroutines call f from Begin to End, and records the cost.
func (w *working) spin(j job, res *result, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sleepUntil(j.Begin)
	used, end := cpu(), time.Now().Add(time.Duration(j.End-monotonic()))
	type spun struct {
		n     int64
		waits histogram
		err   error
	}
	all := make(chan *spun, j.Goroutines)
	for range j.Goroutines {
		go func() {
			s := new(spun)
			defer func() { all <- s }()
			for began := time.Now(); began.Before(end) || s.n == 0; {
				if s.err = f(ctx); s.err != nil {
					return
				}
				now := time.Now()
				s.waits.note(now.Sub(began))
				began = now
				s.n++
			}
		}()
	}
	var err error
	for range j.Goroutines {
		s := <-all
		res.Total += s.n
		res.Waits.add(&s.waits)
		err = errors.Join(err, s.err)
	}
	res.CPU, res.At = cpu()-used, monotonic()
	return err
}

// rates is the slice of callers that take permits of the given number of keys for d.
func rates(keys, goroutines, perSecond int, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		if contenders[s.contender].kind == java { // its limiters store settings in Redis
			if _, err := s.one(0, job{Do: "limits", Names: keys, PerSecond: perSecond}); err != nil {
				return nil, err
			}
		}
		j := job{Do: "rate", Names: keys, Goroutines: goroutines, PerSecond: perSecond}
		if err := s.warmUp(j); err != nil {
			return nil, err
		}
		j = s.timed(j, s.time(d))
		r, got, err := s.spun(j)
		if err != nil {
			return nil, err
		}
		seconds := float64(r.At-j.Begin) / 1e9
		allowed := float64(perSecond) * (1 + seconds) * float64(keys)
		got["admitted"] = float64(r.Admitted) / min(allowed, float64(r.Total))
		got["failed"] = 0
		got["gave up"] = float64(r.Failed) / float64(r.Total)
		if k := contenders[s.contender].kind; k == ours || k == floor {
			got["failed"] = float64(r.Failed)
		}
		return got, nil
	}
}

// spun gives one worker a job that spins, and returns the metrics common to all these jobs.
func (s *stage) spun(j job) (result, sample, error) {
	if _, err := s.server.counted(); err != nil { // discard the commands that prepared the job
		return result{}, nil, err
	}
	before, err := s.server.cpu()
	if err != nil {
		return result{}, nil, err
	}
	r, err := s.one(0, j)
	if err != nil {
		return r, nil, err
	}
	after, err := s.server.cpu()
	if err != nil {
		return r, nil, err
	}
	counted, err := s.server.counted()
	if err != nil {
		return r, nil, err
	}
	total := float64(r.Total)
	return r, sample{
		"calls/s":   total / (float64(r.At-j.Begin) / 1e9),
		"sent/call": float64(counted.sentBy(contenders[s.contender])) / total,
		"server us": us(after-before) / total,
		"cpu/call":  us(r.CPU) / total,
		"p99 ms":    ms(r.Waits.quantile(0.99)),
	}, nil
}

var rateColumns = []column{
	{"calls/s", "calls/s", false, 0}, {"× redis_rate", "calls/s", true, 2}, {"admitted ÷ allowed", "admitted", false, 3}, {"gave up", "gave up", false, 3},
	{"commands/call", "sent/call", false, 4}, {"server µs/call", "server us", false, 2}, {"client CPU µs/call", "cpu/call", false, 2}, {"p99 ms", "p99 ms", false, 2},
}

var raters = []string{"gcra", "leasehold", "redis_rate", "rueidislimiter", "throttled", "redisson"}

var rateCells = []*cell{
	{
		name: "rate-keys", title: "Rate limits of 100,000 keys, 64 goroutines, all admitted",
		contenders: raters, reference: "gcra", processes: 1, more: 2,
		headlines: []headline{{text: "rate limits of 100,000 keys, 64 goroutines: calls per second", metric: "calls/s"}},
		slice:     rates(100_000, 64, 1_000_000, 500*time.Millisecond),
		columns:   append([]column{rateColumns[0], {"× gcra", "calls/s", true, 2}}, rateColumns[2:]...),
		aims:      []aim{{what: "calls/s, × the minimal script", metric: "calls/s", over: "gcra", atLeast: 0.9}},
	},
	{
		name: "rate-hot", title: "One key, 512 goroutines, all admitted",
		contenders: raters, reference: "redis_rate", processes: 1, more: 2,
		headlines: []headline{{text: "one rate limit, 512 goroutines: calls per second", metric: "calls/s"}},
		slice:     rates(1, 512, 100_000_000, 500*time.Millisecond),
		columns:   rateColumns,
		aims:      []aim{{what: "calls/s, × redis_rate", metric: "calls/s", over: "redis_rate", atLeast: 20}},
	},
	{
		name: "rate-hot-far", title: "The same, round trip 1 ms",
		contenders: raters, reference: "redis_rate", processes: 1, roundTrip: time.Millisecond,
		slice:   rates(1, 512, 100_000_000, time.Second),
		columns: rateColumns,
		aims:    []aim{{what: "calls/s, × redis_rate", metric: "calls/s", over: "redis_rate", atLeast: 20}},
	},
	{
		name: "rate-refused", title: "One key with a limit of 1,000 per second, 64 goroutines, nearly all rejected",
		contenders: raters, reference: "redis_rate", processes: 1,
		slice:   rates(1, 64, 1000, 2*time.Second),
		columns: rateColumns,
		aims: []aim{
			{what: "commands per call", metric: "sent/call", atMost: 0.01},
			{what: "admitted ÷ allowed", metric: "admitted", atMost: 1},
		},
	},
}
