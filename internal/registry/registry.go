// Package registry lets operators find the process behind an owner string. Each client keeps
// a small hash in Redis, its entry, with its host, process and application, until it is closed.
// An owner string contains the uuid of its client, which is the name of the entry.
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
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// TTL is the time that an entry outlives the last sign of life of its client. Interval is the
// time between two such signs.
const (
	TTL      = time.Minute
	Interval = 10 * time.Second
)

// MostText is the most bytes of a name, a host or a label that an entry has.
const MostText = 256

// Config configures an Entry.
type Config struct {
	Client  lock.Client   // the contents of the entry
	Timeout time.Duration // the time that one command may stay unanswered
	Logger  *slog.Logger  // nil means slog.Default
}

// An Entry keeps the entry of one client in Redis. Make one with New, and end it with End.
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

// New returns the entry of a client on rdb, which it borrows. It does no I/O before Begin.
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

// bounded returns text, cut to MostText bytes.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MostText)], "")
}

// Begin starts a goroutine that writes the entry and keeps it, and does not wait for it. Only the
// first call does anything. Later calls cost next to nothing, so each use of a lock makes one.
func (e *Entry) Begin() {
	e.begun.Do(func() { go e.run() })
}

// End stops the goroutine of Begin, which then deletes the entry. End does not wait for it. It can
// be called again.
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
		return fmt.Errorf("%w: the server has not confirmed that the registry entry is removed", ctx.Err())
	}
}

// run keeps the entry until End.
func (e *Entry) run() {
	defer close(e.done)
	var failing failing
	timer := time.NewTimer(0)
	defer timer.Stop()
	for written := false; ; {
		select {
		case <-timer.C:
		case <-e.ended:
			if written {
				e.remove()
			}
			return
		}
		written = true // even if no answer comes: the command may be carried out
		err := e.keep()
		if refused(err) {
			e.logger().Warn("registry entry denied (ACL); grant the permissions in docs/operate/security.md, or use client.WithoutRegistry",
				"err", luascripts.Discreet(err))
			return
		}
		if failing.said(time.Now(), err) {
			e.logger().Warn("registry entry not updated, will retry", "err", luascripts.Discreet(err))
		}
		timer.Reset(Interval)
	}
}

// keep writes the entry, or prolongs its life.
func (e *Entry) keep() error {
	return e.apart(func(ctx context.Context, conn rueidis.DedicatedClient) error {
		_, err := luascripts.KeepClient(ctx, conn, e.key, TTL, &e.told)
		return err
	})
}

// remove deletes the entry. If that fails, the entry ends by itself after TTL.
func (e *Entry) remove() {
	_ = e.apart(func(ctx context.Context, conn rueidis.DedicatedClient) error {
		return conn.Do(ctx, conn.B().Del().Key(e.key).Build()).Error()
	})
}

// apart calls f with a connection from the pool. On the connection of the locks, a command at the
// same time as another makes the client library use goroutines of its own from then on. That makes
// each lock some 15 % slower for an application that locks in one goroutine.
func (e *Entry) apart(f func(context.Context, rueidis.DedicatedClient) error) error {
	return e.rdb.Dedicated(func(conn rueidis.DedicatedClient) error {
		ctx, cancel := context.WithTimeout(context.Background(), e.config.Timeout)
		defer cancel()
		return f(ctx, conn)
	})
}

// logger returns the logger. It looks for the default each time, as an application may set it late.
func (e *Entry) logger() *slog.Logger {
	if e.config.Logger != nil {
		return e.config.Logger
	}
	return slog.Default()
}

// failing counts the time for which the entry could not be kept. A server that is away for less
// than TTL costs nothing, and the locks report its absence anyway.
type failing struct {
	since time.Time // the first failure in a row; zero if the last call succeeded
	told  bool
}

// said reports whether to log err: once in each row of failures, when the row has lasted for TTL.
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

// refused reports whether err says that the server will never carry out the command: the user
// lacks a right, or the key holds something else.
func refused(err error) bool {
	return err != nil && !retry.FaultOf(err).Passes
}
