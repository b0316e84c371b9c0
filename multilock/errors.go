package multilock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/mask"
	"github.com/leasehold-go/leasehold/lock"
)

// class classifies the reason why a server did not vote, by its meaning for the quorum.
type class int

const (
	voted       class = iota
	open              // the reply could not change the outcome, or the call ended before it arrived
	refused           // another owner has the lock there
	unavailable       // no usable reply; another attempt may succeed
	broken            // an error that would recur, such as a missing permission
	classes
)

// classOf returns the class of reason. A reason that matches both ErrNotAcquired and ErrUnavailable
// counts as unavailable. Only Lockers of other modules return one.
func classOf(reason error) class {
	late, isLate := reason.(noVote)
	switch {
	case reason == nil:
		return voted
	case reason == errNotNeeded:
		return open
	case isLate && classOf(late.said) == refused: // mutant: operand 1: otherwise late is empty
		return refused
	case isLate:
		return unavailable
	case errors.Is(reason, lock.ErrUnavailable):
		return unavailable
	case errors.Is(reason, lock.ErrNotAcquired):
		return refused
	}
	for _, transient := range []error{lock.ErrLost, os.ErrDeadlineExceeded, io.EOF, context.Canceled} {
		if errors.Is(reason, transient) {
			return unavailable
		}
	}
	if errors.As(reason, new(net.Error)) {
		return unavailable
	}
	return broken
}

// majorityError is the error that there is no majority.
type majorityError struct {
	verdict  error  // ErrNotAcquired, ErrUnavailable or ErrLost; nil if the reasons of class broken are the error
	did      string // what votes counts, such as "votes" or "released"
	votes    int
	majority int
	reasons  []error // why each server has no vote; nil for a vote
}

// setVerdict sets the verdict on an acquisition from the reasons. known reports whether the reasons are
// enough for a verdict, which they are not if too many servers are open. final reports whether a known
// verdict stays the same whatever the open servers reply, so that it need not wait for them.
//
// The verdict is ErrNotAcquired if the servers that did not name another owner are no majority.
// Otherwise it is the errors of the broken servers, if the rest without them is no majority either.
// Otherwise it is ErrUnavailable, because the unavailable servers could complete a majority.
func (e *majorityError) setVerdict() (known, final bool) {
	var n [classes]int
	for _, reason := range e.reasons {
		n[classOf(reason)]++
	}
	spare := len(e.reasons) - e.majority // how many servers are not needed for a majority
	rejected := n[refused] + n[broken]
	switch {
	case n[refused] > spare:
		e.verdict = lock.ErrNotAcquired
		return true, true
	case rejected > spare:
		return true, false // an operator also needs the errors of the other servers
	default:
		e.verdict = lock.ErrUnavailable
		known = rejected+n[unavailable] > spare
		return known, rejected+n[open] <= spare
	}
}

// undecided reports whether the servers whose replies were not waited for could have changed the
// verdict ErrUnavailable of a canceled attempt.
func (e *majorityError) undecided() bool {
	could := 0
	for _, reason := range e.reasons {
		_, late := reason.(noVote)
		if c := classOf(reason); late || c == open || c == refused || c == broken {
			could++
		}
	}
	return e.verdict == lock.ErrUnavailable && could > len(e.reasons)-e.majority
}

// persists reports whether the next attempt will fail in the same way, because without the broken
// servers there is no majority.
func (e *majorityError) persists() bool {
	faults := 0
	for _, reason := range e.reasons {
		if classOf(reason) == broken {
			faults++
		}
	}
	return faults > len(e.reasons)-e.majority
}

// reply is the result of a request to server i.
type reply struct {
	i   int
	err error
}

// await counts the replies to a request that was sent to pending servers as votes, until they are a
// majority. It returns e if they cannot become one, and errInterrupted if ctx is canceled first.
func (e *majorityError) await(ctx context.Context, replies <-chan reply, pending int) error {
	for ; e.votes < e.majority; pending-- {
		if e.votes+pending < e.majority {
			e.setVerdict()
			return e
		}
		select {
		case r := <-replies:
			if e.reasons[r.i] = r.err; r.err == nil {
				e.votes++
			}
		case <-ctx.Done():
			return errInterrupted
		}
	}
	return nil
}

// Error returns the number of votes, and why each other server has none.
func (e *majorityError) Error() string {
	var text strings.Builder
	if e.verdict == nil {
		text.WriteString("no majority")
	} else {
		text.WriteString(e.verdict.Error())
	}
	fmt.Fprintf(&text, ": %d of %d %s", e.votes, len(e.reasons), e.did)
	for i, err := range e.reasons {
		if err == nil {
			continue
		}
		if named, ok := err.(*lock.Error); ok {
			err = named.Err // the lock has the same name on all servers
		}
		fmt.Fprintf(&text, "; server %d: %v", i+1, err)
	}
	return text.String()
}

