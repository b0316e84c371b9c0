package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// promptly is how long to wait on a busy machine for what should happen immediately.
const promptly = 20 * time.Second

// binary builds the tool, once for all tests of the package, and returns its path.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "leasehold")
	if err != nil {
		return "", err
	}
	builtIn = dir
	path := filepath.Join(dir, "leasehold")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

var builtIn string // the directory of the binary; empty if it was not built

// mainTests runs the tests, and removes the binary.
type mainTests struct{ m *testing.M }

func (m mainTests) Run() int {
	// The children of a process that ignores a signal, as under nohup, inherit that, and a
	// shell among them cannot trap the signal. A signal that this process catches is not inherited.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	defer func() {
		if builtIn != "" {
			os.RemoveAll(builtIn)
		}
	}()
	return m.m.Run()
}

// tool is one call of the real binary.
type tool struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *transcript
	closed         chan struct{} // closed when no process has the standard output open; nil if it is not captured
}

// detached starts a process without the terminal of these tests. On that terminal, the process would stop and continue the tests as part of its job.
var detached *syscall.SysProcAttr

// prepare returns a call that is not started yet. env is added to the environment.
func prepare(t *testing.T, env []string, args ...string) *tool {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	c := &tool{t: t, cmd: exec.Command(path, args...), stdout: newTranscript(), stderr: newTranscript()}
	c.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "LEASEHOLD_") || strings.HasPrefix(v, "REDIS")
	}), env...)
	c.cmd.SysProcAttr = detached
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	c.cmd.Stderr = c.stderr
	c.cmd.WaitDelay = promptly
	return c
}

// start starts the call. The end of the test kills it if it still runs.
func (c *tool) start() *tool {
	c.t.Helper()
	if c.cmd.Stdout == nil {
		r, w, err := os.Pipe()
		if err != nil {
			c.t.Fatal(err)
		}
		c.cmd.Stdout = w
		c.closed = make(chan struct{})
		go func() {
			defer close(c.closed)
			_, _ = io.Copy(c.stdout, r)
		}()
		c.t.Cleanup(func() {
			r.Close()
			<-c.closed
		})
		defer w.Close()
	}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		if c.t.Failed() {
			c.t.Logf("%s\nstdout:\n%s\nstderr:\n%s", strings.Join(c.cmd.Args, " "), c.stdout, c.stderr)
		}
	})
	return c
}

// on starts a call with the server's address in its environment.
func on(t *testing.T, s *redistest.Server, args ...string) *tool {
	t.Helper()
	return prepare(t, []string{"LEASEHOLD_REDIS_URL=" + s.URL()}, args...).start()
}

// signal sends a signal to the process.
func (c *tool) signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Errorf("signal %v: %v", s, err)
	}
}

// say writes a line to the standard input of the process.
func (c *tool) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.stdin, line+"\n"); err != nil {
		c.t.Error(err)
	}
}

// ends waits until the process and all processes that it started have ended.
func (c *tool) ends(want int) {
	c.t.Helper()
	state := c.wait()
	if got := state.ExitCode(); got != want {
		c.t.Errorf("exit code %d (%v), want %d", got, state, want)
	}
}

// killed waits until a signal has ended the process, and all processes that it started have ended.
func (c *tool) killed(want syscall.Signal) {
	c.t.Helper()
	state := c.wait()
	if s, ok := state.Sys().(syscall.WaitStatus); !ok || !s.Signaled() || s.Signal() != want {
		c.t.Errorf("it ended by %v, want %v", state, want)
	}
}

// wait waits, for a limited time, until the process has ended and no process has its standard output open:
// otherwise a process that it started still runs.
func (c *tool) wait() *os.ProcessState {
	c.t.Helper()
	limit := time.AfterFunc(6*promptly, func() {
		c.t.Error("it does not end")
		_ = c.cmd.Process.Kill()
	})
	_ = c.cmd.Wait() // the state has the details
	limit.Stop()
	if c.closed != nil {
		select {
		case <-c.closed:
		case <-time.After(promptly):
			c.t.Error("it is over, but something that it started is not")
		}
	}
	return c.cmd.ProcessState
}

// transcript is what a program has written so far. It is safe for concurrent use.
type transcript struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

func newTranscript() *transcript { return &transcript{changed: make(chan struct{})} }

// Write adds b to the transcript.
func (r *transcript) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
	return r.text.Write(b)
}

func (r *transcript) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// await waits until text was written.
func (r *transcript) await(t *testing.T, text string) {
	t.Helper()
	if !r.within(promptly, text) {
		t.Fatalf("%q was not written, but %q", text, r)
	}
}

// within waits for at most d until text was written, and reports whether it was.
func (r *transcript) within(d time.Duration, text string) bool { return r.behind(0, d, text) }

// behind is like within, for what was written after the first n bytes.
func (r *transcript) behind(n int, d time.Duration, text string) bool {
	limit := time.After(d)
	for {
		r.mu.Lock()
		seen, changed := strings.Contains(r.text.String()[n:], text), r.changed
		r.mu.Unlock()
		if seen {
			return true
		}
		select {
		case <-changed:
		case <-limit:
			return false
		}
	}
}

// noKeys checks that the server has no key that contains name.
func noKeys(t *testing.T, s *redistest.Server, name string) {
	t.Helper()
	reply := s.Do(t, "KEYS", "*"+name+"*")
	if keys, err := reply.AsStrSlice(); err != nil || len(keys) > 0 {
		t.Errorf("keys left: %q, %v", keys, err)
	}
}

// lockName returns a name that no other test uses, and that is not a part of the name of another test.
func lockName(t *testing.T) string {
	return strings.NewReplacer("/", ":", " ", "_").Replace(t.Name()) + "."
}

// isAbout reports whether a request is a script for this lock, and not for the entry of a client.
func isAbout(req [][]byte, lock string) bool {
	return strings.EqualFold(string(req[0]), "EVALSHA") && slices.ContainsFunc(req, func(word []byte) bool { return string(word) == lock })
}

// held reports whether there is a lock called name.
func held(t *testing.T, s *redistest.Server, name string) bool {
	t.Helper()
	reply := s.Do(t, "EXISTS", name)
	n, err := reply.AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// await waits until done reports true. what is the failure if it does not.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(promptly); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// awaitHeld waits until the lock is held.
func awaitHeld(t *testing.T, s *redistest.Server, name string) {
	t.Helper()
	await(t, "nobody has "+name, func() bool { return held(t, s, name) })
}

// awaitFree waits until there is no lock called name.
func awaitFree(t *testing.T, s *redistest.Server, name string) {
	t.Helper()
	await(t, "the lock is not free", func() bool { return !held(t, s, name) })
}

// registered waits until the registry has an entry of the process, and returns its key.
func registered(t *testing.T, s *redistest.Server, c *tool) (entry string) {
	t.Helper()
	await(t, "the process has no registry entry", func() bool {
		reply := s.Do(t, "KEYS", "leasehold_client:*")
		names, err := reply.AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			reply := s.Do(t, "HGET", name, "pid")
			if pid, err := reply.ToString(); err == nil && pid == strconv.Itoa(c.cmd.Process.Pid) {
				entry = name
			}
		}
		return entry != ""
	})
	return entry
}
