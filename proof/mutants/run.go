package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// result is the outcome of a mutation.
type result struct {
	what string // killed, survived, does not compile, not run
	test string // the test that detects it; if it survived, how many tests ran
}

// runner runs tests with mutations.
type runner struct {
	o       options
	p       *program
	dir     string
	broken  map[int]bool // mutations that do not compile
	overlay string
	imports map[string][]string // by package: the packages that import it, itself first

	mu       sync.Mutex
	binaries map[string]*binary  // by package
	killers  map[string][]string // by file: the tests that detected a mutation, the latest first
}

// binary is the test binary of one package, with all mutations in it.
type binary struct {
	once  sync.Once
	err   error
	pkg   string
	path  string
	tests map[string]*test
}

// test is one test and the code that it reaches.
type test struct {
	Took  time.Duration
	Seen  map[string]bool // numbers of mutations, marks of scripts, and names of scripts
	Fails bool            // without a mutation
}

// subjects maps scripts, and the code that calls them, to the package whose tests cover them, if that is not
// luascripts.
var subjects = []struct{ prefix, pkg string }{
	{"fence_", "fence"}, {"semaphore_", "semaphore"}, {"latch_", "latch"}, {"waitgroup_", "latch"}, {"limit_", "ratelimit"}, {"window_", "ratelimit"}, {"bloom_", "bloom"}, {"leader_", "leader"}, {"client_", "internal/registry"}, {"memory_", "client"}, {"server_", "client"},
}

func newRunner(ctx context.Context, p *program, o options) (*runner, error) {
	dir, err := os.MkdirTemp("", "leasehold-mutants-")
	if err != nil {
		return nil, err
	}
	r := &runner{o: o, p: p, dir: dir, broken: map[int]bool{}, binaries: map[string]*binary{}, killers: map[string][]string{}}
	if r.imports, err = importers(ctx); err != nil {
		return nil, err
	}
	for { // until the remaining mutations compile
		if err := r.lay(); err != nil {
			return nil, err
		}
		more, err := r.compile(ctx)
		if err != nil {
			return nil, err
		}
		if !more {
			return r, nil
		}
	}
}

func (r *runner) close() { os.RemoveAll(r.dir) }

// importers returns, for each package of this module, the package itself and those that import it: their tests are the
// near ones.
func importers(ctx context.Context) (map[string][]string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.ImportPath}} {{.Module.Path}} {{join .Imports \" \"}}", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		of := func(path string) string {
			return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(path, words[1]), "/"), ".")
		}
		me := of(words[0])
		all[me] = append([]string{me}, all[me]...)
		for _, other := range words[2:] {
			if strings.HasPrefix(other, words[1]+"/") {
				all[of(other)] = append(all[of(other)], me)
			}
		}
	}
	return all, nil
}

// near returns the packages whose tests are near a mutation.
func (r *runner) near(s site) []string {
	dir := filepath.Dir(s.file)
	if r.o.own {
		return []string{dir}
	}
	near := []string{dir}
	if dir == "luascripts" {
		for _, subject := range subjects {
			if strings.HasPrefix(strings.TrimPrefix(filepath.Base(s.file), "include_"), strings.TrimSuffix(subject.prefix, "_")) {
				near = append(near, subject.pkg)
			}
		}
	}
	if filepath.Ext(s.file) == ".lua" {
		return near
	}
	for _, other := range r.imports[dir] {
		if (r.o.all || strings.HasPrefix(other, "internal/")) && !slices.Contains(near, other) && !strings.HasSuffix(other, "test") {
			near = append(near, other)
		}
	}
	return near
}

// scriptUses redirects the reading of scripts to scriptHook, which also records calls.
var scriptUses = strings.NewReplacer(`files.ReadFile(file + ".lua")`, `mutantRead(files, file + ".lua")`, ".Script(s.text)", ".Script(mutantCalled(s).text)", ".Sha1(s.sha)", ".Sha1(mutantCalled(s).sha)")

// layScripts writes the scripts with marks, and a server that logs to a file shared by all servers of a test.
func (r *runner) layScripts(byFile map[string][]site) error {
	for file, sites := range byFile {
		if filepath.Ext(file) != ".lua" {
			continue
		}
		if err := os.WriteFile(filepath.Join(r.dir, filepath.Base(file)), []byte(marked(r.p.text[file], sites)), 0o600); err != nil {
			return err
		}
	}
	server := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" --logfile \"$LEASEHOLD_MUTANT_SEEN\"\n", cmp.Or(os.Getenv("LEASEHOLD_REDIS_SERVER"), "redis-server"))
	return os.WriteFile(filepath.Join(r.dir, "redis-server"), []byte(server), 0o700)
}

