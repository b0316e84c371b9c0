//go:build linux

package chaos_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/integration/internal/history"
	"github.com/leasehold-go/leasehold/integration/internal/skew"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

// scene has the servers and the processes of a round.
type scene struct {
	*testing.T
	plan     plan
	dir      string // of the records and logs
	servers  []*redistest.Server
	sentinel *redistest.Sentinel
	cluster  *redistest.Cluster
	clock    skew.Clock           // of servers[0], if the topology has one
	proxies  [][]*redistest.Proxy // for each process, one to each server
	rdb      rueidis.Client       // bypasses the proxies
	locks    *client.Client       // the operator's
	java     *java                // nil without Java
	still    atomic.Int64         // ns: the longest stall of the whole machine

	mu        sync.Mutex
	processes []*process // guarded by mu; the running ones
	all       []*process // guarded by mu; in the order of their starts
	names     map[*process]string
	events    []event        // guarded by mu
	did       map[string]int // guarded by mu; how often each fault was injected
	said      report         // guarded by mu; the sum of the reports of ended processes
	clockWas  bool           // guarded by mu; the clock was changed in this round
	last      []record       // written by visit
	pasts     []past         // set by judge
}

func newScene(t *testing.T, p plan, dir string) *scene {
	s := &scene{T: t, plan: p, dir: dir, names: map[*process]string{}, did: map[string]int{}, said: report{Failed: map[string]int64{}}}
	switch p.Topology {
	case "standalone":
		var config []string
		if p.Durable {
			config = []string{"--appendonly", "yes", "--appendfsync", "always"}
		}
		server, clock := skew.Start(t, config...)
		s.servers, s.clock = []*redistest.Server{server}, clock
		s.rdb = server.Client(t)
	case "sentinel":
		s.sentinel = redistest.StartSentinel(t, 2)
		s.servers = s.sentinel.Nodes
		s.rdb = s.sentinel.Client(t)
	case "cluster":
		s.cluster = redistest.StartCluster(t)
		s.servers = s.cluster.Nodes
		s.rdb = s.cluster.Client(t)
	case "quorum":
		server, clock := skew.Start(t)
		s.servers, s.clock = []*redistest.Server{server}, clock
		for range 4 {
			s.servers = append(s.servers, redistest.Start(t))
		}
		time.Sleep(lease) // until they vote
	}
	if s.rdb != nil {
		var err error
		if s.locks, err = client.New(s.rdb, client.WithoutRegistry()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.locks.Close(context.Background()) }) // it holds nothing
	}
	for range p.Processes {
		var some []*redistest.Proxy
		for _, server := range s.servers {
			some = append(some, redistest.NewProxy(t, server.Addr()))
		}
		s.proxies = append(s.proxies, some)
	}
	if os.Getenv("LEASEHOLD_CHAOS_MONITOR") != "off" {
		for i, server := range s.servers {
			s.monitor(server, filepath.Join(dir, fmt.Sprintf("monitor-%d", i)))
		}
	}
	for i := range p.Processes {
		s.processes = append(s.processes, nil)
		s.start(i)
	}
	s.java = s.startJava()
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx) })
	t.Cleanup(func() { cancel(); watching.Wait() })
	return s
}

// watch measures how long this process stalls. It has little to do, so the others stall then, too.
func (s *scene) watch(ctx context.Context) {
	tick := time.NewTicker(lease / 20)
	defer tick.Stop()
	for before := history.Monotonic(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := history.Monotonic()
		s.still.Store(max(s.still.Load(), now-before))
		before = now
	}
}

// calm reports whether no heartbeat was late: no fault delays them, and the machine did not stall.
func (s *scene) calm() bool {
	still := time.Duration(s.still.Load())
	if s.plan.Temper == "calm" && still > lock.DefaultWaiterTimeout/3 {
		s.Logf("the machine stood still for %v: the order of fair locks is not checked", still)
		return false
	}
	return s.plan.Temper == "calm"
}

