package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/lock"
)

// EventType is the type of an Event.
type EventType string

// The events of Watch.
const (
	Seen          EventType = "seen"           // first read: Owner holds the lock, or it is free
	Acquired      EventType = "acquired"       // Owner acquired the lock
	Released      EventType = "released"       // Owner released the lock
	Expired       EventType = "expired"        // the lease of Owner expired, or Owner released the lock at most 100 ms before that
	ForceUnlocked EventType = "force_unlocked" // an operator force-unlocked the lock of Owner: see Lock.ForceUnlock
	Renewed       EventType = "renewed"        // a holder renewed its lease
	Queued        EventType = "queued"         // Owner began to wait
	Dequeued      EventType = "dequeued"       // Owner stopped waiting without the lock
)

// An Event is a change of a lock.
type Event struct {
	Type   EventType
	At     time.Time   // when Watch detected it
	Owner  string      // owner that the event is about; "" for Renewed, and for Seen of a free lock
	Client lock.Client // client of Owner
	Lock   Lock        // the lock after the event
}

// MaxWatched is the maximum number of locks of one Watch.
const MaxWatched = 100

// watchEvery is the interval at which Watch reads a lock if no message arrives.
const watchEvery = time.Second

// Watch yields the changes of these locks until ctx is canceled or the caller stops. It yields
// first the holders of each lock, and then every change.
//
// Watch reads a lock when a client publishes its release, and once per second. It misses what
// begins and ends between two reads. A plain lock that is handed off between the goroutines of a
// process seems to stay with the first one. A lock that was free before its lease expired counts as
// released, and otherwise as expired.
//
// If a read fails, Watch yields the error and continues. If a name cannot be the name of a lock, it
// yields that error and ends.
func (a *Admin) Watch(ctx context.Context, names ...string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := a.watchable(names); err != nil {
			yield(Event{}, a.failed(ctx, "watch", "", err))
			return
		}
		publish, err := a.publishes(ctx)
		if err != nil {
			yield(Event{}, a.failed(ctx, "watch", "", err))
			return
		}
		hub := pubsub.New(a.rdb, pubsub.Config{Timeout: a.timeout, RoleInterval: watchEvery, Sharded: publish == "SPUBLISH"})
		defer hub.Close()
		watched := make([]*watched, len(names))
		wake := make(chan struct{}, 1)
		for i, name := range names {
			w := newWatched(name, wake)
			watched[i] = w
			// Watch subscribes to the second channel because the release script counts a client that is subscribed
			// only to the first as a Redisson waiter, for which a holder now and then releases a plain lock.
			for _, channel := range []string{keys.Plain(name).Channel, keys.Plain(name).QueueChannel, keys.ReadWrite(name).Channel} {
				sub, _ := hub.Subscribe(channel, func(string) { w.look() }, func() {})
				defer sub.Close()
			}
		}
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for all := true; ; {
			for _, w := range watched {
				if !w.due() && !all {
					continue
				}
				events, err := w.step(ctx, a)
				switch {
				case ctx.Err() != nil:
					return
				case err != nil && !yield(Event{}, err):
					return
				}
				for _, e := range events {
					if !yield(e, nil) {
						return
					}
				}
			}
			select {
			case <-wake:
				all = false
			case <-tick.C:
				all = true
			case <-ctx.Done():
				return
			}
		}
	}
}

// watchable returns an error if Watch cannot watch names.
func (a *Admin) watchable(names []string) error {
	switch {
	case len(names) == 0:
		return errors.New("no lock to watch")
	case len(names) > MaxWatched:
		return fmt.Errorf("%d locks: must be at most %d", len(names), MaxWatched)
	}
	for _, name := range names {
		if err := keys.Check("", name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

// watched is the state of one watched lock.
type watched struct {
	name   string
	wake   chan<- struct{}
	dirty  chan struct{} // a message arrived
	known  bool          // last is set
	last   Lock
	began  time.Time // when the last read began: the leases were read after that
	lastAt time.Time

	forcing bool // at the last read, the audit record was new, or another holder that it names was gone
}

func newWatched(name string, wake chan<- struct{}) *watched {
	return &watched{name: name, wake: wake, dirty: make(chan struct{}, 1)}
}

// look marks the lock as due for a read. It does not block.
func (w *watched) look() {
	for _, c := range []chan<- struct{}{w.dirty, w.wake} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// due reports whether the lock is due for a read, and resets that.
func (w *watched) due() bool {
	select {
	case <-w.dirty:
		return true
	default:
		return false
	}
}

// step reads the lock, and returns the events since the last read.
func (w *watched) step(ctx context.Context, a *Admin) ([]Event, error) {
	began := time.Now()
	l, err := a.Inspect(ctx, w.name)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	events := w.changes(l, began, now)
	w.known, w.last, w.began, w.lastAt = true, l, began, now
	return events, nil
}

// changes returns the events between the last read and l, which was read between began and now.
func (w *watched) changes(l Lock, began, now time.Time) (events []Event) {
	add := func(what EventType, owner string, c lock.Client) {
		events = append(events, Event{Type: what, At: now, Owner: owner, Client: c, Lock: l})
	}
	if !w.known {
		for _, h := range l.Holders {
			add(Seen, h.Owner, h.Client)
		}
		if !l.Locked() {
			add(Seen, "", lock.Client{})
		}
		for _, waiter := range l.Waiters {
			add(Queued, waiter.Owner, waiter.Client)
		}
		return events
	}
	before, holds := sides(w.last), sides(l)
	// A force-unlock writes its record first, and then removes the holders one by one. So several reads can show it.
	record := l.ForceUnlock
	fresh := record != nil && (w.last.ForceUnlock == nil || record.At.After(w.last.ForceUnlock.At))
	forcing := record != nil && (fresh || w.forcing)
	w.forcing = fresh
	for _, h := range w.last.Holders {
		if holds[side{h.Owner, h.Mode}] {
			continue
		}
		what := Released
		switch lease := w.last.HolderLease(h); {
		case forcing && record.Removed(h.Client):
			what, w.forcing = ForceUnlocked, true
		case lease >= 0 && now.Sub(w.began)+watchEvery/10 >= lease: // a read takes time, so the time of expiry is not known exactly
			what = Expired
		}
		add(what, h.Owner, h.Client)
	}
	for _, h := range l.Holders {
		if !before[side{h.Owner, h.Mode}] {
			add(Acquired, h.Owner, h.Client)
		}
	}
	stays := len(events) == 0 && l.Locked()
	waited, waits := waitersOf(w.last), waitersOf(l)
	for _, waiter := range w.last.Waiters {
		if !waits[waiter.Owner] && !holds[side{waiter.Owner, lock.Exclusive}] && !holds[side{waiter.Owner, lock.Write}] && !holds[side{waiter.Owner, lock.Read}] {
			add(Dequeued, waiter.Owner, waiter.Client)
		}
	}
	for _, waiter := range l.Waiters {
		if !waited[waiter.Owner] {
			add(Queued, waiter.Owner, waiter.Client)
		}
	}
	if stays && l.Lease > w.last.Lease-began.Sub(w.lastAt)+watchEvery/10 && w.last.Lease >= 0 {
		add(Renewed, "", lock.Client{})
	}
	return events
}

func sides(l Lock) map[side]bool {
	all := make(map[side]bool, len(l.Holders))
	for _, h := range l.Holders {
		all[side{h.Owner, h.Mode}] = true
	}
	return all
}

func waitersOf(l Lock) map[string]bool {
	all := make(map[string]bool, len(l.Waiters))
	for _, w := range l.Waiters {
		all[w.Owner] = true
	}
	return all
}
