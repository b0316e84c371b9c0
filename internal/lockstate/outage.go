package lockstate

import "time"

// Outage is since when Redis has not replied to a queue. It tells "another owner has the lock"
// from "Redis is unavailable", even for a waiter that sends nothing, because the first of the
// line asks for all.
//
// Redis is unavailable if a request that was sent after the latest replied to one failed (a refused
// connection, a timeout, LOADING), or is overdue. A request that is merely in flight says nothing.
type Outage struct {
	from      time.Time // when the first request without a reply was sent; zero if there is none
	latest    time.Time // when the latest request was sent
	repliedTo time.Time // when the latest request was sent that was replied to; zero if none was
	err       error     // how a later one failed; nil if none did
}

// sent notes that a request is sent.
func (q *Outage) sent(sent time.Time) {
	q.latest = sent
	if q.from.IsZero() {
		q.from = sent
	}
}

// replied notes the reply to the request that was sent at sent.
func (q *Outage) replied(sent time.Time) {
	q.repliedTo, q.err, q.from = later(q.repliedTo, sent), nil, time.Time{}
	if q.latest.After(q.repliedTo) {
		q.from = q.latest // that one has no reply yet
	}
}

// failed notes that err came instead of the reply to the request that was sent at sent.
func (q *Outage) failed(sent time.Time, err error) {
	if sent.Before(q.repliedTo) {
		return // a later request was replied to
	}
	q.err = err
	if q.from.IsZero() {
		q.from = sent
	}
}

// Lasts returns for how long Redis has been unavailable, and how the latest request failed; 0 if
// it is not unavailable. A request is overdue after overdue. A nil Outage lasts for 0.
func (q *Outage) Lasts(now time.Time, overdue time.Duration) (time.Duration, error) {
	if q == nil || q.from.IsZero() {
		return 0, nil
	}
	if d := now.Sub(q.from); q.err != nil || d >= overdue {
		return max(d, 1), q.err
	}
	return 0, nil
}

// Replied reports whether a request of the queue was replied to. It is false for a nil Outage.
func (q *Outage) Replied() bool { return q != nil && !q.repliedTo.IsZero() }

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
