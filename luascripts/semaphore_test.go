package luascripts_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	owners "github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// taker returns an owner that wants this number of permits.
func taker(n, permits int) string {
	return fmt.Sprintf("018f5c4e-0000-7000-8000-%012d:%d:%d", n, 1800000000000000000+1000*n, permits)
}

// someday is a server time in ms that no test reaches.
const someday = 1 << 53

func semaphoreKeys(total int) luascripts.Keys {
	k := keynames.Semaphore("sem")
	k.Total = total
	return k
}

func take(t *testing.T, rdb rueidis.Client, k luascripts.Keys, owner string, waiterTimeout time.Duration) luascripts.Verdict {
	t.Helper()
	a, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Request{Owner: owner, Lease: time.Hour, Want: 1, WaiterTimeout: waiterTimeout})
	if err != nil {
		t.Fatal(err)
	}
	return a.Verdict
}

func give(t *testing.T, rdb rueidis.Client, k luascripts.Keys, owner string) luascripts.Verdict {
	t.Helper()
	v, err := luascripts.ReleaseSemaphore(t.Context(), rdb, k, owner, 0)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// freePermits returns the number of free permits of "sem", or 0 if there is no semaphore.
func freePermits(t *testing.T, rdb rueidis.Client) int64 {
	t.Helper()
	m := do(t, rdb, "GET", "sem")
	text, _ := m.ToString()
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// The IDs of permits are derived from the owner string. A text that is not an owner string has none, whatever it contains.
func TestPermits_texts(t *testing.T) {
	const uuid = "018f5c4e-0000-7000-8123-456789abcdef"
	half := "\x81\x23\x45\x67\x89\xab\xcd\xef"
	for owner, want := range map[string][]string{
		uuid + ":258:2":                    {half + "\x00\x00\x00\x00\x00\x00\x01\x02", half + "\x00\x00\x00\x00\x00\x00\x01\x03"},
		uuid + ":1:0":                      {},
		"0102030405060708090a0b0c0d0e0f10": {"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"},
		uuid + ":1:-1":                     nil, uuid + ":1:1001": nil, uuid + ":1:99999999999999999999": nil, uuid + ":-1:1": nil, uuid + ":1": nil, uuid: nil,
		uuid + "0:1:1": nil, uuid[:35] + ":1:1": nil, uuid[:10] + ":1:1": nil, "": nil, ":": nil, "::": nil,
		"0102030405060708090a0b0c0d0e0f1": nil, "0102030405060708090a0b0c0d0e0f1011": nil, "x102030405060708090a0b0c0d0e0f10": nil,
		"018f5c4e-0000-7000-8123-456789abcdeg:1:1": nil,
	} {
		if got := luascripts.Permits(owner); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", owner, got, want)
		}
	}
}

// The scripts behave the same on a real server and on an in-memory one.
func TestSemaphore(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(3)
		free := func(want string) {
			t.Helper()
			m := do(t, rdb, "GET", "sem")
			if got, _ := m.ToString(); got != want {
				t.Errorf("%s are free, want %s", got, want)
			}
		}
		is := func(what string, got, want luascripts.Verdict) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d, want %d", what, got, want)
			}
		}
		is("two", take(t, rdb, k, taker(1, 2), time.Minute), luascripts.Done)
		is("the same once more", take(t, rdb, k, taker(1, 2), time.Minute), luascripts.Done)
		free("1")
		is("two of one", take(t, rdb, k, taker(2, 2), 0), luascripts.Held)
		is("two of one, waiting", take(t, rdb, k, taker(2, 2), time.Minute), luascripts.Held)
		is("one, behind", take(t, rdb, k, taker(3, 1), time.Minute), luascripts.Held)
		is("one, without waiting", take(t, rdb, k, taker(4, 1), 0), luascripts.Held)
		if got := list(t, rdb, "LRANGE", k.Queue, "0", "-1"); !slices.Equal(got, []string{taker(2, 2), taker(3, 1)}) {
			t.Errorf("the queue is %q", got)
		}
		e := listen(t, rdb)
		kept, err := luascripts.KeepSemaphore(t.Context(), rdb, k, []luascripts.Waiter{{Owner: taker(2, 2), WaiterTimeout: time.Minute}, {Owner: taker(5, 1), WaiterTimeout: time.Minute}})
		if err != nil || kept.MustRetry[0] || !kept.MustRetry[1] {
			t.Errorf("a heartbeat, with one that is not in the queue: %+v, %v", kept, err)
		}
		about(t, "the first lease", kept.Left, time.Hour)
		e.expect()
		is("give two", give(t, rdb, k, taker(1, 2)), luascripts.Done)
		// Three are free: the first waiter and the one behind it can acquire permits, and Redisson receives a number.
		first, second, java := "leasehold_semaphore:{sem}:018f5c4e-0000-7000-8000-000000000002:fair 1800000000000002000:2", "leasehold_semaphore:{sem}:018f5c4e-0000-7000-8000-000000000003:fair 1800000000000003000:1", "redisson_sc:{sem} 03"
		e.expect(first, second, java)
		is("the second may go first", take(t, rdb, k, taker(3, 1), time.Minute), luascripts.Done)
		free("2")
		kept, err = luascripts.KeepSemaphore(t.Context(), rdb, k, []luascripts.Waiter{{Owner: taker(2, 2), WaiterTimeout: time.Minute}})
		if err != nil || !kept.MustRetry[0] {
			t.Errorf("a heartbeat of the one whose turn it is: %+v, %v", kept, err)
		}
		is("the first", take(t, rdb, k, taker(2, 2), time.Minute), luascripts.Done)
		is("give it", give(t, rdb, k, taker(2, 2)), luascripts.Done)
		is("give it once more", give(t, rdb, k, taker(2, 2)), luascripts.Gone)
		free("2")
		e.expect("redisson_sc:{sem} 02")
		asked, err := luascripts.ReleaseSemaphore(t.Context(), rdb, k, taker(3, 1), 1)
		if err != nil || asked != luascripts.Done {
			t.Errorf("asked: %d, %v", asked, err)
		}
		renewals := []luascripts.Renewal{{Keys: &k, Owner: taker(3, 1)}, {Keys: &k, Owner: taker(2, 2)}, {Keys: &k, Owner: taker(3, 1)}}
		for i, r := range luascripts.RenewSemaphore(t.Context(), rdb, renewals, 2*time.Hour, 100) {
			if want := []luascripts.Verdict{luascripts.Done, luascripts.Gone, luascripts.Done}[i]; r.Err != nil || r.Verdict != want {
				t.Errorf("renewal %d: %+v", i, r)
			}
		}
		if v, _, err := luascripts.ResizeSemaphore(t.Context(), rdb, k, 5, someday); err != nil || v != luascripts.Done {
			t.Errorf("resize: %d, %v", v, err)
		}
		free("4")
		e.expect("redisson_sc:{sem} 4")
		var other *luascripts.TotalError
		if _, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Request{Owner: taker(7, 1), Lease: time.Hour}); !errors.As(err, &other) || other.Stored != 5 {
			t.Errorf("with another total: %v", err)
		}
		stock, err := luascripts.InspectSemaphore(t.Context(), rdb, k)
		if err != nil || !stock.Exists || stock.Free != 4 || len(stock.Held) != 1 || stock.Held[0].ID != luascripts.Permits(taker(3, 1))[0] {
			t.Errorf("%+v, %v", stock, err)
		}
		about(t, "the renewed lease", stock.Held[0].Left, 2*time.Hour)
		own := luascripts.NewPermitted("return redis.call('SET', KEYS[1], ARGV[1])")
		for _, hold := range []struct {
			owner string
			has   bool
		}{{taker(3, 1), true}, {taker(2, 2), false}} {
			if _, had, err := own.Exec(t.Context(), rdb, k, hold.owner, []string{"{sem}x"}, []string{"1"}); err != nil || had != hold.has {
				t.Errorf("a script with the permits of %s: %v, %v", hold.owner, had, err)
			}
		}
	})
}

