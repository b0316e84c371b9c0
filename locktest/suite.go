package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// Harness creates the locks that [Run] and [RunFair] test.
type Harness struct {
	// New returns a lock called name, always of the same client.
	New func(name string, opts ...lock.Option) lock.Locker

	// Other returns a lock of another client on the same server, as another process would.
	Other func(name string, opts ...lock.Option) lock.Locker

	// Watchdog is the watchdog timeout of both clients. Keep it short, such as 1 s, because some
	// tests take several times as long.
	Watchdog time.Duration

	// Waiters returns the number of queued waiters of the lock called name. For locks with a queue on
	// the server, Inspect returns this number. RunFair needs Waiters. Without it, Run assumes that a
	// waiter is queued 30 ms after its first call of Done on its context.
	Waiters func(ctx context.Context, name string) (int, error)

	semaphore *SemaphoreHarness // of RunSemaphore
	latch     *LatchHarness     // of RunLatch
	waitGroup *WaitGroupHarness // of RunWaitGroup
	election  *ElectionHarness  // of RunElection
	limiter   *LimiterHarness   // of RunLimiter
	filter    *FilterHarness    // of RunFilter
}

// rule is one requirement for every lock of a type.
type rule struct {
	name string
	says string
	test func(*trial)

	sides sides
}

// sides are the combinations to which a rule also applies: a semaphore with one permit, or a read/write lock of
// which New returns one side and Other returns one side.
type sides int

const (
	reading sides = 1 << iota // New returns the read side, Other the write side
	writing                   // New returns the write side, Other the read side
	permits                   // both acquire the permit of a semaphore with one permit
)

// rules are in the order of a lock's life cycle.
var rules = []rule{
	{"free lock", "a free lock is granted, and its hold is valid", freeLock, reading | permits},
	{"exclusion", "two holds of different owners are never valid at once", exclusion, reading | writing | permits},
	{"exclusion of goroutines", "goroutines that share a lock value exclude each other", exclusionOfGoroutines, permits},
	{"no accidental reentry", "a plain context never re-enters, also in the same goroutine", noAccidentalReentry, permits},
	{"reentry", "under a hold's context the same name re-enters and counts", reentry, reading | writing},
	{"reentry is per name", "a hold's context does not open other locks", reentryIsPerName, 0},
	{"ContextWithNewOwner", "holds under one owner may be given back in any order", withOwner, writing},
	{"TryLock", "TryLock answers ErrNotAcquired and does not wait", tryLock, reading | writing | permits},
	{"Lock waits", "Lock gets the lock when its holder unlocks", lockWaits, reading | writing | permits},
	{"first come", "inside a process, waiters are served in the order of their arrival", firstCome, permits},
	{"cancelled wait", "a wait for another owner that ctx ends matches ErrNotAcquired and ctx.Err(), and leaves nothing", canceledWait, reading | writing | permits},
	{"limited wait", "a wait that ends at its own limit matches ErrNotAcquired and os.ErrDeadlineExceeded, and the limit does not end a hold", limitedWait, reading | writing | permits},
	{"one meaning", "no error says both that another owner has the lock and that Redis is unavailable", oneSentinelError, reading | writing | permits},
	{"dead context", "under a context that is over, nothing is locked, and its error is the error alone", canceledContext, reading | permits},
	{"unlock twice", "the second Unlock fails with ErrNotHeld and frees no other owner's lock", unlockTwice, reading | writing | permits},
	{"asynchronous unlock", "with WithAsyncUnlock, Unlock ends the hold, and the lock is free for the next attempt of the client, and soon for others", asyncUnlock, reading | writing | permits},
	{"linger", "with WithLinger, a client that locks again and again has growing tokens, and another client that waits gets the lock at the next Unlock", linger, writing | permits},
	{"unlock with a dead context", "Unlock works although its context is over", unlockWithCanceledContext, reading | permits},
	{"cause", "the cause of a hold's context is ErrUnlocked after Unlock, and the parent's cause before", cause, reading | permits},
	{"fixed lease", "a fixed lease ends by itself, and the hold is lost", fixedLease, reading | writing | permits},
	{"Extend", "Extend lengthens the lease and never shortens it, and fails with ErrNotHeld after Unlock", extend, reading | writing},
	{"renewed lease", "without a fixed lease a hold lives until it is unlocked", renewedLease, reading | permits},
	{"canceled work", "the function of Do keeps the lock until it returns, however long its context has been canceled", canceledWork, reading | permits},
	{"mixed leases", "an inner hold never ends the renewal of the outer one, nor shortens its lease", mixedLeases, reading},
	{"tokens", "tokens grow from holder to holder, and reentries keep them", tokens, 0},
	{"Do", "Do unlocks after an error and after a panic, and joins errors", do, reading},
	{"names", "odd names are locks of their own or ErrBadName, never two names on one lock", names, reading | permits},
	{"many", "under contention of two clients no two callers are inside together", many, 0},
}

