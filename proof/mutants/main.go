// Command mutants changes the code in one place at a time and reports which changes no test detects.
//
//	go run ./proof/mutants                            all scripts, and the engine
//	go run ./proof/mutants -since main                lines that differ from main
//	go run ./proof/mutants luascripts internal/lockstate  these directories or files
//	go run ./proof/mutants -list luascripts           list the mutations; run no test
//
// The mutations come from the syntax tree. The operators are:
//
//	never    a condition is false
//	always   a condition is true; loops are not mutated
//	operand  one side of "and" or "or", or one argument of min or max, is removed
//	border   a comparison has the opposite result when both sides are equal
//	removed  a call or an assignment is not executed; in Go, assignments to variables are not mutated
//
// No file is changed. A test binary contains all mutations of the Go code, and reads a mutated script from a file, so
// it is built once. The tests of the mutated package run first, then the tests of the internal packages that import it,
// and with -all the tests of all packages that import it. Only tests in which the mutation makes a difference run, until
// one fails. A failed test counts only if it fails again when it runs alone, because a busy machine can fail a test too.
//
// If no test can detect a mutation, a note on its line, or on a separate line before it, gives the reason:
//
//	if wake { // mutant: always, operand 2: another wake-up does no harm
//
// Mutations that change only speed, or the text of an error or a log message, need no test either: their reason is
// "speed" or "text".
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// engine lists what a run without arguments mutates.
var engine = []string{
	"luascripts", "internal/lockstate", "internal/session", "internal/command", "internal/pubsub", "internal/retry", "internal/slots", "internal/registry",
	"watchdog", "multilock",
}

func main() {
	var o options
	flag.StringVar(&o.since, "since", "", "only lines that differ from this `commit`")
	flag.StringVar(&o.match, "match", "", "only mutations whose position and operator match this `expression`, such as 'rw_.*never'")
	flag.BoolVar(&o.list, "list", false, "list the mutations and run no test")
	flag.BoolVar(&o.equivalent, "equivalent", false, "also run mutations with a reason; a test that detects one refutes the reason")
	flag.BoolVar(&o.own, "own", false, "only run the tests of the mutated package, not of packages that import it")
	flag.BoolVar(&o.all, "all", false, "also run the tests of packages outside internal that import the mutated one")
	flag.DurationVar(&o.budget, "budget", 0, "maximum `duration` of the run; it reports the mutations that were not run (default no limit)")
	flag.IntVar(&o.workers, "workers", 2, "`number` of tests that run at a time")
	flag.StringVar(&o.strict, "strict", ".", "exit with code 1 if a mutation survives in a file that matches this `expression`")
	flag.StringVar(&o.cache, "cache", defaultCache(), "the `directory` that stores which test reaches which mutation")
	flag.Parse()
	o.args = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	failed, err := o.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func defaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "leasehold-mutants")
}

type options struct {
	since, match, strict, cache string
	list, equivalent, own, all  bool
	budget                      time.Duration
	workers                     int
	args                        []string
}

func (o options) run(ctx context.Context) (failed bool, err error) {
	wanted, err := regexp.Compile(o.match)
	if err != nil {
		return false, err
	}
	strict, err := regexp.Compile(o.strict)
	if err != nil {
		return false, err
	}
	p, err := load(o.args)
	if err != nil {
		return false, err
	}
	if o.since != "" {
		changed, err := changes(o.since)
		if err != nil {
			return false, err
		}
		p.keep(func(s site) bool { return changed.touches(s) })
	}
	p.number()
	var queue, equivalent []site
	for _, s := range p.sites {
		switch {
		case !wanted.MatchString(s.String()):
		case s.reason != "" && !o.equivalent:
			equivalent = append(equivalent, s)
		default:
			queue = append(queue, s)
		}
	}
	if o.list {
		for _, s := range queue {
			fmt.Println(s, "|", s.source, s.reason)
		}
		return false, nil
	}
	results := map[int]result{}
	for _, s := range equivalent {
		results[s.n] = result{what: "equivalent"}
	}
	if len(queue) > 0 {
		if err := o.runAll(ctx, p, queue, results); err != nil {
			return false, err
		}
	}
	return report(p.sites, results, strict), nil
}

// runAll runs the tests for each mutation of the queue until the budget is used up, and adds the outcomes to results.
func (o options) runAll(ctx context.Context, p *program, queue []site, results map[int]result) error {
	r, err := newRunner(ctx, p, o)
	if err != nil {
		return err
	}
	defer r.close()
	deadline := time.Now().Add(cmp.Or(o.budget, 1000*time.Hour))
	var mu sync.Mutex
	var workers sync.WaitGroup
	work := make(chan site)
	var fault error
	for range max(o.workers, 1) {
		workers.Go(func() {
			for s := range work {
				res := result{what: "not run"}
				var err error
				if time.Now().Before(deadline) && ctx.Err() == nil {
					began := time.Now()
					if res, err = r.one(ctx, s); err != nil {
						res.what = "not run"
					}
					if took := time.Since(began); res.what == "survived" || took > 10*time.Second {
						fmt.Fprintf(os.Stderr, "%-10s %s | %s %s (%.0f s)\n", res.what, s, short(s.source), res.test, took.Seconds())
					}
				}
				mu.Lock()
				if err != nil && ctx.Err() == nil {
					fault = err
				}
				results[s.n] = res
				mu.Unlock()
			}
		})
	}
	for i, s := range queue {
		if i > 0 && i%100 == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d\n", i, len(queue))
		}
		work <- s
	}
	close(work)
	workers.Wait()
	return fault
}

