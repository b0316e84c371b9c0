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
//	Watch ─ trusted ── a third of its length later ── renewal in flight ──────┤
//	          │                                                               │
//	          │◄──────────────── failed, outcome unknown: try again soon ─────┤
//	          │                                                               │
//	          │   the trust runs out, seen by Check or by the timer ── lost ◄─┘ "not yours"
//	        Stop: nobody is told anything any more
//
// Lost is final: a renewal that is confirmed after the trust ran out changes
// nothing. A failed renewal alone is not a loss.
//
// Check compares the clocks where it is called, so a loss is seen at the first
// look, also in a process that was stopped for an hour and whose timers have
// not fired yet.
//
// # Renewals
//
// One goroutine serves any number of leases: it sleeps until the next renewal
// or end is due. Renewals that are due together, or nearly, travel together, in
// a goroutine of their own that lives for that one call; so a server that does
// not answer delays neither the next batch nor the news of a loss.
//
// Stop first takes the lease out, so that no later renewal carries it, and then
// waits for one that carries it already, until that has been answered or given
// up. One that was given up can still arrive after the release; it then finds
// nothing, as a renewal never brings a lease back.
package watchdog