// Unwrap returns the verdict and the reasons that led to it. The other reasons are only in the text,
// so that the error matches only one of the sentinel errors.
func (e *majorityError) Unwrap() (all []error) {
	if e.verdict != nil { // mutant: always: errors.Is and errors.As skip nil
		all = append(all, e.verdict)
	}
	for _, reason := range e.reasons {
		switch c := classOf(reason); {
		case e.verdict == nil && c == broken:
			all = append(all, reasonOf(reason))
		case e.verdict == lock.ErrUnavailable && c == unavailable:
			all = append(all, reasonOf(reason, lock.ErrLost))
		case e.verdict == lock.ErrLost && (c == unavailable || c == broken):
			all = append(all, reasonOf(reason, lock.ErrUnavailable))
		}
	}
	return all
}

// reasonOf returns reason so that it does not match ErrNotAcquired, ErrNotHeld, the errors of not, or a
// context error. The quorum can be held although one server does not have the lock, and the caller's
// context was not canceled.
func reasonOf(reason error, not ...error) error {
	return mask.Error(reason, append(not, lock.ErrNotAcquired, lock.ErrNotHeld, context.Canceled, context.DeadlineExceeded)...)
}

// errNotNeeded is the reason of a server whose reply was not needed, or not waited for.
var errNotNeeded = errors.New("not needed: the other servers had already decided")

// noVote is the reason of a server that did not vote in time.
type noVote struct {
	within time.Duration
	said   error // the error of its Locker when its context was canceled; nil if none
}

// Error reports how long the attempt waited.
func (e noVote) Error() string {
	text := fmt.Sprintf("no vote within %v", e.within)
	if e.said != nil {
		text += fmt.Sprintf(" (%v)", e.said)
	}
	return text
}

// Is makes it match os.ErrDeadlineExceeded, and ErrUnavailable unless the last reply of the server
// named another owner. It matches no context error, because the caller's context was not canceled.
func (e noVote) Is(target error) bool {
	if target == lock.ErrUnavailable {
		return classOf(e) == unavailable
	}
	return target == os.ErrDeadlineExceeded
}

// Timeout reports true.
func (e noVote) Timeout() bool { return true }

// startedRecently is the reason of a server that has no vote yet.
type startedRecently struct{ left time.Duration }

// Error reports when the server will have a vote.
func (e startedRecently) Error() string {
	return fmt.Sprintf("the server started recently and may have lost a lock; it can vote in %v", e.left.Round(time.Millisecond))
}

// Is makes it match ErrUnavailable: no other owner was found, and the server will have a vote later.
func (e startedRecently) Is(target error) bool { return target == lock.ErrUnavailable }

// sameServer is the reason of a lock that is on the server of another lock of the quorum.
type sameServer struct{ first, second int } // from 0

// Error names both locks.
func (e sameServer) Error() string {
	return fmt.Sprintf("locks %d and %d are on the same server; a quorum needs a separate server for each lock", e.first+1, e.second+1)
}

// canceledError returns the error of a call whose context is canceled. last is the error of its last
// attempt, or nil if no attempt had a result.
func canceledError(ctx context.Context, last error) error {
	err := mask.Canceled(ctx, lock.ErrNotAcquired, lock.ErrUnavailable) // the cause may be the error of another call
	if last != nil {
		err = fmt.Errorf("%w (last attempt: %w)", err, last)
	}
	return err
}

// canceledHold is canceledError for a call on a hold that has not ended. The cause can be the loss of
// another lock.
func canceledHold(ctx context.Context) error {
	return mask.Error(canceledError(ctx, nil), lock.ErrNotHeld, lock.ErrLost)
}

// waited is the error of a Lock that timed out because of WithWait.
type waited struct {
	limit time.Duration
	last  error // why the last attempt failed; nil if none had a result
}

// Error reports how long Lock waited.
func (e waited) Error() string {
	if e.last == nil {
		return fmt.Sprintf("%v: waited for %v", lock.ErrUnavailable, e.limit)
	}
	return fmt.Sprintf("waited for %v (last attempt: %v)", e.limit, e.last)
}

// Unwrap returns the errors that it matches; no context error is one of them.
func (e waited) Unwrap() []error {
	if e.last == nil {
		return []error{lock.ErrUnavailable, os.ErrDeadlineExceeded}
	}
	return []error{os.ErrDeadlineExceeded, e.last}
}

// Timeout reports true.
func (e waited) Timeout() bool { return true }
