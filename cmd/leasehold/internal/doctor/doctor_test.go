package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// want is the expected result of a check.
type want struct {
	status Status
	found  string // a part of it
	advice string // a part of it; "" for none
}

// verify checks the report's checks of these names, and that nothing else is worse than
// unknown.
func verify(t *testing.T, r Report, wants map[string]want) {
	t.Helper()
	seen := map[string]bool{}
	for _, c := range r.Checks {
		w, ok := wants[c.Name]
		if !ok {
			if c.Status == Warning || c.Status == Failure {
				t.Errorf("%s: %s: %s", c.Name, c.Status, c.Found)
			}
			continue
		}
		seen[c.Name] = true
		if c.Status != w.status || !strings.Contains(c.Found, w.found) || !strings.Contains(c.Advice, w.advice) || (c.Advice == "") != (w.advice == "") {
			t.Errorf("%s: %s, %q, %q; want %s, %q, %q", c.Name, c.Status, c.Found, c.Advice, w.status, w.found, w.advice)
		}
	}
	for name := range wants {
		if !seen[name] {
			t.Errorf("there is no check %q", name)
		}
	}
	if t.Failed() {
		t.Logf("%+v", r)
	}
}

// examine examines without warnings about slowness, which depends on this machine.
func examine(t *testing.T, rdb rueidis.Client, o Options) Report {
	t.Helper()
	o.Slow = cmp.Or(o.Slow, time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return Examine(ctx, rdb, o)
}

func noKeys(t *testing.T, s *redistest.Server) {
	t.Helper()
	keys := s.Do(t, "KEYS", "*")
	if left, err := keys.AsStrSlice(); err != nil || len(left) > 0 {
		t.Errorf("keys left: %q, %v", left, err)
	}
}

func TestExamine_well(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := examine(t, s.Client(t), Options{})
	if r.Status != OK {
		t.Errorf("it is said to be %s", r.Status)
	}
	if r.Mode != "standalone" {
		t.Errorf("mode %q", r.Mode)
	}
	verify(t, r, map[string]want{
		"connection":         {OK, "standalone", ""},
		"role":               {OK, "primary", ""},
		"memory":             {OK, "noeviction", ""},
		"clock":              {OK, "this machine", ""},
		"replicas":           {OK, "none", ""},
		"scripts":            {OK, "allowed", ""},
		"pubsub":             {OK, "plain; message received", ""},
		"permissions plain":  {OK, "none missing", ""},
		"permissions quorum": {OK, "none missing", ""},
		"lock":               {OK, "acquired and released", ""},
	})
	noKeys(t, s)
}

func TestExamine_eviction(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config []string
		want   want
	}{
		"volatile":    {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"}, want{Failure, "volatile-lru", "noeviction"}},
		"all keys":    {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lfu"}, want{Failure, "allkeys-lfu", "noeviction"}},
		"no limit":    {[]string{"--maxmemory-policy", "allkeys-lru"}, want{Warning, "no maxmemory", "noeviction"}},
		"nearly full": {[]string{"--maxmemory", "1mb"}, want{Warning, "of 1 used", "raise maxmemory"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, test.config...)
			wants := map[string]want{"memory": test.want}
			if name == "nearly full" { // in fact, full
				wants["lock"] = want{Failure, "OOM", "above"}
				wants["replicas"] = want{OK, "", ""}
			}
			verify(t, examine(t, s.Client(t), Options{}), wants)
		})
	}
}

// If the user lacks the permission for a check, that is not a failure; if the user lacks a permission that its
// locks need, it is one.
func TestExamine_user(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lists := documented(t)
	plainOnly := append(lists["every"], lists["NewLock"]...)
	as := func(user string, rights []string) rueidis.Client {
		return s.Client(t, s.AddUser(t, user, rights...), func(o *rueidis.ClientOption) { o.ClientSetInfo = rueidis.DisableClientSetInfo })
	}
	blind := want{Warning, "the eviction policy is unknown: missing permission", "+info; or check that"}
	unknown := map[string]want{"memory": blind, "replicas": {Unknown, "missing permission", "+info"}}

	rdb := as("jobs", plainOnly)
	r := examine(t, rdb, Options{User: "jobs", Prefix: "orders:", Kinds: []string{"plain"}})
	unknown["permissions plain"], unknown["lock"] = want{OK, "none missing", ""}, want{OK, "acquired", ""}
	verify(t, r, unknown)
	if r.Status != Warning {
		t.Errorf("it is said to be %s", r.Status)
	}

	r = examine(t, rdb, Options{User: "jobs", Prefix: "orders:"})
	if r.Status != Warning {
		t.Errorf("without knowing what is needed, it is said to be %s", r.Status)
	}
	r = examine(t, rdb, Options{User: "jobs", Prefix: "orders:", Kinds: []string{"fencing"}})
	verify(t, r, map[string]want{"memory": blind, "permissions fencing": {Failure, "3 missing", "ACL SETUSER jobs ~redisson_lock_token:{orders:* +get +set"}})
	r = examine(t, rdb, Options{User: "jobs", Prefix: "other:", Kinds: []string{"plain"}})
	verify(t, r, map[string]want{
		"memory":            blind,
		"permissions plain": {Failure, "3 missing", "ACL SETUSER jobs ~other:* &redisson_lock__channel:{other:* &leasehold_channel:{other:*"},
		"pubsub":            {Warning, "NOPERM", "permissions below"},
		"lock":              {Failure, "NOPERM", "above"},
	})
	r = examine(t, as("mute", append(plainOnly, "-eval", "-evalsha")), Options{User: "mute", Prefix: "orders:", Kinds: []string{"plain"}})
	verify(t, r, map[string]want{
		"memory":            blind,
		"permissions plain": {Failure, "2 missing", "+evalsha +eval"},
		"scripts":           {Failure, "NOPERM", "require scripts"},
		"lock":              {Failure, "NOPERM", "above"},
	})
	noKeys(t, s)
}

// 1: A replica copies, and confirms. 2: It no longer does. 3: The doctor checks the replica itself.
func TestExamine_replica(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(primary.Addr(), ":")
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	replica.WaitUntilFollows(t, primary) // a primary that reports online may still delay what is written
	rdb := primary.Client(t)
	r := examine(t, rdb, Options{})
	for end := time.Now().Add(time.Minute); time.Now().Before(end); r = examine(t, rdb, Options{}) {
		if slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Name == "replicas" && c.Status == OK }) {
			break // on a busy machine, a replica can be late once
		}
	}
	verify(t, r, map[string]want{"replicas": {OK, "1 of 1 online; all confirm a write in", ""}}) // 1
	asked := replica.Client(t)
	verify(t, examine(t, asked, Options{}), map[string]want{ // 3
		"role": {Failure, "replica", "connect to the primary"},
		"lock": {Failure, "READONLY", "above"},
	})
	as := primary.Client(t, primary.AddUser(t, "jobs", "~*", "&*", "+@all", "-set"))
	verify(t, examine(t, as, Options{Kinds: []string{"plain"}}), map[string]want{"replicas": {Unknown, "1 of 1 online; not measured: missing permission for SET", ""}})
	replica.Freeze(t)
	verify(t, examine(t, rdb, Options{}), map[string]want{"replicas": {Warning, "; 0 confirmed a write within 1s", "lag"}}) // 2
	noKeys(t, primary)
}

