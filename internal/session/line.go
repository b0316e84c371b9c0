package session

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/hint"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// line is where the waiters of this process stand for one side of one lock, first
// come first. Who of them asks Redis depends on the kind:
//
//   - exclusive: only the first, when there is a reason to. What it has learnt
//     about when to ask next stays with the line when the next takes its place.
//   - shared: the same; but once one is let in, all others ask at once, and as
//     long as nobody had to wait, whoever comes asks without standing in line.
//   - with a queue in Redis: each for itself, when it comes and when it is told
//     that its turn has come. The line sends one heartbeat for all (keep.go).
type line struct {
	s     *Session      // set once
	place place         // set once
	hints chan struct{} // cap 1: something happened to the lock
	moved chan struct{} // cap 1: askAt is nearer now; only for the heartbeat

	// Guarded by s.mu.
	askAt   time.Time     // a question, or a heartbeat, is due then without a hint; zero before the first answer
	pace    time.Duration // and that often
	shut    bool          // the latest answer was that others have the lock
	silence silence       // whether there are answers
	waiters []*waiter
	only    waiter             // the first of a new line
	sub     *hint.Subscription // to the lock's channel; nil until somebody had to wait
	empty   chan struct{}      // closed when nobody is left to send heartbeats for; nil while none are sent
	beats   int                // heartbeats that are not answered yet
	missed  bool               // there was a hint meanwhile
	turns   turns              // who is told that its turn has come

	// Of kinds with a Pass (handover.go).
	ticket *tenure                   // asks, and stands in line in Redis, for the first; nil before the first question, and while the first has no spec
	gift   *tenure                   // holds the lock, and is for the first waiter to take; nil if there is none
	own    *hint.Subscription        // to the channel of this process; with sub
	ours   *hint.Subscription        // to that of all who know of the line; with own
	subs   atomic.Int32              // how often sub was confirmed
	owns   atomic.Int32              // and own
	aside  atomic.Pointer[time.Time] // until then others come first; nil if they need not
	deaf   time.Duration             // after how long it asks again if no message reaches this process; 0 if one does, as far as is known
	timer  *time.Timer               // until the first asks although this process has the lock; nil if it need not, or may
}

// waiter is one place in a line.
type waiter struct {
	line  *line         // set once
	spec  *Spec         // set once: what it stands for; nil if it takes nothing but the answer to its own question
	since time.Time     // set once: when it came
	first chan struct{} // closed when it is the first, and has something to do
	asked chan struct{} // cap 1: it should ask, wherever it stands

	asks    time.Time // its own goroutine's: when its latest question was due
	sent    time.Time // its own goroutine's: when it was sent
	deaf    bool      // its own goroutine's: the answer to it was that no message reaches this process
	own     bool      // its own goroutine's: it may be told of its turn at its own channel
	retryAt time.Time // its own goroutine's: it asks again then, wherever it stands; zero if not

	// Guarded by s.mu. Only where waiters queue in Redis.
	queued luascripts.Waiter  // as what it stands there; its owner is empty before it does
	sub    *hint.Subscription // to its own channel; nil if only ours tell it of its turn
}

// alone reports whether only the first of l asks.
func (l *line) alone() bool { return l.place.kind.Keep == nil && !l.place.kind.shared() }

// isNow is what the first waiter of a new line gets: it is the first already.
var isNow = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// How a waiter stands in a line of a kind with a Pass: for whatever comes to the line, or
// for the answer to its own question alone.
const (
	stander = true
	passer  = false
)

// join takes a place at the end of the line for spec.
func (s *Session) join(spec *Spec, stands bool) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[spec.line()]
	var w *waiter
	if l == nil {
		l = s.newLineLocked(spec.line())
		w = &l.only
	} else {
		w = &waiter{line: l, asked: make(chan struct{}, 1)}
	}
	w.since, w.first = time.Now(), isNow
	if stands {
		w.spec = spec
	}
	if len(l.waiters) > 0 || s.held[l.place] != nil {
		w.first = make(chan struct{})
	}
	if spec.Patience > 0 {
		l.pace = min(l.pace, spec.Patience/3) // its trace in Redis must not fade
	}
	if spec.Keep != nil || spec.shared() && !l.shut {
		w.ask()
	}
	l.waiters = append(l.waiters, w)
	l.armLocked()
	return w
}

