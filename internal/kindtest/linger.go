package kindtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/redis/rueidis"
)

// Lingering returns opts with lock.WithLinger, unless they include it or do not support it.
func Lingering(opts []lock.Option) []lock.Option {
	c, _ := lockimpl.NewConfig("a lock", lockimpl.All, opts...)
	if c.Lease > 0 || c.Replicas > 0 || c.Linger > 0 {
		return opts
	}
	return append(opts[:len(opts):len(opts)], lock.WithLinger(100*time.Millisecond))
}

// Settling is a client of Redis whose Pub/Sub connections can be waited for. A process that keeps a lock serves its own
// callers until it has received a message, so a test that expects more waits for the messages.
type Settling struct {
	rueidis.Client
	one     sync.Mutex // held by Settle: a message belongs to one call
	arrived chan string
}

// NewSettling returns a Settling client that uses rdb.
func NewSettling(rdb rueidis.Client) *Settling {
	return &Settling{Client: rdb, arrived: make(chan string, 16)}
}

const settleChannel = "kindtest:settle"

// Settle waits until each Pub/Sub connection has received and handled what was published before.
func (s *Settling) Settle(t testing.TB) {
	t.Helper()
	s.one.Lock()
	defer s.one.Unlock()
	n, err := s.Do(t.Context(), s.B().Publish().Channel(settleChannel).Message("").Build()).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		select {
		case <-s.arrived:
		case <-time.After(patience):
			t.Fatal("a message did not arrive")
		}
	}
}

// Dedicate returns a connection that subscribes to the channel of Settle if it has hooks.
func (s *Settling) Dedicate() (rueidis.DedicatedClient, func()) {
	conn, release := s.Client.Dedicate()
	return settlingConn{conn, s}, release
}

type settlingConn struct {
	rueidis.DedicatedClient
	of *Settling
}

// SetPubSubHooks adds the channel of Settle.
func (c settlingConn) SetPubSubHooks(h rueidis.PubSubHooks) <-chan error {
	onMessage := h.OnMessage
	h.OnMessage = func(m rueidis.PubSubMessage) {
		if m.Channel == settleChannel {
			c.of.arrived <- m.Message
		} else {
			onMessage(m)
		}
	}
	broken := c.DedicatedClient.SetPubSubHooks(h)
	c.Do(context.Background(), c.B().Subscribe().Channel(settleChannel).Build())
	return broken
}
