package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// heldVariable is the environment variable with the holds under which the command runs, the outermost first. The entries are separated by spaces,
// and have the form "OWNER,…=TOKEN" with an owner for each server. For a server of a quorum that has not granted the lock yet, an entry has the
// client ID, which is the first part of the owner. The names of the locks are not needed, because an owner has one lock.
const heldVariable = "LEASEHOLD_HELD"

// ancestor is the hold of an outer run, whose command has started this run.
type ancestor struct {
	owners  []string // more than one only for a quorum
	clients []string // for a quorum: the clients on the other servers, which may grant the lock later
	token   uint64
}

// ancestors returns the holds in the environment.
func ancestors() (above []ancestor) {
	for _, entry := range strings.Fields(os.Getenv(heldVariable)) {
		owners, token, _ := strings.Cut(entry, "=")
		var a ancestor
		a.token, _ = strconv.ParseUint(token, 10, 64) // without one it is 0
		for _, owner := range strings.Split(owners, ",") {
			if clientOf(owner) == owner {
				a.clients = append(a.clients, owner)
			} else {
				a.owners = append(a.owners, owner)
			}
		}
		above = append(above, a)
	}
	return above
}

// String returns the entry of the hold in the environment.
func (a ancestor) String() string {
	return strings.Join(slices.Concat(a.owners, a.clients), ",") + "=" + strconv.FormatUint(a.token, 10)
}

// holds reports whether h belongs to the ancestor. It compares clients: a run has one for each server, and there are several forms of the owner
// strings of a semaphore.
func (a ancestor) holds(h lock.Holder) bool { return a.has(clientOf(h.Owner)) }

// has reports whether client belongs to the ancestor.
func (a ancestor) has(client string) bool {
	return slices.Contains(a.clients, client) || slices.ContainsFunc(a.owners, func(owner string) bool { return clientOf(owner) == client })
}

// clientOf returns the UUID of an owner's client.
func clientOf(owner string) string {
	id, _, _ := strings.Cut(owner, ":")
	return id
}

// holderAbove returns the hold of an outer run that is among the holders of the lock, and its modes.
func (r *runner) holderAbove(s situation) (a ancestor, modes []lock.Mode) {
	for _, candidate := range r.above {
		for _, h := range s.Holders {
			if candidate.holds(h) {
				a, modes = candidate, append(modes, h.Mode)
			}
		}
		if modes != nil {
			break
		}
	}
	return a, modes
}

// blockedByItself reports whether this run would wait for an outer run, which waits for this run. For a semaphore, another holder may release a
// permit.
func (r *runner) blockedByItself(s situation) bool {
	if _, modes := r.holderAbove(s); modes == nil {
		return false
	}
	if !r.counts {
		return true
	}
	others := s.free
	for _, h := range s.Holders {
		if !slices.ContainsFunc(r.above, func(a ancestor) bool { return a.holds(h) }) {
			others += int64(h.Count)
		}
	}
	return others < 1
}

// nested returns the error of a run that would wait for itself.
func (r *runner) nested() error {
	return fmt.Errorf("%q is held by an outer leasehold run, so this run would wait for itself; use --reenter to run under the outer hold", r.name)
}

// reentered is the hold of an outer run, under which this run runs its command. Redis does not count it again, and its end
// changes nothing in Redis: the outer run releases the lock when its command ends. Until then, this run checks the hold as
// often as it would renew one.
type reentered struct {
	ancestor
	name  string
	locks *opened
	lease time.Duration

	ctx      context.Context
	lose     context.CancelCauseFunc
	watching sync.WaitGroup

	mu    sync.Mutex
	until time.Time
}

