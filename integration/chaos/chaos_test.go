//go:build linux

package chaos_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// topologies returns the topologies named by LEASEHOLD_CHAOS_TOPOLOGIES, or all of them.
func topologies() []string {
	if given := os.Getenv("LEASEHOLD_CHAOS_TOPOLOGIES"); given != "" {
		return strings.Split(given, ",")
	}
	return []string{"standalone", "sentinel", "cluster", "quorum"}
}

// setting returns the value of an environment variable, or the default or.
func setting[T any](t *testing.T, name string, or T, parse func(string) (T, error)) T {
	t.Helper()
	given := os.Getenv(name)
	if given == "" {
		return or
	}
	v, err := parse(given)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

func number(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }

// result is the result of a round. docs/evidence/reliability.md sums up the results of many rounds.
type result struct {
	Seed      uint64
	Round     int
	Seconds   float64
	Topology  string
	Temper    string
	Commit    string
	Server    string
	Go        string
	Rueidis   string
	Redisson  string `json:",omitempty"`
	When      time.Time
	Report    report
	Granted   map[string]int // by type of lock
	Faults    map[string]int
	Overlaps  int   // explained by faults
	Longest   int64 // ns: duration of the longest overlap
	Lost      int   // holds that were lost, with their holders notified
	Killed    int   // number of processes
	Checked   int   // holds checked by the exact checker
	Porcupine int   // holds also checked by Porcupine
	Wrong     []string
}

// TestChaos runs rounds until DURATION has passed; without DURATION, it runs one short round.
func TestChaos(t *testing.T) {
	if !redistest.Installed() {
		redistest.Start(t) // reports what is missing
	}
	length := setting(t, "DURATION", 0, time.ParseDuration)
	each := setting(t, "ROUND_TIME", 20*time.Second, time.ParseDuration)
	seed := setting(t, "SEED", rand.Uint64()>>32, number)
	only := setting(t, "ROUND", -1, strconv.Atoi)
	if length == 0 && only < 0 {
		length, each = time.Nanosecond, 5*time.Second
	}
	t.Logf("SEED=%d  commit %s  %s  rueidis %s  %s, %d processors", seed, commit(), runtime.Version(), rueidisVersion(), runtime.GOARCH, runtime.NumCPU())
	var sum sums
	start := time.Now()
	for round := max(0, only); !t.Failed(); round++ {
		sum.add(play(t, newPlan(seed, round, each)))
		if only >= 0 || time.Since(start) >= length {
			break
		}
	}
	t.Log(sum.String())
}

// TestSeeds runs the rounds in testdata/seeds, which once failed.
func TestSeeds(t *testing.T) {
	if testing.Short() {
		t.Skip("each of them takes half a minute")
	}
	text, err := os.ReadFile("testdata/seeds")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		var seed uint64
		var round int
		var length string
		if strings.TrimSpace(line) == "" {
			continue
		}
		if _, err := fmt.Sscan(line, &seed, &round, &length); err != nil {
			t.Fatalf("testdata/seeds: %q: %v", line, err)
		}
		each, err := time.ParseDuration(length)
		if err != nil {
			t.Fatal(err)
		}
		play(t, newPlan(seed, round, each))
	}
}

// play runs a round, and checks it.
func play(t *testing.T, p plan) result { return playWith(t, p, (*scene).run) }

