package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notUsed has the directories whose messages no user sees.
var notUsed = regexp.MustCompile(`^(proof|integration|scripts|docs|locktest)/|^internal/(\w+test|memredis|house)/`)

// Calls of these names take a message: of an error, of a log line.
var (
	errorCalls = map[string]bool{"errors.New": true, "fmt.Errorf": true, "usagef": true, "http.Error": true}
	logCalls   = map[string]bool{"Warn": true, "Error": true, "Info": true, "Debug": true, "WarnContext": true, "ErrorContext": true, "InfoContext": true, "DebugContext": true, "warn": true, "debug": true, "say": true}
)

var (
	letters = regexp.MustCompile(`\pL{2}`)
	verbs   = regexp.MustCompile(`%[-+# 0-9.*]*[a-zA-Z]`)
)

// messages returns the lines "package: message" of all errors and of all log lines in sources.
func messages(t *testing.T, sources map[string]string) (errs, logs []string) {
	t.Helper()
	foundErrs, foundLogs := make(map[string]bool), make(map[string]bool)
	for path, source := range sources {
		if strings.HasSuffix(path, "_test.go") || notUsed.MatchString(path) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		note := func(to map[string]bool, node ast.Node) {
			ast.Inspect(node, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if text, err := strconv.Unquote(l.Value); err == nil && letters.MatchString(verbs.ReplaceAllString(text, "")) {
						to[filepath.Dir(path)+": "+strings.ReplaceAll(strings.TrimSpace(text), "\n", `\n`)] = true
					}
				}
				return true
			})
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil && n.Name.Name == "Error" && len(n.Type.Params.List) == 0 && n.Body != nil {
					note(foundErrs, n.Body)
				}
			case *ast.CallExpr:
				name, method := called(n.Fun)
				switch at := messageAt(name); {
				case errorCalls[name] && at < len(n.Args):
					note(foundErrs, n.Args[at])
				case method && logCalls[name] && name != "say" && len(n.Args) > 0:
					for _, arg := range n.Args[:min(2, len(n.Args))] { // a context may come first
						if constant(arg) {
							note(foundLogs, arg)
							break
						}
					}
				case method && name == "say" && len(n.Args) > 2:
					note(foundLogs, n.Args[1])
				}
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(foundErrs)), slices.Sorted(maps.Keys(foundLogs))
}

// called returns the name of a function: with its package for errors and fmt, without the receiver for a method.
func called(fun ast.Expr) (name string, method bool) {
	switch f := fun.(type) {
	case *ast.Ident:
		return f.Name, false
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok && errorCalls[x.Name+"."+f.Sel.Name] {
			return x.Name + "." + f.Sel.Name, false
		}
		return f.Sel.Name, true
	}
	return "", false
}

// messageAt returns which argument is the message.
func messageAt(call string) int {
	if call == "http.Error" {
		return 1
	}
	return 0
}

// constant reports whether arg begins with a string literal.
func constant(arg ast.Expr) bool {
	if b, ok := arg.(*ast.BinaryExpr); ok {
		return constant(b.X)
	}
	l, ok := arg.(*ast.BasicLit)
	return ok && l.Kind == token.STRING
}

// badWords are wrong in every message: the style guide for messages has better ones.
var badWords = regexp.MustCompile(`(?i)\b(silent|no answer|somebody|nobody|anybody|anew|meanwhile|besides?|the least|the most|leave (it|them|the option) away|it must|initialis\w*|cancell(ed|ing)|behaviour|recognis\w*|unlocked by force|ran out|gave back|given back|gives back|let go|frozen|crew|patience|is over|of its own)\b`)

// problemsOf returns what is wrong with a message.
func problemsOf(message string) (problems []string) {
	_, text, _ := strings.Cut(message, ": ")
	if bad := badWords.FindString(text); bad != "" {
		problems = append(problems, strconv.Quote(bad))
	}
	if strings.HasSuffix(text, ".") {
		problems = append(problems, "a final period")
	}
	if regexp.MustCompile(`^(A|An|The|It|This|There|No|Not|Cannot|Unknown|Invalid)\b`).MatchString(text) {
		problems = append(problems, "a capital letter")
	}
	return problems
}

// The messages stand in testdata/errors.txt and testdata/logs.txt, for a reader to judge them all. To renew the files:
//
//	go test ./docs -run TestMessages -update
func TestMessages(t *testing.T) {
	errs, logs := messages(t, texts(t, ".go"))
	for file, lines := range map[string][]string{"testdata/errors.txt": errs, "testdata/logs.txt": logs} {
		got := strings.Join(lines, "\n") + "\n"
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		old := strings.Split(strings.TrimSpace(string(want)), "\n")
		for _, l := range lines {
			if !slices.Contains(old, l) {
				t.Errorf("%s lacks: %s\nread it, and run go test ./docs -run TestMessages -update", file, l)
			}
		}
		for _, l := range old {
			if !slices.Contains(lines, l) {
				t.Errorf("%s has what no code says: %s\nrun go test ./docs -run TestMessages -update", file, l)
			}
		}
	}
	if len(errs) < 200 || len(logs) < 10 {
		t.Errorf("%d errors and %d log lines were found", len(errs), len(logs))
	}
	for _, l := range slices.Concat(errs, logs) {
		if p := problemsOf(l); p != nil {
			t.Errorf("%s: %s", l, strings.Join(p, ", "))
		}
	}
}

// Can the test see a message that is wrong, and one that is missing?
func TestMessages_canFail(t *testing.T) {
	source := "package a\nfunc f() {\n\t_ = errors.New(\"The end.\")\n\t_ = fmt.Errorf(\"%w: %w\", a, b)\n\tl.Warn(\"redis is silent\", \"err\", err)\n\tr.say(level, \"lock \"+what, about, args)\n}\nfunc (e E) Error() string { return \"e \" + e.s + \"no answer\" }\n"
	errs, logs := messages(t, map[string]string{"a/a.go": source, "a/a_test.go": "package a\n", "proof/x.go": source})
	if got := strings.Join(errs, "|"); got != "a: The end.|a: no answer" {
		t.Errorf("errors: %s", got)
	}
	if got := strings.Join(logs, "|"); got != "a: lock|a: redis is silent" {
		t.Errorf("log lines: %s", got)
	}
	for message, want := range map[string]int{"a: The end.": 2, "a: no answer": 1, "a: redis is silent": 1, "a: redis unavailable": 0} {
		if got := problemsOf(message); len(got) != want {
			t.Errorf("%s: %q", message, got)
		}
	}
}
