//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

const (
	loadLease     = 12 * time.Second // no renewal is due while a replica takes over
	loadOpTimeout = time.Second

	// told is how long a holder may act as the holder of a lock that another owner was granted: until the reply to its
	// next renewal, with a generous margin for a busy machine.
	told = loadLease/3 + loadOpTimeout + 2*time.Second
)

// clusterLoad runs many owners that acquire locks of all types on a cluster, and hold each for a moment. A lock counts
// as held while Err is nil.
type clusterLoad struct {
	t       *testing.T
	cluster *redistest.Cluster
	stalls  *stalls
	clients []*client.Client
	names   []string // of all locks, on all shards

	stop    atomic.Bool
	workers sync.WaitGroup
	checks  sync.WaitGroup

	mu          sync.Mutex
	inside      map[string]map[*stay]struct{} // by name: the owners inside
	excused     time.Time                     // until then a failover explains two owners
	grants      map[kind]int
	overlaps    int          // pairs of owners that acted as holders of the same lock at once
	lost        int          // holds that were notified of a loss
	gave        map[kind]int // Unlocks
	unconfirmed map[kind]int // of these, those that Redis did not confirm in time; they continue in the background
	unexcused   []span       // the same, without a fault that explains it
	alive       bool         // no master dies, so Unlocks of plain locks, which have only one key, are confirmed
	slowest     time.Duration
}

// stay is the time during which one owner holds a lock.
type stay struct {
	hold lock.Hold
	read bool
	left chan struct{}
}

// startClusterLoad starts two clients, each with two owners at once for each of 16 locks.
func startClusterLoad(t *testing.T, cluster *redistest.Cluster, p client.PubSub) *clusterLoad {
	t.Helper()
	return startClusterLoadBy(t, cluster, p, func() rueidis.Client {
		return cluster.Client(t, func(o *rueidis.ClientOption) { o.ClusterOption.ShardsRefreshInterval = time.Second })
	})
}

// startClusterLoadBy starts it with clients made by connect.
func startClusterLoadBy(t *testing.T, cluster *redistest.Cluster, p client.PubSub, connect func() rueidis.Client) *clusterLoad {
	t.Helper()
	l := &clusterLoad{t: t, cluster: cluster, stalls: watchStalls(t, cluster.Nodes), inside: make(map[string]map[*stay]struct{}), grants: make(map[kind]int),
		gave: make(map[kind]int), unconfirmed: make(map[kind]int)}
	random := rand.New(rand.NewPCG(seed(t), 0))
	for range 2 {
		c := ours(t, connect(), client.WithPubSub(p), client.WithWatchdogTimeout(loadLease), client.WithOpTimeout(loadOpTimeout))
		l.clients = append(l.clients, c)
		for i := range 4 {
			for _, kinds := range [][]kind{{plain, plain}, {fair, fair}, {write, write}, {write, read, read}} {
				name := fmt.Sprintf("%s%d%d", kinds[0], len(kinds), i)
				l.names = append(l.names, name)
				for _, k := range kinds {
					random := rand.New(rand.NewPCG(random.Uint64(), 0))
					l.workers.Go(func() { l.work(k, k.lock(c, name), random) })
				}
			}
		}
	}
	return l
}

// work acquires a lock repeatedly, without a timeout, and accepts no error except an expired lease.
func (l *clusterLoad) work(k kind, locker lock.Locker, random *rand.Rand) {
	for !l.stop.Load() {
		asked := time.Now()
		h, err := locker.Lock(context.Background())
		if err != nil {
			l.t.Errorf("%s: %v", locker.Name(), err)
			return
		}
		s := l.enter(k, locker.Name(), h, time.Since(asked))
		select {
		case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
		case <-h.Context().Done():
		}
		l.leave(locker.Name(), s)
		start := time.Now()
		err = h.Unlock(context.Background())
		l.mu.Lock()
		l.gave[k]++
		switch {
		case errors.Is(err, lock.ErrLost):
			l.lost++
		case err != nil:
			l.unconfirmed[k]++
			if l.alive && k == plain {
				l.unexcused = append(l.unexcused, span{start, time.Now(), fmt.Sprintf("%s: %v", k, err)})
			}
		}
		l.mu.Unlock()
	}
}

