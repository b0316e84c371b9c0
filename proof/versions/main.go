// Command versions runs the tests that depend on the server on several servers, and writes their results to docs/evidence/compatibility.md.
//
//	go run ./proof/versions                             write the page from results.json
//	go run ./proof/versions -on FILE,FILE               run all parts on these servers first
//	go run ./proof/versions -on FILE -parts rules,tls   run only these parts
//
// Run it in the root of the repository. Each row is saved as soon as its part has run, with the commit and the
// date, so the table can be completed in several runs. If a test fails, the table names it and the command fails.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The files with the results and the page.
const (
	resultsFile = "proof/versions/results.json"
	pageFile    = "docs/evidence/compatibility.md"
)

// part is a group of tests; each server has a row for it.
type part struct {
	name, mode, what string
	test             []string // arguments of go test
	root             bool     // in the library's module instead of integration
	env              []string // environment variables that the tests read
}

// chaos returns the environment for rounds of package chaos on these topologies. The seed is the same for every server.
func chaos(topologies string) []string {
	return []string{"SEED=16", "DURATION=1m", "ROUND_TIME=10s", "LEASEHOLD_CHAOS_TOPOLOGIES=" + topologies}
}

var parts = []part{
	{name: "scripts", mode: "standalone", what: "the scripts, and the sessions that send them", test: []string{"./luascripts", "./internal/session"}, root: true},
	{name: "packages", mode: "standalone", what: "all packages that send commands; for each type of object, that the documented permissions suffice and that each is needed", test: []string{
		"./admin", "./bloom", "./client", "./fairlock", "./fence", "./internal/command", "./internal/pubsub", "./internal/redistest", "./internal/registry", "./internal/slots", "./latch", "./leader", "./multilock", "./ratelimit", "./reentrant", "./rwlock", "./semaphore"}, root: true},
	{name: "rules", mode: "standalone", what: "conformance tests of all types: over TCP, with minimal permissions, and over a Unix socket", test: []string{"-run", "^TestConformance(_unixSocket|_leastRights)?$", "."}},
	{name: "tls", mode: "all", what: "conformance tests of all types over mutual TLS: one server, Sentinel, cluster", test: []string{"-run", "^TestConformance_tls", "."}},
	{name: "faults", mode: "standalone", what: "mutual exclusion, killed processes, lost replies, fair queues, readers and writers, tokens", test: []string{"-run", "^Test(Exclusion|Crash|LostReply|FairQueue|ReadWrite|Fencing)", "."}},
	{name: "histories", mode: "standalone", what: "histories with random faults: all types of locks, and a quorum of five servers", test: []string{"-run", "^TestChaos$", "./chaos"}, env: chaos("standalone,quorum")},
	{name: "sentinel", mode: "Sentinel", what: "conformance tests with minimal permissions; failovers under load; replica confirmation", test: []string{"-run", "^Test(Conformance_sentinel$|Failover|Replicas)", "-skip", "(?i)tls", "."}},
	{name: "histories-sentinel", mode: "Sentinel", what: "histories with random faults, including failovers", test: []string{"-run", "^TestChaos$", "./chaos"}, env: chaos("sentinel")},
	{name: "cluster", mode: "cluster", what: "conformance tests with minimal permissions, and during a slot migration; failovers and slot migrations under load", test: []string{"-run", "^Test(Conformance_cluster|Conformance_leastRightsOnACluster|Cluster_(probe|failovers|migrations|halfOfALock))$", "."}},
	{name: "histories-cluster", mode: "cluster", what: "histories with random faults, including failovers and slot migrations", test: []string{"-run", "^TestChaos$", "./chaos"}, env: chaos("cluster")},
	{name: "one-address", mode: "cluster", what: "conformance tests on a cluster behind one address; slot migrations and planned failovers under load", test: []string{"-run", "^TestOneAddress_", "."}},
	{name: "planned", mode: "all", what: "planned failovers under load that leave old connections open: FAILOVER, SENTINEL FAILOVER, CLUSTER FAILOVER", test: []string{"-run", "^TestPlanned_", "."}},
	{name: "resp2", mode: "all", what: "conformance tests using RESP2; all other parts use RESP3", test: []string{"-run", "^TestRESP2_", "."}},
	{name: "counters", mode: "Sentinel, cluster", what: "latches, wait groups, semaphores, elections and rate limiters during failovers and slot migrations", test: []string{"-run", "^Test(Latch|WaitGroup|Semaphore|Election|RateLimit)_", "."}},
}

