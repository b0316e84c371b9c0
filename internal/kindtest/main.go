package kindtest

import (
	"flag"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// Main runs the tests of a package and fails if they leave a goroutine behind.
// Tests of locks wait for leases to end most of the time, so eight of them run at
// once even on a small machine; -parallel sets another number.
func Main(m interface{ Run() int }) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err) // the testing package no longer has this flag
	}
	redistest.VerifyTestMain(m)
}
