package ratelimit

import (
	"errors"
	"fmt"
	"time"
)

// A Policy decides for a limiter when Redis does not: when the server is silent, refuses
// connections, is no master, or cannot write. There is no default. Choose [FailClosed] for a
// limit that protects against an attack, such as a limit of log-ins. Choose [FailOpen] or [FailLocal] for a
// limit that shares out capacity, where an outage of Redis must not become an outage of the service.
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

// patience is the time that a limiter waits for an answer, unless [Policy.After] sets another.
const patience = 50 * time.Millisecond

// Closed returns the policy that refuses every call without Redis: calls fail with [lock.ErrUnavailable], and [Limiter.Wait] retries until its context is canceled.
func FailClosed() Policy { return Policy{mode: closed, after: patience} }

// Open returns the policy that lets every call pass without Redis. The Decision has the error of Redis in Err.
func FailOpen() Policy { return Policy{mode: open, after: patience} }

// Local returns the policy that counts in the memory of this process without Redis. The Decision has the
// error of Redis in Err. Each process lets an equal share of each limit pass: the limit divided by processes. If no
// more processes than that run, they let no more than the limit pass together. But a share has one unit at least, at once or
// in each window, so of a limit with fewer units than processes each process lets one pass.
//
// When Redis falls silent or comes back, the units of both counts pass, as neither count includes the other. The units of
// callers that leave their Wait come back as with Redis: when no later caller of this process is in line. Those that a Refund
// gives back, or a Cancel at the turn or after it, come back to this count as time goes by.
func FailLocal(processes int) Policy {
	return Policy{mode: local, processes: int64(processes), after: patience}
}

// After returns p with another patience: the limiter waits for an answer for d instead of 50 ms. If
// the context of a caller ends before, the caller gets the error of the context, and p decides nothing.
//
// Redis may carry out a command whose answer was late. The limiter then gives its units back,
// unless p has let them pass. While an answer is overdue, callers do not wait: p decides at once
// for all keys, and on a cluster for the keys of the neighbouring slots.
func (p Policy) After(d time.Duration) Policy {
	p.after = d
	return p
}

// check returns an error if p is not valid.
func (p Policy) check() error {
	switch {
	case p.mode == unchosen:
		return errors.New("no policy: choose ratelimit.FailClosed, FailOpen or FailLocal for when Redis gives no answer")
	case p.after < time.Millisecond:
		return fmt.Errorf("After(%v): the least is 1ms", p.after)
	case p.mode == local && p.processes < 1:
		return fmt.Errorf("FailLocal(%d): there is at least one process", p.processes)
	}
	return nil
}
