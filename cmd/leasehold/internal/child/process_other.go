//go:build !unix || aix

package child

import (
	"os"
	"os/exec"
)

// Process is a command that was started. Without process groups, only the command
// itself is controlled. It is safe for concurrent use.
type Process struct {
	cmd    *exec.Cmd
	exited chan Status // has room for one status
}

// Start starts argv[0] with the standard input, output and error of this process.
func Start(argv []string, o Options) (*Process, error) {
	p := &Process{exec.Command(argv[0], argv[1:]...), make(chan Status, 1)}
	p.cmd.Env = o.Env
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // the status has the error
		p.exited <- Status{Code: p.cmd.ProcessState.ExitCode()}
	}()
	return p, nil
}

// Exited returns a channel that has the status once the command has ended. The status
// is sent once.
func (p *Process) Exited() <-chan Status { return p.exited }

// Signal kills the command, because no other signal exists on all systems. It ignores
// an interrupt, which the command has already received from the console.
func (p *Process) Signal(sig os.Signal) error {
	if sig == os.Interrupt {
		return nil
	}
	return p.cmd.Process.Kill()
}

// Alive reports false: the other processes of the command are unknown.
func (p *Process) Alive() bool { return false }
