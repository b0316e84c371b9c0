package luascripts_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Redisson's clients share read/write locks with ours. These scripts change the keys of a lock as
// Redisson's scripts do.

// javaRead acquires the read lock, or re-enters it. It returns nil, or the ms to wait.
const javaRead = `
local lock, leases = KEYS[1], ARGV[4] .. ':' .. ARGV[2] .. ':rwlock_timeout'
local lease, owner, writer = ARGV[1], ARGV[2], ARGV[3]
local mode = redis.call('HGET', lock, 'mode')
if not mode then
  redis.call('HSET', lock, 'mode', 'read')
elseif mode == 'write' and redis.call('HEXISTS', lock, writer) == 0 then
  return redis.call('PTTL', lock)
end
local holds = redis.call('HINCRBY', lock, owner, 1)
redis.call('SET', leases .. ':' .. holds, 1, 'PX', lease)
redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease))
return nil
`

// javaStopReading releases one hold. It returns nil if the caller does not read, 1 if the lock is
// now free, and otherwise 0.
const javaStopReading = `
local lock, prefix, channel = KEYS[1], ARGV[2], ARGV[3]
local owner = ARGV[1]
local mode = redis.call('HGET', lock, 'mode')
if not mode then
  redis.call('PUBLISH', channel, '0')
  return nil
end
if redis.call('HEXISTS', lock, owner) == 0 then return nil end
local holds = redis.call('HINCRBY', lock, owner, -1)
if holds == 0 then redis.call('HDEL', lock, owner) end
redis.call('DEL', prefix .. ':' .. owner .. ':rwlock_timeout:' .. (holds + 1))
if redis.call('HLEN', lock) > 1 then
  local rest = -3
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    local n = tonumber(redis.call('HGET', lock, field))
    for i = n or 0, 1, -1 do
      rest = math.max(rest, redis.call('PTTL', prefix .. ':' .. field .. ':rwlock_timeout:' .. i))
    end
  end
  if rest > 0 then
    redis.call('PEXPIRE', lock, rest)
    return 0
  end
  if mode == 'write' then return 0 end
end
redis.call('DEL', lock)
redis.call('PUBLISH', channel, '0')
return 1
`

// javaWrite acquires the write lock, or re-enters it. It returns nil, or the ms to wait.
const javaWrite = `
local lock, lease, writer = KEYS[1], ARGV[1], ARGV[2]
local mode = redis.call('HGET', lock, 'mode')
if not mode then
  redis.call('HSET', lock, 'mode', 'write', writer, 1)
  redis.call('PEXPIRE', lock, lease)
  return nil
end
if mode == 'write' and redis.call('HEXISTS', lock, writer) == 1 then
  redis.call('HINCRBY', lock, writer, 1)
  redis.call('PEXPIRE', lock, redis.call('PTTL', lock) + lease)
  return nil
end
return redis.call('PTTL', lock)
`

// javaStopWriting releases one hold. It returns nil if the caller does not write, 1 if it was the
// last one, and otherwise 0. It notifies no waiter if the owner continues to read.
const javaStopWriting = `
local lock, lease, writer, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local mode = redis.call('HGET', lock, 'mode')
if mode ~= 'write' or redis.call('HEXISTS', lock, writer) == 0 then return nil end
if redis.call('HINCRBY', lock, writer, -1) > 0 then
  redis.call('PEXPIRE', lock, lease)
  return 0
end
redis.call('HDEL', lock, writer)
if redis.call('HLEN', lock) == 1 then
  redis.call('DEL', lock)
  redis.call('PUBLISH', channel, '1')
else
  redis.call('HSET', lock, 'mode', 'read')
end
return 1
`

// javaRenewsReading renews the lease of a reading thread.
const javaRenewsReading = `
local lock, lease, owner, prefix = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local holds = redis.call('HGET', lock, owner)
if not holds then return nil end
for i = holds, 1, -1 do redis.call('PEXPIRE', prefix .. ':' .. owner .. ':rwlock_timeout:' .. i, lease) end
redis.call('PEXPIRE', lock, lease)
return 1
`

// withRWPeers runs a test on a real server only, like withPeers.
func withRWPeers(t *testing.T, f func(t *testing.T, l rw)) {
	f(t, rw{t, redistest.Start(t).Client(t), rwKeys})
}

