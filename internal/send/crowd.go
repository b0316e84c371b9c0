package send

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// A Crowd sends the questions of many callers in batches. While batches are in flight, other
// questions collect for the next one, first come, first served. The number of commands therefore does
// not grow with the number of callers.
type Crowd[Q, A any] struct {
	send *Sender                                               // set once
	ask  func(ctx context.Context, questions []Q) ([]A, error) // set once: answers each question, or fails for all
	size func(Q) int                                           // set once
	most int                                                   // set once: the maximum size of a batch of several questions

	mu      sync.Mutex      // guards the fields below
	next    []*member[Q, A] // callers whose questions are in the next batches
	batches int             // the number of goroutines that run batches
	latest  time.Time       // when the latest batch was sent
}

// member is one caller of a Crowd.
type member[Q, A any] struct {
	q        Q             // set once
	answered chan struct{} // set once; cap 1: receives a token when a and err are set
	a        A
	err      error
}

const (
	// With a server nearby, more batches at a time are smaller and cost more. Beyond batchesNear,
	// another batch starts only after pace.
	batchesNear = 2
	batchesMost = 8
	pace        = 500 * time.Microsecond
)

// NewCrowd returns a Crowd on s. ask answers each question, or fails for all; its context is never
// canceled. size returns the size of a question. A batch of several questions is no larger than most.
func NewCrowd[Q, A any](s *Sender, ask func(context.Context, []Q) ([]A, error), size func(Q) int, most int) *Crowd[Q, A] {
	return &Crowd[Q, A]{send: s, ask: ask, size: size, most: most}
}

// Ask returns the answer to q. It returns early if ctx is canceled, the sender's timeout has passed,
// or the sender is closed. Then q is not sent any more, or its answer is dropped.
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

// run sends batches until no question is left.
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
			runtime.Gosched() // let the callers run first, so that their next questions are in the next batch
		}
	}
}

// batch removes and returns the callers of the next batch. It returns nil, and run ends, if there are
// none.
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
