//go:build unix && !linux && !aix

package child

import "syscall"

func attributes(Options) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func adopt() {}
