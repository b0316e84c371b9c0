package luascripts_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

const (
	ours  = "6f1c4c5e-7f5c-4c84-9a53-1f3a7a1b2c3d:1"
	other = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:7"
	lease = 30 * time.Second
)

var keys = luascripts.Keys{Lock: "orders", Channel: "redisson_lock__channel:{orders}", QueueChannel: "leasehold_channel:{orders}", Publish: "PUBLISH"}

// state returns the lock as redis-cli would show it, "owner=count …", and its remaining lease in
// ms.
func state(t *testing.T, rdb rueidis.Client) (string, int64) {
	t.Helper()
	all := do(t, rdb, "HGETALL", keys.Lock)
	fields, err := all.AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, owner := range []string{ours, other} {
		if n, ok := fields[owner]; ok {
			fmt.Fprintf(&b, "%s=%s ", owner[len(owner)-1:], n)
		}
	}
	return strings.TrimSpace(b.String()), number(t, rdb, "PTTL", keys.Lock)
}

// seed creates a lock. With 0 ms it has no expiry, and with count 0 there is no key.
func seed(t *testing.T, rdb rueidis.Client, owner string, count int, ms int64) {
	t.Helper()
	do(t, rdb, "DEL", keys.Lock)
	if count > 0 {
		do(t, rdb, "HSET", keys.Lock, owner, strconv.Itoa(count))
		if ms > 0 {
			do(t, rdb, "PEXPIRE", keys.Lock, strconv.FormatInt(ms, 10))
		}
	}
}

func TestAcquireReentrant(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, c := range []struct {
			name        string
			owner       string
			count       int
			ms          int64
			want        int
			lease       time.Duration
			verdict     luascripts.Verdict
			after       string
			least, most int64 // bounds of the lease, in ms
		}{
			{"free", "", 0, 0, 1, lease, luascripts.Done, "1=1", 25_000, 30_000},
			{"the same request again", ours, 1, 20_000, 1, lease, luascripts.Done, "1=1", 25_000, 30_000},
			{"reentry", ours, 1, 20_000, 2, lease, luascripts.Done, "1=2", 25_000, 30_000},
			{"reentry again", ours, 2, 20_000, 2, lease, luascripts.Done, "1=2", 25_000, 30_000},
			{"reentry with less of a lease", ours, 1, 20_000, 2, time.Second, luascripts.Done, "1=2", 15_000, 20_000},
			{"reentry into a key without expiry", ours, 1, 0, 2, lease, luascripts.Done, "1=2", 25_000, 30_000},
			{"reentry into what is gone", "", 0, 0, 2, lease, luascripts.Gone, "", -2, -2},
			{"reentry into what another has", other, 1, 20_000, 2, lease, luascripts.Gone, "7=1", 15_000, 20_000},
			{"a count that is too large", ours, 3, 20_000, 2, lease, luascripts.Done, "1=2", 25_000, 30_000},
			{"a count that is too small", ours, 1, 20_000, 3, lease, luascripts.Done, "1=3", 25_000, 30_000},
			{"held by another", other, 2, 20_000, 1, lease, luascripts.Held, "7=2", 15_000, 20_000},
			{"held by another for ever", other, 1, 0, 1, lease, luascripts.Held, "7=1", -1, -1},
		} {
			t.Run(c.name, func(t *testing.T) {
				seed(t, rdb, c.owner, c.count, c.ms)
				before := time.Now()
				got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: ours, Lease: c.lease, Want: c.want})
				if err != nil {
					t.Fatal(err)
				}
				if got.Verdict != c.verdict {
					t.Errorf("verdict %d, want %d", got.Verdict, c.verdict)
				}
				after, left := state(t, rdb)
				if after != c.after || left < c.least || left > c.most {
					t.Errorf("left %q for %d ms, want %q for %d to %d", after, left, c.after, c.least, c.most)
				}
				if first := c.verdict == luascripts.Done && c.want == 1; first != (got.Token != 0) {
					t.Errorf("token %d, first hold %v", got.Token, first)
				} else if first && time.UnixMicro(int64(got.Token)).Sub(before).Abs() > time.Minute {
					t.Errorf("token %d is not the server's time in µs", got.Token)
				}
				switch {
				case c.verdict == luascripts.Held && c.ms == 0 && got.Left != luascripts.NoExpiry:
					t.Errorf("left %v, want NoExpiry", got.Left)
				case c.verdict == luascripts.Held && c.ms > 0 && (got.Left < 15*time.Second || got.Left > 20*time.Second):
					t.Errorf("left %v, want about 20 s", got.Left)
				}
			})
		}
	})
}

