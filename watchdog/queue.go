package watchdog

import "time"

// queue orders leases by the time when they are due. Most are added in that order, because all
// renewals grant the same lease. They are in a list, where adding and removing take constant time.
// The others are in a heap.
type queue struct {
	front, back *Lease // of the list
	listed      int    // the length of the list
	others      heap
}

// listSteps is how many leases at the end of the list are compared with a new one. Leases that are
// acquired at about the same time are added slightly out of order.
const listSteps = 16

// inQueue is the position of a lease in a queue.
type inQueue struct {
	at         time.Duration // when it is due, by the monotonic clock
	prev, next *Lease        // in the list
	index      int32         // in the heap, or inList or inNone
}

const (
	inNone = -1
	inList = -2
)

func (q *queue) len() int { return q.listed + len(q.others) }

// first returns the lease that is due first, or nil if there is none.
func (q *queue) first() *Lease {
	l := q.front
	if len(q.others) > 0 && (l == nil || q.others[0].at < l.at) {
		return q.others[0].l
	}
	return l
}

// last returns a lease that is cheap to remove, or nil if there is none.
func (q *queue) last() *Lease {
	if n := len(q.others); n > 0 {
		return q.others[n-1].l
	}
	return q.back
}

// put adds l, which must not be in a queue.
func (q *queue) put(l *Lease, at time.Duration) {
	l.at = at
	before := q.back
	for range listSteps {
		if before == nil || before.at <= at {
			break
		}
		before = before.prev
	}
	if before != nil && before.at > at {
		q.others.put(l)
		return
	}
	l.index, l.prev = inList, before
	if before == nil {
		l.next, q.front = q.front, l
	} else {
		l.next, before.next = before.next, l
	}
	if l.next == nil {
		q.back = l
	} else {
		l.next.prev = l
	}
	q.listed++
}

// move moves l, which must be in q, to its new position.
func (q *queue) move(l *Lease, at time.Duration) {
	q.remove(l)
	q.put(l, at)
}

// remove removes l, which must be in q.
func (q *queue) remove(l *Lease) {
	if l.index != inList {
		q.others.remove(l)
		return
	}
	if l.prev == nil {
		q.front = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		q.back = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.index, l.prev, l.next = inNone, nil, nil
	q.listed--
}

// heap is a heap of leases, the first of which is due first. Each node has four children. The time is
// stored next to the lease, because with 100,000 leases the cost is the number of leases read from
// memory.
type heap []entry

type entry struct {
	at time.Duration
	l  *Lease
}

// put adds l, by l.at.
func (q *heap) put(l *Lease) {
	*q = append(*q, entry{})
	q.up(len(*q)-1, entry{l.at, l})
}

// remove removes l.
func (q *heap) remove(l *Lease) {
	i := int(l.index)
	l.index = inNone
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = entry{}
	*q = (*q)[:last]
	switch {
	case i == last:
	case e.at < (*q)[(max(i, 1)-1)/4].at:
		q.up(i, e)
	default:
		q.down(i, e)
	}
}

// up puts e at i, or as far up as it belongs.
func (q *heap) up(i int, e entry) {
	for i > 0 {
		parent := (i - 1) / 4
		if (*q)[parent].at <= e.at {
			break
		}
		q.set(i, (*q)[parent])
		i = parent
	}
	q.set(i, e)
}

// down puts e at i, or as far down as it belongs.
func (q *heap) down(i int, e entry) {
	for {
		first := 4*i + 1
		if first >= len(*q) {
			break
		}
		least := first
		for child := first + 1; child < min(first+4, len(*q)); child++ {
			if (*q)[child].at < (*q)[least].at {
				least = child
			}
		}
		if (*q)[least].at >= e.at {
			break
		}
		q.set(i, (*q)[least])
		i = least
	}
	q.set(i, e)
}

func (q *heap) set(i int, e entry) {
	(*q)[i] = e
	e.l.index = int32(i)
}
