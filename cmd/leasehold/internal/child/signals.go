package child

import (
	"os"
	"os/signal"
	"slices"
)

// Catch returns a channel with the signals for the command, from now on until this process ends: a signal
// that comes just before it ends must not change its exit code. A SIGHUP or SIGINT that this process was started to
// ignore, as by nohup or by a shell's &, stays ignored. Go does not tell whether another signal was ignored.
func Catch() (signals <-chan os.Signal) {
	// Without this, a message to a standard error that is closed would kill this process, and leave the command behind.
	// Ignored instead of caught, the signal would be ignored by the command, too.
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

// Ends reports whether s asks this process to end. The others are for the command
// alone.
func Ends(s os.Signal) bool { return slices.Contains(ending, s) }
