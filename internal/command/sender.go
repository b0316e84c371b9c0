// Package command sends the commands of a client, and reports the outcome of each: executed, not
// executed, or unknown.
//
// [Send] returns in time, whatever the server does. If the caller stops waiting, the command stays in
// the queue of its connection and may still be executed. Each [Call] therefore has a method Late,
// which receives the reply that the caller did not wait for.
//
//	outcome := command.Send(ctx, sender, limit, call)
//
// [retry.FaultOf] returns what an error means: whether the server may have executed the command, and
// whether a retry can help. [SendWithRetry] repeats a command that is safe to repeat until there is a
// usable reply.
package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Call is one command.
type Call[T any] interface {
	// Send sends the command and returns the reply. It returns when the server has replied, the
	// connection is closed, or ctx is canceled.
	Send(ctx context.Context) (T, error)

	// Late receives the reply or error that the caller did not wait for. It runs in a goroutine that
	// the Sender counts.
	Late(reply T, err error)

	// Batch fills in the change that is sent in a batch instead of the command, and returns a function
	// that reads the reply. It returns nil, and does nothing, if the command is sent by Send.
	Batch(change *luascripts.Change) (reply func(*luascripts.Change) T)
}

// Unbatched can be embedded in a Call that is not batched.
type Unbatched[T any] struct{}

// Batch returns nil.
func (Unbatched[T]) Batch(*luascripts.Change) func(*luascripts.Change) T { return nil }

// Func is a Call that ignores a late reply.
type Func[T any] func(ctx context.Context) (T, error)

// Send calls f.
func (f Func[T]) Send(ctx context.Context) (T, error) { return f(ctx) }

// Late ignores the reply.
func (f Func[T]) Late(T, error) {}

// Batch returns nil.
func (f Func[T]) Batch(*luascripts.Change) func(*luascripts.Change) T { return nil }

// Config configures a Sender.
type Config struct {
	Timeout time.Duration            // how long one command may remain without a reply
	User    string                   // the Redis user, for errors; "" if unknown
	Prefix  string                   // the prefix of every key, for packages that have no other configuration
	Idle    int                      // the maximum number of goroutines that wait for the next command, until Shut
	Node    func(slot uint16) uint16 // the node of a slot of a cluster; nil without a cluster
}

// DefaultTimeout is the Timeout of a sender that no client of this module configures.
const DefaultTimeout = 3 * time.Second

// Sender sends the commands of one client. It counts the client's calls and background work.
type Sender struct {
	Config                // set once
	Redis  rueidis.Client // set once; nil if there is none

	// change is luascripts.ChangeReentrant, except in tests. Set once.
	change func(ctx context.Context, rdb rueidis.CoreClient, batch []*luascripts.Change, perCall int)

	mu      sync.Mutex     // guards closed, and the step of work from zero
	closed  bool           // no call can enter
	closing chan struct{}  // set once; closed with closed
	work    sync.WaitGroup // see Add

	jobs chan job     // set once: hands work to an idle goroutine
	idle atomic.Int32 // the number of goroutines that wait for jobs

	batchers sync.Map // *Batcher[luascripts.Change] by node, so that no node of a cluster delays another
	unused   unused
}

// unused has memory of calls for reuse. Clients do not share it, because a channel must not leave its
// testing/synctest bubble.
type unused struct {
	requests sync.Pool // *request[luascripts.Change]
	signals  sync.Pool // empty channels of waiters
	timers   sync.Pool // *time.Timer; to be reset
}

// New returns a sender on rdb. It never closes rdb.
func New(rdb rueidis.Client, c Config) *Sender {
	s := &Sender{Config: c, Redis: rdb, change: luascripts.ChangeReentrant, closing: make(chan struct{}), jobs: make(chan job)}
	s.unused.requests.New = func() any { return newRequest(luascripts.Change{}) }
	s.unused.signals.New = func() any { return newWaiter().done }
	s.unused.timers.New = func() any { return time.NewTimer(time.Hour) }
	return s
}

// Add counts a call of the client or background work. Each Add needs a Done. The caller of Add must
// be counted itself, or must know that Shut was not called: see Enter.
func (s *Sender) Add() { s.work.Add(1) }

