//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/integration/internal/history"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

const (
	exclusionProcesses  = 8
	exclusionGoroutines = 8 // of each process
	exclusionNames      = 5
	exclusionRound      = 5000             // acquisitions between two checks; the checker's memory grows with the square
	exclusionLong       = 10 * time.Second // no owner holds a lock for a hundredth of it, so no wait may take this long
)

// acquisitions returns the number of acquisitions of an exclusion test: n, unless the environment overrides it.
func acquisitions(t *testing.T, n int) int {
	t.Helper()
	given := os.Getenv("LEASEHOLD_ACQUISITIONS")
	if given == "" {
		return amount(n)
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("LEASEHOLD_ACQUISITIONS: %q is not a number of acquisitions", given)
	}
	return n
}

// No two owners hold one lock at once. 64 goroutines in 8 processes acquire 5 locks in all possible ways. Three checks
// cover each section:
//
//	inside:<name>   a counter that is incremented in the section and decremented at its
//	                end; it must go from 0 to 1 and back
//	written:<name>  read, and written plus one; a lost update
//	                means that two owners were between the reading and the writing
//	the history     the result of each call, for which owner and until when, checked
//	                for an order that explains it
func TestExclusion(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		total := 20_000
		if k == plain {
			total = 100_000
		}
		states := make(map[string]claims)
		sum := contest(t, total, plan{Kind: k, Goroutines: exclusionGoroutines, Names: exclusionNames}, func(name string, history []op) {
			states[name] = check(t, name, states[name], history)
		})
		if sum.Reentries == 0 || sum.Refused == 0 || sum.Cancelled == 0 || sum.RanOut == 0 {
			t.Error("the mix lacks something that it should have")
		}
	}, plain, fair, write)
}

// contest makes workers acquire locks according to the plan p, up to total acquisitions, and checks the history of each
// name, round by round.
func contest(t *testing.T, total int, p plan, check func(name string, history []op)) (sum tally) {
	t.Helper()
	total, random := acquisitions(t, total), rand.New(rand.NewPCG(seed(t), 1))
	server := redistest.Start(t)
	rdb := server.Client(t)
	workers := make([]*worker, exclusionProcesses)
	for i := range workers {
		workers[i] = startWorker(t)
		workers[i].do(t, request{Do: "open", Addr: server.Addr()})
	}

	began := time.Now()
	var checking time.Duration
	for sum.Grants < total && !t.Failed() {
		histories := make(map[string][]op)
		var answers []<-chan reply
		for i, w := range workers {
			p.Grants = max(1, min(exclusionRound, total-sum.Grants)/exclusionProcesses)
			p.Seed = random.Uint64()
			p.First = i * p.Goroutines
			answers = append(answers, w.send(t, request{Do: "contend", Contend: &p}))
		}
		for _, answer := range answers {
			part := value[contention](t, must(t, receive(t, answer)))
			for _, o := range part.History {
				histories[o.Name] = append(histories[o.Name], o)
			}
			for _, wrong := range part.Wrong {
				t.Error(wrong)
			}
			sum.add(part.tally)
		}
		start := time.Now()
		for name, history := range histories {
			if !t.Failed() { // after a failure, searching for an explanation would take minutes
				check(name, history)
			}
		}
		checking += time.Since(start)
		debug.FreeOSMemory()
	}
	took := time.Since(began)

	written := 0
	for i := range p.Names {
		n, err := rdb.Do(t.Context(), rdb.B().Get().Key("written:"+contended(i)).Build()).AsInt64()
		if err != nil && !rueidis.IsRedisNil(err) {
			t.Fatal(err)
		}
		written += int(n)
		server.Do(t, "DEL", "written:"+contended(i), "inside:"+contended(i), "reading:"+contended(i))
	}
	if written != sum.Sections {
		t.Errorf("%d updates in %d sections: some overlapped", written, sum.Sections)
	}
	for _, w := range workers {
		w.do(t, request{Do: "close"})
	}
	noKeys(t, server)
	t.Logf("%d acquisitions in %v (%.0f per second), including %v of checks: %+v",
		sum.Grants, took.Round(time.Millisecond), float64(sum.Grants)/(took-checking).Seconds(), checking.Round(time.Millisecond), sum)
	return sum
}

func contended(i int) string { return "contended" + strconv.Itoa(i) }

// plan is the work of one worker in one round.
type plan struct {
	Kind       kind // type of the locks
	RW         bool // read/write locks instead: most goroutines read, a few write
	Goroutines int  // of each worker
	Names      int

	Grants int // number of acquisitions, including reentries
	Seed   uint64
	First  int // the run-wide number of the worker's first goroutine
}

