package luascripts

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	fairAcquire = load("fair_acquire")
	fairRelease = load("fair_release")
	fairKeep    = load("fair_keep")
	fairInspect = load("fair_inspect")
	fairForce   = load("fair_force")
)

// TurnChannelSuffix is the end of the name of a client's channel, after "<channel>:<client uuid>". On this
// channel the client receives the numbers of its owners whose turn it is.
const TurnChannelSuffix = ":fair"

// again is the verdict of fair_acquire that there are more dead owners to remove, so it must be
// called again immediately. A call removes a bounded number of them, so that the server can serve
// other clients in between.
const again Verdict = -5

// mostAgain is how often a script is called for the rest of its work. That is enough for a hundred
// thousand dead owners, and ends if a broken server always replies that there are more.
const mostAgain = 1000

func (k Keys) fair() []string { return []string{k.Lock, k.Queue, k.Timeouts, k.Never} }

// AcquireFair sets the hold count of an owner to q.Want, if it is the owner's turn. Otherwise the
// owner enters the queue, unless its waiter timeout is 0. Left is the time after which to retry if
// no message arrives before.
func AcquireFair(ctx context.Context, rdb rueidis.Client, k Keys, q Request) (Acquired, error) {
	keys, args := k.withTokenCounter(k.fair()...), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want), ms(q.WaiterTimeout), strconv.Itoa(q.Spare)}
	for range mostAgain {
		a, err := acquire(ctx, rdb, fairAcquire, keys, args, q)
		if err != nil || a.Verdict != again {
			return a, err
		}
	}
	return Acquired{Verdict: Held, Left: time.Millisecond}, nil
}

// grantedFair reads the part of a reply that describes a grant: the token, and the numbers of the
// next owners of the same client.
func grantedFair(part []rueidis.RedisMessage) (token uint64, next string, ok bool) {
	if len(part) != 2 {
		return 0, "", false
	}
	text, err1 := part[0].ToString()
	next, err2 := part[1].ToString()
	token, err3 := strconv.ParseUint(text, 10, 64)
	return token, next, err1 == nil && err2 == nil && err3 == nil
}

// ReleaseFair sets the hold count of owner to leave, and returns Done, Gone or Foreign. With 0 the
// owner also leaves the queue.
func ReleaseFair(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	r, err := releaseFair(ctx, rdb, k, owner, leave, Release{})
	return r.Verdict, err
}

// HandOffFair releases the last hold. If the next owner is the first in the queue, the lock is granted to
// it. Otherwise the first waiter is notified.
func HandOffFair(ctx context.Context, rdb rueidis.Client, k Keys, owner string, r Release) (Released, error) {
	return releaseFair(ctx, rdb, k, owner, 0, r)
}

func releaseFair(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int, r Release) (Released, error) {
	args := []string{owner, strconv.Itoa(leave), k.Channel, k.Publish, strconv.FormatUint(r.Last, 10), strconv.Itoa(r.Spare), r.NextOwner, ms(r.Offer)}
	reply, more, err := fairRelease.execFair(ctx, rdb, k.withTokenCounter(k.fair()...), append(args, r.Served...), Done, Gone, Foreign)
	if err != nil {
		return Released{}, err
	}
	if reply.Token != 0 && r.NextOwner == "" {
		return Released{}, &ReplyError{fairRelease.name, "a grant"}
	}
	if more {
		fairRelease.removeDead(ctx, rdb, k.withTokenCounter(k.fair()...), args, Done, Gone, Foreign)
	}
	return reply, nil
}

// removeDead calls s until it has removed the dead owners at the front of the queue and notified the
// first living owner. The rest of the work was done by the previous call, so an error is ignored. The
// next heartbeat of any process does the same.
func (s *script) removeDead(ctx context.Context, rdb rueidis.Client, keys, args []string, legal ...Verdict) {
	for range mostAgain {
		if _, more, err := s.execFair(ctx, rdb, keys, args, legal...); err != nil || !more {
			return
		}
	}
}

// execFair calls s once. It reports whether there are more dead owners at the front of the queue.
func (s *script) execFair(ctx context.Context, rdb rueidis.Client, keys, args []string, legal ...Verdict) (r Released, more bool, err error) {
	msg, err := s.exec(ctx, rdb, keys, args).ToMessage()
	if err != nil {
		return Released{}, false, err
	}
	parts, err := msg.ToArray()
	bad := &ReplyError{s.name, msg.String()}
	if err != nil || len(parts) < 2 {
		return Released{}, false, bad
	}
	verdict, err1 := parts[0].ToInt64()
	rest, err2 := parts[1].ToInt64()
	if err1 != nil || err2 != nil || rest&^1 != 0 || !slices.Contains(legal, Verdict(verdict)) {
		return Released{}, false, bad
	}
	r = Released{Verdict: Verdict(verdict)}
	if len(parts) > 2 {
		var ok bool
		if r.Token, r.Next, ok = grantedFair(parts[2:]); !ok || r.Token == 0 || r.Verdict != Done || s != fairRelease {
			return Released{}, false, bad
		}
	}
	return r, rest == 1, nil
}

