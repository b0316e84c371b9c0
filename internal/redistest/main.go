package redistest

import (
	"testing"

	"go.uber.org/goleak"
)

// NotOurs leaves one goroutine out when leaks are looked for: when rueidis has
// probed whether a server is a cluster, closing that connection leaves a
// goroutine of its own that sleeps for up to a second and then ends.
func NotOurs() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")
}

// VerifyTestMain runs the tests of a package and fails if they leave a
// goroutine behind.
func VerifyTestMain(m *testing.M) { goleak.VerifyTestMain(m, NotOurs()) }