// Run tests every rule of an exclusive lock, each in a subtest named after it. A failure names the
// rule.
func Run(t *testing.T, h Harness) { try(t, rules, h, RWHarness{}) }

// try tests every rule, each in a subtest.
func try(t *testing.T, rules []rule, h Harness, rw RWHarness) {
	run := fmt.Sprintf("locktest:%08x:", rand.Uint32())
	for _, r := range rules {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			r.try(t.Context(), &trial{TB: t, h: h, rw: rw, lock: run + strings.ReplaceAll(r.name, " ", "-")}, time.Minute)
		})
	}
}

// try tests the rule with t, within the limit.
func (r rule) try(ctx context.Context, t *trial, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer t.waiters.Wait()
	defer cancel()
	t.ctx, t.rule = ctx, r.says
	r.test(t)
}

// trial is one run of one rule.
type trial struct {
	testing.TB
	h    Harness
	rw   RWHarness // only for the rules of read/write locks
	ctx  context.Context
	rule string
	lock string // a name that no other rule uses

	waiters sync.WaitGroup
}

func (t *trial) broken(format string, args ...any) {
	t.Helper()
	t.Errorf("%s.\nRule: %s.", fmt.Sprintf(format, args...), t.rule)
}

// fatal must run in the goroutine of the trial.
func (t *trial) fatal(format string, args ...any) {
	t.Helper()
	t.Fatalf("%s.\nRule: %s.", fmt.Sprintf(format, args...), t.rule)
}

func (t *trial) must(h lock.Hold, err error) lock.Hold {
	t.Helper()
	if err != nil {
		t.fatal("%v", err)
	}
	return h
}

func (t *trial) unlock(holds ...lock.Hold) {
	t.Helper()
	for _, h := range holds {
		if err := h.Unlock(t.ctx); err != nil {
			t.broken("unlock: %v", err)
		}
	}
}

func (t *trial) want(err error, targets ...error) {
	t.Helper()
	if errors.Is(err, lock.ErrNotAcquired) && errors.Is(err, lock.ErrUnavailable) {
		t.broken("error %v matches both %v and %v", err, lock.ErrNotAcquired, lock.ErrUnavailable)
	}
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.broken("error %v, want one that matches %v", err, target)
		}
	}
}

// wantOnlyContextError fails if err, the error of a canceled context, also matches an error of the lock or of Redis.
func (t *trial) wantOnlyContextError(err error) {
	t.Helper()
	for _, target := range []error{lock.ErrNotAcquired, lock.ErrUnavailable} {
		if errors.Is(err, target) {
			t.broken("error %v matches %v, and says more than that the context is over", err, target)
		}
	}
}

// refused fails if l grants a hold to a new owner.
func (t *trial) refused(who string, l lock.Locker) {
	t.Helper()
	h, err := l.TryLock(t.ctx)
	if err == nil {
		t.unlock(h)
		t.broken("%s got the lock", who)
		return
	}
	t.want(err, lock.ErrNotAcquired)
}

// pass waits for d. h must stay valid in that time.
func (t *trial) pass(d time.Duration, h lock.Hold) {
	t.Helper()
	select {
	case <-h.Context().Done():
		t.broken("the hold is over: %v", h.Err())
	case <-time.After(d):
	}
}

// aWhile is how long a test checks that something does not happen. On a very slow machine, a broken
// lock may pass a rule that it should fail. A correct lock never fails.
const aWhile = 100 * time.Millisecond

