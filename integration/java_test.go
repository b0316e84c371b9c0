//go:build linux

package integration_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// Redisson and leasehold share locks. Each test has a Java process and Go clients on one server, most of them also on a
// cluster, and checks a lock from both sides.
//
//	this file         what all types have in common
//	java_share_test   a lock that is never free, and which side acquires it
//	java_fair_test    queues with waiters of both
//	java_rw_test      readers and writers of both
//	java_bugs_test    bugs of Redisson, to detect when they change
//	java_soak_test    both at once, for any duration
//
// javaScene has one client of each side. Leases are a minute: a waiter that is not woken sleeps for longer than any
// test waits.
type javaScene struct {
	*testing.T
	*javaSite
	rdb  rueidis.Client
	c    *client.Client
	java *redisson
}

const javaLease = time.Minute

func newJavaScene(t *testing.T, at *javaSite) *javaScene {
	return newJavaSceneWith(t, at, javaLease)
}

// newJavaSceneWith makes a scene with other leases, on both sides.
func newJavaSceneWith(t *testing.T, at *javaSite, lease time.Duration) *javaScene {
	t.Helper()
	j := sharedJava(t)
	rdb := at.client(t)
	return &javaScene{T: t, javaSite: at, rdb: rdb,
		c:    ours(t, rdb, client.WithWatchdogTimeout(lease), client.WithPubSub(at.pubsub)),
		java: j.open(t, at.options(javaOptions{Watchdog: lease.Milliseconds()})),
	}
}

// javaSite is the deployment that both sides use: one server, or a cluster.
type javaSite struct {
	nodes   []*redistest.Server
	cluster *redistest.Cluster // nil if it is one server
	pubsub  client.PubSub      // how both sides wake each other
}

func oneServer(t *testing.T) *javaSite {
	needJava(t)
	return &javaSite{nodes: []*redistest.Server{redistest.Start(t)}}
}

func aCluster(t *testing.T, p client.PubSub) *javaSite {
	needJava(t)
	c := redistest.StartCluster(t)
	return &javaSite{nodes: c.Nodes, cluster: c, pubsub: p}
}

// eachJavaSite runs a test on one server and on a cluster.
func eachJavaSite(t *testing.T, test func(*testing.T, *javaSite)) {
	t.Helper()
	t.Run("one server", func(t *testing.T) { test(t, oneServer(t)) })
	t.Run("cluster", func(t *testing.T) { test(t, aCluster(t, client.PubSubSharded)) })
}

// client makes one of our clients.
func (at *javaSite) client(t *testing.T) rueidis.Client {
	t.Helper()
	if at.cluster != nil {
		return at.cluster.Client(t)
	}
	return at.nodes[0].Client(t)
}

// addr returns the address for a worker.
func (at *javaSite) addr() string { return at.nodes[0].Addr() }

// options returns o with the addresses and the mode for a client of Redisson.
func (at *javaSite) options(o javaOptions) javaOptions {
	for _, n := range at.nodes {
		o.Addresses = append(o.Addresses, n.Addr())
	}
	if at.cluster != nil {
		o.Sharded = map[client.PubSub]string{client.PubSubAuto: "AUTO", client.PubSubPlain: "OFF", client.PubSubSharded: "ON"}[at.pubsub]
	}
	return o
}

// scripts returns the number of script calls.
func (at *javaSite) scripts(t *testing.T) (calls int64) {
	t.Helper()
	for _, n := range at.nodes {
		calls += n.CommandCalls(t, "evalsha")
	}
	return calls
}

func (s *javaScene) unlock(holds ...lock.Hold) {
	s.Helper()
	for _, h := range holds {
		if err := h.Unlock(s.Context()); err != nil {
			s.Error(err)
		}
	}
}

