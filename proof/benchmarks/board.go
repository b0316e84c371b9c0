//go:build linux

package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// board is memory shared by all processes of a cell. It detects two holders of one lock,
// independently of the lock: a fast lock that is wrong is not a contender.
type board struct {
	unlocking atomic.Int64 // when Unlock was last called, by monotonic
	slots     [1024]slot   // one for each lock that is checked
}

// slot is the state of one lock. It fills a cache line.
type slot struct {
	inside atomic.Int32 // the number of its holders
	last   atomic.Int32 // its last holder
	_      [56]byte
}

// holder identifies a goroutine of any process; 0 is none.
func holder(process, goroutine int) int32 { return int32(process+1)<<16 | int32(goroutine) }

func processOf(holder int32) int32 { return holder >> 16 }

// openBoard maps the board in the file, which it creates if necessary.
func openBoard(path string) (*board, func(), error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof(board{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map %s: %w", path, err)
	}
	return (*board)(unsafe.Pointer(&mem[0])), func() { _ = unix.Munmap(mem) }, nil
}

// enter records that h holds the lock. It returns the previous holder, and whether h is alone.
func (s *slot) enter(h int32) (before int32, alone bool) {
	alone = s.inside.Add(1) == 1
	return s.last.Swap(h), alone
}

// leave must be called before the Unlock.
func (s *slot) leave() { s.inside.Add(-1) }

// monotonic reads the monotonic clock, which all processes of a host share, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}
