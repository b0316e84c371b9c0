package lock

// Configured is a [Locker] that tells its options. All kinds of this module are; a
// quorum checks whether the leases of its locks end by themselves, and whether their tokens
// come from registers. It is for implementers of locks.
type Configured interface {
	Locker

	// Config returns what the options say.
	Config() Config
}
