package redistest

import (
	"time"
	"unsafe"
)

// BeforeSleep returns t as it would be if the machine had slept for d since t was computed: the wall clock has reached
// it d earlier than the monotonic clock, which stopped. The time t must come from time.Now outside of a bubble, because
// a bubble has only one clock.
func BeforeSleep(t time.Time, d time.Duration) time.Time {
	if t == t.Round(0) {
		panic("a time of one clock")
	}
	t = t.Add(-d)
	*(*int64)(unsafe.Add(unsafe.Pointer(&t), unsafe.Sizeof(uint64(0)))) += int64(d) // t.ext, the monotonic clock
	return t
}
