package luascripts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	readAcquire  = load("rw_read_acquire")
	readRelease  = load("rw_read_release")
	writeAcquire = load("rw_write_acquire")
	writeRelease = load("rw_write_release")
	rwInspect    = load("rw_inspect")
	rwForce      = load("rw_force")

	readRenew = renewer{script: load("rw_read_renew"), never: func(k *Keys) string { return k.Never }, argsOf: func(args []string, r *Renewal) []string {
		return append(args, r.Owner, r.Keys.LeasePrefix)
	}}
	writeRenew = renewer{script: reentrantRenew.script, argsOf: func(args []string, r *Renewal) []string { return append(args, r.Owner+Writing) }}
)

// Writing is the end of a writer's field in the hash, after the owner.
const Writing = ":write"

// AcquireRead sets the read hold count of an owner to q.Want. If it is rejected, and its waiter
// timeout is not 0, it makes a reservation. When a writer leaves, no other writer enters before a
// reader with a reservation.
func AcquireRead(ctx context.Context, rdb rueidis.Client, k Keys, q Request) (Acquired, error) {
	return acquire(ctx, rdb, readAcquire, k.withTokenCounter(k.Lock, k.Intent, k.Reservation, k.Never), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want), q.Writer, ms(q.Waited), bit(q.Yield), k.LeasePrefix, ms(q.WaiterTimeout)}, q)
}

// ReleaseRead sets the read hold count of owner to leave, and returns Done, Gone or Foreign. With 0
// the owner also loses its reservation.
func ReleaseRead(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	return releaseRW(ctx, rdb, readRelease, []string{k.Lock, k.Reservation, k.Never}, k, owner, leave)
}

func releaseRW(ctx context.Context, rdb rueidis.Client, s *script, keys []string, k Keys, owner string, leave int) (Verdict, error) {
	for range mostCalls {
		reply := s.exec(ctx, rdb, keys, []string{owner, strconv.Itoa(leave), k.LeasePrefix, k.Channel, k.Publish})
		if v, err := verdict(s, reply, Done, Gone, more, Foreign); err != nil || v != more {
			return v, err
		}
	}
	return 0, endless(s)
}

// RenewRead extends the leases of readers, as RenewReentrant does for locks.
func RenewRead(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return readRenew.renew(ctx, rdb, batch, lease, perCall)
}

// AcquireWrite sets the write hold count of an owner to q.Want. If others have the lock and its
// waiter timeout is not 0, readers that arrive later wait behind it.
func AcquireWrite(ctx context.Context, rdb rueidis.Client, k Keys, q Request) (Acquired, error) {
	for range mostCalls {
		got, err := acquire(ctx, rdb, writeAcquire, k.withTokenCounter(k.Lock, k.Intent, k.Reservation, k.Never), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want), ms(q.Waited), ms(q.WaiterTimeout), k.LeasePrefix}, q)
		if err != nil || got.Verdict != more {
			return got, err
		}
	}
	return Acquired{}, endless(writeAcquire)
}

// ReleaseWrite sets the write hold count of owner to leave, and returns Done, Gone or Foreign. With
// 0 readers no longer wait behind it.
func ReleaseWrite(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	return releaseRW(ctx, rdb, writeRelease, []string{k.Lock, k.Intent, k.Reservation, k.Never}, k, owner, leave)
}

// RenewWrite extends the leases of writers, as for a plain lock, with the field of the writer.
func RenewWrite(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return writeRenew.renew(ctx, rdb, batch, lease, perCall)
}

// more is the verdict of a script that has checked about fifty readers and has more to check, which
// keeps each script short. The same call continues from there.
const more Verdict = -3

// mostCalls is the maximum number of such repetitions. A server that still has more to check is
// broken.
const mostCalls = 10000

func endless(s *script) error { return &ReplyError{s.name, "the list does not end"} }

// InspectRW reads the lock. Fields holds the living readers, by owner, and the writer, as
// "<owner>:write". For about fifty readers or more it sends several commands. It may then omit
// readers that arrive in the meantime, and include readers that leave.
func InspectRW(ctx context.Context, rdb rueidis.Client, k Keys) (Snapshot, error) {
	var all []Field
	mode, cursor := "", "0"
	for range mostCalls {
		part, next, err := inspectRW(ctx, rdb, k, cursor)
		if err != nil || part.Foreign {
			return part, err
		}
		if cursor != "0" && part.Mode != mode {
			all, cursor = nil, "0" // another owner has acquired the lock
			continue
		}
		all = append(all, part.Fields...)
		if mode, cursor = part.Mode, next; cursor == "0" {
			slices.SortFunc(all, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
			part.Fields = slices.CompactFunc(all, func(a, b Field) bool { return a.Name == b.Name }) // HSCAN can return a field twice
			return part, nil
		}
	}
	return Snapshot{}, endless(rwInspect)
}

// inspectRW reads a part of the lock, from cursor on, and returns where the next part begins.
func inspectRW(ctx context.Context, rdb rueidis.Client, k Keys, cursor string) (part Snapshot, next string, err error) {
	msg, err := rwInspect.exec(ctx, rdb, []string{k.Lock, k.Intent, k.Never}, []string{k.LeasePrefix, cursor}).ToMessage()
	if err != nil {
		return Snapshot{}, "", err
	}
	if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
		return Snapshot{Exists: true, Foreign: true}, "", nil
	}
	reply, err := msg.ToArray()
	bad := &ReplyError{Script: rwInspect.name, Reply: fmt.Sprintf("list of %d", len(reply))}
	if err != nil || len(reply) != 5 {
		return Snapshot{}, "", bad
	}
	left, err1 := reply[0].ToInt64()
	mode, err2 := reply[1].ToString()
	holds, err3 := reply[2].ToArray()
	intent, err4 := reply[3].ToArray()
	next, err5 := reply[4].ToString()
	fields, ok1 := fields(holds)
	waiting, ok2 := waiters(intent)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil || !ok1 || !ok2 {
		return Snapshot{}, "", bad
	}
	return Snapshot{Exists: left != -2, Left: remaining(left), Mode: mode, Fields: fields, Waiters: waiting}, next, nil
}

// ForceRW ends all read and write holds. It returns Done if an owner had the lock, Free if none
// did, or Foreign. It ends about fifty readers at a time. A writer that enters in between, because the
// other readers have left, keeps the lock.
func ForceRW(ctx context.Context, rdb rueidis.Client, k Keys) (Verdict, error) {
	args := []string{k.LeasePrefix, k.Channel, k.Publish}
	for i := range mostCalls {
		v, err := verdict(rwForce, rwForce.exec(ctx, rdb, []string{k.Lock, k.Never}, args), Done, Free, more, Foreign)
		switch {
		case err != nil:
			return v, err
		case v == Free && i > 0:
			return Done, nil // the last reader left on its own
		case v != more:
			return v, nil
		}
		args = append(args[:3], "1")
	}
	return 0, endless(rwForce)
}
