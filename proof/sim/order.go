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
	asked  time.Time // when the caller asked
	queued time.Time // when it knew that it has to wait; zero if it did not wait
	token  uint64
	waits  bool // it waited, and nothing but a late heartbeat takes its place from it
}

// queuedAt is the key of a context for when the caller knew that it has to wait.
type queuedAt struct{}

// observer notes when callers know that they have to wait, and how often a lock is passed on.
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

// keepsOrder reports whether no fault of p makes a waiter lose its place: the heartbeats of all come within
// their patience, and so do the answers to their questions within the lease.
func (p *Plan) keepsOrder() bool {
	var late time.Duration
	for _, f := range p.Faults {
		switch f.What {
		case DropMessage, DelayMessage, DoubleMessage, Flush: // the connection of the messages has nothing else
		case DelayRequest, DelayReply, Pause, Freeze:
			late += f.For
		default:
			return false
		}
	}
	return late <= lease/4 // with the third of the patience, 5 s, that is between two heartbeats
}

// inOrder looks for callers of a fair lock that were served too early.
func (b *book) inOrder() {
	if !b.w.plan.keepsOrder() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, r := range b.locks {
		if b.w.plan.Locks[i].Linger > 0 {
			continue // a caller of the client that keeps it may come before a message to that client
		}
		for _, pair := range outOfOrder(r.turns) {
			b.w.wrong("out of order: %s, which asked at %v, had %s before %s, which waited since %v",
				pair[0].who, pair[0].asked.Sub(b.w.began), b.w.name(i), pair[1].who, pair[1].queued.Sub(b.w.began))
		}
	}
}

// outOfOrder returns each turn that was before that of a caller which waited when the first one asked, and
// that of the caller.
func outOfOrder(turns []turn) (pairs [][2]turn) {
	var first turn // of those that were later: the one that waited first
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