// playWith runs a round whose faults are injected by run, and checks it.
func playWith(t *testing.T, p plan, run func(*scene)) (r result) {
	t.Run(fmt.Sprintf("%d-%d-%s-%s", p.Seed, p.Round, p.Topology, p.Temper), func(t *testing.T) {
		dir := t.TempDir()
		start := time.Now()
		s := newScene(t, p, dir)
		r = result{
			Seed: p.Seed, Round: p.Round, Topology: p.Topology, Temper: p.Temper, Commit: commit(), Server: version(t, s.servers[0]),
			Go: runtime.Version(), Rueidis: rueidisVersion(), When: start.UTC(), Granted: map[string]int{},
		}
		if os.Getenv("LEASEHOLD_CHAOS_VERBOSE") != "" {
			t.Log(p)
		}
		defer func() {
			if t.Failed() || os.Getenv("LEASEHOLD_CHAOS_KEEP") != "" {
				s.keep(r)
			}
			if t.Failed() {
				t.Logf("again: make chaos SEED=%d ROUND=%d ROUND_TIME=%v", p.Seed, p.Round, p.For)
			}
		}()
		run(s)
		r.Report = s.finish()
		s.visit()
		s.judge(&r)
		r.Seconds = time.Since(start).Seconds()
		redisson := ""
		if r.Redisson != "" {
			redisson = ", Redisson " + r.Redisson
		}
		t.Logf("%s, %s, %s%s: %d grants (%v), faults %v; %d overlaps that faults explain, the longest %v; %d holds lost; Porcupine also checked %d of %d holds; %+v",
			p.Topology, p.Temper, r.Server, redisson, r.Checked, r.Granted, r.Faults, r.Overlaps, time.Duration(r.Longest).Round(time.Millisecond), r.Lost, r.Porcupine, r.Checked, r.Report)
		if t.Failed() && len(r.Wrong) == 0 {
			r.Wrong = []string{"a call, a key or a process; the log says more"}
		}
		store(t, r)
	})
	return r
}

// judge checks the records of the processes.
func (s *scene) judge(r *result) {
	pasts := make([]past, len(s.plan.Places))
	s.pasts = pasts
	calm := s.calm()
	for i, p := range s.plan.Places {
		pasts[i] = past{place: p, calm: calm}
		for _, e := range s.events {
			switch {
			case e.Place == "" || e.Place == p.Name:
				pasts[i].events = append(pasts[i].events, e)
			case s.plan.together(e.Place, p.Name): // a hold of several locks ends when one of them is lost
				pasts[i].events = append(pasts[i].events, event{From: e.From, To: e.To, What: e.What, Place: e.Place, Others: e.Forgets || e.Takes})
			}
		}
	}
	for _, p := range s.all {
		if p.killed != 0 {
			r.Killed++
		}
		records, err := readRecords(p.file)
		if p.killed != 0 && errors.Is(err, fs.ErrNotExist) {
			err = nil // it was killed before it started
		}
		if err != nil {
			s.Errorf("the records of %s: %v", s.names[p], err)
		}
		for _, one := range records {
			kind := s.plan.Places[one.Place].Kind
			if one.Flags&flagMulti != 0 {
				kind = "multi"
			}
			if one.isHold(kind) {
				r.Checked++
				r.Granted[kind]++
			}
			if one.Flags&flagReentry == 0 {
				to := &pasts[one.Place].holds
				*to = append(*to, hold{record: one, Process: s.names[p], End: one.ends(p.killed)})
			}
		}
	}
	for _, one := range s.last {
		to := &pasts[one.Place].holds
		*to = append(*to, hold{record: one, Process: "the last visit"})
	}
	if s.java != nil {
		for at, holds := range s.java.holds {
			r.Checked += len(holds)
			r.Granted["Redisson"] += len(holds)
			pasts[at].holds = append(pasts[at].holds, holds...)
		}
		r.Redisson = redissonVersion()
	}
	r.Faults = s.did
	for i := range pasts {
		p := &pasts[i]
		found, sum := p.check()
		r.Overlaps += sum.Overlaps
		r.Longest = max(r.Longest, int64(sum.Longest))
		r.Lost += sum.Lost
		for _, w := range found {
			r.Wrong = append(r.Wrong, w.String())
			s.Error(w)
		}
		if len(found) > 0 {
			s.draw(p, found)
		}
		did, err := p.porcupine(filepath.Join(s.dir, p.place.Name+"-porcupine.html"))
		if did {
			r.Porcupine += len(p.holds)
		}
		if err != nil {
			s.Errorf("%s: %v", p.place.Name, err)
		}
		if taken := slices.ContainsFunc(p.holds, func(h hold) bool { return h.isHold(p.place.Kind) }); !taken && s.plan.For >= 10*time.Second && (p.place.Weight >= 50 || p.place.Weight == 0) {
			s.Errorf("%s was never taken: the round shows nothing about it", p.place.Name)
		}
	}
	debug.FreeOSMemory()
}

