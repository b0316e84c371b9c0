// Package kindtest provides what the tests of all types of locks share: helpers, and suites that
// each type must pass on a real server. It is for tests only.
//
//	Kind    describes a type of lock to the suites: its keys in Redis, and the locks that exclude it
//	Faults  what a lock does when its server or the network fails
//	Calls   what a call other than Lock and Unlock does when a reply is lost, its caller leaves, or the server is paused
//	Model   random calls against a model, for locks that one owner holds at a time
//	Rights  the permissions listed in docs/operate/security.md: sufficient, and none superfluous
//
// Package locktest has the rules of every lock, whatever implements it.
package kindtest
