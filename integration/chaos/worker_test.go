//go:build linux

package chaos_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/integration/internal/history"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

// workerEnv is the environment variable that makes this binary a worker.
const workerEnv = "LEASEHOLD_CHAOS_WORKER"

// order is a worker's configuration: one line of JSON on its standard input. The next line tells it to
// finish. TestUpgrade sends it to workers of older versions, too.
type order struct {
	Topology   string
	Addrs      []string
	Via        map[string]string // maps a server's address to its proxy's address
	Places     []place
	Goroutines int
	Seed       uint64
	File       string // of its records
}

// report is what a worker prints at the end.
type report struct {
	Granted, Reentries, Refused, TimedOut, Unavailable int64
	Renewed, RenewalsFailed, HandedOff, Looks          int64
	Failed                                             map[string]int64 // other errors of Lock and Unlock, by text
	Wrong                                              []string
}

// process is the parent's side of a worker.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	out     chan []byte // its output
	exited  chan struct{}
	file    string
	started int64
	killed  int64 // when SIGKILL had been sent; 0 if it was not
}

// startProcess starts a worker from a binary. It does not outlive this process.
func startProcess(tb testing.TB, binary string, o order) *process {
	tb.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	said, err := os.Create(o.File + ".log")
	if err != nil {
		tb.Fatal(err)
	}
	defer said.Close()
	cmd.Stderr = said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p := &process{cmd: cmd, stdin: stdin, out: make(chan []byte, 1), exited: make(chan struct{}), file: o.File, started: history.Monotonic()}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it exits.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		said, _ := io.ReadAll(stdout)
		p.out <- said
		_ = cmd.Wait() // the report shows whether it succeeded
	}()
	if err := <-started; err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it has exited, or the round has failed
		<-p.exited
	})
	if err := json.NewEncoder(stdin).Encode(o); err != nil {
		tb.Fatal(err)
	}
	return p
}

// kill kills the process like a crash.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it is running or paused
	<-p.exited
	p.killed = history.Monotonic()
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it is not reaped yet

// finish tells the process to acquire no more locks, and returns its report. There are no more faults by
// then, so a call that does not return is stuck.
func (p *process) finish() (r report, err error) {
	if _, err = io.WriteString(p.stdin, "finish\n"); err != nil {
		<-p.exited
		said, _ := os.ReadFile(p.file + ".log") // it does not exist if nothing was logged
		return r, fmt.Errorf("it ended too early (%v), and said: %s", p.cmd.ProcessState, said[:min(len(said), 4000)])
	}
	select {
	case said := <-p.out:
		err = json.Unmarshal(said, &r)
	case <-time.After(time.Minute):
		p.signal(syscall.SIGQUIT) // its log shows what its goroutines wait for
		time.Sleep(time.Second)
		return r, errors.New("it did not finish within a minute: a waiter was forgotten, or Close hangs")
	}
	return r, err
}

// ---- In the worker.

