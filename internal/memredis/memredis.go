// Package memredis starts a miniredis that locks can run on: for users' tests
// (package locktest), for the demo, and for tests.
package memredis

import (
	"net"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// Start returns a server in memory that listens on a free port of the loopback
// interface. Close ends it.
func Start() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, err
	}
	return fit(m), nil
}

// StartInside returns a server in memory that listens to nothing: connections
// are made by Dial alone, so that it runs in a testing/synctest bubble.
func StartInside() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	var first net.Conn
	first, err := m.Dial() // starts the server
	if err != nil {
		return nil, err
	}
	return fit(m), first.Close()
}

// fit makes keys expire as time goes by, and makes the server refuse
// what it does not implement: it would claim to be a cluster, and to speak RESP3, in
// which a connection of miniredis that listens to a channel takes no other commands.
func fit(m *miniredis.Miniredis) *miniredis.Miniredis {
	m.ClockTTL(true)
	Hook(m, func(string) string { return "" })
	return m
}

// Hook makes m call f with each command before it runs. If f returns a text, that is the error reply, and the command does
// not run. Commands of scripts are not among them.
func Hook(m *miniredis.Miniredis, f func(command string) (refusal string)) {
	m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) (done bool) {
		refusal := f(command)
		switch {
		case refusal != "":
		case command == "CLUSTER":
			refusal = "ERR This instance has cluster support disabled"
		case command == "HELLO":
			refusal = "ERR unknown command 'HELLO'"
		default:
			return false
		}
		c.WriteError(refusal)
		return true
	})
}
