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
make chaos SEED=42 DURATION=2h                  # the same faults again, for longer
go run ./proof/reliability -run 3,4 # measure rows 3 and 4 again, and write this page
` + "```" + `

"Wrong" counts what must never happen:

- two holds valid at once where no fault excuses it
- a token that is not larger than an earlier holder's token
- a hold that was treated as valid after ` + "`Until`" + `
- a lock that was gone before its lease expired
- a fair lock that was granted out of order
- a latch that was released before its parts were counted
- a wait group that was done before its workers were, or a worker that was reported lost and was not

"Two owners" counts what no lock on Redis can prevent. After a failover that lost the last writes, a restart without data, a clock that moved
forward, or a lock that was deleted or force-unlocked, the earlier owner holds its lock until it is notified, for at most one lease.
Package ` + "`integration/chaos`" + ` describes a round and what it checks.
`

const busyHead = `
## The tests on a busy machine

A test that fails by chance hides one that fails for a reason. The whole suite, with Redisson's tests, is therefore run repeatedly on an overloaded
machine with two processors: several packages at once, next to other work (` + "`sh scripts/flaky.sh all`" + `). The load is the number of
processes that wait for a processor. Every failing test is investigated and fixed. One failure was a bug of the library (TestRollout), and one a bug
of the tool (TestTerminal_jobControl). The others were bugs of the tests.

` + "`make test`" + ` also ran ten times on 2026-11-28 (79ccf35, 54 packages), two at a time next to four processes that only compute, at a load of 13 to
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
	fmt.Fprintf(&b, "\n**%s acquisitions** in all, %s of them in chaos.\n", thousands(acquisitions), thousands(all.Checked))

	b.WriteString("\n## The table\n\n| # | fault | guarantee | measurement |\n|---|---|---|---|\n")
	for _, row := range table {
		fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", row.number, row.what, row.promise, escape(strings.Join(row.cell(r), ". ")))
	}

	b.WriteString("\n## How to measure it again\n\n| # | command | commit | server | when | took |\n|---|---|---|---|---|---|\n")
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

	b.WriteString("\n## Chaos\n\nAll rounds since the results were last cleared. A calm round has only faults that delay no heartbeat. A rough round also has faults that a lock on Redis cannot survive. Acquisitions of a latch are its waits, and acquisitions of a wait group are its workers.\n")
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
	fmt.Fprintf(&b, "**%d rounds** so far.\n\n| when | commit | rounds | histories | load | failures |\n|---|---|---|---|---|---|\n", rounds)
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

// cell returns the lines of the row's result cell.
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

// list formats a map, the largest values first.
func list(m map[string]int) string {
	var all []string
	for _, k := range slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) }) {
		all = append(all, k+" "+thousands(m[k]))
	}
	return strings.Join(all, ", ")
}
