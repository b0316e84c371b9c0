// Package client is the entry point of leasehold: it makes clients, and a client
// hands out locks.
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
//	return work(h.Context()) // over as soon as the lock is not certainly held
//
// [New] takes a rueidis client that the application has already. Package lock says what
// every lock and hold promises; the package of each kind says what that kind
// does.
package client

import (
	"context"
	"errors"

	"github.com/leasehold-go/leasehold/fairlock"
	"github.com/leasehold-go/leasehold/internal/dial"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/internal/send"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/reentrant"
	"github.com/leasehold-go/leasehold/rwlock"
	"github.com/leasehold-go/leasehold/semaphore"
	"github.com/redis/rueidis"
)

// Client hands out locks. All locks of a client share one identity in Redis,
// one watchdog and one connection for hints; on a cluster with sharded Pub/Sub there
// is one to each node. One client for each process is enough. A Client is safe for concurrent use.
type Client struct {
	session *session.Session
	sender  *send.Sender // for what holds no lease
	latches *latch.Latches
	owned   rueidis.Client  // nil if the caller's
	entry   *registry.Entry // nil without a registry
}

// New returns a client on rdb. It never closes rdb: close the client first, then rdb. The
// client cannot always see that rdb was closed: after a connection that could not be made,
// rueidis forgets it. Then calls go on, as while the server is down, until Close.
// It does no I/O, except for one command to a cluster, within the operation timeout:
// see [PubSubAuto].
//
// rdb may be of any kind: standalone, Sentinel or cluster. With
// SendToReplicas it must not send EVALSHA to replicas. Its blocking pool must have a
// free connection for the hints, on each node of a cluster, one for the entry of
// [WithName], and one for each acquisition under way with [lock.WithReplicas]. If it has none, waiters poll
// once per second and such acquisitions time out; the client logs that once. Its
// ConnWriteTimeout, 10 s if not set, bounds how long a goroutine of the client can wait for
// a server that is frozen; calls return long before that. When a call whose context
// cannot end gets no answer within the operation timeout, rueidis may close the
// connection, and what the application has under way there fails with it.
//
// With a ConnLifetime, rueidis sends again by itself what has no answer a second after its
// connection has come to its end. So an answer that took a second or longer, and a failed dial, leave it in doubt
// whether another copy runs: the client looks for that later, at some cost. An Unlock
// whose connection breaks within that second can say that a lock was lost which it gave back.
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

// newClient returns a client on rdb.
func newClient(rdb rueidis.Client, config config) *Client {
	c := &Client{sender: send.New(rdb, config.KeyPrefix, config.OpTimeout)}
	rdb = withPool(rdb, c.sender, config.Logger)
	if config.unregistered {
		c.session = session.New(rdb, config.Config)
		c.latches = latch.NewLatches(c.session)
		return c
	}
	// A client whose lock is renewed listens for word of forced unlocks. For shorter holds that is
	// not worth a subscription, and the connection that it may take.
	config.Hears = true
	config.Called = registry.Self("", config.name, config.label).String()
	c.session = session.New(rdb, config.Config)
	c.latches = latch.NewLatches(c.session)
	c.entry = registry.New(rdb, registry.Config{
		Client:  registry.Self(c.session.ID(), config.name, config.label),
		Timeout: config.OpTimeout,
		Logger:  config.Logger,
	})
	return c
}

// Open connects to the server at url and returns a client that owns the
// connection: Close closes it too. It knows redis, rediss (TLS), valkey, valkeys
// and unix URLs, as rueidis.ParseURL does; Sentinel by ?master_set=NAME and
// further addresses by ?addr=HOST:PORT; a cluster shows itself. Sentinels are
// asked by TLS if the URL says so, and without user and password: for what a URL
// cannot say, such as theirs or a client's certificate, see [ParseURL]. A parameter
// that has no meaning is an error. An error of connecting says what is at the address
// if it can be told: a Sentinel, a port with TLS, a server that has its maxclients.
//
// The connection needs no CLIENT TRACKING, notices within 5 s that a server is
// gone, and keeps its view of Sentinels and clusters fresh. ctx bounds the
// connecting, not the client's life.
func Open(ctx context.Context, url string, opts ...Option) (*Client, error) {
	config, err := configure(opts)
	if err != nil {
		return nil, &lock.Error{Op: "open", Err: err}
	}
	option, err := ParseURL(url)
	if err != nil {
		return nil, &lock.Error{Op: "open", Err: err}
	}
	return open(ctx, option, config)
}