// contention is the result of a round.
type contention struct {
	tally
	History []op
	Wrong   []string
}

// tally counts events.
type tally struct {
	Grants, Reentries, Sections int // the sections of writers only
	Refused, Cancelled          int // of TryLock, and of canceled calls of Lock
	RanOut                      int // holds whose lease expired without a release
	Readings, Together          int // sections of readers; those during which others were reading too
	Upgrades, Downgrades        int
}

func (a *tally) add(b tally) {
	a.Grants += b.Grants
	a.Reentries += b.Reentries
	a.Sections += b.Sections
	a.Refused += b.Refused
	a.Cancelled += b.Cancelled
	a.RanOut += b.RanOut
	a.Readings += b.Readings
	a.Together += b.Together
	a.Upgrades += b.Upgrades
	a.Downgrades += b.Downgrades
}

// contend runs one round in a worker.
func (p *process) contend(ctx context.Context, r plan) (contention, error) {
	parts := make([]contention, r.Goroutines)
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(r.Grants))
	for g := range parts {
		wg.Go(func() {
			c := &contender{
				contention: &parts[g],
				process:    p,
				plan:       r,
				number:     r.First + g,
				random:     rand.New(rand.NewPCG(r.Seed, uint64(g))),
				left:       &left,
			}
			once := c.once
			if r.RW {
				once = c.onceRW
			}
			for left.Load() > 0 && len(c.Wrong) == 0 {
				once(ctx)
			}
		})
	}
	wg.Wait()
	var all contention
	for _, part := range parts {
		all.History = append(all.History, part.History...)
		all.Wrong = append(all.Wrong, part.Wrong...)
		all.add(part.tally)
	}
	return all, nil
}

// contender is one goroutine that acquires locks.
type contender struct {
	*contention
	process *process
	plan    plan
	number  int
	random  *rand.Rand
	left    *atomic.Int64
}

// once acquires one lock in one of the ways, and releases it.
func (c *contender) once(ctx context.Context) {
	name := contended(c.random.IntN(c.plan.Names))
	switch dice := c.random.IntN(1000); {
	case dice < 600:
		c.hold(ctx, c.plan.Kind, name, exclusionLong, true)
	case dice < 680: // with a short timeout
		c.hold(ctx, c.plan.Kind, name, time.Duration(c.random.IntN(int(8*time.Millisecond))), true)
	case dice < 870:
		c.hold(ctx, c.plan.Kind, name, exclusionLong, false)
	case dice < 990:
		c.hold(ctx, c.plan.Kind, name, exclusionLong, true, lock.WithFixedLease(2*exclusionLong))
	default:
		c.runOut(ctx, c.plan.Kind, name, time.Duration(20+c.random.IntN(30))*time.Millisecond)
	}
}

// hold acquires a lock, sometimes repeatedly, runs the section and releases the lock.
func (c *contender) hold(ctx context.Context, k kind, name string, timeout time.Duration, wait bool, options ...lock.Option) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	free := c.random.IntN(2) == 0 // the holds need not be nested
	if free {
		ctx = lock.ContextWithNewOwner(ctx)
	}
	h := c.take(ctx, k, name, wait, "", options...)
	if h == nil {
		return
	}
	holds := []lock.Hold{h}
	for c.random.IntN(4) == 0 {
		under := ctx
		if !free {
			under = holds[len(holds)-1].Context()
		}
		if again := c.take(under, k, name, c.random.IntN(2) == 0, "", options...); again != nil {
			c.Reentries++
			holds = append(holds, again)
		}
	}
	if c.plan.RW && k == read && c.random.IntN(10) == 0 {
		c.upgrade(h.Context(), name)
	}

	c.section(k, name)
	if err := h.Err(); errors.Is(err, lock.ErrLost) {
		c.wrong("%s was lost, but nothing was done to it: %v", name, err)
	}
	var reading lock.Hold // the writer also reads, and continues to read after it has stopped writing
	if c.plan.RW && k == write && free && c.random.IntN(2) == 0 {
		reading = c.take(ctx, read, name, false, h.Owner(), options...)
	}

	slices.Reverse(holds)
	if free {
		c.random.Shuffle(len(holds), func(i, j int) { holds[i], holds[j] = holds[j], holds[i] })
	}
	for _, h := range holds {
		if o := c.give(h, k, name); !o.OK {
			c.wrong("unlock %s: %s", name, o.Err)
		}
	}
	if reading != nil {
		c.Downgrades++
		c.section(read, name)
		if o := c.give(reading, read, name); !o.OK {
			c.wrong("unlock %s: %s", name, o.Err)
		}
	}
	if c.random.IntN(50) == 0 { // one time too many
		if o := c.give(holds[0], k, name); o.OK {
			c.wrong("unlock %s: a second one of the same hold succeeded", name)
		}
	}
}

