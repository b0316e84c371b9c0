//go:build linux

package chaos_test

import (
	"os"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(work())
	}
	redistest.VerifyTestMain(m)
}
