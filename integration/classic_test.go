//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// leasehold does not have the well-known bugs of simple locks. Each row is one bug: a small lock with the bug, on a
// real server, and leasehold in the same scenario. The small lock must fail; otherwise the scenario proves nothing.
func TestClassic(t *testing.T) {
	for _, test := range []struct {
		name        string
		naive, ours func(*testing.T, *scene)
	}{
		{"SETNX, then EXPIRE", naiveSetnxThenExpire, oursKilledAtOnce},
		{"the expiry as a value, by the clients' clocks", naiveSkewedClock, oursSkewedClock},
		{"GETSET by the loser", naiveGetsetByLoser, oursTwoAfterAnExpiry},
		{"DEL of whatever is there", naiveBareDel, oursUnlockAfterExpiry},
		{"GET, and then DEL", naiveGetThenDel, oursSlowRelease},
		{"a lease shorter than the work", naiveShortLease, oursShortLease},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Run("naive", func(t *testing.T) { test.naive(t, newScene(t)) })
			t.Run("ours", func(t *testing.T) { test.ours(t, newScene(t)) })
		})
	}
}

// scene is a server, and its clients A, B and C. A's connection can fail.
type scene struct {
	server  *redistest.Server
	wire    *redistest.Proxy
	a, b, c rueidis.Client
}

const name = "classic"

func newScene(t *testing.T) *scene {
	s := &scene{server: redistest.Start(t)}
	s.wire = redistest.NewProxy(t, s.server.Addr())
	s.a, s.b, s.c = s.server.Client(t, redistest.Via(s.wire)), s.server.Client(t), s.server.Client(t)
	knowScripts(t, s.b, plain)
	return s
}

// ours returns a client of this library on rdb that writes only the keys of its locks.
func ours(t *testing.T, rdb rueidis.Client, options ...client.Option) *client.Client {
	t.Helper()
	return registered(t, rdb, append(options, client.WithoutRegistry())...)
}

// registered returns a client of this library on rdb.
func registered(t *testing.T, rdb rueidis.Client, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(rdb, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), promptTimeout)
		defer cancel()
		err := c.Close(ctx)
		if errors.Is(err, lock.ErrUnavailable) { // three operation timeouts of this client can be too short; the second Close waits for the rest
			err = c.Close(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return c
}

// do runs one command of a naive lock.
func do(t *testing.T, rdb rueidis.Client, args ...string) rueidis.RedisResult {
	t.Helper()
	r := rdb.Do(t.Context(), rdb.B().Arbitrary(args...).Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("%q: %v", args, err)
	}
	return r
}

// setNX is the lock of many tutorials: SET name value NX PX lease.
func setNX(t *testing.T, rdb rueidis.Client, value string, lease time.Duration) bool {
	t.Helper()
	return do(t, rdb, "SET", name, value, "NX", "PX", strconv.FormatInt(lease.Milliseconds(), 10)).Error() == nil
}

// gone waits until the lock's key no longer exists.
func gone(t *testing.T, rdb rueidis.Client) {
	t.Helper()
	until(t, func() bool {
		n, _ := do(t, rdb, "EXISTS", name).AsInt64()
		return n == 0
	})
}

// until waits for something that happens soon.
func until(t *testing.T, happened func() bool) {
	t.Helper()
	untilWithin(t, promptTimeout, happened)
}

// untilWithin waits for something that may take long, up to most.
func untilWithin(t *testing.T, most time.Duration, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(most); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen within %v", most)
		}
	}
}

// holdOn makes the proxy delay the next request with this command until resume is closed, and closes reached when the proxy
// has it.
func (s *scene) holdOn(command string, resume <-chan struct{}) (reached <-chan struct{}) {
	at := make(chan struct{})
	first := redistest.Once(command, redistest.Action{HoldRequest: resume})
	s.wire.OnRequest(func(req [][]byte) redistest.Action {
		a := first(req)
		if a.HoldRequest != nil {
			close(at)
		}
		return a
	})
	return at
}

// soon waits until a channel is closed or has a value.
func soon[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(promptTimeout):
		t.Fatalf("it did not happen within %v", promptTimeout)
	}
	return v
}

// ---- The process is killed when its first command has been executed.

