//go:build linux

package chaos_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutant is a lock, a latch or a wait group with a bug.
type mutant struct {
	name     string
	file     string
	old, new string
	where    string // the topology in which it is detected
	says     string // the expected finding of the checker; alternatives are separated by |
}

// Findings of the checker.
const (
	saysTwo      = "two held it at once"
	saysGone     = "the server did not have it any more"
	saysToken    = "the token of a later holder is not larger"
	saysOrder    = "it was granted before one that came earlier"
	saysPermits  = "permits were held at once"
	saysLeft     = "keys are left"
	saysOpen     = "a latch was open before its parts were counted"
	saysDone     = "a wait group was done before its members were"
	saysAnything = saysTwo + "|" + saysGone + "|" + saysToken
)

var mutants = []mutant{
	{
		"a lock that is held is granted again", "luascripts/include_acquire.lua",
		"  if not holder then\n", "  if not holder or redis.call('HLEN', lock) == 1 and redis.call('PTTL', lock) % 50 == 0 then\n", "standalone", saysAnything,
	},
	{
		"a release does not ask who has the lock", "luascripts/include_release.lua",
		"  if not count then\n", "  if not count then\n    redis.call('DEL', lock)\n", "standalone", saysAnything,
	},
	{
		"the trust counts from the answer", "watchdog/lease.go",
		"start, left := of(sent), l.until.load().left(n)", "start, left := n, l.until.load().left(n)", "standalone", saysAnything,
	},
	{
		"the client trusts a lease for twice as long as it lasts", "watchdog/lease.go",
		"l.until.load().before(until, l.w.clock.n) { // never shorten the lease", "l.until.load().before(until, l.w.clock.n) {\n\t\tuntil = sent.add(2 * d)", "standalone", saysAnything,
	},
	{
		"a renewal does not ask who has the lock", "luascripts/reentrant_renew.lua",
		"  if held == 1 and lease > 0 then\n", "  if type(held) == 'number' and lease > 0 then\n", "standalone", saysAnything,
	},
	{
		"a fair lock goes to whoever asks first", "luascripts/fair_acquire.lua",
		"if not holder and (not first or first == owner) then", "if not holder then", "standalone", saysOrder,
	},
	{
		"a reader does not see the writer", "luascripts/rw_read_acquire.lua",
		"  if mode == 'write' then\n", "  if mode == 'write' and redis.call('PTTL', lock) % 20 > 0 then\n", "standalone", saysAnything,
	},
	{
		"a writer does not wait for the last reader", "luascripts/rw_write_acquire.lua",
		"  if left == 0 then\n", "  if left % 20 == 0 then\n", "standalone", saysAnything,
	},
	{
		"a semaphore has one permit more when it is empty", "luascripts/include_semaphore_acquire.lua",
		"value >= ahead + #missing and", "value + 1 >= ahead + #missing and", "standalone", saysPermits + "|" + saysLeft,
	},
	{
		"tokens of a register do not grow", "luascripts/include_token.lua",
		"if latest and latest >= token then token = latest + 1 end", "if latest then token = latest - (spare or 0) end", "standalone", saysToken,
	},
	{
		"a server of a quorum has a vote as soon as it is back", "multilock/vote.go",
		"votesFrom = s.Since.Add(q.maxLease)", "votesFrom = s.Since", "quorum", saysTwo,
	},
	{
		"a latch counts a part each time that it is counted", "luascripts/latch_down.lua",
		"counted = counted_before(redis.call('ZSCORE', calls, counted_id), 1)", "counted = false", "standalone", saysOpen,
	},
	{
		"a wait group does not wait for a lost member", "latch/waitgroup.go",
		"if s.Lost > 0 {", "if s.Lost < 0 {", "standalone", saysDone,
	},
}

// The checker detects each bug. LEASEHOLD_MUTANTS=1, as set by make chaosmutants, applies each of them to a copy, and
// runs rounds until one fails. Without it, the test checks that each replaced text still occurs in the source.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			file, err := filepath.Abs(filepath.Join("../..", m.file))
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), m.old); n != 1 {
				t.Fatalf("%s: %q stands there %d times, want once", m.file, m.old, n)
			}
			if os.Getenv("LEASEHOLD_MUTANTS") == "" {
				return
			}
			dir := t.TempDir()
			broken, overlay, binary := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "chaos.test")
			replace, _ := json.Marshal(map[string]map[string]string{"Replace": {file: broken}}) // strings can be marshaled
			for name, text := range map[string]string{broken: strings.Replace(string(text), m.old, m.new, 1), overlay: string(replace)} {
				if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if said, err := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
			run := exec.Command(binary, "-test.run", "^TestChaos$", "-test.v")
			run.Env = append(os.Environ(), "LEASEHOLD_MUTANTS=", "DURATION=2m", "ROUND_TIME=10s", "ROUND=", "LEASEHOLD_CHAOS_MONITOR=off",
				"LEASEHOLD_CHAOS_TOPOLOGIES="+m.where, "LEASEHOLD_FAILURES="+dir, "LEASEHOLD_CHAOS_RESULTS=")
			said, err := run.CombinedOutput()
			rounds := strings.Count(string(said), "\n=== RUN   TestChaos/")
			if err == nil {
				t.Fatalf("%d rounds are green", rounds)
			}
			for _, says := range strings.Split(m.says, "|") {
				if strings.Contains(string(said), says) {
					t.Logf("detected in round %d: %s", rounds, says)
					return
				}
			}
			t.Errorf("it is red after %d rounds, but says:\n%s", rounds, fmt.Sprintf("%.4000s", said))
		})
	}
}
