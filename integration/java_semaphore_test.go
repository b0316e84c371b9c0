//go:build linux

package integration_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/semaphore"
)

// javaPermits is a client of Redisson's handle of a semaphore.
type javaPermits struct {
	*redisson
	semaphore string
}

// request is a call of method.
func (p javaPermits) request(method string, wait, lease time.Duration, n int64, ids ...string) javaRequest {
	w, l := wait.Milliseconds(), lease.Milliseconds()
	return javaRequest{Do: "permit." + method, Client: p.name, Name: p.semaphore, Wait: &w, Lease: &l, N: n, Elements: ids}
}

// acquires acquires n permits and returns their ids; none if they are not available.
func (p javaPermits) acquires(t *testing.T, wait, lease time.Duration, n int64) []string {
	t.Helper()
	return asks[[]string](t, p.redisson, p.request("acquire", wait, lease, n))
}

// begins starts to wait for a permit.
func (p javaPermits) begins(t *testing.T, lease time.Duration) <-chan reply {
	t.Helper()
	return p.java.send(t, p.request("acquire", time.Minute, lease, 1))
}

// ids returns the result of begins.
func ids(t *testing.T, answer <-chan reply) (all []string) {
	t.Helper()
	if err := json.Unmarshal(must(t, receive(t, answer)).Value, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// stands fails unless Java reports these numbers of permits: free, held, total.
func (p javaPermits) stands(t *testing.T, want ...int) {
	t.Helper()
	if got := asks[[]int](t, p.redisson, p.request("permits", 0, 0, 0)); !slices.Equal(got, want) {
		t.Errorf("Java counts %d free, held and in all, want %d", got, want)
	}
}

func (p javaPermits) releases(t *testing.T, id string) bool {
	t.Helper()
	return asks[bool](t, p.redisson, p.request("tryRelease", 0, 0, 0, id))
}

// adds changes the total number of permits.
func (p javaPermits) adds(t *testing.T, n int64) {
	t.Helper()
	r := p.request("addPermits", 0, 0, n)
	r.Client = p.name
	must(t, receive(t, p.java.send(t, r)))
}

// Java and Go hold permits of one semaphore, and each side sees the other's.
func TestJavaSemaphore(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		for _, name := range []string{"gpus", "{gpus}of:ann"} {
			t.Run(name, func(t *testing.T) {
				java := javaPermits{s.java, name}
				sem := s.c.NewSemaphore(name, 3)
				two, err := sem.N(2).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				java.stands(t, 1, 2, 3)
				if asks[bool](t, s.java, java.request("trySetPermits", 0, 0, 7)) {
					t.Error("Java created the semaphore again")
				}
				ours := luascripts.Permits(two.Owner())
				for _, id := range ours {
					left := time.Duration(asks[int64](t, s.java, java.request("getLeaseTime", 0, 0, 0, hex.EncodeToString([]byte(id))))) * time.Millisecond
					if left > javaLease || left < javaLease/2 {
						t.Errorf("Java reads that %v are left of our lease", left)
					}
				}
				one := java.acquires(t, 0, time.Hour, 1)
				if len(one) != 1 {
					t.Fatal("Java could not acquire the third permit")
				}
				if more := java.acquires(t, 0, time.Hour, 1); len(more) > 0 {
					t.Error("Java acquired a fourth permit")
				}
				if _, err := sem.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
					t.Errorf("a fourth permit: %v", err)
				}
				state, err := sem.Inspect(t.Context())
				if err != nil || state.Permits != 3 || len(state.Holders) != 2 || !isPermit(state.Holders[1].Owner, one[0]) {
					t.Errorf("%+v, %v; Java's is %s", state, err, one)
				}

				// We wait for Java.
				w := begin(t, sem)
				until(t, func() bool { state, err := sem.Inspect(t.Context()); return err == nil && len(state.Waiters) == 1 })
				start := time.Now()
				if !java.releases(t, one[0]) {
					t.Fatal("Java could not release its permit")
				}
				h := w(t)
				t.Logf("notified by Java after %v", time.Since(start))

				// Java waits for us: neither the subscription nor our notification may break its wait.
				answer := java.begins(t, time.Hour)
				until(t, func() bool { return javaListens(t, at, name) })
				start = time.Now()
				if err := h.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				got := ids(t, answer)
				t.Logf("Java was notified after %v", time.Since(start))
				if len(got) != 1 || !java.releases(t, got[0]) {
					t.Fatalf("Java has %q", got)
				}
				if err := two.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				java.stands(t, 3, 0, 3)
			})
		}
	})
}

// isPermit reports whether an owner has only the permit of this id. Redisson's ids are random. About one in a hundred
// looks like one of ours, and then the owner string does, too.
func isPermit(owner, id string) bool {
	ids := luascripts.Permits(owner)
	return len(ids) == 1 && hex.EncodeToString([]byte(ids[0])) == id
}

