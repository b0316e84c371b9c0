//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/integration/internal/skew"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/multilock"
)

// quorums has five servers, and quorum locks on them.
type quorums struct {
	*testing.T
	servers []*redistest.Server
	lease   time.Duration // of all locks; also the maximum lease
	timeout time.Duration // of one server
}

// startQuorums starts the servers, and waits until they vote.
func startQuorums(t *testing.T, lease time.Duration) *quorums {
	q := &quorums{T: t, lease: lease, timeout: 200 * time.Millisecond}
	for range 5 {
		q.servers = append(q.servers, redistest.Start(t))
	}
	q.ready()
	return q
}

// ready waits until all servers have been up for the maximum lease.
func (q *quorums) ready() {
	q.Helper()
	locks := q.locks()
	untilWithin(q.T, q.lease+promptTimeout, func() bool {
		return !slices.ContainsFunc(locks, func(l lock.Locker) bool {
			s, err := l.(lockimpl.Witness).Server(q.Context())
			return err != nil || time.Since(s.Since) < q.lease
		})
	})
}

// quorum makes the quorum of a separate user, with a client for each server.
func (q *quorums) quorum(options ...multilock.Option) *multilock.Quorum {
	q.Helper()
	return multilock.NewQuorum(q.locks(), append([]multilock.Option{
		multilock.WithMaxLease(q.lease), multilock.WithServerTimeout(q.timeout),
	}, options...)...)
}

func (q *quorums) locks(options ...lock.Option) (locks []lock.Locker) {
	q.Helper()
	for _, s := range q.servers {
		c := ours(q.T, s.Client(q.T), client.WithWatchdogTimeout(q.lease), client.WithOpTimeout(q.lease/4))
		locks = append(locks, c.NewLock("quorum", options...))
	}
	return locks
}

// empty waits until no server has a key. If most is at least a lease, a hold that is never released passes, too.
func (q *quorums) empty(most time.Duration) {
	q.Helper()
	untilWithin(q.T, most, func() bool {
		for _, s := range q.servers {
			if len(s.LockKeys(q.T)) != 0 {
				return false
			}
		}
		return true
	})
}

// full waits until h has the votes of all servers.
func (q *quorums) full(h lock.Hold) {
	q.Helper()
	until(q.T, func() bool { return len(multilock.Holds(h)) == len(q.servers) || h.Err() != nil })
}

// A quorum works without a minority of the servers. Two of five are dead, or paused, and
//
//	1 at least 99 of 100 attempts succeed
//	2 most of them take less than the timeout of one server, because no call waits for the dead ones
//	3 in the end nothing is left, even on servers that recover
func TestQuorum_minorityFails(t *testing.T) {
	for name, fail := range map[string]func(*redistest.Server, testing.TB){
		"dead":   (*redistest.Server).Kill,
		"paused": (*redistest.Server).Freeze,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := startQuorums(t, 12*time.Second)
			q.timeout = 2 * time.Second // needed on a busy machine
			one := q.quorum()
			for _, s := range q.servers[1:3] {
				fail(s, t)
			}
			n, failed := amount(500), 0
			var took []time.Duration
			for range n {
				start := time.Now()
				h, err := one.TryLock(t.Context())
				took = append(took, time.Since(start))
				if err != nil {
					failed++
					t.Log(err)
					continue
				}
				if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrUnavailable) { // 3 shows that it is released
					t.Errorf("unlock: %v", err)
				}
			}
			slices.Sort(took)
			t.Logf("%d attempts, %d failed; duration p50 %v, p99 %v, max %v", n, failed, median(took), took[n*99/100], took[n-1])
			if failed*100 > n { // 1
				t.Errorf("%d of %d attempts failed", failed, n)
			}
			if median(took) > q.timeout { // 2
				t.Errorf("attempts take %v, and one server's timeout is %v", median(took), q.timeout)
			}
			for _, s := range q.servers[1:3] {
				if s.Pid() == 0 {
					s.Restart(t)
				}
				s.Thaw(t)
			}
			q.empty(q.lease / 2) // 3
		})
	}
}

// Without a majority an attempt fails soon, and leaves no keys behind.
func TestQuorum_majorityFails(t *testing.T) {
	t.Parallel()
	q := startQuorums(t, 12*time.Second)
	one := q.quorum()
	for _, s := range q.servers[2:] {
		s.Kill(t)
	}
	for range amount(20) {
		start := time.Now()
		_, err := one.TryLock(t.Context())
		if !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("two of five servers are no majority: %v", err)
		}
		if took := time.Since(start); took > promptTimeout {
			t.Errorf("it took %v", took)
		}
	}
	for _, s := range q.servers[2:] {
		s.Restart(t)
	}
	q.empty(q.lease / 2)
}

// rounds returns how often the lock is acquired while servers restart.
func rounds(t *testing.T) int {
	t.Helper()
	given := os.Getenv("LEASEHOLD_ROUNDS")
	if given == "" {
		return amount(1000)
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("LEASEHOLD_ROUNDS: %q is not a number of rounds", given)
	}
	return n
}

