//go:build unix && !aix

package child

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Find returns the path of the program called name. It searches like execvp(3), and so like flock(1), env(1) and timeout(1): directories of PATH
// can be relative, and a file that cannot be executed does not end the search. The error distinguishes such a file from a missing one.
func Find(name string) (path string, err error) {
	path, err = search(name)
	if err == nil {
		err = interpretable(path)
	}
	if err != nil {
		return "", &exec.Error{Name: name, Err: err}
	}
	return path, nil
}

func search(name string) (path string, err error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	dirs, ok := os.LookupEnv("PATH")
	if !ok {
		dirs = "/bin:/usr/bin"
	}
	missing := exec.ErrNotFound
	for _, dir := range strings.Split(dirs, ":") {
		path := cmp.Or(dir, ".") + "/" + name // not cleaned: a path without a slash would be searched for again
		err := executable(path)
		switch {
		case name == "":
		case err == nil:
			return path, nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			missing = fmt.Errorf("%s: %w", path, err)
		}
	}
	return "", missing
}

// executable returns why the file cannot be executed, as far as that can be checked without executing it.
func executable(file string) error {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return errors.Unwrap(err) // the caller names the file
	case info.IsDir():
		return syscall.EISDIR
	case !info.Mode().IsRegular():
		return syscall.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

// interpretable returns an error if the file is a script whose interpreter does not exist. The system would report that the script does
// not exist.
func interpretable(file string) error {
	interpreter := interpreterOf(file)
	if interpreter == "" {
		return nil
	}
	if _, err := os.Stat(interpreter); err != nil {
		return fmt.Errorf("interpreter %q: %w", interpreter, errors.Unwrap(err))
	}
	return nil
}

// interpreterOf returns the program that a script names after "#!", or "" if it names none or cannot be read.
func interpreterOf(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := f.Read(head)
	line, ok := bytes.CutPrefix(head[:n], []byte("#!"))
	if !ok {
		return ""
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	word, _, _ := strings.Cut(strings.TrimLeft(string(line), " \t"), " ")
	word, _, _ = strings.Cut(word, "\t")
	return word
}
