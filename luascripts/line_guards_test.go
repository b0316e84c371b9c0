package luascripts_test

import (
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

// When the way in which a process is known to be alive has changed, its next
// question corrects the entry: it is heard again, or the server cannot count listeners now.
func TestLine_entriesFollowTheirProcess(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	scattered := keys
	scattered.Scattered = true

	hold(t, rdb)
	if got := ask(t, rdb, keys, first, time.Second, 0); !got.Deaf { // asks again in a second
		t.Fatalf("%+v", got)
	}
	listening(t, s, first)
	stand(t, rdb, keys, first, time.Second)
	pass(t, rdb, keys, holder) // now that messages reach it
	if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 {
		t.Errorf("reached again, and passed over: %q", contents(t, rdb))
	}

	hold(t, rdb)
	if got := ask(t, rdb, keys, second, time.Second, 0); !got.Deaf {
		t.Fatalf("%+v", got)
	}
	if got := ask(t, rdb, scattered, second, time.Second, 0); got.Deaf {
		t.Fatalf("%+v", got)
	}
	pass(t, rdb, scattered, holder) // now that the server cannot tell that no message reaches it
	if n := number(t, rdb, "HEXISTS", keys.Lock, second); n != 1 {
		t.Errorf("the server cannot count, and passed it over: %q", contents(t, rdb))
	}
}

// Where the server cannot count listeners, a process is alive for `keep` since its latest question,
// and its entry is written again when half of that is over.
func TestLine_isKeptAliveByQuestions(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	scattered := keys
	scattered.Scattered = true
	hold(t, rdb)
	start := now(t, rdb)
	do(t, rdb, "HSET", keys.Lock, luascripts.LineField, fmt.Sprintf("0 %d|%s 1000 0 0 %d;", start, first, start+29_000))
	if got := ask(t, rdb, scattered, first, time.Second, 0); got.Verdict != luascripts.Held { // it is kept for a minute
		t.Fatalf("%+v", got)
	}
	entry := strings.Fields(strings.TrimSuffix(text(do(t, rdb, "HGET", keys.Lock, luascripts.LineField)), ";"))
	if deadline, err := strconv.ParseInt(entry[len(entry)-1], 10, 64); err != nil || deadline < start+60_000 {
		t.Errorf("it is kept until %d ms after the question, %v", deadline-start, err)
	}
}

// The heir of a release is granted the lock for its own offer, not for that of the waiter whose
// place it takes.
func TestLine_theHeirsOffer(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	hold(t, rdb)
	stand(t, rdb, keys, first, time.Minute)
	got, err := luascripts.PassReentrant(t.Context(), rdb, keys, holder, luascripts.Pass{Heir: first + "9", Offer: 20 * time.Second, WaiterTimeout: time.Minute})
	if err != nil || got.Token == 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	about(t, "the lease", pttl(t, rdb, keys.Lock), 20*time.Second)
}

// A dead process that the release passes over leaves the line. A process that no message reaches is
// alive until its deadline, even if it asks seldom.
func TestLine_forgetsTheDead(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	const third = "33333333-3333-7333-8333-333333333333:7"
	hold(t, rdb)
	leave := listener(t, s, process(first))
	stand(t, rdb, keys, first, time.Second)
	leave()
	if got := ask(t, rdb, keys, second, time.Second, 0); !got.Deaf { // asks again in a second, and is kept for a minute
		t.Fatalf("%+v", got)
	}
	listening(t, s, third)
	stand(t, rdb, keys, third, time.Second)
	pass(t, rdb, keys, holder)
	if after, want := line(t, rdb), []string{second}; !slices.Equal(after, want) || number(t, rdb, "HEXISTS", keys.Lock, third) != 1 {
		t.Errorf("in line are %q, want %q; %q", after, want, contents(t, rdb))
	}
}

// A late copy of a question for several locks changes nothing about what its owner holds,
// when memory is full, and when a lease was lengthened since.
func TestAll_aLateCopyTakesNothingAway(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	more := keys
	more.Lock = "orders2"
	all := []luascripts.Taking{{Keys: keys, Owner: holder, Lease: lease}, {Keys: more, Owner: holder, Lease: lease}}
	take := func() {
		t.Helper()
		if a, _, err := luascripts.AcquireAllReentrant(t.Context(), rdb, all); err != nil || a.Verdict != luascripts.Done {
			t.Errorf("%+v, %v", a, err)
		}
	}
	take()
	if a, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Question{Owner: holder, Lease: time.Hour, Want: 2}); err != nil || a.Verdict != luascripts.Done {
		t.Fatalf("%+v, %v", a, err)
	}
	take()
	about(t, "the lease", pttl(t, rdb, keys.Lock), time.Hour)
	full(t, s)
	take()
	if n := number(t, rdb, "EXISTS", keys.Lock, more.Lock); n != 2 {
		t.Errorf("%d of 2 locks that are held are there", n)
	}
}

