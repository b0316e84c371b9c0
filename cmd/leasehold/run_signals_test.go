//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// The tests cover the matrix signal × phase × child. Each test ends without processes, for which
// ends waits, and without keys in Redis.

// command returns a command of this kind, which determines how it handles the signal. The command
// writes ready when it is ready. Its exit code shows that it ended by itself.
func command(kind, signal string) []string {
	script := map[string]string{
		"exits":   `echo ready; exec sleep 60`,
		"minds":   `trap "exit 7" ` + signal + `; echo ready; while :; do sleep 0.01; done`,
		"stopped": `echo ready; kill -STOP $$; sleep 60`,
		"ignores": `trap "" ` + signal + `; echo ready; read line; exit 5`,
		"forks":   `sleep 60 & (sleep 60 & sleep 60) & echo ready; wait; wait`,
		// The command itself ends, and leaves a process behind that ignores the signals.
		"leaves": `trap "exit 7" ` + signal + `; (trap "" TERM HUP INT QUIT; echo ready; sleep 60) & while :; do sleep 0.01; done`,
	}[kind]
	return []string{"sh", "-c", script}
}

// A signal ends run while it waits, and the command never starts.
func TestRun_signalWhileWaiting(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, signal := range endings {
		for _, kind := range []string{"", "--fair", "--exclusive"} {
			t.Run(name+kind, func(t *testing.T) {
				t.Parallel()
				lock := lockName(t)
				run := append([]string{"run", "-v"}, strings.Fields(kind)...)
				holder := on(t, s, append(run, lock, "--", "sh", "-c", "echo ready; read line")...)
				holder.stdout.await(t, "ready")
				c := on(t, s, append(run, lock, "--", "echo", "ran")...)
				c.stderr.await(t, "another owner holds")
				c.signal(signal)
				c.ends(128 + int(signal))
				if c.stdout.String() != "" {
					t.Errorf("the command ran: %q", c.stdout)
				}
				holder.say("")
				holder.ends(0)
				noKeys(t, s, lock)
			})
		}
	}
}

// A signal other than a termination signal does not end the wait.
func TestRun_otherSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	holder := on(t, s, "run", lock, "--", "sh", "-c", "echo ready; read line")
	holder.stdout.await(t, "ready")
	c := on(t, s, "run", "-v", lock, "--", "echo", "ran")
	c.stderr.await(t, "another owner holds")
	for _, signal := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH} {
		c.signal(signal)
		c.stderr.await(t, fmt.Sprintf("ignored a signal (%v)", signal)) // otherwise it could reach the command
	}
	holder.say("")
	holder.ends(0)
	c.ends(0)
	if got := c.stdout.String(); got != "ran\n" {
		t.Errorf("the command wrote %q", got)
	}
}

// A signal that is pending when the wait ends still belongs to the wait: it ends run or is ignored, and does not reach the command.
func TestUntilSignal(t *testing.T) {
	t.Parallel()
	for range 50 { // the signal or the end of the wait can be detected first
		for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM} {
			signals := make(chan os.Signal, 2)
			ctx, listened := (&runner{}).untilSignal(t.Context(), signals)
			signals <- syscall.SIGUSR1
			signals <- s
			listened()
			if ends := errors.Is(context.Cause(ctx), interrupted{s}); ends != (s == syscall.SIGTERM) || len(signals) > 0 {
				t.Fatalf("%v: the wait ended by %v, and %d signals are left", s, context.Cause(ctx), len(signals))
			}
		}
	}
}

// A signal also ends run while it connects.
func TestRun_signalWhileConnecting(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	arrived := make(chan struct{}, 100)
	proxy.OnRequest(func([][]byte) redistest.Action {
		arrived <- struct{}{}
		return redistest.Action{HoldRequest: t.Context().Done()}
	})
	c := prepare(t, []string{"LEASEHOLD_REDIS_URL=redis://" + proxy.Addr() + "?dial_timeout=1h&write_timeout=1h"}, "run", lockName(t), "--", "true").start()
	<-arrived
	c.signal(syscall.SIGTERM)
	c.ends(128 + int(syscall.SIGTERM))
	proxy.CutAll()
}

// While the command runs, its whole process group receives the signal.
func TestRun_signalWhileRunning(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, signal := range endings {
		for kind, want := range map[string]int{
			"exits":   128 + int(signal),
			"minds":   7,
			"ignores": 5,
			"stopped": 128 + int(signal),
			"forks":   128 + int(signal),
			"leaves":  7,
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				lock := lockName(t)
				c := on(t, s, append([]string{"run", "-k", "50ms", lock, "--"}, command(kind, name)...)...)
				c.stdout.await(t, "ready")
				c.signal(signal)
				if kind == "ignores" {
					c.say("") // it still runs, or it could not read this
				}
				c.ends(want)
				noKeys(t, s, lock)
			})
		}
	}
}

