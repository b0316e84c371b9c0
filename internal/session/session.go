package session

import (
	"log/slog"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Config is what a session needs to know. Package client fills and checks it.
type Config struct {
	Lease         time.Duration // of a lock without a fixed lease; renewed every third of it
	OpTimeout     time.Duration // how long one command may stay unanswered
	Poll          time.Duration // how long a waiter relies on notifications alone
	KeyPrefix     string
	User          string         // the name of the Redis user, for errors; "" if that is not known
	Sharded       bool           // notifications go by sharded Pub/Sub; only on a cluster
	Logger        *slog.Logger   // nil is slog.Default, and warnings only
	CheckEviction bool           // ask a server once whether it evicts keys
	Observer      *lock.Observer // nil if no one observes; it never changes
	WatchForced   bool           // listen for messages of forced unlocks, once a hold is a second old
	ClientName    string         // how operators see the client, as the note of a forced unlock names it; "" if they see its ID alone
}

// Session is one client: its identity, and what all its locks share. New sets all that does
// not change; every other field has its own mutex, or is atomic.
type Session struct {
	Config
	identity
	rdb         rueidis.Client
	sender      *command.Sender    // sends, and counts calls and what goes on after them
	dog         *watchdog.Watchdog // renews
	hub         *pubsub.Hub        // receives messages
	table       lockTable          // the locks that this process has to do with
	reconcilers reconcilers        // what is uncertain
	nodes       nodes              // of a cluster
	report      reporter           // warns
	closer      closer             // how far Close has come
	hearing     hearing            // see WatchForced
}

// New returns a session on rdb, which it borrows.
func New(rdb rueidis.Client, c Config) *Session {
	s := &Session{
		Config:   c,
		identity: identity{id: owner.NewClient()}, // of version 7, which tells the fair lock's scripts that we send heartbeats
		rdb:      rdb,
	}
	s.closer.init()
	s.sender = command.New(rdb, command.Config{Timeout: c.OpTimeout, User: c.User, Closing: s.closer.closing})
	s.nodes.sliced = rdb.Mode() == rueidis.ClientModeCluster
	s.table.init(s)
	s.dog = watchdog.New(c.Lease, batchSize, s.renew)
	s.report.given = c.Logger
	s.hub = pubsub.New(rdb, pubsub.Config{Timeout: c.OpTimeout, Look: c.Poll, Sharded: c.Sharded, Denied: s.unhinted})
	return s
}
