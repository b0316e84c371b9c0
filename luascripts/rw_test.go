package luascripts_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The owners in these tests are called G1 and so on if they are ours, and J1 if they are
// Redisson's.

var rwKeys = rwKeysOf("orders", "{orders}")

// rwKeysOf returns the keys of a lock with this name. tagged is the name in braces, unless the name
// contains braces.
func rwKeysOf(name, tagged string) luascripts.Keys {
	return luascripts.Keys{
		Lock:    name,
		Channel: "redisson_rwlock:" + tagged,
		Publish: "PUBLISH",
		Never:   tagged + "::rwlock_timeout:0",
		ReadWriteKeys: luascripts.ReadWriteKeys{
			Intent:      "leasehold_rwlock_wish:" + tagged,
			Reservation: "leasehold_rwlock_turn:" + tagged,
			LeasePrefix: tagged,
		},
	}
}

// rw is a read/write lock on a server, with methods for the events of the tests.
type rw struct {
	t    *testing.T
	rdb  rueidis.Client
	keys luascripts.Keys
}

// onRW runs a test on both servers.
func onRW(t *testing.T, f func(t *testing.T, l rw)) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) { f(t, rw{t, rdb, rwKeys}) })
}

func (l rw) clear() {
	l.t.Helper()
	do(l.t, l.rdb, "FLUSHALL")
}

func (l rw) lease(name string, n int) string {
	return fmt.Sprintf("%s:%s:rwlock_timeout:%d", l.keys.LeasePrefix, owner(name), n)
}

// held creates a lock manually, such as "write G1:write=2 G2=1(1)" or "read G1=2(*) G3=1()": the
// mode, the writer, the readers, their hold counts, and which leases of a reader exist. All keys
// expire after d.
func (l rw) held(state string, d time.Duration) {
	l.t.Helper()
	for i, part := range strings.Fields(state) {
		if i == 0 {
			do(l.t, l.rdb, "HSET", l.keys.Lock, "mode", part)
			continue
		}
		name, rest, _ := strings.Cut(part, "=")
		count, leases, _ := strings.Cut(strings.TrimSuffix(rest, ")"), "(")
		name, writes := strings.CutSuffix(name, ":write")
		field := owner(name)
		if writes {
			field += ":write"
		}
		do(l.t, l.rdb, "HSET", l.keys.Lock, field, count)
		for _, n := range strings.FieldsFunc(leases, func(r rune) bool { return r == ',' }) {
			i, err := strconv.Atoi(n)
			value := "1"
			if err != nil {
				i, _ = strconv.Atoi(count)
				value = "all"
			}
			do(l.t, l.rdb, "SET", l.lease(name, i), value)
			l.ends(l.lease(name, i), d)
		}
	}
	if state != "" {
		l.ends(l.keys.Lock, d)
	}
}

// ends makes a key expire after d, unless d is persist.
func (l rw) ends(key string, d time.Duration) {
	l.t.Helper()
	if d > 0 {
		do(l.t, l.rdb, "PEXPIRE", key, strconv.FormatInt(d.Milliseconds(), 10))
	}
}

// reads makes the leases of a reader expire after d.
func (l rw) reads(name string, d time.Duration) {
	l.t.Helper()
	for n := range 10 {
		l.ends(l.lease(name, n), d)
	}
}

// dies deletes the leases of readers.
func (l rw) dies(names ...string) {
	l.t.Helper()
	for _, name := range names {
		for n := range 10 {
			do(l.t, l.rdb, "DEL", l.lease(name, n))
		}
	}
}

// state returns the lock in the form of held, with the writer first.
func (l rw) state() string {
	l.t.Helper()
	m := do(l.t, l.rdb, "HGETALL", l.keys.Lock)
	fields, err := m.AsStrMap()
	if err != nil {
		l.t.Fatal(err)
	}
	var writers, readers []string
	for f, count := range fields {
		switch o, writes := strings.CutSuffix(f, ":write"); {
		case writes:
			writers = append(writers, short(o)+":write="+count)
		case f != "mode":
			readers = append(readers, short(o)+"="+count+"("+l.leases(short(o), count)+")")
		}
	}
	slices.Sort(writers)
	slices.Sort(readers)
	return strings.Join(append(append(strings.Fields(fields["mode"]), writers...), readers...), " ")
}

// leases returns the numbers of the leases that name has, or * for the lease of all its holds.
func (l rw) leases(name, count string) string {
	l.t.Helper()
	var all []string
	for n := range 10 {
		m := do(l.t, l.rdb, "GET", l.lease(name, n))
		switch value, _ := m.ToString(); {
		case value == "all" && strconv.Itoa(n) == count:
			all = append(all, "*")
		case value != "":
			all = append(all, strconv.Itoa(n))
		}
	}
	return strings.Join(all, ",")
}

// intent sets an intent of a writer that has been waiting for a while, and counts as alive for d
// more. "G5 10s" has been waiting for 10 s.
func (l rw) intent(intent string, d time.Duration) {
	l.t.Helper()
	name, waited, ok := strings.Cut(intent, " ")
	if !ok {
		return
	}
	since, err := time.ParseDuration(waited)
	if err != nil {
		l.t.Fatal(err)
	}
	do(l.t, l.rdb, "SET", l.keys.Intent, fmt.Sprintf("%s %d", owner(name), now(l.t, l.rdb)-since.Milliseconds()))
	l.ends(l.keys.Intent, d)
}

// storedIntent returns the intent in the form of intent, or "" if there is none. Times are rounded
// down to minutes.
func (l rw) storedIntent() string {
	l.t.Helper()
	m := do(l.t, l.rdb, "GET", l.keys.Intent)
	if m.IsNil() {
		return ""
	}
	text, _ := m.ToString()
	o, since, _ := strings.Cut(text, " ")
	ms, err := strconv.ParseInt(since, 10, 64)
	if err != nil {
		l.t.Fatalf("the intent is %q", text)
	}
	waited := time.Duration(now(l.t, l.rdb)-ms) * time.Millisecond
	return fmt.Sprintf("%s %dm", short(o), int(waited.Minutes()))
}

// asksToRead and asksToWrite send a first request, and return the reply.
func (l rw) asksToRead(name string, change ...func(*luascripts.Request)) luascripts.Acquired {
	l.t.Helper()
	q := luascripts.Request{Owner: owner(name), Lease: lease, Want: 1, Yield: true}
	for _, c := range change {
		c(&q)
	}
	got, err := luascripts.AcquireRead(l.t.Context(), l.rdb, l.keys, q)
	if err != nil {
		l.t.Fatalf("%s asks to read: %v", name, err)
	}
	return got
}

func (l rw) asksToWrite(name string, change ...func(*luascripts.Request)) luascripts.Acquired {
	l.t.Helper()
	q := luascripts.Request{Owner: owner(name), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout}
	for _, c := range change {
		c(&q)
	}
	got, err := luascripts.AcquireWrite(l.t.Context(), l.rdb, l.keys, q)
	if err != nil {
		l.t.Fatalf("%s asks to write: %v", name, err)
	}
	return got
}

func (l rw) expect(what string, got, want luascripts.Verdict) {
	l.t.Helper()
	if got != want {
		l.t.Fatalf("%s: %d, want %d; the lock is %q", what, got, want, l.state())
	}
}

func (l rw) isNow(want string) {
	l.t.Helper()
	if got := l.state(); got != want {
		l.t.Errorf("the lock is %q, want %q", got, want)
	}
}

func (l rw) stopsReading(name string, want luascripts.Verdict) {
	l.t.Helper()
	got, err := luascripts.ReleaseRead(l.t.Context(), l.rdb, l.keys, owner(name), 0)
	check(l.t, name+" stops reading", got, want, err)
}

func (l rw) stopsWriting(name string, want luascripts.Verdict) {
	l.t.Helper()
	got, err := luascripts.ReleaseWrite(l.t.Context(), l.rdb, l.keys, owner(name), 0)
	check(l.t, name+" stops writing", got, want, err)
}

