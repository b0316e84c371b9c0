package session

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// silence is what the waiters of one line know of how Redis answers them. It tells
// "somebody else has it" from "Redis gives no answer", also for waiters that do not
// ask themselves, as another waiter asks for them.
//
// Redis is silent if something else than an answer came to the latest question: a
// refused connection, a time-out, LOADING. A question that is still under way when a
// wait ends says less, as every question is under way for a while. It counts if there
// was no answer at all before, or if it has been under way for long (overdue).
type silence struct {
	from   time.Time // when the first question without an answer was sent; zero if the latest was answered
	latest time.Time // when the latest question was sent
	heard  bool      // there was an answer
	err    error     // what came instead of the latest answer; nil if nothing came yet
}

// asks notes that a question is sent.
func (q *silence) asks(sent time.Time) {
	q.latest = sent
	if q.from.IsZero() {
		q.from = sent
	}
}

// hears notes the answer to the question that was sent at sent.
func (q *silence) hears(sent time.Time) {
	q.heard, q.err, q.from = true, nil, time.Time{}
	if q.latest.After(sent) {
		q.from = q.latest // that one is under way yet
	}
}

// fails notes that err came and not an answer.
func (q *silence) fails(sent time.Time, err error) {
	q.err = err
	if q.from.IsZero() {
		q.from = sent
	}
}

// lasts returns for how long Redis has been silent, 0 if it is not, to the knowledge
// of a caller that waited for an answer or did not.
func (q *silence) lasts(waited bool, overdue time.Duration) time.Duration {
	if q.from.IsZero() {
		return 0
	}
	d := time.Since(q.from)
	if q.err != nil || waited && !q.heard || d >= overdue {
		return max(d, 1)
	}
	return 0
}

// overdue is for how long a question is under way that a server which is well would
// have answered.
func (s *Session) overdue() time.Duration { return s.OpTimeout / 10 }

// ended is the error of a call for the claim c whose wait was ended by err: with the
// silence of Redis, if that is what kept the call waiting.
func (s *Session) ended(c *claim, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == lock.ErrClosed {
		return err
	}
	if t := c.tenure; t != nil && !t.changing.IsZero() {
		return s.silentFor(time.Since(t.changing), err) // the owner has the lock: it waits for Redis alone
	}
	if l := s.lines[c.id.place]; l != nil {
		if d := l.silence.lasts(true, s.overdue()); d > 0 {
			return s.silentFor(d, cmp.Or(l.silence.err, err))
		}
	}
	return err
}

// behind is the error of a TryLock that stands behind another call of this process.
func (s *Session) behind(at place) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[at]; l != nil {
		if d := l.silence.lasts(false, s.overdue()); d > 0 {
			return fmt.Errorf("%w: another call of this process is ahead: %w", lock.ErrNotAcquired, s.silentFor(d, l.silence.err))
		}
	}
	return lock.ErrNotAcquired
}

// cutOff is the error of a question sent at sent whose answer the caller did not
// wait for: err is the end of its context, or noAnswer. Of another error, and of nil, it
// is what told makes of it.
func (s *Session) cutOff(sent time.Time, err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded {
		return s.silentFor(max(time.Since(sent), 1), nil)
	}
	return s.told(err)
}

// failed is the error of a call that waits for nothing but its own command, and began
// then: err is what that failed with.
func (s *Session) failed(ctx context.Context, began time.Time, err error) error {
	if err != nil && err == ctx.Err() {
		return fmt.Errorf("%w: %w", err, s.silentFor(max(time.Since(began), 1), nil))
	}
	return s.told(err)
}

// mayPass reports whether a TryLock that failed with err should be made again. A server
// that turned out to be a replica stays one, unless something else than the address
// says where the master is.
func (s *Session) mayPass(err error) bool {
	return faultOf(err).again && !(isReadOnly(err) && s.rdb.Mode() == rueidis.ClientModeStandalone)
}
