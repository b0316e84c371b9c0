package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// listing is one call of ls.
type listing struct {
	via  connection
	out  output
	kind choice
}

func lsCommand() *cobra.Command {
	l := &listing{}
	cmd := &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List locks, rate limiters and Bloom filters",
		Example: `  leasehold ls
  leasehold ls --kind redisson-ratelimit
  leasehold ls 'orders:*' -o wide
  leasehold ls --kind rw -o jsonl | jq 'select(.waiting > 0)'`,
		Long: `List the held locks of a server, or of all primaries of a cluster. Locks of Redisson are
listed too. A latch is listed until it is released, and a wait group while it has active
or lost workers. A lock whose leader has published a value is listed as an election. A
fair lock of Redisson without waiters looks like a plain lock, and is listed as one.

PATTERN is a Redis pattern for names: * matches any text, ? any character, and [ab] one
of these. Quote it to protect it from the shell. Names include the key prefix.

--kind selects one type of lock, or lists limiters or filters with their state:
  ratelimit           keys of rate limiters with used quota
  redisson-ratelimit  Redisson-compatible rate limiters
  bloom               Bloom filters, with the number of elements estimated from 64 KB

REQUESTED is the time since the holder requested the lock, by the clock of its machine.
It includes the wait, because Redis does not store when the lock was granted. WAITING is
the number of waiters, with the number that are gone: their clients have no registry
entry, because they were killed or never had one. 64+ means that more processes may wait
for a plain lock than Redis stores. A lock whose KIND ends with (lingers) is in use, or
kept idle by a client that releases it for other clients.

ls changes nothing. It sends SCAN in small steps, which takes time on a server with many
keys but hardly slows down other clients. -o jsonl and name print lines unsorted, as they
arrive; the other formats are sorted, and show progress on a terminal after two seconds.
If a primary of a cluster does not respond, ls lists what the others store, names the
primary on standard error, and exits with 1.

On a terminal, long names and holders are shortened in the middle to fit the width. With
-o wide, in a file and in a pipe, they are complete.

Permissions: see leasehold doctor --print-acl exporter.

Exit codes:
  0  all locks listed, even if there are none
  1  Redis unavailable, or part of a cluster does not respond
  2  wrong arguments

` + connectionHelp,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return l.via.completeNames(cmd, args, begin, l.kind.kind())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return l.list(cmd.Context(), queryOf(l.kind.kind(), args), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	l.kind.initKinds()
	l.kind.addFlag(cmd, "kind", "", "type of lock, limiter or filter")
	l.out.addFlag(cmd, "wide", "jsonl", "name")
	l.via.addFlags(cmd)
	return cmd
}

// list writes what matches q to w, line by line or as a whole.
func (l *listing) list(ctx context.Context, q admin.Query, w, stderr io.Writer) error {
	var scanned atomic.Uint64 // the bits of the share of the keys, a float64
	return l.via.operate(ctx, func(a *admin.Admin, rdb rueidis.Client) error {
		l.via.warnOfReplica(ctx, rdb, stderr)
		locks := a.Locks(ctx, q)
		if write := lineWriter(&l.out, w, toJSON, func(l admin.Lock) string { return l.Name }); write != nil {
			return forEach(locks, write)
		}
		done := terminal.NewProgress(stderr).Follow(func() string { return scannedText(math.Float64frombits(scanned.Load())) })
		all, lacks := sorted(locks)
		done()
		if lacks != nil && !incomplete(lacks) {
			return lacks
		}
		if len(all) == 0 && lacks == nil && l.out.format.value != "json" {
			warn(stderr, "%s", l.via.noMatch(q))
		}
		return cmp.Or(l.write(w, q.Kind, all), lacks)
	}, admin.WithProgress(func(share float64) { scanned.Store(math.Float64bits(share)) }))
}

// write writes the locks as a table, or as JSON.
func (l *listing) write(w io.Writer, kind admin.Kind, all []admin.Lock) error {
	wide := l.out.format.value == "wide"
	switch {
	case l.out.format.value == "json":
		list := make([]lockJSON, len(all))
		for i, one := range all {
			list[i] = toJSON(one)
		}
		return writeJSON(w, list)
	case unheld(kind):
		return listStates(w, columnsOf(w, wide), all)
	}
	return listLocks(w, columnsOf(w, wide), all, wide)
}

// incomplete reports whether err only means that some servers of a cluster do not respond. The list then has what the others store.
func incomplete(err error) bool { return errors.As(err, new(*admin.IncompleteError)) }

// lineWriter returns a function that writes one line for each item as it arrives, or nil if the format is not one of lines.
func lineWriter[T, J any](o *output, w io.Writer, toJSON func(T) J, name func(T) string) func(T) error {
	switch o.format.value {
	case "jsonl":
		return func(item T) error { return jsonLine(w, toJSON(item)) }
	case "name":
		return func(item T) error {
			_, err := fmt.Fprintln(w, shown(name(item)))
			return err
		}
	}
	return nil
}

// forEach calls f for each item, until there is an error.
func forEach[T any](items iter.Seq2[T, error], f func(T) error) error {
	for item, err := range items {
		if err == nil {
			err = f(item)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sorted returns the locks sorted by name. A wait group can have the same name as a lock.
func sorted(locks iter.Seq2[admin.Lock, error]) (all []admin.Lock, err error) {
	err = forEach(locks, func(l admin.Lock) error {
		all = append(all, l)
		return nil
	})
	slices.SortFunc(all, func(a, b admin.Lock) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind)) })
	return all, err
}

// noMatch returns the message that nothing matches a query.
func (c *connection) noMatch(q admin.Query) string {
	switch pattern := q.Match; {
	case unheld(q.Kind) || q.Kind == admin.Latch:
		return fmt.Sprintf("no key of type %s matches %s on %s", q.Kind, shown(cmp.Or(pattern, "*")), c.server())
	case q.Kind != "":
		return fmt.Sprintf("no held lock of type %s matches %s on %s", q.Kind, shown(cmp.Or(pattern, "*")), c.server())
	case pattern == "":
		return "no lock is held on " + c.server()
	case strings.ContainsAny(pattern, `*?[\`):
		return fmt.Sprintf("no held lock matches %s on %s", shown(pattern), c.server())
	case shown(pattern) != pattern || strings.Contains(pattern, "'"): // a shell would not interpret the displayed form as this name
		return fmt.Sprintf("lock %s is not held on %s", shown(pattern), c.server())
	default:
		return fmt.Sprintf("lock %s is not held on %s; for all names with this prefix: leasehold ls '%s*'", shown(pattern), c.server(), pattern)
	}
}

// queryOf returns the query for a kind. args has PATTERN, or is empty.
func queryOf(kind admin.Kind, args []string) admin.Query {
	return admin.Query{Idle: true, Kind: kind, Match: strings.Join(args, "")}
}

// anyKind is the value of --kind for all locks.
const anyKind = "any"

// initKinds makes c a flag whose value is a kind.
func (c *choice) initKinds() {
	values := []string{anyKind}
	for _, k := range admin.Kinds() {
		values = append(values, string(k))
	}
	c.init(anyKind, values...)
}

// kind returns the kind for a query.
func (c *choice) kind() admin.Kind {
	if c.value == anyKind {
		return ""
	}
	return admin.Kind(c.value)
}

// scannedText describes how much of a list has been read.
func scannedText(scanned float64) string {
	return fmt.Sprintf("%.0f %% of the keys scanned", 100*scanned)
}