func TestAcquireRead(t *testing.T) {
	const early, late = "G5 10m", "G5 1m" // intents; the caller has been waiting for 5 minutes
	onRW(t, func(t *testing.T, l rw) {
		for _, c := range []struct {
			name    string
			before  string
			lease   time.Duration // the lease of all existing keys
			intent  string
			want    int
			ask     time.Duration // the requested lease
			writer  string
			first   bool // do not yield
			verdict luascripts.Verdict
			left    time.Duration // in the reply, if it is rejected
			after   string
			ours    time.Duration // the caller's lease
			hash    time.Duration // the lease of the hash
		}{
			{"free", "", 0, "", 1, lease, "", false, luascripts.Done, 0, "read G1=1(1)", lease, lease},
			{"the same request again", "read G1=1(1)", lease, "", 1, long, "", false, luascripts.Done, 0, "read G1=1(1)", long, long},
			{"beside a longer lease", "read G2=1(1)", long, "", 1, lease, "", false, luascripts.Done, 0, "read G1=1(1) G2=1(1)", lease, long},
			{"beside a shorter lease", "read G2=1(1)", lease, "", 1, long, "", false, luascripts.Done, 0, "read G1=1(1) G2=1(1)", long, long},
			{"beside many", "read G2=3(1,2,3) J4=1(1)", long, "", 1, lease, "", false, luascripts.Done, 0, "read G1=1(1) G2=3(1,2,3) J4=1(1)", lease, long},
			{"beside the dead", "read G2=1()", lease, "", 1, long, "", false, luascripts.Done, 0, "read G1=1(1) G2=1()", long, long},
			{"reentry", "read G1=1(1)", lease, "", 2, long, "", false, luascripts.Done, 0, "read G1=2(*)", long, long},
			{"reentry again", "read G1=2(*)", lease, "", 2, long, "", false, luascripts.Done, 0, "read G1=2(*)", long, long},
			{"reentry with less of a lease", "read G1=1(1)", long, "", 2, lease, "", false, luascripts.Done, 0, "read G1=2(*)", long, long},
			{"reentry without an end", "read G1=1(1)", persist, "", 2, long, "", false, luascripts.Done, 0, "read G1=2(*)", long, long},
			{"reentry into what is gone", "", 0, "", 2, lease, "", false, luascripts.Gone, 0, "", 0, 0},
			{"reentry into what others read", "read G2=1(1)", long, "", 2, lease, "", false, luascripts.Gone, 0, "read G2=1(1)", 0, long},
			{"reentry of the dead", "read G1=1()", long, "", 2, lease, "", false, luascripts.Gone, 0, "read G1=1()", 0, long},
			{"the dead anew", "read G1=3()", lease, "", 1, long, "", false, luascripts.Done, 0, "read G1=1(1)", long, long},
			{"a count that is too large", "read G1=3(*)", long, "", 2, lease, "", false, luascripts.Done, 0, "read G1=2(*)", long, long}, // the third one is deleted
			{"another writes", "write G2:write=1", long, "", 1, lease, "", false, luascripts.Held, long, "write G2:write=1", 0, long},
			{"another writes for ever", "write G2:write=1", persist, "", 1, lease, "", false, luascripts.Held, luascripts.NoExpiry, "write G2:write=1", 0, persist},
			{"another writes and reads", "write G2:write=1 G2=1(1)", long, "", 1, lease, "", false, luascripts.Held, long, "write G2:write=1 G2=1(1)", 0, long},
			{"another writes, we wrote", "write G2:write=1", long, "", 1, lease, "G1", false, luascripts.Held, long, "write G2:write=1", 0, long},
			{"we write", "write G9:write=1", long, "", 1, lease, "G9", false, luascripts.Done, 0, "write G9:write=1 G1=1(1)", lease, long},
			{"we write, with a shorter lease", "write G9:write=1", lease, "", 1, long, "G9", false, luascripts.Done, 0, "write G9:write=1 G1=1(1)", long, long},
			{"we write and read", "write G9:write=1 G1=1(1)", long, "", 2, lease, "", false, luascripts.Done, 0, "write G9:write=1 G1=2(*)", long, long},
			{"we write, and another waits to", "write G9:write=1", long, early, 1, lease, "G9", false, luascripts.Done, 0, "write G9:write=1 G1=1(1)", lease, long},
			{"behind a writer that came before", "read G2=1(1)", long, early, 1, lease, "", false, luascripts.Held, waiterTimeout, "read G2=1(1)", 0, long},
			{"behind a writer that came before, and it is free", "", 0, early, 1, lease, "", false, luascripts.Held, waiterTimeout, "", 0, 0},
			{"behind a writer that came before, dead", "read G1=1() G2=1(1)", long, early, 1, lease, "", false, luascripts.Held, waiterTimeout, "read G1=1() G2=1(1)", 0, long},
			{"before a writer that came later", "read G2=1(1)", long, late, 1, lease, "", false, luascripts.Done, 0, "read G1=1(1) G2=1(1)", lease, long},
			{"past a writer, readers first", "read G2=1(1)", long, early, 1, lease, "", true, luascripts.Done, 0, "read G1=1(1) G2=1(1)", lease, long},
			{"reentry past a writer", "read G1=1(1) G2=1(1)", long, early, 2, lease, "", false, luascripts.Done, 0, "read G1=2(*) G2=1(1)", long, long},
			{"the same request again, past a writer", "read G1=1(1) G2=1(1)", long, early, 1, lease, "", false, luascripts.Done, 0, "read G1=1(1) G2=1(1)", long, long},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				l.held(c.before, c.lease)
				l.intent(c.intent, waiterTimeout)
				q := luascripts.Request{Owner: owner("G1"), Lease: c.ask, Want: c.want, Yield: !c.first, Waited: 5 * time.Minute}
				if c.writer != "" {
					q.Writer = owner(c.writer)
				}
				var first string
				for range 2 { // the second copy has no further effect
					got, err := luascripts.AcquireRead(t.Context(), l.rdb, l.keys, q)
					check(t, "reply", got.Verdict, c.verdict, err)
					about(t, "left", got.Left, c.left)
					if got.Token != 0 {
						t.Errorf("a reader is given the token %d", got.Token)
					}
					l.isNow(c.after)
					if c.verdict == luascripts.Done {
						about(t, "our lease", pttl(t, l.rdb, l.lease("G1", c.want)), c.ours)
					}
					for _, other := range []string{"G2", "J4"} {
						if strings.Contains(c.before, other+"=1(1)") {
							about(t, "the lease of "+other, pttl(t, l.rdb, l.lease(other, 1)), c.lease)
						}
					}
					if c.hash != 0 {
						about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), c.hash)
					}
					if got := l.storedIntent(); got != c.intent {
						t.Errorf("the intent is %q, was %q", got, c.intent)
					}
					all := contents(t, l.rdb)
					if first != "" && all != first {
						t.Errorf("a second copy made\n%sout of\n%s", all, first)
					}
					first = all
				}
			})
		}
	})
}

func TestAcquireWrite(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, c := range []struct {
			name          string
			before        string
			lease         time.Duration // the lease of all existing keys
			intent        string        // the intent of a waiting writer; the caller has been waiting for 5 minutes
			want          int
			ask           time.Duration // the requested lease
			waiterTimeout time.Duration
			verdict       luascripts.Verdict
			left          time.Duration // in the reply, if it is rejected
			after         string
			hash          time.Duration // the lease of the hash
			storedIntent  string
		}{
			{"free", "", 0, "", 1, lease, waiterTimeout, luascripts.Done, 0, "write G1:write=1", lease, ""},
			{"free, without waiting", "", 0, "", 1, lease, 0, luascripts.Done, 0, "write G1:write=1", lease, ""},
			{"free, after waiting", "", 0, "G1 5m", 1, lease, waiterTimeout, luascripts.Done, 0, "write G1:write=1", lease, ""},
			{"free, and another waits", "", 0, "G5 10m", 1, lease, waiterTimeout, luascripts.Done, 0, "write G1:write=1", lease, "G5 10m"},
			{"the same request again", "write G1:write=1", lease, "", 1, long, waiterTimeout, luascripts.Done, 0, "write G1:write=1", long, ""},
			{"reentry", "write G1:write=1", lease, "", 2, long, 0, luascripts.Done, 0, "write G1:write=2", long, ""},
			{"reentry again", "write G1:write=2", lease, "", 2, long, 0, luascripts.Done, 0, "write G1:write=2", long, ""},
			{"reentry with less of a lease", "write G1:write=1", long, "", 2, lease, 0, luascripts.Done, 0, "write G1:write=2", long, ""},
			{"reentry without an end", "write G1:write=1", persist, "", 2, long, 0, luascripts.Done, 0, "write G1:write=2", long, ""},
			{"reentry past a waiting writer", "write G1:write=1", long, "G5 10m", 2, lease, 0, luascripts.Done, 0, "write G1:write=2", long, "G5 10m"},
			{"reentry while reading", "write G1:write=1 G8=1(1)", long, "", 2, lease, 0, luascripts.Done, 0, "write G1:write=2 G8=1(1)", long, ""},
			{"a count that is too large", "write G1:write=3", long, "", 2, lease, 0, luascripts.Done, 0, "write G1:write=2", long, ""},
			{"reentry into what is gone", "", 0, "", 2, lease, 0, luascripts.Gone, 0, "", 0, ""},
			{"reentry into what another writes", "write G2:write=1", long, "", 2, lease, 0, luascripts.Gone, 0, "write G2:write=1", long, ""},
			{"reentry into what others read", "read G2=1(1)", long, "", 2, lease, 0, luascripts.Gone, 0, "read G2=1(1)", long, ""},
			{"another writes", "write G2:write=1", long, "", 1, lease, waiterTimeout, luascripts.Held, long, "write G2:write=1", long, "G1 5m"},
			{"another writes, without waiting", "write G2:write=1", long, "", 1, lease, 0, luascripts.Held, long, "write G2:write=1", long, ""},
			{"another writes for ever", "write J2:write=1", persist, "", 1, lease, waiterTimeout, luascripts.Held, luascripts.NoExpiry, "write J2:write=1", persist, "G1 5m"},
			{"another reads", "read G2=1(1)", long, "", 1, lease, waiterTimeout, luascripts.Held, long, "read G2=1(1)", long, "G1 5m"},
			{"another reads, without waiting", "read G2=1(1)", long, "", 1, lease, 0, luascripts.Held, long, "read G2=1(1)", long, ""},
			{"many read", "read G2=2(*) J3=1(1)", long, "", 1, lease, waiterTimeout, luascripts.Held, long, "read G2=2(*) J3=1(1)", long, "G1 5m"},
			{"we read", "read G1=1(1)", long, "", 1, lease, waiterTimeout, luascripts.Held, long, "read G1=1(1)", long, "G1 5m"},
			{"others read, and our field is left behind", "read G1:write=1 G2=1(1)", long, "", 1, lease, waiterTimeout, luascripts.Held, long, "read G1:write=1 G2=1(1)", long, "G1 5m"},
			{"the dead read", "read G2=1() J3=2()", long, "", 1, lease, waiterTimeout, luascripts.Done, 0, "write G1:write=1", lease, ""},
			{"the dead read, after waiting", "read G2=1()", long, "G1 5m", 1, lease, waiterTimeout, luascripts.Done, 0, "write G1:write=1", lease, ""},
			{"the dead and the living read", "read G2=1() G3=1(1) J4=1()", long, "", 1, lease, waiterTimeout, luascripts.Held, long, "read G3=1(1)", long, "G1 5m"},
			{"half dead", "read G2=2(2)", long, "", 1, lease, waiterTimeout, luascripts.Held, long, "read G2=2(2)", long, "G1 5m"},
			{"a writer waits that came before", "read G2=1(1)", long, "G5 10m", 1, lease, waiterTimeout, luascripts.Held, long, "read G2=1(1)", long, "G5 10m"},
			{"a writer waits that came later", "read G2=1(1)", long, "G5 1m", 1, lease, waiterTimeout, luascripts.Held, long, "read G2=1(1)", long, "G1 5m"},
			{"a writer waits that came later, without waiting", "read G2=1(1)", long, "G5 1m", 1, lease, 0, luascripts.Held, long, "read G2=1(1)", long, "G5 1m"},
			{"we wait already, and came before", "read G2=1(1)", long, "G1 10m", 1, lease, waiterTimeout, luascripts.Held, long, "read G2=1(1)", long, "G1 10m"},
			{"we wait already", "read G2=1(1)", long, "G1 1m", 1, lease, waiterTimeout, luascripts.Held, long, "read G2=1(1)", long, "G1 5m"},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				l.held(c.before, c.lease)
				l.intent(c.intent, 2*time.Minute)
				var first string
				for range 2 {
					before := time.Now()
					got, err := luascripts.AcquireWrite(t.Context(), l.rdb, l.keys, luascripts.Request{Owner: owner("G1"), Lease: c.ask, Want: c.want, Waited: 5 * time.Minute, WaiterTimeout: c.waiterTimeout})
					check(t, "reply", got.Verdict, c.verdict, err)
					about(t, "left", got.Left, c.left)
					if begins := c.verdict == luascripts.Done && c.want == 1; begins != (got.Token != 0) {
						t.Errorf("token %d, first hold %v", got.Token, begins)
					} else if begins && time.UnixMicro(int64(got.Token)).Sub(before).Abs() > time.Minute {
						t.Errorf("token %d is not the server's time in µs", got.Token)
					}
					l.isNow(c.after)
					if c.hash != 0 {
						about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), c.hash)
					}
					if got := l.storedIntent(); got != c.storedIntent {
						t.Errorf("the intent is %q, want %q", got, c.storedIntent)
					}
					switch {
					case c.storedIntent == "":
					case strings.HasPrefix(c.storedIntent, "G1"):
						about(t, "our intent", pttl(t, l.rdb, l.keys.Intent), c.waiterTimeout)
					default:
						about(t, "the other's intent", pttl(t, l.rdb, l.keys.Intent), 2*time.Minute)
					}
					all := contents(t, l.rdb)
					if first != "" && withoutIntent(all) != withoutIntent(first) {
						t.Errorf("a second copy made\n%sout of\n%s", all, first)
					}
					first = all
				}
			})
		}
	})
}

// withoutIntent returns contents without the intent, whose text contains a time.
func withoutIntent(contents string) string {
	lines := strings.SplitAfter(contents, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, rwKeys.Intent) }), "")
}