// lay writes the mutated files, and the overlay through which the Go tool reads them.
func (r *runner) lay() error {
	replace := map[string]string{}
	put := func(file, text string) error {
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		name := filepath.Join(r.dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(file)))
		replace[abs] = name
		return os.WriteFile(name, []byte(text), 0o600)
	}
	type span struct{ first, last int }
	spans := map[string]span{}
	byFile := map[string][]site{}
	for _, s := range r.p.sites {
		dir := filepath.Dir(s.file)
		if sp, ok := spans[dir]; !ok {
			spans[dir] = span{s.n, s.n}
		} else {
			spans[dir] = span{sp.first, s.n}
		}
		if !r.broken[s.n] {
			byFile[s.file] = append(byFile[s.file], s)
		}
	}
	texts := map[string]string{}
	for file, sites := range byFile {
		if filepath.Ext(file) == ".go" {
			texts[file] = instrument(r.p.text[file], sites)
		}
	}
	if err := r.layScripts(byFile); err != nil {
		return err
	}
	for dir, sp := range spans {
		code, _ := filepath.Glob(filepath.Join(dir, "*.go"))
		if len(code) == 0 {
			continue
		}
		name := ""
		for _, file := range code {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			name = packageName(string(text))
			if dir == "luascripts" {
				mutated, ok := texts[file]
				if !ok {
					mutated = string(text)
				}
				if used := scriptUses.Replace(mutated); used != string(text) {
					texts[file] = used
				}
			}
		}
		if err := put(filepath.Join(dir, "zz_mutants.go"), hook(name, sp.first, sp.last-sp.first+1)); err != nil {
			return err
		}
		if dir == "luascripts" {
			if err := put(filepath.Join(dir, "zz_mutants_scripts.go"), scriptHook); err != nil {
				return err
			}
			if text := texts["luascripts/script.go"]; !strings.Contains(text, "mutantRead(") || strings.Count(text, "mutantCalled(") != 2 {
				return errors.New("luascripts/script.go reads or calls scripts in an unexpected way")
			}
		}
	}
	for file, text := range texts {
		if err := put(file, text); err != nil {
			return err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	r.overlay = filepath.Join(r.dir, "overlay.json")
	return os.WriteFile(r.overlay, text, 0o600)
}

func packageName(text string) string {
	m := regexp.MustCompile(`(?m)^package (\w+)`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}

var compileError = regexp.MustCompile(`(?m)^(?:\./)?(\S+\.go):(\d+):\d+: (.*)$`)

// compile compiles the packages with mutations, and removes mutations that do not compile.
func (r *runner) compile(ctx context.Context) (more bool, err error) {
	dirs := map[string]bool{}
	for _, s := range r.p.sites {
		dirs["./"+filepath.Dir(s.file)] = true
	}
	args := append([]string{"build", "-overlay", r.overlay}, slices.Sorted(maps.Keys(dirs))...)
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err == nil {
		return false, nil
	}
	for _, m := range compileError.FindAllStringSubmatch(string(out), -1) {
		line, _ := strconv.Atoi(m[2])
		for _, s := range r.p.sites {
			if s.line <= line && s.ends >= line && filepath.Ext(s.file) == ".go" && strings.HasSuffix(filepath.Clean(m[1]), s.file) && !r.broken[s.n] {
				r.broken[s.n], more = true, true
			}
		}
	}
	if !more {
		return false, fmt.Errorf("the packages do not compile with mutations in them:\n%s", out)
	}
	return true, nil
}

// binary returns the test binary of a package, built and measured.
func (r *runner) binary(ctx context.Context, pkg string) (*binary, error) {
	r.mu.Lock()
	b := r.binaries[pkg]
	if b == nil {
		b = &binary{pkg: pkg}
		r.binaries[pkg] = b
	}
	r.mu.Unlock()
	b.once.Do(func() { b.err = r.build(ctx, b) })
	return b, b.err
}

func (r *runner) build(ctx context.Context, b *binary) error {
	b.path = filepath.Join(r.dir, strings.ReplaceAll(b.pkg, "/", "_")+".test")
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", r.overlay, "-o", b.path, "./"+b.pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test -c ./%s: %w\n%s", b.pkg, err, out)
	}
	if _, err := os.Stat(b.path); err != nil {
		return nil // it has no tests
	}
	text, err := os.ReadFile(b.path)
	if err != nil {
		return err
	}
	// The scripts are embedded in the binary, but not which of their statements have marks.
	of := sha256.New()
	of.Write(text)
	for _, s := range r.p.sites {
		if filepath.Ext(s.file) == ".lua" {
			io.WriteString(of, s.mark())
		}
	}
	cached := filepath.Join(r.o.cache, fmt.Sprintf("%x", of.Sum(nil)))
	if known, err := os.ReadFile(cached); err == nil && json.Unmarshal(known, &b.tests) == nil {
		return nil
	}
	list := r.command(ctx, b, "-test.list", "^Test|^Example")
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("%s: list the tests: %w", b.pkg, err)
	}
	b.tests = map[string]*test{}
	work := make(chan string)
	var workers sync.WaitGroup
	var mu sync.Mutex
	for range max(r.o.workers, 1) {
		workers.Go(func() {
			for name := range work {
				t := r.measure(ctx, b, name)
				mu.Lock()
				b.tests[name] = t
				mu.Unlock()
			}
		})
	}
	for name := range strings.FieldsSeq(string(names)) {
		if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example") {
			work <- name
		}
	}
	close(work)
	workers.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if text, err := json.Marshal(b.tests); err == nil && os.MkdirAll(r.o.cache, 0o700) == nil {
		_ = os.WriteFile(cached, text, 0o600)
	}
	return nil
}

