package lock

// Configured is a [Locker] that tells how it was made. All kinds of this module are; a
// quorum asks whether the leases of its locks end by themselves, and whether their tokens
// come from registers. Callers need not know.
type Configured interface {
	Locker

	// Config returns what the options say.
	Config() Config
}
