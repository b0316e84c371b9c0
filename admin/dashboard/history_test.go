package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// began is the time of the first look in these tests.
var began = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// lockOf returns a lock that these owners hold, with 30 s of lease left.
func lockOf(name string, owners ...string) admin.Lock {
	l := admin.Lock{State: lock.State{Name: name, Lease: 30 * time.Second}, Kind: admin.Plain, Holding: len(owners)}
	for _, o := range owners {
		l.Holders = append(l.Holders, lock.Holder{Owner: o, Mode: lock.Exclusive, Client: lock.Client{Name: o, Host: "host-1"}})
	}
	return l
}

// says returns the holds of a lock as text.
func (h *history) says(name string, now time.Time) string {
	var all []string
	for _, p := range h.of(name, now) {
		text := fmt.Sprintf("%s %v", p.owner, p.lasted(now))
		if p.before {
			text += " before"
		}
		all = append(all, strings.TrimSpace(text+" "+p.how))
	}
	return strings.Join(all, "|")
}

func surveyOf(after time.Duration, locks ...admin.Lock) *survey {
	s := &survey{at: began.Add(after), complete: true}
	for _, l := range locks {
		s.locks = append(s.locks, &row{Lock: l})
	}
	return s
}

func TestHistory(t *testing.T) {
	var h history
	minute := time.Minute
	h.see(surveyOf(0, lockOf("a", "x"), lockOf("b", "y")))
	h.see(surveyOf(10*time.Second, lockOf("a", "x"), lockOf("b", "y")))
	h.see(surveyOf(20*time.Second, lockOf("a", "z")))
	if got := h.says("a", began.Add(30*time.Second)); got != "z 10s|x 20s before released" {
		t.Errorf("from hand to hand: %s", got)
	}
	if got := h.says("b", began.Add(30*time.Second)); got != "y 20s before released" {
		t.Errorf("free: %s", got)
	}
	h.seeLock(lockOf("a"), began.Add(40*time.Second), true) // a look at one lock
	h.see(surveyOf(35*time.Second, lockOf("a", "z")))       // a survey that began earlier
	if got := h.says("a", began.Add(minute)); got != "z 20s released|x 20s before released" {
		t.Errorf("looks overlap: %s", got)
	}
	h.see(surveyOf(50*time.Second, lockOf("a", "v")))
	h.see(surveyOf(90*time.Second, lockOf("a", "w")))
	taken := lockOf("a")
	taken.ForceUnlock = &admin.ForceUnlockRecord{At: began.Add(95 * time.Second), By: "alice", From: []string{lockOf("a", "w").Holders[0].Client.String()}}
	h.seeLock(taken, began.Add(100*time.Second), true)
	if got := h.says("a", began.Add(2*minute)); !strings.HasPrefix(got, "w 10s force-unlocked by alice|v 40s lease expired|") {
		t.Errorf("how they ended: %s", got)
	}

	slow := lockOf("slow", "u")
	h.see(surveyOf(100*time.Second, slow))
	none := surveyOf(110 * time.Second)
	none.took = 20 * time.Second // the lease expires during the look
	h.see(none)
	if got := h.says("slow", began.Add(2*minute)); got != "u 10s lease expired" {
		t.Errorf("after a slow look: %s", got)
	}

	few := lockOf("many", "r1", "r2")
	few.Holding = 1000
	h.see(surveyOf(2*minute, few))
	few.Holders = few.Holders[:1]
	h.see(surveyOf(2*minute+time.Second, few))
	if got := h.says("many", began.Add(3*minute)); got != "r1 1m0s before|r2 1m0s before" {
		t.Errorf("a list with some of the holders: %s", got)
	}
	lacks := surveyOf(2*minute + 2*time.Second)
	lacks.missing = []admin.Missing{{Server: "host-1:6379"}}
	h.see(lacks)
	if got := h.says("many", began.Add(3*minute)); got != "r1 1m0s before|r2 1m0s before" {
		t.Errorf("a server that does not respond: %s", got)
	}
	h.see(surveyOf(20 * minute))
	if got := h.says("many", began.Add(20*minute)); got != "r1 1s before unknown: not checked until 12:20:00 UTC|r2 0s before unknown: not checked until 12:20:00 UTC" {
		t.Errorf("after a gap: %s", got)
	}
	var filling history
	part := surveyOf(0, lockOf("a", "x"))
	part.complete = false
	filling.see(part)
	filling.see(surveyOf(time.Second, lockOf("a", "x"), lockOf("b", "y")))
	filling.see(surveyOf(2*time.Second, lockOf("a", "x"), lockOf("b", "y"), lockOf("c", "z")))
	if got := filling.says("a", began.Add(minute)) + ", " + filling.says("b", began.Add(minute)) + ", " + filling.says("c", began.Add(minute)); got != "x 1m0s before, y 59s before, z 58s" {
		t.Errorf("what the first scan finds: %s", got)
	}
	if got := h.says("a", began.Add(2*time.Hour)); got != "" {
		t.Errorf("after an hour: %s", got)
	}
}

