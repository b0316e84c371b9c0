package luascripts_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// takes returns a request for a lock.
func takes(k luascripts.Keys, owner string, want int) *luascripts.Change {
	return &luascripts.Change{Keys: &k, Request: luascripts.Request{Owner: owner, Lease: lease, Want: want}}
}

// gives returns a release of a lock after which this number of holds remains.
func gives(k luascripts.Keys, owner string, leave int) *luascripts.Change {
	return &luascripts.Change{Keys: &k, IsRelease: true, Request: luascripts.Request{Owner: owner, Want: leave}}
}

// named returns the keys of a plain lock.
func named(name string) luascripts.Keys {
	k := luascripts.Keys{Lock: name, Channel: "redisson_lock__channel:{" + name + "}", QueueChannel: "leasehold_channel:{" + name + "}", Publish: "PUBLISH"}
	return k
}

// fenced returns the keys of a plain lock with a token counter.
func fenced(name string) luascripts.Keys {
	k := named(name)
	k.TokenCounter = "leasehold_token:{" + name + "}"
	return k
}

// verb returns the type of c. In a call the releases come first.
func verb(c *luascripts.Change) string {
	if c.IsRelease {
		return "gives"
	}
	return "takes"
}

// outcome returns the result of c, without the parts that depend on the clock.
func outcome(c *luascripts.Change) string {
	if c.Err != nil {
		for _, word := range strings.FieldsFunc(c.Err.Error(), func(r rune) bool { return r == ' ' || r == '-' || r == '\'' }) {
			if slices.Contains([]string{"OOM", "WRONGTYPE", "NOPERM", "counter"}, word) {
				return word
			}
		}
		return c.Err.Error()
	}
	a := c.Acquired
	return fmt.Sprintf("%d %t %v noPubSub=%t, %+v", a.Verdict, a.Token > 0, a.Left.Round(time.Hour), a.NoPubSub, c.Released)
}

var clockTimes = regexp.MustCompile(`[0-9]{10,}`)

// Random changes in a random order have the same effect together as one by one.
func TestChangeReentrant_isTheSameAsOneByOne(t *testing.T) {
	runs := 60
	if testing.Short() {
		runs = 15
	}
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for run := range runs {
			seed := uint64(time.Now().UnixNano())
			t.Run(fmt.Sprint(run), func(t *testing.T) {
				do(t, rdb, "FLUSHALL")
				var said [2][]string
				for side, name := range []string{"alone", "joint"} {
					do(t, rdb, "SET", name+":text", "x")
					do(t, rdb, "HSET", name+":hash", "a", "b", "c", "d", "e", "f")
					do(t, rdb, "SET", "leasehold_token:{"+name+":large}", "9007199254740991")
					do(t, rdb, "RPUSH", "leasehold_token:{"+name+":list}", "x")
					do(t, rdb, "HSET", name+":redisson", ours, "2")
					said[side] = append(said[side], randomChanges(t, rdb, rand.New(rand.NewPCG(seed, 0)), name, side == 1)...)
				}
				for i, alone := range said[0] {
					if joint := strings.ReplaceAll(said[1][i], "joint:", "alone:"); joint != alone {
						t.Fatalf("seed %d, line %d of\n%s\n\nalone: %s\njoint: %s", seed, i, strings.Join(said[0][:i+1], "\n"), alone, joint)
					}
				}
			})
		}
	})
}

