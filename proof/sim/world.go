package sim

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/leasehold-go/leasehold/rwlock"
	"github.com/redis/rueidis"
)

// Result is the result of a plan.
type Result struct {
	Seed    uint64
	Wrong   []string      // violations
	Grants  Grants        // how often callers acquired a lock
	Passed  int           // grants that a client handed off to its next caller, without a command
	Kept    int           // how often a client kept a lock for its next caller, without a command
	Losses  int           // lost holds
	Faults  int           // faults that had an effect
	Lasted  time.Duration // in virtual time
	Trace   string        // a hash that is equal for two runs if the same events happened at the same times, in the same order
	History []string      `json:",omitempty"`
}

// Grants counts acquisitions, by type of lock.
type Grants map[string]int

// Add adds the counts of other.
func (g Grants) Add(other Grants) {
	for kind, n := range other {
		g[kind] += n
	}
}

func (g Grants) String() string {
	all, kinds := 0, ""
	for _, kind := range slices.Sorted(maps.Keys(g)) {
		all += g[kind]
		kinds += fmt.Sprintf(", %d %s", g[kind], kind)
	}
	return fmt.Sprintf("%d grants (%s)", all, strings.TrimPrefix(kinds, ", "))
}

// world is the simulation of one plan.
type world struct {
	plan    Plan
	mini    *miniredis.Miniredis
	began   time.Time
	ports   []*port
	clients []*client.Client
	over    []context.CancelFunc // cancel the callers of each client
	alive   []context.Context
	book    *book
	wg      sync.WaitGroup // of the network

	mu      sync.Mutex
	frozen  time.Time // until then the server is unresponsive
	result  Result
	sum     interface{ io.Writer }
	history bool
}

// Play simulates p in a separate synctest bubble, and returns the result. If history is set, the result
// includes the full trace.
func Play(t *testing.T, p Plan, history bool) (result Result) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{plan: p, began: time.Now(), history: history}
		sum := fnv.New64a()
		w.sum = sum
		w.result.Seed, w.result.Grants = p.Seed, Grants{}
		w.book = newBook(w)
		w.play()
		w.result.Trace = fmt.Sprintf("%016x", sum.Sum64())
		w.result.Lasted = time.Since(w.began)
		result = w.result
	})
	return result
}

// hash returns a random number that depends only on the seed and on its purpose.
func (w *world) hash(of ...int) uint64 {
	h := w.plan.Seed * 0x9e3779b97f4a7c15
	for _, n := range of {
		h ^= uint64(n) + 0x9e3779b97f4a7c15
		h *= 0xbf58476d1ce4e5b9
		h ^= h >> 31
		h *= 0x94d049bb133111eb
		h ^= h >> 29
	}
	return h
}

// trace records an event.
func (w *world) trace(format string, args ...any) {
	line := fmt.Sprintf("%12v ", time.Since(w.began)) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(w.sum, line)
	if strings.HasPrefix(format, "fault") {
		w.result.Faults++
	}
	if w.history {
		w.result.History = append(w.result.History, line)
	}
}

// wrong records a violation.
func (w *world) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.trace("WRONG: %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result.Wrong = append(w.result.Wrong, text)
}

// rest sleeps for d. It reports false if ctx is canceled first.
func (w *world) rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve starts the server, with a separate clock.
func (w *world) serve() {
	m, err := memredis.StartInside()
	if err != nil {
		panic(err)
	}
	w.mini = m
	m.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		switch cmd {
		case "CLUSTER", "HELLO":
			c.WriteError("ERR unknown command '" + cmd + "'")
			return true
		case "EVAL", "EVALSHA":
			w.tick()
		}
		return false
	})
}

// tick advances the server's clock, which may be a little faster or slower than the clients' clock.
func (w *world) tick() {
	if w.plan.Rate != 1 {
		w.mini.SetTime(w.began.Add(time.Duration(float64(time.Since(w.began)) * w.plan.Rate)))
	}
}

func (w *world) connect(p *port) rueidis.Client {
	rdb, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"sim:6379"}, // a dummy name
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return p.dial(ctx)
		},
		// The library's PINGs come at instants at which nothing else happens.
		Dialer:              net.Dialer{KeepAlive: 5*time.Second + 7},
		DisableCache:        true,
		ForceSingleClient:   true,
		AlwaysRESP2:         true,
		PipelineMultiplex:   -1,
		RingScaleEachConn:   6, // small: clearing the memory would take longer than the simulation
		ReadBufferEachConn:  4 << 10,
		WriteBufferEachConn: 4 << 10,
	})
	if err != nil {
		panic(err)
	}
	return rdb
}

