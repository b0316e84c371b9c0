package hint

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// A connection breaks between the answers to several subscriptions. rueidis 1.0.79 can then send all of them again, after it has let the
// memory of the answered ones go. Another command may be in that memory by then, and rueidis sends it; or rueidis panics.
func TestSend_cutBetweenAnswers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if !server.KnowsSharded(t) {
		t.Skip("this server has no sharded Pub/Sub")
	}
	var cuts atomic.Int64
	rdb := server.Client(t, func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", addr)
			return &oneAnswer{Conn: conn, cuts: &cuts}, err
		}
	})
	h := New(rdb, testConfig(true))
	defer h.Close()
	f := &feed{hub: h}
	var channels []string
	for i := range 10 {
		channels = append(channels, fmt.Sprintf("redisson_lock__channel:{orders}:%d", i))
	}
	const times = 300
	for range times {
		conn, release := rdb.Dedicate()
		if f.send(conn, channels, f.subscribe) {
			t.Error("it takes a connection for usable that is cut")
		}
		conn.Close()
		release()
	}
	if n := cuts.Load(); n != times {
		t.Errorf("%d of %d connections were cut after an answer", n, times)
	}
}

// oneAnswer is a connection that breaks after the first answer to SSUBSCRIBE.
type oneAnswer struct {
	net.Conn
	cuts     *atomic.Int64 // how many have broken
	answered bool
}

func (c *oneAnswer) Read(b []byte) (int, error) {
	if c.answered {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b)
	begin := []byte(">3\r\n$10\r\nssubscribe")
	if i := bytes.Index(b[:n], begin); i >= 0 {
		c.answered = true
		c.cuts.Add(1)
		if next := bytes.Index(b[i+1:n], begin); next >= 0 {
			n = i + 1 + next
		}
	}
	return n, err
}
