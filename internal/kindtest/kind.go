package kindtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Maker returns a handle of a lock.
type Maker func(c *client.Client, name string, opts ...lock.Option) lock.Locker

// Operator has the methods for operators that every type of lock has.
type Operator interface {
	Inspect(ctx context.Context) (lock.State, error)
	ForceUnlock(ctx context.Context) (bool, error)
}

// Kind describes a type of lock, or one side of a read/write lock. The suites use it where types
// differ, and do not depend on the type otherwise.
type Kind struct {
	New      Maker
	Operator func(c *client.Client, name string) Operator

	// Rival is the type of locks that New's locks exclude and are excluded by, if it is not New's
	// own type: writers, for readers.
	Rival *Kind

	// Mode is the mode that Inspect returns while an owner holds it.
	Mode lock.Mode

	// Hash returns the lock's hash while owner has this number of holds, and no other owner has any.
	Hash func(owner string, holds int) map[string]string

	// Keys returns all keys at that time. Each of them expires.
	Keys func(name, owner string, holds int) []string

	// Patterns returns the key patterns of ACL rules for all locks whose names begin with prefix.
	Patterns func(prefix string) []string

	// Channel returns the channel that the lock's waiters subscribe to. If they are queued in
	// Redis, each client has a separate channel whose name begins with it.
	Channel func(name string) string
	Queue   func(name string) string

	// Patient reports that the type supports lock.WithWaiterTimeout.
	Patient bool

	// Requests is the number of requests that each waiter sends for itself when it arrives. A
	// process sends all other requests once for all its waiters.
	Requests int

	// OtherKind is the hash of a different type of lock. TellsHashes reports that the type
	// distinguishes any other hash from a lost lock, even in Unlock.
	OtherKind   map[string]string
	TellsHashes bool
}

// OneHash describes a lock that is one hash in Redis, owner -> hold count.
func OneHash(new Maker, operator func(c *client.Client, name string) Operator) Kind {
	return Kind{
		New:       new,
		Operator:  operator,
		Mode:      lock.Exclusive,
		Hash:      func(owner string, holds int) map[string]string { return map[string]string{owner: strconv.Itoa(holds)} },
		Keys:      func(name, _ string, _ int) []string { return []string{name} },
		Patterns:  func(prefix string) []string { return []string{"~" + prefix + "*"} },
		Channel:   func(name string) string { return "redisson_lock__channel:{" + name + "}" },
		OtherKind: map[string]string{"mode": "read", "x": "1"},
	}
}

// patience returns the option for a waiter timeout of d, if the type supports it.
func (k Kind) patience(d time.Duration) []lock.Option {
	if !k.Patient {
		return nil
	}
	return []lock.Option{lock.WithWaiterTimeout(d)}
}

// rival returns the type of lock that excludes k.
func (k Kind) rival() Kind {
	if k.Rival == nil {
		return k
	}
	return *k.Rival
}

// eachWay runs f for each way in which one owner can wait for another. k waits for its rival and,
// if that is a different type, the rival waits for k.
func (k Kind) eachWay(t *testing.T, f func(t *testing.T, holder, waiter Kind)) {
	t.Helper()
	if k.Rival == nil {
		f(t, k, k)
		return
	}
	t.Run("it waits", func(t *testing.T) { f(t, *k.Rival, k) })
	t.Run("it is waited for", func(t *testing.T) { f(t, k, *k.Rival) })
}

// listeners returns the number of channels for waiters of name that have subscribers.
func (k Kind) listeners(t *testing.T, s *redistest.Server, name string) int {
	t.Helper()
	pattern := k.Channel(name)
	if k.Queue != nil {
		pattern += "*"
	}
	return len(Channels(t, s, pattern))
}

// Waiting waits until n waiters of one process wait for name, as far as Redis can show it.
func (k Kind) Waiting(t *testing.T, s *redistest.Server, name string, n int) {
	t.Helper()
	WaitFor(t, "they listen, or do not any more", func() bool { return min(k.listeners(t, s, name), 1) == min(n, 1) })
	if k.Queue != nil {
		WaitFor(t, "they stand in line, or do not any more", func() bool { return Number(s.Do(t, "LLEN", k.Queue(name))) == int64(n) })
	}
}

// take makes owner hold name without an expiry, as no client would.
func (k Kind) take(t *testing.T, s *redistest.Server, name, owner string) {
	t.Helper()
	setHash(t, s, name, k.rival().Hash(owner, 1))
}

func setHash(t *testing.T, s *redistest.Server, name string, hash map[string]string) {
	t.Helper()
	command := []string{"HSET", name}
	for field, value := range hash {
		command = append(command, field, value)
	}
	s.Do(t, command...)
}

// WantHeld fails unless the server has exactly this number of holds of owner, and after a short time no other key. The batch of a
// read/write lock lasts for 100 ms.
func (k Kind) WantHeld(t *testing.T, s *redistest.Server, name, owner string, holds int) {
	t.Helper()
	var want []string
	if holds > 0 {
		want = slices.Sorted(slices.Values(k.Keys(name, owner, holds)))
		WantHash(t, s, name, k.Hash(owner, holds))
	}
	var got []string
	defer func() {
		if !slices.Equal(got, want) {
			t.Logf("the keys are %q", got)
		}
	}()
	WaitFor(t, fmt.Sprintf("with %d holds the keys are %q", holds, want), func() bool {
		got = Keys(t, s)
		return slices.Equal(got, want)
	})
}