func TestExamine_cluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	r := examine(t, rdb, Options{})
	for end := time.Now().Add(time.Minute); r.Status != OK && time.Now().Before(end); {
		r = examine(t, rdb, Options{}) // on a busy machine, a replica can be late once
	}
	if r.Mode != "cluster" || r.Status != OK {
		t.Errorf("mode %q, status %s", r.Mode, r.Status)
	}
	primaries := 0
	for _, check := range r.Checks {
		if check.Name == "role" && check.Found == "primary" && check.Node != "" {
			primaries++
		}
	}
	if primaries != 3 {
		t.Errorf("%d primaries, want 3: %+v", primaries, r)
	}
	verify(t, r, map[string]want{
		"pubsub":              {OK, "sharded; message received", ""},
		"permissions cluster": {OK, "none missing", ""},
		"lock":                {OK, "acquired", ""},
	})

	// If no primary responds, any name is chosen.
	chosen := make(chan struct{})
	go func() {
		defer close(chosen)
		(&exam{rdb: rdb, away: [][2]int64{{0, 8000}, {8001, 16383}}}).choose()
	}()
	select {
	case <-chosen:
	case <-time.After(time.Minute):
		t.Fatal("no name was chosen")
	}

	// A dead primary is named, and the others are examined.
	dead := c.Masters(t)[0]
	dead.Kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r = Examine(ctx, rdb, Options{Slow: time.Hour})
	checked := map[string]int{}
	for _, check := range r.Checks {
		checked[check.Name]++
		if check.Node == dead.Addr() && (check.Name != "connection" || check.Status != Failure || !strings.Contains(check.Found, "primary does not respond: ") || !strings.Contains(check.Found, " no lock in its 546")) {
			t.Errorf("the dead node: %+v", check)
		}
		if check.Node != dead.Addr() && check.Status == Failure {
			t.Errorf("the others: %+v", check)
		}
	}
	if r.Status != Failure || checked["connection"] != 2 || checked["scripts"] != 2 || checked["memory"] < 2 || checked["lock"] != 1 {
		t.Errorf("checks %v of %+v", checked, r)
	}
}

