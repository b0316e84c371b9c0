package locktest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

func TestFairRules(t *testing.T) {
	t.Parallel()
	locks := func(a, b *client.Client) (Harness, RWHarness) {
		return Harness{
			New:      func(name string, opts ...option) locker { return a.NewFairLock(name, opts...) },
			Other:    func(name string, opts ...option) locker { return b.NewFairLock(name, opts...) },
			Watchdog: watchdog,
			Waiters: func(ctx context.Context, name string) (int, error) {
				s, err := a.NewFairLock(name).Inspect(ctx)
				return len(s.Waiters), err
			},
		}, RWHarness{}
	}
	t.Run("exclusive", func(t *testing.T) { keeps(t, rules, locks) })
	t.Run("fair", func(t *testing.T) { keeps(t, fairRules, locks) })
}

// flaw is the bug of processLocks.
type flaw int

const (
	none flaw = iota
	lastFirst
	sameClientFirst
	newcomersFirst
	regularsFirst
	holderWaits
	triesWait
	triesOvertake
	cancelledStay
	leaversMoveOthers
	limitedStay
	turnsGetLost
	noHeartbeats
)

// processLocks implements fair locks within this process: plain locks, each with a queue in front of it. The fair lock in
// Redis cannot be broken from outside, but this one can.
type processLocks struct {
	flaw flaw

	mu    sync.Mutex
	lines map[string]*processQueue
}

type processQueue struct {
	places []*queueEntry // in order of arrival, unless the flaw changes it
	owner  uint64        // number of the owner that holds the lock, 0 if none does
	holds  int
	client string // client of the last holder
}

type queueEntry struct {
	client string
	until  time.Time // when it counts as dead
	called bool      // an unlock has notified it
	gone   bool      // its waiter has left
}

func (d *processLocks) harness(a, b *client.Client) Harness {
	d.lines = map[string]*processQueue{}
	of := func(name string, c *client.Client) maker {
		return func(lock string, opts ...option) locker {
			return d.lock(c.NewLock(lock, withoutQueueOptions(opts)...), name, opts)
		}
	}
	return Harness{New: of("a", a), Other: of("b", b), Watchdog: watchdog, Waiters: d.waiters}
}

func (d *processLocks) waiters(_ context.Context, name string) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.line(name).places), nil
}

func (d *processLocks) line(name string) *processQueue {
	l := d.lines[name]
	if l == nil {
		l = &processQueue{}
		d.lines[name] = l
	}
	return l
}

// withoutQueueOptions returns the options that a plain lock supports.
func withoutQueueOptions(opts []option) []option {
	return slices.DeleteFunc(slices.Clone(opts), func(o option) bool { return o.Setting().Which == lockimpl.WaiterTimeout })
}

func (d *processLocks) lock(plain locker, client string, opts []option) locker {
	config, err := lockimpl.NewConfig("a fair lock", lockimpl.All, opts...)
	if err != nil {
		return plain
	}
	return &processLock{locker: plain, d: d, client: client, config: config}
}

type processLock struct {
	locker
	d       *processLocks
	client  string
	config  lockimpl.Config
	regular bool // it was served before; guarded by d.mu
}

func (l *processLock) Lock(ctx context.Context) (lock.Hold, error) {
	if l.d.flaw != holderWaits && l.reenters(ctx) || l.d.flaw == newcomersFirst {
		if h, err := l.take(ctx, nil); err == nil {
			return h, nil
		}
	}
	p := l.join()
	var limit <-chan time.Time
	if l.config.Wait > 0 {
		limit = time.After(l.config.Wait)
	}
	for {
		select {
		case <-ctx.Done():
			l.leave(p, l.d.flaw == cancelledStay)
			return nil, fmt.Errorf("desk: %w: %w", lock.ErrNotAcquired, ctx.Err())
		case <-limit:
			l.leave(p, l.d.flaw == limitedStay)
			return nil, fmt.Errorf("desk: %w: %w", lock.ErrNotAcquired, os.ErrDeadlineExceeded)
		case <-time.After(20 * time.Millisecond): // time for other callers to break the rule
		}
		if l.turn(p) {
			if h, err := l.take(ctx, p); err == nil {
				return h, nil
			}
		}
	}
}

func (l *processLock) TryLock(ctx context.Context) (lock.Hold, error) {
	l.d.mu.Lock()
	busy := len(l.d.line(l.Name()).places) > 0
	l.d.mu.Unlock()
	if !busy || l.d.flaw == triesOvertake || l.reenters(ctx) {
		if h, err := l.take(ctx, nil); err == nil {
			return h, nil
		}
	}
	if l.d.flaw == triesWait {
		l.leave(l.join(), true)
	}
	return nil, &lock.Error{Op: "trylock", Name: l.Name(), Err: lock.ErrNotAcquired}
}

func (l *processLock) reenters(ctx context.Context) bool {
	owner, ok := lockimpl.OwnerFrom(ctx)
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	return ok && owner == l.d.line(l.Name()).owner
}

