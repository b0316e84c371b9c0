package ratelimit_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// addr is the address of a server in memory, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// closed is a policy for tests with an available server, on a machine that may be busy.
var closed = ratelimit.FailClosed().After(30 * time.Second)

// take takes n units, and fails the test if there is an error.
func take(t testing.TB, l *ratelimit.Limiter, key string, n int64) ratelimit.Decision {
	t.Helper()
	d, err := l.Take(t.Context(), key, n)
	if err != nil {
		t.Fatalf("take %d of %q: %v", n, key, err)
	}
	return d
}

func peek(t testing.TB, l *ratelimit.Limiter, key string) ratelimit.Decision {
	t.Helper()
	d, err := l.Peek(t.Context(), key)
	if err != nil {
		t.Fatalf("peek at %q: %v", key, err)
	}
	return d
}

// counted returns a client of m, and a counter of the scripts that it has sent.
func counted(t testing.TB, m *redistest.Mini) (rdb rueidis.Client, scripts *atomic.Int64) {
	t.Helper()
	scripts = new(atomic.Int64)
	wire := m.Proxy(t)
	wire.OnRequest(func(req [][]byte) (none redistest.Action) {
		if isScript(req) {
			scripts.Add(1)
		}
		return none
	})
	return m.Client(t, redistest.Via(wire)), scripts
}

// isScript reports whether a request runs a script.
func isScript(req [][]byte) bool { return strings.HasPrefix(strings.ToUpper(string(req[0])), "EVAL") }

// soon returns a context that is canceled after d.
func soon(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
