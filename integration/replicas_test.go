//go:build linux

package integration_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// replica starts a replica of primary, and waits until it is in sync.
func replica(t *testing.T, primary *redistest.Server) *redistest.Server {
	t.Helper()
	host, port, _ := strings.Cut(primary.Addr(), ":")
	r := redistest.Start(t, "--replicaof", host, port)
	r.WaitUntilFollows(t, primary)
	return r
}

// A lock is granted once a replica has it, and not before. A lock without enough replicas is released before the call
// returns.
func TestReplicas(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		t.Parallel()
		server := redistest.Start(t)
		server.Do(t, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
		c := ours(t, server.Client(t))
		l := k.lock(c, "orders", lock.WithReplicas(1, promptTimeout/2)) // for replicas that confirm eventually
		const timeout = 300 * time.Millisecond                          // for replicas that never do
		alone := k.lock(c, "orders", lock.WithReplicas(1, timeout))

		refused := func(when string) {
			t.Helper()
			if _, err := alone.Lock(t.Context()); !errors.Is(err, lock.ErrReplicas) || errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s: %v, want ErrReplicas", when, err)
			}
			if n := keys(t, server); n != 0 {
				t.Errorf("%s: %d keys are left when Lock returns", when, n)
			}
			if _, err := alone.TryLock(t.Context()); !errors.Is(err, lock.ErrReplicas) {
				t.Errorf("%s: TryLock: %v, want ErrReplicas", when, err)
			}
		}
		granted := func(when string) {
			t.Helper()
			h, err := l.Lock(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		refused("without a replica")
		r := replica(t, server)
		granted("with one")
		server.Do(t, "SCRIPT", "FLUSH") // the reply to WAIT after a NOSCRIPT confirms nothing
		r.Freeze(t)
		refused("with a frozen one")
		refused("with a frozen one again")
		r.Thaw(t)
		granted("when it is back")
		granted("for the next")

		// A holder needs no confirmation to re-enter.
		h, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.Freeze(t)
		again, err := l.Lock(h.Context())
		if err != nil {
			t.Fatalf("a reentry: %v", err)
		}
		for _, h := range []lock.Hold{again, h} {
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if _, err := k.lock(c, "orders", lock.WithReplicas(2, timeout)).Lock(t.Context()); !errors.Is(err, lock.ErrReplicas) {
			t.Errorf("two of one replica: %v, want ErrReplicas", err)
		}
	}, plain, fair, read, write)
}

// If WAIT is unknown or denied, the error says so, and no keys are left.
func TestReplicas_serverCannotWait(t *testing.T) {
	server := redistest.Start(t)
	server.Do(t, "ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all", "-wait")
	c := ours(t, server.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "locks", "secret" }))
	_, err := c.NewLock("orders", lock.WithReplicas(1, time.Second)).Lock(t.Context())
	if !errors.Is(err, lock.ErrReplicas) || !strings.Contains(err.Error(), "WAIT") {
		t.Errorf("%v, want ErrReplicas and the word WAIT", err)
	}
	until(t, func() bool { return keys(t, server) == 0 })
}

// keys returns the number of keys on server.
func keys(t *testing.T, server *redistest.Server) int64 {
	t.Helper()
	reply := server.Do(t, "DBSIZE")
	n, err := reply.ToInt64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}
