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

// A plain and a fair lock of one name are one hash. The line of who waits for the
// plain one must not look like a holder to the fair one.
func TestLine_besideAFairLock(t *testing.T) {
	fair, next := luascripts.Question{Owner: ours, Lease: lease, Want: 1}, luascripts.Question{Owner: ours + "2", Lease: lease, Want: 1}
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		take := func(want luascripts.Verdict, q luascripts.Question) {
			t.Helper()
			if got, err := luascripts.AcquireFair(t.Context(), rdb, fairKeys, q); err != nil || got.Verdict != want {
				t.Fatalf("%v, %v, want %v", got, err, want)
			}
		}
		stand := func() {
			t.Helper()
			got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Question{Owner: other, Lease: lease, Want: 1, Offer: time.Second, Patience: time.Minute, Ask: 1})
			if err != nil || got.Verdict != luascripts.Held {
				t.Fatalf("%v, %v", got, err)
			}
		}
		take(luascripts.Done, fair)
		stand()
		take(luascripts.Held, next)
		again := fair
		again.Want = 2
		take(luascripts.Done, again)
		if s, err := luascripts.InspectFair(t.Context(), rdb, fairKeys); err != nil || len(s.Fields) != 1 || s.Fields[0].Value != "2" {
			t.Errorf("%v, %v", s, err)
		}
		if got, err := luascripts.ReleaseFair(t.Context(), rdb, fairKeys, ours, 0); err != nil || got != luascripts.Done {
			t.Errorf("%v, %v", got, err)
		}
		if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
			t.Error("what is left is held by nobody")
		}
		take(luascripts.Done, fair)
		stand()
		if got, err := luascripts.ForceFair(t.Context(), rdb, fairKeys); err != nil || got != luascripts.Done {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// The lock is free, and its next holder's register is spoilt. The release says that the
// lock is free, and others hear of it; who needs the register will be told.
func TestRelease_toAnHeirWithASpoiltRegister(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		seed(t, rdb, ours, 1, 30000)
		k := keys
		k.Register = "redisson_lock_token:{orders}"
		do(t, rdb, "SADD", k.Register, "no number")
		got, err := luascripts.PassReentrant(t.Context(), rdb, k, ours, luascripts.Pass{Heir: other, Offer: time.Second, Patience: time.Minute, Fenced: true, Spare: 64, Ask: 1})
		if err != nil || got.Verdict != luascripts.Done || got.Token != 0 {
			t.Errorf("%v, %v", got, err)
		}
		if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 {
			t.Error("the lock is still there")
		}
	})
}

// stand puts an owner in line.
func stand(t *testing.T, rdb rueidis.Client, k luascripts.Keys, owner string, offer time.Duration) {
	t.Helper()
	got, err := luascripts.AcquireReentrant(t.Context(), rdb, k, luascripts.Question{Owner: owner, Lease: lease, Want: 1, Offer: offer, Patience: time.Minute, Ask: 7})
	if err != nil || got.Verdict != luascripts.Held {
		t.Fatalf("%v, %v", got, err)
	}
}

func text(m rueidis.RedisMessage) string {
	s, _ := m.ToString()
	return s
}

// line is who stands in line, first come first.
func line(t *testing.T, rdb rueidis.Client) (owners []string) {
	t.Helper()
	_, entries, _ := strings.Cut(text(do(t, rdb, "HGET", keys.Lock, luascripts.LineField)), "|")
	for entry := range strings.SplitSeq(strings.TrimSuffix(entries, ";"), ";") {
		if owner, _, _ := strings.Cut(entry, " "); owner != "" {
			owners = append(owners, owner)
		}
	}
	return owners
}

// listening subscribes to what a process of ours listens to, for each of these owners,
// and returns what was said there, but at the channel that all listen to.
func listening(t *testing.T, s *redistest.Server, owners ...string) (said chan string) {
	t.Helper()
	said = make(chan string, 100)
	for _, owner := range owners {
		subscribe(t, s, keys.Channel, nil)
		subscribe(t, s, keys.Channel+luascripts.Ours, said)
		subscribe(t, s, keys.Channel+":"+owner[:strings.LastIndexByte(owner, ':')], said)
	}
	return said
}

// subscribe listens to a channel on a connection of its own, and passes on what is said.
func subscribe(t *testing.T, s *redistest.Server, channel string, said chan string) {
	t.Helper()
	conn, release := s.Client(t).Dedicate()
	t.Cleanup(release)
	confirmed := make(chan struct{})
	conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			if said != nil {
				said <- m.Message
			}
		},
		OnSubscription: func(rueidis.PubSubSubscription) { close(confirmed) },
	})
	if err := conn.Do(t.Context(), conn.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	<-confirmed
}

const (
	holder = "00000000-0000-7000-8000-000000000000:1"
	first  = "11111111-1111-7111-8111-111111111111:5"
	second = "22222222-2222-7222-8222-222222222222:6"
)

