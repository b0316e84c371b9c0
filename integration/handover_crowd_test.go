//go:build linux

package integration_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// relay describes how goroutines of a process share a lock.
type relay struct {
	Goroutines int
	Stay       time.Duration `json:",omitempty"` // how long each of them holds the lock
	Pause      time.Duration `json:",omitempty"` // between two turns
	Stays      int           `json:",omitempty"` // the last of this many hand-offs in a row stays inside; 0: none does
	Grants     int           `json:",omitempty"` // for each goroutine; 0: until it is stopped
	Journal    string        // a directory: a file for each process says which owner is inside
}

// section is about as long as the work under most locks, so that a run is not longer than necessary.
const section = 200 * time.Microsecond

// relayed is the result of a relay.
type relayed struct {
	Grants int
	Lost   int // of these, the holds whose Unlock reported a loss
}

// runner runs a relay, in a worker.
type runner struct {
	process *process
	relay   relay
	journal *os.File
	enough  atomic.Bool
	stayed  chan granted // cap 1
	wg      sync.WaitGroup

	mu     sync.Mutex
	sum    relayed // guarded by mu
	err    error   // guarded by mu
	owner  string  // guarded by mu: of the latest grant
	passes int     // guarded by mu: how often that owner string was handed off before
	stays  bool    // guarded by mu: a holder stays
}

// relay starts a relay.
func (p *process) relay(ctx context.Context, r request) error {
	run := &runner{process: p, relay: *r.Relay, stayed: make(chan granted, 1)}
	var err error
	if run.journal, err = os.Create(filepath.Join(r.Relay.Journal, strconv.Itoa(os.Getpid()))); err != nil {
		return err
	}
	p.runner = run
	l := r.Kind.lock(p.client, r.Name, r.options()...)
	for g := range r.Relay.Goroutines {
		run.wg.Go(func() {
			for n := 0; !run.enough.Load() && (n == 0 || n != run.relay.Grants) && run.once(ctx, l, g); n++ {
				if run.relay.Pause > 0 {
					time.Sleep(run.relay.Pause)
				}
			}
		})
	}
	return nil
}

// stop ends the relay.
func (run *runner) stop() (relayed, error) {
	run.enough.Store(true)
	return run.finish()
}

// finish waits until all goroutines are done.
func (run *runner) finish() (relayed, error) {
	run.wg.Wait()
	run.mu.Lock()
	defer run.mu.Unlock()
	return run.sum, errors.Join(run.err, run.journal.Close())
}

// once acquires the lock once, and reports whether this goroutine may continue.
func (run *runner) once(ctx context.Context, l lock.Locker, g int) bool {
	o := op{Kind: acquire, Name: l.Name(), Goroutine: g, Call: monotonic()}
	h, err := l.Lock(noting(ctx))
	if err != nil {
		run.failed(err)
		return false
	}
	o.Return = monotonic()
	run.process.grant(&o, h)
	run.write(o)
	if run.stay(h) {
		p := run.process
		p.mu.Lock()
		defer p.mu.Unlock()
		p.holds = append(p.holds, h)
		run.stayed <- granted{Hold: len(p.holds), Op: o}
		return false
	}
	if run.relay.Stay > 0 {
		time.Sleep(run.relay.Stay)
	}
	run.write(op{Kind: release, Name: l.Name(), Goroutine: g, Owner: h.Owner(), Token: h.Token(), Call: monotonic()})
	err = h.Unlock(ctx)
	run.mu.Lock()
	defer run.mu.Unlock()
	run.sum.Grants++
	switch {
	case errors.Is(err, lock.ErrLost):
		run.sum.Lost++
	case errors.Is(err, os.ErrDeadlineExceeded): // the machine is busy; the release continues in the background
	case err != nil:
		run.err = errors.Join(run.err, err)
	}
	return true
}

func (run *runner) failed(err error) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.err = errors.Join(run.err, err)
}

