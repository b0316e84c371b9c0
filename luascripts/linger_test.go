package luascripts_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// keeperClient is a client that keeps locks. Its owner strings end with a mark.
const keeperClient = "0192d3a4-7b1c-7e5f-8a6b-0000000000aa"

// keeperOf returns an owner string of keeperClient.
func keeperOf(mark, linger string) string {
	return keeperClient + ":" + mark + "1833000000000000001" + linger
}

// asking has the scripts that can reject an owner, with the hash of the lock at that time.
var asking = map[string]struct {
	keys luascripts.Keys
	mark string
	seed func(owner string) []string
	ask  func(context.Context, rueidis.Client, luascripts.Keys, luascripts.Request) (luascripts.Acquired, error)
}{
	"plain": {keys, luascripts.PlainMark, func(owner string) []string { return []string{owner, "1"} }, luascripts.AcquireReentrant},
	"fair":  {fairKeys, luascripts.FairMark, func(owner string) []string { return []string{owner, "1"} }, luascripts.AcquireFair},
	"write": {rwKeys, "", func(owner string) []string { return []string{"mode", "write", owner + ":write", "1"} }, luascripts.AcquireWrite},
	"read":  {rwKeys, "", func(owner string) []string { return []string{"mode", "write", owner + ":write", "1"} }, luascripts.AcquireRead},
}

// A rejected request notifies the client of a lingering holder on its own channel, and the reply reports it.
// Holders of other clients, and owner strings that only resemble the mark, change nothing.
func TestLinger_wanted(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		e := listen(t, rdb)
		for kind, c := range asking {
			for name, h := range map[string]struct {
				owner string
				retry time.Duration
			}{
				"lingers":             {keeperOf(c.mark, "105"), 50 * time.Millisecond},
				"lingers for longest": {keeperOf(c.mark, "125"), 250 * time.Millisecond},
				"does not linger":     {keeperOf(c.mark, ""), 0},
				"another mark":        {keeperOf(c.mark, "305"), 0},
				"a shorter mark":      {keeperOf(c.mark, "5"), 0},
				"a shorter number":    {strings.Replace(keeperOf(c.mark, "105"), "1833000", "18330", 1), 0},
				"the shortest number": {strings.Replace(keeperOf(c.mark, "105"), "1833000", "183300", 1), 50 * time.Millisecond},
				"Redisson":            {"0192d3a4-7b1c-4e5f-8a6b-0000000000aa:9223372036854775807", 0},
				"looks like Redisson": {"0192d3a4-7b1c-4e5f-8a6b-0000000000aa:1833000000000000001105", 0},
			} {
				for _, waits := range []bool{false, true} {
					t.Run(kind+"/"+name, func(t *testing.T) {
						do(t, rdb, "FLUSHALL")
						do(t, rdb, append([]string{"HSET", c.keys.Lock}, c.seed(h.owner)...)...)
						do(t, rdb, "PEXPIRE", c.keys.Lock, "20000")
						q := luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1}
						message := luascripts.WantedByTry
						if waits {
							q.Offer, q.RetryAfter, q.WaiterTimeout, message = time.Second, time.Second, time.Minute, luascripts.WantedByWaiter
						}
						got, err := c.ask(t.Context(), rdb, c.keys, q)
						if err != nil || got.Verdict != luascripts.Held || got.Kept != h.retry || got.Left < 15*time.Second {
							t.Errorf("waits %t: %+v, %v, want to retry for %v", waits, got, err, h.retry)
						}
						if got.NoPubSub != (waits && kind == "plain") { // no client is subscribed to its channel
							t.Errorf("waits %t: %+v", waits, got)
						}
						if h.retry > 0 {
							e.expect("leasehold_channel:{orders}:" + keeperClient + " " + message)
						}
						if unmarked, lingers := luascripts.Lingers(h.owner); lingers != (h.retry > 0 || name == "another mark") || lingers && unmarked != h.owner[:len(h.owner)-3] {
							t.Errorf("%s: lingers %t, without the mark %s", h.owner, lingers, unmarked)
						}
						if again := number(t, rdb, "PTTL", c.keys.Lock); again < 15_000 || again > 20_000 {
							t.Errorf("the lease changed to %d ms", again)
						}
					})
				}
			}
		}
		e.expect()
	})
}

