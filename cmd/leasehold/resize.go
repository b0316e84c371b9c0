package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/semaphore"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// resizer is one call of resize.
type resizer struct {
	connection
	name    string
	permits int
	yes     bool
}

func resizeCommand() *cobra.Command {
	r := &resizer{}
	cmd := &cobra.Command{
		Use:     "resize NAME PERMITS",
		Short:   "Change the permit count of a semaphore",
		Example: `  leasehold resize gpus 8`,
		Long: `Set the permit count of the semaphore NAME to PERMITS. On a terminal, resize displays the
semaphore and asks for confirmation. Elsewhere it requires --yes.

Held permits stay held. If more are held than PERMITS, none is granted until enough are
released. With more permits, waiters acquire them at once.

All users of a semaphore must pass the same permit count. From then on, callers that pass
another one fail: change leasehold run --permits, and the number in NewSemaphore. Their
current holds stay valid.

A semaphore without holders is a number in Redis, and looks like a counter of an
application: check NAME before you confirm.

Permissions: see leasehold doctor --print-acl operator --for semaphore, and
leasehold doctor --print-acl application --for semaphore.

Exit codes:
  0  the semaphore has PERMITS permits
  1  no semaphore of this name, you declined, or Redis is unavailable
  2  wrong arguments, or no terminal and no --yes

` + connectionHelp,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			return r.completeNames(cmd, args, begin, admin.Semaphore)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 1 || n > semaphore.MaxPermits {
				return usagef("PERMITS %s: must be at least 1 and at most %d", shown(args[1]), semaphore.MaxPermits)
			}
			r.name, r.permits = args[0], n
			return r.operate(cmd.Context(), func(a *admin.Admin, rdb rueidis.Client) error {
				return r.resize(cmd.Context(), a, rdb, cmd.InOrStdin(), cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "no confirmation prompt")
	r.addFlags(cmd)
	return cmd
}

func (r *resizer) resize(ctx context.Context, a *admin.Admin, rdb rueidis.Client, in io.Reader, out io.Writer) error {
	l, err := a.Inspect(ctx, r.name)
	switch {
	case err != nil:
		return noLock(r.name, err)
	case l.Kind == "":
		return fmt.Errorf("no semaphore %s on %s: the first user creates it, with its own permit count", shown(r.name), r.server())
	case l.Kind != admin.Semaphore:
		return fmt.Errorf("%s is not a semaphore, but a key of type %s; nothing was changed", shown(r.name), kindOf(l))
	}
	if err := detail(l).table(out); err != nil && !r.yes { // the user would confirm what was not displayed
		return err
	}
	if !r.yes {
		question := fmt.Sprintf("Change %s from %s to %d", shown(r.name), plural(l.Permits, "permit"), r.permits)
		if err := confirm(ctx, in, out, r.name, question); err != nil {
			return err
		}
	}
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		return err
	}
	err = c.NewSemaphore(r.name, 0).Resize(ctx, r.permits)
	if err := errors.Join(err, c.Close(ctx)); err != nil {
		return noLock(r.name, err)
	}
	if l, err = a.Inspect(ctx, r.name); err != nil {
		return err
	}
	if l.Free < 0 {
		fmt.Fprintf(out, "%s has %s, and %d are held: none is granted until fewer than %d are held\n", shown(r.name), plural(l.Permits, "permit"), l.Permits-l.Free, l.Permits)
		return nil
	}
	fmt.Fprintf(out, "%s has %s, %d free\n", shown(r.name), plural(l.Permits, "permit"), l.Free)
	return nil
}
