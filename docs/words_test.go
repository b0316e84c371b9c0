package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// wrong are words that have a better one in every sentence of a page for users, with that one.
var wrong = map[string]string{
	`gives? back|given back`:            "release",
	`silent|silence`:                    "unavailable, does not respond",
	`no answer|answers?`:                "reply, response",
	`told|hears?|learns? of`:            "is notified, detects",
	`stands?`:                           "is, is stored, is queued",
	`beside|besides`:                    "next to, in addition to",
	`anew|once more`:                    "again",
	`at the (most|least)`:               "at most, at least",
	`the (least|most) is`:               "must be at least, at most",
	`so many`:                           "at most N",
	`also (if|when)`:                    "even if",
	`of its own`:                        "its own",
	`that of|those that|the one before`: "the noun again",
	`nobody|somebody|anybody`:           "no client, a client",
	`mend(s|ed|ing)?`:                   "fix",
	`patience`:                          "waiter timeout",
	`is over|runs? out|ran out`:         "expires, is canceled",
	`looks? at`:                         "checks",
	`frozen`:                            "paused, unresponsive",
	`carried out`:                       "executed",
	`by force|taken away`:               "force-unlock",
	`rights`:                            "permissions",
	`hand-?overs?|by way of|in line`:    "hand-off, via, in the queue",
	`owed|debts?|crews?`:                "used quota, wait group",
	`believes?d?|promise[sd]?`:          "the fact, guarantee",
	`cancell(ed|ing)|initialis\w*|recognis\w*|behaviour|licences?|catalogues?`: "the American spelling",
}

// wrongPatterns has wrong, compiled: with what follows such a word.
var wrongPatterns = sync.OnceValue(func() map[*regexp.Regexp]string {
	patterns := make(map[*regexp.Regexp]string)
	for words, better := range wrong {
		patterns[regexp.MustCompile(`(?i)\b(`+words+`)\b.{0,30}`)] = better
	}
	return patterns
})

// userPage is whether path is a page for users.
func userPage(path string) bool {
	return path == "README.md" || path == "SECURITY.md" || strings.HasPrefix(path, "docs/") && !strings.HasPrefix(path, "docs/evidence/") && !strings.HasPrefix(path, "docs/internals/")
}

var skipped = regexp.MustCompile(`\]\([^)]*\)|(?ms:^<!-- (?:replies|errors) -->$.*?^<!-- end of)`)

// prose returns text without what a program prints: the blocks without a language, and the log messages of the runbook.
func prose(text string) string {
	var b strings.Builder
	block, skip := false, false
	for line := range strings.Lines(text) {
		if language, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); fence {
			block = !block
			skip = block && (language == "" || language == "text")
		}
		if !skip && !strings.HasPrefix(line, "### Log: ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// wrongWords returns the wrong words of text. It skips what a program prints, links, and tables that have a test.
func wrongWords(text string) (found []string) {
	text = skipped.ReplaceAllString(prose(text), "")
	for words, better := range wrongPatterns() {
		for _, w := range words.FindAllString(text, -1) {
			found = append(found, w+"…: write "+better)
		}
	}
	return found
}

// The pages for users have no words that are always wrong.
func TestWords(t *testing.T) {
	n := 0
	for path, text := range pages(t) {
		if !userPage(path) {
			continue
		}
		n++
		for _, w := range wrongWords(text) {
			t.Errorf("%s: %s", path, w)
		}
	}
	if n < 30 {
		t.Errorf("%d pages for users were found", n)
	}
	if found := wrongWords("The holder is told.\n```sh\nls\n```\n\n```\nsilent\n```\nA lease runs out.\n"); len(found) != 2 {
		t.Errorf("the test finds %q", found)
	}
}

// program is whether the file at path prints what users of the tool or of the web page read.
func program(path string) bool {
	return (strings.HasPrefix(path, "cmd/") || strings.HasPrefix(path, "admin/")) && !strings.HasSuffix(path, "_test.go")
}

// inScript matches a comment or a string of a script.
var inScript = regexp.MustCompile(`//.*|"[^"\n]*"`)

// printed returns what a file of a program can print: its string literals, or the whole of a template.
func printed(t *testing.T, path, source string) (all []string) {
	t.Helper()
	switch {
	case strings.HasSuffix(path, ".html"):
		return []string{source}
	case strings.HasSuffix(path, ".js"):
		for _, s := range inScript.FindAllString(source, -1) {
			if s[0] == '"' {
				all = append(all, s)
			}
		}
		return all
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			text, _ := strconv.Unquote(l.Value) // it was parsed
			all = append(all, text)
		}
		return true
	})
	return all
}

// The tool and the web page have no such words either: in their help, their output, their templates and their script.
func TestWords_programs(t *testing.T) {
	n := 0
	for _, end := range []string{".go", ".html", ".js"} {
		for path, source := range texts(t, end) {
			if !program(path) {
				continue
			}
			for _, text := range printed(t, path, source) {
				n++
				for _, w := range wrongWords(text) {
					t.Errorf("%s: %s", path, w)
				}
				if w := badWords.FindString(text); w != "" {
					t.Errorf("%s: %q in %q", path, w, text)
				}
			}
		}
	}
	if n < 1000 {
		t.Errorf("%d texts were found", n)
	}
	for path, source := range map[string]string{"a.go": "package a\n\n// silent\nvar a = `nobody`", "a.js": "// silent\nlet nobody = \"anew\";", "a.html": "<p title=\"silent\">x</p>"} {
		if found := wrongWords(strings.Join(printed(t, path, source), "\n")); len(found) != 1 {
			t.Errorf("%s: the test finds %q", path, found)
		}
	}
}
