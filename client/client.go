// Package client provides the client, which creates the locks and synchronizers of leasehold.
//
//	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
//	if err != nil {
//		return err
//	}
//	defer c.Close(ctx)
//
//	h, err := c.NewLock("orders:42").Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer h.Unlock(ctx)
//	return work(h.Context()) // canceled as soon as the lock can no longer be guaranteed
//
// [New] uses a rueidis client that the application already has. Package lock documents what every
// lock and hold guarantees. The package of each type of lock documents the rest.
package client

import (
	"context"
	"errors"

	"github.com/leasehold-go/leasehold/fairlock"
	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/dial"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/reentrant"
	"github.com/leasehold-go/leasehold/rwlock"
	"github.com/leasehold-go/leasehold/semaphore"
	"github.com/redis/rueidis"
)

// Client creates locks and synchronizers. All locks of a client share one identity in Redis, one
// watchdog and one connection for notifications. On a cluster with sharded Pub/Sub, there is one
// connection to each node in use. One client per process is enough. A Client is safe for concurrent
// use.
type Client struct {
	session *session.Session
	sender  *command.Sender // for objects without a lease
	latches *latch.Latches
	owned   rueidis.Client  // the client that Open created; nil for New
	entry   *registry.Entry // nil without a registry
}

// New returns a client that uses rdb. It never closes rdb. Close the client first, then rdb. New
// sends no command, except for one to a cluster, within the operation timeout (see [PubSubAuto]).
//
// rdb may be standalone, Sentinel or cluster. With SendToReplicas, it must not send EVALSHA to
// replicas. Its blocking pool must have a free connection for notifications and the entry of
// [WithName], on each node of a cluster. It also needs one for each acquisition in progress with
// [lock.WithReplicas]. Without free connections, waiters poll once per second, and acquisitions with
// replicas time out. The client logs that once.
//
// The ConnWriteTimeout of rdb, 10 s by default, bounds how long a goroutine of the client can wait
// for an unresponsive server. Calls return long before that. If the context of a call cannot be
// canceled, and no reply comes within the operation timeout, rueidis may close the connection.
// Other commands on that connection then fail too.
//
// With a ConnLifetime, rueidis resends commands that have no reply one second after a connection
// reached its lifetime. The client then treats a reply that took a second or longer, and a failed
// dial, as an unknown outcome and checks it later. An Unlock whose connection breaks within that
// second can report a loss although it released the lock. A copy of a request that arrives after
// Unlock and after that check locks the lock for one more lease.
//
// If rdb is closed after a failed dial, rueidis does not report that. Until Close, calls then
// continue as if the server were down, and succeed when the server is back.
func New(rdb rueidis.Client, opts ...Option) (*Client, error) {
	if rdb == nil {
		return nil, &lock.Error{Op: "new client", Err: errors.New("the rueidis client is nil")}
	}
	config, err := configure(opts)
	if err == nil && config.lazy {
		err = errLazyNew
	}
	if err == nil {
		config.Sharded, err = config.pubsub.sharded(context.Background(), rdb, config.OpTimeout)
	}
	if err != nil {
		return nil, &lock.Error{Op: "new client", Err: err}
	}
	return newClient(rdb, config), nil
}

// newClient returns a client that uses rdb.
func newClient(rdb rueidis.Client, config config) *Client {
	c := &Client{sender: command.New(rdb, command.Config{Prefix: config.KeyPrefix, Timeout: config.OpTimeout, User: config.User})}
	rdb = withPool(rdb, c.sender, config.Logger)
	if config.unregistered {
		c.session = session.New(rdb, config.Config)
		c.latches = latch.NewLatches(c.session, c.sender)
		return c
	}
	// A client whose holds are renewed subscribes to force-unlock notifications. Shorter holds are
	// not worth a subscription and the connection that it may need.
	config.WatchForced = true
	config.ClientName = registry.Self("", config.name, config.label).String()
	c.session = session.New(rdb, config.Config)
	c.latches = latch.NewLatches(c.session, c.sender)
	c.entry = registry.New(rdb, registry.Config{
		Client:  registry.Self(c.session.ID(), config.name, config.label),
		Timeout: config.OpTimeout,
		Logger:  config.Logger,
		Share:   c.session.Share,
	})
	return c
}

// Open connects to the server at url and returns a client that owns the connection. Close closes
// the connection too. The context ctx bounds connecting, not the lifetime of the client.
//
// The URL has the scheme redis, rediss (TLS), valkey, valkeys or unix, as for rueidis.ParseURL. For
// Sentinel, add ?master_set=NAME, and further addresses as &addr=HOST:PORT. A cluster is detected.
// A parameter that has no effect is an error.
//
// Connections to Sentinels use TLS if the URL does, but no user or password. A URL cannot
// express a user of the Sentinels or a client certificate: use [OpenWithOption] for them.
//
// If connecting fails, the error names the cause where it can detect one: the address is a Sentinel
// or a TLS port, or the server has reached its maxclients.
//
// The connection needs no CLIENT TRACKING and refreshes its view of Sentinels and clusters. On
// Linux, it detects within about 5 s that a host is gone. A server or a proxy that accepts data but does
// not reply is detected within 15 s, and earlier with a lease of less than 30 s.
func Open(ctx context.Context, url string, opts ...Option) (*Client, error) {
	config, err := configure(opts)
	if err != nil {
		return nil, &lock.Error{Op: "open", Err: err}
	}
	option, err := parseURL(url)
	if err != nil {
		return nil, &lock.Error{Op: "open", Err: err}
	}
	return open(ctx, tuned(option, config.Lease), config)
}

