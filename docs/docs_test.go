// Package docs tests the pages: each block of Go is compiled and run, and no link is dead.
package docs

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/memredis"
)

const root = ".."

// pages returns the text of every Markdown page of the repository.
func pages(t *testing.T) map[string]string { return texts(t, ".md") }

// texts returns the text of every file whose name ends so.
func texts(t *testing.T, end string) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".." && d.Name() != ".github"):
			return fs.SkipDir
		case !strings.HasSuffix(path, end):
			return nil
		}
		text, err := os.ReadFile(path)
		texts[strings.TrimPrefix(path, root+"/")] = string(text)
		return err
	})
	if err != nil || len(texts) == 0 {
		t.Fatalf("no %s: %v", end, err)
	}
	return texts
}

// The pages name every kind that events can have: the kinds that are acquired.
func TestKinds(t *testing.T) {
	telemetry, err := os.ReadFile("operate/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := texts(t, ".go")
	name, found := regexp.MustCompile("Name: +\"(\\w+)\""), 0
	for path, text := range sources {
		if strings.HasSuffix(path, "_test.go") || !strings.Contains(text, "session.Kind{") || !strings.Contains(text, "Acquire: ") {
			continue
		}
		for _, kind := range name.FindAllStringSubmatch(text, -1) {
			found++
			if line, _, _ := strings.Cut(string(telemetry[bytes.Index(telemetry, []byte("`leasehold.lock.kind` is")):]), "\n"); !strings.Contains(line, "`"+kind[1]+"`") {
				t.Errorf("operate/telemetry.md does not name the kind %q of %s: %s", kind[1], path, line)
			}
			if _, line, _ := strings.Cut(sources["lock/observer.go"], "Kind string"); !strings.Contains(line[:strings.Index(line, "\n")], kind[0][len(kind[0])-len(kind[1])-2:]) {
				t.Errorf("lock.Event.Kind does not name the kind %q of %s", kind[1], path)
			}
		}
	}
	if found < 6 {
		t.Errorf("%d kinds were found", found)
	}
}

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// Each block of Go on a page stands, line for line, in a file that is compiled and tested. The
// indentation may differ.
func TestBlocks(t *testing.T) {
	compiled := make(map[string]string)
	for path, text := range texts(t, ".go") {
		compiled[path] = plain(text)
	}
	blocks := 0
	for page, text := range pages(t) {
		for _, block := range goBlock.FindAllStringSubmatch(text, -1) {
			blocks++
			if !stands(block[1], compiled) {
				t.Errorf("%s: this stands in no file of Go:\n%s", page, block[1])
			}
		}
	}
	if blocks < 10 {
		t.Errorf("%d blocks were found", blocks)
	}
	if stands("this := not.Compiled()\n", compiled) {
		t.Error("the test finds what is not there")
	}
}

func stands(block string, compiled map[string]string) bool {
	for _, text := range compiled {
		if strings.Contains(text, plain(block)) {
			return true
		}
	}
	return false
}

// plain returns text without indentation, with a line break before and after it.
func plain(text string) string {
	var b strings.Builder
	b.WriteString("\n")
	for line := range strings.Lines(strings.Trim(text, "\n") + "\n") {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

var (
	link    = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	code    = regexp.MustCompile("(?ms)^```.*?^```$|`[^`\n]*`")
)

// Each link inside the repository leads to a file, and to a heading of it. Others are https.
func TestLinks(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, l := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			if why := dead(page, l[1], all); why != "" {
				t.Errorf("%s: %s: %s", page, l[1], why)
			}
		}
	}
	for _, bad := range []string{"no.md", "README.md#no-such-heading", "http://example.com"} {
		if dead("README.md", bad, all) == "" {
			t.Errorf("the test finds nothing wrong with %s", bad)
		}
	}
}

// dead returns what is wrong with a link of a page.
func dead(page, to string, all map[string]string) string {
	if strings.Contains(to, ":") {
		if !strings.HasPrefix(to, "https://") && !strings.HasPrefix(to, "mailto:") {
			return "it is not https"
		}
		return ""
	}
	path, anchor, _ := strings.Cut(to, "#")
	target := page
	if path != "" {
		target = filepath.Join(filepath.Dir(page), path)
	}
	if _, err := os.Stat(filepath.Join(root, target)); err != nil {
		return "there is no such file"
	}
	if anchor == "" {
		return ""
	}
	for _, h := range heading.FindAllStringSubmatch(all[target], -1) {
		if slug(h[1]) == anchor {
			return ""
		}
	}
	return "there is no such heading"
}

// slug returns the anchor that GitHub gives to a heading.
func slug(heading string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(heading) {
		switch {
		case c == ' ':
			b.WriteRune('-')
		case c == '-' || c == '_' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c > 127:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// The program of the README runs as it stands on the page. Started twice, the second process waits until the first one is done.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := goBlock.FindSubmatch(readme)
	if block == nil || !bytes.HasPrefix(block[1], []byte("package main\n")) {
		t.Fatal("the README does not begin with a program")
	}
	s, err := memredis.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const address = "127.0.0.1:6379"
	if !bytes.Contains(block[1], []byte(address)) {
		t.Fatalf("the program does not connect to %s", address)
	}
	dir := t.TempDir()
	main, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(main, bytes.ReplaceAll(block[1], []byte(address), []byte(s.Addr())), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", program, main).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	var both []string // what the two processes print, in this order
	printed := make(chan string)
	start := func(name string) {
		cmd := exec.CommandContext(t.Context(), program)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = cmd.Stdout
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				printed <- name + lines.Text()
			}
			if err := cmd.Wait(); err != nil {
				printed <- name + err.Error()
			}
			printed <- name + "exits"
		}()
	}
	start("1: ")
	for ends := 0; ends < 2; {
		line := <-printed
		both = append(both, line)
		switch line {
		case "1: lock held, step 1 of 3":
			start("2: ")
		case "1: exits", "2: exits":
			ends++
		}
	}
	steps := "lock held, step 1 of 3\nlock held, step 2 of 3\nlock held, step 3 of 3\ndone, lock released\nexits\n"
	for i, name := range []string{"1: ", "2: "} {
		got := ""
		for _, line := range both {
			if text, ok := strings.CutPrefix(line, name); ok {
				got += text + "\n"
			}
		}
		if want := "waiting for the lock\n" + steps; got != want {
			t.Errorf("process %d prints %q, want %q", i+1, got, want)
		}
	}
	first, second := slices.Index(both, "1: lock held, step 3 of 3"), slices.Index(both, "2: lock held, step 1 of 3")
	if second < first {
		t.Errorf("the second process does not wait for the first: %q", both)
	}
	if keys := s.Keys(); len(keys) != 0 {
		t.Errorf("it leaves %s", fmt.Sprint(keys))
	}
}

var (
	shell  = regexp.MustCompile("(?ms)^```(?:sh|text)?\n(.*?)^```$")
	target = regexp.MustCompile(`(?m)^(?:\$ )?make ([a-z]+)`)
	script = regexp.MustCompile(`(?m)^(?:\$ )?sh (\S+\.sh)`)
	gets   = regexp.MustCompile("go get github.com/leasehold-go/leasehold(/[a-z/]+)?")
)

// The targets of make, the scripts and the packages that pages name are there. cmd/leasehold has the test of the calls of the
// tool, and runs them.
func TestShell(t *testing.T) {
	problems := func(text, makefile string) (found int, problems []string) {
		for _, b := range shell.FindAllStringSubmatch(text, -1) {
			for _, m := range target.FindAllStringSubmatch(b[1], -1) {
				found++
				if !strings.Contains("\n"+makefile, "\n"+m[1]+":") && !strings.Contains(makefile, " "+m[1]+": ") {
					problems = append(problems, "there is no make "+m[1])
				}
			}
			for _, m := range script.FindAllStringSubmatch(b[1], -1) {
				found++
				if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
					problems = append(problems, err.Error())
				}
			}
		}
		for _, m := range gets.FindAllStringSubmatch(text, -1) {
			found++
			// The root package imports no other module, so go.sum would lack those that package client imports.
			if files, _ := filepath.Glob(filepath.Join(root, m[1], "*.go")); len(files) == 0 || m[1] == "" {
				problems = append(problems, "not the package that the page uses: "+m[0])
			}
		}
		return found, problems
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for page, text := range pages(t) {
		found, bad := problems(text, string(makefile))
		all += found
		for _, p := range bad {
			t.Errorf("%s: %s", page, p)
		}
	}
	if all < 15 {
		t.Errorf("%d targets, scripts and packages were found", all)
	}
	_, bad := problems("```sh\nmake nonsense\nsh scripts/nonsense.sh\n```\ngo get github.com/leasehold-go/leasehold/nonsense\ngo get github.com/leasehold-go/leasehold\n", string(makefile))
	if len(bad) != 4 {
		t.Errorf("the test finds %q", bad)
	}
}

// comparison finds the table that compares leasehold with others.
var comparison = regexp.MustCompile(`(?m)^\| \| leasehold \|[^\n]*\n(?:\|[^\n]*\n)+`)

// Each cell of the comparison has its proof: those about leasehold a test or a measurement. The README has the same table, without
// the proofs.
func TestComparison(t *testing.T) {
	problems := func(page, readme string) (problems []string) {
		table := comparison.FindString(page)
		if table == "" {
			return []string{"there is no table"}
		}
		for _, row := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
			cells := strings.Split(strings.Trim(row, "|"), "|")
			for i, cell := range cells[1:] {
				links := link.FindAllStringSubmatch(cell, -1)
				if len(links) == 0 {
					problems = append(problems, cells[0]+": a cell without proof: "+cell)
				}
				for _, l := range links {
					if i == 0 && !strings.HasSuffix(l[1], "_test.go") && !strings.HasPrefix(l[1], "performance.md#") {
						problems = append(problems, cells[0]+": neither a test nor a measurement: "+l[1])
					}
				}
			}
		}
		bare := regexp.MustCompile(` \[\(2\)\]\([^)]*\)`).ReplaceAllString(table, "")
		bare = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(bare, "$1")
		if !strings.Contains(readme, "\n"+bare) {
			problems = append(problems, "the README has another table")
		}
		return problems
	}
	all := pages(t)
	for _, p := range problems(all["docs/evidence/comparison.md"], all["README.md"]) {
		t.Error(p)
	}
	bad := "| | leasehold | other |\n|---|---|---|\n| safe | [yes](README.md) | no |\n\n"
	if p := problems(bad, "| safe | yes | yes |\n"); len(p) != 3 {
		t.Errorf("the test finds %q", p)
	}
}

// The figures of the charts are measurements.
func TestChart(t *testing.T) {
	number := func(text string) float64 {
		n, _ := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
		return n
	}
	measured := map[float64]bool{} // with one digit after the point, and rounded
	for _, cell := range regexp.MustCompile(`\| ([0-9,.]+)`).FindAllStringSubmatch(pages(t)["docs/evidence/performance.md"], -1) {
		measured[number(cell[1])], measured[math.Round(number(cell[1]))] = true, true
	}
	for name, want := range map[string]struct {
		figure *regexp.Regexp
		n      int
	}{
		"performance.svg":          {regexp.MustCompile(`font-size="13">([0-9,]+)</text>`), 15},
		"performance-distance.svg": {regexp.MustCompile(`: ([0-9,]+)</text>`), 5},
		"performance-waiters.svg":  {regexp.MustCompile(`: ([0-9,.]+)</text>`), 4},
	} {
		chart, err := os.ReadFile("pictures/" + name)
		if err != nil {
			t.Fatal(err)
		}
		figures := want.figure.FindAllSubmatch(chart, -1)
		for _, f := range figures {
			if !measured[number(string(f[1]))] {
				t.Errorf("%s has %s, which evidence/performance.md does not have", name, f[1])
			}
		}
		if len(figures) != want.n {
			t.Errorf("%s: %d figures were found", name, len(figures))
		}
	}
}

var warning = regexp.MustCompile(`(?:report\.warn\(|\.say\(slog\.Level\w+, )"([^";]*)`)

// The runbook has an entry for each warning and each error that a client can log.
func TestRunbook(t *testing.T) {
	runbook := pages(t)["docs/operate/runbook.md"]
	found := 0
	for path, text := range texts(t, ".go") {
		for _, w := range warning.FindAllStringSubmatch(text, -1) {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			found++
			if !strings.Contains(runbook, "\n### Log: "+strings.TrimSpace(w[1])) {
				t.Errorf("%s: the runbook has no entry for %q", path, w[1])
			}
		}
	}
	if found < 7 {
		t.Errorf("%d warnings were found", found)
	}
}

var (
	mistake = regexp.MustCompile(`(?m)^\| (?:safety|liveness) \| ([^|]*) \|.*\| (.*) \|$`)
	mended  = regexp.MustCompile(`^(\d{4}-\d\d-\d\d) ([0-9a-f]{12})$`)
	quoted  = regexp.MustCompile("`([^`]+)`")
)

// Each mistake in the track record names tests that are where it says, or mutants of the model.
func TestTrackRecord(t *testing.T) {
	code, model := texts(t, "_test.go"), texts(t, "check.sh")["proof/model/check.sh"]
	problems := func(page string) (problems []string, found int) {
		for _, row := range mistake.FindAllStringSubmatch(page, -1) {
			dir, proofs := "", 0
			for _, q := range quoted.FindAllStringSubmatch(row[2], -1) {
				name, prefix := strings.CutSuffix(q[1], "…")
				switch {
				case strings.HasPrefix(name, "Test"), strings.HasPrefix(name, "Fuzz"):
					proofs++
					there := false
					for path, text := range code {
						there = there || filepath.Dir(path) == dir && (strings.Contains(text, "\nfunc "+name+"(t ") || strings.Contains(text, "\nfunc "+name+"(f ") || prefix && strings.Contains(text, "\nfunc "+name))
					}
					if !there {
						problems = append(problems, fmt.Sprintf("%s has no %s", dir, q[1]))
					}
				case regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` `).MatchString(model):
					proofs++
				default:
					dir = name
				}
			}
			if found++; proofs == 0 {
				problems = append(problems, "nothing holds: "+row[0])
			}
		}
		return problems, found
	}
	all, found := problems(pages(t)["docs/evidence/track-record.md"])
	for _, p := range all {
		t.Error(p)
	}
	if found < 130 {
		t.Errorf("%d mistakes were found", found)
	}
	bad := "| safety | a | b | c | `lock`: `TestNowhere` |\n| liveness | a | b | c | hope |\n| safety | a | b | c | the mutant `no-number` |\n"
	if p, n := problems(bad); len(p) != 2 || n != 3 {
		t.Errorf("the test finds %q", p)
	}
}