func TestReleaseRead(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		e := listen(t, l.rdb)
		for _, c := range []struct {
			name     string
			before   string
			ours     time.Duration // the caller's lease; the hash has the longest lease, that of the others
			others   time.Duration
			leave    int
			verdict  luascripts.Verdict
			after    string
			hash     time.Duration
			notified bool // waiters are notified that the lock is free
		}{
			{"the only one", "read G1=1(1)", long, 0, 0, luascripts.Done, "", 0, true},
			{"all holds at once", "read G1=3(*)", long, 0, 0, luascripts.Done, "", 0, true},
			{"one of two", "read G1=2(*)", long, 0, 1, luascripts.Done, "read G1=1(1)", long, false},
			{"one of two, again", "read G1=1(1)", long, 0, 1, luascripts.Done, "read G1=1(1)", long, false},
			{"more than there are", "read G1=1(1)", long, 0, 2, luascripts.Done, "read G1=2(*)", long, false},
			{"not the longest", "read G1=1(1) G2=1(1)", time.Minute, long, 0, luascripts.Done, "read G2=1(1)", long, false},
			{"the longest", "read G1=1(1) G2=1(1)", long, time.Minute, 0, luascripts.Done, "read G2=1(1)", time.Minute, false},
			{"the longest, and one of Redisson stays", "read G1=1(1) J2=2(1,2)", long, time.Minute, 0, luascripts.Done, "read J2=2(1,2)", time.Minute, false},
			{"the longest of the living", "read G1=1(1) G2=1(1) G3=1()", long, time.Minute, 0, luascripts.Done, "read G2=1(1) G3=1()", time.Minute, false},
			{"in part, as the longest", "read G1=2(*) G2=1(1)", long, time.Minute, 1, luascripts.Done, "read G1=1(1) G2=1(1)", long, false},
			{"the last living reader", "read G1=1(1) G2=1() J3=2()", long, long, 0, luascripts.Done, "", 0, true},
			{"dead, and others are alive", "read G1=1() G2=1(1)", 0, long, 0, luascripts.Gone, "read G2=1(1)", long, false},
			{"dead, in part", "read G1=2() G2=1(1)", 0, long, 1, luascripts.Gone, "read G1=2() G2=1(1)", long, false},
			{"dead as all", "read G1=1() G2=1()", 0, long, 0, luascripts.Gone, "", 0, true},
			{"free", "", 0, 0, 0, luascripts.Gone, "", 0, false},
			{"others read", "read G2=1(1)", 0, long, 0, luascripts.Gone, "read G2=1(1)", long, false},
			{"others read, in part", "read G2=2(*)", 0, long, 1, luascripts.Gone, "read G2=2(*)", long, false},
			{"another writes", "write G2:write=1", 0, long, 0, luascripts.Gone, "write G2:write=1", long, false},
			{"we write", "write G9:write=1 G1=1(1)", long, long, 0, luascripts.Done, "write G9:write=1", long, false},
			{"we write, in part", "write G9:write=1 G1=2(*)", long, long, 1, luascripts.Done, "write G9:write=1 G1=1(1)", long, false},
			{"we wrote it as the same owner", "write G1:write=1", 0, long, 0, luascripts.Gone, "write G1:write=1", long, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				l.held(c.before, c.others)
				l.reads("G1", c.ours)
				l.ends(l.keys.Lock, max(c.ours, c.others))
				var first string
				want, notified := c.verdict, []string(nil)
				if c.notified {
					notified = []string{l.keys.Channel + " 0"} // Redisson's clients only understand numbers
				}
				for range 2 {
					got, err := luascripts.ReleaseRead(t.Context(), l.rdb, l.keys, owner("G1"), c.leave)
					check(t, "release", got, want, err)
					l.isNow(c.after)
					if c.hash != 0 {
						about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), c.hash)
					}
					if c.leave == 1 && c.verdict == luascripts.Done {
						about(t, "our lease", pttl(t, l.rdb, l.lease("G1", 1)), c.ours)
					}
					e.expect(notified...)
					all := contents(t, l.rdb)
					if first != "" && all != first {
						t.Errorf("a second copy made\n%sout of\n%s", all, first)
					}
					first = all
					if notified = nil; c.leave == 0 {
						want = luascripts.Gone
					}
				}
			})
		}
	})
}

// Releasing one hold does not end the lease, whichever hold requested it.
func TestReleaseRead_inPartKeepsTheLease(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.held("read G1=3(1,2,3)", long)
		l.ends(l.lease("G1", 1), time.Minute)
		l.ends(l.lease("G1", 2), time.Minute)
		got, err := luascripts.ReleaseRead(t.Context(), l.rdb, l.keys, owner("G1"), 1)
		check(t, "release", got, luascripts.Done, err)
		l.isNow("read G1=1(1)")
		about(t, "our lease", pttl(t, l.rdb, l.lease("G1", 1)), long)
		about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), long)
	})
}

func TestReleaseWrite(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		e := listen(t, l.rdb)
		for _, c := range []struct {
			name         string
			before       string
			reading      time.Duration // the lease of the owner's read holds; the lease of its write holds is long
			intent       string
			leave        int
			verdict      luascripts.Verdict
			after        string
			hash         time.Duration
			storedIntent string
			notified     bool
		}{
			{"the only hold", "write G1:write=1", 0, "", 0, luascripts.Done, "", 0, "", true},
			{"the only hold, and another waits", "write G1:write=1", 0, "G5 10m", 0, luascripts.Done, "", 0, "G5 10m", true},
			{"all holds at once", "write G1:write=3", 0, "", 0, luascripts.Done, "", 0, "", true},
			{"one of two", "write G1:write=2", 0, "", 1, luascripts.Done, "write G1:write=1", long, "", false},
			{"one of two, again", "write G1:write=1", 0, "", 1, luascripts.Done, "write G1:write=1", long, "", false},
			{"more than there are", "write G1:write=1", 0, "", 2, luascripts.Done, "write G1:write=2", long, "", false},
			{"we read on", "write G1:write=1 G8=1(1)", time.Minute, "", 0, luascripts.Done, "read G8=1(1)", time.Minute, "", true},
			{"we read on, with a longer lease", "write G1:write=2 G8=2(*)", 20 * time.Minute, "", 0, luascripts.Done, "read G8=2(*)", 20 * time.Minute, "", true},
			{"in part, and we read", "write G1:write=2 G8=1(1)", time.Minute, "", 1, luascripts.Done, "write G1:write=1 G8=1(1)", long, "", false},
			{"our reading is dead", "write G1:write=1 G8=1()", 0, "", 0, luascripts.Done, "", 0, "", true},
			{"free", "", 0, "", 0, luascripts.Gone, "", 0, "", false},
			{"free, in part", "", 0, "", 1, luascripts.Gone, "", 0, "", false},
			{"another writes", "write G2:write=1", 0, "", 0, luascripts.Gone, "write G2:write=1", long, "", false},
			{"another writes, in part", "write G2:write=2", 0, "", 1, luascripts.Gone, "write G2:write=2", long, "", false},
			{"others read", "read G8=1(1)", time.Minute, "", 0, luascripts.Gone, "read G8=1(1)", time.Minute, "", false},
			{"we only read", "read G1=1(1)", time.Minute, "", 0, luascripts.Gone, "read G1=1(1)", long, "", false},
			{"a waiter", "read G8=1(1)", time.Minute, "G1 5m", 0, luascripts.Gone, "read G8=1(1)", time.Minute, "", true},
			{"a waiter, and it is free", "", 0, "G1 5m", 0, luascripts.Gone, "", 0, "", true},
			{"a waiter, and another writes", "write G2:write=1", 0, "G1 5m", 0, luascripts.Gone, "write G2:write=1", long, "", true},
			{"a waiter that no reader waits behind", "read G8=1(1)", time.Minute, "G5 10m", 0, luascripts.Gone, "read G8=1(1)", time.Minute, "G5 10m", false},
			{"in part, and we wait", "read G8=1(1)", time.Minute, "G1 5m", 1, luascripts.Gone, "read G8=1(1)", time.Minute, "G1 5m", false},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				l.held(c.before, long)
				l.reads("G8", c.reading)
				if strings.HasPrefix(c.before, "read G8") {
					l.ends(l.keys.Lock, c.reading)
				}
				l.intent(c.intent, waiterTimeout)
				var first string
				want, notified := c.verdict, []string(nil)
				if c.notified {
					notified = []string{l.keys.Channel + " 1"} // all readers may enter
				}
				for range 2 {
					got, err := luascripts.ReleaseWrite(t.Context(), l.rdb, l.keys, owner("G1"), c.leave)
					check(t, "release", got, want, err)
					l.isNow(c.after)
					if c.hash != 0 {
						about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), c.hash)
					}
					if got := l.storedIntent(); got != c.storedIntent {
						t.Errorf("the intent is %q, want %q", got, c.storedIntent)
					}
					e.expect(notified...)
					all := contents(t, l.rdb)
					if first != "" && all != first {
						t.Errorf("a second copy made\n%sout of\n%s", all, first)
					}
					first = all
					if notified = nil; c.leave == 0 {
						want = luascripts.Gone
					}
				}
			})
		}
	})
}

// Keys and values are correct byte for byte, for all kinds of names, because Redisson's clients
// expect the same ones.
func TestRW_bytes(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for name, tagged := range map[string]string{
			"orders":           "{orders}",
			"a:b:rwlock":       "{a:b:rwlock}",
			"{eu}:orders":      "{eu}:orders",
			"orders:{eu}:x{y}": "orders:{eu}:x{y}",
			"blank and ü%s":    "{blank and ü%s}",
		} {
			t.Run(name, func(t *testing.T) {
				l := rw{t, l.rdb, rwKeysOf(name, tagged)}
				l.clear()
				e := listen(t, l.rdb)
				const (
					g1 = "0192d3a4-7b1c-7e5f-8a6b-000000000001:1"
					g2 = "0192d3a4-7b1c-7e5f-8a6b-000000000002:2"
				)
				is := func(want string) {
					t.Helper()
					lines := strings.SplitAfter(strings.NewReplacer("NAME", name, "TAGGED", tagged, "G1", g1, "G2", g2).Replace(want), "\n")
					slices.Sort(lines)
					got := strings.SplitAfter(contents(t, l.rdb), "\n")
					slices.Sort(got)
					if !slices.Equal(got, lines) {
						t.Errorf("Redis has\n%s, want\n%s", strings.Join(got, ""), strings.Join(lines, ""))
					}
				}
				again := func(q *luascripts.Request) { q.Want = 2 }
				l.asksToWrite("G1")
				is("NAME hash [\"G1:write=1\" \"mode=write\"]\n")
				l.asksToWrite("G1", again)
				l.asksToRead("G2", func(q *luascripts.Request) { q.Writer = g1 })
				is("NAME hash [\"G1:write=2\" \"G2=1\" \"mode=write\"]\nTAGGED:G2:rwlock_timeout:1 string [\"1\"]\n")
				l.stopsWriting("G1", luascripts.Done)
				is("NAME hash [\"G2=1\" \"mode=read\"]\nTAGGED:G2:rwlock_timeout:1 string [\"1\"]\n")
				l.asksToRead("G1")
				l.asksToRead("G1", again)
				is("NAME hash [\"G1=2\" \"G2=1\" \"mode=read\"]\nTAGGED:G1:rwlock_timeout:2 string [\"all\"]\nTAGGED:G2:rwlock_timeout:1 string [\"1\"]\n")
				l.stopsReading("G2", luascripts.Done)
				is("NAME hash [\"G1=2\" \"mode=read\"]\nTAGGED:G1:rwlock_timeout:2 string [\"all\"]\n")
				l.stopsReading("G1", luascripts.Done)
				is("")
				e.expect("redisson_rwlock:"+tagged+" 1", "redisson_rwlock:"+tagged+" 0")

				l.asksToWrite("G1")
				l.asksToWrite("G2")
				m := do(t, l.rdb, "GET", "leasehold_rwlock_wish:"+tagged)
				if text, _ := m.ToString(); !regexp.MustCompile("^" + g2 + " [0-9]{13}$").MatchString(text) {
					t.Errorf("the intent is %q", text)
				}
			})
		}
	})
}