// keep copies everything that is needed to examine a failed round to a permanent directory.
func (s *scene) keep(r result) {
	under := os.Getenv("LEASEHOLD_FAILURES")
	if under == "" {
		under = os.TempDir()
	}
	dir := filepath.Join(under, fmt.Sprintf("leasehold-chaos-%d-%d-%d", s.plan.Seed, s.plan.Round, os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.Error(err)
		return
	}
	save := func(name string, v any) {
		text, err := json.MarshalIndent(v, "", "\t")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			s.Error(err)
		}
	}
	save("plan.json", s.plan)
	save("events.json", s.events)
	save("result.json", r)
	if err := os.WriteFile(filepath.Join(dir, "history.tsv"), s.history(), 0o644); err != nil {
		s.Error(err)
	}
	logs := func(of string, servers []*redistest.Server) {
		for i, server := range servers {
			if log, err := server.Log(); err == nil {
				_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.log", of, i)), log, 0o644) // the rest is kept anyway
			}
		}
	}
	logs("server", s.servers)
	if s.sentinel != nil {
		logs("sentinel", s.sentinel.Sentinels)
	}
	files, _ := filepath.Glob(filepath.Join(s.dir, "*"))
	for _, file := range files {
		// The record files are sparse; cp preserves the holes.
		if said, err := exec.Command("cp", "--sparse=always", file, dir).CombinedOutput(); err != nil {
			s.Errorf("%v: %s", err, said)
		}
	}
	s.Logf("what it left behind: %s", dir)
}

// history lists what all processes recorded, one line for each hold or other call, in the order in which they began,
// including Redisson's and those of the final visit. Times are in ns, by the clock of events.json.
func (s *scene) history() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, "place\tprocess\tgoroutine\tcall\tasked\tqueued\tgranted\tbelieved\tpromised\tunlock\tunlocked\toutcome\ttoken\towner\tpermits\tflags")
	for _, p := range s.pasts {
		holds := slices.SortedFunc(slices.Values(p.holds), func(a, b hold) int { return cmp.Compare(a.Call, b.Call) })
		for _, h := range holds {
			call := calls[h.Side]
			switch {
			case h.Side == 'r':
				call = "read"
			case h.Side == 'w' && p.place.Kind == "rw":
				call = "write"
			case call == "":
				call = "hold"
			}
			fmt.Fprintf(&b, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%d\t%d\t%b\n",
				p.place.Name, h.Process, h.Goroutine, call, h.Call, h.Queued, h.Granted, h.End, max(h.Until, h.LookUntil), h.Release, h.Released, outcomes[h.Outcome], h.Token, h.Owner, h.Permits, h.Flags)
		}
	}
	return b.Bytes()
}

