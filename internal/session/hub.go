package session

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// hub listens to all the channels that the session's waiters want to hear of. Each
// channel is subscribed while anybody wants it, by a feed, which is one
// connection.
//
// With plain Pub/Sub there is one feed, as every node of a cluster hears every
// message. With sharded Pub/Sub only the nodes of the shard that has a channel's
// slot do, so there is one feed for each node that is needed, and a channel goes
// on to another one when its slot has (feed.go).
//
// A listener is told of messages, and of each confirmation of its subscription, the
// first time and after each break. Messages of the time between are lost; that
// confirmation is what makes up for them.
//
// The hooks run in the connection's reading goroutine, so they only look up a
// map and never wait: a command sent from there could stop it for good.
type hub struct {
	rdb     rueidis.Client // set once
	timeout time.Duration  // set once: for subscriptions to be confirmed
	sharded bool           // set once

	stop context.CancelFunc
	ctx  context.Context // ends with close
	done sync.WaitGroup

	mu       sync.Mutex
	channels map[string]*channel // wanted
	feeds    map[string]*feed    // by the node's address; plain Pub/Sub has one, at ""
	owners   map[uint16]string   // sharded: the node that has a slot, as far as was heard
}

// linger is for how long a channel stays subscribed that nobody listens to any more.
// Who waits for a lock often will do so again soon.
const linger = 5 * time.Second

// channel is what somebody listens to. It is guarded by the hub's mu.
type channel struct {
	name      string
	slot      uint16 // sharded
	listeners map[*subscription]struct{}
	feed      *feed   // that subscribes it; nil between two tries
	pause     backoff // before the next try; back to nothing when one is confirmed

	since time.Time   // of the latest confirmation
	idle  *time.Timer // until it is given up; nil while somebody listens
}

// subscription is one listener's wish to hear of a channel. Its functions must not
// block.
type subscription struct {
	hub       *hub
	channel   string
	hint      func(message string)
	confirmed func() // there may have been messages before, but none from now on is missed
}

func newHub(rdb rueidis.Client, timeout time.Duration, sharded bool) *hub {
	h := &hub{
		rdb:      rdb,
		timeout:  timeout,
		sharded:  sharded,
		channels: make(map[string]*channel),
		feeds:    make(map[string]*feed),
		owners:   make(map[uint16]string),
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// subscribe calls hint with whatever is published to name, and confirmed each
// time that the server confirms a subscription to it. It does not wait for the
// first. Where there was one before the time heard, nothing is missed since then, and
// nothing is said of it.
func (h *hub) subscribe(name string, heard time.Time, hint func(message string), confirmed func()) *subscription {
	s := &subscription{hub: h, channel: name, hint: hint, confirmed: confirmed}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return s
	}
	c := h.channels[name]
	if c == nil {
		c = &channel{name: name, listeners: make(map[*subscription]struct{}), pause: backoff{most: time.Second}}
		if h.sharded {
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
	}
	if c.feed != nil && c.feed.have[name] && !c.since.Before(heard) {
		confirmed() // for somebody before us: no confirmation will come
	}
	return s
}

// lingers reports whether name is subscribed though nobody may listen.
func (h *hub) lingers(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.channels[name] != nil
}

// close ends the subscription. The channel's last one unsubscribes.
func (s *subscription) close() { s.end(0) }

// closeSoon is close, but the channel's last one leaves it subscribed for a while.
func (s *subscription) closeSoon() { s.end(linger) }

func (s *subscription) end(after time.Duration) {
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
			if c.idle != nil && h.channels[c.name] == c { // nobody came at the last moment
				h.unsubscribe(c)
			}
		})
	}
}

// unsubscribe gives up a channel that nobody listens to, with h.mu held.
func (h *hub) unsubscribe(c *channel) {
	delete(h.channels, c.name)
	if c.feed != nil {
		c.feed.change()
	}
}

// close ends everything and waits for it.
func (h *hub) close() {
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

// route gives c to the feed of the node that has its slot, with h.mu held. Where that
// is not known, or is the node at not, it is any other: that one will say.
func (h *hub) route(c *channel, not string) {
	addr := ""
	if h.sharded {
		addr = h.owners[c.slot]
		if addr == "" || addr == not {
			addr = h.other(not)
		}
	}
	h.hand(c, addr)
}

// other is any node but the one at not, if there is another; best one with a
// connection.
func (h *hub) other(not string) string {
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
func (h *hub) hand(c *channel, addr string) {
	f := h.feeds[addr]
	if f == nil {
		f = &feed{hub: h, addr: addr, changed: make(chan struct{}, 1), have: make(map[string]bool)}
		h.feeds[addr] = f
		h.done.Go(f.run)
	}
	c.feed = f
	f.change()
}

// later takes channels from their feed, and routes them anew after a pause, with h.mu
// held. They go together, so that what their confirmations lead to comes at once.
func (h *hub) later(not string, channels ...*channel) {
	pause := time.Duration(0)
	for _, c := range channels {
		c.feed = nil
		pause = max(pause, c.pause.next())
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
