package latch

// Known returns the number of workers for which the client of the wait group has a mark.
func (c *WaitGroup) Known() int {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return len(c.all.workers)
}
