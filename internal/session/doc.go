// Package session joins what locks are made of: the places, which decide; the sender,
// which sends; the watchdog, which renews; the hub, which hears; and the settlers, which
// clean up after calls whose outcome is not known. A kind of lock adds its scripts.
//
// # Where things are
//
//	session.go  kind.go             a client's session; kinds, specs and their terms
//	places.go   tenure.go  hold.go  what there is of each lock, and its mutex; the order of mutexes is at type places
//	acquire.go                      Lock and TryLock: the owner's turn, re-entry, joining readers
//	attempt.go  ask.go              the one wait loop; one question and its answer
//	several.go                      several locks by one question, in the same loop
//	unlock.go   downgrade.go        what an Unlock does; a write hold that becomes a read hold
//	settle.go                       doubts
//	listen.go   heartbeat.go        how a line hears of its lock, and keeps its waiters in a queue
//	renew.go    limit.go            renewals; holds that nobody unlocks
//	extend.go   retain.go           a lease that lasts longer; a lock that stays locked after its Unlock
//	close.go    query.go  raise.go  Close; inspection; the tokens of a quorum
//	force.go                        unlocking by force, and hearing of it
//	observe.go  report.go           what the observer hears; warnings
//
// # The life of a tenure
//
// An owner that wants a lock has a tenure, from the first question until the last hold is
// gone. Its phases are those of package place:
//
//	Asking ──granted──────────▶ Held ─┬─ last Unlock ──────────▶ Released
//	Queued ──granted, or taken▶  │ ▲  ├─ the clock, "not yours" ▶ Lost
//	   │                         └─┘  └─ Close ────────────────▶ Closed
//	   │ the wait ends, an error  re-entry, Unlock
//	   └▶ Released
//
// A tenure has an owner string of its own in Redis, or that of the tenure that passed the
// lock on to it inside the process. So what is still under way for an owner string that is
// over concerns a stranger: it can neither free nor take what comes later, and settling
// finds it by its name.
//
// # What is known, and what is not
//
// A command was carried out, or was not, or nobody knows: the connection broke, or the
// caller left before the answer. retry.FaultOf decides which. Commands say what must
// result ("want 2", "leave 0"), so it is safe to ask again, and that is how the unknown
// becomes known while the caller waits. When the caller has left, the command's Late hears
// the answer:
//
//	a grant, and the tenure is over     give it back (settle)
//	a grant, and the tenure lives       the next question finds it
//	broken off, and the tenure is over  settle, and look again later: a copy may arrive late
//	broken off, and the tenure lives    remember it (Tenure.Doubt); settle when it is over
//
// Settling repeats until the server confirms, or until the longest lease that was asked for
// has run out. Where waiting leaves a trace in Redis, a place in a queue or a writer's wish,
// the trace belongs to the tenure, and giving up the wait settles it.
//
// # Waiting
//
// A call asks its place what to do, does it, and tells the place what came of it. A hint,
// which is a message or the confirmation of a subscription, is a reason to ask Redis
// again; so are the end of the other's lease and of a poll interval. Nothing depends on a
// hint. Reading and writing are two kinds, and two sides of one place. An owner has a
// tenure on each side, and the commands of one do not wait for those of the other.
package session
