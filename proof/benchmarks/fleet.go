//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// fleet is many clients in one worker, each with separate connections, like the same number of processes.
type fleet struct {
	clients []contender
	holds   []held
	waiting sync.WaitGroup
	stop    context.CancelFunc // cancels the waits
	failed  atomic.Int64
}

// The states of a fleet.
const (
	fleetOpen    = "open"    // connected, nothing else
	fleetHeld    = "held"    // each client has its own lock
	fleetWaiting = "waiting" // each client waits for one of ten locks
)

// fleetLocks is the number of locks that a fleet waits for.
const fleetLocks = 10

// muster opens Goroutines clients and brings them into a state.
func (w *working) muster(j job, res *result) error {
	f := &w.fleet
	f.clients, f.holds = make([]contender, j.Goroutines), make([]held, j.Goroutines)
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	return f.each(func(n int) error {
		c, err := contenders[w.Contender].open(w.Settings)
		if err != nil {
			return err
		}
		f.clients[n] = c
		switch j.State {
		case fleetHeld:
			f.holds[n], err = c.Lock("fleet:" + strconv.Itoa(n)).Lock(ctx)
		case fleetWaiting:
			f.waiting.Go(func() {
				if h, err := c.Lock(lockName(n % fleetLocks)).Lock(ctx); err == nil { // the previous holder lost it
					f.failed.Add(1)
					_ = h.Unlock(context.Background())
				}
			})
		}
		return err
	})
}

// each calls do for all clients, and returns the first error.
func (f *fleet) each(do func(n int) error) error {
	errs := make([]error, len(f.clients))
	inParallel(len(f.clients), func(n int) { errs[n] = do(n) })
	return errors.Join(errs...)
}

