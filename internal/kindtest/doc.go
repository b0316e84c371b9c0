// Package kindtest provides what the tests of all types of locks share: helpers, and suites that
// each type must pass on a real server. It is for tests only.
//
//	Kind    describes a kind of lock to the suites: how it looks in Redis, and which locks exclude it
//	Faults  what a lock does when its server or the network fails
//	Calls   what a call does that is no Lock and no Unlock when an answer is lost, its caller leaves, or the server stands still
//	Model   random calls against a model, for locks that one owner holds at a time
//	Rights  the access rights that docs/operate/security.md lists: enough, and none too many
//
// Package locktest has the rules of every lock, whatever implements it.
package kindtest