// enter records a grant, and checks that every other owner inside is notified of its loss in time.
func (l *clusterLoad) enter(k kind, name string, h lock.Hold, waited time.Duration) *stay {
	s := &stay{hold: h, read: k == read, left: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants[k]++
	l.slowest = max(l.slowest, waited)
	for other := range l.inside[name] {
		if s.read && other.read || other.hold.Err() != nil || h.Err() != nil {
			continue
		}
		l.overlaps++
		if now := time.Now(); now.After(l.excused) {
			l.t.Errorf("%s: two valid holds, %v after any failover could be the reason", name, now.Sub(l.excused))
		}
		l.checks.Go(func() {
			select {
			case <-other.left: // on its own
			case <-other.hold.Context().Done():
			case <-s.left: // then other may continue alone
			case <-time.After(told):
				l.t.Errorf("%s: two valid holds, and the first was not notified within %v", name, told)
			}
		})
	}
	if l.inside[name] == nil {
		l.inside[name] = make(map[*stay]struct{})
	}
	l.inside[name][s] = struct{}{}
	return s
}

// leave is called before Unlock: the next owner enters before Unlock returns.
func (l *clusterLoad) leave(name string, s *stay) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.inside[name], s)
	close(s.left)
}

// total returns the number of grants.
func (l *clusterLoad) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.grants {
		n += g
	}
	return n
}

// goesOn waits until every owner could have acquired its lock several more times.
func (l *clusterLoad) goesOn() {
	l.t.Helper()
	before := l.total()
	until(l.t, func() bool { return l.total() > before+200 })
}

// end stops the load, and logs the result for a fault. No owner may be stuck, and no keys may be left.
func (l *clusterLoad) end(fault string) {
	l.t.Helper()
	l.stop.Store(true)
	idle := make(chan struct{})
	go func() { l.workers.Wait(); l.checks.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-time.After(promptTimeout):
		l.t.Fatal("waiters are stuck")
	}
	until(l.t, func() bool { // unconfirmed releases are reconciled in the background
		n := int64(0)
		for _, master := range l.cluster.Masters(l.t) {
			n += keys(l.t, master)
		}
		return n == 0
	})
	var unconfirmed []string
	for _, k := range []kind{plain, fair, read, write} {
		unconfirmed = append(unconfirmed, fmt.Sprintf("%d of %d %s", l.unconfirmed[k], l.gave[k], k))
	}
	l.t.Logf("%s: acquired %s; %d overlaps, %d holders were notified of a loss; Unlocks that continued in the background: %s; the longest wait was %v",
		fault, counts(l.grants), l.overlaps, l.lost, strings.Join(unconfirmed, ", "), l.slowest.Round(time.Millisecond))
	left := l.stalls.unexplained(l.unexcused)
	for _, one := range left {
		l.t.Errorf("an Unlock without a fault: %s", one.what)
	}
	if n := len(l.unexcused) - len(left); n > 0 {
		l.t.Logf("the machine was too busy for %d Unlocks: a PING took as long", n)
	}
	for _, k := range []kind{plain, fair, read, write} {
		if l.grants[k] == 0 {
			l.t.Errorf("no %s lock was ever acquired: the test shows nothing", k)
		}
	}
}

// failover kills a randomly chosen master, immediately after cut, and makes its replica take over. Then it restarts the
// dead one.
func (l *clusterLoad) failover(random *rand.Rand, cut func(dies *redistest.Server) (after func())) {
	l.t.Helper()
	masters := l.cluster.Masters(l.t)
	dies := masters[random.IntN(len(masters))]
	after := cut(dies)
	l.excuse(time.Hour)
	l.cluster.Failover(l.t, dies)
	l.excuse(told)
	after()
	l.goesOn()
	l.cluster.Rejoin(l.t, dies)
}

