package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const head = `# Reliability

How the [guarantees](guarantees.md) are tested, and the results. A program writes this page (` + "`proof/reliability`" + `). Do not edit it: a test
compares it with the results. Each row has a fault, the guarantee, the measurement, and the command that repeats it.

` + "```sh" + `
make chaos                                      # ten minutes of faults, with a new seed
make chaos SEED=42 DURATION=2h                  # repeat the faults of a seed, for longer
go run ./proof/reliability -run 3,4             # measure rows 3 and 4 again, and write this page
` + "```" + `

"Wrong" counts violations:

- two holds valid at once without a fault that explains it
- a token that is not larger than an earlier holder's token
- a hold that was treated as valid after ` + "`Until`" + `
- a lock that disappeared before its lease expired
- a fair lock that was granted out of order
- a latch that was released before its count reached zero
- a wait group that was done before its workers, or a worker that was wrongly reported as lost

"Two owners" counts overlaps that no lock on Redis can prevent. They occur after a failover that lost the last writes, a restart without data, a
clock that moved forward, or the deletion or force-unlock of a lock. The earlier owner holds its lock until it is notified, for at most one lease.
Package ` + "`integration/chaos`" + ` describes a round and what it checks.
`

const busyHead = `
## The tests on a busy machine

Flaky tests hide real failures. The whole suite, including the Redisson tests, is therefore run repeatedly on an overloaded machine with two
processors: several packages at once, alongside other work (` + "`sh scripts/flaky.sh all`" + `). *Load* is the number of processes that wait for a
processor. Every failing test is investigated and fixed. One failure was a bug in the library (TestRollout), and one a bug in the tool
(TestTerminal_jobControl). The others were bugs in the tests.

` + "`make test`" + ` also ran ten times on 2026-11-28 (79ccf35, 54 packages), two at a time alongside four CPU-bound processes, at a load of 13 to
27. No test failed. A run took 524 to 764 s.

`

// page returns the text of docs/evidence/reliability.md.
func page(r results) string {
	var b strings.Builder
	b.WriteString(head)
	all := r.sum("")
	acquisitions := all.Checked
	for _, m := range r.Rows {
		acquisitions += m.Acquisitions
	}
	fmt.Fprintf(&b, "\n**%s acquisitions** in total, %s of them in chaos.\n", thousands(acquisitions), thousands(all.Checked))

	b.WriteString("\n## Results\n\n| # | fault | guarantee | measurement |\n|---|---|---|---|\n")
	for _, row := range table {
		fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", row.number, row.what, row.promise, escape(strings.Join(row.cell(r), ". ")))
	}

	b.WriteString("\n## Commands\n\n| # | command | commit | server | date | duration |\n|---|---|---|---|---|---|\n")
	for _, row := range table {
		var commands []string
		for _, c := range row.commands {
			commands = append(commands, "`"+escape(c.text)+"`")
		}
		if row.chaos != nil {
			commands = append(commands, "`make chaos`")
		}
		m := r.Rows[row.number]
		commit, server, when, took := m.Commit, m.Server+", "+m.Go, m.When.Format(time.DateOnly), time.Duration(m.Seconds*float64(time.Second)).String()
		if m.Commit == "" { // only chaos, so far
			commit, server, when, took = "see below", "see below", all.Latest.Format(time.DateOnly), "see below"
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s |\n", row.number, strings.Join(commands, "<br>"), commit, server, when, took)
	}

	b.WriteString("\n## Chaos\n\nThe table has all rounds since the results were last cleared. No fault of a calm round delays a heartbeat. A safe round also has faults that do. A rough round also has faults that a lock on Redis cannot survive. Each wait for a latch and each worker of a wait group counts as an acquisition.\n")
	b.WriteString("\n| rounds | number | time | acquisitions | wrong | two owners | longest | holds lost | killed | also checked by Porcupine |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, key := range slices.Sorted(maps.Keys(r.Chaos)) {
		c := r.Chaos[key]
		fmt.Fprintf(&b, "| %s | %d | %v | %s | %d | %s | %v | %s | %d | %s |\n", key, c.Rounds, time.Duration(c.Seconds*float64(time.Second)).Round(time.Second),
			thousands(c.Checked), c.Wrong, thousands(c.Overlaps), rounded(c.Longest), thousands(c.Lost), c.Killed, thousands(c.Porcupine))
	}
	fmt.Fprintf(&b, "\n- acquisitions: %s\n- faults: %s\n- checks of holds: %s\n- servers: %s\n- clients: %s\n- commits: %s\n- seeds: %s\n",
		list(all.Granted), list(all.Faults), thousands(int(all.Looks)), strings.Join(all.Servers, ", "), strings.Join(all.Clients, ", "), strings.Join(all.Commits, ", "), strings.Join(all.Seeds, ", "))
	b.WriteString(busyHead)
	rounds := 0
	for _, one := range r.busy {
		rounds += one.Rounds
	}
	fmt.Fprintf(&b, "**%d rounds** so far.\n\n| date | commit | rounds | histories | load | failures |\n|---|---|---|---|---|---|\n", rounds)
	for _, one := range r.busy {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %d |\n", one.When, one.Commit, one.Rounds, one.Histories, one.Load, len(one.Red))
	}
	b.WriteString("\n| failing test | cause |\n|---|---|\n")
	for _, one := range r.busy {
		for _, red := range one.Red {
			fmt.Fprintf(&b, "| %s | %s |\n", escape(red.Test), escape(red.Why))
		}
	}
	return b.String()
}

// cell returns the measurements of the row.
func (r row) cell(all results) (text []string) {
	text = append(text, all.Rows[r.number].Figures...)
	if r.chaos != nil {
		if said := r.chaos(all); said != "" {
			text = append(text, said)
		}
	}
	return text
}

// escape escapes text for a table cell.
func escape(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// list formats a map, largest values first.
func list(m map[string]int) string {
	var all []string
	for _, k := range slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) }) {
		all = append(all, k+" "+thousands(m[k]))
	}
	return strings.Join(all, ", ")
}
