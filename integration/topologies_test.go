//go:build linux

package integration_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

func TestConformance_unixSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "redis.sock")
	server := redistest.Start(t, "--unixsocket", socket)
	option, err := client.ParseURL("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	conformance(t, func(tb testing.TB) rueidis.Client {
		return server.Client(tb, func(o *rueidis.ClientOption) { *o = option })
	})
}

// With TLS both sides use a certificate, and a client without one gets no access.
func TestConformance_tls(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	server, addr := redistest.StartTLS(t, authority)
	option, err := client.ParseURL("rediss://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	known := authority.Issue(t)
	conformance(t, func(tb testing.TB) rueidis.Client {
		return server.Client(tb, func(o *rueidis.ClientOption) {
			*o = option
			o.TLSConfig = authority.Config(known)
		})
	})

	outsider := redistest.NewAuthority(t)
	for who, config := range map[string]func(o *rueidis.ClientOption){
		"without a certificate":              func(o *rueidis.ClientOption) { o.TLSConfig = authority.Config() },
		"with a stranger's certificate":      func(o *rueidis.ClientOption) { o.TLSConfig = authority.Config(outsider.Issue(t)) },
		"that does not know the server":      func(o *rueidis.ClientOption) { o.TLSConfig = outsider.Config(known) },
		"that takes it for another server":   func(o *rueidis.ClientOption) { o.TLSConfig = authority.Config(known); o.TLSConfig.ServerName = "other" },
		"that speaks plain text to the port": func(o *rueidis.ClientOption) { o.TLSConfig = nil },
	} {
		o := option
		config(&o)
		if rdb, err := rueidis.NewClient(o); err == nil {
			t.Errorf("a client %s is accepted", who)
			rdb.Close()
		}
	}
}

// The same with a Sentinel, which also requires a certificate.
func TestConformance_tlsBehindASentinel(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	overTLS(t, authority, "rediss://"+redistest.StartTLSSentinel(t, authority)+"?master_set="+redistest.PrimaryName)
}

// The same on a cluster, whose nodes report their TLS ports to clients that use TLS.
func TestConformance_tlsOnACluster(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	_, addrs := redistest.StartTLSCluster(t, authority)
	overTLS(t, authority, "rediss://"+addrs[0]+"?addr="+addrs[1]+"&addr="+addrs[2])
}

// overTLS runs the rules of every type at a URL.
func overTLS(t *testing.T, authority *redistest.Authority, url string) {
	t.Helper()
	option, err := client.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	config := authority.Config(authority.Issue(t))
	option.TLSConfig.RootCAs, option.TLSConfig.Certificates = config.RootCAs, config.Certificates
	conformance(t, func(tb testing.TB) rueidis.Client {
		rdb, err := rueidis.NewClient(option)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(rdb.Close)
		return rdb
	})
}

// The permissions that docs/operate/security.md lists for a type suffice for everything that the rules need.
func TestConformance_leastRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	minimalPermissions(t, []*redistest.Server{server}, server.Client)
}

// The same with Sentinel.
func TestConformance_sentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2)
	minimalPermissions(t, s.Nodes, s.Client)
}

// The same on a cluster, where notifications use sharded Pub/Sub.
func TestConformance_leastRightsOnACluster(t *testing.T) {
	t.Parallel()
	needs(t, client.PubSubSharded)
	cluster := redistest.StartCluster(t)
	minimalPermissions(t, cluster.Nodes, cluster.Client, "Cluster")

	// While a slot is migrated, rueidis sends ASKING before commands for its keys.
	var as func(*rueidis.ClientOption)
	for _, node := range cluster.Nodes {
		as = node.AddUser(t, "locks", redistest.Rights(t, "NewLock", "Cluster")...)
	}
	l := ours(t, cluster.Client(t, as), client.WithKeyPrefix("orders:")).NewLock("a")
	from := cluster.Master(t, "orders:a")
	move := cluster.Migrate(t, cluster.Slot(t, "orders:a"), from, another(t, cluster, from))
	h, err := l.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	move.Finish(t)
	var denied []string
	for _, node := range cluster.Nodes {
		denied = append(denied, node.Denied(t, "locks")...)
	}
	if len(denied) > 0 {
		t.Errorf("while a slot moves, the permissions of docs/operate/security.md do not cover %q", denied)
	}
	for _, permission := range redistest.Rights(t, "Cluster")[len(redistest.Rights(t)):] {
		var calls int64
		for _, node := range cluster.Nodes {
			calls += node.CommandCalls(t, strings.TrimPrefix(permission, "+"))
		}
		if calls == 0 {
			t.Errorf("docs/operate/security.md lists %s, but no command needed it", permission)
		}
	}
}

