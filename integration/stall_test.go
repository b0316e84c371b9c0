//go:build linux

package integration_test

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// span is a period of time and what happened in it.
type span struct {
	from, to time.Time
	what     string
}

// stalls detects when a call waits because of the machine rather than a lock: a bare PING to a running server, on a
// separate connection, takes too long.
type stalls struct {
	mu  sync.Mutex
	all []span // guarded by mu
}

// longPing is the duration from which a PING counts as delayed by the machine. With many processes on two processors,
// PINGs of a second were seen.
const longPing = loadOpTimeout / 4

// watchStalls watches the servers until the test ends.
func watchStalls(t *testing.T, servers []*redistest.Server) *stalls {
	t.Helper()
	var s stalls
	var wg sync.WaitGroup
	over := make(chan struct{})
	t.Cleanup(func() { close(over); wg.Wait() })
	for _, server := range servers {
		wg.Go(func() {
			var conn net.Conn
			for {
				start := time.Now()
				var err error
				if conn == nil {
					conn, err = net.DialTimeout("tcp", server.Addr(), time.Second)
				}
				if err == nil {
					err = ping(conn)
				}
				if took := time.Since(start); err == nil && took > longPing {
					s.mu.Lock()
					s.all = append(s.all, span{from: start, to: start.Add(took)})
					s.mu.Unlock()
				}
				if err != nil && conn != nil { // the server is dead
					conn.Close()
					conn = nil
				}
				select {
				case <-time.After(20 * time.Millisecond):
				case <-over:
					if conn != nil {
						conn.Close()
					}
					return
				}
			}
		})
	}
	return &s
}

// ping sends one PING.
func ping(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(promptTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 64))
	return err
}

// unexplained returns the waits that the machine does not explain.
func (s *stalls) unexplained(all []span) []span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(all), func(one span) bool {
		return slices.ContainsFunc(s.all, func(stall span) bool { return stall.from.Before(one.to) && stall.to.After(one.from) })
	})
}

// A paused server is detected. It explains the calls that waited for it in that period, and no others.
func TestStalls(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := watchStalls(t, []*redistest.Server{server})
	before := time.Now()
	server.Freeze(t)
	frozen := time.Now()
	time.Sleep(10 * longPing) // the watcher may be late itself
	server.Thaw(t)
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.all) > 0 })
	calls := []span{{before.Add(-time.Hour), before.Add(-time.Minute), "long before"}, {frozen, frozen.Add(longPing), "meanwhile"}}
	if left := s.unexplained(calls); len(left) != 1 || left[0].what != "long before" {
		t.Error(fmt.Sprint(left))
	}
}
