//go:build !unix || aix

package child

import (
	"os"
	"syscall"
)

var (
	ending         = []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	other, dropped []os.Signal
)

// ByName has the signals that can be named in a flag.
var ByName = map[string]syscall.Signal{"term": syscall.SIGTERM, "kill": syscall.SIGKILL}
