package luascripts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Redisson's clients share fair locks with ours. These scripts change the keys of a lock as
// Redisson's scripts do, so that both can be in one queue here.

// javaPurge removes the dead from the front of the queue. Other deadlines do not change.
const javaPurge = `
local function purge(queue, timeouts, now)
  local head = redis.call('LINDEX', queue, 0)
  while head do
    local score = redis.call('ZSCORE', timeouts, head)
    if not score or tonumber(score) > now then return head end
    redis.call('ZREM', timeouts, head)
    redis.call('LPOP', queue)
    head = redis.call('LINDEX', queue, 0)
  end
end
`

// javaAcquire acquires the lock or enters the queue. It returns nil, or the ms to wait.
const javaAcquire = javaPurge + `
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local lease, owner, wait, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local head = purge(queue, timeouts, now)
if redis.call('EXISTS', lock) == 0 and (not head or head == owner) then
  redis.call('LPOP', queue)
  redis.call('ZREM', timeouts, owner)
  for _, other in ipairs(redis.call('ZRANGE', timeouts, 0, -1)) do
    redis.call('ZINCRBY', timeouts, -wait, other)
  end
  redis.call('HSET', lock, owner, 1)
  redis.call('PEXPIRE', lock, lease)
  return nil
end
if redis.call('HEXISTS', lock, owner) == 1 then
  redis.call('HINCRBY', lock, owner, 1)
  redis.call('PEXPIRE', lock, lease)
  return nil
end
if redis.call('ZSCORE', timeouts, owner) then
  return math.max(0, redis.call('PTTL', lock))
end
local last = redis.call('LINDEX', queue, -1)
local score = last and last ~= owner and redis.call('ZSCORE', timeouts, last)
local ttl = redis.call('PTTL', lock)
if score then ttl = tonumber(score) - now end
if redis.call('ZADD', timeouts, ttl + wait + now, owner) == 1 then
  redis.call('RPUSH', queue, owner)
end
return ttl
`

// javaFail ends the wait of a waiter that timed out. Those behind it move up.
const javaFail = `
local queue, timeouts = KEYS[2], KEYS[3]
local owner, wait = ARGV[1], tonumber(ARGV[2])
local behind = false
for _, other in ipairs(redis.call('LRANGE', queue, 0, -1)) do
  if behind then redis.call('ZINCRBY', timeouts, -wait, other) end
  behind = behind or other == owner
end
redis.call('ZREM', timeouts, owner)
redis.call('LREM', queue, 0, owner)
`

// javaUnlock frees the lock and notifies the first owner in the queue. It returns 1, or nil if the caller does not
// hold the lock.
const javaUnlock = javaPurge + `
local lock, queue, timeouts, channel = KEYS[1], KEYS[2], KEYS[3], ARGV[3]
local owner, now = ARGV[1], tonumber(ARGV[2])
local head = purge(queue, timeouts, now)
if redis.call('HEXISTS', lock, owner) == 0 then return nil end
redis.call('DEL', lock)
if head then redis.call('PUBLISH', channel .. ':' .. head, '0') end
return 1
`

// withPeers runs a test on a real server only, because it tests how two types of clients interact
// there.
func withPeers(t *testing.T, f func(t *testing.T, q fair)) {
	f(t, fair{t, redistest.Start(t).Client(t)})
}

var fairKeyList = []string{fairKeys.Lock, fairKeys.Queue, fairKeys.Timeouts}

// javaAsks sends the request of a thread of Redisson that would wait for the given time. It reports
// whether the thread now has the lock.
func (q fair) javaAsks(name string, wait time.Duration) bool {
	q.t.Helper()
	m := eval(q.t, q.rdb, javaAcquire, fairKeyList, fmt.Sprint(long.Milliseconds()), owner(name), fmt.Sprint(wait.Milliseconds()), fmt.Sprint(now(q.t, q.rdb)))
	return m.IsNil()
}