// work is the main function of a worker process.
func work() (code int) {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	var o order
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err == nil {
		err = newWorker(o).run(in)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type worker struct {
	order
	records *recorder
	clients []*client.Client
	redis   []rueidis.Client
	takers  []taker
	weights int
	enough  atomic.Bool

	granted, reentries, refused, timedOut, unavailable, renewed, renewalsFailed, handedOff, looks atomic.Int64

	mu     sync.Mutex
	failed map[string]int64
	wrong  []string
}

func newWorker(o order) *worker { return &worker{order: o, failed: map[string]int64{}} }

// options returns the options of all clients.
func (w *worker) options() []client.Option {
	return []client.Option{
		client.WithWatchdogTimeout(lease), client.WithOpTimeout(opTimeout), client.WithoutRegistry(),
		client.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
		client.WithObserver(lock.Observer{
			Waiting: func(ctx context.Context, _ lock.Event) {
				if at, ok := ctx.Value(refusedAt{}).(*atomic.Int64); ok {
					at.CompareAndSwap(0, history.Monotonic())
				}
			},
			Renewed:       func(context.Context, lock.Event) { w.renewed.Add(1) },
			RenewalFailed: func(context.Context, lock.Event) { w.renewalsFailed.Add(1) },
			HandedOff:     func(context.Context, lock.Event) { w.handedOff.Add(1) },
		}),
	}
}

// connect makes the clients. The network may be broken at that time.
func (w *worker) connect() error {
	if w.Topology == "quorum" {
		for _, addr := range w.Addrs {
			c, err := client.Open(context.Background(), "redis://"+w.Via[addr], append(w.options(), client.WithLazyConnect())...)
			if err != nil {
				return err
			}
			w.clients = append(w.clients, c)
		}
		return nil
	}
	option := rueidis.ClientOption{
		InitAddress:  w.Addrs,
		DisableCache: true,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if via, ok := w.Via[addr]; ok {
				addr = via
			}
			return d.DialContext(ctx, "tcp", addr)
		},
	}
	if w.Topology == "sentinel" {
		option.Sentinel = rueidis.SentinelOption{MasterSet: "primary", TopologyRefreshInterval: time.Second}
	}
	for {
		rdb, err := rueidis.NewClient(option)
		var c *client.Client
		if err == nil {
			if c, err = client.New(rdb, w.options()...); err == nil {
				w.clients, w.redis = []*client.Client{c}, []rueidis.Client{rdb}
				return nil
			}
			rdb.Close()
		}
		if w.enough.Load() {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (w *worker) run(in *bufio.Reader) (err error) {
	if w.records, err = newRecorder(w.File); err != nil {
		return err
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		_, _ = in.ReadBytes('\n') // "finish"; at EOF, the parent has exited, and so does this process
		w.enough.Store(true)
	}()
	if err := w.connect(); err != nil {
		return err
	}
	for i := range w.Places {
		w.takers = append(w.takers, w.newTaker(i))
		w.weights += w.Places[i].Weight
	}
	var wg sync.WaitGroup
	for g := range w.Goroutines {
		r := rand.New(rand.NewPCG(w.Seed, uint64(g)))
		wg.Go(func() {
			for !w.enough.Load() && !w.records.full() {
				w.once(g, r)
			}
		})
	}
	for i, f := range w.meetings() {
		r := rand.New(rand.NewPCG(w.Seed, uint64(w.Goroutines+i)))
		wg.Go(func() {
			for !w.enough.Load() && !w.records.full() {
				f(r)
			}
		})
	}
	wg.Wait()
	<-told // not if there is no space for more records

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, c := range w.clients {
		err := c.Close(ctx)
		if errors.Is(err, lock.ErrUnavailable) { // it waits for three operation timeouts; the second Close waits for the rest
			err = c.Close(ctx)
		}
		if err != nil {
			w.say("Close: %v", err)
		}
	}
	for _, rdb := range w.redis {
		rdb.Close()
	}
	if err := redistest.Leaks(); err != nil {
		w.say("after Close: %v", err)
	}
	return json.NewEncoder(os.Stdout).Encode(report{
		Granted: w.granted.Load(), Reentries: w.reentries.Load(), Refused: w.refused.Load(), TimedOut: w.timedOut.Load(),
		Unavailable: w.unavailable.Load(), Renewed: w.renewed.Load(), RenewalsFailed: w.renewalsFailed.Load(), HandedOff: w.handedOff.Load(), Looks: w.looks.Load(),
		Failed: w.failed, Wrong: w.wrong,
	})
}

// say records a violation.
func (w *worker) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wrong) < 20 {
		w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
	}
}

// taker has the handles of a place.
type taker struct {
	place
	number    int
	members   []int // the place numbers of the members
	lock      func(side byte, options ...lock.Option) lock.Locker
	permits   func(n int) lock.Locker
	latch     *latch.Latch
	waitGroup *latch.WaitGroup
}

func (w *worker) newTaker(number int) taker {
	t := taker{place: w.Places[number], number: number}
	c := w.clients[0]
	with := func(options []lock.Option) []lock.Option {
		if t.Lingers && len(options) == 0 { // not with a fixed lease
			options = append(options, lock.WithLinger(20*time.Millisecond))
		}
		if t.Fenced {
			options = append(options, lock.WithFencing())
		}
		return options
	}
	switch t.Kind {
	case "plain":
		t.lock = func(_ byte, options ...lock.Option) lock.Locker { return c.NewLock(t.Name, with(options)...) }
	case "fair":
		t.lock = func(_ byte, options ...lock.Option) lock.Locker { return c.NewFairLock(t.Name, with(options)...) }
	case "rw":
		t.lock = func(side byte, options ...lock.Option) lock.Locker {
			rw := c.NewRWLock(t.Name, with(options)...)
			if side == 'r' {
				return rw.Read()
			}
			return rw.Write()
		}
	case "semaphore":
		s := c.NewSemaphore(t.Name, permits)
		t.permits = s.N
	case "latch":
		t.latch = c.NewLatch(t.Name)
	case "waitgroup":
		t.waitGroup = c.NewWaitGroup(t.Name)
	case "multi":
		var all []lock.Locker
		for _, name := range t.Members {
			all = append(all, c.NewLock(name))
			for i, p := range w.Places {
				if p.Name == name {
					t.members = append(t.members, i)
				}
			}
		}
		m := multilock.New(all...)
		t.lock = func(byte, ...lock.Option) lock.Locker { return m }
	case "quorum":
		var all []lock.Locker
		for _, c := range w.clients {
			all = append(all, c.NewLock(t.Name, with(nil)...))
		}
		q := multilock.NewQuorum(all, multilock.WithMaxLease(lease), multilock.WithServerTimeout(200*time.Millisecond))
		t.lock = func(byte, ...lock.Option) lock.Locker { return q }
	}
	return t
}

// refusedAt is the context key for the time when Redis refused the call.
type refusedAt struct{}

// once acquires one lock in one of the ways, holds it for a while, and releases it. A third of the
// goroutines only want the most contended lock, without a pause. One holds rarely used locks for a long
// time.
func (w *worker) once(g int, r *rand.Rand) {
	t, sits := &w.takers[0], g == w.Goroutines-1
	switch {
	case sits:
		for t = &w.takers[r.IntN(len(w.takers))]; !strings.HasSuffix(t.Name, "-rare"); {
			t = &w.takers[r.IntN(len(w.takers))]
		}
		time.Sleep(time.Duration(r.Int64N(int64(lease / 4))))
	case g%3 != 0:
		dice := r.IntN(w.weights)
		for i := range w.takers {
			if t = &w.takers[i]; dice < t.Weight {
				break
			}
			dice -= t.Weight
		}
		if r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(int(10 * time.Millisecond))))
		}
	}
	var (
		l       lock.Locker
		options []lock.Option
		one     = record{Call: history.Monotonic(), Goroutine: int32(g), Place: int16(t.number), Permits: 1}
		stay    time.Duration
		limit   = 20 * time.Second
		plainly = t.Kind != "multi" && t.Kind != "quorum" // it takes options and re-enters
		expires bool
	)
	// Most leave immediately. Some stay long enough for the lock to be renewed, but rarely with the most
	// contended lock.
	hot := t.number == 0
	long, short, fixed, nested := 150, 10_000, 2000, 100_000
	if hot {
		long, short, fixed, nested = 3, 500, 200, 1000
	}
	switch dice := r.IntN(100_000); {
	case dice < long || sits:
		stay = time.Duration(r.Int64N(int64(4 * lease)))
	case dice < short:
		stay = time.Duration(r.Int64N(int64(5 * time.Millisecond)))
	}
	switch dice := r.IntN(100_000); {
	case dice < 6000: // with a short timeout
		limit = time.Duration(r.Int64N(int64(8 * time.Millisecond)))
	case dice < 20_000:
		one.Flags |= flagTry
	case dice < 20_000+fixed && plainly && t.Kind != "semaphore":
		options = append(options, lock.WithFixedLease(longest))
		one.Flags |= flagFixed
	case dice < 20_000+fixed+fixed/20 && plainly && t.Kind != "semaphore": // its lease expires
		options, expires, stay = append(options, lock.WithFixedLease(50*time.Millisecond)), true, time.Minute
	}
	switch t.Kind {
	case "rw":
		if one.Side = 'r'; r.IntN(4) == 0 {
			one.Side = 'w'
		}
		l = t.lock(one.Side, options...)
	case "semaphore":
		one.Permits = int16(1 + r.IntN(2))
		l = t.permits(int(one.Permits))
	default:
		l = t.lock(0, options...)
	}

	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if t.Kind == "fair" {
		ctx = context.WithValue(ctx, refusedAt{}, new(atomic.Int64))
	}
	ask := l.Lock
	if one.Flags&flagTry != 0 {
		ask = l.TryLock
	}
	h, err := ask(ctx)
	if err != nil {
		w.refusedBy("lock", err, t.Name)
		return
	}
	records := w.grant(t, &one, h)
	if plainly && t.Kind != "semaphore" && r.IntN(1_000_000) < nested {
		w.reenter(t, l, h, one)
	}

	w.stay(records, h, stay, r)
	if expires && h.Err() == nil {
		w.say("%s: a lease of 50 ms did not end", t.Name)
	}
	w.unlock(records, h, t.Name)
}