// start starts a process in slot i.
func (s *scene) start(i int) {
	o := order{Topology: s.plan.Topology, Via: map[string]string{}, Places: s.plan.Places, Goroutines: s.plan.Goroutines}
	for j, server := range s.servers {
		o.Addrs = append(o.Addrs, server.Addr())
		o.Via[server.Addr()] = s.proxies[i][j].Addr()
	}
	if s.sentinel != nil {
		o.Addrs = nil
		for _, sentinel := range s.sentinel.Sentinels {
			o.Addrs = append(o.Addrs, sentinel.Addr())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	life := 0
	for _, name := range s.names {
		if strings.HasPrefix(name, fmt.Sprintf("go%d.", i)) {
			life++
		}
	}
	name, binary := fmt.Sprintf("go%d.%d", i, life), os.Args[0]
	if s.plan.Old != nil {
		if old := s.plan.Old(i, life); old != nil {
			name, binary, o.Places = name+oldSuffix, old.binary, old.places(o.Places)
		}
	}
	o.Seed, o.File = s.plan.Seed^uint64(s.plan.Round)<<32^uint64(i)<<16^uint64(life), filepath.Join(s.dir, name)
	p := startProcess(s.T, binary, o)
	s.processes[i] = p
	s.all = append(s.all, p)
	s.names[p] = name
}

// monitor writes the commands that a server executes to two files in turn, so that the latest part is kept.
func (s *scene) monitor(server *redistest.Server, file string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	s.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		const most = 64 << 20
		for turn := 0; ctx.Err() == nil; turn++ {
			s.monitorOnce(ctx, server, fmt.Sprintf("%s.%d", file, turn%2), most)
			time.Sleep(20 * time.Millisecond) // it may be down
		}
	})
}

func (s *scene) monitorOnce(ctx context.Context, server *redistest.Server, file string, most int64) {
	conn, err := net.DialTimeout("tcp", server.Addr(), time.Second)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		return
	}
	f, err := os.Create(file)
	if err != nil {
		return
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	defer w.Flush()
	_, _ = io.CopyN(w, conn, most) // the server or the round has ended
}

// during records an event that begins now and ends when the returned function is called.
func (s *scene) during(e event) (end func()) {
	e.From = history.Monotonic()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.events)
	s.events = append(s.events, e)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events[i].To = history.Monotonic()
	}
}

// run executes the plan, and returns when all faults have ended.
func (s *scene) run() {
	start := time.Now()
	var wg sync.WaitGroup
	for _, hand := range []struct {
		faults []fault
		do     func(fault)
	}{{s.plan.Network, s.network}, {s.plan.Servers, s.server}} {
		wg.Go(func() {
			for _, f := range hand.faults {
				time.Sleep(time.Until(start.Add(f.At)))
				if time.Since(start) > s.plan.For || s.Failed() {
					return // earlier faults took longer than planned, as failovers do
				}
				hand.do(f)
				s.mu.Lock()
				s.did[f.Do]++
				s.mu.Unlock()
			}
		})
	}
	wg.Wait()
	time.Sleep(time.Until(start.Add(s.plan.For)))
}

// network injects a fault of a process, or between it and the servers.
func (s *scene) network(f fault) {
	defer s.during(event{What: f.String()})()
	s.mu.Lock()
	p := s.processes[f.On]
	s.mu.Unlock()
	proxies := s.proxies[f.On]
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(s.plan.Seed, uint64(f.At))) // guarded by mu
	some := func(n int) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(r.Int64N(int64(n)))
	}
	hook := func(decide func(req [][]byte) redistest.Action) {
		for _, proxy := range proxies {
			proxy.OnRequest(decide)
		}
		time.Sleep(f.For)
		for _, proxy := range proxies {
			proxy.OnRequest(nil)
		}
	}
	isScript := func(req [][]byte) bool {
		name := strings.ToUpper(string(req[0]))
		return name == "EVALSHA" || name == "EVAL"
	}
	switch f.Do {
	case "delay":
		hook(func([][]byte) redistest.Action {
			most := f.Arg * int(time.Millisecond)
			return redistest.Action{DelayRequest: some(most), DelayReply: some(most)}
		})
	case "drop replies":
		hook(func(req [][]byte) redistest.Action {
			return redistest.Action{DropReply: isScript(req) && int(some(1000)) < f.Arg}
		})
	case "drop requests":
		hook(func(req [][]byte) redistest.Action {
			return redistest.Action{DropRequest: isScript(req) && int(some(1000)) < f.Arg}
		})
	case "drop messages":
		for _, proxy := range proxies {
			proxy.OnMessage(func() bool { return int(some(1000)) < f.Arg })
		}
		time.Sleep(f.For)
		for _, proxy := range proxies {
			proxy.OnMessage(nil)
		}
	case "cut":
		for _, proxy := range proxies {
			proxy.CutAll()
		}
	case "partition":
		for _, proxy := range proxies {
			proxy.Refuse(true)
			proxy.CutAll()
		}
		time.Sleep(f.For)
		for _, proxy := range proxies {
			proxy.Refuse(false)
		}
	case "half-open":
		for _, proxy := range proxies {
			proxy.Freeze(true)
		}
		time.Sleep(f.For)
		for _, proxy := range proxies {
			proxy.Freeze(false)
		}
	case "slow, then half-open":
		hook(func([][]byte) redistest.Action {
			return redistest.Action{DelayReply: time.Duration(f.Arg) * time.Millisecond}
		})
		for _, proxy := range proxies {
			proxy.Freeze(true)
		}
		time.Sleep(2 * lease)
		for _, proxy := range proxies {
			proxy.Freeze(false)
		}
	case "stop":
		p.signal(syscall.SIGSTOP)
		time.Sleep(f.For)
		p.signal(syscall.SIGCONT)
	case "kill":
		p.kill()
		s.start(f.On)
	default:
		s.Errorf("how to do %q?", f.Do)
	}
}