// A holder that repeats its request has its permits, whatever the total is now, and all of them get the new lease.
func TestSemaphore_holderRequestsAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(3)
		one, two := taker(1, 1), taker(2, 2)
		for _, owner := range []string{one, two} {
			if v := take(t, rdb, k, owner, 0); v != luascripts.Done {
				t.Fatal(v)
			}
		}
		if v, _, err := luascripts.ResizeSemaphore(t.Context(), rdb, k, 1, someday); v != luascripts.Done || err != nil {
			t.Fatal(v, err)
		}
		k.Total = 1
		if v := take(t, rdb, k, one, 0); v != luascripts.Done {
			t.Errorf("a holder, after there are fewer permits than are held: %d", v)
		}
		// The remaining permits get the new lease, too.
		k = semaphoreKeys(3)
		do(t, rdb, "FLUSHALL")
		take(t, rdb, k, two, 0)
		do(t, rdb, "ZREM", k.Leases, luascripts.Permits(two)[0])
		do(t, rdb, "INCR", k.Lock)
		old := strconv.FormatInt(now(t, rdb)+1000, 10)
		do(t, rdb, "ZADD", k.Leases, old, luascripts.Permits(two)[1])
		if v := take(t, rdb, k, two, 0); v != luascripts.Done {
			t.Errorf("a holder of one of two permits: %d", v)
		}
		if n := number(t, rdb, "ZCOUNT", k.Leases, "("+old, "+inf"); n != 2 {
			t.Errorf("%d permits live for the new lease", n)
		}
	})
}

// If Redisson gave a semaphore an expiry, both of its keys have it. Permits do not outlive their number, nor vice versa.
func TestSemaphore_expiry(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(0)
		both := func(what string) {
			t.Helper()
			about(t, what+": the number", pttl(t, rdb, k.Lock), time.Minute)
			about(t, what+": the leases", pttl(t, rdb, k.Leases), time.Minute)
		}
		const java = "a permit of Java" // 16 bytes
		do(t, rdb, "SET", k.Lock, "0", "PX", "60000")
		do(t, rdb, "ZADD", k.Leases, "1000", java)
		do(t, rdb, "PEXPIRE", k.Leases, "60000")
		take(t, rdb, k, taker(1, 1), 0)
		both("the only permit is reclaimed and taken")

		k = semaphoreKeys(2)
		for what, make := range map[string]func(){
			"taken":   func() { take(t, rdb, k, taker(2, 1), 0) },
			"resized": func() { _, _, _ = luascripts.ResizeSemaphore(t.Context(), rdb, k, 2, someday) },
		} {
			do(t, rdb, "DEL", k.Lock)
			make()
			both("the number was deleted, " + what)
		}
	})
}

// Keys of the application with the names of a semaphore's keys do not change.
func TestSemaphore_foreign(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(2)
		for _, words := range [][]string{{"ZADD", k.Leases, "1700000000", "session-a", "1700000001", "session-b"}, {"SET", k.Lock, "007"}, {"SET", k.Lock, "-0"}, {"SET", k.Lock, "1e1"}, {"SET", k.Lock, "100000000000"}} {
			do(t, rdb, "FLUSHALL")
			do(t, rdb, words...)
			before := contents(t, rdb)
			if v := take(t, rdb, k, taker(1, 1), 0); v != luascripts.Foreign {
				t.Errorf("take beside %q: %d", words, v)
			}
			if v := give(t, rdb, k, taker(1, 1)); v != luascripts.Foreign {
				t.Errorf("give beside %q: %d", words, v)
			}
			if v, _, err := luascripts.ResizeSemaphore(t.Context(), rdb, k, 2, someday); v != luascripts.Foreign || err != nil {
				t.Errorf("resize beside %q: %d, %v", words, v, err)
			}
			if after := contents(t, rdb); after != before {
				t.Errorf("%q: %s, was %s", words, after, before)
			}
		}
	})
}

// When a waiter stops waiting, those behind it that can acquire permits are notified.
func TestSemaphore_givesUp(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(3)
		take(t, rdb, k, taker(1, 1), time.Minute)
		take(t, rdb, k, taker(2, 3), time.Minute)
		take(t, rdb, k, taker(3, 1), time.Minute)
		take(t, rdb, k, taker(4, 2), time.Minute)
		e := listen(t, rdb)
		if v := give(t, rdb, k, taker(2, 3)); v != luascripts.Gone {
			t.Errorf("one that only waited: %d", v)
		}
		e.expect("leasehold_semaphore:{sem}:018f5c4e-0000-7000-8000-000000000003:fair 1800000000000003000:1") // two are free, and the last waiter needs them in addition to those of the one ahead
		do(t, rdb, "ZADD", k.Timeouts, "XX", "1000", taker(3, 1))                                             // it died
		if _, err := luascripts.KeepSemaphore(t.Context(), rdb, k, nil); err != nil {
			t.Error(err)
		}
		e.expect("leasehold_semaphore:{sem}:018f5c4e-0000-7000-8000-000000000004:fair 1800000000000004000:2")
	})
}

// With more than a hundred waiters, only the first hundred can acquire a permit, although many are free.
func TestSemaphore_manyWait(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(500)
		take(t, rdb, k, taker(1, 1), 0)
		late := strconv.FormatInt(now(t, rdb)+3_600_000, 10)
		for i := range 150 {
			do(t, rdb, "RPUSH", k.Queue, taker(1000+i, 1))
			do(t, rdb, "ZADD", k.Timeouts, late, taker(1000+i, 1))
		}
		for what, owner := range map[string]string{"a newcomer": taker(2, 1), "one that stands behind": taker(1140, 1)} {
			if v := take(t, rdb, k, owner, 0); v != luascripts.Held {
				t.Errorf("%s: %d", what, v)
			}
		}
		for _, i := range []int{1099, 1000} {
			if v := take(t, rdb, k, taker(i, 1), time.Minute); v != luascripts.Done {
				t.Errorf("waiter %d: %d", i, v)
			}
		}
	})
}