func (w *world) play() {
	w.serve()
	defer w.mini.Close()
	var rdbs []rueidis.Client
	for i := range w.plan.Clients {
		p := &port{w: w, client: i, links: make(map[*link]bool)}
		rdb := w.connect(p)
		c, err := client.New(rdb, client.WithWatchdogTimeout(w.plan.Lease), client.WithoutRegistry(), client.WithObserver(w.observer()), client.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		w.ports, w.clients, rdbs = append(w.ports, p), append(w.clients, c), append(rdbs, rdb)
		w.alive, w.over = append(w.alive, ctx), append(w.over, cancel)
	}
	var faults sync.WaitGroup
	for _, f := range w.plan.Faults {
		if f.Nth == 0 {
			faults.Go(func() { w.inject(f) })
		}
	}
	w.actors()
	faults.Wait()
	w.book.inOrder()
	w.end(rdbs)
}

// actors runs all actors.
func (w *world) actors() {
	var actors sync.WaitGroup
	for i, a := range w.plan.Actors {
		actors.Go(func() {
			time.Sleep(time.Duration(i+1) * 11 * time.Microsecond)
			for j, o := range a.Ops {
				w.act(i, j, a.Client, o)
			}
		})
	}
	done := make(chan struct{})
	go func() { actors.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(w.longest()):
		w.wrong("after %v, these callers still wait: %s", w.longest(), w.book.waiting())
		for _, over := range w.over {
			over()
		}
		<-done
	}
}

// longest returns the time within which all calls must have returned, whatever happens.
func (w *world) longest() time.Duration {
	d := 10 * time.Second
	for _, a := range w.plan.Actors {
		for _, o := range a.Ops {
			d += o.After + o.Hold + w.plan.Lease + 3*time.Second + w.plan.Locks[o.Lock].Linger
		}
	}
	for _, f := range w.plan.Faults {
		d += f.At + f.For + 3*w.plan.Lease
	}
	return d
}

// inject injects the fault f.
func (w *world) inject(f Fault) {
	time.Sleep(f.At)
	w.trace("fault: %v", f)
	p := w.ports[f.Client]
	until := time.Now().Add(f.For)
	w.mu.Lock()
	switch f.What {
	case Pause:
		p.stopped = until
	case Freeze:
		w.frozen = until
	case Refuse:
		p.refused = until
	case Kill:
		p.dead = true
	}
	w.mu.Unlock()
	switch f.What {
	case Cut:
		p.cut(f.For)
	case Refuse:
		p.cut(0)
	case Kill:
		p.cut(f.For)
		w.book.dies(f.Client)
		w.over[f.Client]()
	case Flush:
		w.flush()
	}
}

// flush makes the server lose its scripts.
func (w *world) flush() {
	conn, err := w.mini.Dial()
	if err != nil {
		return
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("*2\r\n$6\r\nSCRIPT\r\n$5\r\nFLUSH\r\n")); err == nil {
		_, _ = conn.Read(make([]byte, 64))
	}
}

// locker returns client c's handle of the i-th lock, with the options of o.
func (w *world) locker(c int, i int, o Op) lock.Locker {
	l := w.plan.Locks[i]
	var opts []lock.Option
	if l.Fenced {
		opts = append(opts, lock.WithFencing())
	}
	if o.Fixed > 0 && o.Do != "all" {
		opts = append(opts, lock.WithFixedLease(o.Fixed))
	} else if l.Linger > 0 {
		opts = append(opts, lock.WithLinger(l.Linger))
	}
	if o.Async {
		opts = append(opts, lock.WithAsyncUnlock())
	}
	name := w.name(i)
	switch l.Kind {
	case "fair":
		return w.clients[c].NewFairLock(name, opts...)
	case "rw":
		if o.Reads {
			return w.clients[c].NewRWLock(name, opts...).Read()
		}
		return w.clients[c].NewRWLock(name, opts...).Write()
	case "semaphore":
		return w.clients[c].NewSemaphore(name, l.Permits, opts...)
	default:
		return w.clients[c].NewLock(name, opts...)
	}
}

func (w *world) name(i int) string { return fmt.Sprintf("%s%d", w.plan.Locks[i].Kind, i) }

func (w *world) rw(c, i int) *rwlock.Lock {
	var opts []lock.Option
	if w.plan.Locks[i].Fenced {
		opts = append(opts, lock.WithFencing())
	}
	return w.clients[c].NewRWLock(w.name(i), opts...)
}

// act executes o for an actor.
func (w *world) act(actor, n, c int, o Op) {
	who := fmt.Sprintf("actor %d.%d of client %d", actor, n, c)
	if !w.rest(w.alive[c], o.After) || w.alive[c].Err() != nil {
		return
	}
	ctx, cancel := w.alive[c], context.CancelFunc(func() {})
	if o.Patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.Patience)
	}
	defer cancel()
	var queued time.Time
	if o.Do != "all" {
		ctx = context.WithValue(ctx, queuedAt{}, &queued)
	}
	locks := []int{o.Lock}
	l := w.locker(c, o.Lock, o)
	if o.Do == "all" {
		locks = nil
		var all []lock.Locker
		for i := range w.plan.Locks {
			locks, all = append(locks, i), append(all, w.locker(c, i, o))
		}
		l = multilock.New(all...)
	}
	w.trace("%s: %s %s", who, o.Do, l.Name())
	since := time.Now()
	w.book.waits(who, since)
	var h lock.Hold
	var err error
	if o.Do == "try" {
		h, err = l.TryLock(ctx)
	} else {
		h, err = l.Lock(ctx)
	}
	w.book.waitsNoMore(who)
	if err != nil {
		w.trace("%s: %v", who, err)
		w.refused(who, c, o, ctx, err)
		return
	}
	holder := w.book.enter(who, c, o, locks, h, since, queued)
	if holder.reads && w.plan.Locks[o.Lock].Kind == "rw" {
		o.Down = false
	}
	if !w.rest(w.alive[c], o.Hold/2) {
		return
	}
	if o.Again && h.Err() == nil {
		w.again(who, l, h)
	}
	if o.Down && o.Do != "all" && h.Err() == nil {
		if r, err := w.rw(c, o.Lock).Downgrade(context.WithoutCancel(ctx), h); err == nil {
			w.trace("%s: reads on", who)
			holder.goesOn(r)
			h = r
		} else {
			w.trace("%s: downgrade: %v", who, err)
		}
	}
	if !w.rest(w.alive[c], o.Hold-o.Hold/2) {
		return
	}
	holder.leave()
	lost := h.Err() != nil
	until := h.Until()
	err = h.Unlock(context.Background())
	lost = lost || !time.Now().Before(until) // the lease may have expired on the way to the server
	w.trace("%s: unlock: %v", who, err)
	w.book.left(locks)
	if err != nil && !lost && len(w.plan.Faults) == 0 {
		w.wrong("%s: Unlock of a hold that was not lost, in a plan without faults: %v", who, err)
	}
	if err != nil && !errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrUnavailable) && w.alive[c].Err() == nil {
		w.trace("%s: strange: %v", who, err)
	}
}

