package kindtest

import (
	"flag"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// Main runs the tests of a package and fails if they leave a goroutine behind.
// Most of the time tests of locks wait for leases to end, so eight of them run at
// once even on a small machine; -parallel says otherwise.
func Main(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err) // the testing package has no such flag any more
	}
	redistest.VerifyTestMain(m)
}
