package main

import (
	"cmp"
	"fmt"
	"slices"

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
		Short: "List locks: who holds them, since when, and how many wait",
		Example: `  leasehold ls
  leasehold ls 'orders:*' -o wide
  leasehold ls --kind rw -o jsonl | jq 'select(.waiting > 0)'`,
		Long: `List the locks that somebody holds, on one server or on a whole cluster.

PATTERN is one of Redis for the names: * is any text, ? any character, [ab] one of
these. Keep it from the shell by quotes. Names are those of the keys, with the
prefix that applications may put before them.

A lock is told by the shape of its fields, also one of Redisson; whatever else is in
Redis is left out. A fair lock that nobody waits for looks like a plain one. Since
when is by the clock of the holder's machine.

ls asks with SCAN, in small steps, and changes nothing. On a server with many keys
it takes its time, and others notice next to nothing of it. jsonl and name are
written as they come, all else is sorted.

` + connectionHelp,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return via.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q := admin.Query{}
			if kind.value != anyKind {
				q.Kind = admin.Kind(kind.value)
			}
			if len(args) > 0 {
				q.Match = args[0]
			}
			w := cmd.OutOrStdout()
			return via.operate(cmd.Context(), func(a *admin.Admin, _ rueidis.Client) error {
				var locks []admin.Lock
				for l, err := range a.Locks(cmd.Context(), q) {
					if err == nil {
						switch out.format.value {
						case "jsonl":
							err = jsonLine(w, toJSON(l))
						case "name":
							_, err = fmt.Fprintln(w, shown(l.Name))
						default:
							locks = append(locks, l)
						}
					}
					if err != nil {
						return err
					}
				}
				slices.SortFunc(locks, func(a, b admin.Lock) int { return cmp.Compare(a.Name, b.Name) })
				switch out.format.value {
				case "jsonl", "name":
					return nil
				case "json":
					list := []lockJSON{}
					for _, l := range locks {
						list = append(list, toJSON(l))
					}
					return writeJSON(w, list)
				}
				return listLocks(w, locks, out.format.value == "wide")
			})
		},
	}
	kind.init(anyKind, anyKind, string(admin.Plain), string(admin.Fair), string(admin.ReadWrite))
	kind.addFlag(cmd, "kind", "", "which kind of locks")
	out.addFlag(cmd, "wide", "jsonl", "name")
	via.addFlags(cmd)
	return cmd
}

// anyKind is the kind of all locks.
const anyKind = "any"
