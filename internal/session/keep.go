package session

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
)

// keepAtOnce is how many waiters one heartbeat is for at most, so that no script
// keeps the server busy for long.
const keepAtOnce = 200

// keep sends heartbeats for all waiters of l that stand in a queue in Redis, until
// empty is closed. It is a goroutine of its own: whoever waits may be asking, and
// wait for an answer that is slow. For the same reason a heartbeat does not wait for
// the answer to the one before.
//
// The answers also tell whose turn it is. So a heartbeat is the poll of all of
// them, and a hint is a reason to send one; but many hints that come together, as
// when a connection is back, are a reason for one more when this one is answered.
func (l *line) keep(spec *Spec, empty <-chan struct{}) {
	for {
		l.s.mu.Lock()
		due := l.askAt
		l.s.mu.Unlock()
		timer := time.NewTimer(time.Until(due))
		select {
		case <-timer.C:
		case <-l.hints:
			if l.miss() {
				timer.Stop()
				continue
			}
		case <-l.moved: // look at askAt again
			timer.Stop()
			continue
		case <-empty:
			timer.Stop()
			return
		}
		timer.Stop()
		l.beat(spec)
	}
}

// miss notes a hint that came while a heartbeat is not answered yet, and reports
// whether one is.
func (l *line) miss() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.missed = l.beats > 0
	return l.missed
}

// beat sends one heartbeat.
func (l *line) beat(spec *Spec) {
	l.s.mu.Lock()
	l.askAt = l.dueLocked(luascripts.NoExpiry)
	var waiters []*waiter
	var queued []luascripts.Waiter
	for _, w := range l.waiters {
		if w.queued.Owner != "" {
			waiters, queued = append(waiters, w), append(queued, w.queued)
		}
	}
	l.beats += (len(queued) + keepAtOnce - 1) / keepAtOnce
	l.s.mu.Unlock()
	for len(queued) > 0 {
		n := min(len(queued), keepAtOnce)
		some, theirs := waiters[:n], queued[:n]
		l.s.work.Go(func() { l.send(spec, some, theirs) })
		waiters, queued = waiters[n:], queued[n:]
	}
}

// send sends a heartbeat for some of the waiters, and tells those to ask who have a
// reason to.
func (l *line) send(spec *Spec, waiters []*waiter, queued []luascripts.Waiter) {
	kept, err := spec.Keep(context.Background(), l.s.rdb, spec.Keys, queued)
	l.s.mu.Lock()
	if l.beats--; l.beats == 0 && l.missed {
		l.missed = false
		l.hint()
	}
	l.s.mu.Unlock()
	if err != nil {
		l.s.Logger.Debug("lock: a heartbeat failed", "lock", spec.Name, "err", err)
		if faultOf(err).again {
			return // the next is due soon
		}
	}
	for i, w := range waiters {
		if err != nil || kept.Asks[i] {
			w.ask() // after an error that stays: its own question keeps its place, or says what is wrong
		}
	}
	if err == nil && kept.Left != 0 {
		l.s.mu.Lock()
		l.askAt = l.dueLocked(kept.Left)
		l.s.mu.Unlock()
		l.move()
	}
}

// move tells the heartbeat to look at askAt again. It does not block.
func (l *line) move() {
	select {
	case l.moved <- struct{}{}:
	default:
	}
}