// stay counts the grant of h, and reports whether its holder stays.
func (run *runner) stay(h lock.Hold) bool {
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.passes++; run.owner != h.Owner() {
		run.owner, run.passes = h.Owner(), 0
	}
	if run.stays || run.relay.Stays == 0 || run.passes < run.relay.Stays {
		return false
	}
	run.stays = true
	return true
}

// write appends a line to the journal.
func (run *runner) write(o op) {
	line, err := json.Marshal(o)
	if err == nil {
		_, err = run.journal.Write(append(line, '\n'))
	}
	if err != nil {
		run.failed(err)
	}
}

// visit is one hold in the journal.
type visit struct {
	op
	left int64 // before it unlocked, by monotonic; if it never did, its Until
	gave bool  // it unlocked
}

// visits reads the journal, and returns it in the order of the grants.
func visits(t *testing.T, journal string) (all []visit) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(journal, "*"))
	if err != nil {
		t.Fatal(err)
	}
	inside := make(map[uint64]int) // by token
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = text[:bytes.LastIndexByte(text, '\n')+1] // the rest is being written, or will never be
		for line := range bytes.Lines(text) {
			var o op
			if err := json.Unmarshal(line, &o); err != nil {
				t.Fatalf("the journal: %q: %v", line, err)
			}
			if o.Kind == acquire {
				inside[o.Token] = len(all)
				all = append(all, visit{op: o, left: o.Until})
			} else {
				v := &all[inside[o.Token]]
				v.left, v.gave = o.Call, true
			}
		}
	}
	slices.SortFunc(all, func(a, b visit) int { return cmp.Compare(a.Return, b.Return) })
	return all
}

// since returns how often each process entered after an instant.
func since(all []visit, instant int64) map[string]int {
	n := make(map[string]int)
	for _, v := range all {
		if v.Return > instant {
			n[clientOf(v.Owner)]++
		}
	}
	return n
}

// taken is a force-unlock.
type taken struct {
	owner string // "" if the owner is not known
	call  int64  // by monotonic
	done  time.Time
}

// exclusive fails the test if two owners were inside at one time, if tokens did not increase, or if a process handed
// the lock off more often than allowed. It excuses owners whose lock was force-unlocked, until they are notified. If
// these owners are not known, the first token under an owner string must be the time of its grant, in µs.
func exclusive(t *testing.T, all []visit, forced ...taken) {
	t.Helper()
	granted := make(map[string]uint64)
	holders := make(map[string]int)
	for _, v := range all {
		if _, known := granted[v.Owner]; !known {
			granted[v.Owner] = v.Token
		}
		if holders[v.Owner]++; v.Token != 0 && holders[v.Owner] == maxPasses+2 {
			t.Errorf("more than %d passes under %s", maxPasses, v.Owner)
		}
	}
	excused := func(a, b visit) bool {
		for _, f := range forced {
			for _, v := range []visit{a, b} {
				known := f.owner == v.Owner || f.owner == "" && granted[v.Owner] <= uint64(f.done.UnixMicro())
				if known && f.call <= b.Return {
					return true
				}
			}
		}
		return false
	}
	wrong := 0
	for i := 1; i < len(all) && wrong < 5; i++ {
		a, b := all[i-1], all[i]
		switch {
		case a.Owner != b.Owner && excused(a, b):
		case b.Return < a.left:
			t.Errorf("%s, token %d, was let in %v before %s, token %d, left", b.Owner, b.Token, time.Duration(a.left-b.Return), a.Owner, a.Token)
			wrong++
		case b.Token != 0 && a.Token != 0 && b.Token <= a.Token:
			t.Errorf("%s has token %d, after %s had %d", b.Owner, b.Token, a.Owner, a.Token)
			wrong++
		}
	}
}

