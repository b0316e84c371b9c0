//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// javaPlan is the work of the contenders of one process. It and the code below have a counterpart in Java:
// redisson/src/main/java/leasehold/interop/Contest.java.
type javaPlan struct {
	Clients []string    `json:"clients,omitempty"`
	Locks   []javaPlace `json:"locks"`
	Threads int         `json:"threads"`
	Millis  int64       `json:"millis"` // duration
	Pause   int         `json:"pause"`  // maximum ms between two locks of a thread
	Seed    int64       `json:"seed"`
}

// javaPlace is a lock, or one side of it.
type javaPlace struct {
	Kind kind   `json:"kind"`
	Name string `json:"name"`
}

// javaTally is the result. Times are in ns.
type javaTally struct {
	Waits, Refused int // calls that waited, and calls that failed
	Written, Read  int // sections
	Wrong          []string
	HandOvers      []int64        // from the release by the other side to the grant
	Longest        map[kind]int64 // longest wait
}

func (a *javaTally) add(b javaTally) {
	a.Waits += b.Waits
	a.Refused += b.Refused
	a.Written += b.Written
	a.Read += b.Read
	a.Wrong = append(a.Wrong, b.Wrong...)
	a.HandOvers = append(a.HandOvers, b.HandOvers...)
	for k, ns := range b.Longest {
		a.longest(k, ns)
	}
}

// complete reports whether everything that the test covers has happened.
func (a *javaTally) complete() bool {
	return a.Written > 0 && a.Read > 0 && a.Refused > 0 && len(a.HandOvers) > 0
}

func (a *javaTally) longest(k kind, ns int64) {
	if a.Longest == nil {
		a.Longest = make(map[kind]int64)
	}
	a.Longest[k] = max(a.Longest[k], ns)
}

