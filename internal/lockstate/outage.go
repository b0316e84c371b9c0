package lockstate

import "time"

// outage tracks since when Redis has not replied to a queue. It distinguishes "another owner has the
// lock" from "Redis is unavailable". That also serves waiters that send nothing, because the first
// waiter sends requests for all.
//
// Redis is unavailable if a request sent after the last answered one failed or is overdue. Failures
// include a refused connection, a timeout and LOADING. A request that is merely in flight says
// nothing.
type outage struct {
	from      time.Time // when the first request without a reply was sent; zero if there is none
	latest    time.Time // when the latest request was sent
	repliedTo time.Time // when the last answered request was sent; zero if none was answered
	err       error     // the error of a later request; nil if there is none
}

// sent records that a request is sent. Callers read the clock before they take the mutex, so an earlier
// time can follow a later one.
func (q *outage) sent(sent time.Time) {
	if sent.After(q.latest) {
		q.latest = sent
	}
	if q.from.IsZero() {
		q.from = sent
	}
}

// replied records the reply to the request that was sent at sent.
func (q *outage) replied(sent time.Time) {
	if sent.After(q.repliedTo) {
		q.repliedTo = sent
	}
	q.err, q.from = nil, time.Time{}
	if q.latest.After(q.repliedTo) {
		q.from = q.latest // the latest request has no reply yet
	}
}

// failed records that the request sent at sent failed with err.
func (q *outage) failed(sent time.Time, err error) {
	if sent.Before(q.repliedTo) {
		return // a later request was answered
	}
	q.err = err
	if q.from.IsZero() {
		q.from = sent
	}
}

// Outage returns for how long Redis has not replied to l, and the error of the latest request. It returns
// 0 if Redis is available, or l is nil. A request without a reply counts as failed after overdue.
func (l *Queue) Outage(now time.Time, overdue time.Duration) (time.Duration, error) {
	if l == nil || l.outage.from.IsZero() {
		return 0, nil
	}
	if d := now.Sub(l.outage.from); l.outage.err != nil || d >= overdue {
		return max(d, 1), l.outage.err
	}
	return 0, nil
}
