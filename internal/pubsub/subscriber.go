package pubsub

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// subscriber is one connection of the hub, with its subscriptions. It lives as long as the
// connection. After that its channels are routed again.
//
// With sharded Pub/Sub, the node's reply decides where a channel is subscribed:
//
//	confirmed                here: the node has the slot, or is a replica of the node that has it
//	MOVED                    at the node that the reply names
//	unexpected sunsubscribe  the slot was migrated, or another node took over: here again, which
//	                         is confirmed or MOVED
//	CLUSTERDOWN and similar  after a pause
//	any other error          nowhere: the waiters only poll
//	no reply                 at another node, which may reply MOVED
//
// A listener must be subscribed where the scripts run, because they count listeners on their own
// server. The subscriber therefore queries the role of its server: before the first subscription,
// after the server ended a subscription, when a script counted no listener, and periodically while
// there are listeners. If the server is a replica of a connected primary, the subscriber ends. A
// replica without its primary may become the next primary, so the subscriber stays.
type subscriber struct {
	hub     *Hub          // set once
	addr    string        // set once: of the node, or "" for any
	changed chan struct{} // cap 1: the wanted channels or the role may have changed

	conn      rueidis.DedicatedClient // set once, before connected is closed
	connected chan struct{}           // closed when conn is set
	users     sync.WaitGroup          // of calls of Share; grows only under the hub's mu before ended is set

	// Guarded by the hub's mu.
	have        map[string]bool // subscriptions sent on this connection; true when confirmed
	routed      []string        // channels that were routed here, or whose subscription ended, since the last call of difference
	roleChecked time.Time       // when the role was last queried; zero if it must be queried now
	denied      bool            // the server denies ROLE
	served      bool            // the server has replied to a command
	ended       bool            // the connection is about to be closed
}

// route makes the subscriber subscribe or unsubscribe the channel called name, if it must. The caller holds the hub's mu.
func (f *subscriber) route(name string) {
	f.routed = append(f.routed, name)
	f.change()
}

// change makes the subscriber check its routed channels, and whether the role is due. It does not block.
func (f *subscriber) change() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// broke makes the subscriber end, because a command of Share had no reply. In RESP2, rueidis has one connection for
// commands and one for subscriptions, and reports only if the second one breaks.
func (f *subscriber) broke() {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	f.ended = true
	f.change()
}

func (f *subscriber) run() {
	f.serve()
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subscribers, f.addr)
	var left []*channel
	for _, c := range h.channels {
		switch {
		case c.subscriber != f:
		case c.idle != nil:
			h.unsubscribe(c) // without listeners it is not worth a new connection
		default:
			c.pause.Most = longestPause // mutant: removed: speed
			if f.conn != nil && !f.served {
				c.pause.Most = longestPauseAway
			}
			left = append(left, c)
		}
	}
	h.later(f.addr, left...)
}

// serve subscribes and unsubscribes on one connection, until that breaks or the hub is closed.
func (f *subscriber) serve() {
	h := f.hub
	rdb := h.rdb
	if h.Sharded {
		if rdb = rdb.Nodes()[f.addr]; rdb == nil {
			return // it has left the cluster, or the client does not know it yet
		}
	}
	conn, release := rdb.Dedicate()
	defer release() // mutant: removed: close has closed it
	defer f.close(conn)
	f.conn = conn
	close(f.connected)
	broken := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { h.deliver(m.Channel, m.Message) },
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
		due, wanted := f.roleDue()
		if wanted && !time.Now().Before(due) {
			if !f.checkRole(conn) {
				return
			}
			due = time.Now().Add(h.RoleInterval)
		}
		add, remove := f.difference()
		if !f.send(conn, add, f.subscribe) || !f.send(conn, remove, f.unsubscribe) {
			return
		}
		var role <-chan time.Time
		if wanted {
			role = time.After(time.Until(due))
		}
		select {
		case <-f.changed:
			if f.isEnded() {
				return
			}
		case <-role:
		case <-broken:
			return
		case <-h.ctx.Done():
			return
		}
	}
}

// close closes the connection after the commands of other packages. If one started on a RESP2 connection at that instant,
// rueidis could wait in Close for a goroutine that neither of the two has started.
func (f *subscriber) close(conn rueidis.DedicatedClient) {
	f.hub.mu.Lock()
	f.ended = true
	f.hub.mu.Unlock()
	f.users.Wait()
	conn.Close()
}

func (f *subscriber) isEnded() bool {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	return f.ended
}

// roleDue returns when to query the role. wanted is false if the role makes no difference, or if it is due and there are
// no listeners here.
func (f *subscriber) roleDue() (due time.Time, wanted bool) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.denied || h.anywhere {
		return due, false
	}
	due = f.roleChecked.Add(h.RoleInterval)
	if time.Now().Before(due) { // mutant: never: speed
		return due, true // the channels, which may be many, are examined then
	}
	for _, c := range h.channels {
		if c.subscriber == f && c.idle == nil {
			return due, true
		}
	}
	return due, false
}