// Goroutines and threads of Java that acquire the same twenty locks, of all types and in all ways, never overlap, and
// all of them are served. LEASEHOLD_SOAK is the duration; the default is a few seconds. The checks use keys in Redis:
//
//	inside:<name>   the number of exclusive holders; from 0 to 1 and back
//	reading:<name>  the number of readers; 0 while there is an exclusive holder
//	updates:<name>  read, and written plus one: a lost update was an overlap
//	written:<name>  when the latest writer left, and its side
//	read:<name>     the same for readers
//
// A caller that has waited since before the latest owner of the other side left measures the hand-off time.
func TestJava_soak(t *testing.T) {
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		took := 5 * time.Second
		if testing.Short() {
			took = time.Second
		}
		if given := os.Getenv("LEASEHOLD_SOAK"); given != "" {
			var err error
			if took, err = time.ParseDuration(given); err != nil {
				t.Fatalf("LEASEHOLD_SOAK: %v", err)
			}
		}
		random := rand.New(rand.NewPCG(seed(t), 0))
		s := newJavaScene(t, at)
		plan := javaPlan{Threads: 10, Millis: took.Milliseconds(), Pause: 20}
		var names []string
		for i := range 5 {
			for _, kinds := range [][]kind{{plain}, {fair}, {fenced}, {write, read, read}} {
				name := fmt.Sprint(kinds[0], i)
				names = append(names, name)
				for _, k := range kinds {
					plan.Locks = append(plan.Locks, javaPlace{k, name})
				}
			}
		}

		w := watchWriters(s, names)
		javas := []*java{s.java.java, startJava(t)} // two processes, two clients each
		clients := make([][]string, len(javas))
		for i, j := range javas {
			for range 2 {
				clients[i] = append(clients[i], j.open(t, s.options(javaOptions{Watchdog: javaLease.Milliseconds()})).name)
			}
		}
		var rdbs []rueidis.Client
		var ourClients []*client.Client
		for range 2 {
			rdb := s.client(t)
			rdbs, ourClients = append(rdbs, rdb), append(ourClients, ours(t, rdb, client.WithWatchdogTimeout(javaLease)))
		}
		var inJava, inGo javaTally
		for again := 0; again == 0 || again < 20 && !(inJava.complete() && inGo.complete()); again++ { // on a busy machine little happens in one run
			var answers []<-chan reply
			for i, j := range javas {
				plan := plan
				plan.Seed, plan.Clients = random.Int64(), clients[i]
				answers = append(answers, j.send(t, javaRequest{Do: "contest", Contest: &plan}))
			}
			var parts [2]javaTally
			var wg sync.WaitGroup
			for i := range parts {
				seed := random.Uint64()
				wg.Go(func() { parts[i] = javaContest(s.Context(), rdbs[i], ourClients[i], plan, seed) })
			}
			wg.Wait()
			for _, part := range parts {
				inGo.add(part)
			}
			for _, answer := range answers {
				inJava.add(value[javaTally](t, must(t, w.receive(answer))))
			}
		}
		w.heardAll()

		for _, wrong := range append(inJava.Wrong, inGo.Wrong...) {
			t.Error(wrong)
		}
		updates := 0
		for _, name := range names {
			n, err := do(t, s.rdb, "GET", "updates:"+name).AsInt64()
			if err != nil && !rueidis.IsRedisNil(err) {
				t.Fatal(err)
			}
			updates += int(n)
			for _, prefix := range []string{"inside:", "reading:", "updates:", "written:", "read:"} {
				do(t, s.rdb, "DEL", prefix+name) // one by one, because they are in different slots
			}
		}
		if updates != inJava.Written+inGo.Written {
			t.Errorf("%d updates in %d sections: some overlapped", updates, inJava.Written+inGo.Written)
		}
		for _, side := range []struct {
			name  string
			tally javaTally
		}{{"Java", inJava}, {"Go", inGo}} {
			name, tally := side.name, side.tally
			longest := make(map[kind]time.Duration)
			for k, ns := range tally.Longest {
				longest[k] = time.Duration(ns).Round(time.Millisecond)
				if longest[k] > javaLease/2 {
					t.Errorf("%s lock: a caller in %s waited for %v and was not woken", k, name, longest[k])
				}
			}
			if !tally.complete() {
				t.Errorf("%s did not do all that it should: %+v", name, tally)
			}
			var handOvers []time.Duration
			for _, ns := range tally.HandOvers {
				handOvers = append(handOvers, time.Duration(ns))
			}
			t.Logf("%s: %d sections alone, %d of readers, %d waited, %d refused; the longest waits were %v; %d times handed off from the other side: %s",
				name, tally.Written, tally.Read, tally.Waits, tally.Refused, longest, len(handOvers), spread(handOvers))
		}
		s.empty()
	})
}

// javaWatch subscribes to read/write locks, and wakes threads of Redisson that missed their message.
//
// When a writer leaves, Redisson counts the sleeping threads, and wakes as many. It does not count a thread that was
// refused but does not sleep yet: that thread sleeps until the lease in its reply has expired, unless another owner
// leaves (redisson/redisson#4744). This also happens among threads of Java alone: on a busy machine, one contest in
// fifty ended that way.
type javaWatch struct {
	*javaScene
	names []string
	told  map[string]*atomic.Int64 // name -> when the latest message came
}

// watchWriters watches the read/write locks among names.
func watchWriters(s *javaScene, names []string) *javaWatch {
	w := &javaWatch{javaScene: s, told: make(map[string]*atomic.Int64)}
	ctx, cancel := context.WithCancel(s.Context())
	var wg sync.WaitGroup
	s.Cleanup(func() { cancel(); wg.Wait() })
	rdb := s.client(s.T)
	for _, name := range names {
		if !strings.HasPrefix(name, string(write)) {
			continue
		}
		told := new(atomic.Int64)
		w.names, w.told[name] = append(w.names, name), told
		channel := javaChannel(write, name)
		listen := rdb.B().Subscribe().Channel(channel).Build()
		if s.pubsub == client.PubSubSharded {
			listen = rdb.B().Ssubscribe().Channel(channel).Build()
		}
		wg.Go(func() {
			_ = rdb.Receive(ctx, listen, func(rueidis.PubSubMessage) { told.Store(monotonic()) })
		})
		s.listens(channel)
	}
	return w
}

