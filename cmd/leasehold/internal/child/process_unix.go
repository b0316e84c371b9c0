//go:build unix && !aix

package child

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a command that was started. It is safe for concurrent use.
type Process struct {
	pid    int // of the command, and of its group; set once
	tty    *terminal
	exited chan Status // of one element
}

// Start starts argv[0] with the standard input, output and error of this process.
func Start(argv []string, o Options) (*Process, error) {
	p := &Process{tty: openTerminal(), exited: make(chan Status, 1)}
	adopt()
	started := make(chan error)
	go p.look(argv, o, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// look starts the command and reaps all children. It locks its goroutine to its thread
// as long as this process lives: Linux sends o.Orphaned when the thread
// ends that started the command.
func (p *Process) look(argv []string, o Options, started chan<- error) {
	runtime.LockOSThread()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = o.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attributes(o)
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	_ = cmd.Process.Release() // reaped below
	if p.tty != nil {
		// From here on, so that the command does not inherit it: otherwise this process
		// would be stopped when it takes the terminal back.
		signal.Ignore(syscall.SIGTTOU)
		p.tty.begin(p.pid)
	}
	started <- nil
	p.reap()
}

// reap waits for all children until there are none.
func (p *Process) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return
		case pid != p.pid: // an orphan of the command
		case status.Stopped():
			p.stopped(status.StopSignal())
		case status.Signaled():
			p.over(Status{Signal: status.Signal()})
		case status.Exited():
			p.over(Status{Code: status.ExitStatus()})
		}
	}
}

func (p *Process) over(s Status) {
	if p.tty != nil {
		p.tty.end(p.pid, s.Signal != 0)
	}
	p.exited <- s
}

// resumeAfter is how long the command stays stopped when Ctrl-Z has stopped it, and no shell
// could continue this process. The system does not stop this process then.
const resumeAfter = time.Second

// stopped is called when sig has stopped the command.
func (p *Process) stopped(sig syscall.Signal) {
	switch {
	case p.tty == nil: // another process stopped it, and may continue it
	case (sig == syscall.SIGTTIN || sig == syscall.SIGTTOU) && p.tty.give(p.pid):
		_ = p.signal(syscall.SIGCONT) // the command wanted the terminal, and has it
	default:
		continued := make(chan os.Signal, 1)
		signal.Notify(continued, syscall.SIGCONT)
		_ = syscall.Kill(0, syscall.SIGTSTP) // to all of the shell's job, which this process is a part of
		go p.resume(continued)
	}
}

// resume continues the command once the shell has continued this process. Earlier, the command would
// read keys that are meant for the shell.
func (p *Process) resume(continued chan os.Signal) {
	defer signal.Stop(continued)
	select {
	case <-continued:
	case <-time.After(resumeAfter):
	}
	p.tty.give(p.pid)
	_ = p.signal(syscall.SIGCONT)
}

// Exited returns a channel that has the status once the command itself is over. The status
// is sent once.
func (p *Process) Exited() <-chan Status { return p.exited }

// Signal sends sig to the whole group of the command. A signal that asks to end also continues
// stopped processes, so that they get it.
func (p *Process) Signal(sig os.Signal) error {
	number, _ := sig.(syscall.Signal) // os has no other type of signal
	err := p.signal(number)
	if err == nil && Ends(sig) {
		err = p.signal(syscall.SIGCONT)
	}
	return err
}

// Alive reports whether the group of the command has a process.
func (p *Process) Alive() bool {
	return !errors.Is(p.signal(0), syscall.ESRCH)
}

func (p *Process) signal(sig syscall.Signal) error { return syscall.Kill(-p.pid, sig) }
