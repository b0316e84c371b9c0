//go:build linux

// Package history holds what callers of locks saw, and decides whether it was legal. The tests of
// package integration and package chaos write such histories.
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

// Op is one call of the library, as its caller saw it. Together they are the
// history of a run.
//
// A history has the promises to callers, not the events of the server: an
// acquisition that failed claims nothing, and a lock that ran out is no longer
// claimed from the end of the promise on.
type Op struct {
	Kind      OpKind
	Side      Side `json:",omitempty"` // of a read/write lock
	Name      string
	Goroutine int    // unique in the run
	Call      int64  // by Monotonic, before the call
	Queued    int64  `json:",omitempty"` // when Redis had refused it, if it did; the grant came later
	Return    int64  // by Monotonic, after it
	OK        bool   // it returned no error
	Owner     string // of the hold; empty if there is none
	Token     uint64 `json:",omitempty"` // the hold's
	Until     int64  `json:",omitempty"` // acquire: the end of the promise, by Monotonic
	Under     string `json:",omitempty"` // acquire, read: the owner of the write hold that its caller has
	Err       string `json:",omitempty"`
}

// Side is the side of a read/write lock that an Op is about.
type Side string

// The sides.
const (
	Read  Side = "read"
	Write Side = "write"
)

// OpKind says which call an Op is.
type OpKind string

// The calls.
const (
	Acquire OpKind = "acquire"
	Release OpKind = "release"
)

// Claims is the state of the model of a lock: which owner has which promise.
type Claims struct {
	owner    string // "" when no owner holds it
	count    int
	token    uint64
	until    int64  // the end of the owner's promise
	maxToken uint64 // the largest that was ever granted
}

// Step reports whether o may come next in state s, and what the state is then.
//
// An owner is told by its token as well: a hold that a plain lock was handed off to has the
// owner string of the hold before. (The worker's releases have none.)
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
			return false, s // granted while it was promised to another
		}
		next = Claims{owner: o.Owner, count: 1, token: o.Token, until: o.Until, maxToken: o.Token}
		return o.Token > s.maxToken, next

	case o.OK: // released
		next = s
		if next.count--; next.count == 0 {
			next = Claims{maxToken: s.maxToken}
		}
		return mine && s.count > 0, next

	default: // "not held" must be true
		return !mine || o.Return >= s.until, s
	}
}

// Equal reports whether two states are one.
func (s Claims) Equal(o Claims) bool { return s == o }

// Idle is s when no owner holds the lock.
func (s Claims) Idle(maxToken uint64) Claims { return Claims{maxToken: max(s.maxToken, maxToken)} }

// State is the state of a model.
type State[S any] interface {
	Step(o Op) (legal bool, next S)
	Equal(S) bool
	Idle(maxToken uint64) S
}

// Model is the lock as Porcupine reads it, for the history of one name that
// begins in state first.
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

// Check looks for an order of the history's operations that explains what their callers saw, and
// returns an error if there is none. It also returns the state in which the next part of the history
// begins, if no owner held the lock at the end of this part.
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

// ErrUnknown is the result for a history that is too hard to check.
var ErrUnknown = errors.New("no legal order of the history was found in time")

// operations are the operations that Porcupine must put in order, and the state after them.
func operations[S State[S]](first S, history []Op) ([]porcupine.Operation, S) {
	all := make([]porcupine.Operation, 0, len(history))
	maxToken := uint64(0)
	for _, o := range history {
		if o.Kind == Acquire && !o.OK {
			continue // it is legal anywhere; each of them would only double the search
		}
		all = append(all, o.Operation())
		maxToken = max(maxToken, o.Token)
	}
	return all, first.Idle(maxToken)
}

// Draw writes a page that shows how far Porcupine came with the history.
func Draw[S State[S]](first S, history []Op, file string) error {
	operations, _ := operations(first, history)
	m := Model(first)
	_, info := porcupine.CheckOperationsVerbose(m, operations, time.Minute)
	return porcupine.VisualizePath(m, info, file)
}

// Grant records that o got h.
func (o *Op) Grant(h lock.Hold) {
	o.OK, o.Owner, o.Token, o.Until = true, h.Owner(), h.Token(), OnMonotonic(h.Until())
}

// One distinguishes the owner of o, which reads by h, from the others that share the read hold in
// Redis: by its number in its process.
func (o *Op) One(h lock.Hold) {
	if o.Side == Read {
		n, _ := lockimpl.OwnerFrom(h.Context())
		o.Owner = fmt.Sprintf("%s/%d", h.Owner(), n)
	}
}

// Operation is o in the form that Porcupine reads. A caller that had been refused was granted
// the lock later than that.
//
// Readers are put where they have their answers. If a reader was granted the lock
// earlier, it still has it there; so a legal history stays legal, and
// an illegal one stays illegal. Otherwise the orders of a crowd of waiting readers,
// each of which is as good as any other, would be too many to search.
func (o Op) Operation() porcupine.Operation {
	call := max(o.Call, o.Queued)
	if o.Kind == Acquire && o.Side == Read {
		call = o.Return
	}
	return porcupine.Operation{ClientId: o.Goroutine, Input: o, Call: call, Output: o, Return: o.Return}
}
