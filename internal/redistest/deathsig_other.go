//go:build !linux

package redistest

import "syscall"

// dieWithParent does nothing here: a test process that exits without running its Cleanups leaves
// its server running.
func dieWithParent() *syscall.SysProcAttr { return nil }
