// Package sim simulates histories of the whole client library against an in-memory server, in virtual time,
// over a network with injected faults. A plan describes a history; a seed determines a plan.
//
// Command explore runs many seeds, and shrinks failing plans. README.md says what is checked, and what is left
// out.
package sim
