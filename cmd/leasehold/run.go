package main

import (
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/spf13/cobra"
)

// runner is one call of leasehold run.
type runner struct {
	connection
	locking
	notes

	name  string
	argv  []string
	above []ancestor // the holds under which the command runs

	onLost       choice
	killAfter    time.Duration
	minHold      time.Duration
	conflictCode int
}

func runCommand() *cobra.Command {
	r := &runner{}
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARG...]",
		Short: "Run a command while holding a lock",
		Example: `  leasehold run nightly -- ./report.sh               wait for the lock, run, give it back
  leasehold run --no-wait nightly -- ./report.sh     or exit with 75 if somebody has it
  leasehold run --wait 5m nightly -- ./report.sh     or after five minutes
  leasehold run --shared catalogue -- ./read.sh      with others that share it
  leasehold run --exclusive catalogue -- ./write.sh  with nobody else
  leasehold run --permits 4 gpus -- ./train.sh       with three others at most
  leasehold run --reenter nightly -- ./step.sh       also inside of leasehold run nightly`,
		Long: `Run a command while holding the lock called NAME in Redis: flock(1) for many
machines.

leasehold waits for the lock, runs the command, and gives the lock back when
the command is over. Standard input, output and error are the command's own.
The command runs in a process group of its own, with the terminal if there is
one. leasehold passes signals on to the command. While leasehold still waits
for the lock, a signal ends leasehold. A wait of more than two seconds is reported,
with the holder of the lock. With --wait, leasehold also waits for a server that
cannot be reached yet; without it, that is an error at once.

The command is found and run as by flock(1), env(1) and timeout(1); a script
without #! is one of /bin/sh. A command that was stopped (Ctrl-Z, SIGSTOP) is
reported: it keeps the lock. --max-hold bounds that.

A run inside the command of another one that holds the same lock would wait for
itself. It is refused, or with --reenter runs its command under that hold, which
lasts until the outer command is over.

The lock is a lease. leasehold renews it while the command runs. If the lock is
lost all the same, for example because Redis does not answer for the length of
the lease, leasehold stops the command (--on-lost). When the command is over,
leasehold stops what is left in its process group, and then gives the lock back.

Environment of the command:
  LEASEHOLD_LOCK_NAME      NAME
  LEASEHOLD_OWNER          the owner, as it stands in Redis; keep it secret
  LEASEHOLD_FENCING_TOKEN  a number that grows from holder to holder; empty with
                           --quorum, --permits, and --shared without --fencing
  LEASEHOLD_LEASE_MS       the lease, in milliseconds
  LEASEHOLD_HELD           all holds that the command runs under, for leasehold
                           run inside of it; keep it secret

Exit code:
  the command's own; 128+n if signal n ended it, or ended the waiting
  75   the lock was not obtained: another owner has it (-E changes that)
  123  the lock was lost before it was given back
  124  the command was stopped because of --max-hold
  125  leasehold failed: Redis is unavailable, a command is denied, it would wait
       for itself, …
  126  the command cannot be run;  127  it was not found
  2    leasehold was called the wrong way

If leasehold itself is killed (SIGKILL), the lock stays until its lease ends. On
Linux the command then gets the signal of --on-lost, but the processes that it has
started do not. On other systems no process gets a signal. The data is then safe
only if the command uses the fencing token.

` + connectionHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash < 0 || len(args) == dash:
				return usagef("no command: it stands behind --, as in leasehold run NAME -- COMMAND")
			case dash != 1:
				return usagef("%d names before --, and it must be one", dash)
			}
			return nil
		},
		ValidArgsFunction: r.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.waits = cmd.Flags().Changed("wait")
			r.counts = cmd.Flags().Changed("permits")
			r.w = cmd.ErrOrStderr()
			r.name, r.argv = args[0], args[1:]
			return r.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.DurationVarP(&r.wait, "wait", "w", 0, "how long to wait at most, as 90s or 5m; 0 tries once (default: without end)")
	f.BoolVarP(&r.noWait, "no-wait", "n", false, "try once, as --wait 0")
	f.BoolVarP(&r.shared, "shared", "s", false, "share the lock with other calls with --shared: the read side of a read/write lock")
	f.BoolVarP(&r.exclusive, "exclusive", "x", false, "exclude calls with --shared, too: the write side of a read/write lock")
	f.BoolVar(&r.fair, "fair", false, "a fair lock: first come, first served, across all machines")
	f.IntVar(&r.permits, "permits", 0, "a semaphore: so many run at once, first come, first served; all must give the same number")
	f.BoolVar(&r.quorum, "quorum", false, "a lock on a majority of independent servers: several --url, or several URLs in the environment, with spaces between them")
	f.DurationVar(&r.lease, "lease", client.DefaultWatchdogTimeout, "how long Redis keeps the lock without a renewal")
	f.BoolVar(&r.noRenew, "no-renew", false, "do not renew the lease: when it ends, the lock is lost")
	f.BoolVar(&r.fencing, "fencing", false, "take fencing tokens from a register, which grows whatever the server's clock does; it is a small key without expiry")
	f.BoolVar(&r.durable, "durable-servers", false, "with --quorum: the servers forget nothing when they restart")
	f.DurationVar(&r.voteTimeout, "server-timeout", multilock.DefaultServerTimeout, "with --quorum: how long to wait for the vote of one server")
	f.DurationVar(&r.maxHold, "max-hold", 0, "longest time to hold the lock; then stop the command, also one that is stopped (default: none)")
	f.BoolVar(&r.reenters, "reenter", false, "if a run above this one, whose command this is a part of, holds the lock, run under that hold")
	f.DurationVar(&r.minHold, "min-hold", 0, "keep the lock for at least this long, also if the command is over sooner")
	r.onLost.init("term", onLostWords()...)
	r.onLost.addFlag(cmd, "on-lost", "", "what to send to the command when the lock is lost")
	f.DurationVarP(&r.killAfter, "kill-after", "k", 5*time.Second, "how long to wait between the first signal and SIGKILL when leasehold stops the command or what it left")
	f.IntVarP(&r.conflictCode, "conflict-exit-code", "E", exitNotObtained, "exit code if the lock was not obtained")
	f.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "say what happens, on standard error")
	r.connection.addFlags(cmd)
	return cmd
}

// completeRun completes the words of the command as a shell does, and the name of the lock with those
// that are held.
func (r *runner) completeRun(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return r.completeNames(cmd, args, begin)
	}
	return nil, cobra.ShellCompDirectiveDefault
}
