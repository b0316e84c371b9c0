// Package programtest runs the program of a guide as a process of its own, whose work the test ends.
//
// The process is the binary of the test. Its TestMain calls Child first.
package programtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// programEnv in the environment makes a binary of tests the program.
const programEnv = "LEASEHOLD_PROGRAM"

// Child runs program and exits if this process was started by Start, and does nothing otherwise.
func Child(program func() error) {
	if os.Getenv(programEnv) == "" {
		return
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		fmt.Println("SIGTERM arrived")
	}()
	if err := program(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// lines are what the test writes to this process, which does not outlive the test.
var lines = sync.OnceValue(func() <-chan string {
	to := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			to <- in.Text()
		}
		os.Exit(2)
	}()
	return to
})

// Work is the work of a program. It prints what it works on, and goes on until Process.Finish or until ctx is canceled.
func Work(ctx context.Context, what string) error {
	fmt.Println("working on", what)
	select {
	case <-lines():
		return nil
	case <-ctx.Done():
		fmt.Println("canceled")
		return context.Cause(ctx)
	}
}

// A Process is a program that runs.
type Process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Writer
	out   chan string // its lines; closed when it has ended
	all   []string    // those that were read
}

// Start starts the program with these variables in its environment. The end of the test kills it.
func Start(t *testing.T, env ...string) *Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, cmd: exec.Command(exe), out: make(chan string, 1000)}
	p.cmd.Env = append(append(os.Environ(), programEnv+"=1"), env...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.cmd.Stdout
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.out)
		for in := bufio.NewScanner(out); in.Scan(); {
			p.out <- in.Text()
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, unless the test failed
		p.drain()
		_ = p.cmd.Wait()
	})
	return p
}

// patience bounds what happens soon, even on a busy machine.
const patience = 30 * time.Second

// Await waits until the program writes a line that contains text, and returns what follows the text.
func (p *Process) Await(text string) string {
	p.t.Helper()
	after, found := p.find(text)
	if !found {
		p.t.Fatalf("the program ended without %q: %q", text, p.all)
	}
	return after
}

// find is Await for a program that may end instead. It then reports false.
func (p *Process) find(text string) (after string, found bool) {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-p.out:
			if !ok {
				return "", false
			}
			p.all = append(p.all, line)
			if _, after, found := strings.Cut(line, text); found {
				return after, true
			}
		case <-timeout:
			p.t.Fatalf("no %q within %v: %q", text, patience, p.all)
		}
	}
}

// Finish lets the work end that the program does, or the next one.
func (p *Process) Finish() {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.stdin); err != nil {
		p.t.Fatal(err)
	}
}

// Terminate sends SIGTERM, and returns when it has arrived. A program that has nothing left to do may end before it says
// so.
func (p *Process) Terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	p.find("SIGTERM arrived")
}

// Kill ends the program without a chance to clean up, and returns when it is gone.
func (p *Process) Kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	p.drain()
	_ = p.cmd.Wait()
}

// End waits until the program has ended without an error, and returns all that it wrote.
func (p *Process) End() string {
	p.t.Helper()
	late := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	p.drain()
	out := strings.Join(p.all, "\n")
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the program ended with %v: %s", err, out)
	}
	return out
}

func (p *Process) drain() {
	for line := range p.out {
		p.all = append(p.all, line)
	}
}

// Until waits until there returns true.
func Until(t *testing.T, what string, there func() bool) {
	t.Helper()
	for began := time.Now(); !there(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