func TestRenewRW(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		named := func(name string) rw { return rw{t, l.rdb, rwKeysOf(name, "{"+name+"}")} }
		var readers, writers []luascripts.Renewal
		var wantReaders, wantWriters []luascripts.Verdict
		add := func(name, state string, d time.Duration, reads, writes luascripts.Verdict) {
			t.Helper()
			named(name).held(state, d)
			keys := named(name).keys
			readers = append(readers, luascripts.Renewal{Keys: &keys, Owner: owner("G1")})
			writers = append(writers, luascripts.Renewal{Keys: &keys, Owner: owner("G1")})
			wantReaders, wantWriters = append(wantReaders, reads), append(wantWriters, writes)
		}
		add("mine", "read G1=2(*)", 20*time.Second, luascripts.Done, luascripts.Gone)
		add("shared", "read G1=2(*) G2=1(1)", 20*time.Second, luascripts.Done, luascripts.Gone)
		add("longer", "read G1=2(*)", 20*time.Minute, luascripts.Done, luascripts.Gone)
		add("persisted", "read G1=2(*)", persist, luascripts.Done, luascripts.Gone)
		add("half", "read G1=2(1)", 20*time.Second, luascripts.Gone, luascripts.Gone)
		add("dead", "read G1=2() G2=1(1)", 20*time.Second, luascripts.Gone, luascripts.Gone)
		add("gone", "", 0, luascripts.Gone, luascripts.Gone)
		add("another", "read G2=2(*)", 20*time.Second, luascripts.Gone, luascripts.Gone)
		add("written", "write G1:write=1", 20*time.Second, luascripts.Gone, luascripts.Done)
		add("both", "write G1:write=1 G1=2(*)", 20*time.Second, luascripts.Done, luascripts.Done)
		add("deleted by hand", "read G1=2(*)", 20*time.Second, luascripts.Gone, luascripts.Gone)
		do(t, l.rdb, "DEL", "deleted by hand") // the leases still exist
		do(t, l.rdb, "SET", "foreign", "x")
		add("foreign", "", 0, luascripts.Foreign, luascripts.Foreign)
		before := strings.ReplaceAll(contents(t, l.rdb), "*", "") // persisted keys get an expiry again
		for _, perCall := range []int{1, 3, 100} {
			for what, c := range map[string]struct {
				got  []luascripts.Renewed
				want []luascripts.Verdict
			}{
				"read":  {luascripts.RenewRead(t.Context(), l.rdb, readers, long, perCall), wantReaders},
				"write": {luascripts.RenewWrite(t.Context(), l.rdb, writers, long, perCall), wantWriters},
			} {
				if len(c.got) != len(c.want) {
					t.Fatalf("%d replies for %d locks", len(c.got), len(c.want))
				}
				for i, r := range c.got {
					if r.Err != nil || r.Verdict != c.want[i] {
						t.Errorf("%s, %d at a time, %s: %d, %v, want %d", what, perCall, readers[i].Keys.Lock, r.Verdict, r.Err, c.want[i])
					}
				}
			}
		}
		if after := strings.ReplaceAll(contents(t, l.rdb), "*", ""); after != before {
			t.Errorf("renewing made\n%sout of\n%s", after, before)
		}
		for name, want := range map[string]time.Duration{"mine": long, "shared": long, "longer": 20 * time.Minute, "persisted": long, "half": 20 * time.Second, "dead": 20 * time.Second, "another": 20 * time.Second, "written": long, "both": long} {
			about(t, name, pttl(t, l.rdb, name), want)
		}
		for key, want := range map[string]time.Duration{
			named("mine").lease("G1", 2):   long,
			named("shared").lease("G1", 2): long,
			named("shared").lease("G2", 1): 20 * time.Second, // leases of other readers are not extended
			named("longer").lease("G1", 2): 20 * time.Minute,
			named("half").lease("G1", 1):   20 * time.Second,
			named("dead").lease("G2", 1):   20 * time.Second,
		} {
			about(t, key, pttl(t, l.rdb, key), want)
		}
	})
}

func TestInspectRW(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		inspect := func(state string, d time.Duration, intent string) luascripts.Snapshot {
			t.Helper()
			l.clear()
			l.held(state, d)
			l.intent(intent, waiterTimeout)
			before := contents(t, l.rdb)
			s, err := luascripts.InspectRW(t.Context(), l.rdb, l.keys)
			if err != nil {
				t.Fatal(err)
			}
			if after := contents(t, l.rdb); after != before {
				t.Errorf("looking made\n%sout of\n%s", after, before)
			}
			slices.SortFunc(s.Fields, func(a, b luascripts.Field) int { return strings.Compare(a.Name, b.Name) })
			return s
		}
		field := func(name, count string) luascripts.Field {
			name, writes := strings.CutSuffix(name, ":write")
			if writes {
				return luascripts.Field{Name: owner(name) + luascripts.Writing, Value: count}
			}
			return luascripts.Field{Name: owner(name), Value: count}
		}
		for _, c := range []struct {
			name   string
			before string
			lease  time.Duration
			mode   string
			fields []luascripts.Field
		}{
			{"read by three, one dead", "read G1=2(*) J2=1(1) G3=1()", long, "read", []luascripts.Field{field("J2", "1"), field("G1", "2")}},
			{"written", "write G1:write=3", long, "write", []luascripts.Field{field("G1:write", "3")}},
			{"written for ever", "write G1:write=3", persist, "write", []luascripts.Field{field("G1:write", "3")}},
			{"written and read", "write G1:write=1 G2=1(1)", long, "write", []luascripts.Field{field("G1:write", "1"), field("G2", "1")}},
			{"read by the dead", "read G3=1()", long, "read", nil},
		} {
			s := inspect(c.before, c.lease, "")
			if !s.Exists || s.Foreign || s.Mode != c.mode || !slices.Equal(s.Fields, c.fields) || len(s.Waiters) != 0 {
				t.Errorf("%s: %+v", c.name, s)
			}
			if c.lease == persist {
				c.lease = luascripts.NoExpiry
			}
			about(t, c.name, s.Left, c.lease)
		}
		if s := inspect("", 0, ""); s.Exists || s.Mode != "" || len(s.Fields)+len(s.Waiters) != 0 {
			t.Errorf("of nothing: %+v", s)
		}
		for _, state := range []string{"", "read G2=1(1)", "write G2:write=1"} {
			s := inspect(state, long, "G5 10m")
			if s.Exists != (state != "") || len(s.Waiters) != 1 || s.Waiters[0].Owner != owner("G5") {
				t.Errorf("%q with an intent: %+v", state, s)
				continue
			}
			about(t, "patience", s.Waiters[0].WaiterTimeout, waiterTimeout)
		}
	})
}

func TestForceRW(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		e := listen(t, l.rdb)
		for _, state := range []string{"read G1=2(*) J2=1(1) G3=1()", "write G1:write=3 G1=2(*)", "read G1=1(1)", "read G3=1()", "read G3=1() G9:write=1"} {
			for _, d := range []time.Duration{long, persist} {
				l.clear()
				l.held(state, d)
				for _, want := range []luascripts.Verdict{luascripts.Done, luascripts.Free} {
					got, err := luascripts.ForceRW(t.Context(), l.rdb, l.keys)
					check(t, "force "+state, got, want, err)
					if all := contents(t, l.rdb); all != "" {
						t.Errorf("left of %s:\n%s", state, all)
					}
				}
				e.expect(l.keys.Channel + " 1")
			}
		}
	})
}

// Readers with more holds than Lua can pass to one command are removed as well.
func TestForceRW_manyHolds(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		words := []string{"HSET", l.keys.Lock, "mode", "read"}
		for i := range 49 {
			words = append(words, owner(fmt.Sprint("G", i)), "300")
		}
		do(t, l.rdb, words...)
		got, err := luascripts.ForceRW(t.Context(), l.rdb, l.keys)
		check(t, "force", got, luascripts.Done, err)
		if all := contents(t, l.rdb); all != "" {
			t.Errorf("left:\n%s", all)
		}
	})
}

// A writer that enters after some of many readers were removed, because the others have left, keeps the lock.
func TestForceRW_writerEnters(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		words := []string{"HSET", l.keys.Lock, "mode", "read"}
		for i := range 120 {
			words = append(words, owner(fmt.Sprint("G", i)), "1")
		}
		do(t, l.rdb, words...)
		writerEnters := between{l.rdb, sync.OnceFunc(func() {
			if number(t, l.rdb, "HLEN", l.keys.Lock) < 2 {
				t.Error("one call removed all readers")
			}
			do(t, l.rdb, "DEL", l.keys.Lock)
			do(t, l.rdb, "HSET", l.keys.Lock, "mode", "write", owner("G999")+":write", "1")
		})}
		got, err := luascripts.ForceRW(t.Context(), writerEnters, l.keys)
		check(t, "force", got, luascripts.Done, err)
		if number(t, l.rdb, "HEXISTS", l.keys.Lock, owner("G999")+":write") != 1 {
			t.Error("it removed the writer, too")
		}
	})
}

// A writer with many read holds of the same owner whose leases have expired is removed as well.
func TestForceRW_writerBesideManyDead(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, dead := range []int{49, 50, 120} {
			l.clear()
			words := []string{"HSET", l.keys.Lock, "mode", "write", owner("G1") + ":write", "1"}
			for i := range dead {
				words = append(words, owner(fmt.Sprint("G", i+100)), "1")
			}
			do(t, l.rdb, words...)
			got, err := luascripts.ForceRW(t.Context(), l.rdb, l.keys)
			check(t, "force", got, luascripts.Done, err)
			if all := contents(t, l.rdb); all != "" {
				t.Errorf("left beside %d dead ones:\n%.300s", dead, all)
			}
		}
	})
}

// For a reader with very many holds, the keys of the latest 256 are deleted, down to the first one that is missing. The
// others expire, because the server does nothing else while a script runs.
func TestForceRW_boundedHolds(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, c := range []struct{ missing, stays int }{{0, 44}, {100, 99}} {
			l.clear()
			do(t, l.rdb, "HSET", l.keys.Lock, "mode", "read", owner("J1"), "300")
			for n := 1; n <= 300; n++ {
				if n != c.missing {
					do(t, l.rdb, "SET", l.lease("J1", n), "1", "PX", "60000")
				}
			}
			got, err := luascripts.ForceRW(t.Context(), l.rdb, l.keys)
			check(t, "force", got, luascripts.Done, err)
			for n := 1; n <= 300; n++ {
				if exists := number(t, l.rdb, "EXISTS", l.lease("J1", n)) == 1; exists != (n <= c.stays) {
					t.Fatalf("hold %d has a key: %v; those up to %d should", n, exists, c.stays)
				}
			}
		}
	})
}

