//go:build linux

package chaos_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// oldest is the commit whose clients must share keys with today's clients, until there is a release.
const oldest = "c06f736ad90402ff887e39c38ccb0ce613ad39ab"

// oldSuffix marks the names of processes that run an older version.
const oldSuffix = "-old"

// oldWorker is the worker of an older version.
type oldWorker struct {
	version, binary string
	source          string // the worker's source
}

// oldNames maps types to their names in older versions.
var oldNames = map[string]string{"waitgroup": "crew"}

// places returns places with the type names of the older version.
func (o *oldWorker) places(all []place) []place {
	all = slices.Clone(all)
	for i, p := range all {
		if was := oldNames[p.Kind]; was != "" && !o.knows(p.Kind) {
			all[i].Kind = was
		}
	}
	return all
}

func (o *oldWorker) knows(kind string) bool {
	return strings.Contains(o.source, "case "+strconv.Quote(kind)+":")
}

// oldVersion returns the version named by OLD, or the latest release, or oldest.
func oldVersion() string {
	if given := os.Getenv("OLD"); given != "" {
		return given
	}
	tag, _ := exec.Command("git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^").Output() // there may be none
	return cmp.Or(strings.TrimSpace(string(tag)), oldest)
}

// buildOld builds the worker of an older version, with the bug of broken if that is not nil.
func buildOld(t *testing.T, version string, broken *mutant) *oldWorker {
	t.Helper()
	dir := t.TempDir()
	do := func(in, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = in
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, said)
		}
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	do("../..", "git", "archive", "-o", filepath.Join(dir, "old.tar"), version)
	do(dir, "tar", "-xf", "old.tar")
	if broken != nil {
		file := filepath.Join(dir, broken.file)
		text := read(file)
		if strings.Count(text, broken.old) != 1 {
			t.Fatalf("%s of %s: want once: %q", broken.file, version, broken.old)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(text, broken.old, broken.new, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	chaos := filepath.Join(dir, "integration", "chaos")
	if was, is := fieldsOf(read(filepath.Join(chaos, "record_test.go"))), fieldsOf(read("record_test.go")); was != is {
		t.Fatalf("the records of %s have other fields: want\n%s, got\n%s", version, is, was)
	}
	o := &oldWorker{version: version, binary: filepath.Join(dir, "old.test"), source: read(filepath.Join(chaos, "worker_test.go"))}
	do(filepath.Dir(chaos), "go", "test", "-c", "-o", o.binary, "./chaos")
	return o
}

var comments = regexp.MustCompile(`[ \t]*//.*`)

// fieldsOf returns the fields of a record in the source of a worker.
func fieldsOf(source string) string {
	_, rest, _ := strings.Cut(source, "\ntype record struct {\n")
	fields, _, _ := strings.Cut(rest, "\n}\n")
	return strings.Join(strings.Fields(comments.ReplaceAllString(fields, "")), " ")
}

// Clients of an older version share keys with clients of this version: in a deploy and its rollback, and then in rounds of
// chaos, in which a process that is killed is replaced by a process of the other version. OLD names the older version.
func TestUpgrade(t *testing.T) {
	if os.Getenv("LEASEHOLD_UPGRADE") == "" {
		t.Skip("make upgrade runs it: it builds an older version first")
	}
	var broken *mutant
	if name := os.Getenv("LEASEHOLD_UPGRADE_MUTANT"); name != "" {
		broken = mutantNamed(t, name)
	}
	old := buildOld(t, oldVersion(), broken)
	each := setting(t, "ROUND_TIME", 15*time.Second, time.ParseDuration)
	seed := setting(t, "SEED", rand.Uint64()>>32, number)
	t.Logf("SEED=%d  clients of %s next to clients of %s", seed, old.version, commit())
	t.Run("deploy", func(t *testing.T) { deploy(t, seed, old) })
	for round := 0; round < 4 && !t.Failed(); round++ {
		p := newPlan(seed, round, each)
		p.Old = func(slot, life int) *oldWorker {
			if (slot+life)%2 == 0 {
				return old
			}
			return nil
		}
		play(t, p)
	}
}

// mutantNamed returns the mutant with this name.
func mutantNamed(t *testing.T, name string) *mutant {
	t.Helper()
	i := slices.IndexFunc(mutants, func(m mutant) bool { return m.name == name })
	if i < 0 {
		t.Fatalf("no mutant has the name %q", name)
	}
	return &mutants[i]
}

// deploy replaces the processes of an older version by processes of this version, one by one while all contend, and then rolls back.
func deploy(t *testing.T, seed uint64, old *oldWorker) {
	p := newPlan(seed, 0, time.Second)
	for round := 1; p.Topology != "standalone"; round++ {
		p = newPlan(seed, round, time.Second)
	}
	p.Temper, p.Durable, p.Network, p.Servers = "safe", false, nil, nil
	runs := slices.Repeat([]*oldWorker{old}, p.Processes)
	p.Old = func(slot, _ int) *oldWorker { return runs[slot] }
	var s *scene
	playWith(t, p, func(playing *scene) {
		s = playing
		for _, to := range []*oldWorker{nil, old} {
			for i := range runs {
				s.contend()
				runs[i] = to
				s.replace(i, i == 1)
			}
		}
		s.contend()
	})
	isOld := func(h hold) bool { return strings.HasSuffix(h.Process, oldSuffix) }
	var all []string
	for _, p := range s.pasts {
		if p.place.Weight < 50 {
			continue
		}
		holds := slices.SortedFunc(slices.Values(p.holds), func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
		there, back := 0, 0 // hand-offs from one version to the other
		for i := 1; i < len(holds); i++ {
			switch before, after := isOld(holds[i-1]), isOld(holds[i]); {
			case before && !after:
				there++
			case !before && after:
				back++
			}
		}
		all = append(all, fmt.Sprintf("%s %d and %d", p.place.Name, there, back))
		if there == 0 || back == 0 {
			t.Errorf("%s went %d times from the old version to the new one, and %d times back", p.place.Name, there, back)
		}
	}
	t.Logf("locks handed off from the old version to the new one and back: %s", strings.Join(all, ", "))
}

// replace ends a process as a deploy does, or kills it, and starts another one in its slot.
func (s *scene) replace(i int, kill bool) {
	s.mu.Lock()
	p := s.processes[i]
	s.did["replace"]++
	s.mu.Unlock()
	defer s.during(event{What: "replace " + s.names[p]})()
	if kill {
		p.kill()
	} else {
		s.end(p)
	}
	s.start(i)
}

// contend waits until each process has been granted each frequently acquired lock again.
func (s *scene) contend() {
	before := make([]int, len(s.processes))
	lacks := func(i int) (name string) {
		records, err := readRecords(s.processes[i].file)
		if err != nil {
			return err.Error() // the process has not created the file yet
		}
		granted := make([]bool, len(s.plan.Places))
		for _, r := range records[min(before[i], len(records)):] {
			granted[r.Place] = true
		}
		for at, p := range s.plan.Places {
			if p.Weight >= 50 && !granted[at] {
				return p.Name
			}
		}
		return ""
	}
	for i, p := range s.processes {
		records, _ := readRecords(p.file) // there may be none yet
		before[i] = len(records)
	}
	for i, p := range s.processes {
		for end := time.Now().Add(time.Minute); lacks(i) != "" && !s.Failed(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				s.Errorf("process %s was not granted %s within a minute", s.names[p], lacks(i))
			}
		}
	}
}

// oldMutants are the mutants that TestUpgrade must detect in the older version.
var oldMutants = []string{
	"a lock that is held is granted again", "a release does not ask who has the lock",
	"a semaphore has one permit more when it is empty", "tokens of a register do not grow",
}

// TestUpgrade detects bugs in the older version. With LEASEHOLD_MUTANTS=1, as set by make chaosmutants, this test
// builds it with each of these bugs.
func TestUpgradeMutants(t *testing.T) {
	for _, name := range oldMutants {
		m := mutantNamed(t, name)
		t.Run(m.name, func(t *testing.T) {
			if os.Getenv("LEASEHOLD_MUTANTS") == "" {
				t.Skip("make chaosmutants runs it: it builds an older version first")
			}
			run := exec.Command(os.Args[0], "-test.run", "^TestUpgrade$", "-test.v")
			run.Env = append(os.Environ(), "LEASEHOLD_UPGRADE=1", "LEASEHOLD_UPGRADE_MUTANT="+m.name, "LEASEHOLD_CHAOS_MONITOR=off", "LEASEHOLD_FAILURES="+t.TempDir(), "LEASEHOLD_CHAOS_RESULTS=")
			said, err := run.CombinedOutput()
			if err == nil {
				t.Fatalf("it is green:\n%s", said)
			}
			if !slices.ContainsFunc(strings.Split(m.says, "|"), func(says string) bool { return strings.Contains(string(said), says) }) {
				t.Errorf("it is red, but says:\n%.4000s", said)
			}
		})
	}
}
