package luascripts_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The waiters in these tests are called G1, G2 and so on if they are ours, and J1, J2 if they are
// Redisson's, which send no heartbeats. No test sleeps. Moving deadlines toward the present
// simulates the passing of time.

var fairKeys = luascripts.Keys{
	Lock:     "orders",
	Channel:  "redisson_lock__channel:{orders}",
	Publish:  "PUBLISH",
	Queue:    "redisson_lock_queue:{orders}",
	Timeouts: "redisson_lock_timeout:{orders}",
	Never:    "redisson_lock_queue:{orders}::never",
}

const (
	waiterTimeout = time.Minute      // of our waiters
	long          = 10 * time.Minute // the lease of the holder before the test starts
	javaWait      = 300 * time.Second
	persist       = -time.Millisecond // a lease without an expiry, as PTTL reports it
)

// owner returns the owner string of G1 or J1. The version of the UUID identifies an owner that
// sends heartbeats.
func owner(name string) string {
	version := map[byte]int{'G': 7, 'J': 4}[name[0]]
	n, err := strconv.Atoi(name[1:])
	if err != nil || version == 0 {
		panic("nobody is called " + name)
	}
	return fmt.Sprintf("0192d3a4-7b1c-%de5f-8a6b-%012d:%d", version, n, n)
}

// short returns the short name of an owner.
func short(owner string) string {
	for _, letter := range []string{"G", "J"} {
		if _, n, ok := strings.Cut(owner, ":"); ok && owner == ownerOrNone(letter+n) {
			return letter + n
		}
	}
	return owner
}

func ownerOrNone(name string) string {
	if _, err := strconv.Atoi(name[1:]); err != nil {
		return ""
	}
	return owner(name)
}

// notified returns the messages that ears receive when our scripts notify these owners of their turn.
func notified(names ...string) (all []string) {
	for _, name := range names {
		if name[0] == 'J' {
			all = append(all, javaTold(name))
			continue
		}
		client, number, _ := strings.Cut(owner(name), ":")
		all = append(all, fairKeys.Channel+":"+client+":fair "+number)
	}
	return all
}

// javaTold returns the message that ears receive when a script of Redisson notifies an owner of either client.
func javaTold(name string) string { return fairKeys.Channel + ":" + owner(name) + " 0" }

// fair is a fair lock on a server, with methods for the events of the tests.
type fair struct {
	t   *testing.T
	rdb rueidis.Client
}

// onFair runs a test on both servers.
func onFair(t *testing.T, f func(t *testing.T, q fair)) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) { f(t, fair{t, rdb}) })
}

func (q fair) clear() {
	q.t.Helper()
	do(q.t, q.rdb, "FLUSHALL")
}

// held makes name hold the lock; "G1=2" holds it twice.
func (q fair) held(name string, lease time.Duration) {
	q.t.Helper()
	name, count, ok := strings.Cut(name, "=")
	if name == "" {
		return
	}
	if !ok {
		count = "1"
	}
	do(q.t, q.rdb, "HSET", fairKeys.Lock, owner(name), count)
	if lease > 0 {
		do(q.t, q.rdb, "PEXPIRE", fairKeys.Lock, strconv.FormatInt(lease.Milliseconds(), 10))
	}
}

// queued puts "G1 G2! J3" into the queue: G1 is first, and G2 is dead. Each living owner has its
// waiter timeout left.
func (q fair) queued(names string) {
	q.t.Helper()
	for _, name := range strings.Fields(names) {
		name, dead := strings.CutSuffix(name, "!")
		do(q.t, q.rdb, "RPUSH", fairKeys.Queue, owner(name))
		q.deadline(name, waiterTimeout)
		if dead {
			q.dies(name)
		}
	}
	if names != "" {
		do(q.t, q.rdb, "PEXPIRE", fairKeys.Queue, "3600000")
		do(q.t, q.rdb, "PEXPIRE", fairKeys.Timeouts, "3600000")
	}
}

// deadline makes name count as alive for d from now.
func (q fair) deadline(name string, d time.Duration) {
	q.t.Helper()
	do(q.t, q.rdb, "ZADD", fairKeys.Timeouts, strconv.FormatInt(now(q.t, q.rdb)+d.Milliseconds(), 10), owner(name))
}

// dies makes the names count as dead.
func (q fair) dies(names ...string) {
	q.t.Helper()
	for _, name := range names {
		q.deadline(name, -time.Millisecond)
	}
}

// pass moves all deadlines as if d had passed.
func (q fair) pass(d time.Duration) {
	q.t.Helper()
	for _, member := range list(q.t, q.rdb, "ZRANGE", fairKeys.Timeouts, "0", "-1") {
		do(q.t, q.rdb, "ZINCRBY", fairKeys.Timeouts, strconv.FormatInt(-d.Milliseconds(), 10), member)
	}
	if left := pttl(q.t, q.rdb, fairKeys.Lock); left > 0 {
		do(q.t, q.rdb, "PEXPIRE", fairKeys.Lock, strconv.FormatInt((left-d).Milliseconds(), 10))
	}
}

// ask sends a request of an owner. The owner enters the queue if p is not 0.
func (q fair) ask(name string, p time.Duration) luascripts.Acquired {
	q.t.Helper()
	got, err := luascripts.AcquireFair(q.t.Context(), q.rdb, fairKeys, luascripts.Request{Owner: owner(name), Lease: lease, Want: 1, WaiterTimeout: p})
	if err != nil {
		q.t.Fatalf("%s asks: %v", name, err)
	}
	return got
}

// gets sends a request of name, and fails unless it is granted the lock.
func (q fair) gets(name string) {
	q.t.Helper()
	if got := q.ask(name, waiterTimeout); got.Verdict != luascripts.Done || got.Token == 0 || q.holder() != name+"=1" {
		q.t.Fatalf("%s asks: %+v, %s has it and %s wait", name, got, q.holder(), q.queue())
	}
}

// waits sends a request of each of these owners, and fails unless it must wait.
func (q fair) waits(names ...string) {
	q.t.Helper()
	for _, name := range names {
		if got := q.ask(name, waiterTimeout); got.Verdict != luascripts.Held {
			q.t.Fatalf("%s asks: %+v, %s has it and %s wait", name, got, q.holder(), q.queue())
		}
	}
}

// keeps sends the heartbeat of a process for these waiters.
func (q fair) keeps(names ...string) luascripts.Kept {
	q.t.Helper()
	var waiting []luascripts.Waiter
	for _, name := range names {
		waiting = append(waiting, luascripts.Waiter{Owner: owner(name), WaiterTimeout: waiterTimeout})
	}
	kept, err := luascripts.KeepFair(q.t.Context(), q.rdb, fairKeys, waiting)
	if err != nil {
		q.t.Fatalf("heartbeat of %s: %v", names, err)
	}
	return kept
}

func (q fair) releases(name string, want luascripts.Verdict) {
	q.t.Helper()
	got, err := luascripts.ReleaseFair(q.t.Context(), q.rdb, fairKeys, owner(name), 0)
	if err != nil || got != want {
		q.t.Fatalf("%s releases: %d, %v, want %d", name, got, err, want)
	}
}

// queue returns the owners in the queue, in order. It also checks that the zset has the same
// owners, each one once.
func (q fair) queue() string {
	q.t.Helper()
	members := list(q.t, q.rdb, "LRANGE", fairKeys.Queue, "0", "-1")
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = short(m)
	}
	deadlines := list(q.t, q.rdb, "ZRANGE", fairKeys.Timeouts, "0", "-1")
	slices.Sort(members)
	slices.Sort(deadlines)
	if !slices.Equal(members, deadlines) {
		q.t.Errorf("in the queue are %q, with deadlines %q", members, deadlines)
	}
	return strings.Join(names, " ")
}

// holder returns the holder as "G1=2", or "" if the lock is free.
func (q fair) holder() string {
	q.t.Helper()
	m := do(q.t, q.rdb, "HGETALL", fairKeys.Lock)
	fields, err := m.AsStrMap()
	if err != nil {
		q.t.Fatal(err)
	}
	var all []string
	for o, count := range fields {
		all = append(all, short(o)+"="+count)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// left returns the time for which name still counts as alive.
func (q fair) left(name string) time.Duration {
	q.t.Helper()
	m := do(q.t, q.rdb, "ZSCORE", fairKeys.Timeouts, owner(name))
	score, err := m.AsFloat64()
	if err != nil {
		q.t.Fatalf("%s has no deadline: %v", name, err)
	}
	return time.Duration(int64(score)-now(q.t, q.rdb)) * time.Millisecond
}

// outlives checks that queue and zset both expire an hour after the last deadline, or up to five minutes later.
// With an owner of Redisson waiting, there must be no expiry, because Redisson would not extend it.
func (q fair) outlives(what string) {
	q.t.Helper()
	var last time.Duration
	for _, member := range list(q.t, q.rdb, "LRANGE", fairKeys.Queue, "0", "-1") {
		last = max(last, q.left(short(member)))
	}
	if strings.Contains(q.queue(), "J") {
		q.lasts(what)
		return
	}
	for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
		if left := pttl(q.t, q.rdb, key); left < last+time.Hour-slow || left > last+time.Hour+5*time.Minute+slow { // the in-memory server takes a moment between the two
			q.t.Errorf("%s: %s is gone in %v, the last deadline in %v", what, key, left, last)
		}
	}
}

// lasts checks that queue and zset have no expiry.
func (q fair) lasts(what string) {
	q.t.Helper()
	for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
		if left := pttl(q.t, q.rdb, key); left != persist {
			q.t.Errorf("%s: %s is gone in %v", what, key, left)
		}
	}
}

