//go:build unix

package main

import (
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// startServers starts n servers. It returns them with an environment that has their URLs.
func startServers(t *testing.T, n int) (servers []*redistest.Server, env []string) {
	t.Helper()
	servers = make([]*redistest.Server, n)
	urls := make([]string, n)
	for i := range servers {
		servers[i] = redistest.Start(t)
		urls[i] = servers[i].URL()
	}
	return servers, []string{"LEASEHOLD_REDIS_URL=" + strings.Join(urls, " ")}
}

// quorumArgs are for servers that started recently and are slow.
var quorumArgs = []string{"run", "--quorum", "--durable-servers", "--lease", "8s", "--server-timeout", "2s"}

// 1: One of three servers is dead from the start, and run acquires the lock on two. 2: No other
// run acquires the lock. 3: A second server dies, and the lock is lost.
func TestRun_quorum(t *testing.T) {
	t.Parallel()
	servers, env := startServers(t, 3)
	lock := lockName(t)
	servers[0].Kill(t) // 1
	c := prepare(t, env, append(quorumArgs, lock, "--", "sh", "-c", `echo "ready $LEASEHOLD_OWNER|$LEASEHOLD_FENCING_TOKEN."; exec sleep 60`)...).start()
	c.stdout.await(t, "ready ")
	c.stderr.await(t, "continuing without this server")
	for range 5 { // 2: in whatever order the servers reply
		prepare(t, env, append(quorumArgs, "--no-wait", lock, "--", "true")...).start().ends(exitNotObtained)
	}
	servers[1].Kill(t) // 3
	c.ends(exitLost)
	noKeys(t, servers[2], lock)
	if owners, _, _ := strings.Cut(c.stdout.String(), "|"); len(strings.Fields(owners)) != 3 {
		t.Errorf("%q does not have the owners on two servers", owners)
	}
}

// A signal ends the command, and no server has a key afterwards.
func TestRun_quorumSignal(t *testing.T) {
	t.Parallel()
	servers, env := startServers(t, 3)
	lock := lockName(t)
	c := prepare(t, env, append(quorumArgs, lock, "--", "sh", "-c", "echo ready; exec sleep 60")...).start()
	c.stdout.await(t, "ready")
	waiting := prepare(t, env, append(quorumArgs, lock, "--", "echo", "ran")...).start()
	waiting.stderr.await(t, "waiting for ")
	waiting.signal(syscall.SIGINT)
	waiting.ends(128 + int(syscall.SIGINT))
	if waiting.stdout.String() != "" {
		t.Error("the command ran")
	}
	c.signal(syscall.SIGTERM)
	c.ends(128 + int(syscall.SIGTERM))
	for _, s := range servers {
		noKeys(t, s, lock)
	}
}

// Without a majority of servers, the holder is unknown. The exit code differs from that for a lock
// held by another owner.
func TestRun_quorumUnreachable(t *testing.T) {
	t.Parallel()
	servers, env := startServers(t, 3)
	var proxies []string
	var frozen []*redistest.Proxy
	for _, s := range servers[:2] {
		p := redistest.NewProxy(t, s.Addr())
		frozen = append(frozen, p)
		proxies = append(proxies, "redis://"+p.Addr())
	}
	for _, p := range frozen {
		p.OnRequest(func(req [][]byte) redistest.Action {
			if strings.EqualFold(string(req[0]), "EVALSHA") {
				return redistest.Action{HoldRequest: t.Context().Done()}
			}
			return redistest.Action{}
		})
	}
	lock := lockName(t)
	silent := []string{"LEASEHOLD_REDIS_URL=" + strings.Join(append(proxies, servers[2].URL()), " ")}
	for _, wait := range []string{"--wait=5s", "--no-wait"} {
		prepare(t, silent, append(quorumArgs, wait, lock, "--", "true")...).start().ends(exitBroken)
	}
	holder := on(t, servers[2], "run", lock, "--", "sh", "-c", "echo ready; read line")
	holder.stdout.await(t, "ready")
	prepare(t, silent, append(quorumArgs, "--no-wait", lock, "--", "true")...).start().ends(exitBroken)
	holder.say("")
	holder.ends(0)
	for _, p := range frozen {
		p.CutAll()
	}

	servers[0].Kill(t)
	servers[1].Kill(t)
	c := prepare(t, env, append(quorumArgs, lock, "--", "true")...).start()
	c.ends(exitBroken)
	if said := c.stderr.String(); strings.Count(said, "cannot connect") != 2 || strings.Count(said, "\n") != 1 {
		t.Errorf("run says %q", said)
	}
}

// If two of three servers have the holder and the third is down, another owner holds the lock.
func TestRun_quorumRefusedWithAServerDown(t *testing.T) {
	t.Parallel()
	servers, env := startServers(t, 3)
	lock := lockName(t)
	holder := prepare(t, env, append(quorumArgs, lock, "--", "sh", "-c", "echo ready; read line")...).start()
	holder.stdout.await(t, "ready")
	awaitHeld(t, servers[0], lock) // the holder is ready once it has any two servers
	awaitHeld(t, servers[1], lock)
	servers[2].Kill(t)
	prepare(t, env, append(quorumArgs, "--no-wait", lock, "--", "true")...).start().ends(exitNotObtained)
	holder.say("")
	holder.ends(0)
}

// With --fencing, a quorum has a token, which grows from holder to holder, even if one server is dead from the start.
func TestRun_quorumFencing(t *testing.T) {
	t.Parallel()
	servers, env := startServers(t, 3)
	lock := lockName(t)
	var tokens []int
	for i := range 3 {
		c := prepare(t, env, append(quorumArgs, "--fencing", lock, "--", "sh", "-c", `echo "$LEASEHOLD_FENCING_TOKEN"`)...).start()
		c.ends(0)
		token, err := strconv.Atoi(strings.TrimSpace(c.stdout.String()))
		if err != nil || i > 0 && token <= tokens[i-1] {
			t.Fatalf("got the token %q after %d", c.stdout.String(), tokens)
		}
		if tokens = append(tokens, token); i == 1 {
			servers[0].Kill(t)
		}
	}
}
