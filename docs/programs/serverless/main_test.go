//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"go.uber.org/goleak"
)

// urlEnv in the environment makes this binary a process that handles events.
const urlEnv = "LEASEHOLD_EVENTS_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(urlEnv); url != "" {
		if err := events(context.Background(), url, os.Stdin, os.Stdout); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m, redistest.NotOurs())
}

// events handles one event per line of in. The first write of an event announces itself, and goes on after one more
// line, so that the process can be stopped in the middle of it.
func events(ctx context.Context, url string, in io.Reader, out io.Writer) error {
	option, err := client.ParseURL(url)
	if err != nil {
		return err
	}
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		return err
	}
	defer rdb.Close()
	c, err := client.New(rdb, client.WithWatchdogTimeout(8*time.Second), client.WithOpTimeout(2*time.Second))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		id := lines.Text()
		err := handle(ctx, c, id, func(ctx context.Context, token uint64, part int) error {
			fmt.Fprintln(out, id, part)
			if part == 0 {
				lines.Scan()
			}
			if id == "checks" {
				return nil // writes nothing: what comes next is the check of handle
			}
			return guard.Set(context.WithoutCancel(ctx), token, "invoice:"+id, "late") // as if it had checked before the pause
		})
		switch {
		case errors.Is(err, fence.ErrStale):
			fmt.Fprintln(out, id, "stale")
		case errors.Is(err, lock.ErrExpired):
			fmt.Fprintln(out, id, "expired")
		default:
			fmt.Fprintln(out, id, err)
		}
	}
	return nil
}

// A process is paused while it holds a lock, for longer than the lease, and another process acquires the lock. After the pause, a write
// without a check is rejected, and the first check reports the loss. Although the connections broke in the second pause, the next
// event is handled as usual.
func TestHandle_paused(t *testing.T) {
	server := redistest.Start(t)
	wire := redistest.NewProxy(t, server.Addr())
	p := start(t, "redis://"+wire.Addr())
	rdb := server.Client(t)
	c, err := client.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range []struct {
		id, want string
		cut      bool // the connections break in the pause
	}{{"writes", "stale", false}, {"checks", "expired", true}} {
		id := event.id
		p.send(t, id)
		p.prints(t, id+" 0")
		p.stop(t)
		if event.cut {
			wire.CutAll()
		}
		h, err := c.NewLock("invoices:"+id, lock.WithFencing()).Lock(t.Context()) // when the lease has expired
		if err != nil {
			t.Fatal(err)
		}
		if err := guard.Set(t.Context(), h.Token(), "invoice:"+id, "new"); err != nil {
			t.Fatal(err)
		}
		p.resume(t)
		p.send(t, "")
		p.prints(t, id+" "+event.want)
		if err := h.Unlock(t.Context()); err != nil {
			t.Errorf("%s: the paused process changed the lock of the next holder: %v", id, err)
		}
		got := server.Do(t, "GET", "invoice:"+id)
		if got, err := got.ToString(); err != nil || got != "new" {
			t.Errorf("%s: the invoice is %q (%v): a stale write was accepted", id, got, err)
		}
	}
	for _, line := range []string{"next", ""} {
		p.send(t, line)
	}
	for _, line := range []string{"next 0", "next 1", "next 2", "next <nil>"} {
		p.prints(t, line)
	}
}

// process handles events.
type process struct {
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

// start starts one, which ends with t.
func start(t *testing.T, url string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), urlEnv+"="+url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // "signal: killed" is the intended end
	})
	return &process{cmd, in, bufio.NewScanner(out)}
}

func (p *process) send(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
}

// prints fails unless this is the next line that p prints.
func (p *process) prints(t *testing.T, want string) {
	t.Helper()
	if !p.lines.Scan() || strings.TrimSpace(p.lines.Text()) != want {
		t.Fatalf("it prints %q (%v), want %q", p.lines.Text(), p.lines.Err(), want)
	}
}

// stop pauses p, and returns when all its threads have stopped.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("it is not stopped: %v, status %#x", err, status)
		}
		return
	}
}

func (p *process) resume(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
