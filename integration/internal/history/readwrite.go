//go:build linux

package history

import "slices"

// RWClaims is the state of the model of a read/write lock. It is immutable.
type RWClaims struct {
	writer  Claims
	readers []rwReader // sorted by owner
}

// rwReader is the claim of a reader.
type rwReader struct {
	owner string
	count int
	until int64
}

// Equal reports whether two states are equal.
func (s RWClaims) Equal(o RWClaims) bool {
	return s.writer == o.writer && slices.Equal(s.readers, o.readers)
}

// Idle returns the state in which no owner holds the lock.
func (s RWClaims) Idle(maxToken uint64) RWClaims { return RWClaims{writer: s.writer.Idle(maxToken)} }

// reader returns the claim of owner.
func (s RWClaims) reader(owner string) rwReader {
	for _, r := range s.readers {
		if r.owner == owner {
			return r
		}
	}
	return rwReader{owner: owner}
}

// with returns s with r instead of its owner's earlier claim.
func (s RWClaims) with(r rwReader) RWClaims {
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

// Step reports whether o is legal in state s, and returns the next state.
func (s RWClaims) Step(o Op) (legal bool, next RWClaims) {
	if o.Side == Write {
		if reentry := s.writer.count > 0 && o.Owner == s.writer.owner; o.Kind == Acquire && o.OK && !reentry {
			for _, r := range s.readers {
				if o.Return < r.until {
					return false, s // granted while a reader's claim was valid
				}
			}
			s.readers = nil // their leases have expired
		}
		legal, s.writer = s.writer.Step(o)
		return legal, s
	}
	mine := s.reader(o.Owner)
	switch {
	case o.Kind == Acquire && !o.OK:
		return true, s

	case o.Kind == Acquire && mine.count > 0: // a reentry
		mine.count++
		mine.until = max(mine.until, o.Until)
		return o.Token == 0, s.with(mine)

	case o.Kind == Acquire:
		if s.writer.owner != "" && s.writer.owner != o.Under && o.Return < s.writer.until {
			return false, s // granted while a writer's claim was valid
		}
		return o.Token == 0, s.with(rwReader{o.Owner, 1, o.Until})

	case o.OK: // released
		mine.count--
		return mine.count >= 0, s.with(mine)

	default: // "not held" must be correct
		return mine.count == 0 || o.Return >= mine.until, s
	}
}
