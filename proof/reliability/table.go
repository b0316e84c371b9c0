package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// row is a row of the page.
type row struct {
	number   int
	what     string // goes wrong
	promise  string
	commands []command
	chaos    func(r results) string // what make chaos adds; "" if nothing yet
}

// figures is the command for a test in figures_test.go.
func figures(name string) command {
	return command{text: "cd integration && LEASEHOLD_FIGURES=1 go test -count=1 -v -run '^TestFigures_" + name + "$' .", take: `.*`}
}

// tests is a command for tests of a package.
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

// rounded is d as it is printed.
func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// everywhere is all topologies.
var everywhere = []string{"standalone", "sentinel", "cluster", "quorum"}

// chaosOf tells of the rounds of some topologies.
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
			where = "everywhere"
		}
		text := fmt.Sprintf("Chaos, %s: %s; in these rounds %s acquisitions, **%d** wrong", where, strings.Join(done, ", "), thousands(c.Checked), c.Wrong)
		if c.Overlaps > 0 && len(prefixes) < len(everywhere) {
			text += fmt.Sprintf("; two owners for a while %s times, for %v at the most", thousands(c.Overlaps), rounded(c.Longest))
		}
		return text
	}
}

var table = []row{
	{1, "nothing: 64 goroutines in 8 processes", "never two owners; every history has a legal order",
		[]command{tests("integration", "LEASEHOLD_ACQUISITIONS=200000", "^TestExclusion", `(\d+ acquisitions) in (\S+)`, `(\d+) acquisitions in`),
			tests("integration", "LEASEHOLD_FIGURES=1", "^TestFigures_hotLock$", `\d+ acquisitions of one lock.*`, `(\d+) acquisitions of one`)},
		func(r results) string {
			c := r.sum("standalone calm", "sentinel calm", "cluster calm")
			if c.Rounds == 0 {
				return ""
			}
			return fmt.Sprintf("Chaos, calm rounds: %s acquisitions, **%d** wrong, %s of them also by Porcupine", thousands(c.Checked), c.Wrong, thousands(c.Porcupine))
		}},
	{2, "a client is stopped (SIGSTOP) past its lease", "no look finds a hold valid after the end of its promise; no two owners",
		[]command{tests("integration", "LEASEHOLD_FIGURES=1", "^TestPause$", `\d+ pauses, \d+ looks; \d+ found a lock held after the end of its promise|\d+ rounds of \d+ locks, \d+ looks`, `(\d+) pauses`)},
		chaosOf([]string{"stop", "slow, then half-open"}, everywhere...)},
	{3, "the reply to an acquisition is lost", "the hold count is 1; no wrong answer",
		[]command{tests("integration", "", "^TestLostReply$", `(\d+ acquisitions).*?(\d+ of \d+ replies were lost)`, `(\d+) acquisitions \(`)},
		chaosOf([]string{"drop replies", "drop requests"}, everywhere...)},
	{4, "the context ends at any moment of an acquisition", "nothing of the call is left two operation timeouts and a round trip later",
		[]command{tests("integration", "", "^TestCancel$", `\d+ calls ended by their context.*`, `(\d+) calls ended by`)}, nil},
	{5, "the reply to an Unlock is lost", "Unlock returns nil; no key is left",
		[]command{tests("integration", "", "^TestLostReply$", `(\d+ unlocks).*?(\d+ of \d+ replies were lost)`, `and (\d+) unlocks`)}, chaosOf([]string{"drop replies"}, everywhere...)},
	{6, "a Sentinel failover forgets the last writes", "no stale write is accepted where tokens are checked; each owner is told within a renewal interval and an operation timeout. Two owners for a while are not prevented",
		[]command{
			tests("integration", "LEASEHOLD_FAILOVERS=100", "^TestFailover_underLoad$", `\d+ failovers: .*|the last owner was told.*|load: .*`, ""),
			tests("integration", "LEASEHOLD_FAILOVERS=100", "^TestFailover_tokensGuard$", `\d+ failovers that.*`, ""),
		},
		chaosOf([]string{"failover"}, "sentinel rough")},
	{7, "the same, with `WithReplicas(1)`", "a lock that a replica confirmed survives the failover; one that none confirmed is refused. This narrows the gap, and does not close it", []command{tests("integration", "LEASEHOLD_FAILOVERS=100", "^TestFigures_replicas$", `.*`, "")}, nil},
	{8, "a cluster's masters die, its slots move", "while a slot moves, no lock is lost or held twice, and an Unlock of a plain lock, which is one key, is confirmed; one of a fair or a read/write lock can give up after its operation timeout, and then goes on in the background. A failover is as in row 6",
		[]command{tests("integration", "LEASEHOLD_FAILOVERS=50", "^TestCluster_(failovers|migrations)$", `.* locked \d+ plain.*|of \d+ locks.*`, "")},
		chaosOf([]string{"move slot", "failover", "take over"}, "cluster")},
	{9, "the server is killed (kill -9), and comes back with its data, or empty", "with `appendfsync always` no two owners; empty: tokens grow, and two owners for a lease at the most", nil,
		func(r results) string {
			durable, empty := chaosOf([]string{"crash"}, "standalone safe")(r), chaosOf([]string{"restart empty"}, "standalone rough")(r)
			if durable == "" || empty == "" {
				return ""
			}
			return durable + ". " + empty
		}},
	{10, "the server is frozen (SIGSTOP)", "calls return by their deadlines; holders are told at the end of their promise", []command{figures("frozen")},
		chaosOf([]string{"freeze"}, "standalone safe", "sentinel safe", "cluster safe", "quorum")},
	{11, "a client is cut off", "it is told at the end of its promise, and no look finds the hold valid after that", []command{figures("partition")},
		chaosOf([]string{"partition", "half-open", "cut", "slow, then half-open"}, everywhere...)},
	{12, "the key is deleted, overwritten or unlocked by force", "the holder is told at its next renewal; what is not a lock is never changed", []command{figures("deleted")},
		chaosOf([]string{"delete", "force"}, "standalone rough", "sentinel rough", "cluster rough")},
	{13, "the message of a release is lost", "the waiter asks when it is subscribed again, or within a second", []command{figures("lostMessage")},
		chaosOf([]string{"kill subscribers", "drop messages"}, everywhere...)},
	{14, "nothing: a lock goes from one process to another", "one command of the releasing process, one message, one question", []command{figures("handOver")}, nil},
	{15, "a subscription that hears nothing, and is not closed", "the waiter asks within a second", []command{figures("halfOpenSubscription")}, nil},
	{16, "the server's memory is full (`noeviction`)", "held locks are renewed and given back; `TryLock` of a new one is refused at once, and `Lock` waits", []command{figures("memoryFull")},
		chaosOf([]string{"memory full"}, everywhere...)},
	{17, "the scripts are flushed every 10 ms", "no caller sees it", []command{figures("scriptFlush")},
		chaosOf([]string{"script flush"}, everywhere...)},
	{18, "the server's clock is set by up to a minute", "with a register tokens never fall; set forward, leases end early, and owners are told; set back, nothing is granted twice", nil,
		chaosOf([]string{"clock"}, "standalone rough")},
	{19, "a minority of a quorum's servers is down; servers come back empty", "at least 99 of 100 attempts succeed; no two owners",
		[]command{tests("integration", "LEASEHOLD_ROUNDS=2000", "^TestQuorum_(minorityFails|restarts)$", `\d+ attempts, .*|taken .*`, `taken (\d+) times`)},
		chaosOf([]string{"restart empty", "freeze", "clock"}, "quorum")},
	{20, "a third of a thousand fair waiters die or give up", "nobody is overtaken; all deaths together cost one patience",
		[]command{tests("integration", "", "^TestFairOrder(_deathsDoNotAddUp)?$", `\d+ waiters, .*|\d+ dead .*`, "")},
		func(r results) string {
			c := r.sum("standalone calm", "sentinel calm", "cluster calm")
			if c.Granted["fair"] == 0 {
				return ""
			}
			return fmt.Sprintf("Chaos, calm rounds: %s fair locks granted, **%d** wrong", thousands(c.Granted["fair"]), c.Wrong)
		}},
	{21, "100 readers and 4 writers; a reader is killed", "a writer never meets another owner; a dead reader delays a writer until the end of its lease",
		[]command{
			tests("integration", "LEASEHOLD_ACQUISITIONS=20000", "^TestExclusion_readWrite$", `(\d+ acquisitions) in (\S+)`, ""),
			tests("integration", "", "^TestCrash_reader$", `.*`, ""),
		},
		func(r results) string {
			c := r.sum("")
			if c.Granted["rw"] == 0 {
				return ""
			}
			return fmt.Sprintf("Chaos, everywhere: %s read/write locks granted, %d processes killed, **%d** wrong", thousands(c.Granted["rw"]), c.Killed, c.Wrong)
		}},
	{22, "holds are given back just when they are to be renewed", "no renewal of a lock after its Unlock; no key is left", []command{
		tests("integration", "LEASEHOLD_ACQUISITIONS=1000000", "^TestFigures_unlockAndRenewal$", `.*`, ""),
		{text: "cd integration && LEASEHOLD_ACQUISITIONS=30000 go test -race -count=1 -timeout 30m -v -run '^TestFigures_unlockAndRenewal$' .", take: `(.*)`, note: "under the race detector"},
	}, nil},
	{23, "waits are cancelled at the moment of their answer, and the client is closed", "no goroutine, no subscription and no key is left; goleak looks after each test",
		[]command{tests("integration", "LEASEHOLD_ACQUISITIONS=100000", "^TestCancel_(withTheAnswer|reentryWithTheAnswer)$", `\d+ calls ended as.*|\d+ of \d+ re-entries.*`, "")}, nil},
	{24, "thirty days of renewals on virtual time, with failures and clocks that drift by 1 %", "no false loss, and none that is missed",
		[]command{tests("watchdog", "", "^TestWatchdog_thirtyDays$", `\d+ looks, .*`, "")}, nil},
	{25, "anything that can be parsed: names, replies, messages, URLs, headers", "no crash", []command{
		{text: "make fuzz FUZZTIME=100000x", digest: fuzzed},
	}, nil},
	{26, "every order of events in a small world", "the properties of proof/model/README.md hold in every state, each mutant is caught, and the scripts take each step of the models' servers", []command{{text: "make model", digest: modelled}}, nil},
	{27, "a thousand goroutines wait for a minute", "one question a second for each process, not for each waiter", []command{figures("waiters")}, nil},
}

// fuzzed counts what fuzz tests did.
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

// modelled counts what make model visited.
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
	text := fmt.Sprintf("%d worlds with %s states in all: everything holds; %d mutants, all caught", held, thousands(states), mutants)
	for _, m := range regexp.MustCompile(`(?m)^(steps|histories) of \w+: .*`).FindAllString(out, -1) {
		text += "; " + m
	}
	return []string{text}
}

// thousands is n with commas.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