// A hold count that no caller created does not keep the server busy.
func TestRW_hugeCount(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		const count = "30000000"
		for what, call := range map[string]func(){
			"a reader is back": func() { l.expect("read", l.asksToRead("G1").Verdict, luascripts.Done) },
			"a part is left": func() {
				v, err := luascripts.ReleaseRead(t.Context(), l.rdb, l.keys, owner("G1"), 1)
				check(t, "release", v, luascripts.Done, err)
			},
			"it leaves": func() { l.stopsReading("G1", luascripts.Done) },
		} {
			l.clear()
			do(t, l.rdb, "HSET", l.keys.Lock, "mode", "read", owner("G1"), count)
			do(t, l.rdb, "SET", l.keys.LeasePrefix+":"+owner("G1")+":rwlock_timeout:"+count, "1", "PX", "60000")
			before := time.Now()
			call()
			if passed := time.Since(before); passed > slow {
				t.Errorf("%s: after %v", what, passed)
			}
		}
	})
}

// 1: G1 writes. 2: It also reads. 3: It stops writing; readers are notified and enter immediately,
// and writers do not. 4: All stop reading, and the last one notifies the waiters.
func TestRW_downgrade(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		e := listen(t, l.rdb)
		l.expect("1", l.asksToWrite("G1").Verdict, luascripts.Done) // 1
		l.expect("a reader", l.asksToRead("G3").Verdict, luascripts.Held)
		asWriter := func(q *luascripts.Request) { q.Writer, q.Lease = owner("G1"), long }
		l.expect("2", l.asksToRead("G2", asWriter).Verdict, luascripts.Done) // 2
		l.expect("a reader", l.asksToRead("G3").Verdict, luascripts.Held)
		l.expect("a writer", l.asksToWrite("G4").Verdict, luascripts.Held)
		l.stopsWriting("G4", luascripts.Gone)
		e.expect(l.keys.Channel + " 1")

		l.stopsWriting("G1", luascripts.Done) // 3
		e.expect(l.keys.Channel + " 1")
		about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), long)
		l.isNow("read G2=1(1)")
		l.expect("a reader", l.asksToRead("G3").Verdict, luascripts.Done)
		l.expect("a writer", l.asksToWrite("G4").Verdict, luascripts.Held)
		l.expect("the former writer", l.asksToWrite("G1").Verdict, luascripts.Held)

		l.stopsReading("G2", luascripts.Done) // 4
		e.expect()
		l.stopsReading("G3", luascripts.Done)
		e.expect(l.keys.Channel + " 0")
		if all := withoutIntent(contents(t, l.rdb)); all != "" {
			t.Errorf("left behind:\n%s", all)
		}
		l.expect("a writer", l.asksToWrite("G4").Verdict, luascripts.Done)
	})
}

// 1: Many owners read. 2: A writer waits, and later readers wait behind it as long as it keeps
// sending requests. 3: An owner that reads may read again. 4: The last of the old readers leaves,
// and the writer writes. 5: It stops, and all enter.
func TestRW_writerIsNotStarved(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.asksToRead("G1") // 1
		l.asksToRead("G2")
		got := l.asksToWrite("G5", func(q *luascripts.Request) { q.Waited = time.Minute }) // 2
		l.expect("the writer", got.Verdict, luascripts.Held)
		reply := l.asksToRead("G3")
		l.expect("a newcomer", reply.Verdict, luascripts.Held)
		about(t, "a newcomer waits for", reply.Left, waiterTimeout)
		l.expect("a reader that came before", l.asksToRead("G4", func(q *luascripts.Request) { q.Waited = 2 * time.Minute }).Verdict, luascripts.Done)

		l.expect("reentry", l.asksToRead("G1", func(q *luascripts.Request) { q.Want = 2 }).Verdict, luascripts.Done) // 3

		for _, name := range []string{"G1", "G2", "G4"} { // 4
			l.expect("the writer", l.asksToWrite("G5", func(q *luascripts.Request) { q.Waited = time.Minute }).Verdict, luascripts.Held)
			l.stopsReading(name, luascripts.Done)
		}
		l.expect("a newcomer", l.asksToRead("G3").Verdict, luascripts.Held)
		l.expect("the writer", l.asksToWrite("G5").Verdict, luascripts.Done)
		l.stopsWriting("G5", luascripts.Done) // 5
		l.expect("the newcomer", l.asksToRead("G3").Verdict, luascripts.Done)

		// A writer that died while it waited keeps readers waiting for its waiter timeout, and no longer.
		l.expect("another writer", l.asksToWrite("G6").Verdict, luascripts.Held)
		if left := pttl(t, l.rdb, l.keys.Intent); left <= 0 || left > waiterTimeout {
			t.Errorf("its intent lives for %v", left)
		}
		do(t, l.rdb, "DEL", l.keys.Intent)
		l.expect("a newcomer", l.asksToRead("G7").Verdict, luascripts.Done)
	})
}

// A damaged intent keeps no reader waiting, and the next writer replaces it.
func TestRW_foreignIntents(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for name, make := range map[string][][]string{
			"garbage":        {{"SET", l.keys.Intent, "what is this", "PX", "60000"}},
			"empty":          {{"SET", l.keys.Intent, "", "PX", "60000"}},
			"no time":        {{"SET", l.keys.Intent, owner("G5"), "PX", "60000"}},
			"negative time":  {{"SET", l.keys.Intent, owner("G5") + " -1", "PX", "60000"}},
			"without an end": {{"SET", l.keys.Intent, owner("G5") + " 1"}},
			"persisted":      {{"SET", l.keys.Intent, owner("G5") + " 1", "PX", "60000"}, {"PERSIST", l.keys.Intent}},
			"list":           {{"RPUSH", l.keys.Intent, owner("G5") + " 1"}, {"PEXPIRE", l.keys.Intent, "60000"}},
			"hash":           {{"HSET", l.keys.Intent, owner("G5"), "1"}, {"PEXPIRE", l.keys.Intent, "60000"}},
		} {
			t.Run(name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				for _, args := range make {
					do(t, l.rdb, args...)
				}
				l.expect("a reader", l.asksToRead("G1").Verdict, luascripts.Done)
				if s, err := luascripts.InspectRW(t.Context(), l.rdb, l.keys); err != nil || len(s.Waiters) != 0 {
					t.Errorf("inspect: %+v, %v", s, err)
				}
				l.stopsWriting("G4", luascripts.Gone)
				asked := l.asksToWrite("G2", func(q *luascripts.Request) { q.Waited = 90 * time.Second })
				l.expect("a writer", asked.Verdict, luascripts.Held)
				if got := l.storedIntent(); got != "G2 1m" {
					t.Errorf("the intent is %q, want that of G2", got)
				}
				about(t, "the intent", pttl(t, l.rdb, l.keys.Intent), waiterTimeout)
				l.expect("a reader", l.asksToRead("G3").Verdict, luascripts.Held)
				l.stopsReading("G1", luascripts.Done)
				l.expect("the writer", l.asksToWrite("G2").Verdict, luascripts.Done)
				l.stopsWriting("G2", luascripts.Done)
				if all := contents(t, l.rdb); all != "" {
					t.Errorf("left behind:\n%s", all)
				}
			})
		}
	})
}

// Leases that were persisted manually get an expiry again when their reader renews, and keep the
// lock until then. A hash without an expiry does not.
func TestRW_persisted(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.held("read G1=1(1) G2=1(1)", long)
		do(t, l.rdb, "PERSIST", l.lease("G1", 1))
		got := l.asksToWrite("G5")
		l.expect("a writer", got.Verdict, luascripts.Held)
		about(t, "it waits for", got.Left, long)
		l.stopsReading("G2", luascripts.Done)
		l.isNow("read G1=1(1)")
		renewed := luascripts.RenewRead(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &l.keys, Owner: owner("G1")}}, long, 1)
		check(t, "renewal", renewed[0].Verdict, luascripts.Done, renewed[0].Err)
		about(t, "its lease", pttl(t, l.rdb, l.lease("G1", 1)), long)

		l.clear()
		l.held("read G1=1(1) G2=1()", long)
		do(t, l.rdb, "PERSIST", l.keys.Lock)
		l.stopsReading("G1", luascripts.Done)
		if all := contents(t, l.rdb); all != "" {
			t.Errorf("left behind:\n%s", all)
		}
		l.held("read G1=1() G2=1()", persist)
		l.expect("a writer", l.asksToWrite("G5").Verdict, luascripts.Done)
		about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), lease)
	})
}

// counters returns fields and values of an application's own hash.
func counters(n int) (fields []string) {
	for i := range n {
		fields = append(fields, strconv.Itoa(i), "1")
	}
	return fields
}

// A key that is not a read/write lock does not change, whatever it is.
func TestRW_foreignKeys(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for name, make := range map[string][]string{
			"string":                     {"SET", l.keys.Lock, "x"},
			"list":                       {"RPUSH", l.keys.Lock, "x"},
			"zset":                       {"ZADD", l.keys.Lock, "1", "mode"},
			"plain lock":                 {"HSET", l.keys.Lock, owner("G1"), "1"},
			"some hash":                  {"HSET", l.keys.Lock, "name", "bob", "age", "40"},
			"other mode":                 {"HSET", l.keys.Lock, "mode", "dark", owner("G1"), "1", owner("G1") + ":write", "1"},
			"counters":                   {"HSET", l.keys.Lock, "visits", "12", "42", "1"},
			"a mode":                     {"HSET", l.keys.Lock, "mode", "read"},
			"a mode and a counter":       {"HSET", l.keys.Lock, "mode", "read", "other", "1"},
			"a mode and owners of sorts": {"HSET", l.keys.Lock, "mode", "write", "42:1", "1", "me:write", "1"},
			"an owner and something":     {"HSET", l.keys.Lock, "mode", "read", owner("G2"), "1", "other", "1"},
			"an owner and no count":      {"HSET", l.keys.Lock, "mode", "read", owner("G2"), "x"},
			"owners and no mode":         {"HSET", l.keys.Lock, owner("G2"), "1", owner("G3") + ":write", "1"},
			"a mode and many counters":   append([]string{"HSET", l.keys.Lock, "mode", "read"}, counters(1000)...),
		} {
			t.Run(name, func(t *testing.T) {
				l := rw{t, l.rdb, l.keys}
				l.clear()
				e := listen(t, l.rdb)
				do(t, l.rdb, make...)
				l.ends(l.keys.Lock, long)
				before := contents(t, l.rdb)
				for want := 1; want <= 2; want++ {
					want := func(q *luascripts.Request) { q.Want, q.Writer = want, owner("G1") }
					l.expect("read", l.asksToRead("G1", want).Verdict, luascripts.Foreign)
					l.expect("write", l.asksToWrite("G1", want).Verdict, luascripts.Foreign)
				}
				for leave := range 2 {
					got, err := luascripts.ReleaseRead(t.Context(), l.rdb, l.keys, owner("G1"), leave)
					check(t, "release read", got, luascripts.Foreign, err)
					got, err = luascripts.ReleaseWrite(t.Context(), l.rdb, l.keys, owner("G1"), leave)
					check(t, "release write", got, luascripts.Foreign, err)
				}
				got, err := luascripts.ForceRW(t.Context(), l.rdb, l.keys)
				check(t, "force", got, luascripts.Foreign, err)
				if s, err := luascripts.InspectRW(t.Context(), l.rdb, l.keys); err != nil || !s.Exists || !s.Foreign {
					t.Errorf("inspect: %+v, %v", s, err)
				}
				for _, r := range luascripts.RenewRead(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &l.keys, Owner: owner("G1")}}, lease, 1) {
					if r.Err != nil || r.Verdict != luascripts.Gone && r.Verdict != luascripts.Foreign {
						t.Errorf("renewal: %+v", r)
					}
				}
				if after := contents(t, l.rdb); after != before {
					t.Errorf("the keys were\n%sand are\n%s", before, after)
				}
				about(t, "its expiry", pttl(t, l.rdb, l.keys.Lock), long)
				e.expect()
			})
		}
	})
}

