//go:build linux

package main

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/redis/rueidis"
)

// f3 is a floor, not a lock to use: the script that unlocks also grants. A process with waiters has
// one entry in a list in Redis, and queues its goroutines locally. The release writes the next
// owner, and notifies its process on a separate channel. f4 is the same, but hands the lock off
// inside the process up to 32 times in a row, without a command.
//
// A waiter cannot stop waiting. If a process dies in the list, or a message is lost, all others are
// blocked. Nothing is renewed.
type f3 struct {
	rdb    rueidis.Client
	lease  string // ms
	id     string // also the name of its channel
	passes int    // maximum number of hand-offs in a row inside this process
	end    context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	lines map[string]*f3Line // guarded by mu
}

var (
	f3Acquire = rueidis.NewLuaScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0`)
	// Returns 1 if the same process has the lock again, 0 if another process or none has it.
	f3Release = rueidis.NewLuaScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
if ARGV[3] == '1' then redis.call('RPUSH', KEYS[2], ARGV[1]) end
local heir = redis.call('LPOP', KEYS[2])
if not heir then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], heir, 'PX', ARGV[2])
if heir == ARGV[1] then return 1 end
redis.call('PUBLISH', heir, KEYS[1])
return 0`)
)

func openF3(s settings) (contender, error) { return openFused(s, 0) }
func openF4(s settings) (contender, error) { return openFused(s, 32) }

func openFused(s settings, passes int) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	f := &f3{
		rdb: rdb, lease: strconv.FormatInt(s.Lease.Milliseconds(), 10), id: unique(), passes: passes, end: end,
		lines: map[string]*f3Line{},
	}
	subscribe(ctx, &f.wg, rdb, f.id, func(name string) { f.line(name).told() })
	return f, nil
}

func (f *f3) Close() {
	f.end()
	f.wg.Wait()
	f.rdb.Close()
}

func (f *f3) Lock(name string) locker { return f.line(name) }

func (f *f3) line(name string) *f3Line {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lines[name]
	if l == nil {
		l = &f3Line{f: f, keys: []string{name, "queue:" + name}}
		f.lines[name] = l
	}
	return l
}

// f3Line is one lock in one process.
type f3Line struct {
	f    *f3
	keys []string

	mu      sync.Mutex
	state   f3State         // guarded by mu
	round   int             // guarded by mu: incremented by every request, release and grant
	passed  int             // guarded by mu: how often in a row it was handed off
	waiting []chan struct{} // guarded by mu, in the order of arrival
}

type f3State int

const (
	f3Idle   f3State = iota // not held here, and not wanted here
	f3Asking                // a request or a release is in flight
	f3Queued                // this process is in Redis' list
	f3Held
)

var errNotHeld = errors.New("not held")

func (l *f3Line) Lock(ctx context.Context) (held, error) {
	mine := make(chan struct{})
	l.mu.Lock()
	l.waiting = append(l.waiting, mine)
	if l.state != f3Idle {
		l.mu.Unlock()
	} else {
		round := l.startLocked()
		l.mu.Unlock()
		if err := l.ask(ctx, round); err != nil {
			return nil, err
		}
	}
	<-mine
	return l, nil
}

func (l *f3Line) startLocked() (round int) {
	l.state = f3Asking
	l.round++
	return l.round
}

// serveLocked hands the lock, which this process has, to the first waiter, which may be the
// goroutine that represents them all in Redis' list.
func (l *f3Line) serveLocked() {
	first := l.waiting[0]
	l.waiting = l.waiting[1:]
	close(first)
}

// told is called when another process has handed the lock off to this one.
func (l *f3Line) told() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round++
	l.state = f3Held
	l.serveLocked()
}

func (l *f3Line) Unlock(ctx context.Context) error {
	l.mu.Lock()
	if len(l.waiting) > 0 && l.passed < l.f.passes {
		l.passed++
		l.serveLocked()
		l.mu.Unlock()
		return nil
	}
	l.passed = 0
	more := "0"
	if len(l.waiting) > 0 {
		more = "1"
	}
	round := l.startLocked()
	l.mu.Unlock()

	again, err := f3Release.Exec(ctx, l.f.rdb, l.keys, []string{l.f.id, l.f.lease, more}).AsInt64()
	if err == nil && again < 0 {
		err = errNotHeld
	}
	if err != nil {
		return err
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case again == 1:
		l.state = f3Held
		l.serveLocked()
	case more == "1":
		if l.round == round {
			l.state = f3Queued
		}
	case len(l.waiting) == 0:
		l.state = f3Idle
	default: // they arrived during the release
		round := l.startLocked()
		l.f.wg.Go(func() { _ = l.ask(context.Background(), round) })
	}
	return nil
}

// ask sends a request for all waiters.
func (l *f3Line) ask(ctx context.Context, round int) error {
	granted, err := f3Acquire.Exec(ctx, l.f.rdb, l.keys, []string{l.f.id, l.f.lease}).AsInt64()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case granted == 1:
		l.state = f3Held
		l.serveLocked()
	case l.round == round: // otherwise the message overtook the reply
		l.state = f3Queued
	}
	return nil
}
