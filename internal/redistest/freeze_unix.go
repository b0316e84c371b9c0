//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// freeze pauses p and waits until all its threads have stopped: the signal is asynchronous, and the
// server could execute one more command.
func freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return err
		case !status.Stopped():
			return fmt.Errorf("the process ended instead (status %#x)", status)
		}
		return nil
	}
}

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
