// Package dial connects to Redis, and explains failures in terms that an operator can act on.
package dial

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// UserOf returns the Redis user that a client with these options connects as, for error messages. It returns "" if
// AuthCredentialsFn provides the user. It also returns "" for a user without a password, because that is in fact a
// password in a URL such as redis://secret@host.
func UserOf(option rueidis.ClientOption) string {
	if option.AuthCredentialsFn != nil || option.Username != "" && option.Password == "" {
		return ""
	}
	return cmp.Or(option.Username, "default")
}

// Way creates the connections of one client. It tracks how far the latest connection attempt got, so that an error can report it.
type Way struct {
	option rueidis.ClientOption // set once: as the caller gave it

	mu    sync.Mutex
	addr  string // guarded by mu
	stage stage  // guarded by mu
}

// stage is how far a connection attempt got.
type stage int

const (
	nowhere   stage = iota
	dialing         // there is no connection yet
	shaking         // the server accepted it, and has not completed the TLS handshake
	connected       // everything after that is Redis' own protocol
)

// NewWay returns a Way, and a copy of option that connects through it.
func NewWay(option rueidis.ClientOption) (*Way, rueidis.ClientOption) {
	if given := option.DialFn; given != nil && option.DialCtxFn == nil { // deprecated, but still supported by rueidis
		option.DialCtxFn = func(_ context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
			return given(addr, d, config)
		}
	}
	w := &Way{option: option}
	option.DialCtxFn = w.dial
	return w, option
}

func (w *Way) at(addr string, s stage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addr, w.stage = addr, s
}

// dial is the DialCtxFn of a client.
func (w *Way) dial(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (conn net.Conn, err error) {
	w.at(addr, dialing)
	if given := w.option.DialCtxFn; given != nil { // as rueidis defines, it also performs the TLS handshake
		conn, err = given(ctx, addr, dialer, config)
	} else if conn, err = dialer.DialContext(ctx, "tcp", addr); err == nil && config != nil {
		w.at(addr, shaking)
		conn, err = shakeHands(ctx, conn, addr, dialer, config)
	}
	switch {
	case err == nil:
	case w.option.ConnLifetime > 0:
		return nil, err // rueidis may have sent the command before, on the previous connection
	default:
		return nil, retry.Undialled{Err: err}
	}
	w.at(addr, connected)
	return conn, nil
}

// shakeHands performs the TLS handshake with addr over conn.
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
	_ = conn.Close() // the error of the handshake is returned
	switch {
	case errors.As(err, new(tls.RecordHeaderError)), within.Err() != nil && ctx.Err() == nil:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: conn.RemoteAddr(), Err: errPlain}
	}
	return nil, err
}

// errPlain is the error of a TLS connection to a server that does not use TLS.
var errPlain = errors.New("the server does not use TLS on this port: use redis://host:port")

// ErrSentinel is the error of connecting to a Sentinel as if it were a server with data.
var ErrSentinel = errors.New("the server is a Sentinel, which stores no locks: name its master, as in redis://sentinel:26379?master_set=NAME, or connect to the master")

// ErrSentinelUser is the error when a Sentinel does not accept its user.
var ErrSentinelUser = errors.New("set Username and Password in ClientOption.Sentinel and use OpenWithOption; a URL cannot set them")

// probeTime limits probe and sentinel.
const probeTime = 5 * time.Second

// probe connects again to the server at addr, which has closed a connection in plain text. It starts a TLS handshake, and reports
// whether the server accepts it. A server that rejects every connection sends the reason before it closes one. rueidis loses that
// text when it has already sent commands, so probe returns it as the second result.
func (w *Way) probe(ctx context.Context, addr string) (speaksTLS bool, refusal string) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := w.option.Dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false, ""
	}
	defer conn.Close()
	host, _, _ := net.SplitHostPort(addr)
	heard := &recorder{Conn: conn}
	err = tls.Client(heard, &tls.Config{
		ServerName:         host,
		InsecureSkipVerify: true, // nothing is sent; it only matters whether the server has a certificate
		VerifyConnection:   func(tls.ConnectionState) error { speaksTLS = true; return nil },
	}).HandshakeContext(ctx)
	line, _, _ := strings.Cut(string(heard.text), "\r\n")
	refusal, _ = strings.CutPrefix(line, "-")
	if refusal == line {
		refusal = ""
	}
	return speaksTLS || err == nil || errors.As(err, new(tls.AlertError)), refusal
}

// sentinel reports whether the server at addr is a Sentinel. The server has rejected a command, such as the AUTH or SELECT of a
// URL for a server with data, so sentinel uses a connection that sends neither.
func (w *Way) sentinel(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := w.dial(ctx, addr, &w.option.Dialer, w.option.TLSConfig)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(probeTime)) // without a limit, if this fails
	const says = "*2\r\n$8\r\nsentinel\r\n"
	text := make([]byte, len(says))
	if _, err := io.WriteString(conn, "ROLE\r\n"); err != nil {
		return false
	}
	_, err = io.ReadFull(conn, text)
	return err == nil && string(text) == says
}

// recorder keeps the first bytes received.
type recorder struct {
	net.Conn
	text []byte
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.text = append(r.text, b[:min(n, 1024-len(r.text))]...)
	return n, err
}

