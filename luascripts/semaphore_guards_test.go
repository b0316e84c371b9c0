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
		if got, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Question{Owner: taker(2, 4), Lease: time.Hour, Patience: time.Minute}); err == nil || !strings.Contains(err.Error(), "3 permits") {
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
	if got, err := luascripts.AcquireSemaphore(t.Context(), denied(t, s, "lrem"), k, luascripts.Question{Owner: taker(2, 1), Lease: time.Hour, Patience: time.Minute}); err == nil {
		t.Fatalf("%+v", got)
	}
	if free, held := freePermits(t, admin), number(t, admin, "ZCARD", k.Leases); free != 2 || held != 0 {
		t.Errorf("%d free, %d held", free, held)
	}
}
