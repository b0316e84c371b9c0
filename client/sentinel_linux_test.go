package client_test

import (
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// silent returns an address whose connection backlog is full. Like a host that is gone, it does not respond to connection
// attempts.
func silent(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
	conn, err := net.Dial("tcp", addr) // fills the backlog
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return addr
}

// The host of the first Sentinel is gone. Open connects through the next one after the dial timeout, instead of after minutes.
func TestOpen_sentinelGone(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1)
	c, err := client.Open(t.Context(), "redis://"+silent(t)+"?dial_timeout=2s&master_set="+redistest.PrimaryName+"&addr="+s.Sentinels[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.NewLock("orders").TryLock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