// ownerNumber returns the number at the end of an owner string, without the mark of a lingering lock.
func ownerNumber(owner string) int64 {
	if _, number, _ := strings.Cut(owner, ":"); len(number) > 21 { // two zeros, and 19 digits
		owner = owner[:len(owner)-3]
	}
	n, _ := strconv.ParseInt(owner[strings.LastIndexByte(owner, ':')+1:], 10, 64)
	return n
}

// grant records that h was granted.
func (w *worker) grant(t *taker, one *record, h lock.Hold) (records []*record) {
	one.Granted = history.Monotonic()
	one.Until, one.Token = history.OnMonotonic(h.Until()), h.Token()
	if owner := h.Owner(); owner != "" {
		one.Owner = ownerNumber(owner)
		if at, ok := h.Context().Value(refusedAt{}).(*atomic.Int64); ok {
			one.Queued = at.Load()
		}
	}
	if one.Side == 'r' {
		n, _ := lockimpl.OwnerFrom(h.Context())
		one.One = int64(n)
	}
	w.granted.Add(1)
	if len(t.members) > 0 {
		one.Flags |= flagMulti
	}
	for _, member := range t.members {
		one.Place = int16(member)
		records = append(records, w.records.add(*one))
	}
	if len(t.members) == 0 {
		records = append(records, w.records.add(*one))
	}
	return records
}

