// Package pubsub listens to the channels of locks. A notification is only a
// reason to ask: nothing depends on one that is lost.
//
// A [Hub] subscribes each channel that has a listener:
//
//	sub, already := hub.Subscribe("redisson_lock__channel:{orders}",
//		func(message string) { … }, // this was published
//		func() { … })               // the server confirmed the subscription: ask once
//	…
//	sub.CloseSoon()
//
// Messages that are published before the confirmation, or while a connection is
// broken, are lost. The next confirmation makes up for them: it is a reason to ask,
// too. With sharded Pub/Sub a channel is subscribed at the node of its slot, and follows the slot.
package pubsub

import (
	"context"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// Config configures a hub.
type Config struct {
	Timeout time.Duration // how long a subscription may stay unconfirmed
	Look    time.Duration // how often a server is asked whether it is the master, while channels there have listeners
	Sharded bool          // messages go by sharded Pub/Sub; only on a cluster

	// Denied is called with each subscription that the server refuses, if it is not nil. It must
	// not block.
	Denied func(channel string, err error)
}

// Hub subscribes the channels that have listeners. A feed, which is one connection,
// subscribes each of them while it has one. The methods of a Hub
// are safe for concurrent use, and only Close waits for the server.
//
// With plain Pub/Sub there is one feed, as every node of a cluster gets every
// message. With sharded Pub/Sub only the nodes of the shard that has a channel's
// slot hear it, so there is one feed for each node that is needed, and a channel goes
// to another feed when its slot moves (feed.go).
//
// The hooks run in the goroutine that reads the connection, so they only look up a
// map and never wait: a command sent from there could stop it for good.
type Hub struct {
	Config                  // set once
	rdb      rueidis.Client // set once
	anywhere bool           // set once: all servers hear the same messages, and none counts the listeners of the others

	stop context.CancelFunc
	ctx  context.Context // ends with Close
	done sync.WaitGroup

	mu       sync.Mutex
	channels map[string]*channel    // those that have listeners, or linger
	feeds    map[string]*subscriber // by the node's address; plain Pub/Sub has one, at ""
	owners   map[uint16]string      // sharded: the node that has a slot, as far as is known
}

// Linger is how long a channel stays subscribed after the CloseSoon of its last
// listener. A process that waits for a lock often waits again soon.
const Linger = 5 * time.Second

// channel is a channel that has listeners, or lingers. It is guarded by the hub's mu.
type channel struct {
	name      string
	slot      uint16 // sharded
	listeners map[*Subscription]struct{}
	feed      *subscriber   // the feed that subscribes it; nil between two tries
	pause     retry.Backoff // before the next try; reset by a confirmation

	idle *time.Timer // ends the lingering; nil while it has listeners
}

// Subscription is one listener to a channel.
type Subscription struct {
	hub       *Hub
	channel   string
	hint      func(message string)
	confirmed func()
}

// New returns a hub on rdb, and never closes rdb. The hub connects when the first channel gets
// a listener.
func New(rdb rueidis.Client, c Config) *Hub {
	h := &Hub{
		Config:   c,
		rdb:      rdb,
		anywhere: !c.Sharded && rdb.Mode() == rueidis.ClientModeCluster,
		channels: make(map[string]*channel),
		feeds:    make(map[string]*subscriber),
		owners:   make(map[uint16]string),
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Subscribe calls notification with each message that is published to name, and confirmed each
// time that the server confirms a subscription to it: the first time and after each
// break. No message after a confirmation is missed until the next break. Subscribe
// does not wait for the first confirmation. If the channel is subscribed already, for an
// earlier listener, no first confirmation comes. What was published before this call is missed
// then, too.
//
// The two functions must not block. They can be called once more after the end of the
// subscription. The caller ends it by Close or CloseSoon. On a hub that is closed nothing
// is ever heard.
func (h *Hub) Subscribe(name string, hint func(message string), confirmed func()) (sub *Subscription, already bool) {
	s := &Subscription{hub: h, channel: name, hint: hint, confirmed: confirmed}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return s, false
	}
	c := h.channels[name]
	if c == nil {
		c = &channel{name: name, listeners: make(map[*Subscription]struct{}), pause: retry.Backoff{Most: time.Second}}
		if h.Sharded {
			cmd := h.rdb.B().Ssubscribe().Channel(name).Build()
			c.slot = cmd.Slot()
		}
		h.channels[name] = c
		h.route(c, "")
	}
	c.listeners[s] = struct{}{}
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
		if c.feed != nil {
			c.feed.change() // it may have to ask its server for the role again
		}
	}
	return s, c.feed != nil && c.feed.have[name]
}

// Lingers reports whether name is subscribed, or about to be, with a listener or without.
func (h *Hub) Lingers(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.channels[name] != nil
}

// Channels returns how many channels are subscribed, or about to be.
func (h *Hub) Channels() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.channels)
}