// Done ends an Add or an Enter.
func (s *Sender) Done() { s.work.Done() }

// Go runs f in a goroutine that is counted as by Add.
func (s *Sender) Go(f func()) { s.work.Go(f) }

// Enter counts a call as Add does. After Shut it fails with [lock.ErrClosed].
func (s *Sender) Enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return lock.ErrClosed
	}
	s.Add()
	return nil
}

// Shut makes Enter fail, and ends the waits of [Ask], [Batcher.Ask] and [Sender.Sleep].
func (s *Sender) Shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
}

// Closing returns a channel that is closed by Shut.
func (s *Sender) Closing() <-chan struct{} { return s.closing }

// Wait waits until nothing is counted. No command may be sent after that.
func (s *Sender) Wait() { s.work.Wait() }

// Close calls Shut, and then Wait until ctx is canceled.
func (s *Sender) Close(ctx context.Context) error {
	s.Shut()
	done := make(chan struct{})
	go func() {
		s.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		select {
		case <-done:
			return nil
		default:
			return fmt.Errorf("%w: commands still wait for a server that does not respond; they end with the connection", Ended(ctx, 0))
		}
	}
}

// Send sends c and waits for the reply, until ctx is canceled or limit has passed; 0 means no limit. If
// the outcome is not Answered, its Err is the reason why the wait ended, and c.Late receives the
// result.
//
// The caller must be counted by Add. A renewal need not be, because closing the watchdog waits for it
// before Wait.
func Send[T any, C Call[T]](ctx context.Context, s *Sender, limit time.Duration, c C) (o Outcome[T]) {
	r := s.unused.requests.Get().(*request[luascripts.Change])
	reply := c.Batch(&r.R)
	if reply == nil {
		s.unused.requests.Put(r) // mutant: removed: speed
		o.Value, o.Answered, o.Err = sendAlone[T](ctx, s, limit, nil, c)
		return o
	}
	s.batcherOf(r.R.Slot).add(r)
	err := r.await(ctx, s, limit, nil)
	if err != nil && leaves[T](r, c, reply) { // mutant: operand 1: speed
		o.Err = err
		return o
	}
	o = Outcome[T]{Value: reply(&r.R), Err: r.R.Err, Answered: true, Repeated: r.R.Rejected != nil && retry.FaultOf(r.R.Rejected).MayHaveRun()}
	if err != nil { // mutant: always: speed
		return o // the reply came at the same time: r may get another token
	}
	r.R = luascripts.Change{}
	r.over.Store(false)
	s.unused.requests.Put(r) // mutant: removed: speed
	return o
}

// SendFunc is Send for a command that f sends, and whose late reply is ignored.
func SendFunc[T any](ctx context.Context, s *Sender, limit time.Duration, f func(context.Context) (T, error)) Outcome[T] {
	return Send[T](ctx, s, limit, Func[T](f))
}

// SendUntilShut is Send for a call that is not batched, whose wait also ends, with [lock.ErrClosed],
// when the sender is shut.
func SendUntilShut[T any, C Call[T]](ctx context.Context, s *Sender, limit time.Duration, c C) (o Outcome[T]) {
	o.Value, o.Answered, o.Err = sendAlone[T](ctx, s, limit, s.closing, c)
	return o
}

// leaves makes the caller of r leave. It reports false if the reply came first. In Send itself, its
// closure would move each call to the heap.
func leaves[T any, C Call[T]](r *request[luascripts.Change], c C, reply func(*luascripts.Change) T) bool {
	r.late = func() { c.Late(reply(&r.R), r.R.Err) }
	return !r.over.Swap(true)
}

