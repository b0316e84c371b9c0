// Command mutants takes the guards away, one at a time, and says which test went red.
//
//	go run ./mutants                     every mutation whose result is not known yet
//	go run ./mutants -run mayPass        those whose file or guard matches
//	go run ./mutants -table              writes the table of docs/GUARDS.md
//	go run ./mutants -propose FILE       prints a list for a source file, to choose from
//
// The mutations are in the *.txt beside this file. A mutation is a text of a source file, and what stands there
// instead; no file is changed, as the Go tool reads the mutated one through -overlay. The results are kept in
// results.tsv, by the mutation and by the function that it is in: where neither changed it is not run again, so a run
// can be broken off at any time.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.run, "run", "", "only mutations whose file and guard match this `expression`")
	flag.StringVar(&o.lists, "lists", "proof/mutants/*.txt", "the `files` with the mutations")
	flag.StringVar(&o.results, "results", "proof/mutants/results.tsv", "the `file` with what is known")
	flag.DurationVar(&o.limit, "timeout", 5*time.Minute, "how `long` the tests of a mutation may take; one that takes longer is caught")
	flag.IntVar(&o.workers, "workers", 1, "how `many` at a time")
	flag.BoolVar(&o.table, "table", false, "run nothing; write the table of docs/GUARDS.md")
	flag.BoolVar(&o.again, "again", false, "run also those whose result is known")
	flag.BoolVar(&o.survivors, "survivors", false, "run those again that survived")
	flag.BoolVar(&o.late, "late", false, "run those again that were caught by a time-out")
	flag.StringVar(&o.propose, "propose", "", "run nothing; print mutations of this `file`")
	flag.Parse()
	if err := o.do(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct {
	run, lists, results    string
	propose                string
	limit                  time.Duration
	workers                int
	table                  bool
	again, survivors, late bool

	caught map[string]string // by file and guard: the test that went red before the file changed
}

// mutation is one change of one file, which some test should notice.
type mutation struct {
	list    string // where it stands, for errors
	file    string
	guard   string // what it takes away
	promise string // what is at stake
	old     string
	new     string
	near    []near // the tests to run, until one fails
	same    string // why no test can notice it; "" if one can
}

// near is some tests that are near.
type near struct{ pkg, run string }

// key names a mutation in the results: by its text, and by the function around it.
func (m mutation) key(source []byte) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{m.file, m.old, m.new, around(string(source), m.old)}, "\x00")))
	return fmt.Sprintf("%x", sum[:8])
}

// around returns the function of the source that has the text in it; all of the source if there is none.
func around(source, text string) string {
	at := strings.Index(source, text)
	if at < 0 {
		return source
	}
	for begin, end := range map[string]string{"\nfunc ": "\n}\n", "\nlocal function ": "\nend\n"} {
		first := strings.LastIndex(source[:at], begin)
		if first < 0 {
			continue
		}
		if last := strings.Index(source[first:], end); last >= 0 && first+last >= at {
			return source[first : first+last]
		}
	}
	return source
}

// apply returns the source with the mutation in it.
func (m mutation) apply(source []byte) ([]byte, error) {
	switch n := strings.Count(string(source), m.old); {
	case n == 0:
		return nil, fmt.Errorf("%s: %s: the text is not in %s any more:\n%s", m.list, m.guard, m.file, m.old)
	case n > 1:
		return nil, fmt.Errorf("%s: %s: the text is %d times in %s; give more of it:\n%s", m.list, m.guard, n, m.file, m.old)
	}
	return []byte(strings.Replace(string(source), m.old, m.new, 1)), nil
}