func TestAcquireFair(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for _, c := range []struct {
			name          string
			holder        string
			lease         time.Duration // the holder's lease
			queue         string
			want          int
			waiterTimeout time.Duration
			verdict       luascripts.Verdict
			left          time.Duration
			holds         string
			after         string // in the queue
		}{
			{"free", "", 0, "", 1, waiterTimeout, luascripts.Done, 0, "G1=1", ""},
			{"free, without waiting", "", 0, "", 1, 0, luascripts.Done, 0, "G1=1", ""},
			{"free, and another waits", "", 0, "G2 G3", 1, waiterTimeout, luascripts.Held, waiterTimeout, "", "G2 G3 G1"},
			{"free, and another waits, without waiting", "", 0, "G2 G3", 1, 0, luascripts.Held, waiterTimeout, "", "G2 G3"},
			{"free, and one of Redisson waits", "", 0, "J2", 1, waiterTimeout, luascripts.Held, waiterTimeout, "", "J2 G1"},
			{"free, and all waiters are dead", "", 0, "G2! J3! G4!", 1, waiterTimeout, luascripts.Done, 0, "G1=1", ""},
			{"free, and all waiters are dead, without waiting", "", 0, "G2! J3! G4!", 1, 0, luascripts.Done, 0, "G1=1", ""},
			{"free, and the second is alive", "", 0, "G2! G3 G4!", 1, waiterTimeout, luascripts.Held, waiterTimeout, "", "G3 G4 G1"},
			{"free, and the second is alive, without waiting", "", 0, "G2! G3 G4!", 1, 0, luascripts.Held, waiterTimeout, "", "G3 G4"},
			{"free, and we are first", "", 0, "G1 G2 G3", 1, waiterTimeout, luascripts.Done, 0, "G1=1", "G2 G3"},
			{"free, and we are first alive", "", 0, "G2! G3! G1 G4", 1, waiterTimeout, luascripts.Done, 0, "G1=1", "G4"},
			{"free, and we are second", "", 0, "G2 G1 G3", 1, waiterTimeout, luascripts.Held, waiterTimeout, "", "G2 G1 G3"},
			{"free, and we came back from the dead too late", "", 0, "G1! G2", 1, waiterTimeout, luascripts.Held, waiterTimeout, "", "G2 G1"},
			{"held", "G2", long, "", 1, waiterTimeout, luascripts.Held, long, "G2=1", "G1"},
			{"held, without waiting", "G2", long, "", 1, 0, luascripts.Held, long, "G2=1", ""},
			{"held, and we wait already", "G2", long, "G1 G3", 1, waiterTimeout, luascripts.Held, long, "G2=1", "G1 G3"},
			{"held, and we wait in the middle", "G2", long, "G3 G1 J4", 1, waiterTimeout, luascripts.Held, long, "G2=1", "G3 G1 J4"},
			{"held, and we wait behind one of Redisson", "G2", long, "J3 G1 J4", 1, waiterTimeout, luascripts.Held, long, "G2=1", "J3 G1 J4"},
			{"held, and we do not wait any more", "G2", long, "G3 G1 J4", 1, 0, luascripts.Held, long, "G2=1", "G3 G1 J4"},
			{"held for ever", "G2", persist, "", 1, waiterTimeout, luascripts.Held, luascripts.NoExpiry, "G2=1", "G1"},
			{"held, dead at the head", "J2=3", long, "G3! G4", 1, waiterTimeout, luascripts.Held, long, "J2=3", "G4 G1"},
			{"ours already", "G1", long, "G2", 1, waiterTimeout, luascripts.Done, 0, "G1=1", "G2"},
			{"reentry past the queue", "G1", long, "G2 J3", 2, waiterTimeout, luascripts.Done, 0, "G1=2", "G2 J3"},
			{"reentry again", "G1=2", long, "G2", 2, waiterTimeout, luascripts.Done, 0, "G1=2", "G2"},
			{"reentry into a key without expiry", "G1", persist, "", 2, waiterTimeout, luascripts.Done, 0, "G1=2", ""},
			{"a count that is too large", "G1=3", long, "", 2, waiterTimeout, luascripts.Done, 0, "G1=2", ""},
			{"reentry into what is gone", "", 0, "", 2, waiterTimeout, luascripts.Gone, 0, "", ""},
			{"reentry into what is gone, and others wait", "", 0, "G2", 2, waiterTimeout, luascripts.Gone, 0, "", "G2"},
			{"reentry into what another has", "G2", long, "", 2, waiterTimeout, luascripts.Gone, 0, "G2=1", ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.held(c.holder, c.lease)
				q.queued(c.queue)
				var first string
				for range 2 { // the second copy has no further effect
					before := time.Now()
					got, err := luascripts.AcquireFair(t.Context(), q.rdb, fairKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: c.want, WaiterTimeout: c.waiterTimeout})
					if err != nil || got.Verdict != c.verdict {
						t.Errorf("%+v, %v, want verdict %d", got, err, c.verdict)
					}
					about(t, "left", got.Left, c.left)
					if begins := c.verdict == luascripts.Done && c.want == 1; begins != (got.Token != 0) {
						t.Errorf("token %d, first hold %v", got.Token, begins)
					} else if begins && time.UnixMicro(int64(got.Token)).Sub(before).Abs() > time.Minute {
						t.Errorf("token %d is not the server's time in µs", got.Token)
					}
					if q.holder() != c.holds || q.queue() != c.after {
						t.Errorf("%q has it and %q wait, want %q and %q", q.holder(), q.queue(), c.holds, c.after)
					}
					switch {
					case c.verdict == luascripts.Done:
						about(t, "our lease", pttl(t, q.rdb, fairKeys.Lock), max(lease, c.lease))
					case c.holder != "":
						about(t, "the other's lease", pttl(t, q.rdb, fairKeys.Lock), c.lease)
					}
					if c.verdict == luascripts.Held && c.waiterTimeout > 0 {
						about(t, "our place", q.left("G1"), c.waiterTimeout+foreignBefore(c.after, "G1"))
						q.outlives("after a request")
						if theirs := c.holder != "" && c.holder[0] == 'J' || foreignBefore(c.after, "G1") > 0; got.Own != theirs {
							t.Errorf("told at a channel of its own: %v, want %v", got.Own, theirs)
						}
					}
					all := contents(t, q.rdb)
					if first != "" && all != first {
						t.Errorf("a second copy made\n%sout of\n%s", all, first)
					}
					first = all
				}
			})
		}
	})
}

// foreignBefore returns how much later the deadline of name is behind waiters of Redisson. Each of
// them subtracts 300 s when it is served.
func foreignBefore(queue, name string) time.Duration {
	before, _, _ := strings.Cut(queue, name)
	return time.Duration(strings.Count(before, "J")) * javaWait
}

func TestReleaseFair(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		for _, c := range []struct {
			name     string
			holder   string
			queue    string
			leave    int
			verdict  luascripts.Verdict
			holds    string
			after    string   // in the queue
			notified []string // the owners that are notified
		}{
			{"the only hold", "G1", "", 0, luascripts.Done, "", "", nil},
			{"the only hold, and others wait", "G1", "G2 G3", 0, luascripts.Done, "", "G2 G3", notified("G2")},
			{"the only hold, and one of Redisson waits", "G1", "J2 G3", 0, luascripts.Done, "", "J2 G3", notified("J2")},
			{"the only hold, and the first are dead", "G1", "G2! J3! G4 G5!", 0, luascripts.Done, "", "G4 G5", notified("G4")},
			{"the only hold, and all waiters are dead", "G1", "G2! J3!", 0, luascripts.Done, "", "", nil},
			{"all holds at once", "G1=3", "G2", 0, luascripts.Done, "", "G2", notified("G2")},
			{"one of two", "G1=2", "G2! G3", 1, luascripts.Done, "G1=1", "G2 G3", nil},
			{"one of two, again", "G1=1", "G2", 1, luascripts.Done, "G1=1", "G2", nil},
			{"more than there are", "G1", "", 2, luascripts.Done, "G1=2", "", nil},
			{"free", "", "", 0, luascripts.Gone, "", "", nil},
			{"free, in part", "", "G2", 1, luascripts.Gone, "", "G2", nil},
			{"a stranger, and it is free", "", "G2 G3", 0, luascripts.Gone, "", "G2 G3", notified("G2")},
			{"a stranger, and another has it", "G2=2", "G3", 0, luascripts.Gone, "G2=2", "G3", nil},
			{"a stranger, in part", "G2=2", "G3", 1, luascripts.Gone, "G2=2", "G3", nil},
			{"a waiter at the head", "G2", "G1 G3", 0, luascripts.Gone, "G2=1", "G3", nil},
			{"a waiter in the middle", "G2", "G3 G1 J4", 0, luascripts.Gone, "G2=1", "G3 J4", nil},
			{"a waiter at the end", "J2", "J3 G1", 0, luascripts.Gone, "J2=1", "J3", nil},
			{"a dead waiter", "G2", "G3! G1! G4!", 0, luascripts.Gone, "G2=1", "G3 G4", nil},
			{"a waiter whose turn it is", "", "G1 G3! G4", 0, luascripts.Gone, "", "G4", notified("G4")},
			{"the last waiter", "", "G1", 0, luascripts.Gone, "", "", nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.held(c.holder, long)
				q.queued(c.queue)
				var first string
				want := c.verdict
				for range 2 {
					got, err := luascripts.ReleaseFair(t.Context(), q.rdb, fairKeys, owner("G1"), c.leave)
					check(t, "release", got, want, err)
					if q.holder() != c.holds || q.queue() != c.after {
						t.Errorf("%q has it and %q wait, want %q and %q", q.holder(), q.queue(), c.holds, c.after)
					}
					if c.holds != "" {
						about(t, "the lease", pttl(t, q.rdb, fairKeys.Lock), long)
					}
					if got := e.heard(); !slices.Equal(got, c.notified) {
						t.Errorf("published %q, want %q", got, c.notified)
					}
					all := contents(t, q.rdb)
					if first != "" && all != first {
						t.Errorf("a second copy made\n%sout of\n%s", all, first)
					}
					first = all
					if c.leave == 0 {
						want = luascripts.Gone
					}
				}
			})
		}
	})
}