// replyTime is the duration of a wait whose error must report another owner. It is long enough for that reply,
// even on a busy machine. An operation timeout is at most a quarter of the watchdog timeout.
func (t *trial) replyTime() time.Duration { return max(500*time.Millisecond, t.h.Watchdog/4) }

// work is how long a goroutine holds the lock in the tests with contention. It is long enough to
// detect a second holder.
const work = 100 * time.Microsecond

// waiter is a call of Lock in its own goroutine.
type waiter struct {
	cancel context.CancelFunc
	begins chan struct{} // closed when Lock calls Done of its context
	done   chan struct{} // closed when Lock has returned
	hold   lock.Hold     // the returned hold
	err    error
}

// wait starts a Lock. It ends with the trial at the latest.
func (t *trial) wait(l lock.Locker) *waiter {
	ctx, cancel := context.WithCancel(t.ctx)
	w := &waiter{cancel: cancel, begins: make(chan struct{}), done: make(chan struct{})}
	t.waiters.Go(func() {
		w.hold, w.err = l.Lock(&noticedContext{Context: ctx, noticed: sync.OnceFunc(func() { close(w.begins) })})
		close(w.done)
	})
	return w
}

// noticedContext is a context that calls noticed when its Done is called.
type noticedContext struct {
	context.Context
	noticed func()
}

func (c *noticedContext) Done() <-chan struct{} {
	c.noticed()
	return c.Context.Done()
}

// got waits until the waiters have acquired their holds.
func (t *trial) got(waiters ...*waiter) (holds []lock.Hold) {
	t.Helper()
	for _, w := range waiters {
		<-w.done
		holds = append(holds, t.must(w.hold, w.err))
	}
	return holds
}

// waiting fails if any of the waiters acquires the lock within aWhile.
func (t *trial) waiting(waiters ...*waiter) {
	t.Helper()
	time.Sleep(aWhile)
	for i, w := range waiters {
		select {
		case <-w.done:
			t.broken("waiter %d did not wait: %v", i, w.err)
		default:
		}
	}
}

// gone cancels a waiter, and checks its error.
func (t *trial) gone(w *waiter) {
	t.Helper()
	w.cancel()
	<-w.done
	if w.err == nil {
		t.unlock(w.hold)
		t.broken("a waiter got the lock")
		return
	}
	t.want(w.err, context.Canceled)
	if errors.Is(w.err, lock.ErrUnavailable) {
		t.broken("error %v, and Redis replies", w.err)
	}
}

// crowd is a group of waiters that start one after the other, and unlock as soon as they are
// served.
type crowd struct {
	t    *trial
	line int // number of waiters in the queue, if none was served in the meantime

	came   int
	served sync.WaitGroup

	mu    sync.Mutex
	order []int   // the waiters that were served, by number
	errs  []error // of the waiters that were not served
}

// come starts the next waiter, and does not wait until it is queued.
func (c *crowd) come(l lock.Locker) *waiter {
	n := c.came
	c.came++
	w := c.t.wait(l)
	c.served.Go(func() {
		<-w.done
		c.mu.Lock()
		if w.err != nil {
			c.errs = append(c.errs, w.err)
		} else {
			c.order = append(c.order, n)
		}
		c.mu.Unlock()
		if w.err == nil {
			c.t.unlock(w.hold)
		}
	})
	return w
}

// join starts the next waiter, and returns when it is in the queue.
func (c *crowd) join(l lock.Locker) *waiter {
	c.t.Helper()
	c.line++
	w := c.come(l)
	if c.t.h.Waiters != nil {
		c.t.waitQueued(c.line)
	} else {
		select { // on a busy machine its goroutine can start late
		case <-w.begins:
		case <-w.done:
		}
		time.Sleep(30 * time.Millisecond) // there is no way to check from outside that it is queued
	}
	return w
}

// leave cancels a waiter, and returns when it has left the queue.
func (c *crowd) leave(w *waiter) {
	c.t.Helper()
	c.line--
	c.t.gone(w)
	c.t.waitQueued(c.line)
}

// want waits until all are served or canceled, and fails unless exactly the waiters in want were
// served, in this order.
func (c *crowd) want(want ...int) {
	c.t.Helper()
	c.served.Wait()
	if !slices.Equal(c.order, want) {
		c.t.broken("waiters were served in the order %v, want %v (errors: %v)", c.order, want, c.errs)
	}
}

