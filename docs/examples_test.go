package docs

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// noPromise are the packages whose exported names are for this repository, or for authors of locks.
var noPromise = []string{"luascripts", "watchdog", "lock/lockimpl"}

// shownBy has the types and the options that have no example of their own, with the example that shows them.
var shownBy = map[string]string{
	"lock.Locker":                      "Example_parameter",     // an interface that every lock is
	"lock.Option":                      "Example_parameter",     // each option has an example
	"lock.Holder":                      "ExampleState",          // a part of a State
	"lock.Waiter":                      "ExampleState",          //
	"lock.Client":                      "ExampleState",          //
	"lock.Mode":                        "ExampleState",          //
	"lock.Event":                       "ExampleObserver",       // what its functions are given
	"client.Option":                    "ExampleClient_options", //
	"client.WithName":                  "ExampleClient_options", //
	"client.WithLabel":                 "ExampleClient_options", //
	"client.WithObserver":              "ExampleClient_options", //
	"client.WithOpTimeout":             "ExampleClient_options", //
	"client.Client":                    "Example",               //
	"client.WithPubSub":                "ExamplePubSub",         //
	"semaphore.Holder":                 "ExampleState",          //
	"multilock.Option":                 "ExampleQuorum_options", //
	"multilock.WithWait":               "ExampleQuorum_options", //
	"multilock.WithMaxHold":            "ExampleQuorum_options", //
	"multilock.WithMinValidity":        "ExampleQuorum_options", //
	"multilock.WithServerTimeout":      "ExampleQuorum_options", //
	"multilock.WithMaxLease":           "ExampleWithDurableServers",
	"multilock.Lock":                   "Example",
	"fence.RedisOption":                "ExampleWithHighestTokenExpiry",
	"fence.Script":                     "ExampleRedis_Run", //
	"fencesql.Dialect":                 "ExampleGuard",     //
	"latch.LostError":                  "ExampleWaitGroup",
	"latch.Latches":                    "Example", // for package client
	"leader.Store":                     "Example", // beside the lock of an Election
	"leader.Election":                  "Example",
	"leader.Leader":                    "Example",
	"leaseholdotel.Option":             "Example", //
	"leaseholdotel.WithMeterProvider":  "Example",
	"leaseholdotel.WithTracerProvider": "Example",
	"leaseholdprom.Metrics":            "Example",              //
	"leaseholdprom.Option":             "ExampleWithNameLabel", //
	"bridge.OldLock":                   "ExampleDo",            //
	"admin.WithProgress":               "ExampleAdmin_Survey",  // what a display does
	"httplock.Option":                  "ExampleWithErrorResponse",
	"ratelimit.HandlerOption":          "ExampleWithErrorResponse",
	"ratelimit.Policy":                 "ExampleNew",               //
	"bloom.Filter":                     "Example",                  //
	"bloom.Option":                     "ExampleWithKryo5",         //
	"bloom.ConfigError":                "ExampleConfig",            //
	"admin.Option":                     "ExampleAdmin_ForceUnlock", //
	"admin.WithOperator":               "ExampleAdmin_ForceUnlock", //
	"admin.WithOpTimeout":              "ExampleAdmin_ForceUnlock", //
	"admin.ForceUnlockResult":          "ExampleAdmin_ForceUnlock", //
	"admin.ForceUnlockRecord":          "ExampleAdmin_ForceUnlock", //
	"admin.Admin":                      "Example",                  //
	"admin.Lock":                       "Example",                  //
	"admin.Query":                      "Example",                  //
	"admin.Kind":                       "Example",                  //
	"admin.Missing":                    "Example",                  //
	"admin.IncompleteError":            "Example",                  //
	"admin.Page":                       "ExampleAdmin_Page",        //
	"admin.ClientPage":                 "ExampleAdmin_Page",        // the same for clients
	"admin.Survey":                     "ExampleAdmin_Survey",      //
	"admin.Surveyed":                   "ExampleAdmin_Survey",      //
	"admin.Key":                        "ExampleAdmin_Keys",        //
	"admin.Event":                      "ExampleAdmin_Watch",       //
	"admin.LimitState":                 "ExampleAdmin_Inspect",     //
	"admin.Usage":                      "ExampleAdmin_Inspect",     //
	"admin.RedissonLimitState":         "ExampleAdmin_Inspect",     //
	"admin.FilterState":                "ExampleAdmin_Inspect",     //
	"admin.EventType":                  "ExampleAdmin_Watch",       //
	"dashboard.Option":                 "ExampleHandler",           //
	"dashboard.WithLogger":             "ExampleHandler",           //
	"dashboard.WithForceUnlock":        "ExampleHandler",           //
	"locktest.RW":                      "ExampleRunRW",             // which no example can call, as it takes a *testing.T
	"locktest.RWHarness":               "ExampleRunRW",             //
	"locktest.Harness":                 "ExampleRun",               //
	"locktest.SemaphoreHarness":        "ExampleRunSemaphore",      //
	"locktest.Latch":                   "ExampleRunLatch",          //
	"locktest.LatchHarness":            "ExampleRunLatch",          //
	"locktest.WaitGroup":               "ExampleRunWaitGroup",      //
	"locktest.WaitGroupHarness":        "ExampleRunWaitGroup",      //
	"locktest.ElectionHarness":         "ExampleRunElection",       //
	"locktest.Limiter":                 "ExampleRunLimiter",        //
	"locktest.LimiterHarness":          "ExampleRunLimiter",        //
	"locktest.Filter":                  "ExampleRunFilter",         //
	"locktest.FilterHarness":           "ExampleRunFilter",         //
}

