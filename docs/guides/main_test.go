package guides

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, redistest.NotOurs()) }
