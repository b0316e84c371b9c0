package dial

import (
	"net"
	"syscall"
	"testing"
	"unsafe"
)

// vanish makes the socket of conn drop every segment that it receives, so that its host seems to be gone.
func vanish(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	filter := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K}}
	program := syscall.SockFprog{Len: 1, Filter: &filter[0]}
	err = raw.Control(func(fd uintptr) {
		if _, _, no := syscall.Syscall6(syscall.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, syscall.SO_ATTACH_FILTER, uintptr(unsafe.Pointer(&program)), unsafe.Sizeof(program), 0); no != 0 {
			t.Errorf("SO_ATTACH_FILTER: %v", no)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The host of the server is gone. The connection breaks, whether it is idle or has sent data. Without Lively, it would
// stay for a quarter of an hour and more.
func TestLively_hostGone(t *testing.T) {
	for name, sends := range map[string]bool{"idle": false, "with data": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, peer := connection(t, Lively(net.Dialer{}))
			vanish(t, peer)
			if sends {
				if _, err := conn.Write([]byte("PING\r\n")); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := conn.Read(make([]byte, 1)); err == nil {
				t.Errorf("read %d bytes", n)
			}
		})
	}
}
