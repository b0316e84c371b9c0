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
	At      time.Time     `json:"at"`
	Event   admin.What    `json:"event"`
	Name    string        `json:"name"`
	Owner   string        `json:"owner,omitempty"`
	Client  *clientJSON   `json:"client,omitempty"`
	LeaseMS *int64        `json:"lease_ms"`
	Holding int           `json:"holding"`
	Waiting int           `json:"waiting"`
	Forced  *admin.Forced `json:"forced,omitempty"` // only for taken
}

func watchCommand() *cobra.Command {
	var via connection
	cmd := &cobra.Command{
		Use:   "watch NAME...",
		Short: "Print what happens to locks, a JSON object a line",
		Example: `  leasehold watch orders:42
  leasehold watch orders:42 nightly | jq -r '[.at, .event, .name, .client.name] | @tsv'`,
		Long: `Print what happens to these locks, until it is interrupted: a JSON object a line.

event is one of
  seen       the first look: an owner holds it, or (without owner) nobody does
  acquired   an owner has come to hold it
  released   an owner has given it back
  expired    the lease of an owner ran out
  taken      it was taken from an owner by force; forced says by whom
  renewed    its lease was lengthened
  waits      an owner, of a plain lock a process, has begun to wait
  leaves     an owner has stopped to wait, and does not hold it

watch looks at a lock when somebody publishes a release of it, and once a second.
What begins and ends in between is missed. It changes nothing. What goes wrong is a
line on standard error, once as long as it stays the same, and watch goes on.

Exit code: 2 if it was called the wrong way, 1 if the server could not be reached at
the start, else 128+n for signal n.

` + connectionHelp,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return via.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > admin.MostWatched {
				return usagef("%d locks, the most is %d", len(args), admin.MostWatched)
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
	j := eventJSON{At: e.At.UTC(), Event: e.What, Name: l.Name, Owner: e.Owner, LeaseMS: l.LeaseMS, Holding: l.Holding, Waiting: l.Waiting}
	if e.Owner != "" {
		c := clientToJSON(e.Client)
		j.Client = &c
	}
	if e.What == admin.Taken {
		j.Forced = l.Forced
	}
	return j
}
