package multilock_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// quorumOf returns a quorum of locks with that name, with enough time for the last reply. The servers of these tests have
// just started, and lose nothing.
func quorumOf(cs []*client.Client, name string) lock.Locker {
	var locks []lock.Locker
	for _, c := range cs {
		locks = append(locks, c.NewLock(name))
	}
	return multilock.NewQuorum(locks, multilock.WithMaxLease(2*kindtest.GateLease), multilock.WithServerTimeout(kindtest.GateLease/2), multilock.WithDurableServers())
}

// Multi-locks and quorums follow the table of error replies like a single lock.
func TestReplies(t *testing.T) {
	t.Parallel()
	t.Run("together", func(t *testing.T) {
		t.Parallel()
		kindtest.LockReplies(t, kindtest.Kind{
			New: func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
				return multilock.New(c.NewLock(name, opts...), c.NewLock(name+":b", opts...))
			},
			Channel: func(name string) string { return "*{" + name + "}*" },
		})
	})
	t.Run("one by one", func(t *testing.T) {
		t.Parallel()
		kindtest.SeveralReplies(t, 1, func(cs []*client.Client, name string) lock.Locker {
			return multilock.New(cs[0].NewLock(name), cs[0].NewFairLock(name+":b"))
		})
	})
	t.Run("later", func(t *testing.T) {
		t.Parallel()
		kindtest.LaterReplies(t, func(cs []*client.Client, name string) lock.Locker {
			return multilock.New(cs[1].NewLock(name), cs[0].NewLock(name+":b"))
		})
	})
	t.Run("quorum", func(t *testing.T) {
		t.Parallel()
		kindtest.SeveralReplies(t, 3, quorumOf)
	})
	t.Run("quorum, one of three", func(t *testing.T) {
		t.Parallel()
		kindtest.MinorityReplies(t, quorumOf)
	})
}
