// Package command sends the commands of a client, and reports the outcome of each: executed, not
// executed, or unknown.
//
// [Send] returns in time, whatever the server does. If the caller stops waiting, the command stays in
// the queue of its connection and may still be executed. Each [Call] therefore has a method Late,
// which receives the reply that the caller did not wait for.
//
//	reply, answered, err := command.Send(ctx, sender, limit, call)
//
// [retry.FaultOf] says what an error means: whether the server may have executed the command, and
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

	// Batched reports whether the command is a change of a plain lock that can be sent in a batch
	// with other changes to node. Encode and Decode are then used instead of Send.
	Batched() (node uint16, joins bool)

	// Encode fills in the change.
	Encode(change *luascripts.Change)

	// Decode returns the reply to the change.
	Decode(change *luascripts.Change) (T, error)
}

// Func is a Call that ignores a late reply.
type Func[T any] func(ctx context.Context) (T, error)

// Send calls f.
func (f Func[T]) Send(ctx context.Context) (T, error) { return f(ctx) }

// Late ignores the reply.
func (f Func[T]) Late(T, error) {}

// Batched reports false.
func (f Func[T]) Batched() (uint16, bool) { return Unbatched[T]{}.Batched() }

// Encode is not used.
func (f Func[T]) Encode(*luascripts.Change) {}

// Decode is not used.
func (f Func[T]) Decode(*luascripts.Change) (none T, err error) { return none, nil }

// Config configures a Sender.
type Config struct {
	Timeout time.Duration   // how long one command may remain without a reply
	User    string          // the Redis user, for errors; "" if unknown
	Closing <-chan struct{} // closed when the client closes
}

// Sender sends the commands of one client. It counts the client's calls and background work.
type Sender struct {
	Config                                                             // set once
	rdb    rueidis.Client                                              // set once
	change func(conn rueidis.CoreClient, changes []*luascripts.Change) // set once: executes changes over conn

	work sync.WaitGroup // see Add

	jobs    chan job     // set once: hands work to an idle goroutine
	timers  sync.Pool    // of stopped *time.Timer; not shared between clients, like batcher.unused
	signals sync.Pool    // of empty channels, likewise
	idle    atomic.Int32 // the number of goroutines that wait for jobs

	sending  atomic.Int32 // the number of unbatched commands without a reply
	batchers batchers     // of batched changes
}

// New returns a sender on rdb. It never closes rdb.
func New(rdb rueidis.Client, c Config) *Sender {
	s := &Sender{Config: c, rdb: rdb, jobs: make(chan job)}
	s.change = func(conn rueidis.CoreClient, changes []*luascripts.Change) {
		luascripts.ChangeReentrant(context.Background(), conn, changes, callMost)
	}
	return s
}

// Add counts a call of the client or background work. Each Add needs a Done. An Add from zero must
// not come after Wait has begun: the caller of Add must be counted itself, or must know that Close
// has not begun.
func (s *Sender) Add() { s.work.Add(1) }

// Done ends an Add.
func (s *Sender) Done() { s.work.Done() }

// Go runs f in a goroutine that is counted as by Add.
func (s *Sender) Go(f func()) { s.work.Go(f) }

// Wait waits until nothing is counted. No command may be sent after that.
func (s *Sender) Wait() {
	s.work.Wait()
	s.batchers.stop()
}

// Send sends c and waits for the reply, until ctx is canceled or limit has passed; 0 means no limit.
// answered reports whether value and err are the result of c.Send. If not, err says why the wait
// ended, and c.Late receives the result.
//
// The caller must be counted by Add. A renewal need not be, because closing the watchdog waits for it
// before Wait.
func Send[T any, C Call[T]](ctx context.Context, s *Sender, limit time.Duration, c C) (value T, answered bool, err error) {
	if node, joins := c.Batched(); joins {
		return sendBatched[T](ctx, s.batcherOf(node), limit, c)
	}
	return sendAlone[T](ctx, s, limit, c)
}

// sendAlone is Send for an unbatched command. A goroutine of the sender sends the command, and ends
// when the server has replied or the connection is closed.
func sendAlone[T any, C Call[T]](ctx context.Context, s *Sender, limit time.Duration, c C) (value T, answered bool, err error) {
	f := &flight[T, C]{s: s, call: c, done: s.signal()}
	s.sending.Add(1)
	s.do(f)

	var timeout <-chan time.Time
	if limit > 0 {
		t := s.timer(limit)
		defer s.stop(t)
		timeout = t.C
	}
	select {
	case <-f.done:
		s.signals.Put(f.done)
		return f.value, true, f.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout:
		err = NoReply{After: s.Timeout} // limit may be the remainder of the timeout
	}
	if f.over.Swap(true) { // the reply came at the same time
		return f.value, true, f.err
	}
	return value, false, err
}

// flight is an unbatched command in flight.
type flight[T any, C Call[T]] struct {
	s    *Sender       // set once
	call C             // set once
	done chan struct{} // set once, cap 1: receives a token after the reply, unless the caller has left

	value T // the reply; set before over
	err   error
	over  atomic.Bool // the reply arrived or the caller left, whichever came first
}

// run sends the command. If its caller has left, Late receives the reply.
func (f *flight[T, C]) run() {
	f.value, f.err = f.call.Send(context.Background())
	f.err = DetectClosed(context.Background(), f.s.rdb, f.err)
	f.s.sending.Add(-1)
	if f.over.Swap(true) {
		f.call.Late(f.value, f.err)
		return
	}
	f.done <- struct{}{}
}

