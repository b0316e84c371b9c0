package child

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func attributes(o Options) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: o.Orphaned}
}

// adopt makes orphans of the command children of this process, so that it can reap
// them: in a container whose first process does not reap, no other process does.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
