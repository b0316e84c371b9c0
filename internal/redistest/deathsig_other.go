//go:build !linux

package redistest

import "syscall"

// dieWithParent has no counterpart here: a test process that dies without
// running its Cleanups leaves its server behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
