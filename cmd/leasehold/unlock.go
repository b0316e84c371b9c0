package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// unlocker is one call of unlock.
type unlocker struct {
	connection
	name, owner, reason, as string
	yes                     bool
}

func unlockCommand() *cobra.Command {
	u := &unlocker{}
	cmd := &cobra.Command{
		Use:        "unlock NAME",
		SuggestFor: []string{"force-unlock", "release", "forceunlock"},
		Short:      "Force-unlock a lock and notify its holder",
		Example: `  leasehold unlock orders:42 --reason 'stuck since 3:12, ticket 4711'
  leasehold unlock orders:42 --owner "$owner" --yes`,
		Long: `Force-unlock the lock NAME: remove its holder, and notify it. On a terminal, unlock
displays the holder and asks for confirmation. Elsewhere it requires --yes.

unlock removes only the holder it displayed, or the one named by --owner. An owner that
acquires the lock in the meantime keeps it. But a process that hands the lock off among its
own goroutines, or lets it linger, keeps one owner string: whoever holds it there is removed.
The lock then goes to the next waiter. The removed workers of a wait group count as lost.

The holder's context is canceled with the operator and the reason: at once if it has held
the lock for a second, and otherwise as soon as it has. A client that is not subscribed
detects the force-unlock at its next renewal, and Redisson at unlock. A paused process
continues alongside the next holder until it checks its context. Use unlock only if the
holder is stuck, and use fencing tokens to protect the data.

An audit record stays in Redis for a week, or until the next force-unlock; inspect
shows it. If a force-unlock fails halfway, unlock prints how many holders were removed;
inspect shows the others.

Permissions: see leasehold doctor --print-acl operator.

Exit codes:
  0  unlocked
  1  the lock has no such holder, you declined, Redis is unavailable, or the audit record
     was not written
  2  wrong arguments, or no terminal and no --yes

` + connectionHelp,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return u.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			u.name = args[0]
			return u.operate(cmd.Context(), func(a *admin.Admin, _ rueidis.Client) error {
				return u.unlock(cmd.Context(), a, cmd.InOrStdin(), cmd.OutOrStdout())
			}, operator(u.as)...)
		},
	}
	f := cmd.Flags()
	f.StringVar(&u.owner, "owner", "", "only owner to remove; inspect shows owners (default all displayed holders)")
	f.StringVar(&u.reason, "reason", "", "reason for the holder and the audit record (default none)")
	f.StringVar(&u.as, "operator", "", "operator name for the holder and the audit record (default your user and host name)")
	f.BoolVarP(&u.yes, "yes", "y", false, "no confirmation prompt")
	u.connection.addFlags(cmd)
	return cmd
}

func (u *unlocker) unlock(ctx context.Context, a *admin.Admin, in io.Reader, out io.Writer) error {
	l, err := a.Inspect(ctx, u.name)
	if err != nil {
		return noLock(u.name, err)
	}
	if err := detail(l).table(out); err != nil && !u.yes { // the user would confirm what was not displayed
		return err
	}
	owners, err := ownersOf(l, u.owner)
	if err != nil {
		return err
	}
	if !u.yes {
		all, _ := ownersOf(l, "") // fails only without holders
		if err := confirm(ctx, in, out, u.name, takeOf(u.name, len(owners), len(all), nounOf(l.Holders))); err != nil {
			return err
		}
	}
	r, err := a.ForceUnlockOwners(ctx, u.name, owners, u.reason)
	text, err := outcomeOf(u.name, owners, r, err)
	if text != "" {
		fmt.Fprintln(out, text)
	}
	if ctx.Err() != nil && err != nil { // the outcome matters more than the signal
		return &exitError{codeOf(context.Cause(ctx)), err}
	}
	return err
}

