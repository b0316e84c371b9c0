// Package observetest has locks on a real server do all that an observer hears of: what the tests of
// observers share. Only tests import it.
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

// Told is one event.
type Told struct {
	What string // the name of the function of lock.Observer
	Ctx  context.Context
	lock.Event
}

// Record is what an observer was told.
type Record struct {
	mu   sync.Mutex
	told []Told
	more chan struct{} // closed and made again at each event
}

// NewRecord returns an empty record.
func NewRecord() *Record { return &Record{more: make(chan struct{})} }

// Observer returns an observer that adds to r what it is told.
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

// All returns the events so far that ok wants.
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

// Await waits until the observer was told that of the lock of that name, and returns the event.
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
	opTimeout = 4 * time.Second  // a busy machine is no silent server
)

// Play has a client with opts on a real server do everything that an observer hears of, of every
// kind of lock, and closes it. It returns what a second observer heard.
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
	held := p.take(c.NewLock("held")) // for all the time
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

// fails fails the test unless a call came to an error that matches all of these.
func (p *play) fails(err error, want ...error) {
	p.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			p.Errorf("%v, want %v", err, w)
		}
	}
}

// refuses calls until the call is refused. While the machine is busy, Redis may give no answer for as
// long as the call waits.
func (p *play) refuses(call func(context.Context) (lock.Hold, error)) {
	p.Helper()
	_, err := call(p.Context())
	for errors.Is(err, lock.ErrUnavailable) {
		_, err = call(p.Context())
	}
	p.fails(err, lock.ErrNotAcquired)
}

// pair is a lock of the observed client, and the same lock of the other.
type pair struct{ ours, theirs lock.Locker }

// kinds returns a lock of each kind.
func (p *play) kinds(name string, opts ...lock.Option) map[string]pair {
	c, r := p.c, p.rival
	return map[string]pair{
		"plain": {c.NewLock(name, opts...), r.NewLock(name)},
		"fair":  {c.NewFairLock("fair "+name, opts...), r.NewFairLock("fair " + name)},
		"read":  {c.NewRWLock("rw "+name, opts...).Read(), r.NewRWLock("rw " + name).Write()},
		"write": {c.NewRWLock("rw "+name, opts...).Write(), r.NewRWLock("rw " + name).Read()},
	}
}

// calls come to each outcome that there is while Redis answers.
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

// handOver passes a lock from goroutine to goroutine.
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

// keep has the client keep a lock for its next caller.
func (p *play) keep() {
	l := p.c.NewLock("kept", lock.WithLinger(time.Second))
	for len(p.r.Of("Kept")) == 0 {
		p.unlock(p.take(l))
		if p.Context().Err() != nil {
			p.Fatal("no lock is kept")
		}
	}
}

// ends has holds end in every way that there is while Redis answers. The observed client hears of
// some of them at its next renewal.
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

// silence freezes the server for a while, and then stops it for a while.
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
