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

// Mini is an in-memory server that needs no socket, so that everything in it runs on the clock of a
// [testing/synctest] bubble. Make it, its clients and its proxies inside the bubble: synctest.Test
// runs the Cleanups there as well.
//
// It is not Redis. It has no replication, no cluster and no sharded Pub/Sub. Tests of Redis' own
// behavior belong with [Start].
type Mini struct {
	*miniredis.Miniredis
}

// NewMini makes a server whose keys expire by time.Now, and so in virtual time in a bubble. The
// server is closed when tb ends.
func NewMini(tb testing.TB) *Mini {
	tb.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	tb.Cleanup(m.Close)
	return &Mini{m}
}

// Client connects to the server. Edits change the options first: [Via] connects through a proxy,
// and others can wrap opt.DialCtxFn. The client is closed when tb ends.
func (m *Mini) Client(tb testing.TB, edit ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return connect(tb, rueidis.ClientOption{
		InitAddress: []string{"mini:6379"}, // a dummy name
		// The library's PINGs come at instants at which tests do nothing. Occasionally, a PING that
		// starts during Close makes Close block forever (seen with 1.0.79).
		Dialer: net.Dialer{KeepAlive: time.Second + 7},
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return m.Dial()
		},
		// Miniredis has no CLIENT TRACKING, claims to be a cluster, and with RESP3 rejects commands
		// on a subscribed connection.
		DisableCache:      true,
		ForceSingleClient: true,
		AlwaysRESP2:       true,
	}, edit)
}

// Proxy makes a proxy to the server that needs no socket either. The proxy is closed when tb ends.
func (m *Mini) Proxy(tb testing.TB) *Proxy {
	tb.Helper()
	return newProxy(tb, m.Dial)
}
