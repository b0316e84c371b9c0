package lockstate

import (
	"cmp"
	"time"
)

// WaitPolicy is how the waiters of a kind wait: which of them ask Redis, and when. There are
// four.
type WaitPolicy interface {
	// asksAtOnce reports whether a waiter that comes has a reason to ask at once, wherever
	// it stands in l.
	sendsAtOnce(l *Queue) bool

	// next reports whether the state of l is a reason for w to ask now. If it is not, due
	// is when it will be, if nothing happens before; the zero time is never.
	next(l *Queue, w *Waiter, now time.Time) (ready bool, due time.Time)

	// refused records that w was told that others have the lock.
	refused(l *Queue, w *Waiter, r Refusal, now time.Time)

	// granted records that w got the lock.
	granted(l *Queue, w *Waiter, now time.Time)

	// retry has w ask again at due: an error came instead of a reply.
	retry(l *Queue, w *Waiter, due time.Time)

	// freed reports whether an Unlock in this process is a reason for waiters to ask.
	wakesOnUnlock() bool

	// inLine reports whether a single attempt waits in the queue, and fails if it is not the
	// first.
	tryQueues() bool

	// queues reports whether the queue has its waiters enter a queue in Redis.
	inRedis() bool
}

var (
	// FirstAsks is that of locks which one owner has at a time: only the first of a queue
	// asks.
	OnlyFirst WaitPolicy = onlyFirst{}

	// AllAsk is that of readers. While no reader of the queue was refused, each asks when it
	// comes. After a refusal only the first asks, and each of which a request broke off; once the
	// first is let in, all others ask at once.
	AllAtOnce WaitPolicy = allAtOnce{}

	// QueueInRedis is that of kinds whose waiters queue in Redis. Each waiter asks when it
	// comes, and when it is told that its turn has come. The queue sends one heartbeat for
	// all.
	RedisQueue WaitPolicy = redisQueue{}

	// FairQueue is that of locks whose waiters queue in Redis, and which one owner has at a
	// time. The first of a queue asks when it comes. The queue has all others enter the queue:
	// those together that come together. The lock is handed off to the next in the queue, as
	// far as they are in this process.
	FairQueue WaitPolicy = fairQueue{}
)

type onlyFirst struct{}

func (onlyFirst) sendsAtOnce(*Queue) bool { return false }
func (onlyFirst) wakesOnUnlock() bool     { return true }
func (onlyFirst) tryQueues() bool         { return true }
func (onlyFirst) inRedis() bool           { return false }

func (onlyFirst) next(l *Queue, w *Waiter, now time.Time) (bool, time.Time) {
	if !w.leads() {
		return false, time.Time{}
	}
	return l.next(now)
}

func (onlyFirst) refused(l *Queue, w *Waiter, r Refusal, now time.Time) { l.refused(w, r, now) }

func (onlyFirst) granted(l *Queue, w *Waiter, now time.Time) {
	if l.subscribed {
		l.when.sendAt = l.due(now, -1)
	} else {
		l.when.sendAt = time.Time{} // the next must ask, to begin with listening
	}
}

func (onlyFirst) retry(l *Queue, w *Waiter, due time.Time) { l.when.sendAt = due }

type allAtOnce struct{}

func (allAtOnce) sendsAtOnce(l *Queue) bool { return !l.refusedLast }
func (allAtOnce) wakesOnUnlock() bool       { return false }
func (allAtOnce) tryQueues() bool           { return false }
func (allAtOnce) inRedis() bool             { return false }

func (allAtOnce) next(l *Queue, w *Waiter, now time.Time) (ready bool, due time.Time) {
	if w.Acquisition.uncertain && !w.leads() {
		// A late copy of its request may let it in. Others would wait for its lease to end then.
		due = w.sentAt.Add(l.when.pace)
		return !now.Before(due), due
	}
	return onlyFirst{}.next(l, w, now)
}

