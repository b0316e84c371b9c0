package luascripts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Deadlines of our waiters do not add up, so when they are served they must not reduce the deadlines of
// Redisson's waiters behind them. Otherwise J1 would count as dead before its turn, and J2 would overtake
// it.
func TestPeers_manyOfOursTakeNothingOff(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		q.gets("G99")
		var want []string
		for n := range 12 {
			want = append(want, fmt.Sprint("G", n+1))
		}
		q.waits(want...)
		q.javaWaits("J1", "J2")
		want = append(want, "J1", "J2")
		if served := q.serve("G99"); served != strings.Join(want, " ") {
			t.Errorf("served: %s\nwant:   %s", served, strings.Join(want, " "))
		}
	})
}

// In a queue that is never empty, our waiters and Redisson's alternate, with heartbeats once per
// second. All are served in order of arrival, and no deadline drifts.
func TestPeers_noDriftInABusyQueue(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 40
	}
	withPeers(t, func(t *testing.T, q fair) {
		for _, hold := range []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second} {
			t.Run(fmt.Sprint(hold), func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.gets("G9999")
				holder, came := "G9999", 0
				var want []string
				var clock time.Duration
				for round := range rounds {
					for len(want) < 5 {
						came++
						name := fmt.Sprintf("%c%d", "JG"[came%2], came)
						q.queues(name)
						want = append(want, name)
					}
					for range int(hold / (200 * time.Millisecond)) {
						q.pass(200 * time.Millisecond)
						if clock += 200 * time.Millisecond; clock%time.Second == 0 {
							q.keeps(slices.DeleteFunc(slices.Clone(want), func(name string) bool { return name[0] == 'J' })...)
						}
					}
					if queue := q.queue(); queue != strings.Join(want, " ") {
						t.Fatalf("round %d: in the queue: %s, want %s", round, queue, want)
					}
					q.letsGo(holder)
					holder, want = want[0], want[1:]
					q.takes(holder)
					theirs := time.Duration(strings.Count(strings.Join(want, " "), "J"))
					ours := time.Duration(len(want)+1) - theirs
					if last := q.lastDeadline(); last > theirs*javaWait+ours*waiterTimeout+61*time.Second {
						t.Fatalf("round %d: with %s in the queue, an owner counts as alive for %v", round, want, last)
					}
				}
			})
		}
	})
}

// This is the smallest variant. In another one, our waiters leave instead of being served.
func TestPeers_noDriftInTurn(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		for name, leave := range map[string]func(q fair, name, holder string) (has string){
			"served":  func(q fair, name, holder string) string { q.letsGo(holder); q.gets(name); return name },
			"gave up": func(q fair, name, holder string) string { q.releases(name, luascripts.Gone); return holder },
		} {
			t.Run(name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.gets("G9999")
				has := "G9999"
				q.waits("G1")
				for round := range 60 {
					ours, next, theirs := fmt.Sprint("G", round+1), fmt.Sprint("G", round+2), fmt.Sprint("J", round+1)
					q.javaWaits(theirs) // behind ours
					q.waits(next)       // behind theirs
					q.keeps(ours, next)
					has = leave(q, ours, has)
					if left := q.left(theirs); left > javaWait+61*time.Second { // it is now first
						t.Fatalf("round %d: the first in the queue, of Redisson, counts as alive for %v", round, left)
					}
					q.letsGo(has)
					q.javaGets(theirs)
					has = theirs
				}
			})
		}
	})
}

// G4 arrives when the owner ahead of it, one of ours, is dead, and a living owner of Redisson is
// ahead of that. The deadline of G4 must be as late as for any owner behind J2.
func TestPeers_behindTheDeadBehindOneOfRedisson(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		q.gets("G1")
		q.javaWaits("J2")
		q.waits("G3")
		q.dies("G3")
		q.waits("G4")
		q.javaWaits("J5")
		if served := q.serve("G1"); served != "J2 G4 J5" {
			t.Errorf("served: %s, want J2 G4 J5", served)
		}
	})
}

