// Package redistest provides Redis servers that tests may break. For tests only.
//
//	Server  a private redis-server process: kill it, restart it, freeze it
//	Cluster three masters with a replica each: fail over, migrate slots
//	Proxy   a connection to a server that loses, delays and holds back requests and replies
//	Mini    an in-memory server, for tests that run on synctest's clock
//
// Example:
//
//	s := redistest.Start(t)                // a real server, stopped with the test
//	c := s.Client(t)                       // a rueidis.Client, closed with the test
//
//	p := redistest.NewProxy(t, s.Addr())
//	c := s.Client(t, redistest.Via(p))     // the same, through a proxy that can fail
//	p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
//
//	synctest.Test(t, func(t *testing.T) {
//		m := redistest.NewMini(t)          // no socket, no process, virtual time
//		c := m.Client(t, redistest.Via(m.Proxy(t)))
//	})
//
// Everything is stopped when its test ends, including its goroutines. Only Server and Cluster need
// an installed program: see [Start] for what happens if it is missing.
package redistest