// Four processes share a lock without a pause. One of them is killed at a random instant and replaced, repeatedly. The
// others acquire the lock again no later than when the lease of the dead one expires.
func TestHandover_anyKilled(t *testing.T) {
	t.Parallel()
	rounds := amount(10)
	const processes = 4
	random := rand.New(rand.NewPCG(seed(t), 0))
	s := newHandover(t)
	start := func() *relayer {
		p := s.process(medium)
		p.do(t, request{Do: "relay", Name: handed, Fenced: true, Relay: &relay{Goroutines: 3, Stay: section, Journal: s.journal}})
		return p
	}
	all := make([]*relayer, processes)
	for i := range all {
		all[i] = start()
	}
	inside := 0
	for range rounds {
		time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond)))) // the schedule of the fault
		i := random.IntN(processes)
		all[i].kill()
		killed := monotonic()
		var history []visit
		untilWithin(t, medium+hurry, func() bool {
			history = visits(t, s.journal)
			later := since(history, killed)
			delete(later, all[i].id) // its last entry is not later, but may look so
			return len(later) == processes-1
		})
		for _, v := range history {
			if clientOf(v.Owner) == all[i].id && !v.gave {
				inside++
			}
		}
		all[i] = start()
	}
	for _, p := range all {
		if sum := s.relayed(p); sum.Lost > 0 {
			t.Errorf("%d were notified of a loss", sum.Lost)
		}
	}
	history := visits(t, s.journal)
	exclusive(t, history)
	t.Logf("%d processes killed, %d of them inside; %d were let in", rounds, inside, len(history))
	// A process that dies between its first request and its subscription stays queued for a while. If the last release
	// comes close to its retry, the lock is granted to it, for the lease of an offer.
	untilWithin(t, hurry, func() bool { return s.state().owner == "" })
	s.end(all...)
}

// The lock is force-unlocked repeatedly while processes share it without a pause. The current holder is notified once, and
// all others acquire the lock one after the other.
func TestHandover_forcedAtAnyTime(t *testing.T) {
	forces := amount(50)
	random := rand.New(rand.NewPCG(seed(t), 0))
	s := newHandover(t)
	do(t, s.rdb, "DEL", register) // tokens are times
	c := ours(t, s.rdb)
	all := []*relayer{s.process(medium), s.process(medium), s.process(medium)}
	for _, p := range all {
		p.do(t, request{Do: "relay", Name: handed, Fenced: true, Relay: &relay{Goroutines: 4, Stay: section, Journal: s.journal}})
	}
	var forced []taken
	for range forces {
		time.Sleep(time.Duration(random.Int64N(int64(20 * time.Millisecond)))) // the schedule of the fault
		f := taken{call: monotonic()}
		done, err := c.NewLock(handed).ForceUnlock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if f.done = time.Now(); done {
			forced = append(forced, f)
		}
	}
	last := monotonic()
	until(t, func() bool { return len(since(visits(t, s.journal), last)) == len(all) })
	lost := 0
	for _, p := range all {
		lost += s.relayed(p).Lost
	}
	if lost > len(forced) || lost == 0 && len(forced) > 0 {
		t.Errorf("%d were notified of a loss, and %d were force-unlocked", lost, len(forced))
	}
	history := visits(t, s.journal)
	exclusive(t, history, forced...)
	t.Logf("force-unlocked %d times, %d holders were notified of a loss, %d calls acquired the lock", len(forced), lost, len(history))
	s.end(all...)
}

