//go:build unix && !aix

package child

import (
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// The standard input is the terminal that programs read from.
const (
	stdin  = 0
	stdout = 1
)

// terminal is the terminal of this process.
type terminal struct {
	group int         // the group of this process
	mode  *term.State // the earlier mode of the terminal
	eager bool        // the command gets it at once
}

// openTerminal returns the terminal that this process reads from, nil if there is
// none, or if another session controls it.
func openTerminal() *terminal {
	if _, err := foreground(); err != nil || !term.IsTerminal(stdin) {
		return nil
	}
	mode, err := term.GetState(stdin)
	if err != nil {
		return nil
	}
	group, err := unix.Getpgid(0)
	if err != nil {
		return nil
	}
	return &terminal{group, mode, term.IsTerminal(stdout)}
}

// foreground returns the process group that has the terminal.
func foreground() (group int, err error) { return unix.IoctlGetInt(stdin, unix.TIOCGPGRP) }

// begin is called when the command of the group has just been started. The command may have
// asked for the terminal already, and have been stopped; begin then continues it.
func (t *terminal) begin(group int) {
	if t.eager && t.give(group) {
		_ = unix.Kill(-group, unix.SIGCONT)
	}
}

// give gives the terminal to the group of the command if this process has it.
func (t *terminal) give(group int) bool {
	if has, err := foreground(); err != nil || has != t.group {
		return false
	}
	return unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, group) == nil
}

// end takes the terminal back from the group of the command, which is over. A command that a
// signal has killed had no time to restore its mode.
func (t *terminal) end(group int, killed bool) {
	if has, err := foreground(); err != nil || has != group {
		return
	}
	if unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, t.group) == nil && killed {
		_ = term.Restore(stdin, t.mode)
	}
}
