package luascripts_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The call that finds that leases ran out, or that a waiter before others is dead, tells those whose turn has come: not itself. It
// also tells Redisson's clients.
func TestSemaphore_tellsWhatItFinds(t *testing.T) {
	told := func(n int) string {
		who := strconv.Itoa(n)
		return "leasehold_semaphore:{sem}:018f5c4e-0000-7000-8000-00000000000" + who + ":fair 180000000000000" + who + "000:"
	}
	for what, c := range map[string]struct {
		expired bool // the holder of two permits of three is dead
		dead    bool // a waiter for three is the first of the queue, and dead
		asker   string
		got     luascripts.Verdict
		want    []string
	}{
		"leases ran out":              {true, false, taker(4, 2), luascripts.Held, []string{told(2) + "2", told(3) + "1", "redisson_sc:{sem} 03"}},
		"leases ran out, by a waiter": {true, false, taker(2, 2), luascripts.Done, []string{told(3) + "1", "redisson_sc:{sem} 01"}},
		"a waiter is dead":            {false, true, taker(4, 1), luascripts.Held, []string{"redisson_sc:{sem} 01"}},
		"nothing":                     {false, false, taker(4, 1), luascripts.Held, nil},
	} {
		t.Run(what, func(t *testing.T) {
			onBoth(t, func(t *testing.T, rdb rueidis.Client) {
				k := semaphoreKeys(3)
				take(t, rdb, k, taker(1, 2), time.Minute)
				if c.dead {
					take(t, rdb, k, taker(5, 3), time.Minute)
				}
				for _, waiter := range []string{taker(2, 2), taker(3, 1)} {
					take(t, rdb, k, waiter, time.Minute)
				}
				if c.expired {
					for _, id := range luascripts.Permits(taker(1, 2)) {
						do(t, rdb, "ZADD", k.Leases, "XX", "1000", id)
					}
				}
				if c.dead {
					do(t, rdb, "ZADD", k.Timeouts, "XX", "1000", taker(5, 3))
				}
				e := listen(t, rdb)
				if got := take(t, rdb, k, c.asker, 0); got != c.got {
					t.Errorf("%d, want %d", got, c.got)
				}
				e.expect(c.want...)
			})
		})
	}
}

// More permits than there are, or a key that holds something else, are no reason to wait. A semaphore with an expiry has it for the
// leases, too.
func TestSemaphore_refuses(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(3)
		take(t, rdb, k, taker(1, 1), 0)
		if got, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Question{Owner: taker(2, 4), Lease: time.Hour, WaiterTimeout: time.Minute}); err == nil || !strings.Contains(err.Error(), "3 permits") {
			t.Errorf("four of three: %+v, %v", got, err)
		}
		for _, key := range []string{k.Lock, k.Leases} {
			do(t, rdb, "FLUSHALL")
			do(t, rdb, "RPUSH", key, "x")
			if got := take(t, rdb, k, taker(1, 1), time.Minute); got != luascripts.Foreign {
				t.Errorf("take, with a list as %s: %d", key, got)
			}
			if got := give(t, rdb, k, taker(1, 1)); got != luascripts.Foreign {
				t.Errorf("give, with a list as %s: %d", key, got)
			}
			if got := list(t, rdb, "KEYS", "*"); len(got) != 1 {
				t.Errorf("%q are there", got)
			}
		}
		do(t, rdb, "FLUSHALL")
		do(t, rdb, "SET", k.Lock, "3", "PX", "60000")
		take(t, rdb, k, taker(1, 1), 0)
		if left := pttl(t, rdb, k.Leases); left <= 0 || left > time.Minute {
			t.Errorf("the leases expire in %v", left)
		}
	})
}

// An owner that cannot leave the queue has no permits.
func TestSemaphore_deniedToLeave(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := semaphoreKeys(2)
	take(t, admin, k, taker(1, 2), 0)
	take(t, admin, k, taker(2, 1), time.Minute)
	give(t, admin, k, taker(1, 2))
	if got, err := luascripts.AcquireSemaphore(t.Context(), denied(t, s, "lrem"), k, luascripts.Question{Owner: taker(2, 1), Lease: time.Hour, WaiterTimeout: time.Minute}); err == nil {
		t.Fatalf("%+v", got)
	}
	if free, held := freePermits(t, admin), number(t, admin, "ZCARD", k.Leases); free != 2 || held != 0 {
		t.Errorf("%d free, %d held", free, held)
	}
}