// Text of another program in the field of the line does not grow, is granted nothing, and
// keeps no owner from the lock.
func TestLine_ofAnotherProgram(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	nines := strings.Repeat("9", 400)
	for _, text := range []string{
		"garbage ", strings.Repeat("x ", 50), "1 2|x y;", "1 2|" + strings.Repeat("a", 1000) + ";", strings.Repeat(" ", 5<<20),
		"1 2|" + strings.Repeat(second+" 1000 0 0 0;", 100_000), nines + " " + nines + "|", "0 0|" + second + " 1000 " + nines + " " + nines + " " + nines + ";",
		"0 0|mode 5000 0 0 " + nines + ";", "0 0|x 5000 0 0 " + nines + ";", "0 0|%s%d 1 1 1 " + nines + ";", "-1 -1|", "0 0|" + second + " 99999999999999999999 0 0 " + nines + ";",
	} {
		hold(t, rdb)
		do(t, rdb, "HSET", keys.Lock, luascripts.LineField, text)
		for range 20 {
			if got := ask(t, rdb, keys, first, time.Second, 0); got.Verdict != luascripts.Held {
				t.Fatalf("%.40q: %+v", text, got)
			}
		}
		if n := number(t, rdb, "HSTRLEN", keys.Lock, luascripts.LineField); n > 2000 {
			t.Errorf("%.40q: the line has %d bytes after 20 questions of one process", text, n)
		}
		const heir = "33333333-3333-7333-8333-333333333333:1"
		got, err := luascripts.PassReentrant(t.Context(), rdb, keys, holder, luascripts.Pass{Heir: heir, Offer: time.Second, Again: time.Second, WaiterTimeout: time.Minute})
		if err != nil || got.Verdict != luascripts.Done {
			t.Errorf("%.40q: %+v, %v", text, got, err)
		}
		if left := pttl(t, rdb, keys.Lock); left > 10*time.Second {
			t.Errorf("%.40q: granted for %v", text, left)
		}
		if a, err := luascripts.InspectReentrant(t.Context(), rdb, keys); err != nil || a.Foreign {
			t.Errorf("%.40q: %+v, %v", text, a, err)
		}
	}
}

// Redisson's owners have the numbers of threads, which can be any integer.
func TestPlain_anyThread(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		seed(t, rdb, ours[:37]+"-5", 1, 30_000)
		if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Question{Owner: other, Lease: lease, Want: 1}); err != nil || got.Verdict != luascripts.Held {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A TryLock leaves nothing in line.
func TestLine_triesAreNotInIt(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb)
		if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Question{Owner: other, Lease: lease, Want: 1}); err != nil || got.Verdict != luascripts.Held {
			t.Errorf("%+v, %v", got, err)
		}
		if after := line(t, rdb); len(after) > 0 {
			t.Errorf("in line are %q", after)
		}
	})
}

// When the last process leaves the line, the line goes with it.
func TestLine_goesWithTheLast(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb, first)
		if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, first, 0); err != nil || v != luascripts.Gone {
			t.Errorf("%v, %v", v, err)
		}
		if n := number(t, rdb, "HEXISTS", keys.Lock, luascripts.LineField); n != 0 {
			t.Errorf("left %q", contents(t, rdb))
		}
	})
}

// With memory full no process enters the line, and a question is answered with what is left of the lease. A process
// in line is granted the lock.
func TestLine_fullMemory(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	hold(t, rdb, first)
	full(t, s)
	stand(t, rdb, keys, second, time.Second)
	pass(t, rdb, keys, holder)
	if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 || len(line(t, rdb)) != 0 {
		t.Errorf("left %q", contents(t, rdb))
	}
}

