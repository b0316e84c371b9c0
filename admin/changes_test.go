package admin

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// A holder that is gone at the end of its lease was not released. The end is known less exactly than to a tenth of a second, because
// each look takes time.
func TestChanges_expired(t *testing.T) {
	looked := time.Now()
	held := Lock{State: lock.State{Holders: []lock.Holder{{Owner: "a:1"}}, Lease: 5 * time.Second}}
	for after, want := range map[time.Duration]EventType{4 * time.Second: Released, 4950 * time.Millisecond: Expired, 5 * time.Second: Expired, time.Minute: Expired} {
		w := &watched{known: true, last: held, lastAt: looked}
		if events := w.changes(Lock{}, looked.Add(after)); len(events) != 1 || events[0].Type != want || events[0].Owner != "a:1" {
			t.Errorf("after %v: %+v, want %v", after, events, want)
		}
	}
}
