//go:build linux

package integration_test

import (
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
)

// rwClaims is the state of the model of a read/write lock. No method changes it.
type rwClaims struct {
	writer  claims
	readers []rwReader // by owner
}

// rwReader is the promise to a reader.
type rwReader struct {
	owner string
	count int
	until int64
}

func (s rwClaims) equal(o rwClaims) bool {
	return s.writer == o.writer && slices.Equal(s.readers, o.readers)
}

func (s rwClaims) idle(maxToken uint64) rwClaims { return rwClaims{writer: s.writer.idle(maxToken)} }

// reader returns the promise to owner.
func (s rwClaims) reader(owner string) rwReader {
	for _, r := range s.readers {
		if r.owner == owner {
			return r
		}
	}
	return rwReader{owner: owner}
}

// with returns s with r in place of its owner's earlier promise.
func (s rwClaims) with(r rwReader) rwClaims {
	readers := make([]rwReader, 0, len(s.readers)+1)
	for _, o := range s.readers {
		if o.owner > r.owner && r.count > 0 {
			readers = append(readers, r)
			r.count = 0
		}
		if o.owner != r.owner {
			readers = append(readers, o)
		}
	}
	if r.count > 0 {
		readers = append(readers, r)
	}
	s.readers = readers
	return s
}

// step reports whether o may come next in state s, and what the state is then.
func (s rwClaims) step(o op) (legal bool, next rwClaims) {
	if o.Side == write {
		if reentry := s.writer.count > 0 && o.Owner == s.writer.owner; o.Kind == acquire && o.OK && !reentry {
			for _, r := range s.readers {
				if o.Return < r.until {
					return false, s // granted while it was promised to a reader
				}
			}
			s.readers = nil // they are over
		}
		legal, s.writer = s.writer.step(o)
		return legal, s
	}
	mine := s.reader(o.Owner)
	switch {
	case o.Kind == acquire && !o.OK:
		return true, s

	case o.Kind == acquire && mine.count > 0: // a re-entry
		mine.count++
		mine.until = max(mine.until, o.Until)
		return o.Token == 0, s.with(mine)

	case o.Kind == acquire:
		if s.writer.owner != "" && s.writer.owner != o.Under && o.Return < s.writer.until {
			return false, s // granted while it was promised to a writer
		}
		return o.Token == 0, s.with(rwReader{o.Owner, 1, o.Until})

	case o.OK: // released
		mine.count--
		return mine.count >= 0, s.with(mine)

	default: // "not held" must be true
		return mine.count == 0 || o.Return >= mine.until, s
	}
}

