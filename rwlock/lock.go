// Package rwlock is the read/write lock: any number of readers, or one writer.
// Make one with client.Client.NewRWLock.
//
// # Protocol
//
// In Redis a read/write lock is one hash, and a key for each hold of a reader.
// It is Redisson's RReadWriteLock, byte for byte, but for the wish and the turn.
//
//	<name>                                hash    mode -> read or write, owner -> read holds,
//	                                              owner:write -> write holds; lives as long as
//	                                              the longest lease in it
//	{<name>}:<owner>:rwlock_timeout:<n>   string  a reader's lease, one key for each of its holds
//	leasehold_rwlock_wish:{<name>}        string  ours: the writer whom readers let pass
//	leasehold_rwlock_turn:{<name>}        string  ours: the reader whom writers let pass when a
//	                                              writer leaves, and since when
//
//	read     nobody writes, but perhaps we; and no writer waits who came before us, or it is the
//	         turn of readers who came when we did:
//	         set our count, lengthen our lease, and the hash's if it is shorter
//	         else: claim a turn, unless a reader has who came before us
//	write    free, and not the turn of a reader who waits, or we write already: set our count
//	         else: leave a wish, unless one is there from a writer who came before us
//	release  set our count; at none, delete our field, and the wish or the claim if it is ours
//	         the last reader who is alive deletes the hash and publishes 0
//	         a writer who reads too turns the lock into a read lock; in any case the turn of
//	         readers begins if one has claimed it, and the writer publishes 1
//	renew    a reader its own keys, and the hash's expiry if it is shorter
//
// A reader whose keys ran out is dead, whatever the hash says: a writer who asks
// does not count it, and neither does the last reader who leaves. So one that
// died keeps nobody waiting for longer than its own lease, and others that go on
// reading do not keep it alive.
//
// Waiters ask, listen on redisson_rwlock:{<name>}, and ask again as those of a
// plain lock do. Of the readers of a process that wait, one asks; once it is let
// in, all others ask together.
//
// # Who waits for whom
//
// Readers do not wait for each other, so a writer could wait for ever. Here, who
// comes to read after a waiting writer came waits behind it, as with
// [sync.RWMutex]. A reader who came before is not held back by it: a reader tells the server
// for how long it has been waiting. The wish lives for the writer's patience ([lock.WithPatience], 5 s if not set) and is renewed by
// its questions; that is how long a writer who died can keep readers waiting.
//
// Writers without a pause could keep readers waiting, too. So when a writer leaves, readers
// who wait have a turn before the next writer, also as with [sync.RWMutex]. The reader who came
// first has claimed it, and writers wait for that reader, for 100 ms at most; other readers who came
// before the turn began enter with it. A reader who died costs the writers 100 ms, once. The claim lives for the
// reader's patience.
//
// Owners who read already may always read once more. So may the owner who writes.
// [lock.WithReadersFirst] turns the preference of writers off for one handle; its readers claim turns all
// the same.
//
// What it costs, measured with 16 readers who read for a millisecond, without a pause:
// nothing while nobody writes; with one writer who comes back at once, 0.4 of the
// readings, for forty times the writings. Without it that writer hardly gets in. With four writers
// who come back at once, 0.35 of the readings.
//
// An owner must not ask for the write lock while it reads: it would wait for
// itself, and gets [lock.ErrUpgrade] at once. The other way round is fine:
// [Lock.Downgrade] makes a read hold out of a write hold, and the caller goes on reading
// what it wrote, with no other writer between. An owner may also hold both at once: under
// a context of the write hold, or one [lock.WithOwner] context, Read().Lock is granted at once,
// whoever waits. But a hold that is taken under the context of another ends with that one.
//
// # Readers of one client
//
// While a reader holds the lock, others of the same client enter without a command:
// they share its hold in Redis, and the last to leave gives it back. Each has a hold,
// a context and an owner of its own in this process; only Hold.Owner, what stands in
// Redis, is the same for them. Inspect shows one owner then, with one hold for all and one more
// for each re-entry. This goes on for 10 ms and a round trip after the first has
// asked; who comes later asks anew, and no reader joins others once the client knows of a writer
// who waits. So a writer of another client waits that much longer at most. Read
// locks with a fixed lease or with replicas are not shared.
//
// # Where it differs from Redisson
//
//   - Readers of one client can be one owner in Redis.
//   - Writers are not starved by readers, but for readers of Redisson, which do
//     not know of the wish; nor readers by writers, but for writers of Redisson.
//   - A writer who stops writing but reads on publishes 1, so that waiting
//     readers come in at once; and the lease is then that of the reading.
//   - A writer re-entering never adds to the lease.
//   - The lease of a reader covers all its holds, and never gets shorter when one
//     of them is given back.
//   - Asking to write while reading is an error, not a wait without end.
//   - ForceUnlock ends both sides.
package rwlock

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

