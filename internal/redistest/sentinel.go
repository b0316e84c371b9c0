package redistest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Sentinel is a primary with replicas, monitored by three Sentinels, each in a separate process.
type Sentinel struct {
	Nodes     []*Server
	Sentinels []*Server
}

// PrimaryName is the Sentinels' name of the primary.
const PrimaryName = "primary"

// StartSentinel starts nodes servers, the first of which is the primary, and the Sentinels. The Sentinels use a long
// timeout, because a healthy primary can be unresponsive on a busy machine; [Sentinel.Failover] switches to a short
// one. config is for the nodes.
func StartSentinel(tb testing.TB, nodes int, config ...string) *Sentinel {
	tb.Helper()
	s := &Sentinel{}
	for i := range nodes {
		of := ""
		if i > 0 {
			of = s.Nodes[0].Addr()
		}
		s.Nodes = append(s.Nodes, Start(tb, append(nodeConfig(of), config...)...))
	}
	for _, n := range s.Nodes[1:] {
		n.WaitUntilFollows(tb, s.Nodes[0])
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(tb, s.Nodes[0].Addr()))
	}
	waitUntil(tb, "the Sentinels know each other and the replicas", func() bool {
		for _, sentinel := range s.Sentinels {
			facts := pairs(sentinel.Do(tb, "SENTINEL", "MASTER", PrimaryName))
			if facts["num-other-sentinels"] != "2" || facts["num-slaves"] != strconv.Itoa(nodes-1) {
				return false
			}
		}
		return true
	})
	return s
}

// nodeConfig returns the configuration of a server that replicates as a separate user, which can be disabled, from the
// server at of unless of is empty.
func nodeConfig(of string) []string {
	config := []string{
		"--repl-diskless-sync-delay", "0",
		"--user", "repl", "on", "nopass", "~*", "&*", "+@all",
		"--masteruser", "repl",
		"--masterauth", "none",
	}
	if host, port, ok := strings.Cut(of, ":"); ok {
		config = append(config, "--replicaof", host, port)
	}
	return config
}

