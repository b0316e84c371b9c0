package latch

// Known returns the number of workers for which the client of the wait group has a mark.
func (c *WaitGroup) Known() int {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return len(c.all.workers)
}

// Counting returns the number of calls of CountDown that have not returned.
func (l *Latch) Counting() int {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if c := l.all.counters[l.spec.Keys.Lock]; c != nil {
		return c.callers
	}
	return 0
}

// Waiting returns the number of calls that wait for the latch.
func (l *Latch) Waiting() int {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if w := l.all.watches[l.spec.Keys.Lock]; w != nil {
		return len(w.callers)
	}
	return 0
}

// Counters returns the number of latches that the client counts down.
func (l *Latch) Counters() int {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	return len(l.all.counters)
}
