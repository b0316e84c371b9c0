package client

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/dial"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// WithLazyConnect makes [Open] return immediately. The client connects in the background. It
// retries, with pauses of up to a second, until the server replies or the client is closed. Until
// then commands fail with the error of the last attempt. Lock waits for the server, and TryLock
// returns that error. A quorum (multilock.NewQuorum) starts while a minority of its servers is
// down. A command that is sent during the first attempt waits for the result of that attempt.
//
// The URL must name one server, or Sentinels. On a cluster each command fails, so open a cluster
// without this option. [New] rejects the option, because its client is already connected.
func WithLazyConnect() Option {
	return option(func(c *config) { c.lazy = true })
}

var (
	errLazyNew     = errors.New("WithLazyConnect: only for Open, because the rueidis client is already connected")
	errLazyCluster = errors.New("WithLazyConnect: the server is a node of a cluster, which can only be opened without this option")
)

// mostLazyPause is the longest pause between two connection attempts.
const mostLazyPause = time.Second

type dialer = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

// lazy is a rueidis client that connects in the background. Each call goes to the current client:
// at first one that cannot dial, later the connected one.
type lazy struct {
	option rueidis.ClientOption // set once; its DialCtxFn is dial
	way    *dial.Way            // set once; reports how far the latest connection attempt got
	given  dialer               // set once; the dialer of way
	ctx    context.Context      // set once: the context of dialing
	cancel context.CancelFunc   // set once: stops dialing; an established connection stays open
	tried  chan struct{}        // closed after the first attempt
	done   chan struct{}        // closed when run has returned

	unconnected rueidis.Client // set once: a client that cannot dial

	mu      sync.Mutex
	rdb     rueidis.Client    // unconnected, or the connected client
	why     error             // why unconnected cannot dial
	dialing map[net.Conn]bool // connections of the current attempt; nil between attempts
}

var _ rueidis.Client = (*lazy)(nil)

// connectLazily checks option, returns a client for it, and dials in the background.
func connectLazily(option rueidis.ClientOption) (*lazy, error) {
	way, option := dial.NewWay(option)
	l := &lazy{option: option, way: way, given: option.DialCtxFn, tried: make(chan struct{}), done: make(chan struct{}), why: undialled(net.ErrClosed)}
	// A single-server client returns the error of its first dial, and dials again for each command.
	unconnected := option
	unconnected.Sentinel = rueidis.SentinelOption{}
	unconnected.Standalone = rueidis.StandaloneOption{}
	unconnected.ForceSingleClient = true
	unconnected.DisableRetry = true
	unconnected.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return nil, l.reason() }
	rdb, err := rueidis.NewClient(unconnected)
	if rdb == nil {
		return nil, err
	}
	l.unconnected, l.rdb = rdb, rdb
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.option.DialCtxFn = l.dial
	go l.run()
	return l, nil
}

// run dials until it succeeds or l.ctx is canceled.
func (l *lazy) run() {
	defer close(l.done)
	for pause, first := 10*time.Millisecond, true; ; first = false {
		rdb, err := l.attempt()
		switch {
		case err != nil:
		case rdb.Mode() == rueidis.ClientModeCluster:
			err = errLazyCluster
		default:
			err = dial.Greet(l.ctx, rdb)
		}
		if err != nil {
			if rdb != nil {
				rdb.Close()
			}
			if _, replied := rueidis.IsRedisErr(err); !replied { // each call explains an error reply
				err = l.way.Explain(l.ctx, err)
			}
		}
		l.mu.Lock()
		switch {
		case err == nil:
			l.rdb = rdb
		case errors.Is(err, errLazyCluster), errors.Is(err, dial.ErrSentinel):
			l.why = command.Final{Err: err} // waiting for another server would not help
		default:
			l.why = undialled(err)
		}
		l.mu.Unlock()
		if first {
			close(l.tried)
		}
		if err == nil {
			return // unconnected stays open because a call may be in flight on it
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-l.ctx.Done():
			return
		}
		pause = min(2*pause, mostLazyPause*2/3)
	}
}

