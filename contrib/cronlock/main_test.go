package cronlock_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// addr is the address of a server in memory, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }
