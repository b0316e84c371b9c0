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
	above []ancestor // the holds of outer runs

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
		Example: `  leasehold run nightly -- ./report.sh               wait for the lock, run, release it
  leasehold run --no-wait nightly -- ./report.sh     exit with 75 if another owner holds it
  leasehold run --wait 5m nightly -- ./report.sh     exit with 75 after five minutes
  leasehold run --shared catalog -- ./read.sh        run with other readers
  leasehold run --exclusive catalog -- ./write.sh    run alone
  leasehold run --permits 4 gpus -- ./train.sh       run at most 4 at a time
  leasehold run --reenter nightly -- ./step.sh       run under an outer leasehold run nightly`,
		Long: `Run a command while holding the lock NAME in Redis: flock(1) across machines.

run waits for the lock, starts the command, and releases the lock when the command
ends. The lock is plain unless a flag selects another type. All users of a name must
use the same type. NAME includes the key prefix of applications that share the lock.
After two seconds of waiting, run prints who holds the lock. With --wait, the server
need not be up yet. Without it, an unreachable server is an error at once.

The command is found and started as by env(1) and timeout(1); a script without #! runs
in /bin/sh. It has its own process group, and the terminal if there is one. run passes
signals to the command. During the wait, SIGHUP, SIGINT, SIGQUIT and SIGTERM end run,
and SIGUSR1, SIGUSR2 and SIGWINCH are ignored. A stopped command (Ctrl-Z, SIGSTOP)
keeps the lock; --max-hold limits the time.

A run inside the command of another run of the same lock would wait for itself, so it
fails. With --reenter, it runs its command under the outer hold, which lasts until the
outer command ends.

run renews the lease of the lock while the command runs. The lock can still be lost,
for example if Redis is unavailable for the length of the lease. run then stops the
command (--on-lost). When the command ends, run stops the remaining processes of its
process group, and then releases the lock.

If run itself is killed (SIGKILL), the lock stays until its lease expires. On Linux,
the command then receives the signal of --on-lost, but the processes it started do not.
On other systems, no process receives a signal. Use the fencing token in both cases.

Environment of the command:
  LEASEHOLD_LOCK_NAME      lock name
  LEASEHOLD_OWNER          owner as stored in Redis; keep it secret
  LEASEHOLD_FENCING_TOKEN  number that grows from holder to holder; empty with --permits,
                           and with --quorum or --shared without --fencing
  LEASEHOLD_LEASE_MS       lease in milliseconds
  LEASEHOLD_HELD           holds of this run and of outer runs; keep it secret

Permissions: see leasehold doctor --print-acl application --for TYPE.

Exit codes:
  the command's own; 128+n if signal n ended the command or the wait
  75   lock not acquired: another owner holds it (-E sets another code)
  123  lock lost before its release; not with --on-lost ignore
  124  command stopped because of --max-hold
  125  run failed: Redis unavailable, missing permission, wrong type of key, nested run
  126  command not executable
  127  command not found
  2    wrong arguments, or no URL

` + connectionHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash < 0 || len(args) == dash:
				return usagef("no command after --: use leasehold run NAME -- COMMAND")
			case dash != 1:
				return usagef("%d names before --: want 1", dash)
			}
			return nil
		},
		ValidArgsFunction: r.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.waits = cmd.Flags().Changed("wait")
			r.counts = cmd.Flags().Changed("permits")
			r.begin(cmd.ErrOrStderr())
			defer r.flush() // before the error, which is the last message
			r.name, r.argv = args[0], args[1:]
			return r.run(cmd.Context())
		},
	}
	r.addFlags(cmd)
	return cmd
}

// addFlags gives cmd the flags of run.
func (r *runner) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVarP(&r.wait, "wait", "w", 0, "maximum time to wait, such as 90s or 5m; 0 tries once (default no limit)")
	f.BoolVarP(&r.noWait, "no-wait", "n", false, "one attempt, as with --wait 0")
	f.BoolVarP(&r.shared, "shared", "s", false, "read side of a read/write lock: shared with other readers")
	f.BoolVarP(&r.exclusive, "exclusive", "x", false, "write side of a read/write lock: excludes readers and writers")
	f.BoolVar(&r.fair, "fair", false, "fair lock: first-come, first-served across all machines")
	f.IntVar(&r.permits, "permits", 0, "semaphore with this permit count, the same for all users: at most N run at a time, first-come, first-served (default none)")
	f.BoolVar(&r.quorum, "quorum", false, "quorum lock, on a majority of independent servers: repeat --url, or separate the URLs in the environment with spaces")
	f.DurationVar(&r.lease, "lease", client.DefaultWatchdogTimeout, "lease: time for which Redis keeps the lock without renewal")
	f.BoolVar(&r.noRenew, "no-renew", false, "no renewal: the lock is lost when the lease expires")
	f.BoolVar(&r.fencing, "fencing", false, "fencing tokens from a counter in Redis, independent of the server's clock; the counter is a permanent key")
	f.BoolVar(&r.durable, "durable-servers", false, "with --quorum: servers that keep their data when they restart")
	f.DurationVar(&r.voteTimeout, "server-timeout", multilock.DefaultServerTimeout, "with --quorum: maximum time to wait for the vote of one server")
	f.DurationVar(&r.maxHold, "max-hold", 0, "maximum time to hold the lock, after which run stops the command, even a paused one (default none)")
	f.BoolVar(&r.reenters, "reenter", false, "reentry: run under the hold of an outer leasehold run of the same lock")
	f.DurationVar(&r.minHold, "min-hold", 0, "minimum time to hold the lock, even if the command ends earlier (default none)")
	r.onLost.init("term", onLostWords()...)
	r.onLost.addFlag(cmd, "on-lost", "", "signal to the command when the lock is lost")
	f.DurationVarP(&r.killAfter, "kill-after", "k", 5*time.Second, "time from the first signal to SIGKILL when run stops the command or its remaining processes")
	f.IntVarP(&r.conflictCode, "conflict-exit-code", "E", exitNotObtained, "exit code if the lock is not acquired")
	f.BoolVarP(&r.quiet, "quiet", "q", false, "no messages")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "messages about each step, on standard error")
	r.connection.addFlags(cmd)
}

// completeRun completes the name of the lock with the names of held locks, and leaves the command to
// the shell.
func (r *runner) completeRun(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return r.completeNames(cmd, args, begin)
	}
	return nil, cobra.ShellCompDirectiveDefault
}
