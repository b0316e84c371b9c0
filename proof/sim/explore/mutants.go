package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// mutant is the library without one safeguard.
type mutant struct {
	name  string
	kind  string // of its plans
	edits []edit
}

// edit replaces a text of a source file.
type edit struct{ file, old, new string }

var mutants = []mutant{
	{"writers ignore readers whose leases expire soon", "rw", []edit{{
		"luascripts/rw_write_acquire.lua",
		"  if left == 0 then\n", "  if left < 3000 then\n",
	}}},
	{"a multi-lock call keeps its locks while it waits for others", "multi", []edit{{
		"multilock/multilock.go",
		"\t\t_ = releaseHolds(ctx, t.m.locks, t.holds)\n", "",
	}}},
	{"a lock is kept idle although a reader of the process holds it", "linger", []edit{{
		"internal/lockstate/linger.go",
		"t.reads || p.inFlight > 0 || p.readersHere()):", "p.inFlight > 0):",
	}, {
		"internal/lockstate/linger.go",
		"!c.canTake(t) || p.readersHere() {", "!c.canTake(t) {",
	}}},
	{"a release continues although the lock is gone", "plain", []edit{{
		"luascripts/include_release.lua",
		"HSET', lock, 'leasehold_line', rest) end\n    end\n    return -2\n", "HSET', lock, 'leasehold_line', rest) end\n    end\n    count = '1'\n",
	}}},
	{"an owner string is used twice within a second", "plain", []edit{{
		"internal/session/acquisition.go",
		"if n = max(n, last+1); i.number", "if n = n >> 30 << 30; i.number",
	}}},
	{"nothing is reconciled", "plain", []edit{{
		"internal/session/reconcile.go",
		"\ts.reconcilers.of(s, t).add(t, broken)\n", "",
	}}},
	{"an unknown outcome is reconciled only once", "plain", []edit{{
		"internal/session/reconcile.go",
		"case err == nil && (!d.broken || d.again > lives):", "case err == nil:",
	}}},
	{"a lease counts from the reply to the request", "plain", []edit{{
		"internal/session/request.go",
		"s.dog.WatchIn(&t.own, t, q.sent, lease,", "s.dog.WatchIn(&t.own, t, a.now, lease,",
	}}},
	{"a lease counts from the reply to the renewal", "plain", []edit{{
		"watchdog/lane.go",
		"l.extendLocked(b.sent, w.lease)", "l.extendLocked(n, w.lease)",
	}}},
	{"a process takes the notification of a release as a grant, without a request", "plain", []edit{{
		"luascripts/include_release.lua", // the message has the token
		"client(chosen), '0')", "client(chosen), string.format('%.0f', time_reply[1] * 1000000 + time_reply[2]))",
	}, {
		"luascripts/include_handoff.lua",
		"redis.pcall(publish, own, '0')", "local time = redis.call('TIME')\n  redis.pcall(publish, own, string.format('%.0f', time[1] * 1000000 + time[2]))",
	}, {
		"internal/session/subscribe.go",
		"\te.at.lock()\n\te.queue.OnHandOff()\n", `	token := uint64(0)
	for _, digit := range message {
		token = 10*token + uint64(digit-'0')
	}
	e.at.lock()
	if t := acquisitionOf(e.queue.Given(token, time.Now())); t != nil {
		t.lease = t.at.s.dog.WatchIn(&t.own, t, time.Now(), t.at.s.offer(t.spec), true)
	}
`,
	}, {
		"internal/lockstate/queue.go",
		"// OnHandOff ", `func (l *Queue) Given(token uint64, now time.Time) *Acquisition {
	t := l.hand.ticket
	if l.side == nil || t == nil || l.hand.offered != nil || l.waiters[0].once {
		return nil
	}
	l.hand.ticket = nil
	t.takesOver(token, now)
	l.side.p.offer(l, t)
	return t
}

// OnHandOff `,
	}}},
	{"a grant counts for the client, not for the owner string of the request", "plain", []edit{{
		"luascripts/include_acquire.lua",
		"  if holder == owner then\n", "  if client(holder) == client(owner) then\n",
	}}},
	{"a fair lock goes to whoever requests it", "fair", []edit{{
		"luascripts/fair_acquire.lua",
		"if not holder and (not first or first == owner) then", "if not holder then",
	}}},
	{"a fair lock goes to a waiter of the releasing client, if there is one", "fair", []edit{{
		"luascripts/fair_release.lua",
		"if count and first == next_owner then", "if count and next_owner ~= '' then",
	}}},
}

// overlay writes the files that m changes to dir, and returns the name of the file for go build
// -overlay. root is the directory of the library.
func (m mutant) overlay(dir, root string) (string, error) {
	texts := make(map[string]string)
	for _, e := range m.edits {
		if _, ok := texts[e.file]; !ok {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return "", err
			}
			texts[e.file] = string(text)
		}
		if n := strings.Count(texts[e.file], e.old); n != 1 {
			return "", fmt.Errorf("%s: %q occurs %[4]d times in %[3]s, want once", m.name, e.old, e.file, n)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.old, e.new, 1)
	}
	replace := make(map[string]string)
	for file, text := range texts {
		instead := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(instead, []byte(text), 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = instead
	}
	name := filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	return name, os.WriteFile(name, text, 0o644)
}

// library returns the directory of the library.
func library(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/leasehold-go/leasehold").Output()
	return string(bytes.TrimSpace(out)), err
}

// catch plays each mutant whose name matches, from seed 1 until a rule is violated, and prints a table.
func (o options) catch(ctx context.Context, out io.Writer) (code int, err error) {
	names, err := regexp.Compile(o.mutants)
	if err != nil {
		return 2, err
	}
	root, err := library(ctx)
	if err != nil {
		return 2, err
	}
	fmt.Fprint(out, "| Mutant | Kind | Seed | Violation |\n|---|---|---|---|\n")
	for _, m := range mutants {
		if !names.MatchString(m.name) {
			continue
		}
		row, caught, err := o.take(ctx, m, root)
		if err != nil {
			return 2, fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Fprintln(out, row)
		if !caught {
			code = 1
		}
	}
	return code, nil
}

// take builds the library with the edits of m, and plays it.
func (o options) take(ctx context.Context, m mutant, root string) (row string, caught bool, err error) {
	dir, err := os.MkdirTemp("", "leasehold-sim-")
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir, root)
	if err != nil {
		return "", false, err
	}
	p, err := loadFast(ctx, dir, overlay)
	if err != nil {
		return "", false, err
	}
	return o.row(ctx, m, p)
}

// row plays m until a rule is violated, and returns its row of the table.
func (o options) row(ctx context.Context, m mutant, p player) (row string, caught bool, err error) {
	o.from, o.twice, o.kinds = 1, 0, m.kind
	var said bytes.Buffer
	failed, code := o.explore(ctx, &said, p, []string{m.kind})
	switch {
	case failed != nil:
		what, _, _ := strings.Cut(failed.result.Wrong[0], "\n")
		return fmt.Sprintf("| %s | %s | %d | %s |", m.name, m.kind, failed.plan.Seed, what), true, nil
	case code != 0:
		return "", false, fmt.Errorf("%s", said.Bytes())
	}
	return fmt.Sprintf("| %s | %s | none of %d | nothing |", m.name, m.kind, o.seeds), false, nil
}