// get acquires a lock that must be free.
func (s *javaScene) get(k kind, name string, options ...lock.Option) lock.Hold {
	s.Helper()
	h, err := goLock(s.c, k, name, options...).TryLock(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return h
}

// goMay checks whether Go can acquire a lock now.
func (s *javaScene) goMay(k kind, name string, may bool) {
	s.Helper()
	h, err := goLock(s.c, k, name).TryLock(s.Context())
	switch {
	case err == nil:
		s.unlock(h)
		if !may {
			s.Errorf("%s lock %q: Go acquires it, too", k, name)
		}
	case may || !errors.Is(err, lock.ErrNotAcquired):
		s.Errorf("%s lock %q: Go's TryLock: %v", k, name, err)
	}
}

// javaMay checks whether an otherwise unused thread of Java can.
func (s *javaScene) javaMay(k kind, name string, may bool) {
	s.Helper()
	l := s.java.lock("somebody", k, name)
	got := l.try(s)
	if got {
		l.unlock(s)
	}
	if got != may {
		s.Errorf("%s lock %q: Java acquires it: %v", k, name, got)
	}
}

// javaNext returns the name of a key or channel of a lock of any name, by the rule of Redisson's
// prefixName.
func javaNext(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// javaChannel returns the channel of the waiters for a lock of any name.
func javaChannel(k kind, name string) string {
	if k == read || k == write {
		return javaNext("redisson_rwlock", name)
	}
	return javaNext("redisson_lock__channel", name)
}

// waiter is the result of a call of Lock in flight.
type waiter struct {
	returned int64 // by monotonic
	hold     lock.Hold
	err      error
}

// wait makes Go wait for a lock, and returns when the waiter is subscribed.
func (s *javaScene) wait(k kind, name string, options ...lock.Option) <-chan waiter {
	s.Helper()
	got := make(chan waiter, 1)
	go func() {
		h, err := goLock(s.c, k, name, options...).Lock(s.Context())
		got <- waiter{monotonic(), h, err}
	}()
	if k == fair {
		until(s.T, func() bool { // our waiters subscribe to the client's channel, Redisson's to the owner's
			last, err := do(s.T, s.rdb, "LINDEX", javaNext("redisson_lock_queue", name), "-1").ToString()
			client, _, _ := strings.Cut(last, ":")
			return err == nil && s.listeners(javaChannel(k, name)+":"+client+":fair") > 0
		})
		return got
	}
	s.listens(javaChannel(k, name))
	return got
}

// listens waits until a channel has a subscriber.
func (s *javaScene) listens(channel string) {
	s.Helper()
	until(s.T, func() bool { return s.listeners(channel) > 0 })
}

// listeners returns the number of subscribers of a channel.
func (s *javaScene) listeners(channel string) (sum int64) {
	s.Helper()
	for _, node := range s.nodes {
		for _, command := range []string{"NUMSUB", "SHARDNUMSUB"} {
			reply := node.Do(s, "PUBSUB", command, channel)
			n, err := reply.AsIntMap()
			if err != nil {
				s.Fatal(err)
			}
			sum += n[channel]
		}
	}
	return sum
}

// granted waits until Go has the lock.
func (s *javaScene) granted(got <-chan waiter) waiter {
	s.Helper()
	w := soon(s.T, got)
	if w.err != nil {
		s.Fatal(w.err)
	}
	return w
}

// empty waits until Redis has no keys, because Java deletes a key in the background after unlock. Keys that are kept by
// design may remain.
func (s *javaScene) empty() {
	s.Helper()
	var left []string
	deadline := time.Now().Add(promptTimeout)
	for {
		left = nil
		for _, node := range s.nodes {
			left = append(left, slices.DeleteFunc(node.LockKeys(s), func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token:") })...)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.Errorf("keys are left: %q", left)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// The driver replies to every command. A Java process that crashed because of a bug would look like one that was
// killed.
func TestJava_driver(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	j := s.java.java
	for _, test := range []struct {
		request   javaRequest
		exception string
	}{
		{javaRequest{Do: "dance"}, "IllegalArgumentException"},
		{javaRequest{Do: "close", Client: "nobody"}, "IllegalArgumentException"},
		{javaRequest{Do: "lock", Thread: "thread"}, "IllegalArgumentException"},
		{javaRequest{Do: "lock", Client: s.java.name, Thread: "thread", Kind: "odd", Name: "x"}, "IllegalArgumentException"},
		{javaRequest{Do: "dance", Client: s.java.name, Thread: "thread", Kind: plain, Name: "x"}, "IllegalArgumentException"},
		{javaRequest{Do: "getToken", Client: s.java.name, Thread: "thread", Kind: plain, Name: "x"}, "ClassCastException"},
		{javaRequest{Do: "unlock", Client: s.java.name, Thread: "thread", Kind: plain, Name: "x"}, "IllegalMonitorStateException"},
		{javaRequest{Do: "lock", Client: s.java.name, Thread: "thread", Kind: plain}, "NullPointerException"},
		{javaRequest{Do: "open", Client: "new"}, "NullPointerException"},
		{javaRequest{}, "IllegalArgumentException"},
	} {
		javaFails(t, j.send(t, test.request), test.exception)
	}
	s.javaMay(plain, "x", true)
	s.empty()
}

// Neither side acquires a lock that the other one holds. For each type, once with a holder in Go and once in Java: no
// other owner of either side can acquire it, and both sides see that it is held; after the unlock, both can.
func TestJava_excludes(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		other := ours(t, s.client(t))
		for _, k := range javaKinds {
			name := string(k)
			rival := k.rival()
			sees := func(held bool) {
				t.Helper()
				state, err := k.inspect(t.Context(), other, name)
				if err != nil || state.Locked() != held {
					t.Errorf("%s: Go sees %+v (%v), want held: %v", k, state, err, held)
				}
				if got := s.java.lock("looks", k, name).locked(t); got != held {
					t.Errorf("%s: Java's isLocked: got %v, want %v", k, got, held)
				}
				s.javaMay(rival, name, !held)
				s.goMay(rival, name, !held)
				switch k {
				case read: // readers share
					s.javaMay(read, name, true)
					s.goMay(read, name, true)
				case write:
					s.javaMay(read, name, !held)
					s.goMay(read, name, !held)
					if s.java.lock("looks", read, name).locked(t) {
						t.Errorf("only a writer, but Java reports a reader")
					}
				}
			}
			sees(false)
			h := s.get(k, name)
			sees(true)
			s.unlock(h)
			sees(false)
			l := s.java.lock("holder", k, name)
			l.get(t)
			sees(true)
			if k == plain || k == fenced {
				javaFails(t, s.java.lock("stranger", k, name).begin(t, "unlock"), "IllegalMonitorStateException")
				sees(true)
			}
			l.unlock(t)
			sees(false)
		}
		s.empty()
	})
}

// Both sides count reentries in the same way. Each side enters three times, and leaves three times, while the other one
// checks; and both see the same remaining lease.
func TestJava_reentry(t *testing.T) {
	t.Parallel()
	const times = 3
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		for _, k := range javaKinds {
			name := string(k)
			stands := func(owner string, count int, l *javaLock) {
				t.Helper()
				state, err := k.inspect(t.Context(), s.c, name)
				if err != nil || state.HoldCount(owner) != count || state.Locked() != (count > 0) {
					t.Errorf("%s: %s should hold it %d times, and Go sees %+v (%v)", k, owner, count, state, err)
				}
				fields, err := do(t, s.rdb, "HGETALL", name).AsStrMap()
				if want := map[bool]string{true: fmt.Sprint(count)}[count > 0]; err != nil || fields[k.field(owner)] != want {
					t.Errorf("%s: %s should hold it %d times, and Redis has %v (%v)", k, owner, count, fields, err)
				}
				if l.locked(t) != (count > 0) {
					t.Errorf("%s: %d holds, but Java reports another number", k, count)
				}
				if left := l.left(t); count > 0 && (left <= 0 || left > times*javaLease) || count == 0 && left != -2*time.Millisecond {
					t.Errorf("%s: with %d holds, Java sees %v left of the lease", k, count, left)
				}
				mine := 0
				if owner == l.call(t, "isLocked").Owner {
					mine = count
				}
				if got := l.holds(t); got != mine {
					t.Errorf("%s: Java reports %d own holds, want %d", k, got, mine)
				}
				if held := result[bool](t, l.call(t, "isHeldByCurrentThread")); held != (mine > 0) {
					t.Errorf("%s: with %d holds, Java reports that the thread holds it: %v", k, mine, held)
				}
			}

			l := s.java.lock("thread", k, name)
			var owner string
			for i := range times {
				owner = l.get(t)
				stands(owner, i+1, l)
			}
			for i := range times {
				l.unlock(t)
				stands(owner, times-i-1, l)
			}
			javaFails(t, l.begin(t, "unlock", func(r *javaRequest) {
				if k == fair {
					r.Kind = plain // see TestJavaBug_strangersFairUnlock
				}
			}), "IllegalMonitorStateException")

			ctx := lock.ContextWithNewOwner(t.Context())
			var holds []lock.Hold
			for i := range times {
				h, err := goLock(s.c, k, name).Lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				holds = append(holds, h)
				stands(h.Owner(), i+1, l)
			}
			for i, h := range holds {
				s.unlock(h)
				stands(h.Owner(), times-i-1, l)
			}
		}
		s.empty()
	})
}

// javaPairs are the types of a holder and of a waiter for the same lock.
var javaPairs = [][2]kind{{plain, plain}, {fair, fair}, {fenced, fenced}, {write, write}, {write, read}, {read, write}}

// An unlock wakes a waiter of the other side. There is no other client, and the leases are a minute: a Java waiter that
// is not woken sleeps for all of it, and one of our waiters for a poll interval of a second.
//
//	1 Go holds, Java waits; Go unlocks, and Java has it soon
//	2 Java holds, Go waits; Java unlocks, and Go has it soon, at least every other time
func TestJava_wakes(t *testing.T) {
	wakes := func(t *testing.T, at *javaSite) {
		rounds := amount(20)
		s := newJavaScene(t, at)
		var toJava, toGo []time.Duration
		for _, pair := range javaPairs {
			name := string(pair[0] + " " + pair[1])
			var slow []time.Duration
			for range rounds {
				h := s.get(pair[0], name) // 1
				l := s.java.lock("waiter", pair[1], name)
				answer := l.parks(t)
				start := monotonic()
				s.unlock(h)
				d := value[did](t, must(t, receiveWithin(t, answer, javaLease/4)))
				toJava = append(toJava, time.Duration(d.Returned-start))
				l.unlock(t)

				l = s.java.lock("holder", pair[0], name) // 2
				l.get(t)
				got := s.wait(pair[1], name)
				start = l.unlock(t).Called
				w := s.granted(got)
				slow = append(slow, time.Duration(w.returned-start))
				s.unlock(w.hold)
			}
			if m := median(slow); m > poll/2 {
				t.Errorf("Java held as %s, Go waited as %s: the median until Go had it was %v, so it was not woken", pair[0], pair[1], m)
			}
			toGo = append(toGo, slow...)
		}
		s.empty()
		t.Logf("%d unlocks in Go: Java acquired the lock after %s; %d unlocks in Java: Go acquired it after %s", len(toJava), spread(toJava), len(toGo), spread(toGo))
	}
	eachJavaSite(t, wakes)
	t.Run("cluster, plain Pub/Sub", func(t *testing.T) { wakes(t, aCluster(t, client.PubSubPlain)) })
}

// spread returns the distribution of durations.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "never"
	}
	d = slices.Clone(d)
	slices.Sort(d)
	return fmt.Sprintf("p50 %v, p99 %v, max %v", d[len(d)/2].Round(10*time.Microsecond), d[len(d)*99/100].Round(10*time.Microsecond), d[len(d)-1].Round(10*time.Microsecond))
}

// Both watchdogs renew their own locks at the same time, even where both sides read one lock. The holds last for three
// watchdog timeouts. No other owner acquires any of the locks, and no lease comes close to expiring.
func TestJava_watchdogs(t *testing.T) {
	t.Parallel()
	const dog = 4 * time.Second
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaSceneWith(t, at, dog)
		var holds []lock.Hold
		var locks []*javaLock
		keys := make(map[string]bool)
		for _, k := range javaKinds {
			h := s.get(k, "go "+string(k))
			holds = append(holds, h)
			keys[k.lease("go "+string(k), h.Owner())] = true
			l := s.java.lock("holder", k, "java "+string(k))
			keys[k.lease(l.lock, l.get(t))] = true
			locks = append(locks, l)
		}
		both := s.get(read, "both")
		keys[read.lease("both", both.Owner())] = true
		l := s.java.lock("holder", read, "both")
		keys[read.lease("both", l.get(t))] = true
		holds, locks = append(holds, both), append(locks, l)

		least := dog
		for start := time.Now(); time.Since(start) < 3*dog && !t.Failed(); {
			for key := range keys {
				ms, err := do(t, s.rdb, "PTTL", key).AsInt64()
				if err != nil {
					t.Fatal(err)
				}
				least = min(least, time.Duration(ms)*time.Millisecond)
				if ms <= 0 {
					t.Errorf("the lease of %q ran out", key)
				}
			}
			for _, k := range javaKinds {
				s.goMay(k.rival(), "java "+string(k), false)
				s.javaMay(k.rival(), "go "+string(k), false)
			}
			s.goMay(write, "both", false)
			s.javaMay(write, "both", false)
		}
		for _, l := range locks {
			if n := l.holds(t); n != 1 {
				t.Errorf("%q: Java holds it %d times", l.lock, n)
			}
			l.unlock(t)
		}
		s.unlock(holds...)
		s.empty()
		t.Logf("with a watchdog timeout of %v on both sides, at least %v of each lease remained", dog, least)
	})
}