// replace closes the clients with their locks one after the other, evenly until End, and opens a new client for each.
func (w *working) replace(j job, _ *result) error {
	f := &w.fleet
	for n := range f.clients {
		sleepUntil(j.Begin + int64(n)*(j.End-j.Begin)/int64(len(f.clients)))
		if err := f.holds[n].Unlock(context.Background()); err != nil {
			return err
		}
		f.clients[n].Close()
		var err error
		if f.clients[n], err = contenders[w.Contender].open(w.Settings); err != nil {
			return err
		}
		if f.holds[n], err = f.clients[n].Lock("fleet:" + strconv.Itoa(n)).Lock(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// disband releases the fleet's locks and closes its clients. Failed counts the locks that were lost.
func (w *working) disband(job, *result) error {
	f := &w.fleet
	f.stop()
	f.waiting.Wait()
	return f.each(func(n int) error {
		if h := f.holds[n]; h != nil && h.Unlock(context.Background()) != nil {
			f.failed.Add(1)
		}
		if f.clients[n] != nil {
			f.clients[n].Close()
		}
		return nil
	})
}

// heap returns the bytes on the heap after a garbage collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the first one only empties sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// census is the fleet's footprint on the server.
type census struct {
	connections, memory int64 // now
	commands, connected int64 // total so far
}

// census returns the server's counters, without the connection of the run itself.
func (s *server) census() (c census, err error) {
	info, err := s.wire.ask("INFO")
	if err != nil {
		return c, err
	}
	for name, value := range map[string]*int64{
		"connected_clients": &c.connections, "used_memory": &c.memory, "total_commands_processed": &c.commands, "total_connections_received": &c.connected,
	} {
		_, rest, ok := strings.Cut(info, "\n"+name+":")
		text, _, _ := strings.Cut(rest, "\r")
		if *value, err = strconv.ParseInt(text, 10, 64); err != nil || !ok {
			return c, fmt.Errorf("INFO: no %s", name)
		}
	}
	return c, nil
}

// rest is the slice of n clients that stay in a state for d, after calling before.
func rest(n int, state string, d time.Duration, before func(s *stage, n int, got sample) error) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		n, d, got := s.many(n), s.time(d), sample{"failed": 0}
		const holds, clients = 0, 1
		if state == fleetWaiting {
			if _, err := s.one(holds, job{Do: "take", Names: fleetLocks, ComeBack: s.comeBack()}); err != nil {
				return nil, err
			}
		}
		alone, err := s.server.census()
		if err != nil {
			return nil, err
		}
		empty, err := s.one(clients, job{Do: "look"})
		if err != nil {
			return nil, err
		}
		if _, err := s.one(clients, job{Do: "muster", Goroutines: n, State: state}); err != nil {
			return nil, err
		}
		settle := 5 * time.Second // by then, holders have subscribed, and no subscription lingers
		if state == fleetWaiting {
			settle = 20 * time.Second // by then, waiters poll less often
		}
		time.Sleep(s.time(settle))
		if before != nil {
			if err := before(s, n, got); err != nil {
				return nil, err
			}
		}
		counted, busy, err := s.server.during(func() error { time.Sleep(d); return nil })
		if err != nil {
			return nil, err
		}
		full, err := s.one(clients, job{Do: "look"})
		if err != nil {
			return nil, err
		}
		there, err := s.server.census()
		if err != nil {
			return nil, err
		}
		left, err := s.one(clients, job{Do: "disband"})
		if err != nil {
			return nil, err
		}
		if state == fleetWaiting {
			gave, err := s.one(holds, job{Do: "give"})
			if err != nil {
				return nil, err
			}
			left.Failed += gave.Failed
		}
		each := func(v float64) float64 { return v / float64(n) }
		got["connections"] = each(float64(there.connections - alone.connections))
		got["commands/s"] = each(float64(counted.ofClients()) / d.Seconds())
		sent := counted.sentBy(contenders[s.contender]) + counted["ping"].calls + counted["role"].calls
		got["sent/s"] = each(float64(sent) / d.Seconds())
		got["pings/s"] = each(float64(counted["ping"].calls) / d.Seconds())
		got["heap MB"] = each(float64(full.Heap-empty.Heap) / (1 << 20))
		got["goroutines"] = each(float64(full.Routines - empty.Routines))
		got["server KB"] = each(float64(there.memory-alone.memory) / 1024)
		got["server/s"] = 1000 * each(ms(busy)/d.Seconds())
		got["lost"] = float64(left.Failed)
		return got, nil
	}
}

// ofClients returns how many commands the server executed for clients, including those inside scripts and excluding the
// run's own.
func (c calls) ofClients() (n int64) {
	for name, stat := range c {
		if name != "info" && name != "config|resetstat" {
			n += stat.calls
		}
	}
	return n
}

// replacing replaces the clients of a fleet one after the other, and measures the cost.
func replacing(s *stage, n int, got sample) error {
	const clients = 1
	before, err := s.server.census()
	if err != nil {
		return err
	}
	if _, err := s.one(clients, s.timed(job{Do: "replace"}, s.time(25*time.Second))); err != nil {
		return err
	}
	after, err := s.server.census()
	if err != nil {
		return err
	}
	got["connects"] = float64(after.connected-before.connected) / float64(n)
	time.Sleep(s.time(5 * time.Second))
	return nil
}

// absent stops the server for ten seconds, keeps its data, and measures how the clients recover.
func absent(s *stage, n int, got sample) error {
	before, err := s.server.census()
	if err != nil {
		return err
	}
	if err := s.server.restart(s.time(10 * time.Second)); err != nil {
		return err
	}
	const tick = 100 * time.Millisecond
	began := monotonic()
	last, err := s.server.census()
	if err != nil {
		return err
	}
	var connects, commands int64
	for i := int64(1); ; i++ {
		sleepUntil(began + i*int64(tick))
		c, err := s.server.census()
		if err != nil {
			return err
		}
		connects, commands = max(connects, c.connected-last.connected), max(commands, c.commands-last.commands)
		last = c
		if took := time.Duration(monotonic() - began); 100*c.connections >= 99*before.connections || took > s.time(30*time.Second) { // the workers' own clients are idle
			got["back s"] = took.Seconds()
			break
		}
	}
	got["peak connects/s"] = float64(connects) / float64(n) / tick.Seconds()
	got["peak commands/s"] = float64(commands) / float64(n) / tick.Seconds()
	time.Sleep(s.time(5 * time.Second))
	return nil
}

// fleetCells are the cells of clients at rest.
var fleetCells = []*cell{
	atRest("rest-open", "500 clients at rest: connected, no lock", fleetOpen, nil, nil, []aim{
		{what: "commands/s per client", of: "leasehold-open", metric: "sent/s", atMost: 0.5},
	}),
	atRest("rest-held", "500 clients at rest, each with one lock", fleetHeld, nil, nil, []aim{
		{what: "connections per client", of: "leasehold-open", metric: "connections", atMost: 2},
		{what: "commands/s per client", of: "leasehold-open", metric: "sent/s", atMost: 0.5},
		{what: "MB of heap per client", of: "leasehold-open", metric: "heap MB", atMost: 1.5},
	}),
	atRest("rest-waiting", "500 clients at rest, each waiting for one of ten locks", fleetWaiting, nil, nil, []aim{
		{what: "connections per client", of: "leasehold-open", metric: "connections", atMost: 2},
		{what: "commands/s per client, including those in scripts", of: "leasehold-open", metric: "commands/s", atMost: 3},
	}),
	atRest("rest-replaced", "The same as rest-held, after a rolling restart of the clients in 25 s", fleetHeld, replacing,
		[]column{{"connects per restart", "connects", false, 2}}, []aim{
			{what: "connections per client", of: "leasehold-open", metric: "connections", atMost: 2},
		}),
	atRest("rest-away", "The same as rest-held, after the server was unavailable for 10 s", fleetHeld, absent,
		[]column{{"all recovered s", "back s", false, 1}, {"peak connects/s", "peak connects/s", false, 2}, {"peak commands/s", "peak commands/s", false, 2}}, []aim{
			{what: "peak connects/s per client", of: "leasehold-open", metric: "peak connects/s", atMost: 4},
			{what: "locks lost", of: "leasehold-open", metric: "lost", atMost: 0},
		}),
}

// atRest returns a cell of clients at rest.
func atRest(name, title, state string, before func(s *stage, n int, got sample) error, more []column, aims []aim) *cell {
	who := []string{"leasehold-open"}
	if before == nil {
		who = append(who, "leasehold") // with the defaults of rueidis
	}
	return &cell{
		name: name, title: title + "; per client",
		contenders: who, reference: who[0], processes: 2,
		slice: rest(500, state, 20*time.Second, before),
		columns: append([]column{
			{"connections", "connections", false, 2}, {"commands/s", "sent/s", false, 2}, {"of which PING", "pings/s", false, 2}, {"including those in scripts", "commands/s", false, 2},
			{"heap MB", "heap MB", false, 2}, {"goroutines", "goroutines", false, 1}, {"server KB", "server KB", false, 1},
			{"server CPU ms/s for 1,000 clients", "server/s", false, 1}, {"lost", "lost", false, 0},
		}, more...),
		aims: aims,
	}
}
