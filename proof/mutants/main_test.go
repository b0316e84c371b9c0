package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// Each mutation still fits its source. To run them takes hours: make mutate.
func TestMutations_apply(t *testing.T) {
	t.Chdir("../..")
	all, err := readAll("proof/mutants/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]string)
	for _, m := range all {
		source, err := os.ReadFile(m.file)
		if err == nil {
			_, err = m.apply(source)
		}
		if err != nil {
			t.Error(err)
		}
		if other := seen[m.file+m.old+"\x00"+m.new]; other != "" {
			t.Errorf("%s: %s is the same as %s", m.list, m.guard, other)
		}
		seen[m.file+m.old+"\x00"+m.new] = m.list
	}
	if len(all) < 200 {
		t.Errorf("%d mutations, want 200", len(all))
	}
}

// A mutation of a script is a script that the server in memory compiles rightly, as a test catches one that is not, whatever it takes
// away. gopher-lua jumps to a wrong place where a loop begins with a constant that is false.
func TestMutations_scripts(t *testing.T) {
	t.Chdir("../..")
	all, err := readAll("proof/mutants/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	rdb := redistest.NewMini(t).Client(t)
	for _, m := range all {
		if !strings.HasSuffix(m.file, ".lua") {
			continue
		}
		source, err := os.ReadFile(m.file)
		if err != nil {
			t.Fatal(err)
		}
		mutated, err := m.apply(source)
		if err != nil {
			continue // the other test says so
		}
		if err := rdb.Do(t.Context(), rdb.B().ScriptLoad().Script(string(mutated)).Build()).Error(); err != nil {
			t.Errorf("%s: %s: %v", m.list, m.guard, err)
		}
		if jumpsWrongly.Match(mutated) {
			t.Errorf("%s: %s: gopher-lua compiles this loop wrongly; write (x) and false", m.list, m.guard)
		}
	}
}

var jumpsWrongly = regexp.MustCompile(`\b(for .* in .* do|while true do|repeat)\s+(--.*\s+)*if (false|nil)\b`)

// A list that says nothing, or a text that is not there, or twice, is an error.
func TestRead_refuses(t *testing.T) {
	name := filepath.Join(t.TempDir(), "list.txt")
	for _, text := range []string{
		"nonsense\n",
		"file a\nnear ./a .\npromise p\nguard g\n",
		"file a\nnear ./a .\npromise p\nguard g\n-x\n+x\n",
		"file a\npromise p\nguard g\n-x\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if all, err := read(name); err == nil {
			t.Errorf("%q was read as %v", text, all)
		}
	}
	m := mutation{old: "x", new: "y", file: "a"}
	for _, source := range []string{"", "x x"} {
		if _, err := m.apply([]byte(source)); err == nil {
			t.Errorf("applied to %q", source)
		}
	}
	if got, err := m.apply([]byte("axb")); err != nil || string(got) != "ayb" {
		t.Errorf("%q, %v", got, err)
	}
}

// The test is named by what go test prints, however it failed.
func TestCulprit(t *testing.T) {
	for out, want := range map[string]string{
		"--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/b\n":                  "TestA",
		"    --- FAIL: TestA/b (0.00s)\n":                                  "TestA",
		"panic: test timed out after 1m\n\trunning tests:\n\t\tTestC (1m)": "TestC (time-out)",
		"panic: x\ngoroutine 1\nplace.TestD.func1(0x1)\n":                  "TestD (panic)",
		"=== RUN   TestE\n=== RUN   TestF\n=== RUN   TestF/b\npanic: x\n":  "TestF (panic)",
		"exit status 2": "the tests end",
	} {
		if got := culprit(out); got != want {
			t.Errorf("%q: %s, want %s", out, got, want)
		}
	}
}

// Tests that run out of time together say nothing, where the one that was under way passes alone: the machine may be too busy. One that hangs
// alone, too, has noticed the mutation.
func TestTry_outOfTime(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.24\n",
		"m.go":   "package m\n",
		"m_test.go": `package m

import (
	"flag"
	"testing"
)

func TestAlone(*testing.T) {
	if flag.Lookup("test.run").Value.String() != "^TestAlone$" {
		select {}
	}
}

func TestHangs(*testing.T) { select {} }
`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := options{limit: 4 * time.Second}
	for run, want := range map[string]string{"TestA": "TestAlone passes alone", "TestH": ""} {
		r, err := o.try(t.Context(), mutation{file: "m.go", near: []near{{".", run}}}, []byte("package m\n"))
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) || want == "" && (err != nil || r != (result{"caught", "TestHangs" + timeOut})) {
			t.Errorf("%s: %v, %v", run, r, err)
		}
	}
}