// spareLines is how many lines are kept to be used again. Most locks are free, and what
// a line has is dear for something that nobody comes to stand in.
const spareLines = 512

// newLineLocked returns an empty line for a place.
func (s *Session) newLineLocked(place place) (l *line) {
	if end := len(s.spare) - 1; end >= 0 {
		l, s.spare = s.spare[end], s.spare[:end]
	} else {
		l = &line{s: s, hints: make(chan struct{}, 1), moved: make(chan struct{}, 1)}
		l.only = waiter{line: l, asked: make(chan struct{}, 1)}
	}
	l.place, l.pace = place, s.Poll
	s.lines[place] = l
	if until, ok := s.letGo[place]; ok {
		delete(s.letGo, place)
		l.aside.Store(&until)
	}
	return l
}

// spareLocked keeps l, which is empty, to be used again if nothing but its waiters ever
// knew of it.
func (l *line) spareLocked() {
	s := l.s
	if len(s.spare) == spareLines || l.sub != nil || l.empty != nil || l.timer != nil || l.ticket != nil {
		return
	}
	l.unhint()
	select {
	case <-l.only.asked:
	default:
	}
	l.askAt, l.shut, l.deaf, l.silence = time.Time{}, false, 0, silence{}
	l.aside.Store(nil)
	l.only.spec, l.only.sent, l.only.retryAt = nil, time.Time{}, time.Time{}
	s.spare = append(s.spare, l)
}

// rouseLocked tells the first waiter that it has something to do.
func (l *line) rouseLocked() {
	if w := l.waiters[0]; !w.isFirst() {
		close(w.first)
	} else {
		l.hint()
	}
}

// armLocked sees to it that somebody asks in time although this process has the
// lock: it may have lost it without knowing.
func (l *line) armLocked() {
	if l.timer != nil || l.s.held[l.place] == nil {
		return
	}
	l.timer = time.AfterFunc(l.pace, func() {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		l.timer = nil
		if l.s.lines[l.place] == l && !l.waiters[0].isFirst() {
			l.askAt = time.Time{}
			l.rouseLocked()
		}
	})
}

// leave gives the place up. Whoever stood behind moves on.
func (w *waiter) leave() {
	l := w.line
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.unqueueLocked(w)
	i := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, i, i+1)
	switch {
	case len(l.waiters) == 0:
		delete(l.s.lines, l.place)
		if l.sub != nil {
			l.sub.CloseSoon()
		}
		if l.own != nil {
			l.own.CloseSoon()
			l.ours.CloseSoon()
		}
		if l.empty != nil {
			close(l.empty)
		}
		if l.timer != nil {
			l.timer.Stop()
		}
		l.refuseLocked()
		l.spareLocked()
		return
	case i > 0:
		return
	case l.waiters[0].spec == nil:
		l.refuseLocked()
	}
	if l.gift == nil && l.s.held[l.place] != nil {
		l.armLocked() // who has it in this process will pass it on
	} else {
		l.rouseLocked()
	}
}

// refuseLocked gives back what came to the line, or may come yet: its first waiter has no
// use for it, or there is none.
func (l *line) refuseLocked() {
	for _, t := range []*tenure{l.ticket, l.gift} {
		if t != nil {
			l.s.orphanLocked(t)
		}
	}
	l.ticket, l.gift = nil, nil
}

// leads reports whether nobody stands before w. Then w asks now.
func (w *waiter) leads() bool {
	l := w.line
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.waiters[0] != w {
		return false
	}
	l.silence.asks(w.since)
	return true
}

func (w *waiter) isFirst() bool {
	select {
	case <-w.first:
		return true
	default:
		return false
	}
}

