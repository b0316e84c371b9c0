// Command leasehold is the command-line tool of the lock library. The
// repository's docs/operate/tool.md describes it.
//
//	leasehold run NAME -- COMMAND    runs a command while holding a lock
//	leasehold ls [PATTERN]           lists locks, rate limiters and Bloom filters
//	leasehold inspect NAME           shows the holders and waiters of a lock
//	leasehold unlock NAME            force-unlocks a lock and notifies its holder
//	leasehold resize NAME PERMITS    changes the permit count of a semaphore
//	leasehold top [PATTERN]          shows a live table of locks in the terminal
//	leasehold watch NAME...          prints lock events as JSON lines
//	leasehold clients                lists the clients that use locks
//	leasehold serve                  serves a web page that shows locks
//	leasehold history NAME           shows who held a lock in the last hour
//	leasehold bench                  measures lock operations on a server
//	leasehold doctor                 checks whether a server is configured safely for locking
//	leasehold demo                   shows locks at work; needs nothing installed
//	leasehold completion SHELL       prints a completion script
//	leasehold version                prints the version
//
// The file of a command has its name, and files that begin with the name have its parts, such as
// run_wait.go. The other files have what the commands share.
//
// The exit code is 0 on success, 1 on failure, 2 for wrong arguments, and 130 if
// it was interrupted. exit.go has the codes of run.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := interruptible(context.Background())
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs the tool with args, and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	return execute(ctx, leasehold(), args, stdout, stderr)
}

// execute runs root, reports its error, and returns the exit code.
func execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) (code int) {
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)

	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !started { // then the command line is wrong
		if text, names, ok := strings.Cut(err.Error(), "\n\nDid you mean this?\n"); ok {
			err = fmt.Errorf("%s: did you mean %s?", text, strings.Join(strings.Fields(names), " or "))
		}
		err = usage(err)
	}
	return report(ctx, stderr, cmd, err)
}

// releaseCommands has the commands that only the release process builds: see man.go.
var releaseCommands []*cobra.Command

// renamed maps the flags that were renamed before v1 to their new names. It stays for one release.
var renamed = map[string]string{"as": "operator", "every": "interval", "time": "duration", "durable": "durable-servers", "vote-timeout": "server-timeout"}

// leasehold returns the root command with all subcommands.
func leasehold() *cobra.Command {
	root := &cobra.Command{
		Use:           "leasehold",
		Short:         "Distributed locks on Redis and Valkey",
		Version:       thisVersion().Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(releaseCommands...)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if !errors.As(err, &unknown) {
			return err
		}
		if name := renamed[unknown.GetSpecifiedName()]; name != "" && cmd.Flags().Lookup(name) != nil {
			return fmt.Errorf("%w: use --%s", err, name)
		}
		return err
	})
	root.AddCommand(runCommand(), lsCommand(), inspectCommand(), unlockCommand(), resizeCommand(), topCommand(), watchCommand(), clientsCommand(), serveCommand(), historyCommand(), benchCommand(), doctorCommand(), demoCommand(), versionCommand())
	for _, cmd := range root.Commands() {
		if check := cmd.Args; check != nil {
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				err := check(cmd, args)
				if err != nil && !errors.As(err, new(*exitError)) { // the error of cobra has the number of arguments, but not their meaning
					return usagef("%s: use leasehold %s", plural(int64(len(args)), "argument"), cmd.Use)
				}
				return err
			}
		}
	}
	return root
}