// A heartbeat has a waiter ask that waits in vain: a key holds something else, the semaphore is gone, or has another total, or has fewer
// permits than it wants.
func TestSemaphore_keepsNoneInVain(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(3)
		waiter := taker(2, 2)
		for what, c := range map[string]struct {
			change func()
			k      luascripts.Keys
			asks   bool
		}{
			"it waits":       {func() {}, k, false},
			"no semaphore":   {func() { do(t, rdb, "DEL", k.Lock) }, k, true},
			"a foreign key":  {func() { do(t, rdb, "DEL", k.Leases); do(t, rdb, "SET", k.Leases, "x") }, k, true},
			"another total":  {func() {}, semaphoreKeys(4), true},
			"too few for it": {func() { do(t, rdb, "SET", k.Lock, "-1") }, semaphoreKeys(0), true},
			"none at all":    {func() { do(t, rdb, "DEL", k.Leases); do(t, rdb, "SET", k.Lock, "0") }, semaphoreKeys(0), false},
		} {
			do(t, rdb, "FLUSHALL")
			take(t, rdb, k, taker(1, 2), time.Minute)
			take(t, rdb, k, waiter, time.Minute)
			c.change()
			if kept, err := luascripts.KeepSemaphore(t.Context(), rdb, c.k, []luascripts.Waiter{{Owner: waiter, WaiterTimeout: time.Minute}}); err != nil || kept.Asks[0] != c.asks {
				t.Errorf("%s: %+v, %v", what, kept, err)
			}
		}
	})
}

// A heartbeat that finds that leases ran out tells other waiters, and Redisson's clients. What it keeps lives for as long as the most
// patient of its waiters, and one that is not in the queue stays out.
func TestSemaphore_keepTells(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(3)
		take(t, rdb, k, taker(1, 2), time.Minute)
		for _, waiter := range []string{taker(2, 2), taker(3, 1)} {
			take(t, rdb, k, waiter, time.Minute)
		}
		for _, id := range luascripts.Permits(taker(1, 2)) {
			do(t, rdb, "ZADD", k.Leases, "XX", "1000", id)
		}
		e := listen(t, rdb)
		waiters := []luascripts.Waiter{{Owner: taker(2, 2), WaiterTimeout: 3 * time.Hour}, {Owner: taker(4, 1), WaiterTimeout: time.Minute}}
		kept, err := luascripts.KeepSemaphore(t.Context(), rdb, k, waiters)
		if err != nil || !kept.Asks[0] || !kept.Asks[1] {
			t.Errorf("%+v, %v", kept, err)
		}
		e.expect("leasehold_semaphore:{sem}:018f5c4e-0000-7000-8000-000000000003:fair 1800000000000003000:1", "redisson_sc:{sem} 03")
		if left := pttl(t, rdb, k.Queue); left < 3*time.Hour {
			t.Errorf("the queue lives for %v", left)
		}
		if n := number(t, rdb, "ZCARD", k.Timeouts); n != 2 {
			t.Errorf("%d are alive", n)
		}
	})
}

// Permits of a semaphore that was deleted by hand are given back. A renewal of a key that holds something else ends no other, and one
// that is denied is no verdict.
func TestSemaphore_deletedOrForeign(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	k := semaphoreKeys(3)
	take(t, rdb, k, taker(1, 2), 0)
	do(t, rdb, "DEL", k.Lock)
	if got := give(t, rdb, k, taker(1, 2)); got != luascripts.Done || number(t, rdb, "EXISTS", k.Leases) != 0 {
		t.Errorf("%d, and the permits are held", got)
	}
	take(t, rdb, k, taker(1, 2), 0)
	for range 2 { // the same lease again
		if r := luascripts.RenewSemaphore(t.Context(), rdb, []luascripts.Renewal{{Keys: &k, Owner: taker(1, 2)}}, time.Minute, 1)[0]; r.Err != nil || r.Verdict != luascripts.Done {
			t.Errorf("%+v", r)
		}
	}
	if r := luascripts.RenewSemaphore(t.Context(), denied(t, s, "zadd"), []luascripts.Renewal{{Keys: &k, Owner: taker(1, 2)}}, time.Minute, 1)[0]; r.Err == nil {
		t.Errorf("without zadd: %+v", r)
	}
	do(t, rdb, "DEL", k.Leases)
	do(t, rdb, "SET", k.Leases, "x")
	if r := luascripts.RenewSemaphore(t.Context(), rdb, []luascripts.Renewal{{Keys: &k, Owner: taker(1, 2)}}, time.Minute, 1)[0]; r.Err != nil || r.Verdict != luascripts.Foreign {
		t.Errorf("of a text: %+v", r)
	}
}