func TestKeepFair(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		for _, c := range []struct {
			name     string
			holder   string
			lease    time.Duration
			queue    string
			keep     string // the waiters in the heartbeat
			left     time.Duration
			replies  []int64
			after    string   // in the queue
			notified []string // the owners of other processes that are notified
		}{
			{"nobody waits", "", 0, "", "", 0, nil, "", nil},
			{"nobody waits, but we thought so", "", 0, "", "G1", 0, []int64{-2}, "", nil},
			{"held", "G9", long, "G1 G2", "G1 G2", long, []int64{0, 0}, "G1 G2", nil},
			{"held for ever", "G9", persist, "G1", "G1", luascripts.NoExpiry, []int64{0}, "G1", nil},
			{"held by a waiter of ours", "G1", long, "G2", "G1 G2", long, []int64{1, 0}, "G2", nil},
			{"free, and we are first", "", 0, "G1 G2", "G1 G2", waiterTimeout, []int64{1, 0}, "G1 G2", nil},
			{"free, and we are first, asked in another order", "", 0, "G1 G2", "G2 G1", waiterTimeout, []int64{0, 1}, "G1 G2", nil},
			{"free, and another is first", "", 0, "G3 G1", "G1", waiterTimeout, []int64{0}, "G3 G1", nil},
			{"free, and we are first behind the dead", "", 0, "G3! G4! G1", "G1", waiterTimeout, []int64{1}, "G1", nil},
			{"free, and another is first behind the dead", "", 0, "G3! G4 G1", "G1", waiterTimeout, []int64{0}, "G4 G1", notified("G4")},
			{"free, and one of Redisson is first behind the dead", "", 0, "G3! J4 G1", "G1", waiterTimeout, []int64{0}, "J4 G1", notified("J4")},
			{"held, between those of Redisson", "G9", long, "J3 G1 J4 G2", "G1 G2", long, []int64{0, 0}, "J3 G1 J4 G2", nil},
			{"held, and the first is dead", "G9", long, "G3! G4 G1", "G1", long, []int64{0}, "G4 G1", nil},
			{"some are not in the queue", "", 0, "G2 G1", "G3 G1 G4", waiterTimeout, []int64{-2, 0, -2}, "G2 G1", nil},
			{"a dead one in the middle", "G9", long, "G1 G2! G3", "G1", long, []int64{0}, "G1 G2 G3", nil},
			{"late, but nobody noticed", "G9", long, "G1! G2", "G1", long, []int64{0}, "G1 G2", nil},
			{"late, nobody noticed, and it is our turn", "", 0, "G1! G2", "G1", waiterTimeout, []int64{1}, "G1 G2", nil},
			{"late, as all others are", "", 0, "G3! G1! G2!", "G1 G2", waiterTimeout, []int64{1, 0}, "G1 G2", nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.held(c.holder, c.lease)
				q.queued(c.queue)
				kept := q.keeps(strings.Fields(c.keep)...)
				about(t, "look again in", kept.Left, c.left)
				asks := make([]bool, len(c.replies))
				for i, n := range c.replies {
					asks[i] = n != 0
				}
				if !slices.Equal(kept.MustRetry, asks) {
					t.Errorf("asks %v, want %v", kept.MustRetry, asks)
				}
				if got := e.heard(); !slices.Equal(got, c.notified) {
					t.Errorf("published %q, want %q", got, c.notified)
				}
				if q.queue() != c.after || strings.TrimSuffix(q.holder(), "=1") != c.holder {
					t.Errorf("%q has it and %q wait, want %q and %q", q.holder(), q.queue(), c.holder, c.after)
				}
				for i, name := range strings.Fields(c.keep) {
					if c.replies[i] != -2 && name != c.holder {
						about(t, "the place of "+name, q.left(name), waiterTimeout+foreignBefore(c.after, name))
					}
				}
				if c.after != "" {
					q.outlives("after a heartbeat")
				}

				// The same again, checking the replies against the header of the script.
				args := []string{fairKeys.Channel, fairKeys.Publish, "1", "0"}
				for _, name := range strings.Fields(c.keep) {
					args = append(args, "60000", owner(name))
				}
				all := contents(t, q.rdb)
				m := eval(t, q.rdb, luascripts.Text("fair_keep"), []string{fairKeys.Lock, fairKeys.Queue, fairKeys.Timeouts}, args...)
				replies, err := m.AsIntSlice()
				if err != nil || len(replies) == 0 || !slices.Equal(replies[1:], c.replies) {
					t.Errorf("the script answers %d, %v, want %d", replies, err, c.replies)
				}
				if again := contents(t, q.rdb); again != all {
					t.Errorf("a second copy made\n%sout of\n%s", again, all)
				}
				for _, m := range e.heard() {
					if slices.Contains(notified("G3", "G4", "G5"), m) {
						t.Errorf("%s was told a second time; it sends heartbeats itself", m)
					}
				}
			})
		}
	})
}

func TestInspectFair(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		inspect := func() luascripts.Snapshot {
			t.Helper()
			before := contents(t, q.rdb)
			s, err := luascripts.InspectFair(t.Context(), q.rdb, fairKeys)
			if err != nil {
				t.Fatal(err)
			}
			if after := contents(t, q.rdb); after != before {
				t.Errorf("looking made\n%sout of\n%s", after, before)
			}
			return s
		}
		if s := inspect(); s.Exists || len(s.Fields)+len(s.Waiters) != 0 {
			t.Errorf("of nothing: %+v", s)
		}
		q.held("J9=3", long)
		q.queued("G2! G1 J3")
		q.deadline("J3", 5*time.Minute)
		s := inspect()
		if !s.Exists || s.Foreign || !slices.Equal(s.Fields, []luascripts.Field{{Name: owner("J9"), Value: "3"}}) {
			t.Errorf("held: %+v", s)
		}
		about(t, "the lease", s.Left, long)
		want := []luascripts.Waiter{{Owner: owner("G2")}, {Owner: owner("G1"), WaiterTimeout: waiterTimeout}, {Owner: owner("J3"), WaiterTimeout: 5 * time.Minute}}
		if len(s.Waiters) != len(want) {
			t.Fatalf("in the queue: %+v", s.Waiters)
		}
		for i, w := range s.Waiters {
			if w.Owner != want[i].Owner {
				t.Errorf("%d in the queue: %s, want %s", i, w.Owner, want[i].Owner)
			}
			about(t, "waiter timeout of "+short(w.Owner), w.WaiterTimeout, want[i].WaiterTimeout)
		}
		do(t, q.rdb, "PERSIST", fairKeys.Lock)
		do(t, q.rdb, "DEL", fairKeys.Timeouts)
		if s := inspect(); s.Left != luascripts.NoExpiry || len(s.Waiters) != 3 || s.Waiters[2].WaiterTimeout != 0 {
			t.Errorf("without deadlines: %+v", s)
		}
		do(t, q.rdb, "DEL", fairKeys.Lock)
		if s := inspect(); s.Exists || len(s.Waiters) != 3 {
			t.Errorf("free: %+v", s)
		}
	})
}

func TestForceFair(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		q.held("J9=3", persist)
		q.queued("G1! G2 J3")
		for _, want := range []luascripts.Verdict{luascripts.Done, luascripts.Free} {
			got, err := luascripts.ForceFair(t.Context(), q.rdb, fairKeys)
			check(t, "force", got, want, err)
			if q.holder() != "" || q.queue() != "G2 J3" {
				t.Errorf("%q has it and %q wait, want nobody and G2 J3", q.holder(), q.queue())
			}
			e.expect(notified("G2")...)
		}
		q.gets("G2")
	})
}

// Once held, a fair lock is renewed like a plain one. No other call shortens its lease.
func TestFair_lease(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.gets("G1")
		q.waits("G2", "J3")
		renewed := luascripts.RenewReentrant(t.Context(), q.rdb, []luascripts.Renewal{{Keys: &fairKeys, Owner: owner("G1")}, {Keys: &fairKeys, Owner: owner("G2")}}, long, 1)
		if renewed[0] != (luascripts.Renewed{Verdict: luascripts.Done}) || renewed[1] != (luascripts.Renewed{Verdict: luascripts.Gone}) {
			t.Errorf("renewed: %+v", renewed)
		}
		q.keeps("G2")
		q.releases("G2", luascripts.Gone)
		q.waits("G4")
		about(t, "the lease", pttl(t, q.rdb, fairKeys.Lock), long)
	})
}

// 1: Ten owners arrive one after the other. 2: Some retry, some send heartbeats, and one calls
// TryLock. 3: They are served in the order of 1, and each is notified of its turn.
func TestFair_order(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		names := []string{"G1", "G2", "J3", "G4", "G5", "J6", "G7", "G8", "G9", "G10"}
		q.gets("G11")
		for _, name := range names { // 1
			q.queues(name)
		}

		q.waits("G5", "G1", "G1") // 2
		q.javaWaits("J6")
		q.keeps("G10", "G2", "G7")
		q.keeps("G8")
		if got := q.ask("G12", 0); got.Verdict != luascripts.Held {
			t.Errorf("a TryLock: %+v", got)
		}
		if got := q.queue(); got != strings.Join(names, " ") {
			t.Fatalf("in the queue: %s", got)
		}

		last := "G11" // 3
		for i, name := range names {
			q.releases(last, luascripts.Done)
			e.expect(notified(name)...)
			for _, other := range append([]string{"G12"}, names[i+1:]...) {
				if got := q.ask(other, 0); got.Verdict != luascripts.Held {
					t.Errorf("%s overtakes %s: %+v", other, name, got)
				}
			}
			q.takes(name)
			last = name
		}
		q.releases(last, luascripts.Done)
		if all := contents(t, q.rdb); all != "" {
			t.Errorf("left behind:\n%s", all)
		}
		e.expect()
	})
}