// A lease that ends soon may belong to a dead reader, so waiters are notified to check.
func TestReleaseRead_besideAShortLease(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.held("read G1=1(1) G2=1(1)", long)
		l.reads("G2", 900*time.Millisecond)
		e := listen(t, l.rdb)
		l.stopsReading("G1", luascripts.Done)
		e.expect(l.keys.Channel + " 0")
	})
}

// The hash lives as long as any of many readers may that was not read.
func TestReleaseRead_besideMany(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		state := "read"
		for i := range 60 {
			state += fmt.Sprintf(" G%d=1(1)", 10+i)
		}
		l.held(state+" G1=1(1)", time.Minute)
		for i := range 60 {
			l.reads(fmt.Sprint("G", 10+i), long)
			l.reads("G1", long)
			l.ends(l.keys.Lock, long)
			l.stopsReading("G1", luascripts.Done)
			about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), long)
			l.reads(fmt.Sprint("G", 10+i), time.Minute)
			l.asksToRead("G1")
		}
	})
}

// Among many fields, a field that does not belong to a reader is ignored.
func TestRW_strangeFields(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.crowd(20, 0)
		do(t, l.rdb, "HSET", l.keys.Lock, "other", "x")
		l.expect("write", l.asksToWrite("G1").Verdict, luascripts.Held)
	})
}

// With full memory, no owner can acquire the lock, and its holders can continue.
func TestRW_fullMemory(t *testing.T) {
	s := redistest.Start(t)
	l := rw{t, s.Client(t), rwKeys}
	refused := func(what string, ask func() (luascripts.Acquired, error)) {
		t.Helper()
		before := contents(t, l.rdb)
		if got, err := ask(); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s: %+v, %v, want OOM", what, got, err)
		}
		if after := contents(t, l.rdb); after != before {
			t.Errorf("%s, refused, made\n%sout of\n%s", what, after, before)
		}
	}
	read := func(name string, want int) func() (luascripts.Acquired, error) {
		return func() (luascripts.Acquired, error) {
			return luascripts.AcquireRead(t.Context(), l.rdb, l.keys, luascripts.Request{Owner: owner(name), Lease: long, Want: want, Writer: owner("G1"), Yield: true})
		}
	}
	write := func(name string, want int) func() (luascripts.Acquired, error) {
		return func() (luascripts.Acquired, error) {
			return luascripts.AcquireWrite(t.Context(), l.rdb, l.keys, luascripts.Request{Owner: owner(name), Lease: long, Want: want, WaiterTimeout: waiterTimeout})
		}
	}
	granted := func(what string, ask func() (luascripts.Acquired, error)) {
		t.Helper()
		got, err := ask()
		check(t, what, got.Verdict, luascripts.Done, err)
	}
	full(t, s)
	refused("the first reader", read("G2", 1))
	refused("the writer", write("G1", 1))

	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	l.held("read G2=2(*) G3=1(1)", time.Minute)
	full(t, s)
	refused("another reader", read("G4", 1))
	got, err := write("G1", 1)()
	check(t, "a writer, which leaves no intent", got.Verdict, luascripts.Held, err)
	granted("reentry to read", read("G2", 3))
	for _, r := range luascripts.RenewRead(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &l.keys, Owner: owner("G2")}}, long, 1) {
		check(t, "renewal", r.Verdict, luascripts.Done, r.Err)
	}
	for _, leave := range []int{2, 1, 0} {
		got, err := luascripts.ReleaseRead(t.Context(), l.rdb, l.keys, owner("G2"), leave)
		check(t, fmt.Sprint("release to ", leave), got, luascripts.Done, err)
	}
	l.stopsReading("G3", luascripts.Done)

	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	l.held("write G1:write=2 G2=1(1)", time.Minute)
	full(t, s)
	granted("reentry to write", write("G1", 3))
	for _, leave := range []int{2, 1, 0} {
		got, err := luascripts.ReleaseWrite(t.Context(), l.rdb, l.keys, owner("G1"), leave)
		check(t, fmt.Sprint("release to ", leave), got, luascripts.Done, err)
	}
	l.isNow("read G2=1(1)")
	forced, err := luascripts.ForceRW(t.Context(), l.rdb, l.keys)
	check(t, "force", forced, luascripts.Done, err)
	if all := contents(t, l.rdb); all != "" {
		t.Errorf("left behind:\n%s", all)
	}
}

type deniedRWCase struct {
	name   string
	script string
	before string
	intent string
	call   func(l rw) error
}

// deniedRW denies a user one command after the other. An error means that nothing was done, so the
// caller, G1, has the same read and write holds as before. The lock always has an expiry.
func deniedRW(t *testing.T, cases ...deniedRWCase) {
	t.Helper()
	s := redistest.Start(t)
	l := rw{t, s.Client(t), rwKeys}
	mine := func() string {
		reads, writes := do(t, l.rdb, "HGET", l.keys.Lock, owner("G1")), do(t, l.rdb, "HGET", l.keys.Lock, owner("G1")+":write")
		r, _ := reads.ToString()
		w, _ := writes.ToString()
		return fmt.Sprintf("%q reads with leases %q and %q writes", r, l.leases("G1", r), w)
	}
	for _, c := range cases {
		refused := 0
		for _, command := range commands(c.script) {
			l.clear()
			l.held(c.before, long)
			l.intent(c.intent, waiterTimeout)
			before := mine()
			err := c.call(rw{t, denied(t, s, command), l.keys})
			if number(t, l.rdb, "PTTL", l.keys.Lock) == -1 {
				t.Errorf("%s without %s: %v, and the lock has no expiry", c.name, command, err)
			}
			if err == nil {
				continue // it was not needed
			}
			refused++
			if after := mine(); after != before {
				t.Errorf("%s without %s failed, and yet G1 has %s, it had %s", c.name, command, after, before)
			}
		}
		if refused == 0 {
			t.Errorf("%s: nothing was refused", c.name)
		}
	}
}

func readsAs(want int) func(l rw) error {
	return func(l rw) error {
		_, err := luascripts.AcquireRead(l.t.Context(), l.rdb, l.keys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: want, Yield: true})
		return err
	}
}

func writesAs(want int) func(l rw) error {
	return func(l rw) error {
		_, err := luascripts.AcquireWrite(l.t.Context(), l.rdb, l.keys, luascripts.Request{Owner: owner("G1"), Lease: lease, Want: want, WaiterTimeout: waiterTimeout})
		return err
	}
}

func leavesWriting(leave int) func(l rw) error {
	return func(l rw) error {
		_, err := luascripts.ReleaseWrite(l.t.Context(), l.rdb, l.keys, owner("G1"), leave)
		return err
	}
}

func TestRW_deniedCommands(t *testing.T) {
	deniedRW(t,
		deniedRWCase{"read", "rw_read_acquire", "", "", readsAs(1)},
		deniedRWCase{"read beside others", "rw_read_acquire", "read G2=1(1)", "", readsAs(1)},
		deniedRWCase{"read behind an intent", "rw_read_acquire", "read G2=1(1)", "G5 10m", readsAs(1)},
		deniedRWCase{"read again", "rw_read_acquire", "read G1=2(*)", "", readsAs(3)},
		deniedRWCase{"read in part", "rw_read_release", "read G1=3(*)", "", leavesReading(2)},
		deniedRWCase{"write", "rw_write_acquire", "", "G1 5m", writesAs(1)},
		deniedRWCase{"write after the dead", "rw_write_acquire", "read G2=1()", "", writesAs(1)},
		deniedRWCase{"wait to write", "rw_write_acquire", "read G2=1(1)", "", writesAs(1)},
		deniedRWCase{"write again", "rw_write_acquire", "write G1:write=1", "", writesAs(2)},
		deniedRWCase{"write in part", "rw_write_release", "write G1:write=2", "", leavesWriting(1)},
		deniedRWCase{"stop waiting to write", "rw_write_release", "read G2=1(1)", "G1 5m", leavesWriting(0)},
	)

	// The keys of read leases can be denied separately, because their names differ.
	s := redistest.Start(t)
	l := rw{t, s.Client(t), rwKeys}
	some := rw{t, user(t, s, "some", "~"+rwKeys.Lock, "~"+rwKeys.Intent, "~"+rwKeys.Reservation, "~"+rwKeys.Never, "&*", "+@all"), rwKeys}
	for _, before := range []string{"", "read G2=1()"} { // a dead one, because reading the leases of others may be denied
		l.clear()
		l.held(before, long)
		if err := readsAs(1)(some); err == nil {
			t.Error("reads without the right to a lease")
		}
		l.isNow(before)
	}

	// A reader that releases some of its holds keeps all of them if its lease cannot be set.
	l.clear()
	l.held("read G1=2(*)", long)
	if err := leavesReading(1)(rw{t, denied(t, s, "set"), rwKeys}); err == nil {
		t.Error("a release in part without the right to a lease")
	}
	l.isNow("read G1=2(*)")

	// A denied notification does not stop the rest of the script.
	mute := rw{t, denied(t, s, "publish"), rwKeys}
	l.clear()
	l.held("read G1=1(1)", long)
	mute.stopsReading("G1", luascripts.Done)
	l.held("write G1:write=1", long)
	mute.stopsWriting("G1", luascripts.Done)
	l.intent("G1 5m", waiterTimeout)
	mute.stopsWriting("G1", luascripts.Gone)
	l.held("write G1:write=1", long)
	got, err := luascripts.ForceRW(t.Context(), mute.rdb, rwKeys)
	check(t, "force", got, luascripts.Done, err)
	if all := contents(t, l.rdb); all != "" {
		t.Errorf("left behind:\n%s", all)
	}

	// A denial says nothing about the lock, and one denied lock does not fail the other renewals of
	// its batch.
	l.held("read G1=1(1)", long)
	deniedKeys := rwKeysOf("denied", "{denied}")
	batch := []luascripts.Renewal{{Keys: &deniedKeys, Owner: owner("G1")}, {Keys: &rwKeys, Owner: owner("G1")}}
	renewed := luascripts.RenewRead(t.Context(), user(t, s, "few", "~orders", "~{orders}:*", "&*", "+@all"), batch, lease, 100)
	if renewed[0].Err == nil || renewed[1] != (luascripts.Renewed{Verdict: luascripts.Done}) {
		t.Errorf("one of two denied: %+v", renewed)
	}
	for _, command := range []string{"hget", "pttl"} {
		renewed = luascripts.RenewRead(t.Context(), denied(t, s, command), batch[1:], lease, 1)
		if _, ok := rueidis.IsRedisErr(renewed[0].Err); !ok {
			t.Errorf("renewal without %s: %+v", command, renewed[0])
		}
	}
	for _, command := range []string{"hget", "hscan"} {
		if _, err := luascripts.InspectRW(t.Context(), denied(t, s, command), rwKeys); err == nil {
			t.Errorf("inspect without %s: no error", command)
		}
	}
}

