//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// suspend stops the job of this process, as Ctrl-Z does, until the shell continues it. It returns at once where no shell could do that:
// there the signal has no effect, and no SIGCONT follows.
func suspend() error {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	if err := syscall.Kill(0, syscall.SIGTSTP); err != nil {
		return err
	}
	select {
	case <-continued:
	case <-time.After(200 * time.Millisecond): // which do not pass while the process is stopped
	}
	return nil
}
