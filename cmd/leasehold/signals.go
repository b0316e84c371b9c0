package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// interrupted is the cause of a context that a signal canceled.
type interrupted struct{ signal os.Signal }

// Error names the signal.
func (i interrupted) Error() string { return fmt.Sprintf("interrupted by a signal (%v)", i.signal) }

// code returns the exit code of a program that the signal ended, as a shell reports it.
func (i interrupted) code() int {
	if s, ok := i.signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return exitInterrupted
}

// interruptible returns a context that SIGINT and SIGTERM cancel, with an
// [interrupted] as its cause. A second signal ends the process. It is for every
// command except run, which handles signals itself. A signal that was ignored when
// this process started stays ignored, even for run and its command.
func interruptible(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(interrupted{s})
		case <-ctx.Done():
			signal.Stop(signals)
		}
	}()
	return ctx, func() { cancel(nil) }
}
