package session

import (
	"context"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/luascripts"
)

// turns are the waiters of a line that stand in a queue in Redis. Its mutex is the last
// that anybody takes: a message comes while the hub is locked.
type turns struct {
	mu      sync.Mutex
	waiting map[string]*waiter // by their owner strings
	early   string             // the owner that was told before it knew that it stands there
}

// turnsChannel is where this client hears whose turn it is.
func (l *line) turnsChannel(spec *Spec) string {
	return keys.OfTurns(spec.Keys.Channel, l.s.id)
}

// turn tells the owner of this number to ask. It does not block.
func (l *line) turn(number string) {
	owner := l.s.id + ":" + number
	l.turns.mu.Lock()
	defer l.turns.mu.Unlock()
	if w := l.turns.waiting[owner]; w != nil {
		w.ask()
	} else {
		l.turns.early = owner // its own answer is on the way
	}
}

// queueLocked says that w stands in the queue in Redis in the name of t.
func (l *line) queueLocked(w *waiter, t *tenure) {
	l.listenLocked(t.spec, w.sent)
	if w.queued.Owner != t.owner {
		l.unqueueLocked(w)
		w.queued = luascripts.Waiter{Owner: t.owner, Patience: t.spec.Patience}
		l.turns.mu.Lock()
		if l.turns.waiting == nil {
			l.turns.waiting = make(map[string]*waiter)
		}
		l.turns.waiting[t.owner] = w
		if l.turns.early == t.owner {
			w.ask()
		}
		l.turns.mu.Unlock()
	}
	if w.own && w.sub == nil {
		w.sub = l.s.hub.Subscribe(keys.OfOwner(t.spec.Keys.Channel, t.owner), time.Time{}, func(string) { w.ask() }, l.hint)
	}
}

// unqueueLocked says that w does not stand in the queue any more, if it did.
func (l *line) unqueueLocked(w *waiter) {
	if w.sub != nil {
		w.sub.Close()
		w.sub = nil
	}
	if w.queued.Owner != "" {
		l.turns.mu.Lock()
		delete(l.turns.waiting, w.queued.Owner)
		l.turns.mu.Unlock()
	}
}

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
	sent := time.Now()
	if len(queued) > 0 {
		l.silence.asks(sent)
		l.beats++
	}
	l.s.mu.Unlock()
	if len(queued) == 0 {
		return
	}
	l.s.work.Go(func() { l.send(spec, waiters, queued, sent) })
}

// send sends a heartbeat for these waiters, due at sent, and tells those to ask that have a
// reason to.
func (l *line) send(spec *Spec, waiters []*waiter, queued []luascripts.Waiter, sent time.Time) {
	kept, err := spec.Keep(context.Background(), l.s.rdb, spec.Keys, queued)
	l.s.mu.Lock()
	if l.beats--; l.beats == 0 && l.missed {
		l.missed = false
		l.hint()
	}
	var quiet time.Duration
	if err != nil && faultOf(err).again {
		l.silence.fails(sent, err)
		quiet = l.silence.lasts(true, 0)
	} else {
		l.silence.hears(sent)
	}
	l.s.mu.Unlock()
	if err != nil {
		err = l.s.told(err)
		l.s.silent(spec, quiet, err)
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