func TestReleaseReentrant(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, c := range []struct {
			name    string
			owner   string
			count   int
			leave   int
			verdict luascripts.Verdict
			after   string
		}{
			{"the only hold", ours, 1, 0, luascripts.Done, ""},
			{"all holds at once", ours, 3, 0, luascripts.Done, ""},
			{"one of two", ours, 2, 1, luascripts.Done, "1=1"},
			{"one of two, again", ours, 1, 1, luascripts.Done, "1=1"},
			{"more than there are", ours, 1, 2, luascripts.Done, "1=2"},
			{"free", "", 0, 0, luascripts.Gone, ""},
			{"another's", other, 2, 0, luascripts.Gone, "7=2"},
			{"another's, in part", other, 2, 1, luascripts.Gone, "7=2"},
		} {
			t.Run(c.name, func(t *testing.T) {
				seed(t, rdb, c.owner, c.count, 20_000)
				got, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, c.leave)
				if err != nil {
					t.Fatal(err)
				}
				after, left := state(t, rdb)
				if got != c.verdict || after != c.after {
					t.Errorf("verdict %d leaves %q, want %d and %q", got, after, c.verdict, c.after)
				}
				if after != "" && (left < 15_000 || left > 20_000) {
					t.Errorf("the lease changed to %d ms", left)
				}
			})
		}
	})
}

func TestReleaseReentrant_publishesOnlyWhenFree(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		e := listen(t, rdb)
		seed(t, rdb, ours, 2, 20_000)
		for _, leave := range []int{1, 0, 0} { // a partial release, the release of the lock, and a repetition
			if _, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, leave); err != nil {
				t.Fatal(err)
			}
		}
		e.expect(keys.Channel + " 0") // Redisson's clients only understand 0; only the release of the lock notifies them
	})
}

func TestRenewReentrant(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do(t, rdb, "SET", "foreign", "x")
		do(t, rdb, "HSET", "another", other, "1")
		do(t, rdb, "HSET", "persisted", ours, "1")
		var batch []luascripts.Renewal
		for i := range 7 {
			key := fmt.Sprint("mine", i)
			do(t, rdb, "HSET", key, ours, "1")
			do(t, rdb, "PEXPIRE", key, "5000")
			batch = append(batch, luascripts.Renewal{Keys: &luascripts.Keys{Lock: key}, Owner: ours})
		}
		do(t, rdb, "PEXPIRE", "mine6", "90000")
		batch = append(batch, luascripts.Renewal{Keys: &luascripts.Keys{Lock: "gone"}, Owner: ours}, luascripts.Renewal{Keys: &luascripts.Keys{Lock: "foreign"}, Owner: ours},
			luascripts.Renewal{Keys: &luascripts.Keys{Lock: "another"}, Owner: ours}, luascripts.Renewal{Keys: &luascripts.Keys{Lock: "persisted"}, Owner: ours})
		want := []luascripts.Verdict{1, 1, 1, 1, 1, 1, 1, luascripts.Gone, luascripts.Foreign, luascripts.Gone, 1}
		for _, perCall := range []int{1, 3, 100} {
			got := luascripts.RenewReentrant(t.Context(), rdb, batch, lease, perCall)
			if len(got) != len(want) {
				t.Fatalf("%d replies for %d locks", len(got), len(want))
			}
			for i, r := range got {
				if r.Err != nil || r.Verdict != want[i] {
					t.Errorf("%d at a time, %s: %d, %v, want %d", perCall, batch[i].Keys.Lock, r.Verdict, r.Err, want[i])
				}
			}
		}
		for key, most := range map[string]int64{"mine0": 30_000, "mine6": 90_000, "persisted": 30_000, "another": -1, "gone": -2} {
			left := number(t, rdb, "PTTL", key)
			if left > most || left < most-1_000 {
				t.Errorf("%s lives on for %d ms, want %d", key, left, most)
			}
		}
	})
}