func setnxThenExpire(ctx context.Context, rdb rueidis.Client, name string, lease time.Duration) error {
	if err := rdb.Do(ctx, rdb.B().Setnx().Key(name).Value("me").Build()).Error(); err != nil {
		return err
	}
	return rdb.Do(ctx, rdb.B().Pexpire().Key(name).Milliseconds(lease.Milliseconds()).Build()).Error()
}

// killAfter makes a worker execute r, and kills it when the reply to its first command is in flight. It returns the
// PTTL of the remaining lock, in ms.
func (s *scene) killAfter(t *testing.T, command string, r request) (left int64) {
	t.Helper()
	w := startWorker(t)
	w.do(t, request{Do: "open", Addr: s.wire.Addr()})
	s.wire.OnRequest(redistest.Once(command, redistest.Action{HoldReply: make(chan struct{})}))
	w.send(t, r)
	until(t, func() bool {
		n, _ := do(t, s.b, "EXISTS", name).AsInt64()
		return n == 1
	})
	w.kill()
	left, err := do(t, s.b, "PTTL", name).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func naiveSetnxThenExpire(t *testing.T, s *scene) {
	left := s.killAfter(t, "SETNX", request{Do: "setnx then expire", Name: name, Lease: time.Second})
	if left != -1 {
		t.Errorf("PTTL %d; want the mistake: a lock that never ends, -1", left)
	}
}

func oursKilledAtOnce(t *testing.T, s *scene) {
	const lease = 5 * time.Second
	left := s.killAfter(t, "EVALSHA", request{Do: "lock", Name: name, Lease: lease, Wait: promptTimeout})
	if left <= 0 || left > lease.Milliseconds() {
		t.Errorf("PTTL %d; want what is left of a lease of %v", left, lease)
	}
	if _, err := lockWithin(t.Context(), ours(t, s.b).NewLock(name), promptTimeout); err != nil {
		t.Error(err)
	}
}

// ---- One client's clock is wrong.

// valueClock stores the expiry time of the lock as its value, as the SETNX page of the Redis documentation recommended
// for years. It returns that value.
func valueClock(ctx context.Context, rdb rueidis.Client, name string, lease time.Duration) (mine string, ok bool, err error) {
	mine = strconv.FormatInt(time.Now().Add(lease).UnixMilli(), 10)
	if ok, err = rdb.Do(ctx, rdb.B().Setnx().Key(name).Value(mine).Build()).AsBool(); ok || err != nil {
		return mine, ok, err
	}
	seen, err := rdb.Do(ctx, rdb.B().Get().Key(name).Build()).AsInt64()
	if err != nil || seen > time.Now().UnixMilli() {
		return mine, false, err
	}
	before, err := rdb.Do(ctx, rdb.B().Getset().Key(name).Value(mine).Build()).AsInt64()
	return mine, err == nil && before == seen, err
}

// wrongClock runs f in the year 2000. The function passed to f makes a worker, whose clock is correct, execute a command.
func (s *scene) wrongClock(t *testing.T, f func(t *testing.T, today func(request) reply)) {
	w := startWorker(t)
	w.do(t, request{Do: "open", Addr: s.server.Addr()})
	// The channels are made outside of the synctest bubble, so that both sides can use them.
	requests, replies := make(chan request), make(chan (<-chan reply))
	go func() {
		for r := range requests {
			replies <- w.send(t, r)
		}
	}()
	defer close(requests)
	synctest.Test(t, func(t *testing.T) {
		if year := time.Now().UTC().Year(); year != 2000 {
			t.Fatalf("it is %d", year)
		}
		f(t, func(r request) reply {
			requests <- r
			return <-<-replies
		})
	})
	w.do(t, request{Do: "close"})
}

func naiveSkewedClock(t *testing.T, s *scene) {
	s.wrongClock(t, func(t *testing.T, today func(request) reply) {
		_, ok, err := valueClock(t.Context(), s.server.Client(t), name, time.Hour)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		if !value[bool](t, must(t, today(request{Do: "value clock", Name: name, Lease: time.Hour}))) {
			t.Error("the client with the correct clock did not acquire the lock; want the bug: two holders")
		}
	})
}

func oursSkewedClock(t *testing.T, s *scene) {
	s.wrongClock(t, func(t *testing.T, today func(request) reply) {
		c := ours(t, s.server.Client(t))
		h, err := c.NewLock(name, lock.WithFixedLease(time.Hour)).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r := today(request{Do: "lock", Name: name}); !r.is("ErrNotAcquired") {
			t.Errorf("the client of today: %q, want lock.ErrNotAcquired", r.Err)
		}
		if err := errors.Join(h.Err(), h.Unlock(t.Context())); err != nil {
			t.Error(err)
		}
		r := must(t, today(request{Do: "lock", Name: name, Lease: time.Hour}))
		if _, err := c.NewLock(name).TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("the client of the year 2000: %v, want lock.ErrNotAcquired", err)
		}
		must(t, today(request{Do: "unlock", Hold: value[granted](t, r).Hold}))
	})
}