// Missing rights do not undo a release, and do not stop the work that needs none: the rights to count
// listeners, to send messages, to write an equal value.
func TestLine_deniedCommands(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	for _, deny := range []string{"pubsub", "publish"} {
		hold(t, rdb, first)
		pass(t, denied(t, s, deny), keys, holder)
		if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 {
			t.Errorf("without %s: %q", deny, contents(t, rdb))
		}
	}
	hold(t, rdb)
	stand(t, denied(t, s, "pubsub"), keys, second, time.Second)
	if after := line(t, rdb); !slices.Equal(after, []string{second}) {
		t.Errorf("in line are %q", after)
	}
	do(t, rdb, "HSET", keys.Lock, luascripts.LineField, fmt.Sprintf("17 %d|%s 1000 0 0 0;", now(t, rdb), first)) // it is to be freed
	scattered := keys
	scattered.Scattered = true
	if got, err := luascripts.PassReentrant(t.Context(), denied(t, s, "publish"), scattered, holder, luascripts.Pass{}); err != nil || number(t, rdb, "EXISTS", keys.Lock) != 0 {
		t.Errorf("%+v, %v, left %q", got, err, contents(t, rdb))
	}

	hold(t, rdb)
	if v, err := luascripts.ReleaseReentrant(t.Context(), denied(t, s, "hset"), keys, holder, 1); err != nil || v != luascripts.Done {
		t.Errorf("a count that is right: %v, %v", v, err)
	}
	for _, deny := range []string{"hdel", "hmget"} {
		if v, err := luascripts.ReleaseReentrant(t.Context(), denied(t, s, deny), keys, first, 0); err == nil {
			t.Errorf("without %s: a denial is no verdict: %v", deny, v)
		}
	}
}

// Text of another program in place of a line has no places: it ends with the lock, and
// stops no owner.
func TestLine_strangeTexts(t *testing.T) {
	scattered := keys
	scattered.Scattered = true
	for name, text := range map[string]string{
		"no process":     "0 1|somebody 1000 0 0 0;",
		"no head":        strings.Repeat(";", 64),
		"no head, owner": first + " 1000 0 0 1;",
		"no head, alive": first + " 1000 0 0 9999999999999;",
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, rdb rueidis.Client) {
				for _, k := range []luascripts.Keys{keys, scattered} {
					hold(t, rdb)
					do(t, rdb, "HSET", keys.Lock, luascripts.LineField, text)
					for range 32 { // the script looks for the dead in one ms of 16
						stand(t, rdb, k, second, time.Second)
						time.Sleep(time.Millisecond)
					}
					do(t, rdb, "HSET", keys.Lock, luascripts.LineField, text)
					pass(t, rdb, k, holder)
					if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
						t.Errorf("it is not free: %q", contents(t, rdb))
					}
				}
			})
		})
	}
}

// A release looks at no more places than a line can have.
func TestLine_longerThanItCanBe(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	listening(t, s, first)
	hold(t, rdb)
	var long strings.Builder
	long.WriteString("1 0|")
	for i := range 64 {
		fmt.Fprintf(&long, "%08x-1111-7111-8111-111111111111:5 1000 0 0 0;", i+100)
	}
	do(t, rdb, "HSET", keys.Lock, luascripts.LineField, long.String()+first+" 1000 0 0 0;")
	pass(t, rdb, keys, holder)
	if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
		t.Errorf("left %q", contents(t, rdb))
	}
}

