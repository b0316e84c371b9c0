// Package registry lets operators find the process behind an owner string. Until it is closed, each client has an entry
// in Redis: a small hash with its host, process and application. The entry is named after the UUID of the client, which
// every owner string contains.
//
// No lock depends on an entry. An error here is logged and changes nothing else.
package registry

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/mask"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// TTL is the expiry of an entry. Interval is the time between two updates by its client. If the first write fails, it is
// repeated soon, and then after longer and longer pauses: a client that connects in the background can use its locks before
// it is connected.
const (
	TTL      = time.Minute
	Interval = 10 * time.Second
	soon     = time.Second
)

// MostText is the maximum size of a name, a host or a label in bytes.
const MostText = 256

// Config configures an Entry.
type Config struct {
	Client  lock.Client   // the contents of the entry
	Timeout time.Duration // of one command
	Logger  *slog.Logger  // nil means slog.Default

	// Share, if not nil, calls f with a connection that is not the one of the locks. It reports false if there is none
	// for key.
	Share func(ctx context.Context, key string, f func(rueidis.DedicatedClient) error) (bool, error)
}

// An Entry maintains the entry of one client in Redis until End.
type Entry struct {
	config Config            // set once
	rdb    rueidis.Client    // set once
	key    string            // set once
	told   luascripts.Client // set once

	begun sync.Once
	end   sync.Once
	ended chan struct{} // closed by End
	done  chan struct{} // closed when the goroutine ends, or when End finds that it never began
}

// New returns the entry of a client. It does no I/O before Begin, and does not close rdb.
func New(rdb rueidis.Client, c Config) *Entry {
	return &Entry{
		config: c, rdb: rdb, key: keys.Client(c.Client.ID),
		told: luascripts.Client{
			Host:    bounded(c.Client.Host),
			PID:     strconv.Itoa(c.Client.PID),
			Name:    bounded(c.Client.Name),
			Label:   bounded(c.Client.Label),
			Version: bounded(c.Client.Version),
			Started: c.Client.Started.UTC().Format(time.RFC3339Nano),
		},
		ended: make(chan struct{}),
		done:  make(chan struct{}),
	}
}

// bounded returns text, truncated to MostText bytes.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MostText)], "")
}

// Begin starts a goroutine that writes the entry and updates it. Only the first call has an effect. Later calls are
// cheap, so it is called for each use of a lock.
func (e *Entry) Begin() {
	e.begun.Do(func() { go e.run() })
}

// End stops the goroutine of Begin, which then deletes the entry. End does not wait for it. Repeated calls are allowed.
func (e *Entry) End() {
	e.begun.Do(func() { close(e.done) })
	e.end.Do(func() { close(e.ended) })
}

// Wait waits, after End, until the goroutine has ended, or until ctx is canceled.
func (e *Entry) Wait(ctx context.Context) error {
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: the server has not confirmed that the registry entry is removed", mask.Canceled(ctx, lock.ErrNotAcquired, lock.ErrUnavailable))
	}
}

// run updates the entry until End, or until the server denies the command.
func (e *Entry) run() {
	defer close(e.done)
	var failing failing
	timer := time.NewTimer(0)
	defer timer.Stop() // mutant: removed: memory
	for written, pause := false, soon; ; pause = min(2*pause, Interval) {
		select {
		case <-timer.C:
		case <-e.ended:
			if written { // mutant: always: speed
				e.remove()
			}
			return
		}
		written = true // even without a reply, the command may be executed
		err := e.keep()
		if refused(err) {
			e.logger().Warn("registry entry denied (ACL); grant the permissions in docs/operate/security.md, or use client.WithoutRegistry",
				"err", luascripts.Discreet(err))
			return
		}
		if failing.said(time.Now(), err) {
			e.logger().Warn("registry entry not updated, will retry", "err", luascripts.Discreet(err))
		}
		if err == nil {
			pause = Interval
		}
		timer.Reset(pause)
	}
}

// keep writes the entry, or extends its expiry. It does not use the connection of the locks: the first two concurrent
// commands there make rueidis start background goroutines for it. That makes each lock about 15 % slower for an
// application that locks in one goroutine. A redirection is the exception, because rueidis follows none elsewhere.
func (e *Entry) keep() error {
	ctx, cancel := context.WithTimeout(context.Background(), e.config.Timeout)
	defer cancel() // mutant: removed: memory
	write := func(conn rueidis.DedicatedClient) error {
		_, err := luascripts.KeepClient(ctx, conn, e.key, TTL, &e.told)
		return err
	}
	shared, err := false, error(nil)
	if e.config.Share != nil {
		shared, err = e.config.Share(ctx, e.key, write)
	}
	if !shared {
		err = e.rdb.Dedicated(write)
	}
	reply, refused := rueidis.IsRedisErr(err)
	if !refused {
		return err
	}
	_, asks := reply.IsAsk()
	if _, moved := reply.IsMoved(); asks || moved {
		ctx, cancel := e.limited()
		defer cancel() // mutant: removed: memory
		_, err = luascripts.KeepClient(ctx, e.rdb, e.key, TTL, &e.told)
	}
	return err
}

// remove deletes the entry. If that fails, the entry expires after TTL. The client is closing, so the connection of the
// locks serves, and no other is opened for one command.
func (e *Entry) remove() {
	ctx, cancel := e.limited()
	defer cancel() // mutant: removed: memory
	_ = e.rdb.Do(ctx, e.rdb.B().Del().Key(e.key).Build()).Error()
}

// limited returns a context for one command on the connection of the locks. One with a deadline could make rueidis close
// the connection.
func (e *Entry) limited() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(e.config.Timeout, cancel)
	return ctx, func() {
		timer.Stop() // mutant: removed: memory
		cancel()     // mutant: removed: memory
	}
}

// logger returns the logger to use now, because an application may set slog's default late.
func (e *Entry) logger() *slog.Logger {
	if e.config.Logger != nil {
		return e.config.Logger
	}
	return slog.Default()
}

// failing limits the logging of failed updates. An outage shorter than TTL does no harm, and the locks report it anyway.
type failing struct {
	since time.Time // the first failure in a row; zero if the last call succeeded
	told  bool      // already logged for this series of failures
}

// said reports whether to log err: once per row of failures, after the row has lasted for TTL.
func (f *failing) said(now time.Time, err error) bool {
	if err == nil {
		*f = failing{}
		return false
	}
	if f.since.IsZero() {
		f.since = now
	}
	if f.told || now.Sub(f.since) < TTL {
		return false
	}
	f.told = true
	return true
}

// refused reports whether err is permanent: the user lacks a permission, or the key has the wrong type. A reply that
// no table has may be a proxy's, about one command.
func refused(err error) bool {
	f := retry.FaultOf(err)
	return !f.Temporary && !f.MayHaveRun()
}
