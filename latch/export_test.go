package latch

// Known returns how many workers the client of the wait group remembers.
func (c *WaitGroup) Known() int {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return len(c.all.workers)
}
