package watchdog

import (
	"context"
	"testing"
	"time"
)

// Check looks twice: a look without the mutex may see the end from before a renewal, and then the renewal counts.
func TestLease_checkLooksTwice(t *testing.T) {
	w := New(time.Hour, 1, func(context.Context, []Subject) []error { return nil })
	defer w.Close()
	l := w.Watch(nil, time.Now(), time.Hour, false)
	l.mono.Store(0) // what the first look sees
	if l.IsTrusted(time.Now()) {
		t.Fatal("the first look sees the renewal")
	}
	if err := l.Check(); err != nil || w.Len() != 1 {
		t.Errorf("%v, and %d leases are left", err, w.Len())
	}
	l.Stop(t.Context())
}
