package session

import (
	"context"
	"log/slog"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Config configures a session. Package client fills in and validates it.
type Config struct {
	Lease         time.Duration // of a lock without a fixed lease; renewed every third of the lease
	OpTimeout     time.Duration // how long to wait for the reply to one command
	Poll          time.Duration // how long a waiter waits for a notification before it retries
	KeyPrefix     string
	User          string         // the Redis user, for errors; "" if unknown
	Sharded       bool           // use sharded Pub/Sub; only on a cluster
	Logger        *slog.Logger   // nil logs warnings and errors to slog.Default
	CheckEviction bool           // check once whether the server evicts keys
	Observer      *lock.Observer // nil without an observer; never changes
	WatchForced   bool           // subscribe to force-unlock messages once a hold is a second old
	ClientName    string         // the name of the client in audit records of force-unlocks; "" if only its ID appears there
}

// Session is one client: its identity, and what all its locks share. The fields are set by New and then constant,
// have their own mutex, or are atomic.
type Session struct {
	Config
	identity
	rdb         rueidis.Client
	sender      *command.Sender    // sends commands; counts calls and background goroutines
	dog         *watchdog.Watchdog // renews leases
	hub         *pubsub.Hub        // receives messages
	table       lockTable          // the locks that this client uses
	reconcilers reconcilers        // resolve unknown outcomes
	nodes       nodes              // of a cluster
	report      reporter           // logs
	closer      closer             // the progress of Close
	forced      forcedMessages     // see WatchForced
}

// rolePolls is how many poll intervals pass between the hub's periodic queries of a server's role. A script that counts no
// listener of this client triggers a query at once, so the period matters only for kinds whose scripts do not count them.
const rolePolls = 10

// New returns a session that uses rdb. It does not close rdb.
func New(rdb rueidis.Client, c Config) *Session {
	s := &Session{
		Config:   c,
		identity: identity{id: owner.NewClient()}, // a version 7 UUID: the fair lock's scripts expect heartbeats from this client
		rdb:      rdb,
		closer:   closer{givenBack: make(chan struct{}), givenUp: make(chan struct{}), last: make(map[*func(context.Context)]struct{})},
	}
	sending := command.Config{Timeout: c.OpTimeout, User: c.User, Idle: command.Idlers}
	if s.nodes.sliced = rdb.Mode() == rueidis.ClientModeCluster; s.sliced() {
		sending.Node = s.node
	}
	s.sender = command.New(rdb, sending)
	s.table.init(s)
	s.dog = watchdog.New(c.Lease, batchSize, s.renew)
	s.report.given = c.Logger
	s.hub = pubsub.New(rdb, pubsub.Config{Timeout: c.OpTimeout, RoleInterval: rolePolls * c.Poll, Sharded: c.Sharded, Denied: s.subscriptionDenied})
	return s
}
