// Command leasehold is the command-line tool of the lock library.
//
//	leasehold demo                                 shows locks at work; needs nothing installed
//	leasehold demo --url redis://127.0.0.1:6379    the same, on a server of yours
//
// It exits with 0 if all went well, 1 if it did not, 2 if it was called the
// wrong way, and 130 if it was interrupted.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130 // as a shell reports a command that SIGINT ended
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it the hard way
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	started := false
	root := &cobra.Command{
		Use:              "leasehold",
		Short:            "Locks in Redis",
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: func(*cobra.Command, []string) { started = true },
	}
	root.AddCommand(demoCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)

	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "leasehold: interrupted")
		return exitInterrupted
	}
	fmt.Fprintln(stderr, "leasehold:", strings.TrimPrefix(err.Error(), "leasehold: "))
	if !started { // then all that can be wrong is how it was called
		fmt.Fprintln(stderr, "See leasehold --help.")
		return exitUsage
	}
	return exitFailure
}
