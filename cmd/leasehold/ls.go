package main

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

func lsCommand() *cobra.Command {
	var (
		via  connection
		out  output
		kind choice
	)
	cmd := &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List locks: their holders, when these asked for them, and how many wait; and limiters and filters",
		Example: `  leasehold ls
  leasehold ls --kind redisson-ratelimit
  leasehold ls 'orders:*' -o wide
  leasehold ls --kind rw -o jsonl | jq 'select(.waiting > 0)'`,
		Long: `List the locks that are held, on one server or on a whole cluster.

PATTERN is a pattern of Redis for the names: * is any text, ? any character, [ab] one
of these. Quote it, or the shell expands it. A name is that of the key, with the prefix
of the application if it has one.

ls tells a lock by the shape of its fields, and lists those of Redisson as well. It
leaves out all other keys. A fair lock that Redisson holds and nobody waits
for looks like a plain lock. A latch
is listed while it is closed, a wait group while members are at work, or are lost. A lock
whose holder says something as a leader is shown as an election.

Rate limiters and filters are listed only if --kind names them, with how they stand:
ratelimit has the keys of which a limiter is owed something, as there can be one for
each user; window the rate limiters that Redisson shares; bloom the Bloom filters, with
an estimate of their elements from 64 KB of their bits.

ASKED is the time since the holder asked for the lock, by the clock of its machine. It
includes the wait: Redis does not know when the holder got the lock.

ls sends SCAN, in small steps, and changes nothing. On a server with many keys this
takes time, and hardly slows down other clients. jsonl and name come unsorted, line by
line; the other formats are sorted, and tell on a terminal how far they are after two
seconds. WAITING tells how many of the waiters are gone: their clients have no entry
any more, because they were killed, or never had one. If a primary of a cluster does not respond, ls lists
what the others store, names the missing one on standard error, and exits with 1.

On a terminal, a table has at most as many columns as the terminal: long names and
holders are shortened in the middle. wide, and a table in a file or a pipe, are whole.

` + connectionHelp,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return via.completeNames(cmd, args, begin, kind.kind())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q := admin.Query{Idle: true, Kind: kind.kind()}
			if len(args) > 0 {
				q.Match = args[0]
			}
			w := cmd.OutOrStdout()
			shows := newProgress(cmd.ErrOrStderr())
			var scanned atomic.Uint64 // the bits of the share of the keys
			return via.operate(cmd.Context(), func(a *admin.Admin, _ rueidis.Client) error {
				locks := a.Locks(cmd.Context(), q)
				switch out.format.value {
				case "jsonl":
					return forEach(locks, func(l admin.Lock) error { return jsonLine(w, toJSON(l)) })
				case "name":
					return forEach(locks, func(l admin.Lock) error {
						_, err := fmt.Fprintln(w, shown(l.Name))
						return err
					})
				}
				done := shows.follow(func() string { return scannedText(math.Float64frombits(scanned.Load())) })
				all, lacks := sorted(locks)
				done()
				if lacks != nil && !incomplete(lacks) {
					return lacks
				}
				if out.format.value == "json" {
					list := make([]lockJSON, len(all))
					for i, l := range all {
						list[i] = toJSON(l)
					}
					return cmp.Or(writeJSON(w, list), lacks)
				}
				if len(all) == 0 && lacks == nil {
					fmt.Fprintln(cmd.ErrOrStderr(), "leasehold:", via.noMatch(q))
				}
				wide := out.format.value == "wide"
				if unheld(q.Kind) {
					return cmp.Or(listStates(w, columnsOf(w, wide), all), lacks)
				}
				return cmp.Or(listLocks(w, columnsOf(w, wide), all, wide), lacks)
			}, admin.WithProgress(func(share float64) { scanned.Store(math.Float64bits(share)) }))
		},
	}
	kind.initKinds()
	kind.addFlag(cmd, "kind", "", "which kind of locks, limiters or filters")
	out.addFlag(cmd, "wide", "jsonl", "name")
	via.addFlags(cmd)
	return cmd
}

// incomplete reports whether err only says that some servers of a cluster do not respond: a list has what the others store.
func incomplete(err error) bool { return errors.As(err, new(*admin.IncompleteError)) }

// forEach calls f for each lock, until there is an error.
func forEach(locks iter.Seq2[admin.Lock, error], f func(admin.Lock) error) error {
	for l, err := range locks {
		if err == nil {
			err = f(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sorted returns the locks in the order of their names.
func sorted(locks iter.Seq2[admin.Lock, error]) (all []admin.Lock, err error) {
	err = forEach(locks, func(l admin.Lock) error {
		all = append(all, l)
		return nil
	})
	slices.SortFunc(all, func(a, b admin.Lock) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

// noMatch says that there is nothing that matches a query.
func (c *connection) noMatch(q admin.Query) string {
	switch pattern := q.Match; {
	case unheld(q.Kind):
		return fmt.Sprintf("nothing of the kind %s that matches %s is on %s", q.Kind, shown(cmp.Or(pattern, "*")), c.server())
	case pattern == "":
		return "no lock is held on " + c.server()
	case strings.ContainsAny(pattern, "*?["):
		return fmt.Sprintf("no lock that is held matches %s on %s", shown(pattern), c.server())
	default:
		return fmt.Sprintf("no lock called %s is held on %s; for all names that begin so: leasehold ls '%s'", shown(pattern), c.server(), shown(pattern+"*"))
	}
}

// anyKind is the kind of all locks.
const anyKind = "any"

// initKinds makes c the choice of a kind.
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