func (l rw) java(script string, args ...string) (nothing bool) {
	l.t.Helper()
	m := eval(l.t, l.rdb, script, []string{l.keys.Lock}, args...)
	return m.IsNil()
}

func millis(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// javaReads reports whether a thread of Redisson acquires the read lock.
func (l rw) javaReads(name string, lease time.Duration) bool {
	l.t.Helper()
	return l.java(javaRead, millis(lease), owner(name), owner(name)+":write", l.keys.LeasePrefix)
}

// javaWrites reports whether a thread of Redisson acquires the write lock.
func (l rw) javaWrites(name string, lease time.Duration) bool {
	l.t.Helper()
	return l.java(javaWrite, millis(lease), owner(name)+":write")
}

func (l rw) javaStopsReading(name string) {
	l.t.Helper()
	if l.java(javaStopReading, owner(name), l.keys.LeasePrefix, l.keys.Channel) {
		l.t.Fatalf("%s does not read; the lock is %q", name, l.state())
	}
}

func (l rw) javaStopsWriting(name string) {
	l.t.Helper()
	if l.java(javaStopWriting, millis(lease), owner(name)+":write", l.keys.Channel) {
		l.t.Fatalf("%s does not write; the lock is %q", name, l.state())
	}
}

// A reader of Redisson that leaves reads the leases of all others. It must find ours, and not
// delete the lock.
func TestRWPeers_theirsLeaveOursRead(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		for name, tagged := range map[string]string{"orders": "{orders}", "a:b": "{a:b}", "{eu}:x": "{eu}:x"} {
			for _, holds := range []int{1, 2, 3, 300} {
				t.Run(fmt.Sprint(name, " ", holds), func(t *testing.T) {
					l := rw{t, l.rdb, rwKeysOf(name, tagged)}
					l.clear()
					e := listen(t, l.rdb)
					for range 2 {
						if !l.javaReads("J1", 20*time.Minute) {
							t.Fatal("J1 may not read")
						}
					}
					for n := range holds {
						again := func(q *luascripts.Request) { q.Want, q.Lease = n+1, long }
						l.expect("ours", l.asksToRead("G2", again).Verdict, luascripts.Done)
					}
					ours := l.state()[strings.Index(l.state(), "G2"):]
					about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), 20*time.Minute)
					l.javaStopsReading("J1")
					l.javaStopsReading("J1")
					l.isNow("read " + ours[:strings.Index(ours, ")")+1])
					about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), long)
					if l.javaWrites("J3", long) {
						t.Error("J3 writes while G2 reads")
					}
					renewed := luascripts.RenewRead(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &l.keys, Owner: owner("G2")}}, 20*time.Minute, 1)
					check(t, "renewal", renewed[0].Verdict, luascripts.Done, renewed[0].Err)
					e.expect()
					l.stopsReading("G2", luascripts.Done)
					e.expect(l.keys.Channel + " 0")
					if !l.javaWrites("J3", long) {
						t.Error("nobody reads, and J3 may not write")
					}
				})
			}
		}
	})
}

// Our readers leave in any order, and do not delete the lock while readers of Redisson continue.
func TestRWPeers_oursLeaveTheirsRead(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		e := listen(t, l.rdb)
		if !l.javaReads("J1", long) {
			t.Fatal("J1 may not read")
		}
		l.expect("ours, longer", l.asksToRead("G2", func(q *luascripts.Request) { q.Lease = 20 * time.Minute }).Verdict, luascripts.Done)
		l.expect("ours, shorter", l.asksToRead("G3").Verdict, luascripts.Done)
		l.stopsReading("G2", luascripts.Done)
		about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), long)
		l.stopsReading("G3", luascripts.Done)
		l.isNow("read J1=1(1)")
		about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), long)
		l.expect("a writer of ours", l.asksToWrite("G4").Verdict, luascripts.Held)
		e.expect()
		l.javaStopsReading("J1")
		e.expect(l.keys.Channel + " 0")
		l.expect("a writer of ours", l.asksToWrite("G4").Verdict, luascripts.Done)
		l.isNow("write G4:write=1")
	})
}