// wantAllServed waits for all waiters, and fails unless all were served.
func (c *crowd) wantAllServed() {
	c.t.Helper()
	c.served.Wait()
	if len(c.order) != c.came {
		c.t.broken("%d of %d waiters were served (errors: %v)", len(c.order), c.came, c.errs)
	}
}

// waitQueued waits until n waiters are in the queue.
func (t *trial) waitQueued(n int) {
	t.Helper()
	if err := t.waitQueuedErr(n); err != nil {
		t.fatal("%v", err)
	}
}

func (t *trial) waitQueuedErr(n int) error {
	last := -1
	for pause := firstPause; ; pause = pause.rest() {
		waiters, err := t.h.Waiters(t.ctx, t.lock)
		switch {
		case t.ctx.Err() != nil:
			return fmt.Errorf("%d are in the queue, want %d", last, n)
		case err != nil:
			return fmt.Errorf("asking for the waiters: %w", err)
		case waiters == n:
			return nil
		}
		last = waiters
	}
}

// pause is the time before the next check of something that should happen soon.
type pause time.Duration

const firstPause = pause(time.Millisecond)

// rest sleeps for the pause, and returns the next one, which is a little longer.
func (p pause) rest() pause {
	time.Sleep(time.Duration(p))
	return min(p+p/8, pause(50*time.Millisecond))
}

// free fails if the lock called name is held.
func (t *trial) free(name string) {
	t.Helper()
	h, err := t.h.Other(name).TryLock(t.ctx)
	if err != nil {
		t.broken("the lock should be free: %v", err)
		return
	}
	t.unlock(h)
}

// freed fails if the lock called name does not become free. A waiter that is canceled returns
// immediately, and what it may have left in Redis is removed in the background.
func (t *trial) freed(name string) {
	t.Helper()
	h, err := t.h.Other(name).Lock(t.ctx)
	if err != nil {
		t.broken("the lock should become free: %v", err)
		return
	}
	t.unlock(h)
}

// longTraces makes what a waiter leaves behind, a queue position or a lock, outlast any test. It
// stays unless the waiter removes it.
func (t *trial) longTraces() []lock.Option {
	t.Helper()
	options := []lock.Option{lock.WithFixedLease(time.Hour), lock.WithWaiterTimeout(time.Hour)}
	h, err := t.h.New(t.lock+":patience", options...).TryLock(t.ctx)
	if err != nil { // this type of lock has no waiter timeout
		return options[:1]
	}
	t.unlock(h)
	return options
}

func (t *trial) held(name string) {
	t.Helper()
	t.refused("the lock should be held, and another client", t.h.Other(name))
}

func freeLock(t *trial) {
	before := time.Now()
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	if err := h.Err(); err != nil {
		t.broken("Err of a fresh hold: %v", err)
	}
	if err := h.Context().Err(); err != nil {
		t.broken("Context().Err() of a fresh hold: %v", err)
	}
	if until := h.Until(); !until.After(time.Now()) || until.After(time.Now().Add(t.h.Watchdog)) || until.Before(before) {
		t.broken("Until is %v from now, the lease is %v", time.Until(until), t.h.Watchdog)
	}
	if client, number, ok := strings.Cut(h.Owner(), ":"); !ok || len(client) != 36 || number == "" {
		t.broken("Owner is %q, want <uuid>:<number>", h.Owner())
	}
	if l := t.h.New(t.lock); l.Name() != t.lock {
		t.broken("Name is %q", l.Name())
	}
	t.held(t.lock)
	t.unlock(h)
	t.free(t.lock)
}

func exclusion(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	t.held(t.lock)
	t.unlock(h)
	h = t.must(t.h.Other(t.lock).Lock(t.ctx))
	if _, err := t.h.New(t.lock).TryLock(t.ctx); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("both clients hold it: %v", err)
	}
	t.unlock(h)
}

func exclusionOfGoroutines(t *trial) {
	l := t.h.New(t.lock)
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 5 {
				h, err := l.Lock(t.ctx)
				if err != nil {
					t.broken("lock: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.broken("%d inside", n)
				}
				time.Sleep(work)
				inside.Add(-1)
				t.unlock(h)
			}
		})
	}
	wg.Wait()
}