// No two users hold the lock at once while servers are killed and restart without their data. Ten users contend, and
// each user that acquires it checks the holds of all others: if one of those is valid, and its own is valid before and
// after that check, two users held it.
//
// LEASEHOLD_GUARD=off runs the same test without the rule that restarted servers do not vote. It must fail then.
func TestQuorum_restarts(t *testing.T) {
	t.Parallel()
	var options []multilock.Option
	if os.Getenv("LEASEHOLD_GUARD") == "off" {
		options = append(options, multilock.WithDurableServers())
	}
	q := startQuorums(t, time.Second)
	random := rand.New(rand.NewPCG(seed(t), 1))
	total := rounds(t)

	var mu sync.Mutex
	held := make(map[lock.Hold]int) // guarded by mu; the value is the user
	taken, lost, twice := 0, 0, 0   // guarded by mu
	enough := make(chan struct{})
	counted := sync.OnceFunc(func() { close(enough) })
	look := func(mine lock.Hold) {
		mu.Lock()
		defer mu.Unlock()
		for other, by := range held {
			if other != mine && mine.Err() == nil && other.Err() == nil && mine.Err() == nil {
				twice++
				if twice == 1 {
					t.Logf("users %d and %d hold the lock at once", held[mine], by)
				}
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 10 {
		one := q.quorum(options...)
		random := rand.New(rand.NewPCG(random.Uint64(), 2))
		wg.Go(func() {
			for {
				h, err := one.Lock(ctx)
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				held[h] = i
				if taken++; taken >= total && lost > 0 { // without a loss, the test proves nothing
					counted()
				}
				mu.Unlock()
				// Most are short; some are so long that servers restart in the meantime.
				work := time.Duration(random.IntN(2)) * time.Millisecond
				if random.IntN(20) == 0 {
					work = time.Duration(random.IntN(2000)) * time.Millisecond
				}
				for end := time.Now().Add(work); ; time.Sleep(time.Millisecond) {
					look(h)
					if h.Err() != nil || !time.Now().Before(end) || ctx.Err() != nil {
						break
					}
				}
				mu.Lock()
				if errors.Is(h.Err(), lock.ErrLost) {
					lost++
				}
				delete(held, h)
				mu.Unlock()
				if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrNotHeld) && ctx.Err() == nil {
					t.Logf("unlock: %v", err) // a server that is down cannot confirm it
				}
			}
		})
	}

	start, restarts := time.Now(), 0
	for done := false; !done; {
		// One, two or three at a time; then a pause until they vote again.
		some := q.servers[:1+random.IntN(3)]
		random.Shuffle(len(q.servers), func(i, j int) { q.servers[i], q.servers[j] = q.servers[j], q.servers[i] })
		for _, s := range some {
			s.Kill(t)
			s.Restart(t)
			restarts++
		}
		select {
		case <-enough:
			done = true
		case <-time.After(time.Duration(random.Int64N(int64(4 * q.lease)))):
		}
		if t.Failed() || time.Since(start) > 10*time.Minute {
			break
		}
	}
	cancel()
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("acquired %d times in %v, lost %d times, with %d server restarts", taken, time.Since(start).Round(time.Second), lost, restarts)
	if twice > 0 {
		t.Errorf("%d checks found two holders", twice)
	}
	if lost == 0 {
		t.Error("no hold was lost: the test shows nothing")
	}
	q.empty(promptTimeout)
}

// One such case, step by step, with and without the rule:
//
//	1 one user holds the lock on all servers
//	2 three of them are killed, and restart without their data; the user is not notified yet
//	3 another user sends requests. Three servers would grant it the lock. With the rule these
//	do not vote; without it two users hold the lock
func TestQuorum_guard(t *testing.T) {
	t.Parallel()
	for _, guarded := range []bool{true, false} {
		t.Run(fmt.Sprint("guarded ", guarded), func(t *testing.T) {
			q := startQuorums(t, 5*time.Second)
			for !guardOnce(q, guarded) { // repeats on a busy machine
				if q.lease *= 2; q.lease > time.Minute {
					t.Fatal("the first hold always ended before the second user's attempt")
				}
				q.ready()
			}
		})
	}
}

// guardOnce runs the case once, and reports whether the first hold was valid until it expired.
func guardOnce(q *quorums, guarded bool) bool {
	q.Helper()
	options := []multilock.Option{multilock.WithMaxLease(q.lease), multilock.WithServerTimeout(q.lease / 4)}
	if !guarded {
		options = append(options, multilock.WithDurableServers())
	}
	// A fixed lease is not renewed, so the user is not notified before it expires.
	first := multilock.NewQuorum(q.locks(lock.WithFixedLease(q.lease)), options...)
	second := multilock.NewQuorum(q.locks(), options...)
	h, err := first.TryLock(q.Context()) // 1
	if err != nil {
		q.Fatal(err)
	}
	q.full(h)
	for _, s := range q.servers[:3] {
		s.Kill(q) // 2
		s.Restart(q)
	}
	other, err := second.TryLock(q.Context()) // 3
	two := err == nil && other.Err() == nil && h.Err() == nil
	valid := h.Err() == nil
	switch {
	case two && guarded:
		q.Error("two hold it")
	case valid && !two && !guarded:
		q.Errorf("without the guard two should hold it, or else this shows nothing: %v", err)
	}
	if err == nil {
		if err := other.Unlock(q.Context()); err != nil && !errors.Is(err, lock.ErrUnavailable) {
			q.Error(err)
		}
	}
	_ = h.Unlock(q.Context()) // the servers have no record of it
	q.empty(promptTimeout)
	return valid
}

// The tokens of a quorum increase while a minority of its servers restarts with its token counters. The counters start
// far apart, and ahead of any clock, so they agree only because holders write their tokens to a majority.
//
//	1 one or two of five servers are killed, and restart with their data
//	2 the next holder's token is larger than all earlier ones
//	3 a majority has it in its token counters when the holder has it
func TestQuorum_tokens(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	q := &quorums{T: t, lease: lease, timeout: 200 * time.Millisecond}
	for range 5 {
		q.servers = append(q.servers, redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"))
	}
	q.ready()
	const register = "redisson_lock_token:{quorum}"
	random := rand.New(rand.NewPCG(seed(t), 3))
	for _, s := range q.servers {
		s.Do(t, "SET", register, strconv.FormatInt(2e15+random.Int64N(1e15), 10))
	}
	var users []*multilock.Quorum
	for range 3 {
		users = append(users, multilock.NewQuorum(q.locks(lock.WithFencing()), multilock.WithMaxLease(lease), multilock.WithServerTimeout(q.timeout)))
	}
	latest, grown := uint64(0), 0
	for round := range amount(30) {
		if round%3 == 0 {
			random.Shuffle(len(q.servers), func(i, j int) { q.servers[i], q.servers[j] = q.servers[j], q.servers[i] })
			for _, s := range q.servers[:1+random.IntN(2)] { // 1
				s.Kill(t)
				s.Restart(t)
			}
		}
		h, err := users[random.IntN(len(users))].Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if h.Token() <= latest { // 2
			t.Fatalf("round %d: the token %d follows %d", round, h.Token(), latest)
		}
		latest = h.Token()
		have := 0
		for _, s := range q.servers {
			reply := s.Do(t, "GET", register)
			text, _ := reply.ToString()
			if n, err := strconv.ParseUint(text, 10, 64); err == nil && n >= latest {
				have++
			}
		}
		if have < 3 { // 3
			t.Errorf("round %d: %d of five servers have the token", round, have)
		}
		grown++
		if err := h.Unlock(t.Context()); err != nil {
			t.Logf("unlock: %v", err)
		}
	}
	t.Logf("%d tokens, each larger than the previous one", grown)
}

// The clock of one server is moved by a minute, forward and back, while a user holds the lock. When it moves forward,
// the lock expires on that server. Others try continuously:
//
//	1 none of them acquires the lock, because one more server is not a majority
//	2 the holder acquires the lock on that server again
//	3 with the clock moved back, the lock goes from one user to the next as before
func TestQuorum_clockStep(t *testing.T) {
	server, clock := skew.Start(t)
	q := &quorums{T: t, servers: []*redistest.Server{server}, lease: 4 * time.Second, timeout: 200 * time.Millisecond}
	for range 4 {
		q.servers = append(q.servers, redistest.Start(t))
	}
	q.ready()

	h, err := q.quorum().Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	q.full(h)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 3 {
		one := q.quorum()
		wg.Go(func() {
			for ctx.Err() == nil {
				other, err := one.TryLock(ctx)
				if err == nil {
					if h.Err() == nil && other.Err() == nil {
						t.Error("two hold it") // 1
					}
					_ = other.Unlock(t.Context())
				}
			}
		})
	}
	for range 3 {
		there := multilock.Holds(h)[0] // its hold on that server
		clock.Set(time.Minute)
		until(t, func() bool { // 2
			now := multilock.Holds(h)
			return len(now) == len(q.servers) && now[0] != there || h.Err() != nil
		})
		if err := h.Err(); err != nil {
			t.Fatalf("the clock of one server moved forward, and the hold is lost: %v", err)
		}
		clock.Set(-time.Minute)
		last := multilock.Holds(h)[0].Until()
		until(t, func() bool { return multilock.Holds(h)[0].Until().After(last.Add(q.lease)) || h.Err() != nil }) // it is renewed or re-acquired by the changed clock
		if err := h.Err(); err != nil {
			t.Fatalf("the clock of one server moved backward, and the hold is lost: %v", err)
		}
	}
	cancel()
	wg.Wait()
	if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrUnavailable) {
		t.Error(err)
	}
	one, two := q.quorum(), q.quorum()
	for range amount(10) { // 3
		for _, user := range []*multilock.Quorum{one, two} {
			h, err := user.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			clock.Set(time.Duration(rand.IntN(3)-1) * time.Minute)
			if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrUnavailable) {
				t.Error(err)
			}
		}
	}
	clock.Set(time.Minute) // otherwise the last lock would stay there for a minute
	q.empty(promptTimeout)
}
