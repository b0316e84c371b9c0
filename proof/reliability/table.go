package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// row is a row of the first table of the page.
type row struct {
	number   int
	what     string // the fault
	promise  string // the guarantee
	commands []command
	chaos    func(r results) string // returns what make chaos adds; "" if nothing yet
}

// figures returns the command for a test in figures_test.go.
func figures(name string) command {
	return command{text: "cd integration && LEASEHOLD_FIGURES=1 go test -count=1 -v -run '^TestFigures_" + name + "$' .", take: `.*`}
}

// tests returns a command that runs tests of a package.
func tests(dir, env, run, take, count string) command {
	text := "go test -count=1 -timeout 30m -v -run '" + run + "' "
	if env != "" {
		text = env + " " + text
	}
	if inside, ok := strings.CutPrefix(dir, "integration"); ok {
		text = "cd integration && " + text + "." + inside
	} else {
		text += "./" + dir
	}
	return command{text: text, take: take, count: count}
}

// rounded rounds d for the page.
func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// everywhere has all topologies.
var everywhere = []string{"standalone", "sentinel", "cluster", "quorum"}

// chaosOf returns a function that summarizes the rounds on some topologies.
func chaosOf(faults []string, prefixes ...string) func(results) string {
	return func(r results) string {
		c := r.sum(prefixes...)
		if c.Rounds == 0 {
			return ""
		}
		var done []string
		for _, f := range faults {
			if n := c.Faults[f]; n > 0 {
				done = append(done, fmt.Sprintf("%s %d×", f, n))
			}
		}
		if len(done) == 0 {
			return ""
		}
		where := strings.Join(prefixes, ", ")
		if len(prefixes) == len(everywhere) {
			where = "all topologies"
		}
		text := fmt.Sprintf("Chaos, %s: %s; %s acquisitions in these rounds, **%d** wrong", where, strings.Join(done, ", "), thousands(c.Checked), c.Wrong)
		if c.Overlaps > 0 && len(prefixes) < len(everywhere) {
			text += fmt.Sprintf("; two owners %s times, for at most %v", thousands(c.Overlaps), rounded(c.Longest))
		}
		return text
	}
}