// Each mistake in the track record names the commits that mended it, which are in the history of HEAD, and their dates.
func TestTrackRecord_commits(t *testing.T) {
	git := func(args ...string) string {
		out, err := exec.Command("git", args...).Output()
		if err != nil {
			t.Skipf("git does not tell: %v", err)
		}
		return strings.TrimSpace(string(out))
	}
	if git("rev-parse", "--is-shallow-repository") != "false" {
		t.Skip("a shallow clone does not know its history")
	}
	dates := make(map[string]string) // of each commit, by the first digits of its name
	for line := range strings.Lines(git("log", "--format=%H %ad", "--date=format:%Y-%m-%d")) {
		dates[line[:12]] = strings.Fields(line)[1]
	}
	problems := func(page string) (problems []string) {
		for _, row := range mistake.FindAllStringSubmatch(page, -1) {
			for entry := range strings.SplitSeq(row[1], ", ") {
				switch m := mended.FindStringSubmatch(entry); {
				case m == nil:
					problems = append(problems, fmt.Sprintf("%q is no date and commit: %s", entry, row[0]))
				case dates[m[2]] == "":
					problems = append(problems, m[2]+" is not in the history of HEAD")
				case dates[m[2]] != m[1]:
					problems = append(problems, fmt.Sprintf("%s is of %s, not of %s", m[2], dates[m[2]], m[1]))
				}
			}
		}
		return problems
	}
	for _, p := range problems(pages(t)["docs/evidence/track-record.md"]) {
		t.Error(p)
	}
	first := git("rev-list", "--max-parents=0", "HEAD")[:12]
	row := func(mended string) string { return "| safety | " + mended + " | a | b | `lock`: `TestX` |\n" }
	good := dates[first] + " " + first
	bad := row("not recorded") + row("2026-11-21 000000000000") + row("2000-01-01 "+first) + row(good+", "+dates[first]+" "+first[:7])
	if p := problems(row(good+", "+good) + bad); len(p) != 4 {
		t.Errorf("the test finds %q", p)
	}
}