// notRun are the examples that only compile: they take what an example does not have.
var notRun = map[string]string{
	"latch.ExampleWaitGroupState":  "the server in memory gives scripts no scores of a range",
	"fencesql.ExampleUnchanged":    "needs a database: integration runs the same code on PostgreSQL",
	"locktest.ExampleRun":          "needs a *testing.T; the tests of locktest call Run in the same way",
	"locktest.ExampleRunRW":        "needs a *testing.T",
	"locktest.ExampleRunSemaphore": "needs a *testing.T",
	"locktest.ExampleRunLatch":     "needs a *testing.T",
	"locktest.ExampleRunWaitGroup": "needs a *testing.T",
	"locktest.ExampleRunElection":  "needs a *testing.T",
	"locktest.ExampleRunLimiter":   "needs a *testing.T",
	"locktest.ExampleRunFilter":    "needs a *testing.T",
}

// public is what a public package exports, and its examples.
type public struct {
	name     string // as in "lock"
	types    []string
	options  []string
	examples map[string]*doc.Example // by the name of the function
}

// private is whether people cannot import the package in dir, or have no reason to.
func private(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	return strings.Contains(dir, "internal") || slices.Contains([]string{"docs", "cmd", "integration", "proof", "scripts"}, top)
}

// publics returns the public packages of all modules that people import.
func publics(t *testing.T) (all []public) {
	t.Helper()
	dirs := map[string]bool{}
	for path := range texts(t, ".go") {
		dir := filepath.Dir(path)
		if !private(dir) && dir != "." && !slices.Contains(noPromise, dir) {
			dirs[dir] = true
		}
	}
	for dir := range dirs {
		p := public{examples: map[string]*doc.Example{}}
		files, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, dir, f.Name()), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(f.Name(), "_test.go") {
				for _, e := range doc.Examples(file) {
					p.examples["Example"+e.Name] = e
				}
				continue
			}
			p.name = file.Name.Name
			p.add(file)
		}
		all = append(all, p)
	}
	return all
}

// add notes the exported types and options of a file.
func (p *public) add(file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if name := d.Name.Name; d.Recv == nil && strings.HasPrefix(name, "With") {
				p.options = append(p.options, name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() {
					p.types = append(p.types, s.Name.Name)
				}
			}
		}
	}
}

// lacks returns the types and options that no example shows, and the examples that are not run.
func (p *public) lacks(shownBy, notRun map[string]string) (problems []string) {
	shown := func(name string) bool {
		for e := range p.examples {
			e, _, _ = strings.Cut(strings.TrimPrefix(e, "Example"), "_")
			if e == name || e == "New"+name || name == "Handler" && e == "New" {
				return true
			}
		}
		by, ok := shownBy[p.name+"."+name]
		return ok && p.examples[by] != nil
	}
	for _, name := range slices.Concat(p.types, p.options) {
		if !shown(name) {
			problems = append(problems, p.name+"."+name+" has no example: write one, or name in shownBy the one that shows it")
		}
	}
	for name, e := range p.examples {
		if e.Output == "" && !e.EmptyOutput && notRun[p.name+"."+name] == "" {
			problems = append(problems, p.name+"."+name+" has no // Output:, so that no test runs it")
		}
	}
	return problems
}