// javaListens reports whether a client is subscribed to the channel of Redisson's semaphores.
func javaListens(t *testing.T, at *javaSite, name string) bool {
	channel := "redisson_sc:{" + name + "}"
	if name[0] == '{' {
		channel = "redisson_sc:" + name
	}
	for _, n := range at.nodes {
		for _, command := range []string{"NUMSUB", "SHARDNUMSUB"} {
			reply := n.Do(t, "PUBSUB", command, channel)
			if all, _ := reply.ToArray(); len(all) == 2 {
				if count, _ := all[1].ToInt64(); count > 0 {
					return true
				}
			}
		}
	}
	return false
}

// Java waits while we renew, acquires the permit that we abandon, and releases it before its lease expires; and vice
// versa.
func TestJavaSemaphore_leases(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	s := newJavaSceneWith(t, oneServer(t), lease)
	java := javaPermits{s.java, "gpus"}
	sem := s.c.NewSemaphore("gpus", 1)
	h, err := sem.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := java.acquires(t, lease+lease/2, time.Hour, 1); len(got) > 0 || h.Err() != nil {
		t.Fatalf("Java got %q although we renewed: %v", got, h.Err())
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}

	// A permit that is not renewed.
	fixed, err := s.c.NewSemaphore("gpus", 1, lock.WithFixedLease(1500*time.Millisecond)).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	got := java.acquires(t, time.Minute, 10*time.Second, 1)
	if took := time.Since(start); len(got) != 1 || took > 10*time.Second {
		t.Fatalf("Java got %q after %v", got, took)
	}
	<-fixed.Context().Done()

	// Java extends its lease, and never releases it.
	start = time.Now()
	if !asks[bool](t, s.java, java.request("updateLeaseTime", 0, 12*time.Second, 0, got[0])) {
		t.Error("Java could not lengthen its lease")
	}
	h, err = sem.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 11*time.Second || took > 22*time.Second {
		t.Errorf("we have Java's permit after %v of a lease of twelve seconds", took)
	}
	if java.releases(t, got[0]) {
		t.Error("Java released a permit that was ours by then")
	}
	// Java releases our permit by its id, as an operator may.
	if !java.releases(t, hex.EncodeToString([]byte(luascripts.Permits(h.Owner())[0]))) {
		t.Fatal("Java cannot release our permit")
	}
	<-h.Context().Done()
	if !errors.Is(h.Err(), lock.ErrLost) {
		t.Error(h.Err())
	}
	java.stands(t, 1, 0, 1)
}

// Java changes the total number of permits, even to fewer than are held.
func TestJavaSemaphore_resize(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	java := javaPermits{s.java, "gpus"}
	if !asks[bool](t, s.java, java.request("trySetPermits", 0, 0, 3)) {
		t.Fatal("Java could not make the semaphore")
	}
	sem, open := s.c.NewSemaphore("gpus", 3), s.c.NewSemaphore("gpus", 0)
	h, err := sem.N(3).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := begin(t, open)
	until(t, func() bool { state, err := sem.Inspect(t.Context()); return err == nil && len(state.Waiters) == 1 })
	java.adds(t, -2) // its message would break the waits of Redisson's own waiters
	java.stands(t, -2, 3, 1)
	if _, err := sem.TryLock(t.Context()); !errors.Is(err, semaphore.ErrPermitCount) {
		t.Errorf("one of three, of which there is one: %v", err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	one := w(t)
	java.stands(t, 0, 1, 1)
	java.adds(t, 1)
	two, err := open.TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	answer := java.begins(t, time.Hour)
	until(t, func() bool { return javaListens(t, s.javaSite, "gpus") })
	if err := open.Resize(t.Context(), 3); err != nil { // our notification wakes Java
		t.Fatal(err)
	}
	got := ids(t, answer)
	java.stands(t, 0, 3, 3)
	for _, h := range []lock.Hold{one, two} {
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if !java.releases(t, got[0]) {
		t.Error("Java could not release its permit")
	}
	java.stands(t, 3, 0, 3)
}

// Both sides come and go: the total is never exceeded, and no permit is lost.
func TestJavaSemaphore_together(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	java := javaPermits{s.java, "gpus"}
	const total, rounds = 3, 60
	sem := s.c.NewSemaphore("gpus", total)
	var inside, most atomic.Int64
	enter := func() {
		now := inside.Add(1)
		for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		inside.Add(-1)
	}
	done := make(chan struct{})
	for range 3 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range rounds {
				got := java.acquires(t, time.Minute, time.Hour, 1)
				if len(got) != 1 {
					t.Error("Java waited in vain")
					return
				}
				enter()
				if !java.releases(t, got[0]) {
					t.Error("Java could not release a permit")
				}
			}
		}()
		go func() {
			defer func() { done <- struct{}{} }()
			for range rounds {
				h, err := sem.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				enter()
				if err := h.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for range 6 {
		<-done
	}
	if most.Load() != total {
		t.Errorf("at most %d of %d were held at once", most.Load(), total)
	}
	java.stands(t, total, 0, total)
}

// begin starts to wait for a lock. The returned function waits for the hold.
func begin(t *testing.T, l lock.Locker) func(*testing.T) lock.Hold {
	t.Helper()
	type result struct {
		h   lock.Hold
		err error
	}
	done := make(chan result, 1)
	go func() {
		h, err := l.Lock(t.Context())
		done <- result{h, err}
	}()
	return func(t *testing.T) lock.Hold {
		t.Helper()
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		return r.h
	}
}
