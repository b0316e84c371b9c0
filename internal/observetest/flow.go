// Package observetest produces every event of an observer with locks on a real server, for the tests
// of observers. It is for tests only.
package observetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Told is one recorded event.
type Told struct {
	What string // the name of the function of lock.Observer
	Ctx  context.Context
	lock.Event
}

// Record has the events that an observer received.
type Record struct {
	mu   sync.Mutex
	told []Told
	more chan struct{} // closed and replaced at each event
}

// NewRecord returns an empty record.
func NewRecord() *Record { return &Record{more: make(chan struct{})} }

// Observer returns an observer that records its events in r.
func (r *Record) Observer() lock.Observer {
	on := func(what string) func(context.Context, lock.Event) {
		return func(ctx context.Context, e lock.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, Told{what, ctx, e})
			close(r.more)
			r.more = make(chan struct{})
		}
	}
	return lock.Observer{
		Waiting: on("Waiting"), Acquired: on("Acquired"), NotAcquired: on("NotAcquired"), TimedOut: on("TimedOut"), Canceled: on("Canceled"), Unavailable: on("Unavailable"),
		Failed: on("Failed"), Renewed: on("Renewed"), RenewalFailed: on("RenewalFailed"), Draining: on("Draining"), StillRunning: on("StillRunning"), Abandoned: on("Abandoned"), HandedOff: on("HandedOff"), Kept: on("Kept"), Released: on("Released"), Lost: on("Lost"),
	}
}

// All returns the events so far for which ok returns true.
func (r *Record) All(ok func(Told) bool) (all []Told) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.told {
		if ok(t) {
			all = append(all, t)
		}
	}
	return all
}

// Of returns the events so far of one function of the observer.
func (r *Record) Of(what string) []Told {
	return r.All(func(t Told) bool { return t.What == what })
}

// Await waits until the observer has received this event for the lock of that name, and returns it.
func (r *Record) Await(t *testing.T, what, name string) Told {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		r.mu.Lock()
		more := r.more
		r.mu.Unlock()
		if all := r.All(func(t Told) bool { return t.What == what && t.Name == name }); len(all) > 0 {
			return all[0]
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("the observer does not hear of %s for %q", what, name)
		}
	}
}

const (
	lease     = 24 * time.Second // renewed every third of it
	opTimeout = 4 * time.Second  // long, because a busy machine must not look like an unavailable server
)

// Play makes a client with opts on a real server produce every event, with every type of lock, and
// closes it. It returns what a second observer received.
func Play(t *testing.T, opts ...client.Option) *Record {
	r := NewRecord()
	server := redistest.Start(t)
	c, err := client.New(server.Client(t), append(opts, client.WithObserver(r.Observer()), client.WithWatchdogTimeout(lease), client.WithOpTimeout(opTimeout))...)
	if err != nil {
		t.Fatal(err)
	}
	rival, err := client.New(server.Client(t), client.WithOpTimeout(opTimeout))
	if err != nil {
		t.Fatal(err)
	}
	p := &play{T: t, r: r, server: server, c: c, rival: rival}
	held := p.take(c.NewLock("held")) // until the end
	p.calls()
	p.handOver()
	p.keep()
	p.ends()
	p.silence(held)
	for _, c := range []*client.Client{rival, c} {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	return r
}

// play is one Play.
type play struct {
	*testing.T
	r        *Record
	server   *redistest.Server
	c, rival *client.Client
}

func (p *play) take(l lock.Locker) lock.Hold {
	p.Helper()
	h, err := l.Lock(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	return h
}

func (p *play) unlock(h lock.Hold) {
	p.Helper()
	if err := h.Unlock(p.Context()); err != nil {
		p.Error(err)
	}
}

// fails fails the test unless a call returned an error that matches all of these.
func (p *play) fails(err error, want ...error) {
	p.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			p.Errorf("%v, want %v", err, w)
		}
	}
}

// refuses repeats the call until it is rejected. On a busy machine, Redis may not reply within the
// time of the call.
func (p *play) refuses(call func(context.Context) (lock.Hold, error)) {
	p.Helper()
	_, err := call(p.Context())
	for errors.Is(err, lock.ErrUnavailable) {
		_, err = call(p.Context())
	}
	p.fails(err, lock.ErrNotAcquired)
}

// pair has a lock of the observed client, and the same lock of the other client.
type pair struct{ ours, theirs lock.Locker }

// kinds returns a lock of each type.
func (p *play) kinds(name string, opts ...lock.Option) map[string]pair {
	c, r := p.c, p.rival
	return map[string]pair{
		"plain": {c.NewLock(name, opts...), r.NewLock(name)},
		"fair":  {c.NewFairLock("fair "+name, opts...), r.NewFairLock("fair " + name)},
		"read":  {c.NewRWLock("rw "+name, opts...).Read(), r.NewRWLock("rw " + name).Write()},
		"write": {c.NewRWLock("rw "+name, opts...).Write(), r.NewRWLock("rw " + name).Read()},
	}
}