// Can this checker fail? As in TestModel, which is also for
// writers among each other.
func TestModel_readWrite(t *testing.T) {
	on := func(side kind, o op) op {
		o.Side = side
		return o
	}
	acq := func(side kind, owner string, call, ret int64, token uint64, until int64) op {
		return on(side, op{Kind: acquire, Owner: owner, Call: call, Return: ret, OK: true, Token: token, Until: until})
	}
	rel := func(side kind, owner string, call, ret int64) op {
		return on(side, op{Kind: release, Owner: owner, Call: call, Return: ret, OK: true})
	}
	under := func(o op, owner string) op {
		o.Under = owner
		return o
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
		{"readers together", true, []op{
			acq(read, "a", 1, 2, 0, 100), acq(read, "b", 3, 4, 0, 100), acq(read, "c", 3, 6, 0, 100), rel(read, "b", 5, 7), rel(read, "a", 8, 9), rel(read, "c", 8, 9),
		}},
		{"a writer after readers", true, []op{
			acq(read, "a", 1, 2, 0, 100), acq(write, "w", 3, 8, 10, 100), rel(read, "a", 5, 7), rel(write, "w", 9, 10), acq(read, "b", 6, 11, 0, 100),
		}},
		{"a writer among readers", false, []op{
			acq(read, "a", 1, 2, 0, 100), acq(read, "b", 1, 2, 0, 100), rel(read, "a", 3, 4), acq(write, "w", 5, 6, 10, 100), rel(read, "b", 7, 8), rel(write, "w", 9, 10),
		}},
		{"a reader beside a writer", false, []op{
			acq(write, "w", 1, 2, 10, 100), acq(read, "a", 3, 4, 0, 100), rel(write, "w", 5, 6), rel(read, "a", 7, 8),
		}},
		{"a reader together with a writer, which never unlocks", false, []op{
			acq(write, "w", 1, 2, 10, 100), acq(read, "a", 3, 4, 0, 100), rel(read, "a", 7, 8),
		}},
		{"a reader granted just before the writer's release was called", false, []op{
			acq(write, "w", 1, 2, 10, 100), acq(read, "a", 1, 4, 0, 100), rel(write, "w", 5, 6),
		}},
		{"a reader granted while the writer's release was under way", true, []op{
			acq(write, "w", 1, 2, 10, 100), acq(read, "a", 1, 6, 0, 100), rel(write, "w", 5, 7), rel(read, "a", 8, 9),
		}},
		{"two writers", false, []op{
			acq(write, "v", 1, 2, 10, 100), acq(write, "w", 3, 4, 11, 100), rel(write, "v", 5, 6), rel(write, "w", 7, 8),
		}},
		{"a writer after a reader's lease", true, []op{
			acq(read, "a", 1, 2, 0, 50), acq(write, "w", 3, 51, 10, 100), refused(rel(read, "a", 52, 53)), rel(write, "w", 60, 61),
		}},
		{"a writer before the end of the longest of two leases", false, []op{
			acq(read, "a", 1, 2, 0, 50), acq(read, "b", 3, 4, 0, 70), acq(write, "w", 5, 60, 10, 100),
		}},
		{"a reader after a writer's lease", true, []op{
			acq(write, "w", 1, 2, 10, 50), acq(read, "a", 3, 51, 0, 100), refused(rel(write, "w", 52, 53)), rel(read, "a", 60, 61),
		}},
		{"a reader's re-entry holds on", false, []op{
			acq(read, "a", 1, 2, 0, 100), acq(read, "a", 3, 4, 0, 100), rel(read, "a", 5, 6), acq(write, "w", 7, 8, 10, 100),
		}},
		{"one release of a reader too many", false, []op{
			acq(read, "a", 1, 2, 0, 100), acq(read, "b", 1, 2, 0, 100), rel(read, "a", 3, 4), rel(read, "a", 5, 6),
		}},
		{"not reading, although it was", false, []op{
			acq(read, "a", 1, 2, 0, 100), refused(rel(read, "a", 3, 4)),
		}},
		{"a writer reads, and reads on", true, []op{
			acq(write, "w", 1, 2, 10, 100), under(acq(read, "r", 3, 4, 0, 100), "w"), rel(write, "w", 5, 6), acq(read, "a", 7, 8, 0, 100), rel(read, "r", 9, 10), rel(read, "a", 9, 10),
		}},
		{"a writer reads, and another one does too", false, []op{
			acq(write, "w", 1, 2, 10, 100), under(acq(read, "r", 3, 4, 0, 100), "w"), acq(read, "a", 5, 6, 0, 100), rel(write, "w", 7, 8),
		}},
		{"a writer stopped writing, and another one got in while it read", false, []op{
			acq(write, "w", 1, 2, 10, 100), under(acq(read, "r", 3, 4, 0, 100), "w"), rel(write, "w", 5, 6), acq(write, "v", 7, 8, 11, 100), rel(read, "r", 9, 10),
		}},
		{"a reader that writes", false, []op{
			acq(read, "a", 1, 2, 0, 100), acq(write, "w", 3, 4, 10, 100), rel(write, "w", 5, 6), rel(read, "a", 7, 8),
		}},
		{"a writer's token goes back", false, []op{
			acq(write, "v", 1, 2, 10, 100), rel(write, "v", 3, 4), acq(read, "a", 5, 6, 0, 100), rel(read, "a", 7, 8), acq(write, "w", 9, 10, 9, 100),
		}},
		{"a reader with a token", false, []op{acq(read, "a", 1, 2, 10, 100)}},
		{"refusals claim nothing", true, []op{
			acq(write, "w", 1, 2, 10, 100), refused(acq(read, "", 3, 4, 0, 0)), refused(acq(write, "", 3, 4, 0, 0)), rel(write, "w", 5, 6),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var operations []porcupine.Operation
			for i, o := range test.history {
				o.Goroutine = i
				operations = append(operations, o.operation())
			}
			if got := porcupine.CheckOperations(model(rwClaims{}), operations); got != test.legal {
				t.Errorf("legal: %v, want %v", got, test.legal)
			}
		})
	}
}
