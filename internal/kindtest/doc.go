// Package kindtest has what the tests of all kinds of locks share: helpers, and
// suites that each kind must pass on a real server. For tests only.
//
//	Kind    describes a kind of lock to the suites: how it looks in Redis, and which locks exclude it
//	Faults  what a lock does when its server or the network fails
//	Calls   what a call does that is no Lock and no Unlock when an answer is lost, its caller leaves, or the server stands still
//	Model   random calls against a model, for locks that one owner holds at a time
//	Rights  the access rights that docs/operate/security.md lists: enough, and none too many
//
// The rules of every lock, whatever it runs on, are in package
// locktest.
package kindtest