// A release notifies the first hundred waiters. Each of them that acquires its permit notifies the next waiter, if enough
// permits are free for it and for those ahead of it.
func TestSemaphore_hundredthWaiter(t *testing.T) {
	const first = 1000
	for what, c := range map[string]struct {
		waiters int
		wants   int // the number of permits that the 101st waiter needs
		free    int
		dead    int // the number of a dead waiter; 0 for none
		want    []int
	}{
		"enough for the next":      {150, 3, 103, 0, []int{100}},
		"too few for the next":     {150, 3, 102, 0, nil},
		"no more":                  {100, 0, 103, 0, nil},
		"one of them is dead":      {150, 1, 102, 5, []int{100, 101}},
		"one is dead, and no more": {101, 1, 102, 5, []int{100}},
	} {
		t.Run(what, func(t *testing.T) {
			onBoth(t, func(t *testing.T, rdb rueidis.Client) {
				k := semaphoreKeys(500)
				holder := taker(1, c.free)
				for _, owner := range []string{holder, taker(2, 500-c.free)} {
					if v := take(t, rdb, k, owner, 0); v != luascripts.Done {
						t.Fatal(v)
					}
				}
				waiter := func(i int) string {
					if i == 100 {
						return taker(first+i, c.wants)
					}
					return taker(first+i, 1)
				}
				late := strconv.FormatInt(now(t, rdb)+3_600_000, 10)
				for i := range c.waiters {
					do(t, rdb, "RPUSH", k.Queue, waiter(i))
					do(t, rdb, "ZADD", k.Timeouts, late, waiter(i))
				}
				give(t, rdb, k, holder)
				e := listen(t, rdb)
				if c.dead > 0 {
					do(t, rdb, "ZADD", k.Timeouts, "XX", "1000", waiter(c.dead))
				}
				if v := take(t, rdb, k, waiter(50), time.Minute); v != luascripts.Done {
					t.Fatal(v)
				}
				var got []int
				for _, message := range e.heard() {
					for i := 100; i < c.waiters; i++ {
						client, number, _ := strings.Cut(waiter(i), ":")
						if message == k.Channel+":"+client+":fair "+number {
							got = append(got, i)
						}
					}
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("notified waiters %v, want %v", got, c.want)
				}
			})
		})
	}
}

// The IDs of permits are derived from their owner alone, and identify it.
func TestPermits(t *testing.T) {
	client := owners.NewClient()
	ids := luascripts.Permits(client + ":1800000000000000000:3")
	if len(ids) != 3 || ids[0] == ids[1] || ids[1] == ids[2] {
		t.Fatalf("%q", ids)
	}
	for i, id := range ids {
		if len(id) != 16 || owners.Client([8]byte([]byte(id[:8]))) != client {
			t.Errorf("%d: %q is not of %s", i, id, client)
		}
	}
	if client[14] != '7' || !strings.Contains("89ab", client[19:20]) || len(client) != 36 {
		t.Errorf("%s is no uuid of version 7", client)
	}
	if java := luascripts.Permits("0102030405060708090a0b0c0d0e0f10"); len(java) != 1 || java[0] != "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10" {
		t.Errorf("of Redisson's id: %q", java)
	}
	for _, bad := range []string{"", "x", client, client + ":1", client + ":x:1", client + ":1:x", "x:1:1", client[:30] + ":1:1"} {
		if ids := luascripts.Permits(bad); len(ids) > 0 {
			t.Errorf("%q: %q", bad, ids)
		}
	}
}

// Whichever command is denied, a script that fails has changed nothing. Permits are neither lost nor created.
func TestSemaphore_denied(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := semaphoreKeys(5)
	holder, waiter, dead, expired := taker(1, 2), taker(2, 3), taker(3, 1), taker(4, 1)
	set := func() {
		do(t, admin, "FLUSHALL")
		take(t, admin, k, holder, time.Minute)
		take(t, admin, k, expired, time.Minute)
		do(t, admin, "ZADD", k.Leases, "1000", luascripts.Permits(expired)[0])
		do(t, admin, "RPUSH", k.Queue, dead, waiter)
		do(t, admin, "ZADD", k.Timeouts, "1000", dead, strconv.FormatInt(now(t, admin)+3_600_000, 10), waiter)
	}
	total := func() int64 { return freePermits(t, admin) + number(t, admin, "ZCARD", k.Leases) }
	dump := func() string {
		return fmt.Sprint(list(t, admin, "KEYS", "*"), freePermits(t, admin), list(t, admin, "ZRANGE", k.Leases, "0", "-1"), list(t, admin, "LRANGE", k.Queue, "0", "-1"), list(t, admin, "ZRANGE", k.Timeouts, "0", "-1"))
	}
	ask := func(owner string, waiterTimeout time.Duration) func(rdb rueidis.Client) error {
		return func(rdb rueidis.Client) error {
			_, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Request{Owner: owner, Lease: time.Hour, WaiterTimeout: waiterTimeout})
			return err
		}
	}
	for what, c := range map[string]struct {
		script string
		run    func(rdb rueidis.Client) error
	}{
		"take in turn":   {"semaphore_acquire", ask(waiter, time.Minute)},
		"take, and wait": {"semaphore_acquire", ask(taker(5, 4), time.Minute)},
		"take again":     {"semaphore_acquire", ask(holder, time.Minute)},
		"take, unmade":   {"semaphore_acquire", ask(taker(5, 1), 0)},
		"give": {"semaphore_release", func(rdb rueidis.Client) error {
			_, err := luascripts.ReleaseSemaphore(t.Context(), rdb, k, holder, 0)
			return err
		}},
		"stop waiting": {"semaphore_release", func(rdb rueidis.Client) error {
			_, err := luascripts.ReleaseSemaphore(t.Context(), rdb, k, waiter, 0)
			return err
		}},
		"heartbeat": {"semaphore_keep", func(rdb rueidis.Client) error {
			_, err := luascripts.KeepSemaphore(t.Context(), rdb, k, []luascripts.Waiter{{Owner: waiter, WaiterTimeout: time.Minute}})
			return err
		}},
		"renewal": {"semaphore_renew", func(rdb rueidis.Client) error {
			return luascripts.RenewSemaphore(t.Context(), rdb, []luascripts.Renewal{{Keys: &k, Owner: holder}}, 2*time.Hour, 1)[0].Err
		}},
		"another total": {"semaphore_resize", func(rdb rueidis.Client) error {
			_, _, err := luascripts.ResizeSemaphore(t.Context(), rdb, k, 5, someday)
			return err
		}},
		"inspection": {"semaphore_inspect", func(rdb rueidis.Client) error { _, err := luascripts.InspectSemaphore(t.Context(), rdb, k); return err }},
	} {
		for _, command := range commands(c.script) {
			set()
			if what == "take, unmade" {
				do(t, admin, "DEL", k.Lock, k.Leases)
			}
			before := dump()
			err := c.run(denied(t, s, command))
			if what == "take, unmade" {
				continue // a missing semaphore has no total; the other cases show that it does not fail halfway
			}
			if got := total(); got != 5 {
				t.Errorf("%s without %s: %v: there are %d permits", what, command, err, got)
			}
			held := number(t, admin, "ZCARD", k.Leases)
			if err != nil && held != 3 && held != 2 { // two without the reclaimed one
				t.Errorf("%s without %s: %v, and %d are held; before: %s, after: %s", what, command, err, held, before, dump())
			}
			if err != nil && strings.Contains(dump(), "000000000005:") {
				t.Errorf("%s without %s: %v, and it stands in the queue", what, command, err)
			}
		}
	}
}

