package place

import "time"

// Silence is since when Redis gives a line no answer. It tells "another owner has the lock"
// from "Redis gives no answer", also for a waiter that does not ask, as the first of the
// line asks for all.
//
// Redis is silent if an error came instead of the latest answer: a refused connection, a
// time-out, LOADING. A question that is still under way when a wait ends says less, as every
// question is under way for a while. It counts if there was no answer at all before, or if
// it has been under way for long (overdue).
type Silence struct {
	from   time.Time // when the first question without an answer was sent; zero if there is none
	latest time.Time // when the latest question was sent
	heard  bool      // there was an answer once
	err    error     // what came instead of the latest answer; nil if an answer came, or nothing yet
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
	q.heard, q.err, q.from = true, nil, time.Time{}
	if q.latest.After(sent) {
		q.from = q.latest // that one has no answer yet
	}
}

// fails notes that err came instead of the answer to the question that was sent at sent.
func (q *Silence) fails(sent time.Time, err error) {
	q.err = err
	if q.from.IsZero() {
		q.from = sent
	}
}

// Lasts returns for how long Redis has been silent, and what came instead of an answer; 0 if
// it is not silent. waited says that the caller waited for an answer: then a first question
// that is under way counts at once. A nil Silence lasts for 0.
func (q *Silence) Lasts(now time.Time, waited bool, overdue time.Duration) (time.Duration, error) {
	if q == nil || q.from.IsZero() {
		return 0, nil
	}
	d := now.Sub(q.from)
	if q.err != nil || waited && !q.heard || d >= overdue {
		return max(d, 1), q.err
	}
	return 0, nil
}
