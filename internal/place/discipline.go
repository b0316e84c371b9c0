package place

import (
	"cmp"
	"time"
)

// Discipline is how the waiters of a kind wait: which of them ask Redis, and when. There are
// four.
type Discipline interface {
	// asksAtOnce reports whether a waiter that comes has a reason to ask at once, wherever
	// it stands in l.
	asksAtOnce(l *Line) bool

	// next reports whether the state of l is a reason for w to ask now. If it is not, due
	// is when it will be, if nothing happens before; the zero time is never.
	next(l *Line, w *Waiter, now time.Time) (ready bool, due time.Time)

	// refused records that w was told that others have the lock.
	refused(l *Line, w *Waiter, r Refusal, now time.Time)

	// granted records that w got the lock.
	granted(l *Line, w *Waiter, now time.Time)

	// retry has w ask again at due: an error came instead of an answer.
	retry(l *Line, w *Waiter, due time.Time)

	// freed reports whether an Unlock in this process is a reason for waiters to ask.
	freed() bool

	// inLine reports whether a single attempt stands in line, and fails if it is not the
	// first.
	inLine() bool

	// queues reports whether the line has its waiters enter a queue in Redis.
	queues() bool
}

var (
	// FirstAsks is that of locks which one owner has at a time: only the first of a line
	// asks.
	FirstAsks Discipline = firstAsks{}

	// AllAsk is that of readers. While no reader of the line was refused, each asks when it
	// comes. After a refusal only the first asks, and each of which a question broke off; once the
	// first is let in, all others ask at once.
	AllAsk Discipline = allAsk{}

	// QueueInRedis is that of kinds whose waiters queue in Redis. Each waiter asks when it
	// comes, and when it is told that its turn has come. The line sends one heartbeat for
	// all.
	QueueInRedis Discipline = queueInRedis{}

	// FairQueue is that of locks whose waiters queue in Redis, and which one owner has at a
	// time. The first of a line asks when it comes. The line has all others enter the queue:
	// those together that come together. The lock is passed on to the next in the queue, as
	// far as they are in this process.
	FairQueue Discipline = fairQueue{}
)

type firstAsks struct{}

func (firstAsks) asksAtOnce(*Line) bool { return false }
func (firstAsks) freed() bool           { return true }
func (firstAsks) inLine() bool          { return true }
func (firstAsks) queues() bool          { return false }

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

func (firstAsks) retry(l *Line, w *Waiter, due time.Time) { l.when.askAt = due }

type allAsk struct{}

func (allAsk) asksAtOnce(l *Line) bool { return !l.shut }
func (allAsk) freed() bool             { return false }
func (allAsk) inLine() bool            { return false }
func (allAsk) queues() bool            { return false }

func (allAsk) next(l *Line, w *Waiter, now time.Time) (ready bool, due time.Time) {
	if w.Tenure.unsure && !w.leads() {
		// A late copy of its question may let it in. Others would wait for its lease to end then.
		due = w.asked.Add(l.when.pace)
		return !now.Before(due), due
	}
	return firstAsks{}.next(l, w, now)
}

func (allAsk) refused(l *Line, w *Waiter, r Refusal, now time.Time) { l.refused(w, r, now) }

func (allAsk) granted(l *Line, w *Waiter, now time.Time) {
	l.shut = false
	for _, other := range l.waiters {
		if other != w {
			l.side.p.Prompt(other)
		}
	}
}

func (allAsk) retry(l *Line, w *Waiter, due time.Time) {
	w.retryAt = due
	if w.leads() {
		l.when.askAt = due
	}
}

type queueInRedis struct{}

func (queueInRedis) asksAtOnce(*Line) bool { return true }
func (queueInRedis) freed() bool           { return false }
func (queueInRedis) inLine() bool          { return false }
func (queueInRedis) queues() bool          { return false }

func (queueInRedis) next(*Line, *Waiter, time.Time) (bool, time.Time) { return false, time.Time{} }

func (queueInRedis) refused(l *Line, w *Waiter, r Refusal, now time.Time) { l.queue(w, r, now) }

func (queueInRedis) granted(*Line, *Waiter, time.Time) {} // Redis tells the next waiter

func (queueInRedis) retry(l *Line, w *Waiter, due time.Time) { w.retryAt = due }

type fairQueue struct{ queueInRedis }

func (fairQueue) asksAtOnce(l *Line) bool { return len(l.waiters) == 1 }
func (fairQueue) queues() bool            { return true }

func (fairQueue) next(l *Line, w *Waiter, _ time.Time) (bool, time.Time) {
	return l.hand.to == w, time.Time{}
}

// next reports whether the first waiter of l has a reason to ask now, and else when it will
// have one.
func (l *Line) next(now time.Time) (ready bool, due time.Time) {
	if now.Before(l.when.aside) {
		l.when.hinted = false // the hint says that the lock is free, and it is free for others
		if l.when.askAt.IsZero() || l.when.askAt.After(l.when.aside) {
			l.when.askAt = l.when.aside // a question that is due before that stays due, however often others come first
		}
	}
	ready = l.when.hinted || l.hand.offered != nil || l.when.askAt.IsZero() || !now.Before(l.when.askAt)
	l.when.hinted = false // one question answers all the hints before it
	return ready, l.when.askAt
}

// refused records a refusal of w, of a discipline in which a line asks. From now on the line
// listens. A release can slip in between the question and the subscription; so the
// confirmation of the subscription is a reason to ask again.
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
	// DeafPause is the first pause of a process that no message reaches. The next pauses
	// are twice as long each, up to a poll interval, and then from the beginning: a lock
	// that goes from process to process comes by while this one asks often.
	DeafPause = 10 * time.Millisecond

	// DeafPolls is after how many poll intervals of waiting such a process asks once in
	// each.
	DeafPolls = 10
)

// unheard records that no message reaches this process, and returns after how long it asks
// again.
func (l *Line) unheard(now time.Time) time.Duration {
	w := &l.when
	pause := cmp.Or(w.deaf, DeafPause)
	if now.Sub(l.waiters[0].since) >= DeafPolls*w.pace {
		w.deaf = w.pace // by now the script gives it the lock that long before it asks
		return w.pace
	}
	if w.deaf = 2 * pause; w.deaf > w.pace {
		w.deaf = DeafPause
	}
	return pause
}
