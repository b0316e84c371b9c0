package luascripts

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	readAcquire  = load("rw_read_acquire", "include_token", "include_rw")
	readRelease  = load("rw_read_release", "include_rw")
	writeAcquire = load("rw_write_acquire", "include_token", "include_rw")
	writeRelease = load("rw_write_release", "include_rw")
	rwInspect    = load("rw_inspect", "include_rw")
	rwForce      = load("rw_force", "include_rw")

	readRenew = renewer{load("rw_read_renew", "include_rw"), func(k *Keys) string { return k.Never }, func(args []string, r *Renewal) []string {
		return append(args, r.Owner, strconv.Itoa(r.Holds), r.Keys.Beside)
	}}
	writeRenew = renewer{reentrantRenew.script, nil, func(args []string, r *Renewal) []string { return append(args, r.Owner+Writing) }}
)

// Writing is what follows the owner in the hash's field for writing.
const Writing = ":write"

// AcquireRead makes an owner read as often as it wants to.
func AcquireRead(ctx context.Context, rdb rueidis.Client, k Keys, q Question) (Acquired, error) {
	yield := "0"
	if q.Yield {
		yield = "1"
	}
	return acquire(ctx, rdb, readAcquire, k.withRegister(k.Lock, k.Wish, k.Never), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want), q.Writer, ms(q.Waited), yield, k.Beside}, q)
}

// ReleaseRead leaves owner leave read holds: Done, Gone or Foreign.
func ReleaseRead(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	reply := readRelease.exec(ctx, rdb, []string{k.Lock, k.Never}, []string{owner, strconv.Itoa(leave), k.Beside, k.Channel, k.Publish})
	return verdict(readRelease, reply, Done, Gone, Foreign)
}

// RenewRead lengthens the leases of readers, as RenewReentrant does for locks.
func RenewRead(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return readRenew.renew(ctx, rdb, batch, lease, perCall)
}

// AcquireWrite makes an owner write as often as it wants to. If others have the
// lock and its patience is not 0, readers who come later wait behind it.
func AcquireWrite(ctx context.Context, rdb rueidis.Client, k Keys, q Question) (Acquired, error) {
	return acquire(ctx, rdb, writeAcquire, k.withRegister(k.Lock, k.Wish, k.Never), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want), ms(q.Waited), ms(q.Patience), k.Beside}, q)
}

// ReleaseWrite leaves owner leave write holds: Done, Gone or Foreign. With none,
// readers need not wait behind it any more.
func ReleaseWrite(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	reply := writeRelease.exec(ctx, rdb, []string{k.Lock, k.Wish, k.Never}, []string{owner, strconv.Itoa(leave), k.Beside, k.Channel, k.Publish})
	return verdict(writeRelease, reply, Done, Gone, Foreign)
}

// RenewWrite lengthens the leases of writers: the same as for a plain lock, with
// the field that says who writes.
func RenewWrite(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return writeRenew.renew(ctx, rdb, batch, lease, perCall)
}

// InspectRW reads the lock. Fields holds the readers who are alive, by owner, and
// the writer, as "<owner>:write".
func InspectRW(ctx context.Context, rdb rueidis.Client, k Keys) (Snapshot, error) {
	msg, err := rwInspect.exec(ctx, rdb, []string{k.Lock, k.Wish, k.Never}, []string{k.Beside}).ToMessage()
	if err != nil {
		return Snapshot{}, err
	}
	if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
		return Snapshot{Exists: true, Foreign: true}, nil
	}
	reply, err := msg.ToArray()
	bad := &ReplyError{Script: rwInspect.name, Reply: fmt.Sprintf("list of %d", len(reply))}
	if err != nil || len(reply) != 4 {
		return Snapshot{}, bad
	}
	left, err1 := reply[0].ToInt64()
	mode, err2 := reply[1].ToString()
	holds, err3 := reply[2].ToArray()
	wish, err4 := reply[3].ToArray()
	all, ok1 := fields(holds)
	waiting, ok2 := waiters(wish)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || !ok1 || !ok2 {
		return Snapshot{}, bad
	}
	return Snapshot{Exists: left != -2, Left: remaining(left), Mode: mode, Fields: all, Waiters: waiting}, nil
}

// ForceRW ends all reading and writing: Done when anybody did, Free when nobody
// did, or Foreign.
func ForceRW(ctx context.Context, rdb rueidis.Client, k Keys) (Verdict, error) {
	reply := rwForce.exec(ctx, rdb, []string{k.Lock, k.Never}, []string{k.Beside, k.Channel, k.Publish})
	return verdict(rwForce, reply, Done, Free, Foreign)
}