// A killed Java process delays ours for at most its leases.
//
//	1 a Java process holds a lock of each type; Go waits for each
//	2 it is killed
//	3 Go acquires each, not before its lease expires, and soon after
//	4 nothing is left
func TestJava_killed(t *testing.T) {
	t.Parallel()
	const dog = 9 * time.Second
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaSceneWith(t, at, dog)
		doomed := startJava(t).open(t, s.options(javaOptions{Watchdog: dog.Milliseconds()}))
		var waiting []<-chan waiter
		var keys []string
		for _, k := range javaKinds { // 1
			l := doomed.lock("holder", k, string(k))
			keys = append(keys, k.lease(l.lock, l.get(t)))
			waiting = append(waiting, s.wait(k.rival(), l.lock))
		}
		doomed.java.kill() // 2
		ends := make([]int64, len(keys))
		for i, key := range keys {
			asked := monotonic()
			left, err := do(t, s.rdb, "PTTL", key).AsInt64()
			if err != nil || left <= 0 {
				t.Fatalf("%q has %d ms left (%v)", key, left, err)
			}
			ends[i] = asked + left*int64(time.Millisecond)
		}
		var after []time.Duration
		for i, got := range waiting { // 3
			w := s.granted(got)
			late := time.Duration(w.returned - ends[i])
			if late < -5*time.Millisecond { // the server's clock has ms resolution
				t.Errorf("%q: Go acquired it %v before the end of the dead one's lease", keys[i], -late)
			}
			if late > poll+10*time.Second {
				t.Errorf("%q: Go acquired it %v after the end of the dead one's lease", keys[i], late)
			}
			after = append(after, late)
			s.unlock(w.hold)
		}
		s.empty() // 4
		t.Logf("Go acquired the locks of a dead Java process %v after their leases expired", after)
	})
}

