//go:build linux

package integration_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// poll is the poll interval: how long a waiter relies on notifications alone, as in package client.
const poll = time.Second

// A process that is killed while it holds a lock delays the others until its lease expires: for the remaining lease on the
// server, and not before Until.
//
//	1 a worker holds the lock, another waits for it (to write, if the first reads)
//	2 the holder is killed, at a random instant
//	3 the waiter acquires the lock, within that lease and a poll interval
func TestCrash_holder(t *testing.T) { eachKind(t, testCrashHolder, plain, fair, read, write) }

func testCrashHolder(t *testing.T, k kind) {
	const (
		side    = 8               // at once
		longest = 2 * time.Second // maximum lease
	)
	n := amount(20)
	if k == plain {
		n = amount(40)
	}
	s := seed(t)
	server := redistest.Start(t)
	rdb := server.Client(t)
	rounds := make(chan int)
	go func() {
		defer close(rounds)
		for i := range n {
			rounds <- i
		}
	}()
	var mu sync.Mutex
	var after, late []time.Duration // time of the grant: after the kill; after the lease expired
	var wg sync.WaitGroup
	for i := range side {
		random := rand.New(rand.NewPCG(s, uint64(i)))
		waiter := startWorker(t)
		waiter.do(t, request{Do: "open", Addr: server.Addr()})
		wg.Go(func() {
			for range rounds {
				name := "crash" + string(rune('A'+i))
				dog := time.Duration(1000+random.IntN(1000)) * time.Millisecond
				var lease time.Duration
				if random.IntN(2) == 0 {
					lease = time.Duration(1000+random.IntN(1000)) * time.Millisecond
				}
				holder := startWorker(t)
				holder.do(t, request{Do: "open", Addr: server.Addr(), Dog: dog})
				dead := value[granted](t, holder.do(t, request{Do: "lock", Kind: k, Name: name, Lease: lease, Wait: promptTimeout})) // 1
				waiting := waiter.send(t, request{Do: "lock", Kind: k.rival(), Name: name, Wait: promptTimeout})
				time.Sleep(time.Duration(random.Int64N(int64(cmp.Or(lease, dog)) * 9 / 10))) // the schedule of the fault
				killed := monotonic()
				holder.kill() // 2
				left, err := rdb.Do(t.Context(), rdb.B().Pttl().Key(k.lease(name, dead.Op.Owner)).Build()).AsInt64()
				if err != nil {
					t.Errorf("PTTL: %v", err)
				}
				end := monotonic() + max(left, 0)*int64(time.Millisecond)

				next := value[granted](t, must(t, receive(t, waiting))) // 3
				if next.Op.Return < dead.Op.Until {
					t.Errorf("%s: the waiter acquired it %v before the dead holder's Until", name, time.Duration(dead.Op.Until-next.Op.Return))
				}
				mu.Lock()
				after = append(after, time.Duration(next.Op.Return-killed))
				late = append(late, time.Duration(next.Op.Return-end))
				mu.Unlock()
				waiter.do(t, request{Do: "unlock", Hold: next.Hold})
			}
			waiter.do(t, request{Do: "close"})
		})
	}
	wg.Wait()
	// The median, because the machine may pause for a while.
	if got := median(late); got > poll {
		t.Errorf("the waiters acquired it %v after the end of the lease; want at most a poll interval", got)
	}
	if got := median(after); got > longest+poll {
		t.Errorf("the waiters acquired it %v after the holder was killed; want at most %v", got, longest+poll)
	}
	noKeys(t, server)
	t.Logf("%d holders killed: the next holder acquired the lock after: median %v, max %v; after the end of the lease: median %v, max %v",
		len(after), median(after), slices.Max(after), median(late), slices.Max(late))
}

// A process that is killed while it waits does not disturb others.
//
//	1 this process holds the lock, two workers wait for it
//	2 one of them, the first of a queue, is killed; in every second round at the
//	same time as 3, so that it may have acquired the lock at the last instant
//	3 this process unlocks
//	4 the other one acquires the lock: immediately, or in a queue after the waiter timeout
//	of the killed one, or when its lease expires
//	5 the killed one leaves nothing behind
func TestCrash_waiter(t *testing.T) { eachKind(t, testCrashWaiter, plain, fair, write) }

