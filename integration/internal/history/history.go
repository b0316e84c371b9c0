//go:build linux

// Package history records the calls of lock users, and decides whether their results were legal. The
// tests of packages integration and chaos write such histories.
package history

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// Op is one call of the library, as its caller saw it. All of them form the history of a run.
//
// A history has the guarantees given to callers, not the events on the server: an acquisition that
// failed claims nothing, and a lock whose lease expired is not claimed after its Until.
type Op struct {
	Kind      OpKind
	Side      Side `json:",omitempty"` // of a read/write lock
	Name      string
	Goroutine int    // unique in the run
	Call      int64  // by Monotonic, before the call
	Queued    int64  `json:",omitempty"` // when Redis refused it, if it did; the grant came later
	Return    int64  // by Monotonic, after the call
	OK        bool   // it returned no error
	Owner     string // of the hold; empty if there is none
	Token     uint64 `json:",omitempty"` // of the hold
	Until     int64  `json:",omitempty"` // acquire: the hold's Until, by Monotonic
	Under     string `json:",omitempty"` // acquire, read: the owner of the write hold that its caller already has
	Err       string `json:",omitempty"`
}

// Side is the side of a read/write lock that an Op uses.
type Side string

// The sides of a read/write lock.
const (
	Read  Side = "read"
	Write Side = "write"
)

// OpKind is the type of call.
type OpKind string

// The types of calls.
const (
	Acquire OpKind = "acquire"
	Release OpKind = "release"
)

// Claims is the state of the model of a lock: its owner, and until when.
type Claims struct {
	owner    string // "" when no owner holds it
	count    int
	token    uint64
	until    int64  // the Until of the owner
	maxToken uint64 // the largest token granted so far
}

// Step reports whether o is legal in state s, and returns the next state.
//
// Owners are also distinguished by their tokens, because a plain lock that is handed off keeps the
// owner string of the previous hold. (The worker's releases have no token.)
func (s Claims) Step(o Op) (legal bool, next Claims) {
	mine := o.Owner == s.owner && (o.Token == s.token || o.Kind == Release && o.Token == 0)
	switch {
	case o.Kind == Acquire && !o.OK:
		return true, s

	case o.Kind == Acquire && s.count > 0 && mine: // a reentry keeps its token
		next = s
		next.count++
		next.until = max(s.until, o.Until)
		return true, next

	case o.Kind == Acquire:
		if s.owner != "" && o.Return < s.until {
			return false, s // granted while another owner's claim was valid
		}
		next = Claims{owner: o.Owner, count: 1, token: o.Token, until: o.Until, maxToken: o.Token}
		return o.Token > s.maxToken, next

	case o.OK: // released
		next = s
		if next.count--; next.count == 0 {
			next = Claims{maxToken: s.maxToken}
		}
		return mine && s.count > 0, next

	default: // "not held" must be correct
		return !mine || o.Return >= s.until, s
	}
}

// Equal reports whether two states are equal.
func (s Claims) Equal(o Claims) bool { return s == o }

// Idle returns the state in which no owner holds the lock.
func (s Claims) Idle(maxToken uint64) Claims { return Claims{maxToken: max(s.maxToken, maxToken)} }

// State is the state of a model.
type State[S any] interface {
	Step(o Op) (legal bool, next S)
	Equal(S) bool
	Idle(maxToken uint64) S
}

// Model returns Porcupine's model of the lock, for the history of one name that begins in state
// first.
func Model[S State[S]](first S) porcupine.Model {
	return porcupine.Model{
		Init:  func() any { return first },
		Step:  func(state, input, _ any) (bool, any) { return state.(S).Step(input.(Op)) },
		Equal: func(a, b any) bool { return a.(S).Equal(b.(S)) },
		DescribeOperation: func(input, _ any) string {
			o := input.(Op)
			what := strings.TrimSpace(fmt.Sprint(o.Kind, " ", o.Side))
			if !o.OK {
				return fmt.Sprintf("%s %s: %s", what, o.Owner, o.Err)
			}
			if o.Kind == Release {
				return fmt.Sprintf("%s %s", what, o.Owner)
			}
			return fmt.Sprintf("%s %s: token %d, until +%v", what, o.Owner, o.Token, time.Duration(o.Until-o.Return))
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// Check searches for an order of the history's operations that explains the results of all calls,
// and returns an error if there is none. It also returns the state in which the next part of the
// history begins, if no owner held the lock at the end of this part.
func Check[S State[S]](first S, history []Op) (last S, err error) {
	operations, last := operations(first, history)
	switch porcupine.CheckOperationsTimeout(Model(first), operations, 2*time.Minute) {
	case porcupine.Ok:
		return last, nil
	case porcupine.Illegal:
		return last, errors.New("the history has no legal order: two held it, a token went back, or an answer was wrong")
	}
	return last, ErrUnknown
}

// ErrUnknown is returned if a history is too hard to check.
var ErrUnknown = errors.New("no legal order of the history was found in time")

// operations returns the operations that Porcupine must order, and the state after them.
func operations[S State[S]](first S, history []Op) ([]porcupine.Operation, S) {
	all := make([]porcupine.Operation, 0, len(history))
	maxToken := uint64(0)
	for _, o := range history {
		if o.Kind == Acquire && !o.OK {
			continue // it is legal anywhere; each of these would only double the search
		}
		all = append(all, o.Operation())
		maxToken = max(maxToken, o.Token)
	}
	return all, first.Idle(maxToken)
}

// Draw writes a page that shows how far Porcupine got with the history.
func Draw[S State[S]](first S, history []Op, file string) error {
	operations, _ := operations(first, history)
	m := Model(first)
	_, info := porcupine.CheckOperationsVerbose(m, operations, time.Minute)
	return porcupine.VisualizePath(m, info, file)
}

// Grant records that o acquired h.
func (o *Op) Grant(h lock.Hold) {
	o.OK, o.Owner, o.Token, o.Until = true, h.Owner(), h.Token(), OnMonotonic(h.Until())
}

// One distinguishes the owner of o, which reads with h, from others that share the read hold in
// Redis, by its number in its process.
func (o *Op) One(h lock.Hold) {
	if o.Side == Read {
		n, _ := lockimpl.OwnerFrom(h.Context())
		o.Owner = fmt.Sprintf("%s/%d", h.Owner(), n)
	}
}

// Operation converts o for Porcupine. A call that was refused at first was granted the lock after
// that.
//
// The grant of a reader is placed at the reply. If the reader was granted the lock earlier, it still
// holds it then, so legal histories stay legal, and illegal ones illegal. Otherwise there would be
// too many equivalent orders of a crowd of waiting readers to search.
func (o Op) Operation() porcupine.Operation {
	call := max(o.Call, o.Queued)
	if o.Kind == Acquire && o.Side == Read {
		call = o.Return
	}
	return porcupine.Operation{ClientId: o.Goroutine, Input: o, Call: call, Output: o, Return: o.Return}
}
