package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A Limiter limits the permits that callers take for each key: a user, an address, a tenant. All
// limiters of one name count together, across all processes. A Limiter is safe for concurrent use.
// Limiters that [Limiter.With] returns share what this process has cached from Redis.
//
// The used quota of a key is stored at <prefix><name>:<key>. It is a string of about 50 bytes that
// expires when the quota is full again. Each call is at most one command (see the package comment).
//
// Every call returns an error for an invalid name, limit, policy or number of permits. It fails
// with [lock.ErrWrongType] if the key in Redis has the wrong type. It also fails if the server does
// not support or allow the command. If Redis is unavailable, the [Policy] decides.
type Limiter struct {
	desk   *desk
	local  *memory
	stock  *stock // nil without Prefetch
	name   string
	policy Policy
	limits []Limit
	rules  luascripts.LimitRules
	id     string // identifies the rules
	most   int64  // most permits that a call can take at once
	bad    error  // the error of every call; nil if the arguments of New were valid
}

// New returns a limiter that uses rdb and never closes it. New sends no command and cannot fail.
// With an invalid name, policy or limit, every call returns the error. A name must not contain a
// colon, because the limiter stores each key at <name>:<key>.
//
// With a client of this module, use its NewRateLimiter.
func New(rdb rueidis.Client, name string, onFailure Policy, limits ...Limit) *Limiter {
	return On(command.New(rdb, command.Config{Timeout: command.DefaultTimeout}), name, onFailure, limits...)
}

// On is [New] with the sender of a client of this module.
func On(s *command.Sender, name string, onFailure Policy, limits ...Limit) *Limiter {
	l := &Limiter{desk: newDesk(s), local: new(memory), name: name, policy: onFailure}
	switch {
	case s.Redis == nil:
		l.bad = errors.New("the rueidis client is nil")
	default:
		l.bad = errors.Join(keys.CheckLimiter(s.Prefix, name), onFailure.check())
	}
	return l.With(limits...)
}

// With returns a limiter with different limits on the same keys. Used quota is stored as a time and
// stays the same. A bucket that would be full in a minute is still full in a minute under the new
// limits. It then belongs to the limit at the same index. Used quota at indexes that the new limits do not have
// stays in Redis. Limiters with more limits use it.
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

// Take takes n permits of key, of all limits, or none. A rejection is a Decision that is not OK,
// and not an error. A call for more than a Burst is always rejected, with RetryAfter [Never]. A
// call for 0 permits is never rejected.
//
// If ctx is canceled before the reply, Take returns the error of ctx. If Redis takes the permits
// later, the limiter refunds them. If a connection breaks, the outcome is unknown. The permits may
// be taken, and are refilled over time.
func (l *Limiter) Take(ctx context.Context, key string, n int64) (Decision, error) {
	return l.take(ctx, "take", key, n, n)
}

// TakeUpTo takes the available permits of key, at most n. The Decision is OK if it took at least
// one. Otherwise TakeUpTo is like [Limiter.Take].
func (l *Limiter) TakeUpTo(ctx context.Context, key string, n int64) (Decision, error) {
	return l.take(ctx, "take up to", key, n, min(n, 1))
}

// Peek returns the state of key and takes nothing. The Decision is OK if a permit could be taken.
// Otherwise RetryAfter is the time until one could be.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	d, err := l.take(ctx, "peek", key, 0, 0)
	if err == nil && (d.Err == nil || l.policy.mode == local) {
		if d.OK = d.Remaining > 0; !d.OK {
			d.RetryAfter = d.next
		}
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
		r, err = l.desk.ask(ctx, l, id, luascripts.LimitRequest{Units: n, Times: 1, Least: least})
	}
	if err != nil {
		return l.without(op, key, id, n, least, err)
	}
	return l.decision(r, r.Taken > 0 || n == 0), nil
}

// Refund returns the unused permits of d, the result of a Take or TakeUpTo of key. It does not
// return permits that were refilled already, or that Redis has not counted. While callers of Wait
// or Reserve are queued, the permits are available again when all of them have left. Do not repeat
// the call, because a second Refund would return the permits twice.
//
// Refund works even after ctx is canceled. If ctx is canceled during the call, Refund returns early
// and the refund continues in the background.
func (l *Limiter) Refund(ctx context.Context, key string, d Decision) error {
	const op = "refund"
	id, err := l.enter(key, d.Taken)
	if err != nil || d.Taken == 0 || d.at == 0 {
		return l.wrap(op, key, err)
	}
	return l.wrap(op, key, l.refund(ctx, id, d.Taken, d.at))
}

// Reset restores the full quota of key, under any limits. Queued callers keep their turns. This limiter, and all limiters related
// to it through With and Prefetch, immediately drop the rejections that they have cached for key. Other limiters, even in this
// process, do so within a second. Permits that were taken before are refunded as if they still counted. A later Refund, Cancel or
// canceled Wait can therefore admit that many more permits.
//
// If Redis does not reply in time, Reset fails with [lock.ErrUnavailable], whatever the Policy, and
// Redis may still reset the key later.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	id, err := l.enter(key, 0)
	if err == nil {
		_, err = l.desk.ask(ctx, l, id, luascripts.ResetRequest())
	}
	if err == nil {
		l.local.reset(id.key)
	}
	return l.wrap("reset", key, err)
}

// refund returns permits that would have been used at the server's time at.
func (l *Limiter) refund(ctx context.Context, id bucketID, units, at int64) error {
	_, err := l.desk.ask(deferred(ctx), l, id, luascripts.RefundRequest(units, at))
	return err
}

// deferred returns the context of a refund whose caller has ctx. A deferred refund is sent even if ctx is already canceled.
func deferred(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// enter checks the arguments of a call, and returns its bucketID.
func (l *Limiter) enter(key string, n int64) (bucketID, error) {
	if l.bad != nil {
		return bucketID{}, l.bad
	}
	select {
	case <-l.desk.send.Closing(): // some decisions need no command, so they would not fail on their own
		return bucketID{}, lock.ErrClosed
	default:
	}
	if n < 0 || n > maxUnits {
		return bucketID{}, fmt.Errorf("%d permits: must be from 0 to %d", n, int64(maxUnits))
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
