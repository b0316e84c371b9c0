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
	if err != nil || host == "" { // mutant: never, operand 1, operand 2: every host has a name
		host = "unknown"
	}
	return lock.Client{ID: id, Host: host, PID: os.Getpid(), Name: name, Label: label, Version: version(), Started: time.Now()}
}

// version returns the version of this module in the program.
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok { // mutant: never: it is there in every program that is built with modules
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Version != "" { // mutant: never, operand 2: a test has no version
			return m.Version
		}
	}
	return "(devel)"
})