// The server cannot count listeners any more. Processes that were reached stay in line and are
// granted the lock, also when the line is full; those whose deadline is over have no place, and those
// that no message reaches keep theirs until the deadline.
func TestLine_aliveOrNot(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	scattered := keys
	scattered.Scattered = true
	seat := func(i int) string { return fmt.Sprintf("%08x-1111-7111-8111-111111111111:5", i+100) }
	for name, c := range map[string]struct {
		entry string // without the ms from now on
		till  int64
		k     luascripts.Keys
		stays bool
	}{
		"heard before":               {"0 0 ", 0, scattered, true},
		"unheard before":             {"0 0 ", 60_000, keys, true},
		"unheard for too long":       {"0 0 ", -1, scattered, false},
		"hears nothing":              {"1 1 ", 60_000, keys, true},
		"hears nothing for too long": {"1 1 ", -1, scattered, false},
	} {
		t.Run(name, func(t *testing.T) {
			hold(t, rdb)
			till := c.till
			if till != 0 {
				till += now(t, rdb)
			}
			var full strings.Builder
			full.WriteString("0 0|")
			for i := range 64 {
				fmt.Fprintf(&full, "%s 1000 %s%d;", seat(i), c.entry, till)
			}
			do(t, rdb, "HSET", keys.Lock, luascripts.LineField, full.String())
			for range 100 { // the script looks for the dead now and then
				stand(t, rdb, c.k, second, time.Second)
				if len(line(t, rdb)) < 64 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if after := line(t, rdb); c.stays != (len(after) == 64) || !c.stays && !slices.Equal(after, []string{second}) {
				t.Errorf("in line are %q", after)
			}
		})
	}

	listening(t, s, first)
	hold(t, rdb, first)
	pass(t, rdb, scattered, holder)
	if n := number(t, rdb, "HEXISTS", keys.Lock, first); n != 1 {
		t.Errorf("reached before, and passed over: %q", contents(t, rdb))
	}
}

// AcquireAllReentrant takes several locks together, all or none.
func TestAcquireAllReentrant(t *testing.T) {
	two := keys
	two.Lock = "others"
	all := []luascripts.Taking{{Keys: keys, Owner: ours, Lease: lease}, {Keys: two, Owner: ours + "2", Lease: lease / 2}}
	takes := func(t *testing.T, rdb rueidis.Client) {
		t.Helper()
		if got, _, err := luascripts.AcquireAllReentrant(t.Context(), rdb, all); err != nil || got.Verdict != luascripts.Done || got.Token == 0 {
			t.Fatalf("%+v, %v", got, err)
		}
		about(t, "the first lease", pttl(t, rdb, keys.Lock), lease)
		about(t, "the second lease", pttl(t, rdb, two.Lock), lease/2)
		if a, b := text(do(t, rdb, "HGET", keys.Lock, ours)), text(do(t, rdb, "HGET", two.Lock, ours+"2")); a != "1" || b != "1" {
			t.Errorf("held %s and %s times", a, b)
		}
	}
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		takes(t, rdb)
		takes(t, rdb) // a copy of the question
		do(t, rdb, "DEL", keys.Lock, two.Lock)
		do(t, rdb, "HSET", two.Lock, luascripts.LineField, "0 0|")
		takes(t, rdb) // a line alone holds nothing
		seed(t, rdb, other, 1, 20_000)
		do(t, rdb, "DEL", two.Lock)
		if got, at, err := luascripts.AcquireAllReentrant(t.Context(), rdb, []luascripts.Taking{all[1], all[0]}); err != nil || got.Verdict != luascripts.Held || at != 1 || got.Holder != other {
			t.Errorf("%+v, %d, %v", got, at, err)
		}
		if n := number(t, rdb, "EXISTS", two.Lock); n != 0 {
			t.Error("one of the two is held")
		}
		seed(t, rdb, ours, 2, 60_000) // held, more often and for longer than it is asked for
		do(t, rdb, "DEL", two.Lock)
		if got, _, err := luascripts.AcquireAllReentrant(t.Context(), rdb, all); err != nil || got.Verdict != luascripts.Done {
			t.Errorf("one is held already: %+v, %v", got, err)
		}
		about(t, "the lease of the one that was held", pttl(t, rdb, keys.Lock), time.Minute)
		if held := text(do(t, rdb, "HGET", keys.Lock, ours)); held != "1" {
			t.Errorf("the one that was held is held %s times", held)
		}
		for what, make := range map[string][]string{"a list": {"RPUSH", two.Lock, "x"}, "some hash": {"HSET", two.Lock, "name", "bob"}} {
			do(t, rdb, "DEL", keys.Lock, two.Lock)
			do(t, rdb, make...)
			before := contents(t, rdb)
			if got, at, err := luascripts.AcquireAllReentrant(t.Context(), rdb, all); err != nil || got.Verdict != luascripts.Foreign || at != 1 {
				t.Errorf("the second is %s: %+v, %d, %v", what, got, at, err)
			}
			if after := contents(t, rdb); after != before {
				t.Errorf("the second is %s: the keys were\n%sand are\n%s", what, before, after)
			}
		}
	})
	s := redistest.Start(t)
	admin := s.Client(t)
	fails := func(what string, rdb rueidis.Client) {
		t.Helper()
		if got, _, err := luascripts.AcquireAllReentrant(t.Context(), rdb, all); err == nil {
			t.Errorf("%s: %+v", what, got)
		}
		if n := number(t, admin, "EXISTS", keys.Lock, two.Lock); n != 0 {
			t.Errorf("%s: %d keys are left", what, n)
		}
	}
	for _, deny := range []string{"hlen", "hset", "pexpire", "time"} {
		fails("without "+deny, denied(t, s, deny))
	}
	fails("without the right to the second", user(t, s, "one", "~orders", "&*", "+@all"))
	full(t, s)
	fails("memory is full", admin)
}

