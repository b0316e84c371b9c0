package redistest

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that started it exits. launch keeps
// that thread for as long as the child lives, so the child is killed when the test process exits,
// even by a panic, a -timeout or a SIGKILL, which run no Cleanup.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