// randomChanges executes changes of the locks whose names start with name, together or one by one,
// and returns their outcomes.
func randomChanges(t *testing.T, rdb rueidis.Client, r *rand.Rand, name string, together bool) (said []string) {
	owners := []string{ours, other, "4a5b6c7d-7f5c-4c84-9a53-1f3a7a1b2c3d:3", strings.TrimSuffix(ours, "1") + "2"}
	var locks []luascripts.Keys
	for _, kind := range []string{"a", "b", "text", "hash", "redisson"} {
		locks = append(locks, named(name+":"+kind))
	}
	for _, kind := range []string{"c", "large", "list"} {
		locks = append(locks, fenced(name+":"+kind))
	}
	scattered, waited := r.IntN(2) == 0, 0
	for range 12 {
		var batch []*luascripts.Change
		for range 1 + r.IntN(8) {
			k := locks[min(r.IntN(2*len(locks)), r.IntN(len(locks)))]
			k.Scattered = scattered
			owner := owners[r.IntN(len(owners))]
			waited++
			switch c := takes(k, owner, 1); r.IntN(6) {
			case 0:
				c.Request.Want = 2 + r.IntN(2)
				batch = append(batch, c)
			case 1, 2:
				c.Request.Offer, c.Request.WaiterTimeout, c.Request.RetryAfter = 5*time.Hour, 20*time.Hour, time.Hour
				c.Request.Waited = time.Duration(waited*7919%997) * time.Hour
				c.Request.Lease = 10 * time.Hour
				batch = append(batch, c)
			case 3:
				c.Request.Spare = r.IntN(3)
				c.Request.Lease = 10 * time.Hour
				batch = append(batch, c)
			default:
				batch = append(batch, gives(k, owner, max(0, r.IntN(5)-2)))
			}
		}
		// Changes in one call are sorted, so the changes that are compared with them run in the same order.
		slices.SortStableFunc(batch, func(c, d *luascripts.Change) int { return cmp.Compare(verb(c), verb(d)) })
		if together {
			luascripts.ChangeReentrant(t.Context(), rdb, batch, 64)
		} else {
			for _, c := range batch {
				luascripts.ChangeReentrant(t.Context(), rdb, []*luascripts.Change{c}, 64)
			}
		}
		for _, c := range batch {
			said = append(said, fmt.Sprintf("%s %s gives=%t want=%d: %s", c.Keys.Lock, c.Request.Owner, c.IsRelease, c.Request.Want, outcome(c)))
		}
		for line := range strings.Lines(contents(t, rdb)) {
			if strings.Contains(line, name+":") {
				said = append(said, clockTimes.ReplaceAllString(line, "#"))
			}
		}
	}
	return said
}

// If one change is rejected, the other changes of its call still succeed.
func TestChangeReentrant_refusesOneOfThem(t *testing.T) {
	for _, c := range []struct {
		what   string
		spoil  func(t *testing.T, s *redistest.Server)
		rights []string
		bad    *luascripts.Change
		want   string
	}{
		{"a string", func(t *testing.T, s *redistest.Server) { s.Do(t, "SET", "bad", "x") }, nil, takes(named("bad"), ours, 1), "-4 false 0s noPubSub=false, {Verdict:0 Token:0 Aside:false Listeners:false Next:}"},
		{"a large counter", func(t *testing.T, s *redistest.Server) {
			s.Do(t, "SET", fenced("bad").TokenCounter, "9007199254740991")
		}, nil, takes(fenced("bad"), ours, 1), "counter"},
		{"a counter that is a list", func(t *testing.T, s *redistest.Server) { s.Do(t, "RPUSH", fenced("bad").TokenCounter, "x") }, nil, takes(fenced("bad"), ours, 1), "WRONGTYPE"},
		{"a key that is denied", nil, []string{"~good*"}, takes(named("bad"), ours, 1), "NOPERM"},
		{"full memory", func(t *testing.T, s *redistest.Server) { full(t, s) }, nil, takes(named("bad"), ours, 1), "OOM"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := redistest.Start(t)
			rdb := s.Client(t)
			luascripts.ChangeReentrant(t.Context(), rdb, []*luascripts.Change{takes(named("good"), ours, 1), takes(named("good2"), other, 1), takes(named("good3"), other, 2)}, 64)
			if c.spoil != nil {
				c.spoil(t, s)
			}
			if c.rights != nil {
				rdb = user(t, s, "some", append(c.rights, "&*", "+@all")...)
			}
			bad, again := c.bad, *c.bad
			good, good2 := takes(named("good"), ours, 2), gives(named("good2"), other, 0)
			batch := []*luascripts.Change{bad, good, good2, &again}
			if c.want == "OOM" {
				batch = []*luascripts.Change{bad, good} // the release runs first, after which full memory no longer stops the call
				luascripts.ChangeReentrant(t.Context(), rdb, []*luascripts.Change{good2, takes(named("good3"), ours, 2)}, 64)
			}
			luascripts.ChangeReentrant(t.Context(), rdb, batch, 64)
			if got := outcome(bad); got != c.want {
				t.Errorf("the bad one: %s (%v), want %s", got, bad.Err, c.want)
			}
			if got := outcome(&again); got != c.want && c.want != "OOM" {
				t.Errorf("the bad one, last: %s (%v), want %s", got, again.Err, c.want)
			}
			if good.Err != nil || good.Acquired.Verdict != luascripts.Done || good2.Err != nil || good2.Released.Verdict != luascripts.Done {
				t.Errorf("the good ones: %+v, %+v", good, good2)
			}
			held, exists := s.Do(t, "HGET", "good", ours), s.Do(t, "EXISTS", "good2")
			if n, err := held.AsInt64(); n != 2 || err != nil {
				t.Errorf("the good lock has %d holds, %v", n, err)
			}
			if n, err := exists.ToInt64(); n != 0 || err != nil {
				t.Errorf("the released lock is still there: %v", err)
			}
		})
	}
}

