package redistest

import (
	"github.com/leasehold-go/leasehold/internal/memredis"
	"go.uber.org/goleak"
	"log/slog"
)

// NotOurs leaves one goroutine out of the search for leaks: when rueidis has
// tested whether a server is a cluster, the closing of that connection leaves a
// goroutine of rueidis that sleeps for up to a second and then ends.
func NotOurs() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")
}

// VerifyTestMain runs the tests of a package and fails if they leave a
// goroutine behind.
//
// When it closes the connection to a node that left a cluster, or to one that redirects to itself, rueidis
// sleeps for five seconds more, and for one second before it looks for the nodes anew: a last test may end
// before that.
func VerifyTestMain(m goleak.TestingM) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // faults that tests make on purpose need no log
	goleak.VerifyTestMain(m, NotOurs(), goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// WithMemory returns m with a server in memory for each of addrs, for the examples: the address of the server stands there while
// the tests run.
func WithMemory(m goleak.TestingM, addrs ...*string) goleak.TestingM { return withMemory{m, addrs} }

type withMemory struct {
	m     goleak.TestingM
	addrs []*string
}

func (w withMemory) Run() int {
	for _, addr := range w.addrs {
		server, err := memredis.Start()
		if err != nil {
			panic(err)
		}
		defer server.Close()
		*addr = server.Addr()
	}
	return w.m.Run()
}