func (q fair) javaGets(name string) {
	q.t.Helper()
	if !q.javaAsks(name, javaWait) || q.holder() != name+"=1" {
		q.t.Fatalf("%s does not get the lock; %q has it and %q wait", name, q.holder(), q.queue())
	}
}

func (q fair) javaWaits(names ...string) {
	q.t.Helper()
	for _, name := range names {
		if q.javaAsks(name, javaWait) {
			q.t.Fatalf("%s gets the lock; it was not its turn", name)
		}
	}
}

func (q fair) javaFails(name string, wait time.Duration) {
	q.t.Helper()
	eval(q.t, q.rdb, javaFail, fairKeyList, owner(name), fmt.Sprint(wait.Milliseconds()))
}

func (q fair) javaReleases(name string) {
	q.t.Helper()
	if m := eval(q.t, q.rdb, javaUnlock, fairKeyList, owner(name), fmt.Sprint(now(q.t, q.rdb)), fairKeys.Channel); m.IsNil() {
		q.t.Fatalf("%s does not hold the lock, %q does", name, q.holder())
	}
}

// serve releases the holder's lock, and serves the waiters in order until none is left. It returns
// the owners that were served.
func (q fair) serve(holder string) string {
	q.t.Helper()
	var served []string
	for all := len(strings.Fields(q.queue())); holder != ""; {
		if len(served) > all {
			q.t.Fatalf("%d waited, and served were already %s", all, served)
		}
		q.letsGo(holder)
		holder, _, _ = strings.Cut(q.queue(), " ")
		if holder != "" {
			q.takes(holder)
			served = append(served, holder)
		}
	}
	return strings.Join(served, " ")
}

// 1: J2 has been waiting for minutes, with G3 and J4 behind it. 2: J2 acquires the lock, which
// subtracts its 300 s from all deadlines. 3: J2 unlocks, and J4 sends a request before G3 does. G3
// must not count as dead then.
func TestPeers_behindOneOfRedisson(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		for _, waited := range []time.Duration{0, time.Second, 2 * time.Minute, 299 * time.Second} {
			t.Run(fmt.Sprint(waited), func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				e := listen(t, q.rdb)
				q.javaGets("J1")
				q.javaWaits("J2")
				q.deadline("J2", javaWait-waited+slow) // 1
				q.waits("G3")
				q.javaWaits("J4")

				q.javaReleases("J1")
				q.javaGets("J2") // 2
				if left := q.left("G3"); left < waiterTimeout-slow {
					t.Errorf("G3 counts as alive for %v only", left)
				}
				q.javaReleases("J2") // 3
				e.expect(javaTold("J2"), javaTold("G3"))
				q.javaWaits("J4")
				if q.queue() != "G3 J4" {
					t.Fatalf("in the queue: %s, want G3 J4", q.queue())
				}
				q.gets("G3")
				if served := q.serve("G3"); served != "J4" {
					t.Errorf("then were served: %s, want J4", served)
				}
			})
		}
	})
}

// The same with two owners of Redisson ahead, and with heartbeats in between.
func TestPeers_behindTwoOfRedisson(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		for _, heartbeats := range []bool{false, true} {
			t.Run(fmt.Sprint("heartbeats=", heartbeats), func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				beat := func() {
					if heartbeats {
						q.keeps("G4", "G6")
					}
				}
				q.javaGets("J1")
				q.javaWaits("J2", "J3")
				q.pass(4 * time.Minute)
				q.waits("G4")
				q.javaWaits("J5")
				q.waits("G6")
				beat()
				if served := q.serve("J1"); served != "J2 J3 G4 J5 G6" {
					t.Errorf("served: %s, want J2 J3 G4 J5 G6", served)
				}
				if all := contents(t, q.rdb); all != "" {
					t.Errorf("left behind:\n%s", all)
				}

				q.javaGets("J1")
				q.javaWaits("J2", "J3")
				q.pass(4 * time.Minute)
				q.waits("G4")
				q.javaWaits("J5")
				q.waits("G6")
				for _, name := range []string{"J2", "J3"} {
					beat()
					q.javaReleases(map[string]string{"J2": "J1", "J3": "J2"}[name])
					q.javaWaits("J5") // it sends requests at every opportunity
					q.javaGets(name)
					for _, g := range []string{"G4", "G6"} {
						if left := q.left(g); left < waiterTimeout-slow {
							t.Errorf("when %s has it, %s counts as alive for %v only", name, g, left)
						}
					}
				}
			})
		}
	})
}

