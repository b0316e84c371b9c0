// Package watchdog keeps leases alive for as long as their holders want them,
// and says so at once when one has ended. It knows no Redis and no locks: what
// renews a lease is a function.
//
// # Who is right about the end of a lease
//
// The server is: it frees the key when its own clock says so. The client only
// has an estimate, and it must err on the early side. So a lease is trusted
// until
//
//	when the last confirmed acquire or renewal was SENT + its length − margin
//
// never counted from the reply, which may have taken long. The margin is a
// hundredth of the length, for clocks that run up to 1 % apart, and 2 ms, for
// the server's own precision.
//
// Two clocks are read, the monotonic and the wall clock, and the one that says
// "later" is believed: the monotonic clock stands still while a machine sleeps,
// and the wall clock can be set back.
//
// # The life of a lease
//
//	          ┌──────── renewed: trusted from the send of that renewal ────────┐
//	          ▼                                                               │
//	Watch ─ trusted ── a third of its length later ── renewal under way ──────┤
//	          │                                                               │
//	          │◄──────────────── failed, outcome unknown: try again soon ─────┤
//	          │                                                               │
//	          │   the trust runs out, seen by Check or by the timer ── lost ◄─┘ "not yours"
//	        Stop: nobody is told anything any more
//
// Lost is final: a renewal that is confirmed after the trust ran out changes
// nothing. A failed renewal alone is not a loss. A confirmation that comes after its
// renewal was given up as failed counts from the send of that renewal, if the lease is
// not over by then.
//
// Check compares the clocks where it is called, so a loss is seen at the first
// look, also in a process that was stopped for an hour and whose timers have
// not fired yet.
//
// # Renewals
//
// One goroutine sleeps until the next renewal or end is due, for any number of
// leases. Each [Group] of leases has a lane, and a goroutine while something of it is
// under way. In a lane one batch follows the other, each when the one before was
// answered, so that others get their turn at the server in between. A group that gets no
// answers delays no other, and not the news of a loss.
//
//   - What is due within a twelfth of the lease fills the batch up.
//   - If a group has more than a batch, it is renewed in some sixteen portions, spread
//     over the interval. Leases that were taken together come early, by a
//     twelfth of the lease at the most, until they are spread; that takes a few
//     intervals. Each batch counts from its own send, so nothing is ever late for it.
//   - If a lane is late by a twelfth of the lease, batches are sixteen times as large: the
//     server is far away, or was not there for a while.
//   - A batch that is unanswered for a twelfth of the lease does not keep the others
//     waiting any more. So there are as many under way at a time as fit into the time that
//     one may take.
//
// A renewal costs no garbage, but for what a batch needs.
//
// Stop first takes the lease out, so that no later renewal carries it, and then
// waits for one that carries it already, until that has been answered or given
// up. One that was given up can still arrive after the release; it then finds
// nothing, as a renewal never brings a lease back.
package watchdog
