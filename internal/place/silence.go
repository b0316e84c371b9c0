package place

import "time"

// Silence is what the waiters of one line know of how Redis answers them. It tells
// "somebody else has it" from "Redis gives no answer", also for waiters that do not
// ask themselves, as another waiter asks for them.
//
// Redis is silent if something else than an answer came to the latest question: a
// refused connection, a time-out, LOADING. A question that is still under way when a
// wait ends says less, as every question is under way for a while. It counts if there
// was no answer at all before, or if it has been under way for long (overdue).
type Silence struct {
	from   time.Time // when the first question without an answer was sent; zero if the latest was answered
	latest time.Time // when the latest question was sent
	heard  bool      // there was an answer
	err    error     // what came instead of the latest answer; nil if nothing came yet
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
		q.from = q.latest // that one is under way yet
	}
}

// fails notes that err came and not an answer.
func (q *Silence) fails(sent time.Time, err error) {
	q.err = err
	if q.from.IsZero() {
		q.from = sent
	}
}

// Lasts returns for how long Redis has been silent, 0 if it is not, to the knowledge of a
// caller that waited for an answer or did not. It returns what came instead of an answer,
// too. A nil Silence is of nobody that asks: it lasts for 0.
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
