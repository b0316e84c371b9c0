//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// A run inside the command of a run that holds the same lock does not wait for itself: it fails, or with --reenter runs under that hold. There may be
// other locks in between.
func TestRun_reenter(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		outer, inner    string
		plain, reenters int // exit codes, without and with --reenter
	}{
		{"", "", exitBroken, 0},
		{"", "--wait 1h", exitBroken, 0},
		{"", "--no-wait", exitBroken, 0},
		{"--fair", "--fair", exitBroken, 0},
		{"--fencing", "", exitBroken, 0},
		{"--exclusive", "--exclusive", exitBroken, 0},
		{"--exclusive", "--shared", exitBroken, 0},
		{"--shared", "--exclusive", exitBroken, exitBroken},
		{"--shared", "--shared", 0, 0},
		{"--permits 1", "--permits 1", exitBroken, 0},
		{"--permits 2", "--permits 2", 0, 0},
	} {
		for flag, want := range map[string]int{"": test.plain, "--reenter": test.reenters} {
			t.Run(test.outer+", "+test.inner+" "+flag, func(t *testing.T) {
				t.Parallel()
				lock := lockName(t)
				args := append([]string{"run"}, strings.Fields(test.outer)...)
				args = append(args, lock, "--", "sh", "-c", `
					echo "outer $LEASEHOLD_OWNER $LEASEHOLD_FENCING_TOKEN"
					"$@"; echo "code $?"; read line`, "sh")
				args = append(args, path, "run", lock+"between", "--", path, "run", "--permits", "3", lock+"too", "--")
				args = append(append(args, path, "run"), strings.Fields(flag+" "+test.inner)...)
				args = append(args, lock, "--", "sh", "-c", `echo "inner $LEASEHOLD_OWNER $LEASEHOLD_FENCING_TOKEN"`)
				c := on(t, s, args...)
				c.stdout.await(t, "code ")
				_, outer, _ := strings.Cut(c.stdout.String(), "outer ")
				outer, inner, _ := strings.Cut(outer, "\n")
				if got := strings.Contains(inner, "inner "); got != (want == 0) {
					t.Errorf("the inner command ran: %t", got)
				}
				if flag != "" && want == 0 && !strings.Contains(inner, "inner "+outer+"\n") {
					t.Errorf("the outer hold is %q, the inner one %q", outer, inner)
				}
				if want != 0 {
					c.stderr.await(t, "wait for itself") // standard error has a separate pipe
				}
				if said := c.stderr.String(); (want == 0) != (said == "") || want != 0 && (!strings.Contains(said, "wait for itself") || strings.Count(said, "\n") != 1) {
					t.Errorf("run says %q", said)
				}
				if !held(t, s, lock) {
					t.Error("the outer run does not hold the lock any more")
				}
				c.say("")
				c.ends(0)
			})
		}
	}
	t.Run("nothing to re-enter", func(t *testing.T) {
		t.Parallel()
		lock := lockName(t)
		c := on(t, s, "run", "--reenter", lock, "--", path, "run", "--reenter", lock+"2", "--", "sh", "-c", "echo ready; read line")
		c.stdout.await(t, "ready")
		if !held(t, s, lock) || !held(t, s, lock+"2") {
			t.Error("a lock is free")
		}
		c.say("")
		c.ends(0)
		noKeys(t, s, lock)
	})
	t.Run("on a quorum", func(t *testing.T) {
		t.Parallel()
		_, env := startServers(t, 3)
		for flag, want := range map[string]int{"--quiet": exitBroken, "--reenter": 0} {
			lock := lockName(t)
			args := append(append(quorumArgs[:len(quorumArgs):len(quorumArgs)], lock, "--", path), quorumArgs...)
			prepare(t, env, append(args, flag, lock, "--", "true")...).start().ends(want)
		}
	})
}

// A run under the hold of an outer run detects by itself when that hold is lost.
func TestRun_reenterLost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"deleted", "no server"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := s
			if how == "no server" {
				s = redistest.Start(t)
			}
			lock := lockName(t)
			c := on(t, s, "run", "-q", "--lease", "6s", "--on-lost", "ignore", lock, "--", path, "run", "--lease", "6s", "--reenter", lock, "--", "sh", "-c", "echo ready; exec sleep 60")
			c.stdout.await(t, "ready")
			if how == "no server" {
				s.Kill(t)
			} else {
				s.Do(t, "DEL", lock)
			}
			c.stderr.await(t, "lock lost")
			c.ends(exitLost)
		})
	}
}

// A server grants the lock to the outer run only after its command has started, and another server dies. The outer run always
// has a majority, so the inner run continues.
func TestRun_reenterQuorumThatChanges(t *testing.T) {
	t.Parallel()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	servers, _ := startServers(t, 3)
	last := redistest.NewProxy(t, servers[2].Addr())
	grants := make(chan struct{})
	last.OnRequest(func(req [][]byte) redistest.Action {
		if strings.EqualFold(string(req[0]), "EVALSHA") {
			return redistest.Action{HoldRequest: grants}
		}
		return redistest.Action{}
	})
	env := []string{"LEASEHOLD_REDIS_URL=" + strings.Join([]string{servers[0].URL(), servers[1].URL(), "redis://" + last.Addr()}, " ")}
	lock := lockName(t)
	args := append(quorumArgs[:len(quorumArgs):len(quorumArgs)], lock, "--", "sh", "-c", `echo ready; read line; exec "$@"`, "sh", path)
	args = append(append(args, quorumArgs...), "--reenter", lock, "--", "sh", "-c", "echo inner; sleep 16") // two leases
	c := prepare(t, env, args...).start()
	c.stdout.await(t, "ready")
	close(grants)
	awaitHeld(t, servers[2], lock)
	c.say("")
	c.stdout.await(t, "inner")
	servers[1].Kill(t)
	c.ends(0)
}
