//go:build linux

package integration_test

import (
	"context"
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
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// A process that was paused past its lease detects the loss at its first check, and does not affect the next holder.
// 200 times, with leases of 150 to 300 ms, some fixed and some renewed:
//
//	1 a worker acquires the lock, and checks it without a pause
//	2 at a random instant it is paused
//	3 another process, this one, waits for the lock, and acquires it when the server's
//	lease expires, which is not before the worker's Until
//	4 the worker continues. No check that began after Until, and so none that began
//	after 3, may find the lock held
//	5 its unlock reports the loss, and does not affect the new holder
//
// The worker's replies are delayed, so that an Until computed from the reply would be after the lease. Other types do
// fewer rounds; where the worker reads, this process writes.
func TestPause(t *testing.T) { eachKind(t, testPause, plain, fair, read, write) }

func testPause(t *testing.T, k kind) {
	const workers = 4
	n := amount(40)
	if k == plain {
		n *= 5
	}
	if os.Getenv("LEASEHOLD_FIGURES") != "" {
		n *= 5
	}
	s := seed(t)
	server := redistest.Start(t)
	slow := redistest.NewProxy(t, server.Addr())
	var faults sync.Mutex
	random := rand.New(rand.NewPCG(s, 0)) // guarded by faults
	slow.OnRequest(func([][]byte) redistest.Action {
		faults.Lock()
		defer faults.Unlock()
		return redistest.Action{DelayReply: time.Duration(random.Int64N(int64(15 * time.Millisecond)))}
	})
	rdb := server.Client(t)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}

	rounds := make(chan int)
	go func() {
		defer close(rounds)
		for i := range n {
			rounds <- i
		}
	}()
	var mu sync.Mutex
	var sum paused
	var wg sync.WaitGroup
	for i := range workers {
		random := rand.New(rand.NewPCG(s, uint64(1+i)))
		dog := time.Duration(150+random.IntN(150)) * time.Millisecond
		w := startWorker(t)
		w.do(t, request{Do: "open", Addr: slow.Addr(), Dog: dog})
		wg.Go(func() {
			for round := range rounds {
				p := &pauser{T: t, rdb: rdb, client: c, worker: w, kind: k, random: random, dog: dog, name: fmt.Sprintf("pause%d", i)}
				one := p.once(round)
				mu.Lock()
				sum.add(one)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("%d pauses, %d checks; %d found a lock held after Until (worst %v), %d a standard context not canceled after its deadline (worst %v); the server's lease outlived Until by at least %v, median %v",
		sum.pauses, sum.looks, sum.late, sum.worst, sum.control, sum.controlWorst, slices.Min(sum.slack), median(sum.slack))
	if sum.late > 0 {
		t.Errorf("%d checks found a lock held after Until", sum.late)
	}
}

// Very many leases expire at the same instant, as in a process that was paused. It takes time to notify all their
// holders; a check must not wait for that. No process is paused here; the leases just expire together.
func TestPause_manyAtOnce(t *testing.T) {
	const holds, checkers = 1000, 2
	rounds := amount(10)
	server := redistest.Start(t)
	c, err := client.New(server.Client(t), client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	var checks, late, worst atomic.Int64
	measured := rounds
	for span := 500 * time.Millisecond; rounds > 0; {
		end := time.Now().Add(span)
		all := make([]lock.Hold, holds)
		var wg sync.WaitGroup
		var tooShort atomic.Bool
		for part := range 20 {
			wg.Go(func() {
				for i := part; i < holds; i += 20 {
					l := c.NewLock("many"+strconv.Itoa(i), lock.WithFixedLease(max(time.Until(end), time.Millisecond)))
					h, err := l.Lock(t.Context())
					if err != nil && time.Until(end) < span/4 {
						tooShort.Store(true)
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					all[i] = h
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		if tooShort.Load() || time.Until(end) < span/4 { // on a busy machine
			span *= 2
			continue
		}
		rounds--
		until := make([]int64, holds)
		for range 3 { // an Until can be too early, but never too late
			for i, h := range all {
				until[i] = max(until[i], onMonotonic(h.Until()))
			}
		}
		for checker := range checkers {
			wg.Go(func() {
				for over := 0; over < holds; {
					over = 0
					for j := range all {
						i := j
						if checker%2 == 1 {
							i = holds - 1 - j
						}
						before := monotonic()
						err := all[i].Err()
						checks.Add(1)
						if err != nil {
							over++
						} else if by := before - until[i]; by > int64(time.Microsecond) {
							late.Add(1)
							worst.Store(max(worst.Load(), by))
						}
					}
				}
			})
		}
		wg.Wait()
	}
	if late.Load() > 0 {
		t.Errorf("%d of %d checks found a lock held after Until, by at most %v", late.Load(), checks.Load(), time.Duration(worst.Load()))
	}
	t.Logf("%d rounds of %d locks, %d checks", measured, holds, checks.Load())
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

// paused is the result of some pauses.
type paused struct {
	pauses, looks, late, control int
	worst, controlWorst          time.Duration
	slack                        []time.Duration // how much longer than Until the server's lease was
}

func (a *paused) add(b paused) {
	a.pauses += b.pauses
	a.looks += b.looks
	a.late += b.late
	a.control += b.control
	a.worst = max(a.worst, b.worst)
	a.controlWorst = max(a.controlWorst, b.controlWorst)
	a.slack = append(a.slack, b.slack...)
}

// pauser pauses one worker.
type pauser struct {
	*testing.T
	rdb    rueidis.Client
	client *client.Client
	worker *worker
	kind   kind
	random *rand.Rand
	dog    time.Duration
	name   string
}

func (p *pauser) once(round int) (sum paused) {
	fixed, lease := time.Duration(0), p.dog
	if round%2 == 0 {
		fixed = time.Duration(150+p.random.IntN(150)) * time.Millisecond
		lease = fixed
	}
	g := value[granted](p, p.worker.do(p, request{Do: "lock", Kind: p.kind, Name: p.name, Lease: fixed, Wait: promptTimeout})) // 1
	checking := p.worker.send(p, request{Do: "watch", Hold: g.Hold})

	// The server computed its reply some time before it arrived.
	left, err := p.rdb.Do(p.Context(), p.rdb.B().Pttl().Key(p.kind.lease(p.name, g.Op.Owner)).Build()).AsInt64()
	end := monotonic() + max(left, 0)*int64(time.Millisecond)
	slack := time.Duration(end - g.Op.Until)
	if err != nil || left == -1 || slack < -time.Millisecond {
		p.Errorf("round %d: the promise ends %v after the server's lease (left: %d ms, %v)", round, -slack, left, err)
	}
	if left >= 0 { // otherwise this machine was so slow that both leases have expired
		sum.slack = []time.Duration{slack}
	}

	run := lease * 9 / 10
	if fixed == 0 {
		run = 3 * lease
	}
	time.Sleep(time.Duration(p.random.Int64N(int64(run)))) // the schedule of the fault
	p.worker.stop(p)                                       // 2
	stopped := monotonic()

	o := op{Call: monotonic()}
	h, err := lockWithin(p.Context(), p.kind.rival().lock(p.client, p.name), promptTimeout) // 3
	o.Return = monotonic()
	if err != nil {
		p.Errorf("round %d: the lock of a paused process is not acquired: %v", round, err)
		p.worker.cont(p)
		return sum
	}
	o.Grant(h)
	time.Sleep(time.Duration(p.random.Int64N(int64(20 * time.Millisecond))))
	p.worker.cont(p) // 4
	w := value[watched](p, must(p, receive(p, checking)))
	sum.pauses, sum.looks, sum.late, sum.worst, sum.control, sum.controlWorst = 1, w.Looks, w.Late, w.Worst, w.Control, w.ControlWorst
	switch {
	case w.Late > 0:
		p.Errorf("round %d: %d checks found the lock held after Until, by at most %v", round, w.Late, w.Worst)
	case w.LastHeld > o.Return:
		p.Errorf("round %d: a check found the lock held %v after another acquired it", round, time.Duration(w.LastHeld-o.Return))
	case w.Until > o.Return:
		p.Errorf("round %d: another acquired the lock %v before Until", round, time.Duration(w.Until-o.Return))
	case w.First < stopped && w.Until > stopped:
		p.Errorf("round %d: the lock was lost without a reason: %s", round, w.Err)
	case w.First < o.Return && w.Until > stopped:
		p.Errorf("round %d: the worker checked while it was paused: this round shows nothing", round)
	}
	if !(reply{Err: w.Err, Is: w.Is}).is("ErrLost") {
		p.Errorf("round %d: the cause is %q, want lock.ErrLost", round, w.Err)
	}

	unlock := receive(p, p.worker.send(p, request{Do: "unlock", Hold: g.Hold})) // 5
	if !unlock.is("ErrNotHeld", "ErrLost") {
		p.Errorf("round %d: unlocking what was lost: %q, want lock.ErrNotHeld and lock.ErrLost", round, unlock.Err)
	}
	state, err := p.kind.inspect(p.Context(), p.client, p.name)
	if err != nil || len(state.Holders) != 1 || state.HoldCount(h.Owner()) != 1 || h.Err() != nil {
		p.Errorf("round %d: after the loser's unlock the lock is %+v (%v), and its hold is %v; want %s once", round, state, err, h.Err(), h.Owner())
	}
	if h.Token() <= g.Op.Token {
		p.Errorf("round %d: token %d after %d", round, h.Token(), g.Op.Token)
	}
	if err := h.Unlock(p.Context()); err != nil {
		p.Errorf("round %d: %v", round, err)
	}
	return sum
}

// watched is what a worker's checks of a hold found, until the hold ended.
type watched struct {
	Looks    int
	Late     int           // checks that found it held after Until
	Worst    time.Duration // the latest of them
	LastHeld int64         // when the last check began that found the lock held
	First    int64         // when the first check ended that did not
	Until    int64         // the last Until, after all renewals
	Err      string
	Is       []string

	// The same for a standard context with that deadline. It is canceled when its timer fires, which is later in a
	// process that was paused.
	Control      int
	ControlWorst time.Duration
}

// watch checks h without a pause until it has ended.
func watch(h lock.Hold) (w watched) {
	w.Until = onMonotonic(h.Until())
	c := newControl(h)
	defer func() { c.cancel() }()
	for ; ; w.Looks++ {
		before := monotonic()
		alive := c.ctx.Err() == nil
		if late := time.Duration(before - c.end); alive && late > 0 {
			w.Control++
			w.ControlWorst = max(w.ControlWorst, late)
		}

		before = monotonic()
		var err error
		switch w.Looks % 3 {
		case 0:
			err = h.Err()
		case 1:
			err = h.Context().Err()
		case 2:
			err = context.Cause(h.Context())
		}
		if err != nil {
			w.First = monotonic()
			break
		}
		w.LastHeld = before
		// Until reads its two clocks one after the other, so it can be too early, but never too late: the largest
		// result counts.
		if until := onMonotonic(h.Until()); until > w.Until {
			w.Until = until
		}
		if late := time.Duration(before - w.Until); late > time.Microsecond {
			w.Late++
			w.Worst = max(w.Worst, late)
		}
		if w.Until > c.end+int64(time.Millisecond) { // renewed
			c.cancel()
			c = newControl(h)
		}
	}
	r := answer(0, nil, h.Err())
	w.Err, w.Is = r.Err, r.Is
	return w
}

// control is a standard context whose deadline is the current Until.
type control struct {
	ctx    context.Context
	cancel context.CancelFunc
	end    int64 // by monotonic
}

func newControl(h lock.Hold) (c control) {
	until := h.Until()
	c.end = onMonotonic(until)
	c.ctx, c.cancel = context.WithDeadline(context.Background(), until)
	return c
}
