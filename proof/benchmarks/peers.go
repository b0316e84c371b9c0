//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislock

type rueidislocks struct{ rueidislock.Locker }

func openRueidislock(noLoop bool) func(settings) (contender, error) {
	return func(s settings) (contender, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{s.Addr}},
			KeyMajority:    1,
			KeyValidity:    s.Lease,
			ExtendInterval: s.Lease / 3, // the default is half the lease
			NoLoopTracking: noLoop,
		})
		return rueidislocks{l}, err
	}
}

func (l rueidislocks) Lock(name string) locker { return rueidisLock{l.Locker, name} }

type rueidisLock struct {
	locker rueidislock.Locker
	name   string
}

func (l rueidisLock) Lock(ctx context.Context) (held, error) {
	ctx, cancel, err := l.locker.WithContext(ctx, l.name)
	if err != nil {
		return nil, err
	}
	return &rueidisHold{ctx, cancel}, nil
}

type rueidisHold struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (h *rueidisHold) Unlock(context.Context) error {
	err := h.ctx.Err() // set if the lock was lost
	h.cancel()
	return err
}

// redsync

type redsyncs struct {
	settings
	rs    *redsync.Redsync
	close func()
}

func openRedsyncRueidis(s settings) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	if err != nil {
		return nil, err
	}
	return newRedsync(s, redsyncrueidis.NewPool(rueidiscompat.NewAdapter(rdb)), rdb.Close), nil
}

func openRedsyncGoredis(s settings) (contender, error) {
	rdb := goRedisClient(s)
	return newRedsync(s, redsyncgoredis.NewPool(rdb), func() { _ = rdb.Close() }), nil
}

func newRedsync(s settings, pool redsyncredis.Pool, close func()) contender {
	return redsyncs{s, redsync.New(pool), close}
}

func (r redsyncs) Close() { r.close() }

func (r redsyncs) Lock(name string) locker {
	options := []redsync.Option{redsync.WithExpiry(r.Lease), redsync.WithTries(1 << 30)}
	if r.Poll > 0 {
		options = append(options, redsync.WithRetryDelay(r.Poll))
	}
	return redsyncLock{r.rs.NewMutex(name, options...)}
}

type redsyncLock struct{ m *redsync.Mutex }

func (l redsyncLock) Lock(ctx context.Context) (held, error) { return l, l.m.LockContext(ctx) }

func (l redsyncLock) Unlock(ctx context.Context) error { return confirmed(l.m.UnlockContext(ctx)) }
func (l redsyncLock) Extend(ctx context.Context) error { return confirmed(l.m.ExtendContext(ctx)) }

func confirmed(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("not held")
	}
	return err
}

// bsm/redislock

type redislocks struct {
	settings
	rdb    redis.UniversalClient
	client *redislock.Client
	ctx    context.Context // with a deadline; otherwise Obtain gives up after one lease
	cancel context.CancelFunc
}

func openRedislock(s settings) (contender, error) {
	rdb := goRedisClient(s)
	ctx, cancel := context.WithTimeout(context.Background(), 24*time.Hour)
	if s.Poll == 0 {
		s.Poll = 100 * time.Millisecond // as in its README; by default it does not wait at all
	}
	return redislocks{s, rdb, redislock.New(rdb), ctx, cancel}, nil
}

func (r redislocks) Close() {
	r.cancel()
	_ = r.rdb.Close()
}

func (r redislocks) Lock(name string) locker { return redisLock{r, name} }

type redisLock struct {
	redislocks
	name string
}

func (l redisLock) Lock(context.Context) (held, error) {
	got, err := l.client.Obtain(l.ctx, l.name, l.Lease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(l.Poll)})
	return redisHold{got, l.Lease}, err
}

type redisHold struct {
	lock  *redislock.Lock
	lease time.Duration
}

func (h redisHold) Unlock(ctx context.Context) error { return h.lock.Release(ctx) }
func (h redisHold) Extend(ctx context.Context) error { return h.lock.Refresh(ctx, h.lease, nil) }
