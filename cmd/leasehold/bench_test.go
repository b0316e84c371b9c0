package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// bench measures four cells and leaves no keys behind, even when interrupted.
func TestBench(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := on(t, s, "bench", "--duration", "1s", "-o", "json")
	says(t, b, 0)
	var r benchReport
	if err := json.Unmarshal([]byte(b.stdout.String()), &r); err != nil || len(r.Cells) != 4 || r.Server != s.URL() {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, c := range r.Cells {
		if c.Calls == 0 || c.P50US <= 0 || c.P99US < c.P50US || c.MaxUS < c.P99US {
			t.Errorf("%+v", c)
		}
	}
	says(t, on(t, s, "bench", "--duration", "1s"), 0, "round trip ", "free ", "hot ", "hand-off ", "P99") // the previous bench has just kept the server busy
	noKeys(t, s, "")
	b = on(t, s, "bench", "--duration", "1s", "--prefix", "orders:", "--yes")
	for end := time.Now().Add(promptly); len(keysLike(t, s, "orders:leasehold-bench:*")) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it locks nothing")
		}
	}
	b.signal(os.Interrupt)
	says(t, b, exitInterrupted)
	noKeys(t, s, "")
}

// The warnings of the client are messages of the tool, each one once.
func TestBench_warnings(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.AddUser(t, "jobs", "~orders:*", "~redisson_*", "&*", "+@all") // without the registry
	b := on(t, s, "bench", "--duration", "100ms", "--prefix", "orders:", "--url", "redis://jobs:secret@"+s.Addr())
	says(t, b, 0, "leasehold: registry entry denied")
	if text := b.stderr.String(); strings.Count(text, "registry entry denied") != 1 || strings.Contains(text, "WARN") {
		t.Error(text)
	}
}

// A server that does not respond ends bench with an error, even in a call that waits without a limit.
func TestBench_unavailable(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	proxy.OnRequest(func(req [][]byte) (a redistest.Action) {
		if slices.ContainsFunc(req, func(word []byte) bool { return bytes.HasSuffix(word, []byte(":free")) }) {
			a.HoldRequest = t.Context().Done()
		}
		return a
	})
	says(t, on(t, s, "bench", "--duration", "100ms", "--yes", "--url", "redis://"+proxy.Addr()), 1, "free: ", "no reply from Redis within 10s")
}

// On a server so slow that the first call outlasts the cell, the next call is measured.
func TestMeasure_slow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := measure(t.Context(), benchLeast, 1, func(context.Context) (time.Duration, error) {
			time.Sleep(time.Second)
			return time.Second, nil
		})
		if err != nil || c.Calls != 1 || c.P50US != 1e6 || c.PerSecond > 1 {
			t.Errorf("%+v, %v; want one call, at most 1 per second", c, err)
		}
	})
}

func keysLike(t *testing.T, s *redistest.Server, pattern string) []string {
	t.Helper()
	reply := s.Do(t, "KEYS", pattern)
	keys, err := reply.AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// On a server that is busy with other clients, bench does nothing without --yes.
func TestBench_busy(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	stop, done := make(chan struct{}), make(chan struct{})
	pings := slices.Repeat(rueidis.Commands{rdb.B().Ping().Build().Pin()}, 1000) // in a pipeline: one by one, they would be too slow on a busy machine
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				rdb.DoMulti(t.Context(), pings...)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	for end, n := time.Now().Add(promptly), 0; n <= busyOps; time.Sleep(time.Millisecond) {
		if n, _ = opsPerSecond(t.Context(), rdb); time.Now().After(end) {
			t.Fatalf("the server executes %d commands a second", n)
		}
	}
	says(t, on(t, s, "bench", "--duration", "100ms"), 2, "commands per second for other clients", "use --yes")
	noKeys(t, s, "")
	says(t, on(t, s, "bench", "--duration", "1s", "--yes"), 0, "hand-off ")
	says(t, on(t, s, "bench", "--duration", "1h"), 2, "must be at least 100ms and at most 15s")
	s.AddUser(t, "jobs", "~orders:*", "&*", "+@all", "-info")
	says(t, on(t, s, "bench", "--duration", "1s", "--prefix", "orders:", "--url", "redis://jobs:secret@"+s.Addr()), 0, "server load unknown")
	says(t, on(t, s, "bench", "--duration", "100ms", "--url", "redis://jobs:secret@"+s.Addr()), 1, "the user lacks a permission")
}

// All calls count, and each has the same probability of being in the sample.
func TestSample(t *testing.T) {
	const most, calls = 1000, 10_000
	var s sample
	for i := range calls {
		s.add(time.Duration(i), most)
	}
	late := 0
	for _, d := range s.of {
		if d >= calls/2 {
			late++
		}
	}
	if s.calls != calls || len(s.of) != most || late < most/3 || late > most*2/3 { // 10 standard deviations
		t.Errorf("%d calls, a sample of %d, and %d of these in the second half", s.calls, len(s.of), late)
	}
}
