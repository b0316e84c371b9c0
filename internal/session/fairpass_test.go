package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/redistest"
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
		for _, n := range []int{1, 2, 3, 10, 70} {
			t.Run(fmt.Sprintf("%dx%d", processes, n), func(t *testing.T) {
				inBubble(t, func(w *world) {
					began := time.Now()
					w.goRound([]*Session{w.a, w.b}[:processes], n, 60/n+2)
					if took := time.Since(began); took >= pollTime/2 {
						w.Errorf("it took %v", took)
					}
				})
			})
		}
	}
}

// passed returns a hold that was passed on inside session a, and no waiter. The place of its call
// in the queue is to go with its release. It has these options.
func (w *world) passed(opts ...lock.Option) lock.Hold {
	w.Helper()
	first := w.take(w.a, fair, w.Context())
	holds := make(chan lock.Hold, 2)
	opts = append(opts, lock.WithWaiterTimeout(minute)) // it does not leave the queue by itself
	for _, opts := range [][]lock.Option{nil, opts} {
		go func() { holds <- w.take(w.a, fair, w.Context(), opts...) }()
		synctest.Wait()
	}
	w.unlock(first) // the answer gives it to the first waiter, and says that the second is next
	second := <-holds
	time.Sleep(time.Millisecond)
	w.unlock(second)
	third := <-holds
	if third.Owner() != second.Owner() || third.Token() <= second.Token() {
		w.Fatal("the lock was not passed on")
	}
	if queue := w.inQueue(); len(queue) != 1 {
		w.Fatalf("%q stand in the queue", queue)
	}
	return third
}

// A release gives the lock to the next waiter of its process by its answer, and that waiter does not
// ask.
func TestQueue_theHeirDoesNotAsk(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.take(w.a, fair, w.Context())) // now the server knows the script
		h := w.take(w.a, fair, w.Context())
		next := make(chan lock.Hold)
		go func() { next <- w.take(w.a, fair, w.Context()) }()
		time.Sleep(pollTime / 2)
		scripts := w.slowScripts(0)
		w.unlock(h)
		h = <-next
		if n := scripts.Load(); n != 1 {
			w.Errorf("%d scripts", n)
		}
		w.unlock(h)
	})
}

// The answer to a question says which waiters of the process are next, as that to a release does:
// the lock is passed on to them, and none of them asks.
func TestQueue_passedOnAfterAQuestion(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		holds := make(chan lock.Hold)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				h := w.take(w.a, fair, w.Context())
				time.Sleep(time.Millisecond)
				holds <- h
				w.unlock(h)
			})
			time.Sleep(2 * place.EntryPause)
		}
		w.unlock(h)
		first := <-holds
		for range 2 {
			if next := <-holds; next.Owner() != first.Owner() || next.Token() <= first.Token() {
				w.Error("a waiter that was next has asked")
			}
		}
		wg.Wait()
	})
}

func (w *world) inQueue() []string {
	queue, _ := w.mini.List("redisson_lock_queue:{orders}")
	return queue
}

// What a tenure was passed on from leaves the queue with it, however it ends.
func TestHandedOff_leavesNothing(t *testing.T) {
	for name, end := range map[string]func(w *world, h lock.Hold){
		"unlock":           func(w *world, h lock.Hold) { w.unlock(h) },
		"the holder stays": func(*world, lock.Hold) { time.Sleep(place.StrikePause) },
		"the holder stays, and Redis hears nothing for a while": func(w *world, _ lock.Hold) {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropRequest: true}))
			time.Sleep(2 * pollTime)
		},
		"close": func(w *world, h lock.Hold) {
			if err := w.a.Close(context.Background()); err != nil {
				w.Error(err)
			}
		},
		"an unlock whose answer is lost": func(w *world, h lock.Hold) {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
			_ = h.Unlock(w.Context())
			time.Sleep(10 * time.Second)
		},
		"an unlock that Redis hears of later": func(w *world, h lock.Hold) {
			w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DropRequest: true} })
			if h.Unlock(w.Context()) == nil {
				w.Error("nobody answered, and it is unlocked")
			}
			w.wire.OnRequest(nil)
			time.Sleep(4 * time.Second)
		},
		"it is lost": func(w *world, h lock.Hold) {
			w.wire.OnRequest(func(req [][]byte) redistest.Action { // nothing about the queue comes through before
				about := slices.ContainsFunc(req, func(word []byte) bool { return strings.Contains(string(word), "lock_queue") })
				return redistest.Action{DropRequest: about}
			})
			w.mini.Del("orders")
			<-h.Context().Done()
			if !errors.Is(h.Err(), lock.ErrLost) {
				w.Error(h.Err())
			}
			w.wire.OnRequest(nil)
			time.Sleep(2 * pollTime)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.passed()
				end(w, h)
				synctest.Wait()
				if queue := w.inQueue(); len(queue) != 0 {
					w.Errorf("%q stand in the queue", queue)
				}
				_ = h.Unlock(w.Context())
			})
		})
	}
}

// The same is true of a lock that stays locked after its Unlock, also if Redis does not hear of that
// at once.
func TestHandedOff_leavesNothingButTheLock(t *testing.T) {
	for name, act := range map[string]redistest.Action{"at once": {}, "later": {DropRequest: true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.passed(lock.WithMinHold(minute))
				w.wire.OnRequest(redistest.Once("EVALSHA", act))
				w.unlock(h)
				if queue := w.inQueue(); len(queue) != 0 {
					w.Errorf("%q stand in the queue", queue)
				}
				if left := w.mini.TTL("orders"); left > minute || left < minute-time.Second {
					w.Errorf("the lock stays for %v", left)
				}
				time.Sleep(minute)
			})
		})
	}
}