// again acquires the lock again under the context of h, for a moment.
func (w *world) again(who string, l lock.Locker, h lock.Hold) {
	ctx, cancel := context.WithTimeout(h.Context(), w.plan.Lease)
	defer cancel()
	inner, err := l.Lock(ctx)
	if err != nil {
		w.trace("%s: once more: %v", who, err)
		return
	}
	w.trace("%s: once more", who)
	time.Sleep(37 * time.Microsecond)
	if inner.Err() == nil && h.Err() == nil && inner.Token() != h.Token() {
		w.wrong("%s: a reentry has token %d, its acquisition has %d", who, inner.Token(), h.Token())
	}
	_ = inner.Unlock(context.Background())
}

// refused checks the error of a call.
func (w *world) refused(who string, c int, o Op, ctx context.Context, err error) {
	switch {
	case w.alive[c].Err() != nil, ctx.Err() != nil:
	case o.Do == "try" && errors.Is(err, lock.ErrNotAcquired):
	case errors.Is(err, lock.ErrUnavailable) && len(w.plan.Faults) > 0 && o.Do == "try":
	case o.Fixed > 0 && strings.Contains(err.Error(), "granted too late: the reply took"): // the lease is too short for this network
	default:
		w.wrong("%s: %s: %v", who, o.Do, err)
	}
}

// end closes everything, and checks what is left.
func (w *world) end(rdbs []rueidis.Client) {
	// By now everything delayed has arrived, and unknown outcomes are reconciled or their leases have
	// expired. No client renews a lock that it does not hold.
	time.Sleep(w.settled())
	w.left("though nobody holds anything")
	for i, c := range w.clients {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := c.Close(ctx); err != nil && w.alive[i].Err() == nil {
			w.wrong("client %d: %v", i, err)
		}
		cancel()
		w.over[i]()
	}
	w.left("after Close")
	for _, rdb := range rdbs {
		rdb.Close()
	}
	for _, p := range w.ports {
		w.mu.Lock()
		p.dead = true
		w.mu.Unlock()
		p.cut(0)
	}
	w.wg.Wait()
}

// settled returns how long the effects of all faults can last.
func (w *world) settled() time.Duration {
	d := 3 * w.plan.Lease
	for _, f := range w.plan.Faults {
		d = max(d, f.For+3*w.plan.Lease)
	}
	return d
}

// ofTheDead reports whether key belongs to the queue of a fair lock in which only killed clients wait. Such
// a key expires after an hour.
func (w *world) ofTheDead(key string) bool {
	if !strings.HasPrefix(key, "redisson_lock_") {
		return false
	}
	entries, err := w.mini.List(key)
	if err != nil {
		entries, _ = w.mini.ZMembers(key)
	}
	return !slices.ContainsFunc(entries, func(entry string) bool {
		for i, c := range w.clients {
			if w.book.isDead(i) && strings.HasPrefix(entry, c.ID()) {
				return false
			}
		}
		return true
	})
}

// left reports keys that must not be there.
func (w *world) left(when string) {
	w.tick()
	var left []string
	for _, key := range w.mini.Keys() {
		if strings.Contains(key, "token") || strings.HasPrefix(key, "semaphore") || strings.Contains(key, "{semaphore") {
			continue // token counters remain, and so do the permits of a semaphore
		}
		if w.ofTheDead(key) {
			continue
		}
		left = append(left, key)
	}
	slices.Sort(left)
	if len(left) > 0 {
		w.wrong("left in Redis %s: %s\n%s", when, strings.Join(left, " "), w.mini.Dump())
	}
}
