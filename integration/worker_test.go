//go:build linux

package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
	"golang.org/x/sys/unix"
)

// workerEnv is the environment variable that makes this binary a worker.
const workerEnv = "LEASEHOLD_WORKER"

// promptTimeout limits what should happen immediately, even on a busy machine.
const promptTimeout = 30 * time.Second

// request is one command for a worker. Each command uses some of the fields.
type request struct {
	ID            int
	Do            string
	Addr          string        `json:",omitempty"`
	Dog           time.Duration `json:",omitempty"` // the watchdog timeout
	Kind          kind          `json:",omitempty"` // plain if empty
	Name          string        `json:",omitempty"`
	Lease         time.Duration `json:",omitempty"` // a fixed lease, or 0
	WaiterTimeout time.Duration `json:",omitempty"` // of lock.WithWaiterTimeout, or 0
	Wait          time.Duration `json:",omitempty"` // how long to wait; 0 tries once
	Hold          int           `json:",omitempty"` // the number of a hold, from a reply
	Contend       *plan         `json:",omitempty"`
	Crowd         *crowd        `json:",omitempty"`
	Stream        *stream       `json:",omitempty"`
	Share         int           `json:",omitempty"` // number of goroutines that share a lock
	Fenced        bool          `json:",omitempty"` // with lock.WithFencing
	Relay         *relay        `json:",omitempty"`
	Hot           *hot          `json:",omitempty"`
}

// options returns the options of r's lock.
func (r request) options() (options []lock.Option) {
	if r.Lease != 0 {
		options = append(options, lock.WithFixedLease(r.Lease))
	}
	if r.WaiterTimeout != 0 && r.Kind != plain && r.Kind != "" {
		options = append(options, lock.WithWaiterTimeout(r.WaiterTimeout))
	}
	if r.Fenced {
		options = append(options, lock.WithFencing())
	}
	return options
}

// reply is the reply to a request.
type reply struct {
	ID    int
	Err   string          `json:",omitempty"`
	Is    []string        `json:",omitempty"` // the sentinels that the error matches
	Value json.RawMessage `json:",omitempty"`
}

var sentinels = map[string]error{
	"ErrNotAcquired": lock.ErrNotAcquired, "ErrNotHeld": lock.ErrNotHeld, "ErrLost": lock.ErrLost,
	"ErrUnlocked": lock.ErrUnlocked, "ErrClosed": lock.ErrClosed, "ErrWrongType": lock.ErrWrongType,
	"ErrUpgrade": lock.ErrUpgrade,
}

// is reports whether the error in r matches all of the named sentinels.
func (r reply) is(names ...string) bool {
	for _, name := range names {
		if !slices.Contains(r.Is, name) {
			return false
		}
	}
	return r.Err != ""
}

// worker is the parent's side of a worker process.
type worker struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process is reaped

	mu      sync.Mutex
	in      *json.Encoder      // guarded by mu
	next    int                // guarded by mu
	pending map[int]chan reply // guarded by mu; nil once the process has exited
}

// startWorker starts a process that is killed when tb ends, even if it is paused then.
func startWorker(tb testing.TB) *worker {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	w, err := launch(cmd)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(w.kill)
	return w
}

// launch starts a process that reads commands as lines of JSON. It does not outlive this process.
func launch(cmd *exec.Cmd) (*worker, error) {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: cmd, exited: make(chan struct{}), in: json.NewEncoder(stdin), pending: make(map[int]chan reply)}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it exits.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(w.exited)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		w.read(stdout)
		_ = cmd.Wait() // "signal: killed" is how most of them end
	}()
	if err := <-started; err != nil {
		<-w.exited
		return nil, err
	}
	return w, nil
}

// read delivers the replies until the process exits.
func (w *worker) read(out io.Reader) {
	for replies := json.NewDecoder(out); ; {
		var r reply
		err := replies.Decode(&r)
		w.mu.Lock()
		if err != nil {
			for _, c := range w.pending {
				close(c)
			}
			w.pending = nil
			w.mu.Unlock()
			return
		}
		c := w.pending[r.ID]
		delete(w.pending, r.ID)
		w.mu.Unlock()
		c <- r
	}
}

