package pubsub

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// subscriber is one connection of the hub, with its subscriptions. It lives as long as
// the connection; then its channels are routed anew.
//
// With sharded Pub/Sub, the reply of the node decides where a channel is subscribed:
//
//	confirmed             here: the node has the slot, or is a replica of the node that has it
//	MOVED                 by the feed of the node that the reply names
//	sunsubscribe, unasked the slot left, or another took over: here again, which
//	                      is confirmed or MOVED
//	CLUSTERDOWN and such  after a pause
//	any other error       nowhere: the waiters only poll
//	nothing               by the feed of another node, which may say MOVED
//
// A listener must be where the scripts run: only there it is counted. So a feed asks
// its server for its role: before it subscribes the first channel, after the server has
// ended a subscription, and now and then while a channel has listeners. A server that
// follows a master is the wrong one, and the feed ends. A replica whose master is gone is
// right: it may be the next master.
type subscriber struct {
	hub     *Hub          // set once
	addr    string        // set once: the node's, or "" for any
	changed chan struct{} // cap 1: the subscriptions are to be compared with the wanted channels

	// Guarded by the hub's mu.
	have   map[string]bool // sent on this connection; true when confirmed
	looked time.Time       // when the server was last asked for its role; zero if it must be asked now
	denied bool            // the server denies that command
}

// change makes the feed compare its subscriptions with the wanted channels. It does not block.
func (f *subscriber) change() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *subscriber) run() {
	f.serve()
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.feeds, f.addr)
	var left []*channel
	for _, c := range h.channels {
		switch {
		case c.feed != f:
		case c.idle != nil:
			h.unsubscribe(c) // it is not worth a new connection
		default:
			left = append(left, c)
		}
	}
	h.later(f.addr, left...)
}

// serve subscribes and unsubscribes on one connection until that breaks or the
// hub closes.
func (f *subscriber) serve() {
	h := f.hub
	rdb := h.rdb
	if h.Sharded {
		if rdb = rdb.Nodes()[f.addr]; rdb == nil {
			return // it has left the cluster, or the client has not heard of it yet
		}
	}
	conn, release := rdb.Dedicate()
	defer release()
	defer conn.Close()
	broken := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { f.deliver(m.Channel, m.Message) },
		OnSubscription: func(s rueidis.PubSubSubscription) {
			switch s.Kind {
			case "subscribe", "ssubscribe":
				f.confirm(s.Channel)
			case "sunsubscribe":
				f.dropped(s.Channel)
			}
		},
	})
	for {
		due, wanted := f.lookDue()
		if wanted && !time.Now().Before(due) {
			if !f.look(conn) {
				return
			}
			due = time.Now().Add(h.Look)
		}
		add, remove := f.difference()
		if !f.send(conn, add, f.subscribe) || !f.send(conn, remove, f.unsubscribe) {
			return
		}
		var look <-chan time.Time
		if wanted {
			look = time.After(time.Until(due))
		}
		select {
		case <-f.changed:
		case <-look:
		case <-broken:
			return
		case <-h.ctx.Done():
			return
		}
	}
}

// lookDue returns when to ask the server for its role. Without listeners here, or if the
// role makes no difference, wanted is false.
func (f *subscriber) lookDue() (due time.Time, wanted bool) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.denied || h.anywhere {
		return due, false
	}
	for _, c := range h.channels {
		if c.feed == f && c.idle == nil {
			return f.looked.Add(h.Look), true
		}
	}
	return due, false
}

// look asks the server for its role, and reports whether the feed may stay there.
func (f *subscriber) look(conn rueidis.DedicatedClient) bool {
	h := f.hub
	h.mu.Lock()
	f.looked = time.Now()
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(h.ctx, h.Timeout)
	defer cancel()
	reply, err := conn.Do(ctx, conn.B().Role().Build()).ToMessage()
	refusal, refused := rueidis.IsRedisErr(err)
	switch {
	case refused:
		h.mu.Lock()
		defer h.mu.Unlock()
		f.denied = !retry.Passes(refusal.Error())
		return true
	case err != nil:
		return false // the connection broke
	}
	words, _ := reply.ToArray() // slave, its master's host and port, the state of its link, an offset
	if len(words) != 5 {
		return true
	}
	role, _ := words[0].ToString()
	link, _ := words[3].ToString()
	return role != "slave" || link != "connected"
}

