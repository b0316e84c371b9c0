package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// unreadable returns the error of ParseURL for text, which rueidis refused with err. It never repeats
// anything that may be a part of the password.
func unreadable(text string, err error) error {
	scheme, _, ok := strings.Cut(text, "://")
	switch known := map[string]bool{"redis": true, "rediss": true, "valkey": true, "valkeys": true, "unix": true}; {
	case !ok:
		return errors.New("the URL has no scheme: want redis://host:port, rediss://host:port for TLS, or unix:///path")
	case !known[scheme] && !strings.Contains(scheme, "@"):
		return fmt.Errorf("the URL has the scheme %.20q: want redis://host:port, rediss://host:port for TLS, or unix:///path", scheme)
	case strings.Contains(text, "@") || errors.As(err, new(*url.Error)):
		return errors.New("the URL cannot be read; are user and password percent-encoded? want redis://user:password@host:port")
	}
	return err
}

// userOf returns the Redis user that a client with these options connects as.
func userOf(option rueidis.ClientOption) string {
	if option.Username == "" {
		return "default"
	}
	return option.Username
}

// way is the way to the servers of an Open client. It knows how far the latest
// connection has come, so that an error can say it.
type way struct {
	mu    sync.Mutex
	addr  string // guarded by mu
	stage stage  // guarded by mu
}

// stage is how far a connection has come.
type stage int

const (
	nowhere   stage = iota
	dialing         // there is no connection yet
	shaking         // the server accepted it, and has not answered the TLS handshake yet
	connected       // what follows is Redis' own protocol
)

func (w *way) at(addr string, s stage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addr, w.stage = addr, s
}

// within returns option with w as the way to its servers.
func (w *way) within(option rueidis.ClientOption) rueidis.ClientOption {
	plain := option.DialCtxFn // of a Unix socket
	option.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (conn net.Conn, err error) {
		w.at(addr, dialing)
		if plain != nil {
			conn, err = plain(ctx, addr, dialer, config)
		} else {
			conn, err = dialer.DialContext(ctx, "tcp", addr)
		}
		if err == nil && config != nil {
			w.at(addr, shaking)
			conn, err = shakeHands(ctx, conn, addr, dialer, config)
		}
		if err != nil {
			return nil, retry.Undialled{Err: err}
		}
		w.at(addr, connected)
		return conn, nil
	}
	return option
}

// shakeHands makes the TLS handshake with addr over conn.
func shakeHands(ctx context.Context, conn net.Conn, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	within := ctx
	if dialer.Timeout > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, dialer.Timeout)
		defer cancel()
	}
	c := tls.Client(conn, config)
	err := c.HandshakeContext(within)
	if err == nil {
		return c, nil
	}
	_ = conn.Close() // the handshake's error counts
	switch {
	case errors.As(err, new(tls.RecordHeaderError)), within.Err() != nil && ctx.Err() == nil:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: conn.RemoteAddr(), Err: errPlain}
	}
	return nil, err
}

// errPlain is the error of a TLS connection to a server that speaks no TLS.
var errPlain = errors.New("the server does not speak TLS at this port; without TLS it is redis://host:port")

// explain returns err, the error of connecting, in words that say what to do. over
// says that the caller's context ended the attempt.
func (w *way) explain(option rueidis.ClientOption, err error, over bool) error {
	w.mu.Lock()
	addr, stage := w.addr, w.stage
	w.mu.Unlock()
	var reply *rueidis.RedisError
	if errors.As(err, &reply) {
		if command.Refused(err) {
			return command.Refusal(addr, userOf(option), err)
		}
		return fmt.Errorf("the server at %s: %w", addr, err)
	}
	silent := over || errors.Is(err, context.DeadlineExceeded) // of a context of rueidis
	var words string
	switch {
	case stage == dialing && over:
		words = "no connection yet"
	case stage == shaking && over:
		words = "no answer to the TLS handshake; does the server speak TLS at this port? Without TLS it is redis://host:port"
	case stage == connected && silent:
		words = "it took the connection, and says nothing"
	case stage == connected && option.TLSConfig == nil && (errors.Is(err, io.EOF) || errors.As(err, new(net.Error))):
		words = "it closed the connection; does it want TLS? That is rediss://host:port"
	case errors.As(err, new(net.Error)) || errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	default:
		return err
	}
	if over || !silent {
		return fmt.Errorf("%w: %s: %s: %w", lock.ErrUnavailable, addr, words, err)
	}
	return fmt.Errorf("%w: %s: %s", lock.ErrUnavailable, addr, words) // the caller's context lives
}

// dial connects before ctx ends.
func dial(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	type result struct {
		rdb rueidis.Client
		err error
	}
	var w way
	connected := make(chan result) // unbuffered: the sender knows that it was received
	go func() {
		rdb, err := rueidis.NewClient(w.within(option)) // takes no context
		select {
		case connected <- result{rdb, err}:
		case <-ctx.Done():
			if err == nil {
				rdb.Close()
			}
		}
	}()
	select {
	case r := <-connected:
		if r.err != nil {
			return nil, w.explain(option, r.err, false)
		}
		return r.rdb, nil
	case <-ctx.Done():
		return nil, w.explain(option, ctx.Err(), true)
	}
}
