package admin

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// A holder that disappears when its lease expires did not release the lock. The expiry is known only to about a tenth of a second,
// because each read takes time.
func TestChanges_expired(t *testing.T) {
	looked := time.Now()
	held := Lock{State: lock.State{Holders: []lock.Holder{{Owner: "a:1"}}, Lease: 5 * time.Second}}
	for after, want := range map[time.Duration]EventType{4 * time.Second: Released, 4950 * time.Millisecond: Expired, 5 * time.Second: Expired, time.Minute: Expired} {
		w := &watched{known: true, last: held, began: looked, lastAt: looked}
		if events := w.changes(Lock{}, looked.Add(after), looked.Add(after)); len(events) != 1 || events[0].Type != want || events[0].Owner != "a:1" {
			t.Errorf("after %v: %+v, want %v", after, events, want)
		}
	}
}

// A lease is read at some time during a look. After a slow look, it may have expired earlier than the end of that look suggests.
func TestChanges_slowLook(t *testing.T) {
	looked := time.Now()
	held := Lock{State: lock.State{Holders: []lock.Holder{{Owner: "a:1"}}, Lease: 5 * time.Second}}
	w := &watched{known: true, last: held, began: looked.Add(-2 * time.Second), lastAt: looked}
	if events := w.changes(Lock{}, looked.Add(3*time.Second), looked.Add(3*time.Second)); len(events) != 1 || events[0].Type != Expired {
		t.Errorf("%+v", events)
	}
}

// The lease may be read when a look begins. A slow look does not make the lease of a dead holder look renewed.
func TestChanges_slowLookOfADeadHolder(t *testing.T) {
	looked := time.Now()
	held := func(lease time.Duration) Lock {
		return Lock{State: lock.State{Holders: []lock.Holder{{Owner: "a:1"}}, Lease: lease}}
	}
	for lease, want := range map[time.Duration]int{4 * time.Second: 0, 5 * time.Second: 1} {
		w := &watched{known: true, last: held(5 * time.Second), began: looked, lastAt: looked}
		if events := w.changes(held(lease), looked.Add(time.Second), looked.Add(3*time.Second)); len(events) != want {
			t.Errorf("a lease of %v: %+v", lease, events)
		}
	}
}

// If the lease of a reader expires between the read of the lock and that of the lease, HolderLease does not return the lease of another reader.
func TestReadLeases_expired(t *testing.T) {
	t.Parallel()
	a, err := New(redistest.Start(t).Client(t))
	if err != nil {
		t.Fatal(err)
	}
	h := lock.Holder{Owner: "a:1", Mode: lock.Read, Count: 1}
	l := Lock{State: lock.State{Name: "rw", Mode: lock.Read, Lease: time.Minute, Holders: []lock.Holder{h}}}
	if err := a.readLeases(t.Context(), []*Lock{&l}); err != nil || l.HolderLease(h) != 0 {
		t.Errorf("%v, %v", l.HolderLease(h), err)
	}
}
