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

// The header of each script is its contract. These tests read it: what a script
// uses must be listed, by the name of the local that receives it, and each
// listed thing must be used.

var (
	sentence = regexp.MustCompile(`^-- ([a-z_]+): .+`)
	listed   = regexp.MustCompile(`^-- (KEYS|ARGV)\[([0-9a-z*+-]+)\]\s+(\S+)\s+(hash|list|zset|string|text|ms|count)\s+\S`)
	used     = regexp.MustCompile(`(KEYS|ARGV)\[([0-9a-z *+-]+)\]`)
	replies  = regexp.MustCompile(`return (?:redis\.status_reply\()?(-?[0-9]+)`)
	units    = map[string][]string{"KEYS": {"hash", "list", "zset", "string"}, "ARGV": {"text", "ms", "count"}}
)

func scripts(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.lua")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	texts := make(map[string]string)
	for _, name := range names {
		if strings.HasPrefix(name, "include_") {
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

// checkHeader returns what is wrong with the header of a script.
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
	for _, forbidden := range []string{"loadstring", "redis.setresp", "cmsgpack", "bit.", "struct.", "#!"} {
		if strings.Contains(body, forbidden) {
			bad("uses %s, which not every server has", forbidden)
		}
	}
	return problems
}

// The check itself must be able to fail.
func TestHeaders_areReallyChecked(t *testing.T) {
	good := scripts(t)["reentrant_release.lua"]
	if p := checkHeader("reentrant_release.lua", good); p != nil {
		t.Fatalf("the original: %q", p)
	}
	for name, change := range map[string][2]string{
		"unlisted argument": {"local count", "local extra = ARGV[5]\nlocal count"},
		"unused argument":   {"-- Returns 1", "-- ARGV[5] more  text  what nobody reads\n--\n-- Returns 1"},
		"other name":        {"ARGV[2] leave ", "ARGV[2] remain "},
		"wrong unit":        {"-- ARGV[2] leave    count", "-- ARGV[2] leave    hash "},
		"unknown reply":     {"return 1", "return 7"},
		"index twice":       {"return 1", "redis.call('GET', KEYS[1])\nreturn 1"},
		"wrong title":       {"-- reentrant_release:", "-- reentrant_free:"},
		"no replies":        {"Returns", "Gives"},
	} {
		text := strings.Replace(good, change[0], change[1], -1)
		if text == good {
			t.Fatalf("%s: the mutation changed nothing", name)
		}
		if p := checkHeader("reentrant_release.lua", text); p == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

// Script texts are constants: nothing a caller gives can become code.
func TestScripts_areOnlyFiles(t *testing.T) {
	err := fs.WalkDir(os.DirFS(".."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if strings.HasPrefix(path, "luascripts/") || strings.HasPrefix(path, "integration/") || strings.HasPrefix(path, "cmd/") {
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
