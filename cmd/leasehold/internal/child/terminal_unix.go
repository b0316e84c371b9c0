//go:build unix && !aix

package child

import (
	"errors"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the controlling terminal of this process. Programs can read from it regardless of their standard input.
type terminal struct {
	fd    int
	group int         // the group of this process
	mode  *term.State // the earlier mode of the terminal
	eager bool        // the command gets it immediately
	wants bool        // the command has it, or has tried to use it
}

// openTerminal returns the controlling terminal, or nil if there is none.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	mode, err := term.GetState(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil
	}
	group, err := unix.Getpgid(0)
	if err != nil {
		_ = unix.Close(fd)
		return nil
	}
	const stdin, stdout = 0, 1 // Fd of a file would make it blocking, even for other processes
	eager := controls(stdin) && controls(stdout)
	return &terminal{fd: fd, group: group, mode: mode, eager: eager, wants: eager}
}

// controls reports whether fd is the controlling terminal.
func controls(fd int) bool {
	_, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil
}

// foreground returns the process group that has the terminal.
func (t *terminal) foreground() (group int, err error) {
	return unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
}

// begin is called when the command of the group has just been started. The command may have
// asked for the terminal already, and have been stopped; begin then continues it.
func (t *terminal) begin(group int) {
	if t.eager && t.give(group) {
		_ = unix.Kill(-group, unix.SIGCONT)
	}
}

// wanted reports whether sig has stopped the command because it used the terminal.
func (t *terminal) wanted(sig unix.Signal) bool {
	if t == nil || sig != unix.SIGTTIN && sig != unix.SIGTTOU {
		return false
	}
	t.wants = true
	return true
}

// give gives the terminal to the group of the command if this process has it.
func (t *terminal) give(group int) bool {
	if has, err := t.foreground(); err != nil || has != t.group {
		return false
	}
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) == nil
}

// end takes the terminal back after the command has ended: from its group, or from a group that the command started and that no longer
// exists. It restores the mode if a signal killed the command, which could not do so.
func (t *terminal) end(group int, killed bool) {
	has, err := t.foreground()
	if err != nil || has == t.group || has != group && !errors.Is(unix.Kill(-has, 0), unix.ESRCH) {
		return
	}
	if unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.group) == nil && killed {
		_ = term.Restore(t.fd, t.mode)
	}
}
