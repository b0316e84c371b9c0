// Command reliability takes the measurements of docs/evidence/reliability.md, and writes that page.
//
//	go run ./proof/reliability              write the page from results.json
//	go run ./proof/reliability -run 3,4     run the tests of these rows first; "all" for all
//	go run ./proof/reliability -chaos FILE  add rounds that make chaos wrote to LEASEHOLD_CHAOS_RESULTS
//
// Run it in the root of the repository. results.json keeps each result with its commit, so rows can be measured one
// by one. If the tests of a row fail, the row keeps its earlier result, and the command fails. Results of a commit
// that is not in the history of HEAD are rejected, because they cannot be repeated: commit first, and do not rebase later.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The files with the results and the page.
const (
	resultsFile = "proof/reliability/results.json"
	busyFile    = "proof/reliability/rounds.json" // maintained by hand, because it has the cause of each failure
	pageFile    = "docs/evidence/reliability.md"
)

// results has all measurements.
type results struct {
	Rows  map[int]measured
	Chaos map[string]*chaos // by topology and temper
	busy  []busy            // in a separate file
}

// busy has rounds of the whole suite on an overloaded machine (scripts/flaky.sh).
type busy struct {
	When, Commit, Histories, Load string
	Rounds                        int
	Red                           []struct{ Test, Why string }
}

// measured is the result of a row.
type measured struct {
	Commit, Server, Go string
	When               time.Time
	Seconds            float64
	Figures            []string
	Acquisitions       int
}

// chaos is the sum of rounds.
type chaos struct {
	Rounds, Wrong, Overlaps, Lost, Killed, Checked, Porcupine int
	Seconds                                                   float64
	Longest                                                   time.Duration
	Looks                                                     int64
	Granted, Faults                                           map[string]int
	Commits, Servers, Clients, Seeds                          []string
	Latest                                                    time.Time
}

func main() {
	rows := flag.String("run", "", "the `rows` to measure, such as 3,4, or all")
	file := flag.String("chaos", "", "a `file` with results of make chaos to add")
	flag.Parse()
	if err := run(*rows, *file); err != nil {
		fmt.Fprintln(os.Stderr, "reliability:", err)
		os.Exit(1)
	}
}

func run(which, chaosFile string) error {
	r, err := load()
	if err != nil {
		return err
	}
	rows := slices.DeleteFunc(slices.Clone(table), func(row row) bool {
		return which != "all" && !slices.Contains(strings.Split(which, ","), strconv.Itoa(row.number)) || len(row.commands) == 0
	})
	if chaosFile != "" {
		if err := r.take(chaosFile); err != nil {
			return err
		}
	}
	if err := r.check(rows); err != nil {
		return err
	}
	failed := 0
	for _, row := range rows {
		m, err := row.measure()
		if err != nil {
			fmt.Fprintf(os.Stderr, "row %d: %v\n", row.number, err)
			failed++
			continue
		}
		r.Rows[row.number] = m
		if err := r.save(); err != nil {
			return err
		}
	}
	if err := r.save(); err != nil {
		return err
	}
	if err := os.WriteFile(pageFile, []byte(page(r)), 0o644); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d rows failed", failed)
	}
	return nil
}

// check rejects results that cannot be repeated, except those of rows, which are about to be measured again.
func (r results) check(rows []row) error {
	kept := results{Rows: maps.Clone(r.Rows), Chaos: r.Chaos}
	for _, row := range rows {
		kept.Rows[row.number] = measured{Commit: commit()}
	}
	if gone := kept.gone(); len(gone) > 0 {
		return fmt.Errorf("not in the history of HEAD: %s", strings.Join(gone, ", "))
	}
	return nil
}