// read reads a list of mutations:
//
//	file internal/place/handover.go    what follows is about this file,
//	near ./internal/place .            and these tests are near: a package, and an expression for -run
//	near ./internal/session ^TestGuard if those do not notice it, these are run
//	promise no two holders             is at stake
//	guard mayPass: not closed          begins a mutation
//	same  nobody can tell              if no test can notice it: why
//	-	text                             what goes, in one line or several, with its tabs
//	+	text                             what stands there instead; missing if nothing does
//
// Lines that begin with # are comments.
func read(name string) (all []mutation, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var now mutation // what the next mutation has
	fresh := true    // the next near begins a new list
	lines := bufio.NewScanner(f)
	var old, new []string
	flush := func() {
		if n := len(all); n > 0 && len(old) > 0 {
			all[n-1].old, all[n-1].new = strings.Join(old, "\n"), strings.Join(new, "\n")
		}
		old, new = nil, nil
	}
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "", line[0] == '#':
		case line[0] == '-':
			old = append(old, line[1:])
		case line[0] == '+':
			new = append(new, line[1:])
		case word == "file":
			now.file, now.near, fresh = rest, nil, true
		case word == "near":
			if !fresh {
				now.near, fresh = nil, true
			}
			pkg, run, _ := strings.Cut(rest, " ")
			now.near = append(slices.Clone(now.near), near{pkg, run})
		case word == "promise":
			now.promise = rest
		case word == "guard":
			flush()
			fresh = false
			m := now
			m.list, m.guard = fmt.Sprintf("%s:%d", name, n), rest
			all = append(all, m)
		case word == "same" && len(all) > 0:
			all[len(all)-1].same = strings.TrimSpace(rest)
		default:
			return nil, fmt.Errorf("%s:%d: not understood: %q", name, n, line)
		}
	}
	flush()
	for _, m := range all {
		if m.old == "" || m.file == "" || m.promise == "" || len(m.near) == 0 || m.old == m.new {
			return nil, fmt.Errorf("%s: %s: a mutation needs a file, a promise, tests that are near, and a text that changes", m.list, m.guard)
		}
	}
	return all, lines.Err()
}

// readAll reads all lists.
func readAll(pattern string) (all []mutation, err error) {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		some, err := read(name)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no mutations in %s; run it at the root of the repository", pattern)
	}
	return all, nil
}

// result is what became of a mutation.
type result struct {
	what string // caught, survived, or broken: it does not compile
	test string // that noticed it
}

// line is the result as it stands in the file.
func (r result) line(key string) string { return fmt.Sprintf("%s\t%s\t%s\n", key, r.what, r.test) }

// known are the results, by key.
type known struct {
	mu   sync.Mutex
	name string
	of   map[string]result
}

func load(name string) (*known, error) {
	k := &known{name: name, of: make(map[string]result)}
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) >= 2 {
			k.of[f[0]] = result{f[1], strings.Join(f[2:], "")}
		}
	}
	return k, nil
}

func (k *known) get(key string) (r result, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok = k.of[key]
	return r, ok
}

// put keeps a result at once, as the run may be broken off. It adds a line, and of two lines with the same key the later one counts:
// so runs can go on side by side.
func (k *known) put(key string, r result) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of[key] = r
	f, err := os.OpenFile(k.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(r.line(key))
	return errors.Join(err, f.Close())
}

// saveLocked writes the results that needed is about, in order.
func (k *known) saveLocked(needed map[string]bool) error {
	var lines []string
	for key, r := range k.of {
		if needed[key] {
			lines = append(lines, r.line(key))
		}
	}
	slices.Sort(lines)
	return os.WriteFile(k.name, []byte(strings.Join(lines, "")), 0o644)
}