// Dead owners of ours keep their positions for one waiter timeout, anywhere in the queue. The
// waiter timeouts of several do not add up.
func TestFair_waiterTimeoutsDoNotAddUp(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.gets("G999")
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprint("G", i+1))
		}
		q.waits(names...)
		for _, name := range names {
			about(t, "waiter timeout of "+name, q.left(name), waiterTimeout)
		}
		q.keeps(names[100:]...)
		for _, name := range names {
			about(t, "waiter timeout of "+name+" after a heartbeat", q.left(name), waiterTimeout)
		}

		q.releases("G999", luascripts.Done)
		if got := q.ask("G998", 0); got.Verdict != luascripts.Held {
			t.Errorf("they are alive, and yet: %+v", got)
		}
		q.pass(waiterTimeout)
		q.gets("G998")
		if got := q.queue(); got != "" || number(t, q.rdb, "EXISTS", fairKeys.Queue, fairKeys.Timeouts) != 0 {
			t.Errorf("left in the queue: %s", got)
		}
	})
}

// Each owner has its own waiter timeout, whichever owners are ahead of it.
func TestFair_ownWaiterTimeout(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.gets("G9")
		q.ask("G1", 10*time.Minute)
		q.ask("G2", time.Minute)
		q.ask("G3", 20*time.Minute)
		for name, p := range map[string]time.Duration{"G1": 10 * time.Minute, "G2": time.Minute, "G3": 20 * time.Minute} {
			about(t, name, q.left(name), p)
		}
		q.outlives("after three")
		kept, err := luascripts.KeepFair(t.Context(), q.rdb, fairKeys, []luascripts.Waiter{{Owner: owner("G3"), WaiterTimeout: time.Minute}, {Owner: owner("G1"), WaiterTimeout: 2 * time.Minute}})
		if err != nil || !slices.Equal(kept.MustRetry, []bool{false, false}) {
			t.Errorf("heartbeat: %+v, %v", kept, err)
		}
		about(t, "G3 after a heartbeat", q.left("G3"), time.Minute)
		about(t, "G1 after a heartbeat", q.left("G1"), 2*time.Minute)
		for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
			about(t, "no sooner than it was to be: "+key, pttl(t, q.rdb, key), 20*time.Minute+time.Hour+5*time.Minute)
		}
	})
}

// 1: G1, G2 and G3 wait for a free lock, each in its own process, and G1 is dead. 2: Its deadline
// passes, and G3 sends a heartbeat, which notifies G2 of its turn. 3: G2 sends a request.
func TestFair_nextIsNotifiedWhenTheHeadDies(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		q.gets("G9")
		q.waits("G1", "G2", "G3")
		q.releases("G9", luascripts.Done) // 1
		e.expect(notified("G1")...)
		q.keeps("G3")
		e.expect() // it is the turn of G1, for now

		q.dies("G1") // 2
		kept := q.keeps("G3")
		e.expect(notified("G2")...)
		about(t, "look again in", kept.Left, waiterTimeout)

		q.gets("G2") // 3
	})
}

// After a manual deletion of any part, all waiters still acquire the lock, and none is queued
// twice.
func TestFair_deletedByHand(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for name, doomed := range map[string][]string{
			"queue":     {fairKeys.Queue},
			"deadlines": {fairKeys.Timeouts},
			"both":      {fairKeys.Queue, fairKeys.Timeouts},
			"all":       {fairKeys.Queue, fairKeys.Timeouts, fairKeys.Lock},
		} {
			t.Run(name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.gets("G9")
				waiting := []string{"G1", "G2", "G3", "G4"}
				q.waits(waiting...)
				do(t, q.rdb, append([]string{"DEL"}, doomed...)...)

				// An owner sends a request before any heartbeat. Then all send heartbeats, and
				// retry if they are notified. Some retry anyway.
				got := q.ask("G5", waiterTimeout)
				if freed := slices.Contains(doomed, fairKeys.Lock); freed != (got.Verdict == luascripts.Done) {
					t.Errorf("the new owner: %+v", got)
				}
				for i, asks := range q.keeps(waiting...).MustRetry {
					if asks {
						q.waits(waiting[i])
					}
				}
				q.waits("G2", "G4")
				for _, name := range strings.Fields(q.queue()) {
					if n := strings.Count(" "+q.queue()+" ", " "+name+" "); n != 1 {
						t.Errorf("%s is in the queue %d times: %s", name, n, q.queue())
					}
				}
				wait := map[string]bool{}
				for _, name := range strings.Fields(q.queue()) {
					wait[name] = true
				}
				for _, name := range waiting {
					if !wait[name] {
						t.Errorf("%s no longer waits: %s", name, q.queue())
					}
				}

				has := strings.TrimSuffix(q.holder(), "=1")
				served := 0
				for ; q.queue() != "" && served < 10; served++ {
					first, _, _ := strings.Cut(q.queue(), " ")
					q.releases(has, luascripts.Done)
					q.gets(first)
					has = first
				}
				q.releases(has, luascripts.Done)
				if all := contents(t, q.rdb); all != "" || served < len(waiting) {
					t.Errorf("%d were served, and left behind is\n%s", served, all)
				}
			})
		}
	})
}

// The first owner in the queue, whose deadline was deleted manually, gets a new one. If it is dead,
// it is removed when that passes.
func TestFair_headWithoutDeadline(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.queued("G1 G2")
		do(t, q.rdb, "DEL", fairKeys.Timeouts)
		if got := q.ask("G3", 0); got.Verdict != luascripts.Held || got.Left != 5*time.Second {
			t.Errorf("behind it: %+v, want 5 s", got)
		}
		if left := q.left("G1"); left > 5*time.Second {
			t.Errorf("it counts as alive for %v", left)
		}
		q.keeps("G2")
		q.dies("G1")
		q.gets("G2")
		if q.queue() != "" {
			t.Errorf("in the queue: %s", q.queue())
		}
	})
}

// A key that was persisted manually gets an expiry again at its next use.
func TestFair_persisted(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.gets("G9")
		q.waits("G1", "G2")
		for what, use := range map[string]func(){
			"a request":    func() { q.waits("G1") },
			"a newcomer":   func() { q.waits("G3") },
			"a heartbeat":  func() { q.keeps("G2") },
			"another's":    func() { q.keeps("G3") },
			"no heartbeat": func() { q.keeps() },
		} {
			do(t, q.rdb, "PERSIST", fairKeys.Queue)
			do(t, q.rdb, "PERSIST", fairKeys.Timeouts)
			use()
			q.outlives(what)
		}
		do(t, q.rdb, "PERSIST", fairKeys.Lock)
		if got := q.ask("G1", waiterTimeout); got.Verdict != luascripts.Held || got.Left != luascripts.NoExpiry {
			t.Errorf("a lock without an expiry: %+v", got)
		}
		q.releases("G9", luascripts.Done)
		q.gets("G1")
	})
}

// A key that is not a fair lock does not change, whatever it is, and neither does its queue.
func TestFair_foreignKeys(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for name, make := range map[string][]string{
			"string":                {"SET", fairKeys.Lock, "x"},
			"list":                  {"RPUSH", fairKeys.Lock, "x"},
			"read lock":             {"HSET", fairKeys.Lock, "mode", "read", owner("J2"), "1"},
			"write lock":            {"HSET", fairKeys.Lock, "mode", "write", owner("J2") + ":write", "1"},
			"some hash":             {"HSET", fairKeys.Lock, "name", "bob", "age", "40"},
			"a counter":             {"HSET", fairKeys.Lock, "visits", "12"},
			"a counter of a number": {"HSET", fairKeys.Lock, "42", "1"},
			"counters":              {"HSET", fairKeys.Lock, "a", "1", "b", "2", "c", "3"},
			"a counter by uuid":     {"HSET", fairKeys.Lock, "0192d3a4-7b1c-7e5f-8a6b-000000000001", "1"},
			"an owner in a word":    {"HSET", fairKeys.Lock, "x" + owner("G1"), "1"},
			"an owner and a word":   {"HSET", fairKeys.Lock, owner("G1") + "x", "1"},
			"an owner by a name":    {"HSET", fairKeys.Lock, strings.TrimSuffix(owner("G1"), "1") + "eve", "1"},
			"an owner and more":     {"HSET", fairKeys.Lock, owner("G1"), "1", "visits", "12"},
			"an owner and two more": {"HSET", fairKeys.Lock, owner("G1"), "1", "leasehold_line", "0|", "visits", "12"},
		} {
			t.Run(name, func(t *testing.T) {
				q := fair{t, q.rdb}
				e := listen(t, q.rdb)
				q.clear()
				q.queued("G2 G3!")
				do(t, q.rdb, make...)
				do(t, q.rdb, "PEXPIRE", fairKeys.Lock, strconv.FormatInt(long.Milliseconds(), 10))
				before := contents(t, q.rdb)
				for _, p := range []time.Duration{0, waiterTimeout} {
					for want := 1; want <= 2; want++ {
						got, err := luascripts.AcquireFair(t.Context(), q.rdb, fairKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: want, WaiterTimeout: p})
						check(t, "acquire", got.Verdict, luascripts.Foreign, err)
					}
				}
				for leave := range 2 {
					got, err := luascripts.ReleaseFair(t.Context(), q.rdb, fairKeys, owner("G1"), leave)
					check(t, "release", got, luascripts.Foreign, err)
				}
				got, err := luascripts.ForceFair(t.Context(), q.rdb, fairKeys)
				check(t, "force", got, luascripts.Foreign, err)
				if s, err := luascripts.InspectFair(t.Context(), q.rdb, fairKeys); err != nil || !s.Foreign || len(s.Fields)+len(s.Waiters) > 0 {
					t.Errorf("inspect: %+v, %v", s, err)
				}
				if kept := q.keeps("G2"); !kept.MustRetry[0] {
					t.Error("a waiter goes on waiting, and does not hear of it")
				}
				if after := contents(t, q.rdb); after != before {
					t.Errorf("the keys were\n%sand are\n%s", before, after)
				}
				about(t, "its expiry", pttl(t, q.rdb, fairKeys.Lock), long)
				e.expect()

				// A waiter leaves, and no other is notified, because none can acquire the lock.
				q.releases("G2", luascripts.Foreign)
				if q.queue() != "G3" {
					t.Errorf("in the queue: %s", q.queue())
				}
				e.expect()
			})
		}
	})
}