// A permit gets the lowest slot that no living permit has. An owner without its permits gets none, and a key that holds something else
// is not touched.
func TestSemaphore_slots(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(3)
		is := func(what, owner string, want luascripts.Verdict) []luascripts.Slot {
			t.Helper()
			v, slots, err := luascripts.SlotsOfPermits(t.Context(), rdb, k, owner)
			if v != want || err != nil {
				t.Errorf("%s: %d, %v, want %d", what, v, err, want)
			}
			return slots
		}
		take(t, rdb, k, taker(1, 1), 0)
		is("it has no permit", taker(2, 1), luascripts.Gone)
		first := is("the first", taker(1, 1), luascripts.Done)
		do(t, rdb, "ZADD", k.Leases, "XX", "1000", luascripts.Permits(taker(1, 1))[0])
		is("its lease ran out", taker(1, 1), luascripts.Gone)
		take(t, rdb, k, taker(2, 1), 0)
		if next := is("the next", taker(2, 1), luascripts.Done); len(first) != 1 || len(next) != 1 || next[0].Number != first[0].Number || next[0].Token <= first[0].Token {
			t.Errorf("%+v after %+v", next, first)
		}
		for _, key := range []string{k.Slots, k.Leases} {
			do(t, rdb, "SET", key, "x")
			is("a text as "+key, taker(2, 1), luascripts.Foreign)
		}
	})
}

// The heartbeat of a process with many waiters goes in several calls. A waiter that is late with its heartbeat keeps its place, also where
// it comes in the last of them.
func TestSemaphore_keepDropsNoneOfItsOwn(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(1)
		take(t, rdb, k, taker(1, 1), 0)
		late := taker(2, 1)
		take(t, rdb, k, late, time.Minute)
		var waiters []luascripts.Waiter
		for i := range 100 {
			waiters = append(waiters, luascripts.Waiter{Owner: taker(1000+i, 1), WaiterTimeout: time.Minute})
			take(t, rdb, k, taker(1000+i, 1), time.Minute)
		}
		waiters = append(waiters, luascripts.Waiter{Owner: late, WaiterTimeout: time.Minute})
		do(t, rdb, "ZADD", k.Timeouts, "XX", "1000", late)
		kept, err := luascripts.KeepSemaphore(t.Context(), rdb, k, waiters)
		if err != nil || kept.Asks[100] {
			t.Errorf("it has lost its place: %v", err)
		}
		if first := list(t, rdb, "LRANGE", k.Queue, "0", "0"); len(first) != 1 || first[0] != late {
			t.Errorf("the first is %q", first)
		}
	})
}

// A waiter for five of six free permits has not come to take them yet. The sixth is there for a newcomer.
func TestSemaphore_besideALivingWaiter(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(10)
		take(t, rdb, k, taker(1, 6), 0)
		take(t, rdb, k, taker(2, 5), time.Minute)
		give(t, rdb, k, taker(1, 6))
		take(t, rdb, k, taker(3, 4), 0)
		if got := take(t, rdb, k, taker(4, 2), 0); got != luascripts.Held {
			t.Errorf("two beside five of six: %d", got)
		}
		if got := take(t, rdb, k, taker(5, 1), 0); got != luascripts.Done {
			t.Errorf("one beside five of six: %d", got)
		}
	})
}

// Redisson holds a permit without a lease, by a score that no clock comes to. A waiter does not wait for that.
func TestSemaphore_withoutALease(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(1)
		do(t, rdb, "SET", k.Lock, "0")
		do(t, rdb, "ZADD", k.Leases, "922337203685477", "0123456789abcdef")
		a, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Question{Owner: taker(1, 1), Lease: time.Hour})
		if err != nil || a.Verdict != luascripts.Held || a.Left >= 0 {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// An owner has lost one of two permits, and a late copy of its question is refused. It does not lengthen the lease of the other.
func TestSemaphore_aRefusalLengthensNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(2)
		take(t, rdb, k, taker(1, 2), 0)
		ids := luascripts.Permits(taker(1, 2))
		do(t, rdb, "ZADD", k.Leases, "XX", "1000", ids[0])
		take(t, rdb, k, taker(2, 1), 0)
		if got := number(t, rdb, "ZCARD", k.Leases); got != 2 {
			t.Fatalf("%d permits are held", got)
		}
		soon := strconv.FormatInt(now(t, rdb)+60_000, 10)
		do(t, rdb, "ZADD", k.Leases, "XX", soon, ids[1])
		if got := take(t, rdb, k, taker(1, 2), 0); got != luascripts.Held {
			t.Errorf("%d, want a refusal", got)
		}
		m := do(t, rdb, "ZSCORE", k.Leases, ids[1])
		if score, err := m.ToString(); err != nil || score != soon {
			t.Errorf("the other is held until %s, %v, want %s", score, err, soon)
		}
	})
}