// reenter returns the hold of an outer run, or nil if no outer run holds the lock.
func (r *runner) reenter(ctx context.Context, o *opened) (*reentered, error) {
	s, err := r.inspect(ctx, o)
	if err != nil {
		return nil, err
	}
	a, modes := r.holderAbove(s)
	switch {
	case modes == nil:
		return nil, nil //nolint:nilnil // there is nothing to re-enter, which is no error
	case r.exclusive && !slices.Contains(modes, lock.Write):
		return nil, fmt.Errorf("%q is held with --shared by an outer leasehold run, so this run would wait for itself; use --exclusive for the outer run", r.name)
	}
	h := &reentered{ancestor: a, name: r.name, locks: o, lease: r.lease}
	if h.until, err = h.check(ctx); err != nil {
		return nil, err
	}
	h.ctx, h.lose = context.WithCancelCause(context.WithoutCancel(ctx))
	h.watching.Go(h.watch)
	return h, nil
}

// watch checks the hold until it is lost or released.
func (h *reentered) watch() {
	for {
		until := h.Until()
		select {
		case <-h.ctx.Done():
			return
		case <-time.After(max(time.Until(until)/3, 10*time.Millisecond)):
		}
		ctx, cancel := context.WithDeadline(h.ctx, until)
		later, err := h.check(ctx)
		cancel()
		switch {
		case err == nil:
			h.mu.Lock()
			h.until = later
			h.mu.Unlock()
		case errors.Is(err, lock.ErrNotHeld):
			h.lose(h.lost(lock.ErrGone))
		case !time.Now().Before(until):
			h.lose(h.lost(fmt.Errorf("%w: %w", lock.ErrExpired, err)))
		}
	}
}

// check returns the time until which a majority of the servers has the hold. The error matches lock.ErrNotHeld if a majority no longer has it.
func (h *reentered) check(ctx context.Context) (until time.Time, err error) {
	ends, errs := make([]time.Time, len(h.locks.voters)), make([]error, len(h.locks.voters))
	var asking sync.WaitGroup
	for i, v := range h.locks.voters {
		asking.Go(func() { ends[i], errs[i] = h.checkOn(ctx, v) })
	}
	asking.Wait()
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	until = ends[len(ends)/2] // a majority ends then or later
	if !until.IsZero() {
		return until, nil
	}
	gone := 0
	for _, err := range errs {
		if errors.Is(err, lock.ErrNotHeld) {
			gone++
		}
	}
	if gone > len(errs)/2 {
		return until, lock.ErrNotHeld
	}
	return until, errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, lock.ErrNotHeld) })...)
}

// checkOn returns the time until which a server has the hold.
func (h *reentered) checkOn(ctx context.Context, v *voter) (until time.Time, err error) {
	if v.absent != nil {
		return until, v.absent
	}
	sent := time.Now()
	s, err := v.inspect(ctx)
	if err != nil {
		return until, err
	}
	if !slices.ContainsFunc(s.Holders, h.holds) {
		return until, lock.ErrNotHeld
	}
	lease := s.Lease
	if lease == lock.NoExpiry || lease > h.lease { // another reader may have a longer one
		lease = h.lease
	}
	return sent.Add(lease - lease/100), nil // the clocks of the server and of this machine can differ in speed
}

// lost returns the error of a hold that was lost.
func (h *reentered) lost(why error) error {
	return &lock.Error{Op: "hold", Name: h.name, Err: fmt.Errorf("%w: %w", lock.ErrLost, why)}
}

// Context returns a context that is canceled when the hold is lost.
func (h *reentered) Context() context.Context { return h.ctx }

// Err returns why the hold was lost.
func (h *reentered) Err() error { return context.Cause(h.ctx) }

// Until returns the time until which the hold is guaranteed.
func (h *reentered) Until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until
}

// Unlock ends the checks with a last one, and leaves the hold to the outer run. If Redis does not reply to that check, the hold counts as held.
func (h *reentered) Unlock(ctx context.Context) error {
	err := h.Err()
	if _, gone := h.check(ctx); err == nil && errors.Is(gone, lock.ErrNotHeld) {
		err = h.lost(lock.ErrGone)
	}
	h.lose(lock.ErrUnlocked)
	h.watching.Wait()
	return err
}
