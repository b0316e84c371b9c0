package child

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func attributes(o Options) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: o.Orphaned}
}

// adopt makes what the command leaves behind children of this process, so that they
// can be reaped: nobody does it in a container whose first process is none for that.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
