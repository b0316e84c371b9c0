package session

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// hub keeps one connection for all the channels that the session's waiters
// listen to. Each channel is subscribed while anybody wants it.
//
// A listener is told of messages, without their content, and of each confirmation
// of its subscription, the first time and after each break. Messages of the time
// between are lost; that confirmation is what makes up for them.
//
// The hooks run in the connection's reading goroutine, so they only look up a
// map and never wait: a command sent from there could stop it for good.
type hub struct {
	rdb     rueidis.Client // set once
	timeout time.Duration  // set once: for one SUBSCRIBE to be confirmed

	changed chan struct{} // cap 1: what is wanted is not what there is
	stop    context.CancelFunc
	ctx     context.Context // ends with close
	done    sync.WaitGroup

	mu       sync.Mutex
	running  bool
	channels map[string]map[*subscription]struct{} // wanted
	have     map[string]bool                       // sent on this connection; true when confirmed
}

// subscription is one listener's wish to hear of a channel. Its functions must not
// block.
type subscription struct {
	hub       *hub
	channel   string
	hint      func() // there was a message
	confirmed func() // there may have been messages before, but none from now on is missed
}

func newHub(rdb rueidis.Client, timeout time.Duration) *hub {
	h := &hub{
		rdb:      rdb,
		timeout:  timeout,
		changed:  make(chan struct{}, 1),
		channels: make(map[string]map[*subscription]struct{}),
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// subscribe calls hint whenever something is published to channel, and confirmed
// each time that the server confirms a subscription to it. It does not wait for
// the first.
func (h *hub) subscribe(channel string, hint, confirmed func()) *subscription {
	s := &subscription{hub: h, channel: channel, hint: hint, confirmed: confirmed}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return s
	}
	if h.channels[channel] == nil {
		h.channels[channel] = make(map[*subscription]struct{})
	}
	h.channels[channel][s] = struct{}{}
	if !h.running {
		h.running = true
		h.done.Go(h.run)
	}
	if h.have[channel] {
		confirmed() // for somebody before us: no confirmation will come
	} else {
		h.change()
	}
	return s
}

// close ends the subscription. The channel's last one unsubscribes.
func (s *subscription) close() {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.channels[s.channel], s)
	if len(h.channels[s.channel]) == 0 {
		delete(h.channels, s.channel)
		h.change()
	}
}

func (h *hub) change() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// close ends everything and waits for it.
func (h *hub) close() {
	h.mu.Lock()
	h.stop()
	h.mu.Unlock()
	h.done.Wait()
}

// run keeps a connection while anybody wants to listen.
func (h *hub) run() {
	pause := backoff{most: time.Second}
	for {
		for !h.wanted() {
			select {
			case <-h.changed:
			case <-h.ctx.Done():
				return
			}
		}
		if h.serve() {
			pause.last = 0
		}
		if !rest(h.ctx, pause.next()) {
			return
		}
	}
}

func (h *hub) wanted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.channels) > 0
}

// serve subscribes and unsubscribes on one connection until that breaks or the
// hub closes. It reports whether the server ever confirmed anything.
func (h *hub) serve() (worked bool) {
	conn, release := h.rdb.Dedicate()
	defer release()
	defer conn.Close()
	broken := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { h.hint(m.Channel) },
		OnSubscription: func(s rueidis.PubSubSubscription) {
			if s.Kind == "subscribe" {
				h.confirm(s.Channel)
			}
		},
	})
	h.mu.Lock()
	h.have = make(map[string]bool)
	h.mu.Unlock()
	for {
		add, remove := h.difference()
		if len(add) > 0 && h.send(conn, conn.B().Subscribe().Channel(add...).Build()) != nil {
			// Perhaps one of them is denied. That must not take the hints from
			// all the others; who waits on it lives on polls.
			for _, channel := range add {
				if err := h.send(conn, conn.B().Subscribe().Channel(channel).Build()); err != nil && !isReply(err) {
					return worked
				}
			}
		}
		if len(remove) > 0 {
			if err := h.send(conn, conn.B().Unsubscribe().Channel(remove...).Build()); err != nil && !isReply(err) {
				return worked
			}
		}
		worked = worked || len(add) > 0
		select {
		case <-h.changed:
		case <-broken:
			return worked
		case <-h.ctx.Done():
			return worked
		}
	}
}

// isReply reports whether err is an answer: the connection is well.
func isReply(err error) bool {
	_, ok := rueidis.IsRedisErr(err)
	return ok
}

func (h *hub) send(conn rueidis.DedicatedClient, cmd rueidis.Completed) error {
	ctx, cancel := context.WithTimeout(h.ctx, h.timeout)
	defer cancel()
	return conn.Do(ctx, cmd).Error()
}

// difference records what is wanted as sent, and returns what must be sent.
func (h *hub) difference() (add, remove []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for channel := range h.channels {
		if _, ok := h.have[channel]; !ok {
			h.have[channel] = false
			add = append(add, channel)
		}
	}
	for channel := range h.have {
		if h.channels[channel] == nil {
			delete(h.have, channel)
			remove = append(remove, channel)
		}
	}
	return add, remove
}

func (h *hub) confirm(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.have[channel]; ok {
		h.have[channel] = true
	}
	for s := range h.channels[channel] {
		s.confirmed()
	}
}

func (h *hub) hint(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.channels[channel] {
		s.hint()
	}
}