// masters returns the servers that accept writes.
func (s *scene) masters() []*redistest.Server {
	switch {
	case s.sentinel != nil:
		return []*redistest.Server{s.sentinel.Primary(s)}
	case s.cluster != nil:
		return s.cluster.Masters(s)
	}
	return s.servers
}

// server injects a fault of the servers.
func (s *scene) server(f fault) {
	masters := s.masters()
	one := masters[f.On%len(masters)]
	place := s.plan.Places[f.On%len(s.plan.Places)]
	if s.locks != nil && (place.Kind == "semaphore" || place.Kind == "multi") {
		place = s.plan.Places[0] // these cannot be forced or deleted as a whole
	}
	every := func(pause time.Duration, command ...string) {
		for end := time.Now().Add(f.For); ; time.Sleep(pause) {
			for _, server := range masters {
				server.Do(s, command...)
			}
			if !time.Now().Before(end) {
				return
			}
		}
	}
	quietly := func() func() { return s.during(event{What: f.String()}) }
	switch f.Do {
	case "script flush":
		defer quietly()()
		every(10*time.Millisecond, "SCRIPT", "FLUSH")
	case "kill clients":
		defer quietly()()
		every(0, "CLIENT", "KILL", "TYPE", "normal")
	case "kill subscribers":
		defer quietly()()
		every(20*time.Millisecond, "CLIENT", "KILL", "TYPE", "pubsub")
	case "freeze":
		defer quietly()()
		one.Freeze(s)
		time.Sleep(f.For)
		one.Thaw(s)
	case "memory full":
		defer quietly()()
		one.Do(s, "CONFIG", "SET", "maxmemory", "1")
		time.Sleep(f.For)
		one.Do(s, "CONFIG", "SET", "maxmemory", "0")
	case "force":
		defer s.during(event{What: f.String() + " " + place.Name, Place: place.Name, Forgets: true, Falls: true})()
		s.force(place)
	case "delete":
		defer s.during(event{What: f.String() + " " + place.Name, Place: place.Name, Forgets: true, Falls: true})()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		key := place.Name
		if place.Kind == "waitgroup" {
			key = "leasehold_crew:{" + key + "}"
		}
		err := s.rdb.Do(ctx, s.rdb.B().Del().Key(key).Build()).Error()
		for err != nil && ctx.Err() == nil { // its connection was just broken
			err = s.rdb.Do(ctx, s.rdb.B().Del().Key(key).Build()).Error()
		}
		if err != nil {
			s.Errorf("DEL %s: %v", place.Name, err)
		}
	case "restart empty", "crash":
		s.restart(f, one)
	case "restart three empty":
		first := f.On % len(masters)
		s.restart(f, masters[first], masters[(first+1)%len(masters)], masters[(first+2)%len(masters)])
	case "clock":
		s.setClock(f)
	case "failover":
		s.failover(f, place)
	case "take over":
		defer s.during(event{What: f.String() + " " + place.Name, Forgets: true})()
		s.cluster.TakeOver(s, s.cluster.Replica(s, s.cluster.Master(s, place.Name)))
	case "move slot":
		defer s.during(event{What: f.String() + " " + place.Name})()
		from := s.cluster.Master(s, place.Name)
		to := masters[f.On%len(masters)]
		if to == from {
			to = masters[(f.On+1)%len(masters)]
		}
		m := s.cluster.Migrate(s, s.cluster.Slot(s, place.Name), from, to)
		time.Sleep(f.For)
		m.Finish(s)
	default:
		s.Errorf("how to do %q?", f.Do)
	}
}

// force force-unlocks a lock, or deletes a latch or a wait group, even if the operator's connection was just broken.
func (s *scene) force(p place) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	force := s.locks.NewLock(p.Name).ForceUnlock
	switch p.Kind {
	case "fair":
		force = s.locks.NewFairLock(p.Name).ForceUnlock
	case "rw":
		force = s.locks.NewRWLock(p.Name).ForceUnlock
	case "latch":
		force = func(ctx context.Context) (bool, error) { return true, s.locks.NewLatch(p.Name).Delete(ctx) }
	case "waitgroup":
		force = func(ctx context.Context) (bool, error) { return true, s.locks.NewWaitGroup(p.Name).Delete(ctx) }
	}
	_, err := force(ctx)
	for errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil {
		_, err = force(ctx)
	}
	if err != nil {
		s.Errorf("ForceUnlock %s: %v", p.Name, err)
	}
}

// restart kills servers, which restart empty, or with all their data. A quorum survives both.
func (s *scene) restart(f fault, servers ...*redistest.Server) {
	s.mu.Lock()
	e := event{What: f.String(), Forgets: f.Do == "restart empty" && s.plan.Topology == "standalone", Takes: s.plan.Topology == "quorum", Falls: s.clockWas, Lost: s.clockWas && f.Do != "crash"}
	s.mu.Unlock()
	defer s.during(e)()
	for _, server := range servers {
		server.Kill(s)
	}
	time.Sleep(f.For)
	for _, server := range servers {
		if server == s.servers[0] {
			end := s.clock.Preload(s)
			server.Restart(s)
			end()
		} else {
			server.Restart(s)
		}
	}
}

// setClock moves the clock of the first server forward or back, and later corrects it.
func (s *scene) setClock(f fault) {
	by := time.Duration(f.Arg) * time.Second
	if f.On%2 == 1 {
		by = -by
	}
	s.mu.Lock()
	s.clockWas = true
	s.mu.Unlock()
	step := func(to, change time.Duration) {
		// Scripts that have already read the clock finish in the meantime.
		defer s.during(event{What: fmt.Sprintf("clock %+v", change), Forgets: change > 0, Falls: change < 0})()
		s.clock.Set(to)
		time.Sleep(10 * time.Millisecond)
	}
	step(by, by)
	time.Sleep(f.For)
	step(0, -by)
}

// failover kills a master; its replica takes over, and may lack the last writes.
func (s *scene) failover(f fault, p place) {
	defer s.during(event{What: f.String(), Forgets: true, Falls: false})()
	forgets := f.Arg == 2
	cut := time.Duration(f.On%500) * time.Millisecond
	if s.sentinel != nil {
		primary := s.sentinel.Primary(s)
		if forgets {
			s.sentinel.CutReplication(s, primary)
			time.Sleep(cut)
		}
		s.sentinel.Rejoin(s, primary, s.sentinel.Failover(s, primary))
		return
	}
	master := s.cluster.Master(s, p.Name)
	if forgets {
		s.cluster.CutReplication(s, master)
		time.Sleep(cut)
	}
	s.cluster.Failover(s, master)
	s.cluster.Rejoin(s, master)
}

// finish ends all processes, and returns the sum of their reports, including those of replaced processes.
func (s *scene) finish() report {
	s.java.stop()
	var wg sync.WaitGroup
	for _, p := range s.processes {
		wg.Go(func() { s.end(p) })
	}
	wg.Wait()
	s.java.finish(s)
	return s.said
}

// end ends a process, and adds its report to the sum.
func (s *scene) end(p *process) {
	r, err := p.finish()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.Errorf("process %s: %v", s.names[p], err)
	}
	for _, text := range r.Wrong {
		s.Errorf("process %s: %s", s.names[p], text)
	}
	sum := &s.said
	for _, n := range []struct {
		to *int64
		by int64
	}{
		{&sum.Granted, r.Granted}, {&sum.Reentries, r.Reentries}, {&sum.Refused, r.Refused}, {&sum.TimedOut, r.TimedOut},
		{&sum.Unavailable, r.Unavailable}, {&sum.Renewed, r.Renewed}, {&sum.RenewalsFailed, r.RenewalsFailed}, {&sum.HandedOff, r.HandedOff}, {&sum.Looks, r.Looks},
	} {
		*n.to += n.by
	}
	for text, n := range r.Failed {
		sum.Failed[text] += n
	}
}