func testCrashWaiter(t *testing.T, k kind) {
	const dog, stay = 600 * time.Millisecond, 300 * time.Millisecond
	n := amount(20)
	if k == plain {
		n = amount(40)
	}
	random := rand.New(rand.NewPCG(seed(t), 0))
	server := redistest.Start(t)
	rdb := server.Client(t)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	survivor := startWorker(t)
	survivor.do(t, request{Do: "open", Addr: server.Addr()})
	var took, early, behind []time.Duration // all; killed before the unlock; killed at that moment, when it may have acquired the lock
	for round := range n {
		name := fmt.Sprintf("waiter%d", round) // the subscription of the survivor lingers for seconds
		waiters := func(n int64) {             // waits until n callers wait
			t.Helper()
			if k == fair {
				until(t, func() bool { return queued(t, rdb, name) == n })
			} else {
				subscribers(t, rdb, k.channel(name), n)
			}
		}
		h, err := k.lock(c, name).Lock(t.Context()) // 1
		if err != nil {
			t.Fatal(err)
		}
		doomed := startWorker(t)
		doomed.do(t, request{Do: "open", Addr: server.Addr(), Dog: dog})
		doomed.send(t, request{Do: "lock", Kind: k, Name: name, WaiterTimeout: stay, Wait: promptTimeout})
		waiters(1)
		waiting := survivor.send(t, request{Do: "lock", Kind: k, Name: name, WaiterTimeout: stay, Wait: promptTimeout})
		waiters(2)

		sharp := round%2 == 1
		unlocked := make(chan error, 1)
		if sharp { // 2, 3
			go func() { unlocked <- h.Unlock(t.Context()) }()
			time.Sleep(time.Duration(random.Int64N(int64(time.Millisecond)))) // the schedule of the fault
			doomed.kill()
		} else {
			doomed.kill()
			if k != fair {
				waiters(1)
			}
			unlocked <- h.Unlock(t.Context())
		}
		start := monotonic()
		if err := <-unlocked; err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		next := value[granted](t, must(t, receive(t, waiting))) // 4
		got := time.Duration(next.Op.Return - start)
		took = append(took, got)
		if !sharp {
			early = append(early, got)
		} else if got > 100*time.Millisecond {
			behind = append(behind, got)
		}
		survivor.do(t, request{Do: "unlock", Hold: next.Hold})
		if k == fair { // 5
			waiters(0)
		} else {
			until(t, func() bool { return subscribed(t, rdb, k.channel(name)) <= 1 }) // the survivor's subscription, which lingers for a while
		}
		// The intent of a dead writer expires with its waiter timeout. A plain lock may have been granted to the dead
		// process, if it died before its request from the subscribed client.
		until(t, func() bool { return k == fair || dbsize(t, rdb) == 0 })
		noKeys(t, server)
	}
	survivor.do(t, request{Do: "close"})
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	most := poll / 2 // the unlock wakes it before the next poll
	if k == fair {
		most = stay + poll
	}
	if got := median(early); got > most { // the median, because the machine may pause for a while
		t.Errorf("killed before the unlock: the other waiter acquired the lock after %v, want %v", got, most)
	}
	if len(behind) > 0 && median(behind) > dog+stay+poll {
		t.Errorf("killed at the moment of the unlock: the other waiter acquired the lock after %v, want %v", median(behind), dog+stay+poll)
	}
	t.Logf("%d waiters killed: the other waiter acquired the lock after the unlock: median %v, max %v; of those killed at the unlock, it had to wait for %d",
		len(took), median(took), slices.Max(took), len(behind))
}

