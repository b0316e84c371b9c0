package gocronlock_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }
