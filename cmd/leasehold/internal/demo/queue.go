package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fairlock"
	"github.com/leasehold-go/leasehold/lock"
)

const (
	customers = "ABCDEFGH" // in the order of arrival
	living    = "ABDEGH"   // customers that are still waiting when their turn comes
	doors     = 3          // number of clients that they use
)

var (
	serviceTime = 400 * time.Millisecond // of each customer, at the counter
	patience    = 2 * time.Second        // the default of 5 s would take too long in a demo
)

// queueReport is the result of the scene.
type queueReport struct {
	line      string        // queue in Redis, when all customers had arrived
	leftAfter time.Duration // time until F left the queue, after it canceled
	died      time.Time     // when C died
	deadStays bool          // C was in the queue after that
	served    string        // customers, in the order in which they were served
	deadCost  time.Duration // from the death of C until D, behind it, was served
	changes   time.Duration // total of all other hand-offs
	overlaps  int           // how often a customer was served before the previous one had left
	lastWait  time.Duration // of H
	atEnd     int           // waiters left in the queue
}

// fairQueue lets customers arrive, one by one, at a counter that serves one at a time.
// The counter is a fair lock, so it serves them in the order of arrival, even if they use
// different clients. One of them cancels its wait, and one dies.
func fairQueue(ctx context.Context, s *stage) (err error) {
	s.out.line("Customers A to H arrive one by one, through several clients, at a counter that serves one at a time: a fair lock.")
	s.out.line("In the queue, F cancels and C dies. A customer without a heartbeat for %v counts as dead (waiter timeout).", patience)
	q, err := openQueue(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.outwait(ctx)) }()

	var report queueReport
	err = each(ctx, len(q.customers)+1, func(ctx context.Context, i int) error {
		if i == len(q.customers) {
			return q.tell(ctx, &report)
		}
		return q.customers[i].visit(ctx, q.served)
	})
	if err != nil {
		return err
	}
	report.measure(q.customers)
	atEnd, err := q.counter.Inspect(ctx)
	if err != nil {
		return err
	}
	report.atEnd = len(atEnd.Waiters)
	s.check(checkQueue(report)...)
	return nil
}

// queue is the queue at the counter.
type queue struct {
	out       *screen
	counter   *fairlock.Lock // with the client of the shop
	customers []*customer
	standing  chan string       // owners of customers, when they enter the queue
	served    chan *customer    // when their turn comes
	names     map[string]string // of owners
}

// customer is one visitor to the counter.
type customer struct {
	name    string
	counter *fairlock.Lock              // with the client of the customer
	comes   chan struct{}               // closed when the customer is to arrive
	kill    func(context.Context) error // nil if its client cannot die
	giveUp  context.CancelFunc          // set when the customer arrives

	came, called, left time.Time // called and left: at the counter
}

// openQueue opens the clients. No customer arrives yet.
func openQueue(ctx context.Context, s *stage) (*queue, error) {
	q := &queue{
		out:      s.out,
		standing: make(chan string, len(customers)),
		served:   make(chan *customer, len(customers)),
		names:    make(map[string]string),
	}
	shop, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	q.counter = shop.NewFairLock("counter")

	observer := client.WithObserver(lock.Observer{Waiting: func(_ context.Context, e lock.Event) { q.standing <- e.Owner }})
	clients, err := s.openMany(ctx, doors, observer)
	if err != nil {
		return nil, err
	}
	mortal, kill, err := s.openMortal(s.address, observer)
	if err != nil {
		return nil, err
	}
	for i, name := range strings.Split(customers, "") {
		c := &customer{name: name, comes: make(chan struct{})}
		by := clients[i%doors]
		if name == "C" {
			by, c.kill = mortal, kill
		}
		c.counter = by.NewFairLock("counter", lock.WithWaiterTimeout(patience))
		q.customers = append(q.customers, c)
	}
	return q, nil
}

