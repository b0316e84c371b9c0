// Package locktest provides an in-memory Redis server for testing code that uses locks, and
// conformance tests for lock implementations.
//
// [NewServer] starts the server and creates clients on it:
//
//	func TestInvoices(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			s := locktest.NewServer(t)
//			a, b := s.Client(t), s.Client(t) // as two processes would have them
//			// … hours of leases, renewals and waiting take no time here
//		})
//	}
//
// [Run] tests every rule of an exclusive lock. [RunFair] tests the additional rules of a fair lock,
// and [RunRW] those of a read/write lock. [RunSemaphore], [RunLatch], [RunWaitGroup], [RunLimiter]
// and [RunFilter] test semaphores, latches, wait groups, rate limiters and Bloom filters.
// [RunElection] tests what an election needs of a lock and of a store. Each rule is a subtest, and
// a failure names the rule. The tests need two clients of one server, and take seconds, as leases
// do:
//
//	func TestMyLock(t *testing.T) {
//		a, b := newClient(t), newClient(t) // with a watchdog timeout of one second
//		locktest.Run(t, locktest.Harness{
//			New:      func(name string, opts ...lock.Option) lock.Locker { return a.NewLock(name, opts...) },
//			Other:    func(name string, opts ...lock.Option) lock.Locker { return b.NewLock(name, opts...) },
//			Watchdog: time.Second,
//		})
//	}
package locktest

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/redis/rueidis"
)

// Server is a Redis server in the test process. It needs neither a socket nor an installed program.
//
// Use it to test logic and timing, such as which caller waits for which. It also shows what your
// code does if a lock is busy, expires or is lost. It reads the time with time.Now. In a
// [testing/synctest] bubble, leases therefore last exactly as long as specified, and no test has to
// wait for them. Create the server and all its clients in the bubble, with the bubble's own t. Time
// does not pass there while a goroutine runs. If a hold takes no time, the next hold therefore has
// the same token, unless the lock has [lock.WithFencing].
//
// [Server.Down], [Server.Freeze], [Server.Slow], [Server.Deny], [Server.Lose] and [Server.Expire] inject faults, on virtual time too.
// [Server.Up] ends those that last.
//
// It does not replicate, evict or persist, and supports only some commands. It cannot show that a
// lock is safe on real servers, or what failovers and slow networks do to it.
type Server struct {
	mini    *miniredis.Miniredis
	rdb     rueidis.Client
	faults  faults
	started time.Time
}

// NewServer starts an empty server, which is stopped at the end of tb.
func NewServer(tb testing.TB) *Server {
	tb.Helper()
	mini, err := memredis.StartInside()
	if err != nil {
		tb.Fatalf("locktest: %v", err)
	}
	tb.Cleanup(mini.Close)
	s := &Server{mini: mini, started: time.Now().Round(0)} // for connect, by the wall clock
	memredis.Hook(mini, s.faults.before)
	s.rdb = s.connect(tb)
	tb.Cleanup(s.Up) // before the connections are closed
	return s
}

// Client returns a new leasehold client with its own connection, as another process would have it.
// It is closed at the end of tb, unless the test closes it. The test fails if the client cannot
// release its locks then.
func (s *Server) Client(tb testing.TB, opts ...client.Option) *client.Client {
	tb.Helper()
	c, err := client.New(s.connect(tb), opts...)
	if err != nil {
		tb.Fatalf("locktest: %v", err)
	}
	tb.Cleanup(func() {
		s.Up() // so that the client can release its locks
		// tb.Context is canceled by now.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			tb.Errorf("locktest: %v", err)
		}
	})
	return c
}

// Redis returns a plain connection to the server, to read and to break keys. A DEL of the name of a
// lock affects its holder like a failover or an operator. The connection belongs to the server. Do
// not close it.
func (s *Server) Redis() rueidis.Client { return s.rdb }

// Listen opens a port on the loopback interface for a user that needs an address, such as a child
// process or another Redis client. It returns the address, "host:port", and closes the port at the
// end of tb. It cannot be used in a bubble, whose clock stops while a goroutine waits for a socket.
func (s *Server) Listen(tb testing.TB) (addr string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("locktest: %v", err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					tb.Errorf("locktest: %v", err)
				}
				return
			}
			if conn, err = s.faults.connected(conn); err == nil {
				s.mini.Server().ServeConn(conn)
			}
		}
	})
	tb.Cleanup(func() {
		l.Close()
		accepting.Wait()
	})
	return l.Addr().String()
}

// connect opens a connection that ends with tb.
func (s *Server) connect(tb testing.TB) rueidis.Client {
	tb.Helper()
	if time.Until(s.started) > time.Hour { // the clock of a bubble starts in the year 2000
		tb.Fatalf("locktest: the server was created outside this synctest bubble: call NewServer in the bubble, with its t")
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"locktest:6379"}, // only a name
		// In a bubble, the client's own PING must not coincide with an action of a test. A PING that starts while the client is
		// closed can make Close wait forever (rueidis 1.0.79).
		Dialer: net.Dialer{KeepAlive: time.Second + 7},
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			conn, err := s.mini.Dial()
			if err != nil {
				return nil, err
			}
			return s.faults.connected(conn)
		},
		DisableCache: true, // the server does not support CLIENT TRACKING
	})
	if err != nil {
		tb.Fatalf("locktest: %v", err)
	}
	tb.Cleanup(rdb.Close)
	return rdb
}