// gone returns the commits of results that are not in the history of HEAD. In a shallow clone it returns none.
func (r results) gone() (all []string) {
	if output("git", "rev-parse", "--is-shallow-repository") != "false" {
		return nil
	}
	for _, m := range r.Rows {
		all = append(all, m.Commit)
	}
	all = append(all, r.sum("").Commits...)
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(commit string) bool {
		return exec.Command("git", "merge-base", "--is-ancestor", commit, "HEAD").Run() == nil
	})
}

func load() (r results, err error) {
	r = results{Rows: map[int]measured{}, Chaos: map[string]*chaos{}}
	for file, to := range map[string]any{resultsFile: &r, busyFile: &r.busy} {
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, to)
		}
		if err != nil && !os.IsNotExist(err) {
			return r, fmt.Errorf("%s: %w", file, err)
		}
	}
	return r, nil
}

func (r results) save() error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(resultsFile, append(text, '\n'), 0o644)
}

// round is the result of a round, as make chaos writes it.
type round struct {
	Seed                             uint64
	Seconds                          float64
	Topology, Temper, Commit, Server string
	Rueidis, Redisson                string // Redisson is empty if it did not take part
	When                             time.Time
	Report                           struct{ Looks int64 }
	Granted, Faults                  map[string]int
	Overlaps                         int
	Longest                          time.Duration
	Lost, Killed, Checked, Porcupine int
	Wrong                            []string
}

// take adds the rounds in a file.
func (r results) take(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for all := json.NewDecoder(bytes.NewReader(text)); ; {
		var one round
		if err := all.Decode(&one); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		key := one.Topology + " " + one.Temper
		c := r.Chaos[key]
		if c == nil {
			c = &chaos{Granted: map[string]int{}, Faults: map[string]int{}}
			r.Chaos[key] = c
		}
		c.add(one)
	}
}

func (c *chaos) add(one round) {
	c.Rounds++
	c.Wrong += len(one.Wrong)
	c.Overlaps += one.Overlaps
	c.Lost += one.Lost
	c.Killed += one.Killed
	c.Checked += one.Checked
	c.Porcupine += one.Porcupine
	c.Seconds += one.Seconds
	c.Longest = max(c.Longest, one.Longest)
	c.Looks += one.Report.Looks
	for k, n := range one.Granted {
		c.Granted[k] += n
	}
	for k, n := range one.Faults {
		c.Faults[k] += n
	}
	note(&c.Commits, one.Commit)
	note(&c.Servers, one.Server)
	note(&c.Seeds, strconv.FormatUint(one.Seed, 10))
	note(&c.Clients, "rueidis "+one.Rueidis)
	if one.Redisson != "" {
		note(&c.Clients, "Redisson "+one.Redisson)
	}
	if one.When.After(c.Latest) {
		c.Latest = one.When
	}
}

// note adds an entry that is not in the list yet.
func note(list *[]string, what string) {
	if !slices.Contains(*list, what) {
		*list = append(*list, what)
	}
}

// sum adds up the rounds whose topology and temper begin with one of the prefixes.
func (r results) sum(prefixes ...string) (all chaos) {
	all = chaos{Granted: map[string]int{}, Faults: map[string]int{}}
	for _, key := range slices.Sorted(maps.Keys(r.Chaos)) {
		if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			continue
		}
		c := r.Chaos[key]
		all.Rounds += c.Rounds
		all.Wrong += c.Wrong
		all.Overlaps += c.Overlaps
		all.Lost += c.Lost
		all.Killed += c.Killed
		all.Checked += c.Checked
		all.Porcupine += c.Porcupine
		all.Seconds += c.Seconds
		all.Longest = max(all.Longest, c.Longest)
		all.Looks += c.Looks
		for k, n := range c.Granted {
			all.Granted[k] += n
		}
		for k, n := range c.Faults {
			all.Faults[k] += n
		}
		for to, what := range map[*[]string][]string{&all.Commits: c.Commits, &all.Servers: c.Servers, &all.Clients: c.Clients, &all.Seeds: c.Seeds} {
			*to = append(*to, what...)
		}
		if c.Latest.After(all.Latest) {
			all.Latest = c.Latest
		}
	}
	for _, list := range []*[]string{&all.Commits, &all.Servers, &all.Clients, &all.Seeds} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return all
}

