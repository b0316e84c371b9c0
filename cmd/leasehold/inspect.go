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

func inspectCommand() *cobra.Command {
	var (
		via    connection
		out    output
		limits limitFlag
	)
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show the holders and the waiters of a lock, or how a limiter or a filter stands",
		Example: `  leasehold inspect orders:42
  leasehold inspect api:alice --limit 10/1s --limit 1000/24h/aligned
  leasehold inspect orders:42 -o json | jq -r '.holders[].owner'`,
		Long: `Show all that Redis knows of the lock called NAME. Of each holder: when it asked for
the lock, on which host, in which process, and what is left of its lease. The waiters,
in their order. The fencing token of the holder, if it uses fencing, and the register of
the tokens. The operator that last unlocked the lock by force.

The time since a holder asked includes its wait: a holder that asked an hour ago may
have got the lock a second ago. Redis does not know when a holder got the lock;
leasehold watch shows it of those to come.

NAME is the name of the key, with the prefix of the application if it has one. Of a
plain lock, Redis knows which processes wait, and not how many of their goroutines. Of
a read/write lock, it knows the writer that readers let pass.

NAME can also be a key of a rate limiter (<limiter>:<key>), a window or a Bloom filter.
Times are by the clock of the server. Redis has what is owed of a key, and not the limits:
with each limit of the application as --limit, in its order, inspect says how many units
are left, and when the next one comes. 10/1m is 10 a minute; 10/1m/20 has a burst of 20;
10/24h/aligned counts in days of UTC. Of a filter it counts the bits that are set, of
one over 4 MB in a sample of 4 MB, by commands for 64 KB each, and estimates from them
how many elements it has, and how often it is wrong.

A name without a trace on the server is shown as free. A line on standard error says so.
Another one warns if there is also {NAME}, or NAME without its braces: as with Redisson,
x and {x} share the keys beside their own, such as the queue and the tokens.

Exit code: 0, also if the lock is free; 1 if the key holds no lock, or if Redis gave no
answer; 2 if inspect was called the wrong way.

` + connectionHelp,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return via.completeNames(cmd, args, begin, "", admin.RateLimit, admin.RedissonRateLimit, admin.Bloom)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return via.operate(cmd.Context(), func(a *admin.Admin, rdb rueidis.Client) error {
				l, err := a.Inspect(cmd.Context(), args[0])
				if err != nil {
					return noLock(args[0], err)
				}
				if twin := besides(cmd.Context(), a, rdb, args[0]); twin != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "leasehold:", twin)
				}
				switch {
				case len(limits) > 0 && l.Limit == nil:
					return fmt.Errorf("nothing is owed of %s, or it is no key of a rate limiter: --limit says nothing of it", shown(args[0]))
				case out.format.value == "json":
					j := toJSON(l)
					if len(limits) > 0 {
						left, next := standing(l.Limit, limits)
						j.Limit.Left, j.Limit.NextMS = &left, milliseconds(next)
					}
					return writeJSON(cmd.OutOrStdout(), j)
				}
				if l.Limit != nil {
					return stateTable(cmd.OutOrStdout(), l, limits)
				}
				if err := detail(l).table(cmd.OutOrStdout()); err != nil {
					return err
				}
				if l.Kind == "" && l.ForceUnlock == nil && l.HighestToken == 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), "leasehold:", via.nothing(args[0]))
				}
				return nil
			})
		},
	}
	cmd.Flags().Var(&limits, "limit", "a limit of the rate limiter whose key NAME is; can be given several times")
	out.addFlag(cmd)
	via.addFlags(cmd)
	return cmd
}

// besides returns a warning if both x and {x} are names of locks, limiters or filters. By the rule of Redisson's names the two share
// one queue, one register of tokens, one set of permits or one configuration. It returns "" if there is no second one, or if the user may not look.
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
	return fmt.Sprintf("there is also %s, of the kind %s: x and {x} share the keys beside their own, so some of what is shown may belong to it", shown(twin), kindOf(l))
}

// nothing says that a name without a trace on the server may be the wrong one.
func (c *connection) nothing(name string) string {
	text := fmt.Sprintf("there is no trace of %s on %s: it is free if name, server and database are right; leasehold ls shows the locks that are held", shown(name), c.server())
	if strings.ContainsAny(name, "*?[") {
		text = fmt.Sprintf("there is no trace of %s on %s: inspect takes a name; for a pattern use leasehold ls", shown(name), c.server())
	}
	return text
}

