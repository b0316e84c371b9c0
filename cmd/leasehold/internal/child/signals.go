package child

import (
	"os"
	"os/signal"
	"slices"
)

// Catch returns a channel with the signals for the command. It catches them until this process ends, because a
// signal just before the end must not change the exit code. A SIGHUP or SIGINT that was ignored when this process
// started, as by nohup or by a shell's &, stays ignored. For other signals, Go does not report whether they were
// ignored.
func Catch() (signals <-chan os.Signal) {
	// Without this, a message to a closed standard error would kill this process, and leave the command behind. The
	// signal is caught and not ignored, because the command would inherit an ignored signal.
	for _, s := range dropped {
		signal.Notify(make(chan os.Signal, 1), s)
	}
	c := make(chan os.Signal, 32)
	for _, s := range append(slices.Clone(ending), other...) {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	return c
}

// Ends reports whether s is a termination signal. All other signals are only for the
// command.
func Ends(s os.Signal) bool { return slices.Contains(ending, s) }