// command is a command that measures a row.
type command struct {
	text   string // for sh, at the root of the repository
	take   string // matches a measurement in its output; its groups, if it has some, are joined by commas
	digest func(output string) []string
	note   string // a prefix that distinguishes its measurements within the row
	count  string // its first group is a number of acquisitions
}

// prefix matches what the testing package writes before a line of a log.
var prefix = regexp.MustCompile(`^\s*\S+_test\.go:\d+: (figure: )?`)

// measure runs the commands of a row.
func (r row) measure() (m measured, err error) {
	began, measured := time.Now(), commit() // at the start, because a commit may be made in the meantime
	for _, c := range r.commands {
		fmt.Fprintf(os.Stderr, "row %d: %s\n", r.number, c.text)
		cmd := exec.Command("sh", "-c", c.text)
		cmd.Env = append(os.Environ(), "LEASEHOLD_REQUIRE_REDIS=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return m, fmt.Errorf("%w\n%s", err, out)
		}
		found := c.figures(string(out))
		if c.note != "" {
			for i := range found {
				found[i] = c.note + ": " + found[i]
			}
		}
		if len(found) == 0 {
			return m, fmt.Errorf("no figure in:\n%s", out)
		}
		m.Figures = append(m.Figures, found...)
		if c.count != "" {
			for _, match := range regexp.MustCompile(c.count).FindAllStringSubmatch(string(out), -1) {
				n, err := strconv.Atoi(match[1])
				if err != nil {
					return m, err
				}
				m.Acquisitions += n
			}
		}
	}
	m.Commit, m.Server, m.Go, m.When = measured, server(), runtime.Version(), began.UTC().Truncate(time.Second)
	m.Seconds = time.Since(began).Round(time.Second).Seconds()
	return m, nil
}

// figures returns the measurements in the output of the command.
func (c command) figures(out string) (found []string) {
	if c.digest != nil {
		return c.digest(out)
	}
	take, kind := regexp.MustCompile(c.take), ""
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if name, ok := strings.CutPrefix(line, "=== RUN   "); ok {
			_, kind, _ = strings.Cut(name, "/")
		}
		if name, ok := strings.CutPrefix(line, "=== NAME  "); ok {
			_, kind, _ = strings.Cut(name, "/")
		}
		if !prefix.MatchString(line) {
			continue
		}
		match := take.FindStringSubmatch(prefix.ReplaceAllString(line, ""))
		if match == nil {
			continue
		}
		text := strings.Join(slices.DeleteFunc(slices.Clone(match[1:]), func(group string) bool { return group == "" }), ", ")
		if text == "" {
			text = match[0]
		}
		if kind != "" {
			text = strings.ReplaceAll(kind, "_", " ") + ": " + text
		}
		found = append(found, text)
	}
	return found
}

func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// library has the git pathspecs of the library's sources.
var library = []string{"--", ":(top)*.go", ":(top)*.lua", ":(top)*.pml", ":(top,exclude)integration", ":(top,exclude)proof/benchmarks", ":(top,exclude)internal/redistest"}

// commit returns the latest commit that changed the library.
func commit() string {
	name := output("git", append([]string{"log", "-1", "--format=%h", "--abbrev=12"}, library...)...)
	if exec.Command("git", append([]string{"diff", "--quiet", "HEAD"}, library...)...).Run() != nil {
		name += "-dirty"
	}
	return name
}

// server returns the name and version of the tests' server.
func server() string {
	name := os.Getenv("LEASEHOLD_REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	said := strings.Fields(output(name, "--version"))
	if len(said) < 3 {
		return "unknown"
	}
	return said[0] + " " + strings.TrimPrefix(said[2], "v=")
}
