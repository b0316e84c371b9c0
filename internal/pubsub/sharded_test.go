package pubsub

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// An unavailable server, which the client occasionally queries, does not matter, because any other server can reply.
// Without any, there is an error, immediately if all of them refuse connections.
func TestSharded_unavailable(t *testing.T) {
	for name, fail := range map[string]func(*redistest.Server, testing.TB){"killed": (*redistest.Server).Kill, "paused": (*redistest.Server).Freeze} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !redistest.Start(t).KnowsSharded(t) {
				t.Skip("this server does not support sharded Pub/Sub")
			}
			c := redistest.StartCluster(t)
			rdb := c.Client(t, func(o *rueidis.ClientOption) {
				o.Dialer.Timeout, o.ConnWriteTimeout = time.Minute, time.Minute // the client alone would not detect in time that a node is paused
			})
			first := c.Masters(t)[0]
			fail(first, t)
			for range 30 {
				if sharded, err := Sharded(t.Context(), rdb, 10*time.Second); !sharded || err != nil {
					t.Fatal(sharded, err)
				}
			}
			for _, s := range c.Nodes {
				if s != first {
					fail(s, t)
				}
			}
			within := 10 * time.Second
			if name == "paused" {
				within = time.Second
			}
			if _, err := Sharded(t.Context(), rdb, within); err == nil || errors.Is(err, context.DeadlineExceeded) != (name == "paused") {
				t.Errorf("without any node: %v", err)
			}
		})
	}
}

// A server that denies the command counts as one without sharded Pub/Sub.
func TestSharded_denied(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	for _, s := range c.Nodes {
		s.Do(t, "ACL", "SETUSER", "default", "-pubsub")
	}
	if sharded, err := Sharded(t.Context(), rdb, 10*time.Second); sharded || err != nil {
		t.Error(sharded, err)
	}
}

// A temporary error reply is inconclusive, whether from a busy server or from a server that rejects a new connection
// because of too many clients. Any other node can reply. If all reply this way, there is an error.
func TestSharded_temporaryError(t *testing.T) {
	t.Parallel()
	if !redistest.Start(t).KnowsSharded(t) {
		t.Skip("this server does not support sharded Pub/Sub")
	}
	c := redistest.StartCluster(t)
	for command, text := range map[string]string{
		"PUBSUB": "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"HELLO":  "ERR max number of clients reached",
	} {
		refuse := func(req [][]byte) (act redistest.Action) {
			if string(req[0]) == command {
				act.Refuse = text
			}
			return act
		}
		wires := make(map[string]*redistest.Proxy)
		for _, s := range c.Nodes {
			wires[s.Addr()] = redistest.NewProxy(t, s.Addr())
		}
		rdb := c.Client(t, func(o *rueidis.ClientOption) {
			o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return d.DialContext(ctx, "tcp", wires[addr].Addr())
			}
		})
		wire := wires[c.Nodes[0].Addr()]
		wire.OnRequest(refuse)
		wire.CutAll()
		for range 30 {
			if sharded, err := Sharded(t.Context(), rdb, 30*time.Second); !sharded || err != nil {
				t.Fatalf("%s: %t, %v", text, sharded, err)
			}
		}
		for _, wire := range wires {
			wire.OnRequest(refuse)
			wire.CutAll()
		}
		if _, err := Sharded(t.Context(), rdb, 30*time.Second); err == nil || !retry.FaultOf(err).Temporary {
			t.Errorf("%s, from all nodes: %v", text, err)
		}
	}
}

// A server without cluster mode has no shards, and is not queried.
func TestSharded_noCluster(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if sharded, err := Sharded(t.Context(), s.Client(t), 30*time.Second); sharded || err != nil || s.CommandCallsByClients(t, "pubsub|shardnumsub") != 0 {
		t.Error(sharded, err)
	}
}

// Before a cluster has slots, the client knows none of its nodes.
func TestSharded_noSlots(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--cluster-enabled", "yes")
	rdb := s.Client(t)
	if n := len(rdb.Nodes()); rdb.Mode() != rueidis.ClientModeCluster || n != 0 {
		t.Fatalf("mode %s, %d nodes", rdb.Mode(), n)
	}
	if sharded, err := Sharded(t.Context(), rdb, 30*time.Second); sharded != s.KnowsSharded(t) || err != nil {
		t.Error(sharded, err)
	}
}
