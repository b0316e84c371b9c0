//go:build linux

package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(work(os.Stdin, os.Stdout))
	}
	redistest.VerifyTestMain(thenEnd{m})
}

// thenEnd stops the shared processes when all tests are done.
type thenEnd struct{ *testing.M }

func (m thenEnd) Run() int {
	defer endJava()
	return m.M.Run()
}

// seed returns the seed of the random choices of a test, and logs it.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64() >> 1
	if given := os.Getenv("LEASEHOLD_SEED"); given != "" {
		var err error
		if s, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("LEASEHOLD_SEED: %v", err)
		}
	}
	t.Logf("LEASEHOLD_SEED=%d", s)
	return s
}

// amount returns how often a test repeats its work: n times, or a tenth with -short.
func amount(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

// failures returns the directory for the histories of a failed run, and logs
// it.
func failures(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("LEASEHOLD_FAILURES")
	if dir == "" {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, fmt.Sprintf("leasehold-%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Logf("left behind: %s", dir)
	return dir
}

// noKeys fails the test if the server has any keys of locks.
func noKeys(t *testing.T, server *redistest.Server) {
	t.Helper()
	if keys := server.LockKeys(t); len(keys) > 0 {
		t.Errorf("%d keys are left, such as %q", len(keys), keys[:min(3, len(keys))])
	}
}

// unlock releases h. If the machine is busy for a whole operation timeout, the client retries the release after Unlock
// has returned.
func unlock(t *testing.T, h lock.Hold) {
	t.Helper()
	if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrUnavailable) {
		t.Error(err)
	}
}

// dbsize returns the number of keys of locks.
func dbsize(t *testing.T, rdb rueidis.Client) int64 {
	t.Helper()
	keys, err := do(t, rdb, "KEYS", "*").AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	return int64(len(redistest.OfLocks(keys)))
}
