package ratelimit

import (
	"errors"
	"fmt"
	"time"
)

// A Policy decides for a limiter when Redis is unavailable. That is the case if the server does not
// respond, refuses connections, is a replica, or cannot write. There is no default. Choose
// [FailClosed] for a limit that protects against an attack, such as a limit of log-ins. Choose
// [FailOpen] or [FailLocal] for a limit that shares capacity, where an outage of Redis must not
// become an outage of the service.
type Policy struct {
	mode      mode
	processes int64
	after     time.Duration
}

type mode int

const (
	unchosen mode = iota
	closed
	open
	local
)

// replyTimeout is the time that a limiter waits for a reply, unless [Policy.After] sets another.
const replyTimeout = 50 * time.Millisecond

// FailClosed returns the policy that fails closed. Without Redis, calls fail with
// [lock.ErrUnavailable], and [Limiter.Wait] retries until its context is canceled.
func FailClosed() Policy { return Policy{mode: closed, after: replyTimeout} }

// FailOpen returns the policy that fails open. Without Redis, every call is admitted. The Decision
// has the error of Redis in Err.
func FailOpen() Policy { return Policy{mode: open, after: replyTimeout} }

// FailLocal returns the policy that fails local. Without Redis, each process counts in its memory
// and admits an equal share of each limit. The share is the limit divided by processes. The
// Decision has the error of Redis in Err.
//
// If at most that many processes run, they admit at most the limit together. A share is at least
// one permit, so if a limit has fewer permits than processes, each process admits one. A call for
// more than the share of the burst is rejected with RetryAfter [Never], although it may succeed when
// Redis is available again.
//
// When Redis becomes unavailable or available again, the permits of both counts are admitted,
// because neither includes the other. Permits of a canceled Wait are returned as with Redis.
// Permits of a Refund, or of a Cancel at the turn or after it, are refilled over time.
func FailLocal(processes int) Policy {
	return Policy{mode: local, processes: int64(processes), after: replyTimeout}
}

// After returns p with a different timeout. The limiter waits d for a reply instead of 50 ms. If
// the context of a caller is canceled before that, the caller gets the error of the context, and p
// decides nothing.
//
// Redis may run a command whose reply was late. The limiter then refunds its permits, unless
// FailOpen admitted them. While a reply is overdue, callers do not wait. p decides immediately for
// all keys, and on a cluster for the keys of the neighboring slots.
func (p Policy) After(d time.Duration) Policy {
	p.after = d
	return p
}

// check returns an error if p is not valid.
func (p Policy) check() error {
	switch {
	case p.mode == unchosen:
		return errors.New("no failure policy: choose ratelimit.FailClosed, FailOpen or FailLocal")
	case p.after < time.Millisecond:
		return fmt.Errorf("After(%v): must be at least 1ms", p.after)
	case p.mode == local && p.processes < 1:
		return fmt.Errorf("FailLocal(%d): must be at least 1 process", p.processes)
	}
	return nil
}
