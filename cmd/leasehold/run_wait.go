package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

const (
	tellAfter   = 2 * time.Second // how long run waits before it reports what it waits for
	inspectTime = 2 * time.Second // timeout of the inspection for that report
)

// situation is the state of the lock in Redis.
type situation struct {
	lock.State
	free int64 // free permits of a semaphore
}

// wait is the wait for the lock. It reports what run waits for, and ends if run waits for itself.
type wait struct {
	*runner
	end   context.CancelCauseFunc
	began chan struct{} // closed when another owner has the lock

	mu     sync.Mutex
	locks  *opened // nil before there is a connection
	absent error   // why there is none
}

// begins is called when another owner has the lock.
func (w *wait) begins() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.began:
	default:
		close(w.began)
		w.happens("another owner holds %q: waiting", w.name)
	}
}

// reached records the lock once the servers are connected, or why they are not.
func (w *wait) reached(o *opened, absent error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.locks, w.absent = o, absent
}

// report reports, until ctx is canceled: once who holds the lock, and once that there is no connection.
func (w *wait) report(ctx context.Context) {
	began := w.began
	if len(w.above) == 0 {
		began = nil
	}
	tick := time.NewTicker(tellAfter)
	defer tick.Stop()
	for holder, absence := false, false; !holder || len(w.above) > 0; {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-began:
			began = nil
		case <-tick.C:
			due = true
		}
		w.mu.Lock()
		o, absent := w.locks, w.absent
		w.mu.Unlock()
		if o == nil {
			if due && absent != nil && !absence {
				w.trouble("waiting for Redis: %s", explain(absent))
				absence = true
			}
			continue
		}
		s, err := w.inspect(ctx, o)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if due && !absence {
				w.trouble("waiting for %q: %s", w.name, explain(err))
				absence = true
			}
		case w.blockedByItself(s):
			w.end(w.nested())
			return
		case due && s.Locked() && !holder:
			w.trouble("waiting for %q: %s", w.name, heldBy(s))
			holder = true
		}
	}
}

// refused adds the holder to err, the error of a lock that was not acquired.
func (r *runner) refused(ctx context.Context, o *opened, err error) error {
	words := "another owner holds it"
	if !r.quiet || len(r.above) > 0 {
		s, err := r.inspect(ctx, o)
		switch {
		case err != nil: // the lock was not acquired, which matters more
		case r.blockedByItself(s):
			return r.nested()
		case s.Locked():
			words = heldBy(s)
		}
	}
	return &exitError{r.conflictCode, fmt.Errorf("%w; %s", err, words)}
}

// heldBy describes the holder with the oldest request: its client, and when it sent the request.
func heldBy(s situation) string {
	first := slices.MinFunc(s.Holders, func(a, b lock.Holder) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Owner, b.Owner))
	})
	text := fmt.Sprintf("held by %s, %s", who(first.Owner, first.Client), since(first))
	switch others := len(s.Holders) - 1; others {
	case 0:
		return text
	case 1:
		return text + ", and by 1 other"
	default:
		return fmt.Sprintf("%s, and by %d others", text, others)
	}
}

// inspect returns the state of the lock in Redis. For a quorum, it is the state on one server: one on which an outer run holds the lock, or
// else one with any holder.
func (r *runner) inspect(ctx context.Context, o *opened) (s situation, err error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTime)
	defer cancel()
	err = lock.ErrUnavailable
	for _, v := range o.voters {
		if v.absent != nil {
			continue
		}
		found, failed := v.inspect(ctx)
		if failed != nil {
			if errors.Is(err, lock.ErrUnavailable) {
				err = failed
			}
			continue
		}
		if r.blockedByItself(found) {
			return found, nil
		}
		if err != nil || !s.Locked() {
			s, err = found, nil
		}
	}
	return s, err
}
