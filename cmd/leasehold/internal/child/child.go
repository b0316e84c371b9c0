package child

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"
)

// Options configures a command.
type Options struct {
	Env []string // the environment of the command

	// Orphaned is sent to the command when this process dies without cleaning up, for
	// example by SIGKILL. If it is 0, nothing is sent. Only Linux supports it.
	Orphaned syscall.Signal

	// Stopped is called when a signal has stopped the command. together means that this process stops next, as the shell expects of a
	// job. Otherwise, Continued is called when the command runs again. Only Unix supports them.
	Stopped   func(sig syscall.Signal, together bool)
	Continued func()
}

// Status is how a command ended.
type Status struct {
	Code   int            // if the command exited
	Signal syscall.Signal // if a signal ended the command, otherwise 0
}

// ExitCode returns the code as a shell reports it: 128+n for signal n.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

// StartCode returns the exit code for an error of Find or Start, as a shell would
// report it: 127 if the program was not found, 126 if it cannot be run.
func StartCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return 127
	}
	return 126
}
