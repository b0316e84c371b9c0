//go:build linux

package integration_test

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// A plain lock continues to work when a process dies, or is paused, in the middle of a hand-off, to it or from it. Each
// scene runs step by step, and each process has a separate connection. In all of them
//
//	an owner acquires the lock after the previous one released it, died, or was past
//	its Until, and with a larger token
//	all living waiters are served within the time that the scene states
//	in the end there are no keys
//
// Guarantees in seconds are checked on the server, as the remaining lease time. The test's own clock only distinguishes
// them from leases that no waiter must wait for, which are much longer.
type handover struct {
	*testing.T
	server  *redistest.Server
	rdb     rueidis.Client
	journal string // the directory where relays write which owner is inside

	token uint64 // of the last grant
	since int64  // the earliest time of the next grant, by monotonic
}

const (
	handed   = "handed" // the lock's name
	register = "redisson_lock_token:{" + handed + "}"

	// offer is the lease with which a queued process is granted the lock, and hurry is
	// more than a hand-off takes on a machine that is busy with other work.
	offer = 3 * poll
	hurry = 5 * offer

	// maxPassTime is how long a process may hand the lock off internally; maxPasses is how often.
	maxPassTime = 10 * time.Millisecond
	maxPasses   = 64

	// long is the lease in scenes where no waiter should have to wait until it expires. medium is the lease in scenes
	// where a waiter has to, or where a holder detects a loss with its next renewal. Its commands may take a sixth of
	// it.
	long   = 10 * hurry
	medium = 6 * poll
)

func newHandover(t *testing.T) *handover {
	server := redistest.Start(t)
	s := &handover{T: t, server: server, rdb: server.Client(t), journal: t.TempDir()}
	do(t, s.rdb, "SET", register, "4000000000000000") // ahead of the clock, which then has no effect
	return s
}

// relayer is a process, and its own proxy.
type relayer struct {
	*worker
	wire *redistest.Proxy
	id   string // the client ID, which is part of all its owner strings

	wish    <-chan reply // the reply to its call in flight
	granted granted      // its latest grant
}

// process starts a relayer with leases of this length.
func (s *handover) process(lease time.Duration) *relayer {
	s.Helper()
	p := &relayer{worker: startWorker(s.T), wire: redistest.NewProxy(s.T, s.server.Addr())}
	p.do(s.T, request{Do: "open", Addr: p.wire.Addr(), Dog: lease})
	// Afterwards the server has the scripts, and the test has the process's client ID.
	hello := value[granted](s.T, p.do(s.T, request{Do: "lock", Name: "hello", Wait: promptTimeout}))
	p.do(s.T, request{Do: "unlock", Hold: hello.Hold})
	p.id = clientOf(hello.Op.Owner)
	return p
}

// clientOf returns the client ID in an owner string.
func clientOf(owner string) string { return owner[:strings.LastIndexByte(owner, ':')] }

// wants makes p request the lock.
func (s *handover) wants(p *relayer) {
	s.Helper()
	p.wish = p.send(s.T, request{Do: "lock", Name: handed, Fenced: true, Wait: time.Hour})
}

// waits makes p request the lock, and returns when p is queued, subscribed, and has sent a request after that: p then
// does nothing until it is granted the lock, or for a poll interval.
func (s *handover) waits(p *relayer) {
	s.Helper()
	s.wants(p)
	s.waitUntilQueued(p)
}

func (s *handover) waitUntilQueued(p *relayer) {
	s.Helper()
	until(s.T, func() bool { return s.state().listens(p) })
	subscribers(s.T, s.rdb, s.channel(p), 1)
}

// channel is the channel on which p is notified of its grant.
func (s *handover) channel(p *relayer) string { return "leasehold_channel:{" + handed + "}:" + p.id }

// got waits for p's grant, which must be next.
func (s *handover) got(p *relayer) granted {
	s.Helper()
	p.granted = value[granted](s.T, must(s.T, receive(s.T, p.wish)))
	p.wish = nil
	s.turn(p.granted.Op)
	return p.granted
}

