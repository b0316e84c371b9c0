package redistest

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
)

// Mini is a server in memory that needs no socket, so that everything in it
// runs on the clock of a [testing/synctest] bubble. Make it, its clients and
// its proxies inside the bubble: synctest.Test runs the Cleanups there as well.
//
// It is not Redis. It has no replication, no cluster and no sharded
// publish/subscribe. What must be true of Redis belongs in a test with [Start].
type Mini struct {
	*miniredis.Miniredis
}

// NewMini makes a server whose keys expire by time.Now, and so by virtual time
// in a bubble. The end of tb closes it.
func NewMini(tb testing.TB) *Mini {
	tb.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	tb.Cleanup(m.Close)
	return &Mini{m}
}

// Client connects to the server. Edits change the options first: [Via]
// leads through a proxy, and others can wrap opt.DialCtxFn. The end of tb
// closes it.
func (m *Mini) Client(tb testing.TB, edit ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return connect(tb, rueidis.ClientOption{
		InitAddress: []string{"mini:6379"}, // only a name
		// The library's own PING comes at no instant at which a test does anything. By
		// chance one that begins in the Close of its client has that wait for ever (seen
		// with 1.0.79).
		Dialer: net.Dialer{KeepAlive: time.Second + 7},
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return m.Dial()
		},
		// It has no CLIENT TRACKING, claims to be a cluster, and in RESP3
		// refuses commands on a connection that has subscribed.
		DisableCache:      true,
		ForceSingleClient: true,
		AlwaysRESP2:       true,
	}, edit)
}

// Proxy makes a proxy to the server that needs no socket either. The end of tb
// closes it.
func (m *Mini) Proxy(tb testing.TB) *Proxy {
	tb.Helper()
	return newProxy(tb, m.Dial)
}