// Each exported type and each option has an example that runs.
func TestExamples(t *testing.T) {
	all := publics(t)
	if len(all) < 15 {
		t.Errorf("%d packages were found", len(all))
	}
	names := map[string]bool{}
	for _, p := range all {
		for _, problem := range p.lacks(shownBy, notRun) {
			t.Error(problem)
		}
		for _, name := range slices.Concat(p.types, p.options) {
			names[p.name+"."+name] = true
		}
	}
	for name := range shownBy {
		if !names[name] {
			t.Errorf("shownBy has %s, which does not exist", name)
		}
	}

	p := public{name: "p", types: []string{"T", "U"}, examples: map[string]*doc.Example{"ExampleT": {}}}
	if problems := p.lacks(nil, nil); len(problems) != 2 {
		t.Errorf("the test finds %q", problems)
	}
}

// foreign returns what a reader who copies an example of src lacks. A page shows the body of the example, and not what stands beside
// it; it shows the whole file if that is the only example of the file, or else what the example needs, if the file has all of that.
func foreign(t *testing.T, src string) (problems []string) {
	t.Helper()
	examples := func(src string) map[string]*doc.Example {
		file, err := parser.ParseFile(token.NewFileSet(), "example_test.go", src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]*doc.Example{}
		for _, e := range doc.Examples(file) {
			all["Example"+e.Name] = e
		}
		return all
	}
	page := examples(src)
	if len(page) > 0 && strings.Contains(src, "leasehold/internal/") {
		problems = append(problems, "the file imports a package that readers cannot import")
	}
	// The reader has an address. The second example keeps the file from being one example as a whole.
	for name, e := range examples(src + "\nvar addr string\nvar addrs []string\nfunc Example_another() {}\n") {
		switch {
		case name == "Example_another":
		case e.Play == nil: // package doc cannot make a program of it
			problems = append(problems, name+" uses a name that stands in another file")
		case page[name].Play == nil:
			if slices.ContainsFunc(e.Play.Decls, beside) {
				problems = append(problems, name+" uses a name that stands beside it: have that inside, or the example in a file of its own")
			}
		}
	}
	return problems
}

// beside is whether d, of the program that package doc makes of an example, is neither an import nor main nor the reader's address.
func beside(d ast.Decl) bool {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Name.Name != "main"
	case *ast.GenDecl:
		if d.Tok == token.IMPORT {
			return false
		}
		v, ok := d.Specs[0].(*ast.ValueSpec)
		return !ok || !strings.HasPrefix(v.Names[0].Name, "addr")
	}
	return true
}

// A reader can copy each example from the page of its package, write an address in the place of addr or addrs, and compile it.
func TestExamples_canBeCopied(t *testing.T) {
	found := 0
	for path, src := range texts(t, "_test.go") {
		if !strings.Contains(src, "\nfunc Example") || private(filepath.Dir(path)) {
			continue
		}
		found++
		for _, p := range foreign(t, src) {
			t.Errorf("%s: %s", path, p)
		}
	}
	if found < 20 {
		t.Errorf("%d files with examples were found", found)
	}

	const head = "package p_test\n\nimport \"fmt\"\n\n"
	for src, bad := range map[string]int{
		"func ExampleA() { fmt.Println(addr, addrs) }\nfunc ExampleB() { fmt.Println() }\n":              0,
		"func open() {}\nfunc ExampleA() { open(); fmt.Println(addr) }\n":                                0, // the whole file
		"func open() {}\nfunc ExampleA() { open() }\nfunc ExampleB() { open() }\n":                       0, // shown with what it needs
		"func open() {}\nfunc ExampleA() { open(); fmt.Println(addr) }\nfunc ExampleB() { open() }\n":    1,
		"const n = 1\nfunc ExampleA() { fmt.Println(addr, n) }\nfunc ExampleB() { fmt.Println(addr) }\n": 1,
		"func ExampleA() { open() }\n":                                        1,
		"import _ \"example.com/leasehold/internal/p\"\nfunc ExampleA() {}\n": 1,
	} {
		if p := foreign(t, head+src); len(p) != bad {
			t.Errorf("the test finds %q in\n%s", p, src)
		}
	}
}

// What readers copy closes its client after an error: log.Fatal runs no deferred Close, which releases the locks. Its HTTP servers have a
// ReadHeaderTimeout, so that slow clients do not hold their connections indefinitely.
func TestExamples_safeToCopy(t *testing.T) {
	for path, src := range texts(t, ".go") {
		for _, f := range strings.Split(src, "\nfunc ") {
			if _, after, _ := strings.Cut(f, "\tdefer "); strings.Contains(after, "log.Fatal") {
				t.Errorf("%s: %.40q calls log.Fatal after a defer", path, f)
			}
			if (strings.Contains(f, "http.Server{") || strings.Contains(f, "http.ListenAndServe(")) && !strings.Contains(f, "ReadHeaderTimeout") {
				t.Errorf("%s: %.40q has an HTTP server without ReadHeaderTimeout", path, f)
			}
		}
	}
}
