package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// A failed dial says that nothing was sent, unless rueidis resends commands after a ConnLifetime.
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
