package luascripts_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The header of each script is its contract, which these tests read. Each key and argument that a
// script uses must be listed, with the name of the local that receives it, and each listed one must
// be used. Included files have no keys and arguments, so different rules apply.

var (
	sentence = regexp.MustCompile(`^-- ([a-z_]+): .+`)
	listed   = regexp.MustCompile(`^-- (KEYS|ARGV)\[([0-9a-z*+-]+)\]\s+(\S+)\s+(hash|list|zset|string|text|ms|µs|count)\s+\S`)
	used     = regexp.MustCompile(`(KEYS|ARGV)\[([0-9a-z *+-]+)\]`)
	replies  = regexp.MustCompile(`return (?:redis\.status_reply\()?(-?[0-9]+)`)
	units    = map[string][]string{"KEYS": {"hash", "list", "zset", "string"}, "ARGV": {"text", "ms", "µs", "count"}}
)

// scripts returns the text of every script, without included files.
func scripts(t *testing.T) map[string]string { return texts(t, false) }

// includes returns the text of every file that scripts include.
func includes(t *testing.T) map[string]string { return texts(t, true) }

func texts(t *testing.T, includes bool) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.lua")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	texts := make(map[string]string)
	for _, name := range names {
		if strings.HasPrefix(name, "include_") != includes {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	return texts
}

func TestHeaders(t *testing.T) {
	for name, text := range scripts(t) {
		for _, problem := range checkHeader(name, text) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// checkHeader returns the problems in the header of a script.
func checkHeader(file, text string) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	lines := strings.Split(text, "\n")
	end := slices.IndexFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "--") })
	if end < 1 {
		return []string{"no header"}
	}
	header, body := lines[:end], strings.Join(lines[end:], "\n")

	if m := sentence.FindStringSubmatch(header[0]); m == nil || m[1]+".lua" != file {
		bad("the first line is not %q and a sentence", "-- "+strings.TrimSuffix(file, ".lua")+":")
	}
	if !strings.Contains(strings.Join(header, "\n"), "\n-- Returns ") {
		bad("the header does not say what it returns")
	}
	names := map[string]string{} // "KEYS[1]" -> "lock"
	for _, line := range header {
		if m := listed.FindStringSubmatch(line); m != nil {
			names[m[1]+"["+m[2]+"]"] = m[3]
			if !slices.Contains(units[m[1]], m[4]) {
				bad("%s is listed as %s", m[1], m[4])
			}
		} else if strings.Contains(line, "KEYS[") && strings.HasPrefix(line, "-- KEYS") || strings.HasPrefix(line, "-- ARGV") {
			bad("cannot be read as a key or argument: %s", line)
		}
	}
	body = used.ReplaceAllStringFunc(body, func(m string) string { return strings.ReplaceAll(m, " ", "") })
	seen := map[string]int{}
	for _, m := range used.FindAllStringSubmatch(body, -1) {
		seen[m[1]+"["+m[2]+"]"]++
	}
	for index := range seen {
		if names[index] == "" {
			bad("uses %s, which the header does not list", index)
		}
		if seen[index] > 1 {
			bad("reads %s %d times; give it a name once", index, seen[index])
		}
	}
	for index, name := range names {
		each := index == "KEYS[i]" && strings.Contains(body, "ipairs(KEYS)")
		if seen[index] == 0 && !each {
			bad("lists %s %s, which is not used", index, name)
		}
		if !each && !regexp.MustCompile(`(?m)^ *local .*\b`+name+`\b.* = .*`+regexp.QuoteMeta(index)).MatchString(body) {
			bad("%s does not go into a local called %s", index, name)
		}
	}
	for _, m := range replies.FindAllStringSubmatch(body, -1) {
		if !regexp.MustCompile(`(?m)\b(Returns|when|with)?.*(^|[\s,])` + regexp.QuoteMeta(m[1]) + `\b`).MatchString(strings.Join(header, "\n")) {
			bad("returns %s, which the header does not explain", m[1])
		}
	}
	return append(problems, checkWords(body)...)
}

// checkWords returns the forbidden words in the code of a script.
func checkWords(code string) (problems []string) {
	for _, forbidden := range []string{"loadstring", "redis.setresp", "cmsgpack", "bit.", "struct.", "#!"} {
		if strings.Contains(code, forbidden) {
			problems = append(problems, fmt.Sprintf("uses %s, which not every server has", forbidden))
		}
	}
	return problems
}

