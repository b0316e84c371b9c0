package session

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// How a fair lock goes from one waiter to the next: inside a process, and from one to
// another.

// goRound has n goroutines of each session take and give back the lock, rounds times each, and
// checks that only one has it at a time.
func (w *world) goRound(sessions []*Session, n, rounds int, opts ...lock.Option) {
	w.Helper()
	var wg sync.WaitGroup
	var inside atomic.Int32
	for _, s := range sessions {
		for range n {
			wg.Go(func() {
				for range rounds {
					h := w.take(s, fair, w.Context(), opts...)
					if inside.Add(1) != 1 {
						w.Error("two have the lock")
					}
					inside.Add(-1)
					w.unlock(h)
				}
			})
		}
	}
	wg.Wait()
}

// Every change of holder is told: by the answer to the release, by a message, or inside the
// process. No waiter depends on the heartbeat, which comes once in a poll interval.
func TestQueue_noChangeWaitsForAHeartbeat(t *testing.T) {
	for _, processes := range []int{1, 2} {
		for _, n := range []int{1, 2, 3, 10, 60, 150} {
			t.Run(fmt.Sprintf("%dx%d", processes, n), func(t *testing.T) {
				inBubble(t, func(w *world) {
					began := time.Now()
					w.goRound([]*Session{w.a, w.b}[:processes], n, 300/n+2)
					if took := time.Since(began); took >= pollTime/2 {
						w.Errorf("it took %v", took)
					}
				})
			})
		}
	}
}
