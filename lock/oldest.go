package lock

import (
	"sync"
	"time"
)

// Oldest measures the age of the oldest wait, or of the oldest hold, from the events of an [Observer]. A duration that is reported when a call or
// a hold ends never shows one that does not end; the age of the oldest does. The zero Oldest is ready. Its methods are safe for
// concurrent use.
type Oldest struct {
	mu    sync.Mutex
	since map[uint64]time.Time
}

// Begin notes that what e is about begins now. Call it in Waiting for waits, and in Acquired for holds.
func (o *Oldest) Begin(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since == nil {
		o.since = make(map[uint64]time.Time)
	}
	o.since[e.ID] = time.Now()
}

// End notes that what e is about has ended. Call it where a call ends for waits, and in Released and Lost for holds.
func (o *Oldest) End(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.since, e.ID)
}

// Age returns how long ago the oldest of those that have not ended began; 0 if there is none.
func (o *Oldest) Age() (age time.Duration) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range o.since {
		age = max(age, now.Sub(t))
	}
	return age
}