func (allAtOnce) refused(l *Queue, w *Waiter, r Refusal, now time.Time) { l.refused(w, r, now) }

func (allAtOnce) granted(l *Queue, w *Waiter, now time.Time) {
	l.refusedLast = false
	for _, other := range l.waiters {
		if other != w {
			l.side.p.Wakeup(other)
		}
	}
}

func (allAtOnce) retry(l *Queue, w *Waiter, due time.Time) {
	w.retryAt = due
	if w.leads() {
		l.when.sendAt = due
	}
}

type redisQueue struct{}

func (redisQueue) sendsAtOnce(*Queue) bool { return true }
func (redisQueue) wakesOnUnlock() bool     { return false }
func (redisQueue) tryQueues() bool         { return false }
func (redisQueue) inRedis() bool           { return false }

func (redisQueue) next(*Queue, *Waiter, time.Time) (bool, time.Time) { return false, time.Time{} }

func (redisQueue) refused(l *Queue, w *Waiter, r Refusal, now time.Time) { l.enqueued(w, r, now) }

func (redisQueue) granted(*Queue, *Waiter, time.Time) {} // Redis tells the next waiter

func (redisQueue) retry(l *Queue, w *Waiter, due time.Time) { w.retryAt = due }

type fairQueue struct{ redisQueue }

func (fairQueue) sendsAtOnce(l *Queue) bool { return len(l.waiters) == 1 }
func (fairQueue) inRedis() bool             { return true }

func (fairQueue) next(l *Queue, w *Waiter, _ time.Time) (bool, time.Time) {
	return l.hand.to == w, time.Time{}
}

// next reports whether the first waiter of l has a reason to ask now, and else when it will
// have one.
func (l *Queue) next(now time.Time) (ready bool, due time.Time) {
	if now.Before(l.when.yieldUntil) {
		l.when.notified = false // the notification says that the lock is free, and it is free for others
		if l.when.sendAt.IsZero() || l.when.sendAt.After(l.when.yieldUntil) {
			l.when.sendAt = l.when.yieldUntil // a request that is due before that stays due, however often others come first
		}
	}
	ready = l.when.notified || l.hand.offered != nil || l.when.sendAt.IsZero() || !now.Before(l.when.sendAt)
	l.when.notified = false // one request replies all the notifications before it
	return ready, l.when.sendAt
}

// refused records a refusal of w, of a wait policy in which a queue asks. From now on the queue
// listens. A release can slip in between the request and the subscription; so the
// confirmation of the subscription is a reason to ask again.
func (l *Queue) refused(w *Waiter, r Refusal, now time.Time) {
	l.when.sendAt = l.due(now, r.Left)
	if r.NoPubSub && l.subscribed {
		l.when.sendAt = now.Add(l.nextPollWithoutPubSub(now))
	} else {
		l.when.pollWithoutPubSub = 0
	}
	l.Subscribe(w.Terms, r.Sent)
}

const (
	// DeafPause is the first pause of a process that no message reaches. The next pauses
	// are twice as long each, up to a poll interval, and then from the beginning: a lock
	// that goes from process to process comes by while this one asks often.
	NoPubSubPause = 10 * time.Millisecond

	// DeafPolls is after how many poll intervals of waiting such a process asks once in
	// each.
	NoPubSubPolls = 10
)

// nextPollWithoutPubSub records that no message reaches this process, and returns after how long it asks
// again.
func (l *Queue) nextPollWithoutPubSub(now time.Time) time.Duration {
	w := &l.when
	pause := cmp.Or(w.pollWithoutPubSub, NoPubSubPause)
	if now.Sub(l.waiters[0].since) >= NoPubSubPolls*w.pace {
		w.pollWithoutPubSub = w.pace // by now the script gives it the lock that long before it asks
		return w.pace
	}
	if w.pollWithoutPubSub = 2 * pause; w.pollWithoutPubSub > w.pace {
		w.pollWithoutPubSub = NoPubSubPause
	}
	return pause
}
