package luascripts_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The scripts behave the same on a real server and on an in-memory one. A worker that has ended stays that way,
// whichever delayed duplicate of a command arrives.
func TestWaitGroup(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.WaitGroup("waitgroup")
		join := func(owner string, lease time.Duration, want luascripts.Verdict) {
			t.Helper()
			if a, err := luascripts.JoinWaitGroup(t.Context(), rdb, k, luascripts.Request{Owner: owner, Lease: lease}); err != nil || a.Verdict != want {
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
			s, v, err := luascripts.WaitGroupStatus(t.Context(), rdb, k)
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
		leave("a", 1, luascripts.WorkerDone, luascripts.Done) // only checks
		stands(0, 4, 0)
		leave("a", 0, luascripts.WorkerDone, luascripts.Done)
		leave("a", 0, luascripts.WorkerDone, luascripts.Done)
		leave("b", 0, luascripts.NoWorker, luascripts.Done)
		e.expect()
		leave("c", 0, luascripts.WorkerLost, luascripts.Done)
		e.expect(channel + " 0")
		stands(1, 1, 1)
		for owner, as := range map[string]luascripts.Mark{"a": luascripts.WorkerDone, "b": luascripts.NoWorker, "c": luascripts.WorkerLost} {
			join(owner, time.Hour, luascripts.Gone) // delayed duplicates
			renew(owner, luascripts.Gone)
			leave(owner, 0, as, luascripts.Done)
			leave(owner, 1, as, luascripts.Gone)
		}
		leave("c", 0, luascripts.WorkerDone, luascripts.Gone)
		stands(1, 1, 1)
		leave("never", 0, luascripts.WorkerDone, luascripts.Gone)
		leave("late", 0, luascripts.NoWorker, luascripts.Gone)
		join("late", time.Hour, luascripts.Gone) // the request arrives after its outcome was resolved
		stands(1, 1, 1)

		do(t, rdb, "ZADD", k.Lock, "XX", "1000", "d") // its lease expired
		renew("d", luascripts.Gone)
		join("d", time.Hour, luascripts.Done) // by the call that still waits for it
		stands(1, 1, 1)
		do(t, rdb, "ZADD", k.Lock, "XX", "1000", "d")
		leave("d", 0, luascripts.WorkerDone, luascripts.Gone)
		join("d", time.Hour, luascripts.Gone) // a reply reported that its worker has ended
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
		stands(1, 0, 0) // it referred to an earlier round
		if v, err := luascripts.DeleteWaitGroup(t.Context(), rdb, k, s.Round); v != luascripts.Done || err != nil {
			t.Errorf("%d, %v", v, err)
		}
		e.expect(channel + " 1")
		stands(0, 0, 0)

		// The wait group outlives the lease of each worker, so that a lost worker can be named.
		for i, lease := range []time.Duration{48 * time.Hour, 40 * time.Hour} {
			join(string(rune('a'+i)), lease, luascripts.Done)
			if left := time.Duration(number(t, rdb, "PTTL", k.Lock)) * time.Millisecond; left < lease+12*time.Hour {
				t.Errorf("the wait group lives for %v, and a worker for %v", left, lease)
			}
			do(t, rdb, "PEXPIRE", k.Lock, "180000000") // some time later: fifty hours are left
		}
	})
}

