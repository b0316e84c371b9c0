package session

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Force runs a script that force-unlocks spec, and reports whether the lock was held. The script is sent once. Force
// notifies the holders in this session, and other clients that listen for force-unlocks.
func (s *Session) Force(ctx context.Context, spec *Spec, q inquiry[luascripts.Verdict]) (bool, error) {
	// Before the script runs: an owner that acquires the lock after it must not be reported as lost.
	var held []*acquisition
	if at := s.find(spec.id); at != nil {
		held = at.holding()
	}
	end := time.Now().Add(s.OpTimeout) // for all three commands together
	others := s.otherOwners(ctx, spec, s.OpTimeout/3)
	verdict, err := once(ctx, s, spec, "force-unlock", func() (luascripts.Verdict, error) {
		limit := max(time.Until(end), s.OpTimeout/3) // this process may have been paused
		o := command.SendFunc(ctx, s.sender, limit, func(ctx context.Context) (luascripts.Verdict, error) {
			return q(ctx, s.rdb, spec.Keys)
		})
		return o.Value, command.Foreign(o.Value, o.Err)
	})
	if err != nil {
		return false, err
	}
	for _, t := range held {
		t.lease.Lose(forceUnlocked{s.operator()})
	}
	s.mayBeFree(spec)
	if verdict == luascripts.Done {
		s.notifyOwners(ctx, spec, others, time.Until(end))
	}
	return verdict == luascripts.Done, nil
}

// operator returns the name of this client as an operator that force-unlocks.
func (s *Session) operator() string { return cmp.Or(s.ClientName, s.id) }

// notifyMost is the maximum number of other clients' owners that Force notifies. The rest detect the loss at their next
// renewal.
const notifyMost = 64

