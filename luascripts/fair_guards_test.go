package luascripts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Guards of the fair lock's scripts whose absence no other test notices.

// bounded fails the test unless queue and zset have an expiry.
func (q fair) bounded(what string) {
	q.t.Helper()
	for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
		if left := pttl(q.t, q.rdb, key); left <= 0 {
			q.t.Errorf("%s: %s has no expiry", what, key)
		}
	}
}

// One of the two keys was persisted by hand. Both have an expiry after the next use, also in a queue that is too
// long to be read; and none, if an owner of Redisson waits.
func TestFair_oneOfTwoPersisted(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
			q.queued("G1 G2")
			for _, each := range []string{fairKeys.Queue, fairKeys.Timeouts} { // for so long that it need not be lengthened
				do(t, q.rdb, "PEXPIRE", each, fmt.Sprint((time.Hour + 3*patience).Milliseconds()))
			}
			do(t, q.rdb, "PERSIST", key)
			q.waits("G2")
			q.outlives("persisted was " + key)
			do(t, q.rdb, "DEL", fairKeys.Queue, fairKeys.Timeouts)
		}
		q.queuedMany(patience, names(1, 101)...)
		do(t, q.rdb, "PERSIST", fairKeys.Timeouts)
		q.waits("G2")
		q.outlives("a long queue")

		q.queued("J102")
		do(t, q.rdb, "PERSIST", fairKeys.Timeouts)
		q.waits("G103")
		q.lasts("a long queue with one of Redisson at its end")
	})
}

// A queue that has no expiry gets one if it is short enough to be read: an owner of Redisson may be in its middle.
func TestFair_persistedAndLong(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		for _, n := range []int{100, 101} {
			do(t, q.rdb, "DEL", fairKeys.Queue, fairKeys.Timeouts)
			q.queuedMany(patience, names(1, n)...)
			do(t, q.rdb, "PERSIST", fairKeys.Queue)
			do(t, q.rdb, "PERSIST", fairKeys.Timeouts)
			q.waits("G1")
			if n == 100 {
				q.outlives("as many as a script reads")
			} else {
				q.lasts("one more")
			}
		}
	})
}

// No call takes the expiry off a queue of ours.
func TestFair_expiryStays(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.queued("G1 G2 G3")
		q.ask("G9", 0)
		q.bounded("a TryLock")
		q.releases("G2", luascripts.Gone)
		q.bounded("a waiter that leaves")
		q.held("G9", long)
		q.releases("G9", luascripts.Done)
		q.bounded("a release")
		if _, err := luascripts.ForceFair(t.Context(), q.rdb, fairKeys); err != nil {
			t.Fatal(err)
		}
		q.bounded("by force")
	})
}

// The expiry is an hour more than the patience of the owner that calls, before any other is counted.
func TestFair_expiryForTheCaller(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G9", long)
		for what, use := range map[string]func(){
			"a question":  func() { q.waits("G2") },
			"a heartbeat": func() { q.keeps("G1", "G2") },
		} {
			do(t, q.rdb, "DEL", fairKeys.Queue, fairKeys.Timeouts)
			q.queued("G1 G2")
			for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
				do(t, q.rdb, "PEXPIRE", key, fmt.Sprint((time.Hour + patience/2).Milliseconds()))
			}
			use()
			q.outlives(what)
		}
	})
}

// The clock of the server went back by half a second. That is no reason to count an owner of Redisson more.
func TestFair_clockGoesBack(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queuedMany(patience, names(1, 150)...)
		for name, use := range map[string]func(){
			"G120": func() { q.waits("G120") },
			"G140": func() { q.keeps("G140") },
		} {
			q.deadline(name, patience+time.Second/2)
			use()
			about(t, name, q.left(name), patience)
		}
		q.deadline("G150", patience+time.Second/2)
		q.waits("G151")
		about(t, "G151", q.left("G151"), patience)
	})
}

