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

// mostLazyPause is the longest pause between two attempts to connect.
const mostLazyPause = time.Second

type dialer = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

// lazy is a rueidis client that connects in the background. Each call goes to the client
// of that moment: first one that cannot dial, then the connected one.
type lazy struct {
	option rueidis.ClientOption // set once; its DialCtxFn is dial
	way    *dial.Way            // set once: knows how far the latest connection has come
	given  dialer               // set once: that of way
	ctx    context.Context      // set once: the context of dialing
	cancel context.CancelFunc   // set once: stops dialing; an established connection stays open
	tried  chan struct{}        // closed after the first attempt
	done   chan struct{}        // closed when run has returned

	unconnected rueidis.Client // set once: a client that cannot dial

	mu      sync.Mutex
	rdb     rueidis.Client    // unconnected, or the connected one
	why     error             // why unconnected cannot dial
	dialing map[net.Conn]bool // the connections of the attempt under way; nil when there is none
}

var _ rueidis.Client = (*lazy)(nil)

// connectLazily checks option, returns a client for it, and dials in the background.
func connectLazily(option rueidis.ClientOption) (*lazy, error) {
	way, option := dial.NewWay(option)
	l := &lazy{option: option, way: way, given: option.DialCtxFn, tried: make(chan struct{}), done: make(chan struct{}), why: undialled(net.ErrClosed)}
	// A single client comes with the error of its first dial, and dials for each command.
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

// run connects: it tries until it succeeds or l.ctx is canceled.
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
			if _, replied := rueidis.IsRedisErr(err); !replied { // a reply is explained to each call
				err = l.way.Explain(l.ctx, err)
			}
		}
		l.mu.Lock()
		switch {
		case err == nil:
			l.rdb = rdb
		case errors.Is(err, errLazyCluster), errors.Is(err, dial.ErrSentinel):
			l.why = command.Final{Err: err} // to wait for another server would not help
		default:
			l.why = undialled(err)
		}
		l.mu.Unlock()
		if first {
			close(l.tried)
		}
		if err == nil {
			return // a call may be in flight on unconnected, so that is not closed yet
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-l.ctx.Done():
			return
		}
		pause = min(2*pause, mostLazyPause*2/3)
	}
}

// attempt is dial.NewClient, which takes no context and waits for the server's greeting,
// until l.ctx is canceled.
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

// dial dials as rueidis does. During an attempt the end of l ends the dialling and the
// connection too.
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

// undialled makes err, the error of a client that could not be made, an error of dialling: after it
// a caller knows that no command was carried out.
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

// now returns the client of this moment.
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
	case <-l.ctx.Done(): // an attempt may outlast that, if the dialer ignores its context
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
