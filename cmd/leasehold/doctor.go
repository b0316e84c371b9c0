package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/doctor"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/spf13/cobra"
)

// The exit codes of doctor, as for monitoring plugins.
var doctorCodes = map[doctor.Status]int{
	doctor.OK: exitOK, doctor.Unknown: exitOK, doctor.Warning: 1, doctor.Failure: 2,
}

// checkup is one call of doctor.
type checkup struct {
	via     connection
	out     output
	options doctor.Options
	limit   time.Duration
	acl     string // the role whose ACL rule to print
}

func doctorCommand() *cobra.Command {
	c := &checkup{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether a server is configured safely for locking",
		Example: `  leasehold doctor --url redis://127.0.0.1:6379
  leasehold doctor --prefix orders: --for plain,fencing -o json
  leasehold doctor --role operator --prefix orders:
  leasehold doctor --print-acl page --prefix orders: --for plain,fair`,
		Long: `Check whether a server is configured safely for locking, and print what to fix: version,
role, eviction, clock, replicas, scripts, Pub/Sub, and the permissions of the user. At the
end, doctor acquires and releases a lock.

--prefix is the beginning of the lock names that the user may access. --for names the
types of locks and the options that the user needs. Without --for, a missing permission
is only a warning. The permissions for semaphore, latch, waitgroup, ratelimit,
redisson-ratelimit and bloom are checked only if --for names them. If --for names nothing
else, doctor acquires no lock.

--role names the purpose of the user, so that a missing permission is a failure:
  application  locks of the types in --for (default plain)
  operator     all commands that show locks, and force-unlock
  page         leasehold serve without --allow-unlock, and inspect; changes nothing
  exporter     leasehold ls, clients and top; changes nothing
For the last three, --for names the types that they show (default those of leasehold ls).

--print-acl prints the ACL rule of a role, for the types in --for, without connecting. The
user keeps its passwords; a new user has none, and needs one to connect. For a cluster,
--for names cluster as well.

doctor writes one key, whose name begins with --prefix and "leasehold-doctor:". It deletes
the key, or lets it expire if the user lacks permission for DEL. It changes nothing else.

Permissions: none required. What doctor is not allowed to check is reported as unknown. An
unknown eviction policy, and a denied subscription, are warnings.

Exit codes, as for monitoring plugins:
  0  ok, or unknown because of a missing permission
  1  warning: locks work, with a limitation
  2  failure: locks do not work, or can be lost; or wrong arguments

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(); err != nil {
				return err
			}
			if c.acl != "" {
				c.options.Role = c.acl
				_, err := fmt.Fprintln(cmd.OutOrStdout(), c.options.ACL())
				return err
			}
			return c.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.options.Prefix, "prefix", "", "prefix of the lock names that the user may access (default none)")
	f.StringSliceVar(&c.options.Kinds, "for", nil, "types of locks and options that the user needs: "+strings.Join(doctor.Kinds(), ", ")+" (default unknown)")
	f.StringVar(&c.options.Role, "role", "", "role of the user: "+strings.Join(doctor.Roles(), ", ")+" (default unknown)")
	f.StringVar(&c.acl, "print-acl", "", "role whose ACL rule to print, without connecting: "+strings.Join(doctor.Roles(), ", ")+" (default none)")
	f.DurationVar(&c.options.Slow, "slow", 100*time.Millisecond, "maximum time of a script with its round trip, above which doctor warns")
	f.DurationVar(&c.limit, "timeout", 30*time.Second, "maximum time for all checks")
	for _, flag := range []string{"role", "print-acl"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(doctor.Roles(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	c.out.addFlag(cmd)
	c.via.addFlags(cmd)
	return cmd
}

// check returns an error if the flags are not valid.
func (c *checkup) check() error {
	for _, kind := range c.options.Kinds {
		if !slices.Contains(doctor.Kinds(), kind) {
			return usagef("--for %q: must be one of %s", kind, strings.Join(doctor.Kinds(), ", "))
		}
	}
	for flag, role := range map[string]string{"--role": c.options.Role, "--print-acl": c.acl} {
		if role != "" && !slices.Contains(doctor.Roles(), role) {
			return usagef("%s %q: must be one of %s", flag, role, strings.Join(doctor.Roles(), ", "))
		}
	}
	odd := func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == '"' || r == '\'' }
	switch {
	case c.acl != "" && strings.ContainsFunc(c.options.Prefix, odd):
		return usagef("--prefix %q: spaces and quotes are not supported by --print-acl; write the ACL rule yourself", c.options.Prefix)
	case c.acl == "" && c.options.Slow <= 0:
		return usagef("--slow %v: must be positive", c.options.Slow)
	case c.acl == "" && c.limit <= 0:
		return usagef("--timeout %v: must be positive", c.limit)
	}
	return nil
}

// run examines the server within the limit, and prints the report.
func (c *checkup) run(ctx context.Context, w, stderr io.Writer) error {
	limited, cancel := context.WithTimeoutCause(ctx, c.limit, fmt.Errorf("timed out after %v", c.limit))
	defer cancel()
	began := time.Now()
	done := terminal.NewProgress(stderr).Follow(func() string {
		return fmt.Sprintf("checking the server for %s, at most %s", time.Since(began).Round(time.Second), c.limit)
	})
	report, err := examine(limited, &c.via, c.options)
	done()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := c.out.write(w, chart(report)); err != nil {
		return err
	}
	if code := doctorCodes[report.Status]; code != exitOK {
		return &exitError{code: code}
	}
	return nil
}

// examine connects, and examines the server. It returns an error only for wrong arguments; the
// report has all other errors.
func examine(ctx context.Context, via *connection, o doctor.Options) (doctor.Report, error) {
	address, err := via.address()
	if err != nil {
		return doctor.Report{}, err
	}
	option, err := via.options(address)
	if err != nil {
		return doctor.Report{}, err
	}
	o.Server, o.User = redacted(address), option.Username
	rdb, err := via.dial(ctx, address)
	if err != nil {
		return doctor.Unreachable(o, oneLine(err.Error()), advice(err)), nil
	}
	defer rdb.Close()
	return doctor.Examine(ctx, rdb, o), nil
}

// chart is a report as a table for people.
type chart doctor.Report

// marks are the signs before a check.
var marks = map[doctor.Status]struct{ mark, color string }{
	doctor.OK:      {"✓", terminal.Green},
	doctor.Unknown: {"?", terminal.Dim},
	doctor.Warning: {"!", terminal.Bold},
	doctor.Failure: {"✗", terminal.Red},
}

// table writes a line for each check, and its advice on the line below.
func (c chart) table(w io.Writer) error {
	var text strings.Builder
	rows := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, check := range c.Checks {
		name := check.Name
		if check.Node != "" {
			name += " of " + check.Node
		}
		fmt.Fprintf(rows, "%s %s\t%s\n", marks[check.Status].mark, name, oneLine(check.Found))
		if check.Advice != "" {
			fmt.Fprintf(rows, "  \t→ %s\n", oneLine(check.Advice))
		}
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	paint := terminal.PaintFor(w)
	colored := fmt.Sprintf("%s: %s\n", c.Server, c.Status)
	for line := range strings.Lines(text.String()) {
		mark, _, _ := strings.Cut(line, " ")
		for _, m := range marks {
			if m.mark == mark { // colored here: a tabwriter would count the codes as text
				line = paint.In(m.color, mark) + line[len(mark):]
			}
		}
		colored += line
	}
	_, err := io.WriteString(w, colored)
	return err
}