// An owner is dead from its deadline on, as Redisson sees it.
func TestFair_deadFromItsDeadlineOn(t *testing.T) {
	m := redistest.NewMini(t)
	q := fair{t, m.Client(t)}
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m.SetTime(noon)
	for what, line := range map[string][]string{
		"the first":                  {"G1"},
		"the second":                 {"G1", "G2"},
		"the last that is looked at": names(1, 101),
	} {
		q.clear()
		q.queuedMany(patience, line...)
		m.SetTime(noon.Add(patience - time.Millisecond))
		if got := q.ask("G999", 0); got.Verdict != luascripts.Held || got.Left != time.Millisecond {
			t.Errorf("%s, a millisecond before: %+v", what, got)
		}
		m.SetTime(noon.Add(patience))
		if got := q.ask("G999", 0); got.Verdict != luascripts.Done {
			t.Errorf("%s, at its deadline: %+v", what, got)
		}
		m.SetTime(noon)
	}
	// A heartbeat reads the queue if its first is dead: it counts one of Redisson behind that.
	q.clear()
	q.held("G9", long)
	q.queued("G3 J4 G1")
	m.SetTime(noon.Add(patience))
	q.deadline("J4", javaWait)
	q.deadline("G1", patience)
	q.keeps("G1")
	about(t, "behind one of Redisson", q.left("G1"), patience+javaWait)
	m.SetTime(noon)

	// A script that drops a hundred says that there are more.
	q.clear()
	q.queuedMany(patience, names(1, 101)...)
	m.SetTime(noon.Add(patience))
	reply := eval(t, q.rdb, luascripts.Text("fair_acquire"), []string{fairKeys.Lock, fairKeys.Queue, fairKeys.Timeouts, fairKeys.Never}, owner("G999"), "60000", "1", "0")
	if n, err := reply.ToInt64(); err != nil || n != -5 || q.line() != "G101" {
		t.Errorf("the script answers %d, %v, and %s wait", n, err, q.line())
	}
}

// The deadline of one owner was deleted by hand, and the owners before it are dead: it gets one.
func TestFair_noDeadlineBehindTheDead(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for _, dead := range []int{1, 100} {
			q.clear()
			q.queuedMany(-time.Second, names(101, 100+dead)...)
			q.queued("G1 G2")
			do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G1"))
			if got := q.ask("G3", 0); got.Verdict != luascripts.Held || got.Left != 5*time.Second || q.line() != "G1 G2" {
				t.Errorf("behind %d dead: %+v, and %s wait", dead, got, q.line())
			}
		}
	})
}

// The deadlines were deleted by hand. Those that wait keep their places at their heartbeat, and need not ask.
func TestKeepFair_withoutDeadlines(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queued("G1 G2 G3")
		do(t, q.rdb, "DEL", fairKeys.Timeouts)
		if kept := q.keeps("G1", "G2", "G3"); slices.Contains(kept.Asks, true) || q.line() != "G1 G2 G3" {
			t.Errorf("%+v, and %s wait", kept, q.line())
		}
		about(t, "G3", q.left("G3"), patience)

		// One of the deadlines of a long queue, not that of the owner itself.
		q.clear()
		q.held("G999", long)
		q.queuedMany(patience, names(1, 150)...)
		do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G5"))
		if kept := q.keeps("G140"); kept.Asks[0] {
			t.Errorf("G140 is in the queue, and yet: %+v", kept)
		}

		// A heartbeat in parts, of owners that are not in the queue.
		q.clear()
		q.queued("G1")
		do(t, q.rdb, "DEL", fairKeys.Timeouts)
		if kept := q.keeps(names(101, 201)...); slices.Contains(kept.Asks, false) || q.line() != "G1" {
			t.Errorf("%+v, and %s wait", kept, q.line())
		}
	})
}

// An owner has a deadline, and is not in the queue, which has more owners than deadlines: it has to ask.
func TestKeepFair_aDeadlineIsNoPlace(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queued("G1 G2 G3")
		do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G1"), owner("G2"))
		q.deadline("G9", patience)
		if kept := q.keeps("G9"); !kept.Asks[0] {
			t.Errorf("G9 waits on, and is not in the queue: %+v", kept)
		}
	})
}

// Only the last script of a heartbeat tells an owner of Redisson that it is its turn.
func TestKeepFair_tellsOnce(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		q.queued("J999")
		q.queuedMany(patience, names(1, 250)...)
		q.keeps(names(1, 250)...)
		e.expect(told("J999")...)
	})
}

// The line of a plain lock of that name is no owner of Redisson's.
func TestKeepFair_besideAPlainLine(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.hold(another(1))
		do(t, q.rdb, "HSET", fairKeys.Lock, luascripts.LineField, "0|")
		if kept := q.enters(own(1)); kept.Own[0] || kept.Asks[0] {
			t.Errorf("%+v", kept)
		}
		if got := q.ask("G1", patience); got.Verdict != luascripts.Held || got.Own {
			t.Errorf("%+v", got)
		}
	})
}

