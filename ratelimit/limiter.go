package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/send"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A Limiter limits the units that callers take of each key: a user, an address, a tenant.
// All limiters of one name count together, in all processes. A Limiter is safe for
// concurrent use. A limiter made by [Limiter.With] shares with its origin what this process knows of Redis.
//
// The debt of a key stands in Redis at <prefix><name>:<key>, a string of some 50 bytes, which
// expires when nothing is owed. Each call is one command, or none: see the package comment.
//
// Every call returns an error for a bad name, limit, policy or number of
// units; for a key in Redis that holds something else ([lock.ErrWrongType]); and for a command that
// the server does not know or does not allow. If Redis gives no answer, the [Policy] decides.
type Limiter struct {
	desk   *desk
	local  *memory
	stock  *stock // nil without Prefetch
	name   string
	policy Policy
	limits []Limit
	rules  luascripts.LimitRules
	id     string // identifies the rules
	most   int64  // the most units that a call can take at once
	bad    error  // the error of every call; nil if New was called well
}

// New returns a limiter on rdb, which the limiter never closes. New does no I/O and cannot
// fail: with a bad name, policy or limit, every call returns the error.
//
// A caller that has a client of this module uses its NewRateLimiter instead.
func New(rdb rueidis.Client, name string, onFailure Policy, limits ...Limit) *Limiter {
	return On(send.New(rdb, "", send.DefaultTimeout), name, onFailure, limits...)
}

// On is [New] on the sender of a client of this module.
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

// With returns a limiter with other limits on the same keys. A debt stays the same time: a
// bucket that is full again in a minute is so under the new limits, too. A debt belongs to the limit
// at the same index. The debts at indexes that the new limits do not have stay in Redis,
// where limiters with more limits use them.
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

// Take takes n units of key, of all limits, or none. A refusal is a Decision that is not OK, and no
// error. A call for more than a Burst is always refused, with RetryAfter [Never]. A call for 0 units is never refused.
//
// If ctx ends before the answer, Take returns the error of ctx. If Redis takes the units later, the
// limiter gives them back. If a connection breaks, the outcome is unknown: the units may be taken, and come
// back as time goes by.
func (l *Limiter) Take(ctx context.Context, key string, n int64) (Decision, error) {
	return l.take(ctx, "take", key, n, n)
}

// TakeUpTo takes the units of key that are there, n at most. The Decision is OK if it took at least
// one. Otherwise TakeUpTo is like [Limiter.Take].
func (l *Limiter) TakeUpTo(ctx context.Context, key string, n int64) (Decision, error) {
	return l.take(ctx, "take up to", key, n, min(n, 1))
}

// Peek returns the state of key, and takes nothing. The Decision is OK if a unit could be taken.
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
		r, err = l.desk.ask(ctx, l, id, luascripts.LimitQuestion{Units: n, Times: 1, Least: least})
	}
	if err != nil {
		return l.without(op, key, id, n, least, err)
	}
	return l.decision(r, r.Taken > 0 || n == 0), nil
}

// Refund gives back the units of d, the answer to a Take or TakeUpTo of key, which the caller has not used.
// It leaves out units that time has given back already, and units that Redis has not counted. While callers of Wait
// or Reserve are in line, the units come back when all of them have left. The
// caller must not repeat it: a second Refund would give the units back twice.
func (l *Limiter) Refund(ctx context.Context, key string, d Decision) error {
	const op = "refund"
	id, err := l.enter(key, d.Taken)
	if err != nil || d.Taken == 0 || d.at == 0 {
		return l.wrap(op, key, err)
	}
	return l.wrap(op, key, l.refund(ctx, id, d.Taken, d.at))
}

// Reset resets key: afterwards it is as if no units had been taken, under any limits. Callers that wait for their turn keep it. This
// process forgets the refusals that it remembers of key, other processes do so within a second. Units that were taken before are refunded as if
// they were still counted, so after such a Refund, Cancel or canceled Wait up to as many more units can pass.
//
// If Redis does not reply in time, Reset fails with [lock.ErrUnavailable], whatever the Policy, and Redis may still reset the key later.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	id, err := l.enter(key, 0)
	if err == nil {
		_, err = l.desk.ask(ctx, l, id, luascripts.ResetQuestion())
	}
	if err == nil {
		l.local.reset(id.key)
	}
	return l.wrap("reset", key, err)
}

// refund gives back units that would have been used at the server's time at.
func (l *Limiter) refund(ctx context.Context, id bucketID, units, at int64) error {
	_, err := l.desk.ask(ctx, l, id, luascripts.RefundQuestion(units, at))
	return err
}

// enter checks what a caller asks for, and returns its lane.
func (l *Limiter) enter(key string, n int64) (bucketID, error) {
	if l.bad != nil {
		return bucketID{}, l.bad
	}
	if n < 0 || n > maxUnits {
		return bucketID{}, fmt.Errorf("%d units: it must be from 0 to %d", n, int64(maxUnits))
	}
	full, err := keys.Limiter(l.desk.send.Prefix, l.name, key)
	return bucketID{full, l.id}, err
}

// decision returns r as a Decision.
func (l *Limiter) decision(r answer, ok bool) Decision {
	return Decision{
		OK: ok, Taken: r.Taken, Remaining: r.Remaining, RetryAfter: r.Retry, ResetAfter: r.Reset,
		Limit: l.limits[r.Limit], left: r.Left, next: r.Next, at: r.at + r.Delay.Microseconds(),
	}
}

// wrap adds the operation and the key to err. It returns nil for nil.
func (l *Limiter) wrap(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &lock.Error{Op: op, Name: l.name + ":" + key, Err: err}
}
