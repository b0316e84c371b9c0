//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// In the queue of a fair lock, Java's waiters and ours wait behind each other, but compute their deadlines, until which
// they count as alive, in different ways.

// javaFairWait is how long one of Java's waiters counts as alive after the waiter before it.
const javaFairWait = 300 * time.Second

// fairCaller is a waiter of one side in the queue.
type fairCaller struct {
	who     string
	owner   string
	granted func() (returned int64) // waits until it has the lock
	unlock  func() (called int64)
	over    func() bool // whether its call has returned
	quit    func()      // stops waiting, or waits until its timeout has passed
}

// now returns the server's time in ms, the unit of deadlines.
func (s *javaScene) now() int64 {
	s.Helper()
	clock, err := do(s.T, s.rdb, "TIME").AsIntSlice()
	if err != nil {
		s.Fatal(err)
	}
	return clock[0]*1000 + clock[1]/1000
}

// members returns the queue, in order.
func (s *javaScene) members(name string) []string {
	s.Helper()
	list, _ := queue(name)
	members, err := do(s.T, s.rdb, "LRANGE", list, "0", "-1").AsStrSlice()
	if err != nil {
		s.Fatal(err)
	}
	return members
}

// behind returns the queue without the callers that were served. If the lock was handed off to one of our waiters, it
// stays in the queue until the last one in its process releases the lock.
func (s *javaScene) behind(name string, served ...*fairCaller) []string {
	s.Helper()
	return slices.DeleteFunc(s.members(name), func(owner string) bool {
		return slices.ContainsFunc(served, func(w *fairCaller) bool { return w.who != "Java" && w.owner == owner })
	})
}

// line makes a caller wait, and returns when it is, or was, the last in the queue.
func (s *javaScene) line(name string, begin func() *fairCaller) *fairCaller {
	s.Helper()
	before := s.members(name)
	w := begin()
	until(s.T, func() bool {
		now := s.members(name)
		if len(now) > 0 && !slices.Contains(before, now[len(now)-1]) {
			w.owner = now[len(now)-1]
			return true
		}
		return w.over()
	})
	return w
}

// queueOurs makes a goroutine wait.
func (s *javaScene) queueOurs(name string, options ...lock.Option) *fairCaller {
	s.Helper()
	return s.line(name, func() *fairCaller {
		ctx, cancel := context.WithCancel(s.Context())
		s.Cleanup(cancel)
		got := make(chan waiter, 1)
		go func() {
			h, err := s.c.NewFairLock(name, options...).Lock(ctx)
			got <- waiter{monotonic(), h, err}
		}()
		w := &fairCaller{who: "Go", over: func() bool { return len(got) > 0 }}
		var h lock.Hold
		w.granted = func() int64 {
			s.Helper()
			g := s.granted(got)
			h = g.hold
			return g.returned
		}
		w.unlock = func() int64 {
			s.Helper()
			called := monotonic()
			s.unlock(h)
			return called
		}
		w.quit = func() {
			s.Helper()
			cancel()
			if g := soon(s.T, got); !errors.Is(g.err, context.Canceled) || errors.Is(g.err, lock.ErrUnavailable) { // the reply may still be in transit
				s.Errorf("a waiter that gave up: %v", g.err)
			}
		}
		return w
	})
}

// queueJava makes a thread of Java wait, indefinitely or with a timeout.
func (s *javaScene) queueJava(name, thread string, times ...func(*javaRequest)) *fairCaller {
	s.Helper()
	return s.line(name, func() *fairCaller {
		l := s.java.lock(thread, fair, name)
		method := "lock"
		if len(times) > 0 {
			method = "tryLock"
		}
		answer := l.begin(s, method, times...)
		w := &fairCaller{who: "Java", over: func() bool { return len(answer) > 0 }}
		w.granted = func() int64 {
			s.Helper()
			d := value[did](s, must(s, receive(s, answer)))
			if len(times) > 0 && !result[bool](s, d) {
				s.Errorf("thread %s waited in vain", thread)
			}
			return d.Returned
		}
		w.unlock = func() int64 { s.Helper(); return l.unlock(s).Called }
		w.quit = func() {
			s.Helper()
			if result[bool](s, value[did](s, must(s, receive(s, answer)))) {
				s.Errorf("thread %s acquired the lock, want a timeout", thread)
			}
		}
		return w
	})
}

