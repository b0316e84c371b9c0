package redistest

import (
	"testing"
	"time"
)

// The writes after CutReplication are lost with the primary, and the other nodes continue; twice,
// so that a node that rejoined can be promoted, too.
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
		waitUntil(t, "the replica has it", func() bool { // WAIT on another connection does not cover it
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

// Sentinels that stall for more than two seconds promote the replica anyway.
func TestSentinel_still(t *testing.T) {
	s := StartSentinel(t, 2)
	if _, err := s.Sentinels[0].ask("SENTINEL", "DEBUG"); err != nil {
		t.Skip("this version has no SENTINEL DEBUG")
	}
	primary := s.Primary(t)
	for _, sentinel := range s.Sentinels {
		sentinel.Freeze(t)
	}
	time.AfterFunc(2500*time.Millisecond, func() {
		for _, sentinel := range s.Sentinels {
			sentinel.Thaw(t)
		}
	})
	if s.Failover(t, primary) == primary {
		t.Error("the dead primary was not replaced")
	}
}
