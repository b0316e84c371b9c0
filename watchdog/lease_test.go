package watchdog

import (
	"context"
	"testing"
	"time"
)

// Check checks twice: without the mutex it may read the end from before a renewal, and then the
// renewal counts.
func TestCheck_readsTheEndTwice(t *testing.T) {
	start := time.Now()
	checked := start.Add(time.Hour)
	var l *Lease
	before := of
	defer func() { of = before }()
	of = func(t time.Time) instant {
		if t.Equal(checked) {
			l.Extend(start, 2*time.Hour) // after Check has read the end without the mutex
		}
		return before(t)
	}
	w := New(time.Hour, 1, func(context.Context, []Subject) []error { return nil })
	defer w.Close()
	l = w.Watch(nil, start, time.Hour, false)
	if err := l.CheckAt(checked); err != nil || w.Len() != 1 {
		t.Errorf("%v, and %d leases are left", err, w.Len())
	}
	l.Stop(t.Context())
}

// IsTrusted compares both clocks with the end of the trust, from the start and after each
// confirmation.
func TestIsTrusted(t *testing.T) {
	w := New(time.Hour, 1, func(context.Context, []Subject) []error { return nil })
	defer w.Close()
	start := time.Now()
	l := w.Watch(nil, start, time.Hour, false)
	if !l.IsTrusted(start.Add(50*time.Minute)) || l.IsTrusted(start.Add(time.Hour)) {
		t.Error("IsTrusted does not use the end")
	}
	l.Extend(start, 2*time.Hour)
	if !l.IsTrusted(start.Add(90*time.Minute)) || l.IsTrusted(start.Add(2*time.Hour)) {
		t.Error("IsTrusted does not use the end after an extension")
	}
	l.Stop(t.Context())
	if l.IsTrusted(start) {
		t.Error("IsTrusted is true after the end")
	}
}
