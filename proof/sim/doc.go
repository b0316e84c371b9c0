// Package sim simulates the whole client library with an in-memory server, virtual time and a network
// with faults. A plan describes a history; a seed determines a plan.
//
// Command explore plays many seeds, and shrinks plans that violate a rule. README.md lists the rules, and what is
// not simulated.
package sim
