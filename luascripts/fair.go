package luascripts

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	fairAcquire = load("fair_acquire", "include_token", "include_fair")
	fairRelease = load("fair_release", "include_fair")
	fairKeep    = load("fair_keep", "include_fair")
	fairInspect = load("fair_inspect")
	fairForce   = load("fair_force", "include_fair")
)

func (k Keys) fair() []string { return []string{k.Lock, k.Queue, k.Timeouts, k.Never} }

// AcquireFair makes an owner hold the lock as often as it wants to, if it is its
// turn. Else the owner stands in line, unless its patience is 0; then Left says
// when to ask again if no message comes before.
func AcquireFair(ctx context.Context, rdb rueidis.Client, k Keys, q Question) (Acquired, error) {
	return acquire(ctx, rdb, fairAcquire, k.withRegister(k.fair()...), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want), ms(q.Patience)}, q)
}

// ReleaseFair leaves owner leave holds of the lock: Done, Gone or Foreign. With
// none it also loses its place in the queue.
func ReleaseFair(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	reply := fairRelease.exec(ctx, rdb, k.fair(), []string{owner, strconv.Itoa(leave), k.Channel, k.Publish})
	return verdict(fairRelease, reply, Done, Gone, Foreign)
}

// Kept is the reply to a heartbeat.
type Kept struct {
	Left time.Duration // when to look again if no message comes before; NoExpiry if Redis cannot say
	Asks []bool        // for each waiter: it should ask now, as it is its turn, or it lost its place
}

// KeepFair is the heartbeat of waiting owners. Each keeps its place for its
// patience from now on.
func KeepFair(ctx context.Context, rdb rueidis.Client, k Keys, waiting []Waiter) (Kept, error) {
	args := make([]string, 0, 2+2*len(waiting))
	args = append(args, k.Channel, k.Publish)
	for _, w := range waiting {
		args = append(args, ms(w.Patience), w.Owner)
	}
	msg, err := fairKeep.exec(ctx, rdb, k.fair(), args).ToMessage()
	if err != nil {
		return Kept{}, err
	}
	numbers, err := msg.AsIntSlice()
	if err != nil || len(numbers) != 1+len(waiting) {
		return Kept{}, &ReplyError{fairKeep.name, msg.String()}
	}
	kept := Kept{Left: remaining(numbers[0]), Asks: make([]bool, len(waiting))}
	for i, n := range numbers[1:] {
		if n != 0 && n != 1 && n != int64(Gone) {
			return Kept{}, &ReplyError{fairKeep.name, msg.String()}
		}
		kept.Asks[i] = n != 0
	}
	return kept, nil
}

// InspectFair reads the lock and its queue.
func InspectFair(ctx context.Context, rdb rueidis.Client, k Keys) (Snapshot, error) {
	reply, err := fairInspect.exec(ctx, rdb, k.fair(), nil).ToArray()
	if err != nil {
		return Snapshot{}, err
	}
	bad := &ReplyError{Script: fairInspect.name, Reply: fmt.Sprintf("list of %d", len(reply))}
	if len(reply) != 3 {
		return Snapshot{}, bad
	}
	left, err1 := reply[0].ToInt64()
	hash, err2 := reply[1].ToArray()
	queue, err3 := reply[2].ToArray()
	all, ok1 := fields(hash)
	waiting, ok2 := waiters(queue)
	if err1 != nil || err2 != nil || err3 != nil || !ok1 || !ok2 {
		return Snapshot{}, bad
	}
	all = slices.DeleteFunc(all, func(f Field) bool { return f.Name == LineField })
	return Snapshot{Exists: left != -2, Left: remaining(left), Fields: all, Waiters: waiting}, nil
}

// ForceFair frees the lock whoever holds it, and tells the first in line: Done
// when somebody held it, Free when nobody did, or Foreign.
func ForceFair(ctx context.Context, rdb rueidis.Client, k Keys) (Verdict, error) {
	reply := fairForce.exec(ctx, rdb, k.fair(), []string{k.Channel, k.Publish})
	return verdict(fairForce, reply, Done, Free, Foreign)
}
