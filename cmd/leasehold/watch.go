package main

import (
	"context"
	"errors"
	"io"
	"iter"
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
	NameBytes   []byte                   `json:"name_base64,omitempty"` // see bytesOf
	Owner       string                   `json:"owner,omitempty"`
	Client      *clientJSON              `json:"client,omitempty"`
	LeaseMS     *int64                   `json:"lease_ms"`
	Holding     int                      `json:"holding"`
	Waiting     int                      `json:"waiting"`
	ForceUnlock *admin.ForceUnlockRecord `json:"force_unlock,omitempty"` // only for force_unlocked
}

func watchCommand() *cobra.Command {
	var via connection
	cmd := &cobra.Command{
		Use:   "watch NAME...",
		Short: "Print lock events as JSON lines",
		Example: `  leasehold watch orders:42
  leasehold watch orders:42 nightly | jq -r '[.at, .event, .name, .client.name] | @tsv'`,
		Long: `Print the events of these locks as JSON, one object per line, until watch is interrupted.

event is one of
  seen            first check: an owner holds the lock, or, without owner, it is free
  acquired        an owner acquired the lock
  released        an owner released the lock
  expired         the lease of an owner expired
  force_unlocked  an operator force-unlocked the lock; force_unlock has the audit record
  renewed         an owner renewed its lease
  queued          an owner (for a plain lock, a process) began to wait
  dequeued        an owner stopped waiting without the lock

watch reads a lock after each notification and once per second, so it can miss what
begins and ends in between. It changes nothing in Redis. It prints an error once on
standard error, again only if the error changes, and continues.

Permissions: see leasehold doctor --print-acl operator.

Exit codes:
  128+n  signal n ended watch
  1      Redis unavailable at the start
  2      wrong arguments

` + connectionHelp,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return via.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > admin.MaxWatched {
				return usagef("%d locks: must be at most %d", len(args), admin.MaxWatched)
			}
			return via.operate(cmd.Context(), func(a *admin.Admin, rdb rueidis.Client) error {
				via.warnOfReplica(cmd.Context(), rdb, cmd.ErrOrStderr())
				return printEvents(cmd.Context(), a.Watch(cmd.Context(), args...), cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	via.addFlags(cmd)
	return cmd
}

// printEvents writes a line for each event to w, and each error to stderr unless it is the same as the previous one.
func printEvents(ctx context.Context, events iter.Seq2[admin.Event, error], w, stderr io.Writer) error {
	said := ""
	for e, err := range events {
		switch {
		case errors.Is(err, lock.ErrBadName):
			return usage(err)
		case err != nil:
			if text := oneLine(err.Error()); text != said {
				warn(stderr, "%s", text)
				said = text
			}
			continue
		}
		if err := jsonLine(w, eventToJSON(e)); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return &exitError{code: exitFailure} // Watch only ends after an error, which was printed
}

func eventToJSON(e admin.Event) eventJSON {
	l := toJSON(e.Lock)
	j := eventJSON{At: e.At.UTC(), Event: e.Type, Name: l.Name, NameBytes: l.NameBytes, Owner: e.Owner, LeaseMS: l.LeaseMS, Holding: l.Holding, Waiting: l.Waiting}
	if e.Owner != "" {
		c := clientToJSON(e.Client)
		j.Client = &c
	}
	if e.Type == admin.ForceUnlocked {
		j.ForceUnlock = l.ForceUnlock
	}
	return j
}