// measure runs a test without any mutation, and returns how long it takes and what it reaches.
func (r *runner) measure(ctx context.Context, b *binary, name string) *test {
	seen := filepath.Join(r.dir, b.pkg2()+"_"+name+".seen")
	t := &test{Seen: map[string]bool{}}
	for _, marks := range [][]string{{"LEASEHOLD_MUTANT_SCRIPTS=" + r.dir, "LEASEHOLD_REDIS_SERVER=" + filepath.Join(r.dir, "redis-server")}, nil} {
		c := r.command(ctx, b, "-test.run", "^"+name+"$", "-test.timeout", "3m")
		c.Env = append(append(c.Env, "LEASEHOLD_MUTANT_SEEN="+seen), marks...)
		began := time.Now()
		err := run(c)
		t.Took, t.Fails = time.Since(began), err != nil
		if err == nil {
			break // otherwise the marks in the scripts may have made it fail
		}
	}
	readSeen(seen, t.Seen)
	if t.Fails {
		fmt.Fprintf(os.Stderr, "%s: %s fails without a mutation and is skipped\n", b.pkg, name)
	}
	return t
}

// readSeen adds to all the contents of a test's file: numbers of mutations, marks of scripts, and the scripts that were
// called without leaving marks, as on a server that does not log.
func readSeen(file string, all map[string]bool) {
	f, err := os.Open(file)
	if err != nil {
		return // it reached none
	}
	defer f.Close()
	var called []string
	logs := map[string]bool{} // scripts that left marks
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if _, mark, ok := strings.Cut(line, "@"); ok {
			all["@"+mark] = true
			script, _, _ := strings.Cut(mark, ":")
			logs[script] = true
		} else if strings.HasSuffix(line, ".lua") {
			called = append(called, line)
		} else if _, err := strconv.Atoi(line); err == nil { // other lines are unrelated server output
			all[line] = true
		}
	}
	for _, script := range called {
		if !logs[script] {
			all[script] = true
		}
	}
	_ = os.Remove(file)
}

func (b *binary) pkg2() string { return strings.ReplaceAll(b.pkg, "/", "_") }