// attempt runs dial.NewClient until l.ctx is canceled. NewClient takes no context and waits for the
// server's greeting.
func (l *lazy) attempt() (rueidis.Client, error) {
	l.mu.Lock()
	l.dialing = make(map[net.Conn]bool)
	l.mu.Unlock()
	stop := context.AfterFunc(l.ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for conn := range l.dialing {
			conn.Close()
		}
	})
	defer func() {
		stop()
		l.mu.Lock()
		l.dialing = nil
		l.mu.Unlock()
	}()
	return dial.NewClient(l.option)
}

// dial dials as rueidis does. During an attempt, canceling l.ctx cancels the dial and closes the
// connection.
func (l *lazy) dial(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (conn net.Conn, err error) {
	l.mu.Lock()
	connected := l.dialing == nil
	l.mu.Unlock()
	if !connected {
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(l.ctx, cancel)()
		ctx = own
	}
	conn, err = l.given(ctx, addr, d, config)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dialing != nil {
		l.dialing[conn] = true
		if l.ctx.Err() != nil {
			conn.Close()
		}
	}
	return conn, nil
}

// undialled wraps err, the error of creating a client, as a dial error. It tells a caller that no
// command was executed.
func undialled(err error) error {
	var failed *net.OpError
	_, replied := rueidis.IsRedisErr(err)
	if !replied && (!errors.As(err, &failed) || failed.Op != "dial") {
		err = &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	return retry.Undialled{Err: err}
}

// reason returns why there is no connection.
func (l *lazy) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// now returns the current client.
func (l *lazy) now() rueidis.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rdb
}

// soon waits until the first attempt has ended, or until ctx or l.ctx is canceled. It returns the current client.
func (l *lazy) soon(ctx context.Context) rueidis.Client {
	select {
	case <-l.tried:
	case <-ctx.Done():
	case <-l.ctx.Done(): // an attempt can take longer than that if the dialer ignores its context
	}
	return l.now()
}

// Close stops dialing, and closes the connection if there is one.
func (l *lazy) Close() {
	l.cancel()
	<-l.done
	l.now().Close()
	l.unconnected.Close()
}

func (l *lazy) B() rueidis.Builder               { return l.now().B() }
func (l *lazy) Mode() rueidis.ClientMode         { return l.now().Mode() }
func (l *lazy) Nodes() map[string]rueidis.Client { return l.now().Nodes() }

func (l *lazy) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return l.soon(ctx).Do(ctx, cmd)
}

func (l *lazy) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	return l.soon(ctx).DoMulti(ctx, multi...)
}

func (l *lazy) DoCache(ctx context.Context, cmd rueidis.Cacheable, ttl time.Duration) rueidis.RedisResult {
	return l.soon(ctx).DoCache(ctx, cmd, ttl)
}

func (l *lazy) DoMultiCache(ctx context.Context, multi ...rueidis.CacheableTTL) []rueidis.RedisResult {
	return l.soon(ctx).DoMultiCache(ctx, multi...)
}

func (l *lazy) DoStream(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResultStream {
	return l.soon(ctx).DoStream(ctx, cmd)
}

func (l *lazy) DoMultiStream(ctx context.Context, multi ...rueidis.Completed) rueidis.MultiRedisResultStream {
	return l.soon(ctx).DoMultiStream(ctx, multi...)
}

func (l *lazy) Receive(ctx context.Context, subscribe rueidis.Completed, fn func(rueidis.PubSubMessage)) error {
	return l.soon(ctx).Receive(ctx, subscribe, fn)
}

func (l *lazy) Dedicated(fn func(rueidis.DedicatedClient) error) error { return l.now().Dedicated(fn) }

func (l *lazy) Dedicate() (rueidis.DedicatedClient, func()) { return l.now().Dedicate() }