// visit acquires each lock once more: nothing may block the next owner. Then no keys of locks may be left.
func (s *scene) visit() {
	var all []lock.Locker
	clients := []*client.Client{s.locks}
	if s.locks == nil {
		clients = nil
		for _, server := range s.servers {
			c, err := client.New(server.Client(s), client.WithoutRegistry(), client.WithWatchdogTimeout(lease))
			if err != nil {
				s.Fatal(err)
			}
			s.Cleanup(func() { _ = c.Close(context.Background()) }) // it holds nothing
			clients = append(clients, c)
		}
	}
	for i, p := range s.plan.Places {
		switch p.Kind {
		case "latch":
			s.visitLatch(p)
		case "waitgroup":
			s.visitWaitGroup(p, i)
		case "plain":
			all = append(all, clients[0].NewLock(p.Name))
		case "fair":
			all = append(all, clients[0].NewFairLock(p.Name))
		case "rw":
			all = append(all, clients[0].NewRWLock(p.Name).Read(), clients[0].NewRWLock(p.Name).Write())
		case "semaphore":
			n := s.permitsOf(p)
			all = append(all, clients[0].NewSemaphore(p.Name, n).N(n))
		case "quorum":
			var members []lock.Locker
			for _, c := range clients {
				members = append(members, c.NewLock(p.Name))
			}
			all = append(all, multilock.NewQuorum(members, multilock.WithMaxLease(lease)))
		}
	}
	for _, l := range all {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		h, err := l.Lock(ctx)
		if err == nil {
			err = h.Unlock(ctx)
		}
		cancel()
		if err != nil {
			s.Errorf("%s, when all is over: %v", l.Name(), err)
		}
	}
	for end := time.Now().Add(longest + 10*time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := s.left()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			s.Errorf("%d keys are left, such as %q", len(left), left[:min(5, len(left))])
			return
		}
	}
}

// permitsOf returns the total number of permits of a semaphore: the initial number, minus the permits that Redisson
// lost. Its script takes another permit each time that it is sent, but the set of held permits has the same id only
// once. Redisson resends it when its connection breaks before the reply.
func (s *scene) permitsOf(p place) int {
	free, err := s.rdb.Do(context.Background(), s.rdb.B().Get().Key(p.Name).Build()).AsInt64()
	if err != nil {
		return permits // it was never created, or the visit reports the problem
	}
	held, err := s.rdb.Do(context.Background(), s.rdb.B().Zcard().Key("{"+p.Name+"}:timeout").Build()).AsInt64()
	lost := permits - int(free+held)
	if err != nil || s.java == nil || lost <= 0 || lost >= permits || lost > int(s.java.resent.Load()) {
		return permits
	}
	s.Logf("Redisson sent %d questions twice, and lost %d permits of %s by that", s.java.resent.Load(), lost, p.Name)
	return permits - lost
}

// left returns the keys of locks, except for keys that remain by design: token counters, the state of a semaphore, the
// traces of latches, and the replies that Redisson stores for an unlock that it retries. Redisson deletes such a reply
// without waiting for confirmation, so a fault can leave it until it expires: after about four times Redisson's
// timeout.
func (s *scene) left() (left []string) {
	for _, server := range s.masters() {
		for _, key := range server.LockKeys(s) {
			switch {
			case strings.HasPrefix(key, "redisson_unlock_latch:") && expires(s, server, key):
			case strings.HasPrefix(key, "redisson_lock_token:"), key == "semaphore", key == "{semaphore}:timeout", strings.HasPrefix(key, "leasehold_latch"):
			default:
				left = append(left, key)
			}
		}
	}
	return left
}

// expires reports whether a key has a time to live, or does not exist.
func expires(t testing.TB, server *redistest.Server, key string) bool {
	reply := server.Do(t, "PTTL", key)
	left, err := reply.AsInt64()
	return err == nil && left != -1
}

// version returns the product and version of a server.
func version(t testing.TB, server *redistest.Server) string {
	info := server.Do(t, "INFO", "server")
	text, _ := info.ToString()
	for _, name := range []string{"valkey_version:", "redis_version:"} {
		if _, rest, ok := strings.Cut(text, name); ok {
			v, _, _ := strings.Cut(rest, "\r\n")
			return strings.TrimSuffix(name, "_version:") + " " + v
		}
	}
	return strconv.Quote(text)
}