func TestInspectReentrant(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		s, err := luascripts.InspectReentrant(t.Context(), rdb, keys)
		if err != nil || s.Exists || len(s.Fields) != 0 {
			t.Errorf("of nothing: %+v, %v", s, err)
		}
		seed(t, rdb, ours, 3, 20_000)
		s, err = luascripts.InspectReentrant(t.Context(), rdb, keys)
		if err != nil || !s.Exists || len(s.Fields) != 1 || s.Fields[0] != (luascripts.Field{Name: ours, Value: "3"}) || s.Left < 15*time.Second {
			t.Errorf("of three holds: %+v, %v", s, err)
		}
		seed(t, rdb, ours, 1, 0)
		if s, err = luascripts.InspectReentrant(t.Context(), rdb, keys); err != nil || s.Left != luascripts.NoExpiry {
			t.Errorf("without expiry: %+v, %v", s, err)
		}
	})
}

// Whatever value the field with the owner's name has, the owner can delete it, if it is the only field.
func TestReleaseReentrant_strangeCount(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do(t, rdb, "HSET", keys.Lock, ours, "abc")
		v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, 1)
		check(t, "leave 1", v, luascripts.Foreign, err)
		v, err = luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, 0)
		check(t, "leave 0", v, luascripts.Done, err)
		if left := contents(t, rdb); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

func TestForceReentrant(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		seed(t, rdb, other, 3, 20_000)
		for _, want := range []luascripts.Verdict{luascripts.Done, luascripts.Free} {
			if got, err := luascripts.ForceReentrant(t.Context(), rdb, keys); err != nil || got != want {
				t.Errorf("%d, %v, want %d", got, err, want)
			}
		}
	})
}

// A key that is not such a lock does not change, whatever it is.
func TestForeignKeys(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for name, c := range map[string]struct {
			make    []string
			release luascripts.Verdict
		}{
			"string":          {[]string{"SET", keys.Lock, "x"}, luascripts.Foreign},
			"list":            {[]string{"RPUSH", keys.Lock, "x"}, luascripts.Foreign},
			"read/write lock": {[]string{"HSET", keys.Lock, "mode", "read", other, "1"}, luascripts.Gone},
			"some hash":       {[]string{"HSET", keys.Lock, "name", "bob", "age", "40"}, luascripts.Gone},
			"our field, text": {[]string{"HSET", keys.Lock, ours, "abc", "age", "40"}, luascripts.Foreign},
		} {
			t.Run(name, func(t *testing.T) {
				do(t, rdb, "DEL", keys.Lock)
				do(t, rdb, c.make...)
				before := contents(t, rdb)

				for want := 1; want <= 2; want++ {
					acquired, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: ours, Lease: lease, Want: want})
					check(t, "acquire", acquired.Verdict, luascripts.Foreign, err)
				}
				for leave := range 2 {
					released, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, leave)
					check(t, "release", released, c.release, err)
				}
				forced, err := luascripts.ForceReentrant(t.Context(), rdb, keys)
				check(t, "force", forced, luascripts.Foreign, err)

				if after := contents(t, rdb); after != before {
					t.Errorf("the keys were\n%sand are\n%s", before, after)
				}
			})
		}
	})
}

// With full memory, no owner can acquire the lock. Its holder can re-enter, renew, and release
// partially or completely.
func TestFullMemory(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	seed(t, rdb, ours, 2, 20_000)
	full(t, s)
	free := keys
	free.Lock = "free"
	if _, err := luascripts.AcquireReentrant(t.Context(), rdb, free, luascripts.Request{Owner: ours, Lease: lease, Want: 1}); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("a new lock: %v, want OOM", err)
	}
	if n := number(t, rdb, "EXISTS", "free"); n != 0 {
		t.Errorf("the refused lock left %d key", n)
	}
	if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: ours, Lease: lease, Want: 3}); err != nil || got.Verdict != luascripts.Done {
		t.Errorf("reentry: %+v, %v", got, err)
	}
	if got := luascripts.RenewReentrant(t.Context(), rdb, []luascripts.Renewal{{Keys: &luascripts.Keys{Lock: keys.Lock}, Owner: ours}}, lease, 1); got[0] != (luascripts.Renewed{Verdict: luascripts.Done}) {
		t.Errorf("renewal: %+v", got)
	}
	for _, leave := range []int{2, 1, 0} {
		if got, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, leave); err != nil || got != luascripts.Done {
			t.Errorf("release to %d: %d, %v", leave, got, err)
		}
	}
}

