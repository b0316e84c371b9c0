package main

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const removed = "removed"

// shape is how a mutation of Go code is switched on in a test binary that contains all mutations.
type shape int

const (
	shapeFalse     shape = iota // the expression is false
	shapeTrue                   // the expression is true
	shapeBorder                 // the other comparison of two parts
	shapeStatement              // the statement is not executed
	shapePick                   // min or max returns the second argument; shapePick+1: the first
)

// site is one mutation.
type site struct {
	file     string
	op       string // never, always, operand, border, removed; with a number if a line has several
	from, to int    // the range that it replaces
	new      string // in a script: the replacement
	start    int    // in a script: start of the statement
	shape    shape  // in Go
	parts    [][2]int
	n        int    // its number in a test binary
	line     int    // of its start
	ends     int    // of its end
	source   string // the mutated text, shortened
	reason   string // why no test can detect it; empty if one can
}

// place sets the lines, names and reasons of the sites in the text.
func place(sites []site, text string) {
	starts := []int{0}
	for i, c := range text {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	lineOf := func(at int) int {
		n, found := slices.BinarySearch(starts, at)
		if !found {
			n--
		}
		return n + 1
	}
	slices.SortStableFunc(sites, func(a, b site) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	type name struct {
		line int
		op   string
	}
	total, seen := map[name]int{}, map[name]int{}
	for i := range sites {
		s := &sites[i]
		s.line, s.ends = lineOf(s.from), lineOf(max(s.to-1, s.from))
		s.source = strings.Join(strings.Fields(text[s.from:s.to]), " ")
		total[name{s.line, s.op}]++
	}
	lines := strings.Split(text, "\n")
	for i := range sites {
		s := &sites[i]
		k := name{s.line, s.op}
		seen[k]++
		short := s.op
		if total[k] > 1 {
			s.op = fmt.Sprintf("%s %d", short, seen[k])
		}
		s.reason = reasonOf(lines, s.line, short, s.op)
	}
}

var note = regexp.MustCompile(`(?://|--) mutant: ([a-z0-9, ]+): (.+)$`)

// reasonOf returns the reason that a note on the line, or on a line of its own above, gives for a mutation:
//
//	if wake { // mutant: always, operand 2: another wake-up does no harm
func reasonOf(lines []string, line int, short, op string) string {
	for n := line; n > 0; n-- {
		text := lines[n-1]
		if n < line && !note.MatchString(strings.TrimSpace(text)) {
			return ""
		}
		if alone := note.FindStringIndex(strings.TrimSpace(text)); n < line && alone[0] != 0 {
			return ""
		}
		if m := note.FindStringSubmatch(text); m != nil {
			for name := range strings.SplitSeq(m[1], ",") {
				if name = strings.TrimSpace(name); name == short || name == op {
					return m[2]
				}
			}
		}
	}
	return ""
}

// calls reports whether a mutated expression calls a function. Then the mutation has an effect even if the result is
// the same.
func (s site) calls() bool { return strings.Contains(s.source, "(") }

// mutated returns the script with the mutation.
func (s site) mutated(text string) string { return text[:s.from] + s.new + text[s.to:] }

// instrument returns Go code with all mutations in it, each of which is switched on by its number. The code checks the
// number only where the mutation makes a difference, which records the tests that it can make fail: a condition that is
// true is not affected by being always true.
func instrument(text string, sites []site) string {
	return render(text, 0, len(text), sites)
}

// render returns the text from lo to hi. The sites are sorted, outer ones before inner ones.
func render(text string, lo, hi int, sites []site) string {
	var out strings.Builder
	at := lo
	for i := 0; i < len(sites); {
		outer := sites[i]
		same, inner, next := []site{outer}, []site(nil), i+1
		for ; next < len(sites) && sites[next].from < outer.to; next++ {
			if s := sites[next]; s.from == outer.from && s.to == outer.to {
				same = append(same, s)
			} else {
				inner = append(inner, s)
			}
		}
		out.WriteString(text[at:outer.from])
		out.WriteString(wrap(text, outer.from, outer.to, same, inner))
		at, i = outer.to, next
	}
	out.WriteString(text[at:hi])
	return out.String()
}

// wrap returns the text of the sites that cover the same range.
func wrap(text string, from, to int, same, inner []site) string {
	part := func(of [2]int) string {
		var within []site
		for _, s := range inner {
			if s.from >= of[0] && s.to <= of[1] {
				within = append(within, s)
			}
		}
		return render(text, of[0], of[1], within)
	}
	var base string
	for _, s := range same {
		switch s.shape {
		case shapeBorder:
			op := strings.TrimSpace(text[s.parts[0][1]:s.parts[1][0]])
			base = fmt.Sprintf("mutantBorder(%d, %q, %s, %s)", s.n, op, part(s.parts[0]), part(s.parts[1]))
		case shapePick:
			name := "mutantMax"
			if strings.HasPrefix(text[from:], "min") {
				name = "mutantMin"
			}
			base = fmt.Sprintf("%s(%d, %s, %s)", name, s.n, part(s.parts[0]), part(s.parts[1]))
		}
	}
	if base == "" {
		base = render(text, from, to, inner)
	}
	for _, s := range same {
		switch s.shape {
		case shapeFalse:
			base = fmt.Sprintf("(mutantNow != %[2]d && mutantHere(%[2]d, %[3]t) && (%[1]s) && !mutant(%[2]d))", base, s.n, s.calls())
		case shapeTrue:
			base = fmt.Sprintf("(mutantNow == %[2]d || !mutantHere(%[2]d, %[3]t) || (%[1]s) || mutant(%[2]d))", base, s.n, s.calls())
		case shapeStatement:
			base = fmt.Sprintf("if !mutant(%d) { %s }", s.n, base)
		}
	}
	return base
}

// hook is the code added to each package with mutations: base is the number of its first mutation, count the number of
// mutations.
func hook(name string, base, count int) string {
	return fmt.Sprintf(`package %[1]s

import (
	"cmp"
	"os"
	"strconv"
	"sync/atomic"
)

var mutantNow, mutantSeen = mutantOn(), mutantRecord()

func mutantOn() int { n, _ := strconv.Atoi(os.Getenv("LEASEHOLD_MUTANT")); return n }

func mutantRecord() *os.File {
	if name := os.Getenv("LEASEHOLD_MUTANT_SEEN"); name != "" {
		f, _ := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		return f
	}
	return nil
}

var mutantOnce, mutantReached [%[2]d]atomic.Bool

func mutant(n int) bool {
	if mutantSeen != nil && mutantOnce[n-%[3]d].CompareAndSwap(false, true) {
		mutantSeen.WriteString(strconv.Itoa(n) + "\n")
	}
	return n == mutantNow
}

// mutantHere records, as a negative number, that a test reaches a condition that calls a function: it may do more than decide.
func mutantHere(n int, calls bool) bool {
	if calls && mutantSeen != nil && mutantReached[n-%[3]d].CompareAndSwap(false, true) {
		mutantSeen.WriteString(strconv.Itoa(-n) + "\n")
	}
	return true
}

func mutantBorder[T cmp.Ordered](n int, op string, a, b T) bool {
	if a == b {
		return (len(op) == 2) != mutant(n)
	}
	return a < b == (op[0] == '<')
}

func mutantMax[T cmp.Ordered](n int, a, b T) T { return mutantPick(n, a, b, max(a, b)) }

func mutantMin[T cmp.Ordered](n int, a, b T) T { return mutantPick(n, a, b, min(a, b)) }

func mutantPick[T cmp.Ordered](n int, a, b, picked T) T {
	switch {
	case picked != b && mutant(n):
		return b
	case picked != a && mutant(n+1):
		return a
	}
	return picked
}
`, name, max(count, 1), base)
}

// scriptHook is the code added to the package of the scripts: it reads scripts from a directory instead of its own, and
// records which ones are called.
const scriptHook = `package luascripts

import (
	"embed"
	"os"
	"path/filepath"
	"sync"
)

func mutantRead(files embed.FS, name string) ([]byte, error) {
	if dir := os.Getenv("LEASEHOLD_MUTANT_SCRIPTS"); dir != "" {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			return text, nil
		}
	}
	return files.ReadFile(name)
}

var mutantCalls sync.Map

func mutantCalled(s *script) *script {
	if mutantSeen != nil {
		if _, before := mutantCalls.LoadOrStore(s.name, true); !before {
			mutantSeen.WriteString(s.name + ".lua\n")
		}
	}
	return s
}
`

// mark returns what a server logs when the statement of a mutation begins.
func (s site) mark() string { return fmt.Sprintf("@%s:%d", filepath.Base(s.file), s.start) }

// marked returns a script that logs which of its statements begin.
func marked(text string, sites []site) string {
	at := map[int]string{}
	for _, s := range sites {
		at[s.start] = s.mark()
	}
	for _, start := range slices.Backward(slices.Sorted(maps.Keys(at))) {
		text = text[:start] + "redis.log(3, '" + at[start] + "') " + text[start:]
	}
	return text
}