// keep stores everything that is needed to examine a failed round.
func TestKeep(t *testing.T) {
	under := t.TempDir()
	t.Setenv("LEASEHOLD_FAILURES", under)
	server := redistest.Start(t)
	s := &scene{T: t, plan: newPlan(1, 0, time.Second), dir: t.TempDir(), servers: []*redistest.Server{server},
		sentinel: &redistest.Sentinel{Sentinels: []*redistest.Server{server}}, events: []event{{What: "freeze on 1"}}}
	s.monitor(server, filepath.Join(s.dir, "monitor-0"))
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		server.Do(t, "SET", "last", "command")
		if text, err := os.ReadFile(filepath.Join(s.dir, "monitor-0.0")); err == nil && strings.Contains(string(text), "last") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody monitors the server")
		}
	}
	for name, text := range map[string]string{"go0.0": "records", "go0.0.log": "what it logged", "wrong-plain-0.html": "a page", "plain-porcupine.html": "another"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.pasts = []past{
		{place: place{Name: "rw", Kind: "rw"}, holds: []hold{
			{Process: "go0.0", End: 9, record: record{Call: 7, Granted: 8, Side: 'w', Token: 5}},
			{Process: "java", End: 4, record: record{Call: 2, Granted: 3, Side: 'r', Outcome: outcomeOK, Permits: 1}},
		}},
		{place: place{Name: "latch", Kind: "latch"}, holds: []hold{{Process: "go1.0", record: record{Call: 1, Granted: 6, Side: callWait}}}},
	}
	s.keep(result{Seed: 1, Wrong: []string{saysTwo}})
	dirs, _ := filepath.Glob(filepath.Join(under, "leasehold-chaos-1-0-*"))
	if len(dirs) != 1 {
		t.Fatalf("%q", dirs)
	}
	for name, want := range map[string]string{
		"plan.json": `"Topology"`, "events.json": "freeze on 1", "result.json": saysTwo, "server-0.log": "Ready to accept connections", "sentinel-0.log": "Ready to", "monitor-0.0": `"SET" "last" "command"`,
		"go0.0": "records", "go0.0.log": "what it logged", "wrong-plain-0.html": "a page", "plain-porcupine.html": "another",
		"history.tsv": "rw\tjava\t0\tread\t2\t0\t3\t4\t0\t0\t0\tgiven back\t0\t0\t1\t0\nrw\tgo0.0\t0\twrite\t7\t0\t8\t9\t0\t0\t0\tnot unlocked\t5\t0\t0\t0\nlatch\tgo1.0\t0\tWait\t1\t",
	} {
		if text, err := os.ReadFile(filepath.Join(dirs[0], name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, %.200q; want %q in it", name, err, text, want)
		}
	}
}

// store appends the result to the file named by LEASEHOLD_CHAOS_RESULTS.
func store(t *testing.T, r result) {
	name := os.Getenv("LEASEHOLD_CHAOS_RESULTS")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		err = json.NewEncoder(f).Encode(r)
		f.Close()
	}
	if err != nil {
		t.Errorf("LEASEHOLD_CHAOS_RESULTS: %v", err)
	}
}

// sums is the total of several rounds.
type sums struct {
	rounds, wrong, overlaps, lost, killed, checked, porcupine int
	granted, faults                                           map[string]int
}

func (s *sums) add(r result) {
	if s.granted == nil {
		s.granted, s.faults = map[string]int{}, map[string]int{}
	}
	s.rounds++
	s.wrong += len(r.Wrong)
	s.overlaps += r.Overlaps
	s.lost += r.Lost
	s.killed += r.Killed
	s.checked += r.Checked
	s.porcupine += r.Porcupine
	for k, n := range r.Granted {
		s.granted[k] += n
	}
	for k, n := range r.Faults {
		s.faults[k] += n
	}
}

func (s *sums) String() string {
	list := func(m map[string]int) string {
		var all []string
		for _, k := range slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Compare(m[b], m[a]) }) {
			all = append(all, fmt.Sprintf("%s %d", k, m[k]))
		}
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%d rounds, %d acquisitions (%s); %d wrong; faults: %s; %d overlaps that a fault explains; %d holds lost; %d processes killed; %d holds also checked by Porcupine",
		s.rounds, s.checked, list(s.granted), s.wrong, list(s.faults), s.overlaps, s.lost, s.killed, s.porcupine)
}

// commit returns the latest commit that changed the library.
var commit = sync.OnceValue(func() string {
	library := []string{"--", ":(top)*.go", ":(top)*.lua", ":(top,exclude)integration", ":(top,exclude)benchmarks", ":(top,exclude)internal/redistest"}
	out, err := exec.Command("git", append([]string{"log", "-1", "--format=%h", "--abbrev=12"}, library...)...).Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	if exec.Command("git", append([]string{"diff", "--quiet", "HEAD"}, library...)...).Run() != nil {
		name += "-dirty"
	}
	return name
})

// rueidisVersion returns the version of rueidis. A test binary does not contain its module versions.
func rueidisVersion() string {
	text, err := os.ReadFile("../go.mod")
	if err == nil {
		if _, rest, ok := strings.Cut(string(text), "github.com/redis/rueidis "); ok {
			v, _, _ := strings.Cut(rest, "\n")
			return v
		}
	}
	return "unknown"
}