// What is known is not run again, unless the mutation or its source changed.
func TestKnown(t *testing.T) {
	name := filepath.Join(t.TempDir(), "results.tsv")
	k, err := load(name)
	if err != nil {
		t.Fatal(err)
	}
	m := mutation{file: "a", old: "x", new: "y"}
	key := m.key([]byte("axb"))
	if err := k.put(key, result{"caught", "TestA"}); err != nil {
		t.Fatal(err)
	}
	again, err := load(name)
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := again.get(key); !ok || r != (result{"caught", "TestA"}) {
		t.Errorf("%v, %v", r, ok)
	}
	if _, ok := again.get(m.key([]byte("axc"))); ok {
		t.Error("the source changed, and the result is still known")
	}
	if err := k.put("another key", result{"survived", ""}); err != nil { // of a run that does not know of the one after it
		t.Fatal(err)
	}
	if err := again.put(key, result{"caught", "TestB"}); err != nil {
		t.Fatal(err)
	}
	both, err := load(name)
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := both.get("another key"); !ok || r.what != "survived" {
		t.Errorf("a run beside it lost a result: %v", r)
	}
	if r, _ := both.get(key); r.test != "TestB" {
		t.Errorf("the later result does not count: %v", r)
	}
	one, other := "\nfunc f() {\n\tx\n}\n\nfunc g() {\n\ty\n}\n", "\nfunc f() {\n\tx\n}\n\nfunc g() {\n\tz\n}\n"
	if m.key([]byte(one)) != m.key([]byte(other)) {
		t.Error("another function changed, and the result is not known any more")
	}
	m.new = "z"
	if _, ok := again.get(m.key([]byte("axb"))); ok {
		t.Error("the mutation changed, and the result is still known")
	}
}

func TestTable(t *testing.T) {
	t.Chdir("../..")
	m := mutation{file: "go.mod", guard: "a | b", promise: "p", old: "x"}
	source, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	k := &known{of: map[string]result{m.key(source): {"caught", "TestA"}}}
	other := m
	other.old, other.same = "y", "it is so"
	third := m
	third.old = "z"
	table, _, err := tableOf([]mutation{m, other, third}, k)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`| a \| b | p | ` + "`TestA` |", "none can: it is so", "not run yet", "3 mutations: 1 were caught, 1 cannot be noticed, 0 survived, 1 have"} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not in\n%s", want, table)
		}
	}
}

// Conditions lose each operand, statements go, writes change places; what is proposed can be read and applied.
func TestProposals(t *testing.T) {
	for _, c := range []struct {
		source, guard, want string
		lua                 bool
	}{
		{"func f() {\n\tif a && b(c, d) {\n\t}\n}\n", "f: `a` of `a && b(c, d)`", "\tif b(c, d) {", false},
		{"func f() {\n\tif a && b || c {\n\t}\n}\n", "f: `b` of `a && b || c`", "\tif a || c {", false},
		{"func f() {\n\tif x := a(); x.ok {\n\t}\n}\n", "f: `if x.ok`", "\tif x := a(); false && (x.ok) {", false},
		{"func f() {\n\tp.Fail(t)\n}\n", "f: `p.Fail(t)`", "", false},
		{"func f() {\n\tt.x = max(a, b)\n}\n", "f: `max` in `t.x = max(a, b)`", "\tt.x = min(a, b)", false},
		{"local function f()\nend\nif a or b then\n", "`b` of `a or b`", "if a then", true},
		{"  if a or b then -- c\n", "`b` of `a or b`", "  if a then -- c", true},
		{"for _, a in b do\n  if a == c then\n", "`if a == c`", "  if (a == c) and false then", true},
		{"redis.call('A')\nredis.call('B')\n", "order: `redis.call('A')` before `redis.call('B')`", "redis.call('B')\nredis.call('A')", true},
	} {
		lines := strings.Split(c.source, "\n")
		found := false
		for _, p := range proposals(lines, c.lua) {
			if p.guard == c.guard {
				_, fresh, ok := p.texts(lines, c.source)
				found = ok && fresh == c.want
			}
		}
		if !found {
			t.Errorf("%q: not %q, which makes it %q: %+v", c.source, c.guard, c.want, proposals(lines, c.lua))
		}
	}
	if all := proposals([]string{"each(a, function(b)", "end)"}, true); all != nil {
		t.Errorf("the first line of a call goes without its last: %+v", all)
	}
}

func TestCaughtBefore(t *testing.T) {
	name := filepath.Join(t.TempDir(), "GUARDS.md")
	text := "| a guard | above | `TestNone` |\n\n`luascripts/fair_acquire.lua`\n\n| taken away | at stake | test that went red |\n|---|---|---|\n" +
		"| `a \\| b` | order | `TestFair_order (time-out)` |\n| one | order | none can: it is the same |\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := caughtBefore(name)
	if want := map[string]string{"luascripts/fair_acquire.lua `a | b`": "TestFair_order"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if all, err := caughtBefore("../" + page); err != nil || len(all) < 1000 {
		t.Errorf("the table of the project: %d tests, %v", len(all), err)
	}
}