// With full memory a waiter that asks again keeps its place for as long as it wants.
func TestSemaphore_fullWhileItWaits(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	k := semaphoreKeys(1)
	take(t, rdb, k, taker(1, 1), 0)
	take(t, rdb, k, taker(2, 1), time.Minute)
	full(t, s)
	if got := take(t, rdb, k, taker(2, 1), time.Hour); got != luascripts.Held {
		t.Errorf("%d, want a refusal", got)
	}
	m := do(t, rdb, "ZSCORE", k.Timeouts, taker(2, 1))
	if until, err := m.AsInt64(); err != nil || until < now(t, rdb)+1_800_000 {
		t.Errorf("it counts as alive until %d, %v", until, err)
	}
}

// A key turns into something else while owners wait. One that gives up leaves the queue.
func TestSemaphore_leavesTheQueueOfAForeignKey(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(1)
		take(t, rdb, k, taker(1, 1), 0)
		take(t, rdb, k, taker(2, 1), time.Minute)
		do(t, rdb, "DEL", k.Leases)
		do(t, rdb, "SET", k.Leases, "x")
		if got := give(t, rdb, k, taker(2, 1)); got != luascripts.Foreign {
			t.Errorf("%d", got)
		}
		if n := number(t, rdb, "EXISTS", k.Queue, k.Timeouts); n != 0 {
			t.Error("it waits yet")
		}
	})
}

// A waiter for more than what is free is dead, and a permit is given back. The one behind it is told, although its permit was
// free before.
func TestSemaphore_aReleaseFindsTheDead(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(4)
		take(t, rdb, k, taker(1, 1), 0)
		take(t, rdb, k, taker(2, 2), 0)
		take(t, rdb, k, taker(3, 3), time.Minute)
		take(t, rdb, k, taker(4, 1), time.Minute)
		do(t, rdb, "ZADD", k.Timeouts, "XX", "1000", taker(3, 3))
		e := listen(t, rdb)
		give(t, rdb, k, taker(1, 1))
		e.expect("leasehold_semaphore:{sem}:018f5c4e-0000-7000-8000-000000000004:fair 1800000000000004000:1", "redisson_sc:{sem} 02")
	})
}

// A waiter whose place cannot have an end is told so, and does not stand in the queue.
func TestSemaphore_deniedToEnter(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := semaphoreKeys(1)
	take(t, admin, k, taker(1, 1), 0)
	for _, command := range []string{"zadd", "pexpire"} {
		if got, err := luascripts.AcquireSemaphore(t.Context(), denied(t, s, command), k, luascripts.Question{Owner: taker(2, 1), Lease: time.Hour, WaiterTimeout: time.Minute}); err == nil {
			t.Errorf("without %s: %+v", command, got)
		}
		if n := number(t, admin, "EXISTS", k.Queue, k.Timeouts); n != 0 {
			t.Errorf("without %s it waits all the same", command)
		}
	}
}

// A heartbeat that cannot lengthen the life of the queue is no heartbeat, and a waiter that cannot leave has not left: both are errors.
func TestSemaphore_deniedWhileItWaits(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := semaphoreKeys(1)
	take(t, admin, k, taker(1, 1), 0)
	take(t, admin, k, taker(2, 1), time.Minute)
	if kept, err := luascripts.KeepSemaphore(t.Context(), denied(t, s, "pexpire"), k, []luascripts.Waiter{{Owner: taker(2, 1), WaiterTimeout: time.Minute}}); err == nil {
		t.Errorf("heartbeat: %+v", kept)
	}
	for _, command := range []string{"zrem", "lrem"} {
		if got, err := luascripts.ReleaseSemaphore(t.Context(), denied(t, s, command), k, taker(2, 1), 0); err == nil {
			t.Errorf("without %s: %d", command, got)
		}
	}
}