// A rejected request has written nothing, so it does not wait for replicas. A granted one does.
func TestAcquire_refusalWaitsForNoReplica(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	q := luascripts.Request{Owner: ours, Lease: lease, Want: 1, Replicas: 1, ReplicaTimeout: time.Millisecond}
	for _, c := range []struct {
		count int // the hold count of the other owner
		want  luascripts.Verdict
		waits int64
	}{{1, luascripts.Held, 0}, {0, luascripts.Done, 1}} {
		seed(t, rdb, other, c.count, 20_000)
		before := s.CommandCalls(t, "wait")
		if a, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, q); err != nil || a.Verdict != c.want {
			t.Errorf("%+v, %v, want %d", a, err, c.want)
		}
		if n := s.CommandCalls(t, "wait") - before; n != c.waits {
			t.Errorf("verdict %d: WAIT was sent %d times, want %d", c.want, n, c.waits)
		}
	}
}

// A call that is canceled while no replica confirms returns then, and closes its connection, on which the server would
// otherwise wait for the rest of the time.
func TestAcquire_canceledDuringWAIT(t *testing.T) {
	s := redistest.Start(t)
	waits := func() bool {
		clients := s.Do(t, "CLIENT", "LIST")
		text, err := clients.ToString()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(text, "cmd=wait")
	}
	for _, pipelines := range []bool{false, true} {
		rdb := s.Client(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining = pipelines })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		canceled := make(chan error, 1)
		go func() {
			_, err := luascripts.AcquireReentrant(ctx, rdb, keys, luascripts.Request{Owner: ours, Lease: lease, Want: 1, Replicas: 1, ReplicaTimeout: 30 * time.Second})
			canceled <- err
		}()
		for !waits() {
		}
		cancel()
		if err := <-canceled; err == nil {
			t.Errorf("pipelines %v: it waited for the replicas until the end", pipelines)
		}
		for waits() {
		}
	}
}

// While a slot is migrated, and afterward by a client with an outdated slot map, a lock is acquired on its current node, and the
// replica of that node confirms it.
func TestAcquire_replicasOfAMovedSlot(t *testing.T) {
	c := redistest.StartCluster(t)
	asks, moved := c.Client(t), c.Client(t)
	from := c.Master(t, keys.Lock)
	masters := c.Masters(t)
	to := masters[(slices.Index(masters, from)+1)%len(masters)]
	m := c.Migrate(t, c.Slot(t, keys.Lock), from, to)
	acquires := func(rdb rueidis.Client, waits int64) {
		t.Helper()
		a, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: ours, Lease: lease, Want: 1, Replicas: 1, ReplicaTimeout: 30 * time.Second})
		if err != nil || a.Verdict != luascripts.Done || a.Confirmed != 1 {
			t.Errorf("%+v, %v", a, err)
		}
		if n := to.CommandCalls(t, "wait"); n != waits {
			t.Errorf("the node has executed WAIT %d times, want %d", n, waits)
		}
	}
	acquires(asks, 1)
	m.Finish(t)
	to.Do(t, "DEL", keys.Lock)
	acquires(moved, 2)
}