// A dead owner of ours delays Redisson's waiters behind it by at most its waiter timeout, whichever
// client sends a request. This also applies if its deadline was set behind another owner of Redisson.
func TestPeers_behindADeadOneOfOurs(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		q.gets("G9")
		q.waits("G1") // it dies now
		q.javaWaits("J2")
		q.releases("G9", luascripts.Done)
		q.javaWaits("J2")
		q.pass(waiterTimeout)
		q.javaGets("J2")
		q.javaReleases("J2")

		// The same, with a deadline that was set behind another owner of Redisson.
		q.clear()
		q.gets("G9")
		q.waits("G1")
		q.javaWaits("J2")
		q.waits("G3") // it dies now
		q.javaWaits("J4")
		q.releases("G9", luascripts.Done)
		q.gets("G1")
		q.releases("G1", luascripts.Done)
		q.javaGets("J2")
		q.javaReleases("J2")
		q.javaWaits("J4")
		q.pass(2 * waiterTimeout) // it may have counted from the deadline of G1
		q.javaGets("J4")
		if q.queue() != "" {
			t.Errorf("in the queue: %s", q.queue())
		}
	})
}

// lastDeadline returns the time until the latest deadline.
func (q fair) lastDeadline() (last time.Duration) {
	q.t.Helper()
	for _, name := range strings.Fields(q.queue()) {
		last = max(last, q.left(name))
	}
	return last
}

// letsGo makes the holder release the lock.
func (q fair) letsGo(holder string) {
	q.t.Helper()
	if holder[0] == 'J' {
		q.javaReleases(holder)
	} else {
		q.releases(holder, luascripts.Done)
	}
}

// takes sends a request of name, of either client, and fails unless it is granted the lock.
func (q fair) takes(name string) {
	q.t.Helper()
	if name[0] == 'J' {
		q.javaGets(name)
	} else {
		q.gets(name)
	}
}

// queues sends a request of name, of either client, and fails unless it must wait.
func (q fair) queues(name string) {
	q.t.Helper()
	if name[0] == 'J' {
		q.javaWaits(name)
	} else {
		q.waits(name)
	}
}