// library has the git pathspecs of the library: what programs import, without tests.
var library = []string{"--", ":(top)*.go", ":(top)*.lua", ":(top,exclude)*_test.go", ":(top,exclude)integration", ":(top,exclude)proof", ":(top,exclude)internal/redistest"}

// row is the result of a part on a server.
type row struct {
	Server, Part, Commit    string
	When                    time.Time
	Seconds                 float64
	Passed, Failed, Skipped int
	Holds                   int      `json:",omitempty"` // checked by package chaos
	Red                     []string // the tests and packages that failed
	Before                  []string `json:",omitempty"` // what failed in earlier runs at the same commit
	Skips                   []skip   `json:",omitempty"`
	Lacks                   string   // why the part cannot run on this server, if it cannot
}

// after adds what failed in the previous run to Before, if that run had the same commit.
func (r *row) after(old row) {
	if old.Commit == r.Commit {
		r.Before = slices.Compact(slices.Sorted(slices.Values(slices.Concat(old.Before, old.Red))))
	}
}

// skip is a skipped test, and the reason it logged.
type skip struct{ Test, Why string }

func main() {
	on := flag.String("on", "", "the server `binaries`, separated by commas")
	which := flag.String("parts", "", "the `parts` to run, separated by commas (default all)")
	flag.Parse()
	if err := run(*on, *which); err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
}

func run(on, which string) error {
	rows, err := load()
	if err != nil {
		return err
	}
	var red []string
	for _, binary := range strings.FieldsFunc(on, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		server, err := version(binary)
		if err != nil {
			return err
		}
		for _, p := range parts {
			if which != "" && !slices.Contains(strings.Split(which, ","), p.name) {
				continue
			}
			r, err := p.on(binary)
			if err != nil {
				return fmt.Errorf("%s on %s: %w", p.name, server, err)
			}
			r.Server, r.Part = server, p.name
			fmt.Printf("%-14s %-9s %4d passed, %d failed, %d skipped, %.0f s %s\n", r.Server, r.Part, r.Passed, r.Failed, r.Skipped, r.Seconds, strings.Join(r.Red, " ")+r.Lacks)
			if len(r.Red) > 0 {
				red = append(red, r.Part+" on "+r.Server)
			}
			rows = slices.DeleteFunc(rows, func(old row) bool {
				same := old.Server == r.Server && old.Part == r.Part
				if same {
					r.after(old)
				}
				return same
			})
			if rows = append(rows, r); save(rows) != nil {
				return save(rows)
			}
		}
	}
	if err := save(rows); err != nil {
		return err
	}
	if len(red) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(red, ", "))
	}
	return nil
}

// on runs the part on a server.
func (p part) on(binary string) (r row, err error) {
	began := time.Now()
	r.When = began.UTC().Truncate(time.Second)
	if r.Commit, err = commit(); err != nil {
		return r, err
	}
	if p.name == "tls" && !speaksTLS(binary) {
		r.Lacks = "this build has no TLS"
		return r, nil
	}
	absolute, err := exec.LookPath(binary)
	if err == nil {
		absolute, err = filepath.Abs(absolute)
	}
	if err != nil {
		return r, err
	}
	cmd := exec.Command("go", append([]string{"test", "-json", "-short", "-count=1", "-timeout", "25m"}, p.test...)...)
	if !p.root {
		cmd.Dir = "integration"
	}
	rounds := filepath.Join(os.TempDir(), fmt.Sprintf("leasehold-versions-%d", os.Getpid()))
	defer os.Remove(rounds)
	cmd.Env = append(append(os.Environ(), "CI=true", "LEASEHOLD_VERSIONS=1", "LEASEHOLD_REDIS_SERVER="+absolute, "LEASEHOLD_CHAOS_RESULTS="+rounds), p.env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	if err := r.count(out, os.Stderr); err != nil {
		return r, err
	}
	failed := cmd.Wait()
	if r.Passed+r.Failed+r.Skipped == 0 {
		return r, errors.Join(errors.New("no test ran"), failed)
	}
	if failed != nil && len(r.Red) == 0 {
		r.Red = []string{failed.Error()}
	}
	if r.Holds, err = holds(rounds); err != nil {
		return r, err
	}
	r.Seconds = time.Since(began).Round(time.Second).Seconds()
	return r, nil
}

// holds returns the number of holds that package chaos checked, according to the file it wrote. It is 0 if there is no file.
func holds(file string) (sum int, err error) {
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return 0, nil
	}
	for decoder := json.NewDecoder(bytes.NewReader(text)); err == nil; {
		var round struct{ Checked int }
		err = decoder.Decode(&round)
		sum += round.Checked
	}
	if err == io.EOF {
		err = nil
	}
	return sum, err
}