// ---- A dead holder's lock has expired, two clients want it, and the slower one's command arrives after the other one
// has acquired the lock.

func naiveGetsetByLoser(t *testing.T, s *scene) {
	do(t, s.b, "SET", name, "1") // it expired in 1970
	resume := make(chan struct{})
	reached := s.holdOn("GETSET", resume)
	slower := make(chan bool, 1)
	go func() {
		_, ok, _ := valueClock(t.Context(), s.a, name, time.Hour)
		slower <- ok
	}()
	soon(t, reached)
	mine, ok, err := valueClock(t.Context(), s.b, name, time.Minute)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	close(resume)
	if soon(t, slower) {
		t.Fatal("both acquired it")
	}
	// The winner releases its lock if it still holds it.
	left, err := do(t, s.b, "GET", name).ToString()
	if err != nil || left == mine {
		t.Errorf("the lock's value is %s (%v), which is the winner's; want the bug: the loser's, an hour without a holder", left, err)
	}
}

func oursTwoAfterAnExpiry(t *testing.T, s *scene) {
	do(t, s.b, "HSET", name, "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1")
	do(t, s.b, "PEXPIRE", name, "50")
	slow := ours(t, s.a)
	resume := make(chan struct{})
	reached := s.holdOn("EVALSHA", resume)
	slower := make(chan error, 1)
	go func() {
		_, err := slow.NewLock(name, lock.WithFixedLease(time.Hour)).TryLock(t.Context())
		slower <- err
	}()
	soon(t, reached)
	h, err := lockWithin(t.Context(), ours(t, s.b).NewLock(name, lock.WithFixedLease(time.Minute)), promptTimeout)
	if err != nil {
		t.Fatal(err)
	}
	close(resume)
	if err := soon(t, slower); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("the slower one: %v, want lock.ErrNotAcquired", err)
	}
	left, err := do(t, s.b, "PTTL", name).AsInt64()
	if err != nil || left > time.Minute.Milliseconds() {
		t.Errorf("the loser changed the winner's lease: %d ms are left (%v)", left, err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	noKeys(t, s.server)
}

// ---- A's lease expires, B acquires the lock, and A unlocks.

func naiveBareDel(t *testing.T, s *scene) {
	if !setNX(t, s.a, "A", 30*time.Millisecond) {
		t.Fatal("A did not acquire it")
	}
	gone(t, s.b)
	if !setNX(t, s.b, "B", time.Hour) {
		t.Fatal("B did not acquire it")
	}
	do(t, s.a, "DEL", name)
	if !setNX(t, s.c, "C", time.Hour) {
		t.Error("C did not acquire the lock; want the bug: B and C hold it")
	}
}

func oursUnlockAfterExpiry(t *testing.T, s *scene) {
	a, err := lockWithin(t.Context(), ours(t, s.a).NewLock(name, lock.WithFixedLease(time.Second)), promptTimeout)
	if err != nil {
		t.Fatal(err)
	}
	b, err := lockWithin(t.Context(), ours(t, s.b).NewLock(name), promptTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
		t.Errorf("A's unlock: %v, want lock.ErrNotHeld and lock.ErrLost", err)
	}
	onlyB(t, s, b)
}

// onlyB fails the test unless B holds the lock, and C cannot acquire it.
func onlyB(t *testing.T, s *scene, b lock.Hold) {
	t.Helper()
	if _, err := ours(t, s.c).NewLock(name).TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("C: %v, want lock.ErrNotAcquired: B holds it", err)
	}
	state, err := do(t, s.c, "HGETALL", name).AsStrMap()
	delete(state, luascripts.QueueField) // B waited
	if want := map[string]string{b.Owner(): "1"}; err != nil || fmt.Sprint(state) != fmt.Sprint(want) {
		t.Errorf("the lock is %v (%v), want %v", state, err, want)
	}
	if err := errors.Join(b.Err(), b.Unlock(t.Context())); err != nil {
		t.Errorf("B: %v", err)
	}
}

