package main

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// completeNames completes a name with the names in Redis: of all locks, or of these kinds, in which "" stands for all locks.
func (c *connection) completeNames(cmd *cobra.Command, args []string, begin string, kinds ...admin.Kind) (names []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "watch" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second) // the user is waiting
	defer cancel()
	if kinds == nil {
		kinds = []admin.Kind{""}
	}
	_ = c.operate(ctx, func(a *admin.Admin, _ rueidis.Client) error { // a shell shows no errors
		for _, kind := range kinds {
			for l, err := range a.Locks(ctx, admin.Query{Match: admin.Prefix(begin), Idle: true, Kind: kind}) {
				if err != nil || len(names) == 1000 {
					return err
				}
				if shown(l.Name) != l.Name { // a shell would change the name, or its cursor would move
					continue
				}
				stands := stateOf(l)
				if !unheld(l.Kind) {
					_, stands = holderOf(l)
				}
				names = append(names, l.Name+"\t"+kindOf(l)+", "+stands)
			}
		}
		return nil
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