// Other signals reach the command, too.
func TestRun_otherSignalWhileRunning(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, signal := range map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := on(t, s, append([]string{"run", lockName(t), "--"}, command("minds", name)...)...)
			c.stdout.await(t, "ready")
			c.signal(signal)
			c.ends(7)
		})
	}
}

// When the lock is lost, the whole process group of the command receives the signal of --on-lost.
func TestRun_lost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, test := range []struct {
		onLost, kind, signal string
		want                 int
	}{
		{"term", "exits", "TERM", exitLost},
		{"term", "minds", "TERM", exitLost},
		{"term", "stopped", "TERM", exitLost},
		{"term", "ignores", "TERM", exitLost}, // by SIGKILL
		{"term", "forks", "TERM", exitLost},
		{"term", "leaves", "TERM", exitLost},
		{"int", "minds", "INT", exitLost},
		{"kill", "exits", "TERM", exitLost},
		{"kill", "ignores", "TERM", exitLost},
		{"kill", "forks", "TERM", exitLost},
		{"kill", "leaves", "TERM", exitLost},
		{"ignore", "ignores", "TERM", 5},
	} {
		t.Run(test.onLost+" "+test.kind, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			kill := "1h" // the signal is enough
			if test.kind == "ignores" || test.kind == "leaves" {
				kill = "50ms"
			}
			c := on(t, s, append([]string{"run", "--lease", "6s", "-k", kill, "--on-lost", test.onLost, lock, "--"}, command(test.kind, test.signal)...)...)
			c.stdout.await(t, "ready")
			s.Do(t, "DEL", lock)
			c.stderr.await(t, "the command ")
			if test.onLost == keepRunning {
				c.say("") // it still runs, or it could not read this
			}
			c.ends(test.want)
			noKeys(t, s, lock)
		})
	}
}

// A blocked standard error, as of a terminal after Ctrl-S, delays neither the end of the command nor a renewal.
func TestRun_blockedStderr(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	start := func(t *testing.T, addr, kind string, flags ...string) (c *tool, lock string) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		raw, err := w.SyscallConn()
		if err == nil {
			err = raw.Write(func(fd uintptr) bool {
				for full := make([]byte, 1<<16); ; {
					if _, err := syscall.Write(int(fd), full); err != nil { // the pipe is full
						return true
					}
				}
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		lock = lockName(t)
		c = prepare(t, []string{"LEASEHOLD_REDIS_URL=redis://" + addr}, slices.Concat([]string{"run"}, flags, []string{lock, "--"}, command(kind, "TERM"))...)
		c.cmd.Stderr = w
		c.start()
		w.Close()
		c.stdout.await(t, "ready")
		return c, lock
	}
	for kind, kill := range map[string]string{"exits": "1h", "ignores": "50ms"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c, lock := start(t, s.Addr(), kind, "--lease", "6s", "-k", kill)
			s.Do(t, "DEL", lock)
			c.ends(exitLost)
			noKeys(t, s, lock)
		})
	}
	t.Run("renewals", func(t *testing.T) {
		t.Parallel()
		proxy := redistest.NewProxy(t, s.Addr())
		c, lock := start(t, proxy.Addr(), "ignores")
		var renewals atomic.Int64
		renewed := make(chan struct{})
		proxy.OnRequest(func(req [][]byte) (a redistest.Action) {
			if !isAbout(req, lock) || !slices.ContainsFunc(req, func(word []byte) bool { return string(word) == "30000" }) {
				return a
			}
			switch renewals.Add(1) {
			case 1: // run reports this
				a.Refuse = "NOPERM no permission"
			case 2:
				close(renewed)
			}
			return a
		})
		select {
		case <-renewed:
		case <-time.After(time.Minute):
			t.Fatal("no renewal follows one that failed")
		}
		c.say("")
		c.ends(5)
		noKeys(t, s, lock)
	})
}

// 1: The lock is lost, and the command ignores the signal. 2: Later signals still reach the command.
func TestRun_signalWhileLost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, signal := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			c := on(t, s, "run", "--lease", "6s", "--on-lost", "usr1", "-k", "1m", lock, "--",
				"sh", "-c", `trap "" USR1; trap "exit 7" `+name+`; echo ready; while :; do sleep 0.01; done`)
			c.stdout.await(t, "ready")
			s.Do(t, "DEL", lock)
			c.stderr.await(t, "stopping the command") // 1
			c.signal(signal)                          // 2
			c.ends(exitLost)
			noKeys(t, s, lock)
		})
	}
}