// A lock that is held already counts only if its lease can be made longer: a denial there takes no other lock.
func TestAcquireAllReentrant_deniedWhatIsHeld(t *testing.T) {
	s := redistest.Start(t)
	reply := s.Do(t, "COMMAND", "INFO", "ssubscribe")
	if known, err := reply.ToArray(); err != nil || len(known) != 1 || known[0].IsNil() {
		t.Skip("this server knows no rights to a command for one key alone") // they came with Redis 7.0, as that command did
	}
	admin := s.Client(t)
	two := keys
	two.Lock = "others"
	seed(t, admin, ours, 1, 20_000)
	some := user(t, s, "some", "~*", "&*", "+@all", "-pexpire", "(+pexpire ~"+two.Lock+")")
	if got, _, err := luascripts.AcquireAllReentrant(t.Context(), some, []luascripts.Taking{{Keys: two, Owner: ours, Lease: lease}, {Keys: keys, Owner: ours, Lease: lease}}); err == nil {
		t.Errorf("without the right to the lease of the second: %+v", got)
	}
	if n := number(t, admin, "EXISTS", two.Lock); n != 0 {
		t.Error("the first is held all the same")
	}

	// And what is given back after a denial is what was taken, and not what was held before.
	some = user(t, s, "others", "~*", "&*", "+@all", "-pexpire", "(+pexpire ~"+keys.Lock+")")
	if got, _, err := luascripts.AcquireAllReentrant(t.Context(), some, []luascripts.Taking{{Keys: keys, Owner: ours, Lease: lease}, {Keys: two, Owner: ours, Lease: lease}}); err == nil {
		t.Errorf("without the right to a lease of the second: %+v", got)
	}
	if held, taken := number(t, admin, "EXISTS", keys.Lock), number(t, admin, "EXISTS", two.Lock); held != 1 || taken != 0 {
		t.Errorf("%d of the held locks are left, and %d of the others", held, taken)
	}

	// Nor is it what was not reached: a line without an owner stays for the next one.
	do(t, admin, "DEL", keys.Lock)
	do(t, admin, "HSET", keys.Lock, luascripts.LineField, "0 0|")
	if got, _, err := luascripts.AcquireAllReentrant(t.Context(), some, []luascripts.Taking{{Keys: two, Owner: ours, Lease: lease}, {Keys: keys, Owner: ours, Lease: lease}}); err == nil {
		t.Errorf("without the right to a lease of the first: %+v", got)
	}
	if line := number(t, admin, "HLEN", keys.Lock); line != 1 {
		t.Errorf("what was not reached has %d fields", line)
	}
}

// A process that asks replaces a line which our scripts did not write to its end, as nobody would read its own entry behind that. It
// leaves an entry of its own process that it cannot read.
func TestLine_replacesWhatIsNoLine(t *testing.T) {
	process, _, _ := strings.Cut(second, ":")
	for text, stands := range map[string]bool{"0 1|garbage": true, "0 1|" + process + ":x 1;": false} {
		s := redistest.Start(t)
		rdb := s.Client(t)
		hold(t, rdb)
		do(t, rdb, "HSET", keys.Lock, luascripts.LineField, text)
		stand(t, rdb, keys, second, 2*time.Second)
		is, err := luascripts.InspectReentrant(t.Context(), rdb, keys)
		if err != nil || (len(is.Waiters) == 1) != stands {
			t.Errorf("behind %q: %+v, %v", text, is, err)
		}
	}
}

// All that wait for a lock are told that it was released by force.
func TestForceReentrant_tells(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb)
		e := listen(t, rdb)
		if got, err := luascripts.ForceReentrant(t.Context(), rdb, keys); err != nil || got != luascripts.Done {
			t.Errorf("%d, %v", got, err)
		}
		e.expect(keys.Channel + " 0")
	})
}

// An inspection tells how long each waiter is known to be alive: 0 if that is over, and without an end while a message reaches it.
func TestInspectReentrant_waiters(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb)
		do(t, rdb, "HSET", keys.Lock, luascripts.LineField, "0 1|"+first+" 1000 0 0 1;"+second+" 1000 0 0 0;"+other+" 1000 0 0 9999999999999;")
		is, err := luascripts.InspectReentrant(t.Context(), rdb, keys)
		if err != nil || len(is.Waiters) != 3 || is.Waiters[0].WaiterTimeout != 0 || is.Waiters[1].WaiterTimeout != luascripts.NoExpiry || is.Waiters[2].WaiterTimeout < time.Hour {
			t.Errorf("%+v, %v", is, err)
		}
	})
}
