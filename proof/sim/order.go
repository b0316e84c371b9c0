package sim

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// turn is one grant of a fair lock.
type turn struct {
	who    string
	asked  time.Time // when the caller sent its first request
	queued time.Time // when it was told that it has to wait; zero if it did not wait
	token  uint64
	waits  bool // it waited, and only a late heartbeat could cost it its position
}

// queuedAt is the context key for the time when the caller was told that it has to wait.
type queuedAt struct{}

// observer records when callers are told that they have to wait, and counts hand-offs and kept locks.
func (w *world) observer() lock.Observer {
	return lock.Observer{
		Waiting: func(ctx context.Context, _ lock.Event) {
			if at, ok := ctx.Value(queuedAt{}).(*time.Time); ok && at.IsZero() {
				*at = time.Now()
			}
		},
		HandedOff: func(context.Context, lock.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.result.Passed++
		},
		Kept: func(context.Context, lock.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.result.Kept++
		},
	}
}

// keepsOrder reports whether no fault of p makes a waiter lose its queue position: all heartbeats arrive
// within the waiter timeout, and replies to requests arrive within the lease.
func (p *Plan) keepsOrder() bool {
	var late time.Duration
	for _, f := range p.Faults {
		switch f.What {
		case DropMessage, DelayMessage, DoubleMessage, Flush: // affects only the subscription connection, or is harmless
		case DelayRequest, DelayReply, Pause, Freeze:
			late += f.For
		default:
			return false
		}
	}
	return late <= lease/4 // plus the heartbeat interval, 5 s, which is a third of the waiter timeout
}

// inOrder checks that no caller of a fair lock was served too early.
func (b *book) inOrder() {
	if !b.w.plan.keepsOrder() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, r := range b.locks {
		if b.w.plan.Locks[i].Linger > 0 {
			continue // a caller of the client that keeps the lock may be served before a notification reaches that client
		}
		for _, pair := range outOfOrder(r.turns) {
			b.w.wrong("out of order: %s, which sent its request at %v, acquired %s before %s, which had waited since %v",
				pair[0].who, pair[0].asked.Sub(b.w.began), b.w.name(i), pair[1].who, pair[1].queued.Sub(b.w.began))
		}
	}
}

// outOfOrder returns the pairs of a turn and a later turn of a caller that was already waiting when the
// caller of the earlier turn sent its request.
func outOfOrder(turns []turn) (pairs [][2]turn) {
	var first turn // the later turn that has waited longest
	for _, t := range slices.SortedFunc(slices.Values(turns), func(x, y turn) int { return cmp.Compare(y.token, x.token) }) {
		if first.waits && first.queued.Before(t.asked) {
			pairs = append(pairs, [2]turn{t, first})
		}
		if t.waits && (!first.waits || t.queued.Before(first.queued)) {
			first = t
		}
	}
	return pairs
}
