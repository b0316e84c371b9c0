package semaphore

// Resizes simulates a running Resize to this number of permits. Its reply arrives when the caller calls reply.
func (s *Semaphore) Resizes(permits int) (reply func()) {
	s.one.resizing <- struct{}{}
	return func() {
		s.one.permits.Store(int64(permits))
		<-s.one.resizing
	}
}
