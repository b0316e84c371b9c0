package luascripts

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

var (
	reentrantAcquire = load("reentrant_acquire")
	reentrantRelease = load("reentrant_release")
	reentrantRenew   = renewer{script: load("reentrant_renew"), argsOf: func(args []string, r *Renewal) []string { return append(args, r.Owner) }}
	reentrantRetain  = load("reentrant_retain")
	reentrantInspect = load("reentrant_inspect")
	reentrantForce   = load("reentrant_force")
)

// QueueField is the field of a plain lock's hash that has the queue of waiting processes. It is not
// an owner.
const QueueField = "leasehold_line"

// MaxQueued is the maximum number of processes in that queue, as in include_queue.lua. More processes can wait.
const MaxQueued = 64

// AcquireReentrant sets the hold count of an owner to q.Want, or adds it to the queue.
func AcquireReentrant(ctx context.Context, rdb rueidis.Client, k Keys, q Request) (Acquired, error) {
	w := unusedWords.Get().(*words)
	defer w.done()
	w.acquire(&k, &q)
	return acquire(ctx, rdb, reentrantAcquire, w.keys, w.args, q)
}

// acquire adds the keys and arguments of reentrant_acquire.
func (w *words) acquire(k *Keys, q *Request) {
	w.keys = k.withTokenCounter(append(w.keys, k.Lock)...)
	w.add(q.Owner, settingMs(q.Lease), q.waiter(), bit(!k.Scattered))
	if q.Want != 1 || k.TokenCounter != "" {
		w.add(strconv.Itoa(q.Want))
	}
	if k.TokenCounter != "" {
		w.add(strconv.Itoa(q.Spare))
	}
}

// waiter returns the argument that describes a waiting owner; "" if the owner does not join the queue.
func (q *Request) waiter() string {
	if q.Offer == 0 {
		return ""
	}
	durations := [...]time.Duration{q.Offer, q.Waited.Truncate(time.Millisecond), q.RetryAfter, q.WaiterTimeout}
	if latest := latestWaiter.Load(); latest != nil && durations == latest.durations {
		return latest.text
	}
	text := ms(q.Offer) + " " + ms(q.Waited) + " " + ms(q.RetryAfter) + " " + ms(q.WaiterTimeout)
	if q.Waited < time.Millisecond {
		latestWaiter.Store(&waiterText{durations, text})
	}
	return text
}

// latestWaiter is the latest such argument. Most requests use the same one, because they are sent as
// soon as the owner waits.
var latestWaiter atomic.Pointer[waiterText]

type waiterText struct {
	durations [4]time.Duration
	text      string
}

// ReleaseReentrant sets the hold count of owner to leave, and returns Done, Gone or Foreign. With 0
// the lock is granted to the first in the queue. An owner in the queue leaves it.
func ReleaseReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int) (Verdict, error) {
	r, err := releaseReentrant(ctx, rdb, k, owner, leave, Release{})
	return r.Verdict, err
}

// RetainReentrant makes a lock that owner holds expire after rest, if it would live for longer. It
// returns Done, Gone or Foreign. It supports plain and fair locks.
func RetainReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, rest time.Duration) (Verdict, error) {
	reply := reentrantRetain.exec(ctx, rdb, []string{k.Lock}, []string{owner, ms(max(rest, time.Millisecond))})
	return verdict(reentrantRetain, reply, Done, Gone, Foreign)
}

// Aside is the message on the channel of the queue that makes its clients wait a little. Other
// clients, which listen and do not use the queue, can then request the lock first.
const Aside = "aside"

// Release describes a release of the last hold, and the next owner of the lock.
type Release struct {
	Last  uint64 // the latest token that the owner handed off
	Spare int    // as in a Request

	// NextOwner is the next owner, which waits in the same process, or "". For a plain lock its position is at
	// the end of the queue. For a fair lock it is in the queue. The other fields are as in its
	// Request.
	NextOwner     string
	Offer         time.Duration
	RetryAfter    time.Duration
	WaiterTimeout time.Duration

	Served []string // fair: the owners to which the lock was handed off, and which leave the queue
}

// Released is the reply to a release. The verdict is Done, Gone or Foreign.
type Released struct {
	Verdict   Verdict
	Token     uint64 // Done: the token of the next owner, if it has the lock now; otherwise 0
	Aside     bool   // Done: the lock is free, and the queued processes must retry slightly later
	Listeners bool   // Done: the lock is free, and clients may listen that use no queue; only for a lingering owner

	Next string // fair, Token: the next owners in the queue, as in Acquired
}

// Replies to a release that freed the lock: clients outside the queue come first, or may listen.
const (
	aside     = 2
	listeners = 3
)

// HandOffReentrant releases the last hold. It grants the lock to the first in the queue, or frees it.
func HandOffReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, r Release) (Released, error) {
	return releaseReentrant(ctx, rdb, k, owner, 0, r)
}

