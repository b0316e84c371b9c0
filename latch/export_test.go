package latch

// Known returns how many members the client of the crew remembers.
func (c *Crew) Known() int {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return len(c.all.members)
}
