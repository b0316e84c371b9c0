//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// A wait reports once who holds the lock, where, and since when. A call that does not acquire the lock does so, too.
func TestRun_holder(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, kind := range []string{"", "--fair", "--exclusive", "--permits=1"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			lock := lockName(t)
			run := append([]string{"run"}, strings.Fields(kind)...)
			holder := on(t, s, append(run, lock, "--", "sh", "-c", "echo ready; read line")...)
			holder.stdout.await(t, "ready")
			registered(t, s, holder)
			whose := fmt.Sprintf("pid %d, runs sh, requested ", holder.cmd.Process.Pid)

			c := on(t, s, append(run, "--no-wait", lock, "--", "true")...)
			c.ends(exitNotObtained)
			c.stderr.await(t, "not acquired; held by leasehold run on ")
			c.stderr.await(t, whose)

			c = on(t, s, append(run, lock, "--", "echo", "ran")...)
			c.stderr.await(t, "leasehold: waiting for \""+lock+"\": held by leasehold run on ")
			c.stderr.await(t, whose)
			holder.say("")
			holder.ends(0)
			c.ends(0)
			if said := c.stderr.String(); strings.Count(said, "\n") != 1 {
				t.Errorf("run says %q", said)
			}
		})
	}
	t.Run("readers", func(t *testing.T) {
		t.Parallel()
		lock := lockName(t)
		var holders []*tool
		for range 3 {
			h := on(t, s, "run", "--shared", lock, "--", "sh", "-c", "echo ready; read line")
			h.stdout.await(t, "ready")
			registered(t, s, h)
			holders = append(holders, h)
		}
		c := on(t, s, "run", "--no-wait", "--exclusive", lock, "--", "true")
		c.ends(exitNotObtained)
		c.stderr.await(t, fmt.Sprintf("pid %d, runs sh, requested ", holders[0].cmd.Process.Pid))
		c.stderr.await(t, ", and by 2 others")
		for _, h := range holders {
			h.say("")
			h.ends(0)
		}
	})
}

// With --wait, run also waits for a server that is not up yet, and then for the lock, for at most that time in total. Without it, run fails
// immediately.
func TestRun_waitsForServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill(t)
	lock := lockName(t)
	for _, flags := range []string{"--no-wait", "--wait=0", "--wait=3s"} {
		c := on(t, s, "run", flags, lock, "--", "true")
		c.ends(exitBroken)
		c.stderr.await(t, "connection refused; check that the server is running")
	}
	c := on(t, s, "run", "--wait", "1h", lock, "--", "sh", "-c", "echo ready; read line")
	c.stderr.await(t, "leasehold: waiting for Redis: cannot connect to "+s.URL()+": ")
	s.Restart(t)
	c.stdout.await(t, "ready")
	c.say("")
	c.ends(0)
	if said := c.stderr.String(); strings.Count(said, "\n") != 1 {
		t.Errorf("run says %q", said)
	}
}