// turn checks that the grant of o was allowed.
func (s *handover) turn(o op) {
	s.Helper()
	if early := time.Duration(s.since - o.Return); early > 0 {
		s.Errorf("%s had the lock %v before it could", o.Owner, early)
	}
	if o.Token <= s.token {
		s.Errorf("%s has the token %d after %d", o.Owner, o.Token, s.token)
	}
	s.token, s.since = o.Token, math.MaxInt64
}

// gives makes p release the lock.
func (s *handover) gives(p *relayer) {
	s.Helper()
	s.since = monotonic()
	p.do(s.T, request{Do: "unlock", Hold: p.granted.Hold})
}

// kill kills p, and makes the server detect it.
func (s *handover) kill(p *relayer) {
	s.Helper()
	p.worker.kill()
	p.wire.CutAll() // including replies that the proxy still delays
	subscribers(s.T, s.rdb, s.channel(p), 0)
}

// serve waits until each of the waiters had the lock and released it.
func (s *handover) serve(waiting ...*relayer) {
	s.Helper()
	type answer struct {
		p *relayer
		r reply
	}
	answers := make(chan answer, len(waiting))
	for _, p := range waiting {
		go func() { answers <- answer{p, <-p.wish} }()
	}
	for range waiting {
		select {
		case a := <-answers:
			a.p.granted = value[granted](s.T, must(s.T, a.r))
			s.turn(a.p.granted.Op)
			s.gives(a.p)
		case <-time.After(promptTimeout):
			s.Fatalf("no waiter was served within %v: %+v", promptTimeout, s.state())
		}
	}
}

// end closes the remaining processes, and searches for remaining keys.
func (s *handover) end(left ...*relayer) {
	s.Helper()
	for _, p := range left {
		p.do(s.T, request{Do: "close"})
	}
	do(s.T, s.rdb, "DEL", register) // it remains by design
	noKeys(s.T, s.server)
}

// handedState is the lock as stored in Redis.
type handedState struct {
	owner string // of the holder; "" if there is none
	count string
	line  string
	lease time.Duration
}

func (s *handover) state() (state handedState) {
	s.Helper()
	replies := s.rdb.DoMulti(s.Context(), s.rdb.B().Hgetall().Key(handed).Build(), s.rdb.B().Pttl().Key(handed).Build())
	fields, err := replies[0].AsStrMap()
	if err != nil {
		s.Fatal(err)
	}
	left, err := replies[1].AsInt64()
	if err != nil {
		s.Fatal(err)
	}
	for field, value := range fields {
		if field == "leasehold_line" {
			state.line = value
		} else {
			state.owner, state.count = field, value
		}
	}
	state.lease = time.Duration(left) * time.Millisecond
	return state
}

// listens reports whether p is queued, and the server counts it as a listener.
func (state handedState) listens(p *relayer) bool {
	for entry := range strings.SplitSeq(state.line, ";") {
		args := strings.Fields(entry[strings.IndexByte(entry, '|')+1:])
		if len(args) == 5 && strings.HasPrefix(args[0], p.id+":") {
			return args[4] == "0"
		}
	}
	return false
}

// has fails unless p holds the lock in Redis, for a lease of at most most.
func (s *handover) has(p *relayer, most time.Duration) handedState {
	s.Helper()
	state := s.state()
	if !strings.HasPrefix(state.owner, p.id+":") || state.count != "1" || state.lease <= 0 || state.lease > most {
		s.Fatalf("in Redis the lock is %+v, and it should be held by %s, for %v at the most", state, p.id, most)
	}
	return state
}

// within fails if more than most has passed since start.
func (s *handover) within(most time.Duration, start int64) {
	s.Helper()
	if took := time.Duration(monotonic() - start); took > most {
		s.Errorf("it took %v, want at most %v", took, most)
	}
}

// script returns what a request for a lock's script does: "acquire", "release" or "renew";
// "" for anything else. A release names the command that publishes, and a renewal has
// many owners, so its first argument is the lease.
func script(req [][]byte) string {
	if command := strings.ToUpper(string(req[0])); command != "EVALSHA" && command != "EVAL" {
		return ""
	}
	args := req[3+number(req[2]):]
	switch {
	case len(args) == 0:
		return ""
	case slices.ContainsFunc(args[:min(4, len(args))], func(arg []byte) bool { return strings.HasSuffix(string(arg), "PUBLISH") }):
		return "release"
	case !strings.Contains(string(args[0]), ":"):
		return "renew"
	}
	return "acquire"
}

func number(arg []byte) int {
	n, err := strconv.Atoi(string(arg))
	if err != nil {
		panic(err) // no other code writes there
	}
	return n
}

// once applies a to the next script of p that does what, and closes reached when the proxy has it. All later requests of p are lost.
func (s *handover) once(p *relayer, what string, a redistest.Action) (reached <-chan struct{}) {
	at := make(chan struct{})
	var done atomic.Bool
	p.wire.OnRequest(func(req [][]byte) redistest.Action {
		switch {
		case script(req) == what && done.CompareAndSwap(false, true):
			close(at)
			return a
		case done.Load() && script(req) != "":
			return redistest.Action{HoldRequest: make(chan struct{})}
		}
		return redistest.Action{}
	})
	return at
}

func (s *handover) reached(at <-chan struct{}) {
	s.Helper()
	select {
	case <-at:
	case <-time.After(promptTimeout):
		s.Fatalf("it was not reached within %v: %+v", promptTimeout, s.state())
	}
}

// A process is killed with kill -9, at each step of a hand-off from it
// or to it.
func TestHandover_killed(t *testing.T) {
	for name, scene := range map[string]func(*handover){
		"before its release is sent":     killedBeforeItsRelease,
		"before its release is answered": killedBeforeTheReply,
		"granted to itself":              killedAsItsOwnNextOwner,
		"before it is told":              killedBeforeItsNotification,
		"after it was told":              killedAfterItsNotification,
		"in a chain":                     killedInAChain,
		"first in line":                  killedFirstInQueue,
		"further behind":                 killedFurtherBehind,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scene(newHandover(t))
		})
	}
}

// The release is never sent. The others have to wait for the lease to expire.
func killedBeforeItsRelease(s *handover) {
	a, b, c := s.process(medium), s.process(medium), s.process(medium)
	s.wants(a)
	dead := s.got(a)
	s.waits(b)
	s.waits(c)
	never := make(chan struct{})
	release := s.once(a, "release", redistest.Action{HoldRequest: never})
	a.send(s.T, request{Do: "unlock", Hold: dead.Hold})
	s.reached(release)
	s.kill(a)
	s.since = dead.Op.Until // it may have been renewed, but is valid at least until then
	s.has(a, medium)
	start := monotonic()
	s.serve(b, c)
	s.within(medium+hurry, start)
	s.end(b, c)
}

// The release was executed, but its sender never gets the reply. By then the next process has the lock, and the dead
// one's queue position delays no other process.
func killedBeforeTheReply(s *handover) {
	a, b, c := s.process(long), s.process(long), s.process(long)
	s.wants(a)
	s.got(a)
	s.waits(b)
	s.waits(c)
	s.wants(a) // behind the holder in this process, so the release queues it
	until(s.T, func() bool { return value[int64](s.T, a.do(s.T, request{Do: "begun"})) == 3 })
	until(s.T, func() bool { return monotonic() > a.granted.Op.Return+int64(maxPassTime) }) // so that it is released, and not handed off internally
	never := make(chan struct{})
	release := s.once(a, "release", redistest.Action{HoldReply: never})
	s.since = monotonic()
	a.send(s.T, request{Do: "unlock", Hold: a.granted.Hold})
	s.reached(release)
	s.got(b)
	s.has(b, long)
	s.kill(a)
	s.gives(b)
	s.has(c, long)
	s.serve(c)
	s.free()
	s.end(b, c)
}

