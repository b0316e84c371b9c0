package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/leasehold-go/leasehold/internal/hint"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
)

// What happens to a lock.
type What string

// The events of Watch.
const (
	Seen     What = "seen"     // the first look: an owner holds it, or nobody does
	Acquired What = "acquired" // an owner has come to hold it
	Released What = "released" // an owner has given it back
	Expired  What = "expired"  // the lease of an owner ran out
	Taken    What = "taken"    // it was taken from an owner by force; Lock.Forced says by whom
	Renewed  What = "renewed"  // its lease was lengthened
	Waits    What = "waits"    // an owner has begun to wait
	Leaves   What = "leaves"   // an owner has stopped to wait, and does not hold it
)

// Event is something that happened to a lock.
type Event struct {
	What   What
	At     time.Time   // when it was noticed
	Owner  string      // whom it is about; empty of a lock that was free when it was first seen, and of Renewed
	Client lock.Client // of the owner
	Lock   Lock        // as it stands now
}

// MostWatched is how many locks one Watch watches at the most.
const MostWatched = 100

// watchEvery is how often a lock is looked at without a reason.
const watchEvery = time.Second

// Watch tells what happens to these locks, until ctx ends or the caller stops: first of each who
// holds it, and then what changes.
//
// It looks at a lock when somebody publishes a release of it, and once a second. So what begins and ends between two looks is
// missed, and a plain lock that goes from one goroutine of a process to the next looks as if it stayed with the
// first. Whether a lease ran out or was given back is told from the time at which it would have ended.
//
// A look that fails is an error, and Watch goes on. A name that cannot be a lock's is an error, and ends it.
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
		hub := hint.New(a.rdb, hint.Config{Timeout: a.timeout, Look: watchEvery, Sharded: publish == "SPUBLISH"})
		defer hub.Close()
		watched := make([]*watched, len(names))
		wake := make(chan struct{}, 1)
		for i, name := range names {
			w := newWatched(name, wake)
			watched[i] = w
			// Who listens to the first of these and not to the second counts as a waiter of Redisson, for whom a
			// plain lock is let go now and then.
			for _, channel := range []string{keys.Plain(name).Channel, keys.Plain(name).Line, keys.ReadWrite(name).Channel} {
				sub, _ := hub.Subscribe(channel, time.Time{}, func(string) { w.look() }, func() {})
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

// watchable returns what is wrong with names.
func (a *Admin) watchable(names []string) error {
	switch {
	case len(names) == 0:
		return errors.New("no lock to watch")
	case len(names) > MostWatched:
		return fmt.Errorf("%d locks, the most is %d", len(names), MostWatched)
	}
	for _, name := range names {
		if err := keys.Check("", name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

// watched is a lock that is watched.
type watched struct {
	name   string
	wake   chan<- struct{}
	dirty  chan struct{} // somebody published something
	known  bool          // last is something
	last   Lock
	lastAt time.Time
}

func newWatched(name string, wake chan<- struct{}) *watched {
	return &watched{name: name, wake: wake, dirty: make(chan struct{}, 1)}
}

// look says that there is a reason to look. It does not block.
func (w *watched) look() {
	for _, c := range []chan<- struct{}{w.dirty, w.wake} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// due reports whether there is a reason to look.
func (w *watched) due() bool {
	select {
	case <-w.dirty:
		return true
	default:
		return false
	}
}

// step looks at the lock, and returns what has happened since the last look.
func (w *watched) step(ctx context.Context, a *Admin) ([]Event, error) {
	l, err := a.Inspect(ctx, w.name)
	if errors.Is(err, lock.ErrForeignKey) {
		return nil, err // known or not, it is no lock now
	}
	if err != nil {
		return nil, err
	}
	now := time.Now()
	events := w.changes(l, now)
	w.known, w.last, w.lastAt = true, l, now
	return events, nil
}

// side is how an owner holds a lock.
type side struct {
	owner string
	mode  lock.Mode
}

// changes tells l from what was seen last.
func (w *watched) changes(l Lock, now time.Time) (events []Event) {
	add := func(what What, owner string, c lock.Client) {
		events = append(events, Event{What: what, At: now, Owner: owner, Client: c, Lock: l})
	}
	if !w.known {
		for _, h := range l.Holders {
			add(Seen, h.Owner, h.Client)
		}
		if !l.Locked() {
			add(Seen, "", lock.Client{})
		}
		for _, waiter := range l.Waiters {
			add(Waits, waiter.Owner, waiter.Client)
		}
		return events
	}
	before, holds := sides(w.last), sides(l)
	for _, h := range w.last.Holders {
		if holds[side{h.Owner, h.Mode}] {
			continue
		}
		what := Released
		switch {
		case l.Forced != nil && (w.last.Forced == nil || l.Forced.At.After(w.last.Forced.At)):
			what = Taken
		case w.last.Lease >= 0 && now.Sub(w.lastAt) >= w.last.Lease:
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
			add(Leaves, waiter.Owner, waiter.Client)
		}
	}
	for _, waiter := range l.Waiters {
		if !waited[waiter.Owner] {
			add(Waits, waiter.Owner, waiter.Client)
		}
	}
	if stays && l.Lease > w.last.Lease-now.Sub(w.lastAt)+watchEvery/10 && w.last.Lease >= 0 {
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