// A user that is not allowed to run one of the commands gets an error, and no lock without an
// expiry remains. A denied PUBLISH does not undo a release.
func TestDeniedCommands(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	for _, deny := range []string{"time", "hset", "pexpire", "evalsha"} {
		seed(t, admin, "", 0, 0)
		if got, err := luascripts.AcquireReentrant(t.Context(), denied(t, s, deny), keys, luascripts.Request{Owner: ours, Lease: lease, Want: 1}); err == nil {
			t.Errorf("without %s: acquired %+v", deny, got)
		}
		if after, _ := state(t, admin); after != "" {
			t.Errorf("without %s a refused acquire leaves %q", deny, after)
		}
	}
	for _, deny := range []string{"pttl", "hlen", "hgetall"} {
		seed(t, admin, other, 1, 20_000)
		if got, err := luascripts.AcquireReentrant(t.Context(), denied(t, s, deny), keys, luascripts.Request{Owner: ours, Lease: lease, Want: 1}); err == nil {
			t.Errorf("without %s, a lock that another has: %+v", deny, got)
		}
	}
	seed(t, admin, ours, 1, 20_000)
	if got, err := luascripts.ReleaseReentrant(t.Context(), denied(t, s, "publish"), keys, ours, 0); err != nil || got != luascripts.Done {
		t.Errorf("release without the right to publish: %d, %v", got, err)
	}
	seed(t, admin, ours, 1, 20_000)
	if got, err := luascripts.ReleaseReentrant(t.Context(), denied(t, s, "hdel"), keys, ours, 0); err == nil {
		t.Errorf("release without hdel: %d", got)
	}
	seed(t, admin, ours, 1, 20_000)
	got := luascripts.RenewReentrant(t.Context(), denied(t, s, "hexists"), []luascripts.Renewal{{Keys: &luascripts.Keys{Lock: keys.Lock}, Owner: ours}}, lease, 1)
	if got[0].Err == nil {
		t.Errorf("renewal without hexists: %+v: a denial is no verdict about the lock", got[0])
	}

	// A denied key does not fail the other renewals of its batch.
	some := user(t, s, "some", "~orders", "&*", "+@all")
	got = luascripts.RenewReentrant(t.Context(), some, []luascripts.Renewal{{Keys: &luascripts.Keys{Lock: "denied"}, Owner: ours}, {Keys: &luascripts.Keys{Lock: keys.Lock}, Owner: ours}}, lease, 100)
	if got[0].Err == nil || got[1] != (luascripts.Renewed{Verdict: luascripts.Done}) {
		t.Errorf("one of two denied: %+v", got)
	}
}

// Scripts are sent again to a server that has lost them, in pipelines as well.
func TestNoScript(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	for i := range 3 {
		s.Do(t, "SCRIPT", "FLUSH")
		if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: ours, Lease: lease, Want: i + 1}); err != nil || got.Verdict != luascripts.Done {
			t.Fatalf("acquire: %+v, %v", got, err)
		}
		batch := []luascripts.Renewal{{Keys: &luascripts.Keys{Lock: keys.Lock}, Owner: ours}, {Keys: &luascripts.Keys{Lock: keys.Lock}, Owner: ours}, {Keys: &luascripts.Keys{Lock: keys.Lock}, Owner: other}}
		s.Do(t, "SCRIPT", "FLUSH")
		for j, r := range luascripts.RenewReentrant(t.Context(), rdb, batch, lease, 1) {
			want := luascripts.Done
			if j == 2 {
				want = luascripts.Gone
			}
			if r.Err != nil || r.Verdict != want {
				t.Errorf("renewal %d: %+v", j, r)
			}
		}
	}
	if after, _ := state(t, rdb); after != "1=3" {
		t.Errorf("left %q, want three holds", after)
	}
}

// Tokens of one server grow from script to script.
func TestTokensGrow(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		var last uint64
		for range 1000 {
			got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: ours, Lease: lease, Want: 1})
			if err != nil {
				t.Fatal(err)
			}
			if got.Token <= last {
				t.Fatalf("token %d after %d", got.Token, last)
			}
			last = got.Token
			if _, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Any reply of a broken server is an error, not a grant.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{"+1732160000000000\r\n", "+0\r\n", "$1\r\n0\r\n", ":5\r\n", ":02\r\n", ":-1\r\n", ":-9\r\n", "$-1\r\n", "*0\r\n", "*1\r\n:1\r\n", "*3\r\n:1\r\n$1\r\na\r\n$1\r\n1\r\n", "-ERR x\r\n", "+OK\r\n", "_\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		rdb, ok := answering(t, reply)
		if !ok {
			return
		}
		got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Request{Owner: ours, Lease: lease, Want: 1})
		plausibleGrant(t, reply, got, err)
		v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, ours, 0)
		if v != luascripts.Done || !strings.Contains(string(reply), "2") { // 2 means that the lock is free, and others come first
			plausibleVerdict(t, reply, v, err, luascripts.Done, luascripts.Gone, luascripts.Foreign)
		}
		if r := luascripts.RenewReentrant(t.Context(), rdb, []luascripts.Renewal{{Keys: &luascripts.Keys{Lock: "a"}, Owner: ours}}, lease, 1); len(r) != 1 {
			t.Errorf("renewal of one lock: %d replies", len(r))
		}
		snapshot, err := luascripts.InspectReentrant(t.Context(), rdb, keys)
		plausibleSnapshot(t, reply, snapshot, err, "*")
	})
}

