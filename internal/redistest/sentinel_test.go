package redistest

import "testing"

// The writes after CutReplication are lost with the primary, and the other nodes
// go on; twice, so that a node that joined again can be promoted.
func TestSentinel(t *testing.T) {
	s := StartSentinel(t, 2)
	rdb := s.Client(t)
	for range 2 {
		primary := s.Primary(t)
		primary.Do(t, "SET", "kept", "1")
		replica := s.Nodes[0]
		if replica == primary {
			replica = s.Nodes[1]
		}
		waitUntil(t, "the replica has it", func() bool { // WAIT on another connection does not tell
			reply := replica.Do(t, "EXISTS", "kept")
			n, _ := reply.ToInt64()
			return n == 1
		})
		s.CutReplication(t, primary)
		primary.Do(t, "SET", "lost", "1")
		next := s.Failover(t, primary)
		kept, lost := next.Do(t, "EXISTS", "kept"), next.Do(t, "EXISTS", "lost")
		if n, _ := kept.ToInt64(); n != 1 {
			t.Error("what was replicated is gone")
		}
		if n, _ := lost.ToInt64(); n != 0 {
			t.Error("what was not replicated is there")
		}
		waitUntil(t, "the client follows", func() bool {
			return rdb.Do(t.Context(), rdb.B().Set().Key("follows").Value(next.Addr()).Build()).Error() == nil
		})
		s.Rejoin(t, primary, next)
	}
}
