package dial

import (
	"net"
	"time"
)

// goneAfter is the time without a response after which the operating system closes a connection.
const goneAfter = 5 * time.Second

// Lively returns d with settings by which the operating system detects that the host of the server is gone, whether the
// connection is idle or has sent data. Settings in d are kept.
func Lively(d net.Dialer) net.Dialer {
	if d.KeepAlive != 0 || d.KeepAliveConfig.Enable {
		return d
	}
	const interval = time.Second
	d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: 2 * interval, Interval: interval, Count: int(goneAfter/interval) - 2}
	if d.Control == nil && d.ControlContext == nil {
		d.Control = limitUnacknowledged
	}
	return d
}
