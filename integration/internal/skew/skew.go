//go:build linux

// Package skew starts servers whose wall clock a test can change. For tests only.
package skew

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"golang.org/x/sys/unix"
)

// source is the source of a library that offsets a server's clock by the value in a file, in
// microseconds. It requires no privileges, and affects no other program's clock.
const source = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void start(void) {
	const char *name = getenv("LEASEHOLD_CLOCK");
	int fd = name ? open(name, O_RDONLY) : -1;
	void *page = fd < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	if (page != MAP_FAILED) offset = page;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
	int r = syscall(SYS_gettimeofday, tv, tz);
	if (r == 0 && tv && offset) {
		int64_t us = (int64_t)tv->tv_sec * 1000000 + tv->tv_usec + *offset;
		tv->tv_sec = us / 1000000;
		tv->tv_usec = us % 1000000;
	}
	return r;
}

time_t time(time_t *out) {
	struct timeval tv;
	gettimeofday(&tv, 0);
	if (out) *out = tv.tv_sec;
	return tv.tv_sec;
}
`

// Clock changes the wall clock of one server.
type Clock struct {
	offset []byte
	env    [2]string // LD_PRELOAD and LEASEHOLD_CLOCK
}

// Start starts a server whose clock can be changed. Without a C compiler the test is skipped, but
// fails in CI.
func Start(tb testing.TB, config ...string) (*redistest.Server, Clock) {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		if os.Getenv("CI") != "" {
			tb.Fatalf("this test needs a C compiler: %v", err)
		}
		tb.Skipf("NOT TESTED: this test needs a C compiler: %v", err)
	}
	dir := tb.TempDir()
	c, library, file := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "offset")
	if err := errors.Join(os.WriteFile(c, []byte(source), 0o600), os.WriteFile(file, make([]byte, 8), 0o600)); err != nil {
		tb.Fatal(err)
	}
	if said, err := exec.Command(cc, "-O2", "-shared", "-fPIC", "-o", library, c).CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, said)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	offset, err := unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(offset) })
	clock := Clock{offset: offset, env: [2]string{library, file}}
	defer clock.Preload(tb)()
	return redistest.Start(tb, config...), clock
}

// Preload makes all servers started before end is called use the clock. The clock's own server
// needs that when it is restarted.
func (c Clock) Preload(tb testing.TB) (end func()) {
	tb.Helper()
	for i, name := range []string{"LD_PRELOAD", "LEASEHOLD_CLOCK"} {
		if err := os.Setenv(name, c.env[i]); err != nil {
			tb.Fatal(err)
		}
	}
	return func() { _, _ = os.Unsetenv("LD_PRELOAD"), os.Unsetenv("LEASEHOLD_CLOCK") }
}

// Set sets the server's clock ahead by d.
func (c Clock) Set(d time.Duration) {
	binary.NativeEndian.PutUint64(c.offset, uint64(d.Microseconds()))
}
