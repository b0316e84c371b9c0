package luascripts_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
)

// A writer of Redisson that stops writing and continues to read leaves the lock with the writer's
// lease. When it dies as a reader, the last reader of ours must delete the lock, and not assume
// that another reader has that lease.
func TestRWPeers_downgradedAndDead(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		e := listen(t, l.rdb)
		if !l.javaWrites("J1", 20*time.Minute) || !l.javaReads("J1", lease) {
			t.Fatal("J1 may not write and read")
		}
		l.javaStopsWriting("J1")
		l.expect("ours", l.asksToRead("G2").Verdict, luascripts.Done)
		l.dies("J1")
		l.stopsReading("G2", luascripts.Done)
		e.expect(l.keys.Channel + " 0")
		if !l.javaWrites("J3", lease) {
			t.Errorf("nobody alive reads, and J3 may not write for %v", pttl(t, l.rdb, l.keys.Lock))
		}
	})
}

// If the token counter has the wrong type or may not be read, the call fails and nothing changes.
func TestRW_foreignTokenCounter(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.keys.TokenCounter = "register"
		for name, call := range map[string]func(l rw) error{"read": readsAs(1), "write": writesAs(1)} {
			l.clear()
			do(t, l.rdb, "RPUSH", l.keys.TokenCounter, "x")
			err := call(l)
			if got := l.state(); err == nil || got != "" {
				t.Errorf("%s: %v, and the lock is %q", name, err, got)
			}
		}
	})
}

// With a token counter, a reader's token is larger than the token of every earlier writer, even
// while that writer still writes. It is smaller than the token of every later writer. Readers with
// no writer between them have the same token, so that a guard that has seen one accepts the others.
func TestRW_tokensWithACounter(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.keys.TokenCounter = "redisson_lock_token:{orders}"
		for _, before := range []string{"", "4000000000000000"} { // a value from a clock that has since moved backward
			l.clear()
			if before != "" {
				do(t, l.rdb, "SET", l.keys.TokenCounter, before)
			}
			last := l.asksToRead("G1").Token
			if again := l.asksToRead("G1", func(q *luascripts.Request) { q.Want = 2 }).Token; again != 0 {
				t.Errorf("a reentry has the token %d", again)
			}
			l.stopsReading("G1", luascripts.Done)
			for range 3 {
				write := l.asksToWrite("G1").Token
				again := l.asksToWrite("G1").Token // a copy of the request
				under := l.asksToRead("G2", func(q *luascripts.Request) { q.Writer = owner("G1") }).Token
				l.stopsWriting("G1", luascripts.Done)
				beside, copied := l.asksToRead("G3").Token, l.asksToRead("G3").Token
				l.stopsReading("G2", luascripts.Done)
				l.stopsReading("G3", luascripts.Done)
				later := l.asksToRead("G4").Token
				l.stopsReading("G4", luascripts.Done)
				if last >= write || write > again || again >= under || beside != under || copied != under || later != under {
					t.Errorf("tokens: %d before, writer %d and %d, readers %d under it, %d and %d beside, %d later", last, write, again, under, beside, copied, later)
				}
				last = later
			}
		}
	})
}

// Like TestRW_deniedCommands, for owners that leave.
func TestRW_deniedCommandsAtTheEnd(t *testing.T) {
	deniedRW(t,
		deniedRWCase{"stop reading", "rw_read_release", "read G1=1(1)", "", leavesReading(0)},
		deniedRWCase{"stop reading beside others", "rw_read_release", "read G1=1(1) G2=1(1)", "", leavesReading(0)},
		deniedRWCase{"stop writing", "rw_write_release", "write G1:write=1", "", leavesWriting(0)},
		deniedRWCase{"stop writing and read on", "rw_write_release", "write G1:write=1 G2=1(1)", "", leavesWriting(0)},
	)
}

func leavesReading(leave int) func(l rw) error {
	return func(l rw) error {
		_, err := luascripts.ReleaseRead(l.t.Context(), l.rdb, l.keys, owner("G1"), leave)
		return err
	}
}