// A lock that its owner leaves in place lives for at most the rest, and never longer than before.
func TestRetainReentrant(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, c := range []struct {
			name        string
			owner       string
			count       int
			ms          int64
			verdict     luascripts.Verdict
			after       string
			least, most int64 // bounds of the lease, in ms
		}{
			{"free", "", 0, 0, luascripts.Gone, "", -2, -2},
			{"a longer lease", ours, 1, 20_000, luascripts.Done, "1=1", 5_000, 10_000},
			{"a shorter lease", ours, 2, 6_000, luascripts.Done, "1=2", 1_000, 6_000},
			{"no expiry", ours, 1, 0, luascripts.Done, "1=1", 5_000, 10_000},
			{"another owner's", other, 1, 20_000, luascripts.Gone, "7=1", 15_000, 20_000},
		} {
			t.Run(c.name, func(t *testing.T) {
				seed(t, rdb, c.owner, c.count, c.ms)
				for range 2 { // safe to repeat
					got, err := luascripts.RetainReentrant(t.Context(), rdb, keys, ours, 10*time.Second)
					if err != nil || got != c.verdict {
						t.Fatalf("%d, %v, want %d", got, err, c.verdict)
					}
				}
				if after, left := state(t, rdb); after != c.after || left < c.least || left > c.most {
					t.Errorf("%q for %d ms, want %q for %d to %d", after, left, c.after, c.least, c.most)
				}
			})
		}
		do(t, rdb, "DEL", keys.Lock)
		do(t, rdb, "SET", keys.Lock, "text")
		if got, err := luascripts.RetainReentrant(t.Context(), rdb, keys, ours, time.Second); err != nil || got != luascripts.Foreign {
			t.Errorf("a string: %d, %v", got, err)
		}
		do(t, rdb, "DEL", keys.Lock)
	})
}