func (l *processLock) join() *queueEntry {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	line := l.d.line(l.Name())
	p := &queueEntry{client: l.client, until: time.Now().Add(l.config.WaiterTimeout)}
	p.called = len(line.places) == 0 && line.owner == 0
	at := len(line.places)
	if l.d.flaw == lastFirst || l.d.flaw == regularsFirst && l.regular {
		at = 0
	}
	line.places = slices.Insert(line.places, at, p)
	return p
}

// leave removes p from the queue, or leaves it there without a waiter if stays is true.
func (l *processLock) leave(p *queueEntry, stays bool) {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	line := l.d.line(l.Name())
	p.gone = true
	if stays {
		return
	}
	i := slices.Index(line.places, p)
	line.places = slices.Delete(line.places, i, i+1)
	if l.d.flaw == leaversMoveOthers && i < len(line.places) {
		behind := line.places[i]
		line.places = append(slices.Delete(line.places, i, i+1), behind)
	}
}

// turn reports whether p is next.
func (l *processLock) turn(p *queueEntry) bool {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	line := l.d.line(l.Name())
	if l.d.flaw == noHeartbeats {
		for n := len(line.places); n > 0 && time.Now().After(line.places[0].until); n-- {
			dead := line.places[0]
			dead.until = time.Now().Add(time.Hour) // queued again at the end
			line.places = append(line.places[1:], dead)
		}
	}
	alive := slices.DeleteFunc(slices.Clone(line.places), func(p *queueEntry) bool { return p.gone })
	first := alive[0]
	switch i := slices.IndexFunc(alive, func(p *queueEntry) bool { return p.client == line.client }); {
	case l.d.flaw == turnsGetLost:
		return p.called
	case l.d.flaw == sameClientFirst && i >= 0:
		first = alive[i]
	}
	return p == first
}

// take acquires the lock if it is free, and removes p from the queue.
func (l *processLock) take(ctx context.Context, p *queueEntry) (lock.Hold, error) {
	h, err := l.locker.TryLock(ctx)
	if err != nil {
		return nil, err
	}
	owner, _ := lockimpl.OwnerFrom(h.Context())
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	line := l.d.line(l.Name())
	if line.owner != owner {
		line.owner, line.holds = owner, 0
	}
	line.holds++
	line.client, l.regular = l.client, true
	line.places = slices.DeleteFunc(line.places, func(other *queueEntry) bool { return other == p })
	return changedHold{h, func(ctx context.Context) error {
		err := h.Unlock(ctx)
		l.d.mu.Lock()
		defer l.d.mu.Unlock()
		if line.holds--; line.holds == 0 && line.owner == owner {
			line.owner = 0
			if len(line.places) > 0 {
				line.places[0].called = true
			}
		}
		return err
	}}, nil
}

// Without a flaw, processLocks breaks no rule. When a rule is broken, the flaw is therefore the reason.
func TestFairRules_withoutAFlaw(t *testing.T) {
	t.Parallel()
	keeps(t, fairRules, func(a, b *client.Client) (Harness, RWHarness) { return (&processLocks{}).harness(a, b), RWHarness{} })
}

func TestFairRules_canBeBroken(t *testing.T) {
	t.Parallel()
	var locks []wrong
	for _, w := range []struct {
		what   string
		flaw   flaw
		breaks map[string]string
	}{
		{"the last to come is served first", lastFirst, map[string]string{"order": "served in the order"}},
		{"a client serves its own first", sameClientFirst, map[string]string{
			"order": "served in the order",
			"turns": "want 0 to 5 in turns",
		}},
		{"a new caller takes the lock if it is free at that moment", newcomersFirst, map[string]string{"newcomers": "want 0 first"}},
		{"an owner that was served before goes to the front", regularsFirst, map[string]string{"turns": "want 0 to 5 in turns"}},
		{"the holder queues like any other owner", holderWaits, map[string]string{"reentry past the queue": "not acquired: context deadline exceeded"}},
		{"TryLock leaves a place in the queue", triesWait, map[string]string{"TryLock and the queue": "after a TryLock 1 are in the queue"}},
		{"TryLock takes the lock if it is free at that moment", triesOvertake, map[string]string{"TryLock does not overtake": "TryLocks got the lock"}},
		{"a cancelled waiter stays in the queue", cancelledStay, map[string]string{
			"cancelled in the queue": "8 are in the queue, want 7",
			"cancelled at its turn":  "are in the queue, want",
		}},
		{"a waiter that leaves sends the next one to the end", leaversMoveOthers, map[string]string{
			"cancelled in the queue": "served in the order",
		}},
		{"a waiter whose limit ends stays in the queue", limitedStay, map[string]string{
			"limited wait in the queue": "2 are in the queue, want 1",
			"coming and going":          "are in the queue, want 0",
		}},
		{"only a waiter that an unlock has called takes the lock", turnsGetLost, map[string]string{
			"cancelled at its turn": "the second waiter: desk: not acquired",
			"lease ends":            "served in the order []",
		}},
		{"places are not renewed", noHeartbeats, map[string]string{"heartbeats": "served in the order"}},
	} {
		locks = append(locks, wrong{w.what, func(a, b *client.Client) (Harness, RWHarness) {
			return (&processLocks{flaw: w.flaw}).harness(a, b), RWHarness{}
		}, w.breaks})
	}
	testBroken(t, fairRules, locks)
}
