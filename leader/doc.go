// Package leader has one process of several lead, and lets others see which one. client.Client.NewElection makes elections; [Run]
// needs no more than a lock.
//
//	e := c.NewElection("billing")
//	err := e.Run(ctx, "http://10.0.0.7:8080", func(ctx context.Context) error {
//		return bill(ctx) // only while this process leads: ctx is canceled as soon as that is not guaranteed
//	})
//
// To lead is to hold a lock, and is exactly as safe as that: no more than one process leads, while the server keeps its data, and
// while a leader looks at its context before each step that must not be done twice. A leader that was frozen learns when it
// looks. Where a stale leader must not write, the data needs a guard: Hold.Token and package fence. Package lock says what a
// lock promises.
//
// # What others see
//
// The leader of an [Election] publishes a value, such as its address. Others read it by [Election.Leader], and follow it by
// [Election.Observe]. The value lives no longer than the lease of the leader, and the time that its command took. But what
// they read can be old when they use it: a process that they take for the leader must look by itself whether it leads.
//
//	<name>                     hash  the lock: by NewElection, that of a fair lock
//	leasehold_leader:{<name>}  hash  token, value, number, by, since: what the leader says of itself, for the rest of its lease
//
// A change is published at the channel leasehold_leader:{<name>}; an observer that misses it sees it within a second. A value is refused if a leader with a
// larger token has published one, so a leader that was stopped does not overwrite that of its successor.
//
// A lock without tokens, such as a multi-lock, does not say which of two leaders is the later one. Then a leader that was stopped in the middle of
// publishing can overwrite its successor's value, until the successor says it again, after a third of its lease. It takes back its own value only.
package leader