// For a failed call, pcall returns a text on all servers, which scripts put into an error. Redis 7 and later and Valkey raise a
// table, and pcall extracts the text from it.
func TestPcall_returnsAText(t *testing.T) {
	says := func(t *testing.T, rdb rueidis.Client) {
		t.Helper()
		for _, call := range []string{"redis.call('LRANGE', KEYS[1], 0, 9)", "redis.call('LRANGE')", "redis.call('NOSUCH')", "nil .. ''"} {
			script := "return type(select(2, pcall(function() return " + call + " end)))"
			m := eval(t, rdb, script, []string{"string"})
			if got, err := m.ToString(); got != "string" || err != nil {
				t.Errorf("%s: a %s, %v, want a text", call, got, err)
			}
		}
	}
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do(t, rdb, "SET", "string", "x")
		says(t, rdb)
	})
	t.Run("denied", func(t *testing.T) { says(t, denied(t, redistest.Start(t), "lrange")) })
}

// Scripts are sent again to a server that has lost them, however many calls there are.
func TestChangeReentrant_noScript(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	conn, release := rdb.Dedicate()
	defer release()
	for want := 1; want < 4; want++ {
		for _, conn := range []rueidis.CoreClient{rdb, conn} {
			for _, perCall := range []int{1, 2, 64} {
				s.Do(t, "SCRIPT", "FLUSH")
				batch := []*luascripts.Change{takes(named("a"), ours, want), takes(named("b"), ours, want), takes(named("c"), ours, want)}
				luascripts.ChangeReentrant(t.Context(), conn, batch, perCall)
				for _, c := range batch {
					if c.Err != nil || c.Acquired.Verdict != luascripts.Done {
						t.Fatalf("%d in each call: %+v", perCall, c)
					}
				}
			}
		}
	}
}

// A server that is a single node of a cluster rejects a call with keys of several slots, or with
// keys of other nodes.
func TestChangeReentrant_oneNodeOfACluster(t *testing.T) {
	c := redistest.StartCluster(t)
	node := c.Master(t, "lock-0")
	one := node.Client(t, func(opt *rueidis.ClientOption) { opt.ForceSingleClient = true })
	var batch []*luascripts.Change
	for i := range 20 {
		batch = append(batch, takes(named(fmt.Sprintf("lock-%d", i)), ours, 1))
	}
	luascripts.ChangeReentrant(t.Context(), one, batch, 64)
	for _, change := range batch {
		own := c.Master(t, change.Keys.Lock) == node
		if fine := change.Err == nil && change.Acquired.Verdict == luascripts.Done; fine != own || !fine && !strings.Contains(change.Err.Error(), "MOVED") {
			t.Errorf("%s, which is there (%t): %+v, %v", change.Keys.Lock, own, change.Acquired, change.Err)
		}
	}
}

// While a slot is migrated, its locks are spread over two nodes. All of them can be acquired and released.
func TestChangeReentrant_aHalfMovedSlot(t *testing.T) {
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	slot := c.Slot(t, "{x}")
	from := c.Master(t, "{x}")
	to := c.Masters(t)[0]
	if to == from {
		to = c.Masters(t)[1]
	}
	all := func(change func(luascripts.Keys) *luascripts.Change, names ...string) {
		t.Helper()
		var batch []*luascripts.Change
		for _, name := range names {
			k := fenced(name)
			k.TokenCounter = "leasehold_token:" + name
			k.Scattered = true
			ch := change(k)
			ch.Slot = uint16(slot)
			batch = append(batch, ch)
		}
		luascripts.ChangeReentrant(t.Context(), rdb, batch, 64)
		for _, ch := range batch {
			if ch.Err != nil || ch.Acquired.Verdict != luascripts.Done && ch.Released.Verdict != luascripts.Done {
				t.Errorf("%s: %+v", ch.Keys.Lock, ch)
			}
		}
	}
	plain := func(k luascripts.Keys) *luascripts.Change { k.TokenCounter = ""; return takes(k, ours, 1) } // not even a single request can use a token counter on the other node
	acquire := func(k luascripts.Keys) *luascripts.Change { return takes(k, ours, 1) }
	free := func(k luascripts.Keys) *luascripts.Change { return gives(k, ours, 0) }
	old := []string{"{x}1", "{x}2", "{x}3", "{x}4"}
	all(acquire, old...)
	m := c.Migrate(t, slot, from, to)
	m.Move(t, "{x}1", "leasehold_token:{x}1", "{x}2")
	all(plain, "{x}5", "{x}6")
	all(free, append(old, "{x}5", "{x}6")...)
	m.Finish(t)
	all(acquire, "{x}1", "{x}9")
}

