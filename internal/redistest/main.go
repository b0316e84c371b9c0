package redistest

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/leasehold-go/leasehold/internal/memredis"
	"go.uber.org/goleak"
)

// NotOurs excludes one goroutine from leak detection: after rueidis has tested whether a server is a cluster, closing
// that connection leaves a goroutine of rueidis that sleeps for up to a second.
func NotOurs() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")
}

// Leaks returns an error if goroutines are left, like goleak.Find, but waits for up to ten seconds instead of half a
// second: rueidis sleeps for five before it closes the connection to a node that left a cluster or redirects to itself,
// even if the client was closed in the meantime.
func Leaks(options ...goleak.Option) error {
	options = append(options, NotOurs())
	began := time.Now()
	err := goleak.Find(options...)
	for err != nil && time.Since(began) < 10*time.Second {
		err = goleak.Find(options...)
	}
	return err
}

// VerifyTestMain runs the tests of a package and fails if they leave a goroutine behind. Tests with a server mostly
// wait, so eight parallel tests run at once even on a small machine; -parallel sets another number.
func VerifyTestMain(m goleak.TestingM) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err) // the testing package has no such flag
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // injected faults should not be logged
	code := m.Run()
	endShared()
	if code == 0 {
		if err := Leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// WithMemory returns m with an in-memory server for each of addrs, for the examples. The addresses are set before the
// tests run.
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
