package watchdog

import (
	"container/heap"
	"time"
)

// queue orders leases by when they are due. Leases that are due at the same time, such as those of one
// batch, are in one list, and the first of each list is in a heap. Renewing a batch therefore costs
// little more than renewing one lease.
type queue struct {
	firsts firsts
	latest *Lease // the end of the list that was added to last; nil if that list is gone
	size   int
}

// inQueue is the position of a lease in a queue.
type inQueue struct {
	next, prev *Lease // in its list
	index      int    // of the list in the heap; only the first of the list has it
}

// firsts is a heap of leases. Package container/heap adds and removes them.
type firsts []*Lease

// first returns a lease that is due first, or nil if there is none.
func (q *queue) first() *Lease {
	if q.size == 0 {
		return nil
	}
	return q.firsts[0]
}

// add adds l, which is in no queue.
func (q *queue) add(l *Lease) {
	q.size++
	if last := q.latest; last != nil && last.at() == l.at() { // mutant: never: speed
		l.prev, last.next = last, l
	} else {
		heap.Push(&q.firsts, l)
	}
	q.latest = l // mutant: removed: speed
}

// remove removes l. The due time of l may have changed since it was added.
func (q *queue) remove(l *Lease) {
	q.size--
	prev, next := l.prev, l.next
	l.prev, l.next = nil, nil
	if q.latest == l {
		q.latest = prev
	}
	if next != nil {
		next.prev = prev
	}
	switch {
	case prev != nil:
		prev.next = next
	case next != nil:
		next.index = l.index
		q.firsts[l.index] = next
	default:
		heap.Remove(&q.firsts, l.index)
	}
}

// at returns when l is due in its queue, by the monotonic clock. It changes for all leases when a clock
// is changed. clockLocked then empties the queues, which compares none of them.
func (l *Lease) at() time.Duration {
	due, n := l.renewAt, l.w.clock.n
	if l.queued != inDue {
		due = l.endsLocked()
	}
	return n.mono + due.left(n)
}

// Len implements heap.Interface.
func (q firsts) Len() int { return len(q) }

// Less implements heap.Interface.
func (q firsts) Less(i, j int) bool { return q[i].at() < q[j].at() } // mutant: border: their order does not matter

// Swap implements heap.Interface.
func (q firsts) Swap(i, j int) { q[i], q[j] = q[j], q[i]; q[i].index, q[j].index = i, j }

// Push implements heap.Interface.
func (q *firsts) Push(x any) {
	l := x.(*Lease)
	l.index = len(*q)
	*q = append(*q, l)
}

// Pop implements heap.Interface.
func (q *firsts) Pop() any {
	end := len(*q) - 1
	l := (*q)[end]
	(*q)[end] = nil // mutant: removed: memory
	*q = (*q)[:end]
	return l
}