var reading, writing = kinds()

func kinds() (r, w *session.Kind) {
	r = &session.Kind{
		Mode:    lock.Read,
		Waits:   place.AllAsk,
		Keys:    keys.ReadWrite,
		Acquire: luascripts.AcquireRead,
		Release: luascripts.ReleaseRead,
		Renew:   luascripts.RenewRead,
		Queues:  true,
	}
	w = &session.Kind{
		Mode:    lock.Write,
		Waits:   place.FirstAsks,
		Keys:    keys.ReadWrite,
		Acquire: luascripts.AcquireWrite,
		Release: luascripts.ReleaseWrite,
		Renew:   luascripts.RenewWrite,
		Queues:  true,
	}
	r.Beside, w.Beside = w, r
	return r, w
}

// Lock is a handle of one read/write lock, with a Locker for each side. It is safe
// for concurrent use. It holds nothing and need not be closed.
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

// Read returns the side for reading: any number of owners at once, while nobody
// writes. Its holds have a fencing token only with [lock.WithFencing]: larger than that of
// every earlier writer, and the same for all readers until the next.
//
// Lock waits while another owner writes, or while a writer waits who came before.
// It costs one round trip when it need not wait, and none while others of this client
// read. Under a context that carries an owner who reads or writes already, it is granted at once. TryLock fails with
// lock.ErrNotAcquired where Lock would wait. Else both are as those of a plain
// lock.
func (l *Lock) Read() lock.Locker { return &l.read }

// Write returns the side for writing: one owner, while nobody else reads.
//
// Lock waits while anybody else reads or writes; readers who come later wait
// behind it. It costs one round trip when the lock is free. Under a context that
// carries an owner who writes already, it re-enters at once; under one whose owner
// only reads, it fails with lock.ErrUpgrade at once. TryLock fails with
// lock.ErrNotAcquired where Lock would wait, and holds nobody back. Else both are
// as those of a plain lock.
func (l *Lock) Write() lock.Locker { return &l.write }

// Downgrade gives the write hold w back, and returns a read hold in its place: of the same
// owner, and under the context that w was taken under, so that it does not end with w. No
// other owner writes in between; readers come in as soon as the writing is over. ctx is for
// the call alone, and may be w's own. It costs two round trips, and never waits
// for others.
//
// If the owner has other write holds, it goes on writing with those, and nobody else can
// read yet.
//
// It fails with lock.ErrNotHeld when w is not a hold of this lock's Write by the same client,
// or is over, and matches lock.ErrLost too when it was lost. When Redis gives no answer within the
// operation time-out, or ctx ends, it fails as TryLock does; then w is held as before, and no
// read hold stays. Once the read hold is confirmed, Downgrade succeeds: if Redis does not
// confirm the end of the writing, the client goes on with that, as after an Unlock.
func (l *Lock) Downgrade(ctx context.Context, w lock.Hold) (lock.Hold, error) {
	return l.session.Downgrade(ctx, l.read.spec, w)
}

// Inspect returns one consistent snapshot of the lock as it stands in Redis: how
// it is held, the writer first and then the readers who are alive, and the waiting
// writer whom readers let pass, if there is one. Other waiters leave no trace.
//
// More than some fifty readers are read in several calls: one who comes meanwhile may be missing,
// and one who left may be there.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.read.spec, luascripts.InspectRW)
}

// ForceUnlock ends all reading and writing, whoever it is, and reports whether
// there was any. Waiters are woken. Holders of this client learn of it at once,
// others at their next renewal at the latest; until then they may believe that
// they hold it. It is for operators.
//
// It is sent once: when the outcome is not known, it is for the caller to look. More than some fifty
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
	_ lock.Witness    = (*side)(nil)
	_ lock.Configured = (*side)(nil)
)

func (s *side) Name() string { return s.spec.Name }

func (s *side) Config() lock.Config { return s.spec.Config }

func (s *side) Lock(ctx context.Context) (lock.Hold, error) { return s.session.Lock(ctx, s.spec) }

func (s *side) TryLock(ctx context.Context) (lock.Hold, error) { return s.session.TryLock(ctx, s.spec) }

func (s *side) Server(ctx context.Context) (lock.Server, error) { return s.session.Server(ctx, s.spec) }
