//go:build linux

package history

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic reads the monotonic clock, which all processes of this host share, in nanoseconds.
func Monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// pinned is one instant by both clocks: Go's monotonic readings count from the start of the
// process.
var pinned = func() (p struct {
	at        time.Time
	monotonic int64
}) {
	narrowest := int64(1 << 62)
	for range 1000 {
		before := Monotonic()
		at := time.Now()
		if width := Monotonic() - before; width < narrowest {
			narrowest, p.at, p.monotonic = width, at, before+width/2
		}
	}
	return p
}()

// OnMonotonic converts t, which must have a monotonic reading, to Monotonic's clock.
func OnMonotonic(t time.Time) int64 { return pinned.monotonic + int64(t.Sub(pinned.at)) }