// noLock returns err, about the lock called name, in words for operators.
func noLock(name string, err error) error {
	switch {
	case errors.Is(err, lock.ErrWrongType):
		return fmt.Errorf("the key %s holds something that is no lock; it was left as it is", shown(name))
	case errors.Is(err, lock.ErrBadName):
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
	s := newScreen(w)
	switch {
	case d.Locked(), d.Kind == admin.Semaphore:
		s.print("%s: %s\n", s.in(bold, shown(d.Name)), heldAs(admin.Lock(d)))
	case d.Kind == admin.Latch && d.Left > 0:
		s.print("%s: a latch, %d to count down\n", s.in(bold, shown(d.Name)), d.Left)
	case d.Kind == admin.Latch:
		s.print("%s: a latch, open\n", s.in(bold, shown(d.Name)))
	case d.Kind == admin.WaitGroup:
		s.print("%s: %s\n", s.in(bold, shown(d.Name)), waitGroupOf(admin.Lock(d)))
	default:
		s.print("%s: free\n", s.in(bold, shown(d.Name)))
	}
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, h := range d.Holders {
		count := ""
		switch {
		case d.Kind == admin.Semaphore:
			count = ", " + permits(int64(h.Count))
		case h.Count > 1:
			count = fmt.Sprintf(", held %d times", h.Count)
		}
		fmt.Fprintf(t, "%s\t%s\n", role(h), who(h.Owner, h.Client))
		fmt.Fprintf(t, "\t%s%s\n", since(h), count)
		fmt.Fprintf(t, "\towner %s\n", h.Owner)
	}
	for _, h := range d.Lost {
		fmt.Fprintf(t, "lost\t%s\n", who(h.Owner, h.Client))
		fmt.Fprintf(t, "\t%s\n", since(h))
	}
	if d.Leader != nil {
		fmt.Fprintf(t, "says\t%s\n", shown(d.Leader.Value))
		fmt.Fprintf(t, "\t%s\n", saidBy(admin.Lock(d)))
	}
	if d.Locked() {
		lease := "no expiry: somebody has taken it away (PERSIST)"
		if d.Lease >= 0 {
			lease = left(d.Lease) + " left"
		}
		fmt.Fprintf(t, "lease\t%s\n", lease)
	}
	head := "waits"
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
		fmt.Fprintf(t, "%s\tregister %d; the next token is larger\n", head, d.HighestToken)
	}
	if f := d.ForceUnlock; f != nil {
		fmt.Fprintf(t, "forced\t%s ago, by %s\n", ago(f.At), shown(f.By))
		if f.Reason != "" {
			fmt.Fprintf(t, "\t%s\n", shown(f.Reason))
		}
		for _, from := range f.From {
			fmt.Fprintf(t, "\tfrom %s\n", shown(from))
		}
	}
	if d.Ambiguous != "" {
		fmt.Fprintf(t, "unsure\t%s\n", d.Ambiguous)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	s.print("%s", text.String())
	return s.failed()
}

// waitersOf returns a line for each waiter, in their order. Those that count as dead, one after the other, have one line.
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
			lines = append(lines, fmt.Sprintf("%d. to %d. count as dead: %s", i+1, i+dead, strings.Join(parts, ", ")))
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
			line += "; counts as dead"
		case l.IsGone(w):
			line += "; gone: its client has no entry"
		}
		if w.WaiterTimeout > 0 {
			soonest, keep = min(soonest, w.WaiterTimeout), keep+1
		}
		lines = append(lines, line)
	}
	switch keep {
	case 0:
	case 1:
		lines = append(lines, fmt.Sprintf("counts as dead if not heard of for %s", left(soonest)))
	default:
		lines = append(lines, fmt.Sprintf("each counts as dead if not heard of for %s or more", left(soonest)))
	}
	return lines
}

// ahead tells by how much the token of a holder can be larger.
func ahead(l admin.Lock) string {
	if l.Mode != lock.Exclusive || l.HighestToken == l.Token {
		return ""
	}
	return fmt.Sprintf(", or up to %d more after hand-offs within the process", l.HighestToken-l.Token)
}

// saidBy tells since when the leader says something, and for how long it stands there.
func saidBy(l admin.Lock) string {
	text := fmt.Sprintf("has led for %s, token %d", ago(l.Leader.Since), l.Leader.Token)
	switch {
	case !l.Locked():
		text = "the word of a leader that is gone"
	case l.Leader.Token > 0 && l.Token > l.Leader.Token:
		text = "the word of a leader before the holder"
	}
	return fmt.Sprintf("%s; it stands for %s more unless it is said again", text, short(l.Leader.Left))
}

// waitGroupOf returns words for the workers of a wait group.
func waitGroupOf(l admin.Lock) string {
	return fmt.Sprintf("a wait group, %d at work, %d done, %d lost", len(l.Holders), l.Done, len(l.Lost))
}

// heldAs returns words for the way in which a lock is held.
func heldAs(l admin.Lock) string {
	switch l.Mode {
	case lock.Read:
		return fmt.Sprintf("a read/write lock, read by %d", l.Holding)
	case lock.Write:
		return "a read/write lock, written"
	case lock.Worker:
		return waitGroupOf(l)
	}
	if l.Kind == admin.Semaphore {
		return fmt.Sprintf("a semaphore of %s, %d free", permits(l.Permits), l.Free)
	}
	return fmt.Sprintf("a %s lock, held", l.Kind)
}

// permits returns n permits in words.
func permits(n int64) string {
	if n == 1 {
		return "1 permit"
	}
	return fmt.Sprintf("%d permits", n)
}

// role returns the word for the way in which a holder holds the lock.
func role(h lock.Holder) string {
	switch h.Mode {
	case lock.Read:
		return "reads"
	case lock.Write:
		return "writes"
	case lock.Worker:
		return "works"
	}
	return "holds"
}

// since returns words for the time at which h asked for the lock.
func since(h lock.Holder) string {
	if h.Since.IsZero() {
		return "nobody says when it asked"
	}
	text := fmt.Sprintf("asked %s ago, at %s", ago(h.Since), h.Since.Local().Format("2006-01-02 15:04:05 MST"))
	if h.Mode == lock.Worker { // a worker of a wait group waits for nobody
		return text
	}
	return text + " (this includes its wait)"
}