// What is left of a lock when its holder goes is the line of a plain one, and that is no holder.
func TestFair_lineAlone(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		line := func() {
			q.clear()
			do(t, q.rdb, "HSET", fairKeys.Lock, luascripts.LineField, "0|")
			q.queued("G1")
		}
		line()
		if got := q.ask("G1", patience); got.Verdict != luascripts.Done {
			t.Errorf("its turn: %+v", got)
		}
		line()
		q.held("G9", long)
		if got := q.ask("G9", patience); got.Verdict != luascripts.Done {
			t.Errorf("its own: %+v", got)
		}
		q.releases("G9", luascripts.Done)
		if n := number(t, q.rdb, "EXISTS", fairKeys.Lock); n != 0 {
			t.Error("a line is left without a holder")
		}
		e.expect(told("G1")...)

		line()
		q.held("G9", long)
		got, err := luascripts.PassFair(t.Context(), q.rdb, fairKeys, owner("G9"), luascripts.Pass{Heir: owner("G1"), Offer: lease})
		if err != nil || got.Token == 0 || q.holder() != "G1=1" {
			t.Errorf("%+v, %v, and %q has it", got, err, q.holder())
		}

		line()
		q.releases("G9", luascripts.Gone)
		e.expect(told("G1")...)
	})
}

// A user that may not publish releases a lock to an owner of Redisson's, which finds that by itself.
func TestReleaseFair_muteToTheirs(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.held("G1", long)
	q.queued("J2")
	fair{t, denied(t, s, "publish")}.releases("G1", luascripts.Done)
	q.javaGets("J2")
}

// A register that cannot go on is an error, and the owner has nothing.
func TestAcquireFair_spoiltRegister(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		spoilt := fairKeys
		spoilt.Register = "redisson_lock_token:{orders}"
		do(t, q.rdb, "SET", spoilt.Register, "9007199254740991")
		q.queued("G1 G2")
		before := contents(t, q.rdb)
		if got, err := luascripts.AcquireFair(t.Context(), q.rdb, spoilt, luascripts.Question{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: patience}); err == nil {
			t.Errorf("%+v", got)
		}
		if after := contents(t, q.rdb); after != before {
			t.Errorf("an error made\n%sout of\n%s", after, before)
		}
	})
}

// The heir cannot be taken out of the queue: it has no lock, and is told.
func TestPassFair_heirStaysInTheQueue(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.hold(own(1))
	q.waiting(own(2))
	e := listen(t, q.rdb)
	got, err := luascripts.PassFair(t.Context(), denied(t, s, "lrem"), fairKeys, own(1), luascripts.Pass{Heir: own(2), Offer: lease})
	if err != nil || got.Verdict != luascripts.Done || got.Token != 0 || len(q.holders()) != 0 || !slices.Equal(q.members(), []string{own(2)}) {
		t.Errorf("%+v, %v, %q has the lock and %q wait", got, err, q.holders(), q.members())
	}
	e.expect(turnOf(own(2)))
}

// A part of a queue begins behind the last owner of the part before, or, if that has left, where it stood. No part is
// longer than a hundred.
func TestInspectFair_parts(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.queuedMany(patience, names(1, 250)...)
		part := func(after string, seen int) (first, last string, n int) {
			t.Helper()
			reply := eval(t, q.rdb, luascripts.Text("fair_inspect"), []string{fairKeys.Lock, fairKeys.Queue, fairKeys.Timeouts, fairKeys.Never}, after, fmt.Sprint(seen))
			parts, err := reply.ToArray()
			if err != nil || len(parts) != 3 {
				t.Fatalf("%v, %v", reply, err)
			}
			queue, err := parts[2].ToArray()
			if err != nil || len(queue) == 0 {
				t.Fatalf("%v, %v", reply, err)
			}
			begin, _ := queue[0].ToString()
			end, _ := queue[len(queue)-2].ToString()
			return short(begin), short(end), len(queue) / 2
		}
		for _, c := range []struct {
			after       string
			seen        int
			first, last string
			n           int
		}{
			{"", 0, "G1", "G100", 100},
			{owner("G50"), 100, "G51", "G150", 100},
			{owner("G999"), 100, "G101", "G200", 100},
			{owner("G200"), 200, "G201", "G250", 50},
		} {
			if first, last, n := part(c.after, c.seen); first != c.first || last != c.last || n != c.n {
				t.Errorf("after %s, or %d: %s to %s, %d, want %s to %s, %d", short(c.after), c.seen, first, last, n, c.first, c.last, c.n)
			}
		}
	})
}

