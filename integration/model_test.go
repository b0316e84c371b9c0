//go:build linux

package integration_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// op is one call of the library, as its caller saw it. Together they are the
// history of a run.
//
// A history has the promises to callers, not the events of the server: an
// acquisition that failed claims nothing, and a lock that ran out is no longer
// claimed from the end of the promise on.
type op struct {
	Kind      opKind
	Side      kind `json:",omitempty"` // of a read/write lock
	Name      string
	Goroutine int    // unique in the run
	Call      int64  // by monotonic, before the call
	Queued    int64  `json:",omitempty"` // when Redis had refused it, if it did; the grant came later
	Return    int64  // by monotonic, after it
	OK        bool   // it returned no error
	Owner     string // of the hold; empty if there is none
	Token     uint64 `json:",omitempty"` // the hold's
	Until     int64  `json:",omitempty"` // acquire: the end of the promise, by monotonic
	Under     string `json:",omitempty"` // acquire, read: the owner of the write hold that its caller has
	Err       string `json:",omitempty"`
}

type opKind string

const (
	acquire opKind = "acquire"
	release opKind = "release"
)

// claims is the state of the model: which owner has which promise.
type claims struct {
	owner    string // "" when no owner holds it
	count    int
	token    uint64
	until    int64  // the end of the owner's promise
	maxToken uint64 // the largest that was ever granted
}

// step reports whether o may come next in state s, and what the state is then.
//
// An owner is told by its token as well: a hold that a plain lock was handed off to has the
// owner string of the hold before. (The worker's releases have none.)
func (s claims) step(o op) (legal bool, next claims) {
	mine := o.Owner == s.owner && (o.Token == s.token || o.Kind == release && o.Token == 0)
	switch {
	case o.Kind == acquire && !o.OK:
		return true, s

	case o.Kind == acquire && s.count > 0 && mine: // a re-entry keeps its token
		next = s
		next.count++
		next.until = max(s.until, o.Until)
		return true, next

	case o.Kind == acquire:
		if s.owner != "" && o.Return < s.until {
			return false, s // granted while it was promised to another
		}
		next = claims{owner: o.Owner, count: 1, token: o.Token, until: o.Until, maxToken: o.Token}
		return o.Token > s.maxToken, next

	case o.OK: // released
		next = s
		if next.count--; next.count == 0 {
			next = claims{maxToken: s.maxToken}
		}
		return mine && s.count > 0, next

	default: // "not held" must be true
		return !mine || o.Return >= s.until, s
	}
}

// equal reports whether two states are one.
func (s claims) equal(o claims) bool { return s == o }

// idle is s when no owner holds the lock.
func (s claims) idle(maxToken uint64) claims { return claims{maxToken: max(s.maxToken, maxToken)} }

// state is the state of a model.
type state[S any] interface {
	step(o op) (legal bool, next S)
	equal(S) bool
	idle(maxToken uint64) S
}

