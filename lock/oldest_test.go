package lock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// Age returns the age of the oldest wait that has not ended, regardless of which ones end first.
func TestOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o lock.Oldest
		is := func(want time.Duration) {
			t.Helper()
			if age := o.Age(); age != want {
				t.Errorf("the age is %v, want %v", age, want)
			}
		}
		is(0)
		o.Begin(lock.Event{ID: 1})
		time.Sleep(time.Hour)
		o.Begin(lock.Event{ID: 2})
		time.Sleep(3 * time.Hour)
		is(4 * time.Hour)
		o.End(lock.Event{ID: 1})
		o.End(lock.Event{ID: 1})
		is(3 * time.Hour)
		o.End(lock.Event{ID: 2})
		is(0)
	})
}