// A queue that has no expiry is read before it gets one. If that is denied, the owner does not enter.
func TestAcquireFair_deniedToRead(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.held("G9", long)
	q.queued("G2")
	for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
		do(t, q.rdb, "PERSIST", key)
	}
	before := contents(t, q.rdb)
	got, err := luascripts.AcquireFair(t.Context(), denied(t, s, "lrange"), fairKeys, luascripts.Question{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: patience})
	if _, denied := rueidis.IsRedisErr(err); !denied {
		t.Errorf("%+v, %v", got, err)
	}
	if after := contents(t, q.rdb); after != before {
		t.Errorf("an error made\n%sout of\n%s", after, before)
	}
}

// A script reads a hundred owners. So an owner behind them believes its own deadline, whatever is between.
func TestFair_behindTheFirstHundred(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queuedMany(patience, names(1, 150)...)
		for name, use := range map[string]func(){
			"G120": func() { q.waits("G120") },
			"G140": func() { q.keeps("G140") },
		} {
			q.deadline(name, patience+javaWait)
			use()
			about(t, name, q.left(name), patience+javaWait)
		}
	})
}

// An owner that enters a long queue counts those of Redisson at its end, also behind owners of ours that are dead or
// without a deadline, and takes for theirs what it does not see.
func TestAcquireFair_theirsAtTheEndOfALongQueue(t *testing.T) {
	theirs := func(first, last int) (all []string) {
		for n := first; n <= last; n++ {
			all = append(all, fmt.Sprint("J", n))
		}
		return all
	}
	onFair(t, func(t *testing.T, q fair) {
		for name, c := range map[string]struct {
			make func()
			want time.Duration
		}{
			"behind the dead": {func() {
				q.queuedMany(patience, "G1")
				q.queuedMany(-time.Second, names(2, 100)...)
				q.queuedMany(javaWait, theirs(101, 130)...)
			}, 30},
			"before the dead": {func() {
				q.queuedMany(patience, names(1, 90)...)
				q.queuedMany(javaWait, theirs(91, 120)...)
				q.queuedMany(-time.Second, "G121")
			}, 30},
			"one has no deadline": {func() {
				q.queuedMany(patience, names(1, 120)...)
				do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G120"))
				q.queuedMany(javaWait, theirs(121, 130)...)
			}, 10},
			"more than it sees": {func() {
				q.queuedMany(patience, names(1, 30)...)
				q.queuedMany(javaWait, theirs(31, 260)...)
			}, 230},
		} {
			q.clear()
			q.held("G999", long)
			c.make()
			q.waits("G500")
			about(t, name, q.left("G500"), patience+c.want*javaWait)
		}
	})
}

// What is left of a deadline tells little when the owner is late, or asks with another patience than before. Then
// the queue is read.
func TestFair_doubtfulDeadlines(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for name, c := range map[string]struct {
			left, patience time.Duration // of G1
		}{
			"late for most of its patience":  {patience / 3, patience},
			"more patient than before":       {patience + javaWait, 2 * javaWait},
			"more patient, and late as well": {javaWait, 2 * javaWait},
		} {
			for what, use := range map[string]func(){
				"a question": func() { q.ask("G1", c.patience) },
				"a heartbeat": func() {
					if _, err := luascripts.KeepFair(t.Context(), q.rdb, fairKeys, []luascripts.Waiter{{Owner: owner("G1"), WaiterTimeout: c.patience}}); err != nil {
						t.Error(err)
					}
				},
			} {
				q.clear()
				q.held("G9", long)
				q.queued("G3 J2 G1")
				q.deadline("G1", c.left)
				use()
				about(t, name+", "+what, q.left("G1"), c.patience+javaWait)
			}
		}
		for name, c := range map[string]struct {
			left, patience time.Duration // of the last, and of the one that comes
		}{
			"the last is late":               {javaWait - 20*time.Second, patience},
			"it has more patience than that": {patience + javaWait, 2 * javaWait},
		} {
			q.clear()
			q.held("G9", long)
			q.queued("J2 G3")
			q.deadline("G3", c.left)
			q.ask("G1", c.patience)
			about(t, name, q.left("G1"), c.patience+javaWait)
		}
	})
}

// A deadline is there without its place, or a place without its deadline: the owner that leaves is taken out of the queue.
func TestReleaseFair_deadlinesAndPlacesDiffer(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for name, spoil := range map[string]func(){
			"another's deadline without a place": func() { q.deadline("G9", patience) },
			"its place without a deadline":       func() { do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G1")) },
		} {
			q.clear()
			q.held("G8", long)
			q.queued("G2 G1")
			spoil()
			q.releases("G1", luascripts.Gone)
			if got := list(t, q.rdb, "LRANGE", fairKeys.Queue, "0", "-1"); !slices.Equal(got, []string{owner("G2")}) {
				t.Errorf("%s: in the queue: %q", name, got)
			}
		}
	})
}

