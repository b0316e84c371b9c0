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
	sub   *pubsub.Subscription
	after time.Duration // how long it outlives its last use
}

// keeperTime is the longest time that a subscription outlives its last use. A lock that is not acquired again within that
// time does not linger after the next Unlock.
const keeperTime = time.Minute

// lingerTerms fills in what the option WithLinger of spec means for its side of the lock.
func (spec *Spec) lingerTerms() {
	if spec.Config.Linger == 0 || spec.reads() {
		return
	}
	spec.terms.Linger = spec.Config.Linger
	spec.lingerMark = luascripts.LingerMark(spec.Keys.Publish, spec.Config.Linger)
	if spec.Config.Fencing && spec.terms.Passes {
		spec.spare = MaxLingerSpare
	}
}

// MaxLingerSpare is MaxSpare for a lock that lingers. The lock is released when these tokens are used.
const MaxLingerSpare = 1 << 16

// willLinger subscribes to the notifications of other clients that want the lock, and reports to the state that a request
// for t is about to be sent. The caller holds the mutex of the state.
func (at *entry) willLinger(t *acquisition, spec *Spec) {
	k := at.keeper
	if k == nil {
		k = &keeper{after: min(spec.Config.Linger, keeperTime)}
		k.sub, _ = at.s.hub.Subscribe(keys.OfKeeper(at.s.KeyPrefix+spec.Name, at.s.id), at.onWanted, at.onListening)
		at.keeper = k
	}
	_, marked := luascripts.Lingers(t.Name)
	at.state.WillLinger(&t.Acquisition, marked && k.sub.IsConfirmed())
}

// onWanted handles a message on this client's own channel of the lock: another client was refused, or a release granted
// the lock to this process.
func (at *entry) onWanted(message string) {
	at.lock()
	at.state.Wanted(message == luascripts.WantedByTry)
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
	if at.keeper != nil && at.state.Unused() {
		at.keeper.sub.CloseAfter(at.keeper.after)
		at.keeper = nil
	}
}

// mayLinger reports whether t, whose last hold has ended, may be followed by another acquisition although other clients may
// want the lock: this process would be notified of that, and has a token for it. The caller holds the mutex of the state.
func (t *acquisition) mayLinger() bool {
	if t.spec.Keys.Register != "" && t.PassCount() >= t.spec.spare {
		return false
	}
	return t.at.keeper != nil && t.at.keeper.sub.IsConfirmed()
}

// takeKept takes the lock that this process keeps, if there is one. If the caller cannot take it, takeKept releases it.
func (a *attempt) takeKept() {
	for {
		a.at.lock()
		t := acquisitionOf(a.at.state.Kept())
		if t == nil {
			a.at.unlock()
			return
		}
		if t.lease.IsTrusted(a.now.Add(a.s.offer(a.spec) / 3)) {
			if early := t.TokenDue().Sub(a.now); early > 0 {
				a.at.unlock()
				time.Sleep(early) // a microsecond at most
				a.now = time.Now()
				continue
			}
			t.first.init(a.ctx, false)
			if a.at.state.TakeKept(&a.spec.terms, a.owner, a.now) != nil {
				a.at.state.Add(&t.Acquisition, a.owner, &t.first.Hold)
				a.at.unlock()
				a.h = &t.first
				return
			}
		}
		t = acquisitionOf(a.at.state.EndKept())
		a.at.unlock()
		if t != nil {
			_ = a.s.release(a.waiting, t, a.now)
			a.now = time.Now()
		}
		return
	}
}

// releaseKept releases t, which this process has kept. If Redis does not confirm it, the reconciler continues. The caller
// holds the mutex of the state.
func (at *entry) releaseKept(t *acquisition) {
	done := make(chan struct{})
	at.releasing = append(at.releasing, done) // a caller of this process is refused only after that
	at.s.sender.Go(func() {
		defer at.tidy()
		defer at.released(done)
		_ = at.s.release(context.Background(), t, time.Now())
	})
}

// keptElsewhere is the result of a TryLock that was refused because of an owner whose client may keep the lock although no
// owner uses it.
type keptElsewhere struct {
	within time.Duration // how long the TryLock retries
}

func (e keptElsewhere) Error() string {
	return fmt.Sprintf("%v: in use, or kept, not in use, by a client that did not release it within %v", lock.ErrNotAcquired, e.within)
}

// Is makes the error match lock.ErrNotAcquired.
func (e keptElsewhere) Is(target error) bool { return target == lock.ErrNotAcquired }

// retryKept waits until the TryLock retries, because the other client was notified. It reports false if the time is up.
func (a *attempt) retryKept(e keptElsewhere) bool {
	if a.keptSince.IsZero() {
		a.keptSince = a.now
	}
	waited := a.now.Sub(a.keptSince)
	pause := min(max(waited, time.Millisecond), 20*time.Millisecond)
	if waited+pause > e.within || a.limit-a.now.Sub(a.began) <= pause || !command.Sleep(a.waiting, pause) {
		return false
	}
	a.now = time.Now()
	a.wakeup()
	return true
}