// signal returns a channel of capacity 1, which is put back when it is empty.
func (s *Sender) signal() chan struct{} {
	if c, ok := s.signals.Get().(chan struct{}); ok {
		return c
	}
	return make(chan struct{}, 1)
}

// timer returns a timer for d, which stop recycles.
func (s *Sender) timer(d time.Duration) *time.Timer {
	if t, ok := s.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (s *Sender) stop(t *time.Timer) {
	t.Stop()
	s.timers.Put(t)
}

// idlers is the maximum number of goroutines that wait for the next unbatched command or batch.
// Waking one, with its stack grown, costs half as much as starting a new one.
const idlers = 8

// job is the work of one goroutine of the sender.
type job interface{ run() }

// do runs j in an idle goroutine, or a new one. Both are counted.
func (s *Sender) do(j job) {
	select {
	case s.jobs <- j:
	default:
		s.start(j)
	}
}

// start runs j in a new goroutine.
func (s *Sender) start(j job) {
	s.work.Go(func() {
		for j != nil {
			j.run()
			j = nil // do not keep j alive while the goroutine waits
			j = s.nextJob()
		}
	})
}

// nextJob waits for the next job. It returns nil if the goroutine must end, because enough others
// wait or the client closes.
func (s *Sender) nextJob() (j job) {
	defer s.idle.Add(-1)
	if s.idle.Add(1) > idlers {
		return nil
	}
	select {
	case j = <-s.jobs:
	case <-s.Closing:
	}
	return j
}

// IsReply reports whether a command that returned err had a reply.
func IsReply(err error) bool {
	_, refused := rueidis.IsRedisErr(err)
	return err == nil || refused
}

// Outcome is the outcome of a command that was retried until it had a reply.
type Outcome[T any] struct {
	Value    T
	Err      error
	Answered bool // Value and Err are a reply; otherwise Late receives the reply
	Repeated bool // an earlier copy of the command may have been executed
}

// SendWithRetry sends c until it succeeds, a retry cannot help, within has passed since began, or ctx
// is canceled. began must be the current time. If within is 0, there is no limit. The command must be
// safe to repeat.
func SendWithRetry[T any, C Call[T]](ctx context.Context, s *Sender, began time.Time, within time.Duration, c C) (o Outcome[T]) {
	pause := retry.Backoff{Most: s.Timeout / 4}
	limit, sent := within, began
	var before error
	for {
		o.Value, o.Answered, o.Err = Send[T](ctx, s, limit, c)
		o.Repeated = o.Repeated || Resent(time.Since(sent))
		if !o.Answered && before != nil { // the last copy may have had only a few milliseconds
			if late, ok := o.Err.(NoReply); ok {
				late.before = before
				o.Err = late
			} else {
				o.Err = fmt.Errorf("%w: %w", o.Err, before)
			}
		}
		if o.Err == nil || !o.Answered {
			return o
		}
		last := before
		before = o.Err
		f, d := retry.FaultOf(o.Err), pause.Next()
		if within > 0 {
			limit = within - time.Since(began) - d
		}
		retries := f.Retries() || within == 0 && f.Passes // a call without a limit also retries if the condition may last
		if !retries || within > 0 && (limit <= 0 || s.Down(ctx, limit, last, o.Err)) || !Sleep(ctx, d) {
			return o
		}
		o.Repeated = o.Repeated || f.MayHaveRun()
		sent = time.Now()
	}
}

// Down reports whether a call that does not wait fails now, although it has time left. The
// connections for two consecutive copies of its command were refused, and every other known node
// refuses connections, too. A client library that follows Sentinel or a cluster found no other
// address between the copies.
//
// last and err are the errors of the two copies. Down takes up to limit.
func (s *Sender) Down(ctx context.Context, limit time.Duration, last, err error) bool {
	switch {
	case !RefusedTwice(last, err):
		return false
	case s.rdb.Mode() != rueidis.ClientModeCluster:
		return true
	}
	down, answered, _ := sendAlone[bool](ctx, s, min(limit, s.Timeout/4), Func[bool](func(ctx context.Context) (bool, error) { return AllRefuse(ctx, s.rdb), nil }))
	return answered && down
}

// RefusedTwice reports whether both errors say that the server refused the connection.
func RefusedTwice(last, err error) bool { return refuses(last) && refuses(err) }

// AllRefuse reports whether every node of the cluster that rdb knows refuses connections.
func AllRefuse(ctx context.Context, rdb rueidis.Client) bool {
	nodes := rdb.Nodes()
	answers := make(chan bool, len(nodes))
	for _, node := range nodes {
		go func() { answers <- refuses(node.Do(ctx, node.B().Ping().Build()).Error()) }()
	}
	all := true
	for range nodes {
		all = <-answers && all
	}
	return all
}

// refuses reports whether err says that the server refused the connection.
func refuses(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" && errors.Is(dial.Err, syscall.ECONNREFUSED)
}

// Sleep sleeps for d. It reports false if ctx is canceled first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Load is a snapshot of a Sender's work, for tests.
type Load struct {
	Sending int // unbatched commands without a reply
	Idle    int // goroutines that wait for the next job
}

// Load returns the current load.
func (s *Sender) Load() Load { return Load{int(s.sending.Load()), int(s.idle.Load())} }