// The deadlines of Redisson's waiters add up. An owner that leaves must subtract its part again.
// Otherwise the deadlines would drift, and so would the time for which a dead waiter delays the
// others. In each of these scenarios many owners come and go while G1 and J2 wait. None of them may
// leave a later deadline than there would be without it.
func TestPeers_noDrift(t *testing.T) {
	const briefly = 3 * time.Second // how long some of Redisson's waiters wait
	withPeers(t, func(t *testing.T, q fair) {
		for name, come := range map[string]func(q fair, n int){
			"ours give up": func(q fair, n int) {
				q.waits(fmt.Sprint("G", n))
				q.releases(fmt.Sprint("G", n), luascripts.Gone)
			},
			"theirs give up": func(q fair, n int) {
				if name := fmt.Sprint("J", n); q.javaAsks(name, briefly) {
					q.t.Errorf("%s got it", name)
				} else {
					q.javaFails(name, briefly)
				}
			},
			"both give up, in the order of arrival": func(q fair, n int) {
				ours, theirs := fmt.Sprint("G", n), fmt.Sprint("J", n)
				q.waits(ours)
				q.javaAsks(theirs, briefly)
				q.releases(ours, luascripts.Gone)
				q.javaFails(theirs, briefly)
			},
			"both give up, last come first": func(q fair, n int) {
				ours, theirs := fmt.Sprint("G", n), fmt.Sprint("J", n)
				q.javaAsks(theirs, briefly)
				q.waits(ours)
				q.releases(ours, luascripts.Gone)
				q.javaFails(theirs, briefly)
			},
			"ours send a heartbeat and die": func(q fair, n int) {
				name := fmt.Sprint("G", n)
				q.waits(name)
				q.keeps(name, "G1")
				q.dies(name)
			},
			"the holder dies": func(q fair, n int) {
				do(q.t, q.rdb, "DEL", fairKeys.Lock)
				q.waits(fmt.Sprint("G", n)) // it is the turn of G1, which sends no request
				q.releases(fmt.Sprint("G", n), luascripts.Gone)
				q.held("G9999", long)
			},
			"some try only": func(q fair, n int) {
				if got := q.ask(fmt.Sprint("G", n), 0); got.Verdict != luascripts.Held {
					q.t.Errorf("%+v", got)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.held("G9999", long)
				q.waits("G1")
				q.javaWaits("J2")
				for n := range 100 {
					come(q, n+10)
					q.keeps("G1")
				}
				if left := q.left("G1"); left > waiterTimeout {
					t.Errorf("G1 counts as alive for %v", left)
				}
				if left := q.left("J2"); left > javaWait+waiterTimeout || left < javaWait-slow {
					t.Errorf("J2 counts as alive for %v", left)
				}
				q.waits("G3")
				q.keeps("G3", "G1")
				if left := q.left("G3"); left > javaWait+2*waiterTimeout {
					t.Errorf("G3, which came last, counts as alive for %v", left)
				}
				if last := q.lastDeadline(); last > javaWait+2*waiterTimeout {
					t.Errorf("an owner counts as alive for %v", last)
				}
				if served := q.serve("G9999"); served != "G1 J2 G3" {
					t.Errorf("served: %s, want G1 J2 G3", served)
				}
			})
		}
	})
}

// A waiter in the middle stops waiting. No waiter behind it waits longer because of that, and a
// dead one behind it is detected no later.
func TestPeers_middleGivesUp(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		for name, c := range map[string]struct {
			queue  string
			leaver string
			leaves func(q fair, name string)
		}{
			"one of ours":        {"J1 G2 J3 G4", "G2", func(q fair, name string) { q.releases(name, luascripts.Gone) }},
			"one of theirs":      {"G1 J2 G3 J4", "J2", func(q fair, name string) { q.javaFails(name, javaWait) }},
			"theirs, all theirs": {"J1 J2 J3", "J2", func(q fair, name string) { q.javaFails(name, javaWait) }},
		} {
			t.Run(name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.gets("G9")
				for _, name := range strings.Fields(c.queue) {
					q.queues(name)
				}
				before := map[string]time.Duration{}
				rest := strings.ReplaceAll(c.queue+" ", c.leaver+" ", "")
				for _, name := range strings.Fields(rest) {
					before[name] = q.left(name)
				}
				c.leaves(q, c.leaver)
				for _, name := range strings.Fields(rest) {
					switch left := q.left(name); {
					case left > before[name]:
						t.Errorf("%s counted as alive for %v, now for %v", name, before[name], left)
					case left < waiterTimeout-slow:
						t.Errorf("%s counts as alive for %v only", name, left)
					}
				}
				if served := q.serve("G9"); served != strings.TrimSpace(rest) {
					t.Errorf("served: %s, want %s", served, rest)
				}
			})
		}
	})
}

// All earlier waiters are dead. The last one acquires the lock when their deadlines have passed,
// and no later.
func TestPeers_abandoned(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		for queue, after := range map[string]time.Duration{
			"G1 G2 G3": waiterTimeout,
			"J1 G2 G3": 2*javaWait + lease, // Redisson's may include the remaining lease
			"G1 J2 G3": javaWait + 2*waiterTimeout,
		} {
			t.Run(queue, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.gets("G9")
				names := strings.Fields(queue)
				for _, name := range names {
					q.queues(name)
				}
				last := names[len(names)-1]
				q.releases("G9", luascripts.Done)
				for beats := after / (waiterTimeout / 2); beats > 0; beats-- {
					q.pass(waiterTimeout / 2)
					q.keeps(last) // only this owner is alive
				}
				q.pass(waiterTimeout / 2)
				q.gets(last)
				if q.queue() != "" {
					t.Errorf("in the queue: %s", q.queue())
				}
			})
		}
	})
}

