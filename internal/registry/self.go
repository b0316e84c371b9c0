package registry

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// module is the module whose version is stored in the entry.
const module = "github.com/leasehold-go/leasehold"

// Self returns a description of the client with this ID in this process. The default of name is the program name.
func Self(id, name, label string) lock.Client {
	if name == "" {
		name = filepath.Base(os.Args[0])
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return lock.Client{ID: id, Host: host, PID: os.Getpid(), Name: name, Label: label, Version: version(), Started: time.Now()}
}

// version returns the version of this module in the program.
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Version != "" {
			return m.Version
		}
	}
	return "(devel)"
})
