package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"testing"

	"github.com/redis/rueidis"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

func TestServer_restartLosesData(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	addr, pid := s.Addr(), s.Pid()

	s.Do(t, "SET", "k", "v")
	s.Kill(t)
	if got := s.Pid(); got != 0 {
		t.Errorf("Pid after Kill: %d, want 0", got)
	}
	if _, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}}); err == nil {
		t.Error("a killed server accepted a connection")
	}
	s.Restart(t)

	if s.Addr() != addr || s.Pid() == pid {
		t.Errorf("after Restart: %s pid %d, want %s and a pid other than %d", s.Addr(), s.Pid(), addr, pid)
	}
	if msg := s.Do(t, "GET", "k"); !msg.IsNil() {
		t.Errorf("GET after Restart: %v, want nil: a server without persistence loses its data", msg)
	}
}

func TestServer_clientSurvivesRestart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	s.Kill(t)
	s.Restart(t)
	// rueidis retries reads, on a new connection.
	if err := c.Do(t.Context(), c.B().Get().Key("k").Build()).Error(); !rueidis.IsRedisNil(err) {
		t.Errorf("GET after Restart: %v, want nil", err)
	}
}

func TestServer_persistsIfConfigured(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s.Do(t, "SET", "k", "v")
	s.Kill(t)
	s.Restart(t)
	msg := s.Do(t, "GET", "k")
	if got, _ := msg.ToString(); got != "v" {
		t.Errorf("GET after Restart: %q, want %q: config comes last and wins, and the directory stays", got, "v")
	}
}

// A frozen server executes nothing, and catches up when it is thawed.
func TestServer_freeze(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	// One connection with a queue: a deadline cancels the wait, not the command.
	sent := make(chan struct{}, 1)
	c := s.Client(t, oneConn, showsIncr(sent))

	s.Freeze(t)
	s.Freeze(t) // a second call does nothing
	if err := incrCanceled(t, c, sent); !errors.Is(err, context.Canceled) {
		t.Errorf("INCR on a frozen server: %v, want %v", err, context.Canceled)
	}
	s.Thaw(t)
	s.Thaw(t)

	n, err := incr(t.Context(), c)
	if err != nil || n != 2 {
		t.Errorf("INCR after Thaw: %d, %v, want 2: the first one waited in the socket", n, err)
	}
}

// Commands received by a frozen server are lost when it is killed.
func TestServer_killWhileFrozen(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	sent := make(chan struct{}, 1)
	c := s.Client(t, oneConn, showsIncr(sent))
	s.Freeze(t)

	failed := make(chan error)
	go func() { failed <- c.Do(context.Background(), c.B().Incr().Key("k").Build()).Error() }()
	select {
	case err := <-failed:
		t.Errorf("INCR on a frozen server returned: %v", err)
	case <-sent:
	}
	s.Kill(t)
	if err := <-failed; err == nil {
		t.Error("INCR on a killed server: no error")
	}
	s.Restart(t)
	if msg := s.Do(t, "GET", "k"); !msg.IsNil() {
		t.Errorf("GET: %v, want nil", msg)
	}
}

func TestServer_commandCalls(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.ResetStats(t)
	for range 3 {
		s.Do(t, "EVAL", "return redis.call('SET', KEYS[1], 'v')", "1", "k")
	}
	s.Do(t, "ACL", "WHOAMI")
	c := s.Client(t)
	script := rueidis.NewLuaScript("return 1")
	for range 2 { // the first time takes two commands: EVALSHA, with the reply NOSCRIPT, and EVAL
		if err := script.Exec(t.Context(), c, nil, nil).Error(); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]int64{"eval": 4, "evalsha": 2, "SET": 3, "acl|whoami": 1, "se": 0, "getset": 0} {
		if got := s.CommandCalls(t, name); got != want {
			t.Errorf("CommandCalls(%q) = %d, want %d", name, got, want)
		}
	}
	s.ResetStats(t)
	if got := s.CommandCalls(t, "eval"); got != 0 {
		t.Errorf("CommandCalls after ResetStats: %d, want 0", got)
	}
}

func TestServer_URL(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory", "5mb")
	u, err := url.Parse(s.URL())
	if err != nil || u.Scheme != "redis" || u.Host != s.Addr() {
		t.Errorf("URL() = %q, want redis://%s", s.URL(), s.Addr())
	}
	msg := s.Do(t, "CONFIG", "GET", "maxmemory")
	if got, err := msg.AsStrMap(); err != nil || got["maxmemory"] != fmt.Sprint(5<<20) {
		t.Errorf("CONFIG GET maxmemory: %v, %v, want 5mb: config is not passed on", got, err)
	}
}

// Where tests must not be skipped, a missing server is a failure.
func TestStart_missing(t *testing.T) {
	for _, tt := range []struct {
		name                string
		ci, require, server string
		want                string
	}{
		{name: "laptop", want: "skip"},
		{name: "laptop, not required", require: "0", want: "skip"},
		{name: "CI", ci: "true", want: "fatal"},
		{name: "required", require: "1", want: "fatal"},
		{name: "named but not there", server: "no-such-server", want: "fatal"},
		{name: "named but broken", server: falseBinary, want: "fatal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("PATH", t.TempDir())
			t.Setenv("CI", tt.ci)
			t.Setenv("LEASEHOLD_REQUIRE_REDIS", tt.require)
			t.Setenv("LEASEHOLD_REDIS_SERVER", tt.server)

			tb := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				redistest.Start(tb)
				tb.is = "started"
			}()
			<-done
			if tb.is != tt.want {
				t.Errorf("Start: %s, want %s", tb.is, tt.want)
			}
		})
	}
}

const falseBinary = "/bin/false"

// recorder is a testing.TB that records how it ended.
type recorder struct {
	testing.TB
	is string
}

func (v *recorder) Skipf(format string, args ...any) {
	v.is = "skip"
	v.Logf(format, args...)
	runtime.Goexit()
}

func (v *recorder) Fatalf(format string, args ...any) {
	v.is = "fatal"
	v.Logf(format, args...)
	runtime.Goexit()
}
