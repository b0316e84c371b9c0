// Package redistest gives tests a Redis that they may break. For tests only.
//
//	Server  a private redis-server process: kill it, restart it, freeze it
//	Cluster three masters with a replica each: fail over, migrate slots
//	Proxy   a connection to a server that loses, delays and holds back requests and replies
//	Mini    a server in memory, for tests that run on synctest's clock
//
// Use it so:
//
//	s := redistest.Start(t)                // a real server, gone with the test
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
// Everything ends with the test that made it, and its goroutines
// with it. Only Server and Cluster need an installed program: see [Start] for what happens
// where that is missing.
package redistest