// A survey has no audit records, so a later read of the lock corrects how its holds ended.
func TestHistory_amended(t *testing.T) {
	x := lock.Client{Name: "x", Host: "host-1"}
	for name, c := range map[string]struct {
		record admin.ForceUnlockRecord
		want   string
	}{
		"between two surveys":       {admin.ForceUnlockRecord{At: began.Add(15 * time.Second), From: []string{x.String()}}, "x 20s before force-unlocked by alice"},
		"an operator's slow clock":  {admin.ForceUnlockRecord{At: began.Add(9 * time.Second), From: []string{x.String()}}, "x 20s before force-unlocked by alice"},
		"an operator's fast clock":  {admin.ForceUnlockRecord{At: began.Add(21 * time.Second), From: []string{x.String()}}, "x 20s before force-unlocked by alice"},
		"while it was held":         {admin.ForceUnlockRecord{At: began.Add(8 * time.Second), From: []string{x.String()}}, "x 20s before released"},
		"later":                     {admin.ForceUnlockRecord{At: began.Add(22 * time.Second), From: []string{x.String()}}, "x 20s before released"},
		"another holder lost it":    {admin.ForceUnlockRecord{At: began.Add(15 * time.Second), From: []string{"y"}}, "x 20s before released"},
		"a lock with another name":  {admin.ForceUnlockRecord{At: began.Add(15 * time.Second), From: []string{x.String()}}, "x 20s before released"},
		"the lease expired instead": {admin.ForceUnlockRecord{At: began.Add(15 * time.Second), From: []string{x.String()}}, "x 20s before lease expired"},
	} {
		var h history
		seen, look := lockOf("a", "x"), lockOf("a")
		if strings.HasSuffix(c.want, "expired") {
			seen.Lease = 5 * time.Second
		}
		h.see(surveyOf(0, seen))
		h.see(surveyOf(10*time.Second, seen))
		h.see(surveyOf(20 * time.Second))
		if name == "a lock with another name" {
			look.Name = "b"
		}
		c.record.By = "alice"
		look.ForceUnlock = &c.record
		h.seeLock(look, began.Add(25*time.Second), true)
		if got := h.says("a", began.Add(30*time.Second)); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A force-unlock with an owner ends one of several holds. The others that have ended since were released.
func TestHistory_oneOfSeveral(t *testing.T) {
	var h history
	both, none := lockOf("a", "x", "y"), lockOf("a")
	none.ForceUnlock = &admin.ForceUnlockRecord{At: began.Add(5 * time.Second), By: "alice", From: []string{both.Holders[1].Client.String()}}
	h.seeLock(both, began, true)
	h.seeLock(none, began.Add(10*time.Second), false)
	if got := h.says("a", began.Add(20*time.Second)); got != "x 10s before released|y 10s before force-unlocked by alice" {
		t.Error(got)
	}
	var told []string
	for _, e := range changes(both, none, began.Add(10*time.Second), span{}, span{}) {
		told = append(told, e.What)
	}
	if len(told) != 2 || strings.Contains(told[1], "alice") || !strings.Contains(told[0], "force-unlocked by alice") {
		t.Errorf("events: %q", told)
	}
}

// A wait group can have the name of a lock. Neither ends the holds of the other.
func TestHistory_waitGroupWithTheNameOfALock(t *testing.T) {
	var h history
	group := lockOf("a", "w")
	group.Kind = admin.WaitGroup
	for i := range 3 {
		h.see(surveyOf(time.Duration(i)*time.Second, lockOf("a", "x"), group))
	}
	if got := h.says("a", began.Add(3*time.Second)); got != "w 3s before|x 3s before" {
		t.Errorf("both are held: %s", got)
	}
	taken := lockOf("a")
	taken.ForceUnlock = &admin.ForceUnlockRecord{At: began.Add(3 * time.Second), By: "alice", From: []string{group.Holders[0].Client.String()}}
	h.see(surveyOf(3*time.Second, lockOf("a", "x")))
	h.seeLock(taken, began.Add(4*time.Second), false)
	if got := h.says("a", began.Add(5*time.Second)); got != "w 3s before released|x 4s before released" {
		t.Errorf("a force-unlock of the lock: %s", got)
	}
	s := &surveyor{last: &survey{complete: true, locks: []*row{{Lock: lockOf("a", "x")}, {Lock: group}}}, rows: map[lockID]*row{}}
	for _, r := range s.last.locks {
		s.rows[idOf(r.Lock)] = r
	}
	now := surveyOf(time.Second, lockOf("a", "x"))
	told := s.changes(now, map[lockID]*row{idOf(now.locks[0].Lock): now.locks[0]})
	if len(told) != 1 || told[0].What != "completed or was deleted" {
		t.Errorf("the wait group ended: %v", told)
	}
}

// A history is bounded, and drops the oldest hold first.
func TestHistory_bounded(t *testing.T) {
	var h history
	for i := range mostPast + 10 {
		h.seeLock(lockOf("a", fmt.Sprint(i)), began.Add(time.Duration(i)*time.Millisecond), i == 0)
	}
	now := began.Add(time.Minute)
	if all := h.of("a", now); len(h.past) != mostPast || len(all) != mostPast+1 || all[len(all)-1].owner != "9" {
		t.Errorf("%d holds, the oldest is %s", len(all), all[len(all)-1].owner)
	}
}

// If no look has all holds, the history keeps only the holds that were found within a minute. The end of the others is recorded as unknown.
func TestHistory_parts(t *testing.T) {
	for name, look := range map[string]func(h *history, i int, at time.Duration){
		"many holders": func(h *history, i int, at time.Duration) {
			l := lockOf("a", fmt.Sprint(i))
			l.Holding = 1000
			h.see(surveyOf(at, l))
		},
		"more locks": func(h *history, i int, at time.Duration) {
			s := surveyOf(at, lockOf(fmt.Sprint("a", i), fmt.Sprint(i)))
			s.more = true
			h.see(s)
		},
		"a server that does not respond": func(h *history, i int, at time.Duration) {
			s := surveyOf(at, lockOf(fmt.Sprint("a", i), fmt.Sprint(i)))
			s.missing = []admin.Missing{{Server: "host-1:6379"}}
			h.see(s)
		},
	} {
		var h history
		for i := range 1000 {
			look(&h, i, time.Duration(i)*time.Second)
		}
		open := 0
		for _, holds := range h.open {
			open += len(holds)
		}
		if open > 61 {
			t.Errorf("%s: %d holds are open after 1000 looks", name, open)
		}
		if h.past[0].how != "unknown: not checked since, may still be held" || !h.past[0].before {
			t.Errorf("%s: %+v", name, h.past[0])
		}
	}
}

// A new hold after a time without looks may have begun long before. A hold that began between two looks at its lock has not.
func TestHistory_before(t *testing.T) {
	var h history
	h.seeLock(lockOf("a", "x"), began, true)
	h.seeLock(lockOf("b", "y"), began.Add(time.Second), true)
	h.seeLock(lockOf("b", "z"), began.Add(2*time.Second), false)
	h.see(surveyOf(3*time.Second, lockOf("b", "z")))
	h.seeLock(lockOf("c", "u"), began.Add(4*time.Second), true)
	h.see(surveyOf(30*time.Minute, lockOf("d", "v")))
	now := began.Add(31 * time.Minute)
	for name, want := range map[string]string{"b": "z 1s unknown: not checked until 12:30:00 UTC|y 1s before released", "c": "u 0s unknown: not checked until 12:30:00 UTC", "d": "v 1m0s before"} {
		if got := h.says(name, now); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// Without a survey, which finds the holds that are over, reads of single locks do not keep the holds of other locks indefinitely.
func TestHistory_forgets(t *testing.T) {
	var h history
	for i := range 3 * 60 {
		h.seeLock(lockOf(fmt.Sprint("job:", i), "x"), began.Add(time.Duration(i)*time.Minute), true)
	}
	if n := len(h.open); n > 62 {
		t.Errorf("after 3 h, %d of 180 locks that were read once", n)
	}
	if got := h.says("job:179", began.Add(3*time.Hour)); got != "x 1m0s before" {
		t.Errorf("the last one: %s", got)
	}
}

// A hold that ended in a minute of the previous hour does not change the minute that has replaced it.
func TestHistory_lateEnd(t *testing.T) {
	var h history
	h.see(surveyOf(0, lockOf("a", "x")))
	s := surveyOf(time.Hour, lockOf("b", "y"))
	h.see(s)
	if m := h.minutes[s.at.Unix()/60%60]; m.at != s.at.Unix()/60 || m.held != 1 || m.ended != 0 {
		t.Errorf("%+v", m)
	}
}

// The charts have the minutes in which there were looks, and a break where there were none.
func TestHistory_sparks(t *testing.T) {
	var h history
	h.see(surveyOf(0, lockOf("a", "x"), lockOf("b", "y")))
	if all := h.sparks(began); all != nil {
		t.Errorf("after one minute: %+v", all)
	}
	h.see(surveyOf(time.Minute, lockOf("a", "x")))
	waited := lockOf("a", "x")
	waited.Waiting = 1500
	h.see(surveyOf(10*time.Minute, waited))
	all := h.sparks(began.Add(10 * time.Minute))
	if len(all) != 3 {
		t.Fatalf("%+v", all)
	}
	for i, want := range []string{
		"Held 2 [49,1.0 50,10.0 59,10.0 59,10.0]", "Waiting 1,500 [49,19.0 50,19.0 59,1.0 59,1.0]", "Mean hold time 1m 00s [49,19.0 50,1.0 59,19.0 59,19.0]",
	} {
		if got := fmt.Sprintln(all[i].Title, all[i].Most, all[i].Lines); got != want+"\n" {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if all := h.sparks(began.Add(3 * time.Hour)); all != nil {
		t.Errorf("much later: %+v", all)
	}
}

// The overview draws the charts.
func TestOverview_sparks(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	w := httptest.NewRecorder()
	for minute := int64(-1); time.Now().Unix()/60 != minute; { // if another minute begins, the points move
		minute = time.Now().Unix() / 60
		h, err := New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		for _, ago := range []time.Duration{2 * time.Minute, time.Minute} {
			s := surveyOf(0, lockOf("a", "x"))
			s.at = time.Now().Add(-ago)
			h.history.see(s)
		}
		w = httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	}
	for _, want := range []string{"Last hour", `aria-label="Held in the last hour: at most 1"><polyline points="57,1.0 58,1.0`, "Mean hold time"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %q in %s", want, w.Body)
		}
	}
}

// inspected returns an inspector of a lock whose reads go through wire. do executes a command.
func inspected(t *testing.T, name string) (i *inspector, wire *redistest.Proxy, do func(words ...string)) {
	m := redistest.NewMini(t)
	wire = m.Proxy(t)
	a, err := admin.New(m.Client(t, redistest.Via(wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }))
	if err != nil {
		t.Fatal(err)
	}
	rdb := m.Client(t)
	do = func(words ...string) {
		t.Helper()
		if err := rdb.Do(t.Context(), rdb.B().Arbitrary(words...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	return &inspector{admin: a, record: func(admin.Lock, time.Time, bool) {}, name: name, server: checkup{rdb: rdb}}, wire, do
}

// After a slow read, the lease of a dead holder does not look renewed, and that of a live holder does.
func TestInspector_slow(t *testing.T) {
	for _, alive := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			i, wire, do := inspected(t, "orders:42")
			do("HSET", "orders:42", "01a20376-5c32-7c6b-b43e-a07f69b48111:001", "1")
			do("PEXPIRE", "orders:42", "30000")
			i.look(t.Context())
			time.Sleep(10 * time.Second)
			if alive {
				do("PEXPIRE", "orders:42", "30000")
			}
			wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayReply: 400 * time.Millisecond} })
			d := i.look(t.Context())
			wire.OnRequest(nil)
			if d.err != nil || (len(d.happened) == 1) != alive {
				t.Errorf("alive %v: %v, %v", alive, d.happened, d.err)
			}
		})
	}
}

// After a slow read, the lease of the lock and the lease of the holder who has the longest one still expire at the same time.
func TestInspector_slowLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, wire, do := inspected(t, "report")
		const alpha, beta = "01a20376-5c32-7c6b-b43e-a07f69b48111:001", "01a20376-5c32-7c6b-b43e-a07f69b48222:001"
		do("HSET", "report", "mode", "read", alpha, "1", beta, "1")
		do("PEXPIRE", "report", "60000")
		do("SET", "{report}:"+alpha+":rwlock_timeout:1", "1", "PX", "60000")
		do("SET", "{report}:"+beta+":rwlock_timeout:1", "1", "PX", "30000")
		slow := redistest.Action{DelayRequest: 2 * time.Second}
		wire.OnRequest(func([][]byte) (act redistest.Action) {
			act, slow = slow, act // only the first request
			return act
		})
		d := i.look(t.Context())
		wire.OnRequest(nil)
		if d.err != nil || len(d.lock.Holders) != 2 {
			t.Fatalf("%v, %v", d.lock.Holders, d.err)
		}
		for n, r := range holderRows(d, true) {
			longest := d.lock.Holders[n].Owner == alpha
			if until := d.span.until.UnixMilli(); (r.Lease.Until == until) != longest {
				t.Errorf("the lease of the lock expires at %d, and the lease of %s at %d", until, d.lock.Holders[n].Owner, r.Lease.Until)
			}
		}
	})
}

// The lease of a reader is unknown, and the reader is gone when the longest lease of the lock has expired.
func TestHistory_unknownLease(t *testing.T) {
	var h history
	l := lockOf("a", "x")
	l.Mode, l.Holders[0].Mode, l.Holding, l.Lease = lock.Read, lock.Read, 1, 10*time.Second
	h.see(surveyOf(0, l))
	h.see(surveyOf(10 * time.Second))
	if got := h.says("a", began.Add(time.Minute)); got != "x 10s before lease expired" {
		t.Error(got)
	}
}
