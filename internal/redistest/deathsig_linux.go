package redistest

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that started it
// ends. launch keeps that thread as long as the child lives, so the child ends
// when the test process ends: also by a panic, a -timeout or a SIGKILL, which
// run no Cleanup.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