func noAccidentalReentry(t *trial) {
	l := t.h.New(t.lock)
	h := t.must(l.Lock(t.ctx))
	defer t.unlock(h)
	_, err := l.TryLock(t.ctx)
	t.want(err, lock.ErrNotAcquired)
	ctx, cancel := context.WithTimeout(t.ctx, t.replyTime())
	defer cancel()
	_, err = l.Lock(ctx)
	t.want(err, lock.ErrNotAcquired, context.DeadlineExceeded)
}

func reentry(t *trial) {
	l := t.h.New(t.lock)
	outer := t.must(l.Lock(t.ctx))
	inner := t.must(t.h.New(t.lock).Lock(outer.Context())) // with another handle
	third := t.must(l.TryLock(inner.Context()))
	for _, h := range []lock.Hold{inner, third} {
		if h.Owner() != outer.Owner() {
			t.broken("a reentry has owner %q, the first hold %q", h.Owner(), outer.Owner())
		}
	}
	for _, h := range []lock.Hold{third, inner} {
		t.unlock(h)
		t.held(t.lock)
		if err := outer.Err(); err != nil {
			t.broken("an inner Unlock ended the outer hold: %v", err)
		}
	}
	t.unlock(outer)
	t.free(t.lock)
}

func reentryIsPerName(t *trial) {
	mine := t.must(t.h.New(t.lock).Lock(t.ctx))
	defer t.unlock(mine)
	theirs := t.must(t.h.New(t.lock + ":2").Lock(t.ctx))
	defer t.unlock(theirs)
	_, err := t.h.New(t.lock + ":2").TryLock(mine.Context())
	t.want(err, lock.ErrNotAcquired)
}

func withOwner(t *trial) {
	ctx := lock.ContextWithNewOwner(t.ctx)
	l := t.h.New(t.lock)
	first, second := t.must(l.Lock(ctx)), t.must(l.Lock(ctx))
	t.unlock(first)
	t.held(t.lock)
	if err := second.Err(); err != nil {
		t.broken("the first hold's end ended the second: %v", err)
	}
	if _, err := l.TryLock(lock.ContextWithNewOwner(ctx)); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("a new owner below the first re-entered: %v", err)
	}
	t.unlock(second)
	t.free(t.lock)
	again := t.must(l.Lock(ctx)) // the owner may re-enter
	t.unlock(again)
}

func tryLock(t *trial) {
	h := t.must(t.h.Other(t.lock).TryLock(t.ctx))
	_, err := t.h.New(t.lock).TryLock(t.ctx)
	t.want(err, lock.ErrNotAcquired)
	var e *lock.Error
	if !errors.As(err, &e) || e.Op != "trylock" || e.Name != t.lock {
		t.broken("error %#v does not name the operation and the lock", err)
	}
	t.unlock(h)
}

func lockWaits(t *trial) {
	h := t.must(t.h.Other(t.lock).Lock(t.ctx))
	w := t.wait(t.h.New(t.lock))
	t.waiting(w)
	t.unlock(h)
	t.unlock(t.got(w)...)
}

