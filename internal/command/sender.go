// Package command sends the commands of a client, and reports what became of each: it was executed, it was not
// executed, or its outcome is unknown.
//
// [Send] sends a command and returns in time, whatever the server does. If the caller stops waiting, the command
// stays in the queue of its connection and may still be executed. Each [Call] therefore has a second half, Late, which
// receives the reply that the caller did not wait for.
//
//	reply, answered, err := command.Send(ctx, sender, limit, call)
//
// [retry.FaultOf] says what an error means: whether the server may have executed the command, and whether sending it
// again can help. [SendWithRetry] repeats a command that is safe to repeat until there is a usable reply.
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
	// Send sends the command and returns the reply. It returns when the server has
	// replied to, when the connection ends, or when ctx ends.
	Send(ctx context.Context) (T, error)

	// Late gets the reply for which the caller did not wait: the reply, or an error. It
	// runs in a goroutine that the Sender counts.
	Late(reply T, err error)

	// Joins reports whether the command is a change of a plain lock, which may travel with
	// those of other calls to the same node. Then Fill and Answer are used instead of Send.
	Batched() (node uint16, joins bool)

	// Fill fills in the change.
	Encode(change *luascripts.Change)

	// Answer returns the reply to the change.
	Decode(change *luascripts.Change) (T, error)
}

// Func is a Call that ignores a reply for which the caller does not wait.
type Func[T any] func(ctx context.Context) (T, error)

// Send calls f.
func (f Func[T]) Send(ctx context.Context) (T, error) { return f(ctx) }

// Late does nothing.
func (f Func[T]) Late(T, error) {}

// Batched reports false.
func (f Func[T]) Batched() (uint16, bool) { return Unbatched[T]{}.Batched() }

// Encode is not called.
func (f Func[T]) Encode(*luascripts.Change) {}

// Decode is not called.
func (f Func[T]) Decode(*luascripts.Change) (none T, err error) { return none, nil }

// Config is what a Sender needs to know.
type Config struct {
	Timeout time.Duration   // how long one command may stay unanswered
	User    string          // the name of the Redis user, for errors; "" if that is not known
	Closing <-chan struct{} // closed when the client closes
}

// Sender sends the commands of one client, and counts its calls and what goes on after them.
type Sender struct {
	Config                                                             // set once
	rdb    rueidis.Client                                              // set once
	change func(conn rueidis.CoreClient, changes []*luascripts.Change) // set once: executes changes over conn

	work sync.WaitGroup // see Add

	jobs   chan func()  // set once: to a goroutine that waits for something to do
	timers sync.Pool    // of *time.Timer that is stopped; not shared between clients, as batcher.unused
	idle   atomic.Int32 // how many goroutines wait for something to do

	sending  atomic.Int32 // how many commands that travel alone have no reply yet
	batchers batchers     // of changes that travel together
}

// New returns a sender on rdb, which it borrows.
func New(rdb rueidis.Client, c Config) *Sender {
	s := &Sender{Config: c, rdb: rdb, jobs: make(chan func())}
	s.change = func(conn rueidis.CoreClient, changes []*luascripts.Change) {
		luascripts.ChangeReentrant(context.Background(), conn, changes, callMost)
	}
	return s
}

// Add counts a call of the client, or something that goes on after one. Each Add needs a
// Done. While nothing is counted, no Add may come after Wait has begun: a caller that adds
// is counted already, or knows that Close has not begun.
func (s *Sender) Add() { s.work.Add(1) }

// Done ends what Add counts.
func (s *Sender) Done() { s.work.Done() }

// Go runs f in a goroutine, which is counted as by Add.
func (s *Sender) Go(f func()) { s.work.Go(f) }

// Wait waits until nothing is counted any more. No command may follow.
func (s *Sender) Wait() {
	s.work.Wait()
	s.batchers.stop()
}

// Send sends c and waits for the reply, until ctx ends or limit has passed; a limit of
// 0 is none. replied to reports whether value and err are what c.Send returned. If they are
// not, err is why the wait ended, and c.Late gets the reply.
//
// The caller is counted by Add. A renewal need not be: the watchdog's Close, which comes
// before Wait, waits for it.
func Send[T any, C Call[T]](ctx context.Context, s *Sender, limit time.Duration, c C) (value T, answered bool, err error) {
	if node, joins := c.Batched(); joins {
		return sendBatched[T](ctx, s.batcherOf(node), limit, c)
	}
	return sendAlone[T](ctx, s, limit, c)
}

