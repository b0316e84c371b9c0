//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// suspend stops the job of this process, as Ctrl-Z does, until the shell continues it. Without a shell that could do so, the signal has
// no effect and no SIGCONT follows, so suspend returns after 200 ms.
func suspend() error {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	if err := syscall.Kill(0, syscall.SIGTSTP); err != nil {
		return err
	}
	select {
	case <-continued:
	case <-time.After(200 * time.Millisecond): // this time does not pass while the process is stopped
	}
	return nil
}
