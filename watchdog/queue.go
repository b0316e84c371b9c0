package watchdog

import (
	"container/heap"
	"time"
)

// queue is a heap of leases. The first is due first.
type queue []*Lease

// inQueue is the position of a lease in a queue.
type inQueue struct {
	at    time.Duration // when it is due, by the monotonic clock
	queue *queue        // nil if it is in none
	index int           // its index in the queue
}

// first returns the lease that is due first, or nil if there is none.
func (q queue) first() *Lease {
	if len(q) == 0 {
		return nil
	}
	return q[0]
}

// put moves l to q. It is due at at.
func (q *queue) put(l *Lease, at time.Duration) {
	l.leaveQueue()
	l.at, l.queue = at, q
	heap.Push(q, l)
}

// leaveQueue removes l from its queue, if it is in one.
func (l *Lease) leaveQueue() {
	if l.queue != nil {
		heap.Remove(l.queue, l.index)
		l.queue = nil
	}
}

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i]; q[i].index, q[j].index = i, j }

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	l := x.(*Lease)
	l.index = len(*q)
	*q = append(*q, l)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	end := len(*q) - 1
	l := (*q)[end]
	(*q)[end] = nil
	*q = (*q)[:end]
	return l
}
