package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
)

// ElectionHarness creates the locks and the stores that [RunElection] tests.
type ElectionHarness struct {
	// New returns the lock and the store of the election called name, always of the same client.
	New func(name string, opts ...lock.Option) (lock.Locker, leader.Store)

	// Other returns the lock and the store of another client on the same server, as another process
	// would.
	Other func(name string, opts ...lock.Option) (lock.Locker, leader.Store)

	// Watchdog is the watchdog timeout of both clients. Keep it short, such as 1 s.
	Watchdog time.Duration
}

// RunElection tests every rule that a lock and a store must keep for [leader.New], each in a
// subtest named after it. Test the lock itself with [Run]. The tokens of its holds must grow.
//
//	locktest.RunElection(t, locktest.ElectionHarness{
//		New:      func(name string, opts ...lock.Option) (lock.Locker, leader.Store) { return a.NewLock(name, opts...), a.NewLeaderStore(name) },
//		Other:    func(name string, opts ...lock.Option) (lock.Locker, leader.Store) { return b.NewLock(name, opts...), b.NewLeaderStore(name) },
//		Watchdog: time.Second,
//	})
func RunElection(t *testing.T, h ElectionHarness) {
	try(t, electionRules, Harness{election: &h, Watchdog: h.Watchdog}, RWHarness{})
}

// electionRules are in the order of an election's life cycle.
var electionRules = []rule{
	{name: "what a leader says", says: "others read what the leader says until it is done, and a larger value is refused", test: leaderPublishes},
	{name: "leaders in turn", says: "one candidate leads at a time, and each of them in the end", test: successiveLeaders},
	{name: "watched", says: "an observer sees nobody, each leader, and nobody again", test: observedLeader},
	{name: "resigned leader", says: "the context of a leader that resigns ends with ErrResigned, and the leader stands for election again", test: resignedLeader},
	{name: "lease of a leader ends", says: "a leader that loses the lock is told, stands for election again, and what it said ends with its lease", test: leaderLeaseEnds},
	{name: "stale leader", says: "what a leader said is neither overwritten nor taken back in the name of an earlier one", test: staleLeader},
}

// elections returns a handle of the trial's election for each client.
func (t *trial) elections(opts ...lock.Option) (a, b *leader.Election) {
	return leader.New(t.h.election.New(t.lock, opts...)), leader.New(t.h.election.Other(t.lock, opts...))
}

// wantLeader waits until both clients read this leader value; "" means that there is no leader.
func (t *trial) wantLeader(value string, read ...func(context.Context) (leader.Leader, bool, error)) {
	t.Helper()
	for _, read := range read {
		for {
			l, leads, err := read(t.ctx)
			if err != nil && t.ctx.Err() == nil {
				t.fatal("read: %v", err)
			}
			if err == nil && l.Value == value && leads == (value != "") {
				if leads && (l.Since.IsZero() || l.Left <= 0 || l.Left > time.Hour) {
					t.broken("%q leads since %v, for %v", value, l.Since, l.Left)
				}
				break
			}
			t.rest(value, l)
		}
	}
}

// rest waits before the next check, and fails when the time of the trial is over.
func (t *trial) rest(want, is any) {
	t.Helper()
	select {
	case <-t.ctx.Done():
		t.fatal("%q was never read; in the end it is %+v", want, is)
	case <-time.After(20 * time.Millisecond):
	}
}

// runCandidate starts a candidate that leads until its context is canceled or done is closed. It sends the context of each term
// to led.
func (t *trial) runCandidate(e *leader.Election, value string, done <-chan struct{}) (w *ending, led chan context.Context) {
	led = make(chan context.Context, 100)
	return t.begin(func(ctx context.Context) error {
		return e.Run(ctx, value, func(ctx context.Context) error {
			led <- ctx
			select {
			case <-done:
			case <-ctx.Done():
			}
			return nil
		})
	}), led
}

// wantLeading waits until a candidate leads.
func (t *trial) wantLeading(led <-chan context.Context) context.Context {
	t.Helper()
	select {
	case ctx := <-led:
		return ctx
	case <-t.ctx.Done():
		t.fatal("nobody leads")
		return nil
	}
}

func leaderPublishes(t *trial) {
	a, b := t.elections()
	t.wantLeader("", a.Leader, b.Leader)
	t.named(a.Publish(t.ctx, "x"), leader.ErrNotLeading)
	done := make(chan struct{})
	w, led := t.runCandidate(a, "first", done)
	t.wantLeading(led)
	t.wantLeader("first", a.Leader, b.Leader)
	if !a.Leading() || b.Leading() {
		t.broken("Leading is %v and %v", a.Leading(), b.Leading())
	}
	long := string(make([]byte, leader.MaxValueSize))
	for _, value := range []string{"ü\x00\r\n", long, "second"} {
		if err := a.Publish(t.ctx, value); err != nil {
			t.broken("publish: %v", err)
		}
		if l, _, err := b.Leader(t.ctx); err != nil || l.Value != value {
			t.broken("%d bytes are read of %d that were published (error %v)", len(l.Value), len(value), err)
		}
	}
	t.named(a.Publish(t.ctx, long+"x"), nil)
	close(done)
	t.ended(w)
	t.wantLeader("", a.Leader, b.Leader)
}