// When the server dies, the lock is lost when its lease expires.
func TestRun_serverDies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := on(t, s, append([]string{"run", "--lease", "6s", lockName(t), "--"}, command("forks", "TERM")...)...)
	c.stdout.await(t, "ready")
	s.Kill(t)
	c.ends(exitLost)
	if said := c.stderr.String(); !strings.Contains(said, "lost") {
		t.Errorf("run says %q", said)
	}
}

// leasehold is stopped for longer than its lease, while its command continues. leasehold detects the loss as
// soon as it continues.
func TestRun_frozen(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	c := on(t, s, append([]string{"run", "--lease", "3s", lock, "--"}, command("exits", "TERM")...)...)
	c.stdout.await(t, "ready")
	c.signal(syscall.SIGSTOP)
	awaitFree(t, s, lock)
	c.signal(syscall.SIGCONT)
	c.ends(exitLost)
}

// While leasehold releases the lock, a signal changes neither the exit code, which is that of the
// command, nor the keys in Redis.
func TestRun_signalWhileReleasing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, signal := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			proxy := redistest.NewProxy(t, s.Addr())
			c := prepare(t, []string{"LEASEHOLD_REDIS_URL=redis://" + proxy.Addr()}, "run", lock, "--", "sh", "-c", "echo ready; read line; exit 5").start()
			c.stdout.await(t, "ready")
			releasing, goOn := make(chan struct{}, 1), make(chan struct{})
			proxy.OnRequest(func(req [][]byte) redistest.Action {
				if !isAbout(req, lock) {
					return redistest.Action{}
				}
				select {
				case releasing <- struct{}{}:
				default:
				}
				return redistest.Action{HoldRequest: goOn}
			})
			c.say("")
			<-releasing
			c.signal(signal)
			close(goOn)
			c.ends(5)
			noKeys(t, s, lock)
		})
	}
}

// With --min-hold, the lock outlives the command, until a signal arrives.
func TestRun_minHold(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	t.Run("to its end", func(t *testing.T) {
		t.Parallel()
		lock := lockName(t)
		start := time.Now()
		c := on(t, s, "run", "--min-hold", "500ms", lock, "--", "sh", "-c", "exit 5")
		c.ends(5)
		if took := time.Since(start); took < 500*time.Millisecond {
			t.Errorf("run ended after %v", took)
		}
		noKeys(t, s, lock)
	})
	for name, signal := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			c := on(t, s, "run", "-v", "--min-hold", "1h", lock, "--", "sh", "-c", "exit 5")
			c.stderr.await(t, "the command ended; holding")
			if !held(t, s, lock) {
				t.Error("the lock is free")
			}
			c.signal(signal)
			c.ends(5)
			noKeys(t, s, lock)
		})
	}
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		lock := lockName(t)
		c := on(t, s, "run", "-v", "--min-hold", "1h", "--lease", "6s", lock, "--", "sh", "-c", "exit 5")
		c.stderr.await(t, "the command ended; holding")
		s.Do(t, "DEL", lock)
		c.ends(exitLost)
	})
}

// leasehold ends the processes that the command leaves behind before it releases the lock.
func TestRun_leftBehind(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	// The remaining process writes whether the lock is still held when it receives the signal.
	c := on(t, s, "run", lock, "--", "sh", "-c", `
		exec 3<&0 # what a shell starts behind its back reads from nowhere
		(trap 'echo told; read line; exit' TERM; echo ready; while :; do sleep 0.01; done) <&3 &
		read line; exit 5`)
	c.stdout.await(t, "ready")
	c.say("")
	c.stdout.await(t, "told")
	if !held(t, s, lock) {
		t.Error("the lock is free, and a process of the command is left")
	}
	c.say("")
	c.ends(5)
	noKeys(t, s, lock)
}

// leasehold does not end a process that has left the group, as a daemon does.
func TestRun_daemon(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock := lockName(t)
	c := on(t, s, "run", lock, "--", "sh", "-c", `trap "exit 5" USR1
		exec 3<&0 # what a shell starts behind its back reads from nowhere
		setsid sh -c 'echo ready; read line; echo goes on' <&3 &
		while :; do sleep 0.01; done`)
	c.stdout.await(t, "ready")
	c.signal(syscall.SIGUSR1)
	awaitFree(t, s, lock)
	c.say("")
	c.ends(5)
	if !strings.HasSuffix(c.stdout.String(), "goes on\n") {
		t.Errorf("the daemon was ended: %q", c.stdout)
	}
}
