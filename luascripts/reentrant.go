package luascripts

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	reentrantAcquire = load("reentrant_acquire", "include_token")
	reentrantAll     = load("reentrant_acquire_all", "include_token")
	reentrantRelease = load("reentrant_release")
	reentrantRenew   = load("reentrant_renew")
	reentrantInspect = load("reentrant_inspect")
	reentrantForce   = load("reentrant_force")
)

// AcquireReentrant makes an owner hold the lock as often as it wants to.
func AcquireReentrant(ctx context.Context, rdb rueidis.Client, k Keys, q Question) (Acquired, error) {
	return acquire(ctx, rdb, reentrantAcquire, k.withRegister(k.Lock), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want)}, q)
}

// Taking is one of several locks that are taken at once.
type Taking struct {
	Keys  Keys
	Owner string
	Lease time.Duration
}

// AcquireAllReentrant makes each owner hold its lock once, all or none. When one
// is refused, the verdict and what is left are that one's, and first is its index.
func AcquireAllReentrant(ctx context.Context, rdb rueidis.Client, all []Taking) (a Acquired, first int, err error) {
	keys, args := make([]string, len(all)), make([]string, 0, 2*len(all))
	for i, t := range all {
		keys[i] = t.Keys.Lock
		args = append(args, t.Owner, ms(t.Lease))
	}
	msg, err := reentrantAll.exec(ctx, rdb, keys, args).ToMessage()
	if err != nil {
		return Acquired{}, 0, err
	}
	if msg.IsString() {
		text, _ := msg.ToString()
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return Acquired{}, 0, &ReplyError{reentrantAll.name, strconv.Quote(text)}
		}
		return Acquired{Verdict: Done, Token: token}, 0, nil
	}
	numbers, err := msg.AsIntSlice()
	if err != nil || len(numbers) != 2 || numbers[0] < 1 || numbers[0] > int64(len(all)) {
		return Acquired{}, 0, &ReplyError{reentrantAll.name, msg.String()}
	}
	first = int(numbers[0]) - 1
	switch n := numbers[1]; {
	case n >= -1:
		return Acquired{Verdict: Held, Left: remaining(n)}, first, nil
	case n == int64(Foreign):
		return Acquired{Verdict: Foreign}, first, nil
	default:
		return Acquired{}, 0, &ReplyError{reentrantAll.name, msg.String()}
	}
}

// ReleaseReentrant leaves owner leave holds of the lock: Done, Gone or Foreign.
func ReleaseReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	reply := reentrantRelease.exec(ctx, rdb, []string{k.Lock}, []string{owner, strconv.Itoa(leave), k.Channel, k.Publish})
	return verdict(reentrantRelease, reply, Done, Gone, Foreign)
}

// RenewReentrant lengthens the leases of all batch, perCall locks in each
// script call, as long as their owners hold them. So it does for fair locks,
// which are the same in Redis once they are held.
func RenewReentrant(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return renew(ctx, rdb, reentrantRenew, batch, lease, perCall, func(args []string, r Renewal) []string {
		return append(args, r.Owner)
	})
}

// InspectReentrant reads the lock.
func InspectReentrant(ctx context.Context, rdb rueidis.Client, k Keys) (Snapshot, error) {
	reply, err := reentrantInspect.exec(ctx, rdb, []string{k.Lock}, nil).ToArray()
	if err != nil {
		return Snapshot{}, err
	}
	if len(reply) > 0 {
		left, err := reply[0].ToInt64()
		if all, ok := fields(reply[1:]); ok && err == nil {
			return Snapshot{Exists: left != -2, Left: remaining(left), Fields: all}, nil
		}
	}
	return Snapshot{}, &ReplyError{Script: reentrantInspect.name, Reply: fmt.Sprintf("list of %d", len(reply))}
}

// ForceReentrant frees the lock whoever holds it: Done when somebody did, Free
// when nobody did, or Foreign.
func ForceReentrant(ctx context.Context, rdb rueidis.Client, k Keys) (Verdict, error) {
	reply := reentrantForce.exec(ctx, rdb, []string{k.Lock}, []string{k.Channel, k.Publish})
	return verdict(reentrantForce, reply, Done, Free, Foreign)
}