// Ask calls f, which sends a command, and waits for its results. It returns early if ctx is canceled,
// limit has passed, or the sender is shut. Then the command continues, and its reply is ignored. Its
// context has the values of ctx, and is not canceled: a command in the queue of a connection is
// executed anyway, and canceling it can close the connection, which would fail other commands.
func Ask[T any](ctx context.Context, s *Sender, limit time.Duration, f func(context.Context) (T, error)) (none T, err error) {
	if ctx.Err() != nil {
		return none, Ended(ctx, 0)
	}
	if err := s.Enter(); err != nil {
		return none, err
	}
	defer s.Done()
	began := time.Now()
	value, _, err := sendAlone[T](ctx, s, limit, s.closing, Func[T](func(context.Context) (T, error) { return f(context.WithoutCancel(ctx)) }))
	return value, s.Failed(ctx, began, err) // f itself may return the error of ctx
}

// sendAlone is Send for an unbatched command, whose caller also leaves when closing is closed. A
// goroutine of the sender sends the command, and ends when the server has replied or the connection
// is closed.
func sendAlone[T any, C Call[T]](ctx context.Context, s *Sender, limit time.Duration, closing <-chan struct{}, c C) (value T, answered bool, err error) {
	f := &flight[T, C]{waiter: waiter{done: s.unused.signals.Get().(chan struct{})}, s: s, call: c}
	s.do(f)
	switch err = f.await(ctx, s, limit, closing); {
	case err == nil: // mutant: never: speed
		s.unused.signals.Put(f.done) // mutant: removed: speed
	case !f.over.Swap(true):
		return value, false, err
	}
	return f.value, true, f.err
}

// flight is an unbatched command in flight.
type flight[T any, C Call[T]] struct {
	waiter
	s    *Sender // set once
	call C       // set once

	value T // the reply; set before over
	err   error
}

// run sends the command. If its caller has left, Late receives the reply.
func (f *flight[T, C]) run() {
	if f.value, f.err = f.call.Send(context.Background()); f.err != nil { // mutant: always: of no error, DetectClosed makes none
		f.err = DetectClosed(context.Background(), f.s.Redis, f.err)
	}
	if !f.answer() {
		f.call.Late(f.value, f.err)
	}
}

// waiter is the caller of a command.
type waiter struct {
	done chan struct{} // set once, cap 1: receives a token after the reply, unless the caller has left
	over atomic.Bool   // the reply arrived or the caller left, whichever came first
}

func newWaiter() waiter { return waiter{done: make(chan struct{}, 1)} }

// await returns nil when the reply has arrived. Otherwise it returns why the wait ended.
// The caller has left if it then sets over before the reply does.
func (w *waiter) await(ctx context.Context, s *Sender, limit time.Duration, closing <-chan struct{}) error {
	var passed <-chan time.Time
	if limit > 0 {
		t := s.unused.timers.Get().(*time.Timer)
		t.Reset(limit)
		defer func() { // mutant: removed: speed
			t.Stop()               // mutant: removed: Reset does it
			s.unused.timers.Put(t) // mutant: removed: speed
		}()
		passed = t.C
	}
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ErrOf(ctx)
	case <-passed:
		return NoReply{After: max(limit, s.Timeout)} // limit may be the remainder of the timeout
	case <-closing:
		return lock.ErrClosed
	}
}

// answer wakes the caller, or reports that it has left.
func (w *waiter) answer() bool {
	if w.over.Swap(true) {
		return false
	}
	w.done <- struct{}{}
	return true
}

// Idlers is the Config.Idle of a sender whose owner calls Shut. Waking an idle goroutine, with its stack
// grown, costs half as much as starting a new one. Without them, one caller with a server nearby
// acquires a fifth fewer locks.
const Idlers = 8

// job is the work of one goroutine of the sender.
type job interface{ run() }

// do runs j in an idle goroutine, or a new one. Both are counted.
func (s *Sender) do(j job) {
	select {
	case s.jobs <- j:
	default:
		s.work.Go(func() { s.runAll(j) })
	}
}

// runAll runs j and further jobs, until enough other goroutines wait for the next or the client
// closes.
func (s *Sender) runAll(j job) {
	for j != nil {
		j.run()
		j = nil // not kept alive during the wait for the next
		if int(s.idle.Add(1)) <= s.Idle {
			select {
			case j = <-s.jobs:
			case <-s.closing:
			}
		}
		s.idle.Add(-1)
	}
}

