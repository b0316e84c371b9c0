// Package rwlock implements the read/write lock. Any number of readers, or one writer, can hold it.
// client.Client.NewRWLock creates one.
//
// # In Redis
//
// The lock uses the keys of Redisson's RReadWriteLock. Two more keys, for the intent of a waiting
// writer and for the reservation of waiting readers, are leasehold's own.
// docs/reference/redis-keys.md in the repository describes the keys.
//
// A reader whose lease keys have expired is dead, whatever the hash contains. Neither a requesting
// writer nor the last reader that leaves counts it. A reader that died keeps others waiting for at
// most its own lease.
//
// # Preference
//
// A reader that comes after a waiting writer waits behind that writer, as with [sync.RWMutex]. A
// reader that came before the writer does not. The intent of the writer lives for its waiter
// timeout ([lock.WithWaiterTimeout]). The writer renews it with its requests. A writer that died
// keeps readers waiting for at most that time.
//
// When a writer leaves, the waiting readers are admitted before the next writer, also as with
// [sync.RWMutex]. The reader that came first has a reservation, and writers wait for that reader
// for at most 100 ms. The other readers that came before enter with it. A reader with a reservation
// waits for at most one writer, the one inside or the next one, if its request arrives in that time.
//
// An owner that already reads may always read again, and so may the owner that writes.
// [lock.WithReaderPreference] turns off the preference of writers for one handle.
//
// Writer preference reduces the number of reads only while writers wait. Without it, readers that
// overlap without a gap keep a writer out indefinitely.
//
// An owner must not request the write lock while it reads. It would wait for itself, so the call
// fails with [lock.ErrUpgrade] immediately. The other order is allowed. [Lock.Downgrade] turns a
// write hold into a read hold, with no other writer in between. Under a context of the write hold,
// or a context of [lock.ContextWithNewOwner], Read().Lock is granted immediately.
//
// # Readers of one client
//
// While a reader holds the lock, other readers of the same client enter without a command. They
// share its hold in Redis, and the last one releases it. Each has its own hold, context and owner
// in this process. Only Hold.Owner, the owner string in Redis, is the same. Inspect then shows one
// owner, with one hold for all and one more for each reentry.
//
// Readers can join for 10 ms and one round trip after the first one sent its request. They cannot
// join once the client has detected a waiting writer. A writer of another client waits at most that
// much longer. Read locks with a fixed lease or with replicas are not shared.
//
// # Sharing with readers of Redisson
//
// A reader of Redisson that renews its lease sets the expiry of the hash to that lease. It does so
// even if the lease of another reader is longer. Readers of leasehold therefore renew at least
// every 10 s, however long their leases are. A reader with a fixed lease does not renew. If its
// lease exceeds the watchdog timeout of Redisson (30 s by default), do not share the lock with
// readers of Redisson. A Redisson reader that renews and then dies would let a writer enter too
// soon.
//
// # Differences from Redisson
//
//   - Readers of one client can be one owner in Redis.
//   - Readers do not starve writers, and writers do not starve readers. There are two exceptions:
//     readers and writers of Redisson can starve others, because they do not read the two keys of
//     leasehold, and writers without a pause can starve a reader whose round trip to Redis takes more
//     than 100 ms, or that receives no notifications.
//   - When a writer stops writing and continues reading, waiting readers are notified immediately,
//     and the lease is the reader's.
//   - A reentry of a writer never adds to the lease.
//   - The lease of a reader covers all its holds, and is not shortened when one is released.
//   - Requesting the write lock while reading is an error, not an endless wait.
//   - ForceUnlock ends both sides.
package rwlock

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
)

// renewal is the maximum renewal interval of a reader. A reader of Redisson that renews its lease sets the expiry of the
// hash to its watchdog timeout, 30 s by default, even if that shortens it. The other readers must then renew in time.
const renewal = 10 * time.Second

var reading, writing = kinds()

func kinds() (r, w *session.Kind) {
	r = &session.Kind{
		Name:             "read",
		DisplayName:      "a read/write lock",
		Mode:             lock.Read,
		WaitPolicy:       lockstate.AllAtOnce,
		HasWaiterTimeout: true,
		MaxRenewInterval: renewal,
		Scripts: session.Scripts{
			Keys:    keys.ReadWrite,
			Acquire: luascripts.AcquireRead,
			Release: luascripts.ReleaseRead,
			Renew:   luascripts.RenewRead,
		},
	}
	w = &session.Kind{
		Name:             "write",
		DisplayName:      "a read/write lock",
		Mode:             lock.Write,
		WaitPolicy:       lockstate.OnlyFirst,
		HasWaiterTimeout: true,
		Scripts: session.Scripts{
			Keys:    keys.ReadWrite,
			Acquire: luascripts.AcquireWrite,
			Release: luascripts.ReleaseWrite,
			Renew:   luascripts.RenewWrite,
		},
	}
	r.Sibling, w.Sibling = w, r
	return r, w
}