// With full memory nothing is granted and nothing is lost. Held permits can be renewed and released.
func TestSemaphore_full(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	k := semaphoreKeys(5)
	take(t, rdb, k, taker(1, 2), time.Minute)
	take(t, rdb, k, taker(2, 4), time.Minute) // waits
	full(t, s)
	for _, waiterTimeout := range []time.Duration{0, time.Minute} {
		_, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Request{Owner: taker(3, 1), Lease: time.Hour, WaiterTimeout: waiterTimeout})
		if waiterTimeout > 0 != (err != nil && strings.Contains(err.Error(), "OOM")) { // behind another waiter, it is rejected anyway
			t.Errorf("with patience %v: %v", waiterTimeout, err)
		}
	}
	if kept, err := luascripts.KeepSemaphore(t.Context(), rdb, k, []luascripts.Waiter{{Owner: taker(2, 4), WaiterTimeout: time.Minute}}); err != nil || kept.MustRetry[0] {
		t.Errorf("heartbeat: %+v, %v", kept, err)
	}
	if r := luascripts.RenewSemaphore(t.Context(), rdb, []luascripts.Renewal{{Keys: &k, Owner: taker(1, 2)}}, 2*time.Hour, 1)[0]; r.Err != nil || r.Verdict != luascripts.Done {
		t.Errorf("renewal: %+v", r)
	}
	if v := give(t, rdb, k, taker(1, 2)); v != luascripts.Done {
		t.Errorf("release: %d", v)
	}
	if free, held := freePermits(t, rdb), number(t, rdb, "ZCARD", k.Leases); free != 5 || held != 0 {
		t.Errorf("%d free, %d held", free, held)
	}
}

// The call that detects expired leases, or a dead waiter ahead of others, notifies those whose turn has come, except itself. It
// also notifies Redisson's clients.
func TestSemaphore_notifiesOfWhatItFinds(t *testing.T) {
	notified := func(n int) string {
		who := strconv.Itoa(n)
		return "leasehold_semaphore:{sem}:018f5c4e-0000-7000-8000-00000000000" + who + ":fair 180000000000000" + who + "000:"
	}
	for what, c := range map[string]struct {
		expired bool // the holder of two of three permits is dead
		dead    bool // the first waiter in the queue wants three, and is dead
		asker   string
		got     luascripts.Verdict
		want    []string
	}{
		"leases ran out":              {true, false, taker(4, 2), luascripts.Held, []string{notified(2) + "2", notified(3) + "1", "redisson_sc:{sem} 03"}},
		"leases ran out, by a waiter": {true, false, taker(2, 2), luascripts.Done, []string{notified(3) + "1", "redisson_sc:{sem} 01"}},
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

// A request for more permits than there are, or a key of the wrong type, is rejected without waiting. If a semaphore has an
// expiry, its leases have it too.
func TestSemaphore_refuses(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(3)
		take(t, rdb, k, taker(1, 1), 0)
		if got, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Request{Owner: taker(2, 4), Lease: time.Hour, WaiterTimeout: time.Minute}); err == nil || !strings.Contains(err.Error(), "semaphore has 3") {
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

// An owner that cannot leave the queue acquires no permits.
func TestSemaphore_deniedToLeave(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := semaphoreKeys(2)
	take(t, admin, k, taker(1, 2), 0)
	take(t, admin, k, taker(2, 1), time.Minute)
	give(t, admin, k, taker(1, 2))
	if got, err := luascripts.AcquireSemaphore(t.Context(), denied(t, s, "lrem"), k, luascripts.Request{Owner: taker(2, 1), Lease: time.Hour, WaiterTimeout: time.Minute}); err == nil {
		t.Fatalf("%+v", got)
	}
	if free, held := freePermits(t, admin), number(t, admin, "ZCARD", k.Leases); free != 2 || held != 0 {
		t.Errorf("%d free, %d held", free, held)
	}
}

// A heartbeat makes a waiter retry that waits in vain: the key has the wrong type, or the semaphore is gone, has a different
// total, or has fewer permits than the waiter wants.
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
			if kept, err := luascripts.KeepSemaphore(t.Context(), rdb, c.k, []luascripts.Waiter{{Owner: waiter, WaiterTimeout: time.Minute, Total: c.k.Total}}); err != nil || kept.MustRetry[0] != c.asks {
				t.Errorf("%s: %+v, %v", what, kept, err)
			}
		}

		do(t, rdb, "FLUSHALL")
		take(t, rdb, k, taker(1, 2), time.Minute)
		var waiters []luascripts.Waiter
		for i, total := range []int{0, 3, 4, 4, 3} {
			owner := taker(2+i, 2)
			take(t, rdb, k, owner, time.Minute)
			waiters = append(waiters, luascripts.Waiter{Owner: owner, WaiterTimeout: time.Minute, Total: total})
		}
		if kept, err := luascripts.KeepSemaphore(t.Context(), rdb, k, waiters); err != nil || !slices.Equal(kept.MustRetry, []bool{false, false, true, true, false}) {
			t.Errorf("several totals: %+v, %v", kept, err)
		}
	})
}

// A heartbeat that detects expired leases notifies other waiters and Redisson's clients. The keys that it keeps live as long as
// its longest waiter timeout. A waiter that is not in the queue does not enter it.
func TestSemaphore_keepNotifies(t *testing.T) {
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
		if err != nil || !kept.MustRetry[0] || !kept.MustRetry[1] {
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

// Permits of a semaphore that was deleted manually are released. A renewal of a key of the wrong type does not fail the others,
// and a denied one says nothing about the permits.
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
	for range 2 { // with the same lease again
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

// A permit gets the lowest slot that no permit in Redis has. An owner without its permits gets none, and a key of the wrong type
// does not change.
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
		second := is("it may come back", taker(2, 1), luascripts.Done)
		renewed := luascripts.RenewSemaphore(t.Context(), rdb, []luascripts.Renewal{{Keys: &k, Owner: taker(1, 1)}}, time.Minute, 1)[0] // the server's clock was moved forward, and its owner is alive
		check(t, "renewal", renewed.Verdict, luascripts.Done, renewed.Err)
		if again := is("it came back", taker(1, 1), luascripts.Done); len(first) != 1 || len(second) != 1 || !slices.Equal(again, first) || second[0].Number == first[0].Number {
			t.Errorf("%+v and %+v are held, after %+v", again, second, first)
		}
		do(t, rdb, "ZADD", k.Leases, "XX", "1000", luascripts.Permits(taker(1, 1))[0])
		take(t, rdb, k, taker(3, 2), 0) // it is free again
		if next := is("the next", taker(3, 2), luascripts.Done); len(first) != 1 || len(next) != 2 || next[0].Number != first[0].Number || next[0].Token <= first[0].Token {
			t.Errorf("%+v after %+v", next, first)
		}
		for _, key := range []string{k.Slots, k.Leases} {
			do(t, rdb, "SET", key, "x")
			is("a text as "+key, taker(2, 1), luascripts.Foreign)
		}
	})
}