// One script exceeds the maximum time. The others do not matter.
func TestExamine_slow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(proxy))
	const late = 20 * time.Millisecond
	for limit, says := range map[time.Duration]want{
		late - 1:  {Warning, "slowest of 20 ", "SLOWLOG"},
		time.Hour: {OK, "slowest of 20 ", ""},
	} {
		proxy.OnRequest(redistest.Once("EVAL", redistest.Action{DelayReply: late}))
		verify(t, examine(t, rdb, Options{Slow: limit}), map[string]want{"scripts": says})
	}
}

// A server whose replies are late is suitable for locking, as the earlier checks show.
func TestExamine_lateReplies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(proxy))
	var subscribed atomic.Bool
	proxy.OnRequest(func(req [][]byte) (a redistest.Action) {
		switch strings.ToUpper(string(req[0])) {
		case "EVALSHA":
			a.DelayReply = time.Second
		case "SUBSCRIBE":
			if !subscribed.Swap(true) { // later checks have less time
				a.DelayRequest = 2500 * time.Millisecond
			}
		}
		return a
	})
	verify(t, examine(t, rdb, Options{}), map[string]want{"pubsub": {OK, "message received", ""}, "lock": {OK, "acquired and released", ""}})
	noKeys(t, s)
}

// A wrong clock, and a server that reports little.
func TestExamine_clock(t *testing.T) {
	t.Parallel()
	s, err := memredis.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.SetTime(time.Now().Add(-time.Hour))
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, DisableCache: true, AlwaysRESP2: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rdb.Close)
	r := examine(t, rdb, Options{})
	clock := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Name == "clock" })
	if clock < 0 {
		t.Fatalf("no check of the clock: %+v", r)
	}
	if c := r.Checks[clock]; c.Status != Warning || !strings.HasPrefix(c.Found, "1h0m") || !strings.Contains(c.Found, " behind this machine") || !strings.Contains(c.Advice, "NTP") {
		t.Errorf("the clock: %+v", c)
	}
	for _, c := range r.Checks {
		if c.Name == "version" && c.Status == Failure {
			t.Errorf("the version: %+v", c)
		}
	}
}

// The doctor reports within the time limit that a server stopped responding.
func TestExamine_frozen(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(proxy))
	proxy.Freeze(true)
	defer proxy.Freeze(false)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	r := Examine(ctx, rdb, Options{})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	verify(t, r, map[string]want{"connection": {Failure, "", "paused"}})
}

// A server that does not report its role may be a replica.
func TestRole_unknown(t *testing.T) {
	t.Parallel()
	e := &exam{rdb: redistest.Start(t).Client(t)}
	if c := e.role(t.Context(), &node{}); c.Status != Unknown {
		t.Errorf("%+v", c)
	}
}

func TestOlder(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"6.0.20": true, "5.0": true, "6.2.0": false, "6.2": false, "7.0.15": false, "10.1.1": false, "255.255.255": false, "": false, "unknown": false} {
		if got := older(version, 6, 2); got != want {
			t.Errorf("%q is older than 6.2: %v", version, got)
		}
	}
}
