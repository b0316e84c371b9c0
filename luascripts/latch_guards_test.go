package luascripts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A round has the number of the time at which it was made, so that it has another number than those of a latch whose traces are
// gone. It is known at once, and grows when the clock goes back.
func TestLatch_rounds(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Latch("done")
		look := func() luascripts.LatchState {
			t.Helper()
			s, v, err := luascripts.LookAtLatch(t.Context(), rdb, k, time.Hour)
			if v != luascripts.Done || err != nil {
				t.Fatalf("%d, %v", v, err)
			}
			return s
		}
		micros := now(t, rdb) * 1000
		do(t, rdb, "SET", "done", "5")
		if s := look(); s.Round < micros {
			t.Errorf("made by Redisson after %d: %+v", micros, s)
		}
		do(t, rdb, "FLUSHALL")
		made, _, err := luascripts.InitLatch(t.Context(), rdb, k, 5, latchCall("a"))
		if err != nil || made.Round < micros || look().Round != made.Round {
			t.Errorf("made after %d: %+v, %v; then %+v", micros, made, err, look())
		}
	})
}

// The traces of a latch live for so long as the caller says, whichever call was the last.
func TestLatch_tracesStay(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Latch("done")
		again := latchCall("a")
		again.Again = true
		for what, c := range map[string]struct {
			before func()
			call   func() error
			keys   []string
		}{
			"made": {func() {}, func() error {
				_, _, err := luascripts.InitLatch(t.Context(), rdb, k, 5, latchCall("a"))
				return err
			}, []string{k.Rounds, k.Calls}},
			"made before": {func() {
				_, _, _ = luascripts.InitLatch(t.Context(), rdb, k, 5, latchCall("b"))
				do(t, rdb, "PEXPIRE", k.Rounds, "60000")
			}, func() error {
				_, _, err := luascripts.InitLatch(t.Context(), rdb, k, 5, latchCall("a"))
				return err
			}, []string{k.Rounds}},
			"deleted": {func() { do(t, rdb, "SET", "done", "5") }, func() error {
				_, _, err := luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("a"))
				return err
			}, []string{k.Rounds, k.Calls}},
			"a repeated deletion of none": {func() {}, func() error {
				_, _, err := luascripts.DeleteLatch(t.Context(), rdb, k, again)
				return err
			}, []string{k.Calls}},
		} {
			do(t, rdb, "FLUSHALL")
			c.before()
			if err := c.call(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			for _, key := range c.keys {
				if left := pttl(t, rdb, key); left < 30*time.Minute || left > time.Hour {
					t.Errorf("%s: %s lives for %v", what, key, left)
				}
			}
		}
	})
}

// A call is remembered until its time is over.
func TestLatch_forgetsCalls(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Latch("done")
		do(t, rdb, "SET", "done", "5")
		do(t, rdb, "ZADD", k.Calls, "1000", "old")
		if _, _, err := luascripts.CountDownLatch(t.Context(), rdb, k, latchCall("a")); err != nil {
			t.Fatal(err)
		}
		if calls := list(t, rdb, "ZRANGE", k.Calls, "0", "-1"); len(calls) != 1 || calls[0] != "a" {
			t.Errorf("%q are remembered", calls)
		}
	})
}

// While memory is full, a latch can be deleted, and a call that was repeated is remembered.
func TestLatch_fullMemory(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	k := keynames.Latch("done")
	if _, _, err := luascripts.InitLatch(t.Context(), rdb, k, 1, latchCall("a")); err != nil {
		t.Fatal(err)
	}
	full(t, s)
	late := latchCall("b")
	late.Again = true
	if made, _, err := luascripts.InitLatch(t.Context(), rdb, k, 7, late); made.Did || err != nil {
		t.Fatalf("%+v, %v", made, err)
	}
	if gone, _, err := luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("c")); !gone.Did || err != nil {
		t.Errorf("deleted: %+v, %v", gone, err)
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	late.Again = false
	if made, _, err := luascripts.InitLatch(t.Context(), rdb, k, 7, late); made.Did || err != nil {
		t.Errorf("a late copy: %+v, %v", made, err)
	}
}

