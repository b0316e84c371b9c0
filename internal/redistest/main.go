package redistest

import (
	"go.uber.org/goleak"
	"log/slog"
)

// NotOurs leaves one goroutine out when leaks are looked for: when rueidis has
// probed whether a server is a cluster, closing that connection leaves a
// goroutine of its own that sleeps for up to a second and then ends.
func NotOurs() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")
}

// VerifyTestMain runs the tests of a package and fails if they leave a
// goroutine behind.
//
// Closing the connection to a node that left a cluster, rueidis sleeps for five
// seconds more: a last test may end before that.
func VerifyTestMain(m goleak.TestingM) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what tests break on purpose is no news
	goleak.VerifyTestMain(m, NotOurs(), goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}
