package redistest

import (
	"time"
	"unsafe"
)

// BeforeSleep returns t as if the machine had slept for d since t was computed: the wall clock is d further ahead than
// the monotonic clock, which stopped. The time t must come from time.Now outside of a synctest bubble, which has only
// one clock.
func BeforeSleep(t time.Time, d time.Duration) time.Time {
	if t == t.Round(0) {
		panic("a time of one clock")
	}
	t = t.Add(-d)
	*(*int64)(unsafe.Add(unsafe.Pointer(&t), unsafe.Sizeof(uint64(0)))) += int64(d) // t.ext, the monotonic clock
	return t
}