func releaseReentrant(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int, r Release) (Released, error) {
	w := unusedWords.Get().(*words)
	defer w.done()
	w.release(&k, owner, leave, &r)
	msg, err := reentrantRelease.exec(ctx, rdb, w.keys, w.args).ToMessage()
	if r.NextOwner != "" && isTryAgain(err) {
		// The slot is being migrated, and one of the two keys is on the other node. The release must
		// succeed anyway, so it is sent without the token counter. It then cannot name the next owner,
		// whose token would be missing in the counter: that owner sends its own request.
		r.NextOwner = ""
		return releaseReentrant(ctx, rdb, k, owner, leave, r)
	}
	if err != nil {
		return Released{}, err
	}
	return parseReleased(&msg, r.NextOwner != "")
}

// release adds the keys and arguments of reentrant_release. The token counter is only needed to grant
// the lock to the next owner.
func (w *words) release(k *Keys, owner string, leave int, r *Release) {
	w.keys = append(w.keys, k.Lock)
	w.add(owner, k.Publish, bit(!k.Scattered))
	switch {
	case r.NextOwner != "":
		if k.TokenCounter != "" {
			w.keys = append(w.keys, k.TokenCounter)
		}
		w.add("0", r.NextOwner, settingMs(r.Offer), ms(r.RetryAfter), settingMs(r.WaiterTimeout), strconv.FormatUint(r.Last, 10), strconv.Itoa(r.Spare))
	case leave > 0:
		w.add(strconv.Itoa(leave))
	}
}

// isTryAgain reports whether a cluster rejected a command because one of several keys is missing in a
// slot that is being migrated.
func isTryAgain(err error) bool {
	e, refused := rueidis.IsRedisErr(err)
	return refused && strings.Contains(e.Error(), "TRYAGAIN")
}

// parseReleased reads the reply of reentrant_release, which named a next owner or not.
func parseReleased(msg *rueidis.RedisMessage, named bool) (Released, error) {
	if msg.IsString() {
		text, _ := msg.ToString()
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil || !named {
			return Released{}, &ReplyError{reentrantRelease.name, strconv.Quote(text)}
		}
		return Released{Verdict: Done, Token: token}, nil
	}
	n, err := msg.ToInt64()
	switch v := Verdict(n); {
	case err != nil:
	case v == Done, v == Gone, v == Foreign:
		return Released{Verdict: v}, nil
	case n == aside:
		return Released{Verdict: Done, Aside: true}, nil
	case n == listeners:
		return Released{Verdict: Done, Listeners: true}, nil
	}
	return Released{}, &ReplyError{reentrantRelease.name, msg.String()}
}

// RenewReentrant extends the leases of all locks of batch whose owners hold them. A script call has
// up to perCall locks, which must be neighbors in batch and in one slot. It also renews fair locks,
// which are the same in Redis once they are held.
func RenewReentrant(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return reentrantRenew.renew(ctx, rdb, batch, lease, perCall)
}

// InspectReentrant reads the lock.
func InspectReentrant(ctx context.Context, rdb rueidis.Client, k Keys) (Snapshot, error) {
	return snapshot(reentrantInspect, reentrantInspect.exec(ctx, rdb, []string{k.Lock}, nil))
}

// snapshot reads the reply of s, which inspects a plain or a fair lock.
func snapshot(s *script, reply rueidis.RedisResult) (Snapshot, error) {
	msg, err := reply.ToMessage()
	if err != nil {
		return Snapshot{}, err
	}
	if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
		return Snapshot{Exists: true, Foreign: true}, nil
	}
	parts, err := msg.ToArray()
	bad := &ReplyError{Script: s.name, Reply: fmt.Sprintf("list of %d", len(parts))} // the reply has owner strings, which must not be in an error
	if err != nil || len(parts) != 3 {
		return Snapshot{}, bad
	}
	left, err1 := parts[0].ToInt64()
	hash, err2 := parts[1].ToArray()
	queue, err3 := parts[2].ToArray()
	all, ok1 := fields(hash)
	waiting, ok2 := waiters(queue)
	if err1 != nil || err2 != nil || err3 != nil || !ok1 || !ok2 {
		return Snapshot{}, bad
	}
	all = slices.DeleteFunc(all, func(f Field) bool { return f.Name == QueueField })
	return Snapshot{Exists: left != -2, Left: remaining(left), Fields: all, Waiters: waiting}, nil
}

// ForceReentrant frees the lock, whichever owner holds it. It returns Done if an owner held the
// lock, Free if none did, or Foreign.
func ForceReentrant(ctx context.Context, rdb rueidis.Client, k Keys) (Verdict, error) {
	reply := reentrantForce.exec(ctx, rdb, []string{k.Lock}, []string{k.Channel, k.Publish})
	return verdict(reentrantForce, reply, Done, Free, Foreign)
}

// The marks before the numbers in owner strings (see FairOwner). Earlier versions have no mark, and
// accept both.
const (
	PlainMark = "00"
	FairMark  = "0"
)

// FairOwner reports whether the owner of a plain or fair lock owns a fair lock, and whether that is
// known. It is not known for Redisson's owners, and for owners without a mark. The scripts read it
// from the string in the same way (include_plain).
func FairOwner(owner string) (fair, known bool) {
	const uuid = 36
	if len(owner) < uuid+3 || owner[14] != '7' || owner[uuid+1] != '0' {
		return false, false
	}
	return owner[uuid+2] != '0', true
}
