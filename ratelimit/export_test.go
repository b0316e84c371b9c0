package ratelimit

import "time"

// WaitForAsks returns when n callers wait for the next question about a key.
func WaitForAsks(l *Limiter, key string, n int) {
	id, _ := l.enter(key, 0)
	for {
		l.desk.mu.Lock()
		lane := l.desk.lanes[id]
		enough := lane != nil && len(lane.next) >= n
		l.desk.mu.Unlock()
		if enough {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
