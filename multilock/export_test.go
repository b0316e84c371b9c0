package multilock

import (
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Judged returns the error of an attempt with these reasons of the servers, nil for a vote.
func Judged(reasons ...error) error {
	e := errorOf(reasons)
	e.setVerdict()
	return e
}

// Loss returns the error of a hold that was lost for these reasons.
func Loss(reasons ...error) error {
	e := errorOf(reasons)
	e.verdict = lock.ErrLost
	return e
}

func errorOf(reasons []error) *majorityError {
	e := &majorityError{did: "votes", majority: len(reasons)/2 + 1, reasons: reasons}
	for _, err := range reasons {
		if err == nil {
			e.votes++
		}
	}
	return e
}

// StartedRecently returns the reason of a server that can vote after left has passed.
func StartedRecently(left time.Duration) error { return startedRecently{left} }

// NoVote returns the reason of a server that did not vote in time.
func NoVote(within time.Duration, said error) error { return noVote{within, said} }

// Waited returns the error of a wait that WithWait ended.
func Waited(limit time.Duration, last error) error { return waited{limit, last} }

// Holders returns the number of owners that hold a quorum, as far as this process has detected.
func Holders() int {
	holders.Lock()
	defer holders.Unlock()
	return len(holders.of)
}

// NewResult reports whether err, the error of a canceled attempt, has more information than last, the
// error of the attempt before it.
func NewResult(err, last error) bool { return newResult(err, last) }

// Open is the reason of a server whose reply was not waited for.
var Open = errNotNeeded

// Sleep changes the limits of h, a hold of a quorum, as if the machine had slept for d.
func Sleep(h lock.Hold, d time.Duration) {
	q := h.(*quorumHold)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, at := range []*time.Time{&q.limit, &q.fixedUntil} {
		if !at.IsZero() {
			*at = redistest.BeforeSleep(*at, d)
		}
	}
}

// Abandon has the same effect on h, a hold of a quorum, as canceling the caller's context.
func Abandon(h lock.Hold) { h.(*quorumHold).abandon() }