// The track record says how many mutants of the models, and of the locks in chaos and in the simulation, must be caught.
func TestTrackRecord_mutants(t *testing.T) {
	page, n := pages(t)["docs/evidence/track-record.md"], make(map[string]int)
	for _, run := range regexp.MustCompile(`(?m)^(fair-|rw-|linger-|)\S+ +(\w+) +-D`).FindAllStringSubmatch(texts(t, "check.sh")["proof/model/check.sh"], -1) {
		if run[2] != "holds" {
			n[run[1]]++
		}
	}
	_, list, _ := strings.Cut(texts(t, "mutants_test.go")["integration/chaos/mutants_test.go"], "\nvar mutants = []mutant{\n")
	list, _, _ = strings.Cut(list, "\n}\n")
	played := texts(t, "mutants.go")["proof/sim/explore/mutants.go"]
	for _, says := range []string{
		fmt.Sprintf("the plain lock, with %d mutants that must be caught, the fair lock, with %d, the read/write lock, with %d, and a lock that lingers, with %d |", n[""], n["fair-"], n["rw-"], n["linger-"]),
		fmt.Sprintf("an exact checker, and Porcupine; %d mutants that must be caught |", strings.Count("\n"+list, "\n\t{\n")),
		fmt.Sprintf("is shrunk; %d mutants that must be caught |", strings.Count(played, "\n\t{\"")),
	} {
		if !strings.Contains(page, says) {
			t.Errorf("the page does not say: %s", says)
		}
	}
}