// The release of one that holds nothing leaves the line of the plain lock to its holder.
func TestReleaseFair_leavesThePlainLine(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G9", long)
		do(t, q.rdb, "HSET", fairKeys.Lock, luascripts.LineField, "0|")
		q.releases("G1", luascripts.Gone)
		if number(t, q.rdb, "HEXISTS", fairKeys.Lock, luascripts.LineField) != 1 {
			t.Error("the line is gone")
		}
	})
}

// A heartbeat takes the expiry off a queue in which it knows of an owner of Redisson, wherever that waits.
func TestKeepFair_theirsInAQueueWithAnExpiry(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for name, f := range map[string]func(){
			"before the one that it is about, far behind": func() {
				q.queuedMany(patience, names(1, 150)...)
				q.queuedMany(javaWait, "J151")
				q.queuedMany(patience+javaWait, "G152")
				q.keeps("G152")
			},
			"before the one that enters": func() {
				q.queued("G2 J3")
				q.enters(owner("G1"))
			},
			"behind the one that it is about, as the first is dead": func() {
				q.queued("G9! G1 J2 G3")
				q.keeps("G1")
			},
		} {
			q.clear()
			q.held("G999", long)
			f()
			q.lasts(name)
		}
	})
}

// Those that enter a free lock's queue take several scripts. The first of them is told to ask.
func TestKeepFair_manyEnterAFreeLock(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		var owners []string
		for n := range 150 {
			owners = append(owners, own(n))
		}
		kept := q.enters(owners...)
		if !kept.Asks[0] || slices.Contains(kept.Asks[1:], true) {
			t.Errorf("%+v", kept.Asks)
		}
		if left := pttl(t, q.rdb, fairKeys.Queue); left < time.Hour {
			t.Errorf("the queue is gone in %v", left)
		}
	})
}

// A heartbeat reads the queue only if there is a reason.
func TestKeepFair_deniedCommands(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	for _, c := range []struct{ name, line, needs string }{
		{"ours", "G2 G1", "hgetall hlen lindex llen pttl time zadd zcard zmscore zrem zscore"},
		{"theirs", "J2 G1", "hgetall hlen lindex llen lrange pttl time zadd zcard zmscore zrem zscore"},
	} {
		var needs []string
		for _, command := range commands("fair_keep") {
			q.clear()
			q.held("G9", long)
			q.queued(c.line)
			if c.line[0] == 'J' {
				do(t, q.rdb, "PERSIST", fairKeys.Queue)
				do(t, q.rdb, "PERSIST", fairKeys.Timeouts)
			}
			if _, err := luascripts.KeepFair(t.Context(), denied(t, s, command), fairKeys, []luascripts.Waiter{{Owner: owner("G1"), WaiterTimeout: patience}}); err != nil {
				needs = append(needs, command)
			}
		}
		if got := strings.Join(needs, " "); got != c.needs {
			t.Errorf("%s: it needs %s, want %s", c.name, got, c.needs)
		}
	}
}

// An owner that enters an empty queue gives it an expiry, and reads nothing for that.
func TestKeepFair_entersAnEmptyQueueUnread(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.held("G9", long)
	fair{t, denied(t, s, "lrange")}.enters(owner("G1"))
	q.outlives("an empty queue")
}

// The dead cannot be taken out of the queue: they keep their deadlines, so that they stay dead.
func TestFair_theDeadStayDead(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.queued("G2! G1")
	before := contents(t, q.rdb)
	if got, err := luascripts.AcquireFair(t.Context(), denied(t, s, "ltrim"), fairKeys, luascripts.Question{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: patience}); err == nil {
		t.Errorf("%+v", got)
	}
	if after := contents(t, q.rdb); after != before {
		t.Errorf("an error made\n%sout of\n%s", after, before)
	}
}

// Deadlines are whole milliseconds, as those of Redisson are.
func TestFair_wholeMilliseconds(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G9", long)
		q.waits("G1")
		q.enters(owner("G2"))
		for _, name := range []string{"G1", "G2"} {
			m := do(t, q.rdb, "ZSCORE", fairKeys.Timeouts, owner(name))
			if score, _ := m.ToString(); strings.Contains(score, ".") {
				t.Errorf("the deadline of %s is %s", name, score)
			}
		}
	})
}
