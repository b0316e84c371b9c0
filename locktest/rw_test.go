package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/rwlock"
)

func TestRWRules(t *testing.T) {
	t.Parallel()
	for _, p := range rwParts {
		t.Run(p.name, func(t *testing.T) {
			keeps(t, p.rules, func(a, b *client.Client) (Harness, RWHarness) {
				rw := rwLocks(a, b, func(mk rwMaker) rwMaker { return mk })
				return p.harness(rw), rw
			})
		})
	}
}

// rwMaker returns the locks of one client.
type rwMaker = func(name string, opts ...option) RW

// rwLocks returns a harness of read/write locks that wrap has changed.
func rwLocks(a, b *client.Client, wrap func(rwMaker) rwMaker) RWHarness {
	return RWHarness{
		New:      wrap(func(name string, opts ...option) RW { return a.NewRWLock(name, opts...) }),
		Other:    wrap(func(name string, opts ...option) RW { return b.NewRWLock(name, opts...) }),
		Watchdog: watchdog,
	}
}

// apart changes each side of a lock separately.
func apart(read, write func(maker) maker) func(rwMaker) rwMaker {
	return func(mk rwMaker) rwMaker {
		r := read(func(name string, opts ...option) locker { return mk(name, opts...).Read() })
		w := write(func(name string, opts ...option) locker { return mk(name, opts...).Write() })
		return func(name string, opts ...option) RW { return twoSides{r(name, opts...), w(name, opts...)} }
	}
}

type twoSides struct{ read, write locker }

func (s twoSides) Read() locker  { return s.read }
func (s twoSides) Write() locker { return s.write }

// ownerless ignores the owner that the context carries.
func ownerless(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
	return acquire(lock.ContextWithNewOwner(ctx), l, wait)
}

// outlives continues a Lock with another owner after its caller has left, until the client is
// closed.
func outlives(ctx context.Context, l locker) (lock.Hold, error) {
	got := make(chan lock.Hold)
	go func() {
		h, err := l.Lock(lock.ContextWithNewOwner(context.WithoutCancel(ctx)))
		if err != nil {
			return
		}
		select {
		case got <- h:
		case <-ctx.Done():
			_ = h.Unlock(context.WithoutCancel(ctx))
		}
	}()
	select {
	case h := <-got:
		return h, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", lock.ErrNotAcquired, ctx.Err())
	}
}

// leavesALock leaves a Lock behind as outlives does, for a caller that has left.
func leavesALock(ctx context.Context, l locker) {
	ctx, cancel := context.WithTimeout(ctx, aWhile)
	defer cancel()
	_, _ = outlives(ctx, l)
}

// readerList tracks the readers, for flaws of one hold that take effect when another ends.
type readerList struct {
	mu      sync.Mutex
	readers []*reader
}

type reader struct {
	lock.Hold
	owner uint64
	after func() // the work deferred until it ends
}

// add returns the hold of a reader that is in the list.
func (b *readerList) add(_ locker, h lock.Hold) lock.Hold {
	owner, _ := lockimpl.OwnerFrom(h.Context())
	r := &reader{Hold: h, owner: owner, after: func() {}}
	b.mu.Lock()
	b.readers = append(b.readers, r)
	b.mu.Unlock()
	return changedHold{h, func(ctx context.Context) error {
		b.take(func(other *reader) bool { return other == r })
		defer r.after()
		return h.Unlock(ctx)
	}}
}

// take removes and returns the first reader for which which is true, or nil if there is none.
func (b *readerList) take(which func(*reader) bool) *reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.readers, which)
	if i < 0 {
		return nil
	}
	r := b.readers[i]
	b.readers = slices.Delete(b.readers, i, i+1)
	return r
}

