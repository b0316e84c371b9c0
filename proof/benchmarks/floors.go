//go:build linux

package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// The floors show the limit of what is possible. None is a lock to use: they are fast because they
// leave out what makes a lock safe.

// f1 is a floor, not a lock to use: SET NX PX, and compare-and-delete. It does not wait, renew, or
// report a loss.
type f1 struct {
	rdb   rueidis.Client
	lease time.Duration
	last  atomic.Int64
}

var f1Release = rueidis.NewLuaScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

func openF1(s settings) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	return &f1{rdb: rdb, lease: s.Lease}, err
}

func (f *f1) Close()                  { f.rdb.Close() }
func (f *f1) Lock(name string) locker { return &f1Lock{f, name} }

type f1Lock struct {
	f    *f1
	name string
}

func (l *f1Lock) Lock(ctx context.Context) (held, error) {
	token := strconv.FormatInt(l.f.last.Add(1), 10)
	set := l.f.rdb.B().Set().Key(l.name).Value(token).Nx().Px(l.f.lease).Build()
	if err := l.f.rdb.Do(ctx, set).Error(); err != nil {
		return nil, err // also if another owner has it
	}
	return &f1Hold{l, token}, nil
}

type f1Hold struct {
	l     *f1Lock
	token string
}

func (h *f1Hold) Unlock(ctx context.Context) error {
	return freed(f1Release.Exec(ctx, h.l.f.rdb, []string{h.l.name}, []string{h.token}))
}

// freed returns an error unless the reply of a release is 1.
func freed(r rueidis.RedisResult) error {
	n, err := r.AsInt64()
	if err == nil && n != 1 {
		return errors.New("not held")
	}
	return err
}

// f2 is a floor, not a lock to use: the simplest hash lock in Redisson's format. Each message wakes
// one waiter in each process, which then retries. One goroutine renews the held locks every third
// of the lease, a hundred per command. It does not reconcile lost replies and does not report a
// loss.
type f2 struct {
	rdb   rueidis.Client
	lease string // ms
	id    string
	last  atomic.Int64
	ctx   context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup

	mu    sync.Mutex
	held  map[string]string        // guarded by mu: name -> owner
	hints map[string]chan struct{} // guarded by mu: the subscriptions, by name
}

var (
	f2Acquire = rueidis.NewLuaScript(`
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return redis.call('PTTL', KEYS[1]) end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return -1`)
	f2Release = rueidis.NewLuaScript(`
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[1], '0')
end
return 1`)
	f2Renew = rueidis.NewLuaScript(`
for i, key in ipairs(KEYS) do
  if redis.call('HEXISTS', key, ARGV[i + 1]) == 1 then redis.call('PEXPIRE', key, ARGV[1]) end
end
return 1`)
)

const f2Batch = 100

func openF2(s settings) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	if err != nil {
		return nil, err
	}
	f := &f2{
		rdb: rdb, lease: strconv.FormatInt(s.Lease.Milliseconds(), 10), id: unique(),
		held: map[string]string{}, hints: map[string]chan struct{}{},
	}
	f.ctx, f.end = context.WithCancel(context.Background())
	f.wg.Go(func() { f.renewAll(s.Lease / 3) })
	return f, nil
}

// unique returns a string that no other process uses.
func unique() string { return strconv.FormatInt(monotonic(), 36) }

func (f *f2) Close() {
	f.end()
	f.wg.Wait()
	f.rdb.Close()
}

func (f *f2) renewAll(interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-f.ctx.Done():
			return
		}
		var batches []rueidis.LuaExec
		f.mu.Lock()
		for name, owner := range f.held {
			if n := len(batches); n == 0 || len(batches[n-1].Keys) == f2Batch {
				batches = append(batches, rueidis.LuaExec{Args: []string{f.lease}})
			}
			b := &batches[len(batches)-1]
			b.Keys, b.Args = append(b.Keys, name), append(b.Args, owner)
		}
		f.mu.Unlock()
		for _, b := range batches {
			f2Renew.Exec(f.ctx, f.rdb, b.Keys, b.Args)
		}
	}
}

func (f *f2) Lock(name string) locker { return &f2Lock{f, name} }

type f2Lock struct {
	f    *f2
	name string
}

func (l *f2Lock) Lock(ctx context.Context) (held, error) {
	f := l.f
	owner := f.id + ":" + strconv.FormatInt(f.last.Add(1), 10)
	var hints chan struct{}
	for {
		left, err := f2Acquire.Exec(ctx, f.rdb, []string{l.name}, []string{owner, f.lease}).AsInt64()
		if err != nil {
			return nil, err
		}
		if left == -1 {
			f.mu.Lock()
			f.held[l.name] = owner
			f.mu.Unlock()
			return &f2Hold{l, owner}, nil
		}
		if hints == nil { // retry: it may have become free before we subscribed
			hints = f.listen(l.name)
			continue
		}
		timeout := time.NewTimer(time.Duration(max(left, 1)) * time.Millisecond)
		select {
		case <-hints:
		case <-timeout.C:
		case <-ctx.Done():
			timeout.Stop()
			return nil, ctx.Err()
		}
		timeout.Stop()
	}
}

// listen returns the channel on which a notification wakes one waiter for name. A subscription is
// never removed.
func (f *f2) listen(name string) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.hints[name]; ok {
		return c
	}
	c := make(chan struct{}, 1)
	f.hints[name] = c
	subscribe(f.ctx, &f.wg, f.rdb, name, func(string) {
		select {
		case c <- struct{}{}:
		default:
		}
	})
	return c
}

// subscribe calls heard for each message until ctx is canceled, and returns when the subscription
// is confirmed. It uses a separate connection: rueidis is slower on connections that receive
// messages.
func subscribe(ctx context.Context, wg *sync.WaitGroup, rdb rueidis.Client, channel string, heard func(message string)) {
	conn, release := rdb.Dedicate()
	ended := conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) { heard(m.Message) }})
	if err := conn.Do(ctx, conn.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		release() // without the subscription, waiters only have their timeouts
		return
	}
	wg.Go(func() {
		defer release()
		select {
		case <-ctx.Done():
		case <-ended:
		}
	})
}

type f2Hold struct {
	l     *f2Lock
	owner string
}

func (h *f2Hold) Unlock(ctx context.Context) error {
	f := h.l.f
	f.mu.Lock()
	delete(f.held, h.l.name)
	f.mu.Unlock()
	return freed(f2Release.Exec(ctx, f.rdb, []string{h.l.name}, []string{h.owner}))
}
