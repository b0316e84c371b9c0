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
	"multilock.WithLongestLease":       "ExampleWithDurableServers",
	"multilock.Lock":                   "Example",
	"fence.RedisOption":                "ExampleWithRegisterExpiry",
	"fence.Script":                     "ExampleRedis_Run", //
	"fencesql.Dialect":                 "ExampleGuard",     //
	"latch.LostError":                  "ExampleCrew",
	"latch.Latches":                    "Example", // for package client
	"leader.Board":                     "Example", // beside the lock of an Election
	"leader.Election":                  "Example",
	"leader.Leader":                    "Example",
	"leaseholdotel.Option":             "Example", //
	"leaseholdotel.WithMeterProvider":  "Example",
	"leaseholdotel.WithTracerProvider": "Example",
	"leaseholdprom.Metrics":            "Example",              //
	"leaseholdprom.Option":             "ExampleWithNameLabel", //
	"bridge.Old":                       "ExampleDo",            //
	"ratelimit.Policy":                 "ExampleNew",           //
	"bloom.Filter":                     "Example",              //
	"bloom.Option":                     "ExampleWithKryo5",     //
	"bloom.ConfigError":                "ExampleConfig",        //
	"admin.Option":                     "ExampleAdmin_Unlock",  //
	"admin.WithOperator":               "ExampleAdmin_Unlock",  //
	"admin.WithOpTimeout":              "ExampleAdmin_Unlock",  //
	"admin.Unlocked":                   "ExampleAdmin_Unlock",  //
	"admin.Forced":                     "ExampleAdmin_Unlock",  //
	"admin.Admin":                      "Example",              //
	"admin.Lock":                       "Example",              //
	"admin.Query":                      "Example",              //
	"admin.Kind":                       "Example",              //
	"admin.Page":                       "ExampleAdmin_Page",    //
	"admin.ClientPage":                 "ExampleAdmin_Page",    // the same for clients
	"admin.Key":                        "ExampleAdmin_Keys",    //
	"admin.Event":                      "ExampleAdmin_Watch",   //
	"admin.LimitState":                 "ExampleAdmin_Inspect", //
	"admin.Owed":                       "ExampleAdmin_Inspect", //
	"admin.WindowState":                "ExampleAdmin_Inspect", //
	"admin.FilterState":                "ExampleAdmin_Inspect", //
	"admin.What":                       "ExampleAdmin_Watch",   //
	"dashboard.Option":                 "ExampleHandler",       //
	"dashboard.WithLogger":             "ExampleHandler",       //
	"dashboard.WithUnlock":             "ExampleHandler",       //
	"locktest.RW":                      "ExampleRunRW",         // which no example can call, as it takes a *testing.T
	"locktest.RWHarness":               "ExampleRunRW",         //
	"locktest.Harness":                 "ExampleRun",           //
	"locktest.SemaphoreHarness":        "ExampleRunSemaphore",  //
	"locktest.Latch":                   "ExampleRunLatch",      //
	"locktest.LatchHarness":            "ExampleRunLatch",      //
	"locktest.Crew":                    "ExampleRunCrew",       //
	"locktest.CrewHarness":             "ExampleRunCrew",       //
	"locktest.ElectionHarness":         "ExampleRunElection",   //
	"locktest.Limiter":                 "ExampleRunLimiter",    //
	"locktest.LimiterHarness":          "ExampleRunLimiter",    //
	"locktest.Filter":                  "ExampleRunFilter",     //
	"locktest.FilterHarness":           "ExampleRunFilter",     //
}

// notRun are the examples that only compile: they take what an example does not have.
var notRun = map[string]string{
	"latch.ExampleCrewState":       "the server in memory gives scripts no scores of a range",
	"fencesql.ExampleUnchanged":    "needs a database: integration runs the same code on PostgreSQL",
	"locktest.ExampleRun":          "needs a *testing.T; the tests of locktest call Run in the same way",
	"locktest.ExampleRunRW":        "needs a *testing.T",
	"locktest.ExampleRunSemaphore": "needs a *testing.T",
	"locktest.ExampleRunLatch":     "needs a *testing.T",
	"locktest.ExampleRunCrew":      "needs a *testing.T",
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

// publics returns the public packages of all modules that people import.
func publics(t *testing.T) (all []public) {
	t.Helper()
	dirs := map[string]bool{}
	for path := range texts(t, ".go") {
		dir := filepath.Dir(path)
		private := strings.Contains(dir, "internal") || slices.Contains(noPromise, dir)
		for _, top := range []string{"docs", "cmd", "integration", "benchmarks", "model", "scripts", "sim", "mutants"} {
			private = private || dir == top || strings.HasPrefix(dir, top+"/")
		}
		if !private && dir != "." {
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