// OpenWithOption connects as [Open] does, with options that a URL cannot express. Examples are the
// password of the Sentinels, a client certificate, and a dialer. As for rueidis.NewClient, a custom
// dialer (DialCtxFn) must perform the TLS handshake itself. OpenWithOption sets zero fields of
// option that matter to locks, as [ParseURL] does.
func OpenWithOption(ctx context.Context, option rueidis.ClientOption, opts ...Option) (*Client, error) {
	config, err := configure(opts)
	if err != nil {
		return nil, &lock.Error{Op: "open", Err: err}
	}
	return open(ctx, tuned(option, config.Lease), config)
}

// open connects, and returns a client that owns the connection.
func open(ctx context.Context, option rueidis.ClientOption, config config) (*Client, error) {
	if ctx == nil {
		panic("leasehold: nil context") // here, where the caller can recover, and not in a connecting goroutine
	}
	rdb, err := connect(ctx, option, config.lazy)
	if err != nil {
		return nil, &lock.Error{Op: "open", Err: err}
	}
	config.User = dial.UserOf(option)
	if config.Sharded, err = config.pubsub.sharded(ctx, rdb, config.OpTimeout); err != nil {
		rdb.Close()
		return nil, &lock.Error{Op: "open", Err: err}
	}
	c := newClient(rdb, config)
	c.owned = rdb
	c.session.CheckEvictionOnce()
	return c, nil
}

// connect connects before ctx is canceled, or in the background if lazily is true.
func connect(ctx context.Context, option rueidis.ClientOption, lazily bool) (rueidis.Client, error) {
	if lazily {
		return connectLazily(option)
	}
	return dial.Client(ctx, option)
}

// ID returns the UUID of the client. The owner strings of all its locks begin with it.
func (c *Client) ID() string { return c.session.ID() }

// used returns the session for a new lock, and registers the client for operators.
func (c *Client) used() *session.Session {
	if c.entry != nil {
		c.entry.Begin()
	}
	return c.session
}

// NewLock returns a handle of the plain (reentrant) lock called name. It sends no command and is
// cheap. An invalid name or option makes the first call fail. The first handle of a client
// registers the client for operators (see [WithName]).
//
// Java services use RedissonClient.getLock(name).
func (c *Client) NewLock(name string, opts ...lock.Option) *reentrant.Lock {
	return reentrant.New(c.used(), name, opts...)
}

// NewFairLock returns a handle of the fair lock called name. Owners are served first-come,
// first-served across all processes. NewFairLock sends no command. An invalid name or option makes
// the first call fail.
//
// Java services use RedissonClient.getFairLock(name).
func (c *Client) NewFairLock(name string, opts ...lock.Option) *fairlock.Lock {
	return fairlock.New(c.used(), name, opts...)
}

// NewRWLock returns a handle of the read/write lock called name. Any number of readers, or one
// writer, can hold it. NewRWLock sends no command. An invalid name or option makes the first
// call fail.
//
// Java services use RedissonClient.getReadWriteLock(name).
func (c *Client) NewRWLock(name string, opts ...lock.Option) *rwlock.Lock {
	return rwlock.New(c.used(), name, opts...)
}

// NewSemaphore returns a handle of the semaphore called name, with that number of permits. At most
// that number can be held at once. With 0 permits, the handle accepts the number that the semaphore
// already has. NewSemaphore sends no command. An invalid name, number or option makes the
// first call fail.
//
// Java services use RedissonClient.getPermitExpirableSemaphore(name). An RSemaphore (getSemaphore)
// cannot be shared. It has no leases, and a handle with 0 permits would take its permits.
func (c *Client) NewSemaphore(name string, permits int, opts ...lock.Option) *semaphore.Semaphore {
	return semaphore.New(c.used(), name, permits, opts...)
}

// Close releases every lock that the client still holds. It ends the holds and all waiting calls
// with lock.ErrClosed. If the client was created by [Open], Close then closes the connection. If
// the time is up before that, it closes the connection in the background.
//
// Close waits until all goroutines and subscriptions of the client have ended. It stops waiting
// when ctx is canceled, or after three operation timeouts ([WithOpTimeout]). If ctx is already
// canceled, it waits for up to two.
//
// Close does not wait for work that runs under a lock, such as the function of lock.Do or an HTTP
// handler. It ends the holds immediately. Stop the server or the workers first.
//
// The error reports locks whose release Redis did not confirm. They expire with their leases, and
// positions in queues with their waiter timeouts, because the client then removes nothing more. The
// error also reports goroutines that still wait for an unresponsive server. They end with the
// connection.
// The error matches ctx.Err() if ctx was canceled first, and lock.ErrUnavailable if the operation
// timeouts passed first. A second call waits again.
func (c *Client) Close(ctx context.Context) error {
	if l, ok := c.owned.(*lazy); ok {
		l.cancel() // a client that was never connected holds nothing, and its calls must not wait for a server
	}
	if c.entry != nil {
		c.entry.End() // in the background
	}
	ctx, cancel := c.session.CloseContext(ctx) // one limit for all the steps below
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- c.sender.Close(ctx) }() // concurrently, so that it does not delay the release of locks
	err := c.session.Close(ctx)
	err = errors.Join(err, <-sent)
	if c.entry != nil && err == nil {
		err = c.entry.Wait(ctx)
	}
	if c.owned != nil && c.session.GaveBack() {
		closed := make(chan struct{})
		go func() { // on each connection, rueidis waits up to a second or two for the reply to the last command
			c.owned.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-ctx.Done():
		}
	}
	if err != nil {
		return &lock.Error{Op: "close", Err: err}
	}
	return nil
}
