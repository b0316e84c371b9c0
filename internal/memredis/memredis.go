// Package memredis starts a miniredis that is suitable for locks: for users' tests (package locktest), for the demo,
// and for tests.
package memredis

import (
	"net"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// Start returns an in-memory server that listens on a free port of the loopback interface. Close stops it.
func Start() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, err
	}
	return fit(m), nil
}

// StartInside returns an in-memory server without a listener: connections are made with Dial only, so it can run in a
// testing/synctest bubble.
func StartInside() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	var first net.Conn
	first, err := m.Dial() // starts the server
	if err != nil {
		return nil, err
	}
	return fit(m), first.Close()
}

// fit makes keys expire as time passes, and makes the server reject what it does not implement: it would claim to be a
// cluster, and to support RESP3, although a subscribed RESP3 connection of miniredis accepts no other commands.
func fit(m *miniredis.Miniredis) *miniredis.Miniredis {
	m.ClockTTL(true)
	Hook(m, func(string) string { return "" })
	return m
}

// Hook makes m call f with each command before it runs. If f returns a non-empty string, that is the error reply, and
// the command does not run. Commands executed by scripts are not passed to f: miniredis holds its mutex then, so that a
// delay would stop the clock of a bubble.
func Hook(m *miniredis.Miniredis, f func(command string) (refusal string)) {
	var connections sync.Map // the peers that are connections
	m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) (done bool) {
		// A script runs each command as a new peer whose Ctx is set already. The Ctx of a connection is set by its
		// first command.
		if c.Ctx == nil {
			if _, known := connections.LoadOrStore(c, true); !known {
				c.OnDisconnect(func() { connections.Delete(c) })
			}
		} else if _, known := connections.Load(c); !known {
			return false
		}
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