// visit waits until the customer is to arrive, waits for its turn, and is served.
func (c *customer) visit(ctx context.Context, served chan<- *customer) error {
	select {
	case <-c.comes:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, c.giveUp = context.WithCancel(ctx)
	defer c.giveUp()
	c.came = time.Now()
	err := lock.Do(ctx, c.counter, func(ctx context.Context) error {
		c.called = time.Now()
		served <- c
		defer func() { c.left = time.Now() }()
		return sleep(ctx, serviceTime)
	})
	if c.lives() {
		return err
	}
	return nil
}

// lives reports whether c will still wait when its turn comes.
func (c *customer) lives() bool { return strings.Contains(living, c.name) }

// tell plays the scene: all customers arrive, F cancels, C dies, and the counter opens.
func (q *queue) tell(ctx context.Context, r *queueReport) error {
	err := lock.Do(ctx, q.counter, func(ctx context.Context) error { // no customer is served while the shop holds it
		for _, c := range q.customers {
			if err := q.come(ctx, c); err != nil {
				return err
			}
		}
		line, err := q.show(ctx, "all queued")
		if err != nil {
			return err
		}
		r.line = q.order(line)
		if err := q.giveUp(ctx, r, q.customer("F")); err != nil {
			return err
		}
		return q.die(ctx, r, q.customer("C"))
	})
	if err != nil {
		return err
	}
	for range living {
		next, err := q.next(ctx)
		if err != nil {
			return err
		}
		r.served += next.name
		if _, err := q.show(ctx, next.name+" served"); err != nil {
			return err
		}
	}
	return nil
}

// customer returns the customer with this name.
func (q *queue) customer(name string) *customer {
	return q.customers[strings.Index(customers, name)]
}

// come lets c arrive, and returns when it is in the queue.
func (q *queue) come(ctx context.Context, c *customer) error {
	close(c.comes)
	select {
	case owner := <-q.standing:
		q.names[owner] = c.name
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// giveUp cancels the wait of c. It returns when c has left the queue, or has not done so
// in time.
func (q *queue) giveUp(ctx context.Context, r *queueReport, c *customer) error {
	start := time.Now()
	c.giveUp()
	err := q.watch(ctx, func(line lock.State) bool {
		r.leftAfter = time.Since(start)
		return !strings.Contains(q.order(line), c.name) || r.leftAfter > patience
	})
	if err != nil {
		return err
	}
	_, err = q.show(ctx, c.name+" canceled")
	return err
}

// die kills the client of c. The client sends nothing to Redis.
func (q *queue) die(ctx context.Context, r *queueReport, c *customer) error {
	if err := c.kill(ctx); err != nil {
		return err
	}
	r.died = time.Now()
	line, err := q.show(ctx, c.name+" died")
	r.deadStays = strings.Contains(q.order(line), c.name)
	return err
}

// next watches the queue until the counter serves the next customer.
func (q *queue) next(ctx context.Context) (c *customer, err error) {
	err = q.watch(ctx, func(lock.State) bool {
		select {
		case c = <-q.served:
		default:
		}
		return c != nil
	})
	return c, err
}

// watch reads the queue repeatedly, until done reports true for it.
func (q *queue) watch(ctx context.Context, done func(lock.State) bool) error {
	for {
		line, err := q.counter.Inspect(ctx)
		if err != nil {
			return err
		}
		if done(line) {
			return nil
		}
		q.out.progress("queue: %s", q.text(line))
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// show prints an event, and the current queue.
func (q *queue) show(ctx context.Context, event string) (lock.State, error) {
	line, err := q.counter.Inspect(ctx)
	if err == nil {
		q.out.line("%-13s  queue: %s", event, q.text(line))
	}
	return line, err
}

// text returns the customers in the queue, and for how long each counts as alive without a
// heartbeat.
func (q *queue) text(line lock.State) string {
	if len(line.Waiters) == 0 {
		return "empty"
	}
	var all []string
	for _, w := range line.Waiters {
		all = append(all, fmt.Sprintf("%s %.1fs", q.names[w.Owner], w.WaiterTimeout.Seconds()))
	}
	return strings.Join(all, ", ")
}

// order returns the customers in the queue.
func (q *queue) order(line lock.State) (names string) {
	for _, w := range line.Waiters {
		names += q.names[w.Owner]
	}
	return names
}

// outwait waits, like another customer, until the queue is empty. If the scene ended
// early, C may still be in the queue, and not count as dead yet.
func (q *queue) outwait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyLimit)
	defer cancel()
	return lock.Do(ctx, q.counter, func(context.Context) error { return nil })
}

// measure adds the times of the customers to the report.
func (r *queueReport) measure(all []*customer) {
	var before *customer
	for _, c := range all {
		if !c.lives() {
			continue
		}
		if before != nil && c.called.Before(before.left) {
			r.overlaps++
		}
		if c.name == "D" {
			r.deadCost = c.called.Sub(r.died)
		} else if before != nil {
			r.changes += c.called.Sub(before.left)
		}
		before = c
	}
	r.lastWait = before.called.Sub(before.came)
}

func checkQueue(r queueReport) []claim {
	return []claim{
		claimf(r.line == customers, "queued in Redis in the order of arrival: %s", r.line),
		claimf(r.served == living && r.overlaps == 0, "served in that order, one at a time: %s", r.served),
		claimf(r.leftAfter < patience, "F left the queue %d ms after it canceled", r.leftAfter.Milliseconds()),
		claimf(r.deadStays, "C died, and its queue entry stayed in Redis"),
		claimf(r.deadCost < 2*patience, "D, behind C, was served %.2f s after C died; the waiter timeout is %.2f s", r.deadCost.Seconds(), patience.Seconds()),
		claimf(r.changes < patience, "no other customer was delayed: all other hand-offs together took %d ms", r.changes.Milliseconds()),
		claimf(r.lastWait > patience, "heartbeats kept the queue position of H for %.1f s, longer than the waiter timeout", r.lastWait.Seconds()),
		claimf(r.atEnd == 0, "%d waiters left in the queue", r.atEnd),
	}
}