// Redisson never extends the expiry of a queue. A queue with a waiter of Redisson therefore has no
// expiry, whatever our waiters do. A queue of only our waiters has one.
func TestPeers_expiry(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		for name, story := range map[string]func(q fair){
			"ours comes behind theirs": func(q fair) {
				q.javaWaits("J2")
				q.waits("G1")
			},
			"ours comes behind theirs, and gives up": func(q fair) {
				q.javaWaits("J2")
				q.waits("G1")
				q.releases("G1", luascripts.Gone)
			},
			"theirs comes behind ours, which gives up": func(q fair) {
				q.waits("G1")
				q.javaWaits("J2")
				q.releases("G1", luascripts.Gone)
			},
			"theirs comes behind ours, which is served": func(q fair) {
				q.waits("G1")
				q.javaWaits("J2")
				q.releases("G9", luascripts.Done)
				q.gets("G1")
			},
			"theirs comes behind ours, which sends a heartbeat and dies": func(q fair) {
				q.waits("G1")
				q.javaWaits("J2")
				q.keeps("G1")
				q.dies("G1")
				q.javaWaits("J3")
			},
			"theirs comes behind ours, which dies; then the holder, of ours, unlocks": func(q fair) {
				q.waits("G1")
				q.javaWaits("J2")
				q.dies("G1")
				q.releases("G9", luascripts.Done)
			},
			"theirs comes behind ours, which dies; then another of ours calls TryLock": func(q fair) {
				q.waits("G1")
				q.javaWaits("J2")
				q.dies("G1")
				q.ask("G3", 0)
			},
			"theirs comes behind many of ours": func(q fair) {
				q.waits(names(101, 250)...)
				q.javaWaits("J2")
				q.keeps("G101")
			},
			"theirs waits in the midst of many of ours": func(q fair) {
				q.waits(names(101, 220)...)
				q.javaWaits("J2")
				q.waits(names(221, 340)...)
				q.keeps("G340")
				q.keeps("G101") // it cannot read that owner
			},
		} {
			t.Run(name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.gets("G9")
				story(q)
				q.lasts("when all is over")
			})
		}
		q.clear()
		q.gets("G9")
		q.javaWaits("J2")
		q.waits("G1")
		q.javaFails("J2", javaWait)
		q.keeps("G1")
		q.outlives("ours is alone again")
	})
}

// A thread of Redisson calls tryLock(Long.MAX_VALUE, MILLISECONDS). Its deadline, and those of Redisson's threads
// behind it, are later than a reply can express.
func TestPeers_waitsForever(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		const forever = 9223372036854775807
		waits := func(name string) {
			eval(t, q.rdb, javaAcquire, fairKeyList, "60000", owner(name), fmt.Sprint(forever), fmt.Sprint(now(t, q.rdb)))
		}
		q.gets("G1")
		q.waits(names(101, 220)...)
		waits("J2")
		q.waits("G3")
		q.keeps("G3", "G101")
		q.waits("G3", "G101")
		snapshot, err := luascripts.InspectFair(t.Context(), q.rdb, fairKeys)
		if err != nil || len(snapshot.Waiters) != 122 || snapshot.Waiters[120].WaiterTimeout < 1000*time.Hour {
			t.Errorf("%d waiters, %v", len(snapshot.Waiters), err)
		}

		q.clear()
		q.gets("G1")
		waits("J2")
		q.waits("G3")
		q.releases("G1", luascripts.Done)
		if got := q.ask("G3", waiterTimeout); got.Verdict != luascripts.Held || got.Left < 1000*time.Hour {
			t.Errorf("%+v", got)
		}
		if kept := q.keeps("G3"); kept.Left < 1000*time.Hour {
			t.Errorf("%+v", kept)
		}
		waits("J2") // it acquires the lock, which subtracts its wait from all deadlines
		if q.holder() != "J2=1" {
			t.Fatalf("%s has the lock", q.holder())
		}
		if _, err := luascripts.InspectFair(t.Context(), q.rdb, fairKeys); err != nil {
			t.Error(err)
		}
		q.keeps("G3")
		about(t, "G3", q.left("G3"), waiterTimeout)
		q.releases("G9", luascripts.Gone)
	})
}

