// Package registry tells operators who the clients are: each keeps a small hash in Redis,
// with its host, process and application, for as long as it lives. An owner string has the
// client's uuid in it, so whoever looks at a lock finds out who holds it.
//
// No lock depends on it. What goes wrong here is logged, and nothing else.
package registry

import (
	"context"
	"errors"
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

// TTL is how long an entry lives if nothing is heard of its client, and Interval is how
// often the client is heard.
const (
	TTL      = time.Minute
	Interval = 10 * time.Second
)

// MostText is how many bytes of a name, a host or a label are kept, and shown.
const MostText = 256

// Config is what an Entry needs to know.
type Config struct {
	Client  lock.Client   // what is told
	Timeout time.Duration // how long one command may stay unanswered
	Logger  *slog.Logger  // nil is slog.Default
}

// Entry is what one client tells of itself. Make one with New, end it with End.
type Entry struct {
	config Config            // set once
	rdb    rueidis.Client    // set once
	key    string            // set once
	told   luascripts.Client // set once

	begun sync.Once
	end   sync.Once
	ended chan struct{} // closed by End
	done  chan struct{} // closed when the goroutine is over, or will never be
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

// bounded is text without what would make an entry large.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MostText)], "")
}

// Begin writes the entry, and keeps it, behind the caller's back. Only the first call does
// anything. It costs next to nothing, so whoever comes to use a lock calls it.
func (e *Entry) Begin() {
	e.begun.Do(func() { go e.run() })
}

// End ends what Begin began, and deletes the entry behind the caller's back. Calling it again
// is fine.
func (e *Entry) End() {
	e.begun.Do(func() { close(e.done) })
	e.end.Do(func() { close(e.ended) })
}

// Wait waits after End until nothing goes on any more, for as long as ctx lasts, or for two
// commands at the most if ctx is over already.
func (e *Entry) Wait(ctx context.Context) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 2*e.config.Timeout)
		defer cancel()
	}
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w, and the server has not answered yet that it has no entry of the client any more", ctx.Err())
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
		written = true // also if no answer comes
		err := e.keep()
		if refused(err) {
			e.logger().Warn("client: the server refuses the entry that says who this client is, so there is none; grant the rights of docs/SECURITY.md, or use client.WithoutRegistry",
				"err", luascripts.Discreet(err))
			return
		}
		if failing.said(time.Now(), err) {
			e.logger().Warn("client: the entry that says who this client is cannot be kept; it is tried again", "err", luascripts.Discreet(err))
		}
		timer.Reset(Interval)
	}
}

// keep writes the entry, or lets it live on.
func (e *Entry) keep() error {
	return e.apart(func(ctx context.Context, conn rueidis.DedicatedClient) error {
		_, err := luascripts.KeepClient(ctx, conn, e.key, TTL, &e.told)
		return err
	})
}

// remove deletes the entry. If it fails, the entry is gone in a minute.
func (e *Entry) remove() {
	_ = e.apart(func(ctx context.Context, conn rueidis.DedicatedClient) error {
		return conn.Do(ctx, conn.B().Del().Key(e.key).Build()).Error()
	})
}

// apart calls f with a connection from the pool. On the connection of the locks a command beside
// another makes the client library use goroutines of its own from then on, which makes each lock of
// one who locks alone some 15 % slower.
func (e *Entry) apart(f func(context.Context, rueidis.DedicatedClient) error) error {
	return e.rdb.Dedicated(func(conn rueidis.DedicatedClient) error {
		ctx, cancel := context.WithTimeout(context.Background(), e.config.Timeout)
		defer cancel()
		return f(ctx, conn)
	})
}

// logger is asked for each time, as an application may set its default late.
func (e *Entry) logger() *slog.Logger {
	if e.config.Logger != nil {
		return e.config.Logger
	}
	return slog.Default()
}

// failing is for how long the entry could not be kept. A server that is away for less than
// the TTL costs nothing, and the locks say what is wrong with it anyway.
type failing struct {
	since time.Time // the first failure in a row; zero if the last call went well
	told  bool
}

// said reports whether err is worth a word: once in a row of failures that lasts as long
// as the entry would.
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

// refused reports whether err says that the server does not do that, and will not do it later
// either: the user may not, or the key holds something else.
func refused(err error) bool {
	var reply *rueidis.RedisError
	if !errors.As(err, &reply) || retry.Passes(reply.Error()) {
		return false
	}
	for _, later := range []string{"OOM", "MISCONF", "NOREPLICAS"} {
		if strings.Contains(reply.Error(), later) {
			return false
		}
	}
	return true
}