// Lock is a handle of one read/write lock, with a Locker for each side. It is safe for concurrent
// use. It holds no resources and need not be closed.
type Lock struct {
	session     *session.Session
	read, write side
}

// New is for package client. Use client.Client.NewRWLock.
func New(s *session.Session, name string, opts ...lock.Option) *Lock {
	return &Lock{
		session: s,
		read:    side{s, s.NewSpec(reading, name, opts)},
		write:   side{s, s.NewSpec(writing, name, opts)},
	}
}

// Name returns the name as the caller gave it.
func (l *Lock) Name() string { return l.read.spec.Name }

// Read returns the side for reading. Any number of owners can hold it at once, while no other owner
// writes. Its holds have a fencing token only with [lock.WithFencing]. The token is larger than the
// token of every earlier writer, and equal for all readers until the next writer.
//
// Lock waits while another owner writes, or while an earlier writer waits. It requires one
// round trip if it need not wait, and none while other callers of this client read. If ctx carries
// an owner that already reads or writes, it is granted immediately. TryLock fails with
// lock.ErrNotAcquired if Lock would wait. Otherwise it behaves like a plain lock.
func (l *Lock) Read() lock.Locker { return &l.read }

// Write returns the side for writing. One owner can hold it, while no other owner reads.
//
// Lock waits while another owner reads or writes. Readers that come later wait behind it. Lock
// requires one round trip if the lock is free. If ctx carries an owner that already writes, it
// re-enters immediately. If that owner only reads, it fails immediately with lock.ErrUpgrade.
// TryLock fails with lock.ErrNotAcquired if Lock would wait, and makes no reader wait behind it.
// Otherwise it behaves like a plain lock.
func (l *Lock) Write() lock.Locker { return &l.write }

// Downgrade releases the write hold w and returns a read hold in its place. The read hold belongs
// to the same owner. Its context is derived from the one given to the acquisition of w, so it does
// not end with w. No other owner writes in between. Other readers enter as soon as the write hold
// is released. The context ctx bounds only the call, and may be the context of w. Downgrade
// requires two round trips and never waits for another owner. If the owner has other write holds,
// it continues to write with those.
//
// It fails with lock.ErrNotHeld if w is not a hold of this lock's Write by the same client, or has
// ended. The error also matches lock.ErrLost if w was lost. If Redis does not respond within the
// operation timeout, or ctx is canceled, it fails as TryLock does. Then w is held as before, and no
// read hold is left. Once the read hold is confirmed, Downgrade succeeds. If Redis does not confirm
// the release of the write hold, the client repeats it, as after Unlock.
func (l *Lock) Downgrade(ctx context.Context, w lock.Hold) (lock.Hold, error) {
	return l.session.Downgrade(ctx, l.read.spec, w)
}

// Inspect returns a consistent snapshot of the lock in Redis. It contains the mode, the holders,
// and the waiting writer that readers wait behind. A writer that holds the lock is the first
// holder, before the living readers. Redis does not store the other waiters.
//
// If there are more than about 50 readers, they are read in several calls. A reader that arrives in
// the meantime may be missing, and one that has left may be listed.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.read.spec, luascripts.InspectRW)
}

// ForceUnlock ends all reading and writing, and reports whether there was any. It notifies the
// waiters. ForceUnlock is for operators.
//
// Holders of this client detect the loss immediately. So do holders of other clients if they are
// subscribed (see admin.Admin.ForceUnlock), up to 64 readers. Other holders detect it at their next
// renewal, and may act as holders until then. The cause of the loss matches lock.ErrForceUnlocked.
//
// The command is sent once. If its outcome is unknown, check with Inspect. More than about 50
// readers are ended by several calls.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) {
	return l.session.Force(ctx, l.read.spec, luascripts.ForceRW)
}

// side is one side of a lock.
type side struct {
	session *session.Session
	spec    *session.Spec
}

var (
	_ lockimpl.Witness    = (*side)(nil)
	_ lockimpl.Configured = (*side)(nil)
)

func (s *side) Name() string { return s.spec.Name }

func (s *side) Config() lockimpl.Config { return s.spec.Config }

func (s *side) Lock(ctx context.Context) (lock.Hold, error) { return s.session.Lock(ctx, s.spec) }

func (s *side) TryLock(ctx context.Context) (lock.Hold, error) { return s.session.TryLock(ctx, s.spec) }

// Inspect is for a multi-lock, which only has one side of a lock. The holders are those that exclude that side.
func (s *side) Inspect(ctx context.Context) (lock.State, error) {
	state, err := session.Inspect(ctx, s.session, s.spec, luascripts.InspectRW)
	if s.spec.Mode == lock.Read {
		state.Holders = slices.DeleteFunc(state.Holders, func(h lock.Holder) bool { return h.Mode == lock.Read })
	}
	return state, err
}

func (s *side) Server(ctx context.Context) (lockimpl.Server, error) {
	return s.session.Server(ctx, s.spec)
}
