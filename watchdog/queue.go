package watchdog

import "time"

// queue is a heap of leases. The first is due first. Package container/heap adds and removes them.
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

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i]; q[i].index, q[j].index = i, j }

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	l := x.(*Lease)
	l.queue, l.index = q, len(*q)
	*q = append(*q, l)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	end := len(*q) - 1
	l := (*q)[end]
	(*q)[end] = nil
	*q = (*q)[:end]
	l.queue = nil
	return l
}