// The heartbeat of a process with many waiters takes several calls. A waiter whose heartbeat is late keeps its position, even if
// it is in the last call.
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
		if err != nil || kept.MustRetry[100] {
			t.Errorf("it has lost its place: %v", err)
		}
		if first := list(t, rdb, "LRANGE", k.Queue, "0", "0"); len(first) != 1 || first[0] != late {
			t.Errorf("the first is %q", first)
		}
	})
}

// A waiter for five of six free permits has not acquired them yet. The sixth is available to a new caller.
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

// Redisson holds a permit without a lease, with a score that no clock reaches. A waiter does not wait for it.
func TestSemaphore_withoutALease(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := semaphoreKeys(1)
		do(t, rdb, "SET", k.Lock, "0")
		do(t, rdb, "ZADD", k.Leases, "922337203685477", "0123456789abcdef")
		a, err := luascripts.AcquireSemaphore(t.Context(), rdb, k, luascripts.Request{Owner: taker(1, 1), Lease: time.Hour})
		if err != nil || a.Verdict != luascripts.Held || a.Left >= 0 {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// An owner has lost one of two permits, and a delayed duplicate of its request is rejected. It does not extend the lease of the
// other permit.
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

// With full memory a waiter that retries keeps its position for its full waiter timeout.
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

// A key gets the wrong type while owners wait. A waiter that stops waiting leaves the queue.
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

// A waiter for more permits than are free is dead, and a permit is released. The waiter behind it is notified, although its
// permit was already free.
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

// If the expiry of a queue position cannot be set, the waiter gets an error and is not queued.
func TestSemaphore_deniedToEnter(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := semaphoreKeys(1)
	take(t, admin, k, taker(1, 1), 0)
	for _, command := range []string{"zadd", "pexpire"} {
		if got, err := luascripts.AcquireSemaphore(t.Context(), denied(t, s, command), k, luascripts.Request{Owner: taker(2, 1), Lease: time.Hour, WaiterTimeout: time.Minute}); err == nil {
			t.Errorf("without %s: %+v", command, got)
		}
		if n := number(t, admin, "EXISTS", k.Queue, k.Timeouts); n != 0 {
			t.Errorf("without %s it waits all the same", command)
		}
	}
}

// If a heartbeat cannot extend the expiry of the queue, or a waiter cannot leave the queue, the call fails.
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

// Transcript of the scripts of a semaphore at the exact end of a lease or a queue position, and whom they notify.
func TestSemaphore_transcript(t *testing.T) {
	play(t, `
		# no semaphore, a wrong number, and a denied command: nothing is done
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = !PERMITS
		without ZREM
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = !NOPERM
		without GET
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = !NOPERM
		without ZADD
		semaphore_acquire [f p q v n] $a:1:1 1000 0 3 ch cg PUBLISH a^16 = !NOPERM
		GET f = 3
		without
		semaphore_acquire [f p q v n] $a:1:1 1000 0 3 ch cg PUBLISH a^16 = 0
		GET f = 2
		PTTL f = -1
		ZRANGE p 0 -1 WITHSCORES = [axxxxxxxxxxxxxxx @1000]
		semaphore_acquire [f p q v n] $a:1:1 1000 0 4 ch cg PUBLISH a^16 = !PERMITS
		semaphore_acquire [f p q v n] $a:1:4 1000 0 0 ch cg PUBLISH b^16 c^16 d^16 e^16 = !PERMITS
		without ZREM
		semaphore_acquire [f p q v n] $a:1:1 1000 0 4 ch cg PUBLISH a^16 = !NOPERM
		without

		# permits that the owner has count as taken, and no lease is shortened
		semaphore_acquire [f p q v n] $a:1:1 500 0 0 ch cg PUBLISH a^16 = 0
		ZSCORE p a^16 = @1000
		semaphore_acquire [f p q v n] $a:1:2 2000 0 0 ch cg PUBLISH a^16 b^16 = 0
		ZRANGE p 0 -1 WITHSCORES = [axxxxxxxxxxxxxxx @2000 bxxxxxxxxxxxxxxx @2000]
		GET f = 1
		published = []

		# waiters queue; nobody overtakes
		semaphore_acquire [f p q v n] $b:1:2 1000 5000 0 ch cg PUBLISH c^16 d^16 = [2000 0]
		LRANGE q 0 -1 = [$b:1:2]
		ZRANGE v 0 -1 WITHSCORES = [$b:1:2 @5000]
		PTTL q = 3605000
		PTTL v = 3605000
		semaphore_acquire [f p q v n] $c:1:1 1000 0 0 ch cg PUBLISH e^16 = [2000 0]
		LRANGE q 0 -1 = [$b:1:2]
		semaphore_acquire [f p q v n] $c:1:1 1000 4000 0 ch cg PUBLISH e^16 = [2000 0]
		wait 10
		semaphore_acquire [f p q v n] $b:1:2 1000 5000 0 ch cg PUBLISH c^16 d^16 = [1990 0]
		ZRANGE v 0 -1 WITHSCORES = [$c:1:1 @4000 $b:1:2 @5010]
		LRANGE q 0 -1 = [$b:1:2 $c:1:1]
		PEXPIRE q 3605001
		semaphore_acquire [f p q v n] $b:1:2 1000 5000 0 ch cg PUBLISH c^16 d^16 = [1990 0]
		PTTL q = 3605001
		PTTL v = 3605001
		without PEXPIRE
		semaphore_acquire [f p q v n] $b:1:2 1000 5000 0 ch cg PUBLISH c^16 d^16 = !NOPERM
		semaphore_acquire [f p q v n] $d:1:1 1000 5000 0 ch cg PUBLISH e^16 = !NOPERM
		LRANGE q 0 -1 = [$b:1:2 $c:1:1]
		without PTTL
		semaphore_keep [f p q v n] ch cg PUBLISH 0 0 5000 $b:1:2 = !NOPERM
		without ZREM
		semaphore_acquire [f p q v n] $b:1:2 1000 5000 0 ch cg PUBLISH c^16 d^16 = !NOPERM
		semaphore_keep [f p q v n] ch cg PUBLISH 0 0 5000 $b:1:2 = !NOPERM
		semaphore_release [f p q v n] $a:1:2 1 ch cg PUBLISH a^16 = !NOPERM
		semaphore_release [f p q v n] $a:1:2 0 ch cg PUBLISH a^16 = !NOPERM
		semaphore_resize [f p q v n] 3 ch cg PUBLISH @99999 = !NOPERM
		without
		published = []

		# the first lease ends: its permits are free from that ms on, and the first waiter takes them
		semaphore_inspect [f p q v n] 0 0 = [1 2 [axxxxxxxxxxxxxxx 1990 bxxxxxxxxxxxxxxx 1990] [$b:1:2 5000 $c:1:1 3990]]
		wait 1989
		semaphore_acquire [f p q v n] $b:1:2 1000 5000 0 ch cg PUBLISH c^16 d^16 = [1 0]
		GET f = 1
		semaphore_inspect [f p q v n] 0 0 = [1 2 [axxxxxxxxxxxxxxx 1 bxxxxxxxxxxxxxxx 1] [$b:1:2 5000 $c:1:1 2001]]
		wait 1
		semaphore_inspect [f p q v n] 1 1 = [1 2 [bxxxxxxxxxxxxxxx 0] [$c:1:1 2000]]
		semaphore_acquire [f p q v n] $b:1:2 1000 5000 0 ch cg PUBLISH c^16 d^16 = 0
		GET f = 1
		ZRANGE p 0 -1 WITHSCORES = [cxxxxxxxxxxxxxxx @3000 dxxxxxxxxxxxxxxx @3000]
		LRANGE q 0 -1 = [$c:1:1]
		published = [ch:$c:fair~1:1 cg~01]

		# a release notifies those whose turn it is now
		semaphore_acquire [f p q v n] $d:1:2 1000 5000 0 ch cg PUBLISH g^16 h^16 = [1000 0]
		semaphore_release [f p q v n] $b:1:2 1 ch cg PUBLISH c^16 d^16 = 1
		semaphore_release [f p q v n] $b:1:2 1 ch cg PUBLISH c^16 x^16 = -2
		semaphore_release [f p q v n] $b:1:2 0 ch cg PUBLISH c^16 d^16 = 1
		GET f = 3
		published = [ch:$d:fair~1:2 cg~03]
		semaphore_release [f p q v n] $b:1:2 0 ch cg PUBLISH c^16 d^16 = -2
		published = []

		# one that leaves the queue lets those behind it go
		semaphore_release [f p q v n] $c:1:1 0 ch cg PUBLISH e^16 = -2
		LRANGE q 0 -1 = [$d:1:2]
		published = [ch:$d:fair~1:2]
		FLUSHALL

		# the caller that frees what is over, and cannot take it, notifies the first in the queue, and itself stays there
		SET f 0
		ZADD p @1990 a^16 @9000 b^16 @9000 c^16
		RPUSH q $a:1:2 $b:1:1 $c:1:3
		ZADD v @9000 $a:1:2 @9000 $b:1:1 @9000 $c:1:3
		semaphore_acquire [f p q v n] $b:1:1 1000 5000 0 ch cg PUBLISH d^16 = [7000 0]
		GET f = 1
		published = [cg~01]
		ZADD p @2000 b^16
		semaphore_acquire [f p q v n] $b:1:1 1000 5000 0 ch cg PUBLISH d^16 = [1 0]
		published = []
		ZADD p @2000 c^16
		semaphore_acquire [f p q v n] $b:1:1 1000 5000 0 ch cg PUBLISH d^16 = [1 0]
		published = []
		LRANGE q 0 -1 = [$a:1:2 $b:1:1 $c:1:3]
		GET f = 1

		# a waiter that is dead is dropped, and who is behind it is notified
		FLUSHALL
		SET f 1
		ZADD p @9000 a^16
		RPUSH q $a:1:2 $b:1:1 $c:1:1
		ZADD v @2000 $a:1:2 @2001 $b:1:1 @9000 $c:1:1
		semaphore_acquire [f p q v n] $c:1:1 1000 5000 0 ch cg PUBLISH d^16 = [7000 0]
		published = [ch:$b:fair~1:1 cg~01]
		LRANGE q 0 -1 = [$b:1:1 $c:1:1]
		wait 1
		semaphore_acquire [f p q v n] $c:1:1 1000 5000 0 ch cg PUBLISH d^16 = 0
		LRANGE q 0 -1 = []
		published = []

		# the heartbeat keeps places, reclaims permits and says whose turn it is
		FLUSHALL
		SET f 0
		ZADD p @2001 a^16 @9000 b^16
		RPUSH q $a:1:1 $b:1:1 $c:1:1
		ZADD v @9000 $a:1:1 @9000 $b:1:1 @9000 $c:1:1
		semaphore_keep [f p q v n] ch cg PUBLISH 0 0 5000 $b:1:1 4000 $c:1:1 1000 $d:1:1 = [1 0 0 -2]
		ZRANGE v 0 -1 WITHSCORES = [$c:1:1 @6001 $b:1:1 @7001 $a:1:1 @9000]
		PTTL q = 3605000
		PTTL v = 3605000
		GET f = 0
		published = []
		semaphore_keep [f p q v n] ch cg PUBLISH 0 1 5000 $b:1:1 4000 $c:1:1 = [6999 0 0]
		GET f = 1
		published = [ch:$a:fair~1:1 cg~01]
		semaphore_keep [f p q v n] ch cg PUBLISH 2 1 5000 $a:1:1 = [6999 1]
		semaphore_keep [f p q v n] ch cg PUBLISH 3 1 5000 $b:1:1 = [6999 1]
		semaphore_keep [f p q v n] ch cg PUBLISH 0 1 = [6999]
		published = []
		LREM q 1 $a:1:1
		semaphore_keep [f p q v n] ch cg PUBLISH 0 1 5000 $b:1:1 = [6999 1]
		RPUSH q $a:1:3
		ZADD v @9000 $a:1:3
		semaphore_keep [f p q v n] ch cg PUBLISH 0 0 5000 $a:1:3 = [6999 -2]
		DEL f
		semaphore_keep [f p q v n] ch cg PUBLISH 0 0 5000 $b:1:1 = [0 1]

		# the number of permits is set once before a time; with fewer than are held, the number of free ones is negative
		FLUSHALL
		semaphore_resize [f p q v n] 3 ch cg PUBLISH 0 = @2001
		semaphore_resize [f p q v n] 3 ch cg PUBLISH @2001 = @2001
		semaphore_resize [f p q v n] 3 ch cg PUBLISH @2002 = 1
		GET f = 3
		published = [cg~3]
		ZADD p @9000 a^16 @9000 b^16
		SET f 1 PX 70000
		RPUSH q $a:1:2
		ZADD v @9000 $a:1:2
		semaphore_resize [f p q v n] 4 ch cg PUBLISH @9999 = 1
		GET f = 2
		PTTL f = 70000
		published = [ch:$a:fair~1:2 cg~2]
		semaphore_resize [f p q v n] 1 ch cg PUBLISH @9999 = 1
		GET f = -1
		published = [cg~1]
		DEL f
		PEXPIRE p 60000
		semaphore_resize [f p q v n] 1 ch cg PUBLISH @9999 = 1
		GET f = -1
		PTTL f = 60000

		# leases are renewed, and none is shortened or brought back
		semaphore_renew [p] 1000 1 a^16 = [1]
		ZSCORE p a^16 = @9000
		semaphore_renew [p x s] 10000 1 a^16 1 b^16 0 = [3 2 -2]
		SET s 1
		semaphore_renew [p s p x] 20000 2 a^16 b^16 1 a^16 2 a^16 c^16 1 a^16 = [4 2 -4 3 -2 4 -2]
		ZRANGE p 0 -1 WITHSCORES = [axxxxxxxxxxxxxxx @22001 bxxxxxxxxxxxxxxx @22001]
		without ZADD
		semaphore_renew [p] 30000 1 a^16 = !NOPERM
		without ZREM
		semaphore_renew [p] 10 1 a^16 = [1]
		without

		# a permit has the lowest free slot, with a larger token than any holder before
		FLUSHALL
		ZADD p @3000 a^16 @3000 b^16 @2001 c^16
		semaphore_slots [p s] a^16 b^16 = [0 @2001000us 1 @2001000us]
		HGETALL s = [0 @2001000us~axxxxxxxxxxxxxxx 1 @2001000us~bxxxxxxxxxxxxxxx]
		semaphore_slots [p s] b^16 a^16 = [1 @2001000us 0 @2001000us]
		semaphore_slots [p s] c^16 = -2
		semaphore_slots [p s] x^16 = -2
		ZADD p @2002 c^16
		semaphore_slots [p s] c^16 = [2 @2001000us]
		wait 1
		ZADD p @3000 d^16 @3000 e^16
		semaphore_slots [p s] e^16 = [3 @2002000us]
		ZREM p c^16
		HSET s 2 @999000000us~cxxxxxxxxxxxxxxx
		semaphore_slots [p s] d^16 = [2 @999000001us]
		HSET s 7 @1000us~gone
		semaphore_slots [p s] d^16 = [2 @999000001us]
		HSET s x @1000us~y
		semaphore_slots [p s] d^16 = -4
		HDEL s x
		HSET s 8 y
		semaphore_slots [p s] d^16 = -4
		HDEL s 8
		EVAL for~i=10,9009~do~redis.call('HSET',KEYS[1],i,'1~'..i)~end 1 s = nil
		semaphore_slots [p s] d^16 = [2 @999000001us]
		HSET s x y
		semaphore_slots [p s] d^16 = -4
		SET s 1
		semaphore_slots [p s] d^16 = -4
		semaphore_slots [s p] d^16 = -4
		without ZREM
		semaphore_slots [p s] d^16 = !NOPERM
		without ZMSCORE
		semaphore_slots [p s] d^16 = !NOPERM
		without HGETALL
		semaphore_slots [p t] d^16 = !NOPERM
		without

		# another key is left alone
		FLUSHALL
		SET s 1
		SET t 01
		ZADD z 1 short
		semaphore_acquire [f s q v n] $a:1:1 1000 0 3 ch cg PUBLISH a^16 = -4
		semaphore_acquire [z p q v n] $a:1:1 1000 0 3 ch cg PUBLISH a^16 = -4
		semaphore_acquire [f z q v n] $a:1:1 1000 0 3 ch cg PUBLISH a^16 = -4
		semaphore_release [t p q v n] $a:1:1 1 ch cg PUBLISH a^16 = -4
		SET t 12345678901
		semaphore_inspect [t p q v n] 0 0 = [12345678901 0 [] []]
		SET t 123456789012
		semaphore_inspect [t p q v n] 0 0 = -4
		semaphore_keep [t p q v n] ch cg PUBLISH 0 0 5000 $a:1:1 = [0 1]
		semaphore_resize [t p q v n] 1 ch cg PUBLISH @99999 = -4
		FLUSHALL

		# a semaphore that was stopped has no permit, and lets callers wait
		semaphore_inspect [f p q v n] 0 0 = ['' 0 [] []]
		SET f 0
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = [-1 0]
		SET f -1
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = [-1 0]
		without GET
		semaphore_keep [f p q v n] ch cg PUBLISH 0 0 5000 $a:1:1 = !NOPERM
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = !NOPERM
		without

		# a member that is no waiter counts as one that wants a single permit, and is dead without a deadline
		SET f 1
		RPUSH q odd $b:1:1 lost
		ZADD v @9000 odd @9000 $b:1:1
		semaphore_release [f p q v n] $c:1:1 0 ch cg PUBLISH a^16 = -2
		semaphore_resize [f p q v n] 2 ch cg PUBLISH @99999 = 1
		published = [cg~1 ch:$b:fair~1:1 cg~2]
		LRANGE q 0 -1 = [odd $b:1:1]
		RPUSH q lost
		semaphore_inspect [f p q v n] 0 0 = [2 0 [] [odd 6998 $b:1:1 6998 lost 0]]
		without ZREM
		semaphore_release [f p q v n] $b:1:1 0 ch cg PUBLISH a^16 = !NOPERM
		without
		FLUSHALL

		# a resize reclaims what is over, and keeps an expiry
		SET f 1
		ZADD p @10 a^16 @9000 b^16
		semaphore_resize [f p q v n] 3 ch cg PUBLISH @99999 = 1
		sent SET = 0
		GET f = 2
		published = [cg~2]
		RPUSH q $c:1:3
		ZADD v @9000 $c:1:3
		ZADD p @11 c^16
		SET f 1
		semaphore_resize [f p q v n] 3 ch cg PUBLISH @99999 = 1
		published = [cg~2]
		FLUSHALL

		# a waiter without a deadline leaves the queue, too
		SET f 0
		RPUSH q $d:1:1 $e:1:1
		ZADD v @99999 $e:1:1
		without ZREM
		semaphore_release [f p q v n] $d:1:1 0 ch cg PUBLISH a^16 = !NOPERM
		LRANGE q 0 -1 = [$d:1:1 $e:1:1]
		without
		semaphore_release [f p q v n] $d:1:1 0 ch cg PUBLISH a^16 = -2
		LRANGE q 0 -1 = [$e:1:1]
		FLUSHALL

		# a waiter whose place was deleted by hand enters again
		SET f 0
		ZADD p @9000 a^16
		ZADD v @9000 $a:1:1
		semaphore_acquire [f p q v n] $a:1:1 1000 5000 0 ch cg PUBLISH b^16 = [6998 0]
		LRANGE q 0 -1 = [$a:1:1]
		semaphore_acquire [f p q v n] $a:1:1 1000 5000 0 ch cg PUBLISH b^16 = [6998 0]
		LRANGE q 0 -1 = [$a:1:1]
		FLUSHALL

		# the first in the queue, which cannot take all its permits yet, keeps those behind it out
		SET f 0
		ZADD p @1990 a^16 @9000 b^16 @9000 c^16
		RPUSH q $b:1:2 $c:1:1
		ZADD v @9000 $b:1:2 @9000 $c:1:1
		semaphore_acquire [f p q v n] $b:1:2 1000 5000 0 ch cg PUBLISH d^16 e^16 = [6998 0]
		published = [cg~01]

		# an owner that has all its permits looks at no other
		RPUSH q $d:1:1
		ZADD v @10 $d:1:1 @10 $b:1:2
		semaphore_acquire [f p q v n] $a:1:1 1000 5000 0 ch cg PUBLISH b^16 = 0
		LRANGE q 0 -1 = [$b:1:2 $c:1:1 $d:1:1]
		semaphore_inspect [f p q v n] 0 0 = [1 2 [bxxxxxxxxxxxxxxx 6998 cxxxxxxxxxxxxxxx 6998] [$b:1:2 0 $c:1:1 6998 $d:1:1 0]]
		wait 8000
		semaphore_inspect [f p q v n] 0 0 = [1 2 [bxxxxxxxxxxxxxxx 0 cxxxxxxxxxxxxxxx 0] [$b:1:2 0 $c:1:1 0 $d:1:1 0]]
		FLUSHALL

		# up to a thousand dead are dropped from before a living waiter
		SET f 1
		ZADD p @99000 a^16
		RPUSH q $a:{1..150}:1 $b:1:1
		ZADD v @99000 $b:1:1
		semaphore_acquire [f p q v n] $c:1:1 1000 0 0 ch cg PUBLISH d^16 = [88998 0]
		LRANGE q 0 -1 = [$b:1:1]
		published = [ch:$b:fair~1:1 cg~01]
		FLUSHALL

		# a script of an application runs only while each permit is held
		ZADD p @10050 a^16 @10040 b^16
		include_semaphore_body [p] a^16 b^16 2 = nil
		include_semaphore_body [p] c^16 b^16 2 = !NOPERMIT
		wait 38
		include_semaphore_body [p] a^16 b^16 2 = !NOPERMIT
		wait 2
		include_semaphore_body [p] a^16 b^16 2 = !NOPERMIT
		include_semaphore_body [p] b^16 a^16 2 = !NOPERMIT
		FLUSHALL

		# Redisson's score of a permit without a lease
		SET f 0
		ZADD p 92233720368547758 a^16
		semaphore_inspect [f p q v n] 0 0 = [0 1 [axxxxxxxxxxxxxxx -1] []]
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH b^16 = [-1 0]

		# what Redisson made with an expiry keeps it
		FLUSHALL
		SET f 2 PX 50000
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = 0
		PTTL p = 50000
		PTTL f = 50000
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH b^16 = 0
		PTTL p = 50000
		PEXPIRE p 40000
		SET f 1 PX 50000
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH c^16 = 0
		PTTL p = 40000
		SET f 0
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH d^16 = [1000 0]
		SET f -1
		semaphore_acquire [f p q v n] $a:1:5 1000 0 0 ch cg PUBLISH c^16 d^16 e^16 f^16 g^16 = !PERMITS

		# a free permit, while no owner is in the queue
		FLUSHALL
		SET f 2
		published = []
		semaphore_acquire [f p q v n] $a:1:1 1000 0 2 ch cg PUBLISH a^16 = 0
		semaphore_acquire [f p q v n] $a:1:1 3000 0 2 ch cg PUBLISH a^16 = 0
		ZRANGE p 0 -1 WITHSCORES = [axxxxxxxxxxxxxxx @13042]
		GET f = 1
		semaphore_acquire [f p q v n] $a:1:1 1000 0 3 ch cg PUBLISH b^16 = !PERMITS
		semaphore_release [f p q v n] $a:1:1 1 ch cg PUBLISH a^16 = 1
		semaphore_acquire [f p q v n] $b:1:1 1000 0 2 ch cg PUBLISH b^16 = 0
		GET f = 0
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = 1
		published = [cg~01]
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = -2
		semaphore_release [f p q v n] $b:1:1 0 ch cg PUBLISH b^16 = 1
		published = [cg~02]
		without INCRBY
		semaphore_acquire [f p q v n] $a:1:1 1000 0 2 ch cg PUBLISH a^16 = !NOPERM
		without ZADD
		semaphore_acquire [f p q v n] $a:1:1 1000 0 2 ch cg PUBLISH a^16 = !NOPERM
		without PTTL
		semaphore_acquire [f p q v n] $a:1:1 1000 0 2 ch cg PUBLISH a^16 = !NOPERM
		without
		GET f = 2
		EXISTS p = 0
		semaphore_acquire [f p q v n] $a:1:1 1000 0 2 ch cg PUBLISH a^16 = 0
		without ZRANGE
		semaphore_acquire [f p q v n] $b:1:1 1000 0 2 ch cg PUBLISH b^16 = !NOPERM
		without ZREM
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = !NOPERM
		without INCRBY
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = !NOPERM
		without
		GET f = 1
		ZRANGE p 0 -1 = [axxxxxxxxxxxxxxx]
		SET f -1
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = 1
		GET f = 0
		published = []
		SET f 1
		ZADD p 1 abc
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = -4
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = -4
		GET f = 1
		DEL p
		SET p x
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = -4
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = -4
		GET f = 1

		# several free permits
		DEL p
		SET f 3
		semaphore_acquire [f p q v n] $a:1:2 1000 0 0 ch cg PUBLISH a^16 b^16 = 0
		GET f = 1
		semaphore_acquire [f p q v n] $b:1:2 1000 0 0 ch cg PUBLISH c^16 d^16 = [1000 0]
		ZREM p b^16
		SET f 2
		semaphore_acquire [f p q v n] $a:1:2 1000 0 0 ch cg PUBLISH b^16 a^16 = 0
		GET f = 1
		ZREM p b^16
		SET f 2
		published = []
		semaphore_release [f p q v n] $a:1:2 0 ch cg PUBLISH a^16 b^16 = -2
		published = [cg~03]
		GET f = 3
		EXISTS p = 0
		without ZADD
		semaphore_acquire [f p q v n] $a:1:2 1000 0 0 ch cg PUBLISH a^16 b^16 = !NOPERM
		without
		GET f = 3
		semaphore_acquire [f p q v n] $a:1:3 1000 0 3 ch cg PUBLISH a^16 b^16 c^16 = 0
		GET f = 0
		semaphore_release [f p q v n] $a:1:3 0 ch cg PUBLISH a^16 b^16 c^16 = 1
		published = [cg~03]
		SET f 1

		# the queue, or the deadlines of its owners, were deleted by hand
		DEL p
		ZADD v 1 $c:1:1
		semaphore_acquire [f p q v n] $c:1:1 1000 0 0 ch cg PUBLISH a^16 = 0
		EXISTS v = 1
		semaphore_release [f p q v n] $c:1:1 0 ch cg PUBLISH a^16 = 1
		EXISTS v = 0
		RPUSH q $c:1:1
		semaphore_acquire [f p q v n] $a:1:1 1000 0 0 ch cg PUBLISH a^16 = 0
		EXISTS q = 0
		RPUSH q $c:1:1
		semaphore_release [f p q v n] $a:1:1 0 ch cg PUBLISH a^16 = 1
		EXISTS q = 0
	`)
}
