package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
	"golang.org/x/term"
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
		Use:   "unlock NAME",
		Short: "Unlock a lock by force, and tell its holder",
		Example: `  leasehold unlock orders:42 --reason 'stuck since 3:12, ticket 4711'
  leasehold unlock orders:42 --owner "$owner" --yes`,
		Long: `Take the lock called NAME from its holder. On a terminal, unlock shows the holder and
asks first. Off a terminal it does nothing without --yes.

unlock takes the lock from the holder that it has shown, or from --owner, and from no
other: an owner that gets the lock meanwhile keeps it. The lock then goes to the next
waiter.

The holder learns the operator and the reason at once, if its client has held a
lock for a second; else at its next renewal, within a third of the lease. A process that
hangs learns of it when it runs again and looks at its lock. A client of Redisson
learns nothing before it unlocks. unlock knows that a message was sent, and not that
the process has read it. The old holder works beside the next one until it
stops, unless fencing tokens guard the data. So unlock only a lock whose holder is
stuck.

A note of the unlock stays in Redis for a week. inspect shows the note. If an unlock
breaks off, unlock says how many holders have lost the lock, and of whom that is not
known; inspect shows whether that one still has it.

Exit code: 0 if the lock was unlocked; 1 if it has no holder, if you said no, or if
the unlock failed; 2 if unlock was called the wrong way, or off a terminal without
--yes.

` + connectionHelp,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return u.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			u.name = args[0]
			var opts []admin.Option
			if u.as != "" {
				opts = append(opts, admin.WithOperator(u.as))
			}
			return u.operate(cmd.Context(), func(a *admin.Admin, _ rueidis.Client) error {
				return u.unlock(cmd.Context(), a, cmd.InOrStdin(), cmd.OutOrStdout())
			}, opts...)
		},
	}
	f := cmd.Flags()
	f.StringVar(&u.owner, "owner", "", "unlock only if this owner holds the lock; inspect shows owners")
	f.StringVar(&u.reason, "reason", "", "the reason, for the holder and for the note in Redis")
	f.StringVar(&u.as, "operator", "", "the operator, for the holder and for the note (default: your user and this machine)")
	f.BoolVarP(&u.yes, "yes", "y", false, "do not ask")
	u.connection.addFlags(cmd)
	return cmd
}

func (u *unlocker) unlock(ctx context.Context, a *admin.Admin, in io.Reader, out io.Writer) error {
	l, err := a.Inspect(ctx, u.name)
	if err != nil {
		return noLock(u.name, err)
	}
	if err := detail(l).table(out); err != nil && !u.yes { // nobody would see what to say yes to
		return err
	}
	owners, err := ownersOf(l, u.owner)
	if err != nil {
		return err
	}
	if !u.yes {
		if err := u.confirm(ctx, in, out, len(owners)); err != nil {
			return err
		}
	}
	r, err := a.ForceUnlockOwners(ctx, u.name, owners, u.reason)
	text, err := outcomeOf(u.name, owners, r, err)
	if text != "" {
		fmt.Fprintln(out, text)
	}
	if ctx.Err() != nil && err != nil { // what is known now matters more than that a signal came
		return &exitError{codeOf(context.Cause(ctx)), err}
	}
	return err
}

// outcomeOf returns what an unlock from these owners came to: words if a holder has lost the lock, and what went wrong.
func outcomeOf(name string, owners []string, r admin.ForceUnlockResult, err error) (text string, _ error) {
	if from := r.Holders; len(from) > 0 {
		lost := slices.DeleteFunc(slices.Clone(owners), func(owner string) bool {
			return !slices.ContainsFunc(from, func(h lock.Holder) bool { return h.Owner == owner })
		})
		text = fmt.Sprintf("%s; %s\n%s", unlockedOf(len(lost), len(owners), err), toldOf(r.Notified, from), worksOn)
	}
	switch {
	case errors.Is(err, lock.ErrNotHeld):
		return text, fmt.Errorf("%s: nobody holds it any more; nothing was changed", shown(name))
	case err != nil:
		return text, noLock(name, err)
	case r.RecordErr != nil:
		return text, fmt.Errorf("%s is unlocked, but there is no note of it: %w", shown(name), r.RecordErr)
	}
	return text, nil
}

// unlockedOf returns words for an unlock that took the lock from n holders, of so many that were meant.
func unlockedOf(n, meant int, err error) string {
	switch {
	case err != nil:
		return fmt.Sprintf("%d of %d holders lost it", n, meant)
	case n < meant:
		return fmt.Sprintf("unlocked; %d of %d holders gave it back meanwhile", meant-n, meant)
	}
	return "unlocked"
}

// ownersOf returns the owners from which to take the lock: all, or only one.
func ownersOf(l admin.Lock, only string) (owners []string, err error) {
	for _, h := range l.Holders {
		if (only == "" || only == h.Owner) && !slices.Contains(owners, h.Owner) { // a writer that also reads comes twice
			owners = append(owners, h.Owner)
		}
	}
	switch {
	case len(owners) > 0:
		return owners, nil
	case only != "" && l.Locked():
		return nil, fmt.Errorf("%s: the owner %s does not hold it (any more); nothing was changed", shown(l.Name), shown(only))
	}
	return nil, fmt.Errorf("%s: nobody holds it; nothing was changed", shown(l.Name))
}

// toldOf returns words for what the holders in from know, of which told have a client that listens. Redis passes a
// message on to a frozen process as well, so nobody knows whether it was read.
func toldOf(told int, from []lock.Holder) string {
	const learns = "dead, or learn of it at their next renewal or their unlock"
	of, first := len(from), who(from[0].Owner, from[0].Client)
	switch {
	case of == 1 && told == 1:
		return "a message was sent to its holder (" + first + ")"
	case of == 1:
		return "nobody listens at its holder (" + first + "): it is dead, or learns of it at its next renewal or its unlock"
	case told == of:
		return fmt.Sprintf("a message was sent to each of its %d holders", of)
	case told == 0:
		return fmt.Sprintf("nobody listens at its %d holders: they are %s", of, learns)
	}
	return fmt.Sprintf("a message was sent to %d of its %d holders; the others are %s", told, of, learns)
}

// worksOn says what no message can change.
const worksOn = "A process that is frozen, or does not look, works on beside the next holder: end it there before you trust the data."

// takeOf asks whether to take a lock from so many holders.
func takeOf(name string, holders int) string {
	from := "its holder"
	if holders > 1 {
		from = fmt.Sprintf("its %d holders", holders)
	}
	return fmt.Sprintf("Take %s from %s", shown(name), from)
}

// confirm asks whether to go on.
func (u *unlocker) confirm(ctx context.Context, in io.Reader, out io.Writer, holders int) error {
	if !isTerminal(in) {
		return usagef("%s: nothing was changed, as there is no terminal to ask at: give --yes", shown(u.name))
	}
	return agreed(ctx, in, out, takeOf(u.name, holders), fmt.Errorf("%s: nothing was changed", shown(u.name)))
}

func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