// A waiter in the queue of a plain lock notifies the client with each of its requests, because the first message may be
// lost. In the hash, the queue may come before the holder.
func TestLinger_wantedAgain(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	s.Do(t, "CONFIG", "SET", "hash-max-listpack-value", "1000") // keeps fields in the order in which they were set
	listening(t, s, owner("G1"))
	e := listen(t, rdb)
	seed(t, rdb, keeperOf(luascripts.PlainMark, "125"), 1, 20_000)
	for i := range 4 {
		if i == 2 {
			do(t, rdb, "HDEL", keys.Lock, keeperOf(luascripts.PlainMark, "125"))
			do(t, rdb, "HSET", keys.Lock, keeperOf(luascripts.PlainMark, "125"), "1")
		}
		got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, Offer: time.Second, RetryAfter: time.Second, WaiterTimeout: time.Minute})
		if err != nil || got.Verdict != luascripts.Held || got.NoPubSub {
			t.Fatalf("request %d: %+v, %v", i, got, err)
		}
		e.expect("leasehold_channel:{orders}:" + keeperClient + " " + luascripts.WantedByWaiter)
	}
}

// A heartbeat of a fair lock's waiters also notifies the client of a lingering holder.
func TestLinger_heartbeat(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		e := listen(t, rdb)
		do(t, rdb, "HSET", fairKeys.Lock, keeperOf(luascripts.FairMark, "125"), "1")
		do(t, rdb, "PEXPIRE", fairKeys.Lock, "20000")
		for _, enters := range []bool{true, false} {
			if _, err := luascripts.KeepFair(t.Context(), rdb, fairKeys, []luascripts.Waiter{{Owner: owner("G1"), WaiterTimeout: time.Minute, Enters: enters}}); err != nil {
				t.Fatal(err)
			}
			e.expect("leasehold_channel:{orders}:" + keeperClient + " " + luascripts.WantedByWaiter)
		}
		if _, err := luascripts.KeepFair(t.Context(), rdb, fairKeys, nil); err != nil { // no owner wants the lock
			t.Error(err)
		}
		e.expect()
	})
}

// A reader that waits behind a waiting writer notifies no client.
func TestLinger_readersNotifyOnlyAWriter(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		e := listen(t, rdb)
		do(t, rdb, "HSET", rwKeys.Lock, "mode", "read", keeperOf("", "125"), "1")
		do(t, rdb, "SET", rwKeys.LeasePrefix+":"+keeperOf("", "125")+":rwlock_timeout:1", "1", "PX", "20000")
		got, err := luascripts.AcquireWrite(t.Context(), rdb, rwKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: time.Minute})
		if err != nil || got.Verdict != luascripts.Held || got.Kept != 0 {
			t.Errorf("%+v, %v", got, err)
		}
		e.expect()
	})
}

// A read/write lock in mode write whose writer was deleted manually counts as held, and no client is notified.
func TestLinger_noWriter(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do(t, rdb, "HSET", rwKeys.Lock, "mode", "write", owner("G2"), "1")
		do(t, rdb, "PEXPIRE", rwKeys.Lock, "20000")
		for kind, ask := range map[string]func(context.Context, rueidis.Client, luascripts.Keys, luascripts.Request) (luascripts.Acquired, error){
			"write": luascripts.AcquireWrite, "read": luascripts.AcquireRead,
		} {
			got, err := ask(t.Context(), rdb, rwKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: time.Minute})
			if err != nil || got.Verdict != luascripts.Held || got.Kept != 0 || got.Left < 10*time.Second {
				t.Errorf("%s: %+v, %v", kind, got, err)
			}
		}
	})
}

// A rejected owner of the holder's own client notifies no client, because its process already detects it.
func TestLinger_ownClient(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		e := listen(t, rdb)
		for kind, c := range asking {
			do(t, rdb, "FLUSHALL")
			do(t, rdb, append([]string{"HSET", c.keys.Lock}, c.seed(keeperOf(c.mark, "125"))...)...)
			do(t, rdb, "PEXPIRE", c.keys.Lock, "20000")
			got, err := c.ask(t.Context(), rdb, c.keys, luascripts.Request{Owner: keeperClient + ":" + c.mark + "1833000000000000009125", Lease: lease, Want: 1})
			if err != nil || got.Verdict != luascripts.Held || got.Kept != 0 {
				t.Errorf("%s: %+v, %v", kind, got, err)
			}
		}
		e.expect()
	})
}

