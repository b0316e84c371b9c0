package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listed returns the mutations of a text, each with its replacement.
func listed(t *testing.T, file, text string) (all []string) {
	t.Helper()
	parse := parseGo
	if filepath.Ext(file) == ".lua" {
		parse = parseLua
	}
	sites, err := parse(file, text)
	if err != nil {
		t.Fatal(err)
	}
	place(sites, text)
	for _, s := range sites {
		all = append(all, fmt.Sprintf("%d %s: %s -> %s", s.line, s.op, s.source, s.new))
	}
	return all
}

func TestLua(t *testing.T) {
	got := listed(t, "a.lua", `-- a script
local mode, left = redis.call('HGET', KEYS[1], 'mode'), 0
if not mode and left <= 3 or ARGV[1] == 'x' then -- a comment with 'if'
  redis.call('DEL', KEYS[1])
  left = math.max(left, 2)
end
repeat left = left - 1 until left < 1
local gone = redis.pcall('DEL', KEYS[2])
return left > 1
`)
	want := []string{
		"3 never: not mode and left <= 3 or ARGV[1] == 'x' -> false",
		"3 always: not mode and left <= 3 or ARGV[1] == 'x' -> true",
		"3 operand 1: not mode and left <= 3 or -> ",
		"3 operand 2: not mode and -> ",
		"3 operand 3: and left <= 3 -> ",
		"3 border: <= -> <",
		"3 operand 4: or ARGV[1] == 'x' -> ",
		"4 removed: redis.call('DEL', KEYS[1]) -> ",
		"5 removed: left = math.max(left, 2) -> ",
		"5 operand 1: math.max(left, 2) -> (2)",
		"5 operand 2: math.max(left, 2) -> (left)",
		"7 removed: left = left - 1 -> ",
		"7 always: left < 1 -> true",
		"7 border: < -> <=",
		"8 removed: redis.pcall('DEL', KEYS[2]) -> 0",
		"9 never: left > 1 -> false",
		"9 always: left > 1 -> true",
		"9 border: > -> >=",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The parser accepts every script with each of its mutations, and with marks.
func TestLua_scripts(t *testing.T) {
	files, err := filepath.Glob("../../luascripts/*.lua")
	if err != nil || len(files) < 50 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sites, err := parseLua(file, string(text))
		if err != nil {
			t.Error(err)
		}
		for _, s := range sites {
			if _, err := parseLua(file, s.mutated(string(text))); err != nil {
				t.Errorf("%v %s", err, s.op)
			}
		}
		if _, err := parseLua(file, marked(string(text), sites)); err != nil {
			t.Errorf("with marks: %v", err)
		}
	}
}

// For scripts whose server logs, the statements that began count; for others, that they were called.
func TestReadSeen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "seen")
	text := marked("local a = KEYS[1]\nif a then return 1 end", []site{{file: "a.lua", start: 0}, {file: "a.lua", start: 18}, {file: "a.lua", start: 18}})
	if want := "redis.log(3, '@a.lua:0') local a = KEYS[1]\nredis.log(3, '@a.lua:18') if a then return 1 end"; text != want {
		t.Errorf("got %s", text)
	}
	if err := os.WriteFile(file, []byte("12\na.lua\n7:M 01 Jan 00:00:00 # @a.lua:18\n7:M 01 Jan 00:00:00 * Ready\nb.lua\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	readSeen(file, seen)
	readSeen(file, seen) // the file is deleted
	if got := strings.Join(slices.Sorted(maps.Keys(seen)), " "); got != "12 @a.lua:18 b.lua" {
		t.Errorf("got %s", got)
	}
}

func TestLua_notUnderstood(t *testing.T) {
	for _, text := range []string{"if x then", "x", "local 1 = 2", "--[[ long ]]", "x = = 1", "f(", "end"} {
		if _, err := parseLua("a.lua", text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestReasons(t *testing.T) {
	got := func(text string) string {
		lines := strings.Split(text, "\n")
		return reasonOf(lines, len(lines), "operand", "operand 2")
	}
	for text, want := range map[string]string{
		"if a and b { // mutant: operand 2: no harm":                    "no harm",
		"if a and b { // mutant: never, operand: no harm":               "no harm",
		"if a and b { // mutant: operand 1: no harm":                    "",
		"// mutant: operand 2: no harm\n// mutant: never: text\nif a {": "no harm",
		"x() // mutant: operand 2: of another line\nif a {":             "",
		"// mutant: operand 2: too far\n\nif a {":                       "",
		"-- mutant: operand 2: in a script\nif a then":                  "in a script",
		"if a and b { // see mutant: operand 2":                         "",
	} {
		if r := got(text); r != want {
			t.Errorf("%q: got %q, want %q", text, r, want)
		}
	}
}

// A module with one function: mutations that its tests detect are killed, those with a reason are equivalent, the
// others survive.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod": "module example.com/x\n\ngo 1.25\n",
		"x.go": `package x

type counter struct{ n, most, calls int }

func (c *counter) add(d int) bool {
	if d < 0 || d > 10 && c.n > 0 {
		return false
	}
	switch {
	case d == 0: // mutant: never: adding nothing does nothing
		return true
	}
	if c.counts() {
		c.n += d
	}
	c.most = max(c.most, c.n)
	c.note()
	return c.n < 100
}

func (c *counter) note() { c.most++; c.most-- }

// counts decides the same in each test, and does more.
func (c *counter) counts() bool { c.calls++; return true }
`,
		"x_test.go": `package x

import "testing"

func TestAdd(t *testing.T) {
	c := &counter{}
	if c.add(-1) || !c.add(20) || c.add(20) || !c.add(1) || c.n != 21 || c.most != 21 || c.calls != 2 {
		t.Fatal(c)
	}
	if !c.add(0) {
		t.Fatal(c)
	}
}
`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := load([]string{"."})
	if err != nil {
		t.Fatal(err)
	}
	p.number()
	r, err := newRunner(t.Context(), p, options{workers: 2, cache: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	results := map[int]result{}
	var survived []string
	for _, s := range p.sites {
		res, err := r.one(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		results[s.n] = res
		if res.what != "killed" {
			survived = append(survived, s.String()+" "+res.what)
		}
	}
	want := []string{
		"x.go:6 border 2 survived",
		"x.go:10 never survived",
		"x.go:16 operand 1 survived", // the highest count is also the latest one
		"x.go:17 removed survived",
		"x.go:18 always survived", "x.go:18 border survived",
	}
	slices.Sort(want)
	slices.Sort(survived)
	if strings.Join(survived, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(survived, "\n"), strings.Join(want, "\n"))
	}
	if !report(p.sites, results, regexp.MustCompile(".")) || report(p.sites, results, regexp.MustCompile("none")) {
		t.Error("the survivors do not fail the run, or those do that are not meant")
	}
}

// The Go code of the engine still parses with all mutations in it.
func TestInstrument(t *testing.T) {
	files, err := filepath.Glob("../../internal/session/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sites, err := parseGo(file, string(text))
		if err != nil {
			t.Fatal(err)
		}
		place(sites, string(text))
		if _, err := parseGo(file, instrument(string(text), sites)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