// The same for a killed process of ours.
//
//	1 a Go process holds a lock of each type, and a thread of Java waits for each
//	2 it is killed
//	3 Java acquires each, not before its lease expires, and soon after
//	4 nothing is left
func TestJava_weAreKilled(t *testing.T) {
	t.Parallel()
	const dog = 9 * time.Second
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		doomed := startWorker(t)
		doomed.do(t, request{Do: "open", Addr: s.addr(), Dog: dog})
		var waiting []<-chan reply
		var keys []string
		for _, k := range javaKinds { // 1
			name := string(k)
			g := value[granted](t, doomed.do(t, request{Do: "lock", Kind: k, Name: name}))
			keys = append(keys, k.lease(name, g.Op.Owner))
			l := s.java.lock("waits for "+name, k.rival(), name)
			waiting = append(waiting, l.parks(t))
		}
		doomed.kill() // 2
		ends := make([]int64, len(keys))
		for i, key := range keys {
			asked := monotonic()
			left, err := do(t, s.rdb, "PTTL", key).AsInt64()
			if err != nil || left <= 0 {
				t.Fatalf("%q has %d ms left (%v)", key, left, err)
			}
			ends[i] = asked + left*int64(time.Millisecond)
		}
		var after []time.Duration
		for i, answer := range waiting { // 3
			k := javaKinds[i]
			d := value[did](t, must(t, receive(t, answer)))
			late := time.Duration(d.Returned - ends[i])
			if late < -5*time.Millisecond {
				t.Errorf("%q: Java acquired it %v before the end of the dead one's lease", keys[i], -late)
			}
			if late > dog+10*time.Second { // it sleeps for the whole lease in its reply
				t.Errorf("%q: Java acquired it %v after the end of the dead one's lease", keys[i], late)
			}
			after = append(after, late)
			s.java.lock("waits for "+string(k), k.rival(), string(k)).unlock(t)
		}
		s.empty() // 4
		t.Logf("Java acquired the locks of a dead Go process %v after their leases expired", after)
	})
}