// The only queued waiter is in the same process, so the release grants the lock to that process, which then dies. That
// costs an offer.
func killedAsItsOwnNextOwner(s *handover) {
	a, b := s.process(long), s.process(long)
	s.wants(a)
	dead := s.got(a)
	s.wants(a)
	s.waitUntilQueued(a) // after a poll interval, because its own process has the lock
	never := make(chan struct{})
	release := s.once(a, "release", redistest.Action{HoldReply: never})
	a.send(s.T, request{Do: "unlock", Hold: dead.Hold})
	s.reached(release)
	until(s.T, func() bool { return s.state().owner != dead.Op.Owner })
	s.has(a, offer)
	s.kill(a)
	s.since = monotonic()
	s.wants(b)
	start := monotonic()
	s.serve(b)
	s.within(hurry, start)
	s.end(b)
}

// The message was sent, but does not arrive. That costs an offer, during which no process acts as the holder.
func killedBeforeItsNotification(s *handover) {
	a, b, c, d := s.process(long), s.process(long), s.process(long), s.process(long)
	s.wants(a)
	s.got(a)
	s.waits(b)
	s.waits(c)
	s.waits(d)
	b.wire.Freeze(true)
	s.gives(a)
	s.has(b, offer)
	b.worker.kill()
	start := monotonic()
	s.serve(c, d)
	s.within(hurry, start)
	if r, replied := <-b.wish; replied {
		s.Errorf("the dead one got a reply: %+v", r)
	}
	s.end(a, c, d)
}

// The process acquired the lock a moment ago, for an offer, or for a lease if it has already renewed it.
func killedAfterItsNotification(s *handover) {
	a, b, c := s.process(medium), s.process(medium), s.process(medium)
	s.wants(a)
	s.got(a)
	s.waits(b)
	s.waits(c)
	s.gives(a)
	dead := s.got(b)
	s.kill(b)
	s.since = dead.Op.Until
	start := monotonic()
	s.serve(c)
	s.within(medium+hurry, start)
	s.end(a, c)
}

// Redis stores the owner string of the first holder of the chain; the later holders hold under it.
func killedInAChain(s *handover) {
	a, b, c := s.process(medium), s.process(medium), s.process(medium)
	dead := s.chain(a)
	s.waits(b)
	s.waits(c)
	if state := s.has(a, medium); state.owner != dead.Op.Owner {
		s.Errorf("in Redis %s holds the lock, and in the process %s does", state.owner, dead.Op.Owner)
	}
	s.kill(a)
	s.since = dead.Op.Until
	start := monotonic()
	s.serve(b, c)
	s.within(medium+hurry, start)
	s.end(b, c)
}

// The server detects that the process is gone, and skips it at no cost.
func killedFirstInQueue(s *handover) {
	a, b, c := s.process(long), s.process(long), s.process(long)
	s.wants(a)
	s.got(a)
	s.waits(b)
	s.waits(c)
	s.kill(b)
	s.gives(a)
	s.has(c, long)
	s.serve(c)
	s.free()
	s.end(a, c)
}

// A process further behind is skipped as well, when its turn comes.
func killedFurtherBehind(s *handover) {
	a, b, c, d := s.process(long), s.process(long), s.process(long), s.process(long)
	s.wants(a)
	s.got(a)
	s.waits(b)
	s.waits(c)
	s.waits(d)
	s.kill(c)
	s.gives(a)
	s.got(b)
	s.gives(b)
	s.has(d, long)
	s.serve(d)
	s.free()
	s.end(a, b, d)
}

// free fails unless the lock is free.
func (s *handover) free() {
	s.Helper()
	if state := s.state(); state.owner != "" || state.line != "" {
		s.Errorf("the lock is not free: %+v", state)
	}
}