// Both sides are served in the order of arrival. The queue of one lock is never empty: a caller comes, of either side,
// and the first is served, repeatedly. Occasionally a waiter in the middle stops waiting.
//
//	1 the owner that is served is the first of the queue, and the queue behind it is unchanged
//	2 no waiter counts as dead, and no deadline moves away with the waiters that come and
//	go: it is at most the sum for as many as can wait at once
func TestJavaFair_mixedQueue(t *testing.T) {
	t.Parallel()
	const name, most = "fair", 6
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		random := rand.New(rand.NewPCG(seed(t), 1))
		s := newJavaScene(t, at)
		number := 0
		come := func() *fairCaller {
			number++
			if random.IntN(2) == 0 {
				return s.queueOurs(name)
			}
			return s.queueJava(name, strconv.Itoa(number), [][]func(*javaRequest){nil, {within(javaFairWait)}, {within(time.Minute), leased(javaLease)}}[random.IntN(3)]...)
		}
		var waits []time.Duration
		served, quits := map[string]int{}, 0

		var first *fairCaller
		if h := s.get(fair, name); true {
			first = &fairCaller{who: "Go", unlock: func() int64 { called := monotonic(); s.unlock(h); return called }}
		}
		var all, rest []*fairCaller // all that were served, and those still waiting
		for range amount(200) {
			for len(rest) < 2 || len(rest) < most && random.IntN(3) > 0 {
				rest = append(rest, come())
			}
			if random.IntN(5) == 0 { // a waiter comes, another one behind it, and the first one stops waiting
				number++
				var quitter *fairCaller
				if random.IntN(2) == 0 {
					quitter = s.queueOurs(name)
				} else {
					quitter = s.queueJava(name, strconv.Itoa(number), within(300*time.Millisecond))
				}
				rest = append(rest, come())
				quitter.quit()
				until(t, func() bool { return !slices.Contains(s.members(name), quitter.owner) })
				quits++
			}
			s.deadlines(name, all, rest, 2*(most+2)*javaFairWait) // 2

			called := first.unlock() // 1
			first, rest = rest[0], rest[1:]
			returned := first.granted()
			all = append(all, first)
			served[first.who]++
			waits = append(waits, time.Duration(returned-called))
			var want []string
			for _, w := range rest {
				want = append(want, w.owner)
			}
			if got := s.behind(name, all...); !slices.Equal(got, want) {
				t.Fatalf("after %v: %s was served, and then the queue is %q, want %q", served, first.owner, got, want)
			}
		}
		for _, w := range rest {
			first.unlock()
			w.granted()
			first = w
		}
		first.unlock()
		s.empty()
		t.Logf("%v were served in the order of arrival, and %d gave up; from unlock to lock: %s", served, quits, spread(waits))
	})
}

