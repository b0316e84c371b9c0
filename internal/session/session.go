package session

import (
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/hint"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Config is what a session needs to know. Package client fills and checks it.
type Config struct {
	Lease     time.Duration // of a lock without a fixed lease; renewed every third of it
	OpTimeout time.Duration // how long one command may stay unanswered
	Poll      time.Duration // how long a waiter relies on hints alone
	KeyPrefix string
	User      string         // the name of the Redis user, for errors; "" if that is not known
	Sharded   bool           // hints go by sharded Pub/Sub; only on a cluster
	Logger    *slog.Logger   // nil is slog.Default, and warnings only
	Look      bool           // ask a server once whether it evicts keys
	Observer  *lock.Observer // nil if nobody observes; it never changes
	Hears     bool           // listen for messages of forced unlocks, from the first renewal on
}

// Session is one client: its identity, and what all its locks share. New sets all that does
// not change; every other field has its own mutex, or is atomic.
type Session struct {
	Config
	rdb      rueidis.Client
	id       string             // the uuid in every owner string
	number   atomic.Uint64      // the number in the latest owner string
	sender   *command.Sender    // sends, and counts calls and what goes on after them
	dog      *watchdog.Watchdog // renews
	hub      *hint.Hub          // hears
	places   places             // the locks that this process has to do with
	settlers settlers           // what is in doubt
	nodes    nodes              // of a cluster
	report   reporter           // warns
	closer   closer             // how far Close has come
	hearing  sync.Once          // see Hears
}

// New returns a session on rdb, which it borrows.
func New(rdb rueidis.Client, c Config) *Session {
	s := &Session{
		Config: c,
		rdb:    rdb,
		id:     owner.NewClient(), // of version 7, which tells the fair lock's scripts that we send heartbeats
		closer: newCloser(),
	}
	s.sender = command.New(rdb, command.Config{Timeout: c.OpTimeout, User: c.User, Closing: s.closer.closing})
	s.nodes.sliced = rdb.Mode() == rueidis.ClientModeCluster
	s.places.init(s)
	s.dog = watchdog.New(c.Lease, batchSize, s.renew)
	s.report.given = c.Logger
	s.hub = hint.New(rdb, hint.Config{Timeout: c.OpTimeout, Look: c.Poll, Sharded: c.Sharded, Denied: s.unhinted})
	return s
}

// newOwner returns an owner string that never was before, for a tenure that is asked for
// from now on. A command that is still under way for an earlier tenure cannot touch it.
//
// Its number is the clock in µs, and ten random bits. So everybody that looks at the lock
// sees since when the owner asks, and nobody can guess the string. An owner of a semaphore
// that wants so many permits has so many numbers, of which the string has the first, and
// how many they are.
func (s *Session) newOwner(now time.Time, permits int) string {
	n := uint64(now.UnixMicro())<<10 | rand.Uint64N(1<<10)
	for {
		last := s.number.Load()
		if n = max(n, last+1); s.number.CompareAndSwap(last, n+uint64(max(permits, 1)-1)) {
			break
		}
	}
	var b [64]byte
	text := strconv.AppendUint(append(append(b[:0], s.id...), ':'), n, 10)
	if permits > 0 {
		text = strconv.AppendInt(append(text, ':'), int64(permits), 10)
	}
	return string(text)
}

// askedSince returns since when an owner asks, as its string tells; the zero time if the
// string is not one of ours.
func askedSince(owner string) time.Time {
	client, number, _ := strings.Cut(owner, ":")
	number, _, _ = strings.Cut(number, ":") // behind it are the permits
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || len(client) < 15 || client[14] != '7' { // Redisson's have a uuid of version 4
		return time.Time{}
	}
	return time.UnixMicro(int64(n >> 10))
}
