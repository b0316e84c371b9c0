//go:build linux

package integration_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// poll is how long a waiter relies on hints alone, as package client has it.
const poll = time.Second

// Does a process that is killed while it holds a lock hold up the others? They
// get it when its lease is over, which is how much of it the server says is left
// when the process is gone; and not before the end of what it was promised.
//
//	1 a worker holds the lock, another waits for it
//	2 the holder is killed, at a random instant
//	3 the waiter gets the lock, no later than that lease and a poll interval
func TestCrash_holder(t *testing.T) {
	const side = 4 // at once
	n := amount(40)
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
	var after, early []time.Duration // the grant: after the kill; before the end of the lease
	var wg sync.WaitGroup
	for i := range side {
		random := rand.New(rand.NewPCG(s, uint64(i)))
		waiter := startWorker(t)
		waiter.do(t, request{Do: "open", Addr: server.Addr()})
		wg.Go(func() {
			for range rounds {
				name := "crash" + string(rune('A'+i))
				dog := time.Duration(200+random.IntN(600)) * time.Millisecond
				var lease time.Duration
				if random.IntN(2) == 0 {
					lease = time.Duration(200+random.IntN(600)) * time.Millisecond
				}
				holder := startWorker(t)
				holder.do(t, request{Do: "open", Addr: server.Addr(), Dog: dog})
				dead := value[granted](t, holder.do(t, request{Do: "lock", Name: name, Lease: lease, Wait: patience})) // 1
				waiting := waiter.send(t, request{Do: "lock", Name: name, Wait: patience})
				time.Sleep(time.Duration(random.Int64N(int64(max(lease, dog)) * 9 / 10))) // the schedule of the fault
				killed := monotonic()
				holder.kill() // 2
				left, err := rdb.Do(t.Context(), rdb.B().Pttl().Key(name).Build()).AsInt64()
				if err != nil {
					t.Errorf("PTTL: %v", err)
				}
				end := monotonic() + max(left, 0)*int64(time.Millisecond)

				next := value[granted](t, must(t, receive(t, waiting))) // 3
				got := time.Duration(next.Op.Return - killed)
				if most := max(lease, dog) + poll; got > most {
					t.Errorf("%s: the waiter got it %v after the holder was killed; want %v at the most", name, got, most)
				}
				if late := time.Duration(next.Op.Return - end); late > poll {
					t.Errorf("%s: the waiter got it %v after the end of the lease; want a poll interval at the most", name, late)
				}
				if next.Op.Return < dead.Op.Until {
					t.Errorf("%s: the waiter got it %v before the end of what the dead holder was promised", name, time.Duration(dead.Op.Until-next.Op.Return))
				}
				mu.Lock()
				after = append(after, got)
				early = append(early, time.Duration(next.Op.Return-end))
				mu.Unlock()
				waiter.do(t, request{Do: "unlock", Hold: next.Hold})
			}
			waiter.do(t, request{Do: "close"})
		})
	}
	wg.Wait()
	noKeys(t, server)
	t.Logf("%d holders killed: the next one had the lock %v later in the middle and %v at the most; counted from the end of the lease %v and %v",
		len(after), median(after), slices.Max(after), median(early), slices.Max(early))
}

// Does a process that is killed while it waits disturb anybody?
//
//	1 this process holds the lock, two workers wait for it
//	2 one of them is killed; in every second round at the very moment of 3,
//	  so that it may have got the lock in its last instant
//	3 this process unlocks
//	4 the other one gets the lock: at once, or when the lease of the killed one
//	  is over
//	5 nothing is left of the killed one
func TestCrash_waiter(t *testing.T) {
	const dog = 600 * time.Millisecond
	n := amount(40)
	random := rand.New(rand.NewPCG(seed(t), 0))
	server := redistest.Start(t)
	rdb := server.Client(t)
	c, err := client.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	survivor := startWorker(t)
	survivor.do(t, request{Do: "open", Addr: server.Addr(), Dog: dog})
	const name, channel = "waiter", "redisson_lock__channel:{waiter}"
	var took []time.Duration
	behind := 0 // how often the killed one had got the lock
	for round := range n {
		h, err := c.NewLock(name).Lock(t.Context()) // 1
		if err != nil {
			t.Fatal(err)
		}
		doomed := startWorker(t)
		doomed.do(t, request{Do: "open", Addr: server.Addr(), Dog: dog})
		doomed.send(t, request{Do: "lock", Name: name, Wait: patience})
		waiting := survivor.send(t, request{Do: "lock", Name: name, Wait: patience})
		subscribers(t, rdb, channel, 2)

		sharp := round%2 == 1
		most := 100 * time.Millisecond // the unlock wakes it: it does not wait for a poll
		unlocked := make(chan error, 1)
		if sharp { // 2, 3
			most = dog + poll
			go func() { unlocked <- h.Unlock(t.Context()) }()
			time.Sleep(time.Duration(random.Int64N(int64(time.Millisecond)))) // the schedule of the fault
			doomed.kill()
		} else {
			doomed.kill()
			subscribers(t, rdb, channel, 1)
			unlocked <- h.Unlock(t.Context())
		}
		start := monotonic()
		if err := <-unlocked; err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		next := value[granted](t, must(t, receive(t, waiting))) // 4
		got := time.Duration(next.Op.Return - start)
		if got > most {
			t.Errorf("round %d (killed at the moment of the unlock: %v): the other waiter got the lock after %v, want %v at the most", round, sharp, got, most)
		}
		if got > 100*time.Millisecond {
			behind++
		}
		took = append(took, got)
		survivor.do(t, request{Do: "unlock", Hold: next.Hold})
		subscribers(t, rdb, channel, 0) // 5
		noKeys(t, server)
	}
	survivor.do(t, request{Do: "close"})
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("%d waiters killed: the other one had the lock %v after the unlock in the middle and %v at the most; %d times the killed one had got it in its last instant",
		len(took), median(took), slices.Max(took), behind)
}

// subscribers waits until n connections listen to channel.
func subscribers(t *testing.T, rdb rueidis.Client, channel string, n int64) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		reply, err := rdb.Do(t.Context(), rdb.B().PubsubNumsub().Channel(channel).Build()).AsIntMap()
		if err != nil {
			t.Fatal(err)
		}
		if reply[channel] == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d listen to %s, want %d", reply[channel], channel, n)
		}
		time.Sleep(time.Millisecond)
	}
}
