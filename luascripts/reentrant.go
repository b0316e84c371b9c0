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
	reentrantRelease = load("reentrant_release")
	reentrantRenew   = load("reentrant_renew")
	reentrantInspect = load("reentrant_inspect")
	reentrantForce   = load("reentrant_force")
)

// AcquireReentrant makes an owner hold the lock as often as it wants to.
func AcquireReentrant(ctx context.Context, rdb rueidis.Client, k Keys, q Question) (Acquired, error) {
	return acquire(ctx, rdb, reentrantAcquire, k.withRegister(k.Lock), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want)}, q)
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
