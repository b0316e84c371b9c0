// Package locktest helps to test code that locks, and locks.
//
// [Run] tests every rule of an exclusive lock on a lock of yours.
// [RunFair] tests the rules of a lock that serves in the order of arrival, which come on top
// of those, and [RunRW] the rules of a read/write lock. [RunSemaphore], [RunLatch], [RunCrew],
// [RunLimiter] and [RunFilter] test those of semaphores, latches, crews, rate limiters and Bloom filters, and [RunElection] what an election
// needs of a lock and of a board. Each rule is a subtest,
// and a failure says which rule is broken. The tests need two clients of one server, and
// take seconds, as leases do:
//
//	func TestMyLock(t *testing.T) {
//		a, b := newClient(t), newClient(t) // with a watchdog timeout of a second
//		locktest.Run(t, locktest.Harness{
//			New:      func(name string, opts ...lock.Option) lock.Locker { return a.NewLock(name, opts...) },
//			Other:    func(name string, opts ...lock.Option) lock.Locker { return b.NewLock(name, opts...) },
//			Watchdog: time.Second,
//		})
//	}
//
// [NewServer] is a server in memory, with clients on it:
//
//	func TestInvoices(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			s := locktest.NewServer(t)
//			a, b := s.Client(t), s.Client(t) // as two processes would have them
//			// … hours of leases, renewals and waiting take no time here
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

// Server is a stand-in for Redis inside the test process. It needs neither a socket
// nor an installed program.
//
// It is good for logic and for time: which caller waits for which, what your code does
// when a lock is busy, runs out or is taken away. It reads the time with time.Now, so
// in a [testing/synctest] bubble leases last exactly as long as they say, and
// no test has to wait for them. Make the server and all its clients inside the
// bubble then, with the bubble's own t. Time stands still there while a goroutine
// runs, so a hold that lasts no time at all leaves its token to the next one,
// unless the lock has [lock.WithFencing].
//
// It is not Redis: it neither replicates nor evicts nor persists, and knows
// only part of the commands. That a lock is safe on real servers, and what
// failovers and slow networks do to it, no test on this server can show.
//
// [Server.Down], [Server.Freeze], [Server.Slow], [Server.Deny], [Server.Lose] and [Server.Expire] inject faults, on virtual
// time too. [Server.Up] ends those that last.
type Server struct {
	mini   *miniredis.Miniredis
	rdb    rueidis.Client
	faults faults
}

// NewServer starts an empty server. It ends with tb.
func NewServer(tb testing.TB) *Server {
	tb.Helper()
	mini, err := memredis.StartInside()
	if err != nil {
		tb.Fatalf("locktest: %v", err)
	}
	tb.Cleanup(mini.Close)
	s := &Server{mini: mini}
	memredis.Hook(mini, s.faults.before)
	s.rdb = s.connect(tb)
	return s
}

// Client returns a new leasehold client with a connection of its own, as
// another process would have it. It is closed at the end of tb, unless the test
// does that, and the test fails if the client cannot give back its locks then.
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

// Redis returns a plain connection to the server, to look at keys and to break
// them: a DEL of a lock's name has the effect of a failover or an operator on its
// holder. It belongs to the server; do not close it.
func (s *Server) Redis() rueidis.Client { return s.rdb }

// Listen opens a port on the loopback interface, for a user that needs an address: a
// child process, or another Redis client. It returns that address, "host:port",
// and closes the port at the end of tb. It cannot be used in a bubble, whose
// clock stands still while a goroutine waits for a socket.
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
	rdb, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"locktest:6379"}, // only a name
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			conn, err := s.mini.Dial()
			if err != nil {
				return nil, err
			}
			return s.faults.connected(conn)
		},
		DisableCache: true, // it has no CLIENT TRACKING
	})
	if err != nil {
		tb.Fatalf("locktest: %v", err)
	}
	tb.Cleanup(rdb.Close)
	return rdb
}