// ofSharded has the permissions for commands that a server without sharded Pub/Sub lacks.
var ofSharded = []string{"+pubsub|shardnumsub", "+ssubscribe", "+sunsubscribe", "+spublish"}

func minimalPermissions(t *testing.T, nodes []*redistest.Server, connect func(testing.TB, ...func(*rueidis.ClientOption)) rueidis.Client, more ...string) {
	t.Helper()
	pubsub := client.PubSubAuto
	lacks := func(permission string) bool { return false }
	if !nodes[0].KnowsSharded(t) {
		pubsub = client.PubSubPlain
		lacks = func(permission string) bool { return slices.Contains(ofSharded, permission) }
	}
	t.Run("as", func(t *testing.T) {
		for maker := range suites {
			var as func(*rueidis.ClientOption)
			for _, node := range nodes {
				as = node.AddUser(t, maker, slices.DeleteFunc(permissionsOf(t, maker, more...), lacks)...)
			}
			t.Run(maker, func(t *testing.T) {
				t.Parallel()
				conformanceOf(t, maker,
					func(tb testing.TB) rueidis.Client { return connect(tb, as) },
					func(tb testing.TB) rueidis.Client { return connect(tb) }, client.WithPubSub(pubsub))
			})
		}
	})
	for _, node := range nodes {
		for maker := range suites {
			if denied := node.Denied(t, maker); len(denied) > 0 {
				t.Errorf("%s: the permissions of docs/operate/security.md do not cover %q", maker, denied)
			}
		}
	}
}

// permissionsOf returns the permissions of a client with an entry that uses one type.
func permissionsOf(t *testing.T, maker string, more ...string) []string {
	t.Helper()
	more = append(more, "Registry", "Forced")
	switch {
	case maker == "NewElection": // uses a fair lock
		return redistest.Rights(t, append(more, "NewFairLock", maker)...)
	case maker == "NewFairLock", maker == "NewRWLock":
		return redistest.Rights(t, append(more, maker, "WithLinger")...)
	case !suites[maker].traces:
		return redistest.Rights(t, append(more, maker)...)
	}
	return append(redistest.Rights(t, more...), redistest.RightsWithoutLocks(t, maker)...)
}

// A multi-lock needs no more permissions than its locks, and a quorum also needs permission to read the uptime of its
// servers.
func TestPermissions_multilock(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second // servers vote once they have been up for this long
	var denied func() []string
	start := func(permissions ...string) *client.Client {
		t.Helper()
		server := redistest.Start(t)
		as := server.AddUser(t, "locks", redistest.Rights(t, permissions...)...)
		before := denied
		denied = func() (all []string) {
			if before != nil {
				all = before()
			}
			return append(all, server.Denied(t, "locks")...)
		}
		return ours(t, server.Client(t, as), client.WithKeyPrefix("orders:"), client.WithWatchdogTimeout(lease))
	}
	once := func(l lock.Locker) error {
		t.Helper()
		h, err := l.Lock(t.Context())
		if err != nil {
			return err
		}
		return h.Unlock(t.Context())
	}

	c := start("NewLock")
	if err := once(multilock.New(c.NewLock("a"), c.NewLock("b"))); err != nil {
		t.Error(err)
	}
	var votes []lock.Locker
	for range 3 {
		votes = append(votes, start("NewLock", "NewQuorum", "WithFencing").NewLock("a", lock.WithFencing()))
	}
	if err := once(multilock.NewQuorum(votes, multilock.WithMaxLease(lease))); err != nil {
		t.Error(err)
	}
	if all := denied(); len(all) > 0 {
		t.Errorf("the permissions of docs/operate/security.md do not cover %q", all)
	}

	denied = nil
	for i := range votes {
		votes[i] = start("NewLock").NewLock("a")
	}
	if err := once(multilock.NewQuorum(votes, multilock.WithMaxLease(lease))); err == nil || len(denied()) == 0 {
		t.Errorf("a quorum without its permissions: %v, denied %q", err, denied())
	}
}