// A key that holds something else is not touched, and a command that is denied is no answer.
func TestWaitGroup_foreign(t *testing.T) {
	k, good := keynames.WaitGroup("waitgroup"), keynames.WaitGroup("{waitgroup}good")
	calls := func(rdb rueidis.Client) map[string]func() (luascripts.Verdict, error) {
		return map[string]func() (luascripts.Verdict, error){
			"join": func() (luascripts.Verdict, error) {
				a, err := luascripts.JoinWaitGroup(t.Context(), rdb, k, luascripts.Question{Owner: "a", Lease: time.Hour})
				return a.Verdict, err
			},
			"leave": func() (luascripts.Verdict, error) {
				return luascripts.LeaveWaitGroup(t.Context(), rdb, k, "a", 0, luascripts.WorkerDone)
			},
			"look": func() (luascripts.Verdict, error) {
				_, v, err := luascripts.LookAtWaitGroup(t.Context(), rdb, k)
				return v, err
			},
			"inspect": func() (luascripts.Verdict, error) {
				_, v, err := luascripts.InspectWaitGroup(t.Context(), rdb, k)
				return v, err
			},
			"dismiss": func() (luascripts.Verdict, error) {
				_, v, err := luascripts.DismissFromWaitGroup(t.Context(), rdb, k, []string{"a"})
				return v, err
			},
			"delete": func() (luascripts.Verdict, error) { return luascripts.DeleteWaitGroup(t.Context(), rdb, k, 1) },
			"renew": func() (luascripts.Verdict, error) {
				r := luascripts.RenewWaitGroup(t.Context(), rdb, []luascripts.Renewal{{Keys: &k, Owner: "a"}, {Keys: &good, Owner: "b"}}, time.Hour, 2)
				if r[1].Verdict != luascripts.Done || r[1].Err != nil {
					t.Errorf("another wait group: %+v", r[1])
				}
				return r[0].Verdict, r[0].Err
			},
		}
	}
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for name, call := range calls(rdb) {
			do(t, rdb, "FLUSHALL")
			do(t, rdb, "RPUSH", k.Lock, "x")
			if a, err := luascripts.JoinWaitGroup(t.Context(), rdb, good, luascripts.Question{Owner: "b", Lease: time.Minute}); a.Verdict != luascripts.Done || err != nil {
				t.Fatalf("%+v, %v", a, err)
			}
			if v, err := call(); v != luascripts.Foreign || err != nil {
				t.Errorf("%s: %d, %v", name, v, err)
			}
			if got := list(t, rdb, "LRANGE", k.Lock, "0", "-1"); len(got) != 1 {
				t.Errorf("%s: the list is %q now", name, got)
			}
		}
	})
	s := redistest.Start(t)
	for name, needs := range map[string]string{"join": "zscore zadd", "leave": "zscore zadd", "dismiss": "zscore zadd", "delete": "zscore", "look": "zscore"} {
		for command := range strings.SplitSeq(needs, " ") {
			s.Do(t, "FLUSHALL")
			s.Do(t, "ZADD", k.Lock, "1000", "a")
			s.Do(t, "ZADD", k.Lock, "1000", "lost")
			if name == "join" {
				s.Do(t, "DEL", k.Lock)
			}
			if v, err := calls(denied(t, s, command))[name](); err == nil {
				t.Errorf("%s without %s: %d", name, command, v)
			}
		}
	}
}

// The waiters of a wait group are told when the last worker leaves, and when a worker is dismissed: once. A wait group that is not there is deleted.
func TestWaitGroup_tells(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.WaitGroup("waitgroup")
		const channel = "leasehold_crew:{waitgroup}"
		if v, err := luascripts.DeleteWaitGroup(t.Context(), rdb, k, 1); v != luascripts.Done || err != nil {
			t.Errorf("a wait group that is not there: %d, %v", v, err)
		}
		e := listen(t, rdb)
		for _, owner := range []string{"a", "b"} {
			if a, err := luascripts.JoinWaitGroup(t.Context(), rdb, k, luascripts.Question{Owner: owner, Lease: time.Hour}); a.Verdict != luascripts.Done || err != nil {
				t.Fatalf("%+v, %v", a, err)
			}
		}
		for _, owner := range []string{"a", "b"} {
			e.expect()
			if v, err := luascripts.LeaveWaitGroup(t.Context(), rdb, k, owner, 0, luascripts.WorkerDone); v != luascripts.Done || err != nil {
				t.Fatalf("%d, %v", v, err)
			}
		}
		e.expect(channel + " 0")
		do(t, rdb, "ZADD", k.Lock, "1000", "lost")
		for range 2 {
			if n, _, err := luascripts.DismissFromWaitGroup(t.Context(), rdb, k, []string{"lost"}); n != 1 || err != nil {
				t.Errorf("%d dismissed, %v", n, err)
			}
		}
		e.expect(channel + " 0")
		if all, _, err := luascripts.InspectWaitGroup(t.Context(), rdb, k); len(all) != 2 || err != nil {
			t.Errorf("the members are %+v, %v", all, err)
		}
		do(t, rdb, "ZADD", k.Lock, "1000", "late")
		all, _, err := luascripts.InspectWaitGroup(t.Context(), rdb, k)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if want := luascripts.NoExpiry; m.Owner == "late" && m.Left != 0 || m.Owner != "late" && m.Left != want {
				t.Errorf("%+v", m)
			}
		}
	})
}