// startSentinel starts a Sentinel that tolerates pauses of its own process. On a busy machine it can stall for two
// seconds, for example when it writes its file. It would then distrust its clock, and consider no server down for 30 s
// (TILT). By then the replica would have been disconnected from the dead primary for longer than ten down-after
// periods, and no Sentinel would ever promote it.
func startSentinel(tb testing.TB, primary string) *Server {
	tb.Helper()
	conf := sentinelConf(tb, primary, 2)
	s := start(tb, func(s *Server) []string {
		return []string{conf, "--sentinel", "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir}
	})
	_, _ = s.ask("SENTINEL", "DEBUG", "tilt-trigger", "60000") // not supported by Redis 6.2
	return s
}

// sentinelPatience is how long a primary may be unresponsive while all servers are alive.
const sentinelPatience = 15 * time.Second

// downAfter is how long a primary may be unresponsive once it is dead. Valkey's Sentinels (seen with 9.1) connect to a
// newly promoted primary only after a second, and would consider it dead before that.
func downAfter(tb testing.TB) time.Duration {
	tb.Helper()
	version, err := exec.Command(find(tb), "--version").Output()
	if err != nil {
		tb.Fatal(err)
	}
	if bytes.Contains(version, []byte("Valkey")) {
		return 1500 * time.Millisecond
	}
	return 500 * time.Millisecond
}

// sentinelConf writes the configuration of a Sentinel: the primary that it monitors, and how many Sentinels must agree
// that it is dead. A Sentinel rewrites its own configuration file.
func sentinelConf(tb testing.TB, primary string, quorum int) (file string) {
	tb.Helper()
	host, port, err := net.SplitHostPort(primary)
	if err != nil {
		tb.Fatal(err)
	}
	file = filepath.Join(tb.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s %[4]d\nsentinel down-after-milliseconds %[1]s %[5]d\nsentinel failover-timeout %[1]s 2000\n", PrimaryName, host, port, quorum, sentinelPatience.Milliseconds())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// Client connects via the Sentinels. The client is closed when tb ends.
func (s *Sentinel) Client(tb testing.TB, edit ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	opt := rueidis.ClientOption{
		DisableCache: true,
		Sentinel:     rueidis.SentinelOption{MasterSet: PrimaryName, TopologyRefreshInterval: time.Second},
	}
	for _, sentinel := range s.Sentinels {
		opt.InitAddress = append(opt.InitAddress, sentinel.Addr())
	}
	return connect(tb, opt, edit)
}

// Primary returns the node that all Sentinels consider the primary.
func (s *Sentinel) Primary(tb testing.TB) *Server {
	tb.Helper()
	var primary *Server
	waitUntil(tb, "the Sentinels agree on a primary", func() bool {
		addrs := map[string]bool{}
		for _, sentinel := range s.Sentinels {
			reply := sentinel.Do(tb, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", PrimaryName)
			parts, _ := reply.AsStrSlice()
			addrs[strings.Join(parts, ":")] = true
		}
		for _, n := range s.Nodes {
			if addrs[n.Addr()] && len(addrs) == 1 && n.running() {
				role := n.Do(tb, "ROLE")
				if parts, _ := role.ToArray(); len(parts) > 0 {
					name, _ := parts[0].ToString()
					primary = n
					return name == "master"
				}
			}
		}
		return false
	})
	return primary
}

// CutReplication withholds everything that the primary writes from now on from its replicas, for as long as the primary
// lives. A failover loses those writes.
func (s *Sentinel) CutReplication(tb testing.TB, primary *Server) {
	tb.Helper()
	cutReplication(tb, primary)
}

// cutReplication disables the replicas' user (nodeConfig).
func cutReplication(tb testing.TB, primary *Server) {
	tb.Helper()
	primary.Do(tb, "ACL", "SETUSER", "repl", "off")
	primary.Do(tb, "CLIENT", "KILL", "TYPE", "replica")
}

// Failover kills the primary and returns the node promoted in its place.
func (s *Sentinel) Failover(tb testing.TB, primary *Server) *Server {
	tb.Helper()
	primary.Kill(tb)
	s.setDownAfter(tb, downAfter(tb))
	defer s.setDownAfter(tb, sentinelPatience)
	for {
		if next := s.Primary(tb); next != primary {
			return next
		}
	}
}

func (s *Sentinel) setDownAfter(tb testing.TB, d time.Duration) {
	tb.Helper()
	for _, sentinel := range s.Sentinels {
		sentinel.Do(tb, "SENTINEL", "SET", PrimaryName, "down-after-milliseconds", strconv.FormatInt(d.Milliseconds(), 10))
	}
}

// Rejoin starts a killed node again, empty, as a replica of primary.
func (s *Sentinel) Rejoin(tb testing.TB, node, primary *Server) {
	tb.Helper()
	node.config = nodeConfig(primary.Addr())
	node.Restart(tb)
	node.WaitUntilFollows(tb, primary)
}

// WaitUntilFollows waits until s is a replica of primary and in sync: according to s, and to primary, which counts the
// replica and sends it new writes only a moment later. A Sentinel that demotes a server closes the server's
// connections, so connection errors are retried.
func (s *Server) WaitUntilFollows(tb testing.TB, primary *Server) {
	tb.Helper()
	waitUntil(tb, "a replica is in step", func() bool {
		own, failed := s.ask("INFO", "replication")
		theirs, broken := primary.ask("INFO", "replication")
		if failed != nil || broken != nil {
			return false
		}
		text, _ := own.ToString()
		if !strings.Contains(text, "master_link_status:up") {
			return false
		}
		text, _ = theirs.ToString()
		return slices.ContainsFunc(inStep(text), func(line string) bool {
			return strings.Contains(line, ",port="+strconv.Itoa(s.port)+",")
		})
	})
}

// inStep returns the lines about the replicas that are in sync according to their primary, whose INFO replication is
// given. The primary delays writes until a replica has acknowledged something.
func inStep(info string) (lines []string) {
	for line := range strings.Lines(info) {
		if strings.Contains(line, ",state=online,") && (!strings.Contains(line, ",offset=0,") || strings.Contains(info, "master_repl_offset:0\r")) {
			lines = append(lines, line)
		}
	}
	return lines
}

func waitUntil(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("waited in vain until %s", what)
		}
	}
}

// pairs converts a list of alternating names and values, or a map.
func pairs(m rueidis.RedisMessage) map[string]string {
	facts, err := m.AsStrMap()
	if err != nil {
		return nil
	}
	return facts
}
