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
	"github.com/spf13/cobra"
)

// The exit codes of doctor, as monitoring plugins have them.
var doctorCodes = map[doctor.Status]int{
	doctor.OK: exitOK, doctor.Unknown: exitOK, doctor.Warning: 1, doctor.Failure: 2,
}

func doctorCommand() *cobra.Command {
	var (
		via     connection
		out     output
		options doctor.Options
		limit   time.Duration
		acl     string
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say whether a server is fit for locks",
		Example: `  leasehold doctor --url redis://127.0.0.1:6379
  leasehold doctor --prefix orders: --for plain,fencing -o json
  leasehold doctor --role operator --prefix orders:
  leasehold doctor --print-acl page --prefix orders: --for plain,fair`,
		Long: `Say whether a server is fit for locks, and if not, what to do. The doctor looks at the
version and the role of the server, at eviction, clock, replicas, scripts and messages,
and at the rights that the user lacks. At the end it takes a lock and gives it back.

If the rights of the user are limited to names with a prefix, say which: --prefix.
--for names the kinds of locks and the options that the user needs. Without --for, each
missing right is only a warning, as the doctor does not know whether the user needs it.
It examines the rights for semaphore, latch, waitgroup, ratelimit, redisson-ratelimit and bloom only if
--for names them, and takes no lock if --for names nothing else.

--role says what the user is for, so that a missing permission is a failure:
  application  locks; --for names its kinds and options (default plain)
  operator     all commands of leasehold that show locks, or unlock by force
  page         leasehold serve without --allow-unlock, and inspect: it changes nothing
  exporter     leasehold ls, clients and top: it changes nothing
For the last three, --for names the kinds that they show (default those of leasehold ls).

--print-acl prints the ACL of a role, with the kinds of --for, and connects to nothing.
The user keeps its passwords; a new one has none, and needs one before it can connect.
For a cluster, --for names cluster as well.

The doctor writes one key, whose name begins with the prefix and
"leasehold-doctor:", and deletes it, or lets it expire if the user may not delete. It changes nothing else on the server.

Exit code, as monitoring expects it:
  0    all is well, as far as the user may ask
  1    locks work, with a warning: they could work better
  2    locks do not work, or can be lost; or doctor was called the wrong way

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, kind := range options.Kinds {
				if !slices.Contains(doctor.Kinds(), kind) {
					return usagef("--for %q: it must be one of %s", kind, strings.Join(doctor.Kinds(), ", "))
				}
			}
			for flag, role := range map[string]string{"--role": options.Role, "--print-acl": acl} {
				if role != "" && !slices.Contains(doctor.Roles(), role) {
					return usagef("%s %q: must be one of %s", flag, role, strings.Join(doctor.Roles(), ", "))
				}
			}
			if acl != "" {
				if strings.ContainsFunc(options.Prefix, func(c rune) bool { return !unicode.IsGraphic(c) || unicode.IsSpace(c) || c == '"' || c == '\'' }) {
					return usagef("--prefix %q: an ACL must be made by hand for a prefix with spaces or quotes", options.Prefix)
				}
				options.Role = acl
				_, err := fmt.Fprintln(cmd.OutOrStdout(), options.ACL())
				return err
			}
			if options.Slow <= 0 {
				return usagef("--slow %v: it must be more than 0", options.Slow)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), limit, fmt.Errorf("it took more than %v", limit))
			defer cancel()
			began := time.Now()
			done := newProgress(cmd.ErrOrStderr()).follow(func() string {
				return fmt.Sprintf("checking the server for %s, at most %s", time.Since(began).Round(time.Second), limit)
			})
			report, err := examine(ctx, &via, options)
			done()
			if err != nil {
				return err
			}
			if cmd.Context().Err() != nil {
				return context.Cause(cmd.Context())
			}
			if err := out.write(cmd.OutOrStdout(), chart(report)); err != nil {
				return err
			}
			if code := doctorCodes[report.Status]; code != exitOK {
				return &exitError{code: code}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&options.Prefix, "prefix", "", "the beginning of the names to which the user has rights")
	f.StringSliceVar(&options.Kinds, "for", nil, "what the user needs: "+strings.Join(doctor.Kinds(), ", ")+" (default: unknown)")
	f.StringVar(&options.Role, "role", "", "what the user is for: "+strings.Join(doctor.Roles(), ", ")+" (default: unknown)")
	f.StringVar(&acl, "print-acl", "", "print the ACL of this role, and examine nothing: "+strings.Join(doctor.Roles(), ", "))
	f.DurationVar(&options.Slow, "slow", 100*time.Millisecond, "warn if a script, with the round trip, takes longer")
	f.DurationVar(&limit, "timeout", 30*time.Second, "how long the examination may take")
	for _, flag := range []string{"role", "print-acl"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(doctor.Roles(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	out.addFlag(cmd)
	via.addFlags(cmd)
	return cmd
}

// examine connects, and examines the server. It returns an error for a mistake of the caller;
// the report has everything else.
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
var marks = map[doctor.Status]struct{ mark, colour string }{
	doctor.OK:      {"✓", green},
	doctor.Unknown: {"?", dim},
	doctor.Warning: {"!", bold},
	doctor.Failure: {"✗", red},
}

// table writes a line for each check, and one below it that says what to do.
func (c chart) table(w io.Writer) error {
	s := newScreen(w)
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
	s.print("%s: %s\n", c.Server, c.Status)
	for line := range strings.Lines(text.String()) {
		mark, _, _ := strings.Cut(line, " ")
		for _, m := range marks {
			if m.mark == mark { // coloured here: a tabwriter would count the codes as text
				line = s.in(m.colour, mark) + line[len(mark):]
			}
		}
		s.print("%s", line)
	}
	return s.failed()
}