// command runs the tests of a package. A mutation can cause an infinite loop, even in a script on a server that the
// test started, so memory is limited and leftover processes are killed with the tests.
func (r *runner) command(ctx context.Context, b *binary, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -v 4194304; exec "$0" "$@"`, b.path}, args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.Dir = b.pkg
	c.Env = append(os.Environ(), "LEASEHOLD_REQUIRE_REDIS=1", "RAPID_NOFAILFILE=true")
	c.WaitDelay = time.Second
	return c
}

// run runs a command to its end, and then kills the processes that it started.
func run(c *exec.Cmd) error {
	err := c.Run()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	return err
}

// reached returns the records by which a test shows that it reaches a mutation; in Go, that the mutation makes a
// difference there.
func (r *runner) reached(s site) []string {
	if filepath.Ext(s.file) == ".go" {
		names := []string{strconv.Itoa(s.n)}
		if s.calls() {
			names = append(names, strconv.Itoa(-s.n))
		}
		return names
	}
	return append(users(r.p, filepath.Base(s.file)), s.mark())
}

var includes = regexp.MustCompile(`(?m)^-- (?:include|later): (.*)$`)

// users returns a script and the scripts that include it.
func users(p *program, name string) []string {
	all, _ := filepath.Glob("luascripts/*.lua")
	has := map[string][]string{}
	for _, file := range all {
		text, ok := p.text[file]
		if !ok {
			bytes, _ := os.ReadFile(file)
			text = string(bytes)
		}
		for _, m := range includes.FindAllStringSubmatch(text, -1) {
			for other := range strings.SplitSeq(m[1], ", ") {
				other = "include_" + strings.TrimSpace(other) + ".lua"
				has[other] = append(has[other], filepath.Base(file))
			}
		}
	}
	result := []string{name}
	for i := 0; i < len(result); i++ {
		for _, user := range has[result[i]] {
			if !slices.Contains(result, user) {
				result = append(result, user)
			}
		}
	}
	return result
}

// one runs the tests near a mutation until one detects it.
func (r *runner) one(ctx context.Context, s site) (result, error) {
	if r.broken[s.n] {
		return result{what: "does not compile"}, nil
	}
	env := []string{"LEASEHOLD_MUTANT=" + strconv.Itoa(s.n)}
	if filepath.Ext(s.file) == ".lua" {
		dir := filepath.Join(r.dir, strconv.Itoa(s.n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return result{}, err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(s.file)), []byte(s.mutated(r.p.text[s.file])), 0o600); err != nil {
			return result{}, err
		}
		env = []string{"LEASEHOLD_MUTANT_SCRIPTS=" + dir}
	}
	ran, unsure := 0, ""
	for _, pkg := range r.near(s) {
		b, err := r.binary(ctx, pkg)
		if err != nil {
			return result{}, err
		}
		names := r.pick(b, s)
		ran += len(names)
		for many := 4; len(names) > 0; many *= 4 { // usually one of the first detects it
			some := b.first(names, many)
			names = names[len(some):]
			for len(some) > 0 {
				red, err := r.fails(ctx, b, env, some)
				if err != nil {
					return result{}, err
				}
				if red == "" {
					break
				}
				again, err := r.fails(ctx, b, env, []string{red})
				if err != nil {
					return result{}, err
				}
				if again != "" {
					r.mu.Lock()
					k := slices.DeleteFunc(r.killers[s.file], func(t string) bool { return t == red })
					r.killers[s.file] = append([]string{red}, k...)
					r.mu.Unlock()
					return result{what: "killed", test: red}, nil
				}
				unsure = "; " + red + " failed once"
				some = slices.DeleteFunc(slices.Clone(some), func(t string) bool { return t == red })
			}
		}
	}
	return result{what: "survived", test: fmt.Sprintf("(%d tests ran%s)", ran, unsure)}, nil
}

// first returns the first many of names, but not much more than can run in half a minute: an endless run is only
// detected after five times as long.
func (b *binary) first(names []string, many int) []string {
	var took time.Duration
	for i, name := range names[:min(len(names), many)] {
		if took += b.tests[name].Took; took > 30*time.Second {
			return names[:i+1]
		}
	}
	return names[:min(len(names), many)]
}

// pick returns the tests that reach a mutation: first those in which it makes a difference, among these first those
// that detected others in the same file, then the fastest.
func (r *runner) pick(b *binary, s site) []string {
	by := r.reached(s)
	var names []string
	for name, t := range b.tests {
		if !t.Fails && slices.ContainsFunc(by, func(n string) bool { return t.Seen[n] }) {
			names = append(names, name)
		}
	}
	r.mu.Lock()
	killers := slices.Clone(r.killers[s.file])
	r.mu.Unlock()
	rank := func(name string) int {
		if filepath.Ext(s.file) == ".go" && !b.tests[name].Seen[by[0]] {
			return 9
		}
		if i := slices.Index(killers, name); i >= 0 && i < 8 {
			return i
		}
		return 8
	}
	slices.SortFunc(names, func(x, y string) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(b.tests[x].Took, b.tests[y].Took), cmp.Compare(x, y))
	})
	return names
}

var (
	failure = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	running = regexp.MustCompile(`running tests:\s+(\S+)`)
	begun   = regexp.MustCompile(`(?m)^=== (?:RUN|CONT|NAME) +((?:Test|Example)\w+)`)
)

// fails runs tests and returns the first one that fails; empty if none does. A test that takes far longer than without
// the mutation fails, too. The caller then repeats it alone, with the same limit, because the machine may just have
// been busy.
func (r *runner) fails(ctx context.Context, b *binary, env, names []string) (string, error) {
	limit := 10 * time.Second
	for _, name := range names {
		limit += 5 * b.tests[name].Took
	}
	c := r.command(ctx, b, "-test.run", "^("+strings.Join(names, "|")+")$", "-test.failfast", "-test.v", "-test.timeout", limit.String())
	c.Env = append(c.Env, env...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := run(c)
	if err == nil {
		return "", nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return "", err
	}
	for _, re := range []*regexp.Regexp{failure, running} {
		if m := re.FindStringSubmatch(out.String()); m != nil {
			name, _, _ := strings.Cut(m[1], "/")
			if slices.Contains(names, name) {
				return name, nil
			}
		}
	}
	if all := begun.FindAllStringSubmatch(out.String(), -1); all != nil { // a panic
		if name := all[len(all)-1][1]; slices.Contains(names, name) {
			return name, nil
		}
	}
	return names[0], nil // it fails outside of any test
}