// remark matches a line that a test logged.
var remark = regexp.MustCompile(`(?m)^ +\w+\.go:\d+: (.+)$`)

// count counts the tests in the output of go test -json, and prints the output of failed ones. A test with
// subtests counts by its subtests.
func (r *row) count(from io.Reader, to io.Writer) error {
	type event struct{ Action, Package, Test, Output string }
	type test struct{ pkg, name string }
	ended, said := map[test]string{}, map[test][]string{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // compiler output
		}
		t := test{e.Package, e.Test}
		switch e.Action {
		case "output":
			said[t] = append(said[t], e.Output)
		case "pass", "fail", "skip":
			ended[t] = e.Action
		}
	}
	parents := map[test]bool{} // true: not counted, unlike a parent that failed although no subtest did
	for t, what := range ended {
		for name := t.name; ; {
			at := strings.LastIndex(name, "/")
			if at < 0 {
				break
			}
			name = name[:at]
			parent := test{t.pkg, name}
			parents[parent] = parents[parent] || what == "fail" || ended[parent] != "fail"
		}
	}
	for t, what := range ended {
		if what == "fail" {
			fmt.Fprintln(to, strings.Join(said[t], ""))
		}
		if t.name == "" {
			if what == "fail" && !slices.ContainsFunc(slices.Collect(maps.Keys(ended)), func(o test) bool { return o.pkg == t.pkg && o.name != "" && ended[o] == "fail" }) {
				r.Red = append(r.Red, t.pkg)
			}
			continue
		}
		if what == "fail" && !strings.Contains(t.name, "/") {
			r.Red = append(r.Red, t.name)
		}
		if parents[t] {
			continue
		}
		switch what {
		case "pass":
			r.Passed++
		case "fail":
			r.Failed++
		case "skip":
			r.Skipped++
			why := ""
			if found := remark.FindStringSubmatch(strings.Join(said[t], "")); found != nil {
				why = found[1]
			}
			r.Skips = append(r.Skips, skip{t.name, why})
		}
	}
	slices.Sort(r.Red)
	slices.SortFunc(r.Skips, func(a, b skip) int { return cmp.Compare(a.Test, b.Test) })
	return lines.Err()
}

var number = regexp.MustCompile(`v=([0-9.]+)`)

// version returns the name and version of a server, such as Redis 7.4.1.
func version(binary string) (string, error) {
	out, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", binary, err)
	}
	found := number.FindStringSubmatch(string(out))
	if found == nil {
		return "", fmt.Errorf("%s --version printed no version: %q", binary, out)
	}
	name := "Redis"
	if strings.Contains(filepath.Base(binary), "valkey") {
		name = "Valkey"
	}
	return name + " " + found[1], nil
}

// speaksTLS reports whether the server was built with TLS. Only such a build complains that no key file is configured.
func speaksTLS(binary string) bool {
	out, _ := exec.Command(binary, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/nowhere").CombinedOutput()
	return strings.Contains(string(out), "No tls-key-file configured")
}

// commit returns the latest commit that changed the library.
func commit() (string, error) {
	out, err := exec.Command("git", append([]string{"log", "-1", "--format=%h", "--abbrev=12"}, library...)...).Output()
	name := strings.TrimSpace(string(out))
	if err == nil && exec.Command("git", append([]string{"diff", "--quiet", "HEAD"}, library...)...).Run() != nil {
		name += "-dirty"
	}
	return name, err
}

func load() (rows []row, err error) {
	text, err := os.ReadFile(resultsFile)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	return rows, err
}

// save writes the results and the page.
func save(rows []row) error {
	sort(rows)
	text, err := json.MarshalIndent(rows, "", "\t")
	if err == nil {
		err = os.WriteFile(resultsFile, append(text, '\n'), 0o644)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(pageFile, []byte(page(rows)), 0o644)
}
