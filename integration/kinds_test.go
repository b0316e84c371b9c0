//go:build linux

package integration_test

import (
	"context"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// kind names a type of lock, or a side of a read/write lock, so that one test can run with several types, and a command can
// name one to a worker.
type kind string

const (
	plain kind = "plain" // also the meaning of the empty kind
	fair  kind = "fair"
	read  kind = "read"
	write kind = "write"
)

// lock returns a handle of the lock called name.
func (k kind) lock(c *client.Client, name string, options ...lock.Option) lock.Locker {
	switch k {
	case fair:
		return c.NewFairLock(name, options...)
	case read:
		return c.NewRWLock(name, options...).Read()
	case write:
		return c.NewRWLock(name, options...).Write()
	}
	return c.NewLock(name, options...)
}

// inspect reads the lock's state.
func (k kind) inspect(ctx context.Context, c *client.Client, name string) (lock.State, error) {
	switch k {
	case fair:
		return c.NewFairLock(name).Inspect(ctx)
	case read, write:
		return c.NewRWLock(name).Inspect(ctx)
	}
	return c.NewLock(name).Inspect(ctx)
}

// force force-unlocks the lock.
func (k kind) force(ctx context.Context, c *client.Client, name string) (bool, error) {
	switch k {
	case fair:
		return c.NewFairLock(name).ForceUnlock(ctx)
	case read, write:
		return c.NewRWLock(name).ForceUnlock(ctx)
	}
	return c.NewLock(name).ForceUnlock(ctx)
}

// rival returns the type that cannot be acquired while another owner holds k.
func (k kind) rival() kind {
	if k == read {
		return write
	}
	return k
}

// field returns the field of owner's hold count in the lock's hash.
func (k kind) field(owner string) string {
	if k == write {
		return owner + ":write"
	}
	return owner
}

// lease returns the key whose expiry is the lease of owner.
func (k kind) lease(name, owner string) string {
	if k == read {
		return "{" + name + "}:" + owner + ":rwlock_timeout:1"
	}
	return name
}

// channel returns the channel of the waiters. A fair lock has one channel per waiter, with this prefix.
func (k kind) channel(name string) string {
	if k == read || k == write {
		return "redisson_rwlock:{" + name + "}"
	}
	return "redisson_lock__channel:{" + name + "}"
}

// queue returns the list of the waiters of a fair lock, and the zset of their deadlines.
func queue(name string) (list, zset string) {
	return "redisson_lock_queue:{" + name + "}", "redisson_lock_timeout:{" + name + "}"
}

// eachKind runs a test with the given types.
func eachKind(t *testing.T, test func(*testing.T, kind), kinds ...kind) {
	t.Helper()
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) { test(t, k) })
	}
}
