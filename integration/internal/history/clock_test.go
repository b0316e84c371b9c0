//go:build linux

package history

import (
	"testing"
	"time"
)

func TestOnMonotonic(t *testing.T) {
	for range 1000 {
		before := Monotonic()
		got := OnMonotonic(time.Now())
		after := Monotonic()
		if slack := int64(time.Microsecond); got < before-slack || got > after+slack {
			t.Fatalf("now is %d by conversion, which is not between %d and %d", got, before, after)
		}
	}
}
