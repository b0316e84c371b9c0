package client

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/redis/rueidis"
)

// pooled is a rueidis client that logs once when no connection is free for a command that needs its own. rueidis waits for
// a free connection without a limit and without an error. Only the log can then explain why notifications do not arrive,
// the client's entry is missing, and acquisitions with replicas time out.
type pooled struct {
	rueidis.Client
	pool *pool // shared by all nodes
}

// pool is shared by the clients of all nodes.
type pool struct {
	sender *command.Sender
	logger *slog.Logger // nil means slog.Default
	once   sync.Once
}

// withPool returns rdb wrapped so that an exhausted blocking pool is logged.
func withPool(rdb rueidis.Client, sender *command.Sender, logger *slog.Logger) rueidis.Client {
	return pooled{rdb, &pool{sender: sender, logger: logger}}
}

func (p pooled) Dedicate() (rueidis.DedicatedClient, func()) {
	waiting, done := context.WithCancel(context.Background())
	defer done()
	defer time.AfterFunc(2*p.pool.sender.Timeout, func() { p.tell(waiting) }).Stop()
	return p.Client.Dedicate()
}

func (p pooled) Dedicated(f func(rueidis.DedicatedClient) error) error {
	conn, release := p.Dedicate()
	defer release()
	return f(conn)
}

func (p pooled) Nodes() map[string]rueidis.Client {
	nodes := make(map[string]rueidis.Client)
	for addr, node := range p.Client.Nodes() {
		nodes[addr] = pooled{node, p.pool}
	}
	return nodes
}

// tell logs the message, unless the server does not respond on the shared connection either. After the PING it waits for
// another timeout, because a server that has just resumed soon provides a connection, which cancels waiting.
func (p pooled) tell(waiting context.Context) {
	s := p.pool.sender
	if s.Enter() != nil {
		return
	}
	s.Go(func() {
		defer s.Done()
		ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
		defer cancel()
		if p.Do(ctx, p.B().Ping().Build()).Error() != nil || s.Sleep(waiting, s.Timeout) != nil {
			return
		}
		p.pool.once.Do(func() {
			logger := p.pool.logger
			if logger == nil {
				logger = slog.Default()
			}
			logger.Warn("blocking pool exhausted; raise BlockingPoolSize of the rueidis client", "waited", 3*s.Timeout)
		})
	})
}