// A killed reader blocks a writer no longer than its own lease, although others continue to read and are renewed.
//
//	1 two workers read, and renew; a third wants to write
//	2 the first is killed
//	3 its lease expires in time, while the second one's is renewed and blocks the writer
//	4 early: the second stops reading immediately. The writer enters when the lease of
//	the killed one expires
//	late: the second stops reading after that. The writer enters immediately
func TestCrash_reader(t *testing.T) {
	t.Parallel()
	const lease, name = 6 * time.Second, "rw"
	for _, test := range []struct {
		name string
		late bool
	}{{"early", false}, {"late", true}} {
		t.Run(test.name, func(t *testing.T) {
			server := redistest.Start(t)
			rdb := server.Client(t)
			c := ours(t, rdb)
			var workers [3]*worker
			for i := range workers {
				workers[i] = startWorker(t)
				workers[i].do(t, request{Do: "open", Addr: server.Addr(), Dog: lease})
			}
			var readers [2]granted
			for i := range readers { // 1
				readers[i] = value[granted](t, workers[i].do(t, request{Do: "lock", Kind: read, Name: name, Wait: promptTimeout}))
			}
			waiting := workers[2].send(t, request{Do: "lock", Kind: write, Name: name, Wait: time.Hour})
			subscribers(t, rdb, write.channel(name), 1)
			pttl := func(i int) time.Duration {
				ms, err := rdb.Do(t.Context(), rdb.B().Pttl().Key(read.lease(name, readers[i].Op.Owner)).Build()).AsInt64()
				if err != nil {
					t.Fatal(err)
				}
				return time.Duration(ms) * time.Millisecond
			}

			workers[0].kill() // 2
			killed := monotonic()
			var standing time.Duration // of the living reader's lease, before it leaves
			if test.late {             // 3
				for last := lease; last >= 0; {
					since := time.Duration(monotonic() - killed)
					left := pttl(0)
					if left > last {
						t.Fatalf("the lease of a dead reader grew from %v to %v", last, left)
					}
					last = left
					if left >= 0 && since > lease+poll {
						t.Fatalf("%v after a reader died, %v of its lease of %v are left", since, left, lease)
					}
					select {
					case <-waiting:
						t.Fatal("the writer was admitted while one reads")
					case <-time.After(10 * time.Millisecond):
					}
				}
				if standing = pttl(1); standing <= 0 {
					t.Errorf("the living reader has %v left of its lease", standing)
				}
				state, err := read.inspect(t.Context(), c, name)
				if err != nil || len(state.Holders) != 1 || state.Holders[0].Owner != readers[1].Op.Owner {
					t.Errorf("the holders are %+v (%v), want the living reader", state.Holders, err)
				}
			}
			released := monotonic() // 4
			workers[1].do(t, request{Do: "unlock", Hold: readers[1].Hold})
			g := value[granted](t, must(t, receive(t, waiting)))
			took := time.Duration(g.Op.Return - killed)
			if !test.late && took > 2*lease {
				t.Errorf("the writer entered %v after a reader with a lease of %v died", took, lease)
			}
			if g.Op.Return < readers[0].Op.Until {
				t.Errorf("the writer entered %v before the dead reader's Until", time.Duration(readers[0].Op.Until-g.Op.Return))
			}
			if took := time.Duration(g.Op.Return - released); test.late && took > max(standing-poll, poll) {
				t.Errorf("the writer entered %v after the last living reader left, as if it waited for its lease", took)
			}
			t.Logf("the writer entered %v after the death, and %v after the other reader left", took.Round(time.Millisecond), time.Duration(g.Op.Return-released).Round(time.Millisecond))
			workers[2].do(t, request{Do: "unlock", Hold: g.Hold})
			for _, w := range workers[1:] {
				w.do(t, request{Do: "close"})
			}
			noKeys(t, server)
		})
	}
}

// A writer that is killed while it waits blocks readers no longer than its waiter timeout.
//
//	1 this process reads, and a worker wants to write; another worker, which wants to
//	read, waits behind it
//	2 the writer is killed
//	3 the reader enters after the writer's waiter timeout
func TestCrash_waitingWriter(t *testing.T) {
	t.Parallel()
	const stay, name = time.Second, "rw"
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := ours(t, rdb)
	h, err := c.NewRWLock(name).Read().Lock(t.Context()) // 1
	if err != nil {
		t.Fatal(err)
	}
	writer, reader := startWorker(t), startWorker(t)
	for _, w := range []*worker{writer, reader} {
		w.do(t, request{Do: "open", Addr: server.Addr()})
	}
	writer.send(t, request{Do: "lock", Kind: write, Name: name, WaiterTimeout: stay, Wait: time.Hour})
	subscribers(t, rdb, write.channel(name), 1)
	waiting := reader.send(t, request{Do: "lock", Kind: read, Name: name, Wait: time.Hour})
	subscribers(t, rdb, read.channel(name), 2)
	state, err := read.inspect(t.Context(), c, name)
	if err != nil || len(state.Waiters) != 1 {
		t.Errorf("the waiting writer: %+v (%v)", state.Waiters, err)
	}

	writer.kill() // 2
	killed := monotonic()
	g := value[granted](t, must(t, receive(t, waiting))) // 3
	took := time.Duration(g.Op.Return - killed)
	if took > stay+2*poll {
		t.Errorf("the reader entered %v after the death of a writer with a waiter timeout of %v", took, stay)
	}
	t.Logf("the reader entered %v after the death", took.Round(time.Millisecond))
	reader.do(t, request{Do: "unlock", Hold: g.Hold})
	reader.do(t, request{Do: "close"})
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	noKeys(t, server)
}

// subscribers waits until n connections listen to channel.
func subscribers(t *testing.T, rdb rueidis.Client, channel string, n int64) {
	t.Helper()
	until(t, func() bool { return subscribed(t, rdb, channel) == n })
}

// subscribed returns how many clients are subscribed to channel.
func subscribed(t *testing.T, rdb rueidis.Client, channel string) int64 {
	t.Helper()
	reply, err := rdb.Do(t.Context(), rdb.B().PubsubNumsub().Channel(channel).Build()).AsIntMap()
	if err != nil {
		t.Fatal(err)
	}
	return reply[channel]
}