// The check itself must be able to fail.
func TestHeaders_areChecked(t *testing.T) {
	good := scripts(t)["rw_read_release.lua"]
	if p := checkHeader("rw_read_release.lua", good); p != nil {
		t.Fatalf("the original: %q", p)
	}
	for name, change := range map[string][2]string{
		"unlisted argument": {"local count", "local extra = ARGV[6]\nlocal count"},
		"unused argument":   {"-- Returns 1", "-- ARGV[6] more  text  what nobody reads\n--\n-- Returns 1"},
		"other name":        {"ARGV[2] leave ", "ARGV[2] remain "},
		"wrong unit":        {"-- ARGV[2] leave    count", "-- ARGV[2] leave    hash "},
		"unknown reply":     {"return 1", "return 7"},
		"index twice":       {"return 1", "redis.call('GET', KEYS[1])\nreturn 1"},
		"wrong title":       {"-- rw_read_release:", "-- rw_read_free:"},
		"no replies":        {"Returns", "Gives"},
	} {
		text := strings.Replace(good, change[0], change[1], -1)
		if text == good {
			t.Fatalf("%s: the mutation changed nothing", name)
		}
		if p := checkHeader("rw_read_release.lua", text); p == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

var (
	comment  = regexp.MustCompile(`--[^\n]*`)
	quoted   = regexp.MustCompile(`'[^'\n]*'`)
	function = regexp.MustCompile(`(?m)^local function ([a-z_]+)\(`)
)

func TestIncludes(t *testing.T) {
	users := map[string]map[string]string{} // for each include: the files that include it, and their text
	includes, scripts := includes(t), scripts(t)
	for _, texts := range []map[string]string{includes, scripts} {
		for name, text := range texts {
			for _, problem := range checkIncluding(text, includes) {
				t.Errorf("%s: %s", name, problem)
			}
			for _, file := range including(text) {
				if users[file+".lua"] == nil {
					users[file+".lua"] = map[string]string{}
				}
				users[file+".lua"][name] = text
			}
		}
	}
	whole := loaded(t)
	for name, text := range includes {
		if slices.Contains(whole, strings.TrimSuffix(name, ".lua")) {
			continue // it is executed, so it has more than functions
		}
		for _, problem := range checkInclude(name, text, users[name]) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	for name := range scripts {
		if !slices.Contains(whole, strings.TrimSuffix(name, ".lua")) {
			t.Errorf("%s: no script loads it", name)
		}
	}
}

// checkIncluding returns the problems in the includes of a header. They must be exactly the files
// with a function that the text uses.
func checkIncluding(text string, includes map[string]string) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	lists := including(text)
	for i, line := range strings.Split(text, "\n") {
		if strings.Contains(line, "include:") && (i != 1 || !listing.MatchString(line)) {
			bad("what it includes is not said in the second line, in the way that is read: %s", line)
		}
		third := 2
		if !listing.MatchString(text) {
			third = 1
		}
		if strings.Contains(line, "later:") && (i != third || !late.MatchString(line)) {
			bad("what it includes later is not said in the third line, or the second, in the way that is read: %s", line)
		}
	}
	for i, file := range lists {
		if _, ok := includes[file+".lua"]; !ok {
			bad("includes %s, which is not there", file)
		}
		if slices.Contains(lists[:i], file) {
			bad("includes %s twice", file)
		}
	}
	code := quoted.ReplaceAllString(comment.ReplaceAllString(text, ""), "''")
	for file, other := range includes {
		if other == text {
			continue
		}
		before := `((^|[^.\w])|\b(later\(\)|functions\(\)|functions)\.)`
		if slices.Contains(listedBy(late, text), strings.TrimSuffix(file, ".lua")) {
			before = `\b(later\(\)|functions\(\)|functions)\.`
		}
		uses := false
		for _, m := range function.FindAllStringSubmatch(comment.ReplaceAllString(other, ""), -1) {
			own := regexp.MustCompile(`\blocal\b[^=\n]*\b` + m[1] + `\b`).MatchString(code)
			uses = uses || !own && regexp.MustCompile(before+m[1]+`\b`).MatchString(code)
		}
		file = strings.TrimSuffix(file, ".lua")
		switch listed := slices.Contains(lists, file); {
		case listed && !uses:
			bad("includes %s, and uses nothing of it", file)
		case uses && !listed:
			bad("uses %s, and does not say that it includes it", file)
		}
	}
	return problems
}

func TestIncluding_isChecked(t *testing.T) {
	includes := includes(t)
	good := includes["include_release.lua"]
	list := listing.FindString(good)
	if p := checkIncluding(good, includes); p != nil || list == "" {
		t.Fatalf("the original: %q", p)
	}
	for what, change := range map[string]string{
		"not said":        "--",
		"one is missing":  "-- include: time, token",
		"one too many":    list + ", fair",
		"twice":           list + ", token",
		"not there":       list + ", nothing",
		"not to be read":  "--include: time, token, queue",
		"in another line": "--\n" + list,
	} {
		if p := checkIncluding(strings.Replace(good, list, change, 1), includes); p == nil {
			t.Errorf("%s: not noticed", what)
		}
	}
	good = scripts(t)["reentrant_change.lua"]
	list = late.FindString(good)
	if p := checkIncluding(good, includes); p != nil || list == "" {
		t.Fatalf("the original: %q", p)
	}
	for what, change := range map[string]string{
		"one is missing later":  "-- later: acquire",
		"one too many later":    list + ", plain",
		"later in another line": "--\n" + list,
	} {
		if p := checkIncluding(strings.Replace(good, list, change, 1), includes); p == nil {
			t.Errorf("%s: not noticed", what)
		}
	}
}

// checkInclude returns the problems in an included file. users are the texts that include it, by
// name. It may only contain functions, so that including it has no effect.
func checkInclude(file, text string, users map[string]string) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	first, _, _ := strings.Cut(text, "\n")
	if m := sentence.FindStringSubmatch(first); m == nil || m[1]+".lua" != file {
		bad("the first line is not %q and a sentence", "-- "+strings.TrimSuffix(file, ".lua")+":")
	}
	if len(users) == 0 {
		bad("no script includes it")
	}
	code := comment.ReplaceAllString(text, "")
	if m := regexp.MustCompile(`\b(KEYS|ARGV)\b`).FindString(code); m != "" {
		bad("uses %s: a function gets what it needs from the script", m)
	}
	for _, line := range strings.Split(code, "\n") {
		if line = strings.TrimRight(line, " "); line != "" && line != "end" && line[0] != ' ' && !function.MatchString(line) {
			bad("is not made of local functions alone: %s", line)
		}
	}

	// A function counts as used if a script, or a used function, calls it.
	bodies := map[string]string{}
	starts := function.FindAllStringSubmatchIndex(code, -1)
	for i, at := range starts {
		end := len(code)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		bodies[code[at[2]:at[3]]] = code[at[1]:end]
	}
	var used string
	for script, text := range users {
		text = comment.ReplaceAllString(text, "")
		used += text
		for name := range bodies {
			if regexp.MustCompile(`\blocal\b[^=\n]*\b` + name + `\b`).MatchString(text) {
				bad("%s has a local of its own called %s", script, name)
			}
		}
	}
	for found := true; found; {
		found = false
		for name, body := range bodies {
			if regexp.MustCompile(`\b` + name + `[(,]`).MatchString(used) {
				used += body
				delete(bodies, name)
				found = true
			}
		}
	}
	for name := range bodies {
		bad("no script uses %s", name)
	}
	return append(problems, checkWords(code)...)
}

func TestIncludes_areChecked(t *testing.T) {
	const name = "include_rw.lua"
	good, scripts := includes(t)[name], scripts(t)
	users := map[string]string{}
	for script, text := range scripts {
		if slices.Contains(including(text), "include_rw") {
			users[script] = text
		}
	}
	if p := checkInclude(name, good, users); p != nil {
		t.Fatalf("the original: %q", p)
	}
	for what, change := range map[string][2]string{
		"wrong title":         {"-- include_rw:", "-- include_wr:"},
		"a key":               {"redis.pcall('GET', intent)", "redis.pcall('GET', KEYS[1])"},
		"an argument":         {"redis.pcall('GET', intent)", "redis.pcall('GET', ARGV[1])"},
		"a global function":   {"local function read_intent", "function read_intent"},
		"a variable":          {"local function read_intent", "local none = 0\nlocal function read_intent"},
		"something happens":   {"local function read_intent", "redis.call('PING')\nlocal function read_intent"},
		"an unused function":  {"local function read_intent", "local function nobody(x)\n  return x\nend\n\nlocal function read_intent"},
		"unused, but by one":  {"local function read_intent", "local function one(x)\n  return other(x)\nend\n\nlocal function other(x)\n  return x\nend\n\nlocal function read_intent"},
		"a forbidden library": {"string.match(text, '^(.*) (%d+)$')", "cmsgpack.unpack(text)"},
		"a shadowed function": {"local function read_intent", "local function mode(x)\n  return x\nend\n\nlocal function read_intent"},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		if text == good {
			t.Fatalf("%s: the mutation changed nothing", what)
		}
		if p := checkInclude(name, text, users); p == nil {
			t.Errorf("%s: not noticed", what)
		}
	}
	if p := checkInclude(name, good, nil); p == nil {
		t.Error("no file includes it: not noticed")
	}
}

// Script texts are constants: no input of a caller can become code.
func TestScripts_areOnlyFiles(t *testing.T) {
	err := fs.WalkDir(os.DirFS(".."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if strings.HasPrefix(path, "luascripts/") || strings.HasPrefix(path, "integration/") || strings.HasPrefix(path, "proof/") || strings.HasPrefix(path, "cmd/") { // proof removes conditions from scripts
			return nil
		}
		text, err := os.ReadFile(filepath.Join("..", path))
		if err != nil {
			return err
		}
		for _, word := range []string{"redis.call", "NewLuaScript", "Eval()", "Evalsha("} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s uses %s: scripts live in luascripts", path, word)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
