package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The page matches the results, every row was measured, and every result can be measured again.
func TestPage(t *testing.T) {
	t.Chdir("../..")
	r, err := load()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != page(r) {
		t.Errorf("%s does not match the results; run: go run ./proof/reliability", pageFile)
	}
	if len(table) != 27 {
		t.Errorf("got %d rows, want 27", len(table))
	}
	for i, row := range table {
		if row.number != i+1 {
			t.Errorf("row %d is at position %d", row.number, i+1)
		}
		if len(row.cell(r)) == 0 {
			t.Errorf("row %d was not measured", row.number)
		}
	}
	if gone := r.gone(); len(gone) > 0 {
		t.Errorf("results of commits that are not in the history of HEAD, so they cannot be repeated: %s", strings.Join(gone, ", "))
	}
	if c := r.sum(""); c.Wrong > 0 {
		t.Errorf("the results contain %d violations in chaos rounds", c.Wrong)
	}
}

// Results of a commit that is not in the history are rejected, unless they are about to be replaced.
func TestCheck(t *testing.T) {
	if output("git", "rev-parse", "--is-shallow-repository") != "false" {
		t.Skip("a shallow clone lacks the history")
	}
	head := output("git", "rev-parse", "--short=12", "HEAD")
	r := results{Rows: map[int]measured{3: {Commit: head}}, Chaos: map[string]*chaos{"quorum safe": {Commits: []string{head}}}}
	if err := r.check(nil); err != nil {
		t.Error(err)
	}
	r.Chaos["quorum safe"].Commits = append(r.Chaos["quorum safe"].Commits, head+"-dirty")
	r.Rows[4] = measured{Commit: "000000000000"}
	if err := r.check(nil); err == nil || !strings.Contains(err.Error(), "HEAD: 000000000000, "+head+"-dirty") {
		t.Error(err)
	}
	if err := r.check([]row{{number: 4}}); err == nil || strings.Contains(err.Error(), "000000000000") {
		t.Error(err)
	}
}

// figures, fuzzed and modelled extract measurements from the output of a command.
func TestFigures(t *testing.T) {
	out := "=== RUN   TestX\n=== RUN   TestX/plain\n    x_test.go:3: LEASEHOLD_SEED=1\n    x_test.go:12: figure: 7 calls, 0 wrong\n=== NAME  TestX\n    x_test.go:13: 8 in all\n--- PASS: TestX\n"
	got := command{take: `\d+ (?:calls|in all).*`}.figures(out)
	if strings.Join(got, "|") != "plain: 7 calls, 0 wrong|8 in all" {
		t.Errorf("%q", got)
	}
	if got := (command{take: `(\d+) calls, (\d+)`}).figures(out); len(got) != 1 || got[0] != "plain: 7, 0" {
		t.Errorf("%q", got)
	}
	if got := fuzzed("== ./lock FuzzName\nfuzz: elapsed: 3s, execs: 100 (33/sec)\nfuzz: elapsed: 6s, execs: 250 (50/sec)\n== ./x FuzzReply\nfuzz: elapsed: 3s, execs: 30 (9/sec)\n"); len(got) != 1 || got[0] != "2 fuzz tests, 280 inputs, 0 crashes" {
		t.Errorf("%q", got)
	}
	if got := modelled("run wanted found states seconds bounds\none-process holds holds 1200 2 -DNC\nno-number two two 33 1 -DN\nbroken two holds 3 1 -D\nsteps of fair: FOLLOWED 3 of 3 steps\nhistories: LEASEHOLD_SEED=1\nhistories of rw: FOLLOWED 9 of 9 histories\n"); len(got) != 1 ||
		got[0] != "1 searches with 1,200 states in total: all properties hold; 1 mutants, all detected; steps of fair: 3 of 3 followed; histories of rw: 9 of 9 followed" {
		t.Errorf("%q", got)
	}
}

// Rounds are added up by topology and temper.
func TestTake(t *testing.T) {
	file := t.TempDir() + "/rounds"
	rounds := `{"Seed":7,"Topology":"quorum","Temper":"safe","Commit":"a","Server":"redis 7","Checked":10,"Granted":{"quorum":10},"Faults":{"freeze":2},"Longest":5}
{"Seed":7,"Topology":"quorum","Temper":"safe","Commit":"b","Server":"redis 7","Checked":5,"Granted":{"quorum":5},"Wrong":["x"],"Longest":3}
{"Seed":8,"Topology":"cluster","Temper":"calm","Commit":"b","Server":"redis 7","Rueidis":"v1","Redisson":"4","Checked":1,"Granted":{"fair":1}}
`
	if err := os.WriteFile(file, []byte(rounds), 0o600); err != nil {
		t.Fatal(err)
	}
	r := results{Chaos: map[string]*chaos{}}
	if err := r.take(file); err != nil {
		t.Fatal(err)
	}
	q := r.sum("quorum")
	if q.Rounds != 2 || q.Checked != 15 || q.Wrong != 1 || q.Longest != 5 || q.Granted["quorum"] != 15 || q.Faults["freeze"] != 2 || len(q.Commits) != 2 {
		t.Errorf("%+v", q)
	}
	if all := r.sum(""); all.Checked != 16 || len(all.Seeds) != 2 || !slices.Contains(all.Clients, "rueidis v1") || !slices.Contains(all.Clients, "Redisson 4") {
		t.Errorf("%+v", all)
	}
}