// ForceUnlock reaches the other side. For each type: the holder's side is notified, as far as it can be, and a waiter of
// either side acquires the lock; a waiter of Java would otherwise sleep for a minute.
func TestJava_force(t *testing.T) {
	t.Parallel()
	const dog = 9 * time.Second
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		for _, k := range javaKinds {
			t.Run(string(k), func(t *testing.T) {
				s := newJavaScene(t, at)
				s.c = ours(t, s.rdb, client.WithWatchdogTimeout(dog))
				name := string(k)
				force := func() (bool, error) { return k.force(t.Context(), s.c, name) }
				if forced, err := force(); err != nil || forced {
					t.Errorf("Go forces a free lock: %v, %v", forced, err)
				}
				if result[bool](t, s.java.lock("operator", k, name).call(t, "forceUnlock")) {
					t.Error("Java force-unlocks a free lock, and reports that it was held")
				}

				l := s.java.lock("holder", k, name) // Java holds, Go forces, and Go waits
				l.get(t)
				got := s.wait(k.rival(), name)
				if forced, err := force(); err != nil || !forced {
					t.Errorf("Go forces what Java holds: %v, %v", forced, err)
				}
				w := s.granted(got)
				javaFails(t, l.begin(t, "unlock"), "IllegalMonitorStateException")
				if err := w.hold.Err(); err != nil {
					t.Errorf("after Java's unlock of what it had lost: %v", err)
				}
				s.unlock(w.hold)

				l.get(t) // Java holds, Go forces, and Java waits
				waiter := s.java.lock("waiter", k.rival(), name)
				answer := waiter.parks(t)
				if forced, err := force(); err != nil || !forced {
					t.Errorf("Go forces what Java holds: %v, %v", forced, err)
				}
				must(t, receiveWithin(t, answer, javaLease/4))
				waiter.unlock(t)

				h := s.get(k, name) // Go holds, Java forces, and both wait
				got = s.wait(k.rival(), name)
				answer = waiter.parks(t)
				if !result[bool](t, s.java.lock("operator", k, name).call(t, "forceUnlock")) {
					t.Error("Java force-unlocks Go's lock, and reports that it was free")
				}
				for range 2 {
					select {
					case w := <-got:
						if w.err != nil {
							t.Fatal(w.err)
						}
						s.unlock(w.hold)
					case r := <-answer:
						must(t, r)
						waiter.unlock(t)
					case <-time.After(promptTimeout):
						t.Fatal("a lock that Java force-unlocked is not free")
					}
				}
				soon(t, h.Context().Done())
				if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
					t.Errorf("unlocking what Java has forced: %v", err)
				}
				s.empty()
			})
		}
	})
}

