package synclock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/synclock"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// Goroutines of two processes wait for each other, with a sync.Cond on top.
func TestLocker(t *testing.T) {
	server := locktest.NewServer(t)
	const each = 50
	n := 0 // protected by the lock
	var wg sync.WaitGroup
	for _, c := range []*client.Client{server.Client(t), server.Client(t)} {
		var l sync.Locker = synclock.New(c.NewLock("count"))
		for range 2 {
			wg.Go(func() {
				for range each {
					l.Lock()
					seen := n
					n = seen + 1
					l.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if n != 4*each {
		t.Errorf("%d, want %d", n, 4*each)
	}

	l := synclock.New(server.Client(t).NewLock("count"))
	cond := sync.NewCond(l)
	ready := false
	l.Lock()
	go func() {
		l.Lock() // after Wait has unlocked it
		defer l.Unlock()
		ready = true
		cond.Broadcast()
	}()
	for !ready {
		cond.Wait()
	}
	if h := l.Hold(); h == nil || h.Err() != nil {
		t.Errorf("after Wait: %v", h)
	}
	l.Unlock()
	if h := l.Hold(); h != nil {
		t.Errorf("after Unlock: %v", h)
	}
}

// panics returns the error with which f panics.
func panics(t *testing.T, f func()) (err error) {
	t.Helper()
	defer func() {
		err, _ = recover().(error)
		if err == nil {
			t.Error("it did not panic")
		}
	}()
	f()
	return nil
}

// Where a sync.Locker cannot return an error, it panics with that error.
func TestLocker_panics(t *testing.T) {
	server := locktest.NewServer(t)
	c := server.Client(t)
	l := synclock.New(c.NewLock("count"))
	var e *lock.Error
	if err := panics(t, l.Unlock); !errors.Is(err, lock.ErrNotHeld) || !errors.As(err, &e) || e.Name != "count" {
		t.Errorf("unlock without lock: %v", err)
	}
	l.Lock()
	if _, err := server.Client(t).NewLock("count").ForceUnlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := panics(t, l.Unlock); !errors.Is(err, lock.ErrLost) {
		t.Errorf("after a loss: %v", err)
	}
	l.Lock() // as before
	if l.Hold() == nil {
		t.Error("no hold after a loss and another Lock")
	}
	l.Unlock()
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := panics(t, l.Lock); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("on a closed client: %v", err)
	}
}

// A goroutine that has lost the lock releases its own hold, and not the hold of the goroutine that has locked in the meantime.
func TestLocker_lossBesideAnother(t *testing.T) {
	server := locktest.NewServer(t)
	l := synclock.New(server.Client(t, client.WithWatchdogTimeout(6*time.Second)).NewLock("count")) // it detects the loss within 2 s
	other := server.Client(t).NewLock("count")

	l.Lock() // one goroutine, which loses the lock
	if _, err := other.ForceUnlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-l.Hold().Context().Done()
	l.Lock() // another goroutine
	if h := l.Hold(); h == nil || !errors.Is(h.Err(), lock.ErrLost) {
		t.Errorf("the first one looks at the hold, and does not see its loss: %v", h)
	}
	if err := panics(t, l.Unlock); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the first one unlocks: %v", err)
	}
	if _, err := other.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("a third one, while the second has the lock: %v", err)
	}
	if h := l.Hold(); h == nil || h.Err() != nil {
		t.Errorf("the hold of the second: %v", h)
	}
	l.Unlock()
	if h := l.Hold(); h != nil {
		t.Errorf("after both: %v", h)
	}
}

// A goroutine that is paused just after its Lock, and loses the lock, releases its own hold, and not the hold of the goroutine that
// has acquired the lock since.
func TestLocker_lossAfterLock(t *testing.T) {
	server := locktest.NewServer(t)
	p := paused{server.Client(t).NewLock("count"), make(chan acquired)}
	l := synclock.New(p)
	begin := func() (acquired, *sync.WaitGroup) {
		var returned sync.WaitGroup
		returned.Go(l.Lock)
		return <-p.acquired, &returned
	}
	lost, first := begin()
	if _, err := server.Client(t).NewLock("count").ForceUnlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-lost.hold.Context().Done()
	live, second := begin()
	close(live.resume)
	second.Wait()
	close(lost.resume)
	first.Wait()
	if err := panics(t, l.Unlock); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the first Unlock: %v", err)
	}
	if l.Hold() != live.hold {
		t.Error("the first Unlock released the second hold")
	}
	l.Unlock()
}

// paused is a Locker whose Lock does not return before its caller is resumed.
type paused struct {
	lock.Locker
	acquired chan acquired
}

type acquired struct {
	hold   lock.Hold
	resume chan struct{}
}

func (p paused) Lock(ctx context.Context) (lock.Hold, error) {
	h, err := p.Locker.Lock(ctx)
	a := acquired{h, make(chan struct{})}
	p.acquired <- a
	<-a.resume
	return h, err
}

// wrapping returns holds that cannot be compared.
type wrapping struct {
	lock.Locker
	check func() // called by Err of the holds
}

func (l wrapping) Lock(ctx context.Context) (lock.Hold, error) {
	h, err := l.Locker.Lock(ctx)
	return wrapped{h, l.check}, err
}

type wrapped struct {
	lock.Hold
	check func()
}

func (h wrapped) Err() error {
	h.check()
	return h.Hold.Err()
}

// The holds of a Locker need not be comparable.
func TestLocker_wrappedHold(t *testing.T) {
	l := synclock.New(wrapping{locktest.NewServer(t).Client(t).NewLock("count"), func() {}})
	for range 2 {
		l.Lock()
		if l.Hold() == nil {
			t.Error("no hold")
		}
		l.Unlock()
	}
	if h := l.Hold(); h != nil {
		t.Errorf("after Unlock: %v", h)
	}
}

// A hold that detects its loss calls the log handler of the application, which may call Hold.
func TestLocker_errCallsHold(t *testing.T) {
	var l *synclock.Locker
	nested := true // guarded by the lock
	l = synclock.New(wrapping{locktest.NewServer(t).Client(t).NewLock("count"), func() {
		if !nested {
			nested = true
			if l.Hold() == nil {
				t.Error("no hold")
			}
		}
	}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Lock()
		nested = false // from now on, Err calls Hold once
		l.Unlock()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("Unlock waits for Hold")
	}
}

// Of two concurrent Unlocks, each releases its own hold. Here, one runs while the other looks up its hold.
func TestLocker_unlockDuringUnlock(t *testing.T) {
	server := locktest.NewServer(t)
	other := server.Client(t).NewLock("count")
	check := func() {}
	l := synclock.New(wrapping{server.Client(t).NewLock("count"), func() { check() }})
	l.Lock()
	if _, err := other.ForceUnlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-l.Hold().Context().Done()
	l.Lock()
	check = func() {
		check = func() {}
		if err := panics(t, l.Unlock); !errors.Is(err, lock.ErrLost) {
			t.Errorf("the Unlock of the lost hold: %v", err)
		}
	}
	l.Unlock()
	h, err := other.TryLock(t.Context())
	if err != nil {
		t.Fatalf("after both: %v", err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