// An owner of ours dies behind many of Redisson's that wait for only a few seconds. After they stop waiting, it
// delays the others by at most its waiter timeout, although its deadline included 300 s for each of them.
func TestPeers_diesBehindShortWaits(t *testing.T) {
	const briefly = 3 * time.Second
	withPeers(t, func(t *testing.T, q fair) {
		for name, arrive := range map[string]func(q fair){
			"asks":  func(q fair) { q.waits("G20", "G21") },
			"keeps": func(q fair) { q.waits("G20", "G21"); q.keeps("G20", "G21") },
			"joins": func(q fair) {
				joining := []luascripts.Waiter{{Owner: owner("G20"), WaiterTimeout: waiterTimeout, Enters: true}, {Owner: owner("G21"), WaiterTimeout: waiterTimeout, Enters: true}}
				if _, err := luascripts.KeepFair(q.t.Context(), q.rdb, fairKeys, joining); err != nil {
					q.t.Fatal(err)
				}
			},
		} {
			for _, heartbeat := range []bool{false, true} {
				t.Run(fmt.Sprint(name, " heartbeat=", heartbeat), func(t *testing.T) {
					q := fair{t, q.rdb}
					q.clear()
					q.gets("G1")
					for n := 2; n < 12; n++ {
						q.javaAsks(fmt.Sprint("J", n), briefly)
					}
					arrive(q) // they die now
					q.javaAsks("J30", briefly)
					q.waits("G31")
					for n := 2; n < 12; n++ {
						q.javaFails(fmt.Sprint("J", n), briefly)
					}
					q.releases("G1", luascripts.Done)
					find := func() (left time.Duration) {
						if heartbeat {
							return q.keeps("G31").Left
						}
						return q.ask("G31", waiterTimeout).Left
					}
					if left := find(); left > waiterTimeout {
						t.Errorf("checks again in %v", left)
					}
					for _, name := range []string{"G20", "G21"} {
						about(t, name, q.left(name), waiterTimeout)
					}
					if left := q.left("G31"); left < javaWait {
						t.Errorf("G31, behind one of Redisson's, counts as alive for %v", left)
					}
					q.pass(waiterTimeout)
					q.keeps("G31")
					if got := q.queue(); got != "J30 G31" {
						t.Errorf("in the queue: %s", got)
					}
				})
			}
		}
	})
}

// Only the extra time is removed, not a waiter timeout longer than the caller's, because a living waiter sends a
// heartbeat within a second.
func TestPeers_longerTimeout(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		q.gets("G1")
		q.javaWaits("J2")
		keeps := func(name string, timeout time.Duration) {
			if _, err := luascripts.KeepFair(t.Context(), q.rdb, fairKeys, []luascripts.Waiter{{Owner: owner(name), WaiterTimeout: timeout}}); err != nil {
				t.Fatal(err)
			}
		}
		q.waits("G3")
		keeps("G3", time.Hour)
		q.ask("G4", 100*time.Millisecond)
		q.javaFails("J2", javaWait)
		q.releases("G1", luascripts.Done)
		q.ask("G5", 0) // a TryLock
		if left := q.left("G3"); left < time.Hour-slow {
			t.Errorf("after a TryLock, G3 counts as alive for %v", left)
		}
		q.ask("G4", 100*time.Millisecond)
		about(t, "after a request", q.left("G3"), 5*time.Second)
		keeps("G3", time.Hour)
		q.ask("G4", 100*time.Millisecond)
		about(t, "after a heartbeat", q.left("G3"), time.Hour)
	})
}
