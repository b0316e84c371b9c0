//go:build linux

package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"
)

// share is what the goroutines of a process do with one lock.
type share struct {
	N   int
	End int64 // by monotonic
}

// shareHistory is a list of who was inside, in that order.
const shareHistory = "history"

// Does each side get its turns of a plain lock that the other one never leaves free?
// Ours pass it on among themselves, inside a process without a command and between
// processes by the release, and Redisson's cannot stand in that line.
//
//	1 goroutines of two processes and threads of Java lock and unlock without a pause,
//	  many on the one side and few on the other
//	2 in the order in which they were inside, the few have a turn again and again: it
//	  would be none, or one at the end, if they were not let in
func TestJava_share(t *testing.T) {
	const (
		took  = 3 * time.Second
		least = 5 // turns; on a machine that does nothing else it is a hundred
	)
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		for _, test := range []struct {
			name                string
			goroutines, threads int // the former in each of two processes
		}{
			{"many of ours", 20, 2},
			{"many of Java", 1, 20},
		} {
			t.Run(test.name, func(t *testing.T) {
				s := newJavaScene(t, at)
				end := monotonic() + int64(took)
				var answers []<-chan reply
				for range 2 { // 1
					w := startWorker(t)
					w.do(t, request{Do: "open", Addr: s.addr()})
					answers = append(answers, w.send(t, request{Do: "share", Name: "busy", Share: &share{test.goroutines, end}}))
				}
				answers = append(answers, s.java.java.send(t, javaRequest{Do: "share", Client: s.java.name, Name: "busy", Threads: test.threads, End: end, History: shareHistory}))
				var sections []int
				total := 0
				for _, answer := range answers {
					n := value[int](t, must(t, receiveWithin(t, answer, took+javaLease)))
					sections = append(sections, n)
					total += n
				}
				history, err := do(t, s.rdb, "LRANGE", shareHistory, "0", "-1").AsStrSlice()
				if err != nil || len(history) != total {
					t.Fatalf("%d were inside, want %d (%v)", len(history), total, err)
				}
				turns, run := map[string]int{}, 0 // 2
				longest := map[string]int{}
				for i, who := range history {
					if i == 0 || history[i-1] != who {
						turns[who]++
						run = 0
					}
					run++
					longest[who] = max(longest[who], run)
				}
				if turns["go"] < least || turns["java"] < least {
					t.Errorf("turns in %v: %v; want at least %d each", took, turns, least)
				}
				t.Logf("in %v: %d sections in our two processes and in Java; turns: %v; the longest of sections: %v", took, sections, turns, longest)
				do(t, s.rdb, "DEL", shareHistory)
				s.empty()
			})
		}
	})
}

// share locks and unlocks until the end, and returns how often.
func (p *process) share(ctx context.Context, r request) (int, error) {
	l := r.Kind.lock(p.client, r.Name)
	type result struct {
		n   int
		err error
	}
	results := make(chan result)
	for range r.Share.N {
		go func() {
			var done result
			for done.err == nil && monotonic() < r.Share.End {
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
	for range r.Share.N {
		done := <-results
		all.n += done.n
		all.err = errors.Join(all.err, done.err)
	}
	return all.n, all.err
}