// send sends the worker a command. The channel receives the reply, or is closed if the process exits first.
func (w *worker) send(tb testing.TB, r request) <-chan reply {
	tb.Helper()
	return w.tell(tb, r.Do, func(id int) any { r.ID = id; return r })
}

// tell sends the process a command in its own format. what names the command in errors; with returns the command with
// the given ID.
func (w *worker) tell(tb testing.TB, what string, with func(id int) any) <-chan reply {
	tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		tb.Fatalf("process %d is gone; it should %s", w.cmd.Process.Pid, what)
	}
	w.next++
	c := make(chan reply, 1)
	w.pending[w.next] = c
	if err := w.in.Encode(with(w.next)); err != nil {
		tb.Fatalf("process %d: %s: %v", w.cmd.Process.Pid, what, err)
	}
	return c
}

// receive waits for a reply.
func receive(tb testing.TB, c <-chan reply) reply {
	tb.Helper()
	return receiveWithin(tb, c, promptTimeout)
}

// receiveWithin waits for a reply, for at most most.
func receiveWithin(tb testing.TB, c <-chan reply, most time.Duration) reply {
	tb.Helper()
	select {
	case r, ok := <-c:
		if !ok {
			tb.Fatal("the worker ended instead of answering")
		}
		return r
	case <-time.After(most):
		tb.Fatalf("no reply from a worker within %v", most)
	}
	return reply{}
}

// do sends the worker a command that must succeed.
func (w *worker) do(tb testing.TB, r request) reply {
	tb.Helper()
	return must(tb, receive(tb, w.send(tb, r)))
}

func must(tb testing.TB, r reply) reply {
	tb.Helper()
	if r.Err != "" {
		tb.Fatalf("a worker failed: %s", r.Err)
	}
	return r
}

// value decodes the value of a reply.
func value[T any](tb testing.TB, r reply) (v T) {
	tb.Helper()
	if err := json.Unmarshal(r.Value, &v); err != nil {
		tb.Fatalf("a worker's reply: %v", err)
	}
	return v
}

// stop pauses the process, and returns when none of its threads runs anymore.
func (w *worker) stop(tb testing.TB) {
	tb.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		tb.Fatalf("SIGSTOP: %v", err)
	}
	for {
		// Not wait4: it could consume the exit status that cmd.Wait needs.
		err := unix.Waitid(unix.P_PID, w.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			tb.Fatalf("waiting for a worker to stop: %v", err)
		}
		return
	}
}

// cont resumes the process.
func (w *worker) cont(tb testing.TB) {
	tb.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		tb.Fatalf("SIGCONT: %v", err)
	}
}

// kill kills the process like a crash, and returns when it has exited.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // fails only if it has already exited
	<-w.exited
}

// granted is a worker's reply about a hold.
type granted struct {
	Hold int // its number in later commands
	Op   op
}

// process is the state of the worker process.
type process struct {
	rdb    rueidis.Client // the client's
	side   rueidis.Client // for the data that the locks protect
	client *client.Client

	begun  atomic.Int64 // the number of calls of Lock so far
	enough atomic.Bool  // stops streams
	runner *runner      // set by relay

	mu    sync.Mutex
	holds []lock.Hold // guarded by mu
}

// work executes commands, each in a separate goroutine, until there are no more.
func work(in io.Reader, out io.Writer) (code int) {
	p := &process{}
	var mu sync.Mutex
	replies := json.NewEncoder(out)
	for requests := json.NewDecoder(in); ; {
		var r request
		if err := requests.Decode(&r); err != nil {
			return 0 // the parent is gone
		}
		serve := func() {
			v, err := p.serve(r)
			a := answer(r.ID, v, err)
			mu.Lock()
			defer mu.Unlock()
			_ = replies.Encode(a) // without a parent there is no reader
		}
		if r.Do == "close" {
			serve() // alone, because it counts the remaining goroutines
		} else {
			go serve()
		}
	}
}

func answer(id int, v any, err error) reply {
	a := reply{ID: id}
	if err != nil {
		a.Err = err.Error()
		for name, sentinel := range sentinels {
			if errors.Is(err, sentinel) {
				a.Is = append(a.Is, name)
			}
		}
	}
	a.Value, _ = json.Marshal(v) // all of these types can be marshaled
	return a
}