// IsReply reports whether a command that returned err had a reply.
func IsReply(err error) bool {
	_, refused := rueidis.IsRedisErr(err)
	return err == nil || refused
}

// Outcome is the outcome of a command.
type Outcome[T any] struct {
	Value    T
	Err      error
	Answered bool // Value and Err are a reply; otherwise Late receives the reply
	Repeated bool // an earlier copy of the command may have been executed
}

// SendWithRetry sends c until it succeeds, a retry cannot help, within has passed, or ctx is canceled.
// If within is 0, there is no limit. The command must be safe to repeat.
func SendWithRetry[T any, C Call[T]](ctx context.Context, s *Sender, within time.Duration, c C) (o Outcome[T]) {
	pause := retry.Backoff{Most: s.Timeout / 4}
	began := time.Now()
	limit, sent := within, began
	var before error
	for {
		repeated := o.Repeated
		o = Send[T](ctx, s, limit, c)
		o.Repeated = o.Repeated || repeated || Resent(time.Since(sent))
		if !o.Answered && before != nil { // mutant: operand 2: text. The last copy may have had only a few milliseconds
			if late, ok := o.Err.(NoReply); ok {
				late.before = before
				o.Err = late
			} else {
				o.Err = before // the caller adds that ctx is canceled
			}
		}
		if o.Err == nil || !o.Answered {
			return o
		}
		last := before
		before = o.Err
		f, d := retry.FaultOf(o.Err), pause.Next()
		if within > 0 { // mutant: always, border: no limit either way
			limit = within - time.Since(began) - d
		}
		retries := f.Retries() || within == 0 && f.Temporary // a call without a limit also retries if the condition may last
		// mutant: border 2: a nanosecond
		if !retries || within > 0 && (limit <= 0 || s.Down(ctx, limit, last, o.Err)) || !Sleep(ctx, d) {
			return o
		}
		o.Repeated = o.Repeated || f.MayHaveRun()
		sent = time.Now()
	}
}

// SendFuncWithRetry is SendWithRetry for a command that f sends.
func SendFuncWithRetry[T any](ctx context.Context, s *Sender, within time.Duration, f func(context.Context) (T, error)) Outcome[T] {
	return SendWithRetry[T](ctx, s, within, Func[T](f))
}

// Down reports whether a call that does not wait fails now, although it has time left. The
// connections for two consecutive copies of its command were refused, and every other known node
// refuses connections, too. A client library that follows Sentinel or a cluster found no other
// address between the copies.
//
// last and err are the errors of the two copies. Down takes up to limit.
func (s *Sender) Down(ctx context.Context, limit time.Duration, last, err error) bool {
	switch {
	case !refuses(last) || !refuses(err):
		return false
	case s.Redis.Mode() != rueidis.ClientModeCluster:
		return true
	}
	down, answered, _ := sendAlone[bool](ctx, s, min(limit, s.Timeout/4), nil, Func[bool](func(ctx context.Context) (bool, error) {
		nodes := s.Redis.Nodes()
		answers := make(chan bool, len(nodes))
		for _, node := range nodes {
			go func() { answers <- refuses(node.Do(ctx, node.B().Ping().Build()).Error()) }()
		}
		all := true
		for range nodes {
			all = <-answers && all
		}
		return all, nil
	}))
	return answered && down
}

// refuses reports whether err means that the server refused the connection.
func refuses(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" && errors.Is(dial.Err, syscall.ECONNREFUSED)
}

// Sleep sleeps for d. It returns an error if ctx is canceled or the sender is shut first.
func (s *Sender) Sleep(ctx context.Context, d time.Duration) error { return sleep(ctx, d, s.closing) }

// Sleep sleeps for d. It reports false if ctx is canceled first.
func Sleep(ctx context.Context, d time.Duration) bool { return sleep(ctx, d, nil) == nil }

func sleep(ctx context.Context, d time.Duration, closing <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop() // mutant: removed: memory
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return Ended(ctx, 0)
	case <-closing:
		return lock.ErrClosed
	}
}

// Waiting returns how many goroutines wait for the next command, for tests.
func (s *Sender) Waiting() int { return int(s.idle.Load()) }
