package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// ForceUnlockRecord is the audit record of a force-unlock.
type ForceUnlockRecord struct {
	At     time.Time `json:"at"`               // by the clock of the operator
	By     string    `json:"by"`               // the operator: see WithOperator
	Reason string    `json:"reason,omitempty"` // the reason that the operator gave
	From   []string  `json:"from"`             // the former holders, as lock.Client.String returns them
}

// Removed reports whether the force-unlock may have ended a hold of c. If there were very many holders,
// the record names only some of them. An unknown client may be any of them.
func (r *ForceUnlockRecord) Removed(c lock.Client) bool {
	return !c.Known() || (registry.Note{From: r.From}).About(c.ID, c.String())
}

// ErrBadReason is returned when the reason of a force-unlock is not one line of at most 256 bytes.
// Nothing was changed.
var ErrBadReason = errors.New("bad reason")

// ForceUnlockResult is the result of ForceUnlock.
type ForceUnlockResult struct {
	Holders   []lock.Holder // the holders that lost the lock
	Notified  int           // number of them that received the message; some are not counted on a cluster with plain Pub/Sub
	RecordErr error         // why there is no audit record in Redis; nil if there is one
}

// ForceUnlock removes the holders of the lock called name, or only owner if owner is not "". The
// lock goes to the next waiter, as if the holders had released it.
//
// It removes only holders that it has read. An owner that acquires the lock in the meantime keeps
// it, unless it has the owner string of one of them: a lock that is handed off inside a process, or
// kept there by lock.WithLinger, keeps its owner string, and readers of a process can share one. If
// a wait group has the name of a lock, ForceUnlock and Inspect reach the lock. The error matches
// lock.ErrNotHeld if the lock is free, or if owner does not hold it, and ErrBadReason if the reason
// is not valid.
//
// A message notifies the client of each holder, and the hold is lost. The cause matches
// lock.ErrLost and lock.ErrForceUnlocked, and names the operator. A client subscribes to these
// messages once it has held a lock for one second. A client that is not subscribed yet detects the
// loss when it subscribes. A client that cannot subscribe detects the loss at its next renewal,
// within a third of the lease, or with its Unlock. The cause is the same, because the client reads
// the audit record.
//
// A client of Redisson detects the loss when it unlocks. Until then, both the old and the new
// holder may act as the holder, and only fencing tokens protect the data.
//
// ForceUnlock stores an audit record in leasehold_forced:{name} for a week. Inspect returns it.
// Even after an error, Holders has the holders that have lost the lock. If Redis did not reply
// about a holder, the error names that holder. It is then unknown whether the holder has lost the
// lock.
func (a *Admin) ForceUnlock(ctx context.Context, name, owner, reason string) (ForceUnlockResult, error) {
	if owner == "" {
		return a.unlockIf(ctx, name, reason, func(lock.Holder) bool { return true })
	}
	return a.ForceUnlockOwners(ctx, name, []string{owner}, reason)
}

// ForceUnlockOwners is like ForceUnlock, for each of owners that holds the lock. The audit record
// names all holders that have lost it. The error matches lock.ErrNotHeld if none of owners holds
// it.
func (a *Admin) ForceUnlockOwners(ctx context.Context, name string, owners []string, reason string) (ForceUnlockResult, error) {
	return a.unlockIf(ctx, name, reason, func(h lock.Holder) bool { return slices.Contains(owners, h.Owner) })
}

// unlockIf removes the holders for which meant returns true.
func (a *Admin) unlockIf(ctx context.Context, name, reason string, meant func(lock.Holder) bool) (ForceUnlockResult, error) {
	u, err := a.unlock(ctx, name, reason, meant)
	if err != nil {
		return u, a.failed(ctx, "force-unlock", name, err)
	}
	return u, nil
}

