// Package kindtest is what the tests of all kinds of locks share: helpers, and
// suites that each kind must pass on a real server. For tests only.
//
//	Kind    describes a kind of lock to the suites: how it looks in Redis, and what excludes it
//	Faults  what a lock does when its server or the way to it fails
//	Model   random calls against a model, for locks that one owner holds at a time
//	Rights  the access rights that docs/SECURITY.md asks for: enough, and none too many
//
// What must be true of every lock, whatever it runs on, is not here but in
// package locktest.
package kindtest
