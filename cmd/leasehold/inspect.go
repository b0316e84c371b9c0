package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// inspection is one call of inspect.
type inspection struct {
	via    connection
	out    output
	limits limitFlag
}

func inspectCommand() *cobra.Command {
	i := &inspection{}
	cmd := &cobra.Command{
		Use:        "inspect NAME",
		SuggestFor: []string{"status", "who", "show", "get"},
		Short:      "Show one lock, rate limiter or Bloom filter",
		Example: `  leasehold inspect orders:42
  leasehold inspect api:alice --limit 10/1s --limit 1000/24h/aligned
  leasehold inspect orders:42 -o json | jq -r '.holders[].owner'`,
		Long: `Show what Redis stores about NAME: a lock, a key of a rate limiter (<limiter>:<key>), a
Redisson-compatible rate limiter, or a Bloom filter. NAME is the name of the key,
including the key prefix.

For a lock, inspect shows each holder with host, process and request time, the
remaining lease time, the waiters in their order, the fencing token, the highest token,
and the last force-unlock. The time since the request includes the wait, because Redis
does not store when the lock was granted. For a plain lock, Redis stores which processes
wait, and not how many of their goroutines. For a read/write lock, it stores only the
writer that readers wait for.

For a key of a rate limiter, inspect shows the used quota. Redis does not store the
limits: pass each limit of the application as --limit, in its order, to see the
remaining requests and when the next one is available. 10/1m is 10 per minute, 10/1m/20
has a burst of 20, and 10/24h/aligned counts in days of UTC. Times are by the clock of
the server. For a Bloom filter, inspect estimates the number of elements and the
false-positive rate from its bits; for one over 4 MB, from a sample of 4 MB.

A name without a key is shown as free, with a warning on standard error. Another warning
says that NAME exists both with and without braces: like in Redisson, x and {x} share
their auxiliary keys, such as the queue and the tokens.

inspect changes nothing.

Permissions: see leasehold doctor --print-acl page.

Exit codes:
  0  shown, even if the lock is free
  1  the key is not a lock, a limiter or a filter, or Redis is unavailable
  2  wrong arguments

` + connectionHelp,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return i.via.completeNames(cmd, args, begin, "", admin.RateLimit, admin.RedissonRateLimit, admin.Bloom)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return i.via.operate(cmd.Context(), func(a *admin.Admin, rdb rueidis.Client) error {
				i.via.warnOfReplica(cmd.Context(), rdb, cmd.ErrOrStderr())
				l, err := a.Inspect(cmd.Context(), args[0])
				if err != nil {
					return noLock(args[0], err)
				}
				if twin := besides(cmd.Context(), a, rdb, args[0]); twin != "" {
					warn(cmd.ErrOrStderr(), "%s", twin)
				}
				return i.show(l, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	cmd.Flags().Var(&i.limits, "limit", "limit of the rate limiter, such as 10/1m; repeat it for each limit (default none)")
	i.out.addFlag(cmd)
	i.via.addFlags(cmd)
	return cmd
}

// show writes l, a lock, a limiter or a filter, as set by the flags.
func (i *inspection) show(l admin.Lock, w, stderr io.Writer) error {
	switch {
	case len(i.limits) > 0 && l.Limit == nil:
		return fmt.Errorf("%s is not a rate limiter key with used quota: remove --limit", shown(l.Name))
	case len(i.limits) > 0 && !fits(l.Limit, i.limits):
		return usagef("--limit: %s has %d limits (%s): pass each limit of the application, in its order", shown(l.Name), len(l.Limit.Usage), stateOf(l))
	case i.out.format.value == "json":
		j := toJSON(l)
		if len(i.limits) > 0 {
			left, next := standing(l.Limit, i.limits)
			j.Limit.Left, j.Limit.NextMS = &left, milliseconds(next)
		}
		return writeJSON(w, j)
	case l.Limit != nil:
		return stateTable(w, l, i.limits)
	}
	if err := detail(l).table(w); err != nil {
		return err
	}
	if l.Kind == "" && l.ForceUnlock == nil && l.HighestToken == 0 {
		warn(stderr, "%s", i.via.nothing(l.Name))
	}
	return nil
}

// besides returns a warning if both x and {x} are names of locks, limiters or filters. In Redisson's scheme, the two share one queue,
// one token counter, one set of permits or one configuration. It returns "" if there is no second one, or if the user is not allowed
// to read it.
func besides(ctx context.Context, a *admin.Admin, rdb rueidis.Client, name string) string {
	twin := strings.TrimSuffix(strings.TrimPrefix(name, "{"), "}")
	if strings.ContainsAny(twin, "{}") {
		return ""
	}
	if twin == name {
		twin = "{" + name + "}"
	}
	if n, err := rdb.Do(ctx, rdb.B().Exists().Key(twin).Build()).AsInt64(); err != nil || n == 0 {
		return ""
	}
	l, err := a.Inspect(ctx, twin)
	if err != nil || l.Kind == "" || l.Kind == admin.Semaphore && l.Ambiguous != "" {
		return ""
	}
	return fmt.Sprintf("%s also exists (%s): x and {x} share their auxiliary keys, so some of this output may belong to it", shown(twin), kindOf(l))
}

// nothing returns a warning that a name without a key on the server may be wrong.
func (c *connection) nothing(name string) string {
	text := fmt.Sprintf("no key for %s on %s: free, or the name, its key prefix, the server or the database is wrong; leasehold ls lists the held locks", shown(name), c.server())
	if strings.ContainsAny(name, "*?[") {
		text = fmt.Sprintf("no key for %s on %s: inspect takes a name; use leasehold ls for a pattern", shown(name), c.server())
	}
	return text
}

// noLock rewords err, which is about the lock called name, for operators.
func noLock(name string, err error) error {
	switch {
	case errors.Is(err, lock.ErrWrongType):
		return fmt.Errorf("key %s is not a lock; nothing was changed", shown(name))
	case errors.Is(err, lock.ErrBadName), errors.Is(err, admin.ErrBadReason):
		return usage(err)
	}
	return err
}

// detail is a lock, shown for people.
type detail admin.Lock

// table writes the lock, with a line for each holder and each waiter.
func (d detail) table(w io.Writer) error {
	if unheld(d.Kind) {
		return stateTable(w, admin.Lock(d), nil)
	}
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	d.holderRows(t)
	d.stateRows(t)
	if err := t.Flush(); err != nil {
		return err
	}
	return titled(w, d.Name, d.what(), text.String())
}

// what returns what the lock is, and whether it is held.
func (d detail) what() string {
	switch {
	case d.Locked(), d.Kind == admin.Semaphore:
		return heldAs(admin.Lock(d))
	case d.Kind == admin.Latch && d.Left > 0:
		return fmt.Sprintf("a latch, count %d", d.Left)
	case d.Kind == admin.Latch:
		return "a latch, released"
	case d.Kind == admin.WaitGroup:
		return waitGroupOf(admin.Lock(d))
	}
	return "free"
}

// holderRows writes the holders, and the lost workers of a wait group.
func (d detail) holderRows(t io.Writer) {
	for _, h := range d.Holders {
		count := ""
		switch {
		case d.Kind == admin.Semaphore:
			count = ", " + plural(int64(h.Count), "permit")
		case h.Count > 1:
			count = fmt.Sprintf(", held %d times", h.Count)
		}
		if len(d.Holders) > 1 { // the lease of the lock is the longest of theirs
			count += ", " + leaseLeft((*admin.Lock)(&d).HolderLease(h))
		}
		fmt.Fprintf(t, "%s\t%s\n", role(h), who(h.Owner, h.Client))
		fmt.Fprintf(t, "\t%s%s\n", since(h), count)
		fmt.Fprintf(t, "\towner %s\n", shown(h.Owner))
	}
	for _, h := range d.Lost {
		fmt.Fprintf(t, "lost\t%s\n", who(h.Owner, h.Client))
		fmt.Fprintf(t, "\t%s\n", since(h))
	}
}

// stateRows writes what is not about one holder.
func (d detail) stateRows(t io.Writer) {
	if d.Leader != nil {
		fmt.Fprintf(t, "value\t%s\n", shown(d.Leader.Value))
		fmt.Fprintf(t, "\t%s\n", saidBy(admin.Lock(d)))
	}
	if d.Locked() {
		lease := "no expiry: a client removed it (PERSIST)"
		if d.Lease >= 0 {
			lease = left(d.Lease) + " left"
		}
		fmt.Fprintf(t, "lease\t%s\n", lease)
	}
	head := "waiters"
	for _, line := range waitersOf((*admin.Lock)(&d)) {
		fmt.Fprintf(t, "%s\t%s\n", head, line)
		head = ""
	}
	head = "token"
	if d.Token > 0 {
		fmt.Fprintf(t, "%s\t%d%s\n", head, d.Token, ahead(admin.Lock(d)))
		head = ""
	}
	if d.HighestToken > 0 {
		fmt.Fprintf(t, "%s\thighest %d; the next token is larger\n", head, d.HighestToken)
	}
	if f := d.ForceUnlock; f != nil {
		fmt.Fprintf(t, "force-unlocked\t%s ago, by %s\n", ago(f.At), shown(f.By))
		if f.Reason != "" {
			fmt.Fprintf(t, "\t%s\n", shown(f.Reason))
		}
		for _, from := range f.From {
			fmt.Fprintf(t, "\tfrom %s\n", shown(from))
		}
	}
	if d.Ambiguous != "" {
		fmt.Fprintf(t, "ambiguous\t%s\n", d.Ambiguous)
	}
}

// waitersOf returns a line for each waiter, in their order. Consecutive waiters that count as dead share a line.
func waitersOf(l *admin.Lock) (lines []string) {
	all := l.Waiters
	soonest, keep := time.Duration(math.MaxInt64), 0 // of the waiters that keep their place by a heartbeat
	for i := 0; i < len(all); {
		dead := 0
		for dead < len(all)-i && all[i+dead].WaiterTimeout == 0 {
			dead++
		}
		if dead > 1 {
			counts := make(map[string]int)
			for _, w := range all[i : i+dead] {
				counts[brief(w.Client)]++
			}
			var parts []string
			for _, name := range slices.Sorted(maps.Keys(counts)) {
				parts = append(parts, fmt.Sprintf("%d of %s", counts[name], name))
			}
			lines = append(lines, fmt.Sprintf("%d. to %d. timed out: %s", i+1, i+dead, strings.Join(parts, ", ")))
			i += dead
			continue
		}
		w := all[i]
		i++
		line := fmt.Sprintf("%d. %s", i, who(w.Owner, w.Client))
		if !w.Since.IsZero() {
			line += ", for " + ago(w.Since)
		}
		switch {
		case w.WaiterTimeout == 0:
			line += "; timed out"
		case l.IsGone(w):
			line += "; gone: no registry entry"
		}
		if w.WaiterTimeout > 0 {
			soonest, keep = min(soonest, w.WaiterTimeout), keep+1
		}
		lines = append(lines, line)
	}
	if l.IsFull() {
		lines = append(lines, "the queue is full: more processes may wait")
	}
	switch keep {
	case 0:
	case 1:
		lines = append(lines, fmt.Sprintf("waiter timeout in %s", left(soonest)))
	default:
		lines = append(lines, fmt.Sprintf("first waiter timeout in %s", left(soonest)))
	}
	return lines
}

// ahead describes by how much the token of a holder can be larger.
func ahead(l admin.Lock) string {
	if l.Mode != lock.Exclusive || l.HighestToken == l.Token {
		return ""
	}
	return fmt.Sprintf(", or up to %d larger after hand-offs within the process", l.HighestToken-l.Token)
}

// saidBy describes how long the leader has led, and when its value expires.
func saidBy(l admin.Lock) string {
	text := fmt.Sprintf("leader for %s, token %d", ago(l.Leader.Since), l.Leader.Token)
	switch {
	case !l.Locked():
		text = "of an earlier leader; no leader now"
	case l.Leader.Token > 0 && l.Token > l.Leader.Token:
		text = "of an earlier leader; the holder published none"
	}
	return fmt.Sprintf("%s; expires in %s unless published again", text, short(l.Leader.Left))
}

// waitGroupOf describes the workers of a wait group.
func waitGroupOf(l admin.Lock) string {
	return fmt.Sprintf("a wait group, %d active, %d done, %d lost", len(l.Holders), l.Done, len(l.Lost))
}

// heldAs describes how a lock is held.
func heldAs(l admin.Lock) string {
	switch l.Mode {
	case lock.Read:
		return "a read/write lock, held by " + plural(int64(l.Holding), "reader")
	case lock.Write:
		return "a read/write lock, held by a writer"
	case lock.Worker:
		return waitGroupOf(l)
	}
	if l.Kind == admin.Semaphore {
		return fmt.Sprintf("a semaphore of %s, %d free", plural(l.Permits, "permit"), l.Free)
	}
	return fmt.Sprintf("a %s lock, held", l.Kind)
}
