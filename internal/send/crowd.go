package send

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// A Crowd asks the questions of many callers together. While questions are under way, those of
// other callers collect, and go together in the next batch, first come first served. So the number
// of commands does not grow with the number of callers.
type Crowd[Q, A any] struct {
	send *Sender                                               // set once
	ask  func(ctx context.Context, questions []Q) ([]A, error) // set once: answers each question, or none
	size func(Q) int                                           // set once
	most int                                                   // set once: the largest size of a batch of several questions

	mu      sync.Mutex
	next    []*member[Q, A] // those whose questions go next
	batches int             // the number of goroutines that ask
	latest  time.Time       // when one of them asked
}

// member is one caller in a crowd.
type member[Q, A any] struct {
	q        Q             // set once
	answered chan struct{} // set once; cap 1: gets a token when a and err are set
	a        A
	err      error
}

const (
	// If the server is near, more batches at a time are smaller, and cost more. So more than batchesNear
	// only follow each other after a while.
	batchesNear = 2
	batchesMost = 8
	pace        = 500 * time.Microsecond
)

// NewCrowd returns a crowd of callers of s. ask answers each question, or fails for all; its context does not end. A
// question has a size, and a batch of several questions is no larger than most.
func NewCrowd[Q, A any](s *Sender, ask func(context.Context, []Q) ([]A, error), size func(Q) int, most int) *Crowd[Q, A] {
	return &Crowd[Q, A]{send: s, ask: ask, size: size, most: most}
}

// Ask asks q, and returns the answer. It returns before the answer comes if ctx ends, the timeout of the
// sender is over, or the sender is closed. Then q is not sent any more, or its answer goes nowhere.
func (c *Crowd[Q, A]) Ask(ctx context.Context, q Q) (none A, err error) {
	if err := ctx.Err(); err != nil {
		return none, err
	}
	m := &member[Q, A]{q: q, answered: make(chan struct{}, 1)}
	c.mu.Lock()
	if c.batches < batchesNear || c.batches < batchesMost && time.Since(c.latest) > pace {
		if err := c.send.Go(c.run); err != nil {
			c.mu.Unlock()
			return none, err
		}
		c.batches++
	}
	c.next = append(c.next, m)
	c.mu.Unlock()

	timer := time.NewTimer(c.send.Timeout)
	defer timer.Stop()
	select {
	case <-m.answered:
		return m.a, m.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = Silent(c.send.Timeout)
	case <-c.send.closing:
		err = lock.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.next, m); i >= 0 {
		c.next = slices.Delete(c.next, i, i+1)
	}
	return none, err
}

// run asks batches until no caller is left.
func (c *Crowd[Q, A]) run() {
	for {
		members := c.batch()
		if members == nil {
			return
		}
		questions := make([]Q, len(members))
		for i, m := range members {
			questions[i] = m.q
		}
		answers, err := c.ask(context.Background(), questions)
		err = c.send.Told(err)
		for i, m := range members {
			if m.err = err; err == nil {
				m.a = answers[i]
			}
			m.answered <- struct{}{}
		}
		if len(members) > 1 {
			runtime.Gosched() // the callers come first: their next questions are then in the next batch
		}
	}
}

// batch takes the callers whose questions go next. It returns nil, and run ends, if there are none.
func (c *Crowd[Q, A]) batch() []*member[Q, A] {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, size := 0, 0
	for n < len(c.next) {
		if size += c.size(c.next[n].q); n > 0 && size > c.most {
			break
		}
		n++
	}
	if n == 0 {
		c.batches--
		return nil
	}
	members := slices.Clone(c.next[:n])
	c.next = slices.Delete(c.next, 0, n)
	c.latest = time.Now()
	return members
}
