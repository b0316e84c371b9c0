//go:build linux

package history

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// The same for the checker of read/write locks. TestModel also covers writers among each other.
func TestModel_readWrite(t *testing.T) {
	on := func(side Side, o Op) Op {
		o.Side = side
		return o
	}
	acq := func(side Side, owner string, call, ret int64, token uint64, until int64) Op {
		return on(side, Op{Kind: Acquire, Owner: owner, Call: call, Return: ret, OK: true, Token: token, Until: until})
	}
	rel := func(side Side, owner string, call, ret int64) Op {
		return on(side, Op{Kind: Release, Owner: owner, Call: call, Return: ret, OK: true})
	}
	under := func(o Op, owner string) Op {
		o.Under = owner
		return o
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
		{"readers together", true, []Op{
			acq(Read, "a", 1, 2, 0, 100), acq(Read, "b", 3, 4, 0, 100), acq(Read, "c", 3, 6, 0, 100), rel(Read, "b", 5, 7), rel(Read, "a", 8, 9), rel(Read, "c", 8, 9),
		}},
		{"a writer after readers", true, []Op{
			acq(Read, "a", 1, 2, 0, 100), acq(Write, "w", 3, 8, 10, 100), rel(Read, "a", 5, 7), rel(Write, "w", 9, 10), acq(Read, "b", 6, 11, 0, 100),
		}},
		{"a writer among readers", false, []Op{
			acq(Read, "a", 1, 2, 0, 100), acq(Read, "b", 1, 2, 0, 100), rel(Read, "a", 3, 4), acq(Write, "w", 5, 6, 10, 100), rel(Read, "b", 7, 8), rel(Write, "w", 9, 10),
		}},
		{"a reader beside a writer", false, []Op{
			acq(Write, "w", 1, 2, 10, 100), acq(Read, "a", 3, 4, 0, 100), rel(Write, "w", 5, 6), rel(Read, "a", 7, 8),
		}},
		{"a reader together with a writer, which never unlocks", false, []Op{
			acq(Write, "w", 1, 2, 10, 100), acq(Read, "a", 3, 4, 0, 100), rel(Read, "a", 7, 8),
		}},
		{"a reader granted just before the writer's release was called", false, []Op{
			acq(Write, "w", 1, 2, 10, 100), acq(Read, "a", 1, 4, 0, 100), rel(Write, "w", 5, 6),
		}},
		{"a reader granted while the writer's release was under way", true, []Op{
			acq(Write, "w", 1, 2, 10, 100), acq(Read, "a", 1, 6, 0, 100), rel(Write, "w", 5, 7), rel(Read, "a", 8, 9),
		}},
		{"two writers", false, []Op{
			acq(Write, "v", 1, 2, 10, 100), acq(Write, "w", 3, 4, 11, 100), rel(Write, "v", 5, 6), rel(Write, "w", 7, 8),
		}},
		{"a writer after a reader's lease", true, []Op{
			acq(Read, "a", 1, 2, 0, 50), acq(Write, "w", 3, 51, 10, 100), refused(rel(Read, "a", 52, 53)), rel(Write, "w", 60, 61),
		}},
		{"a writer before the end of the longest of two leases", false, []Op{
			acq(Read, "a", 1, 2, 0, 50), acq(Read, "b", 3, 4, 0, 70), acq(Write, "w", 5, 60, 10, 100),
		}},
		{"a reader after a writer's lease", true, []Op{
			acq(Write, "w", 1, 2, 10, 50), acq(Read, "a", 3, 51, 0, 100), refused(rel(Write, "w", 52, 53)), rel(Read, "a", 60, 61),
		}},
		{"a reader's reentry holds on", false, []Op{
			acq(Read, "a", 1, 2, 0, 100), acq(Read, "a", 3, 4, 0, 100), rel(Read, "a", 5, 6), acq(Write, "w", 7, 8, 10, 100),
		}},
		{"one release of a reader too many", false, []Op{
			acq(Read, "a", 1, 2, 0, 100), acq(Read, "b", 1, 2, 0, 100), rel(Read, "a", 3, 4), rel(Read, "a", 5, 6),
		}},
		{"not reading, although it was", false, []Op{
			acq(Read, "a", 1, 2, 0, 100), refused(rel(Read, "a", 3, 4)),
		}},
		{"a writer reads, and reads on", true, []Op{
			acq(Write, "w", 1, 2, 10, 100), under(acq(Read, "r", 3, 4, 0, 100), "w"), rel(Write, "w", 5, 6), acq(Read, "a", 7, 8, 0, 100), rel(Read, "r", 9, 10), rel(Read, "a", 9, 10),
		}},
		{"a writer reads, and another one does too", false, []Op{
			acq(Write, "w", 1, 2, 10, 100), under(acq(Read, "r", 3, 4, 0, 100), "w"), acq(Read, "a", 5, 6, 0, 100), rel(Write, "w", 7, 8),
		}},
		{"a writer stopped writing, and another one got in while it read", false, []Op{
			acq(Write, "w", 1, 2, 10, 100), under(acq(Read, "r", 3, 4, 0, 100), "w"), rel(Write, "w", 5, 6), acq(Write, "v", 7, 8, 11, 100), rel(Read, "r", 9, 10),
		}},
		{"a reader that writes", false, []Op{
			acq(Read, "a", 1, 2, 0, 100), acq(Write, "w", 3, 4, 10, 100), rel(Write, "w", 5, 6), rel(Read, "a", 7, 8),
		}},
		{"a writer's token goes back", false, []Op{
			acq(Write, "v", 1, 2, 10, 100), rel(Write, "v", 3, 4), acq(Read, "a", 5, 6, 0, 100), rel(Read, "a", 7, 8), acq(Write, "w", 9, 10, 9, 100),
		}},
		{"a reader with a token", false, []Op{acq(Read, "a", 1, 2, 10, 100)}},
		{"refusals claim nothing", true, []Op{
			acq(Write, "w", 1, 2, 10, 100), refused(acq(Read, "", 3, 4, 0, 0)), refused(acq(Write, "", 3, 4, 0, 0)), rel(Write, "w", 5, 6),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var operations []porcupine.Operation
			for i, o := range test.history {
				o.Goroutine = i
				operations = append(operations, o.Operation())
			}
			if got := porcupine.CheckOperations(Model(RWClaims{}), operations); got != test.legal {
				t.Errorf("legal: %v, want %v", got, test.legal)
			}
		})
	}
}