// hold lets holder have the lock, and others stand in line for it.
func hold(t *testing.T, rdb rueidis.Client, waiting ...string) {
	t.Helper()
	do(t, rdb, "DEL", keys.Lock)
	seed(t, rdb, holder, 1, 30_000)
	for _, owner := range waiting {
		stand(t, rdb, keys, owner, 2*time.Second)
	}
}

// The release gives the lock to the first in line, for its offer, and tells it. The
// others move up, and who waits in the process that releases stands behind them.
func TestLine_firstComeFirstServed(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	said := listening(t, s, first, second)
	hold(t, rdb, first, second)
	stand(t, rdb, keys, first, 2*time.Second) // asks again, and stays where it is
	const far = 1 << 52
	got, err := luascripts.PassReentrant(t.Context(), rdb, keys, holder, luascripts.Pass{Last: far, Heir: "00000000-0000-7000-8000-000000000000:2", Offer: time.Second, Patience: time.Minute, Ask: 1})
	if err != nil || got != (luascripts.Passed{Verdict: luascripts.Done}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if m := <-said; m != fmt.Sprintf("%s %d 7", first, far+1) {
		t.Errorf("told %q", m)
	}
	if after, want := line(t, rdb), []string{second, "00000000-0000-7000-8000-000000000000:2"}; !slices.Equal(after, want) {
		t.Errorf("in line are %q, want %q", after, want)
	}
	if m := do(t, rdb, "HGET", keys.Lock, first); text(m) != "1" || number(t, rdb, "HLEN", keys.Lock) != 2 {
		t.Errorf("its count is %q", text(m))
	}
	about(t, "the lease", pttl(t, rdb, keys.Lock), 2*time.Second)

	// A late copy of the release touches nothing.
	before := contents(t, rdb)
	if got, err := luascripts.PassReentrant(t.Context(), rdb, keys, holder, luascripts.Pass{}); err != nil || got.Verdict != luascripts.Gone || contents(t, rdb) != before {
		t.Errorf("%+v, %v", got, err)
	}

	// The one who gives up leaves the line; the heir comes to hold it by the answer.
	if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, second, 0); err != nil || v != luascripts.Gone {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, "00000000-0000-7000-8000-000000000000:2", 0); err != nil || v != luascripts.Gone || line(t, rdb) != nil {
		t.Errorf("%v, %v, %q are left in line", v, err, line(t, rdb))
	}
	got, err = luascripts.PassReentrant(t.Context(), rdb, keys, first, luascripts.Pass{Last: far + 1, Heir: second, Offer: time.Second, Patience: time.Minute, Ask: 1})
	if err != nil || got.Token != far+2 {
		t.Errorf("%+v, %v", got, err)
	}
	if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, second, 0); err != nil || v != luascripts.Done || number(t, rdb, "EXISTS", keys.Lock) != 0 {
		t.Errorf("%v, %v", v, err)
	}
	if len(said) > 0 {
		t.Errorf("told %q", <-said)
	}
}

// Who is dead is passed over: heard of too long ago, or reached by no message. On a
// cluster the latter is not known.
func TestLine_passesOverTheDead(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	said := listening(t, s, second)
	for name, c := range map[string]struct {
		k        luascripts.Keys
		patience time.Duration
		want     string
	}{
		"nobody listens":      {keys, time.Minute, second},
		"not heard of":        {keys, time.Millisecond, second},
		"nobody can tell":     {luascripts.Keys{Lock: keys.Lock, Channel: keys.Channel, Publish: keys.Publish, Scattered: true}, time.Minute, first},
		"cluster, not heard ": {luascripts.Keys{Lock: keys.Lock, Channel: keys.Channel, Publish: keys.Publish, Scattered: true}, time.Millisecond, second},
	} {
		t.Run(name, func(t *testing.T) {
			hold(t, rdb)
			q := luascripts.Question{Owner: first, Lease: lease, Want: 1, Offer: time.Second, Patience: c.patience, Ask: 1}
			if _, err := luascripts.AcquireReentrant(t.Context(), rdb, c.k, q); err != nil {
				t.Fatal(err)
			}
			stand(t, rdb, c.k, second, time.Second)
			for start := now(t, rdb); now(t, rdb) < start+2; { // the server's clock, by which it is late
			}
			if got, err := luascripts.PassReentrant(t.Context(), rdb, c.k, holder, luascripts.Pass{}); err != nil || got.Verdict != luascripts.Done {
				t.Fatalf("%+v, %v", got, err)
			}
			if n := number(t, rdb, "HEXISTS", keys.Lock, c.want); n != 1 {
				t.Errorf("%q", contents(t, rdb))
			}
			if c.want == second {
				<-said
			}
		})
	}
}