// receive returns the reply of a Java worker. In the meantime, once all of ours have finished, it wakes threads there.
func (w *javaWatch) receive(answer <-chan reply) reply {
	w.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	tooLate := time.After(2 * javaLease)
	for {
		select {
		case r, ok := <-answer:
			if !ok {
				w.Fatal("the worker ended instead of answering")
			}
			return r
		case <-tick.C:
			for _, name := range w.names {
				w.wake(name)
			}
		case <-tooLate:
			w.Fatalf("no reply from a worker within %v", 2*javaLease)
		}
	}
}

// wake repeats the message of a free lock, unless there was none since the latest owner left: then the sleeping threads
// were never notified, and the test must detect how long they sleep.
func (w *javaWatch) wake(name string) {
	w.Helper()
	if held, err := do(w.T, w.rdb, "EXISTS", name).AsInt64(); held != 0 || err != nil || !w.heard(name) {
		return
	}
	publish := "PUBLISH"
	if w.pubsub == client.PubSubSharded {
		publish = "SPUBLISH"
	}
	do(w.T, w.rdb, publish, javaChannel(write, name), "1")
}

// heard reports whether a message has arrived since the latest owner left.
func (w *javaWatch) heard(name string) bool {
	w.Helper()
	var left int64
	for _, prefix := range []string{"written:", "read:"} {
		stamp, _ := do(w.T, w.rdb, "GET", prefix+name).ToString() // "" if there was none
		when, _, _ := strings.Cut(stamp, " ")
		n, _ := strconv.ParseInt(when, 10, 64)
		left = max(left, n)
	}
	return w.told[name].Load() >= left
}