func (a *Admin) unlock(ctx context.Context, name, reason string, meant func(lock.Holder) bool) (u ForceUnlockResult, err error) {
	if err := legible(reason); err != nil {
		return u, fmt.Errorf("%w: %w", ErrBadReason, err)
	}
	publish, err := a.publishes(ctx)
	if err != nil {
		return u, err
	}
	l, err := a.inspect(ctx, name)
	if err != nil {
		return u, err
	}
	if !l.Locked() {
		return u, fmt.Errorf("%w: the lock is free", lock.ErrNotHeld)
	}
	from := slices.DeleteFunc(slices.Clone(l.Holders), func(h lock.Holder) bool { return !meant(h) })
	if len(from) == 0 {
		return u, fmt.Errorf("%w: not held by this owner", lock.ErrNotHeld)
	}
	// The record is written first: a client that detects the loss finds the reason there.
	u.RecordErr = a.note(ctx, name, a.noteOf(reason, from))
	unknown := false // whether the release that failed may have run
	defer func() {
		if !unknown && len(u.Holders) < len(from) && u.RecordErr == nil { // the record names too many holders
			note := l.ForceUnlock
			if len(u.Holders) > 0 {
				note = a.noteOf(reason, u.Holders)
			}
			u.RecordErr = a.note(context.WithoutCancel(ctx), name, note)
		}
	}()
	for _, h := range from {
		verdict, err := a.release(ctx, l.Kind, name, publish, h)
		switch {
		case err != nil:
			if unknown = retry.FaultOf(err).MayHaveRun(); unknown {
				err = fmt.Errorf("unknown outcome for holder %s: %w", h.Client.String(), a.explain(ctx, err))
			}
			return u, err
		case verdict == luascripts.Foreign:
			return u, lock.ErrWrongType
		case verdict == luascripts.Done:
			u.Holders = append(u.Holders, h)
			if a.tell(ctx, publish, h.Owner, reason) {
				u.Notified++
			}
		}
	}
	if len(u.Holders) == 0 {
		return u, fmt.Errorf("%w: released in the meantime", lock.ErrNotHeld)
	}
	return u, nil
}

// release releases all holds of h.
func (a *Admin) release(ctx context.Context, kind Kind, name, publish string, h lock.Holder) (luascripts.Verdict, error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	k, release := keys.Plain(name), luascripts.ReleaseReentrant
	switch {
	case kind == Fair:
		k, release = keys.Fair(name), luascripts.ReleaseFair
	case kind == WaitGroup:
		k, release = keys.WaitGroup(name), func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, leave int) (luascripts.Verdict, error) {
			return luascripts.LeaveWaitGroup(ctx, rdb, k, owner, leave, luascripts.WorkerLost)
		}
	case kind == Semaphore:
		k, release = keys.Semaphore(name), luascripts.ReleaseSemaphore
	case h.Mode == lock.Read:
		k, release = keys.ReadWrite(name), luascripts.ReleaseRead
	case h.Mode == lock.Write:
		k, release = keys.ReadWrite(name), luascripts.ReleaseWrite
	}
	k.Publish = publish
	k.Scattered = a.rdb.Mode() == rueidis.ClientModeCluster
	return release(ctx, a.rdb, k, h.Owner, 0)
}

// tell notifies the client of owner of the force-unlock, and reports whether the client received
// the message. Otherwise, the client detects the loss at its next renewal.
func (a *Admin) tell(ctx context.Context, publish, owner, reason string) bool {
	ctx, cancel := a.within(ctx)
	defer cancel()
	by := a.who
	if reason != "" {
		by += ": " + reason
	}
	channel, message := registry.Taken(owner, by)
	question := a.rdb.B().Publish().Channel(channel).Message(message).Build()
	if publish == "SPUBLISH" {
		question = a.rdb.B().Spublish().Channel(channel).Message(message).Build()
	}
	n, err := a.rdb.Do(ctx, question).AsInt64()
	return err == nil && n > 0
}

// noteOf returns the audit record for the removal of holders.
func (a *Admin) noteOf(reason string, holders []lock.Holder) *ForceUnlockRecord {
	f := &ForceUnlockRecord{At: time.Now().UTC().Truncate(time.Millisecond), By: a.who, Reason: reason}
	for _, h := range holders[:min(len(holders), registry.MostNoted)] {
		f.From = append(f.From, h.Client.String())
	}
	return f
}

// note stores f, which expires a week after its force-unlock. If f is nil, note deletes the record.
func (a *Admin) note(ctx context.Context, name string, f *ForceUnlockRecord) error {
	ctx, cancel := a.within(ctx)
	defer cancel()
	if f == nil {
		return a.rdb.Do(ctx, a.rdb.B().Del().Key(keys.Forced(name)).Build()).Error()
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	keep := max(time.Until(f.At.Add(registry.NoteKept)), time.Second)
	return a.rdb.Do(ctx, a.rdb.B().Set().Key(keys.Forced(name)).Value(string(text)).Px(keep).Build()).Error()
}
