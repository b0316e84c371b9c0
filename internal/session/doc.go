// Package session is what all kinds of locks share: owners and their holds, the
// one wait loop, the hints, and the cleaning up after calls whose outcome is not
// known. A kind adds its scripts and its rules.
//
// # From a call to Redis and back
//
// An owner of this process has one [claim] on a lock (on each side of a
// read/write lock), and while it holds the
// lock one [tenure], which all its holds share. The claim's turn puts the
// commands of a tenure in order: whoever has it may send one.
//
//	             first question            granted
//	claim ─────────────────────▶ tenure ──────────▶ tenure with holds ─┬─ last Unlock ─▶ released
//	                               │                  ▲      │         ├─ the clock, or
//	                               │ ctx ends, or     └──────┘         │  "not yours" ──▶ lost
//	                               ▼ an error       re-entry, Unlock   └─ Close ────────▶ closed
//	                             released
//
// A tenure has an owner string of its own in Redis, or that of the tenure that passed
// the lock on to it inside the process (handover.go). Whatever is still under way for an
// owner string that is over is therefore about a stranger: it can neither free nor take
// what comes later, and is found by its own name.
//
// # What is known, and what is not
//
// A command was carried out, or was not, or nobody knows: the connection broke,
// or the caller left before the answer. fault.go decides which. Commands say
// what must result ("want 2", "leave 0"), so asking again is always safe, and
// is how the unknown becomes known while the caller still waits. When the caller
// has left, the goroutine that sent the command stays behind and sees to the
// answer:
//
//	grant, and the tenure is over       take it back (settle)
//	grant, and the tenure still asks    nothing: the next question finds it
//	broken off, and the tenure is over  settle, twice: a copy may arrive late
//	broken off, and it still asks       remember it (tenure.unsure); settle when it is over
//
// Settling repeats until the server confirms, or until the longest lease that
// was asked for has run out.
//
// # Waiting
//
// The waiters of a lock stand in a line, which decides who asks (line.go). A hint,
// a message or the confirmation that we listen, is a reason to ask again; so are
// the end of the other's lease and of a poll interval. Nothing depends on a
// hint. The line keeps what its first has learnt for the next one.
//
// Where waiting leaves a trace in Redis, a place in a queue or a writer's wish,
// the trace is part of the tenure: whoever stops waiting settles it.
//
// # Two sides
//
// Reading and writing are two kinds that know of each other. An owner has a claim
// and a tenure on each, and commands of one do not wait for those of the other.
//
// # Locks of our own
//
// Session.mu guards the maps, the claims, the tenures and the lines. The
// mutexes of the watchdog and of the hub are taken under it, never around it;
// hold.mu is taken last and under nothing. No mutex is held while a command is
// sent, a caller's function runs, or a context is cancelled: a context may ask
// its parent, which may be that of a hold, which looks at its lease.
package session