// A busy process has 50 goroutines that want the lock without a pause; a quiet one has one goroutine that wants it
// occasionally. The quiet one is queued, and acquires the lock after the current turn.
//
// Occasionally, after 64 grants, the lock is freed, and the first request acquires it. A caller of the quiet process
// that comes at such a moment can be served later; there are no more late callers than such moments.
func TestHandover_busyAndQuiet(t *testing.T) {
	wishes := amount(200)
	s := newHandover(t)
	yielded := s.listen(true)
	busy, quiet := s.process(long), s.process(long)
	busy.do(t, request{Do: "relay", Name: handed, Fenced: true, Relay: &relay{Goroutines: 50, Journal: s.journal}})
	quiet.do(t, request{Do: "relay", Name: handed, Fenced: true, Relay: &relay{Goroutines: 1, Pause: time.Millisecond, Grants: wishes, Journal: s.journal}})
	quietSum := value[relayed](t, quiet.do(t, request{Do: "finish"}))
	busySum := s.relayed(busy)
	if quietSum.Lost+busySum.Lost > 0 {
		t.Errorf("%d and %d were notified of a loss", quietSum.Lost, busySum.Lost)
	}
	history := visits(t, s.journal)
	exclusive(t, history)

	waited, later, mostTurns, mostPassed := 0, 0, 0, 0
	for i, v := range history {
		if clientOf(v.Owner) != quiet.id || v.Queued == 0 {
			continue
		}
		waited++
		turns, handedOff := make(map[string]bool), 0
		for j := i - 1; j >= 0 && history[j].Return > v.Queued; j-- {
			turns[history[j].Owner] = true
			handedOff++
		}
		mostTurns, mostPassed = max(mostTurns, len(turns)), max(mostPassed, handedOff)
		if len(turns) > 1 {
			later++
		}
	}
	s.end(busy, quiet)
	n := yielded()
	t.Logf("the quiet process wished %d times, and waited %d times; for more than one turn %d times, for %d turns and %d of the others at the most. The lock was let go %d times, and the busy process had it %d times",
		quietSum.Grants, waited, later, mostTurns, mostPassed, n, busySum.Grants)
	if later > n {
		t.Errorf("%d callers were served after more than one turn, and the lock was freed %d times", later, n)
	}
	if waited < wishes/4 {
		t.Error("it waited too rarely: the test shows nothing")
	}
}

// listen counts how often the lock is freed, until the returned function is called, like a client with or without
// support for the queue.
func (s *handover) listen(knows bool) (count func() int) {
	s.Helper()
	var n atomic.Int64
	conn, release := s.server.Client(s.T).Dedicate()
	channels := []string{plain.channel(handed)}
	if knows {
		channels = append(channels, "leasehold_channel:{"+handed+"}")
	}
	confirmed := make(chan struct{}, len(channels))
	conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnSubscription: func(rueidis.PubSubSubscription) { confirmed <- struct{}{} },
		OnMessage: func(m rueidis.PubSubMessage) {
			if m.Channel == plain.channel(handed) {
				n.Add(1)
			}
		},
	})
	if err := conn.Do(s.Context(), conn.B().Subscribe().Channel(channels...).Build()).Error(); err != nil {
		s.Fatal(err)
	}
	for range channels {
		<-confirmed
	}
	return func() int {
		// When the PING has its reply, all earlier messages have arrived.
		conn.Do(s.Context(), conn.B().Ping().Build())
		release()
		return int(n.Load())
	}
}

// outsider supports as much of a plain lock as Redisson's clients do: the hash, the message when it is freed, and the
// remaining lease time.
type outsider struct {
	*testing.T
	rdb   rueidis.Client
	owner string
	heard chan string // the messages on the lock's channel
	zeros int         // how often it was freed, as far as the outsider noticed
	all   []visit
}

const (
	outsiderLocks = `if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])`

	outsiderUnlocks = `if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], '0')
return 1`
)

// meet starts an outsider and its subscription.
func (s *handover) meet() *outsider {
	s.Helper()
	p := &outsider{T: s.T, rdb: s.rdb, owner: "5e7c5fd1-6f3e-4c0a-9d4c-6b8a36b29f10:31", heard: make(chan string, 10_000)}
	conn, release := s.server.Client(s.T).Dedicate()
	s.Cleanup(release)
	confirmed := make(chan struct{})
	conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnSubscription: func(rueidis.PubSubSubscription) { close(confirmed) },
		OnMessage:      func(m rueidis.PubSubMessage) { p.heard <- m.Message },
	})
	if err := conn.Do(s.Context(), conn.B().Subscribe().Channel(plain.channel(handed)).Build()).Error(); err != nil {
		s.Fatal(err)
	}
	<-confirmed
	return p
}

