package session

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// A lock with lock.WithLinger stays locked for a while after its last hold, for the next caller of this process. The state
// decides (lockstate/linger.go). This file connects it with the notifications of other clients that want the lock.

// keeper is the subscription of an entry whose lock lingers. It exists while the state is in use. Guarded by the mutex of
// the state.
type keeper struct {
	channel string
	sub     *pubsub.Subscription
	after   time.Duration // how long it outlives its last use
}

// keeperTime is the longest time that a subscription outlives its last use. A lock that is not acquired again within that
// time does not linger after the next Unlock.
const keeperTime = time.Minute

// lingerTerms applies the option WithLinger of spec to its side of the lock.
func (spec *Spec) lingerTerms() {
	if spec.Config.Linger == 0 || spec.reads() || spec.terms.Sided && spec.Config.Fencing {
		return // a grant of a write lock reserves no tokens
	}
	spec.terms.Linger = spec.Config.Linger
	spec.lingerMark = luascripts.LingerMark(spec.Keys.Publish, spec.Config.Linger)
}

// willLinger subscribes to the notifications of other clients that want the lock, and reports to the state that a request
// for t is about to be sent. The caller holds the mutex of the state.
func (at *entry) willLinger(t *acquisition, spec *Spec) {
	k := at.keeper
	if k == nil {
		k = &keeper{channel: keys.OfKeeper(at.s.KeyPrefix+spec.Name, at.s.id), after: min(spec.Config.Linger, keeperTime)}
		k.sub, _ = at.s.hub.Subscribe(k.channel, at.onWanted, at.onListening)
		at.keeper = k
	}
	// Without the mark in its name, t does not linger: it is a ticket that was sent or named for another waiter before.
	at.state.WillLinger(&t.Acquisition, at.listens())
}

// listens reports whether this process is notified if another client wants the lock. The caller holds the mutex of the
// state.
func (at *entry) listens() bool { return at.keeper != nil && at.s.hub.Confirmed(at.keeper.channel) }

// startLinger executes a StartLinger effect. The caller holds the mutex of the state.
func (at *entry) startLinger(due time.Time) {
	if at.kept != nil { // mutant: never: memory
		at.kept.Reset(time.Until(due)) // a call that is about to run finds that it is early
		return
	}
	at.kept = time.AfterFunc(time.Until(due), func() {
		at.lock()
		at.state.LingerOver(time.Now())
		at.unlock()
	})
}

// onWanted handles a message on this client's own channel of the lock: another client was refused, or a release granted
// the lock to this process.
func (at *entry) onWanted(message string) {
	at.lock()
	at.state.Wanted(message == luascripts.WantedByTry) // mutant: always: speed
	at.unlock()
}

// onListening handles a confirmation of the subscription. Messages may have been lost before it.
func (at *entry) onListening() {
	at.lock()
	at.state.Wanted(false)
	at.unlock()
}

// dropKeeper ends the subscription if the state is no longer in use. The caller holds the mutex of the state.
func (at *entry) dropKeeper() {
	k := at.keeper
	if k == nil || !at.state.Unused() {
		return
	}
	if at.kept != nil && at.kept.Stop() { // mutant: never, always, operand 2: memory
		at.state.LingerOver(time.Now()) // otherwise the timer would keep an unused lock in memory
	}
	k.sub.CloseAfter(k.after)
	at.keeper = nil
}

// hasToken reports whether the grant of t reserved a token for the next owner in this process.
func (t *acquisition) hasToken() bool {
	return t.spec.Keys.TokenCounter == "" || t.HandOffCount() < MaxSpare
}

// takeKept takes the lock that this process keeps, if it still does, and reports whether it did. If the attempt cannot take
// it, takeKept has it released. The caller holds the mutex of the state, which takeKept may unlock for a while.
func (a *attempt) takeKept() bool {
	state := &a.at.state
	t := state.Kept()
	for ; t != nil && a.now.Before(t.TokenDue()); t = state.Kept() {
		a.at.unlock()
		time.Sleep(t.TokenDue().Sub(a.now)) // about a microsecond
		a.now = time.Now()
		a.at.lock()
	}
	if t == nil {
		return false
	}
	kept := acquisitionOf(t)
	if kept.lease.IsTrusted(a.now.Add(a.s.offer(a.spec)/3)) && state.TakeKept(&a.spec.terms, a.owner, a.now) != nil {
		kept.first.init(a.caller, a.spec)
		state.Add(t, a.owner, &kept.first.Hold)
		a.h = &kept.first
		return true
	}
	a.at.releaseKept(acquisitionOf(state.EndKept()))
	return false
}

// releaseKept releases t, which this process has kept. If Redis does not confirm it, the reconciler continues. The caller
// holds the mutex of the state.
func (at *entry) releaseKept(t *acquisition) {
	r := newReleasing()
	at.releasing = append(at.releasing, r) // a caller of this process is refused only after that
	at.s.sender.Go(func() {
		defer at.tidy()
		defer at.released(r)
		_ = at.s.release(context.Background(), t, time.Now(), r)
	})
}

// keptElsewhere is the result of a TryLock that was refused because of an owner whose client may keep the lock although no
// owner uses it.
type keptElsewhere struct {
	within time.Duration // how long the TryLock retries
}

func (e keptElsewhere) Error() string {
	return fmt.Sprintf("%v: in use, or kept idle by a client that did not release it within %v", lock.ErrNotAcquired, e.within)
}

// Is makes the error match lock.ErrNotAcquired.
func (e keptElsewhere) Is(target error) bool { return target == lock.ErrNotAcquired }

// retryKept waits until the TryLock retries, because the other client was notified. It reports false if the time is up.
func (a *attempt) retryKept(e keptElsewhere) bool {
	if a.keptSince.IsZero() {
		a.keptSince = a.now
	}
	waited := a.now.Sub(a.keptSince)
	pause := min(max(waited, time.Millisecond), 20*time.Millisecond) // mutant: operand 3: speed
	// mutant: border: a nanosecond
	if waited+pause > e.within || a.endsWithin(pause) || !command.Sleep(a.waiting, pause) {
		return false
	}
	a.wakeup()
	return true
}
