//go:build linux

package integration_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// A lock is renewed exactly while it is held, whatever happened to its name before. These are scenarios in which
// Redisson stopped renewing too early, or never stopped.

const renewalDog = 6 * time.Second // a command may take a sixth of it: a second, enough on a busy machine

// outlives fails unless h is held for two and a half leases.
func outlives(t *testing.T, h lock.Hold) {
	t.Helper()
	select {
	case <-h.Context().Done():
		t.Errorf("it ended after less than two and a half leases: %v", h.Err())
	case <-time.After(2*renewalDog + renewalDog/2):
	}
	if err := h.Err(); err != nil {
		t.Error(err)
	}
}

// The server restarts without its data while an owner holds the lock. The owner is notified, and can acquire the same
// name again, which is then renewed.
func TestRenewal_sameNameAfterALoss(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		t.Parallel()
		server := redistest.Start(t)
		l := k.lock(ours(t, server.Client(t), client.WithWatchdogTimeout(renewalDog)), "orders")
		h, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		server.Kill(t)
		server.Restart(t)
		soon(t, h.Context().Done())
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			t.Errorf("unlock of what was lost: %v", err)
		}
		if h, err = l.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		outlives(t, h)
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		noKeys(t, server)
	}, plain, fair, read, write)
}

// One owner enters twice and leaves twice. After the first Unlock it is still renewed, and so is the next owner; in the
// end none is.
func TestRenewal_reentry(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		t.Parallel()
		server := redistest.Start(t)
		var renewals atomic.Int64
		renewed := func(context.Context, lock.Event) { renewals.Add(1) }
		l := k.lock(ours(t, server.Client(t), client.WithWatchdogTimeout(renewalDog), client.WithObserver(lock.Observer{Renewed: renewed, RenewalFailed: renewed})), "orders")
		outer, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inner, err := l.Lock(outer.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := inner.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		outlives(t, outer)
		if err := outer.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		next, err := l.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		outlives(t, next)
		if err := next.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		before := renewals.Load() // and not all scripts: after a slow reply, the client reconciles a possible duplicate
		time.Sleep(renewalDog)    // three renewal intervals
		if more := renewals.Load() - before; before == 0 || more != 0 {
			t.Errorf("%d renewals of a held lock, and %d of a free one", before, more)
		}
		noKeys(t, server)
	}, plain, fair, read, write)
}

// Sixteen goroutines continuously acquire and release any free lock. If a goroutine keeps a lock for longer than a
// lease, the lock is renewed.
func TestRenewal_amongShortLocks(t *testing.T) {
	t.Parallel()
	const goroutines = 16
	server := redistest.Start(t)
	c := ours(t, server.Client(t), client.WithWatchdogTimeout(renewalDog))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			for l := c.NewLock("busy"); ; {
				select {
				case <-stop:
					return
				default:
				}
				if h, err := l.TryLock(t.Context()); err == nil {
					_ = h.Unlock(t.Context()) // on a busy machine either can take too long; only the kept lock matters here
				}
			}
		})
	}
	kept, err := c.NewLock("kept").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewLock("busy").Lock(t.Context()) // the name that the others contend for
	if err != nil {
		t.Fatal(err)
	}
	outlives(t, h)
	if err := errors.Join(kept.Err(), h.Unlock(t.Context()), kept.Unlock(t.Context())); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	noKeys(t, server)
}

// renewedKeys returns the locks that a command renews; nil if it is not a renewal. A renewal has keys, the lease, and
// an owner for each key.
func renewedKeys[S ~string | ~[]byte](req []S, lease time.Duration) (keys []string) {
	if name := string(req[0]); name != "EVALSHA" && name != "EVAL" {
		return nil
	}
	n, err := strconv.Atoi(string(req[2]))
	if err != nil || len(req) != 3+n+1+n || string(req[3+n]) != strconv.FormatInt(lease.Milliseconds(), 10) {
		return nil
	}
	for _, key := range req[3 : 3+n] {
		keys = append(keys, string(key))
	}
	return keys
}

// A renewal gets no reply in time. The client library has several connections to each node of a cluster. It keeps the
// renewal, and sends it when its connection is writable again. In the meantime the locks are released on other
// connections, and another client acquires them. The delayed renewal has no effect on that client.
func TestRenewal_writtenAfterTheRelease(t *testing.T) {
	t.Parallel()
	const (
		locks = 16
		dog   = 9 * time.Second // enough for commands on the blocked connection
	)
	server := redistest.Start(t, "--cluster-enabled", "yes")
	server.AddSlots(t, 0, 16384)
	writable := make(chan struct{})
	stuck := make(chan struct{})
	var isStuck atomic.Bool
	var mu sync.Mutex
	over, late := make(map[string]bool), 0 // the locks whose Unlock has returned; how many of them are named by a renewal written after that
	see := func(req [][]byte) {
		keys := renewedKeys(req, dog)
		if keys == nil || !isStuck.CompareAndSwap(false, true) {
			return // the next renewals use the other connections
		}
		close(stuck)
		<-writable
		mu.Lock()
		defer mu.Unlock()
		for _, key := range keys {
			if over[key] {
				late++
			}
		}
	}
	sent := func(o *rueidis.ClientOption) {
		o.PipelineMultiplex = 2 // four connections; a command may use any of them
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", addr)
			return &redistest.Written{Conn: conn, See: see}, err
		}
	}
	c := ours(t, server.Client(t, sent), client.WithWatchdogTimeout(dog), client.WithOpTimeout(time.Second))
	holds := make(map[string]lock.Hold)
	for i := range locks {
		name := fmt.Sprint("{orders} ", i)
		h, err := c.NewLock(name).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holds[name] = h
	}
	soon(t, stuck)
	for name, h := range holds {
		switch err := h.Unlock(t.Context()); {
		case err == nil:
			mu.Lock()
			over[name] = true
			mu.Unlock()
		case !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrLost): // it used the blocked connection
			t.Error(err)
		}
	}
	rdb := server.Client(t)
	others := ours(t, rdb)
	taken := make(map[string]lock.Hold)
	for name := range over {
		h, err := others.NewLock(name, lock.WithFixedLease(time.Hour)).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken[name] = h
	}
	close(writable)
	until(t, func() bool { return len(server.LockKeys(t)) == len(taken) }) // the retried releases come after the renewal
	if late == 0 {
		t.Errorf("no renewal of %d locks was written after their Unlock", len(taken))
	}
	t.Logf("%d of %d locks were released before the renewal that names %d of them was written", len(taken), locks, late)
	for name, h := range taken {
		if left, err := do(t, rdb, "PTTL", name).AsInt64(); err != nil || left < time.Minute.Milliseconds() {
			t.Errorf("the next hold of %q has a lease of %d ms left, %v; want nearly an hour", name, left, err)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	noKeys(t, server)
}