// runOut acquires a lock, and waits until its lease has expired.
func (c *contender) runOut(ctx context.Context, k kind, name string, lease time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, exclusionLong)
	defer cancel()
	h := c.take(ctx, k, name, true, "", lock.WithFixedLease(lease))
	if h == nil {
		return
	}
	<-h.Context().Done()
	c.RanOut++
	if o := c.give(h, k, name); o.OK {
		c.wrong("unlock %s: it had run out, and that was not said", name)
	}
}

// take requests a lock and records it. It returns nil if there was a legitimate reason not to acquire the lock.
func (c *contender) take(ctx context.Context, k kind, name string, wait bool, under string, options ...lock.Option) lock.Hold {
	l := k.lock(c.process.client, name, options...)
	ask := l.TryLock
	if wait {
		ask = l.Lock
	}
	o := op{Kind: acquire, Name: name, Goroutine: c.number, Call: monotonic(), Under: under}
	if c.plan.RW {
		o.Side = history.Side(k)
	}
	h, err := ask(noting(ctx))
	o.Return = monotonic()
	switch {
	case err == nil:
		c.process.grant(&o, h)
		o.One(h)
		c.Grants++
		c.left.Add(-1)
	case grantedTooLate(err): // runOut's lease was too short for a busy machine
		c.Cancelled++
	case !errors.Is(err, lock.ErrNotAcquired) && (ctx.Err() == nil || !errors.Is(err, ctx.Err()) || errors.Is(err, lock.ErrUnavailable)):
		c.wrong("%v", err)
	case wait && o.Return-o.Call > int64(exclusionLong/2):
		left, _ := c.process.side.Do(context.Background(), c.process.side.B().Pttl().Key(name).Build()).AsInt64()
		c.wrong("%v: it waited for %v, and the lock lives for %d ms more", err, time.Duration(o.Return-o.Call), left)
	case under != "" && ctx.Err() == nil:
		c.wrong("an owner that writes may not read: %v", err)
	case wait, !errors.Is(err, lock.ErrNotAcquired):
		c.Cancelled++
	default:
		c.Refused++
	}
	if err != nil {
		o.Err = err.Error()
	}
	c.History = append(c.History, o)
	return h
}

// give unlocks a hold and records it.
func (c *contender) give(h lock.Hold, k kind, name string) op {
	o := op{Kind: release, Name: name, Goroutine: c.number, Owner: h.Owner(), Token: h.Token(), Call: monotonic()}
	if c.plan.RW {
		o.Side = history.Side(k)
		o.One(h)
	}
	err := h.Unlock(context.Background())
	o.Return = monotonic()
	o.OK = err == nil
	if err != nil {
		o.Err = err.Error()
		if !errors.Is(err, lock.ErrNotHeld) {
			c.wrong("%v", err)
		}
	}
	c.History = append(c.History, o)
	return o
}

// section must not run twice at once. Each of its two halves is a separate round trip, on connections that the locks do
// not use.
func (c *contender) section(k kind, name string) {
	if k == read {
		c.reading(name)
		return
	}
	c.Sections++
	ctx, rdb := context.Background(), c.process.side
	in := rdb.DoMulti(ctx,
		rdb.B().Incr().Key("inside:"+name).Build(),
		rdb.B().Get().Key("written:"+name).Build(),
		rdb.B().Get().Key("reading:"+name).Build())
	inside, err1 := in[0].AsInt64()
	written, err2 := orNil(in[1].AsInt64())
	reading, err4 := orNil(in[2].AsInt64())
	out := rdb.DoMulti(ctx,
		rdb.B().Set().Key("written:"+name).Value(strconv.FormatInt(written+1, 10)).Build(),
		rdb.B().Decr().Key("inside:"+name).Build())
	outside, err3 := out[1].AsInt64()
	if err := errors.Join(err1, err2, err4, out[0].Error(), err3); err != nil {
		c.wrong("the section itself failed: %v", err)
	}
	if inside != 1 || outside != 0 || reading != 0 {
		c.wrong("%d were inside %s, and %d after this one left; %d were reading", inside, name, outside, reading)
	}
}

// orNil returns 0 for a nil reply.
func orNil(n int64, err error) (int64, error) {
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	return n, err
}

func (c *contender) wrong(format string, args ...any) {
	c.Wrong = append(c.Wrong, fmt.Sprintf("goroutine %d: ", c.number)+fmt.Sprintf(format, args...))
}
