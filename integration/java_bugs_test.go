//go:build linux

package integration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// These tests document bugs of Redisson. leasehold copes with all of them, which other tests show. They pass while
// Redisson has the bugs: if a test fails after an upgrade, the bug is fixed, and its workaround can be removed.

// A writer that re-enters adds to the lease: if it dies, it blocks all others for the sum.
func TestJavaBug_writeReentryAddsToTheLease(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	s := newJavaScene(t, oneServer(t))
	l := s.java.lock("thread", write, javaRW)
	for range 3 {
		l.get(t, leased(lease))
	}
	state, err := s.c.NewRWLock(javaRW).Inspect(t.Context())
	if err != nil || state.Lease <= 2*lease {
		t.Errorf("after three times a lease of %v: %+v (%v), want nearly three times as much", lease, state, err)
	}
	for range 3 {
		l.unlock(t)
	}
	s.empty()
}

// A writer that stops writing but continues to read notifies no waiter. Waiting readers of Java sleep for the remaining
// lease in their last reply, while others read.
func TestJavaBug_downgradeIsNotTold(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	w, r := s.java.lock("thread", write, javaRW), s.java.lock("thread", read, javaRW)
	sleeper := s.java.lock("sleeper", read, javaRW)
	w.get(t)
	r.get(t)
	answer := sleeper.parks(t)
	w.unlock(t)
	s.javaMay(read, javaRW, true)
	h := s.get(read, javaRW)
	time.Sleep(time.Second) // otherwise it would have woken up long before
	if !sleeper.sleeps(t) {
		t.Error("the reader was woken")
	}
	s.unlock(h)
	r.unlock(t) // the last reader's message
	must(t, receive(t, answer))
	sleeper.unlock(t)
	s.empty()
}

// Behind a dead waiter at the front of the queue of a free lock, Java sends requests in a loop until the deadline of the
// dead one.
func TestJavaBug_spinsBehindADeadHead(t *testing.T) {
	t.Parallel()
	const name = "fair"
	s := newJavaScene(t, oneServer(t))
	list, deadlines := queue(name)
	const dead = "11111111-1111-4111-8111-111111111111:1"
	do(t, s.rdb, "RPUSH", list, dead)
	do(t, s.rdb, "ZADD", deadlines, fmt.Sprint(s.now()+3000), dead)
	l := s.java.lock("thread", fair, name)
	calls := s.scripts(t)
	l.get(t)
	if calls = s.scripts(t) - calls; calls < 50 {
		t.Errorf("got %d requests in three seconds", calls)
	}
	l.unlock(t)
	s.empty()
}

// The unlock of a fair lock that another thread held succeeds if the lock is free. A thread whose lease expired is
// therefore not notified.
func TestJavaBug_strangersFairUnlock(t *testing.T) {
	t.Parallel()
	const name = "fair"
	s := newJavaScene(t, oneServer(t))
	l := s.java.lock("stranger", fair, name)
	l.unlock(t)
	h := s.get(fair, name)
	javaFails(t, l.begin(t, "unlock"), "IllegalMonitorStateException")
	s.unlock(h)
	l.unlock(t)
	s.empty()
}

// lockAndGetToken(lease) ignores the lease.
func TestJavaBug_tokenIgnoresTheLease(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	l := s.java.lock("thread", fenced, "fenced")
	l.call(t, "lockAndGetToken", leased(time.Second))
	if left := l.left(t); left <= javaLease/2 {
		t.Errorf("with a lease of a second, %v remain; earlier versions had the watchdog's lease, %v", left, javaLease)
	}
	l.unlock(t)
	s.empty()
}

// tryLockAndGetToken(), which should not wait, waits indefinitely.
func TestJavaBug_tryForATokenWaits(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	h := s.get(fenced, "fenced")
	l := s.java.lock("thread", fenced, "fenced")
	answer := l.begin(t, "tryLockAndGetToken")
	s.listens(javaChannel(fenced, "fenced")) // this call is waiting
	s.unlock(h)
	if token := result[uint64](t, value[did](t, must(t, receive(t, answer)))); token <= h.Token() {
		t.Errorf("got token %d after %d", token, h.Token())
	}
	l.unlock(t)
	s.empty()
}

// A lock whose expiry was removed manually is granted to every thread that requests it with a token: Redisson takes "no
// expiry" for "granted".
func TestJavaBug_eternalLockIsTaken(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	h := s.get(fenced, "fenced")
	do(t, s.rdb, "PERSIST", "fenced")
	l := s.java.lock("thread", fenced, "fenced")
	if token := result[int64](t, l.call(t, "lockAndGetToken")); token != -1 {
		t.Errorf("got token %d, want -1", token)
	}
	if n := l.holds(t); n != 0 {
		t.Errorf("it holds the lock %d times", n)
	}
	s.unlock(h)
	s.empty()
}

// Unlocking a nested hold with its own lease stops the renewal of the outer hold, which then expires with that lease,
// without a notification.
func TestJavaBug_innerLeaseEndsTheRenewal(t *testing.T) {
	t.Parallel()
	const dog, lease = time.Second, 3 * time.Second
	s := newJavaSceneWith(t, oneServer(t), dog)
	s.c = ours(t, s.rdb) // only Java's leases are short
	l := s.java.lock("thread", plain, "plain")
	l.get(t)
	l.get(t, leased(lease))
	l.unlock(t)
	h, err := s.c.NewLock("plain", lock.WithWait(2*lease+poll)).Lock(t.Context())
	if err != nil {
		t.Fatalf("Go does not acquire what Java holds with a watchdog: %v", err)
	}
	javaFails(t, l.begin(t, "unlock"), "IllegalMonitorStateException")
	s.unlock(h)
	s.empty()
}

// The keys of read leases stay after ForceUnlock of a readers' lock,
// until they expire. leasehold's ForceUnlock deletes them.
func TestJavaBug_forceLeavesLeases(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	s := newJavaScene(t, oneServer(t))
	l := s.java.lock("thread", read, javaRW)
	key := read.lease(javaRW, l.get(t, leased(lease)))
	if !result[bool](t, l.call(t, "forceUnlock")) {
		t.Error("force found nothing")
	}
	if n, err := do(t, s.rdb, "EXISTS", key).AsInt64(); err != nil || n != 1 {
		t.Errorf("%q is gone (%v)", key, err)
	}
	s.goMay(write, javaRW, true) // it disturbs no other owner
	s.javaMay(write, javaRW, true)
	l.get(t, leased(lease))
	if _, err := s.c.NewRWLock(javaRW).ForceUnlock(t.Context()); err != nil {
		t.Error(err)
	}
	if n, err := do(t, s.rdb, "EXISTS", key).AsInt64(); err != nil || n != 0 {
		t.Errorf("%q is still there after our force (%v)", key, err)
	}
	s.empty()
}
