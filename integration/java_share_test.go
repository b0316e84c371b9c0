//go:build linux

package integration_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"
)

// shareHistory is a list of the sides that held the lock, in order.
const shareHistory = "history"

// Each side regularly acquires a plain lock that the other one never leaves free. Our clients hand it off among
// themselves, without a command inside a process, and with the release between processes. Redisson's clients cannot
// join that queue.
//
//	1 goroutines of two processes and threads of Java lock and unlock without a pause,
//	many on the one side and few on the other
//	2 in the history both sides have the lock repeatedly
func TestJava_share(t *testing.T) {
	const least = 20 // turns; on an idle machine it takes half a second
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		for _, test := range []struct {
			name                string
			goroutines, threads int // goroutines is the number in each of two processes
		}{
			{"many of ours", 20, 2},
			{"many of Java", 1, 20},
		} {
			t.Run(test.name, func(t *testing.T) {
				s := newJavaScene(t, at)
				workers := []*worker{startWorker(t), startWorker(t)} // 1
				var answers []<-chan reply
				for _, w := range workers {
					w.do(t, request{Do: "open", Addr: s.addr()})
					answers = append(answers, w.send(t, request{Do: "share", Name: "busy", Share: test.goroutines}))
				}
				answers = append(answers, s.java.java.send(t, javaRequest{Do: "share", Client: s.java.name, Name: "busy", Threads: test.threads, History: shareHistory}))
				start := time.Now()
				h := newHistory(s)
				for h.turns["java"] < least || h.turns["go"] < least { // 2
					if time.Since(start) > promptTimeout {
						t.Errorf("turns in %v: %v; want %d each", promptTimeout, h.turns, least)
						break
					}
					if !h.read() {
						time.Sleep(time.Millisecond)
					}
				}
				took := time.Since(start)
				s.java.java.send(t, javaRequest{Do: "enough"})
				for _, w := range workers {
					w.send(t, request{Do: "enough"})
				}
				total := 0
				for _, answer := range answers {
					total += value[int](t, must(t, receive(t, answer)))
				}
				for h.read() {
				}
				if h.sections != total {
					t.Errorf("%d were inside, want %d", h.sections, total)
				}
				t.Logf("%d sections, the first %d turns of each side in %v; the longest turns were %v", total, least, took, h.longest)
				do(t, s.rdb, "DEL", shareHistory)
				s.empty()
			})
		}
	})
}

// sides summarizes the part of shareHistory that was read: the latest side, its current streak, and the longest
// streaks.
type sides struct {
	s        *javaScene
	sections int
	last     string
	run      int
	turns    map[string]int
	longest  map[string]int
}

func newHistory(s *javaScene) *sides {
	return &sides{s: s, turns: make(map[string]int), longest: make(map[string]int)}
}

// read reads the next part, and reports whether there was more.
func (h *sides) read() bool {
	h.s.Helper()
	more, err := do(h.s.T, h.s.rdb, "LRANGE", shareHistory, strconv.Itoa(h.sections), strconv.Itoa(h.sections+10_000)).AsStrSlice()
	if err != nil {
		h.s.Fatal(err)
	}
	for _, who := range more {
		if who != h.last {
			h.last, h.run = who, 0
			h.turns[who]++
		}
		h.run++
		h.longest[who] = max(h.longest[who], h.run)
	}
	h.sections += len(more)
	return len(more) > 0
}

// share locks and unlocks until enough is set, and returns the number of times.
func (p *process) share(ctx context.Context, r request) (int, error) {
	p.enough.Store(false)
	l := r.Kind.lock(p.client, r.Name)
	type result struct {
		n   int
		err error
	}
	results := make(chan result)
	for range r.Share {
		go func() {
			var done result
			for done.err == nil && !p.enough.Load() {
				h, err := l.Lock(ctx)
				if err != nil {
					done.err = err
					break
				}
				err = p.side.Do(ctx, p.side.B().Rpush().Key(shareHistory).Element("go").Build()).Error()
				done.err = errors.Join(err, h.Unlock(ctx))
				done.n++
			}
			results <- done
		}()
	}
	var all result
	for range r.Share {
		done := <-results
		all.n += done.n
		all.err = errors.Join(all.err, done.err)
	}
	return all.n, all.err
}