// Transcript of the scripts of a plain lock at the exact end of a lease, and with hashes that are a different lock or no lock.
func TestReentrant_transcript(t *testing.T) {
	play(t, `
		# a plain lock, its reentry, and what it is for others
		reentrant_acquire [l] $a:001 1000 '' 0 = @0us
		wait 400
		reentrant_acquire [l] $a:001 500 '' 0 2 = 0
		PTTL l = 600
		reentrant_acquire [l] $a:001 700 '' 0 2 = 0
		HGETALL l = [$a:001 2]
		PTTL l = 700
		reentrant_acquire [l] $a:001 600 '' 0 = @400000us
		reentrant_acquire [l] $a:001 800 '' 0 = @400000us
		PTTL l = 800
		reentrant_acquire [l] $a:001 500 '' 0 = @400000us
		PTTL l = 800
		reentrant_acquire [l] $b:001 1000 '' 0 = 800
		reentrant_acquire [l] $b:001 1000 '' 0 2 = -2
		reentrant_acquire [l r] $b:001 1000 '' 0 1 0 = 800
		EXISTS r = 0
		reentrant_acquire [l r] $a:001 1000 '' 0 1 3 = @400000us
		GET r = @400003us
		reentrant_acquire [m] $a:001 1000 '' 0 2 = -2
		reentrant_acquire [m r] $a:001 1000 '' 0 1 3 = @400004us
		GET r = @400007us

		# a token is the time, or one more than the token counter where that is not less; a token counter that is too large gives none
		DEL m
		SET r @399999us
		reentrant_acquire [m r] $a:001 1000 '' 0 1 0 = @400000us
		reentrant_acquire [m r] $a:001 1000 '' 0 1 0 = @400001us
		SET r 9007199254740987
		reentrant_acquire [m r] $a:001 1000 '' 0 1 3 = 9007199254740988
		GET r = 9007199254740991
		SET r 9007199254740988
		reentrant_acquire [m r] $a:001 1000 '' 0 1 3 = !
		SET r -1
		reentrant_acquire [m r] $a:001 1000 '' 0 1 3 = !
		GET r = -1
		DEL r

		# what is denied takes nothing
		without HDEL
		reentrant_acquire [n] $a:001 1000 '' 0 2 = !NOPERM
		reentrant_acquire [l] $b:001 1000 '' 0 2 = !NOPERM
		without PEXPIRE
		reentrant_acquire [n] $a:001 1000 '' 0 = !NOPERM
		reentrant_acquire [n r] $a:001 1000 '' 0 1 0 = !NOPERM
		EXISTS n = 0
		without HSET
		reentrant_acquire [n] $a:001 1000 '' 0 = !NOPERM
		without HLEN
		reentrant_acquire [n] $a:001 1000 '' 0 2 = !NOPERM
		without

		# a fair lock is no plain one, if its owner shows that; the owners of Redisson and of former versions show nothing
		HSET x $a:01 1
		reentrant_acquire [x] $b:001 1000 '' 0 = -4
		fair_acquire [x q t n] $b:02 1000 1 0 0 = [-1 0]
		reentrant_inspect [x] = [-1 [$a:01 1] []]
		reentrant_force [x] ch PUBLISH = -4
		HSET y $a:001 1
		fair_acquire [y q t n] $b:01 1000 1 0 0 = -4
		reentrant_acquire [y] $b:001 1000 '' 0 = -1
		HSET z %a:001 1
		fair_acquire [z q t n] $b:01 1000 1 0 0 = [-1 1]
		reentrant_acquire [z] $b:001 1000 '' 0 = -1
		HSET app hits 5
		reentrant_acquire [app] $b:001 1000 '' 0 = -4
		HSET both $a:001 1 $b:001 1 leasehold_line 0~0|
		reentrant_acquire [both] $c:001 1000 '' 0 = -4
		HSET w %a:01 1
		reentrant_acquire [w] $b:001 1000 '' 0 = -1
		HSET v $a:11 1
		reentrant_acquire [v] $b:001 1000 '' 0 = -1
		fair_acquire [v q t n] $b:01 1000 1 0 0 = [-1 0]
		HSET u $a:001 x
		reentrant_acquire [u] $b:001 1000 '' 0 = -4
		HSET s $a:001 1 leasehold_line 0~0| more x
		reentrant_acquire [s] $b:001 1000 '' 0 = -4
		HSET k leasehold_line 0~0|
		reentrant_acquire [k] $b:001 1000 '' 0 = @400000us
		HGETALL k = [$b:001 1 leasehold_line 0~0|]

		# the line: who counts as alive for how long
		HSET i $a:001 1 leasehold_line 0~0|$b:001~10~0~0~0;$c:001~10~0~0~@401;$d:001~10~0~0~@399;
		reentrant_inspect [i] = [-1 [$a:001 1 leasehold_line 0~0|$b:001~10~0~0~0;$c:001~10~0~0~@401;$d:001~10~0~0~@399;] [$b:001 -1 $c:001 1 $d:001 0]]
		reentrant_inspect [missing] = [-2 [] []]
		reentrant_force [i] ch PUBLISH = 1
		published = [ch~0]
		reentrant_force [i] ch PUBLISH = 0
		published = []
		SET text 1
		reentrant_inspect [text] = -4
		reentrant_force [text] ch PUBLISH = -4
		reentrant_acquire [text] $b:001 1000 '' 0 = -4
		reentrant_release [text] $b:001 PUBLISH 0 = -4

		# renewals never shorten a lease, and bring nothing back
		PEXPIRE l 1000
		reentrant_renew [l] 999 $a:001 = [1]
		PTTL l = 1000
		PERSIST l
		reentrant_renew [l missing] 0 $a:001 $a:001 = [2 2 -2]
		PTTL l = -1
		PEXPIRE l 1000
		reentrant_renew [l missing text l] 1001 $a:001 $a:001 $a:001 $b:001 = [4 2 -2 3 -4 4 -2]
		PTTL l = 1001
		without HEXISTS
		reentrant_renew [l] 1001 $a:001 = !NOPERM
		reentrant_retain [l] $a:001 500 = !NOPERM
		without HDEL
		reentrant_renew [missing] 1001 $a:001 = !NOPERM
		reentrant_retain [l] $b:001 500 = !NOPERM
		without

		# a lock that is kept for a while stays no longer
		reentrant_retain [l] $a:001 1001 = 1
		sent PEXPIRE = 0
		reentrant_retain [l] $a:001 1000 = 1
		PTTL l = 1000
		PERSIST l
		reentrant_retain [l] $a:001 1000 = 1
		PTTL l = 1000
		reentrant_retain [l] $b:001 500 = -2
		reentrant_retain [text] $a:001 500 = -4
		reentrant_retain [missing] $a:001 500 = -2
		PTTL l = 1000

		# releases, down to a count, and of what is not held
		HSET l $a:001 3
		reentrant_release [l] $a:001 PUBLISH 0 2 = 1
		HGETALL l = [$a:001 2]
		reentrant_release [l] $a:001 PUBLISH 0 2 = 1
		sent HSET = 0
		reentrant_release [l] $b:001 PUBLISH 0 2 = -2
		reentrant_release [l] $b:001 PUBLISH 0 = -2
		without HDEL
		reentrant_release [l] $a:001 PUBLISH 0 1 = !NOPERM
		reentrant_release [l] $a:001 PUBLISH 0 = !NOPERM
		reentrant_release [l] $b:001 PUBLISH 0 = !NOPERM
		without HMGET
		reentrant_release [l] $b:001 PUBLISH 0 = !NOPERM
		without
		HSET l $a:001 x
		reentrant_release [l] $a:001 PUBLISH 0 1 = -4
		published = []
		reentrant_release [l] $a:001 PUBLISH 0 = 1
		EXISTS l = 0
		published = [redisson_lock__channel:{l}~0]
		reentrant_release [m] $a:001 PUBLISH 0 = 1
		published = [redisson_lock__channel:{m}~0]

		# many changes: each has its answer
		FLUSHALL
		HSET h $b:001 1
		SET text 1
		reentrant_change [a b h text r] PUBLISH 0 take 4 1 1000 '' '' $a:001 $a:001 $a:001 $a:001 = [@400000us @400000us -1 -4]
		PTTL a = 1000
		reentrant_change [a b h text] PUBLISH 0 take 1 2 2000 '' '' $a:001 give 3 0 $a:001 $a:001 $a:001 = [0 1 -2 -4]
		HGETALL a = [$a:001 2]
		PTTL a = 2000
		published = [redisson_lock__channel:{b}~0]
		reentrant_change [c rc d rd a] PUBLISH 0 take 2 1 1000 '' 5 $a:001 $b:001 give 1 1 $a:001 = [@400000us @400000us 1]
		GET rc = @400005us
		HGETALL a = [$a:001 1]
		SET rc x
		DEL c d
		reentrant_change [c rc d rd] PUBLISH 0 take 2 1 1000 '' 5 $a:001 $b:001 = [! @400006us]
		EXISTS c d = 1
		reentrant_change [f] PUBLISH 0 give 1 0 $a:001 = [-2]
		reentrant_change [f] PUBLISH 0 give 1 1 $a:001 = [-2]
		reentrant_change [f] PUBLISH 0 take 1 2 1000 '' '' $a:001 = [-2]
		EXISTS f = 0
		reentrant_change [a] PUBLISH 1 take 1 1 1000 1000~0~500~4000 '' $b:001 = [[2000]]
		HDEL a leasehold_line
		reentrant_change [a] PUBLISH 0 take 1 1 1000 1000~0~500~4000 '' $b:001 = [2000]
		HGET a leasehold_line = 0~@400|$b:001~1000~0~0~@4400;
		reentrant_change [a] PUBLISH 0 give 1 0 $a:001 = [1]
		HGETALL a = [$b:001 1 leasehold_line 1~@400|]
		without PEXPIRE
		reentrant_change [e d] PUBLISH 0 take 1 1 1000 '' '' $a:001 give 1 0 $b:001 = [!NOPERM 1]
		EXISTS e d = 0
	`)
}
