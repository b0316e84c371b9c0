package dashboard

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// The page of a lock shows an unknown lease as unknown, and not as a time.
func TestExpiry(t *testing.T) {
	for left, want := range map[time.Duration]string{lock.NoExpiry: "no expiry", admin.UnknownLease: "unknown"} {
		if p := new(detail).expiry(left, false); p != (phrase{Text: want}) {
			t.Errorf("%v: %+v, want %s", left, p, want)
		}
	}
}