// checkRole queries the role of the server, and reports whether the subscriber may stay there.
func (f *subscriber) checkRole(conn rueidis.DedicatedClient) bool {
	h := f.hub
	h.mu.Lock()
	f.roleChecked = time.Now()
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(h.ctx, h.Timeout)
	defer cancel() // mutant: removed: memory
	reply, err := conn.Do(ctx, conn.B().Role().Build()).ToMessage()
	refusal, refused := rueidis.IsRedisErr(err)
	if err != nil && !refused {
		return false // the connection broke
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f.served = true
	if refused {
		f.denied = !retry.Temporary(refusal.Error())
		return true
	}
	words, _ := reply.ToArray() // role, master host, master port, link state, offset
	if len(words) != 5 {
		return true
	}
	role, _ := words[0].ToString()
	link, _ := words[3].ToString()
	return role != "slave" || link != "connected"
}

// difference returns the channels to subscribe and to unsubscribe, and records both as sent. It compares only the routed
// channels, because a process can have many others.
func (f *subscriber) difference() (add, remove []string) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range f.routed {
		c := h.channels[name]
		wanted := c != nil && c.subscriber == f
		switch _, sent := f.have[name]; {
		case wanted && !sent:
			f.have[name] = false
			add = append(add, name)
		case !wanted && sent:
			delete(f.have, name)
			remove = append(remove, name)
		}
	}
	f.routed = nil
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

// send sends a command for channels: one command for all of them if possible, otherwise one for each
// in one write. It reports whether the connection is usable.
func (f *subscriber) send(conn rueidis.DedicatedClient, channels []string, command func(rueidis.Builder, []string) rueidis.Completed) bool {
	parts := slices.Collect(slices.Chunk(channels, 1))
	if len(channels) > 1 && !f.hub.Sharded { // mutant: border: the same for one channel. With sharded Pub/Sub their slots can differ
		parts = [][]string{channels}
	}
	cmds := make(rueidis.Commands, len(parts))
	for i, part := range parts {
		// Pin keeps rueidis from reusing the memory of a command. If the connection breaks between
		// two replies, rueidis 1.0.79 resends all commands, even those whose memory it has recycled.
		cmds[i] = command(conn.B(), part).Pin()
	}
	ctx, cancel := context.WithTimeout(f.hub.ctx, f.hub.Timeout)
	defer cancel() // mutant: removed: memory
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
			// One of them may be denied. The others must still be subscribed.
			for _, channel := range parts[i] {
				if !f.send(conn, []string{channel}, command) {
					return false
				}
			}
		}
	}
	return true
}

// refused handles an error reply to the subscription of a channel.
func (f *subscriber) refused(name string, err *rueidis.RedisError) {
	h := f.hub
	if !retry.Temporary(err.Error()) && h.Denied != nil {
		defer h.Denied(name, err) // call it without the mutex
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[name]
	if c == nil || c.subscriber != f {
		return
	}
	addr, moved := err.IsMoved()
	if moved { // mutant: always: speed
		h.owners[c.slot] = f.complete(addr)
	}
	switch {
	case moved && c.pause.Fresh():
		c.pause.Next() // that node may reply MOVED, too, until all nodes know the new owner
		delete(f.have, name)
		h.route(c, "")
	case retry.Temporary(err.Error()):
		delete(f.have, name)
		h.later("", c)
	}
}

// complete returns the address of another node that this node has named. A node omits the host if it is configured that way,
// or does not know the other node's hostname. The host is then that of this node.
func (f *subscriber) complete(addr string) string {
	// mutant: operand 1: an address has a port
	if host, port, err := net.SplitHostPort(addr); err == nil && (host == "" || host == "?") {
		own, _, _ := net.SplitHostPort(f.addr)
		return net.JoinHostPort(own, port)
	}
	return addr
}

// dropped handles a subscription that the server ended. If this subscriber did not unsubscribe, it
// subscribes again: the reply names the node that has the channel now.
func (f *subscriber) dropped(name string) {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	if _, sent := f.have[name]; sent {
		delete(f.have, name)
		f.roleChecked = time.Time{}
		f.route(name)
	}
}

// confirm records a confirmation, and calls the channel's listeners. It calls them without the hub's
// mutex, because they lock their own mutex and call the hub under it.
func (f *subscriber) confirm(name string) {
	h := f.hub
	h.mu.Lock()
	c := h.channels[name]
	if c == nil || c.subscriber != f {
		h.mu.Unlock()
		return
	}
	f.have[name], f.served = true, true
	c.pause.Reset()
	if h.Sharded { // mutant: always: nobody reads it
		h.owners[c.slot] = f.addr // mutant: removed: speed
	}
	listeners := slices.Collect(maps.Keys(c.listeners))
	h.mu.Unlock()
	for _, s := range listeners {
		s.confirmed()
	}
}

// deliver calls the channel's listeners with a message, without the hub's mutex.
func (h *Hub) deliver(name, message string) {
	var memory [4]*Subscription
	listeners := memory[:0]
	h.mu.Lock()
	if c := h.channels[name]; c != nil {
		for s := range c.listeners {
			listeners = append(listeners, s)
		}
	}
	h.mu.Unlock()
	for _, s := range listeners {
		s.onMessage(message)
	}
}
