//go:build linux

package integration_test

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// The rules of every type hold with RESP2, where a subscribed connection accepts no other commands: on one server, with
// Sentinel and on a cluster. All other tests use RESP3.
func TestRESP2_conformance(t *testing.T) {
	t.Parallel()
	speak2 := func(o *rueidis.ClientOption) { o.AlwaysRESP2 = true }
	run := func(t *testing.T, nodes []*redistest.Server, connect func(testing.TB, ...func(*rueidis.ClientOption)) rueidis.Client) {
		conformance(t, func(tb testing.TB) rueidis.Client { return connect(tb, speak2) })
		t.Cleanup(func() {
			// Servers before Redis 7.0 do not report a connection's protocol.
			for _, node := range nodes {
				list := node.Do(t, "CLIENT", "LIST")
				text, _ := list.ToString()
				for line := range strings.Lines(text) {
					if strings.Contains(line, "resp=3") && strings.Contains(line, "cmd=evalsha") {
						t.Errorf("a connection of the locks speaks RESP3: %s", line)
					}
				}
			}
		})
	}
	t.Run("standalone", func(t *testing.T) {
		server := redistest.Start(t)
		run(t, []*redistest.Server{server}, server.Client)
	})
	if !thorough() {
		return
	}
	t.Run("sentinel", func(t *testing.T) {
		s := redistest.StartSentinel(t, 2)
		run(t, s.Nodes, s.Client)
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.StartCluster(t)
		run(t, c.Nodes, c.Client)
	})
}
