package admin_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// near reports whether d is at most was, and not much less.
func near(d, was time.Duration) bool { return d <= was && d > was-patience }

// The used quota of a limiter's key is listed if the query names the kind, and inspected. Text that only looks similar is not.
func TestRateLimit(t *testing.T) {
	everywhere(t, func(s *scene) {
		day := ratelimit.Limit{Rate: 100, Per: 24 * time.Hour, Aligned: true}
		l := s.c.NewRateLimiter("api", ratelimit.FailClosed().After(patience), ratelimit.PerHour(10), ratelimit.PerHour(20), day)
		for _, key := range []string{"alice", "a}b{c:d", "{bob}"} {
			d, err := l.Take(s.Context(), key, 4)
			s.must(err)
			if !d.OK {
				s.Fatal(d)
			}
		}
		queue := s.c.NewRateLimiter("mail", ratelimit.FailClosed().After(patience), ratelimit.Limit{Rate: 4, Per: time.Hour, Burst: 1})
		for range 3 {
			_, err := queue.Reserve(s.Context(), "partner", 1)
			s.must(err)
		}
		for name, text := range map[string]string{"text": "gcra", "word": "gcra 1 2 x", "more": "gcra 1 0 5 x", "none": "gcra 1 0", "late": "gcra 1 -5 2", "long": "gcra 1 0 " + strings.Repeat("1:5678 ", 3000), "other": "xgcra 1 0 5", "huge": "gcra 1 0 1e300", "far": "gcra 1 0 9000000000000000000:5"} {
			s.do("SET", "api:"+name, text)
		}
		s.do("HSET", "api:hash", "gcra ", "1")
		s.lock(s.c.NewLock("orders"))
		for _, test := range []struct {
			query admin.Query
			want  string
		}{
			{admin.Query{Idle: true}, "orders plain 1 0"},
			{admin.Query{Kind: admin.RateLimit, Match: "api:a*"}, "api:alice ratelimit 0 0|api:a}b{c:d ratelimit 0 0"},
			{admin.Query{Kind: admin.RateLimit}, "api:alice ratelimit 0 0|api:a}b{c:d ratelimit 0 0|api:long ratelimit 0 0|api:{bob} ratelimit 0 0|mail:partner ratelimit 0 0"},
		} {
			if got := strings.Join(s.list(test.query), "|"); got != test.want {
				s.Errorf("%+v: %s, want %s", test.query, got, test.want)
			}
		}
		for _, name := range []string{"api:alice", "api:a}b{c:d"} {
			is := s.inspect(name)
			if is.Kind != admin.RateLimit || is.Limit == nil || len(is.Limit.Usage) != 3 || is.Locked() {
				s.Fatalf("%s: %+v", name, is)
			}
			hour, two, day := is.Limit.Usage[0], is.Limit.Usage[1], is.Limit.Usage[2]
			if !near(hour.Full, 24*time.Minute) || !near(two.Full, 12*time.Minute) || hour.Aligned || !day.Aligned || day.Used != 4 || day.End <= 0 || day.End > 24*time.Hour || is.Limit.Reset < hour.Full || is.Limit.Ahead != 0 {
				s.Errorf("%s: %+v", name, is.Limit)
			}
			if found, err := s.admin.Keys(s.Context(), is); err != nil || len(found) != 1 || found[0].Name != name || found[0].Type != "string" || found[0].Left <= 0 {
				s.Errorf("%+v, %v", found, err)
			}
		}
		if is := s.inspect("mail:partner"); is.Limit == nil || !near(is.Limit.Ahead, 30*time.Minute) || !near(is.Limit.Usage[0].Full, 45*time.Minute) {
			s.Errorf("reservations: %+v", is.Limit)
		}
		s.do("PERSIST", "api:alice")
		if is := s.inspect("api:alice"); is.Limit == nil || !near(is.Limit.Usage[0].Full, 24*time.Minute) {
			s.Errorf("without an expiry: %+v", is.Limit)
		}
		s.do("SET", "api:old", "gcra 1700000000000000 0 3600000000 1700007200000000:5:1700003600000000:7 5400000000", "PX", "2400000") // 80 minutes old; the later one of two windows counts
		if is := s.inspect("api:old"); is.Limit == nil || is.Limit.Usage[0].Full != 0 || !near(is.Limit.Usage[1].End, 40*time.Minute) || is.Limit.Usage[1].Used != 5 || !near(is.Limit.Usage[2].Full, 10*time.Minute) || is.Limit.Reset != is.Limit.Usage[1].End {
			s.Errorf("an old one: %+v", is.Limit)
		}
		if _, err := s.admin.Inspect(s.Context(), "api:word"); !errors.Is(err, lock.ErrWrongType) {
			s.Errorf("text: %v", err)
		}
		if _, err := s.admin.Inspect(s.Context(), "a}b{"); !errors.Is(err, lock.ErrBadName) {
			s.Errorf("a bad name: %v", err)
		}
		if _, err := s.admin.ForceUnlock(s.Context(), "api:alice", "", ""); !errors.Is(err, lock.ErrWrongType) {
			s.Errorf("unlock: %v", err)
		}
	})
}

