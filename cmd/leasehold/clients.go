package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

func clientsCommand() *cobra.Command {
	var (
		via connection
		out output
	)
	cmd := &cobra.Command{
		Use:   "clients",
		Short: "List the clients that use locks",
		Example: `  leasehold clients
  leasehold clients -o jsonl | jq -r .host | sort | uniq -c`,
		Long: `List the clients of leasehold, with or without locks: application, host, process and
start time. A client that died stays in the list for a minute. Redisson clients, and
clients without a registry entry (WithoutRegistry), are not listed. If a primary of a
cluster does not respond, clients lists what the others store, names the primary on
standard error, and exits with 1.

clients changes nothing.

Permissions: see leasehold doctor --print-acl exporter.

Exit codes:
  0  all clients listed, even if there are none
  1  Redis unavailable, or part of a cluster does not respond
  2  wrong arguments

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			return via.operate(cmd.Context(), func(a *admin.Admin, _ rueidis.Client) error {
				var clients []lock.Client
				var lacks error
				done := func() {}
				if out.format.value != "jsonl" && out.format.value != "name" { // which print each line as it arrives
					began := time.Now()
					done = terminal.NewProgress(cmd.ErrOrStderr()).Follow(func() string {
						return fmt.Sprintf("listing clients for %s", time.Since(began).Round(time.Second))
					})
				}
				for c, err := range a.Clients(cmd.Context()) {
					if incomplete(err) {
						lacks = err
						break
					}
					if err == nil {
						switch out.format.value {
						case "jsonl":
							err = jsonLine(w, clientToJSON(c))
						case "name":
							_, err = fmt.Fprintln(w, shown(c.Name))
						default:
							clients = append(clients, c)
						}
					}
					if err != nil {
						done()
						return err
					}
				}
				done()
				slices.SortFunc(clients, func(a, b lock.Client) int {
					return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Host, b.Host), a.PID-b.PID, cmp.Compare(a.ID, b.ID))
				})
				switch out.format.value {
				case "jsonl", "name":
					return lacks
				case "json":
					list := []clientJSON{}
					for _, c := range clients {
						list = append(list, clientToJSON(c))
					}
					return cmp.Or(writeJSON(w, list), lacks)
				}
				wide := out.format.value == "wide"
				return cmp.Or(listClients(w, columnsOf(w, wide), clients, wide), lacks)
			})
		},
	}
	out.addFlag(cmd, "wide", "jsonl", "name")
	via.addFlags(cmd)
	return cmd
}
