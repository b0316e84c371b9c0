package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/send"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Limiter limits how much is done for each of any number of keys: users, addresses, tenants.
// All limiters of one name count together, in all processes. It is safe for
// concurrent use. A copy made by [Limiter.With] shares with it what is known of Redis.
//
// What is owed of a key stands in Redis at <prefix><name>:<key>, a string of some 50 bytes, for as
// long as anything is owed. Each call is one command, or none: see the package comment.
//
// All calls return an error for what cannot be asked: a bad name, limit, policy or number of
// units; a key in Redis that holds something else ([lock.ErrForeignKey]); and a command that
// the server does not know or does not allow. If Redis gives no answer, the [Policy] decides.
type Limiter struct {
	desk   *desk
	local  *memory
	stock  *stock // nil without Pregrant
	name   string
	policy Policy
	limits []Limit
	rules  luascripts.LimitRules
	id     string // of the rules
	most   int64  // what can be taken at once
	bad    error  // what every call fails with
}

// New returns a limiter on rdb, which it borrows and never closes. It does no I/O and cannot
// fail: a bad name, policy or limit shows as an error of the first call.
//
// A caller who has a client of this module uses its NewRateLimiter instead.
func New(rdb rueidis.Client, name string, onFailure Policy, limits ...Limit) *Limiter {
	return On(send.New(rdb, "", send.DefaultTimeout), name, onFailure, limits...)
}

// On is New for a client of this module.
func On(s *send.Sender, name string, onFailure Policy, limits ...Limit) *Limiter {
	l := &Limiter{desk: newDesk(s), local: new(memory), name: name, policy: onFailure}
	switch {
	case s.Redis == nil:
		l.bad = errors.New("the rueidis client is nil")
	default:
		l.bad = errors.Join(keys.CheckLimiter(s.Prefix, name), onFailure.check())
	}
	return l.With(limits...)
}

// With returns a limiter with other limits on the same keys. What is owed stays, as a time: a
// bucket that is full again in a minute is so under the new limits, too. Limits and what is owed of
// them belong together by their place; what is owed of places that the new limits do
// not have is kept for those who do.
func (l *Limiter) With(limits ...Limit) *Limiter {
	with := *l
	with.limits = slices.Clone(limits)
	if err := checkLimits(limits); err != nil && with.bad == nil {
		with.bad = err
	}
	with.most = maxUnits
	for i := range with.limits {
		with.limits[i] = with.limits[i].full()
		with.most = min(with.most, with.limits[i].Burst)
	}
	if with.stock != nil && with.bad == nil {
		with.bad = with.stock.check(with.most)
	}
	with.rules = rules(with.limits)
	with.id = strings.Join(with.rules, " ")
	return &with
}

// Take takes n units of key, of all limits, or none. That they are refused is no error. More than a Burst is
// refused for ever, with RetryAfter [Never].
//
// If ctx ends before the answer, Take returns its error, and what is taken later is given
// back. If a connection breaks, nobody knows: the units may be taken, and come back as time goes by.
func (l *Limiter) Take(ctx context.Context, key string, n int64) (Decision, error) {
	return l.take(ctx, "take", key, n, n)
}

// TakeUpTo takes as many units of key as there are, n at most. OK says that it is at least one.
// Otherwise it is as [Limiter.Take].
func (l *Limiter) TakeUpTo(ctx context.Context, key string, n int64) (Decision, error) {
	return l.take(ctx, "take up to", key, n, min(n, 1))
}

// Peek says what is left of key, and takes nothing. OK says that a unit could be taken.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	d, err := l.take(ctx, "peek", key, 0, 0)
	if err == nil && d.Err == nil {
		d.OK = d.Remaining > 0
	}
	return d, err
}

func (l *Limiter) take(ctx context.Context, op, key string, n, least int64) (Decision, error) {
	id, err := l.enter(key, n)
	if err != nil {
		return Decision{}, l.wrap(op, key, err)
	}
	var r answer
	if l.stock != nil && n > 0 && n == least && n <= l.most {
		r, err = l.stock.take(ctx, l, id, n)
	} else {
		r, err = l.desk.ask(ctx, l, id, luascripts.LimitQuestion{Units: n, Least: least})
	}
	if err != nil {
		return l.without(op, key, id, n, least, err)
	}
	return l.decision(r, r.Taken > 0 || n == 0), nil
}

// Refund gives back what d, the answer to a Take or TakeUpTo of key, took, if the caller did not use it, as
// far as time has not given it back. It must not be repeated. What Redis did not count is
// not given back.
func (l *Limiter) Refund(ctx context.Context, key string, d Decision) error {
	const op = "refund"
	id, err := l.enter(key, d.Taken)
	if err != nil || d.Taken == 0 || d.at == 0 {
		return l.wrap(op, key, err)
	}
	return l.wrap(op, key, l.refund(ctx, id, d.Taken, d.at))
}

// refund gives back units that would have been used at a time of the server.
func (l *Limiter) refund(ctx context.Context, id laneID, units, at int64) error {
	v, err := send.Ask(ctx, l.desk.send, l.policy.after, func(ctx context.Context) (luascripts.Verdict, error) {
		return luascripts.RefundUnits(ctx, l.desk.send.Redis, id.key, l.rules, units, at)
	})
	if err == nil && v == luascripts.Foreign {
		err = lock.ErrForeignKey
	}
	l.desk.forget(id)
	return err
}

// enter checks what can be checked here, and says where the caller stands.
func (l *Limiter) enter(key string, n int64) (laneID, error) {
	if l.bad != nil {
		return laneID{}, l.bad
	}
	if n < 0 || n > maxUnits {
		return laneID{}, fmt.Errorf("%d units: it must be from 0 to %d", n, int64(maxUnits))
	}
	full, err := keys.Limiter(l.desk.send.Prefix, l.name, key)
	return laneID{full, l.id}, err
}

// decision is r for the caller.
func (l *Limiter) decision(r answer, ok bool) Decision {
	return Decision{
		OK: ok, Taken: r.Taken, Remaining: r.Remaining, RetryAfter: r.Retry, ResetAfter: r.Reset,
		Limit: l.limits[r.Scarcest], at: r.at + r.Delay.Microseconds(),
	}
}

// wrap says what was asked for; it keeps nil as it is.
func (l *Limiter) wrap(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &lock.Error{Op: op, Name: l.name + ":" + key, Err: err}
}

// sleep waits for d, and says what ended it before.
func (d *desk) sleep(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-d.send.Closing():
		return lock.ErrClosed
	}
}