// A slot without a node does not affect locks in other slots.
func TestChangeReentrant_aSlotWithoutANode(t *testing.T) {
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	c.Unassign(t, "bad")
	rdb := c.Client(t)
	batch := []*luascripts.Change{takes(named("good"), ours, 1), takes(named("bad"), ours, 1), takes(named("{good}2"), ours, 1)}
	for _, ch := range batch {
		ch.Slot = uint16(c.Slot(t, ch.Keys.Lock))
	}
	luascripts.ChangeReentrant(t.Context(), rdb, batch, 64)
	if batch[0].Err != nil || batch[1].Err == nil || batch[2].Err != nil {
		t.Errorf("%v, %v, %v", batch[0].Err, batch[1].Err, batch[2].Err)
	}
	var renewals []luascripts.Renewal
	for _, ch := range batch {
		renewals = append(renewals, luascripts.Renewal{Keys: ch.Keys, Owner: ours, Slot: ch.Slot})
	}
	renewed := luascripts.RenewReentrant(t.Context(), rdb, renewals, time.Minute, 64)
	for i, done := range []bool{true, false, true} {
		if (renewed[i].Err == nil && renewed[i].Verdict == luascripts.Done) != done {
			t.Errorf("renewal %d: %+v", i, renewed[i])
		}
	}
}

// If the connection breaks within a reply, the outcome of all changes in that call is unknown. The
// calls before it have their replies.
func TestChangeReentrant_cutInTheMiddleOfAReply(t *testing.T) {
	const token = "$16\r\n1700000000000000\r\n"
	for reply, answered := range map[string]int{
		"*2\r\n" + token + "$16\r\n17000":                     0,
		"*2\r\n" + token:                                      0,
		"*2\r\n" + token + token:                              2,
		"*2\r\n" + token + token + "*2\r\n" + token + "$16\r": 2,
		"*3\r\n" + token + token + token:                      0, // too many
		"*1\r\n" + token:                                      0, // too few
	} {
		rdb := cutting(t, reply)
		var batch []*luascripts.Change
		for i := range 4 {
			batch = append(batch, takes(named(fmt.Sprint(i)), ours, 1))
		}
		luascripts.ChangeReentrant(t.Context(), rdb, batch, 2)
		for i, c := range batch {
			if i < answered && (c.Err != nil || c.Acquired.Token != 1700000000000000) || i >= answered && c.Err == nil {
				t.Errorf("%q, change %d: %+v, %v", reply, i, c.Acquired, c.Err)
			}
			if _, refused := rueidis.IsRedisErr(c.Err); refused {
				t.Errorf("%q, change %d: %v is no answer", reply, i, c.Err)
			}
		}
	}
}

// cutting returns a client whose server sends said after it has received two scripts, and then closes the connection.
func cutting(t *testing.T, said string) rueidis.Client {
	t.Helper()
	dialed := false
	rdb, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{"fake:6379"},
		DisableCache:      true,
		ForceSingleClient: true,
		AlwaysRESP2:       true,
		ConnWriteTimeout:  time.Second,
		PipelineMultiplex: -1,
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			if dialed {
				return nil, errors.New("the server is gone")
			}
			dialed = true
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				r := bufio.NewReader(theirs)
				for calls := 0; calls < 2; {
					n, err := count(r, '*')
					var words []string
					for range 2 * n {
						var line string
						if line, err = r.ReadString('\n'); err != nil {
							return
						}
						words = append(words, line)
					}
					switch {
					case err != nil:
						return
					case strings.HasPrefix(words[1], "EVALSHA"):
						calls++
					default:
						_, _ = theirs.Write([]byte("+OK\r\n"))
					}
				}
				_, _ = theirs.Write([]byte(said))
			}()
			return ours, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rdb.Close)
	return rdb
}

// Waiters are notified of a release in a batch.
func TestChangeReentrant_publishes(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		seed(t, rdb, ours, 1, 20_000)
		e := listen(t, rdb)
		give := &luascripts.Change{Keys: &keys, IsRelease: true, Request: luascripts.Request{Owner: ours}}
		also := &luascripts.Change{Keys: &luascripts.Keys{Lock: "other", Publish: "PUBLISH"}, IsRelease: true, Request: luascripts.Request{Owner: ours}}
		luascripts.ChangeReentrant(t.Context(), rdb, []*luascripts.Change{give, also}, 64)
		if give.Err != nil || give.Released.Verdict != luascripts.Done {
			t.Fatalf("%+v, %v", give.Released, give.Err)
		}
		e.expect(keys.Channel + " 0")
	})
}