func (l *clusterLoad) excuse(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.excused = time.Now().Add(d)
}

// forgets acquires a lock of each type that the replica of dies never receives, and starts a waiter for each. After the
// failover, the waiters acquire the locks, and the first holders are notified in time. It counts the locks that
// temporarily had two owners.
func (l *clusterLoad) forgets(dies *redistest.Server, overlaps *int) (after func()) {
	t := l.t
	t.Helper()
	l.cluster.CutReplication(t, dies)
	pairs := map[kind]*pair{}
	for _, k := range []kind{plain, fair, read, write} {
		name := "forgotten-" + string(k)
		for l.cluster.Master(t, name) != dies {
			name += "."
		}
		pairs[k] = newPair(t, k, l.clients[0], l.clients[1], name)
	}
	return func() {
		promoted := time.Now()
		for k, p := range pairs {
			p.wait(t)
			if late := p.told(t).Sub(promoted); late > told {
				t.Errorf("%s: its owner was notified %v after the promotion, want at most %v", k, late, told)
			}
			if p.both {
				*overlaps++
			}
			if err := p.first.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
				t.Errorf("%s: Unlock of a lost hold: %v", k, err)
			}
			start := time.Now()
			err := p.second.Unlock(t.Context())
			switch {
			case errors.Is(err, lock.ErrUnavailable): // the cluster recovers
				l.unexcused = append(l.unexcused, span{start, time.Now(), err.Error()})
			case err != nil:
				t.Errorf("%s: %v", k, err)
			}
		}
	}
}

// migrate migrates the slot of a lock to another master. Half-way, when each master has some of the keys, work continues.
func (l *clusterLoad) migrate(random *rand.Rand) {
	l.t.Helper()
	name := l.names[random.IntN(len(l.names))]
	from := l.cluster.Master(l.t, name)
	m := l.cluster.Migrate(l.t, l.cluster.Slot(l.t, name), from, another(l.t, l.cluster, from))
	keys := m.Keys(l.t)
	m.Move(l.t, keys[:len(keys)/2]...)
	l.goesOn()
	m.Finish(l.t)
}

// Masters die under load. Replication is asynchronous, so a lock granted just before a failover can be lost and granted
// again; here, four are lost each time. Their holders are notified in time, all others keep their locks, and all
// waiters continue. LEASEHOLD_FAILOVERS is the number of failovers.
func TestCluster_failovers(t *testing.T) {
	eachPubSub(t, func(t *testing.T, p client.PubSub) {
		t.Parallel()
		l := startClusterLoad(t, redistest.StartCluster(t), p)
		random := rand.New(rand.NewPCG(seed(t), 1))
		overlaps := 0
		for range failovers(t) {
			l.goesOn()
			l.failover(random, func(dies *redistest.Server) func() { return l.forgets(dies, &overlaps) })
		}
		l.goesOn()
		l.end(fmt.Sprintf("%d primaries were killed", failovers(t)))
		t.Logf("of %d locks that the replica never received, %d had two owners for a time", 4*failovers(t), overlaps)
		if overlaps == 0 {
			t.Error("no lock had two owners: the test shows nothing")
		}
	})
}

// Slots are migrated under load: no lock is lost. While each of the two masters has some of a lock's keys, all calls
// for that lock wait, and an Unlock may time out. A plain lock has only one key, so its owners are unaffected.
func TestCluster_migrations(t *testing.T) {
	eachPubSub(t, func(t *testing.T, p client.PubSub) {
		t.Parallel()
		l := startClusterLoad(t, redistest.StartCluster(t), p)
		l.mu.Lock()
		l.alive = true
		l.mu.Unlock()
		random := rand.New(rand.NewPCG(seed(t), 1))
		for range 2 * failovers(t) {
			l.goesOn()
			l.migrate(random)
		}
		l.goesOn()
		l.end(fmt.Sprintf("%d slots were migrated", 2*failovers(t)))
		if l.overlaps > 0 || l.lost > 0 {
			t.Error("locks were lost in a slot migration")
		}
	})
}

