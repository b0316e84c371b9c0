package dial

import (
	"strings"
	"syscall"
)

// limitUnacknowledged makes the kernel close a TCP connection whose data is not acknowledged for goneAfter. Keep-alive
// probes are not sent then, and the default is about 15 minutes.
func limitUnacknowledged(network, _ string, c syscall.RawConn) (err error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	const userTimeout = 18 // TCP_USER_TIMEOUT, which package syscall lacks
	controlErr := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, userTimeout, int(goneAfter.Milliseconds()))
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}