// The scripts are sent again to a server that has lost them.
func TestRW_noScript(t *testing.T) {
	s := redistest.Start(t)
	l := rw{t, s.Client(t), rwKeys}
	for _, step := range []func(){
		func() { l.expect("write", l.asksToWrite("G1").Verdict, luascripts.Done) },
		func() {
			l.expect("read", l.asksToRead("G2", func(q *luascripts.Request) { q.Writer = owner("G1") }).Verdict, luascripts.Done)
		},
		func() {
			for _, r := range luascripts.RenewWrite(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &rwKeys, Owner: owner("G1")}}, lease, 1) {
				check(t, "renew writing", r.Verdict, luascripts.Done, r.Err)
			}
		},
		func() { l.stopsWriting("G1", luascripts.Done) },
		func() {
			for _, r := range luascripts.RenewRead(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &rwKeys, Owner: owner("G2")}}, lease, 1) {
				check(t, "renew reading", r.Verdict, luascripts.Done, r.Err)
			}
		},
		func() { l.stopsReading("G2", luascripts.Done) },
		func() {
			got, err := luascripts.ForceRW(t.Context(), l.rdb, rwKeys)
			check(t, "force", got, luascripts.Free, err)
		},
	} {
		s.Do(t, "SCRIPT", "FLUSH")
		step()
	}
	if all := contents(t, l.rdb); all != "" {
		t.Errorf("left behind:\n%s", all)
	}
}

// Any reply of a broken server is an error, not a grant.
func FuzzRWReplies(f *testing.F) {
	for _, s := range []string{
		"+1732160000000000\r\n", "$1\r\n0\r\n", ":5\r\n", ":-1\r\n", ":-3\r\n", ":-4\r\n", ":-9\r\n", "$-1\r\n", "*0\r\n", "*1\r\n:1\r\n", "*1\r\n:-2\r\n", "*2\r\n:1\r\n:1\r\n", "-ERR x\r\n", "+OK\r\n",
		"*5\r\n:5\r\n$4\r\nread\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n*2\r\n$1\r\nb\r\n:5\r\n$1\r\n0\r\n", "*5\r\n:-2\r\n$0\r\n\r\n*0\r\n*0\r\n$1\r\n0\r\n", "*5\r\n:5\r\n$4\r\nread\r\n*1\r\n$1\r\na\r\n*0\r\n", "*5\r\n:5\r\n:5\r\n*0\r\n*0\r\n$1\r\n0\r\n", "*5\r\n:5\r\n$4\r\nread\r\n*0\r\n:1\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		rdb, ok := answering(t, reply)
		if !ok {
			return
		}
		q := luascripts.Request{Owner: owner("G1"), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout, Yield: true}
		got, err := luascripts.AcquireRead(t.Context(), rdb, rwKeys, q)
		plausibleGrant(t, reply, got, err)
		got, err = luascripts.AcquireWrite(t.Context(), rdb, rwKeys, q)
		plausibleGrant(t, reply, got, err)
		v, err := luascripts.ReleaseRead(t.Context(), rdb, rwKeys, owner("G1"), 0)
		plausibleVerdict(t, reply, v, err, luascripts.Done, luascripts.Gone, luascripts.Foreign)
		v, err = luascripts.ReleaseWrite(t.Context(), rdb, rwKeys, owner("G1"), 0)
		plausibleVerdict(t, reply, v, err, luascripts.Done, luascripts.Gone, luascripts.Foreign)
		v, err = luascripts.ForceRW(t.Context(), rdb, rwKeys)
		plausibleVerdict(t, reply, v, err, luascripts.Done, luascripts.Free, luascripts.Foreign)
		one := []luascripts.Renewal{{Keys: &rwKeys, Owner: owner("G1")}}
		for _, renewed := range [][]luascripts.Renewed{luascripts.RenewRead(t.Context(), rdb, one, lease, 1), luascripts.RenewWrite(t.Context(), rdb, one, lease, 1)} {
			if len(renewed) != 1 {
				t.Fatalf("renewal of one lock: %d replies", len(renewed))
			}
			plausibleVerdict(t, reply, renewed[0].Verdict, renewed[0].Err, luascripts.Done, luascripts.Gone, luascripts.Foreign)
		}
		s, err := luascripts.InspectRW(t.Context(), rdb, rwKeys)
		plausibleSnapshot(t, reply, s, err, "*5")
	})
}

