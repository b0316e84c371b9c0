package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// eventJSON is one line of the output of watch.
type eventJSON struct {
	At          time.Time                `json:"at"`
	Event       admin.EventType          `json:"event"`
	Name        string                   `json:"name"`
	Owner       string                   `json:"owner,omitempty"`
	Client      *clientJSON              `json:"client,omitempty"`
	LeaseMS     *int64                   `json:"lease_ms"`
	Holding     int                      `json:"holding"`
	Waiting     int                      `json:"waiting"`
	ForceUnlock *admin.ForceUnlockRecord `json:"force_unlock,omitempty"` // only for taken
}

func watchCommand() *cobra.Command {
	var via connection
	cmd := &cobra.Command{
		Use:   "watch NAME...",
		Short: "Print what happens to locks, a JSON object a line",
		Example: `  leasehold watch orders:42
  leasehold watch orders:42 nightly | jq -r '[.at, .event, .name, .client.name] | @tsv'`,
		Long: `Print what happens to these locks, one JSON object a line, until watch is interrupted.

event is one of
  seen       the first look: an owner holds the lock, or, without owner, it is free
  acquired   an owner got the lock
  released   an owner gave the lock back
  expired    the lease of an owner ran out
  taken      an operator unlocked the lock by force; forced says which operator
  renewed    an owner renewed its lease
  waits      an owner (of a plain lock: a process) began to wait
  leaves     an owner stopped waiting, and does not hold the lock

watch looks at a lock when a message says that it was released, and once a second. It
does not see what begins and ends between two looks. It changes nothing in Redis. It
prints an error once on standard error, again only if the error changes, and goes on.

Exit code: 2 if watch was called the wrong way; 1 if the server did not answer at the
start; else 128+n, as signal n ended it.

` + connectionHelp,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return via.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > admin.MaxWatched {
				return usagef("%d locks, the most is %d", len(args), admin.MaxWatched)
			}
			return via.operate(cmd.Context(), func(a *admin.Admin, _ rueidis.Client) error {
				said := ""
				for e, err := range a.Watch(cmd.Context(), args...) {
					switch {
					case errors.Is(err, lock.ErrBadName):
						return usage(err)
					case err != nil:
						if text := oneLine(err.Error()); text != said {
							fmt.Fprintln(cmd.ErrOrStderr(), "leasehold:", text)
							said = text
						}
						continue
					}
					if err := jsonLine(cmd.OutOrStdout(), eventToJSON(e)); err != nil {
						return err
					}
				}
				return cmd.Context().Err()
			})
		},
	}
	via.addFlags(cmd)
	return cmd
}

func eventToJSON(e admin.Event) eventJSON {
	l := toJSON(e.Lock)
	j := eventJSON{At: e.At.UTC(), Event: e.Type, Name: l.Name, Owner: e.Owner, LeaseMS: l.LeaseMS, Holding: l.Holding, Waiting: l.Waiting}
	if e.Owner != "" {
		c := clientToJSON(e.Client)
		j.Client = &c
	}
	if e.Type == admin.ForceUnlocked {
		j.ForceUnlock = l.ForceUnlock
	}
	return j
}
