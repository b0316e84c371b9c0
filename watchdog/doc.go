// Package watchdog renews leases while their holders need them, and reports the end of a lease. It
// depends on neither Redis nor locks. A function renews the leases.
//
// It is part of leasehold and can be read on its own. Its API is not stable and can change in every
// version.
//
// # The end of a lease
//
// The server decides. It frees the key when its own clock reaches the expiry. The client has only
// an estimate, which must be early rather than late. A lease is valid until
//
//	when the last confirmed acquire or renewal was SENT + its length − margin
//
// It never counts from the reply, which may have taken a long time. The margin is 1 % of the
// length, for clock drift, and 2 ms, for the precision of the server.
//
// The client reads two clocks, the monotonic and the wall clock, and uses the later one. The
// monotonic clock stops while a machine sleeps. The wall clock can be moved backward.
//
// # The life of a lease
//
//	          ┌──────── renewed: valid from the send of that renewal ──────────┐
//	          ▼                                                               │
//	Watch ─ valid ── a third of its length later ── renewal in flight ────────┤
//	          │                                                               │
//	          │◄──────────────── failed or unknown outcome: retry soon ───────┤
//	          │                                                               │
//	          │   it expires, detected by Check or by the timer ────── lost ◄─┘ no longer held on the server
//	        Stop: the subject is no longer called
//
// Lost is final. A renewal that is confirmed later changes nothing. A failed renewal alone is not a
// loss. A confirmation can arrive after its renewal counted as failed. If the lease has not ended
// by then, it counts from the send of that renewal.
//
// Check compares the clocks on each call. It therefore reports a loss on the first call. This holds
// even after a pause of an hour, before the timers have fired.
//
// # Renewals
//
// One goroutine sleeps until the next renewal or end is due, for any number of leases. It reads the
// clocks at least every twelfth of a lease, and every 5 s, because timers stop while a machine
// sleeps. The leases of a [Group] are renewed in batches. Each batch is sent after the reply to the
// previous one, so that other commands are served in between. A group without replies delays neither
// another group nor the report of a loss.
//
//   - Leases are renewed every third of the lease. That is the interval. A group can require a
//     shorter one.
//   - Leases that are due within a quarter of the interval fill up the batch.
//   - If a group has more than one batch, its renewals are spread over the interval in about 16 slices. Leases that were
//     acquired together are renewed early, by up to a quarter of the interval, until they are spread.
//   - If a group is late by a quarter of the interval, its batches are 16 times as large. This
//     happens if the server is far away or did not respond for a while.
//   - A batch without a reply for a quarter of the interval no longer delays the others. The number of batches in flight
//     is therefore bounded by the timeout of one.
//
// Stop first removes the lease, so that no later renewal includes it. It then waits for a renewal
// in flight that includes it. A renewal that failed can still arrive after the release. It then
// finds no lease, and never creates one.
package watchdog