// calls produces every outcome of a call that is possible while Redis is available.
func (p *play) calls() {
	limited := p.kinds("calls", lock.WithWait(50*time.Millisecond))
	for kind, l := range p.kinds("calls") {
		p.unlock(p.take(l.ours))
		h := p.take(l.theirs)
		p.refuses(l.ours.TryLock)
		p.refuses(limited[kind].ours.Lock)
		p.unlock(h)
		if n := len(p.r.All(func(t Told) bool { return t.Kind == kind && t.What == "TimedOut" })); n != 1 {
			p.Errorf("%s: the observer hears of %d waits that timed out, want one", kind, n)
		}
	}
	h := p.take(p.rival.NewLock("canceled"))
	ctx, cancel := context.WithCancel(p.Context())
	done := make(chan error)
	go func() {
		_, err := p.c.NewLock("canceled").Lock(ctx)
		done <- err
	}()
	p.r.Await(p.T, "Waiting", "canceled")
	cancel()
	p.fails(<-done, context.Canceled)
	p.unlock(h)

	p.server.Do(p, "SET", "no lock", "text")
	_, err := p.c.NewLock("no lock").TryLock(p.Context())
	p.fails(err, lock.ErrWrongType)
}

// handOver hands off a lock from goroutine to goroutine.
func (p *play) handOver() {
	l := p.c.NewLock("busy")
	for len(p.r.Of("HandedOff")) == 0 {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					p.unlock(p.take(l))
				}
			})
		}
		wg.Wait()
		if p.Context().Err() != nil {
			p.Fatal("no lock is passed on")
		}
	}
}

// keep makes the client keep a lock for its next caller.
func (p *play) keep() {
	l := p.c.NewLock("kept", lock.WithLinger(time.Second))
	for len(p.r.Of("Kept")) == 0 {
		p.unlock(p.take(l))
		if p.Context().Err() != nil {
			p.Fatal("no lock is kept")
		}
	}
}

// ends ends holds in every way that is possible while Redis is available. The observed client
// detects some of them with its next renewal.
func (p *play) ends() {
	expired := p.take(p.c.NewLock("expired", lock.WithFixedLease(5*time.Second)))
	aged := p.take(p.c.NewLock("aged", lock.WithMaxHold(50*time.Millisecond)))
	forced, gone := p.take(p.c.NewLock("forced")), p.take(p.c.NewFairLock("gone"))
	ctx, cancel := context.WithCancel(p.Context())
	if _, err := p.c.NewLock("abandoned", lock.WithGrace(50*time.Millisecond)).Lock(ctx); err != nil {
		p.Fatal(err)
	}
	drains, stop, returned := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		returned <- lock.Do(ctx, p.c.NewLock("drains", lock.WithGrace(50*time.Millisecond)), func(context.Context) error {
			close(drains)
			<-stop
			return nil
		})
	}()
	<-drains
	defer func() {
		close(stop)
		if err := <-returned; err != nil {
			p.Error(err)
		}
	}()
	cancel()
	if done, err := p.c.NewLock("forced").ForceUnlock(p.Context()); err != nil || !done {
		p.Fatal(done, err)
	}
	if done, err := p.rival.NewFairLock("gone").ForceUnlock(p.Context()); err != nil || !done {
		p.Fatal(done, err)
	}
	for _, h := range []lock.Hold{expired, aged, forced, gone} {
		<-h.Context().Done()
	}
	for _, name := range []string{"expired", "aged", "forced", "gone", "abandoned"} {
		p.r.Await(p.T, "Lost", name)
	}
	p.r.Await(p.T, "Abandoned", "abandoned")
	p.r.Await(p.T, "StillRunning", "drains")
	p.r.Await(p.T, "Renewed", "held")
}

// silence pauses the server for a while, and then stops it for a while.
func (p *play) silence(held lock.Hold) {
	h := p.take(p.c.NewFairLock("unconfirmed"))
	p.server.Freeze(p)
	_, err := p.c.NewLock("silent").TryLock(p.Context())
	p.fails(err, lock.ErrUnavailable)
	p.fails(h.Unlock(p.Context()), lock.ErrUnavailable)
	p.r.Await(p.T, "RenewalFailed", "held")
	p.server.Thaw(p)
	p.unlock(held)

	p.server.Kill(p)
	err = nil
	for end := time.Now().Add(30 * time.Second); !errors.Is(err, lock.ErrUnavailable) && time.Now().Before(end); { // on a busy machine, the first refusal can come late
		ctx, cancel := context.WithTimeout(p.Context(), opTimeout)
		_, err = p.c.NewLock("stopped").Lock(ctx)
		cancel()
	}
	p.fails(err, lock.ErrUnavailable, context.DeadlineExceeded)
	p.r.Await(p.T, "Unavailable", "stopped")
	p.server.Restart(p) // so that the clients close soon
}
