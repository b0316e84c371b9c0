//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"go.uber.org/goleak"
)

// A canceled call leaves nothing behind. The contexts of 10,000 acquisitions are canceled at random instants. Half of the
// calls have their own name; the others contend for a few names, so that they are also canceled while they wait. No key may
// outlive the error by more than two operation timeouts and a round trip. In the end no subscription and no goroutine may
// be left.
//
// There are two kinds of connection. One delays every request and every reply by up to 20 ms, so that the cancellation
// comes in all phases of a call. The other has no delays, and the cancellation comes at the same time as the reply as often
// as possible.
//
// Other types of locks do fewer rounds: the fair lock, whose waiters have a queue position, and both sides of a read/write
// lock, where each reader has a key and each writer an intent. Their waiter timeouts are long, so that traces do not expire
// by themselves.
func TestCancel(t *testing.T) {
	for _, wire := range []struct {
		name  string
		delay time.Duration // maximum, of a request and of a reply
		end   time.Duration // maximum, of the context
		n     int
	}{
		{"slow network", 20 * time.Millisecond, 60 * time.Millisecond, amount(10_000)},
		{"as the reply arrives", 0, 5 * time.Millisecond, amount(50_000)},
	} {
		t.Run(wire.name, func(t *testing.T) {
			t.Run("plain", func(t *testing.T) { testCancel(t, wire.delay, wire.end, wire.n, plain) })
			t.Run("fair", func(t *testing.T) { testCancel(t, wire.delay, wire.end, wire.n/4, fair) })
			t.Run("read and write", func(t *testing.T) { testCancel(t, wire.delay, wire.end, wire.n/4, read, write) })
		})
	}
}

func testCancel(t *testing.T, delay, end time.Duration, n int, kinds ...kind) {
	const (
		clients   = 16
		callers   = 2 // of each client
		opTimeout = time.Second
		prefix    = "cancel:"
		ahead     = 10 // calls of a caller whose commands may still be in flight
	)
	s := seed(t)
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	bound := 2*opTimeout + 2*delay + 50*time.Millisecond // plus a round trip; the scanner measures what a busy machine adds
	var faults sync.Mutex
	random := rand.New(rand.NewPCG(s, 1)) // guarded by faults; traffic draws from other streams
	proxy.OnRequest(func(req [][]byte) (a redistest.Action) {
		switch strings.ToUpper(string(req[0])) {
		case "EVAL", "EVALSHA", "SUBSCRIBE", "UNSUBSCRIBE":
			if delay > 0 {
				faults.Lock()
				defer faults.Unlock()
				a.DelayRequest = time.Duration(random.Int64N(int64(delay)))
				a.DelayReply = time.Duration(random.Int64N(int64(delay)))
			}
		}
		return a
	})
	before := goleak.IgnoreCurrent()
	direct, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}

	var watch leftovers
	stop := make(chan struct{})
	var scanner, wg sync.WaitGroup
	scanner.Go(func() { watch.scan(t, direct, stop) })

	var rdbs []rueidis.Client
	var locks []*client.Client
	var left atomic.Int64
	left.Store(int64(n))
	var held, cancelled atomic.Int64
	start := time.Now()
	for i := range clients {
		rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{proxy.Addr()}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.New(rdb, client.WithOpTimeout(opTimeout), client.WithKeyPrefix(prefix), client.WithoutRegistry())
		if err != nil {
			t.Fatal(err)
		}
		rdbs, locks = append(rdbs, rdb), append(locks, c)
		for j := range callers {
			random := rand.New(rand.NewPCG(s, uint64(2+i*callers+j)))
			wg.Go(func() {
				for calls := 1; left.Add(-1) >= 0; calls++ {
					name := fmt.Sprintf("met%d", random.IntN(clients/2))
					if random.IntN(2) == 0 {
						name = fmt.Sprintf("own%d", watch.next())
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(end))))
					k := kinds[random.IntN(len(kinds))]
					var options []lock.Option
					if k != plain {
						options = append(options, lock.WithWaiterTimeout(time.Hour))
					}
					h, err := k.lock(c, name, options...).Lock(ctx)
					if err != nil {
						watch.failed(name)
						cancelled.Add(1)
						if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrNotAcquired) && errors.Is(err, lock.ErrUnavailable) {
							t.Errorf("a lock whose context ended: %v", err)
						}
					} else {
						held.Add(1)
						if err := h.Unlock(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("%v", err)
						}
						watch.failed(name) // the lock is released: the same bound holds
					}
					cancel()
					if calls%ahead == 0 {
						// No caller waits for the commands of canceled calls. On a busy machine they could be sent
						// faster than the server executes them, and releases would queue up behind thousands of them.
						// This call, on the same connection, throttles them.
						if err := rdb.Do(t.Context(), rdb.B().Exists().Key(prefix+name).Build()).Error(); err != nil {
							t.Errorf("a round trip: %v", err)
						}
					}
				}
			})
		}
	}
	wg.Wait()
	took := time.Since(start)

	// All calls have returned. Everything that they left behind must be gone within one more bound.
	deadline := time.Now().Add(bound)
	keys := watch.wait(t, direct, deadline, "KEYS", "*")
	if len(keys) > 0 {
		t.Errorf("%v after the last call returned, these keys are left: %q", bound, keys)
	}
	lingered := deadline.Add(5 * time.Second)
	if channels := watch.wait(t, direct, lingered, "PUBSUB", "CHANNELS"); len(channels) > 0 {
		t.Errorf("%v after the last call returned, these subscriptions are left: %q", bound+5*time.Second, channels)
	}
	close(stop)
	scanner.Wait()
	bound += watch.late()
	worst, late := watch.report(bound)
	if len(late) > 0 {
		t.Errorf("%d keys outlived the end of their call by more than %v, such as %q", len(late), bound, late[:min(3, len(late))])
	}
	t.Logf("%d calls were canceled and %d acquired the lock, in %v; a key outlived its call by at most %v, the limit is %v",
		cancelled.Load(), held.Load(), took.Round(time.Millisecond), worst.Round(time.Millisecond), bound.Round(time.Millisecond))
	if cancelled.Load() < int64(n)/4 {
		t.Error("too few calls were canceled, so the test shows nothing")
	}

	for i, c := range locks {
		ctx, cancel := context.WithTimeout(t.Context(), promptTimeout)
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		rdbs[i].Close()
	}
	direct.Close()
	if err := redistest.Leaks(before); err != nil {
		t.Error(err)
	}
}