// OpenWithOption is [Open] for what a URL cannot express, such as the password of the Sentinels, a client certificate, or a dialer. It
// sets the fields of option that are zero and matter to locks as [ParseURL] does.
func OpenWithOption(ctx context.Context, option rueidis.ClientOption, opts ...Option) (*Client, error) {
	config, err := configure(opts)
	if err != nil {
		return nil, &lock.Error{Op: "open", Err: err}
	}
	return open(ctx, tuned(option), config)
}

// open connects, and returns a client that owns the connection.
func open(ctx context.Context, option rueidis.ClientOption, config config) (*Client, error) {
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
	c.session.LookOnce()
	return c, nil
}

// connect connects before ctx ends, or in the background.
func connect(ctx context.Context, option rueidis.ClientOption, lazily bool) (rueidis.Client, error) {
	if lazily {
		return connectLazily(option)
	}
	return dial.Client(ctx, option)
}

// ID returns the uuid of the client, with which the owner strings of all its locks begin.
func (c *Client) ID() string { return c.session.ID() }

// used returns the session for a lock that is going to be used, after which operators
// find out who the client is.
func (c *Client) used() *session.Session {
	if c.entry != nil {
		c.entry.Begin()
	}
	return c.session
}

// NewLock returns a handle of the re-entrant lock called name. It does no I/O and is
// cheap; a bad name or option shows as an error of the first call. The first
// handle of a client makes it known to operators: see [WithName].
//
// Java services lock it by RedissonClient.getLock(name).
func (c *Client) NewLock(name string, opts ...lock.Option) *reentrant.Lock {
	return reentrant.New(c.used(), name, opts...)
}

// NewFairLock returns a handle of the fair lock called name: owners are served in
// the order in which they asked, across all processes. It does no I/O and is
// cheap; a bad name or option is an error of the first call.
//
// Java services lock it by RedissonClient.getFairLock(name).
func (c *Client) NewFairLock(name string, opts ...lock.Option) *fairlock.Lock {
	return fairlock.New(c.used(), name, opts...)
}

// NewRWLock returns a handle of the read/write lock called name: any number of
// readers, or one writer. It does no I/O and is cheap; a bad name or option is
// an error of the first call.
//
// Java services lock it by RedissonClient.getReadWriteLock(name).
func (c *Client) NewRWLock(name string, opts ...lock.Option) *rwlock.Lock {
	return rwlock.New(c.used(), name, opts...)
}

// NewSemaphore returns a handle of the semaphore called name, of which so many callers can hold a permit at
// once. With 0 permits, the handle leaves the number to the one that made the semaphore. It does no I/O and is
// cheap; a bad name, number or option is an error of the first call.
//
// Java services share it by RedissonClient.getPermitExpirableSemaphore(name). An RSemaphore (getSemaphore) cannot
// be shared: it has no leases, and with 0 permits the handle would take its permits.
func (c *Client) NewSemaphore(name string, permits int, opts ...lock.Option) *semaphore.Semaphore {
	return semaphore.New(c.used(), name, permits, opts...)
}

// Close releases every lock that the client still holds, and ends their holds and
// all waiting calls with lock.ErrClosed. It waits until no goroutine and no
// subscription of the client is left, until ctx is canceled, or for three operation
// timeouts ([WithOpTimeout]), whichever comes first. If ctx is canceled already, it waits for up to two.
// On an [Open] client it then closes the connection; if the time is up before that is done, it
// continues in the background.
//
// Close does not wait for functions that run under a lock, such as that of lock.Do or of an HTTP handler: it ends
// their holds at once. Stop the server or the workers before it.
//
// The error says what is left: locks that Redis did not confirm to be
// free, which expire with their leases, or goroutines that still wait for a server
// that does not respond, which end with the connection. It matches ctx.Err() if ctx was canceled first,
// and lock.ErrUnavailable if the operation timeouts were over first. A second call waits
// again.
func (c *Client) Close(ctx context.Context) error {
	if l, ok := c.owned.(*lazy); ok {
		l.stop() // a client that was never connected holds nothing, and its calls must not wait for a server
	}
	if c.entry != nil {
		c.entry.End() // meanwhile
	}
	ctx, cancel := c.session.CloseContext(ctx) // for all that follows together
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- c.sender.Close(ctx) }() // what takes no locks keeps none from being given back
	err := c.session.Close(ctx)
	err = errors.Join(err, <-sent)
	if c.entry != nil && err == nil {
		err = c.entry.Wait(ctx)
	}
	if c.owned != nil && c.session.GaveBack() {
		closed := make(chan struct{})
		go func() { // rueidis waits for an answer to each connection's last command, for a second or two if there is none
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