// Redisson-compatible rate limiters of Go and of Java are listed and inspected, and a hash with other fields is not.
func TestWindow(t *testing.T) {
	everywhere(t, func(s *scene) {
		for _, name := range []string{"sms", "a{b}c"} {
			w := s.c.NewRedissonRateLimiter(name)
			_, err := w.Init(s.Context(), 10, time.Hour)
			s.must(err)
			d, err := w.Take(s.Context(), 7)
			s.must(err)
			if !d.OK {
				s.Fatal(d)
			}
		}
		_, err := s.c.NewRedissonRateLimiter("new").Init(s.Context(), 10, time.Hour)
		s.must(err)
		s.do("HSET", "java", "rate", "5", "interval", "1000", "type", "1", "keepAliveTime", "0")
		for name, fields := range map[string][]string{"tariff": {"rate", "5", "interval", "1000"}, "price": {"rate", "5", "interval", "1000", "type", "0", "vat", "7"}, "words": {"rate", "5", "interval", "often", "type", "0"}, "third": {"rate", "5", "interval", "1000", "type", "2"}, "zero": {"rate", "0", "interval", "1000", "type", "0"}} {
			s.do(append([]string{"HSET", name}, fields...)...)
		}
		s.do("HSET", "taken", "rate", "5", "interval", "1000", "type", "0")
		s.do("SET", "{taken}:permits", "x")
		s.lock(s.c.NewLock("orders"))
		for _, test := range []struct {
			query admin.Query
			want  string
		}{
			{admin.Query{Idle: true}, "orders plain 1 0"},
			{admin.Query{Kind: admin.RedissonRateLimit}, "a{b}c redisson-ratelimit 0 0|java redisson-ratelimit 0 0|new redisson-ratelimit 0 0|sms redisson-ratelimit 0 0"},
			{admin.Query{Kind: admin.RedissonRateLimit, Match: "s*"}, "sms redisson-ratelimit 0 0"},
		} {
			if got := strings.Join(s.list(test.query), "|"); got != test.want {
				s.Errorf("%+v: %s, want %s", test.query, got, test.want)
			}
		}
		l := s.inspect("sms")
		if w := l.RedissonLimit; l.Kind != admin.RedissonRateLimit || w == nil || w.Rate != 10 || w.Per != time.Hour || w.PerClient || w.Left != 3 || w.Next != 0 || !near(w.Reset, time.Hour+time.Millisecond) || l.Ambiguous != "" {
			s.Errorf("%+v of %+v", l.RedissonLimit, l)
		}
		if found, err := s.admin.Keys(s.Context(), l); err != nil || len(found) != 3 || found[0].Name != "sms" || found[1].Name != "{sms}:value" || found[2].Name != "{sms}:permits" {
			s.Errorf("%+v, %v", found, err)
		}
		for per, want := range map[time.Duration]string{time.Hour: "10 per 1h", 90 * time.Minute: "10 per 1h30m", 10 * time.Second: "10 per 10s", 10 * time.Minute: "10 per 10m", time.Hour + time.Second: "10 per 1h0m1s", 1500 * time.Millisecond: "10 per 1.5s"} {
			if got := (&admin.RedissonLimitState{Rate: 10, Per: per}).String(); got != want {
				s.Errorf("%v: %s, want %s", per, got, want)
			}
		}
		if l := s.inspect("new"); l.RedissonLimit == nil || l.RedissonLimit.Left != 10 || l.Ambiguous == "" {
			s.Errorf("nobody has taken of it: %+v", l)
		}
		if l := s.inspect("java"); l.RedissonLimit == nil || !l.RedissonLimit.PerClient || l.RedissonLimit.Rate != 5 || l.RedissonLimit.Per != time.Second {
			s.Errorf("a rate for each client: %+v", l.RedissonLimit)
		}
		for _, name := range []string{"price", "tariff", "taken"} {
			if _, err := s.admin.Inspect(s.Context(), name); !errors.Is(err, lock.ErrWrongType) {
				s.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Filters of Go and of Java are listed with an estimate of their elements, and a split filter is listed once. Parameters
// without a filter are not listed.
func TestBloom(t *testing.T) {
	everywhere(t, func(s *scene) {
		elements := make([][]byte, 1000)
		for i := range elements {
			elements[i] = fmt.Append(nil, i)
		}
		f := s.c.NewBloomFilter("seen")
		_, err := f.Init(s.Context(), 5000, .01)
		s.must(err)
		_, err = f.Add(s.Context(), elements...)
		s.must(err)
		big := s.c.NewBloomFilter("{big}") // 9 MB: more than Inspect counts
		_, err = big.Init(s.Context(), 5_000_000, .001)
		s.must(err)
		for i := range 40 {
			more := make([][]byte, 1000)
			for j := range more {
				more[j] = fmt.Append(nil, i, "/", j)
			}
			_, err = big.Add(s.Context(), more...)
			s.must(err)
		}
		crawl := s.c.NewShardedBloomFilter("crawl", 3)
		_, err = crawl.Init(s.Context(), 9000, .01)
		s.must(err)
		_, err = crawl.Add(s.Context(), elements...)
		s.must(err)
		java := []string{"HSET", "{java}:config", "size", "95850", "hashIterations", "7", "expectedInsertions", "10000", "falseProbability", "0.01"}
		s.do(java...)
		for name, change := range map[string][2]string{"size": {"95850", "0"}, "share": {"0.01", "2"}, "huge": {"95850", "99999999999"}, "none": {"10000", "0"}} {
			words := strings.Split(strings.ReplaceAll(strings.Join(java, "\n"), change[0], change[1]), "\n")
			words[1] = "{" + name + "}:config"
			s.do(words...)
		}
		s.do(append([]string{"HSET", "{app}:config", "colour", "red"}, java[2:]...)...)
		s.do(append([]string{"HSET", "app:config"}, java[2:]...)...)
		s.do(append([]string{"HSET", "{hash}:config"}, java[2:]...)...)
		s.do("HSET", "hash", "field", "1")
		s.lock(s.c.NewLock("orders"))
		for _, test := range []struct {
			query admin.Query
			want  string
		}{
			{admin.Query{Idle: true}, "orders plain 1 0"},
			{admin.Query{Kind: admin.Bloom}, "crawl bloom 0 0|java bloom 0 0|seen bloom 0 0|{big} bloom 0 0|{hash} bloom 0 0"},
			{admin.Query{Kind: admin.Bloom, Match: "s*"}, "seen bloom 0 0"},
		} {
			if got := strings.Join(s.list(test.query), "|"); got != test.want {
				s.Errorf("%+v: %s, want %s", test.query, got, test.want)
			}
		}
		about := func(what string, f *admin.FilterState, elements int64) {
			s.Helper()
			if n := f.Elements(); math.Abs(float64(n-elements)) > .05*float64(elements) {
				s.Errorf("%s: %d elements, want %d", what, n, elements)
			}
		}
		for l, err := range s.admin.Locks(s.Context(), admin.Query{Kind: admin.Bloom}) {
			s.must(err)
			is := s.inspect(l.Name)
			if f, g := l.Filter, is.Filter; g == nil || f.Size != g.Size || f.Expected != g.Expected || f.Hashes != g.Hashes || f.P != g.P || f.Shards != g.Shards || l.Ambiguous != is.Ambiguous {
				s.Errorf("%s is listed as %+v, and shown as %+v", l.Name, f, g)
			}
			switch l.Name {
			case "seen":
				c, err := f.Config(s.Context())
				s.must(err)
				count, err := f.Count(s.Context())
				s.must(err)
				if g := is.Filter; g.Size != c.Size || g.Hashes != c.Hashes || g.Expected != 5000 || g.P != .01 || g.Shards != 0 || g.Bytes != int64(c.Size+7)/8 || !g.Exact || !l.Filter.Exact || g.Elements() != count || l.Filter.Elements() != count {
					s.Errorf("%+v, want %+v and %d elements", g, c, count)
				}
				if p := is.Filter.FalsePositives(); p <= 0 || p > .001 {
					s.Errorf("a share of %v is taken for its own", p)
				}
			case "{big}":
				if is.Filter.Exact || l.Filter.Exact {
					s.Error("all bits were counted")
				}
				about("a list", l.Filter, 40_000)
				about("a sample", is.Filter, 40_000)
			case "crawl":
				if g := is.Filter; g.Shards != 3 || g.Missing != 0 || g.Expected != 9000 || !g.Exact || l.Filter.Exact {
					s.Errorf("%+v, listed as %+v", g, l.Filter)
				}
				about("shards", is.Filter, 1000)
				if found, err := s.admin.Keys(s.Context(), is); err != nil || len(found) != 6 || found[0].Name != "crawl:{0}:config" || found[1].Name != "crawl:{0}" {
					s.Errorf("%+v, %v", found, err)
				}
			case "java", "{hash}":
				if is.Ambiguous == "" || is.Filter.Elements() != 0 || is.Filter.Bytes != 0 {
					s.Errorf("without bits: %+v", is)
				}
			}
		}
		if found, err := s.admin.Keys(s.Context(), s.inspect("seen")); err != nil || len(found) != 2 || found[0].Name != "{seen}:config" || found[1].Name != "seen" {
			s.Errorf("%+v, %v", found, err)
		}
		if l := s.inspect("crawl:{2}"); l.Filter == nil || l.Filter.OneOf != 3 || l.Filter.Shards != 0 || l.Filter.Expected != 3000 {
			s.Errorf("one of three: %+v", l.Filter)
		}
		s.do("DEL", "crawl:{0}:config")
		if l := s.inspect("crawl"); l.Filter == nil || l.Filter.Missing != 1 || l.Filter.Shards != 3 {
			s.Errorf("the first is gone: %+v", l.Filter)
		}
		page, err := s.admin.Page(s.Context(), admin.Query{Kind: admin.Bloom, Match: "{half}"}, "")
		if s.do("HSET", "{half}:config", "size", "67108864", "hashIterations", "1", "expectedInsertions", "10000", "falseProbability", "0.5"); err != nil || len(page.Locks) > 0 {
			s.Errorf("%+v, %v", page, err)
		}
		s.do("SETRANGE", "half", "4194304", strings.Repeat("\xff", 4194304))
		if f := s.inspect("half").Filter; f == nil || f.Exact || math.Abs(f.Fill-.5) > .02 {
			s.Errorf("half of the bits are set: %+v", f)
		}
		page, err = s.admin.Page(s.Context(), admin.Query{Kind: admin.Bloom, Match: "crawl"}, "")
		if s.rdb.Mode() == rueidis.ClientModeStandalone && (err != nil || len(page.Locks) != 1) {
			s.Errorf("two that are there, of three: %+v, %v", page, err)
		}
		if got := strings.Join(s.list(admin.Query{Kind: admin.Bloom, Match: "c*"}), "|"); got != "crawl bloom 0 0" {
			s.Errorf("the first is gone: %s", got)
		}
		if _, err := s.admin.Inspect(s.Context(), "hash"); !errors.Is(err, lock.ErrWrongType) {
			s.Errorf("a hash: %v", err)
		}
		// x and {x} share the parameters, and both may have bits.
		s.do("SETBIT", "java", "7", "1")
		if l := s.inspect("java"); l.Ambiguous != "" {
			s.Errorf("%+v", l)
		}
		s.do("SETBIT", "{java}", "7", "1")
		for l, err := range s.admin.Locks(s.Context(), admin.Query{Kind: admin.Bloom, Match: "*java*"}) {
			s.must(err)
			if l.Ambiguous == "" {
				s.Errorf("%+v", l)
			}
		}
	})
}

// Elections are the locks whose holder has published a leader value.
func TestElection(t *testing.T) {
	everywhere(t, func(s *scene) {
		s.lock(s.c.NewLock("orders"))
		s.do("HSET", "leasehold_leader:{nobody}", "token", "1", "value", "x", "since", "1") // the value of an earlier leader
		s.do("HSET", "leasehold_leader:{orders}", "token", "x", "value", "x", "since", "1")
		s.lock(s.c.NewLock("never"))
		s.do("HSET", "leasehold_leader:{never}", "token", "1", "value", "x", "since", "9223372036854775807") // too late for a time in JSON
		ctx, cancel := context.WithCancel(s.Context())
		done := make(chan error, 1)
		began := time.Now()
		go func() {
			done <- s.c.NewElection("a/b{c}").Run(ctx, "http://a", func(ctx context.Context) error { <-ctx.Done(); return nil })
		}()
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			if got := strings.Join(s.list(admin.Query{Kind: admin.Election}), "|"); got == "a/b{c} fair 1 0" {
				break
			} else if time.Now().After(end) {
				s.Fatal(got)
			}
		}
		for l, err := range s.admin.Locks(s.Context(), admin.Query{}) {
			s.must(err)
			if leads := l.Leader != nil && l.Leader.Value == "http://a" && l.Leader.Token > 0 && l.Leader.Since.Sub(began).Abs() < patience && l.Leader.Left == 0; leads != (l.Name == "a/b{c}") {
				s.Errorf("%s: %+v", l.Name, l.Leader)
			}
		}
		if l := s.inspect("a/b{c}"); l.Leader == nil || l.Leader.Left <= 0 || l.Leader.Left > watchdog {
			s.Errorf("%+v", l.Leader)
		}
		if got := s.list(admin.Query{Kind: admin.Election, Match: "o*"}); got != nil {
			s.Errorf("%q", got)
		}
		if l := s.inspect("nobody"); l.Locked() || l.Leader == nil || l.Leader.Value != "x" {
			s.Errorf("%+v", l)
		}
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			s.Error(err)
		}
	})
}

// To list and inspect limiters and filters, a user needs exactly the permissions under admin and those of the type.
func TestLeastRights_others(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for kind, head := range map[admin.Kind]string{admin.RateLimit: "NewRateLimiter", admin.RedissonRateLimit: "NewRedissonRateLimiter", admin.Bloom: "NewBloomFilter"} {
		user := "ops" + string(kind)
		rights := append(redistest.RightsWithoutLocks(t, head), append(redistest.Rights(t, "admin")[len(redistest.Rights(t)):], "+cluster|slots", "+cluster|shards")...)
		as := s.AddUser(t, user, rights...)
		c, err := client.New(s.Client(t), client.WithKeyPrefix("orders:"))
		if err != nil {
			t.Fatal(err)
		}
		_, err1 := c.NewRateLimiter("api", ratelimit.FailClosed().After(patience), ratelimit.PerHour(10)).Take(t.Context(), "alice", 1)
		_, err2 := c.NewRedissonRateLimiter("sms").Init(t.Context(), 10, time.Hour)
		_, err3 := c.NewBloomFilter("seen").Init(t.Context(), 100, .1)
		if err := errors.Join(err1, err2, err3, c.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		a, err := admin.New(s.Client(t, as))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for l, err := range a.Locks(t.Context(), admin.Query{Kind: kind, Match: "orders:*"}) {
			if found++; err != nil {
				t.Errorf("%s: %+v, %v", kind, l, err)
			}
		}
		if denied := s.Denied(t, user); found != 1 || len(denied) > 0 {
			t.Errorf("%s: %d found; docs/operate/security.md does not cover %q", kind, found, denied)
		}
		name := map[admin.Kind]string{admin.RateLimit: "orders:api:alice", admin.RedissonRateLimit: "orders:sms", admin.Bloom: "orders:seen"}[kind]
		if l, err := a.Inspect(t.Context(), name); err != nil || l.Kind != kind { // the user lacks permission to read locks
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
}

// If there is no reply to a read of a filter, Inspect does not report that there is no key.
func TestInspect_noAnswerForAFilter(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{p.Addr()}, DisableCache: true, DisableRetry: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rdb.Close)
	a, err := admin.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := a.Inspect(t.Context(), "nothing"); err != nil || l.Kind != "" {
		t.Fatalf("%+v, %v", l, err)
	}
	p.OnRequest(func(req [][]byte) redistest.Action {
		return redistest.Action{DropRequest: strings.EqualFold(string(req[0]), "STRLEN")}
	})
	if l, err := a.Inspect(t.Context(), "nothing"); err == nil {
		t.Errorf("a filter that nobody could look for is shown as %+v", l)
	}
}

// If Inspect receives no reply to one of its commands, it returns an error, and does not report the lock as free.
func TestInspect_noAnswer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	a, err := admin.New(s.Client(t, redistest.Via(proxy)))
	if err != nil {
		t.Fatal(err)
	}
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	if _, err := sc.c.NewWaitGroup("waitgroup").Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	sc.lock(sc.c.NewSemaphore("semaphore", 2))
	if _, err := sc.c.NewLatch("latch").TrySetCount(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	sc.lock(sc.c.NewRWLock("rw").Read())
	sc.lock(sc.c.NewFairLock("fair"))
	for _, name := range []string{"waitgroup", "semaphore", "latch", "rw", "fair"} {
		want := sc.inspect(name).Kind
		for n := int32(1); ; n++ { // the n-th reply is lost
			var asked atomic.Int32
			proxy.OnRequest(func(req [][]byte) redistest.Action {
				if !slices.ContainsFunc(req, func(b []byte) bool { return strings.Contains(string(b), name) }) {
					return redistest.Action{}
				}
				return redistest.Action{DropReply: asked.Add(1) == n}
			})
			l, err := a.Inspect(t.Context(), name)
			if err == nil && l.Kind != want {
				t.Errorf("%s, without the answer to question %d: it is shown as %q", name, n, l.Kind)
			}
			if errors.Is(err, lock.ErrWrongType) {
				t.Errorf("%s, without the answer to question %d: %v", name, n, err)
			}
			if asked.Load() < n {
				break
			}
		}
	}
}

// A lease that is too long for a time.Duration is shown as at least a hundred years.
func TestLease_veryLong(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	const (
		endless = "9000000000000000" // ms, which are 285,000 years
		century = 100 * 365 * 24 * time.Hour
	)
	sc.do("HSET", "orders", redissons+":1", "1")
	sc.do("PEXPIRE", "orders", endless)
	sc.do("HSET", "rw", "mode", "write", redissons+":1:write", "1")
	sc.do("PEXPIRE", "rw", endless)
	for l, err := range sc.admin.Locks(t.Context(), admin.Query{}) {
		if err != nil || l.Lease < century {
			t.Errorf("%s in a list: %v, %v", l.Name, l.Lease, err)
		}
	}
	for _, name := range []string{"orders", "rw"} {
		if l := sc.inspect(name); l.Lease < century {
			t.Errorf("%s: %v", name, l.Lease)
		}
	}
	keys, err := sc.admin.Keys(t.Context(), sc.inspect("orders"))
	if err != nil || len(keys) == 0 {
		t.Errorf("%v, %v", keys, err)
	}
	for _, k := range keys {
		if k.Left < century {
			t.Errorf("the key %s: %v", k.Name, k.Left)
		}
	}
}

// If a server does not respond, Inspect sends one command, and fails once that command has timed out.
func TestInspect_silentServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	a, err := admin.New(s.Client(t, redistest.Via(proxy)), admin.WithOpTimeout(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	proxy.OnRequest(func(req [][]byte) redistest.Action {
		if !strings.EqualFold(string(req[0]), "HSCAN") && !strings.EqualFold(string(req[0]), "GETRANGE") {
			return redistest.Action{}
		}
		asked.Add(1)
		return redistest.Action{HoldReply: t.Context().Done()}
	})
	if _, err := a.Inspect(t.Context(), "orders"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("it asked %d questions", n)
	}
}

// A read/write lock is acquired after Inspect has read the key as such, and before it reads it as a plain lock.
func TestInspect_acquiredMeanwhile(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	a, err := admin.New(s.Client(t, redistest.Via(proxy)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Inspect(t.Context(), "orders"); err != nil { // loads the scripts
		t.Fatal(err)
	}
	var plain atomic.Int32
	proxy.OnRequest(func(req [][]byte) redistest.Action {
		if string(req[0]) == "EVALSHA" && len(req) == 4 && string(req[3]) == "orders" && plain.Add(1) == 1 {
			s.Do(t, "HSET", "orders", "mode", "write", redissons+":7:write", "1")
			s.Do(t, "PEXPIRE", "orders", "60000")
		}
		return redistest.Action{}
	})
	if l, err := a.Inspect(t.Context(), "orders"); err != nil || l.Kind != admin.ReadWrite || len(l.Holders) != 1 {
		t.Errorf("%v, %v", l, err)
	}
	if plain.Load() == 0 {
		t.Error("it asked for no plain lock")
	}
}