func (o options) do(ctx context.Context) error {
	if o.propose != "" {
		return propose(o.propose)
	}
	all, err := readAll(o.lists)
	if err != nil {
		return err
	}
	results, err := load(o.results)
	if err != nil {
		return err
	}
	if o.table {
		return o.write(all, results)
	}
	if o.caught, err = caughtBefore(page); err != nil {
		return err
	}
	wanted, err := regexp.Compile(o.run)
	if err != nil {
		return err
	}
	queue := make(chan mutation)
	var workers sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	for range max(o.workers, 1) {
		workers.Go(func() {
			for m := range queue {
				if err := o.one(ctx, m, results); err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, m := range all {
		if wanted.MatchString(m.file + " " + m.guard) {
			queue <- m
		}
	}
	close(queue)
	workers.Wait()
	return errors.Join(failed...)
}

// one runs one mutation, if its result is not known.
func (o options) one(ctx context.Context, m mutation, results *known) error {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return err
	}
	mutated, err := m.apply(source)
	if err != nil {
		return err
	}
	key := m.key(source)
	r, ok := results.get(key)
	if !ok || o.again || o.survivors && r.what == "survived" && m.same == "" || o.late && strings.HasSuffix(r.test, timeOut) {
		began := time.Now()
		if r, err = o.try(ctx, m, mutated); err != nil {
			return err
		}
		if err := results.put(key, r); err != nil {
			return err
		}
		fmt.Printf("%-8s %-50s %s: %s (%.0f s)\n", r.what, r.test, m.file, m.guard, time.Since(began).Seconds())
	}
	switch {
	case r.what == "broken":
		return fmt.Errorf("%s: %s: it does not compile", m.list, m.guard)
	case r.what == "survived" && m.same == "":
		return fmt.Errorf("%s: %s: no test noticed it", m.list, m.guard)
	case r.what == "caught" && m.same != "":
		return fmt.Errorf("%s: %s: %s noticed it, though the list says that no test can", m.list, m.guard, r.test)
	}
	return nil
}

// try runs the tests that are near, until one fails: first the one that went red before the file changed.
func (o options) try(ctx context.Context, m mutation, mutated []byte) (result, error) {
	dir, err := os.MkdirTemp("", "leasehold-mutant-")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir)
	file, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	real, err := filepath.Abs(m.file)
	if err != nil {
		return result{}, err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {real: file}})
	if err == nil {
		err = errors.Join(os.WriteFile(file, mutated, 0o644), os.WriteFile(overlay, text, 0o644))
	}
	if err != nil {
		return result{}, err
	}
	tests := m.near
	if before := o.caught[m.file+" "+m.guard]; before != "" {
		tests = nil
		for _, n := range m.near {
			if one := (near{n.pkg, "^" + before + "$"}); !slices.Contains(tests, one) {
				tests = append(tests, one)
			}
		}
		tests = append(tests, m.near...)
	}
	var busy error // not known
	for _, n := range tests {
		within, cancel := context.WithTimeout(ctx, 3*o.limit)
		test := exec.CommandContext(within, "go", "test", "-overlay", overlay, "-vet=off", "-ldflags=-s -w", "-count=1", "-failfast", "-v", "-timeout", o.limit.String(), "-run", n.run, n.pkg)
		test.Env = append(os.Environ(), "RAPID_NOFAILFILE=true") // else a history that fails is kept beside the tests
		out, err := test.CombinedOutput()
		brokenOff := within.Err()
		cancel()
		if err == nil {
			continue
		}
		if brokenOff != nil { // not by the limit of go test, so the machine was too busy to build it
			return result{}, fmt.Errorf("%s: %s: broken off: %w", m.list, m.guard, brokenOff)
		}
		if strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "[setup failed]") {
			return result{what: "broken", test: firstLine(string(out))}, nil
		}
		red := culprit(string(out))
		if name, late := strings.CutSuffix(red, timeOut); late && n.run != "^"+name+"$" {
			// The machine may have been too busy for all tests that are near. The one that was under way is run alone.
			alone, err := o.try(ctx, mutation{list: m.list, file: m.file, guard: m.guard, near: []near{{n.pkg, "^" + name + "$"}}}, mutated)
			if err != nil || alone.what == "caught" {
				return alone, err
			}
			busy = fmt.Errorf("%s: %s: the tests of %s took longer than %v, and %s passes alone; give them longer", m.list, m.guard, n.pkg, o.limit, name)
			continue
		}
		return result{what: "caught", test: red}, nil
	}
	return result{what: "survived"}, busy
}

const timeOut = " (time-out)"

var (
	failure = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	running = regexp.MustCompile(`running tests:\s+(\S+)`)
	inTest  = regexp.MustCompile(`(?m)\.(Test[A-Za-z0-9_]+)[.(]`)
	begun   = regexp.MustCompile(`(?m)^=== (?:RUN|CONT|NAME) +(Test[A-Za-z0-9_]+)`)
)

// culprit returns the test that failed.
func culprit(out string) string {
	if all := failure.FindAllStringSubmatch(out, -1); all != nil {
		name, _, _ := strings.Cut(all[0][1], "/")
		return name
	}
	if one := running.FindStringSubmatch(out); one != nil {
		name, _, _ := strings.Cut(one[1], "/")
		return name + timeOut
	}
	if one := inTest.FindStringSubmatch(out); one != nil {
		return one[1] + " (panic)"
	}
	if all := begun.FindAllStringSubmatch(out, -1); all != nil { // a goroutine that the test started panics
		return all[len(all)-1][1] + " (panic)"
	}
	return "the tests end"
}

func firstLine(out string) string {
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "#") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
