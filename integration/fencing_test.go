//go:build linux

package integration_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// token locks and unlocks, and returns the token.
func token(t *testing.T, ctx context.Context, l lock.Locker) uint64 {
	t.Helper()
	h, err := l.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	return h.Token()
}

// With a token counter, tokens increase even after the server's clock moved backward, which has the same effect as a
// token counter that is ahead of the clock. A client that increments the counter by one, like Redisson's fenced lock,
// is part of the sequence. A plain or a fair lock raises the counter beyond its token, by the number of hand-offs that
// need no command, and a writer raises it by one more, for readers.
func TestFencing_tokenCounter(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		server := redistest.Start(t)
		c := ours(t, server.Client(t))
		const register = "redisson_lock_token:{orders}"
		l := k.lock(c, "orders", lock.WithFencing())
		spare := uint64(0)
		switch k {
		case plain, fair:
			spare = 64
		case write:
			spare = 1
		}
		last := func() uint64 {
			t.Helper()
			reply := server.Do(t, "GET", register)
			text, err := reply.ToString()
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}

		server.Do(t, "INCR", register) // another client incremented it before
		first := token(t, t.Context(), l)
		if first < 1e15 || last() != first+spare {
			t.Errorf("the first token is %d, the token counter %d", first, last())
		}
		server.Do(t, "SET", register, "3000000000000000") // the clock moved backward by decades
		second, third := token(t, t.Context(), l), token(t, t.Context(), l)
		if second != 3e15+1 || third != second+spare+1 || last() != third+spare {
			t.Errorf("tokens %d, %d and token counter %d after 3000000000000000", second, third, last())
		}
		server.Do(t, "INCR", register)
		if next := token(t, t.Context(), l); next != third+spare+2 {
			t.Errorf("token %d after a peer's %d", next, third+spare+1)
		}
		ttl := server.Do(t, "PTTL", register)
		if left, err := ttl.ToInt64(); err != nil || left != -1 {
			t.Errorf("the token counter has an expiry: %d, %v", left, err)
		}

		// All holds of an owner share the token of the first.
		h, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if again := token(t, h.Context(), l); again != h.Token() {
			t.Errorf("a reentry has token %d, the hold %d", again, h.Token())
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		server.Do(t, "DEL", register)
		noKeys(t, server)
		token(t, t.Context(), k.lock(c, "orders"))
		noKeys(t, server) // without fencing there is no token counter
	}, plain, fair, write)
}

// A token counter that is too large to be incremented is an error, and no token is granted twice.
func TestFencing_tokenCounterTooFar(t *testing.T) {
	server := redistest.Start(t)
	c := ours(t, server.Client(t))
	server.Do(t, "SET", "redisson_lock_token:{orders}", "9007199254740991")
	_, err := c.NewLock("orders", lock.WithFencing()).Lock(t.Context())
	if err == nil || !strings.Contains(err.Error(), "9007199254740991") {
		t.Errorf("got %v, want an error that names the token counter", err)
	}
	exists := server.Do(t, "EXISTS", "orders")
	if n, err := exists.ToInt64(); err != nil || n != 0 {
		t.Errorf("the lock was still acquired: %d, %v", n, err)
	}
}

// A reader's token is larger than every earlier writer's, so a stale writer is rejected after a reader's token was seen. It
// is the same for all readers until another owner has written.
func TestFencing_readers(t *testing.T) {
	server := redistest.Start(t)
	c := ours(t, server.Client(t))
	l := c.NewRWLock("orders", lock.WithFencing())
	before := token(t, t.Context(), l.Read())
	first := token(t, t.Context(), l.Write())
	a, b := token(t, t.Context(), l.Read()), token(t, t.Context(), l.Read())
	second := token(t, t.Context(), l.Write())
	if before == 0 || before >= first || a <= first || b != a || second <= a {
		t.Errorf("tokens: reader %d, writer %d, readers %d and %d, writer %d", before, first, a, b, second)
	}
}