// deadlines checks that every waiter in the queue counts as alive, but not for too long. Callers that were served may
// still be queued: see behind.
func (s *javaScene) deadlines(name string, served, rest []*fairCaller, most time.Duration) {
	s.Helper()
	state, err := s.c.NewFairLock(name).Inspect(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	state.Waiters = slices.DeleteFunc(state.Waiters, func(w lock.Waiter) bool {
		return slices.ContainsFunc(served, func(s *fairCaller) bool { return s.owner == w.Owner })
	})
	if len(state.Waiters) != len(rest) {
		s.Fatalf("%d wait, want %d", len(state.Waiters), len(rest))
	}
	for i, w := range state.Waiters {
		if w.Owner != rest[i].owner {
			s.Errorf("number %d in the queue is %s, want %s", i+1, w.Owner, rest[i].owner)
		}
		if w.WaiterTimeout <= 0 || w.WaiterTimeout > most {
			s.Errorf("number %d in the queue, of %s, counts as alive for %v, want %v at the most", i+1, rest[i].who, w.WaiterTimeout, most)
		}
	}
}

// A thread of Java waits behind many of ours, and is served in order. None of them subtracts anything from its deadline
// that was not added before.
func TestJavaFair_behindManyOfOurs(t *testing.T) {
	t.Parallel()
	const name, many = "fair", 80
	s := newJavaScene(t, oneServer(t))
	h := s.get(fair, name)
	var line []*fairCaller
	for range many {
		line = append(line, s.queueOurs(name))
	}
	line = append(line, s.queueJava(name, "thread"), s.queueOurs(name))
	s.unlock(h)
	for i, w := range line {
		w.granted()
		if got, want := len(s.behind(name, line[:i+1]...)), len(line)-i-1; got != want {
			t.Fatalf("number %d was served, of %s; %d wait behind it, want %d", i+1, w.who, got, want)
		}
		w.unlock()
	}
	s.empty()
}

// A waiter of Java has been waiting for nearly as long as it can, and subtracts 300 s from all deadlines when it is
// served, although little of its own remains. Waiters of ours behind it keep their positions.
//
//	1 Go holds; a thread of Java waits, a goroutine, another thread, another goroutine
//	2 the first thread has been waiting for five minutes, by its deadline
//	3 all are served in order, although others call TryLock in between
func TestJavaFair_longWait(t *testing.T) {
	t.Parallel()
	const name = "fair"
	s := newJavaScene(t, oneServer(t))
	_, deadlines := queue(name)
	for range max(1, amount(5)) {
		h := s.get(fair, name) // 1
		line := []*fairCaller{s.queueJava(name, "first"), s.queueOurs(name), s.queueJava(name, "second"), s.queueOurs(name)}
		do(t, s.rdb, "ZADD", deadlines, "XX", fmt.Sprint(s.now()+10_000), line[0].owner) // 2
		until(t, func() bool {                                                           // our heartbeat has updated its deadline accordingly
			score, err := do(t, s.rdb, "ZSCORE", deadlines, line[1].owner).AsFloat64()
			return err == nil && score < float64(s.now())+(javaFairWait+2*lock.DefaultWaiterTimeout).Seconds()*1000
		})
		s.unlock(h) // 3
		for i, w := range line {
			w.granted()
			for range 5 {
				s.javaMay(fair, name, false) // every request of Java drops the dead
				s.goMay(fair, name, false)
			}
			var want []string
			for _, w := range line[i+1:] {
				want = append(want, w.owner)
			}
			if got := s.members(name); !slices.Equal(got, want) {
				t.Fatalf("number %d was served, and then the queue is %q, want %q", i+1, got, want)
			}
			w.unlock()
		}
	}
	s.empty()
}

// A thread of Java that waits for longer than its own deadline loses its position, even to ours. It is still served: it
// sends a request again when the lease in its last reply expires.
func TestJavaFair_waitsTooLong(t *testing.T) {
	t.Parallel()
	const name, dog = "fair", 10 * time.Second
	s := newJavaSceneWith(t, oneServer(t), dog)
	_, deadlines := queue(name)
	h := s.get(fair, name)
	w := s.queueJava(name, "thread")
	until(t, func() bool { return s.java.lock("thread", fair, name).sleeps(t) }) // it sends two requests before it sleeps
	do(t, s.rdb, "ZADD", deadlines, "XX", "1", w.owner)
	s.unlock(h)
	s.goMay(fair, name, true)
	w.granted()
	w.unlock()
	s.empty()
}

// A process dies that is the first in the queue. The next waiter, of the other side, is served when the dead one's
// deadline has passed.
//
//	1 Go holds; the doomed process waits, and then the other side
//	2 the doomed process is killed, and Go unlocks
//	3 the other one is served, not before the dead one's deadline, and soon after
func TestJavaFair_deadWaiter(t *testing.T) {
	t.Parallel()
	const name, stay, dog = "fair", 6 * time.Second, 2 * time.Second
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		served := func(t *testing.T, s *javaScene, h lock.Hold, dead string, w *fairCaller) {
			t.Helper()
			looked := monotonic() // before the server reads its clock, so end is not after its deadline
			state, err := s.c.NewFairLock(name).Inspect(t.Context())
			if err != nil || len(state.Waiters) != 2 || state.Waiters[0].Owner != dead {
				t.Fatalf("%+v wait (%v), want %s first", state.Waiters, err, dead)
			}
			end := looked + int64(state.Waiters[0].WaiterTimeout)
			calls := s.scripts(t)
			s.unlock(h)                              // 2
			late := time.Duration(w.granted() - end) // 3
			calls = s.scripts(t) - calls
			w.unlock()
			s.empty()
			if late < -5*time.Millisecond || late > poll+10*time.Second {
				t.Errorf("%s behind a dead one acquired the lock %v after its deadline, want about zero", w.who, late)
			}
			t.Logf("%s behind a dead waiter with a remaining waiter timeout of %v: served %v after its deadline, with %d scripts", w.who, state.Waiters[0].WaiterTimeout, late, calls)
		}
		t.Run("of Java", func(t *testing.T) {
			s := newJavaSceneWith(t, at, dog)
			doomed := *s
			doomed.java = startJava(t).open(t, s.options(javaOptions{FairWait: stay.Milliseconds()}))
			h := s.get(fair, name) // 1
			dead := doomed.queueJava(name, "doomed").owner
			w := s.queueOurs(name)
			doomed.java.java.kill()
			served(t, s, h, dead, w)
		})
		t.Run("of Go", func(t *testing.T) {
			s := newJavaSceneWith(t, at, dog)
			doomed := startWorker(t)
			doomed.do(t, request{Do: "open", Addr: s.addr()})
			h := s.get(fair, name) // 1
			dead := s.line(name, func() *fairCaller {
				doomed.send(t, request{Do: "lock", Kind: fair, Name: name, WaiterTimeout: stay, Wait: time.Hour})
				return &fairCaller{over: func() bool { return false }}
			}).owner
			w := s.queueJava(name, "thread")
			doomed.kill()
			served(t, s, h, dead, w)
		})
	})
}

