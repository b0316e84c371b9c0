package luascripts

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	reentrantAcquire = load("reentrant_acquire", "include_token", "include_line")
	reentrantAll     = load("reentrant_acquire_all", "include_token")
	reentrantRelease = load("reentrant_release", "include_token", "include_line")
	reentrantRenew   = renewer{load("reentrant_renew"), nil, func(args []string, r *Renewal) []string { return append(args, r.Owner) }}
	reentrantInspect = load("reentrant_inspect")
	reentrantForce   = load("reentrant_force")
)

// LineField is the field of a plain lock's hash in which the line of waiting
// processes stands. It is no owner.
const LineField = "leasehold_line"

// AcquireReentrant makes an owner hold the lock as often as it wants to, or puts
// it in line.
func AcquireReentrant(ctx context.Context, rdb rueidis.Client, k Keys, q Question) (Acquired, error) {
	return acquire(ctx, rdb, reentrantAcquire, k.withRegister(k.Lock), []string{
		q.Owner, ms(q.Lease), strconv.Itoa(q.Want), strconv.Itoa(q.Spare), ms(q.Offer), ms(q.Patience), strconv.Itoa(q.Ask),
	}, q)
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

// ReleaseReentrant leaves owner leave holds of the lock: Done, Gone or Foreign. With
// none left the lock goes to the first in line. An owner who stands in line leaves it.
func ReleaseReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	p, err := passReentrant(ctx, rdb, k, owner, leave, Pass{})
	return p.Verdict, err
}

// All who know of the line listen at the lock's channel with Ours behind it, too. The
// message Aside says there that the others should be the first to ask for the lock.
const (
	Ours  = ":leasehold"
	Aside = "aside"
)

// Pass is what a release knows of those who come after.
type Pass struct {
	Last  uint64 // the latest token that the owner gave out
	Spare int    // as in a Question

	// Heir is the owner who waits in the same process, at the end of the line, or
	// "". The others are as in its Question.
	Heir     string
	Offer    time.Duration
	Patience time.Duration
	Fenced   bool
	Ask      int
}

// Passed is the reply to a release: Done, Gone or Foreign.
type Passed struct {
	Verdict Verdict
	Token   uint64 // Done: the heir's, if it has the lock now; else 0
}

// PassReentrant frees the lock, or rather gives it to the first in line.
func PassReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, p Pass) (Passed, error) {
	return passReentrant(ctx, rdb, k, owner, 0, p)
}

func passReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int, p Pass) (Passed, error) {
	args := make([]string, 0, 12)
	args = append(args, owner, strconv.Itoa(leave), k.Channel, k.Publish, bit(!k.Scattered), strconv.FormatUint(p.Last, 10), strconv.Itoa(p.Spare))
	if p.Heir != "" {
		args = append(args, p.Heir, ms(p.Offer), ms(p.Patience), bit(p.Fenced), strconv.Itoa(p.Ask))
	}
	msg, err := reentrantRelease.exec(ctx, rdb, k.withRegister(k.Lock), args).ToMessage()
	if e, refused := rueidis.IsRedisErr(err); refused && k.Register != "" && strings.Contains(e.Error(), "TRYAGAIN") {
		// The slot is moving, and one of the two keys has moved. That must not keep
		// anybody from releasing.
		k.Register = ""
		return passReentrant(ctx, rdb, k, owner, leave, p)
	}
	if err != nil {
		return Passed{}, err
	}
	if msg.IsString() {
		text, _ := msg.ToString()
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil || p.Heir == "" {
			return Passed{}, &ReplyError{reentrantRelease.name, strconv.Quote(text)}
		}
		return Passed{Done, token}, nil
	}
	n, err := msg.ToInt64()
	if v := Verdict(n); err == nil && (v == Done || v == Gone || v == Foreign) {
		return Passed{Verdict: v}, nil
	}
	return Passed{}, &ReplyError{reentrantRelease.name, msg.String()}
}

// bit is b as scripts take it.
func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// RenewReentrant lengthens the leases of all batch, as long as their owners hold
// them: perCall locks in each script call, but only such of one slot that come one
// after the other. So it does for fair locks, which are the same in Redis once they
// are held.
func RenewReentrant(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return reentrantRenew.renew(ctx, rdb, batch, lease, perCall)
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
			all = slices.DeleteFunc(all, func(f Field) bool { return f.Name == LineField })
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