func (p *process) serve(r request) (any, error) {
	ctx := context.Background()
	switch r.Do {
	case "open":
		return nil, p.open(r)
	case "lock":
		return p.lock(ctx, r)
	case "unlock":
		return nil, p.hold(r.Hold).Unlock(ctx)
	case "watch":
		return watch(p.hold(r.Hold)), nil
	case "begun":
		return p.begun.Load(), nil
	case "contend":
		return p.contend(ctx, *r.Contend)
	case "crowd":
		return p.crowd(ctx, r)
	case "stream":
		return p.stream(ctx, r)
	case "enough":
		p.enough.Store(true)
		return nil, nil
	case "loop":
		return p.loop(ctx, r)
	case "share":
		return p.share(ctx, r)
	case "limit":
		return nil, p.limit(ctx, r)
	case "hot":
		return p.hot(ctx, *r.Hot)
	case "relay":
		return nil, p.relay(ctx, r)
	case "stayed":
		return <-p.runner.stayed, nil
	case "stop":
		return p.runner.stop()
	case "finish":
		return p.runner.finish()
	case "setnx then expire":
		return nil, setnxThenExpire(ctx, p.rdb, r.Name, r.Lease)
	case "value clock":
		_, ok, err := valueClock(ctx, p.rdb, r.Name, r.Lease)
		return ok, err
	case "close":
		return nil, p.close(ctx)
	}
	return nil, fmt.Errorf("what is %q?", r.Do)
}

// open connects to Addr.
func (p *process) open(r request) (err error) {
	option := rueidis.ClientOption{InitAddress: []string{r.Addr}, DisableCache: true}
	if p.rdb, err = rueidis.NewClient(option); err != nil {
		return err
	}
	if p.side, err = rueidis.NewClient(option); err != nil {
		return err
	}
	options := []client.Option{client.WithObserver(lock.Observer{
		Waiting: func(ctx context.Context, _ lock.Event) {
			if at, ok := ctx.Value(refusedAt{}).(*atomic.Int64); ok {
				at.Store(monotonic())
			}
		},
	})}
	if r.Dog != 0 {
		options = append(options, client.WithWatchdogTimeout(r.Dog))
	}
	p.client, err = client.New(p.rdb, append(options, client.WithoutRegistry())...)
	return err
}

// lock acquires Name: with Lock for at most Wait, or with TryLock if Wait is 0.
func (p *process) lock(ctx context.Context, r request) (granted, error) {
	l := r.Kind.lock(p.client, r.Name, r.options()...)
	p.begun.Add(1)
	o := op{Kind: acquire, Name: r.Name, Call: monotonic()}
	h, err := lockWithin(noting(ctx), l, r.Wait)
	o.Return = monotonic()
	if err != nil {
		return granted{}, err
	}
	p.grant(&o, h)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds = append(p.holds, h)
	return granted{Hold: len(p.holds), Op: o}, nil
}

// lockWithin waits for at most d; if d is 0, it only tries. A context deadline would also end the hold's context.
func lockWithin(ctx context.Context, l lock.Locker, d time.Duration) (lock.Hold, error) {
	if d == 0 {
		return l.TryLock(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	h, err := l.Lock(ctx)
	if !timer.Stop() && err == nil {
		return nil, errors.Join(lock.ErrNotAcquired, h.Unlock(ctx)) // both at the same instant
	}
	return h, err
}

// refusedAt is the context key for the time when Redis refused the call, by monotonic.
type refusedAt struct{}

// noting returns a context of a call whose refusal is recorded.
func noting(ctx context.Context) context.Context {
	return context.WithValue(ctx, refusedAt{}, new(atomic.Int64))
}

// grant records that o acquired h, and the time of an earlier refusal, if any.
func (p *process) grant(o *op, h lock.Hold) {
	o.Grant(h)
	if at, ok := h.Context().Value(refusedAt{}).(*atomic.Int64); ok {
		o.Queued = at.Load()
	}
}

func (p *process) hold(n int) lock.Hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds[n-1]
}

// close closes everything, and fails if a goroutine is left.
func (p *process) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, promptTimeout)
	defer cancel()
	err := p.client.Close(ctx)
	p.rdb.Close()
	p.side.Close()
	return errors.Join(err, redistest.Leaks())
}