// Close ends the subscription. The channel's last one unsubscribes.
func (s *Subscription) Close() { s.end(0) }

// CloseSoon is Close, but after the last listener the channel stays subscribed for Linger.
func (s *Subscription) CloseSoon() { s.end(Linger) }

func (s *Subscription) end(after time.Duration) {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[s.channel]
	if c == nil {
		return // the hub was closed before it began
	}
	delete(c.listeners, s)
	switch {
	case len(c.listeners) > 0:
	case after == 0 || h.ctx.Err() != nil:
		h.unsubscribe(c)
	default:
		c.idle = time.AfterFunc(after, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			if c.idle != nil && h.channels[c.name] == c { // no listener came at the last moment
				h.unsubscribe(c)
			}
		})
	}
}

// unsubscribe removes a channel without listeners, with h.mu held.
func (h *Hub) unsubscribe(c *channel) {
	delete(h.channels, c.name)
	if c.feed != nil {
		c.feed.change()
	}
}

// Close ends all subscriptions on the server, and waits for the feeds. A channel with listeners
// stays in the hub until they have closed their subscriptions.
func (h *Hub) Close() {
	h.mu.Lock()
	h.stop()
	for _, c := range h.channels {
		if c.idle != nil {
			c.idle.Stop()
			h.unsubscribe(c)
		}
	}
	h.mu.Unlock()
	h.done.Wait()
}

// route gives c to the feed of the node that has its slot, with h.mu held. If that node
// is not known, or is the one at not, route takes another node, which will name the right one.
func (h *Hub) route(c *channel, not string) {
	addr := ""
	if h.Sharded {
		addr = h.owners[c.slot]
		if addr == "" || addr == not {
			addr = h.other(not)
		}
	}
	h.hand(c, addr)
}

// other returns a node that is not the one at not, if there is one; it prefers a node with a
// connection.
func (h *Hub) other(not string) string {
	for addr := range h.feeds {
		if addr != not {
			return addr
		}
	}
	for addr := range h.rdb.Nodes() {
		if addr != not {
			return addr
		}
	}
	return not
}

// hand gives c to the feed of the node at addr, with h.mu held.
func (h *Hub) hand(c *channel, addr string) {
	f := h.feeds[addr]
	if f == nil {
		f = &subscriber{hub: h, addr: addr, changed: make(chan struct{}, 1), have: make(map[string]bool)}
		h.feeds[addr] = f
		h.done.Go(f.run)
	}
	c.feed = f
	f.change()
}

// later takes channels from their feed, and routes them anew after a pause, with h.mu
// held. They go together, so that their confirmations come together.
func (h *Hub) later(not string, channels ...*channel) {
	pause := time.Duration(0)
	for _, c := range channels {
		c.feed = nil
		pause = max(pause, c.pause.Next())
	}
	time.AfterFunc(pause, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, c := range channels {
			if h.ctx.Err() == nil && h.channels[c.name] == c {
				h.route(c, not)
			}
		}
	})
}
