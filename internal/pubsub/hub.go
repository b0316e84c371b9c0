// Package pubsub subscribes to the channels of locks. A notification only triggers a request, so
// nothing depends on one that is lost.
//
// A [Hub] subscribes each channel that has a listener:
//
//	sub, already := hub.Subscribe("redisson_lock__channel:{orders}",
//		func(message string) { … }, // this was published
//		func() { … })               // the server confirmed the subscription: send a request
//	…
//	sub.CloseSoon()
//
// Messages published before the confirmation, or while a connection is broken, are lost. The next
// confirmation makes up for them, because it triggers a request, too. With sharded Pub/Sub, a channel
// is subscribed at the node of its slot, and follows the slot when it is migrated.
package pubsub

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// Config configures a hub.
type Config struct {
	Timeout      time.Duration // how long a subscription may stay unconfirmed
	RoleInterval time.Duration // how often the role of a server with listeners is queried, without Check
	Sharded      bool          // use sharded Pub/Sub; only on a cluster

	// Denied, if not nil, is called with each subscription that the server rejects. It must not
	// block.
	Denied func(channel string, err error)
}

// Hub subscribes the channels that have listeners. Its methods are safe for concurrent use, and only
// Close waits for the server. A subscriber is one connection with its subscriptions.
//
// With plain Pub/Sub there is one subscriber, because every node of a cluster receives every message.
// With sharded Pub/Sub, only the nodes of a channel's shard receive its messages. There is then one
// subscriber for each node that is needed, and a channel changes its subscriber when its slot is
// migrated.
//
// The hooks run in the goroutine that reads the connection. They only look up a map and never wait:
// waiting for a command there could block that goroutine permanently.
type Hub struct {
	Config                  // set once
	rdb      rueidis.Client // set once
	anywhere bool           // set once: all servers receive the same messages, and none counts the listeners at the others

	stop context.CancelFunc
	ctx  context.Context // canceled by Close
	done sync.WaitGroup

	mu          sync.Mutex             // guards the fields below, and all channels
	channels    map[string]*channel    // those that have listeners or linger
	subscribers map[string]*subscriber // by node address; with plain Pub/Sub there is one, at ""
	owners      map[uint16]string      // sharded: the last known node of each slot
}

// CloseDelay is how long a channel stays subscribed after the CloseSoon of its last listener. A process
// that waits for a lock often waits again soon.
const CloseDelay = 5 * time.Second

// longestPause is the longest pause before the next attempt to subscribe a channel. While servers accept no connection, it is
// longestPauseAway: when a server is back, its clients then reconnect over several seconds. Their waiters poll sooner.
const (
	longestPause     = time.Second
	longestPauseAway = 4 * time.Second
)

// channel is a channel that has listeners or lingers. The hub's mu guards it.
type channel struct {
	name       string
	slot       uint16 // sharded
	listeners  map[*Subscription]struct{}
	subscriber *subscriber   // the subscriber that has it; nil between two attempts
	pause      retry.Backoff // before the next attempt; reset by a confirmation

	idle *time.Timer // ends the lingering; nil while there are listeners
}

// isConfirmed reports whether the server has confirmed the subscription of c, which can be nil.
func (c *channel) isConfirmed() bool {
	return c != nil && c.subscriber != nil && c.subscriber.have[c.name]
}

// Subscription is one listener of a channel.
type Subscription struct {
	hub       *Hub
	channel   string
	onMessage func(message string)
	confirmed func()
}

// New returns a hub on rdb. It never closes rdb. The hub connects when the first channel gets a
// listener.
func New(rdb rueidis.Client, c Config) *Hub {
	h := &Hub{
		Config:      c,
		rdb:         rdb,
		anywhere:    !c.Sharded && rdb.Mode() == rueidis.ClientModeCluster,
		channels:    make(map[string]*channel),
		subscribers: make(map[string]*subscriber),
		owners:      make(map[uint16]string),
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Subscribe calls onMessage with each message published to name. It calls confirmed each time the server
// confirms a subscription: the first time, and after each broken connection. After a confirmation, no
// message is lost until the connection breaks.
//
// Subscribe does not wait for the confirmation. If already is true, the channel is subscribed for
// another listener, and no first confirmation follows. Messages published before this call are not
// delivered.
//
// The functions must not block. Each can be called once more after the subscription is closed. The
// caller ends the subscription with Close or CloseSoon. A closed hub calls neither function.
func (h *Hub) Subscribe(name string, onMessage func(message string), confirmed func()) (sub *Subscription, already bool) {
	s := &Subscription{hub: h, channel: name, onMessage: onMessage, confirmed: confirmed}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return s, false
	}
	c := h.channels[name]
	if c == nil {
		c = &channel{name: name, listeners: make(map[*Subscription]struct{}), pause: retry.Backoff{Most: longestPause}}
		if h.Sharded { // mutant: always: nobody reads it
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
		if c.subscriber != nil {
			c.subscriber.change() // it may have to query the role of its server again
		}
	}
	return s, c.isConfirmed()
}

// Subscribed reports whether name is subscribed or about to be, with or without a listener.
func (h *Hub) Subscribed(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.channels[name] != nil
}

// Confirmed reports whether the subscription of name is confirmed, on a connection that is not known to be broken.
func (h *Hub) Confirmed(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.channels[name].isConfirmed()
}

// Channels returns how many channels are subscribed, or about to be.
func (h *Hub) Channels() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.channels)
}

