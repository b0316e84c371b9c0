// Package leader implements leader election. One process leads, and others can look up the current
// leader. client.Client.NewElection creates elections. [Run] needs only a lock.
//
//	e := c.NewElection("billing")
//	err := e.Run(ctx, "http://10.0.0.7:8080", func(ctx context.Context) error {
//		return bill(ctx) // only while this process leads: ctx is canceled as soon as that is not guaranteed
//	})
//
// The leader is the holder of a lock, with the same guarantees. At most one process leads, provided
// that the server keeps its data. The leader must check its context before each step that must not
// be done twice. A paused leader detects the loss the next time it checks its context. If a stale
// leader must not write, guard the data with Hold.Token and package fence. Package lock documents
// what a lock guarantees.
//
// # Leader discovery
//
// The leader of an [Election] publishes a value, such as its address. Others read it with
// [Election.Leader], and follow it with [Election.Observe]. The value is removed when the leader
// stops leading. Otherwise it expires with the lease of the leader, or later by at most the time that
// the command that published it took. A value can be outdated when it is used. The process that it
// names must check whether it leads.
//
//	<name>                     hash  the lock; with NewElection, a fair lock
//	leasehold_leader:{<name>}  hash  token, value, number, by, since; expires with the lease of the leader
//
// An observer that misses the notification of a change detects the change within a second, provided
// that the primary replies. A demoted primary whose connection stays open, as after a REPLICAOF by
// hand, replies as a replica. [Election.Leader] and [Election.Observe] can then return an earlier
// leader until the client reconnects. Leadership itself does not depend on these replies.
//
// A value is rejected if a leader with a larger token has published one. A leader that was paused
// therefore does not overwrite the value of its successor. docs/reference/redis-keys.md in the
// repository describes the keys.
//
// A lock without tokens, such as a multi-lock, does not order two leaders. A leader that was paused
// while it published can then overwrite the value of its successor. The successor publishes its
// value again after a third of its lease. A leader removes only its own value.
package leader
