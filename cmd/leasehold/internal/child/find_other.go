//go:build !unix || aix

package child

import "os/exec"

// Find returns the path of the program called name.
func Find(name string) (string, error) { return exec.LookPath(name) }
