//go:build linux

package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/latch"
)

// javaLatch is a client of Redisson's handle of a latch.
type javaLatch struct {
	*redisson
	latch string
}

func (l javaLatch) request(method string, n int64) javaRequest {
	wait := promptTimeout.Milliseconds()
	return javaRequest{Do: "latch." + method, Client: l.name, Name: l.latch, N: n, Wait: &wait}
}

func (l javaLatch) creates(t *testing.T, n int64) bool {
	t.Helper()
	return asks[bool](t, l.redisson, l.request("trySetCount", n))
}

func (l javaLatch) counts(t *testing.T, want int64) {
	t.Helper()
	if got := asks[int64](t, l.redisson, l.request("getCount", 0)); got != want {
		t.Errorf("Java counts %d, want %d", got, want)
	}
}

func (l javaLatch) countsDown(t *testing.T) {
	t.Helper()
	must(t, receive(t, l.java.send(t, l.request("countDown", 0))))
}

func (l javaLatch) deletes(t *testing.T) bool {
	t.Helper()
	return asks[bool](t, l.redisson, l.request("delete", 0))
}

// awaits starts to wait, until the latch is released or the tests' timeout has passed.
func (l javaLatch) awaits(t *testing.T) <-chan reply {
	t.Helper()
	return l.java.send(t, l.request("await", 0))
}

// opened fails unless Java's await returned because the latch was released.
func opened(t *testing.T, answer <-chan reply) {
	t.Helper()
	var open bool
	if err := json.Unmarshal(must(t, receive(t, answer)).Value, &open); err != nil || !open {
		t.Errorf("Java's await: %v, %v", open, err)
	}
}

// waits waits for a latch in a separate goroutine.
func waits(t *testing.T, l *latch.Latch) <-chan error {
	done := make(chan error, 1)
	go func() { done <- l.Wait(t.Context()) }()
	return done
}

// latchListeners returns how many clients are subscribed for a latch.
func latchListeners(t *testing.T, at *javaSite, name string) (n int64) {
	t.Helper()
	for _, node := range at.nodes {
		for _, command := range []string{"NUMSUB", "SHARDNUMSUB"} {
			reply := node.Do(t, "PUBSUB", command, "redisson_countdownlatch__channel__{"+name+"}")
			if all, _ := reply.ToArray(); len(all) == 2 {
				count, _ := all[1].ToInt64()
				n += count
			}
		}
	}
	return n
}

// Java counts down and Go waits, and vice versa, whichever side creates the latch; and each wakes the other.
func TestJavaLatch(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		for i, goCreates := range []bool{true, false} {
			for j, goOpens := range []bool{true, false} {
				t.Run(fmt.Sprintf("made by Go %v, opened by Go %v", goCreates, goOpens), func(t *testing.T) {
					name := fmt.Sprint("done", i, j)
					l, java := s.c.NewLatch(name), javaLatch{s.java, name}
					create := func() {
						t.Helper()
						if !goCreates {
							if !java.creates(t, 3) {
								t.Fatal("Java could not make the latch")
							}
						} else if created, err := l.TrySetCount(t.Context(), 3); !created || err != nil {
							t.Fatal(created, err)
						}
					}
					left := func(want int64) {
						t.Helper()
						java.counts(t, want)
						if n, err := l.Count(t.Context()); n != want || err != nil {
							t.Errorf("Go counts %d, %v, want %d", n, err, want)
						}
					}
					for range 2 { // two rounds
						create()
						left(3)
						if created, err := l.TrySetCount(t.Context(), 5); created || err != nil {
							t.Error(created, err)
						}
						if java.creates(t, 5) {
							t.Error("Java made it, too")
						}
						ours, theirs := waits(t, l), java.awaits(t)
						until(t, func() bool { return latchListeners(t, at, name) == 2 })
						java.countsDown(t)
						left(2)
						if n, err := l.CountDown(t.Context()); n != 1 || err != nil {
							t.Fatal(n, err)
						}
						left(1)
						if len(ours)+len(theirs) > 0 {
							t.Fatal("one did not wait")
						}
						start := time.Now()
						if !goOpens {
							java.countsDown(t)
						} else if n, err := l.CountDown(t.Context()); n != 0 || err != nil {
							t.Fatal(n, err)
						}
						if err := soon(t, ours); err != nil {
							t.Error(err)
						}
						t.Logf("Go was notified after %v", time.Since(start))
						opened(t, theirs)
						left(0)
						opened(t, java.awaits(t))
						if err := l.Wait(t.Context()); err != nil {
							t.Errorf("an open latch: %v", err)
						}
						until(t, func() bool { return latchListeners(t, at, name) <= 1 }) // Java has unsubscribed from the first round
					}
				})
			}
		}
	})
}

// Redisson deletes a latch on which Go waits, and Go deletes one on which Java waits. This also checks bugs of
// Redisson, to detect when they change.
func TestJavaLatch_delete(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	l, java := s.c.NewLatch("done"), javaLatch{s.java, "done"}
	if !java.creates(t, 2) {
		t.Fatal("Java could not make the latch")
	}
	checks := s.nodes[0].CommandCalls(t, "get")
	theirs := java.awaits(t)
	// It reads the count, subscribes, and reads it again. Then it waits.
	until(t, func() bool {
		return latchListeners(t, s.javaSite, "done") == 1 && s.nodes[0].CommandCalls(t, "get") >= checks+2
	})
	if err := l.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	java.counts(t, 0)
	if err := l.Wait(t.Context()); !errors.Is(err, latch.ErrNotInitialized) {
		t.Errorf("a deleted latch: %v", err)
	}
	opened(t, java.awaits(t)) // to Redisson, a missing latch is released
	if len(theirs) > 0 {
		t.Error("Redisson's waiters learn of a deletion now: see package latch")
	}
	// The next round releases the waiter of the deleted round.
	if !java.creates(t, 1) {
		t.Fatal("Java could not create the latch again")
	}
	if n, err := l.CountDown(t.Context()); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	opened(t, theirs)

	// Redisson leaves a count of 0, which prevents Redisson, but not leasehold, from setting a new one.
	if !java.creates(t, 0) || java.creates(t, 3) {
		t.Error("Redisson's count of 0 is another now: see package latch")
	}
	if created, err := l.TrySetCount(t.Context(), 1); !created || err != nil {
		t.Errorf("made although Redisson left a 0: %v, %v", created, err)
	}
	if !java.deletes(t) {
		t.Error("Java could not delete it")
	}
	if slices.Contains([]bool{java.deletes(t)}, true) {
		t.Error("Java deleted it twice")
	}
}

// Both sides count down one latch concurrently, and each call counts once.
func TestJavaLatch_together(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	const each = 150
	l, java := s.c.NewLatch("done"), javaLatch{s.java, "done"}
	if created, err := l.TrySetCount(t.Context(), 2*each+1); !created || err != nil {
		t.Fatal(created, err)
	}
	ours, theirs := waits(t, l), java.awaits(t)
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for range each {
			java.countsDown(t)
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for range each {
			if _, err := l.CountDown(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}()
	<-done
	<-done
	java.counts(t, 1)
	if len(ours)+len(theirs) > 0 {
		t.Error("one did not wait")
	}
	java.countsDown(t)
	opened(t, theirs)
	if err := soon(t, ours); err != nil {
		t.Error(err)
	}
}