// With full memory, no owner starts to hold or to wait, and all others continue.
func TestFair_fullMemory(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	refused := func(what, name string, p time.Duration) {
		t.Helper()
		before := contents(t, q.rdb)
		got, err := luascripts.AcquireFair(t.Context(), q.rdb, fairKeys, luascripts.Request{Owner: owner(name), Lease: lease, Want: 1, WaiterTimeout: p})
		if err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s: %+v, %v, want OOM", what, got, err)
		}
		if after := contents(t, q.rdb); after != before {
			t.Errorf("%s, refused, made\n%sout of\n%s", what, after, before)
		}
	}
	full(t, s)
	refused("the first hold", "G1", waiterTimeout)
	refused("the first hold, without waiting", "G1", 0)
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")

	q.held("G1=2", time.Minute)
	q.queued("G2 G3")
	full(t, s)
	refused("a place in the queue", "G4", waiterTimeout)
	if got := q.ask("G4", 0); got.Verdict != luascripts.Held {
		t.Errorf("without waiting: %+v", got)
	}
	q.waits("G3")
	q.keeps("G2", "G3")
	about(t, "after a heartbeat", q.left("G2"), waiterTimeout)
	got, err := luascripts.AcquireFair(t.Context(), q.rdb, fairKeys, luascripts.Request{Owner: owner("G1"), Lease: long, Want: 3, WaiterTimeout: waiterTimeout})
	check(t, "reentry", got.Verdict, luascripts.Done, err)
	e := listen(t, q.rdb)
	for _, leave := range []int{2, 1, 0} {
		got, err := luascripts.ReleaseFair(t.Context(), q.rdb, fairKeys, owner("G1"), leave)
		check(t, fmt.Sprint("release to ", leave), got, luascripts.Done, err)
	}
	e.expect(notified("G2")...)
	refused("the turn of G2", "G2", waiterTimeout)
	do(t, q.rdb, "DEL", fairKeys.Timeouts)
	forced, err := luascripts.ForceFair(t.Context(), q.rdb, fairKeys)
	check(t, "force", forced, luascripts.Free, err)
	e.expect(notified("G2")...)
	q.releases("G2", luascripts.Gone)
	q.releases("G3", luascripts.Gone)
	if all := contents(t, q.rdb); all != "" {
		t.Errorf("left behind:\n%s", all)
	}
}

type deniedCase struct {
	name          string
	script        string
	holder, queue string
	leave         int    // the number of holds that G1 keeps; -1 for a request
	needs         string // the commands it requires
}

// deniedFair denies a user one command after the other. An error means that nothing was done. A rejected request leaves
// neither a hold nor a queue position, and a rejected release leaves the hold. A rejected request leaves the living owners
// in the queue, unless the rejected call is the end of a wait.
func deniedFair(t *testing.T, cases ...deniedCase) {
	t.Helper()
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	for _, c := range cases {
		var needs []string
		for _, command := range commands(c.script) {
			q.clear()
			q.held(c.holder, long)
			q.queued(c.queue)
			rdb := denied(t, s, command)
			holder, queue := q.holder(), q.queue()
			var err error
			if c.leave < 0 {
				_, err = luascripts.AcquireFair(t.Context(), rdb, fairKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout})
			} else {
				_, err = luascripts.ReleaseFair(t.Context(), rdb, fairKeys, owner("G1"), c.leave)
			}
			if err == nil {
				continue // it was not needed
			}
			needs = append(needs, command)
			if got := q.holder(); got != holder {
				t.Errorf("%s without %s failed, and yet %q has it, %q had", c.name, command, got, holder)
			}
			if got := list(t, q.rdb, "LRANGE", fairKeys.Queue, "0", "-1"); len(got) > len(strings.Fields(queue)) {
				t.Errorf("%s without %s failed, and yet it is in the queue", c.name, command)
			}
			ends := slices.Contains([]string{"zrem", "lrem", "ltrim", "persist"}, command)
			if c.leave < 0 && !ends && !strings.HasSuffix(queue, q.queue()) || c.leave < 0 && !ends && !strings.HasSuffix(q.queue(), living(c.queue)) {
				t.Errorf("%s without %s failed, and yet %q wait, and %q did", c.name, command, q.queue(), queue)
			}
		}
		if got := strings.Join(needs, " "); got != c.needs {
			t.Errorf("%s needs %s, want %s", c.name, got, c.needs)
		}
	}
}

// living returns the names in a queue, in the form of queued, that are not dead.
func living(queue string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(queue), func(name string) bool { return strings.HasSuffix(name, "!") }), " ")
}

func TestFair_deniedCommands(t *testing.T) {
	deniedFair(t,
		deniedCase{"free", "fair_acquire", "", "", -1, "hlen hset lindex pexpire pttl time zcard"},
		deniedCase{"reentry", "fair_acquire", "G1", "G2", -1, "hgetall hlen hset pexpire pttl time"},
		deniedCase{"release in part", "fair_release", "G1=2", "G2 J3", 1, "hdel hgetall hlen hset"},
	)

	// A denied notification does not stop the rest of the script.
	s := redistest.Start(t)
	admin := fair{t, s.Client(t)}
	mute := fair{t, denied(t, s, "publish")}
	admin.gets("G1")
	admin.waits("G2", "G3", "G4")
	mute.releases("G1", luascripts.Done)
	mute.releases("G2", luascripts.Gone)
	admin.dies("G3")
	if kept := mute.keeps("G4"); !kept.MustRetry[0] {
		t.Errorf("heartbeat without the right to publish: %+v", kept)
	}
	admin.held("G1", long)
	got, err := luascripts.ForceFair(t.Context(), mute.rdb, fairKeys)
	check(t, "force", got, luascripts.Done, err)

	// A denial says nothing about the lock.
	if _, err := luascripts.KeepFair(t.Context(), denied(t, s, "zadd"), fairKeys, []luascripts.Waiter{{Owner: owner("G4"), WaiterTimeout: waiterTimeout}}); err == nil {
		t.Error("heartbeat without zadd: no error")
	}
	if _, err := luascripts.InspectFair(t.Context(), denied(t, s, "lrange"), fairKeys); err == nil {
		t.Error("inspect without lrange: no error")
	}
}

// The scripts are sent again to a server that has lost them.
func TestFair_noScript(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	for _, step := range []func(){
		func() { q.gets("G1") },
		func() { q.waits("G2") },
		func() { q.keeps("G2") },
		func() { q.releases("G1", luascripts.Done) },
		func() { q.gets("G2") },
		func() {
			got, err := luascripts.ForceFair(t.Context(), q.rdb, fairKeys)
			check(t, "force", got, luascripts.Done, err)
		},
	} {
		s.Do(t, "SCRIPT", "FLUSH")
		step()
	}
	if all := contents(t, q.rdb); all != "" {
		t.Errorf("left behind:\n%s", all)
	}
}

// Any reply of a broken server is an error, not a grant.
func FuzzFairReplies(f *testing.F) {
	for _, s := range []string{
		"+1732160000000000\r\n", "$1\r\n0\r\n", ":5\r\n", ":-1\r\n", ":-4\r\n", ":-5\r\n", ":-9\r\n", "$-1\r\n", "*0\r\n", "-ERR x\r\n", "+OK\r\n",
		"*2\r\n:1\r\n:1\r\n", "*2\r\n:-2\r\n:0\r\n", "*2\r\n:5\r\n:1\r\n", "*2\r\n:5\r\n:-2\r\n", "*2\r\n:5\r\n:7\r\n", "*3\r\n:5\r\n:1\r\n:1\r\n", "*2\r\n:5\r\n$1\r\na\r\n",
		"*3\r\n:1\r\n$1\r\n7\r\n$0\r\n\r\n", "*3\r\n:1\r\n$1\r\n7\r\n$2\r\n12\r\n", "*3\r\n:1\r\n$1\r\n7\r\n:12\r\n", "*3\r\n:2\r\n$1\r\n7\r\n$0\r\n\r\n", "*3\r\n:1\r\n:0\r\n$1\r\n7\r\n", "*4\r\n:1\r\n:0\r\n$1\r\n7\r\n$2\r\n12\r\n", "*4\r\n:1\r\n:0\r\n$1\r\na\r\n$1\r\na\r\n",
		"*3\r\n:5\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n*2\r\n$1\r\nb\r\n:5\r\n", "*3\r\n:5\r\n*0\r\n*1\r\n$1\r\nb\r\n", "*3\r\n:5\r\n:1\r\n*0\r\n", "*3\r\n:5\r\n*0\r\n*2\r\n:5\r\n$1\r\nb\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		rdb, ok := answering(t, reply)
		if !ok {
			return
		}
		got, err := luascripts.AcquireFair(t.Context(), rdb, fairKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout})
		plausibleGrant(t, reply, got, err)
		v, err := luascripts.ReleaseFair(t.Context(), rdb, fairKeys, owner("G1"), 0)
		plausibleVerdict(t, reply, v, err, luascripts.Done, luascripts.Gone, luascripts.Foreign)
		v, err = luascripts.ForceFair(t.Context(), rdb, fairKeys)
		plausibleVerdict(t, reply, v, err, luascripts.Done, luascripts.Free, luascripts.Foreign)

		kept, err := luascripts.KeepFair(t.Context(), rdb, fairKeys, []luascripts.Waiter{{Owner: owner("G1"), WaiterTimeout: waiterTimeout}})
		switch {
		case err != nil && (kept.MustRetry != nil || kept.Left != 0):
			t.Errorf("an error with a reply: %+v, %v", kept, err)
		case err == nil && (len(kept.MustRetry) != 1 || kept.Left < luascripts.NoExpiry):
			t.Errorf("heartbeat of one: %+v by %q", kept, reply)
		case err == nil && !regexp.MustCompile("[^0-9](-?0*[01]|-?0*2)\r\n$").Match(reply):
			t.Errorf("no number that means something, and yet %+v by %q", kept, reply)
		}
		s, err := luascripts.InspectFair(t.Context(), rdb, fairKeys)
		plausibleSnapshot(t, reply, s, err, "*3")
	})
}

