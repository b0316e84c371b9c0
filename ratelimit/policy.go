package ratelimit

import (
	"errors"
	"fmt"
	"time"
)

// Policy says what a limiter decides when Redis does not: the server is silent, refuses
// connections, is no master, or cannot keep what it is told. There is no default. Where a
// limit protects from an attack, as that of logins, it is [Closed]; where it
// shares out capacity and an outage of Redis must not be one of the service, it is [Open] or
// [Local].
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

// patience is how long a limiter waits for an answer.
const patience = 50 * time.Millisecond

// Closed takes nothing without Redis: calls fail with [lock.ErrUnavailable].
func Closed() Policy { return Policy{mode: closed, after: patience} }

// Open lets everything pass without Redis, and says so in Decision.Err.
func Open() Policy { return Policy{mode: open, after: patience} }

// Local counts in the memory of this process without Redis, and says so in Decision.Err: of
// each limit it lets an n-th pass, where n is how many processes there are. They let pass no more than the limit together, if
// they are no more than that. When Redis falls silent or comes back, the units of
// both together pass, as neither knows what the other has counted.
func Local(processes int) Policy {
	return Policy{mode: local, processes: int64(processes), after: patience}
}

// After returns p for a limiter that waits for an answer for d instead of 50 ms. A caller
// whose context ends before gets the context's error: then p decides nothing.
//
// A command that was not answered in time may be carried out later. Its units are given back then,
// unless they were let pass. While one is overdue, callers are not made to wait: p decides at once
// for all keys, on a cluster for those of the neighbouring slots.
func (p Policy) After(d time.Duration) Policy {
	p.after = d
	return p
}

// check says what is wrong with p.
func (p Policy) check() error {
	switch {
	case p.mode == unchosen:
		return errors.New("no policy: choose ratelimit.Closed, Open or Local for when Redis gives no answer")
	case p.after < time.Millisecond:
		return fmt.Errorf("After(%v): the least is 1ms", p.after)
	case p.mode == local && p.processes < 1:
		return fmt.Errorf("Local(%d): there is at least one process", p.processes)
	}
	return nil
}