func (s site) String() string { return fmt.Sprintf("%s:%d %s", s.file, s.line, s.op) }

func short(text string) string {
	if len(text) > 90 {
		return text[:90] + "…"
	}
	return text
}

// report prints the outcomes of the mutations.
func report(sites []site, results map[int]result, strict *regexp.Regexp) (failed bool) {
	columns := []string{"killed", "equivalent", "survived", "not run", "does not compile"}
	count := map[[2]string]int{}
	for _, s := range sites {
		r, ok := results[s.n]
		if !ok {
			continue
		}
		if s.reason != "" && r.what == "killed" {
			fmt.Printf("refuted: %s: %s detects it, but the note says: %s\n", s, r.test, s.reason)
			failed = true
		} else if s.reason != "" && r.what == "survived" {
			r.what = "equivalent"
		}
		if r.what == "survived" {
			fmt.Printf("survived: %s | %s %s\n", s, short(s.source), r.test)
			failed = failed || strict.MatchString(s.file)
		}
		op, _, _ := strings.Cut(s.op, " ")
		dir := filepath.Dir(s.file)
		for _, row := range []string{"operator " + op, "package " + dir, "total"} {
			count[[2]string{row, r.what}]++
			count[[2]string{row, ""}]++
		}
	}
	rows := map[string]bool{}
	for k := range count {
		rows[k[0]] = true
	}
	fmt.Printf("\n| %-26s | mutations |", "")
	for _, c := range columns {
		fmt.Printf(" %s |", c)
	}
	fmt.Printf("\n|---|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		fmt.Printf("| %-26s | %9d |", row, count[[2]string{row, ""}])
		for _, c := range columns {
			fmt.Printf(" %*d |", len(c), count[[2]string{row, c}])
		}
		fmt.Println()
	}
	return failed
}

// program is the code to mutate.
type program struct {
	text  map[string]string // by file
	sites []site
}

// load reads files, or all files of directories, and finds the mutations.
func load(args []string) (*program, error) {
	if len(args) == 0 {
		args = engine
	}
	p := &program{text: map[string]string{}}
	for _, arg := range args {
		arg = filepath.Clean(arg)
		info, err := os.Stat(arg)
		if err != nil {
			return nil, fmt.Errorf("%w; run it in the root of the repository", err)
		}
		files := []string{arg}
		if info.IsDir() {
			scripts, _ := filepath.Glob(filepath.Join(arg, "*.lua"))
			code, _ := filepath.Glob(filepath.Join(arg, "*.go"))
			files = append(scripts, code...)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			parse := parseGo
			if strings.HasSuffix(file, ".lua") {
				parse = parseLua
			}
			sites, err := parse(file, string(text))
			if err != nil {
				return nil, err
			}
			place(sites, string(text))
			p.text[file] = string(text)
			p.sites = append(p.sites, sites...)
		}
	}
	return p, nil
}

func (p *program) keep(which func(site) bool) {
	p.sites = slices.DeleteFunc(p.sites, func(s site) bool { return !which(s) })
}

// number numbers the mutations, with consecutive numbers in each package.
func (p *program) number() {
	slices.SortStableFunc(p.sites, func(a, b site) int {
		return cmp.Or(cmp.Compare(filepath.Dir(a.file), filepath.Dir(b.file)), cmp.Compare(a.file, b.file))
	})
	for i := range p.sites {
		p.sites[i].n = i + 1
	}
}

// changed has the ranges of changed lines, by file.
type changed map[string][][2]int

var hunk = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)

// changes returns the lines changed since HEAD's merge base with since, including uncommitted ones.
func changes(since string) (changed, error) {
	base := since
	if out, err := exec.Command("git", "merge-base", since, "HEAD").Output(); err == nil {
		base = strings.TrimSpace(string(out))
	}
	out, err := exec.Command("git", "diff", "-U0", "--no-color", "--no-ext-diff", base, "--").Output()
	if err != nil {
		return nil, fmt.Errorf("git diff %s: %w", base, err)
	}
	c := changed{}
	file := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			file = name
		} else if m := hunk.FindStringSubmatch(line); m != nil {
			first, _ := strconv.Atoi(m[1])
			count := 1
			if m[2] != "" {
				count, _ = strconv.Atoi(m[2])
			}
			if count == 0 { // lines were deleted between these two
				count = 2
			}
			c[file] = append(c[file], [2]int{first, first + count - 1})
		}
	}
	return c, nil
}

func (c changed) touches(s site) bool {
	return slices.ContainsFunc(c[s.file], func(of [2]int) bool { return s.line <= of[1] && s.ends >= of[0] })
}
