//go:build linux

// Package redisson builds the driver that executes commands with Redisson, for tests.
package redisson

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Build builds the driver's jar in source, if it is older than its sources. The first time, Maven
// may have to download many dependencies.
func Build(source string) (jar string, err error) {
	target := filepath.Join(source, "target")
	jar = filepath.Join(target, "driver.jar")
	if err := os.MkdirAll(target, 0o755); err != nil {
		return "", err
	}
	// Several go test processes may run at once.
	guard, err := os.OpenFile(filepath.Join(target, "go.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer guard.Close()
	if err := unix.Flock(int(guard.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if fresh, err := isFresh(source, target, jar); fresh || err != nil {
		return jar, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-q", "-f", source+"/pom.xml", "package")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	// Maven does not touch a jar whose content would not change.
	now := time.Now()
	return jar, os.Chtimes(jar, now, now)
}

// isFresh reports whether the jar is newer than all its sources.
func isFresh(source, target, jar string) (fresh bool, err error) {
	made, err := os.Stat(jar)
	if err != nil {
		return false, nil
	}
	fresh = true
	err = filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == target:
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		info, err := d.Info()
		if err == nil && !info.ModTime().Before(made.ModTime()) {
			fresh = false
		}
		return err
	})
	return fresh, err
}