// model is the lock as Porcupine reads it, for the history of one name that
// begins in state first.
func model[S state[S]](first S) porcupine.Model {
	return porcupine.Model{
		Init:  func() any { return first },
		Step:  func(state, input, _ any) (bool, any) { return state.(S).step(input.(op)) },
		Equal: func(a, b any) bool { return a.(S).equal(b.(S)) },
		DescribeOperation: func(input, _ any) string {
			o := input.(op)
			what := strings.TrimSpace(fmt.Sprint(o.Kind, " ", o.Side))
			if !o.OK {
				return fmt.Sprintf("%s %s: %s", what, o.Owner, o.Err)
			}
			if o.Kind == release {
				return fmt.Sprintf("%s %s", what, o.Owner)
			}
			return fmt.Sprintf("%s %s: token %d, until +%v", what, o.Owner, o.Token, time.Duration(o.Until-o.Return))
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// check fails the test when no order of the history's operations explains what
// their callers saw. It returns the state in which the next part of the history
// begins, if no owner held the lock at the end of this part.
func check[S state[S]](t *testing.T, name string, first S, history []op) (last S) {
	t.Helper()
	operations := make([]porcupine.Operation, 0, len(history))
	maxToken := uint64(0)
	for _, o := range history {
		if o.Kind == acquire && !o.OK {
			continue // it is legal anywhere; each of them would only double the search
		}
		operations = append(operations, o.operation())
		maxToken = max(maxToken, o.Token)
	}
	m, last := model(first), first.idle(maxToken)
	switch porcupine.CheckOperationsTimeout(m, operations, 2*time.Minute) {
	case porcupine.Ok:
		return last
	case porcupine.Illegal:
		t.Errorf("the history of %q has no legal order: two held it, a token went back, or an answer was wrong", name)
	default:
		t.Errorf("the history of %q: no legal order was found in time", name)
	}
	dir := failures(t)
	_, info := porcupine.CheckOperationsVerbose(m, operations, time.Minute)
	if err := porcupine.VisualizePath(m, info, filepath.Join(dir, name+".html")); err != nil {
		t.Error(err)
	}
	save(t, filepath.Join(dir, name+".json"), history)
	return last
}

// operation is o in the form that Porcupine reads. A caller that had been refused was granted
// the lock later than that.
//
// Readers are put where they have their answers. If a reader was granted the lock
// earlier, it still has it there; so a legal history stays legal, and
// an illegal one stays illegal. Otherwise the orders of a crowd of waiting readers,
// each of which is as good as any other, would be too many to search.
func (o op) operation() porcupine.Operation {
	call := max(o.Call, o.Queued)
	if o.Kind == acquire && o.Side == read {
		call = o.Return
	}
	return porcupine.Operation{ClientId: o.Goroutine, Input: o, Call: call, Output: o, Return: o.Return}
}

func save(t *testing.T, file string, v any) {
	t.Helper()
	text, err := json.MarshalIndent(v, "", "\t")
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// Can the checker fail? Each history was made by hand, the wrong ones after a
// mistake that some lock has made.
func TestModel(t *testing.T) {
	const never = math.MaxInt64
	acq := func(owner string, call, ret int64, token uint64, until int64) op {
		return op{Kind: acquire, Owner: owner, Call: call, Return: ret, OK: true, Token: token, Until: until}
	}
	rel := func(owner string, call, ret int64) op {
		return op{Kind: release, Owner: owner, Call: call, Return: ret, OK: true}
	}
	refused := func(o op) op {
		o.OK = false
		return o
	}
	for _, test := range []struct {
		name    string
		legal   bool
		history []op
	}{
		{"nothing", true, nil},
		{"a hand-off", true, []op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), acq("b", 5, 6, 11, 100), rel("b", 7, 8),
		}},
		{"a hand-off to a waiter", true, []op{
			acq("a", 1, 2, 10, 100), acq("b", 2, 6, 11, 100), rel("a", 4, 7), rel("b", 8, 9),
		}},
		{"two at once", false, []op{
			acq("a", 1, 2, 10, 100), acq("b", 3, 4, 11, 100), rel("a", 5, 6), rel("b", 7, 8),
		}},
		{"two at once, one never unlocks", false, []op{
			acq("a", 1, 2, 10, 100), acq("b", 3, 4, 11, 100),
		}},
		{"granted just before the release was called", false, []op{
			acq("a", 1, 2, 10, 100), acq("b", 3, 4, 11, 100), rel("a", 5, 6),
		}},
		{"an expiry", true, []op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 51, 11, 100), rel("b", 60, 61),
		}},
		{"an expiry, and the loser is told", true, []op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 51, 11, 100), refused(rel("a", 52, 53)), rel("b", 60, 61),
		}},
		{"granted before the expiry", false, []op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 49, 11, 100), rel("b", 60, 61),
		}},
		{"the loser frees the winner's lock", false, []op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 51, 11, 100), rel("a", 52, 53), acq("c", 54, 55, 12, 200),
		}},
		{"the loser believes that it released", false, []op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 51, 11, 100), rel("a", 52, 53), rel("b", 60, 61),
		}},
		{"not held, although it was", false, []op{
			acq("a", 1, 2, 10, 100), refused(rel("a", 3, 4)),
		}},
		{"a token that goes back", false, []op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), acq("b", 5, 6, 9, 100),
		}},
		{"a token given twice", false, []op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), acq("b", 5, 6, 10, 100),
		}},
		{"no token", false, []op{
			acq("a", 1, 2, 0, 100),
		}},
		{"a re-entry", true, []op{
			acq("a", 1, 2, 10, 100), acq("a", 3, 4, 10, 200), rel("a", 5, 6), rel("a", 7, 8), acq("b", 9, 10, 11, 300),
		}},
		{"a re-entry with a token of its own", false, []op{
			acq("a", 1, 2, 10, 100), acq("a", 3, 4, 11, 200), rel("a", 5, 6), rel("a", 7, 8),
		}},
		{"granted after the first of two releases", false, []op{
			acq("a", 1, 2, 10, 100), acq("a", 3, 4, 10, 200), rel("a", 5, 6), acq("b", 7, 8, 11, 300), rel("a", 9, 10),
		}},
		{"a re-entry that shortens what the outer hold was promised", false, []op{
			acq("a", 1, 2, 10, 100), acq("a", 3, 4, 10, 20), acq("b", 30, 31, 11, 300),
		}},
		{"one release too many", false, []op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), rel("a", 5, 6),
		}},
		{"a second release is told so", true, []op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), refused(rel("a", 5, 6)),
		}},
		{"a release of what nobody has", false, []op{
			rel("a", 1, 2),
		}},
		{"a refusal claims nothing", true, []op{
			acq("a", 1, 2, 10, 100), refused(acq("", 3, 4, 0, 0)), rel("a", 5, 6),
		}},
		{"a release whose answer never came", true, []op{
			acq("a", 1, 2, 10, 100), rel("a", 3, never), acq("b", 5, 6, 11, 100), rel("b", 7, 8),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var operations []porcupine.Operation
			for i, o := range test.history {
				o.Goroutine = i
				operations = append(operations, o.operation())
			}
			if got := porcupine.CheckOperations(model(claims{}), operations); got != test.legal {
				t.Errorf("legal: %v, want %v", got, test.legal)
			}
		})
	}
	t.Run("a token that goes back from one part of a history to the next", func(t *testing.T) {
		o := acq("b", 1, 2, 9, 100)
		if porcupine.CheckOperations(model(claims{maxToken: 10}), []porcupine.Operation{o.operation()}) {
			t.Error("it is legal")
		}
	})
}