func firstCome(t *trial) {
	l := t.h.New(t.lock)
	h := t.must(l.Lock(t.ctx))
	c := &crowd{t: t}
	for range 10 {
		c.join(l)
	}
	t.unlock(h)
	c.want(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
}

func canceledWait(t *trial) {
	h := t.must(t.h.Other(t.lock).Lock(t.ctx))
	why := errors.New("the request went away")
	options := t.longTraces()
	ctx, cancel := context.WithCancelCause(t.ctx)
	time.AfterFunc(t.replyTime(), func() { cancel(why) })
	_, err := t.h.New(t.lock, options...).Lock(ctx)
	t.want(err, lock.ErrNotAcquired, context.Canceled, why)
	t.unlock(h)
	t.freed(t.lock)
}

func limitedWait(t *trial) {
	other := t.must(t.h.Other(t.lock).Lock(t.ctx))
	_, err := t.h.New(t.lock, append(t.longTraces(), lock.WithWait(t.replyTime()))...).Lock(t.ctx)
	t.want(err, lock.ErrNotAcquired, os.ErrDeadlineExceeded)
	t.unlock(other)
	t.freed(t.lock)
	h := t.must(t.h.New(t.lock, lock.WithWait(t.h.Watchdog/4)).Lock(t.ctx))
	t.pass(t.h.Watchdog/2, h)
	t.unlock(h)
	_, err = t.h.New(t.lock, lock.WithWait(-time.Second)).Lock(t.ctx)
	if err == nil {
		t.broken("a negative wait was accepted")
	}
}

// oneSentinelError ends waits while their context has a cause that matches both sentinel errors.
func oneSentinelError(t *trial) {
	h := t.must(t.h.Other(t.lock).Lock(t.ctx))
	_, err := t.h.New(t.lock).TryLock(t.ctx)
	t.want(err, lock.ErrNotAcquired)
	ctx, cancel := context.WithCancelCause(t.ctx)
	errs := make(chan error, 5) // several calls, so that some are queued behind others
	for range cap(errs) {
		go func() {
			_, err := t.h.New(t.lock, t.longTraces()...).Lock(ctx)
			errs <- err
		}()
	}
	time.Sleep(t.replyTime())
	cancel(fmt.Errorf("another call failed: %w, %w", lock.ErrNotAcquired, lock.ErrUnavailable))
	for range cap(errs) {
		t.want(<-errs, lock.ErrNotAcquired, context.Canceled)
	}
	t.unlock(h)
	t.freed(t.lock)
}

func canceledContext(t *trial) {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	for _, f := range []func(context.Context) (lock.Hold, error){t.h.New(t.lock).Lock, t.h.New(t.lock).TryLock} {
		_, err := f(ctx)
		t.want(err, context.Canceled)
		t.wantOnlyContextError(err)
	}
	t.free(t.lock)
}

func unlockTwice(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	t.unlock(h)
	next := t.must(t.h.Other(t.lock).Lock(t.ctx))
	for range 3 {
		err := h.Unlock(t.ctx)
		t.want(err, lock.ErrNotHeld)
		if errors.Is(err, lock.ErrLost) {
			t.broken("it was given back, not lost: %v", err)
		}
	}
	if _, err := t.h.New(t.lock).TryLock(t.ctx); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("the second Unlock freed another owner's lock: %v", err)
	}
	t.unlock(next)
}

func asyncUnlock(t *trial) {
	l := t.h.New(t.lock, lock.WithAsyncUnlock())
	for range 20 {
		h, err := l.TryLock(t.ctx)
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		t.unlock(t.must(h, err))
		t.want(h.Err(), lock.ErrUnlocked)
		t.want(h.Unlock(t.ctx), lock.ErrNotHeld)
		if err := lock.TryDo(t.ctx, l, func(context.Context) error { return nil }); err != nil {
			t.broken("TryDo after Unlock: %v", err)
		}
	}
	next := t.must(t.h.Other(t.lock).Lock(t.ctx))
	t.refused("the lock should be held, and its client", l)
	t.unlock(next)
}

func linger(t *trial) {
	l, other := t.h.New(t.lock, lock.WithLinger(time.Hour)), t.h.Other(t.lock)
	var last uint64
	for range 5 {
		for range 5 {
			h, err := l.Lock(t.ctx)
			if errors.Is(err, errors.ErrUnsupported) {
				return
			}
			t.must(h, err)
			if h.Token() <= last {
				t.broken("token %d after %d", h.Token(), last)
			}
			last = h.Token()
			time.Sleep(time.Microsecond) // otherwise time may not advance
			t.unlock(h)
			t.want(h.Err(), lock.ErrUnlocked)
			t.want(h.Unlock(t.ctx), lock.ErrNotHeld)
		}
		next := t.must(other.Lock(t.ctx)) // the client keeps the lock
		t.refused("the lock should be held, and its client", l)
		t.unlock(next)
		h := t.must(l.Lock(t.ctx))
		last = h.Token()
		w := t.wait(other)
		t.waiting(w)
		t.unlock(h)
		t.unlock(t.got(w)...)
	}
}