// Dead readers of either side keep no owner waiting. The last living reader, of either side,
// deletes the lock.
func TestRWPeers_dead(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		for _, last := range []string{"G1", "J1"} {
			for _, dead := range []string{"G2", "J2", "G2 J2"} {
				t.Run(last+" "+dead, func(t *testing.T) {
					l := rw{t, l.rdb, l.keys}
					l.clear()
					e := listen(t, l.rdb)
					for _, name := range append(strings.Fields(dead), last) {
						if name[0] == 'J' {
							l.javaReads(name, long)
						} else {
							l.asksToRead(name, func(q *luascripts.Request) { q.Lease = long })
						}
					}
					l.dies(strings.Fields(dead)...)
					l.expect("a writer of ours", l.asksToWrite("G9").Verdict, luascripts.Held)
					if last == "J1" {
						l.javaStopsReading(last)
					} else {
						l.stopsReading(last, luascripts.Done)
					}
					l.stopsWriting("G9", luascripts.Gone)
					e.expect(l.keys.Channel+" 0", l.keys.Channel+" 1")
					if all := contents(t, l.rdb); all != "" {
						t.Errorf("left behind:\n%s", all)
					}
				})
			}
		}
	})
}

// Writers exclude each other and all readers, on either side, even while they read and after they
// stopped writing.
func TestRWPeers_writers(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		others := func(what string, read bool) {
			t.Helper()
			if got := l.asksToRead("G8").Verdict == luascripts.Done; got != read {
				t.Errorf("%s: ours may read: %v, want %v", what, got, read)
			} else if got {
				l.stopsReading("G8", luascripts.Done)
			}
			if got := l.javaReads("J8", lease); got != read {
				t.Errorf("%s: theirs may read: %v, want %v", what, got, read)
			} else if got {
				l.javaStopsReading("J8")
			}
			if l.javaWrites("J9", lease) || l.asksToWrite("G9", func(q *luascripts.Request) { q.WaiterTimeout = 0 }).Verdict == luascripts.Done {
				t.Errorf("%s: another may write; the lock is %q", what, l.state())
			}
		}
		// Redisson's.
		for range 2 {
			if !l.javaWrites("J1", long) {
				t.Fatal("J1 may not write")
			}
		}
		others("J1 writes twice", false)
		l.javaStopsWriting("J1")
		if !l.javaReads("J1", long) {
			t.Fatal("J1 writes and may not read")
		}
		others("J1 writes and reads", false)
		l.javaStopsWriting("J1")
		others("J1 reads on", true)
		l.javaStopsReading("J1")

		// Ours.
		l.expect("ours", l.asksToWrite("G1").Verdict, luascripts.Done)
		others("G1 writes", false)
		l.expect("ours", l.asksToRead("G2", func(q *luascripts.Request) { q.Writer = owner("G1") }).Verdict, luascripts.Done)
		others("G1 writes and reads", false)
		l.stopsWriting("G1", luascripts.Done)
		others("G1 reads on", true)
		l.stopsReading("G2", luascripts.Done)
		if all := contents(t, l.rdb); all != "" {
			t.Errorf("left behind:\n%s", all)
		}
	})
}

// A reader of Redisson that renews its lease shortens the expiry of the hash. The next renewal of our reader, whose lease is
// longer, extends it again.
func TestRWPeers_theirsShortenOurs(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		const theirs, ours = 30 * time.Second, time.Hour
		l.expect("ours", l.asksToRead("G1", func(q *luascripts.Request) { q.Lease = ours }).Verdict, luascripts.Done)
		if !l.javaReads("J2", theirs) || l.java(javaRenewsReading, millis(theirs), owner("J2"), l.keys.LeasePrefix) {
			t.Fatal("J2 may not read, or does not")
		}
		about(t, "the hash, renewed by theirs", pttl(t, l.rdb, l.keys.Lock), theirs)
		renewed := luascripts.RenewRead(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &l.keys, Owner: owner("G1")}}, ours, 1)
		check(t, "renewal", renewed[0].Verdict, luascripts.Done, renewed[0].Err)
		about(t, "the hash, renewed by ours", pttl(t, l.rdb, l.keys.Lock), ours)
	})
}

