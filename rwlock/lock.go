// Package rwlock is the read/write lock: any number of readers, or one writer.
// client.Client.NewRWLock makes one.
//
// # Protocol
//
// In Redis a read/write lock is one hash, and a key for the lease of each reader.
// Clients of Redisson's RReadWriteLock read and write the same keys. Two keys are ours alone: the wish and the turn.
//
//	<name>                                hash    mode -> read or write, owner -> read holds,
//	                                              owner:write -> write holds; lives as long as
//	                                              the longest lease in it
//	{<name>}:<owner>:rwlock_timeout:<n>   string  a reader's lease; n is the number of its holds
//	leasehold_rwlock_wish:{<name>}        string  ours: the waiting writer that later readers wait behind
//	leasehold_rwlock_turn:{<name>}        string  ours: the waiting reader that writers wait behind once a
//	                                              writer has left, and since when
//
//	read     no other owner writes; and no writer waits that came before us, or a turn of
//	         readers is on that began after we came:
//	         set our count, lengthen our lease, and the hash's if it is shorter
//	         otherwise: claim a turn, unless a reader that came before us has claimed it
//	write    free, and no turn of a waiting reader is on, or we write already: set our count
//	         otherwise: set the wish, unless a writer that came before us has set it
//	release  set our count; at zero, delete our field, and the wish or the claim if it is ours
//	         the last living reader deletes the hash and publishes 0
//	         a writer deletes the hash, or makes it a read lock if it also reads; if a reader has
//	         claimed a turn, the turn begins; the writer publishes 1
//	renew    a reader lengthens its own keys, and the hash's expiry if it is shorter
//
// When a reader of Redisson renews its lease, it sets the expiry of the hash to that lease, also where that is shorter than the lease of
// another reader. So ours renew every third of their lease, and every 10 s at least: a longer lease takes more commands than that of
// another lock, one for up to 100 locks each 10 s. A reader with a fixed lease renews nothing. If its lease is longer than the watchdog timeout
// of Redisson (30 s if not set), do not share its lock with readers of Redisson: one that renews, and dies, would let a writer in too soon.
//
// A reader of Redisson has one lease key for each of its holds, 1 to n, and every client takes the longest
// of them. A reader of ours has the last of these keys only, so that no call does more work the more holds there are. Its
// value is "all" when there is more than one hold, and 1 as Redisson's otherwise.
//
// A reader whose keys have expired is dead, whatever the hash says: neither a writer that asks
// nor the last reader that leaves counts it. So a reader that died keeps
// others waiting for its own lease at most, and readers that go on
// reading do not keep it alive.
//
// Waiters ask, listen on redisson_rwlock:{<name>}, and ask again as those of a
// plain lock do. Of the waiting readers of a process one asks; once it is
// granted the lock, all others ask together.
//
// # Preference
//
// Readers do not wait for each other, so a writer could wait for ever. Therefore a reader
// that comes after a waiting writer waits behind that writer, as with
// [sync.RWMutex]. A reader that came before the writer does not: a reader tells the server
// how long it has been waiting. The wish lives for the writer's patience ([lock.WithWaiterTimeout], 5 s if not set) and is renewed by
// its questions; a writer that died keeps readers waiting for that time at most.
//
// Writers without a pause could keep readers waiting, too. So when a writer leaves, the waiting
// readers have a turn before the next writer, also as with [sync.RWMutex]. The reader that came
// first has claimed it, and writers wait for that reader, for 100 ms at most; the other readers that came
// before the turn began enter with it. A reader that died delays the writers by 100 ms, once. The claim lives for the
// reader's patience.
//
// An owner that reads already may always read once more, and so may the owner that writes.
// [lock.WithReaderPreference] turns the preference of writers off for one handle; its readers claim turns
// nevertheless.
//
// The preference costs readings. With 16 readers that read for a millisecond each, without a pause, it
// was measured to cost nothing while no owner writes, and 0.4 of the readings, for forty times the
// writings, with one writer that comes back at once. Without it that writer hardly gets in. With four such
// writers it costs 0.35 of the readings.
//
// An owner must not ask for the write lock while it reads: it would wait for
// itself, and gets [lock.ErrUpgrade] at once. The other order is allowed:
// [Lock.Downgrade] makes a read hold out of a write hold, and the caller goes on reading
// what it wrote, with no other writer between. An owner may also hold both at once: under
// a context of the write hold, or one [lock.ContextWithNewOwner] context, Read().Lock is granted at once,
// although others wait. But a hold that is taken under the context of another hold ends with that hold.
//
// # Readers of one client
//
// While a reader holds the lock, other readers of the same client enter without a command:
// they share its hold in Redis, and the last to leave gives it back. Each has a hold,
// a context and an owner of its own in this process; only Hold.Owner, the owner in
// Redis, is the same for them. Inspect shows one owner then, with one hold for all and one more
// for each re-entry. Readers can join for 10 ms and a round trip after the first has
// asked; a later reader asks anew. No reader joins once the client knows of a waiting
// writer. So a writer of another client waits that much longer at most. Read
// locks with a fixed lease or with replicas are not shared.
//
// # Where it differs from Redisson
//
//   - Readers of one client can be one owner in Redis.
//   - Readers do not starve writers, and writers do not starve readers. Only readers and
//     writers of Redisson, which do not know of the wish and the turn, still can.
//   - A writer that stops writing but goes on reading publishes 1, so that waiting
//     readers come in at once; and the lease is then the reader's.
//   - A re-entry of a writer never adds to the lease.
//   - The lease of a reader covers all its holds, and never gets shorter when one
//     of them is given back.
//   - To ask for the write lock while reading is an error, not a wait without end.
//   - ForceUnlock ends both sides.
package rwlock

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
)

