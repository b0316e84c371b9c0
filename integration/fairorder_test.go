//go:build linux

package integration_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// No owner acquires a fair lock before an owner that came earlier. A thousand waiters in ten processes, of which nearly
// a third die or stop waiting:
//
//	1 this process holds the lock, and most of the others come, at random instants
//	2 a seventh of them stop waiting, at random instants from then on
//	3 one process is killed, and this one unlocks; the others come while the queue is
//	being served, and while it waits behind the dead
//	4 another process is killed in the meantime
//	5 no owner was served before one that was known to be in the queue before
//	its request was sent
//	6 the deaths cost no more than one waiter timeout for each time that a process
//	died, rather than one for each dead waiter
//	7 no keys are left
func TestFairOrder(t *testing.T) { testFairOrder(t, 1000) }

// The same with five thousand.
func TestFairOrder_fiveThousand(t *testing.T) { testFairOrder(t, 5000) }

func testFairOrder(t *testing.T, waiters int) {
	const (
		processes = 10
		spread    = 2 * time.Second
		dog       = 2 * time.Second
		name      = "fair"
	)
	each := amount(waiters) / processes
	early := each * 7 / 10
	random := rand.New(rand.NewPCG(seed(t), 1))
	server := redistest.Start(t)
	rdb := server.Client(t)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	workers := make([]*worker, processes)
	for i := range workers {
		workers[i] = startWorker(t)
		workers[i].do(t, request{Do: "open", Addr: server.Addr(), Dog: dog})
	}

	h, err := c.NewFairLock(name).Lock(t.Context()) // 1, 2
	if err != nil {
		t.Fatal(err)
	}
	answers := make([][]<-chan reply, processes)
	come := func(i, n int, spread time.Duration) {
		answers[i] = append(answers[i], workers[i].send(t, request{Do: "crowd", Kind: fair, Name: name, Crowd: &crowd{
			N: n, Seed: random.Uint64(), Spread: spread, Quit: n / 7,
		}}))
	}
	doomed := random.Perm(processes)[:2]
	now := func(i int) int {
		if i == doomed[0] {
			return each // it has no later
		}
		return early
	}
	for i := range workers {
		come(i, now(i), spread)
	}
	for i, w := range workers {
		until(t, func() bool { return value[int](t, w.do(t, request{Do: "begun"})) == now(i) })
	}

	workers[doomed[0]].kill() // 3
	first := queued(t, rdb, name)
	released := monotonic()
	for i := range workers {
		if i != doomed[0] {
			come(i, each-early, 2*spread)
		}
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	rest := first/2 + random.Int64N(first/2) // 4
	untilWithin(t, time.Minute, func() bool { return queued(t, rdb, name) <= rest })
	workers[doomed[1]].kill()

	var served []op
	quit := 0
	for i := range workers {
		if slices.Contains(doomed, i) {
			continue
		}
		for _, answer := range answers[i] {
			for _, o := range value[[]op](t, must(t, receiveWithin(t, answer, 2*time.Minute))) {
				switch {
				case o.OK:
					served = append(served, o)
				case o.Err != "":
					t.Errorf("a waiter failed: %s", o.Err)
				default:
					quit++
				}
			}
		}
	}
	wrong, pairs := countOvertaken(served) // 5
	for _, w := range wrong[:min(3, len(wrong))] {
		t.Error(w)
	}
	if all := len(served) * (len(served) - 1) / 2; pairs < all/2 && !testing.Short() {
		t.Errorf("the order of only %d of %d pairs of waiters is known: the test shows nothing", pairs, all)
	}

	slices.SortFunc(served, func(a, b op) int { return cmp.Compare(a.Return, b.Return) }) // 6
	took := time.Duration(served[len(served)-1].Return - released)
	pauses, before := 0, released // periods in which no waiter was served
	for _, o := range served {
		if time.Duration(o.Return-before) > lock.DefaultWaiterTimeout/2 {
			pauses++
		}
		before = o.Return
	}
	if pauses > len(doomed) {
		t.Errorf("no waiter was served for a waiter timeout of %v, %d times; %d processes died", lock.DefaultWaiterTimeout, pauses, len(doomed))
	}

	h, err = c.NewFairLock(name).Lock(t.Context()) // 7: this also drops the dead at the end of the queue
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	for i, w := range workers {
		if !slices.Contains(doomed, i) {
			w.do(t, request{Do: "close"})
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	noKeys(t, server)
	t.Logf("%d waiters, %d of them in the queue at the unlock; %d in killed processes, %d gave up, %d were served within %v of the unlock, with %d pauses; of %d pairs whose order is known, %d were served out of order",
		each*processes, first, 2*each, quit, len(served), took.Round(time.Millisecond), pauses, pairs, len(wrong))
}

// countOvertaken returns the owners that were served although another one was known to be in the queue before their
// request. It also returns the number of pairs whose order is known.
func countOvertaken(served []op) (wrong []string, pairs int) {
	served = slices.Clone(served)
	slices.SortFunc(served, func(a, b op) int { return cmp.Compare(a.Token, b.Token) })
	calls := make([]int, len(served))
	for i, o := range served {
		calls[i] = int(o.Call)
	}
	sort.Ints(calls)
	var latestArrival op // of the owners served so far, the one with the last request
	for _, o := range served {
		if o.Queued != 0 {
			pairs += len(calls) - sort.SearchInts(calls, int(o.Queued)+1)
			if latestArrival.Call > o.Queued {
				wrong = append(wrong, fmt.Sprintf("%s was in the queue %v before %s asked, which was served before it",
					o.Owner, time.Duration(latestArrival.Call-o.Queued), latestArrival.Owner))
			}
		}
		if o.Call > latestArrival.Call {
			latestArrival = o
		}
	}
	return wrong, pairs
}

// countOvertaken detects a wrong order.
func TestFairOrder_detectsOvertaking(t *testing.T) {
	one := op{Owner: "one", Call: 1, Queued: 3, Token: 10}
	overlaps := op{Owner: "overlaps", Call: 2, Queued: 4, Token: 11}
	late := op{Owner: "late", Call: 5, Queued: 6, Token: 12}
	free := op{Owner: "free", Call: 7, Token: 13} // it did not wait
	swap := func(a, b op) []op {
		a.Token, b.Token = b.Token, a.Token
		return []op{a, b}
	}
	for _, test := range []struct {
		name  string
		ops   []op
		wrong int
		pairs int
	}{
		{"in order", []op{one, overlaps, late, free}, 0, 5},
		{"either order", swap(one, overlaps), 0, 0},
		{"overtaken", swap(one, late), 1, 1},
		{"overtaken by one that did not wait", swap(late, free), 1, 1},
	} {
		if wrong, pairs := countOvertaken(test.ops); len(wrong) != test.wrong || pairs != test.pairs {
			t.Errorf("%s: %d of %d pairs are wrong, want %d of %d: %q", test.name, len(wrong), pairs, test.wrong, test.pairs, wrong)
		}
	}
}

// All dead waiters of a fair queue together cost one waiter timeout. With a waiter timeout of three seconds:
//
//	1 this process holds the lock; 50 waiters of three processes come, then one
//	of another, and so on: 150 in all, and three
//	2 the three processes are killed, and this one unlocks
//	3 the three others are served within a waiter timeout and a poll interval; it would
//	take minutes if each of the dead cost a waiter timeout
//	4 no waiter sent requests in a loop in the meantime
func TestFairOrder_deathsDoNotAddUp(t *testing.T) {
	const (
		stay    = 3 * time.Second
		groups  = 3
		perProc = 17
		procs   = 3
		name    = "fair"
		most    = 20 * time.Second
	)
	server := redistest.Start(t)
	rdb := server.Client(t)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewFairLock(name).Lock(t.Context()) // 1
	if err != nil {
		t.Fatal(err)
	}
	survivor := startWorker(t)
	survivor.do(t, request{Do: "open", Addr: server.Addr()})
	var doomed []*worker
	for range procs {
		w := startWorker(t)
		w.do(t, request{Do: "open", Addr: server.Addr()})
		doomed = append(doomed, w)
	}
	var waiting []<-chan reply
	for group := range groups {
		for _, w := range doomed {
			w.send(t, request{Do: "crowd", Kind: fair, Name: name, WaiterTimeout: stay, Crowd: &crowd{N: perProc}})
		}
		inQueue := int64(group*(procs*perProc+1) + procs*perProc)
		until(t, func() bool { return queued(t, rdb, name) == inQueue })
		waiting = append(waiting, survivor.send(t, request{Do: "lock", Kind: fair, Name: name, WaiterTimeout: stay, Wait: time.Hour}))
		until(t, func() bool { return queued(t, rdb, name) == inQueue+1 })
	}

	for _, w := range doomed { // 2
		w.kill()
	}
	before := server.CommandCalls(t, "evalsha")
	killed := monotonic()
	if err := h.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	dead := groups * procs * perProc
	var after []time.Duration
	var previous granted
	for i, answer := range waiting { // 3
		g := value[granted](t, must(t, receiveWithin(t, answer, 5*time.Minute)))
		after = append(after, time.Duration(g.Op.Return-killed).Round(time.Millisecond))
		if took := time.Duration(g.Op.Return - killed); took > most {
			t.Errorf("waiter %d, behind %d dead, acquired the lock %v after they died; want one waiter timeout, which is %v, and a poll interval", i+1, (i+1)*dead/groups, took, stay)
		}
		if g.Op.Token <= previous.Op.Token {
			t.Errorf("waiter %d was served before the one in front of it", i+1)
		}
		previous = g
		survivor.do(t, request{Do: "unlock", Hold: g.Hold})
	}
	calls := server.CommandCalls(t, "evalsha") - before // 4
	if calls > 300 {                                    // heartbeats; a busy machine takes longer, so there are more
		t.Errorf("%d commands while three waited for the dead: a waiter retries in a loop", calls)
	}
	survivor.do(t, request{Do: "close"})
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	noKeys(t, server)
	t.Logf("%d dead waiters with a waiter timeout of %v each: the waiters behind them acquired the lock %v after the death, with %d commands", dead, stay, after, calls)
}

// Waiters of several processes are served in the order of their arrival. They come one by one, so only one order is
// valid.
func TestFairOrder_oneByOne(t *testing.T) {
	const processes, n, name = 4, 40, "fair"
	server := redistest.Start(t)
	rdb := server.Client(t)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewFairLock(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	workers := make([]*worker, processes)
	for i := range workers {
		workers[i] = startWorker(t)
		workers[i].do(t, request{Do: "open", Addr: server.Addr()})
	}
	random := rand.New(rand.NewPCG(seed(t), 1))
	var answers []<-chan reply
	for i := range n {
		w := workers[random.IntN(processes)]
		answers = append(answers, w.send(t, request{Do: "crowd", Kind: fair, Name: name, Crowd: &crowd{N: 1}}))
		until(t, func() bool { return queued(t, rdb, name) == int64(i+1) })
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	token := h.Token()
	for i, answer := range answers {
		o := value[[]op](t, must(t, receive(t, answer)))[0]
		if !o.OK || o.Token <= token {
			t.Errorf("number %d has the token %d, after %d (%s)", i+1, o.Token, token, o.Err)
		}
		token = o.Token
	}
	for _, w := range workers {
		w.do(t, request{Do: "close"})
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	noKeys(t, server)
}

// A waiter whose process is paused for less than its waiter timeout keeps its position. If the pause is longer, the others
// continue, and it returns to the end of the queue.
//
//	1 this process holds the lock, a worker waits for it, and a second one
//	2 the first worker is paused
//	3 short: it continues after a while; this process unlocks; it is served first
//	long: this process unlocks; the second worker is served within a waiter timeout;
//	the first one continues, and is served too
func TestFairOrder_stopped(t *testing.T) {
	for _, test := range []struct {
		name string
		stay time.Duration
		long bool
	}{
		{"for less than its patience", 30 * time.Second, false},
		{"for more than its patience", 500 * time.Millisecond, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			const name = "fair"
			server := redistest.Start(t)
			rdb := server.Client(t)
			c, err := client.New(rdb, client.WithoutRegistry())
			if err != nil {
				t.Fatal(err)
			}
			h, err := c.NewFairLock(name).Lock(t.Context()) // 1
			if err != nil {
				t.Fatal(err)
			}
			var workers [2]*worker
			var answers [2]<-chan reply
			for i := range workers {
				workers[i] = startWorker(t)
				workers[i].do(t, request{Do: "open", Addr: server.Addr()})
				answers[i] = workers[i].send(t, request{Do: "crowd", Kind: fair, Name: name, WaiterTimeout: test.stay, Crowd: &crowd{N: 1}})
				until(t, func() bool { return queued(t, rdb, name) == int64(i+1) })
			}
			workers[0].stop(t) // 2
			stopped := monotonic()
			order := [2]int{0, 1}
			if test.long { // 3
				order = [2]int{1, 0}
				if err := h.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				time.Sleep(2 * poll) // the pause, for a few heartbeat intervals
				workers[0].cont(t)
				if err := h.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var token uint64
			for place, i := range order {
				if test.long && place == 1 {
					workers[0].cont(t)
				}
				o := value[[]op](t, must(t, receive(t, answers[i])))[0]
				if !o.OK || o.Token <= token {
					t.Errorf("worker %d should be served as number %d, and has the token %d after %d (%s)", i+1, place+1, o.Token, token, o.Err)
				}
				if took := time.Duration(o.Return - stopped); place == 0 && test.long && took > 20*test.stay {
					t.Errorf("the worker behind the paused one was served after %v; want one waiter timeout, which is %v", took, test.stay)
				}
				token = o.Token
			}
			for _, w := range workers {
				w.do(t, request{Do: "close"})
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
			noKeys(t, server)
		})
	}
}

// queued returns the length of the queue of a fair lock.
func queued(t *testing.T, rdb rueidis.Client, name string) int64 {
	t.Helper()
	list, _ := queue(name)
	n, err := rdb.Do(t.Context(), rdb.B().Llen().Key(list).Build()).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// crowd describes goroutines of a worker that each acquire a lock once.
type crowd struct {
	N      int
	Seed   uint64
	Spread time.Duration // each starts at a random instant within it
	Quit   int           // this many stop waiting, at random instants within twice that time
	Meet   int64         // no goroutine unlocks before this many, in all processes together, have locked
}

// meetKey is the key that counts them.
const meetKey = "met"

// crowd runs a crowd, and returns the result of each of its goroutines. If a goroutine stopped waiting, its result has
// no error.
func (p *process) crowd(ctx context.Context, r request) ([]op, error) {
	l := r.Kind.lock(p.client, r.Name, r.options()...)
	random := rand.New(rand.NewPCG(r.Crowd.Seed, 0))
	ops := make([]op, r.Crowd.N)
	var wg sync.WaitGroup
	for i := range ops {
		come, quit := time.Duration(0), time.Duration(0)
		if r.Crowd.Spread > 0 {
			come = time.Duration(random.Int64N(int64(r.Crowd.Spread)))
			quit = time.Duration(random.Int64N(2 * int64(r.Crowd.Spread)))
		}
		wg.Go(func() {
			time.Sleep(come) // the schedule
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if i < r.Crowd.Quit {
				defer time.AfterFunc(quit, cancel).Stop()
			}
			p.begun.Add(1)
			o := op{Kind: acquire, Name: r.Name, Goroutine: i, Call: monotonic()}
			h, err := l.Lock(noting(ctx))
			o.Return = monotonic()
			if err == nil {
				p.grant(&o, h)
				err = errors.Join(p.meet(ctx, r.Crowd.Meet), h.Unlock(ctx))
			} else if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				err = nil
			}
			if err != nil {
				o.Err = err.Error()
			}
			ops[i] = o
		})
	}
	wg.Wait()
	return ops, nil
}

// meet returns when n callers have called it.
func (p *process) meet(ctx context.Context, n int64) error {
	if n == 0 {
		return nil
	}
	met, err := p.side.Do(ctx, p.side.B().Incr().Key(meetKey).Build()).AsInt64()
	for deadline := time.Now().Add(promptTimeout); err == nil && met < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d were in together, and not %d", met, n)
		}
		met, err = p.side.Do(ctx, p.side.B().Get().Key(meetKey).Build()).AsInt64()
	}
	return err
}