// ---- A unlocks in time, but its last command is delayed: B has the lock when it arrives.

func naiveGetThenDel(t *testing.T, s *scene) {
	if !setNX(t, s.a, "A", 3*time.Second) {
		t.Fatal("A did not acquire it")
	}
	if mine, err := do(t, s.a, "GET", name).ToString(); mine != "A" || err != nil {
		t.Fatal("A lost it too early", err)
	}
	resume := make(chan struct{})
	reached := s.holdOn("DEL", resume)
	deleted := make(chan int64, 1)
	go func() {
		n, _ := s.a.Do(t.Context(), s.a.B().Del().Key(name).Build()).AsInt64()
		deleted <- n
	}()
	soon(t, reached)
	gone(t, s.b)
	if !setNX(t, s.b, "B", time.Hour) {
		t.Fatal("B did not acquire it")
	}
	close(resume)
	if n := soon(t, deleted); n != 1 || !setNX(t, s.c, "C", time.Hour) {
		t.Errorf("A deleted %d, and C did not acquire the lock; want the bug: B and C hold it", n)
	}
}

func oursSlowRelease(t *testing.T, s *scene) {
	a, err := lockWithin(t.Context(), ours(t, s.a).NewLock(name, lock.WithFixedLease(time.Second)), promptTimeout)
	if err != nil {
		t.Fatal(err)
	}
	resume := make(chan struct{})
	reached := s.holdOn("EVALSHA", resume)
	unlocked := make(chan error, 1)
	go func() { unlocked <- a.Unlock(t.Context()) }()
	soon(t, reached)
	b, err := lockWithin(t.Context(), ours(t, s.b).NewLock(name), promptTimeout)
	if err != nil {
		t.Fatal(err)
	}
	close(resume)
	// The command may take so long that the client library sends it twice. Then the first one may have released the
	// lock.
	if err := soon(t, unlocked); err != nil && (!errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost)) {
		t.Errorf("A's unlock: %v, want lock.ErrNotHeld and lock.ErrLost", err)
	}
	onlyB(t, s, b)
}

// ---- A works for longer than its lease.

const (
	shortLease = 4 * time.Second
	longWork   = 2 * shortLease
)

func naiveShortLease(t *testing.T, s *scene) {
	if !setNX(t, s.a, "A", shortLease) {
		t.Fatal("A did not acquire it")
	}
	start := time.Now() // A works
	for !setNX(t, s.b, "B", time.Hour) {
		if time.Since(start) > longWork {
			t.Fatal("B did not acquire the lock while A works; want the bug: both hold it")
		}
	}
}

func oursShortLease(t *testing.T, s *scene) {
	renewed := make(chan time.Time, 1000)
	a, err := lockWithin(t.Context(), ours(t, s.a, client.WithWatchdogTimeout(shortLease), client.WithObserver(lock.Observer{
		Renewed: func(context.Context, lock.Event) { renewed <- time.Now() },
	})).NewLock(name), promptTimeout)
	if err != nil {
		t.Fatal(err)
	}
	b := ours(t, s.b).NewLock(name)
	for start := time.Now(); time.Since(start) < longWork; soon(t, renewed) { // A works
		if _, err := b.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
			t.Fatalf("B, while A works: %v, want lock.ErrNotAcquired", err)
		}
	}
	if err := errors.Join(a.Err(), a.Unlock(t.Context())); err != nil {
		t.Errorf("A: %v", err)
	}
	if _, err := b.TryLock(t.Context()); err != nil {
		t.Errorf("B, when A is done: %v", err)
	}
}