// sendAlone is Send for a command that travels alone: a goroutine of the sender's sends it, and
// returns with the server's reply or with the end of the connection.
func sendAlone[T any, C Call[T]](ctx context.Context, s *Sender, limit time.Duration, c C) (value T, answered bool, err error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer) // unbuffered: a send that succeeds was received
	away := make(chan struct{})
	s.sending.Add(1)
	s.do(func() {
		value, err := c.Send(context.Background())
		err = DetectClosed(context.Background(), s.rdb, err)
		s.sending.Add(-1)
		select {
		case answers <- answer{value, err}:
		case <-away:
			c.Late(value, err)
		}
	})

	var timeout <-chan time.Time
	if limit > 0 {
		t := s.timer(limit)
		defer s.stop(t)
		timeout = t.C
	}
	select {
	case a := <-answers:
		return a.value, true, a.err
	case <-ctx.Done():
		close(away)
		return value, false, ctx.Err()
	case <-timeout:
		close(away)
		return value, false, NoReply{After: s.Timeout} // limit may be the rest of it
	}
}

// timer returns a timer for d, which stop takes back.
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

// idlers is how many goroutines at the most wait for the next command of a caller that can
// be cancelled. One that sleeps, with its stack grown, costs half as much as a new one.
const idlers = 8

// do runs f in a goroutine that is counted: one that waits for something to do, or a new one.
func (s *Sender) do(f func()) {
	select {
	case s.jobs <- f:
	default:
		s.work.Go(func() {
			for f != nil {
				f()
				f = nil // else this goroutine would keep it alive while it waits
				f = s.nextJob()
			}
		})
	}
}

// nextJob waits for something to do. It returns nil when the goroutine is to end: enough
// others wait, or the client closes.
func (s *Sender) nextJob() (f func()) {
	defer s.idle.Add(-1)
	if s.idle.Add(1) > idlers {
		return nil
	}
	select {
	case f = <-s.jobs:
	case <-s.Closing:
	}
	return f
}

// IsReply reports whether a command that returned err was replied to.
func IsReply(err error) bool {
	_, refused := rueidis.IsRedisErr(err)
	return err == nil || refused
}

// Outcome is what became of a command that was sent until something replied to.
type Outcome[T any] struct {
	Value    T
	Err      error
	Answered bool // Value and Err are a reply; else Late gets it
	Repeated bool // an earlier copy of the command may have been executed
}

// SendWithRetry awaits c, again and again while that may help: until within has passed since began, which
// is now (0 is no limit), or ctx ends. The command must be safe to repeat.
func SendWithRetry[T any, C Call[T]](ctx context.Context, s *Sender, began time.Time, within time.Duration, c C) (o Outcome[T]) {
	pause := retry.Backoff{Most: s.Timeout / 4}
	limit, sent := within, began
	var before error
	for {
		o.Value, o.Answered, o.Err = Send[T](ctx, s, limit, c)
		o.Repeated = o.Repeated || Resent(time.Since(sent))
		if !o.Answered && before != nil { // the last copy may have had a few milliseconds only
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
		retries := f.Retries() || within == 0 && f.Passes // a call without a limit waits
		if !retries || within > 0 && (limit <= 0 || s.Down(ctx, limit, last, o.Err)) || !Sleep(ctx, d) {
			return o
		}
		o.Repeated = o.Repeated || f.MayHaveRun()
		sent = time.Now()
	}
}

// Down reports whether a call that does not wait fails now, although it has time left: its command was refused a
// connection, again after the copy before, and each other node that is known refuses, too. Nothing listens there, and
// a client library that follows Sentinels or a cluster has not heard of another address since the copy before.
//
// last and err are the errors of the two copies. Down takes no longer than limit.
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

// RefusedTwice reports whether the errors of two copies of a command say that nothing listens at the address of the server.
func RefusedTwice(last, err error) bool { return refuses(last) && refuses(err) }

// AllRefuse reports whether each node of the cluster that rdb knows refuses connections.
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

// refuses reports whether err says that nothing listens at the address of the server.
func refuses(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" && errors.Is(dial.Err, syscall.ECONNREFUSED)
}

// Sleep sleeps for d, and reports false if ctx ended before.
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

// Load is what a Sender does at one moment, for tests.
type Load struct {
	Sending int // how many commands that travel alone have no reply yet
	Idle    int // how many goroutines wait for the next command
}

// Load returns what s does at this moment.
func (s *Sender) Load() Load { return Load{int(s.sending.Load()), int(s.idle.Load())} }
