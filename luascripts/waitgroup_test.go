package luascripts_test

import (
	"strings"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The scripts mean the same on a real server and on one in memory. A worker that is over stays so, whichever late copy
// of a command comes.
func TestWaitGroup(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.WaitGroup("waitgroup")
		join := func(owner string, lease time.Duration, want luascripts.Verdict) {
			t.Helper()
			if a, err := luascripts.JoinWaitGroup(t.Context(), rdb, k, luascripts.Question{Owner: owner, Lease: lease}); err != nil || a.Verdict != want {
				t.Errorf("%s joins: %+v, %v, want %d", owner, a, err, want)
			}
		}
		leave := func(owner string, leaves int, as luascripts.Mark, want luascripts.Verdict) {
			t.Helper()
			if v, err := luascripts.LeaveWaitGroup(t.Context(), rdb, k, owner, leaves, as); err != nil || v != want {
				t.Errorf("%s leaves as %s: %d, %v, want %d", owner, as, v, err, want)
			}
		}
		renew := func(owner string, want luascripts.Verdict) {
			t.Helper()
			if r := luascripts.RenewWaitGroup(t.Context(), rdb, []luascripts.Renewal{{Keys: &k, Owner: owner}}, time.Hour, 1)[0]; r.Err != nil || r.Verdict != want {
				t.Errorf("%s is renewed: %+v, want %d", owner, r, want)
			}
		}
		stands := func(done, alive, lost int64) luascripts.WaitGroupState {
			t.Helper()
			s, v, err := luascripts.LookAtWaitGroup(t.Context(), rdb, k)
			if err != nil || v != luascripts.Done || s.Done != done || s.Alive != alive || s.Lost != lost {
				t.Errorf("%+v, %d, %v, want %d done, %d alive, %d lost", s, v, err, done, alive, lost)
			}
			return s
		}
		const channel = "leasehold_crew:{waitgroup}"
		e := listen(t, rdb)
		stands(0, 0, 0)
		for _, owner := range []string{"a", "b", "c", "d"} {
			join(owner, time.Hour, luascripts.Done)
			join(owner, time.Hour, luascripts.Done)
		}
		about(t, "the next lease", stands(0, 4, 0).Next, time.Hour)
		leave("a", 1, luascripts.WorkerDone, luascripts.Done) // only asks
		stands(0, 4, 0)
		leave("a", 0, luascripts.WorkerDone, luascripts.Done)
		leave("a", 0, luascripts.WorkerDone, luascripts.Done)
		leave("b", 0, luascripts.NoWorker, luascripts.Done)
		e.expect()
		leave("c", 0, luascripts.WorkerLost, luascripts.Done)
		e.expect(channel + " 0")
		stands(1, 1, 1)
		for owner, as := range map[string]luascripts.Mark{"a": luascripts.WorkerDone, "b": luascripts.NoWorker, "c": luascripts.WorkerLost} {
			join(owner, time.Hour, luascripts.Gone) // late copies
			renew(owner, luascripts.Gone)
			leave(owner, 0, as, luascripts.Done)
			leave(owner, 1, as, luascripts.Gone)
		}
		leave("c", 0, luascripts.WorkerDone, luascripts.Gone)
		stands(1, 1, 1)
		leave("never", 0, luascripts.WorkerDone, luascripts.Gone)
		leave("late", 0, luascripts.NoWorker, luascripts.Gone)
		join("late", time.Hour, luascripts.Gone) // the question comes after the settler
		stands(1, 1, 1)

		do(t, rdb, "ZADD", k.Lock, "XX", "1000", "d") // its lease ran out
		renew("d", luascripts.Gone)
		join("d", time.Hour, luascripts.Done) // by the call that still waits for it
		stands(1, 1, 1)
		do(t, rdb, "ZADD", k.Lock, "XX", "1000", "d")
		leave("d", 0, luascripts.WorkerDone, luascripts.Gone)
		join("d", time.Hour, luascripts.Gone) // it was told that its worker is over
		if s := stands(1, 0, 2); len(s.Some) != 2 || s.Next != luascripts.NoExpiry {
			t.Errorf("%+v", s)
		}
		if n, v, err := luascripts.DismissFromWaitGroup(t.Context(), rdb, k, []string{"a", "c", "d", "never"}); n != 2 || v != luascripts.Done || err != nil {
			t.Errorf("%d dismissed, %d, %v", n, v, err)
		}
		e.expect(channel + " 0")
		s := stands(1, 0, 0)
		if v, err := luascripts.DeleteWaitGroup(t.Context(), rdb, k, s.Round-1); v != luascripts.Done || err != nil {
			t.Errorf("%d, %v", v, err)
		}
		stands(1, 0, 0) // it was about an earlier round
		if v, err := luascripts.DeleteWaitGroup(t.Context(), rdb, k, s.Round); v != luascripts.Done || err != nil {
			t.Errorf("%d, %v", v, err)
		}
		e.expect(channel + " 1")
		stands(0, 0, 0)

		// The wait group outlives the lease of each worker, so that a worker that is lost is named.
		for i, lease := range []time.Duration{48 * time.Hour, 40 * time.Hour} {
			join(string(rune('a'+i)), lease, luascripts.Done)
			if left := time.Duration(number(t, rdb, "PTTL", k.Lock)) * time.Millisecond; left < lease+12*time.Hour {
				t.Errorf("the wait group lives for %v, and a worker for %v", left, lease)
			}
			do(t, rdb, "PEXPIRE", k.Lock, "180000000") // later on: fifty hours are left
		}
	})
}

// Whichever command is denied, a call that fails has changed no worker.
func TestWaitGroup_denied(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.WaitGroup("waitgroup")
	join := func(owner string) func(rdb rueidis.Client) error {
		return func(rdb rueidis.Client) error {
			_, err := luascripts.JoinWaitGroup(t.Context(), rdb, k, luascripts.Question{Owner: owner, Lease: time.Hour})
			return err
		}
	}
	for what, c := range map[string]struct {
		script string
		run    func(rdb rueidis.Client) error
	}{
		"the next":  {"crew_join", join("b")},
		"once more": {"crew_join", join("a")},
		"the end": {"crew_leave", func(rdb rueidis.Client) error {
			_, err := luascripts.LeaveWaitGroup(t.Context(), rdb, k, "a", 0, luascripts.WorkerDone)
			return err
		}},
		"a dismissal": {"crew_dismiss", func(rdb rueidis.Client) error {
			_, _, err := luascripts.DismissFromWaitGroup(t.Context(), rdb, k, []string{"lost"})
			return err
		}},
	} {
		for _, command := range commands(c.script) {
			do(t, admin, "FLUSHALL")
			if err := join("a")(admin); err != nil {
				t.Fatal(err)
			}
			do(t, admin, "ZADD", k.Lock, "1000", "lost")
			do(t, admin, "PERSIST", k.Lock) // so that each call sets the expiry
			scores := func() string {
				m := eval(t, admin, "return table.concat(redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), ' ')", []string{k.Lock})
				return m.String()
			}
			before := scores()
			err := c.run(denied(t, s, command))
			if err == nil {
				if number(t, admin, "PTTL", k.Lock) < 0 {
					t.Errorf("%s without %s: the wait group never expires", what, command)
				}
				continue
			}
			if after := scores(); after != before {
				t.Errorf("%s without %s: %s, was %s", what, command, after, before)
			}
		}
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
			t.Errorf("the workers are %+v, %v", all, err)
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
