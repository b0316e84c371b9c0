package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// The error of a failed dial means that nothing was sent, unless rueidis resends commands after a ConnLifetime.
func TestWay_undialled(t *testing.T) {
	for _, lifetime := range []time.Duration{0, time.Hour} {
		_, option := NewWay(rueidis.ClientOption{ConnLifetime: lifetime, DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}})
		_, err := option.DialCtxFn(t.Context(), "redis:6379", &net.Dialer{}, nil)
		if mayHaveRun := retry.FaultOf(err).MayHaveRun(); mayHaveRun != (lifetime > 0) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("lifetime %v: %v, may have run: %v", lifetime, err, mayHaveRun)
		}
	}
}

// A dialer of the application establishes the whole connection, including TLS, as for rueidis.NewClient. The deprecated one is
// called, too.
func TestWay_dialerOfTheApplication(t *testing.T) {
	conn, _ := net.Pipe()
	defer conn.Close()
	config := &tls.Config{ServerName: "redis"}
	var got *tls.Config
	for name, given := range map[string]rueidis.ClientOption{
		"DialCtxFn": {DialCtxFn: func(_ context.Context, _ string, _ *net.Dialer, c *tls.Config) (net.Conn, error) {
			got = c
			return conn, nil
		}},
		"DialFn": {DialFn: func(_ string, _ *net.Dialer, c *tls.Config) (net.Conn, error) { got = c; return conn, nil }},
	} {
		got = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // instead of a handshake with a peer that does not reply
		_, option := NewWay(given)
		if dialed, err := option.DialCtxFn(ctx, "redis.invalid:6379", &net.Dialer{}, config); dialed != conn || err != nil || got != config {
			t.Errorf("%s: %v, %v; called with %v", name, dialed, err, got)
		}
		cancel()
	}
}

// The context of a connection attempt is canceled, and has no error, because its framework has reused it.
func TestClient_reusedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dials, fails := make(chan struct{}), make(chan struct{})
	defer close(fails)
	go func() {
		<-dials
		cancel()
	}()
	if _, err := Client(redistest.Reused{Context: ctx}, rueidis.ClientOption{InitAddress: []string{"redis:6379"}, DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		close(dials)
		<-fails
		return nil, syscall.ECONNREFUSED
	}}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
