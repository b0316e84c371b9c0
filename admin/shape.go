package admin

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// A hash is a lock if its fields have the shape that the scripts require (luascripts/include_plain.lua,
// include_rw.lua). Numeric values alone are not enough: other hashes can have them, too.

// owners matches the fields that name an owner: "<uuid>:<integer>".
var owners = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}:-?[0-9]+$`)

// shape is the result of parsing all or some fields of a hash.
type shape struct {
	kind  Kind               // Plain or ReadWrite; empty if it is not a lock
	mode  string             // of ReadWrite: read or write
	holds []luascripts.Field // by owner
	line  []string           // of Plain: the clients in the queue
}

// shapeOf returns the shape of a hash with these fields. whole means that the hash has no others.
func shapeOf(fields []luascripts.Field, whole bool) shape {
	var s shape
	for _, f := range fields {
		switch {
		case f.Name == "mode":
			s.mode = f.Value
		case f.Name == luascripts.QueueField:
			_, text, _ := strings.Cut(f.Value, "|")
			for entry := range strings.SplitSeq(strings.TrimSuffix(text, ";"), ";") {
				if client := lock.ClientID(entry); client != "" {
					s.line = append(s.line, client)
				}
			}
		default:
			writes := strings.HasSuffix(f.Name, luascripts.Writing)
			if !owners.MatchString(strings.TrimSuffix(f.Name, luascripts.Writing)) || !counts(f.Value) {
				return shape{}
			}
			if writes {
				s.kind = ReadWrite // unless the hash has no mode
			}
			s.holds = append(s.holds, f)
		}
	}
	switch {
	case s.mode == "read" || s.mode == "write":
		if len(s.holds) == 0 && whole {
			return shape{}
		}
		s.kind = ReadWrite
	case s.mode != "" || s.kind == ReadWrite && whole:
		return shape{}
	case s.kind == "" && whole && len(s.holds) == 1:
		s.kind = Plain
	default:
		return shape{}
	}
	return s
}

// counts reports whether value is a number of holds: only digits, as the scripts require, and no larger than StateOf can parse.
func counts(value string) bool {
	_, err := strconv.Atoi(value)
	return err == nil && value[0] != '+' && value[0] != '-'
}

// state converts the shape to the state of the lock called name.
func (s *shape) state(name string) (lock.State, error) {
	slices.SortFunc(s.holds, func(a, b luascripts.Field) int { return cmp.Compare(a.Name, b.Name) })
	s.holds = slices.CompactFunc(s.holds, func(a, b luascripts.Field) bool { return a.Name == b.Name }) // HSCAN can return a field twice
	return session.StateOf(name, s.kind == ReadWrite, luascripts.Snapshot{Exists: true, Mode: s.mode, Fields: s.holds})
}
