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
	pid     int // of the command, and of its group; set once
	options Options
	tty     *terminal // used by control alone once the command runs
	changes chan unix.WaitStatus
	exited  chan Status // has room for one status
}

// Start starts the program called argv[0] with the standard input, output and error of this process. A script without
// an interpreter runs in /bin/sh, as with execvp(3).
func Start(argv []string, o Options) (*Process, error) {
	path, err := Find(argv[0])
	if err != nil {
		return nil, err
	}
	p := &Process{options: o, tty: openTerminal(), changes: make(chan unix.WaitStatus), exited: make(chan Status, 1)}
	adopt()
	started := make(chan error)
	go p.look(path, argv, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// look starts the command and reaps all children. It locks its goroutine to its thread
// until this process ends, because Linux sends Options.Orphaned when the thread that
// started the command ends.
func (p *Process) look(path string, argv []string, started chan<- error) {
	runtime.LockOSThread()
	jobs := make(chan os.Signal, 8)
	if !signal.Ignored(syscall.SIGTSTP) {
		signal.Notify(jobs, syscall.SIGTSTP)
	}
	signal.Notify(jobs, syscall.SIGCONT)
	cmd := p.command(path, argv)
	err := cmd.Start()
	if errors.Is(err, syscall.ENOEXEC) {
		cmd = p.command("/bin/sh", append([]string{"/bin/sh", path}, argv[1:]...))
		err = cmd.Start()
	}
	if err != nil {
		signal.Stop(jobs)
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
	go p.control(jobs)
	started <- nil
	p.reap()
}

func (p *Process) command(path string, argv []string) *exec.Cmd {
	return &exec.Cmd{Path: path, Args: argv, Env: p.options.Env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: attributes(p.options)}
}

// reap waits for all children until there are none.
func (p *Process) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED|unix.WCONTINUED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return
		case pid == p.pid: // otherwise an orphan of the command
			p.changes <- status
		}
	}
}

// resumeAfter is how long the command stays stopped when the terminal has stopped it, and no shell
// could continue this process. The system does not stop this process then.
const resumeAfter = time.Second

// control follows the command until it ends, and forwards the signals of job control.
//
//	the command wants the terminal    it gets the terminal, and continues
//	the command is stopped otherwise  this process stops, with all of the shell's job
//	this process is continued         the command gets the terminal again if it had or wanted it, and continues
//	this process receives Ctrl-Z      the command receives the signal: otherwise it would continue, and outlive the lease
func (p *Process) control(jobs chan os.Signal) {
	defer signal.Stop(jobs)
	var expired <-chan time.Time
	told := false       // Continued must be called when the command continues
	suspending := false // the command was sent the signal of Ctrl-Z
	for {
		select {
		case status := <-p.changes:
			switch {
			case status.Continued():
				if told {
					p.options.Continued()
				}
				told = false
			case status.Stopped() && p.tty.wanted(status.StopSignal()) && !suspending && p.tty.give(p.pid):
				_ = p.signal(syscall.SIGCONT)
			case status.Stopped():
				told = p.tty == nil // with a terminal, the user continues it, and the screen belongs to the command
				p.options.Stopped(status.StopSignal(), p.tty != nil)
				if p.tty != nil { // without one, there is no shell, and another process stopped the command and may continue it
					expired = stopJob(status.StopSignal())
				}
			case status.Signaled():
				p.over(Status{Signal: status.Signal()})
				return
			case status.Exited():
				p.over(Status{Code: status.ExitStatus()})
				return
			}
		case sig := <-jobs:
			if sig == syscall.SIGTSTP {
				suspending = true
				_ = p.signal(syscall.SIGTSTP)
				break
			}
			expired, suspending = nil, false
			p.resume()
		case <-expired:
			expired, suspending = nil, false
			p.resume()
		}
	}
}

// stopJob stops the whole job of the shell that this process is a part of. When the returned channel fires, the command must continue even if no
// shell has continued the job: without a shell, Ctrl-Z must not stop it indefinitely. The channel is nil if the command must stay stopped.
//
// The signal is SIGTTIN because this process catches SIGTSTP and ignores SIGTTOU, and the runtime cannot undo that. SIGTTIN also shows an outer run
// that the command wants the terminal.
func stopJob(sig syscall.Signal) <-chan time.Time {
	_ = syscall.Kill(0, syscall.SIGTTIN)
	if sig == syscall.SIGSTOP { // sent by another process on purpose
		return nil
	}
	return time.After(resumeAfter)
}

// resume continues the command once the shell has continued this process. Earlier, the command would
// read keys that are meant for the shell.
func (p *Process) resume() {
	if p.tty != nil && p.tty.wants {
		p.tty.give(p.pid)
	}
	_ = p.signal(syscall.SIGCONT)
}

func (p *Process) over(s Status) {
	if p.tty != nil {
		p.tty.end(p.pid, s.Signal != 0)
	}
	p.exited <- s
}

// Exited returns a channel that has the status once the command itself has ended. The
// status is sent once.
func (p *Process) Exited() <-chan Status { return p.exited }

// Signal sends sig to the whole group of the command. A termination signal also continues
// stopped processes, so that they receive it.
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