// Redisson ignores an intent; ours wait behind it.
func TestRWPeers_intent(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		if !l.javaReads("J1", long) {
			t.Fatal("J1 may not read")
		}
		l.expect("the writer", l.asksToWrite("G5", func(q *luascripts.Request) { q.Waited = time.Minute }).Verdict, luascripts.Held)
		l.expect("a newcomer of ours", l.asksToRead("G2").Verdict, luascripts.Held)
		if !l.javaReads("J2", long) {
			t.Error("a newcomer of Redisson waits")
		}
		l.javaStopsReading("J1")
		l.isNow("read J2=1(1)")
		l.javaStopsReading("J2")
		if !l.javaWrites("J3", long) {
			t.Error("a writer of Redisson waits for our intent")
		}
		l.javaStopsWriting("J3")
		l.expect("the writer", l.asksToWrite("G5").Verdict, luascripts.Done)
		if got := l.storedIntent(); got != "" {
			t.Errorf("left of the intent: %q", got)
		}
	})
}

// Redisson ignores a reservation. Its readers and writers enter as they would without one, and ours
// make the next reservation.
func TestRWPeers_reservation(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		waits := func(q *luascripts.Request) { q.Waited, q.WaiterTimeout = 5*time.Minute, waiterTimeout }
		l.turn("G5 5m 1m", long)
		l.expect("a writer of ours", l.asksToWrite("G1").Verdict, luascripts.Held)
		l.stopsWriting("G1", luascripts.Gone) // it stops waiting
		if !l.javaReads("J1", long) {
			t.Error("a reader of Redisson waits for our turn")
		}
		l.javaStopsReading("J1")
		if !l.javaWrites("J2", long) {
			t.Error("a writer of Redisson waits for our turn")
		}
		l.expect("our reader", l.asksToRead("G5", waits).Verdict, luascripts.Held)
		if got := l.turned(); got != "G5 5m out" {
			t.Errorf("the turn is %q, want a new claim of G5", got)
		}
		l.javaStopsWriting("J2")
		if got := l.turned(); got != "G5 5m out" {
			t.Errorf("the turn is %q, want that of G5, which has not begun", got)
		}
		l.expect("our reader", l.asksToRead("G5", waits).Verdict, luascripts.Done)
		l.stopsReading("G5", luascripts.Done)
		if all := contents(t, l.rdb); all != "" {
			t.Errorf("left behind:\n%s", all)
		}
	})
}

// Clients of the previous version, which had a separate key for each hold of a reader, share the lock during a
// rolling deployment. testdata/perhold has their scripts.

func (l rw) former(script string, keys []string, args ...string) rueidis.RedisMessage {
	l.t.Helper()
	text, err := os.ReadFile("testdata/perhold/" + script + ".lua")
	if err != nil {
		l.t.Fatal(err)
	}
	return eval(l.t, l.rdb, string(text), keys, args...)
}

// formerReads makes a client of that version acquire the read lock want times.
func (l rw) formerReads(name string, want int, lease time.Duration) {
	l.t.Helper()
	m := l.former("rw_read_acquire", []string{l.keys.Lock, l.keys.Intent, l.keys.Reservation, l.keys.Never}, owner(name), millis(lease), strconv.Itoa(want), "", "0", "1", l.keys.LeasePrefix, "0")
	if !m.IsString() {
		l.t.Fatalf("%s cannot read: %s", name, m.String())
	}
}

func (l rw) formerLeaves(name string, leave int) {
	l.t.Helper()
	m := l.former("rw_read_release", []string{l.keys.Lock, l.keys.Reservation, l.keys.Never}, owner(name), strconv.Itoa(leave), l.keys.LeasePrefix, l.keys.Channel, "PUBLISH")
	if n, err := m.AsInt64(); err != nil || n != 1 {
		l.t.Fatalf("%s releases down to %d: %s", name, leave, m.String())
	}
}

func (l rw) formerRenews(name string, holds int, lease time.Duration) {
	l.t.Helper()
	m := l.former("rw_read_renew", []string{l.keys.Never, l.keys.Lock}, millis(lease), owner(name), strconv.Itoa(holds), l.keys.LeasePrefix)
	if n, err := m.AsIntSlice(); err != nil || len(n) != 1 {
		l.t.Fatalf("%s renews: %s", name, m.String())
	}
}

