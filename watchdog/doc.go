// Package watchdog renews leases while their holders want them,
// and tells at once when one has ended. It knows neither Redis nor locks, only the causes of
// a loss in package lock: a function renews a lease.
//
// It is a part of leasehold that can be read by itself, and carries no promise: its API can
// change in every version.
//
// # The end of a lease
//
// The server decides: it frees the key when its own clock says so. The client only
// has an estimate, which must err on the early side. So a lease is trusted
// until
//
//	when the last confirmed acquire or renewal was SENT + its length − margin
//
// never counted from the reply, which may have taken a long time. The margin is a
// hundredth of the length, for clocks that run up to 1 % apart, and 2 ms, for
// the server's own precision.
//
// The client reads two clocks, the monotonic and the wall clock, and believes the one that
// says "later": the monotonic clock stands still while a machine sleeps,
// and the wall clock can be set back.
//
// # The life of a lease
//
//	          ┌──────── renewed: trusted from the send of that renewal ────────┐
//	          ▼                                                               │
//	Watch ─ trusted ── a third of its length later ── renewal in flight ──────┤
//	          │                                                               │
//	          │◄──────────────── failed, outcome unknown: try again soon ─────┤
//	          │                                                               │
//	          │   the trust runs out, seen by Check or by the timer ── lost ◄─┘ "not yours"
//	        Stop: the subject is not called any more
//
// Lost is final: a renewal that is confirmed after the trust ran out changes
// nothing. A failed renewal alone is not a loss. A confirmation that comes after its
// renewal counted as failed counts from the send of that renewal, if the lease is
// not over by then.
//
// Check compares the clocks at each call, so it reports a loss at the first
// look, also in a process that was stopped for an hour, and whose timers have
// not fired yet.
//
// # Renewals
//
// One goroutine sleeps until the next renewal or end is due, for any number of
// leases. Each [Group] of leases has a lane, and a goroutine while a batch of it is
// in flight. In a lane one batch follows the other, each when the one before was
// answered, so that other commands are served in between. A group that gets no
// answers delays neither another group nor the news of a loss.
//
//   - Leases are renewed each third of the lease, which is the interval, or more often where their group says so.
//   - Leases that are due within a fourth of the interval fill the batch up.
//   - If a group has more than a batch, it is renewed in some sixteen portions, spread
//     over the interval. Leases that were taken together come early, by a
//     fourth of the interval at the most, until they are spread; that takes a few
//     intervals. Each batch counts from its own send, so no lease is late because of it.
//   - If a lane is late by a fourth of the interval, its batches are sixteen times as large: the
//     server is far away, or did not answer for a while.
//   - A batch that is unanswered for a fourth of the interval no longer keeps the others
//     waiting. So the number of batches in flight is bounded by the time that
//     one may take.
//
// A renewal allocates nothing; a batch allocates a little.
//
// Stop first takes the lease out, so that no later renewal carries it, and then
// waits for a renewal that carries it already, until that has been answered or
// has failed. A renewal that failed can still arrive after the release; it then finds
// no lease, and never brings one back.
package watchdog
