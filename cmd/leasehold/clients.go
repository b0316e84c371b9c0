package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// clientListing is one call of clients.
type clientListing struct {
	via connection
	out output
}

func clientsCommand() *cobra.Command {
	l := &clientListing{}
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
			return l.list(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	l.out.addFlag(cmd, "wide", "jsonl", "name")
	l.via.addFlags(cmd)
	return cmd
}

// list writes the clients to w, line by line or as a whole.
func (l *clientListing) list(ctx context.Context, w, stderr io.Writer) error {
	return l.via.operate(ctx, func(a *admin.Admin, _ rueidis.Client) error {
		if write := lineWriter(&l.out, w, clientToJSON, func(c lock.Client) string { return c.Name }); write != nil {
			return forEach(a.Clients(ctx), write)
		}
		began := time.Now()
		done := terminal.NewProgress(stderr).Follow(func() string {
			return fmt.Sprintf("listing clients for %s", time.Since(began).Round(time.Second))
		})
		var clients []lock.Client
		lacks := forEach(a.Clients(ctx), func(c lock.Client) error {
			clients = append(clients, c)
			return nil
		})
		done()
		if lacks != nil && !incomplete(lacks) {
			return lacks
		}
		slices.SortFunc(clients, func(a, b lock.Client) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Host, b.Host), a.PID-b.PID, cmp.Compare(a.ID, b.ID))
		})
		return cmp.Or(l.write(w, clients), lacks)
	})
}

// write writes the clients as a table, or as JSON.
func (l *clientListing) write(w io.Writer, clients []lock.Client) error {
	if l.out.format.value == "json" {
		list := make([]clientJSON, len(clients))
		for i, c := range clients {
			list[i] = clientToJSON(c)
		}
		return writeJSON(w, list)
	}
	wide := l.out.format.value == "wide"
	return listClients(w, columnsOf(w, wide), clients, wide)
}

// listClients writes a line for each client.
func listClients(w io.Writer, columns int, clients []lock.Client, wide bool) error {
	t := table{{"NAME", "HOST", "PID", "LABEL", "UP"}}
	if wide {
		t[0] = append(t[0], "VERSION", "ID")
	}
	for _, c := range clients {
		cells := []string{shown(c.Name), shown(c.Host), pid(c), label(c), ago(c.Started)}
		if wide {
			cells = append(cells, shown(c.Version), shown(c.ID))
		}
		t = append(t, cells)
	}
	return t.write(w, columns)
}
