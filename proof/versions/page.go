package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const head = `# Compatibility

Supported servers and test results. A program writes this page (` + "`proof/versions`" + `). Do not edit it: a test compares it with the results.
A server that is not listed was not tested. All other tests of the repository run on Redis 7.0.

` + "```sh" + `
make versions                                    # fetch the servers, run everything on them, and write this page
make versions SERVERS=valkey-9.1 PARTS=sentinel  # one part on one server
` + "```" + `

The conformance tests are those of package ` + "`locktest`" + `. Histories are shorter than in other runs (` + "`go test -short`" + `). Histories with random
faults are rounds of package ` + "`integration/chaos`" + `, with the same seed on each server. *Commit* is the latest commit that changed the library.
*Before* lists tests that failed in an earlier run of the part at the same commit.
`

// page returns the text of docs/evidence/compatibility.md.
func page(rows []row) string {
	var b strings.Builder
	b.WriteString(head)
	b.WriteString("\n## In short\n\n| part |")
	for _, server := range servers(rows) {
		fmt.Fprintf(&b, " %s |", server)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(servers(rows))) + "\n")
	for _, p := range parts {
		fmt.Fprintf(&b, "| %s |", p.name)
		for _, server := range servers(rows) {
			fmt.Fprintf(&b, " %s |", short(rows, server, p.name))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n## Parts\n\n| part | mode | tests |\n|---|---|---|\n")
	for _, p := range parts {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", p.name, p.mode, p.what)
	}
	b.WriteString("\n## Runs\n\n| server | part | mode | passed | failed | skipped | holds checked | failing tests | duration | date | commit |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		if r.Lacks != "" {
			continue
		}
		mode := ""
		for _, p := range parts {
			if p.name == r.Part {
				mode = p.mode
			}
		}
		red := strings.Join(r.Red, ", ")
		if red == "" {
			red = "none"
		}
		if len(r.Before) > 0 {
			red += "; before: " + strings.Join(r.Before, ", ")
		}
		checked := ""
		if r.Holds > 0 {
			checked = strconv.Itoa(r.Holds)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %s | %s | %v | %s | %s |\n", r.Server, r.Part, mode, r.Passed, r.Failed, r.Skipped, checked, red,
			time.Duration(r.Seconds)*time.Second, r.When.Format(time.DateOnly), r.Commit)
	}
	skips(&b, rows)
	return b.String()
}

// skips writes which tests were skipped on which servers, and why.
func skips(b *strings.Builder, rows []row) {
	var order []skip // the order of the rows
	on := map[skip][]string{}
	for _, r := range rows {
		for _, s := range r.Skips {
			if !slices.Contains(order, s) {
				order = append(order, s)
			}
			if !slices.Contains(on[s], r.Server) {
				on[s] = append(on[s], r.Server)
			}
		}
	}
	if len(order) == 0 {
		return
	}
	b.WriteString("\n## Skipped tests\n\n| test | reason | servers |\n|---|---|---|\n")
	for _, s := range order {
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", s.Test, s.Why, strings.Join(on[s], ", "))
	}
}

// short returns the text of a cell: the result of a part on a server.
func short(rows []row, server, part string) string {
	at := slices.IndexFunc(rows, func(r row) bool { return r.Server == server && r.Part == part })
	switch {
	case at < 0:
		return "not run"
	case rows[at].Lacks != "":
		return rows[at].Lacks
	case len(rows[at].Red) > 0:
		return fmt.Sprintf("**%d of %d failed**", rows[at].Failed, rows[at].Passed+rows[at].Failed)
	}
	if rows[at].Holds > 0 {
		return fmt.Sprintf("%d passed, %d holds", rows[at].Passed, rows[at].Holds)
	}
	return fmt.Sprintf("%d passed", rows[at].Passed)
}

func servers(rows []row) (names []string) {
	for _, r := range rows {
		if !slices.Contains(names, r.Server) {
			names = append(names, r.Server)
		}
	}
	return names
}

// sort sorts rows in the order of the page.
func sort(rows []row) {
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(older(a.Server, b.Server), cmp.Compare(place(a.Part), place(b.Part)))
	})
}

func place(name string) int {
	return slices.IndexFunc(parts, func(p part) bool { return p.name == name })
}

// older compares servers by name, then by version number.
func older(a, b string) int {
	nameA, versionA, _ := strings.Cut(a, " ")
	nameB, versionB, _ := strings.Cut(b, " ")
	if nameA != nameB {
		return cmp.Compare(nameA, nameB)
	}
	return slices.CompareFunc(strings.Split(versionA, "."), strings.Split(versionB, "."), func(a, b string) int {
		x, _ := strconv.Atoi(a) // digits
		y, _ := strconv.Atoi(b)
		return cmp.Compare(x, y)
	})
}