// Whichever command is denied, a failed call has changed no worker.
func TestWaitGroup_denied(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.WaitGroup("waitgroup")
	join := func(owner string) func(rdb rueidis.Client) error {
		return func(rdb rueidis.Client) error {
			_, err := luascripts.JoinWaitGroup(t.Context(), rdb, k, luascripts.Request{Owner: owner, Lease: time.Hour})
			return err
		}
	}
	for what, c := range map[string]struct {
		script string
		run    func(rdb rueidis.Client) error
	}{
		"the next":  {"waitgroup_join", join("b")},
		"once more": {"waitgroup_join", join("a")},
		"the end": {"waitgroup_leave", func(rdb rueidis.Client) error {
			_, err := luascripts.LeaveWaitGroup(t.Context(), rdb, k, "a", 0, luascripts.WorkerDone)
			return err
		}},
		"a dismissal": {"waitgroup_dismiss", func(rdb rueidis.Client) error {
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

// A key of the wrong type does not change, and a denied command is not a result.
func TestWaitGroup_foreign(t *testing.T) {
	k, good := keynames.WaitGroup("waitgroup"), keynames.WaitGroup("{waitgroup}good")
	calls := func(rdb rueidis.Client) map[string]func() (luascripts.Verdict, error) {
		return map[string]func() (luascripts.Verdict, error){
			"join": func() (luascripts.Verdict, error) {
				a, err := luascripts.JoinWaitGroup(t.Context(), rdb, k, luascripts.Request{Owner: "a", Lease: time.Hour})
				return a.Verdict, err
			},
			"leave": func() (luascripts.Verdict, error) {
				return luascripts.LeaveWaitGroup(t.Context(), rdb, k, "a", 0, luascripts.WorkerDone)
			},
			"look": func() (luascripts.Verdict, error) {
				_, v, err := luascripts.WaitGroupStatus(t.Context(), rdb, k)
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
			if a, err := luascripts.JoinWaitGroup(t.Context(), rdb, good, luascripts.Request{Owner: "b", Lease: time.Minute}); a.Verdict != luascripts.Done || err != nil {
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

// The waiters of a wait group are notified once when the last worker leaves, and when a worker is dismissed. A wait group that
// does not exist can be deleted.
func TestWaitGroup_notifies(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.WaitGroup("waitgroup")
		const channel = "leasehold_crew:{waitgroup}"
		if v, err := luascripts.DeleteWaitGroup(t.Context(), rdb, k, 1); v != luascripts.Done || err != nil {
			t.Errorf("a wait group that is not there: %d, %v", v, err)
		}
		e := listen(t, rdb)
		for _, owner := range []string{"a", "b"} {
			if a, err := luascripts.JoinWaitGroup(t.Context(), rdb, k, luascripts.Request{Owner: owner, Lease: time.Hour}); a.Verdict != luascripts.Done || err != nil {
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

// Dismissed workers stay in Redis. However many there are, the others are found.
func TestInspectWaitGroup_behindTheDismissed(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.WaitGroup("waitgroup")
		add := []string{"ZADD", k.Lock, "-1000000", "round"}
		for i := range 2500 {
			add = append(add, "0", fmt.Sprintf("dismissed%d", i))
		}
		for i := range 1000 {
			add = append(add, strconv.Itoa(1000+i), fmt.Sprintf("lost%d", i))
		}
		do(t, rdb, append(add, "9000000000000001", "done")...)
		all, v, err := luascripts.InspectWaitGroup(t.Context(), rdb, k)
		if err != nil || v != luascripts.Done || len(all) != 1001 || all[0].Owner != "lost0" || all[1000] != (luascripts.WaitGroupWorker{Owner: "done", Left: luascripts.NoExpiry}) {
			t.Errorf("%d workers, %d, %v", len(all), v, err)
		}
	})
}

// Transcript of the scripts of a wait group at the exact end of a lease, including the TTLs of its keys.
func TestWaitGroup_transcript(t *testing.T) {
	play(t, `
		# a member is alive until its lease ends, and lost from then on
		waitgroup_join [c] a 1000 86400000 0 = 0
		ZRANGE c 0 -1 WITHSCORES = [round -9.466848e+14 a @1000]
		waitgroup_status [c] 86400000 = [@0us 0 1 1000 0]
		wait 999
		waitgroup_leave [c] a 1 9000000000000001 86400000 ch PUBLISH = 1
		waitgroup_status [c] 86400000 = [@0us 0 1 1 0]
		waitgroup_inspect [c] 0 = [a 1]
		wait 1
		waitgroup_leave [c] a 1 9000000000000001 86400000 ch PUBLISH = -2
		waitgroup_status [c] 86400000 = [@0us 0 0 -1 1 a]
		wait 5
		waitgroup_inspect [c] 0 = [a 0]
		waitgroup_renew [c] 1000 a = [1 1 -2]

		# a lease that ended is taken up only by a call that names its end
		waitgroup_join [c] a 1000 86400000 0 = @1000
		waitgroup_join [c] a 1000 86400000 @999 = @1000
		waitgroup_join [c] a 1000 86400000 @1000 = 0
		ZSCORE c a = @2005

		# a join and a renewal never shorten a lease
		waitgroup_join [c] a 500 86400000 0 = 0
		ZSCORE c a = @2005
		waitgroup_renew [c] 500 a = [1]
		ZSCORE c a = @2005
		waitgroup_renew [c] 1000 a = [1]
		sent ZADD = 0
		ZSCORE c a = @2005
		wait 1
		waitgroup_renew [c] 1000 a = [1]
		ZSCORE c a = @2006

		# the round is set once
		waitgroup_join [c] b 1000 86400000 0 = 0
		ZSCORE c round = -9.466848e+14

		# a crew stays for four leases, or for as long as the call says
		DEL c
		waitgroup_join [c] a 1000 5000 0 = 0
		PTTL c = 5000
		waitgroup_join [c] b 2000 5000 0 = 0
		PTTL c = 5000
		PEXPIRE c 4000
		waitgroup_join [c] c 2000 5000 0 = 0
		PTTL c = 4000
		PEXPIRE c 3999
		waitgroup_join [c] d 2000 5000 0 = 0
		PTTL c = 8000

		# a renewal keeps it for two days, or for four leases, when less than half of that is left
		wait 1
		waitgroup_renew [c] 2000 a = [1]
		PTTL c = 172800000
		wait 1
		PEXPIRE c 86400000
		waitgroup_renew [c] 2000 a = [1]
		PTTL c = 86400000
		PEXPIRE c 86399999
		wait 1
		waitgroup_renew [c] 2000 a = [1]
		PTTL c = 172800000
		wait 1
		PEXPIRE c 172800000
		waitgroup_renew [c] 86400000 a = [1]
		PTTL c = 172800000
		wait 1
		PEXPIRE c 172799999
		waitgroup_renew [c] 86400000 a = [1]
		PTTL c = 345600000
		DEL c

		# a member that ends after its lease is lost for good; one that is not there leaves a mark only if it never began
		ZADD c -946674800000000 round @10000 a @100 b
		ZRANGE c 0 -1 WITHSCORES = [round -9.466748e+14 b @100 a @10000]
		waitgroup_leave [c] b 0 9000000000000001 5000 ch PUBLISH = -2
		published = []
		waitgroup_leave [c] x 0 9000000000000001 5000 ch PUBLISH = -2
		waitgroup_leave [c] y 0 0 5000 ch PUBLISH = -2
		waitgroup_leave [c] z 0 1 5000 ch PUBLISH = -2
		ZRANGE c 0 -1 WITHSCORES = [round -9.466748e+14 y 0 b 1 a @10000]
		published = []

		# waiters are notified when a member was lost, and when no other is alive
		ZADD c 60000000000001 a 60000000000001 b 60000000000001 d
		waitgroup_leave [c] a 0 1 5000 ch PUBLISH = 1
		published = [ch~0]
		waitgroup_leave [c] b 0 9000000000000001 5000 ch PUBLISH = 1
		published = []
		waitgroup_leave [c] d 0 9000000000000001 5000 ch PUBLISH = 1
		published = [ch~0]

		# a late copy of the same end is told the same, and any other that the member was not alive
		waitgroup_leave [c] d 0 9000000000000001 5000 ch PUBLISH = 1
		waitgroup_leave [c] d 0 1 5000 ch PUBLISH = -2
		waitgroup_join [c] d 1000 5000 0 = -2
		waitgroup_renew [c] 1000 d = [1 1 -2]

		# marks are less than 2, or at least 9e15
		ZADD c 1.9 m 2 n 8999999999999998 p
		waitgroup_join [c] m 1000 5000 0 = -2
		waitgroup_join [c] n 1000 5000 0 = 2
		waitgroup_leave [c] p 1 1 5000 ch PUBLISH = 1
		waitgroup_join [c] p 1000 5000 0 = 0
		without ZREM
		waitgroup_join [c] d 1000 5000 0 = !NOPERM
		without
		waitgroup_inspect [c] 0 = [a 0 m 0 n 0 p 8999053315198987 b -1 d -1]

		# a dismissal takes out members that are lost, by their own word or by the end of their leases
		DEL c
		ZADD c -1 round 1 a 0.5 h @44400000 b @1011 e @1012 f
		waitgroup_status [c] 5000 = [1 0 2 1 2 a e]
		waitgroup_dismiss [c] 5000 ch PUBLISH a h b x e f = 2
		published = [ch~0]
		ZRANGE c 0 -1 WITHSCORES = [round -1 a 0 e 0 h 0.5 f @1012 b @44400000]
		waitgroup_dismiss [c] 5000 ch PUBLISH a = 1
		published = []
		PTTL c = 5000

		# it stays while a caller waits, even if nothing changes
		waitgroup_status [c] 10000 = [1 0 2 1 0]
		PTTL c = 5000
		waitgroup_status [c] 10002 = [1 0 2 1 0]
		PTTL c = 10002

		# only the round that is named is deleted
		waitgroup_delete [c] 2 ch PUBLISH = 1
		EXISTS c = 1
		published = []
		waitgroup_delete [c] 1 ch PUBLISH = 1
		EXISTS c = 0
		published = [ch~1]
		waitgroup_delete [c] 1 ch PUBLISH = 1
		published = []
		waitgroup_status [c] 86400000 = [0 0 0 -1 0]

		# another key is left alone
		SET s 1
		waitgroup_join [s] a 1 1 0 = -4
		waitgroup_leave [s] a 0 1 1 ch PUBLISH = -4
		waitgroup_status [s] 86400000 = -4
		waitgroup_inspect [s] 0 = -4
		waitgroup_dismiss [s] 1 ch PUBLISH a = -4
		waitgroup_delete [s] 1 ch PUBLISH = -4
		waitgroup_renew [s] 1000 a = [1 1 -4]

		# a denied command fails the call, and changes nothing
		waitgroup_join [c] a 1000 5000 0 = 0
		without ZSCORE
		waitgroup_renew [c] 1000 a = !NOPERM
		waitgroup_status [c] 86400000 = !NOPERM
		without ZREM
		waitgroup_status [c] 86400000 = !NOPERM
		waitgroup_leave [c] a 1 1 5000 ch PUBLISH = !NOPERM
		waitgroup_dismiss [c] 5000 ch PUBLISH a = !NOPERM
		waitgroup_renew [c] 1000 a = !NOPERM
		waitgroup_delete [c] 1 ch PUBLISH = !NOPERM
		without PEXPIRE
		PERSIST c
		waitgroup_join [c] b 1000 5000 0 = !NOPERM
		waitgroup_leave [c] a 0 1 5000 ch PUBLISH = !NOPERM
		ZADD c 5 lost
		waitgroup_dismiss [c] 5000 ch PUBLISH lost = !NOPERM
		ZRANGE c 0 -1 WITHSCORES = [round -@1011000us lost 5 a @2011]
		ZREM c lost
		without ZADD
		waitgroup_join [c] b 1000 5000 0 = !NOPERM
		without PTTL
		waitgroup_join [c] b 1000 5000 0 = !NOPERM
		waitgroup_leave [c] a 0 1 5000 ch PUBLISH = !NOPERM
		without
		ZRANGE c 0 -1 = [round a]
	`)
}