// All faults together, for the duration of LEASEHOLD_SOAK, or for a few seconds.
func TestCluster_soak(t *testing.T) {
	took := 5 * time.Second
	if given := os.Getenv("LEASEHOLD_SOAK"); given != "" {
		var err error
		if took, err = time.ParseDuration(given); err != nil {
			t.Fatalf("LEASEHOLD_SOAK: %v", err)
		}
	}
	t.Parallel()
	l := startClusterLoad(t, redistest.StartCluster(t), client.PubSubAuto)
	random := rand.New(rand.NewPCG(seed(t), 1))
	failovers, migrations := 0, 0
	for end := time.Now().Add(took); time.Now().Before(end); {
		if random.IntN(4) == 0 {
			l.failover(random, func(*redistest.Server) func() { return func() {} })
			failovers++
		} else {
			l.migrate(random)
			migrations++
		}
	}
	l.end(fmt.Sprintf("%d primaries were killed, %d slots were migrated", failovers, migrations))
}

// While a slot is migrated, each master has some of the keys of a lock, and could treat the others as missing: a reader
// whose lease is elsewhere as dead, or a queue as empty. No script may decide anything then, whichever key has moved.
//
//	1 a reader holds the lock, and a writer waits
//	2 some of the keys move; the reader renews
//	3 no other owner enters, and the reader is not notified of a loss
//	4 the other keys follow: work continues as before
func TestCluster_halfOfALock(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	const lease = 6 * time.Second
	at := client.WithWatchdogTimeout(lease)
	reader, writer := ours(t, c.Client(t), at), ours(t, c.Client(t), at)
	other := ours(t, c.Client(t), at, client.WithOpTimeout(300*time.Millisecond)) // it is rejected for this long
	for what, moves := range map[string]func(key string) bool{
		"the hash":               func(key string) bool { return key == name },
		"the lease":              func(key string) bool { return strings.Contains(key, "rwlock_timeout") },
		"the hash and the wish":  func(key string) bool { return !strings.Contains(key, "rwlock_timeout") },
		"the lease and the wish": func(key string) bool { return key != name },
	} {
		t.Run(what, func(t *testing.T) {
			h, err := reader.NewRWLock(name).Read().Lock(t.Context()) // 1
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan handedOff, 1)
			go func() {
				h, err := writer.NewRWLock(name).Write().Lock(t.Context())
				got <- handedOff{h, err, time.Now()}
			}()
			from := c.Master(t, name)
			until(t, func() bool { return keys(t, from) == 3 })
			m := c.Migrate(t, c.Slot(t, name), from, another(t, c, from)) // 2
			for _, key := range m.Keys(t) {
				if moves(key) {
					m.Move(t, key)
				}
			}
			if _, err := other.NewRWLock(name).Write().TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) { // 3: TRYAGAIN, until the operation times out
				t.Errorf("a writer: %v, want %v", err, lock.ErrUnavailable)
			}
			select {
			case <-time.After(lease/3 + time.Second): // a renewal
			case <-got:
				t.Error("a writer was admitted")
			case <-h.Context().Done():
				t.Errorf("the reader was notified: %v", context.Cause(h.Context()))
			}
			m.Finish(t) // 4
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			select {
			case w := <-got:
				if w.err != nil {
					t.Fatal(w.err)
				}
				if err := w.hold.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			case <-time.After(promptTimeout):
				t.Fatal("the writer is stuck")
			}
		})
	}
}