// chain makes goroutines of p hand the lock off, and returns when one of them keeps it after at least two hand-offs.
func (s *handover) chain(p *relayer) granted {
	s.Helper()
	p.do(s.T, request{Do: "relay", Name: handed, Fenced: true, Relay: &relay{Goroutines: 6, Stay: section, Stays: 3, Journal: s.journal}})
	p.granted = value[granted](s.T, receive(s.T, p.send(s.T, request{Do: "stayed"})))
	s.token, s.since = p.granted.Op.Token, math.MaxInt64
	return p.granted
}

// relayed stops what chain started.
func (s *handover) relayed(p *relayer) relayed {
	s.Helper()
	return value[relayed](s.T, p.do(s.T, request{Do: "stop"}))
}

// A process is granted the lock while it is paused in the queue. This costs the others an offer. When it continues,
// much later, it reads the old message, sends a request, and is refused.
func TestHandover_frozenBeforeItIsTold(t *testing.T) {
	t.Parallel()
	s := newHandover(t)
	a, b, c := s.process(long), s.process(long), s.process(long)
	s.wants(a)
	s.got(a)
	s.waits(b)
	s.waits(c)
	b.stop(t)
	s.gives(a)
	s.has(b, offer)
	start := monotonic()
	s.got(c)
	s.within(hurry, start)
	b.cont(t)
	until(t, func() bool { return s.state().listens(b) }) // it was refused, and is queued
	s.has(c, long)
	select {
	case r := <-b.wish:
		t.Fatalf("it got a reply while another has the lock: %+v", r)
	default:
	}
	s.gives(c)
	s.serve(b)
	s.free()
	s.end(a, b, c)
}

// A process that acquired the lock by a message, or in a chain, is paused. It continues when another owner has the
// lock, and its first check detects the loss.
func TestHandover_frozenAfterItWasTold(t *testing.T) {
	for _, how := range []string{"by a message", "in a chain"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newHandover(t)
			a, b, c := s.process(medium), s.process(medium), s.process(medium)
			if how == "in a chain" {
				s.chain(b)
			} else {
				s.wants(a)
				s.got(a)
				s.waits(b)
				s.gives(a)
				s.got(b)
			}
			checking := b.send(t, request{Do: "watch", Hold: b.granted.Hold})
			s.waits(c)
			b.stop(t)
			s.since = 0 // see below
			start := monotonic()
			next := s.got(c)
			s.within(medium+hurry, start)
			b.cont(t)
			seen := value[watched](t, receive(t, checking))
			if seen.Late > 0 || seen.LastHeld > next.Op.Return || seen.Until > next.Op.Return {
				t.Errorf("another had the lock %v before Until, and %v before the last check that found it held; %d checks were late, by at most %v",
					time.Duration(seen.Until-next.Op.Return), time.Duration(seen.LastHeld-next.Op.Return), seen.Late, seen.Worst)
			}
			if !(reply{Err: seen.Err, Is: seen.Is}).is("ErrLost") {
				t.Errorf("the cause is %q, want lock.ErrLost", seen.Err)
			}
			if r := receive(t, b.send(t, request{Do: "unlock", Hold: b.granted.Hold})); !r.is("ErrNotHeld", "ErrLost") {
				t.Errorf("unlocking what was lost: %q", r.Err)
			}
			s.has(c, medium)
			s.gives(c)
			if how == "in a chain" {
				s.relayed(b)
			}
			s.end(a, b, c)
		})
	}
}