// lock waits for the lock: for the message, or until the lease expires.
func (p *outsider) lock(lease time.Duration) {
	p.Helper()
	for deadline := time.Now().Add(promptTimeout); ; {
		v := visit{op: op{Kind: acquire, Owner: p.owner, Call: monotonic()}}
		left, err := do(p.T, p.rdb, "EVAL", outsiderLocks, "1", handed, strconv.FormatInt(lease.Milliseconds(), 10), p.owner).AsInt64()
		v.Return = monotonic()
		if rueidis.IsRedisNil(err) {
			v.left = v.Call + int64(lease-time.Millisecond)
			p.all = append(p.all, v)
			return
		}
		if err != nil || left < 0 || left > long.Milliseconds() {
			p.Fatalf("the reply says to wait for %d ms (%v)", left, err)
		}
		if time.Now().After(deadline) {
			p.Fatalf("it has no turn within %v", promptTimeout)
		}
		select {
		case m := <-p.heard:
			if p.zeros++; m != "0" {
				p.Fatalf("got the message %q", m)
			}
		case <-time.After(time.Duration(left) * time.Millisecond):
		}
	}
}

// unlock releases the lock.
func (p *outsider) unlock() {
	p.Helper()
	v := &p.all[len(p.all)-1]
	v.left, v.gave = monotonic(), true
	if n, err := do(p.T, p.rdb, "EVAL", outsiderUnlocks, "2", handed, plain.channel(handed), p.owner).AsInt64(); err != nil || n != 1 {
		p.Errorf("its lock is no longer its own: %d, %v", n, err)
	}
}

// A client that supports only Redisson's protocol acquires a lock that leasehold clients hand off continuously, and
// leasehold clients respect its locks until they end.
//
//	1 two processes share the lock without a pause; the outsider wants it repeatedly
//	2 the outsider acquires it exclusively; each time that it was freed, leasehold's clients
//	had it for at most five turns, which is the rule for outsiders
//	3 the outsider acquires it for a second, and sends nothing more
func TestHandover_stranger(t *testing.T) {
	turns := amount(30)
	const lease = time.Second
	s := newHandover(t)
	p := s.meet()
	workers := []*relayer{s.process(long), s.process(long)} // 1
	for _, w := range workers {
		w.do(t, request{Do: "relay", Name: handed, Fenced: true, Relay: &relay{Goroutines: 5, Journal: s.journal}})
	}
	for range turns { // 2
		p.lock(hurry)
		time.Sleep(time.Millisecond)
		p.unlock()
		time.Sleep(time.Millisecond)
	}
	p.lock(lease) // 3
	last := p.all[len(p.all)-1]
	until(t, func() bool { return len(since(visits(t, s.journal), last.Return)) == 2 })
	for _, w := range workers {
		if sum := s.relayed(w); sum.Lost > 0 {
			t.Errorf("%d were notified of a loss", sum.Lost)
		}
	}
	history := append(visits(t, s.journal), p.all...)
	slices.SortFunc(history, func(a, b visit) int { return cmp.Compare(a.Return, b.Return) })
	exclusive(t, history)

	ours := make(map[string]bool)
	for _, v := range history {
		if v.Token != 0 {
			ours[v.Owner] = true
		}
	}
	for len(p.heard) > 0 {
		<-p.heard
		p.zeros++
	}
	if most := 5 * (p.zeros + 1); len(ours) > most {
		t.Errorf("leasehold's clients had %d turns while the lock was freed %d times, want at most %d", len(ours), p.zeros, most)
	}
	t.Logf("the stranger had it %d times, ours for %d turns, %d inside; it was let go %d times", len(p.all), len(ours), len(history)-len(p.all), p.zeros)
	s.end(workers...)
}
