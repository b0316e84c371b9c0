package watchdog

import "time"

// queue is a heap of leases; the first is due first. Each node has four children, and the
// time next to the lease: with a hundred thousand leases, an operation costs
// as much as the leases that it has to look at.
type queue []entry

type entry struct {
	at time.Duration // by the clock that timers use
	l  *Lease
}

// first returns the lease that is due first, nil if there is none.
func (q queue) first() *Lease {
	if len(q) == 0 {
		return nil
	}
	return q[0].l
}

// put adds l, which must not be in a queue.
func (q *queue) put(l *Lease, at time.Duration) {
	*q = append(*q, entry{})
	q.up(len(*q)-1, entry{at, l})
}

// move puts l, which must be in q, in its new place.
func (q *queue) move(l *Lease, at time.Duration) {
	i := int(l.index)
	if at < (*q)[i].at {
		q.up(i, entry{at, l})
	} else {
		q.down(i, entry{at, l})
	}
}

// remove takes out l, which must be in q.
func (q *queue) remove(l *Lease) {
	i := int(l.index)
	l.index = -1
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
func (q *queue) up(i int, e entry) {
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
func (q *queue) down(i int, e entry) {
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

func (q *queue) set(i int, e entry) {
	(*q)[i] = e
	e.l.index = int32(i)
}