// Close ends the subscription. The last one of a channel unsubscribes the channel.
func (s *Subscription) Close() { s.end(0) }

// CloseSoon is Close, but the channel stays subscribed for CloseDelay after its last listener.
func (s *Subscription) CloseSoon() { s.end(CloseDelay) }

// CloseAfter is CloseSoon, but the channel stays subscribed for d, at least for CloseDelay.
func (s *Subscription) CloseAfter(d time.Duration) { s.end(max(d, CloseDelay)) }

func (s *Subscription) end(after time.Duration) {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[s.channel]
	if c == nil {
		return // the hub was closed before the subscription began
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
			if c.idle != nil && h.channels[c.name] == c { // no listener was added in the meantime
				h.unsubscribe(c)
			}
		})
	}
}

// unsubscribe removes c, which has no listeners. The caller holds h.mu.
func (h *Hub) unsubscribe(c *channel) {
	delete(h.channels, c.name)
	if c.subscriber != nil {
		c.subscriber.route(c.name)
	}
}

// Close ends all subscriptions on the server, and waits for the subscribers. A channel with listeners
// stays in the hub until they have closed their subscriptions.
func (h *Hub) Close() {
	h.mu.Lock()
	h.stop()
	for _, c := range h.channels {
		if c.idle != nil {
			c.idle.Stop() // mutant: removed: memory
			h.unsubscribe(c)
		}
	}
	h.mu.Unlock()
	h.done.Wait()
}

// route assigns c to the subscriber of its slot's node. If that node is unknown or is not, route
// picks another node, which will redirect to the right one. The caller holds h.mu.
func (h *Hub) route(c *channel, not string) {
	addr := ""
	if h.Sharded {
		addr = h.owners[c.slot]
		if addr == "" || addr == not {
			addr = h.other(not)
		}
	}
	c.subscriber = h.subscriberAt(addr)
	c.subscriber.route(c.name)
}

// other returns a node other than not, if there is one. It prefers a node with a connection.
func (h *Hub) other(not string) string {
	for addr := range h.subscribers {
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

// subscriberAt returns the subscriber of the node at addr. The caller holds h.mu.
func (h *Hub) subscriberAt(addr string) *subscriber {
	f := h.subscribers[addr]
	if f == nil {
		f = &subscriber{hub: h, addr: addr, changed: make(chan struct{}, 1), connected: make(chan struct{}), have: make(map[string]bool)}
		h.subscribers[addr] = f
		h.done.Go(f.run)
	}
	return f
}

// checkPause is the minimum time between two role queries by Check.
const checkPause = time.Second

// Check queries the role of the server where name is subscribed, because the server that executes the scripts counts no
// listener there.
func (h *Hub) Check(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[name]
	if c == nil || c.subscriber == nil {
		return
	}
	if f := c.subscriber; time.Since(f.roleChecked) >= checkPause {
		f.roleChecked = time.Time{}
		f.change()
	}
}

// Share calls f with the connection of a subscriber, for commands about the key or channel called name. It connects
// first if necessary. It reports false, and does not call f, if no subscriber is at the right node.
//
// The connection ends with its subscriber, when f has returned. An error of f can therefore mean that the hub is about
// to reconnect. The hub does if the error is not a reply, or reports that the server has become a replica, and ctx is
// not canceled.
func (h *Hub) Share(ctx context.Context, name string, f func(rueidis.DedicatedClient) error) (bool, error) {
	s := h.sharing(name)
	if s == nil {
		return false, nil
	}
	defer s.users.Done()
	select {
	case <-s.connected:
		err := f(s.conn)
		if reply, replied := rueidis.IsRedisErr(err); err != nil && ctx.Err() == nil && (!replied || isReplica(reply)) {
			s.broke()
		}
		return true, err
	case <-ctx.Done():
		return true, ctx.Err()
	case <-h.ctx.Done():
		return false, nil
	}
}

// isReplica reports whether reply means that the server has become a replica. After a planned failover, its connections stay
// open.
func isReplica(reply *rueidis.RedisError) bool {
	return strings.Contains(reply.Error(), "READONLY") || strings.HasPrefix(reply.Error(), "REDIRECT")
}

// sharing returns the subscriber whose node has the slot of name, for a caller that calls users.Done; nil if there is none.
func (h *Hub) sharing(name string) (s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch c := h.channels[name]; {
	case h.ctx.Err() != nil:
	case !h.Sharded && !h.anywhere:
		s = h.subscriberAt("")
	case h.Sharded && c.isConfirmed():
		s = c.subscriber
	}
	if s == nil || s.ended {
		return nil
	}
	s.users.Add(1)
	return s
}

// later detaches channels from their subscriber, and routes them again after a pause. They are routed
// together, so that their confirmations come together. The caller holds h.mu.
func (h *Hub) later(not string, channels ...*channel) {
	pause := time.Duration(0)
	for _, c := range channels {
		c.subscriber = nil
		pause = max(pause, c.pause.Next()) // mutant: operand 1: speed
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
