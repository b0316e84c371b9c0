package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// programEnv is the environment variable that makes this binary run the program.
const programEnv = "LEASEHOLD_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		return
	}
	redistest.VerifyTestMain(m)
}

// Two processes take turns, and their metrics show which one holds the lock and which one waits. The metrics page also works
// while Redis is unavailable, and reports that.
func TestMetrics(t *testing.T) {
	server := redistest.Start(t)
	one, two := start(t, server.URL()), start(t, server.URL())
	until(t, one, `leasehold_lock_held{leasehold_lock_kind="plain"}`)
	until(t, two, `leasehold_lock_waiters{leasehold_lock_kind="plain"}`)
	until(t, two, `leasehold_lock_acquire_duration_seconds_count{error_type="",leasehold_lock_kind="plain",leasehold_lock_outcome="acquired"}`)
	server.Kill(t)
	until(t, one, `leasehold_lock_acquire_duration_seconds_count{error_type="unavailable",leasehold_lock_kind="plain",leasehold_lock_outcome="unavailable"}`)
}

// start starts a process, and returns the address of its metrics.
func start(t *testing.T, url string) string {
	t.Helper()
	for range 5 { // another program may use the port first
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		_ = l.Close() // for the process
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), programEnv+"=1", "REDIS_URL="+url, "METRICS_ADDR="+addr)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		exited := make(chan struct{})
		go func() {
			_ = cmd.Wait() // it is killed
			close(exited)
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			<-exited
		})
		for {
			if _, err := page(addr); err == nil {
				return addr
			}
			select {
			case <-exited:
			case <-time.After(20 * time.Millisecond):
				continue
			}
			break
		}
	}
	t.Fatal("no port is free")
	return ""
}

// page returns the metrics of the process at addr.
func page(addr string) (string, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	req.Close = true // keep no connection open
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return string(text), err
}

// until waits until a metric at addr is more than 0.
func until(t *testing.T, addr, metric string) {
	t.Helper()
	counts := regexp.MustCompile("\n" + regexp.QuoteMeta(metric) + " [1-9]")
	text, err := page(addr)
	for end := time.Now().Add(time.Minute); !counts.MatchString(text); text, err = page(addr) {
		if time.Now().After(end) {
			t.Fatalf("%v; want %s in\n%s", err, metric, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