// difference records the wanted channels as sent, and returns the channels to add and to remove.
func (f *subscriber) difference() (add, remove []string) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, c := range h.channels {
		if _, sent := f.have[name]; c.feed == f && !sent {
			f.have[name] = false
			add = append(add, name)
		}
	}
	for name := range f.have {
		if c := h.channels[name]; c == nil || c.feed != f {
			delete(f.have, name)
			remove = append(remove, name)
		}
	}
	return add, remove
}

func (f *subscriber) subscribe(b rueidis.Builder, channels []string) rueidis.Completed {
	if f.hub.Sharded {
		return b.Ssubscribe().Channel(channels...).Build()
	}
	return b.Subscribe().Channel(channels...).Build()
}

func (f *subscriber) unsubscribe(b rueidis.Builder, channels []string) rueidis.Completed {
	if f.hub.Sharded {
		return b.Sunsubscribe().Channel(channels...).Build()
	}
	return b.Unsubscribe().Channel(channels...).Build()
}

// send sends a command for channels: one for all of them if possible, otherwise one for each, in
// one write. It reports whether the connection is usable.
func (f *subscriber) send(conn rueidis.DedicatedClient, channels []string, command func(rueidis.Builder, []string) rueidis.Completed) bool {
	parts := slices.Collect(slices.Chunk(channels, 1))
	if len(channels) > 1 && !f.hub.Sharded { // with sharded Pub/Sub their slots can differ
		parts = [][]string{channels}
	}
	cmds := make(rueidis.Commands, len(parts))
	for i, part := range parts {
		// Pinned, the memory of a command is the command's for good. When the connection breaks between two replies, rueidis 1.0.79 sends
		// all of the commands again, after it has let the memory of the replied to ones go.
		cmds[i] = command(conn.B(), part).Pin()
	}
	ctx, cancel := context.WithTimeout(f.hub.ctx, f.hub.Timeout)
	defer cancel()
	for i, reply := range conn.DoMulti(ctx, cmds...) {
		err := reply.Error()
		if err == nil {
			continue
		}
		refusal, ok := rueidis.IsRedisErr(err)
		switch {
		case !ok:
			return false
		case len(parts[i]) == 1:
			f.refused(parts[i][0], refusal)
		default:
			// Perhaps one of them is denied. That must not take the notifications from
			// the others.
			for _, channel := range parts[i] {
				if !f.send(conn, []string{channel}, command) {
					return false
				}
			}
		}
	}
	return true
}

// refused handles a channel that the server did not subscribe.
func (f *subscriber) refused(name string, err *rueidis.RedisError) {
	h := f.hub
	if !retry.Passes(err.Error()) && h.Denied != nil {
		defer h.Denied(name, err) // without the mutex
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[name]
	if c == nil || c.feed != f {
		return
	}
	addr, moved := err.IsMoved()
	if moved {
		h.owners[c.slot] = addr
	}
	switch {
	case moved && c.pause.Fresh():
		c.pause.Next() // that node may say MOVED as well, until all nodes know
		delete(f.have, name)
		h.hand(c, addr)
	case retry.Passes(err.Error()):
		delete(f.have, name)
		h.later("", c)
	}
}

// dropped handles the end of a subscription by the server. If this feed did not send the command for it, it
// subscribes again: the reply tells where the channel is now.
func (f *subscriber) dropped(name string) {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	if _, sent := f.have[name]; sent {
		delete(f.have, name)
		f.looked = time.Time{}
		f.change()
	}
}

func (f *subscriber) confirm(name string) {
	for _, s := range f.confirmed(name) {
		s.confirmed()
	}
}

// confirmed records a confirmation, and returns the listeners.
func (f *subscriber) confirmed(name string) []*Subscription {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[name]
	if c == nil || c.feed != f {
		return nil
	}
	f.have[name] = true
	c.pause.Reset()
	if h.Sharded {
		h.owners[c.slot] = f.addr
	}
	return slices.Collect(maps.Keys(c.listeners))
}

func (f *subscriber) deliver(name, message string) {
	var memory [4]*Subscription
	for _, s := range f.hub.listeners(name, memory[:0]) {
		s.hint(message)
	}
}

// listeners appends the listeners of a channel to found. The hub calls them without its
// mutex: they have one of their own, under which they call the hub.
func (h *Hub) listeners(name string, found []*Subscription) []*Subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.channels[name]; c != nil {
		for s := range c.listeners {
			found = append(found, s)
		}
	}
	return found
}