// turn waits until w has a reason to ask. It fails with ctx's error, or with
// ErrClosed.
func (w *waiter) turn(ctx context.Context) error {
	l := w.line
	for {
		select {
		case <-l.s.closing:
			return lock.ErrClosed
		default:
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		leads := w.isFirst() // once: it can become so at any moment, and that must wake it
		ready, due := w.next(leads)
		if ready {
			return nil
		}
		first, hints := w.first, l.hints
		switch {
		case l.place.kind.Keep != nil:
			first, hints = nil, nil // they are for the heartbeat
		case leads:
			first = nil
		default:
			hints = nil
		}
		var timer *time.Timer
		var timeout <-chan time.Time
		if !due.IsZero() {
			timer = time.NewTimer(time.Until(due))
			timeout = timer.C
		}
		select {
		case <-w.asked:
			w.ask() // for next to find
		case <-hints:
			l.hint()
		case <-first:
		case <-timeout:
		case <-ctx.Done():
		case <-l.s.closing:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// next reports whether w, which leads the line or does not, has a reason to ask now,
// and else when it will have one if nothing happens; the zero time is never.
func (w *waiter) next(leads bool) (ready bool, due time.Time) {
	l := w.line
	select {
	case <-w.asked:
		ready = true
	default:
	}
	if !w.retryAt.IsZero() {
		ready = ready || !time.Now().Before(w.retryAt)
		due = w.retryAt
	}
	if leads && l.place.kind.Keep == nil {
		l.s.mu.Lock()
		if aside := l.aside.Load(); aside != nil && time.Now().Before(*aside) {
			l.unhint() // it is the lock that others should have
			if l.askAt.IsZero() || l.askAt.After(*aside) {
				l.askAt = *aside // but what is due before that stays due, whoever says this again and again
			}
		}
		askAt, gift := l.askAt, l.gift
		l.s.mu.Unlock()
		if gift != nil || askAt.IsZero() || !time.Now().Before(askAt) {
			ready = true
		} else if due.IsZero() || askAt.Before(due) {
			due = askAt
		}
		// One question answers all the hints before it.
		if l.unhint() {
			ready = true
		}
	}
	if ready {
		w.retryAt = time.Time{}
	}
	return ready, due
}

// ask gives w a reason to ask. It does not block.
func (w *waiter) ask() {
	select {
	case w.asked <- struct{}{}:
	default:
	}
}

// retryIn says when to ask again after err, which came instead of an answer, if
// nothing comes before. It returns for how long Redis has been silent.
func (w *waiter) retryIn(err error, d time.Duration) (quiet time.Duration) {
	w.line.s.mu.Lock()
	defer w.line.s.mu.Unlock()
	w.line.silence.fails(w.asks, err)
	quiet = w.line.silence.lasts(true, 0)
	if !w.line.alone() {
		w.retryAt = time.Now().Add(d)
		if w.line.place.kind.Keep != nil || !w.isFirst() {
			return quiet
		}
	}
	w.line.askAt = time.Now().Add(d)
	return quiet
}

// refused says that t, for which w waits, was told that others have the lock, for
// left if nothing happens before. Whoever waits listens from now on. A release
// can slip in between the question and the subscription; so the confirmation that
// we listen is a reason to ask again.
func (w *waiter) refused(t *tenure, left time.Duration) {
	l, spec := w.line, t.spec
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.shut = true
	l.silence.hears(w.asks)
	if spec.Keep == nil {
		l.askAt = l.dueLocked(left)
		if w.deaf && l.sub != nil {
			l.askAt = time.Now().Add(l.unheardLocked())
		} else {
			l.deaf = 0
		}
		l.listenLocked(spec, w.sent)
		return
	}
	if due := l.dueLocked(left); l.askAt.IsZero() || due.Before(l.askAt) {
		l.askAt = due // sooner, but never put off by those who come
		l.move()
	}
	l.queueLocked(w, t)
	if l.empty == nil {
		empty := make(chan struct{})
		l.empty = empty
		l.s.work.Go(func() { l.keep(spec, empty) })
	}
}

// listenLocked listens for the lock's messages from now on, and for those to this
// process if there are such. What there is to know was asked for at sent.
func (l *line) listenLocked(spec *Spec, sent time.Time) {
	if l.sub != nil {
		return
	}
	if spec.Keep != nil {
		l.sub = l.s.hub.Subscribe(l.turnsChannel(spec), sent, l.turn, l.hint) // one heartbeat says for all whether a message was missed
		return
	}
	if spec.Pass == nil {
		l.sub = l.s.hub.Subscribe(spec.Keys.Channel, sent, func(string) { l.hint() }, l.hint)
		return
	}
	l.sub = l.s.hub.Subscribe(spec.Keys.Channel, sent, func(string) { l.hint() }, l.half(&l.subs, &l.owns))
	l.own = l.s.hub.Subscribe(keys.OfClient(spec.Keys.Line, l.s.id), sent, l.told, l.half(&l.owns, &l.subs))
	l.ours = l.s.hub.Subscribe(spec.Keys.Line, sent, l.stepAside, func() {})
}

// half returns what to do when one of two channels is confirmed that are subscribed
// together, and this often before: one question after the other one's does for both.
func (l *line) half(this, other *atomic.Int32) func() {
	return func() {
		n := this.Add(1)
		if other.Load() >= n {
			l.hint()
			return
		}
		time.AfterFunc(time.Millisecond, func() {
			if other.Load() < n {
				l.hint() // that one may be denied
			}
		})
	}
}

// listenEarlyLocked listens before anybody asks if that is to be had for nothing.
// What is said before the answer comes is heard then.
func (l *line) listenEarlyLocked(spec *Spec) {
	channel := spec.Keys.Channel
	if spec.Keep != nil {
		channel = l.turnsChannel(spec)
	}
	if l.sub == nil && l.s.hub.Lingers(channel) {
		l.listenLocked(spec, time.Now())
	}
}

// willAsk says that w is about to ask.
func (w *waiter) willAsk(spec *Spec) {
	w.asks = time.Now()
	w.line.s.mu.Lock()
	defer w.line.s.mu.Unlock()
	w.line.silence.asks(w.asks)
	w.line.listenEarlyLocked(spec)
}

// dueLocked is when to look again if Redis said that nothing will happen for left.
func (l *line) dueLocked(left time.Duration) time.Time {
	d := l.pace
	if left != luascripts.NoExpiry {
		d = min(left+time.Millisecond, d)
	}
	return time.Now().Add(d)
}

// granted says that w got the lock.
func (w *waiter) granted(spec *Spec) {
	l := w.line
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.silence.hears(w.asks)
	switch {
	case spec.Keep != nil: // Redis tells whose turn is next
	case spec.shared():
		l.shut, l.askAt = false, time.Time{}
		for _, other := range l.waiters {
			if other != w {
				other.ask()
			}
		}
	case l.sub == nil:
		l.askAt = time.Time{} // the next must ask, to begin with listening
	default:
		l.askAt = l.dueLocked(luascripts.NoExpiry)
	}
}

// pass says that the lock may be free, but not for w: the next must ask.
func (w *waiter) pass() {
	l := w.line
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.askAt = time.Time{}
}

// hint tells the line that something happened. It does not block.
func (l *line) hint() {
	select {
	case l.hints <- struct{}{}:
	default:
	}
}

// unhint takes a hint back, and reports whether there was one.
func (l *line) unhint() bool {
	select {
	case <-l.hints:
		return true
	default:
		return false
	}
}

// freed tells the waiters for the lock in this process, on either side of it, that it is
// free; aside says that others come first.
func (s *Session) freed(spec *Spec, aside bool) {
	if aside {
		s.mu.Lock()
		if l := s.lines[spec.line()]; l != nil {
			l.stepAside(luascripts.Aside)
		} else {
			s.letGoLocked(spec.line())
		}
		s.mu.Unlock()
	}
	s.hint(spec)
}

// hint tells the waiters for the lock in this process, on either side of it, that
// it may be free. Where Redis itself tells whose turn it is, or where others may
// still hold the lock, there is nothing to tell.
func (s *Session) hint(spec *Spec) {
	if spec.Keep != nil || spec.shared() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range []*Kind{spec.Kind, spec.Beside} {
		for a := range apart(1 << allApart) {
			if l := s.lines[place{kind, spec.Keys.Lock, a}]; l != nil {
				l.hint()
			}
		}
	}
}
