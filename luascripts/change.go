package luascripts

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/rueidis"
)

var reentrantChange = load("reentrant_change")

// Change is one change of a plain lock that can be sent together with others. It is a Request, or
// a release without a next owner.
type Change struct {
	Keys      *Keys
	Slot      uint16 // the slot of the keys on a cluster; otherwise the same for all
	IsRelease bool   // a release; otherwise a request

	Request Request // for a release: Owner, and Want, which is the number of holds that must remain

	// The reply.
	Acquired Acquired // of a request
	Released Released // of a release
	Err      error

	// Rejected is the error reply to a call with other changes, after which this change was sent alone. It is nil if
	// there was none. A proxy can send such a reply although the server executed the call.
	Rejected error
}

func (c *Change) slot() uint16 { return c.Slot }

// ChangeReentrant executes all changes of batch, and stores the reply to each in its Change. A
// script call has up to perCall locks, which must be neighbors in batch and in one slot. All calls
// are in one pipeline. In each call the releases come before the acquisitions, and batch is in that
// order afterwards. A single change uses the script for one change.
//
// A call of several changes that the server rejects is repeated for each change alone. The server
// may be a cluster that appears as one server, or a slot may be partly migrated. One denied lock
// must not fail the others. See Change.Rejected.
func ChangeReentrant(ctx context.Context, rdb rueidis.CoreClient, batch []*Change, perCall int) {
	if len(batch) == 1 {
		w := unusedWords.Get().(*words)
		defer w.done()
		msg, err := batch[0].words(w).exec(ctx, rdb, w.keys, w.args).ToMessage()
		batch[0].answered(&msg, err)
		return
	}
	var memory [8]changeCall
	calls := split(memory[:0], batch, perCall)
	for _, call := range calls {
		call.sort()
	}
	replies := execAll(ctx, rdb, len(calls), func(i int, w *words) *script { return calls[i].words(w) })
	for i, reply := range replies {
		if len(calls) > 1 && errors.Is(reply.Error(), rueidis.ErrNoSlot) {
			// A slot has no node, and the library sent none of the calls.
			ChangeReentrant(ctx, rdb, calls[i], perCall)
		} else {
			calls[i].answered(ctx, rdb, reply)
		}
	}
}

// words returns the script that executes c alone, and adds its words to w.
func (c *Change) words(w *words) *script {
	if c.IsRelease {
		w.release(c.Keys, c.Request.Owner, c.Request.Want, &Release{})
		return reentrantRelease
	}
	w.acquire(c.Keys, &c.Request)
	return reentrantAcquire
}

// changeCall has the changes of one script call.
type changeCall []*Change

// words returns the script, and adds its words to w.
func (call changeCall) words(w *words) *script {
	if len(call) == 1 {
		return call[0].words(w)
	}
	first := call[0]
	w.add(first.Keys.Publish, bit(!first.Keys.Scattered))
	for len(call) > 0 {
		n := 1
		for n < len(call) && call[n].isLike(call[0]) {
			n++
		}
		call[:n].wordsOfEqual(w)
		call = call[n:]
	}
	return reentrantChange
}

// wordsOfEqual adds the keys and arguments of changes that differ only in the lock and the owner.
func (call changeCall) wordsOfEqual(w *words) {
	q := &call[0].Request
	if call[0].IsRelease {
		w.add("give", strconv.Itoa(len(call)), strconv.Itoa(q.Want))
		for _, c := range call {
			w.keys = append(w.keys, c.Keys.Lock)
			w.args = append(w.args, c.Request.Owner)
		}
		return
	}
	spare := ""
	if call[0].Keys.TokenCounter != "" {
		spare = strconv.Itoa(q.Spare)
	}
	w.add("take", strconv.Itoa(len(call)), strconv.Itoa(q.Want), settingMs(q.Lease), q.waiter(), spare)
	for _, c := range call {
		w.keys = c.Keys.withTokenCounter(append(w.keys, c.Keys.Lock)...)
		w.args = append(w.args, c.Request.Owner)
	}
}

// isLike reports whether c and d differ only in the lock and the owner.
func (c *Change) isLike(d *Change) bool {
	q, r := &c.Request, &d.Request
	if c.IsRelease || d.IsRelease {
		return c.IsRelease == d.IsRelease && q.Want == r.Want
	}
	sameWaiter := q.Offer == r.Offer && (q.Offer == 0 || q.RetryAfter == r.RetryAfter && q.WaiterTimeout == r.WaiterTimeout && q.Waited.Milliseconds() == r.Waited.Milliseconds())
	return sameWaiter && q.Want == r.Want && q.Lease == r.Lease && q.Spare == r.Spare && (c.Keys.TokenCounter != "") == (d.Keys.TokenCounter != "")
}

// sort puts the releases before the acquisitions, and otherwise keeps the order. Equal changes are
// then neighbors, and an acquisition can be granted a lock that a release in the same call freed.
func (call changeCall) sort() {
	var memory [64]*Change
	acquisitions := memory[:0]
	releases := call[:0]
	for _, c := range call {
		if c.IsRelease {
			releases = append(releases, c)
		} else {
			acquisitions = append(acquisitions, c)
		}
	}
	copy(call[len(releases):], acquisitions)
}

// answered stores the replies in their changes.
func (call changeCall) answered(ctx context.Context, rdb rueidis.CoreClient, reply rueidis.RedisResult) {
	if len(call) == 1 {
		msg, err := reply.ToMessage()
		call[0].answered(&msg, err)
		return
	}
	all, err := reply.ToArray()
	if err == nil && len(all) != len(call) {
		err = &ReplyError{reentrantChange.name, "list of " + strconv.Itoa(len(all))}
	}
	if _, refused := rueidis.IsRedisErr(err); refused {
		for _, c := range call {
			c.Rejected = err
		}
		ChangeReentrant(ctx, rdb, call, 1)
		return
	}
	for i, c := range call {
		if err != nil {
			c.Err = err
		} else {
			c.answered(&all[i], all[i].Error())
		}
	}
}

// answered stores the reply to c, which is msg or err.
func (c *Change) answered(msg *rueidis.RedisMessage, err error) {
	switch {
	case err != nil:
		c.Err = err
	case c.IsRelease:
		c.Released, c.Err = parseReleased(msg, false)
	default:
		c.Acquired, c.Err = parseAcquired(reentrantAcquire, msg)
	}
}
