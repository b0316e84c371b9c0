// Package sim plays histories of the whole client library against a server in memory, on virtual time,
// over a network in which everything can go wrong. A plan says what happens; a seed makes a plan.
//
// Command explore plays many seeds, and shrinks what goes wrong. README.md says what is looked at, and what is
// left out.
package sim