// Conditions in the scripts of the fair lock whose removal no other test detects.

// bounded fails the test unless queue and zset have an expiry.
func (q fair) bounded(what string) {
	q.t.Helper()
	for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
		if left := pttl(q.t, q.rdb, key); left <= 0 {
			q.t.Errorf("%s: %s has no expiry", what, key)
		}
	}
}

// One of the two keys was persisted manually. Both have an expiry after the next use, even in a queue that is
// too long to be read. They have none if an owner of Redisson waits.
func TestFair_oneOfTwoPersisted(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
			q.queued("G1 G2")
			for _, each := range []string{fairKeys.Queue, fairKeys.Timeouts} { // so long that it need not be extended
				do(t, q.rdb, "PEXPIRE", each, fmt.Sprint((time.Hour + 3*waiterTimeout).Milliseconds()))
			}
			do(t, q.rdb, "PERSIST", key)
			q.waits("G2")
			q.outlives("persisted was " + key)
			do(t, q.rdb, "DEL", fairKeys.Queue, fairKeys.Timeouts)
		}
		q.queuedMany(waiterTimeout, names(1, 101)...)
		do(t, q.rdb, "PERSIST", fairKeys.Timeouts)
		q.waits("G2")
		q.outlives("a long queue")

		q.queued("J102")
		do(t, q.rdb, "PERSIST", fairKeys.Timeouts)
		q.waits("G103")
		q.lasts("a long queue with one of Redisson at its end")
	})
}

// A queue without an expiry gets one if it is short enough to be read, because an owner of Redisson may be in the middle.
func TestFair_persistedAndLong(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		for _, n := range []int{100, 101} {
			do(t, q.rdb, "DEL", fairKeys.Queue, fairKeys.Timeouts)
			q.queuedMany(waiterTimeout, names(1, n)...)
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

// No call removes the expiry of a queue of only our waiters.
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

// The expiry is an hour plus the waiter timeout of the calling owner, before other owners are counted.
func TestFair_expiryForTheCaller(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G9", long)
		for what, use := range map[string]func(){
			"a request":   func() { q.waits("G2") },
			"a heartbeat": func() { q.keeps("G1", "G2") },
		} {
			do(t, q.rdb, "DEL", fairKeys.Queue, fairKeys.Timeouts)
			q.queued("G1 G2")
			for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
				do(t, q.rdb, "PEXPIRE", key, fmt.Sprint((time.Hour + waiterTimeout/2).Milliseconds()))
			}
			use()
			q.outlives(what)
		}
	})
}

// The server's clock moved backward by half a second. That must not count another owner of Redisson.
func TestFair_clockGoesBack(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queuedMany(waiterTimeout, names(1, 150)...)
		for name, use := range map[string]func(){
			"G120": func() { q.waits("G120") },
			"G140": func() { q.keeps("G140") },
		} {
			q.deadline(name, waiterTimeout+time.Second/2)
			use()
			about(t, name, q.left(name), waiterTimeout)
		}
		q.deadline("G150", waiterTimeout+time.Second/2)
		q.waits("G151")
		about(t, "G151", q.left("G151"), waiterTimeout)
	})
}

// As for Redisson, an owner is dead as soon as its deadline is reached.
func TestFair_deadFromItsDeadlineOn(t *testing.T) {
	m := redistest.NewMini(t)
	q := fair{t, m.Client(t)}
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m.SetTime(noon)
	for what, queue := range map[string][]string{
		"the first":                  {"G1"},
		"the second":                 {"G1", "G2"},
		"the last that is looked at": names(1, 101),
	} {
		q.clear()
		q.queuedMany(waiterTimeout, queue...)
		m.SetTime(noon.Add(waiterTimeout - time.Millisecond))
		if got := q.ask("G999", 0); got.Verdict != luascripts.Held || got.Left != time.Millisecond {
			t.Errorf("%s, a millisecond before: %+v", what, got)
		}
		m.SetTime(noon.Add(waiterTimeout))
		if got := q.ask("G999", 0); got.Verdict != luascripts.Done {
			t.Errorf("%s, at its deadline: %+v", what, got)
		}
		m.SetTime(noon)
	}
	// A heartbeat reads the queue if its first owner is dead, and counts one owner of Redisson behind it.
	q.clear()
	q.held("G9", long)
	q.queued("G3 J4 G1")
	m.SetTime(noon.Add(waiterTimeout))
	q.deadline("J4", javaWait)
	q.deadline("G1", waiterTimeout)
	q.keeps("G1")
	about(t, "behind one of Redisson", q.left("G1"), waiterTimeout+javaWait)
	m.SetTime(noon)

	// A script that removes a hundred owners reports that there are more.
	q.clear()
	q.queuedMany(waiterTimeout, names(1, 101)...)
	m.SetTime(noon.Add(waiterTimeout))
	reply := eval(t, q.rdb, luascripts.Text("fair_acquire"), []string{fairKeys.Lock, fairKeys.Queue, fairKeys.Timeouts, fairKeys.Never}, owner("G999"), "60000", "1", "0")
	if n, err := reply.ToInt64(); err != nil || n != -5 || q.queue() != "G101" {
		t.Errorf("the script answers %d, %v, and %s wait", n, err, q.queue())
	}
}

// The deadline of one owner was deleted manually, and the owners ahead of it are dead. It gets a new deadline.
func TestFair_noDeadlineBehindTheDead(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for _, dead := range []int{1, 100} {
			q.clear()
			q.queuedMany(-time.Second, names(101, 100+dead)...)
			q.queued("G1 G2")
			do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G1"))
			if got := q.ask("G3", 0); got.Verdict != luascripts.Held || got.Left != 5*time.Second || q.queue() != "G1 G2" {
				t.Errorf("behind %d dead: %+v, and %s wait", dead, got, q.queue())
			}
		}
	})
}

// The deadlines were deleted manually. Waiting owners keep their positions with their heartbeat, and need not send a
// request.
func TestKeepFair_withoutDeadlines(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queued("G1 G2 G3")
		do(t, q.rdb, "DEL", fairKeys.Timeouts)
		if kept := q.keeps("G1", "G2", "G3"); slices.Contains(kept.MustRetry, true) || q.queue() != "G1 G2 G3" {
			t.Errorf("%+v, and %s wait", kept, q.queue())
		}
		about(t, "G3", q.left("G3"), waiterTimeout)

		// One of the deadlines in a long queue, but not the owner's own.
		q.clear()
		q.held("G999", long)
		q.queuedMany(waiterTimeout, names(1, 150)...)
		do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G5"))
		if kept := q.keeps("G140"); kept.MustRetry[0] {
			t.Errorf("G140 is in the queue, and yet: %+v", kept)
		}

		// A heartbeat in several parts, of owners that are not in the queue.
		q.clear()
		q.queued("G1")
		do(t, q.rdb, "DEL", fairKeys.Timeouts)
		if kept := q.keeps(names(101, 201)...); slices.Contains(kept.MustRetry, false) || q.queue() != "G1" {
			t.Errorf("%+v, and %s wait", kept, q.queue())
		}
	})
}

// An owner has a deadline and is not in the queue, which has more owners than deadlines. It has to send a request.
func TestKeepFair_aDeadlineIsNoPosition(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queued("G1 G2 G3")
		do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G1"), owner("G2"))
		q.deadline("G9", waiterTimeout)
		if kept := q.keeps("G9"); !kept.MustRetry[0] {
			t.Errorf("G9 waits on, and is not in the queue: %+v", kept)
		}
	})
}

// Only the last script of a heartbeat notifies an owner of Redisson of its turn.
func TestKeepFair_notifiesOnce(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		q.queued("J999")
		q.queuedMany(waiterTimeout, names(1, 250)...)
		q.keeps(names(1, 250)...)
		e.expect(notified("J999")...)
	})
}

// The queue of a plain lock with the same name is not an owner of Redisson.
func TestKeepFair_besideAPlainQueue(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.hold(another(1))
		do(t, q.rdb, "HSET", fairKeys.Lock, luascripts.QueueField, "0|")
		if kept := q.enters(own(1)); kept.Own[0] || kept.MustRetry[0] {
			t.Errorf("%+v", kept)
		}
		if got := q.ask("G1", waiterTimeout); got.Verdict != luascripts.Held || got.Own {
			t.Errorf("%+v", got)
		}
	})
}

// After the holder of a lock leaves, the queue of a plain lock remains, which is not a holder.
func TestFair_queueAlone(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		queue := func() {
			q.clear()
			do(t, q.rdb, "HSET", fairKeys.Lock, luascripts.QueueField, "0|")
			q.queued("G1")
		}
		queue()
		if got := q.ask("G1", waiterTimeout); got.Verdict != luascripts.Done {
			t.Errorf("its turn: %+v", got)
		}
		queue()
		q.held("G9", long)
		if got := q.ask("G9", waiterTimeout); got.Verdict != luascripts.Done {
			t.Errorf("its own: %+v", got)
		}
		q.releases("G9", luascripts.Done)
		if n := number(t, q.rdb, "EXISTS", fairKeys.Lock); n != 0 {
			t.Error("a queue is left without a holder")
		}
		e.expect(notified("G1")...)

		queue()
		q.held("G9", long)
		got, err := luascripts.HandOffFair(t.Context(), q.rdb, fairKeys, owner("G9"), luascripts.Release{NextOwner: owner("G1"), Offer: lease})
		if err != nil || got.Token == 0 || q.holder() != "G1=1" {
			t.Errorf("%+v, %v, and %q has it", got, err, q.holder())
		}

		queue()
		q.releases("G9", luascripts.Gone)
		e.expect(notified("G1")...)
	})
}