// The context is canceled at the instant at which the reply arrives: the client library receives the reply and cancels
// the context before it returns. Either the caller has the lock, or the lock is free.
func TestCancel_withTheAnswer(t *testing.T) {
	eachKind(t, testCancelWithTheAnswer, plain, fair, read, write)
}

func testCancelWithTheAnswer(t *testing.T, k kind) {
	const callers = 64
	n := acquisitions(t, 15_000) / callers
	if k == plain {
		n = acquisitions(t, 50_000) / callers
	}
	server := redistest.Start(t)
	rdb := &canceling{Client: server.Client(t)}
	knowScripts(t, rdb, k)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	var held, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range n {
				l := k.lock(c, fmt.Sprintf("answer%d.%d", i, j))
				take := l.Lock
				if j%2 == 1 {
					take = l.TryLock
				}
				ctx, cancel := context.WithCancel(t.Context())
				rdb.cancels.Store(l.Name(), cancel)
				h, err := take(ctx)
				rdb.cancels.Delete(l.Name())
				cancel()
				switch {
				case err == nil:
					held.Add(1)
					if err := h.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				case errors.Is(err, context.Canceled) && !errors.Is(err, lock.ErrUnavailable):
					refused.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d calls were canceled as their reply arrived, %d acquired the lock anyway", refused.Load(), held.Load())
	if err := c.Close(t.Context()); err != nil { // waits for the replies to the releases
		t.Error(err)
	}
	if keys, err := rdb.Do(t.Context(), rdb.B().Keys().Pattern("*").Build()).AsStrSlice(); err != nil || len(keys) > 0 {
		t.Errorf("%d locks are held that no caller has, such as %q, %v", len(keys), keys[:min(3, len(keys))], err)
	}
}

// The same for a reentry: the earlier hold is unaffected. The lock is held once, and Unlock frees it without an error.
func TestCancel_reentryWithTheAnswer(t *testing.T) {
	eachKind(t, testCancelReentryWithTheAnswer, plain, fair, read, write)
}

func testCancelReentryWithTheAnswer(t *testing.T, k kind) {
	const callers = 64
	n := amount(5_000) / callers
	if k == plain {
		n = amount(20_000) / callers
	}
	server := redistest.Start(t)
	rdb := &canceling{Client: server.Client(t)}
	knowScripts(t, rdb, k)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	var wrong, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range n {
				l := k.lock(c, fmt.Sprintf("reentry%d.%d", i, j))
				owner := lock.ContextWithNewOwner(t.Context())
				h, err := l.Lock(owner)
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithCancel(owner)
				rdb.cancels.Store(l.Name(), cancel)
				again, err := l.TryLock(ctx)
				rdb.cancels.Delete(l.Name())
				cancel()
				if err == nil {
					err = again.Unlock(owner)
				} else if errors.Is(err, context.Canceled) && !errors.Is(err, lock.ErrUnavailable) {
					refused.Add(1)
					err = nil
				}
				if err != nil {
					t.Errorf("the reentry: %v", err)
				}
				if err := h.Unlock(owner); err != nil && wrong.Add(1) <= 3 {
					t.Errorf("a hold that nothing happened to: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if wrong.Load() > 0 {
		t.Errorf("%d of %d unlocks returned a wrong result", wrong.Load(), callers*n)
	}
	t.Logf("%d of %d reentries were canceled as their reply arrived", refused.Load(), callers*n)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	noKeys(t, server)
}

// canceling cancels the context of a lock's call when a reply about that lock has arrived, before any other code sees it.
type canceling struct {
	rueidis.Client
	cancels sync.Map // name -> context.CancelFunc
}

func (c *canceling) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	args := cmd.Commands()
	if len(args) < 4 || args[0] != "EVALSHA" {
		return c.Client.Do(ctx, cmd)
	}
	name := args[3] // before Do: it recycles the command
	reply := c.Client.Do(ctx, cmd)
	if cancel, ok := c.cancels.Load(name); ok {
		cancel.(context.CancelFunc)()
	}
	return reply
}

// leftovers searches for keys of calls that have returned.
type leftovers struct {
	mu    sync.Mutex
	count int                      // names that were given out
	ended map[string]time.Time     // own name -> when its call returned
	lives map[string]time.Duration // own name -> how long after that a key of the call was last seen

	slowest time.Duration // the longest duration of a command of scan: how slow this machine is
}

func (o *leftovers) next() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count++
	return o.count
}

// ownName matches names that belong to one call only, also inside the names of the keys of such a lock.
var ownName = regexp.MustCompile(`own[0-9]+`)

// failed records that the only call for name has returned.
func (o *leftovers) failed(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended == nil {
		o.ended, o.lives = make(map[string]time.Time), make(map[string]time.Duration)
	}
	if ownName.MatchString(name) {
		o.ended[name] = time.Now()
	}
}

// late returns the delay of this machine for a call: a canceled call leaves two commands, the request and its release.
func (o *leftovers) late() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return 2 * o.slowest
}

// scan reads the server's keys repeatedly until stop is closed.
func (o *leftovers) scan(t *testing.T, rdb rueidis.Client, stop <-chan struct{}) {
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for {
		asked := time.Now()
		keys, err := rdb.Do(t.Context(), rdb.B().Keys().Pattern("*own*").Build()).AsStrSlice()
		if err != nil {
			t.Errorf("looking for keys: %v", err)
			return
		}
		o.mu.Lock()
		o.slowest = max(o.slowest, time.Since(asked))
		for _, key := range keys {
			name := ownName.FindString(key)
			if ended, ok := o.ended[name]; ok {
				o.lives[name] = max(o.lives[name], asked.Sub(ended))
			}
		}
		o.mu.Unlock()
		select {
		case <-pace.C:
		case <-stop:
			return
		}
	}
}

// report returns the longest lifetime of a key after its call, and the keys that lived longer than bound.
func (o *leftovers) report(bound time.Duration) (worst time.Duration, late []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, life := range o.lives {
		worst = max(worst, life)
		if life > bound {
			late = append(late, key)
		}
	}
	return worst, late
}

// wait repeats a query until its reply is empty, or until the deadline and the delay of this machine have passed. It returns
// the last reply.
func (o *leftovers) wait(t *testing.T, rdb rueidis.Client, deadline time.Time, question ...string) []string {
	for {
		asked := time.Now()
		answer, err := rdb.Do(t.Context(), rdb.B().Arbitrary(question...).Build()).AsStrSlice()
		if err != nil {
			t.Fatalf("%q: %v", question, err)
		}
		if len(answer) == 0 || asked.After(deadline.Add(o.late())) {
			return answer
		}
		time.Sleep(time.Millisecond)
	}
}