// Both sides derive the same keys and channels from a name, whatever the name is. For each type, one side holds, and
// the other does not acquire the lock, waits, and is woken.
func TestJava_names(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		for _, name := range []string{
			":", "a:b", "{tag}", "a{tag}b", "{tag}:{other}", "grüße 日本 🔒", " ", "two  words ", "line\nbreak", "tab\tand\x00null",
			`quotes "'\`, "%s%d", "*?[a-z]", "$1.00", "0", "mode", "redisson_lock__channel:{x}",
		} {
			t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
				s := *s
				s.T = t
				for _, pair := range [][2]kind{{plain, plain}, {fair, fair}, {write, read}, {read, write}, {fenced, fenced}} {
					h := s.get(pair[0], name)
					s.javaMay(pair[1], name, false)
					l := s.java.lock("waiter", pair[1], name)
					answer := l.parks(t)
					s.unlock(h)
					must(t, receiveWithin(t, answer, javaLease/4))
					s.goMay(pair[0], name, false)
					l.unlock(t)

					l = s.java.lock("holder", pair[0], name)
					l.get(t)
					got := s.wait(pair[1], name)
					l.unlock(t)
					s.unlock(s.granted(got).hold)
				}
			})
		}
		s.empty()
	})
}

// The tokens of Java's fenced lock and of our fenced lock form one increasing sequence. The sides take turns; Java
// re-enters occasionally, and increments the token then. The counter is ahead of Go's token by the number of tokens
// that Go can assign without a command, and Java continues from there.
func TestJava_fencing(t *testing.T) {
	t.Parallel()
	const ahead = 64
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		l := s.java.lock("thread", fenced, "fenced")
		var last uint64
		grows := func(who string, token uint64) {
			t.Helper()
			if token <= last {
				t.Errorf("%s got token %d after %d", who, token, last)
			}
			last = token
		}
		for round := range amount(100) {
			switch round % 4 {
			case 0, 1:
				h := s.get(fenced, "fenced")
				grows("Go", h.Token())
				register := result[uint64](t, l.call(t, "getToken"))
				if register < h.Token() || register-h.Token() > ahead {
					t.Errorf("Go got token %d, and Java reads %d", h.Token(), register)
				}
				last = register
				s.unlock(h)
			case 2:
				grows("Java", result[uint64](t, l.call(t, "lockAndGetToken")))
				grows("Java, again,", result[uint64](t, l.call(t, "tryLockAndGetToken", within(time.Second))))
				s.goMay(fenced, "fenced", false)
				l.unlock(t)
				l.unlock(t)
			case 3:
				l.get(t)
				grows("Java, without asking for it,", result[uint64](t, l.call(t, "getToken")))
				if !result[bool](t, l.call(t, "isHeldByCurrentThread")) {
					t.Error("Java does not hold what it has locked")
				}
				l.unlock(t)
			}
		}
		// Java waits for a lock, with the token.
		h := s.get(fenced, "fenced")
		answer := l.begin(t, "lockAndGetToken")
		s.listens(javaChannel(fenced, "fenced"))
		grows("Go", h.Token())
		s.unlock(h)
		grows("Java, which waited,", result[uint64](t, value[did](t, must(t, receiveWithin(t, answer, javaLease/4)))))
		l.unlock(t)
		s.empty()
	})
}