func successiveLeaders(t *trial) {
	inside := make(chan struct{}, 1) // holds a token while a candidate leads
	var all []*ending
	for i := range 6 {
		e, other := t.elections()
		if i%2 == 1 {
			e = other
		}
		all = append(all, t.begin(func(ctx context.Context) error {
			return e.Run(ctx, "x", func(context.Context) error {
				select {
				case inside <- struct{}{}:
					time.Sleep(work)
					<-inside
				default:
					t.broken("two lead at once")
				}
				return nil
			})
		}))
	}
	t.ended(all...)
}

func observedLeader(t *trial) {
	a, b := t.elections()
	seen := make(chan string, 100)
	watch := t.begin(func(ctx context.Context) error {
		for l, err := range b.Observe(ctx) {
			if err != nil {
				return err
			}
			seen <- l.Value
		}
		return nil
	})
	want := func(value string) {
		t.Helper()
		for {
			select {
			case got := <-seen:
				if got == value {
					return
				}
			case <-watch.done:
				t.fatal("Observe ended: %v", watch.err)
			case <-t.ctx.Done():
				t.fatal("%q was never seen", value)
			}
		}
	}
	want("")
	done := make(chan struct{})
	w, _ := t.runCandidate(a, "first", done)
	want("first")
	if err := a.Publish(t.ctx, "second"); err != nil {
		t.broken("publish: %v", err)
	}
	want("second")
	close(done)
	t.ended(w)
	want("")
	watch.cancel()
	t.ended(watch)
}

func resignedLeader(t *trial) {
	a, b := t.elections()
	if a.Resign() {
		t.broken("a candidate that does not lead resigns")
	}
	done := make(chan struct{})
	first, led := t.runCandidate(a, "a", done)
	ctx := t.wantLeading(led)
	second, others := t.runCandidate(b, "b", nil)
	t.waitOn(first, second)
	if !a.Resign() {
		t.broken("a leader does not resign")
	}
	<-ctx.Done()
	t.want(context.Cause(ctx), leader.ErrResigned)
	for range 100 { // without a queue, the lock may be acquired by the same candidate again
		select {
		case <-others:
			second.cancel()
			t.ended(second)
			t.wantLeading(led) // the first candidate leads again
			close(done)
			t.ended(first)
			return
		case <-led:
			a.Resign()
		case <-t.ctx.Done():
			t.fatal("nobody leads after the leader has resigned")
		}
	}
	t.broken("a candidate never leads, although the leader resigned a hundred times")
}

func leaderLeaseEnds(t *trial) {
	a, _ := t.elections(lock.WithFixedLease(t.h.Watchdog / 2))
	_, b := t.elections()
	w, led := t.runCandidate(a, "a", nil)
	for range 2 {
		ctx := t.wantLeading(led)
		select {
		case <-ctx.Done():
			t.want(context.Cause(ctx), lock.ErrLost)
		case <-t.ctx.Done():
			t.fatal("the context of a leader that is lost does not end")
		}
	}
	w.cancel()
	<-w.done
	t.wantLeader("", b.Leader)
}

func staleLeader(t *trial) {
	short, old := t.h.election.New(t.lock, lock.WithFixedLease(t.h.Watchdog/2))
	l, now := t.h.election.Other(t.lock)
	first := t.must(short.Lock(t.ctx))
	if err := old.Publish(t.ctx, first, "old", t.h.Watchdog/2); err != nil {
		t.broken("post: %v", err)
	}
	t.wantLeader("old", old.Read, now.Read)
	<-first.Context().Done()
	second := t.must(l.Lock(t.ctx))
	if err := now.Publish(t.ctx, second, "new", t.h.Watchdog); err != nil {
		t.broken("post: %v", err)
	}
	t.want(old.Publish(t.ctx, first, "old", t.h.Watchdog), leader.ErrNotLeading)
	if err := old.Clear(t.ctx, first); err != nil && !errors.Is(err, leader.ErrNotLeading) {
		t.broken("clear: %v", err)
	}
	if got, leads, err := old.Read(t.ctx); err != nil || !leads || got.Value != "new" || got.Token != second.Token() {
		t.broken("what is said is %+v (error %v), want that of the second leader", got, err)
	}
	if err := now.Clear(t.ctx, second); err != nil {
		t.broken("clear: %v", err)
	}
	t.wantLeader("", old.Read, now.Read)
	t.unlock(second)
}