// A chain ends with a holder that stays for longer than the lease of the chain. It has the lock while it is renewed; if
// renewals fail, the holder is notified in time, and no other hold of its process is valid after that.
func TestHandover_outlivesItsLease(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second
	for name, fault := range map[string]func(*relayer){
		"renewed": nil,
		"renewals do not arrive": func(p *relayer) {
			p.wire.OnRequest(func(req [][]byte) redistest.Action {
				return redistest.Action{DropRequest: script(req) == "renew"}
			})
		},
		"renewals are answered too late": func(p *relayer) {
			p.wire.OnRequest(func(req [][]byte) (a redistest.Action) {
				if script(req) == "renew" {
					a.DelayReply = lease
				}
				return a
			})
		},
		"cut off": func(p *relayer) { p.wire.Freeze(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHandover(t)
			a, b := s.process(lease), s.process(lease)
			s.chain(a)
			if fault == nil {
				s.waits(b)
				for end := monotonic() + 3*int64(lease); monotonic() < end; time.Sleep(10 * time.Millisecond) {
					if state := s.has(a, lease); state.owner != a.granted.Op.Owner {
						t.Fatalf("%s has the lock after %s", state.owner, a.granted.Op.Owner)
					}
				}
				s.gives(a)
				s.got(b)
			} else {
				checking := a.send(t, request{Do: "watch", Hold: a.granted.Hold})
				fault(a)
				s.since = 0 // watch checks the timing in detail
				s.waits(b)
				next := s.got(b)
				seen := value[watched](t, receive(t, checking))
				if seen.Late > 0 || seen.LastHeld > next.Op.Return || seen.Until > next.Op.Return {
					t.Errorf("another had the lock %v before Until, and %v before the last check that found it held; %d checks were late, by at most %v",
						time.Duration(seen.Until-next.Op.Return), time.Duration(seen.LastHeld-next.Op.Return), seen.Late, seen.Worst)
				}
				if r := receive(t, a.send(t, request{Do: "unlock", Hold: a.granted.Hold})); !r.is("ErrNotHeld", "ErrLost") {
					t.Errorf("unlocking what was lost: %q", r.Err)
				}
				a.wire.Freeze(false)
				a.wire.OnRequest(nil)
				a.wire.CutAll() // including delayed replies
				until(t, func() bool { return strings.Contains(s.state().line, a.id) })
			}
			s.has(b, lease)
			if n := since(visits(t, s.journal), b.granted.Op.Return)[a.id]; n > 0 {
				t.Errorf("%d other holds were valid at the same time", n)
			}
			s.gives(b)
			until(t, func() bool { return since(visits(t, s.journal), s.since)[a.id] > 0 })
			s.relayed(a)
			exclusive(t, visits(t, s.journal))
			s.end(a, b)
		})
	}
}

// The holder at the end of a chain is force-unlocked. That holder is notified, and all waiters, in its process and in
// others, acquire the lock one after the other.
func TestHandover_forcedInAChain(t *testing.T) {
	t.Parallel()
	s := newHandover(t)
	a, b, c := s.process(medium), s.process(medium), s.process(medium)
	dead := s.chain(a)
	for _, p := range []*relayer{b, c} {
		p.do(t, request{Do: "relay", Name: handed, Fenced: true, Relay: &relay{Goroutines: 3, Stay: section, Journal: s.journal}})
		s.waitUntilQueued(p)
	}
	checking := a.send(t, request{Do: "watch", Hold: dead.Hold})
	f := taken{owner: dead.Op.Owner, call: monotonic()}
	if forced, err := ours(t, s.rdb).NewLock(handed).ForceUnlock(t.Context()); err != nil || !forced {
		t.Fatalf("by force: %v, %v", forced, err)
	}
	if seen := value[watched](t, receive(t, checking)); !(reply{Err: seen.Err, Is: seen.Is}).is("ErrLost") {
		t.Errorf("the holder was notified of %q", seen.Err)
	}
	if r := receive(t, a.send(t, request{Do: "unlock", Hold: dead.Hold})); !r.is("ErrNotHeld", "ErrLost") {
		t.Errorf("Unlock after a force-unlock: %q", r.Err)
	}
	f.done = time.Now()
	told := monotonic()
	all := []*relayer{a, b, c}
	until(t, func() bool {
		later := since(visits(t, s.journal), told)
		return later[a.id] >= 20 && later[b.id] >= 20 && later[c.id] >= 20
	})
	for _, p := range all {
		if sum := s.relayed(p); sum.Lost > 0 {
			t.Errorf("%d others were notified of a loss", sum.Lost)
		}
	}
	exclusive(t, visits(t, s.journal), f)
	s.end(all...)
}
