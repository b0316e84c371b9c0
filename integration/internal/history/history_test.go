//go:build linux

package history

import (
	"math"
	"testing"

	"github.com/anishathalye/porcupine"
)

// The checker accepts and rejects histories correctly. Each history was written by hand; the
// illegal ones show bugs that locks have had.
func TestModel(t *testing.T) {
	const never = math.MaxInt64
	acq := func(owner string, call, ret int64, token uint64, until int64) Op {
		return Op{Kind: Acquire, Owner: owner, Call: call, Return: ret, OK: true, Token: token, Until: until}
	}
	rel := func(owner string, call, ret int64) Op {
		return Op{Kind: Release, Owner: owner, Call: call, Return: ret, OK: true}
	}
	refused := func(o Op) Op {
		o.OK = false
		return o
	}
	for _, test := range []struct {
		name    string
		legal   bool
		history []Op
	}{
		{"nothing", true, nil},
		{"a hand-off", true, []Op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), acq("b", 5, 6, 11, 100), rel("b", 7, 8),
		}},
		{"a hand-off to a waiter", true, []Op{
			acq("a", 1, 2, 10, 100), acq("b", 2, 6, 11, 100), rel("a", 4, 7), rel("b", 8, 9),
		}},
		{"two at once", false, []Op{
			acq("a", 1, 2, 10, 100), acq("b", 3, 4, 11, 100), rel("a", 5, 6), rel("b", 7, 8),
		}},
		{"two at once, one never unlocks", false, []Op{
			acq("a", 1, 2, 10, 100), acq("b", 3, 4, 11, 100),
		}},
		{"granted just before the release was called", false, []Op{
			acq("a", 1, 2, 10, 100), acq("b", 3, 4, 11, 100), rel("a", 5, 6),
		}},
		{"an expiry", true, []Op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 51, 11, 100), rel("b", 60, 61),
		}},
		{"an expiry, and the loser is told", true, []Op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 51, 11, 100), refused(rel("a", 52, 53)), rel("b", 60, 61),
		}},
		{"granted before the expiry", false, []Op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 49, 11, 100), rel("b", 60, 61),
		}},
		{"the loser frees the winner's lock", false, []Op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 51, 11, 100), rel("a", 52, 53), acq("c", 54, 55, 12, 200),
		}},
		{"the loser believes that it released", false, []Op{
			acq("a", 1, 2, 10, 50), acq("b", 3, 51, 11, 100), rel("a", 52, 53), rel("b", 60, 61),
		}},
		{"not held, although it was", false, []Op{
			acq("a", 1, 2, 10, 100), refused(rel("a", 3, 4)),
		}},
		{"a token that goes back", false, []Op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), acq("b", 5, 6, 9, 100),
		}},
		{"a token given twice", false, []Op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), acq("b", 5, 6, 10, 100),
		}},
		{"no token", false, []Op{
			acq("a", 1, 2, 0, 100),
		}},
		{"a reentry", true, []Op{
			acq("a", 1, 2, 10, 100), acq("a", 3, 4, 10, 200), rel("a", 5, 6), rel("a", 7, 8), acq("b", 9, 10, 11, 300),
		}},
		{"a reentry with a token of its own", false, []Op{
			acq("a", 1, 2, 10, 100), acq("a", 3, 4, 11, 200), rel("a", 5, 6), rel("a", 7, 8),
		}},
		{"granted after the first of two releases", false, []Op{
			acq("a", 1, 2, 10, 100), acq("a", 3, 4, 10, 200), rel("a", 5, 6), acq("b", 7, 8, 11, 300), rel("a", 9, 10),
		}},
		{"a reentry that shortens what the outer hold was promised", false, []Op{
			acq("a", 1, 2, 10, 100), acq("a", 3, 4, 10, 20), acq("b", 30, 31, 11, 300),
		}},
		{"one release too many", false, []Op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), rel("a", 5, 6),
		}},
		{"a second release is told so", true, []Op{
			acq("a", 1, 2, 10, 100), rel("a", 3, 4), refused(rel("a", 5, 6)),
		}},
		{"a release of what nobody has", false, []Op{
			rel("a", 1, 2),
		}},
		{"a refusal claims nothing", true, []Op{
			acq("a", 1, 2, 10, 100), refused(acq("", 3, 4, 0, 0)), rel("a", 5, 6),
		}},
		{"a release whose answer never came", true, []Op{
			acq("a", 1, 2, 10, 100), rel("a", 3, never), acq("b", 5, 6, 11, 100), rel("b", 7, 8),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var operations []porcupine.Operation
			for i, o := range test.history {
				o.Goroutine = i
				operations = append(operations, o.Operation())
			}
			if got := porcupine.CheckOperations(Model(Claims{}), operations); got != test.legal {
				t.Errorf("legal: %v, want %v", got, test.legal)
			}
		})
	}
	t.Run("a token that goes back from one part of a history to the next", func(t *testing.T) {
		o := acq("b", 1, 2, 9, 100)
		if porcupine.CheckOperations(Model(Claims{maxToken: 10}), []porcupine.Operation{o.Operation()}) {
			t.Error("it is legal")
		}
	})
}
