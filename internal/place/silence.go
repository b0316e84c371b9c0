package place

import "time"

// Silence is since when Redis has not replied to a line. It tells "another owner has the lock"
// from "Redis is unavailable", even for a waiter that sends nothing, because the first of the
// line asks for all.
//
// Redis is unavailable if a question that was sent after the latest answered one failed (a refused
// connection, a time-out, LOADING), or is overdue. A question that is merely in flight says nothing.
type Silence struct {
	from   time.Time // when the first question without a reply was sent; zero if there is none
	latest time.Time // when the latest question was sent
	heard  time.Time // when the latest question was sent that was answered; zero if none was
	err    error     // how a later one failed; nil if none did
}

// asks notes that a question is sent.
func (q *Silence) asks(sent time.Time) {
	q.latest = sent
	if q.from.IsZero() {
		q.from = sent
	}
}

// hears notes the answer to the question that was sent at sent.
func (q *Silence) hears(sent time.Time) {
	q.heard, q.err, q.from = later(q.heard, sent), nil, time.Time{}
	if q.latest.After(q.heard) {
		q.from = q.latest // that one has no reply yet
	}
}

// fails notes that err came instead of the answer to the question that was sent at sent.
func (q *Silence) fails(sent time.Time, err error) {
	if sent.Before(q.heard) {
		return // a later question was answered
	}
	q.err = err
	if q.from.IsZero() {
		q.from = sent
	}
}

// Lasts returns for how long Redis has been unavailable, and how the latest question failed; 0 if
// it is not unavailable. A question is overdue after overdue. A nil Silence lasts for 0.
func (q *Silence) Lasts(now time.Time, overdue time.Duration) (time.Duration, error) {
	if q == nil || q.from.IsZero() {
		return 0, nil
	}
	if d := now.Sub(q.from); q.err != nil || d >= overdue {
		return max(d, 1), q.err
	}
	return 0, nil
}

// Heard reports whether a question of the line was answered. It is false for a nil Silence.
func (q *Silence) Heard() bool { return q != nil && !q.heard.IsZero() }

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
