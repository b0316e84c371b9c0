//go:build linux

package integration_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// monotonic reads the clock that all processes of this host share, in
// nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// pinned is one moment by both clocks: Go's monotonic readings count from the
// start of the process.
var pinned = func() (p struct {
	at        time.Time
	monotonic int64
}) {
	narrowest := int64(1 << 62)
	for range 1000 {
		before := monotonic()
		at := time.Now()
		if width := monotonic() - before; width < narrowest {
			narrowest, p.at, p.monotonic = width, at, before+width/2
		}
	}
	return p
}()

// onMonotonic returns t, which must have a monotonic reading, by monotonic.
func onMonotonic(t time.Time) int64 { return pinned.monotonic + int64(t.Sub(pinned.at)) }

func TestOnMonotonic(t *testing.T) {
	for range 1000 {
		before := monotonic()
		got := onMonotonic(time.Now())
		after := monotonic()
		if slack := int64(time.Microsecond); got < before-slack || got > after+slack {
			t.Fatalf("now is %d by conversion, which is not between %d and %d", got, before, after)
		}
	}
}