var table = []row{
	{1, "none: 64 goroutines in 8 processes", "never two owners; every history is linearizable",
		[]command{tests("integration", "LEASEHOLD_ACQUISITIONS=200000", "^TestExclusion", `(\d+ acquisitions) in (\S+)`, `(\d+) acquisitions in`),
			tests("integration", "LEASEHOLD_FIGURES=1", "^TestFigures_hotLock$", `\d+ acquisitions of one lock.*`, `(\d+) acquisitions of one`)},
		func(r results) string {
			c := r.sum("standalone calm", "sentinel calm", "cluster calm")
			if c.Rounds == 0 {
				return ""
			}
			return fmt.Sprintf("Chaos, calm rounds: %s acquisitions, **%d** wrong; Porcupine also checked %s of them", thousands(c.Checked), c.Wrong, thousands(c.Porcupine))
		}},
	{2, "a client is paused (SIGSTOP) past its lease", "no check finds a hold valid after `Until`; no two owners",
		[]command{tests("integration", "LEASEHOLD_FIGURES=1", "^TestPause$", `\d+ pauses, \d+ checks; \d+ found a lock held after Until|\d+ rounds of \d+ locks, \d+ checks`, `(\d+) pauses`)},
		chaosOf([]string{"stop", "slow, then half-open"}, everywhere...)},
	{3, "the reply to an acquisition is lost", "the hold count is 1; no wrong result",
		[]command{tests("integration", "", "^TestLostReply$", `(\d+ acquisitions).*?(\d+ of \d+ replies were lost)`, `(\d+) acquisitions \(`)},
		chaosOf([]string{"drop replies", "drop requests"}, everywhere...)},
	{4, "the context is canceled at any moment of an acquisition", "two operation timeouts and a round trip later, nothing of the call is left",
		[]command{tests("integration", "", "^TestCancel$", `\d+ calls were canceled.*`, `(\d+) calls were canceled`)}, nil},
	{5, "the reply to an Unlock is lost", "Unlock returns nil; no key is left",
		[]command{tests("integration", "", "^TestLostReply$", `(\d+ unlocks).*?(\d+ of \d+ replies were lost)`, `and (\d+) unlocks`)}, chaosOf([]string{"drop replies"}, everywhere...)},
	{6, "a Sentinel failover loses the last writes", "no stale write is accepted where tokens are checked; each owner is notified within a renewal interval and an operation timeout. Until then, two owners are possible",
		[]command{
			tests("integration", "LEASEHOLD_FAILOVERS=100", "^TestFailover_underLoad$", `\d+ failovers: .*|owners were notified.*|load: .*`, ""),
			tests("integration", "LEASEHOLD_FAILOVERS=100", "^TestFailover_tokensGuard$", `\d+ failovers that.*`, ""),
		},
		chaosOf([]string{"failover"}, "sentinel rough")},
	{7, "the same, with `WithReplicas(1)`", "a lock that a replica confirmed survives the failover; an unconfirmed lock is rejected. This makes two owners less likely, but does not exclude them", []command{tests("integration", "LEASEHOLD_FAILOVERS=100", "^TestFigures_replicas$", `.*`, "")}, nil},
	{8, "a cluster's primaries fail, and its slots are migrated", "during a slot migration no lock is lost or held twice, and `Unlock` of a plain lock is confirmed; `Unlock` of a fair or read/write lock can time out, and then continues in the background. A failover is as in row 6",
		[]command{tests("integration", "LEASEHOLD_FAILOVERS=50", "^TestCluster_(failovers|migrations)$", `.* acquired \d+ plain.*|of \d+ locks.*`, "")},
		chaosOf([]string{"move slot", "failover", "take over"}, "cluster")},
	{9, "the server is killed (kill -9), and restarts with or without its data", "with `appendfsync always`: no two owners; without data: tokens grow, and there are two owners for at most one lease", nil,
		func(r results) string {
			durable, empty := chaosOf([]string{"crash"}, "standalone safe")(r), chaosOf([]string{"restart empty"}, "standalone rough")(r)
			if durable == "" || empty == "" {
				return ""
			}
			return durable + ". " + empty
		}},
	{10, "the server is unresponsive (SIGSTOP)", "calls return by their deadlines; holders are notified at `Until`", []command{figures("frozen")},
		chaosOf([]string{"freeze"}, "standalone safe", "sentinel safe", "cluster safe", "quorum")},
	{11, "a client is partitioned", "it is notified at `Until`, and no check finds the hold valid after that", []command{figures("partition")},
		chaosOf([]string{"partition", "half-open", "cut", "slow, then half-open"}, everywhere...)},
	{12, "the key is deleted, overwritten or force-unlocked", "the holder is notified at its next renewal; a key that is not a lock is never changed", []command{figures("deleted")},
		chaosOf([]string{"delete", "force"}, "standalone rough", "sentinel rough", "cluster rough")},
	{13, "the notification of a release is lost", "the waiter retries as soon as it is subscribed again, and at the latest after a second", []command{figures("lostMessage")},
		chaosOf([]string{"kill subscribers", "drop messages"}, everywhere...)},
	{14, "none: a lock is handed off between processes", "a hand-off takes one command of the releasing process, one message and one request", []command{figures("handOver")}, nil},
	{15, "a subscription receives nothing, and is not closed", "the waiter polls within a second", []command{figures("halfOpenSubscription")}, nil},
	{16, "the server's memory is full (`noeviction`)", "held locks are renewed and released; `TryLock` of a new lock fails immediately, and `Lock` waits", []command{figures("memoryFull")},
		chaosOf([]string{"memory full"}, everywhere...)},
	{17, "the scripts are flushed every 10 ms", "no effect on callers", []command{figures("scriptFlush")},
		chaosOf([]string{"script flush"}, everywhere...)},
	{18, "the server's clock is changed by up to a minute", "with a token counter tokens never decrease; forward: leases expire early, and owners are notified; backward: nothing is granted twice", nil,
		chaosOf([]string{"clock"}, "standalone rough")},
	{19, "a minority of a quorum's servers is down; servers restart without data", "at least 99 of 100 attempts succeed; no two owners",
		[]command{tests("integration", "LEASEHOLD_ROUNDS=2000", "^TestQuorum_(minorityFails|restarts)$", `\d+ attempts, .*|acquired \d+ times.*`, `acquired (\d+) times`)},
		chaosOf([]string{"restart empty", "freeze", "clock"}, "quorum")},
	{20, "a third of 1,000 fair waiters die or give up", "no waiter is overtaken; all deaths together cost one waiter timeout",
		[]command{tests("integration", "", "^TestFairOrder(_deathsDoNotAddUp)?$", `\d+ waiters, .*|\d+ dead .*`, "")},
		func(r results) string {
			c := r.sum("standalone calm", "sentinel calm", "cluster calm")
			if c.Granted["fair"] == 0 {
				return ""
			}
			return fmt.Sprintf("Chaos, calm rounds: %s fair locks granted, **%d** wrong", thousands(c.Granted["fair"]), c.Wrong)
		}},
	{21, "100 readers and 4 writers; a reader is killed", "a writer never holds the lock with another owner; a dead reader delays a writer until its lease expires",
		[]command{
			tests("integration", "LEASEHOLD_ACQUISITIONS=20000", "^TestExclusion_readWrite$", `(\d+ acquisitions) in (\S+)`, ""),
			tests("integration", "", "^TestCrash_reader$", `.*`, ""),
		},
		func(r results) string {
			c := r.sum("")
			if c.Granted["rw"] == 0 {
				return ""
			}
			return fmt.Sprintf("Chaos, all topologies: %s read/write locks granted, %d processes killed, **%d** wrong", thousands(c.Granted["rw"]), c.Killed, c.Wrong)
		}},
	{22, "holds are released just when they are due for renewal", "no renewal of a lock after its `Unlock`; no key is left", []command{
		tests("integration", "LEASEHOLD_ACQUISITIONS=1000000", "^TestFigures_unlockAndRenewal$", `.*`, ""),
		{text: "cd integration && LEASEHOLD_ACQUISITIONS=30000 go test -race -count=1 -timeout 30m -v -run '^TestFigures_unlockAndRenewal$' .", take: `(.*)`, note: "under the race detector"},
	}, nil},
	{23, "waits are canceled just as their reply arrives, and the client is closed", "no goroutine, subscription or key is left; goleak checks after each test",
		[]command{tests("integration", "LEASEHOLD_ACQUISITIONS=100000", "^TestCancel_(withTheAnswer|reentryWithTheAnswer)$", `\d+ calls were canceled as.*|\d+ of \d+ reentries.*`, "")}, nil},
	{24, "thirty days of renewals on virtual time, with failures and clocks that drift by 1 %", "no false loss, and no missed loss",
		[]command{tests("watchdog", "", "^TestWatchdog_thirtyDays$", `\d+ checks, .*`, "")}, nil},
	{25, "arbitrary input to every parser: names, replies, messages, URLs, headers", "no crash", []command{
		{text: "make fuzz FUZZTIME=100000x", digest: fuzzed},
	}, nil},
	{26, "every order of events in a small model", "the properties of proof/model/README.md hold in every state, each mutant is detected, and the scripts follow each step of the models' servers", []command{{text: "make model", digest: modelled}}, nil},
	{27, "a thousand goroutines wait for a minute", "one request per second per process, not per waiter", []command{figures("waiters")}, nil},
}