// A client of sharded Pub/Sub is notified by SPUBLISH. A server that does not support it, or a user without permission,
// still rejects the request normally.
func TestLinger_cannotNotify(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	mute := user(t, s, "mute", "~*", "&nothing", "+@all")
	reply := do(t, rdb, "COMMAND", "INFO", "spublish")
	known, err := reply.ToArray()
	if err != nil {
		t.Fatal(err)
	}
	for name, rdb := range map[string]rueidis.Client{"may": rdb, "may not": mute} {
		for _, mark := range []string{"125", "225"} {
			do(t, s.Client(t), "FLUSHALL")
			seed(t, s.Client(t), keeperOf(luascripts.PlainMark, mark), 1, 20_000)
			published, sharded := s.CommandCalls(t, "publish"), s.CommandCalls(t, "spublish")
			got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1})
			if err != nil || got.Verdict != luascripts.Held || got.Kept != 250*time.Millisecond {
				t.Errorf("%s, %s: %+v, %v", name, mark, got, err)
			}
			published, sharded = s.CommandCalls(t, "publish")-published, s.CommandCalls(t, "spublish")-sharded
			if name == "may" && ((published == 1) != (mark == "125") || (sharded == 1) != (mark == "225" && !known[0].IsNil())) {
				t.Errorf("%s: %d calls of PUBLISH, and %d of SPUBLISH", mark, published, sharded)
			}
		}
	}
}

// A release by a client that keeps locks reports whether clients may listen that use no queue. A release by
// another client does not. Both apply alone and in a batch.
func TestLinger_releaseReportsListeners(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		marked, unmarked := keeperOf(luascripts.PlainMark, "125"), keeperOf(luascripts.PlainMark, "")
		for _, c := range []struct { // in this order, because the last ones listen until the end of the test
			name            string
			owner           string
			scatters, hears bool
			want            bool
		}{
			{"nobody listens", marked, false, false, false},
			{"unknown", marked, true, false, true},
			{"unknown, and the shortest owner string", strings.Replace(marked, "1833000", "183300", 1), true, false, true},
			{"somebody listens", marked, false, true, true},
			{"does not linger", unmarked, false, true, false},
			{"does not linger, scattered", unmarked, true, true, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				if c.hears {
					listen(t, rdb)
				}
				k := keys
				k.Scattered = c.scatters
				seed(t, rdb, c.owner, 1, 20_000)
				got, err := luascripts.HandOffReentrant(t.Context(), rdb, k, c.owner, luascripts.Release{})
				if err != nil || got.Verdict != luascripts.Done || got.Listeners != c.want {
					t.Errorf("alone: %+v, %v", got, err)
				}
				seed(t, rdb, c.owner, 1, 20_000)
				batch := []*luascripts.Change{gives(k, c.owner, 0), takes(named("another"), ours, 1)}
				luascripts.ChangeReentrant(t.Context(), rdb, batch, 64)
				i := slices.IndexFunc(batch, func(c *luascripts.Change) bool { return c.IsRelease })
				if got := batch[i]; got.Err != nil || got.Released.Verdict != luascripts.Done || got.Released.Listeners != c.want {
					t.Errorf("in a batch: %+v, %v", got.Released, got.Err)
				}
			})
		}
	})
}

func TestLingerMark(t *testing.T) {
	for want, c := range map[string]struct {
		publish string
		linger  time.Duration
	}{
		"101": {"PUBLISH", time.Millisecond},
		"105": {"PUBLISH", 59 * time.Millisecond},
		"125": {"PUBLISH", time.Hour},
		"225": {"SPUBLISH", time.Second},
	} {
		if got := luascripts.LingerMark(c.publish, c.linger); got != want {
			t.Errorf("%v: %s, want %s", c, got, want)
		}
	}
}