// A user that lacks permission for PUBLISH releases a lock to an owner of Redisson, which detects that by polling.
func TestReleaseFair_withoutMessagesToRedisson(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.held("G1", long)
	q.queued("J2")
	fair{t, denied(t, s, "publish")}.releases("G1", luascripts.Done)
	q.javaGets("J2")
}

// A token counter that cannot be incremented is an error, and the owner acquires nothing.
func TestAcquireFair_badTokenCounter(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		spoilt := fairKeys
		spoilt.TokenCounter = "redisson_lock_token:{orders}"
		do(t, q.rdb, "SET", spoilt.TokenCounter, "9007199254740991")
		q.queued("G1 G2")
		before := contents(t, q.rdb)
		if got, err := luascripts.AcquireFair(t.Context(), q.rdb, spoilt, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout}); err == nil {
			t.Errorf("%+v", got)
		}
		if after := contents(t, q.rdb); after != before {
			t.Errorf("an error made\n%sout of\n%s", after, before)
		}
	})
}

// The next owner cannot be removed from the queue. It is not granted the lock, and is notified.
func TestHandOffFair_nextOwnerStaysInTheQueue(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.hold(own(1))
	q.waiting(own(2))
	e := listen(t, q.rdb)
	got, err := luascripts.HandOffFair(t.Context(), denied(t, s, "lrem"), fairKeys, own(1), luascripts.Release{NextOwner: own(2), Offer: lease})
	if err != nil || got.Verdict != luascripts.Done || got.Token != 0 || len(q.holders()) != 0 || !slices.Equal(q.members(), []string{own(2)}) {
		t.Errorf("%+v, %v, %q has the lock and %q wait", got, err, q.holders(), q.members())
	}
	e.expect(turnOf(own(2)))
}

// Each part of a queue starts behind the last owner of the previous part or, if that owner has left, at its position.
// No part has more than a hundred owners.
func TestInspectFair_parts(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.queuedMany(waiterTimeout, names(1, 250)...)
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

// A queue without an expiry is read before it gets one. If that is denied, the owner does not enter.
func TestAcquireFair_deniedToRead(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.held("G9", long)
	q.queued("G2")
	for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
		do(t, q.rdb, "PERSIST", key)
	}
	before := contents(t, q.rdb)
	got, err := luascripts.AcquireFair(t.Context(), denied(t, s, "lrange"), fairKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout})
	if _, denied := rueidis.IsRedisErr(err); !denied {
		t.Errorf("%+v, %v", got, err)
	}
	if after := contents(t, q.rdb); after != before {
		t.Errorf("an error made\n%sout of\n%s", after, before)
	}
}

// A script reads a hundred owners. An owner behind them therefore relies on its own deadline, whatever is in between.
func TestFair_behindTheFirstHundred(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queuedMany(waiterTimeout, names(1, 150)...)
		for name, use := range map[string]func(){
			"G120": func() { q.waits("G120") },
			"G140": func() { q.keeps("G140") },
		} {
			q.deadline(name, waiterTimeout+javaWait)
			use()
			about(t, name, q.left(name), waiterTimeout+javaWait)
		}
	})
}

// An owner that enters a long queue counts the owners of Redisson at its end, even behind owners of ours that are
// dead or have no deadline. It counts the owners that it does not read as Redisson's.
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
				q.queuedMany(waiterTimeout, "G1")
				q.queuedMany(-time.Second, names(2, 100)...)
				q.queuedMany(javaWait, theirs(101, 130)...)
			}, 30},
			"before the dead": {func() {
				q.queuedMany(waiterTimeout, names(1, 90)...)
				q.queuedMany(javaWait, theirs(91, 120)...)
				q.queuedMany(-time.Second, "G121")
			}, 30},
			"one has no deadline": {func() {
				q.queuedMany(waiterTimeout, names(1, 120)...)
				do(t, q.rdb, "ZREM", fairKeys.Timeouts, owner("G120"))
				q.queuedMany(javaWait, theirs(121, 130)...)
			}, 10},
			"more than it sees": {func() {
				q.queuedMany(waiterTimeout, names(1, 30)...)
				q.queuedMany(javaWait, theirs(31, 260)...)
			}, 230},
		} {
			q.clear()
			q.held("G999", long)
			c.make()
			q.waits("G500")
			about(t, name, q.left("G500"), waiterTimeout+c.want*javaWait)
		}
	})
}

// The remaining time of a deadline is not reliable if the owner is late, or has changed its waiter timeout. Then the
// queue is read.
func TestFair_doubtfulDeadlines(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for name, c := range map[string]struct {
			left, waiterTimeout time.Duration // of G1
		}{
			"late for most of its patience":  {waiterTimeout / 3, waiterTimeout},
			"more patient than before":       {waiterTimeout + javaWait, 2 * javaWait},
			"more patient, and late as well": {javaWait, 2 * javaWait},
		} {
			for what, use := range map[string]func(){
				"a request": func() { q.ask("G1", c.waiterTimeout) },
				"a heartbeat": func() {
					if _, err := luascripts.KeepFair(t.Context(), q.rdb, fairKeys, []luascripts.Waiter{{Owner: owner("G1"), WaiterTimeout: c.waiterTimeout}}); err != nil {
						t.Error(err)
					}
				},
			} {
				q.clear()
				q.held("G9", long)
				q.queued("G3 J2 G1")
				q.deadline("G1", c.left)
				use()
				about(t, name+", "+what, q.left("G1"), c.waiterTimeout+javaWait)
			}
		}
		for name, c := range map[string]struct {
			left, waiterTimeout time.Duration // of the last owner, and of the one that arrives
		}{
			"the last is late":               {javaWait - 20*time.Second, waiterTimeout},
			"it has more patience than that": {waiterTimeout + javaWait, 2 * javaWait},
		} {
			q.clear()
			q.held("G9", long)
			q.queued("J2 G3")
			q.deadline("G3", c.left)
			q.ask("G1", c.waiterTimeout)
			about(t, name, q.left("G1"), c.waiterTimeout+javaWait)
		}
	})
}

// If there is a deadline without a position, or a position without a deadline, the owner that leaves is removed from both.
func TestReleaseFair_deadlinesAndPositionsDiffer(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for name, spoil := range map[string]func(){
			"another's deadline without a place": func() { q.deadline("G9", waiterTimeout) },
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

// A release by an owner that holds nothing leaves the queue of the plain lock unchanged.
func TestReleaseFair_leavesThePlainQueue(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G9", long)
		do(t, q.rdb, "HSET", fairKeys.Lock, luascripts.QueueField, "0|")
		q.releases("G1", luascripts.Gone)
		if number(t, q.rdb, "HEXISTS", fairKeys.Lock, luascripts.QueueField) != 1 {
			t.Error("the queue is gone")
		}
	})
}

// A heartbeat removes the expiry of a queue with an owner of Redisson, wherever that owner waits.
func TestKeepFair_theirsInAQueueWithAnExpiry(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for name, f := range map[string]func(){
			"before the one that it is about, far behind": func() {
				q.queuedMany(waiterTimeout, names(1, 150)...)
				q.queuedMany(javaWait, "J151")
				q.queuedMany(waiterTimeout+javaWait, "G152")
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

// Entering the queue of a free lock takes several scripts for many owners. The first owner is notified to retry.
func TestKeepFair_manyEnterAFreeLock(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		var owners []string
		for n := range 150 {
			owners = append(owners, own(n))
		}
		kept := q.enters(owners...)
		if !kept.MustRetry[0] || slices.Contains(kept.MustRetry[1:], true) {
			t.Errorf("%+v", kept.MustRetry)
		}
		if left := pttl(t, q.rdb, fairKeys.Queue); left < time.Hour {
			t.Errorf("the queue is gone in %v", left)
		}
	})
}

// A heartbeat reads the queue only if necessary.
func TestKeepFair_deniedCommands(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	for _, c := range []struct{ name, queue, needs string }{
		{"ours", "G2 G1", "hgetall hlen lindex llen pttl time zadd zcard zmscore zrem zscore"},
		{"theirs", "J2 G1", "hgetall hlen lindex llen lrange pttl time zadd zcard zmscore zrem zscore"},
	} {
		var needs []string
		for _, command := range commands("fair_keep") {
			q.clear()
			q.held("G9", long)
			q.queued(c.queue)
			if c.queue[0] == 'J' {
				do(t, q.rdb, "PERSIST", fairKeys.Queue)
				do(t, q.rdb, "PERSIST", fairKeys.Timeouts)
			}
			if _, err := luascripts.KeepFair(t.Context(), denied(t, s, command), fairKeys, []luascripts.Waiter{{Owner: owner("G1"), WaiterTimeout: waiterTimeout}}); err != nil {
				needs = append(needs, command)
			}
		}
		if got := strings.Join(needs, " "); got != c.needs {
			t.Errorf("%s: it needs %s, want %s", c.name, got, c.needs)
		}
	}
}

// An owner that enters an empty queue sets its expiry without reading anything.
func TestKeepFair_entersAnEmptyQueueUnread(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.held("G9", long)
	fair{t, denied(t, s, "lrange")}.enters(owner("G1"))
	q.outlives("an empty queue")
}

// If dead owners cannot be removed from the queue, they keep their deadlines, so that they stay dead.
func TestFair_theDeadStayDead(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.queued("G2! G1")
	before := contents(t, q.rdb)
	if got, err := luascripts.AcquireFair(t.Context(), denied(t, s, "ltrim"), fairKeys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout}); err == nil {
		t.Errorf("%+v", got)
	}
	if after := contents(t, q.rdb); after != before {
		t.Errorf("an error made\n%sout of\n%s", after, before)
	}
}

// Deadlines are whole milliseconds, like those of Redisson.
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

