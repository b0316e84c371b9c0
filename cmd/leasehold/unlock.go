package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

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
		Long: `Take the lock called NAME from whoever holds it. unlock shows the holder first, and
asks on a terminal. Off a terminal it does nothing without --yes.

It takes the lock only from whom it has shown, or from --owner alone: one who comes
to hold the lock meanwhile keeps it. The lock goes to the next who waits.

The holder is told at once, with who did it and why, if the lock or another one of
its client has been renewed once; and else by its next renewal, within a third of
the lease. A holder that hangs and comes back finds out when it looks. A client of
Redisson is told nothing before it unlocks. Until the holder stops, it works beside
the next one, unless what they do is guarded by fencing tokens: unlock only what you
know to be stuck.

A note of it stays in Redis for a week. inspect shows it.

Exit code: 0 if it was unlocked; 1 if nobody holds it, if you said no, or if it
could not be done; 2 if unlock was called the wrong way, or without --yes off a
terminal.

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
	f.StringVar(&u.owner, "owner", "", "take it from this owner alone, as inspect shows it")
	f.StringVar(&u.reason, "reason", "", "why; the holder is told, and it is noted")
	f.StringVar(&u.as, "as", "", "who does it (default: your user and this machine)")
	f.BoolVarP(&u.yes, "yes", "y", false, "do not ask")
	u.connection.addFlags(cmd)
	return cmd
}

func (u *unlocker) unlock(ctx context.Context, a *admin.Admin, in io.Reader, out io.Writer) error {
	l, err := a.Inspect(ctx, u.name)
	if err != nil {
		return noLock(u.name, err)
	}
	if err := detail(l).table(out); err != nil {
		return err
	}
	owners, err := u.owners(l)
	if err != nil {
		return err
	}
	if !u.yes {
		if err := u.confirm(ctx, in, out, len(owners)); err != nil {
			return err
		}
	}
	done, told := 0, 0
	var note error
	for _, owner := range owners {
		r, err := a.Unlock(ctx, u.name, owner, u.reason)
		switch {
		case errors.Is(err, lock.ErrNotHeld):
			fmt.Fprintf(out, "%s has given it back meanwhile\n", owner)
			continue
		case err != nil:
			return noLock(u.name, err)
		}
		done, told = done+len(r.Holders), told+r.Told
		note = errors.Join(note, r.NoteErr)
	}
	if done == 0 {
		return fmt.Errorf("%s: nobody holds it any more; nothing was changed", shown(u.name))
	}
	fmt.Fprintf(out, "unlocked; %s\n", toldOf(told, done))
	if note != nil {
		return fmt.Errorf("%s is unlocked, but there is no note of it: %w", shown(u.name), note)
	}
	return nil
}

// owners returns the owners from which to take the lock.
func (u *unlocker) owners(l admin.Lock) (owners []string, err error) {
	for _, h := range l.Holders {
		if u.owner == "" || u.owner == h.Owner {
			if len(owners) == 0 || owners[len(owners)-1] != h.Owner { // a writer that also reads comes twice
				owners = append(owners, h.Owner)
			}
		}
	}
	switch {
	case len(owners) > 0:
		return owners, nil
	case u.owner != "" && l.Locked():
		return nil, fmt.Errorf("%s: the owner %s does not hold it (any more); nothing was changed", shown(u.name), shown(u.owner))
	}
	return nil, fmt.Errorf("%s: nobody holds it; nothing was changed", shown(u.name))
}

// toldOf returns words for the number of holders that the message reached.
func toldOf(told, of int) string {
	switch {
	case told == of && of == 1:
		return "its holder was told"
	case told == of:
		return fmt.Sprintf("its %d holders were told", of)
	case of == 1:
		return "its holder does not listen yet, and learns it from its next renewal"
	}
	return fmt.Sprintf("%d of its %d holders were told, the others learn it from their next renewal", told, of)
}

// confirm asks whether to go on.
func (u *unlocker) confirm(ctx context.Context, in io.Reader, out io.Writer, holders int) error {
	if !isTerminal(in) {
		return usagef("%s: nothing was changed, as there is no terminal to ask at: give --yes", shown(u.name))
	}
	from := "its holder"
	if holders > 1 {
		from = fmt.Sprintf("its %d holders", holders)
	}
	fmt.Fprintf(out, "Take %s from %s? [y/N] ", shown(u.name), from)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // without a line the answer is empty
		answer <- line
	}()
	select {
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		return fmt.Errorf("%s: nothing was changed", shown(u.name))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