// Listeners who know of no line get the lock free now and then, and ours are told to
// step aside: after four grants. If there are none it is let go after 64, and after 16 if
// that cannot be known.
func TestLine_letsGoForOthers(t *testing.T) {
	scattered := keys
	scattered.Scattered = true
	for name, c := range map[string]struct {
		k            luascripts.Keys
		others, want int
	}{"none": {keys, 0, 64}, "one": {keys, 1, 4}, "a cluster": {scattered, 0, 16}} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			rdb := s.Client(t)
			said := listening(t, s, holder, first) // and first does not stand in line
			free := make(chan string, 100)
			subscribe(t, s, keys.Channel+luascripts.Ours, nil) // whoever listens there is ours
			subscribe(t, s, keys.Channel, free)
			for range c.others {
				subscribe(t, s, keys.Channel, nil)
			}
			hold(t, rdb)
			owner := holder
			for i := range 200 {
				heir := fmt.Sprintf("00000000-0000-7000-8000-000000000000:%d", i+2)
				got, err := luascripts.PassReentrant(t.Context(), rdb, c.k, owner, luascripts.Pass{Heir: heir, Offer: time.Second, Patience: time.Minute, Ask: 1})
				if err != nil || got.Verdict != luascripts.Done {
					t.Fatalf("%+v, %v", got, err)
				}
				if owner = heir; got.Token != 0 {
					continue
				}
				if i != c.want || number(t, rdb, "EXISTS", keys.Lock) != 0 {
					t.Errorf("let go after %d grants, want %d; left %q", i, c.want, contents(t, rdb))
				}
				if m := <-free; m != "0" {
					t.Errorf("told %q", m)
				}
				if c.want == 64 && len(said) > 0 {
					t.Errorf("told %q, and nobody else listens", <-said)
				} else if c.want != 64 {
					if m := <-said; m != luascripts.Aside {
						t.Errorf("told %q", m)
					}
				}
				return
			}
			t.Error("it was never let go")
		})
	}
}

// Who needs the register is not given the lock by who has not got it.
func TestLine_needsTheRegister(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	said := listening(t, s, first, second)
	fenced := keys
	fenced.Register = "redisson_lock_token:{orders}"
	hold(t, rdb)
	stand(t, rdb, fenced, first, time.Second)
	stand(t, rdb, keys, second, time.Second)
	if _, err := luascripts.PassReentrant(t.Context(), rdb, keys, holder, luascripts.Pass{}); err != nil {
		t.Fatal(err)
	}
	if m := <-said; !strings.HasPrefix(m, second) {
		t.Errorf("told %q", m)
	}
	hold(t, rdb)
	stand(t, rdb, fenced, first, time.Second)
	do(t, rdb, "SET", fenced.Register, "4000000000000000")
	if _, err := luascripts.PassReentrant(t.Context(), rdb, fenced, holder, luascripts.Pass{Spare: 64}); err != nil {
		t.Fatal(err)
	}
	if m, r := <-said, text(do(t, rdb, "GET", fenced.Register)); m != first+" 4000000000000001 7" || r != "4000000000000065" {
		t.Errorf("told %q, and the register is at %s", m, r)
	}
}

// What would not end in time is given to nobody: the lock is free, and who waits asks.
func TestLine_withoutTheRightToPEXPIRE(t *testing.T) {
	s := redistest.Start(t)
	said := listening(t, s, first)
	hold(t, s.Client(t), first)
	rdb := denied(t, s, "pexpire")
	if got, err := luascripts.PassReentrant(t.Context(), rdb, keys, holder, luascripts.Pass{}); err != nil || got.Verdict != luascripts.Done {
		t.Errorf("%+v, %v", got, err)
	}
	if n := number(t, rdb, "EXISTS", keys.Lock); n != 0 || len(said) > 0 {
		t.Errorf("told %d, left %q", len(said), contents(t, rdb))
	}
}

// A line alone holds nothing, as an operator leaves it who takes the owner out.
func TestLine_aloneIsFree(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		hold(t, rdb, first)
		do(t, rdb, "HDEL", keys.Lock, holder)
		if got, err := luascripts.AcquireReentrant(t.Context(), rdb, keys, luascripts.Question{Owner: second, Lease: lease, Want: 1}); err != nil || got.Verdict != luascripts.Done {
			t.Errorf("%+v, %v", got, err)
		}
		if after := line(t, rdb); !slices.Equal(after, []string{first}) {
			t.Errorf("in line are %q", after)
		}

		hold(t, rdb, first, other)
		do(t, rdb, "HDEL", keys.Lock, holder)
		if v, err := luascripts.ReleaseReentrant(t.Context(), rdb, keys, first, 0); err != nil || v != luascripts.Gone || number(t, rdb, "EXISTS", keys.Lock) != 0 {
			t.Errorf("%v, %v, left %q", v, err, contents(t, rdb))
		}
	})
}
