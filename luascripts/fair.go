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
	fairAcquire = load("fair_acquire")
	fairRelease = load("fair_release")
	fairKeep    = load("fair_keep")
	fairInspect = load("fair_inspect")
	fairForce   = load("fair_force")
)

// Turns is the end of the name of a client's channel, after "<channel>:<client uuid>": there the
// client hears the numbers of those of its owners whose turn it is.
const Turns = ":fair"

// again is the verdict of fair_acquire that there are more dead to drop: ask
// again at once. A script drops a bounded number of them, so that the server can serve
// others in between.
const again Verdict = -5

// mostAgain is how often a script runs again for the rest of its work: often enough for a
// hundred thousand dead, and not for ever if a broken peer answers so.
const mostAgain = 1000

func (k Keys) fair() []string { return []string{k.Lock, k.Queue, k.Timeouts, k.Never} }

// AcquireFair makes an owner hold the lock as often as it wants to, if it is its
// turn. Otherwise the owner enters the queue, unless its patience is 0. Left says
// when to ask again if no message comes before.
func AcquireFair(ctx context.Context, rdb rueidis.Client, k Keys, q Question) (Acquired, error) {
	keys, args := k.withRegister(k.fair()...), []string{q.Owner, ms(q.Lease), strconv.Itoa(q.Want), ms(q.Patience)}
	for range mostAgain {
		a, err := acquire(ctx, rdb, fairAcquire, keys, args, q)
		if err != nil || a.Verdict != again {
			return a, err
		}
	}
	return Acquired{Verdict: Held, Left: time.Millisecond}, nil
}

// ReleaseFair leaves owner leave holds of the lock: Done, Gone or Foreign. With
// none it also loses its place in the queue.
func ReleaseFair(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	return fairRelease.tell(ctx, rdb, k.fair(), []string{owner, strconv.Itoa(leave), k.Channel, k.Publish}, Done, Gone, Foreign)
}

// tell runs s, which tells the first in the queue, until it has found that one. The first run does
// the rest of the work of s. So the verdict is that of the first run, and an error
// after it is ignored: the next heartbeat of any process finds the first in the queue.
func (s *script) tell(ctx context.Context, rdb rueidis.Client, keys, args []string, legal ...Verdict) (Verdict, error) {
	v, more, err := s.told(ctx, rdb, keys, args, legal)
	if err != nil {
		return 0, err
	}
	for i := 0; more && err == nil && i < mostAgain; i++ {
		_, more, err = s.told(ctx, rdb, keys, args, legal)
	}
	return v, nil
}

// told runs s once. It reports whether there are more dead in the queue.
func (s *script) told(ctx context.Context, rdb rueidis.Client, keys, args []string, legal []Verdict) (v Verdict, more bool, err error) {
	msg, err := s.exec(ctx, rdb, keys, args).ToMessage()
	if err != nil {
		return 0, false, err
	}
	numbers, err := msg.AsIntSlice()
	if err != nil || len(numbers) != 2 || numbers[1]&^1 != 0 || !slices.Contains(legal, Verdict(numbers[0])) {
		return 0, false, &ReplyError{s.name, msg.String()}
	}
	return Verdict(numbers[0]), numbers[1] == 1, nil
}

// Kept is the reply to a heartbeat.
type Kept struct {
	Left time.Duration // when to look again if no message comes before; NoExpiry if Redis cannot say
	Asks []bool        // for each waiter: it should ask now, as it is its turn, or it lost its place
}

// keepAtOnce is how many waiters one script keeps at most, so that each script is
// short.
const keepAtOnce = 100

// KeepFair is the heartbeat of the waiting owners of one process. Each keeps its place for
// its patience from now on. Many are kept by several scripts in one pipeline. Only the
// last script drops the dead, as many of a process that was frozen seem to be dead.
func KeepFair(ctx context.Context, rdb rueidis.Client, k Keys, waiting []Waiter) (Kept, error) {
	return fairKeep.keep(ctx, rdb, k.fair(), waiting, func(last bool) []string { return []string{k.Channel, k.Publish, bit(last)} })
}

// keep sends a heartbeat by s, keepAtOnce waiters in each call, in one pipeline. The arguments of a call are what
// head returns, and then the patience and the owner of each waiter.
func (s *script) keep(ctx context.Context, rdb rueidis.Client, keys []string, waiting []Waiter, head func(last bool) []string) (Kept, error) {
	kept := Kept{Asks: make([]bool, 0, len(waiting))}
	var calls rueidis.Commands
	var args [][]string
	var counts []int
	for first := true; first || len(waiting) > 0; first = false {
		part := waiting[:min(len(waiting), keepAtOnce)]
		waiting = waiting[len(part):]
		words := head(len(waiting) == 0)
		for _, w := range part {
			words = append(words, ms(w.Patience), w.Owner)
		}
		args, counts = append(args, words), append(counts, len(part))
		calls = append(calls, rdb.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(words...).Build())
	}
	for i, reply := range rdb.DoMulti(ctx, calls...) {
		if e, ok := rueidis.IsRedisErr(reply.Error()); ok && e.IsNoScript() {
			reply = s.exec(ctx, rdb, keys, args[i])
		}
		msg, err := reply.ToMessage()
		if err != nil {
			return Kept{}, err
		}
		numbers, err := msg.AsIntSlice()
		if err != nil || len(numbers) != 1+counts[i] {
			return Kept{}, &ReplyError{s.name, msg.String()}
		}
		kept.Left = remaining(numbers[0]) // the last script's counts
		for _, n := range numbers[1:] {
			if n != 0 && n != 1 && n != int64(Gone) {
				return Kept{}, &ReplyError{s.name, msg.String()}
			}
			kept.Asks = append(kept.Asks, n != 0)
		}
	}
	return kept, nil
}

// InspectFair reads the lock and its queue. It reads a queue of more than 100 in parts, one after
// the other; the lock is that of the first part.
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
			break // the rest has left
		}
	}
	if err != nil {
		return Snapshot{}, err
	}
	return s, nil
}

// inspectAtOnce is how many waiters fair_inspect returns at most.
const inspectAtOnce = 100

func inspectFair(ctx context.Context, rdb rueidis.Client, k Keys, after string, seen int) (Snapshot, error) {
	msg, err := fairInspect.exec(ctx, rdb, k.fair(), []string{after, strconv.Itoa(seen)}).ToMessage()
	if err != nil {
		return Snapshot{}, err
	}
	if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
		return Snapshot{Foreign: true}, nil
	}
	reply, err := msg.ToArray()
	bad := &ReplyError{Script: fairInspect.name, Reply: fmt.Sprintf("list of %d", len(reply))} // the reply has owners, which belong in no error
	if err != nil || len(reply) != 3 {
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

// ForceFair frees the lock, whichever owner holds it, and tells the first in the queue: Done
// when an owner held it, Free when none did, or Foreign.
func ForceFair(ctx context.Context, rdb rueidis.Client, k Keys) (Verdict, error) {
	return fairForce.tell(ctx, rdb, k.fair(), []string{k.Channel, k.Publish}, Done, Free, Foreign)
}
