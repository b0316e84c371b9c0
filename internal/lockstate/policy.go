package lockstate

import (
	"cmp"
	"time"
)

// WaitPolicy decides which waiters of a queue send requests, and when. There are four policies.
type WaitPolicy interface {
	// sendsAtOnce reports whether a new waiter of l sends a request immediately, whatever its
	// position.
	sendsAtOnce(l *Queue) bool

	// next reports whether the state of l is a reason for w to send a request now. If not, due is
	// when it will be one if nothing happens before; zero means never.
	next(l *Queue, w *Waiter, now time.Time) (ready bool, due time.Time)

	// refused records that w was refused, because other owners have the lock.
	refused(l *Queue, w *Waiter, r Refusal, now time.Time)

	// granted records that w acquired the lock.
	granted(l *Queue, w *Waiter, now time.Time)

	// retry makes w send its request again at due, after an error.
	retry(l *Queue, w *Waiter, due time.Time)
}

var (
	// OnlyFirst is the policy of locks with one owner at a time: only the first waiter of a queue
	// sends requests. A single attempt joins the queue, too, and fails unless it is the first.
	OnlyFirst WaitPolicy = onlyFirst{}

	// AllAtOnce is the policy of readers. Each new reader sends a request, until one is refused.
	// After a refusal, only the first sends requests, and each reader whose request has an unknown
	// outcome. Once the first is admitted, all others send a request.
	AllAtOnce WaitPolicy = allAtOnce{}

	// RedisQueue is the policy of kinds whose waiters queue in Redis. Each waiter sends a request
	// when it comes, and when it is notified of its turn. One heartbeat of the queue serves all
	// waiters.
	RedisQueue WaitPolicy = redisQueue{}

	// FairQueue is the policy of locks with one owner at a time whose waiters queue in Redis. The
	// first waiter of a queue sends a request when it comes, unless other processes come first (see
	// Lock.YieldUntil). The queue enters all later waiters in batches. The lock is handed off locally
	// to the next waiters in the Redis queue, as long as they are in this process.
	FairQueue WaitPolicy = fairQueue{}
)

type onlyFirst struct{}

func (onlyFirst) sendsAtOnce(*Queue) bool { return false }

func (onlyFirst) next(l *Queue, w *Waiter, now time.Time) (ready bool, due time.Time) {
	if !w.leads() {
		return false, time.Time{}
	}
	if now.Before(l.side.yieldUntil) {
		l.when.notified = false // the lock is free, but for other processes
		if l.when.sendAt.IsZero() || l.when.sendAt.After(l.side.yieldUntil) {
			l.when.sendAt = l.side.yieldUntil // never postpone a request that is due earlier
		}
	}
	ready = l.when.notified || l.hand.offered != nil || !now.Before(l.when.sendAt)
	l.when.notified = false // one request answers all earlier notifications
	return ready, l.when.sendAt
}

// refused records that the queue is subscribed from now on. A release between the request and the subscription is not
// notified, so the confirmation of the subscription triggers another request.
func (onlyFirst) refused(l *Queue, w *Waiter, r Refusal, now time.Time) {
	if r.NoPubSub && l.subscribed {
		l.when.sendAt = now.Add(l.nextPollWithoutPubSub(now))
	} else {
		pace := l.when.pollInterval
		if r.Confirmed && !r.NoPubSub {
			pace = max(pace, min(now.Sub(l.waiters[0].since)/10, l.when.longPollInterval))
		}
		l.when.sendAt, l.when.pollWithoutPubSub = due(now, r.Left, pace), 0
	}
	l.Subscribe(w.Terms, r.Sent)
}

func (onlyFirst) granted(l *Queue, w *Waiter, now time.Time) {
	if l.subscribed {
		l.when.sendAt = now.Add(l.when.pollInterval)
	} else {
		l.when.sendAt = time.Time{} // the next waiter must send a request, so that the queue subscribes
	}
}

func (onlyFirst) retry(l *Queue, w *Waiter, due time.Time) { l.when.sendAt = due }

type allAtOnce struct{ onlyFirst }

func (allAtOnce) sendsAtOnce(l *Queue) bool { return !l.refusedLast }

func (p allAtOnce) next(l *Queue, w *Waiter, now time.Time) (ready bool, due time.Time) {
	if w.Acquisition.uncertain && !w.leads() {
		// A delayed duplicate of its request may be granted. Other owners would wait until that lease
		// expires.
		due = w.sentAt.Add(l.when.pollInterval)
		return !now.Before(due), due
	}
	return p.onlyFirst.next(l, w, now)
}

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

func (redisQueue) next(*Queue, *Waiter, time.Time) (bool, time.Time) { return false, time.Time{} }

func (redisQueue) refused(l *Queue, w *Waiter, r Refusal, now time.Time) { l.enqueued(w, r, now) }

func (redisQueue) granted(*Queue, *Waiter, time.Time) {} // Redis notifies the next waiter

func (redisQueue) retry(l *Queue, w *Waiter, due time.Time) { w.retryAt = due }

type fairQueue struct{ redisQueue }

func (fairQueue) sendsAtOnce(l *Queue) bool { return len(l.waiters) == 1 }

func (fairQueue) next(l *Queue, w *Waiter, _ time.Time) (bool, time.Time) {
	return l.hand.to == w, time.Time{}
}

const (
	// noPubSubPause is the first pause of a process that receives no notifications. Each next pause
	// is twice as long, up to a poll interval; then the pauses start over. Frequent requests catch a
	// lock that processes hand off to each other.
	noPubSubPause = 10 * time.Millisecond

	// noPubSubPolls is the number of poll intervals after which such a process sends only one request
	// per interval.
	noPubSubPolls = 10
)

// nextPollWithoutPubSub returns the next poll delay of a process that receives no notifications.
func (l *Queue) nextPollWithoutPubSub(now time.Time) time.Duration {
	w := &l.when
	pause := cmp.Or(w.pollWithoutPubSub, noPubSubPause)
	if now.Sub(l.waiters[0].since) >= noPubSubPolls*w.pollInterval {
		w.pollWithoutPubSub = w.pollInterval // after this long a wait, a release grants it the lock for at least one interval
		return w.pollInterval
	}
	if w.pollWithoutPubSub = 2 * pause; w.pollWithoutPubSub > w.pollInterval { // mutant: border: one pause more or less
		w.pollWithoutPubSub = noPubSubPause
	}
	return pause
}