// heardAll fails if no message was published after the latest owner left.
func (w *javaWatch) heardAll() {
	w.Helper()
	deadline := time.Now().Add(promptTimeout)
	for _, name := range w.names {
		for !w.heard(name) { // it may be in transit
			if time.Now().After(deadline) {
				w.Errorf("%s: no message since the latest owner left", name)
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// javaContest runs the contenders of one of our clients.
func javaContest(ctx context.Context, rdb rueidis.Client, c *client.Client, plan javaPlan, seed uint64) javaTally {
	end := time.Now().Add(time.Duration(plan.Millis) * time.Millisecond)
	parts := make([]javaContender, plan.Threads)
	var wg sync.WaitGroup
	for i := range parts {
		p := &parts[i]
		p.client, p.rdb, p.random = c, rdb, rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for time.Now().Before(end) && len(p.Wrong) == 0 {
				time.Sleep(time.Duration(p.random.IntN(plan.Pause)) * time.Millisecond) // the load
				p.once(ctx, plan.Locks[p.random.IntN(len(plan.Locks))])
			}
		})
	}
	wg.Wait()
	var all javaTally
	for _, p := range parts {
		all.add(p.javaTally)
	}
	return all
}

// javaContender is one of our goroutines.
type javaContender struct {
	javaTally
	client *client.Client
	rdb    rueidis.Client
	random *rand.Rand
}

// once acquires one lock in one of the possible ways, and releases it.
func (p *javaContender) once(ctx context.Context, place javaPlace) {
	ctx = lock.ContextWithNewOwner(ctx)
	l := goLock(p.client, place.Kind, place.Name)
	ask := l.Lock
	switch dice := p.random.IntN(100); {
	case dice < 50:
	case dice < 65:
		ask = goLock(p.client, place.Kind, place.Name, lock.WithFixedLease(javaLease)).Lock
	case dice < 80:
		ask = l.TryLock
	default:
		ask = goLock(p.client, place.Kind, place.Name, lock.WithWait(time.Duration(1+p.random.IntN(20))*time.Millisecond)).Lock
	}
	called := monotonic()
	h, err := ask(ctx)
	granted := monotonic()
	if err != nil {
		if !errors.Is(err, lock.ErrNotAcquired) && !errors.Is(err, os.ErrDeadlineExceeded) { // the timeout can be shorter than a round trip
			p.wrong(place, "%v", err)
		}
		p.Refused++
		return
	}
	p.longest(place.Kind, granted-called)
	holds := []lock.Hold{h}
	for p.random.IntN(4) == 0 {
		again, err := l.TryLock(ctx)
		if err != nil {
			p.wrong(place, "a reentry: %v", err)
			break
		}
		holds = append(holds, again)
	}
	p.section(ctx, place, called, granted)
	for _, h := range holds {
		if err := errors.Join(h.Err(), h.Unlock(ctx)); err != nil {
			p.wrong(place, "%v", err)
		}
	}
}

func (p *javaContender) section(ctx context.Context, place javaPlace, called, granted int64) {
	if place.Kind == read {
		p.count(ctx, place, "INCR", "reading:")
		p.expect(place, "writers beside a reader", p.count(ctx, place, "GET", "inside:"), 0)
		p.expect(place, "writers beside a reader that leaves", p.count(ctx, place, "GET", "inside:"), 0)
		p.handedOver(ctx, place, called, granted, "written:")
		p.stamp(ctx, place, "read:")
		p.count(ctx, place, "DECR", "reading:")
		p.Read++
		return
	}
	p.expect(place, "inside", p.count(ctx, place, "INCR", "inside:"), 1)
	before := p.count(ctx, place, "GET", "updates:")
	p.expect(place, "readers beside a writer", p.count(ctx, place, "GET", "reading:"), 0)
	p.handedOver(ctx, place, called, granted, "written:", "read:")
	p.count(ctx, place, "SET", "updates:", strconv.FormatInt(before+1, 10))
	p.expect(place, "left inside", p.count(ctx, place, "DECR", "inside:"), 0)
	p.stamp(ctx, place, "written:")
	p.Written++
}

// count changes a counter of the place, and returns its new value.
func (p *javaContender) count(ctx context.Context, place javaPlace, command, prefix string, more ...string) int64 {
	reply := p.rdb.Do(ctx, p.rdb.B().Arbitrary(command).Keys(prefix+place.Name).Args(more...).Build())
	if command == "SET" {
		if err := reply.Error(); err != nil {
			p.wrong(place, "%s %s: %v", command, prefix, err)
		}
		return 0
	}
	n, err := reply.AsInt64()
	if err != nil && !rueidis.IsRedisNil(err) {
		p.wrong(place, "%s %s: %v", command, prefix, err)
	}
	return n
}

// stamp records that one of our owners leaves now.
func (p *javaContender) stamp(ctx context.Context, place javaPlace, prefix string) {
	p.count(ctx, place, "SET", prefix, fmt.Sprint(monotonic(), " go"))
}

// handedOver records the time between a Java owner's release and our grant, if we were already waiting at the release.
func (p *javaContender) handedOver(ctx context.Context, place javaPlace, called, granted int64, prefixes ...string) {
	var at int64
	var by string
	for _, prefix := range prefixes {
		stamp, err := p.rdb.Do(ctx, p.rdb.B().Get().Key(prefix+place.Name).Build()).ToString()
		if err != nil && !rueidis.IsRedisNil(err) {
			p.wrong(place, "%v", err)
		}
		when, who, _ := strings.Cut(stamp, " ")
		if n, _ := strconv.ParseInt(when, 10, 64); n > at {
			at, by = n, who
		}
	}
	if at > called && at < granted {
		p.Waits++
		if by == "java" {
			p.HandOvers = append(p.HandOvers, granted-at)
		}
	}
}

func (p *javaContender) expect(place javaPlace, what string, got, want int64) {
	if got != want {
		p.wrong(place, "%s: %d, not %d", what, got, want)
	}
}

func (p *javaContender) wrong(place javaPlace, format string, args ...any) {
	p.Wrong = append(p.Wrong, fmt.Sprintf("Go: %s lock %s: ", place.Kind, place.Name)+fmt.Sprintf(format, args...))
}