// The first in the queue is notified that the lock is free, and stops waiting at that moment. Redisson then does not
// notify the next waiter, which sleeps for the lease in its last reply. Waiters of ours behind it do not sleep that
// long.
//
//	1 Go holds; a thread of Java waits, a second one, and a goroutine
//	2 the lock is released, and the first one is notified; it stops waiting
//	3 the second one is still served soon, and so is the goroutine
func TestJavaFair_headGivesUp(t *testing.T) {
	t.Parallel()
	const name = "fair"
	s := newJavaScene(t, oneServer(t))
	list, deadlines := queue(name)
	h := s.get(fair, name) // 1
	const first = "11111111-1111-4111-8111-111111111111:1"
	do(t, s.rdb, "RPUSH", list, first)
	do(t, s.rdb, "ZADD", deadlines, fmt.Sprint(s.now()+int64(javaLease/time.Millisecond)), first)
	second := s.queueJava(name, "thread")
	until(t, func() bool { return s.java.lock("thread", fair, name).sleeps(t) })
	third := s.queueOurs(name)
	s.unlock(h) // 2
	do(t, s.rdb, "LREM", list, "0", first)
	do(t, s.rdb, "ZREM", deadlines, first)
	start := monotonic()
	if took := time.Duration(second.granted() - start); took > javaLease/4 { // 3
		t.Errorf("the one behind it was served after %v", took)
	}
	second.unlock()
	third.granted()
	third.unlock()
	s.empty()
}

// No waiter that has left keeps its position: after clients of both sides died or stopped waiting, the lock is free for
// the next caller.
func TestJavaFair_othersClient(t *testing.T) {
	t.Parallel()
	const name = "fair"
	s := newJavaScene(t, oneServer(t))
	other := ours(t, s.client(t), client.WithWatchdogTimeout(javaLease))
	h, err := other.NewFairLock(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		s.queueJava(name, strconv.Itoa(i), within(100*time.Millisecond)).quit()
		s.queueOurs(name).quit()
	}
	until(t, func() bool { return len(s.members(name)) == 0 })
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	s.javaMay(fair, name, true)
	s.goMay(fair, name, true)
	s.empty()
}

// LEASEHOLD_TABLE=1 LEASEHOLD_REQUIRE_JAVA=1 go test -run TestJavaFair_table -v .
//
// It prints how often per second a fair lock changes hands, among 20 threads of Redisson and among 20 goroutines of one
// process, one after the other.
func TestJavaFair_table(t *testing.T) {
	if os.Getenv("LEASEHOLD_TABLE") == "" {
		t.Skip("LEASEHOLD_TABLE is not set")
	}
	const crowd, slice, rounds = 20, 2 * time.Second, 5
	s := newJavaScene(t, oneServer(t))
	java := func() int {
		answer := s.java.java.send(t, javaRequest{Do: "share", Client: s.java.name, Kind: fair, Name: "hot", Threads: crowd})
		time.Sleep(slice)
		s.java.java.send(t, javaRequest{Do: "enough"})
		return value[int](t, must(t, receive(t, answer)))
	}
	ours := func() int {
		l := s.c.NewFairLock("hot")
		end := time.Now().Add(slice)
		var n atomic.Int64
		var all sync.WaitGroup
		for range crowd {
			all.Go(func() {
				for time.Now().Before(end) {
					if h, err := l.Lock(t.Context()); err != nil {
						t.Error(err)
					} else if err := h.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
					n.Add(1)
				}
			})
		}
		all.Wait()
		return int(n.Load())
	}
	var times []float64
	for range rounds {
		theirs, mine := java(), ours()
		times = append(times, float64(mine)/float64(theirs))
		t.Logf("Redisson %.0f/s, leasehold %.0f/s", float64(theirs)/slice.Seconds(), float64(mine)/slice.Seconds())
	}
	slices.Sort(times)
	t.Logf("%.1f times as often (median of %d)", times[rounds/2], rounds)
}
