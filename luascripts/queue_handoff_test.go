package luascripts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Most grants take the short path of include_handoff.lua, and one in 64 applies all rules. Both have the same
// result and the same messages.
func TestQueue_shortPath(t *testing.T) {
	const lives = " 2000 0 0 0;"
	for name, c := range map[string]struct {
		mark  string // text before the time
		queue string // text after it
		count string
		deny  string
		full  bool
		free  bool // the lock is free afterward
	}{
		"one waits":              {queue: first + lives},
		"two wait":               {queue: first + lives + second + lives},
		"the first is dead":      {queue: other + lives + first + lives},
		"all are dead":           {queue: other + lives, free: true},
		"nobody waits":           {free: true},
		"it held twice":          {queue: first + lives, count: "2"},
		"no count":               {queue: first + lives, count: "x"},
		"an offer without bound": {queue: first + " 99999999 0 0 0;"},
		"alive until a time":     {queue: first + " 2000 0 0 99999999999999;"},
		"no entry":               {queue: "x", free: true},
		"too long":               {queue: first + lives + strings.Repeat("x", 40_000), free: true},
		"a mark":                 {mark: "0", queue: first + lives},
		"without pexpire":        {queue: first + lives, deny: "pexpire", free: true},
		"without publish":        {queue: first + lives, deny: "publish"},
		"without pubsub":         {queue: first + lives, deny: "pubsub"},
		"memory is full":         {queue: first + lives, full: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			rdb := s.Client(t)
			said := listening(t, s, first, second)
			user := rdb
			if c.deny != "" {
				user = denied(t, s, c.deny)
			}
			since := now(t, rdb)
			release := func(grants int) string {
				seed(t, rdb, holder, 1, 30_000)
				do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, fmt.Sprintf("%d %s%d|%s", grants, c.mark, since, c.queue))
				if c.count != "" {
					do(t, rdb, "HSET", keys.Lock, holder, c.count)
				}
				if c.full {
					full(t, s)
				}
				verdict, err := luascripts.ReleaseReentrant(t.Context(), user, keys, holder, 0)
				var heard []string
				do(t, rdb, "PUBLISH", process(first), "end")
				for m := <-said; m != "end"; m = <-said {
					heard = append(heard, m)
				}
				left := number(t, rdb, "PTTL", keys.Lock)
				after := fmt.Sprintf("%v, %v, said %q, lives for %d s, %s", verdict, err, heard, (left+999)/1000, contents(t, rdb))
				do(t, rdb, "CONFIG", "SET", "maxmemory", "0")
				if free := number(t, rdb, "EXISTS", keys.Lock) == 0; free != c.free {
					t.Errorf("after %d grants: free is %t, want %t: %s", grants, free, c.free, after)
				}
				do(t, rdb, "DEL", keys.Lock)
				return strings.NewReplacer(fmt.Sprintf("=%d %s%d|", grants, c.mark, since), "=<grants> <since>|", fmt.Sprintf("=%d %s%d|", grants+1, c.mark, since), "=<one more> <since>|").Replace(after)
			}
			if short, long := release(2), release(0); short != long {
				t.Errorf("the short way:\n%s\nby all rules:\n%s", short, long)
			}
		})
	}
}

// While a client listens that is not in the queue, the lock is freed after four grants. It is also freed if a caller has marked
// the queue and a second has passed. Otherwise it is freed after 640 grants and ten seconds, or at the next grant that applies
// all rules.
func TestQueue_shortPathEnds(t *testing.T) {
	for name, c := range map[string]struct {
		stranger bool
		mark     string
		since    int64        // in ms
		freed    map[int]bool // by the number of previous grants
	}{
		"stranger":         {true, "", 2000, map[int]bool{1: false, 3: false, 4: true, 5: true, 63: true, 64: true, 65: true}},
		"mark":             {false, "0", 2000, map[int]bool{1: false, 3: false, 4: true, 5: true, 63: true, 64: true, 65: true}},
		"mark, but served": {false, "0", 0, map[int]bool{4: false, 64: false, 640: false}},
		"none":             {false, "", 20_000, map[int]bool{1: false, 5: false, 64: false, 128: false, 576: false, 639: false, 640: true, 641: false, 704: true}},
		"none for long":    {false, "", 1000, map[int]bool{64: false, 640: false, 704: false}},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			rdb := s.Client(t)
			listening(t, s, first)
			if c.stranger {
				subscribe(t, s, keys.Channel, nil)
			}
			gives := func(grants int) (free bool) {
				seed(t, rdb, holder, 1, 30_000)
				since := now(t, rdb) - c.since
				do(t, rdb, "HSET", keys.Lock, luascripts.QueueField, fmt.Sprintf("%d %s%d|%s 2000 0 0 0;", grants, c.mark, since, first))
				got, err := luascripts.HandOffReentrant(t.Context(), rdb, keys, holder, luascripts.Release{})
				if err != nil {
					t.Fatal(err)
				}
				do(t, rdb, "DEL", keys.Lock)
				return got.Aside
			}
			for grants, want := range c.freed {
				if free := gives(grants); free != want {
					t.Errorf("after %d grants: let go is %t, want %t", grants, free, want)
				}
			}
		})
	}
}

// The owner to which a release granted the lock sends a request. Its token is the server's clock, and its lease is full from
// then on, but never shorter than before.
func TestAcquireReentrant_granted(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, c := range []struct{ left, asks, want time.Duration }{
			{20 * time.Second, time.Minute, time.Minute},
			{time.Hour, time.Minute, time.Hour},
		} {
			do(t, rdb, "DEL", keys.Lock)
			do(t, rdb, "HSET", keys.Lock, ours, "1", luascripts.QueueField, fmt.Sprintf("1 %d|%s 2000 0 0 0;", now(t, rdb), first))
			do(t, rdb, "PEXPIRE", keys.Lock, fmt.Sprint(c.left.Milliseconds()))
			before, clock := contents(t, rdb), now(t, rdb)
			got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: ours, Lease: c.asks, Want: 1})
			if err != nil || got.Verdict != luascripts.Done || int64(got.Token/1000) < clock {
				t.Errorf("%+v, %v", got, err)
			}
			about(t, "the lease", pttl(t, rdb, keys.Lock), c.want)
			if after := contents(t, rdb); after != before {
				t.Errorf("%q, want %q", after, before)
			}
		}
	})
}

// The key of a lock has a second field that is not a queue. The owner can still release its own hold.
func TestRelease_besideAnotherField(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do(t, rdb, "HSET", "orders", ours, "1", "note", "x")
		do(t, rdb, "PEXPIRE", "orders", "30000")
		v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, 0)
		check(t, "release", v, luascripts.Done, err)
		if left := list(t, rdb, "HKEYS", "orders"); len(left) != 1 || left[0] != "note" {
			t.Errorf("left: %q", left)
		}
	})
}
