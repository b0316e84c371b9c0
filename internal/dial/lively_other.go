//go:build !linux

package dial

import "syscall"

// limitUnacknowledged is nil, because only Linux has the option under this name.
var limitUnacknowledged func(network, addr string, c syscall.RawConn) error