// Transcript of the scripts of a read/write lock at the exact end of a lease, an intent or a reservation, including the TTLs of
// its keys.
func TestRW_transcript(t *testing.T) {
	play(t, `
		# a writer, its reentry, and who waits
		rw_write_acquire [l w u n] $a:1 1000 2 0 0 b = -2
		without HDEL
		rw_write_acquire [l w u n] $a:1 1000 2 0 0 b = !NOPERM
		rw_read_acquire [l w u n] $a:1 1000 2 '' 0 1 b 0 = !NOPERM
		rw_read_release [l u n] $a:1 0 b ch PUBLISH = !NOPERM
		rw_write_release [l w u n] $a:1 0 b ch PUBLISH = !NOPERM
		rw_force [l n] b ch PUBLISH = !NOPERM
		without PEXPIRE
		rw_write_acquire [l w u n] $a:1 1000 1 0 0 b = !NOPERM
		EXISTS l = 0
		without
		rw_write_acquire [l w u n r] $a:1 1000 1 0 0 b = @0us
		GET r = @1us
		rw_write_acquire [l w u n r] $a:1 500 2 0 0 b = 0
		PTTL l = 1000
		rw_write_acquire [l w u n r] $a:1 2000 1 0 0 b = @2us
		HGETALL l = [$a:1:write 1 mode write]
		PTTL l = 2000
		rw_write_acquire [l w u n] $b:1 1000 1 300 5000 b = 2000
		GET w = $b:1~@-300
		PTTL w = 5000
		wait 10
		rw_write_acquire [l w u n] $c:1 1000 1 309 5000 b = 1990
		GET w = $b:1~@-300
		rw_write_acquire [l w u n] $c:1 1000 1 310 5000 b = 1990
		GET w = $c:1~@-300
		rw_write_acquire [l w u n] $c:1 1000 1 0 4000 b = 1990
		GET w = $c:1~@-300
		PTTL w = 4000
		rw_write_acquire [l w u n] $b:1 1000 1 300 0 b = 1990
		GET w = $c:1~@-300
		PERSIST l
		rw_write_acquire [l w u n] $b:1 1000 1 0 0 b = -1
		PEXPIRE l 2000

		# readers claim a turn; who came first has it
		rw_read_acquire [l w u n] $d:1 1000 1 '' 5 1 b 0 = 2000
		EXISTS u = 0
		rw_read_acquire [l w u n] $d:1 1000 1 '' 5 1 b 3000 = 2000
		GET u = $d:1~@5~1
		PTTL u = 3000
		rw_read_acquire [l w u n] $e:1 1000 1 '' 5 1 b 3000 = 2000
		GET u = $d:1~@5~1
		rw_read_acquire [l w u n] $e:1 1000 1 '' 6 1 b 3000 = 2000
		GET u = $e:1~@4~1
		rw_read_acquire [l w u n] $e:1 1000 1 '' 0 1 b 4000 = 2000
		GET u = $e:1~@4~1
		PTTL u = 4000

		# a release begins the turn, and notifies
		published = []
		rw_write_release [l w u n] $a:1 2 b ch PUBLISH = 1
		HGETALL l = [$a:1:write 2 mode write]
		published = []
		rw_write_release [l w u n] $c:1 0 b ch PUBLISH = -2
		EXISTS w = 0
		published = [ch~1]
		rw_write_release [l w u n] $a:1 0 b ch PUBLISH = 1
		published = [ch~1]
		GET u = $e:1~@4~@10
		PTTL u = 100
		rw_write_release [l w u n] $a:1 0 b ch PUBLISH = -2
		published = []

		# in the turn, no writer enters before its reader, and then it is over
		rw_write_acquire [l w u n] $b:1 1000 1 0 5000 b = 100
		wait 20
		rw_write_acquire [l w u n] $c:1 1000 1 0 5000 b = 80
		GET w = $b:1~@10
		rw_read_acquire [l w u n] $d:1 1000 1 '' 9 1 b 0 = 4980
		rw_read_acquire [l w u n] $d:2 1000 1 '' 21 1 b 0 = 0
		rw_read_acquire [l w u n] $e:1 1000 1 '' 20 1 b 0 = 0
		GET u = ~0~@10
		PTTL u = 80
		rw_read_acquire [l w u n] $d:2 1000 1 '' 20 1 b 0 = 0
		rw_read_acquire [l w u n] $d:2 1000 1 '' 20 0 b 0 = 0
		rw_read_acquire [l w u n] $d:3 1000 1 '' 21 1 b 0 = 0
		HGETALL l = [$d:2 1 $d:3 1 $e:1 1 mode read]
		wait 80
		rw_read_acquire [l w u n] $d:4 1000 1 '' 100 1 b 0 = 0
		rw_read_acquire [l w u n] $d:4 1000 1 '' 101 1 b 0 = 0

		# a turn is over with the last reader
		SET u ~0~@50 PX 90
		rw_read_release [l u n] $d:1 0 b ch PUBLISH = -2
		rw_read_release [l u n] $d:2 0 b ch PUBLISH = 1
		rw_read_release [l u n] $d:3 0 b ch PUBLISH = 1
		rw_read_release [l u n] $d:4 0 b ch PUBLISH = 1
		EXISTS u = 1
		rw_read_release [l u n] $e:1 0 b ch PUBLISH = 1
		published = [ch~0 ch~0]
		KEYS * = [r w]
		FLUSHALL

		# the lease of the writer before ended: the next one begins the turn, of which it has to wait for the end
		SET u $d:1~@90~1 PX 500
		rw_write_acquire [l w u n] $b:1 1000 1 0 5000 b = 100
		GET u = $d:1~@90~@110
		PTTL u = 100
		SET u $d:1~@111~@110 PX 500
		rw_write_acquire [l w u n] $b:1 1000 1 0 5000 b = @110000us
		GET u = $d:1~@111~1
		PTTL u = 500
		EXISTS w = 0
		DEL l
		SET u $d:1~@110~@110 PX 500
		rw_write_acquire [l w u n] $b:1 1000 1 0 5000 b = 500
		SET u x PX 500
		SET w $b:1~@0 PX 400
		rw_read_acquire [l w u n] $d:1 1000 1 '' 0 1 b 0 = 400
		rw_read_acquire [l w u n] $d:1 1000 1 '' 200 1 b 0 = 0
		rw_read_release [l u n] $d:1 0 b ch PUBLISH = 1
		FLUSHALL

		# a reader that came when the turn began does not wait behind a writer
		SET u $d:1~@100~@110 PX 500
		SET w $b:1~@0 PX 400
		rw_read_acquire [l w u n] $e:1 1000 1 '' 0 1 b 0 = 0
		rw_read_release [l u n] $e:1 0 b ch PUBLISH = 1
		SET u $d:1~@100~@109 PX 500
		rw_read_acquire [l w u n] $e:1 1000 1 '' 0 1 b 0 = 400
		rw_inspect [l w n] b 0 = [-2 '' [] [$b:1 400] 0]

		# who stops waiting gives its turn up, and writers are notified; one that holds less keeps it
		published = [ch~0 ch~0]
		rw_read_release [l u n] $e:1 0 b ch PUBLISH = -2
		published = []
		rw_read_release [l u n] $d:1 0 b ch PUBLISH = -2
		EXISTS u = 0
		published = [ch~0]
		rw_read_acquire [l w u n] $d:1 1000 1 '' 0 0 b 0 = 0
		rw_read_acquire [l w u n] $d:1 1000 2 '' 0 0 b 0 = 0
		SET u $d:1~@100~@109 PX 500
		rw_read_release [l u n] $d:1 1 b ch PUBLISH = 1
		EXISTS u = 1
		FLUSHALL

		# the owner of the write lock reads under it
		rw_write_acquire [l w u n] $a:1 1000 1 0 0 b = @110000us
		rw_read_acquire [l w u n] $a:1 2000 1 $b:1 0 1 b 0 = 1000
		rw_read_acquire [l w u n] $a:1 2000 1 $a:1 0 1 b 0 = 0
		PTTL l = 2000
		rw_write_release [l w u n] $a:1 0 b ch PUBLISH = 1
		HGETALL l = [$a:1 1 mode read]
		PTTL l = 2000
		rw_force [l n] b ch PUBLISH = 1
		KEYS * = []
		rw_force [l n] b ch PUBLISH = 0
		FLUSHALL

		# leases of readers: the longest counts, and none is shortened
		rw_read_acquire [l w u n r] $a:1 1000 1 '' 0 1 b 0 = @110000us
		GET r = @110000us
		rw_read_acquire [l w u n r] $b:1 3000 1 '' 0 1 b 0 = @110000us
		PTTL l = 3000
		rw_read_acquire [l w u n r] $a:1 500 2 '' 0 1 b 0 = 0
		PTTL l = 3000
		PTTL b:$a:1:rwlock_timeout:2 = 1000
		EXISTS b:$a:1:rwlock_timeout:1 = 0
		GET b:$a:1:rwlock_timeout:2 = all
		rw_write_acquire [l w u n] $c:1 1000 1 0 0 b = 3000
		rw_read_release [l u n] $a:1 1 b ch PUBLISH = 1
		PTTL b:$a:1:rwlock_timeout:1 = 1000
		GET b:$a:1:rwlock_timeout:1 = 1
		wait 999
		rw_read_acquire [l w u n r] $a:1 500 2 '' 0 1 b 0 = 0
		PTTL b:$a:1:rwlock_timeout:2 = 500
		wait 500
		rw_read_acquire [l w u n r] $a:1 500 2 '' 0 1 b 0 = -2
		rw_read_release [l u n] $a:1 1 b ch PUBLISH = -2
		rw_inspect [l w n] b 0 = [1501 read [$b:1 1] [] 0]
		published = [ch~1 ch~1]

		# the hash lives as long as the longest lease that is left
		rw_read_acquire [l w u n] $c:1 1200 1 '' 0 1 b 0 = 0
		rw_read_release [l u n] $b:1 0 b ch PUBLISH = 1
		PTTL l = 1200
		published = []
		rw_read_acquire [l w u n] $b:1 3000 1 '' 0 1 b 0 = 0
		wait 200
		rw_read_release [l u n] $b:1 0 b ch PUBLISH = 1
		published = []
		rw_read_acquire [l w u n] $b:1 3000 1 '' 0 1 b 0 = 0
		wait 1
		rw_read_release [l u n] $b:1 0 b ch PUBLISH = 1
		PTTL l = 999
		published = [ch~0]
		rw_read_acquire [l w u n] $b:1 1009 1 '' 0 1 b 0 = 0
		rw_read_release [l u n] $b:1 0 b ch PUBLISH = 1
		PTTL l = 1009
		rw_read_acquire [l w u n] $b:1 1010 1 '' 0 1 b 0 = 0
		rw_read_release [l u n] $b:1 0 b ch PUBLISH = 1
		PTTL l = 999
		published = [ch~0]
		FLUSHALL

		# a reader of Redisson has a key for each hold
		HSET l mode read %a:1 2
		PEXPIRE l 5000
		SET b:%a:1:rwlock_timeout:1 1 PX 4000
		SET b:%a:1:rwlock_timeout:2 1 PX 100
		rw_write_acquire [l w u n] $c:1 1000 1 0 0 b = 4000
		PERSIST b:%a:1:rwlock_timeout:2
		rw_write_acquire [l w u n] $c:1 1000 1 0 0 b = 5000
		PERSIST l
		rw_write_acquire [l w u n] $c:1 1000 1 0 0 b = 4000
		rw_force [l n] b ch PUBLISH = 1
		KEYS * = []

		# what is not a whole lock, or not one of the readers'
		HSET l mode read x y
		rw_read_acquire [l w u n] $a:1 1000 1 '' 0 1 b 0 = -4
		DEL l
		HSET l mode read $a:1 x
		rw_read_acquire [l w u n] $a:1 1000 1 '' 0 1 b 0 = -4
		DEL l
		HSET l mode other $a:1 1
		rw_read_acquire [l w u n] $a:1 1000 1 '' 0 1 b 0 = -4
		DEL l
		SET w 1
		SET u x
		rw_write_acquire [l w u n] $a:1 1000 1 0 0 b = @1810000us
		rw_inspect [l w n] b 0 = [1000 write [$a:1:write 1] [] 0]
		SET w $b:1~@0 PX 400
		rw_inspect [l w n] b 0 = [1000 write [$a:1:write 1] [$b:1 400] 0]
		rw_read_acquire [l w u n] $a:1 3000 1 $a:1 0 1 b 0 = 0
		rw_read_release [l u n] $a:1 0 b ch PUBLISH = 1
		HGETALL l = [$a:1:write 1 mode write]
		rw_write_release [l w u n] $b:1 1 b ch PUBLISH = -2
		EXISTS w = 1
		rw_read_acquire [l w u n] $a:1 500 1 $a:1 0 1 b 0 = 0
		rw_write_release [l w u n] $a:1 0 b ch PUBLISH = 1
		HGETALL l = [$a:1 1 mode read]
		PTTL l = 500
		FLUSHALL
		without HGET
		rw_read_acquire [l w u n] $a:1 1000 1 '' 0 1 b 0 = !NOPERM
		without
		FLUSHALL

		# renewals shorten nothing, and bring nothing back
		rw_read_acquire [l w u n] $a:1 1000 1 '' 0 1 b 0 = 0
		rw_read_renew [n l] 1000 $a:1 b = [1]
		sent PEXPIRE = 0
		PERSIST l
		PERSIST b:$a:1:rwlock_timeout:1
		rw_read_renew [n l] 0 $a:1 b = [1]
		PTTL l = -1
		PTTL b:$a:1:rwlock_timeout:1 = -1
		PEXPIRE l 1000
		PEXPIRE b:$a:1:rwlock_timeout:1 1000
		rw_read_renew [n l] 1001 $a:1 b = [1]
		PTTL l = 1001
		PTTL b:$a:1:rwlock_timeout:1 = 1001
		PEXPIRE l 5000
		rw_read_renew [n l] 2000 $a:1 b = [1]
		PTTL l = 5000
		rw_read_renew [n l s] 500 $a:1 b $b:1 b = [2 2 -2]
		SET s 1
		rw_read_renew [n s l] 500 $a:1 b $a:1 b = [2 1 -4]
		wait 2000
		rw_read_renew [n l] 2000 $a:1 b = [1 1 -2]
		EXISTS b:$a:1:rwlock_timeout:1 = 0
		without HDEL
		rw_read_renew [n l] 2000 $a:1 b = !NOPERM
		without HGET
		rw_read_renew [n l] 2000 $a:1 b = !NOPERM
		without
		FLUSHALL

		# another key is left alone
		SET s 1
		HSET h a 1 b 2
		HSET i mode read
		rw_read_acquire [s w u n] $a:1 1000 1 '' 0 1 b 0 = -4
		rw_read_acquire [h w u n] $a:1 1000 1 '' 0 1 b 0 = -4
		rw_write_acquire [i w u n] $a:1 1000 1 0 0 b = -4
		rw_read_release [s u n] $a:1 0 b ch PUBLISH = -4
		rw_write_release [s w u n] $a:1 0 b ch PUBLISH = -4
		rw_force [s n] b ch PUBLISH = -4
		rw_inspect [s w n] b 0 = -4
		rw_inspect [h w n] b 0 = -4

		# a reader's token is that of the latest writer, unless it is too long
		SET r 1234567890123456789
		rw_read_acquire [l w u n r] $a:1 1000 1 '' 0 1 b 0 = 1234567890123456789
		rw_read_release [l u n] $a:1 0 b ch PUBLISH = 1
		SET r 12345678901234567890
		rw_read_acquire [l w u n r] $a:1 1000 1 '' 0 1 b 0 = !
		EXISTS l = 0

		# what is denied changes nothing
		without SET
		rw_read_acquire [l w u n] $a:1 1000 1 '' 0 1 b 0 = !NOPERM
		EXISTS l = 0
		without PEXPIRE
		rw_read_acquire [l w u n] $a:1 1000 1 '' 0 1 b 0 = !NOPERM
		EXISTS l = 0
		without
		rw_read_acquire [l w u n] $a:1 1000 1 '' 0 1 b 0 = 0
		without SET
		rw_read_acquire [l w u n] $a:1 1000 2 '' 0 1 b 0 = !NOPERM
		rw_read_acquire [l w u n] $b:1 1000 1 '' 0 1 b 0 = !NOPERM
		HGETALL l = [$a:1 1 mode read]
		without
		rw_read_acquire [l w u n] $a:1 1000 2 '' 0 1 b 0 = 0
		without SET
		rw_read_release [l u n] $a:1 1 b ch PUBLISH = !NOPERM
		HGETALL l = [$a:1 2 mode read]
		without
	`)
	// Of many dead readers, fifty are removed at a time, and a living one keeps writers out.
	many := `
		HSET l mode read $a:1 1
		SET b:$a:1:rwlock_timeout:1 1 PX 5000
		PEXPIRE l 5000
	`
	for i := range 60 {
		many += fmt.Sprintf("HSET l $b:%d 1\n", i)
	}
	play(t, many+`
		rw_write_acquire [l w u n] $c:1 1000 1 0 0 b = -3
		HLEN l = 12
		rw_write_acquire [l w u n] $c:1 1000 1 0 0 b = 5000
		HGETALL l = [$a:1 1 mode read]
	`)
	play(t, many+`
		rw_read_release [l u n] $a:1 0 b ch PUBLISH = -3
		HLEN l = 12
		rw_read_release [l u n] $a:1 0 b ch PUBLISH = 1
		EXISTS l = 0
	`)
	play(t, many+`
		rw_read_acquire [l w u n] $b:99 1000 1 '' 0 1 b 0 = 0
		rw_read_release [l u n] $a:1 0 b ch PUBLISH = 1
		HLEN l = 13
	`)
	play(t, many+`
		rw_force [l n] b ch PUBLISH = -3
		HLEN l = 12
		rw_force [l n] b ch PUBLISH = 1
		EXISTS l = 0
	`)
}
