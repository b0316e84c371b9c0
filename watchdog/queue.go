package watchdog

import "time"

// queue has leases by the time when they are due. Most come in that order, as all renewals give
// the same lease. These stand in a list, where it costs the same to put a lease and to take one
// out, however many there are. The others stand in a heap.
type queue struct {
	front, back *Lease // of the list
	listed      int    // how many are in the list
	others      heap
}

// listSteps is how many leases at the end of the list are looked at for the place of a new one.
// Leases that are taken at the same time come a little out of order.
const listSteps = 16

// inQueue is what a queue notes in a lease.
type inQueue struct {
	at         time.Duration // when it is due there, by the clock that timers use
	prev, next *Lease        // in the list
	index      int32         // in the heap, and inList or inNone
}

const (
	inNone = -1
	inList = -2
)

func (q *queue) len() int { return q.listed + len(q.others) }

// first returns the lease that is due first, nil if there is none.
func (q *queue) first() *Lease {
	l := q.front
	if len(q.others) > 0 && (l == nil || q.others[0].at < l.at) {
		return q.others[0].l
	}
	return l
}

// last returns a lease that it costs little to take out, nil if there is none.
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

// move puts l, which must be in q, in its new place.
func (q *queue) move(l *Lease, at time.Duration) {
	q.remove(l)
	q.put(l, at)
}

// remove takes out l, which must be in q.
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

// heap has leases; the first is due first. Each node has four children, and the
// time next to the lease: with a hundred thousand leases, an operation costs
// as much as the leases that it has to look at.
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

// remove takes out l.
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

// up puts e at i, or as far above as it belongs.
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

// down puts e at i, or as far below as it belongs.
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