// A request, not a heartbeat, removed the dead owner ahead of J2. J2 is still notified of its turn,
// because it sleeps for the time it was given when it arrived, and sends no request until then.
func TestFair_nextIsNotifiedWhenARequestFindsTheDead(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for _, p := range []time.Duration{0, waiterTimeout} {
			t.Run(fmt.Sprint(p), func(t *testing.T) {
				q := fair{t, q.rdb}
				e := listen(t, q.rdb)
				q.clear()
				q.queued("G1! J2")
				q.ask("G3", p)
				q.keeps("G3")
				e.expect(notified("J2")...)
			})
		}
	})
}

// Like TestFair_deniedCommands, for owners that wait and for owners that leave others waiting.
func TestFair_deniedCommandsWithAQueue(t *testing.T) {
	deniedFair(t,
		deniedCase{"our turn", "fair_acquire", "", "G1 G2", -1, "hlen hset lindex lrem pexpire pttl time zrem zscore"},
		deniedCase{"our turn, before one of Redisson", "fair_acquire", "", "G1 J2 G3", -1, "hlen hset lindex lrem persist pexpire pttl time zrem zscore"},
		deniedCase{"our turn, behind the dead", "fair_acquire", "", "G2! G1", -1, "hlen hset lindex lrange lrem ltrim pexpire pttl time zmscore zrem zscore"},
		deniedCase{"wait", "fair_acquire", "G5", "", -1, "hgetall hlen lindex llen pexpire pttl rpush time zadd zcard zrevrange zscore"},
		deniedCase{"wait on", "fair_acquire", "G5", "G2 G1", -1, "hgetall hlen lindex llen pexpire pttl time zadd zcard zrem zrevrange zscore"},
		deniedCase{"wait behind others", "fair_acquire", "G5", "G2 G3", -1, "hgetall hlen lindex llen pexpire pttl rpush time zadd zcard zrevrange zscore"},
		deniedCase{"wait behind one of Redisson, the first", "fair_acquire", "G5", "J2 G3", -1, "hgetall hlen lindex llen lrange persist pttl rpush time zadd zcard zscore"},
		deniedCase{"wait behind one of Redisson", "fair_acquire", "G5", "G2 J3", -1, "hgetall hlen lindex llen lrange persist pttl rpush time zadd zcard zscore"},
		deniedCase{"wait on behind one of Redisson", "fair_acquire", "G5", "J2 G1", -1, "hgetall hlen lindex llen lrange persist pttl time zadd zcard zrem zscore"},
		deniedCase{"release", "fair_release", "G1", "G2 G3", 0, "hdel hgetall hlen lindex llen time zcard zrem zscore"},
		deniedCase{"release to one of Redisson", "fair_release", "G1", "J2 G3", 0, "hdel hgetall hlen lindex llen persist pttl time zcard zrem zscore"},
		deniedCase{"release, and the first is dead", "fair_release", "G1", "G2! G3", 0, "hdel hgetall hlen lindex llen lrange ltrim time zcard zmscore zrem zscore"},
		deniedCase{"leave", "fair_release", "G5", "G1 G2", 0, "hdel hgetall hlen lindex lrem zrem"},
		deniedCase{"leave one of Redisson behind", "fair_release", "G5", "G1 J2", 0, "hdel hgetall hlen lindex lrem persist zrem"},
	)
}

// If the queue or the zset has the wrong type, the call fails and changes nothing.
func TestFair_foreignQueue(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
			for name, call := range map[string]func(rdb rueidis.Client) error{
				"acquire": func(rdb rueidis.Client) error {
					_, err := luascripts.AcquireFair(t.Context(), rdb, fairKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout})
					return err
				},
				"release": func(rdb rueidis.Client) error {
					_, err := luascripts.ReleaseFair(t.Context(), rdb, fairKeys, owner("G9"), 0)
					return err
				},
				"force": func(rdb rueidis.Client) error {
					_, err := luascripts.ForceFair(t.Context(), rdb, fairKeys)
					return err
				},
			} {
				q.clear()
				q.held("G9", long)
				do(t, q.rdb, "SET", key, "x")
				before := contents(t, q.rdb)
				if err := call(q.rdb); err == nil {
					t.Errorf("%s with a foreign %s: no error", name, key)
				}
				if after := contents(t, q.rdb); after != before {
					t.Errorf("%s with a foreign %s made\n%sout of\n%s", name, key, after, before)
				}
			}
		}
	})
}
