package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The page matches the results, and every row belongs to an existing part.
func TestPage(t *testing.T) {
	t.Chdir("../..")
	rows, err := load()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != page(rows) {
		t.Errorf("%s does not match the results; run: go run ./proof/versions", pageFile)
	}
	for _, r := range rows {
		if place(r.Part) < 0 {
			t.Errorf("a row has the unknown part %s", r.Part)
		}
		if r.Lacks == "" && r.Passed == 0 {
			t.Errorf("%s on %s: nothing passed", r.Part, r.Server)
		}
	}
}

// A test with subtests counts by its subtests. Failed tests are named, and so is a package that fails without a failing test.
func TestCount(t *testing.T) {
	out := `{"Action":"pass","Package":"p","Test":"TestA/x/y"}
{"Action":"fail","Package":"p","Test":"TestA/x/z"}
{"Action":"output","Package":"p","Test":"TestA/x/z","Output":"why"}
{"Action":"fail","Package":"p","Test":"TestA/x"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: the server is too old\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p"}
not of the tests
{"Action":"pass","Package":"q","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestD/x"}
{"Action":"fail","Package":"p","Test":"TestD"}
{"Action":"fail","Package":"q"}
`
	var r row
	var said strings.Builder
	if err := r.count(strings.NewReader(out), &said); err != nil {
		t.Fatal(err)
	}
	if r.Passed != 4 || r.Failed != 2 || r.Skipped != 1 || !slices.Equal(r.Red, []string{"TestA", "TestD", "q"}) || !slices.Equal(r.Skips, []skip{{"TestB", "the server is too old"}}) {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(said.String(), "why") {
		t.Errorf("the output of the failed test is missing: %q", said.String())
	}
}

// The page lists a skipped test once, with its reason and all servers.
func TestSkips(t *testing.T) {
	b := skip{"TestB", "too old"}
	text := page([]row{{Server: "Redis 6.2", Part: "rules", Skips: []skip{b}}, {Server: "Redis 7.4", Part: "rules", Skips: []skip{b}}})
	if !strings.HasSuffix(text, "\n| `TestB` | too old | Redis 6.2, Redis 7.4 |\n") || strings.Count(text, "TestB") != 1 {
		t.Error(text)
	}
}

// If a part runs again, the row keeps earlier failures, unless the library has changed.
func TestBefore(t *testing.T) {
	red := row{Server: "Redis 6.2", Part: "rules", Commit: "a", Red: []string{"TestB"}, Before: []string{"TestA"}}
	again, changed := row{Server: "Redis 6.2", Part: "rules", Commit: "a"}, row{Server: "Redis 6.2", Part: "rules", Commit: "b"}
	again.after(red)
	changed.after(red)
	if text := page([]row{again}); !strings.Contains(text, "| none; before: TestA, TestB |") {
		t.Error(text)
	}
	if text := page([]row{changed}); !strings.Contains(text, "| none |") {
		t.Error(text)
	}
}

// The holds of all rounds are added; a part without rounds has none.
func TestHolds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rounds")
	if sum, err := holds(file); sum != 0 || err != nil {
		t.Errorf("no rounds: %d, %v", sum, err)
	}
	if err := os.WriteFile(file, []byte("{\"Checked\":20}\n{\"Checked\":3}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if sum, err := holds(file); sum != 23 || err != nil {
		t.Errorf("two rounds: %d, %v", sum, err)
	}
	if err := os.WriteFile(file, []byte("{\"Checked\":20}\n{\"Che"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := holds(file); err == nil {
		t.Error("a truncated file is accepted")
	}
}

// Rows are sorted by server name, then by version.
func TestSort(t *testing.T) {
	rows := []row{{Server: "Valkey 9.1.2", Part: "rules"}, {Server: "Redis 10.0", Part: "rules"}, {Server: "Redis 8.2.3", Part: "cluster"}, {Server: "Redis 8.2.3", Part: "scripts"}}
	sort(rows)
	if got := servers(rows); !slices.Equal(got, []string{"Redis 8.2.3", "Redis 10.0", "Valkey 9.1.2"}) || rows[0].Part != "scripts" {
		t.Errorf("%q, %+v", got, rows)
	}
}