// Transcript of the scripts of a fair lock at the exact end of a deadline or an expiry, and in queues that are read only in
// part.
func TestFair_transcript(t *testing.T) {
	play(t, `
		# a reentry without a hold, and a renewal of a place, are errors where they are denied
		without HDEL
		fair_acquire [l q t n] $a:01 1000 2 0 0 = !NOPERM
		without HLEN
		fair_force [l q t n] ch PUBLISH = !NOPERM
		without
		fair_acquire [l q t n] $a:01 1000 1 0 0 = [1 @0us '']
		fair_acquire [l q t n] $a:02 1000 1 5000 0 = [1000 0]
		LRANGE q 0 -1 = [$a:02]
		ZRANGE t 0 -1 WITHSCORES = [$a:02 @5000]
		wait 10
		without ZADD
		fair_acquire [l q t n] $a:02 1000 1 5000 0 = !NOPERM
		without PEXPIRE
		PERSIST q
		fair_acquire [l q t n] $a:02 1000 1 5000 0 = !NOPERM
		LRANGE q 0 -1 = [$a:02]
		fair_acquire [l q t n] $a:03 1000 1 5000 0 = !NOPERM
		LRANGE q 0 -1 = [$a:02]
		without ZREVRANGE
		fair_acquire [l q t n] $a:02 1000 1 5000 0 = !NOPERM
		LRANGE q 0 -1 = [$a:02]
		without ZREM
		fair_release [l q t n] $a:02 0 ch PUBLISH 0 0 '' 1000 = !NOPERM
		without LREM
		fair_release [l q t n] $a:02 0 ch PUBLISH 0 0 '' 1000 = !NOPERM
		without

		# the queue expires an hour after its last deadline, and at least that late whenever a place is kept
		DEL q t
		fair_acquire [l q t n] $a:02 1000 1 5000 0 = [990 0]
		PTTL q = 3905000
		PTTL t = 3905000
		PEXPIRE q 3605000
		PEXPIRE t 3605000
		fair_acquire [l q t n] $a:02 1000 1 5000 0 = [990 0]
		PTTL q = 3605000
		PEXPIRE q 3604999
		fair_acquire [l q t n] $a:02 1000 1 5000 0 = [990 0]
		PTTL q = 3905000
		PTTL t = 3905000

		# the longest patience of a heartbeat counts
		fair_acquire [l q t n] $a:03 1000 1 1000 0 = [990 0]
		PEXPIRE q 3604999
		fair_keep [l q t n] ch PUBLISH 1 0 5000 $a:02 1000 $a:03 = [990 0 0]
		PTTL q = 3905000
		PTTL t = 3905000

		# a free lock: the next look is when the first counts as dead
		DEL l q t
		RPUSH q $a:01 $b:01
		ZADD t @100 $a:01 @5000 $b:01
		fair_keep [l q t n] ch PUBLISH 0 0 4000 $b:01 = [1 0]
		fair_keep [l q t n] ch PUBLISH 1 0 4000 $b:01 = [90 0]
		PTTL q = 3904000
		fair_inspect [l q t n] $a:01 0 = [-2 [] [$b:01 4000]]
		fair_inspect [l q t n] $a:01 1 = [-2 [] [$b:01 4000]]
		fair_inspect [l q t n] $c:01 1 = [-2 [] [$b:01 4000]]
		wait 80
		fair_acquire [l q t n] $b:01 1000 1 0 0 = [10 0]
		wait 9
		fair_acquire [l q t n] $b:01 1000 1 0 0 = [1 0]
		wait 1
		fair_keep [l q t n] ch PUBLISH 0 0 = [1]
		PTTL q = 3903910
		fair_acquire [l q t n] $c:01 1000 1 0 0 = [3910 0]

		# all dead: the heartbeat drops them, and nothing is left to look at
		DEL l q t
		RPUSH q $a:01
		ZADD t @50 $a:01
		fair_keep [l q t n] ch PUBLISH 1 0 = [0]
		EXISTS q t = 0

		# a deadline in the past does not shorten the expiry of the queue
		RPUSH q $a:01
		ZADD t @50 $a:01
		fair_keep [l q t n] ch PUBLISH 0 0 = [1]
		PTTL q = 3900000

		# a queue with an owner of Redisson's does not expire; where that is denied, the call fails
		DEL l q t
		RPUSH q $a:05 %b:1 $a:01
		ZADD t @1000000 $a:05 @1000000 %b:1 @1000000 $a:01
		PEXPIRE q 50000
		PEXPIRE t 50000
		HSET l $c:01 1
		without PERSIST
		fair_acquire [l q t n] $a:01 1000 1 5000 0 = !NOPERM
		without
		fair_acquire [l q t n] $a:01 1000 1 5000 0 = [-1 1]
		PTTL q = -1
		PTTL t = -1
		ZSCORE t $a:01 = @305100.5

		# late by half the patience or more, a deadline no longer tells that no foreign owner is before it
		ZADD t @2600 $a:01
		fair_acquire [l q t n] $a:01 1000 1 5000 0 = [-1 1]
		ZSCORE t $a:01 = @305100.5
		ZADD t @600600 $a:01
		fair_acquire [l q t n] $a:01 1000 1 600000 0 = [-1 1]
		ZSCORE t $a:01 = @900100.5
		ZADD t @281100 $a:01
		fair_acquire [l q t n] $a:01 1000 1 1000 0 = [-1 1]
		ZSCORE t $a:01 = @301100.5

		# extra time ends at the front of the queue, up to the first owner of Redisson; if that is denied, it stays
		DEL l q t
		RPUSH q $a:01 $a:02 $a:03 %b:4 $a:05
		ZADD t @300000.5 $a:01 @300000 $a:02 @4000.5 $a:03 @600000.5 %b:4 @600000.5 $a:05
		without ZADD
		fair_acquire [l q t n] $a:06 1000 1 7000 0 = !NOPERM
		without
		fair_acquire [l q t n] $a:06 1000 1 0 0 = [299900 0]
		ZSCORE t $a:01 = @300000.5
		fair_acquire [l q t n] $a:06 1000 1 7000 0 = [7000 1]
		ZRANGE t 0 -1 WITHSCORES = [$a:03 @4000.5 $a:01 @7100 $a:02 @300000 $a:06 @307100.5 $a:05 @600000.5 %b:4 @600000.5]

		# the last millisecond of a lease: owners wait, and the next look is at once
		DEL l q t
		HSET l $a:01 1
		PEXPIRE l 1000
		RPUSH q $b:01
		ZADD t @9000000 $b:01
		wait 999500us
		PTTL l = 0
		EXISTS l = 1
		fair_keep [l q t n] ch PUBLISH 1 0 4000 $b:01 = [1 0]
	`)
	play(t, `
		# the owner at the end of the queue is dead: its deadline tells nothing
		HSET l $c:01 1
		RPUSH q $d:01 %b:1 $a:01
		ZADD t @1000000 $d:01 @1000000 %b:1 @0 $a:01
		fair_acquire [l q t n] $a:02 1000 1 5000 0 = [-1 1]
		ZSCORE t $a:02 = @305000.5

		# in a queue of a hundred, each owner is looked at
		FLUSHALL
		HSET l $c:01 1
		RPUSH q %b:1 $a:0{2..100}
		ZADD t @1000000 %b:1
		ZADD t @5000 $a:0200
		fair_keep [l q t n] ch PUBLISH 0 0 5000 $a:0200 5000 $a:0100 = [-1 -2 0]
		RPUSH q $a:0101
		fair_keep [l q t n] ch PUBLISH 0 0 5000 $a:0200 5000 $a:0100 = [-1 0 0]

		# of a longer one, the deadline says how many foreign owners are before its owner
		FLUSHALL
		HSET l $c:01 1
		RPUSH q %b:1 $a:0{2..100} $d:01 $d:02
		ZADD t @1000000 %b:1 @906000 $d:01 @0 $d:02
		fair_acquire [l q t n] $d:01 1000 1 5000 0 = [-1 1]
		ZSCORE t $d:01 = @905000.5
		fair_keep [l q t n] ch PUBLISH 0 0 5000 $d:01 = [-1 0]
		ZSCORE t $d:01 = @905000.5

		# or at least as many as are seen at the head
		FLUSHALL
		HSET l $c:01 1
		RPUSH q %b:1 %b:2 $a:0{3..100} $d:01 $d:02
		ZADD t @1000000 %b:1 @306000 $d:01 @0 $d:02
		fair_acquire [l q t n] $d:01 1000 1 5000 0 = [-1 1]
		ZSCORE t $d:01 = @605000.5
		ZADD t @306000 $d:01
		fair_keep [l q t n] ch PUBLISH 0 0 5000 $d:01 = [-1 0]
		ZSCORE t $d:01 = @605000.5

		# one that knows of foreign owners is enough to take the expiry off
		FLUSHALL
		HSET l $c:01 1
		RPUSH q $a:0{1..100} $d:01 $d:02
		ZADD t @906000 $d:01 @5000 $d:02
		PEXPIRE q 500000
		PEXPIRE t 500000
		fair_keep [l q t n] ch PUBLISH 0 0 5000 $d:01 5000 $d:02 = [-1 0 0]
		PTTL q = -1

		# an owner that enters a long queue counts the foreign owners at its ends
		FLUSHALL
		HSET l $c:01 1
		RPUSH q %b:1 %b:2 $a:0{3..100} $d:01 $d:02
		ZADD t @1000000 %b:1 @1000000 %b:2 @2000 $d:01 @0 $d:02
		fair_acquire [l q t n] $e:01 1000 1 5000 0 = [-1 1]
		ZSCORE t $e:01 = @605000.5

		# the least that a living owner at its end says counts, and a dead one says nothing
		FLUSHALL
		HSET l $c:01 1
		RPUSH q $a:0{1..200} $d:01 $d:02 $d:03 $d:04
		ZADD t @906000 $d:01 @306000 $d:02 @606000 $d:03 @0 $d:04
		fair_acquire [l q t n] $e:01 1000 1 5000 0 = [-1 1]
		ZSCORE t $e:01 = @305000.5
	`)
}