// stay checks h occasionally, until it has ended or stay has passed.
func (w *worker) stay(records []*record, h lock.Hold, stay time.Duration, r *rand.Rand) {
	for end := time.Now().Add(stay); w.look(records, h) && time.Now().Before(end); {
		time.Sleep(min(stay, time.Duration(1+r.IntN(5))*time.Millisecond))
	}
}

// look checks h, records the result, and reports whether it was valid.
func (w *worker) look(records []*record, h lock.Hold) bool {
	now := history.Monotonic()
	valid := h.Err() == nil
	until := history.OnMonotonic(h.Until()) // it only increases
	w.looks.Add(1)
	for _, one := range records {
		switch {
		case !valid:
			one.Flags |= flagSeenLost
		case now > until+int64(clockSlack):
			one.Flags |= flagLate
			fallthrough
		default:
			one.Look, one.LookUntil = now, until
		}
	}
	return valid
}

// clockSlack is the accuracy of history.OnMonotonic.
const clockSlack = 2 * time.Microsecond

// unlock releases h, after a last check.
func (w *worker) unlock(records []*record, h lock.Hold, name string) {
	w.look(records, h)
	now := history.Monotonic()
	for _, one := range records {
		one.Release = now
	}
	err := h.Unlock(context.Background())
	now = history.Monotonic()
	outcome := byte(outcomeUnknown)
	switch {
	case err == nil:
		outcome = outcomeOK
	case errors.Is(err, lock.ErrGone):
		outcome = outcomeGone
	case errors.Is(err, lock.ErrLost):
		outcome = outcomeExpired
	case errors.Is(err, lock.ErrNotHeld):
		w.say("unlock %s: not held, and it does not say why: %v", name, err)
	default:
		w.refusedBy("unlock", err, name)
	}
	for _, one := range records {
		one.Outcome, one.Released = outcome, now
	}
}

// reenter acquires h's lock again, and releases that hold.
func (w *worker) reenter(t *taker, l lock.Locker, h lock.Hold, outer record) {
	one := record{Call: history.Monotonic(), Goroutine: outer.Goroutine, Place: outer.Place, Permits: 1, Side: outer.Side, Flags: flagReentry}
	again, err := l.TryLock(h.Context())
	if err != nil {
		if h.Err() == nil && errors.Is(err, lock.ErrNotAcquired) {
			w.say("%s: an owner that has it may not take it again: %v", t.Name, err)
		}
		return
	}
	w.reentries.Add(1)
	records := w.grant(t, &one, again)
	if one.Token != outer.Token {
		w.say("%s: a reentry has the token %d, and the hold has %d", t.Name, one.Token, outer.Token)
	}
	w.unlock(records, again, t.Name)
}

// refusedBy counts the reasons why calls failed.
func (w *worker) refusedBy(call string, err error, name string) {
	switch {
	case errors.Is(err, lock.ErrUnavailable):
		w.unavailable.Add(1)
	case errors.Is(err, context.DeadlineExceeded):
		w.timedOut.Add(1)
	case errors.Is(err, lock.ErrNotAcquired):
		w.refused.Add(1)
	default:
		var e *lock.Error
		if errors.As(err, &e) {
			err = e.Err
		}
		said := err.Error()
		if strings.HasPrefix(said, "OOM") {
			said, _, _ = strings.Cut(said, " script: ") // the script does not matter
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if text := call + ": " + said; len(w.failed) < 50 || w.failed[text] > 0 {
			w.failed[text]++
		}
	}
}