func unlockWithCanceledContext(t *trial) {
	ctx, cancel := context.WithCancel(t.ctx)
	h := t.must(t.h.New(t.lock).Lock(ctx))
	cancel()
	if err := h.Unlock(ctx); err != nil {
		t.broken("unlock: %v", err)
	}
	t.free(t.lock)
}

func cause(t *trial) {
	why := errors.New("the parent's own reason")
	parent, cancel := context.WithCancelCause(t.ctx)
	h := t.must(t.h.New(t.lock).Lock(parent))
	child, stop := context.WithTimeout(h.Context(), time.Hour)
	defer stop()
	t.unlock(h)
	for _, err := range []error{h.Err(), context.Cause(h.Context()), context.Cause(child)} {
		t.want(err, lock.ErrUnlocked)
	}
	if err := h.Context().Err(); err != context.Canceled {
		t.broken("Context().Err() is %v, want context.Canceled", err)
	}
	h = t.must(t.h.New(t.lock).Lock(parent))
	cancel(why)
	t.want(context.Cause(h.Context()), why)
	t.held(t.lock) // canceling a context is not an Unlock
	t.unlock(h)
}

func fixedLease(t *trial) {
	lease := t.h.Watchdog / 4
	h := t.must(t.h.New(t.lock, lock.WithFixedLease(lease)).Lock(t.ctx))
	next := t.must(t.h.Other(t.lock).Lock(t.ctx)) // is granted when the lease expires
	if h.Until().After(time.Now()) {
		t.broken("another got it %v before Until", time.Until(h.Until()))
	}
	select {
	case <-h.Context().Done():
	case <-t.ctx.Done():
	}
	t.want(h.Err(), lock.ErrLost)
	t.want(h.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
	if _, err := t.h.New(t.lock).TryLock(t.ctx); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("the stale holder's Unlock freed another owner's lock: %v", err)
	}
	t.unlock(next)
	_, err := t.h.New(t.lock, lock.WithFixedLease(time.Millisecond)).Lock(t.ctx)
	if err == nil {
		t.broken("a lease that nobody can keep was accepted")
	}
}

func extend(t *trial) {
	lease := t.h.Watchdog / 4
	h := t.must(t.h.New(t.lock, lock.WithFixedLease(lease)).Lock(t.ctx))
	before := h.Until()
	if err := h.Extend(t.ctx, lease/2); err != nil {
		t.fatal("a shorter lease: %v", err)
	}
	if until := h.Until(); until.Before(before) {
		t.broken("the lease is %v shorter", before.Sub(until))
	}
	began := time.Now()
	if err := h.Extend(t.ctx, 3*lease); err != nil {
		t.fatal("%v", err)
	}
	if until := h.Until(); until.Sub(began) < 2*lease {
		t.broken("a lease of %v more is promised for %v", 3*lease, until.Sub(began))
	}
	t.pass(time.Until(before)+lease/4, h)
	t.held(t.lock)
	t.unlock(h)
	t.want(h.Extend(t.ctx, lease), lock.ErrNotHeld)
	t.free(t.lock)

	h = t.must(t.h.New(t.lock, lock.WithFixedLease(lease)).Lock(t.ctx))
	<-h.Context().Done()
	t.want(h.Extend(t.ctx, lease), lock.ErrNotHeld, lock.ErrLost)
	h = t.must(t.h.New(t.lock).Lock(t.ctx))
	if err := h.Extend(t.ctx, 0); err == nil {
		t.broken("a lease of nothing was accepted")
	}
	t.unlock(h)
}

func renewedLease(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	first := h.Until()
	t.pass(2*t.h.Watchdog+t.h.Watchdog/2, h)
	if !h.Until().After(first.Add(t.h.Watchdog)) {
		t.broken("Until moved by only %v in two and a half leases", h.Until().Sub(first))
	}
	t.held(t.lock)
	t.unlock(h)
	t.free(t.lock)
}

func canceledWork(t *trial) {
	why := errors.New("the caller's own reason")
	ctx, cancel := context.WithCancelCause(t.ctx)
	defer cancel(nil)
	err := lock.Do(ctx, t.h.New(t.lock), func(ctx context.Context) error {
		cancel(why)
		<-ctx.Done()
		t.want(context.Cause(ctx), why)
		h := lock.HoldFromContext(ctx)
		t.pass(2*t.h.Watchdog+t.h.Watchdog/2, h)
		t.held(t.lock)
		return h.Err()
	})
	if err != nil {
		t.broken("Do: %v", err)
	}
	t.free(t.lock)
}