// fuzzed counts the fuzz tests and their inputs.
func fuzzed(out string) []string {
	runs := regexp.MustCompile(`(?m)^== .*? (Fuzz\w+)`).FindAllString(out, -1)
	if len(runs) == 0 {
		runs = regexp.MustCompile(`(?m)^ok  `).FindAllString(out, -1)
	}
	total, last := 0, 0
	for line := range strings.Lines(out) {
		if m := regexp.MustCompile(`execs: (\d+)`).FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[1]) // digits
			if n < last {
				total += last
			}
			last = n
		}
	}
	total += last
	if len(runs) == 0 || total == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d fuzz tests, %s inputs, 0 crashes", len(runs), thousands(total))}
}

// modelled counts the states that make model visited.
func modelled(out string) []string {
	held, mutants, states := 0, 0, 0
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 5 || f[1] != f[2] {
			continue
		}
		n, err := strconv.ParseFloat(f[3], 64)
		if err != nil {
			continue
		}
		if f[1] == "holds" {
			held++
			states += int(n)
		} else {
			mutants++
		}
	}
	if held == 0 {
		return nil
	}
	text := fmt.Sprintf("%d searches with %s states in total: all properties hold; %d mutants, all detected", held, thousands(states), mutants)
	for _, m := range regexp.MustCompile(`(?m)^((?:steps|histories) of \w+): FOLLOWED (\d+ of \d+)`).FindAllStringSubmatch(out, -1) {
		text += "; " + m[1] + ": " + m[2] + " followed"
	}
	return []string{text}
}

// thousands formats n with commas.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
