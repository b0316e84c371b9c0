package lock

import (
	"sync"
	"time"
)

// Oldest measures the age of the oldest wait, or of the oldest hold, from the events of an
// [Observer]. An observer receives durations only at the end of a call or a hold, so they never
// show a wait or a hold that does not end. Oldest shows its age. The zero Oldest is ready to use. Its methods are safe
// for concurrent use.
type Oldest struct {
	mu    sync.Mutex
	since map[uint64]time.Time
}

// Begin records that the wait or hold of e begins now. Call it in Waiting for waits, and in
// Acquired for holds.
func (o *Oldest) Begin(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since == nil {
		o.since = make(map[uint64]time.Time)
	}
	o.since[e.ID] = time.Now()
}

// End records that the wait or hold of e has ended. Call it at the end of a call for waits, and in
// Released and Lost for holds.
func (o *Oldest) End(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.since, e.ID)
}

// Age returns how long ago the oldest wait or hold that has not ended began. It returns 0 if
// there is none.
func (o *Oldest) Age() (age time.Duration) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range o.since {
		age = max(age, now.Sub(t))
	}
	return age
}
