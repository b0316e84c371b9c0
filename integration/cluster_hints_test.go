//go:build linux

package integration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// oddNames have a hash tag in every allowed form, or need quoting somewhere.
var oddNames = []string{
	"orders", "orders:42", "{user:1}:cart", "cart:{user:2}", "a{b}c{d}", "{{x}}", "{a}{b}", "x{y}}", "{z}}{",
	"{with a space}", "käse{ß}", "tab\t{\"quoted\"}", "new\nline", "{*}?[a-z]", "a:b:{c:d}:e",
}

// listeners counts the subscriptions to each of channels that a message would reach.
func listeners(t *testing.T, c *redistest.Cluster, p client.PubSub, channels []string) map[string]int64 {
	t.Helper()
	all := make(map[string]int64)
	count := func(node *redistest.Server, command string, channels ...string) {
		reply := node.Do(t, append([]string{"PUBSUB", command}, channels...)...)
		args, err := reply.ToArray()
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(args); i += 2 {
			name, _ := args[i].ToString()
			n, _ := args[i+1].ToInt64()
			all[name] += n
		}
	}
	if p == client.PubSubPlain {
		for _, n := range c.Nodes {
			if n.Pid() != 0 {
				count(n, "NUMSUB", channels...)
			}
		}
		return all
	}
	for _, channel := range channels {
		master := c.Master(t, channel)
		count(master, "SHARDNUMSUB", channel)
		if replica := c.Replica(t, master); replica.Pid() != 0 {
			count(replica, "SHARDNUMSUB", channel)
		}
	}
	return all
}

// waitersOf has the waiters of TestCluster_notifications: one for each name.
type waitersOf struct {
	holds    []lock.Hold      // the locks that they wait for
	got      []chan handedOff // one for each waiter
	channels []string         // the channels to which they subscribe
}

type handedOff struct {
	hold lock.Hold
	err  error
	at   time.Time
}

// wait makes one client acquire a plain lock of each name, and another wait for them.
func wait(t *testing.T, holder, waiter *client.Client, names []string) *waitersOf {
	t.Helper()
	var c waitersOf
	for _, name := range names {
		h, err := holder.NewLock(name).Lock(t.Context())
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		got := make(chan handedOff, 1)
		go func() {
			h, err := waiter.NewLock(name).Lock(t.Context())
			got <- handedOff{h, err, time.Now()}
		}()
		channel := plain.channel(name)
		if strings.Contains(name, "{") {
			channel = "redisson_lock__channel:" + name
		}
		c.holds, c.got, c.channels = append(c.holds, h), append(c.got, got), append(c.channels, channel)
	}
	return &c
}

// pass releases the locks one by one, and returns how long it took until all waiters had acquired them.
func (c *waitersOf) pass(t *testing.T) (took time.Duration) {
	t.Helper()
	for i, h := range c.holds {
		released := time.Now()
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		select {
		case r := <-c.got[i]:
			if r.err != nil {
				t.Fatal(r.err)
			}
			took += r.at.Sub(released)
			if err := r.hold.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		case <-time.After(promptTimeout):
			t.Fatalf("%s: no waiter continued", c.channels[i])
		}
	}
	return took
}

// Waiters are notified of a release, whatever the name, and again after each change of a cluster. The test compares them
// with waiters that receive nothing because the release is published with the other type of Pub/Sub: those acquire the lock
// by polling.
//
//	1 nothing has happened
//	2 slots were migrated to another master while they waited
//	3 a master died, and its replica has taken over
//	4 it came back as a replica, and died again
//	5 a replica became master while the old one lived
func TestCluster_notifications(t *testing.T) {
	t.Parallel()
	eachPubSub(t, func(t *testing.T, p client.PubSub) {
		t.Parallel()
		c := redistest.StartCluster(t)
		refreshed := func(o *rueidis.ClientOption) { o.ClusterOption.ShardsRefreshInterval = time.Second }
		other := client.PubSubPlain + client.PubSubSharded - p
		// Leases outlive the failovers, so that the locks are there to be released.
		options := []client.Option{client.WithWatchdogTimeout(time.Minute), client.WithOpTimeout(2 * time.Second)}
		holder := ours(t, c.Client(t, refreshed), append(options, client.WithPubSub(p))...)
		waiter := ours(t, c.Client(t, refreshed), append(options, client.WithPubSub(p))...)
		withoutMessages := ours(t, c.Client(t, refreshed), append(options, client.WithPubSub(other))...)

		var received, notReceived time.Duration
		var channels []string
		for _, step := range []struct {
			when    string
			happens func()
		}{
			{"1 nothing", func() {}},
			{"2 migration", func() {
				for _, name := range oddNames {
					from := c.Master(t, name)
					c.Migrate(t, c.Slot(t, name), from, another(t, c, from)).Finish(t)
				}
			}},
			{"3 failover", func() {
				dead := c.Master(t, oddNames[0])
				c.WaitForReplica(t, dead) // so that no lock is lost
				c.Failover(t, dead)
				c.Rejoin(t, dead)
			}},
			{"4 another failover of the same", func() {
				dead := c.Master(t, oddNames[0])
				c.WaitForReplica(t, dead) // so that no lock is lost
				c.Failover(t, dead)
				c.Rejoin(t, dead)
			}},
			{"5 a replica takes over", func() {
				c.TakeOver(t, c.Replica(t, c.Master(t, oddNames[0])))
			}},
		} {
			crowd := wait(t, holder, waiter, oddNames)
			channels = crowd.channels
			listening := func() bool {
				for _, n := range listeners(t, c, p, channels) {
					if n != 1 {
						return false
					}
				}
				return true
			}
			until(t, listening)
			step.happens()
			until(t, listening)
			took := crowd.pass(t)
			t.Logf("%s: %d waiters acquired the lock %v after the release on average", step.when, len(oddNames), took/time.Duration(len(oddNames)))
			received += took
		}
		until(t, func() bool { // no waiter, no subscription
			for _, n := range listeners(t, c, p, channels) {
				if n != 0 {
					return false
				}
			}
			return true
		})
		notReceived = wait(t, holder, withoutMessages, oddNames).pass(t) * 5 // as many steps as above
		t.Logf("%d waiters without notifications: %v", len(oddNames), notReceived/time.Duration(5*len(oddNames)))
		if received*2 > notReceived {
			t.Errorf("waiters with messages waited for %v, and others for %v: the messages have no effect", received, notReceived)
		}
	})
}

// another returns a different master.
func another(t *testing.T, c *redistest.Cluster, not *redistest.Server) *redistest.Server {
	t.Helper()
	for _, n := range c.Masters(t) {
		if n != not {
			return n
		}
	}
	t.Fatal("there is one master only")
	return nil
}