// renewal is how often a reader renews its lease at least. A reader of Redisson that renews its own lease sets the expiry of the hash to its
// watchdog timeout, which is 30 s if not set, also if that shortens it: then the next renewal of each other reader must not be late.
const renewal = 10 * time.Second

var reading, writing = kinds()

func kinds() (r, w *session.Kind) {
	r = &session.Kind{
		Name:   "read",
		Called: "a read/write lock",
		Mode:   lock.Read,
		Waits:  place.AllAsk,
		Queues: true,
		Within: renewal,
		Scripts: session.Scripts{
			Keys:    keys.ReadWrite,
			Acquire: luascripts.AcquireRead,
			Release: luascripts.ReleaseRead,
			Renew:   luascripts.RenewRead,
		},
	}
	w = &session.Kind{
		Name:   "write",
		Called: "a read/write lock",
		Mode:   lock.Write,
		Waits:  place.FirstAsks,
		Queues: true,
		Scripts: session.Scripts{
			Keys:    keys.ReadWrite,
			Acquire: luascripts.AcquireWrite,
			Release: luascripts.ReleaseWrite,
			Renew:   luascripts.RenewWrite,
		},
	}
	r.Beside, w.Beside = w, r
	return r, w
}

// Lock is a handle of one read/write lock, with a Locker for each side. It is safe
// for concurrent use. It has no resources and need not be closed.
type Lock struct {
	session     *session.Session
	read, write side
}

// New is for package client; use client.Client.NewRWLock.
func New(s *session.Session, name string, opts ...lock.Option) *Lock {
	return &Lock{
		session: s,
		read:    side{s, s.NewSpec(reading, name, opts)},
		write:   side{s, s.NewSpec(writing, name, opts)},
	}
}

// Name returns the name as it was given.
func (l *Lock) Name() string { return l.read.spec.Name }

// Read returns the side for reading: any number of owners at once, while no owner
// writes. Its holds have a fencing token only with [lock.WithFencing]: larger than that of
// every earlier writer, and the same for all readers until the next writer.
//
// Lock waits while another owner writes, or while a writer waits that came before it.
// It costs one round trip when it need not wait, and none while others of this client
// read. Under a context that carries an owner that reads or writes already, it is granted at once. TryLock fails with
// lock.ErrNotAcquired where Lock would wait. Otherwise both are as those of a plain
// lock.
func (l *Lock) Read() lock.Locker { return &l.read }

// Write returns the side for writing: one owner, while no other owner reads.
//
// Lock waits while another owner reads or writes; readers that come later wait
// behind it. It costs one round trip when the lock is free. Under a context that
// carries an owner that writes already, it re-enters at once; under one whose owner
// only reads, it fails with lock.ErrUpgrade at once. TryLock fails with
// lock.ErrNotAcquired where Lock would wait, and makes no reader wait behind it. Otherwise both are
// as those of a plain lock.
func (l *Lock) Write() lock.Locker { return &l.write }

// Downgrade gives the write hold w back, and returns a read hold in its place: of the same
// owner, and under the context that w was taken under, so that it does not end with w. No
// other owner writes in between; readers enter as soon as the writing is over. ctx bounds
// the call alone, and may be w's own. Downgrade costs two round trips, and never waits
// for another owner.
//
// If the owner has other write holds, it goes on writing with those, and no other owner can
// read yet.
//
// It fails with lock.ErrNotHeld when w is not a hold of this lock's Write by the same client,
// or is over, and matches lock.ErrLost too when it was lost. When Redis gives no answer within the
// operation timeout, or ctx ends, it fails as TryLock does; then w is held as before, and no
// read hold is left. Once the read hold is confirmed, Downgrade succeeds: if Redis does not
// confirm the end of the writing, the client repeats that release, as after an Unlock.
func (l *Lock) Downgrade(ctx context.Context, w lock.Hold) (lock.Hold, error) {
	return l.session.Downgrade(ctx, l.read.spec, w)
}

// Inspect returns one consistent snapshot of the lock as it stands in Redis: its
// mode, its holders, the writer first and then the living readers, and the waiting
// writer that readers wait behind, if there is one. Redis does not know the other waiters.
//
// More than some fifty readers are read in several calls: a reader that comes meanwhile may be missing,
// and one that left may be listed.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.read.spec, luascripts.InspectRW)
}

// ForceUnlock ends all reading and writing, and reports whether
// there was any. It wakes the waiters. Holders of this client learn of the loss at once, and so do
// those of other clients that listen (see admin.Admin.Unlock), up to some 64 readers; others learn of it at their next renewal at the latest.
// Until then they may believe that they hold the lock. It is for operators. The cause of the loss
// matches lock.ErrForceUnlocked.
//
// The command is sent once: when its outcome is not known, the caller has to look. More than some fifty
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

func (s *side) Server(ctx context.Context) (lockimpl.Server, error) {
	return s.session.Server(ctx, s.spec)
}