// Kept is the reply to a heartbeat.
type Kept struct {
	Left      time.Duration // time after which to check again if no message arrives earlier; NoExpiry if Redis cannot report it
	MustRetry []bool        // for each waiter: it must send a request now, because it is its turn or it lost its position
	Own       []bool        // for each waiter: a message on its own channel may also notify it of its turn; set only for waiters that enter
}

// KeepAtOnce is the maximum number of waiters in one call of a script, so that each call is short.
const KeepAtOnce = 100

// KeepFair is the heartbeat of the waiting owners of one process. Each keeps its queue position for
// its waiter timeout from now on. The owners that enter the queue are the last ones of waiting, and
// enter in this order. If there are many, several scripts in one pipeline keep them. Only the last
// script removes dead waiters, because many waiters of a process that was paused seem to be dead.
func KeepFair(ctx context.Context, rdb rueidis.Client, k Keys, waiting []Waiter) (Kept, error) {
	return fairKeep.keep(ctx, rdb, k.fair(), waiting, func(part []Waiter, last bool) []string {
		enters := 0
		for _, w := range part {
			if w.Enters {
				enters++
			}
		}
		return []string{k.Channel, k.Publish, bit(last), strconv.Itoa(enters)}
	})
}

// keep sends a heartbeat with the script s, all calls in one pipeline. Each call has up to KeepAtOnce waiters with the same
// total. Its arguments are those that head returns, followed by the timeout and the owner of each waiter.
func (s *script) keep(ctx context.Context, rdb rueidis.Client, keys []string, waiting []Waiter, head func(part []Waiter, last bool) []string) (Kept, error) {
	kept := Kept{MustRetry: make([]bool, 0, len(waiting)), Own: make([]bool, 0, len(waiting))}
	var parts [][]Waiter
	for first := true; first || len(waiting) > 0; first = false {
		n := min(len(waiting), KeepAtOnce)
		if i := slices.IndexFunc(waiting[:n], func(w Waiter) bool { return w.Total != waiting[0].Total }); i > 0 { // mutant: border: the first waiter has its own total
			n = i
		}
		parts, waiting = append(parts, waiting[:n]), waiting[n:]
	}
	replies := execAll(ctx, rdb, len(parts), func(i int, w *words) *script {
		w.keys = append(w.keys, keys...)
		w.add(head(parts[i], i == len(parts)-1)...)
		for _, waiter := range parts[i] {
			w.add(ms(waiter.WaiterTimeout), waiter.Owner)
		}
		return s
	})
	for i, reply := range replies {
		msg, err := reply.ToMessage()
		if err != nil {
			return Kept{}, err
		}
		numbers, err := msg.AsIntSlice()
		if err != nil || len(numbers) != 1+len(parts[i]) {
			return Kept{}, &ReplyError{s.name, msg.String()}
		}
		kept.Left = remaining(numbers[0]) // the one of the last call is valid
		for _, n := range numbers[1:] {
			if n != 0 && n != 1 && n != int64(Gone) && !(n == 2 && s == fairKeep) {
				return Kept{}, &ReplyError{s.name, msg.String()}
			}
			kept.MustRetry = append(kept.MustRetry, n == 1 || n == int64(Gone))
			kept.Own = append(kept.Own, n == 2)
		}
	}
	return kept, nil
}

// InspectFair reads the lock and its queue. It reads a queue of more than 100 in parts, one after
// the other. The lock is the one of the first part.
func InspectFair(ctx context.Context, rdb rueidis.Client, k Keys) (Snapshot, error) {
	s, err := inspectFair(ctx, rdb, k, "", 0)
	seen := make(map[string]bool, len(s.Waiters))
	for part := s.Waiters; err == nil && !s.Foreign; {
		for _, w := range part {
			seen[w.Owner] = true
		}
		if len(part) < inspectAtOnce {
			return s, nil
		}
		var next Snapshot
		next, err = inspectFair(ctx, rdb, k, part[len(part)-1].Owner, len(s.Waiters))
		before := len(s.Waiters)
		part = next.Waiters
		for _, w := range part {
			if !seen[w.Owner] {
				s.Waiters = append(s.Waiters, w)
			}
		}
		if len(s.Waiters) == before {
			break // the others have left
		}
	}
	if err != nil {
		return Snapshot{}, err
	}
	return s, nil
}

// inspectAtOnce is the maximum number of waiters that fair_inspect returns.
const inspectAtOnce = 100

func inspectFair(ctx context.Context, rdb rueidis.Client, k Keys, after string, seen int) (Snapshot, error) {
	return snapshot(fairInspect, fairInspect.exec(ctx, rdb, k.fair(), []string{after, strconv.Itoa(seen)}))
}

// ForceFair frees the lock, whichever owner holds it, and notifies the first waiter in the queue.
// It returns Done if an owner held the lock, Free if none did, or Foreign.
func ForceFair(ctx context.Context, rdb rueidis.Client, k Keys) (Verdict, error) {
	keys, args := k.fair(), []string{k.Channel, k.Publish}
	r, more, err := fairForce.execFair(ctx, rdb, keys, args, Done, Free, Foreign)
	if err != nil {
		return 0, err
	}
	if more {
		// Another owner may have acquired the lock in between, so this does not free it again.
		fairForce.removeDead(ctx, rdb, keys, append(args, "1"), Free, Foreign)
	}
	return r.Verdict, nil
}
