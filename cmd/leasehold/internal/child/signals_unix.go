//go:build unix && !aix

package child

import (
	"os"
	"syscall"
)

var (
	ending = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}
	other  = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}

	dropped = []os.Signal{syscall.SIGPIPE} // they concern neither this process nor the command
)

// ByName has the signals that can be named in a flag.
var ByName = map[string]syscall.Signal{
	"term": syscall.SIGTERM, "int": syscall.SIGINT, "hup": syscall.SIGHUP, "quit": syscall.SIGQUIT,
	"usr1": syscall.SIGUSR1, "usr2": syscall.SIGUSR2, "kill": syscall.SIGKILL,
}