// otherOwners returns the owners of other clients that hold spec, if Force should notify them. It misses an owner that
// acquires the lock later; that owner detects the loss at its next renewal.
func (s *Session) otherOwners(ctx context.Context, spec *Spec, limit time.Duration) (owners []string) {
	if !s.WatchForced {
		return nil
	}
	k := spec.Keys
	o := command.SendFunc(ctx, s.sender, limit, func(ctx context.Context) ([]string, error) {
		if k.Intent == "" { // a plain or fair lock has one owner
			all, err := s.rdb.Do(ctx, retry.Once(s.rdb, "HGETALL", k.Lock)).AsStrMap()
			return slices.Collect(maps.Keys(all)), err
		}
		part, err := s.rdb.Do(ctx, retry.Once(s.rdb, "HSCAN", k.Lock, "0", "COUNT", strconv.Itoa(notifyMost))).AsScanEntry()
		var fields []string
		for i := 0; i < len(part.Elements); i += 2 {
			fields = append(fields, part.Elements[i])
		}
		return fields, err
	})
	for _, f := range o.Value { // empty after an error: Force returns it, or the holders detect the loss at their next renewals
		owner := strings.TrimSuffix(f, luascripts.Writing)
		id := lock.ClientID(owner)
		if len(id) == len(s.id) && id != s.id && len(owners) < notifyMost && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	return owners
}

// notifyOwners notifies the clients of these owners that spec was force-unlocked. They verify the message with Redis. If a
// message is lost, they detect the loss at their next renewal.
func (s *Session) notifyOwners(ctx context.Context, spec *Spec, owners []string, limit time.Duration) {
	if len(owners) == 0 || limit <= 0 {
		return
	}
	by := s.operator()
	_ = command.SendFunc(ctx, s.sender, limit, func(ctx context.Context) (struct{}, error) {
		// The audit record is for operators, and for holders that receive no message because their hold is too young.
		messages := rueidis.Commands{registry.SetNote(s.rdb, keys.Forced(s.KeyPrefix+spec.Name), by, owners)}
		for _, owner := range owners {
			channel, message := registry.Taken(owner, by)
			if spec.Keys.Publish == "SPUBLISH" {
				messages = append(messages, s.rdb.B().Spublish().Channel(channel).Message(message).Build())
			} else {
				messages = append(messages, s.rdb.B().Publish().Channel(channel).Message(message).Build())
			}
		}
		s.rdb.DoMulti(ctx, messages...)
		return struct{}{}, nil
	})
}

// holding returns the acquisitions that have the lock in this process, on either side.
func (at *entry) holding() (held []*acquisition) {
	at.lock()
	defer at.unlock()
	for _, t := range append(at.state.Held(), at.state.Offered()...) {
		held = append(held, acquisitionOf(t))
	}
	return held
}

// forcedMessages is the state of the subscription to force-unlock messages.
type forcedMessages struct {
	due   atomic.Bool // subscribeForcedIfDue is scheduled, or the session has subscribed
	begun sync.Once   // subscribes
}

// forcedAfter is the age of a hold at which its client subscribes to force-unlock messages. Most holds are shorter, and
// need no subscription.
const forcedAfter = time.Second

// subscribeForcedSoon schedules subscribeForcedIfDue for a session that has just acquired a lock.
func (s *Session) subscribeForcedSoon() {
	// mutant: operand 3, operand 4: speed
	if s.WatchForced && !s.forced.due.Load() && s.forced.due.CompareAndSwap(false, true) {
		time.AfterFunc(forcedAfter, s.subscribeForcedIfDue)
	}
}

// subscribeForcedIfDue subscribes to force-unlock messages if a hold is old enough. If all holds are younger, it
// schedules itself again.
func (s *Session) subscribeForcedIfDue() {
	if s.sender.Enter() != nil {
		return
	}
	defer s.sender.Done()
	s.forced.due.Store(false) // before the search: an owner that acquires a lock from now on schedules the next check
	old, young := time.Now().Add(-forcedAfter), false
	for t := range s.holding {
		if !locked(t.at, t.Since).After(old) {
			// mutant: removed: speed
			s.forced.due.Store(true) // permanently
			s.forced.begun.Do(s.subscribeForced)
			return
		}
		young = true
	}
	if young { // mutant: always: speed
		s.subscribeForcedSoon()
	}
}

// forcedMost is how many force-unlock messages are verified at a time. Further messages are dropped; the holders detect
// the loss at their next renewal.
const forcedMost = 16

// subscribeForced subscribes, until the session closes, to messages that a lock of the session was force-unlocked. The
// holder then detects the loss immediately, and not at its next renewal. Each message is verified with Redis.
func (s *Session) subscribeForced() {
	verifying := make(chan struct{}, forcedMost)
	s.hub.Subscribe(keys.Client(s.id), func(message string) {
		number, by, ok := registry.ParseTaken(message)
		if !ok || s.sender.Enter() != nil { // mutant: operand 1: no owner has an empty number
			return
		}
		select {
		case verifying <- struct{}{}:
			go func() { // a subscription callback must not send commands
				defer s.sender.Done()
				defer func() { <-verifying }()
				s.onForcedUnlock(s.id+":"+number, by)
			}()
		default:
			s.sender.Done()
		}
	}, s.onForcedSubscribed)
}

// onForcedSubscribed verifies all holds of the session with Redis after each (re)subscription, because a message may
// have been missed. It also covers holds that were force-unlocked before the session subscribed.
func (s *Session) onForcedSubscribed() {
	if s.sender.Enter() != nil {
		return
	}
	go func() { // a subscription callback must not send commands
		defer s.sender.Done()
		held := make(map[*Kind][]*acquisition)
		for t := range s.holding {
			held[t.spec.Kind] = append(held[t.spec.Kind], t)
		}
		for _, all := range held {
			for batch := range slices.Chunk(all, batchSize) {
				s.verify(batch, "")
			}
		}
	}()
}

// verify checks with Redis that these acquisitions of one kind still have their locks, and ends the holds of the others.
// by is the operator who force-unlocked them; "" if that is not known. The caller is registered with the sender.
func (s *Session) verify(batch []*acquisition, by string) {
	// mutant: removed: speed
	slices.SortFunc(batch, func(a, b *acquisition) int { return int(a.spec.slot) - int(b.spec.slot) })
	requests := make([]luascripts.Renewal, len(batch))
	for i, t := range batch {
		requests[i] = locked(t.at, t.renewal)
	}
	// A renewal with a lease of 0 changes nothing, even if an operator removed the expiry of a key.
	o := command.SendFunc(context.Background(), s.sender, s.OpTimeout, func(ctx context.Context) ([]luascripts.Renewed, error) {
		return batch[0].spec.Renew(ctx, s.rdb, requests, 0, batchSize), nil
	})
	var causes sync.WaitGroup
	for i, r := range o.Value { // empty if Redis does not reply in time
		switch {
		case r.Verdict != luascripts.Gone: // or an error
		case by != "":
			batch[i].watch().Lose(forceUnlocked{by})
		default:
			causes.Go(func() { batch[i].watch().Lose(s.gone(batch[i], luascripts.Gone)) })
		}
	}
	causes.Wait() // so that at most one batch is looked up at a time, even if all locks are gone
}

// gone returns the cause of the loss of t that the server reported with verdict v. If an operator force-unlocked the
// lock, the cause names the operator. The audit record has the name, so no message is needed. The caller is registered
// with the sender.
func (s *Session) gone(t *acquisition, v luascripts.Verdict) error {
	if v == luascripts.Foreign {
		return fmt.Errorf("%w: %w", watchdog.ErrGone, lock.ErrWrongType)
	}
	since, key := locked(t.at, t.Since), keys.Forced(s.KeyPrefix+t.spec.Name)
	o := command.SendFunc(context.Background(), s.sender, s.OpTimeout/4, func(ctx context.Context) (registry.Note, error) {
		return registry.ReadNote(ctx, s.rdb, key)
	})
	note := o.Value
	// The slack covers the latency of the grant. A record about an earlier owner names another client.
	// mutant: border: a nanosecond
	if o.Err != nil || note.Age > time.Since(watchdog.Earlier(since))+s.OpTimeout || !note.About(s.id, s.ClientName) {
		return watchdog.ErrGone
	}
	return forceUnlocked{note.Operator()}
}

// onForcedUnlock handles a message that the lock of owner was force-unlocked. It verifies the message with Redis, and
// ends the holds if it is true. The caller is registered with the sender.
func (s *Session) onForcedUnlock(owner, by string) {
	for t := range s.holding {
		if t.Name == owner {
			s.verify([]*acquisition{t}, by)
			return
		}
	}
}

// forceUnlocked is the cause of a loss by a force-unlock. It matches watchdog.ErrGone, but does not have its text, which
// lists causes that do not apply here.
type forceUnlocked struct{ by string }

func (e forceUnlocked) Error() string { return fmt.Sprintf("%v by %s", lock.ErrForceUnlocked, e.by) }

func (e forceUnlocked) Unwrap() []error { return []error{watchdog.ErrGone, lock.ErrForceUnlocked} }

// holding yields the acquisitions that have a lock in this process. It is an iter.Seq, and holds no mutex while it yields.
func (s *Session) holding(yield func(*acquisition) bool) {
	s.table.mu.Lock()
	all := slices.Collect(maps.Values(s.table.known))
	s.table.mu.Unlock()
	for _, at := range all {
		for _, t := range at.holding() {
			if !yield(t) {
				return
			}
		}
	}
}