func TestRWRules_canBeBroken(t *testing.T) {
	t.Parallel()
	var locks []wrong
	for _, w := range []struct {
		what   string
		wrap   func(rwMaker) rwMaker
		breaks map[string]string
	}{
		{"readers exclude each other", func(mk rwMaker) rwMaker {
			return func(name string, opts ...option) RW {
				return twoSides{mk(name, opts...).Write(), mk(name, opts...).Write()}
			}
		}, map[string]string{
			"readers share": "not acquired: another owner in this process has the lock: context deadline exceeded",
		}},
		{"reading is another lock", func(mk rwMaker) rwMaker {
			return func(name string, opts ...option) RW {
				return twoSides{mk(name+":read", opts...).Read(), mk(name, opts...).Write()}
			}
		}, map[string]string{
			"writers are alone":        "a reader beside a writer got the lock",
			"many readers and writers": "a writer is inside with",
			"upgrade":                  "error <nil>",
		}},
		{"a second unlock ends another's reading", func(mk rwMaker) rwMaker {
			var b readerList
			return apart(changed(acquire, func(l locker, h lock.Hold) lock.Hold {
				h = b.add(l, h)
				return changedHold{h, func(ctx context.Context) error {
					err := h.Unlock(ctx)
					if r := b.take(func(*reader) bool { return errors.Is(err, lock.ErrNotHeld) }); r != nil {
						_ = r.Unlock(ctx)
					}
					return err
				}}
			}), right)(mk)
		}, map[string]string{
			"readers unlock apart": "another client got the lock",
		}},
		{"a reader that stops ends all reading", func(mk rwMaker) rwMaker {
			return apart(changed(acquire, unlocks(func(ctx context.Context, l locker, h lock.Hold) error {
				err := h.Unlock(ctx)
				_, _ = mk(l.Name()).(*rwlock.Lock).ForceUnlock(ctx)
				return err
			})), right)(mk)
		}, map[string]string{
			"readers share":     "Err of one of 6 readers",
			"leases of readers": "the hold is over",
		}},
		{"tokens stand still", apart(changed(acquire, token7), changed(acquire, token7)), map[string]string{
			"tokens of readers":        "a reader has token 7",
			"many readers and writers": "token 7 after 7",
		}},
		{"owners are forgotten", apart(changed(ownerless, nil), changed(ownerless, nil)), map[string]string{
			"reading under writing": "not acquired: another owner in this process has the lock: context deadline exceeded",
			"reentry past a writer": "not acquired: context deadline exceeded",
			"upgrade":               "want one that matches cannot upgrade a read hold",
		}},
		{"the end of the writing ends the reading", func(mk rwMaker) rwMaker {
			var b readerList
			return apart(changed(acquire, b.add), changed(acquire, unlocks(func(ctx context.Context, _ locker, h lock.Hold) error {
				if r := b.take(func(*reader) bool { return true }); r != nil {
					_ = r.Unlock(ctx)
				}
				return h.Unlock(ctx)
			})))(mk)
		}, map[string]string{
			"downgrade": "the end of the writing ended the reading",
		}},
		{"a writer that also reads goes on writing", func(mk rwMaker) rwMaker {
			var b readerList
			return apart(changed(acquire, b.add), changed(acquire, unlocks(func(ctx context.Context, _ locker, h lock.Hold) error {
				owner, _ := lockimpl.OwnerFrom(h.Context())
				if r := b.take(func(r *reader) bool { return r.owner == owner }); r != nil {
					r.after = func() { _ = h.Unlock(ctx) }
					return nil
				}
				return h.Unlock(ctx)
			})))(mk)
		}, map[string]string{
			"downgrade": "not acquired: another owner in this process has the lock: context deadline exceeded",
		}},
		{"a writer reads under a short lease", apart(func(mk maker) maker {
			return func(name string, opts ...option) locker {
				return changedLock{mk(name, opts...), func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
					if _, ok := lockimpl.OwnerFrom(ctx); ok {
						l = with(lock.WithFixedLease(500*time.Millisecond))(mk)(name, opts...)
					}
					return acquire(ctx, l, wait)
				}, nil}
			}
		}, right), map[string]string{
			"downgraded lease": "the hold is over",
		}},
		{"an owner that asks to upgrade makes readers wait", apart(right, changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
			h, err := acquire(ctx, l, wait)
			if errors.Is(err, lock.ErrUpgrade) {
				leavesALock(ctx, l)
			}
			return h, err
		}, nil)), map[string]string{
			"upgrade": "a reader should enter",
		}},
		{"a reader that had to wait reads alone", func(mk rwMaker) rwMaker {
			one := make(chan struct{}, 1)
			return apart(changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
				h, err := l.TryLock(ctx)
				if err == nil || !wait {
					return h, err
				}
				select {
				case one <- struct{}{}:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				h, err = l.Lock(ctx)
				if err != nil {
					<-one
					return nil, err
				}
				return changedHold{h, func(ctx context.Context) error {
					<-one
					return h.Unlock(ctx)
				}}, nil
			}, nil), right)(mk)
		}, map[string]string{
			"readers enter together": "context deadline exceeded",
		}},
		{"readers are first", apart(with(lock.WithReaderPreference()), right), map[string]string{
			"readers wait behind a writer": "readers enter although a writer waits",
		}},
		{"options are ignored", func(mk rwMaker) rwMaker {
			return func(name string, _ ...option) RW { return mk(name) }
		}, map[string]string{
			"readers first":              "not acquired: context deadline exceeded",
			"readers first for a writer": "a reader should enter",
			"leases of readers":          "never ended",
		}},
		{"a writer makes readers wait for a second", apart(right, func(mk maker) maker {
			return func(name string, opts ...option) locker {
				return changedLock{mk(name, opts...), func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
					if !wait {
						return l.TryLock(ctx)
					}
					if h, err := with(lock.WithWait(time.Second))(mk)(name, opts...).Lock(ctx); err == nil {
						return h, nil
					}
					return with(lock.WithReaderPreference())(mk)(name, opts...).Lock(ctx)
				}, nil}
			}
		}), map[string]string{
			"patient writer": "a reader got the lock",
		}},
		{"a writer that has left makes readers wait", apart(right, changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
			if wait {
				return outlives(ctx, l)
			}
			return l.TryLock(ctx)
		}, nil)), map[string]string{
			"writer gives up": "not acquired: context deadline exceeded",
		}},
		{"a TryLock of a writer makes readers wait", apart(right, changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
			h, err := acquire(ctx, l, wait)
			if err != nil && !wait {
				leavesALock(ctx, l)
			}
			return h, err
		}, nil)), map[string]string{
			"TryLock of a writer": "a reader should enter",
		}},
	} {
		locks = append(locks, wrong{w.what, func(a, b *client.Client) (Harness, RWHarness) {
			rw := rwLocks(a, b, w.wrap)
			return rwParts[0].harness(rw), rw
		}, w.breaks})
	}
	testBroken(t, rwRules, locks)
}

// The rules of Run that apply between two sides can be broken there, too.
func TestRulesOfSides_canBeBroken(t *testing.T) {
	t.Parallel()
	for _, p := range rwParts {
		if p.name == "read and write" {
			continue // these have their own wrong locks
		}
		var locks []wrong
		for _, w := range ways {
			locks = append(locks, wrong{w.what, func(a, b *client.Client) (Harness, RWHarness) {
				h := p.harness(rwLocks(a, b, func(mk rwMaker) rwMaker { return mk }))
				h.New, h.Other = w.wrap(h.New), w.wrap(h.Other)
				return h, RWHarness{}
			}, w.breaks})
		}
		t.Run(p.name, func(t *testing.T) { testBroken(t, p.rules, locks) })
	}
}