// formerWrites returns how long a writer of that version would have to wait, or 0 if it now writes.
func (l rw) formerWrites(name string) time.Duration {
	l.t.Helper()
	m := l.former("rw_write_acquire", []string{l.keys.Lock, l.keys.Intent, l.keys.Reservation, l.keys.Never}, owner(name), millis(lease), "1", "0", "0", l.keys.LeasePrefix)
	if m.IsString() {
		return 0
	}
	n, err := m.AsInt64()
	if err != nil || n < 0 {
		l.t.Fatalf("%s asks to write: %s", name, m.String())
	}
	return time.Duration(n) * time.Millisecond
}

func (l rw) formerStopsWriting(name string) {
	l.t.Helper()
	m := l.former("rw_write_release", []string{l.keys.Lock, l.keys.Intent, l.keys.Reservation, l.keys.Never}, owner(name), "0", l.keys.LeasePrefix, l.keys.Channel, "PUBLISH")
	if n, err := m.AsInt64(); err != nil || n != 1 {
		l.t.Fatalf("%s stops writing: %s", name, m.String())
	}
}

// However often a reader of one version reads, readers of the other one detect its lease, and no writer of either version enters.
func TestRWPeers_formerVersion(t *testing.T) {
	withRWPeers(t, func(t *testing.T, l rw) {
		noWriter := func(what string, left time.Duration) {
			t.Helper()
			about(t, what+": the hash", pttl(t, l.rdb, l.keys.Lock), left)
			about(t, what+": a writer of that version waits for", l.formerWrites("J8"), left)
			about(t, what+": a writer of ours waits for", l.asksToWrite("G9", func(q *luascripts.Request) { q.WaiterTimeout = 0 }).Left, left)
			if l.javaWrites("J7", lease) {
				t.Fatalf("%s: a writer of Redisson enters", what)
			}
		}
		noReader := func() {
			t.Helper()
			if left := l.formerWrites("J8"); left != 0 {
				t.Fatalf("with no reader, a writer of that version waits for %v; the lock is %q", left, l.state())
			}
			l.formerStopsWriting("J8")
			if all := contents(t, l.rdb); all != "" {
				t.Errorf("left behind:\n%.300s", all)
			}
		}
		for _, holds := range []int{1, 2, 3, 300} {
			t.Run(fmt.Sprint("ours reads ", holds), func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				for n := range holds {
					again := func(q *luascripts.Request) { q.Want, q.Lease = n+1, long }
					l.expect("ours", l.asksToRead("G1", again).Verdict, luascripts.Done)
				}
				l.formerReads("J2", 1, 20*time.Minute)
				noWriter("both read", 20*time.Minute)
				l.formerLeaves("J2", 0)
				noWriter("ours reads", long)
				renewed := luascripts.RenewRead(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &l.keys, Owner: owner("G1")}}, 20*time.Minute, 1)
				check(t, "renewal", renewed[0].Verdict, luascripts.Done, renewed[0].Err)
				for leave := holds; leave > 0; leave-- {
					got, err := luascripts.ReleaseRead(t.Context(), l.rdb, l.keys, owner("G1"), leave)
					check(t, "release", got, luascripts.Done, err)
					if leave < 3 || leave == holds {
						noWriter(fmt.Sprint("ours reads ", leave), 20*time.Minute)
					}
				}
				l.stopsReading("G1", luascripts.Done)
				noReader()
			})
			t.Run(fmt.Sprint("theirs reads ", holds), func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				for n := range holds {
					l.formerReads("J2", n+1, long)
				}
				l.expect("ours", l.asksToRead("G1", func(q *luascripts.Request) { q.Lease = 20 * time.Minute }).Verdict, luascripts.Done)
				noWriter("both read", 20*time.Minute)
				l.stopsReading("G1", luascripts.Done)
				noWriter("theirs reads", long)
				l.formerRenews("J2", holds, 20*time.Minute)
				for leave := holds; leave > 0; leave-- {
					l.formerLeaves("J2", leave)
					if leave < 3 || leave == holds {
						noWriter(fmt.Sprint("theirs reads ", leave), 20*time.Minute)
					}
				}
				l.formerLeaves("J2", 0)
				noReader()
			})
			t.Run(fmt.Sprint("an operator of ours removes ", holds), func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				for n := range min(holds, 200) {
					l.formerReads("J2", n+1, long)
				}
				l.stopsReading("J2", luascripts.Done)
				noReader()
			})
		}
	})
}
