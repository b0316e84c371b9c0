package semaphore

// Resizes has the handle be in a Resize to so many permits, whose answer comes when the caller calls answered.
func (s *Semaphore) Resizes(permits int) (answered func()) {
	s.one.resizing <- struct{}{}
	return func() {
		s.one.permits.Store(int64(permits))
		<-s.one.resizing
	}
}