func mixedLeases(t *trial) {
	ctx := lock.ContextWithNewOwner(t.ctx)
	outer := t.must(t.h.New(t.lock).Lock(ctx))
	inner := t.must(t.h.New(t.lock, lock.WithFixedLease(t.h.Watchdog/4)).Lock(ctx))
	if left := time.Until(outer.Until()); left < t.h.Watchdog/2 {
		t.broken("the inner lease shortened the outer one to %v", left)
	}
	t.unlock(inner)
	t.pass(2*t.h.Watchdog, outer)
	t.held(t.lock)
	t.unlock(outer)
}

func tokens(t *trial) {
	var last uint64
	for i := range 20 {
		l := t.h.New(t.lock)
		if i%2 == 1 {
			l = t.h.Other(t.lock)
		}
		h := t.must(l.Lock(t.ctx))
		if h.Token() <= last {
			t.broken("token %d after %d", h.Token(), last)
		}
		last = h.Token()
		again := t.must(l.Lock(h.Context()))
		if again.Token() != last {
			t.broken("a reentry has token %d, the hold %d", again.Token(), last)
		}
		time.Sleep(work) // otherwise time may not advance
		t.unlock(again)
		t.unlock(h)
	}
}

func do(t *trial) {
	l := t.h.New(t.lock)
	wrong := errors.New("the work failed")
	err := lock.Do(t.ctx, l, func(ctx context.Context) error {
		t.held(t.lock)
		return lock.Do(ctx, l, func(context.Context) error { return wrong }) // re-enters
	})
	t.want(err, wrong)
	t.free(t.lock)
	func() {
		defer func() {
			if recover() == nil {
				t.broken("Do swallowed the panic")
			}
		}()
		_ = lock.Do(t.ctx, l, func(context.Context) error { panic("at work") })
	}()
	t.free(t.lock)
	err = lock.Do(t.ctx, t.h.New(t.lock, lock.WithFixedLease(t.h.Watchdog/10)), func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-t.ctx.Done():
		}
		return nil
	})
	t.want(err, lock.ErrLost)
}

func names(t *trial) {
	odd := []string{"a b", "a:b:c", "ä€😀", "{tag}:x", "x{tag}y", "a{b}{c}", "\x00\r\n\"'\\", "\xff\xfe", strings.Repeat("n", 1000)}
	bad := []string{"", "a{b", "a}b", "{}x", "}", "{", "a{}b", strings.Repeat("n", 1<<20)}
	var holds []lock.Hold
	for _, name := range odd {
		h, err := t.h.New(t.lock + name).TryLock(t.ctx)
		if err != nil {
			t.broken("name %.40q: %v", name, err)
			continue
		}
		holds = append(holds, h)
		t.held(t.lock + name)
	}
	for _, h := range holds {
		t.unlock(h)
	}
	for _, name := range bad {
		if name != "" {
			name = t.lock + name
		}
		for _, f := range []func(context.Context) (lock.Hold, error){t.h.New(name).Lock, t.h.New(name).TryLock} {
			_, err := f(t.ctx)
			if !errors.Is(err, lock.ErrBadName) {
				t.broken("name %.40q: %v, want ErrBadName", name, err)
			}
		}
	}
}

func many(t *trial) {
	var inside atomic.Int32
	var last atomic.Uint64
	var wg sync.WaitGroup
	for i := range 16 {
		l := t.h.New(t.lock)
		if i%2 == 1 {
			l = t.h.Other(t.lock)
		}
		wg.Go(func() {
			for range 25 {
				h, err := l.Lock(t.ctx)
				if err != nil {
					t.broken("lock: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.broken("%d inside", n)
				}
				if before := last.Swap(h.Token()); before >= h.Token() {
					t.broken("token %d after %d", h.Token(), before)
				}
				time.Sleep(work)
				inside.Add(-1)
				t.unlock(h)
			}
		})
	}
	wg.Wait()
	t.free(t.lock)
}