// Explain returns err, the error of connecting, in terms that say what to do. ctx is the caller's context. If it is canceled,
// the error reports how far the connection attempt got.
func (w *Way) Explain(ctx context.Context, err error) error {
	w.mu.Lock()
	addr, stage := w.addr, w.stage
	w.mu.Unlock()
	var reply *rueidis.RedisError
	if errors.As(err, &reply) {
		if w.option.Sentinel.MasterSet == "" && w.sentinel(ctx, addr) {
			return fmt.Errorf("%s: %w", addr, ErrSentinel)
		}
		return w.replied(addr, reply.Error(), err)
	}
	over := ctx.Err() != nil
	silent := over || errors.Is(err, context.DeadlineExceeded) // the context of rueidis timed out
	transport := errors.Is(err, io.EOF) || errors.As(err, new(net.Error))
	garbled := strings.Contains(err.Error(), "unknown message type") // rueidis has no error value for this
	if over && err == command.ErrOf(ctx) {
		err = command.Ended(ctx, 0)
	}
	var words string
	switch {
	case errors.Is(err, ErrSentinel):
		return fmt.Errorf("%s: %w", addr, err)
	case stage == dialing && over:
		words = "no connection yet"
	case stage == shaking && over:
		words = "no reply to the TLS handshake; if the server does not use TLS on this port, use redis://host:port"
	case stage == connected && silent:
		words = "the server accepted the connection but does not respond"
	case stage == connected && w.option.TLSConfig == nil && w.option.DialCtxFn == nil && (transport || garbled):
		speaksTLS, refusal := w.probe(ctx, addr)
		switch {
		case speaksTLS:
			words = "the server uses TLS on this port: use rediss://host:port"
		case refusal != "":
			return w.replied(addr, refusal, fmt.Errorf("%.200s: %w", refusal, err))
		case garbled:
			return fmt.Errorf("%s: the server does not speak the Redis protocol: %w", addr, err)
		default:
			words = "the server closed the connection without a reply"
		}
	case transport:
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	default:
		return err
	}
	if over || !silent {
		return fmt.Errorf("%w: %s: %s: %w", lock.ErrUnavailable, addr, words, err)
	}
	return fmt.Errorf("%w: %s: %s", lock.ErrUnavailable, addr, words) // the caller's context is not canceled
}

// replied returns err for an error reply to the first commands of a connection to addr.
func (w *Way) replied(addr, text string, err error) error {
	set := w.option.Sentinel.MasterSet
	switch {
	case command.Refused(err) && set != "" && slices.Contains(w.option.InitAddress, addr):
		return fmt.Errorf("the Sentinel at %s: %w (%w)", addr, err, ErrSentinelUser)
	case command.Refused(err):
		return command.Refusal(addr, UserOf(w.option), err)
	case strings.Contains(text, "max number of clients"):
		return fmt.Errorf("%w: the server at %s has reached its maxclients limit: close idle connections or raise the limit: %w", lock.ErrUnavailable, addr, err)
	case set != "" && strings.Contains(text, "SENTINEL"):
		return fmt.Errorf("the server at %s is not a Sentinel, but master_set in the URL requires Sentinels (default port 26379): %w", addr, err)
	case set != "" && strings.Contains(text, "No such master"):
		return fmt.Errorf("the Sentinel at %s has no master named %q: %w", addr, set, err)
	}
	err = fmt.Errorf("the server at %s: %w", addr, err)
	if retry.Temporary(text) {
		err = fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	}
	return err
}

// Greet returns an error if rdb, which is connected to one server, is connected to a Sentinel. A server that does not report its
// mode is accepted.
func Greet(ctx context.Context, rdb rueidis.Client) error {
	if rdb.Mode() == rueidis.ClientModeSentinel || rdb.Mode() == rueidis.ClientModeCluster {
		return nil
	}
	facts, err := rdb.Do(ctx, rdb.B().Arbitrary("HELLO").Build()).AsMap()
	if mode := facts["mode"]; err == nil {
		if text, _ := mode.ToString(); text == "sentinel" {
			return ErrSentinel
		}
	}
	return nil
}

// NewClient is rueidis.NewClient, but omits the client name for a server or a proxy without CLIENT SETNAME. rueidis sends
// that command only in RESP2, and then fails to connect.
func NewClient(option rueidis.ClientOption) (rueidis.Client, error) {
	rdb, err := rueidis.NewClient(option)
	var reply *rueidis.RedisError
	if option.ClientName != "" && errors.As(err, &reply) && noName.MatchString(reply.Error()) {
		option.ClientName = ""
		return rueidis.NewClient(option)
	}
	return rdb, err
}

// noName matches the replies to CLIENT SETNAME of servers and proxies that do not support it, or whose user lacks the permission.
var noName = regexp.MustCompile("(?i)(command|the) ['`]client['`|]")

// Client connects before ctx is canceled.
func Client(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	type result struct {
		rdb rueidis.Client
		err error
	}
	w, option := NewWay(option)
	connected := make(chan result) // unbuffered, so that the sender can detect whether it was received
	go func() {
		rdb, err := NewClient(option) // takes no context
		if err == nil {
			if err = Greet(ctx, rdb); err != nil {
				rdb.Close()
			}
		}
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
			return nil, w.Explain(ctx, r.err)
		}
		return r.rdb, nil
	case <-ctx.Done():
		return nil, w.Explain(ctx, command.ErrOf(ctx))
	}
}