// outcomeOf returns the outcome of a force-unlock of these owners: a text if a holder was removed, and the error.
func outcomeOf(name string, owners []string, r admin.ForceUnlockResult, err error) (text string, _ error) {
	if from := r.Holders; len(from) > 0 {
		lost := slices.DeleteFunc(slices.Clone(owners), func(owner string) bool {
			return !slices.ContainsFunc(from, func(h lock.Holder) bool { return h.Owner == owner })
		})
		noun, after := nounOf(from), worksOn
		if noun == "worker" {
			after = workersLost
		}
		text = fmt.Sprintf("%s; %s\n%s", unlockedOf(len(lost), len(owners), noun, err), toldOf(r.Notified, from, noun), after)
	}
	switch {
	case errors.Is(err, lock.ErrNotHeld):
		return text, fmt.Errorf("%s is no longer held; nothing was changed", shown(name))
	case err != nil:
		return text, noLock(name, err)
	case r.RecordErr != nil:
		return text, fmt.Errorf("%s is unlocked, but the audit record was not written: %w", shown(name), r.RecordErr)
	}
	return text, nil
}

// nounOf returns the noun for one of these holders, which is worker for a wait group.
func nounOf(holders []lock.Holder) string {
	if len(holders) > 0 && holders[0].Mode == lock.Worker {
		return "worker"
	}
	return "holder"
}

// unlockedOf describes a force-unlock that removed n holders and was to remove meant.
func unlockedOf(n, meant int, noun string, err error) string {
	switch {
	case err != nil:
		return fmt.Sprintf("%d of %d %ss removed", n, meant, noun)
	case n < meant && noun == "worker":
		return fmt.Sprintf("unlocked; %d of %d workers were done", meant-n, meant)
	case n < meant:
		return fmt.Sprintf("unlocked; %d of %d holders had released it", meant-n, meant)
	}
	return "unlocked"
}

// ownersOf returns the owners to remove: all, or only one.
func ownersOf(l admin.Lock, only string) (owners []string, err error) {
	for _, h := range l.Holders {
		if (only == "" || only == h.Owner) && !slices.Contains(owners, h.Owner) { // a writer that also reads is listed twice
			owners = append(owners, h.Owner)
		}
	}
	switch {
	case len(owners) > 0:
		return owners, nil
	case l.Kind == admin.Latch:
		return nil, fmt.Errorf("%s is a latch, which has no holder; nothing was changed", shown(l.Name))
	case only != "" && l.Locked():
		return nil, fmt.Errorf("%s is not held by owner %s; nothing was changed", shown(l.Name), shown(only))
	}
	return nil, fmt.Errorf("%s is not held; nothing was changed", shown(l.Name))
}

// toldOf describes which of the holders in from were notified: told of them have a subscribed client. Redis also sends the
// notification to a paused process, so it is unknown whether the process has received it.
func toldOf(told int, from []lock.Holder, noun string) string {
	const learns = "dead, or detect the force-unlock at their next renewal or release"
	of, first := len(from), who(from[0].Owner, from[0].Client)
	switch {
	case of == 1 && told == 1:
		return "notification sent to the " + noun + " (" + first + ")"
	case of == 1:
		return "the " + noun + " (" + first + ") is not subscribed: it is dead, or detects the force-unlock at its next renewal or release"
	case told == of:
		return fmt.Sprintf("notification sent to all %d %ss", of, noun)
	case told == 0:
		return fmt.Sprintf("none of the %d %ss is subscribed: they are %s", of, noun, learns)
	}
	return fmt.Sprintf("notification sent to %d of %d %ss; the others are not subscribed: they are %s", told, of, noun, learns)
}

// worksOn warns about what a notification cannot prevent.
const worksOn = "A paused process, or one that ignores its context, keeps running alongside the next holder. Stop it before you trust the data."

// workersLost is the text after a force-unlock of a wait group, which has no next holder.
const workersLost = "The removed workers count as lost, and waiters of the wait group receive an error that names them. " +
	"A paused process, or one that ignores its context, keeps running. Stop it before you trust the data."

// takeOf returns the question before a force-unlock that removes some of the displayed holders of a lock. noun is the noun for a holder.
func takeOf(name string, some, all int, noun string) string {
	from := "its " + noun
	switch {
	case some < all:
		from = fmt.Sprintf("%d of its %d %ss", some, all, noun)
	case some > 1:
		from = fmt.Sprintf("its %d %ss", some, noun)
	}
	return fmt.Sprintf("Force-unlock %s and remove %s", shown(name), from)
}

// operator returns the options for the value of --operator.
func operator(name string) []admin.Option {
	if name == "" {
		return nil
	}
	return []admin.Option{admin.WithOperator(name)}
}
