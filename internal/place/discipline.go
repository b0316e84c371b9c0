package place

import (
	"cmp"
	"time"
)

// Discipline is how the waiters of a kind wait: which of them ask Redis, and when. There are
// three.
type Discipline interface {
	// asksAtOnce reports whether a waiter asks when it comes, wherever it stands in l.
	asksAtOnce(l *Line) bool

	// next reports whether w has a reason to ask now, and else when it will have one if
	// nothing happens; the zero time is never.
	next(l *Line, w *Waiter, now time.Time) (ready bool, due time.Time)

	// refused says that w was told that others have the lock, for left if nothing happens
	// before.
	refused(l *Line, w *Waiter, r Refusal, now time.Time)

	// granted says that w got the lock.
	granted(l *Line, w *Waiter, now time.Time)

	// retry has w ask again at that time, as it had no answer.
	retry(l *Line, w *Waiter, at time.Time)

	// freed reports whether others may have reason to ask when an owner gives the lock
	// back.
	freed() bool

	// inLine reports whether a single attempt must stand behind those that wait.
	inLine() bool
}

var (
	// FirstAsks is for locks that one owner has at a time: only the first of a line asks.
	FirstAsks Discipline = firstAsks{}

	// AllAsk is for readers: the first of a line asks. Once one is let in, all others ask
	// at once; and while nobody has to wait, each asks when it comes.
	AllAsk Discipline = allAsk{}

	// QueueInRedis is for kinds with a queue in Redis: each waiter asks when it comes, and
	// when it is told that its turn has come. The line sends one heartbeat for all.
	QueueInRedis Discipline = queueInRedis{}
)

type firstAsks struct{}

func (firstAsks) asksAtOnce(*Line) bool { return false }
func (firstAsks) freed() bool           { return true }
func (firstAsks) inLine() bool          { return true }

func (firstAsks) next(l *Line, w *Waiter, now time.Time) (bool, time.Time) {
	if !w.leads() {
		return false, time.Time{}
	}
	return l.next(now)
}

func (firstAsks) refused(l *Line, w *Waiter, r Refusal, now time.Time) { l.refused(w, r, now) }

func (firstAsks) granted(l *Line, w *Waiter, now time.Time) {
	if l.listens {
		l.when.askAt = l.due(now, -1)
	} else {
		l.when.askAt = time.Time{} // the next must ask, to begin with listening
	}
}

func (firstAsks) retry(l *Line, w *Waiter, at time.Time) { l.when.askAt = at }

type allAsk struct{}

func (allAsk) asksAtOnce(l *Line) bool { return !l.shut }
func (allAsk) freed() bool             { return false }
func (allAsk) inLine() bool            { return false }

func (allAsk) next(l *Line, w *Waiter, now time.Time) (ready bool, due time.Time) {
	return firstAsks{}.next(l, w, now)
}

func (allAsk) refused(l *Line, w *Waiter, r Refusal, now time.Time) { l.refused(w, r, now) }

func (allAsk) granted(l *Line, w *Waiter, now time.Time) {
	l.shut, l.when.askAt = false, time.Time{}
	for _, other := range l.waiters {
		if other != w {
			l.side.p.Ask(other)
		}
	}
}

func (allAsk) retry(l *Line, w *Waiter, at time.Time) {
	w.retryAt = at
	if w.leads() {
		l.when.askAt = at
	}
}

type queueInRedis struct{}

func (queueInRedis) asksAtOnce(*Line) bool { return true }
func (queueInRedis) freed() bool           { return false }
func (queueInRedis) inLine() bool          { return false }

func (queueInRedis) next(*Line, *Waiter, time.Time) (bool, time.Time) { return false, time.Time{} }

func (queueInRedis) refused(l *Line, w *Waiter, r Refusal, now time.Time) { l.queue(w, r, now) }

func (queueInRedis) granted(*Line, *Waiter, time.Time) {} // Redis tells whose turn is next

func (queueInRedis) retry(l *Line, w *Waiter, at time.Time) { w.retryAt = at }

// next is for the first waiter of l: whether it has a reason to ask now, or else when.
func (l *Line) next(now time.Time) (ready bool, due time.Time) {
	if now.Before(l.when.aside) {
		l.when.hinted = false // it is the lock that others should have
		if l.when.askAt.IsZero() || l.when.askAt.After(l.when.aside) {
			l.when.askAt = l.when.aside // but what is due before that stays due, however often this is said again
		}
	}
	ready = l.when.hinted || l.hand.offered != nil || l.when.askAt.IsZero() || !now.Before(l.when.askAt)
	l.when.hinted = false // one question answers all the hints before it
	return ready, l.when.askAt
}

// refused is for the lines that ask by themselves. The waiter listens from now on. A
// release can slip in between the question and the subscription; so the confirmation that
// it listens is a reason to ask again.
func (l *Line) refused(w *Waiter, r Refusal, now time.Time) {
	l.when.askAt = l.due(now, r.Left)
	if r.Deaf && l.listens {
		l.when.askAt = now.Add(l.unheard(now))
	} else {
		l.when.deaf = 0
	}
	l.Listen(w.Terms, r.Sent)
}

const (
	// A process that no message reaches asks again after this time, twice this, and so
	// on up to a poll interval, and then from the beginning: a lock that goes round in
	// turns comes by while it asks often.
	DeafPause = 10 * time.Millisecond
	DeafPolls = 10 // after so many poll intervals it asks once in each
)

// unheard says that no message reaches this process. It returns after how long to ask
// again.
func (l *Line) unheard(now time.Time) time.Duration {
	w := &l.when
	pause := cmp.Or(w.deaf, DeafPause)
	if now.Sub(l.waiters[0].since) >= DeafPolls*w.pace {
		w.deaf = w.pace // now the lock waits for it for that long
		return w.pace
	}
	if w.deaf = 2 * pause; w.deaf > w.pace {
		w.deaf = DeafPause
	}
	return pause
}
