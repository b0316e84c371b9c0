package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// matchesText checks that a pattern matches the whole standard output of a call.
func matchesText(t *testing.T, c *tool, pattern string) {
	t.Helper()
	says(t, c, 0)
	if !regexp.MustCompile("^" + pattern + "$").MatchString(c.stdout.String()) {
		t.Errorf("%q says\n%s, want\n%s", c.cmd.Args[1:], c.stdout, pattern)
	}
}

// limited creates limiters and filters, and uses some of them.
func limited(t *testing.T, s *redistest.Server) {
	t.Helper()
	if _, err := binary(); err != nil { // done first: it takes long on a busy machine, and the expected times would change
		t.Fatal(err)
	}
	c := billing(t, s.Client(t), client.WithWatchdogTimeout(time.Minute)) // so that the operation timeout is long enough for a busy machine
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	soon := ratelimit.FailClosed().After(promptly)
	must(c.NewRateLimiter("api", soon, ratelimit.PerHour(10), ratelimit.Limit{Rate: 1000, Per: 24 * 365 * time.Hour, Aligned: true}).Take(t.Context(), "alice", 4))
	for range 3 {
		must(c.NewRateLimiter("mail", soon, ratelimit.Limit{Rate: 4, Per: time.Hour, Burst: 1}).Reserve(t.Context(), "partner", 1))
	}
	must(c.NewRedissonRateLimiter("sms").Init(t.Context(), 10, time.Hour))
	must(c.NewRedissonRateLimiter("sms").Take(t.Context(), 10))
	must(c.NewRedissonRateLimiter("calls").Init(t.Context(), 5, time.Minute))
	s.Do(t, "HSET", "java", "rate", "1000", "interval", "1000", "type", "1")
	elements := make([][]byte, 1000)
	for i := range elements {
		elements[i] = fmt.Append(nil, i)
	}
	must(c.NewBloomFilter("seen").Init(t.Context(), 5000, .01))
	must(c.NewBloomFilter("seen").Add(t.Context(), elements...))
	must(c.NewShardedBloomFilter("crawl", 2).Init(t.Context(), 8000, .01))
	must(c.NewShardedBloomFilter("crawl", 2).Add(t.Context(), elements...))
}

// Limiters and filters are listed if --kind names them, and inspect shows all that Redis stores about them.
func TestLs_unheld(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	limited(t, s)
	matchesText(t, on(t, s, "ls"), `NAME  KIND  HOLDER  REQUESTED  LEASE  WAITING\n`)
	matchesText(t, on(t, s, "ls", "--kind", "ratelimit"), `NAME +KIND +STATE\n`+
		`api:alice +ratelimit  refills in (24m00s|23m5\ds); 4 used, resets in \d+d\d\dh\n`+
		`mail:partner  ratelimit  refills in (45m00s|44m\d\ds); the last waiter waits (30m00s|29m\d\ds)\n`)
	matchesText(t, on(t, s, "ls", "--kind", "redisson-ratelimit"), `NAME +KIND +STATE\n`+
		`calls  redisson-ratelimit  5 of 5 per 1m remaining; ambiguous: see inspect\n`+
		`java   redisson-ratelimit  1000 per 1s per Redisson client\n`+
		`sms    redisson-ratelimit  0 of 10 per 1h remaining, next in (1h00m|59m\d\ds)\n`)
	matchesText(t, on(t, s, "ls", "--kind", "bloom"), `NAME +KIND +STATE\n`+
		`crawl  bloom  about (9|1,0)\d\d of 8,000 elements, under 0\.1 % false positives, 2 shards\n`+
		`seen   bloom  (99|1,00)\d of 5,000 elements, under 0\.1 % false positives\n`)
	says(t, on(t, s, "ls", "x*", "--kind", "redisson-ratelimit"), 0, "no key of type redisson-ratelimit matches x* on "+s.URL()+"\n")

	var all []lockJSON
	for _, kind := range []string{"ratelimit", "redisson-ratelimit", "bloom"} {
		j := on(t, s, "ls", "--kind", kind, "-o", "json")
		says(t, j, 0)
		var some []lockJSON
		if err := json.Unmarshal([]byte(j.stdout.String()), &some); err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	if len(all) != 7 || *all[0].Limit.Usage[1].Used != 4 || *all[0].Limit.Usage[0].FullMS <= 0 || all[1].Limit.AheadMS <= 0 || all[2].Ambiguous == "" || !all[3].RedissonLimit.PerClient || all[3].RedissonLimit.Left != nil || *all[4].RedissonLimit.Left != 0 || *all[4].RedissonLimit.NextMS <= 0 || all[5].Filter.Shards != 2 || all[6].Filter.Elements < 900 || all[6].Filter.Probability != .01 {
		t.Errorf("%+v", all)
	}
}

// A shell completes names of each type for inspect, and only names of locks for unlock.
func TestComplete_unheld(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	limited(t, s)
	c := billing(t, s.Client(t))
	mustLock(t, c.NewLock("seat"))
	if _, err := c.NewLatch("sealed").TrySetCount(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	complete := func(args ...string) *tool {
		return completed(t, func() *tool {
			return prepare(t, []string{"REDIS_URL=" + s.URL()}, append([]string{"__complete"}, args...)...).start()
		})
	}
	says(t, complete("inspect", "se"), 0, "seat\tplain, billing on ", "sealed\tlatch, count 3\n", "seen\tbloom, ")
	says(t, complete("inspect", ""), 0, "api:alice\tratelimit, refills in ", "sms\tredisson-ratelimit, 0 of 10 per 1h remaining", "crawl\tbloom, ", ":4\n")
	says(t, complete("ls", "--kind", "redisson-ratelimit", "s"), 0, "sms\tredisson-ratelimit, ")
	locks := complete("unlock", "se")
	says(t, locks, 0, "seat\tplain, ")
	if text := locks.stdout.String(); strings.Contains(text, "seen") {
		t.Errorf("unlock takes no filter: %s", text)
	}
}

// If x and {x} both exist, inspect of each warns of the other.
func TestInspect_braces(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	warns := func(name, what string) {
		t.Helper()
		i := on(t, s, "inspect", name)
		if says(t, i, 0); strings.Contains(i.stderr.String(), " also exists (") != (what != "") || !strings.Contains(i.stderr.String(), what) {
			t.Errorf("inspect %s warns: %q, want %q", name, i.stderr, what)
		}
	}
	mustLock(t, c.NewFairLock("x"))
	warns("x", "")
	warns("{x}", "x also exists (fair): x and {x} share")
	mustLock(t, c.NewLock("{x}"))
	warns("x", "{x} also exists (plain")
	if _, err := c.NewRedissonRateLimiter("y").Init(t.Context(), 5, time.Hour); err != nil {
		t.Fatal(err)
	}
	mustLock(t, c.NewRWLock("{y}").Read())
	warns("y", "{y} also exists (rw")
	warns("{y}", "y also exists (redisson-ratelimit")
	s.Do(t, "SET", "{z}", "text")
	mustLock(t, c.NewLock("z"))
	warns("z", "")
	mustLock(t, c.NewLock("a{z}"))
	warns("a{z}", "")
	j := on(t, s, "inspect", "x", "-o", "json")
	says(t, j, 0)
	var l lockJSON
	if err := json.Unmarshal([]byte(j.stdout.String()), &l); err != nil || !strings.Contains(j.stderr.String(), "{x} also exists (") {
		t.Errorf("%v, %q", err, j.stderr)
	}
}

func TestInspect_unheld(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	limited(t, s)
	matchesText(t, on(t, s, "inspect", "api:alice"), `api:alice: a key of a rate limiter\n`+
		`limit 1    refills in .*\nlimit 2    4 used, resets in .*\nremaining  unknown: pass the limits of the application, such as --limit 10/1m\nreset      in .*\n`)
	matchesText(t, on(t, s, "inspect", "api:alice", "--limit", "10/1h", "--limit", "1000/8760h/aligned"), `api:alice: a key of a rate limiter\n`+
		`limit 1    .*\nlimit 2    .*\nremaining  6\nnext       now\nreset      in .*\n`)
	matchesText(t, on(t, s, "inspect", "api:alice", "--limit", "10/1h/4", "--limit", "1000/8760h/aligned"), `(?s).*\nremaining  0\nnext       in (6m00s|5m\d\ds)\n.*`)
	matchesText(t, on(t, s, "inspect", "mail:partner", "--limit", "4/1h/1"), `(?s).*\nqueue      the last waiter is admitted in .*\nremaining  0\nnext       in (45m00s|44m\d\ds)\n.*`)
	matchesText(t, on(t, s, "inspect", "mail:partner", "--limit", "1000/1h"), `(?s).*\nremaining  0\nnext       in (30m00s|29m\d\ds)\n.*`)
	matchesText(t, on(t, s, "inspect", "sms"), `sms: a Redisson-compatible rate limiter, 10 per 1h\nremaining  0\nnext       in .*\nreset      in .*\n`)
	matchesText(t, on(t, s, "inspect", "calls"), `(?s).*\nremaining  5\nnext       now\nreset      now\nambiguous  unused: only .*\n`)
	matchesText(t, on(t, s, "inspect", "java"), `java: .*1000 per 1s\nremaining  unknown: each Redisson client has its own quota\n`)
	matchesText(t, on(t, s, "inspect", "seen"), `seen: a Bloom filter for 5,000 elements\n`+
		`elements  (99|1,00)\d, estimated from the \d+ % of bits that are set\n`+
		`error     under 0\.1 % false positives; 1 % with 5,000 elements\n`+
		`bits      47,925, 7 per element, 5991 bytes in memory\n`)
	s.Do(t, "HSET", "{full}:config", "size", "80", "hashIterations", "1", "expectedInsertions", "55", "falseProbability", "0.5")
	s.Do(t, "SET", "full", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	matchesText(t, on(t, s, "inspect", "full"), `(?s).*\nelements  too many to count, estimated from the 100 % of bits that are set\nerror     100 % false positives; 50 % with 55 elements\n.*`)
	s.Do(t, "DEL", "crawl:{1}:config")
	matchesText(t, on(t, s, "inspect", "crawl"), `(?s)crawl: a Bloom filter for 8,000 elements, made of 2 shards\n.*\nmissing   1 of 2 shards: their elements are reported as absent\n`)
	matchesText(t, on(t, s, "inspect", "crawl:{0}"), `(?s)crawl:\{0\}: a Bloom filter for 4,000 elements, one of 2 shards of another filter\n.*`)
	j := on(t, s, "inspect", "api:alice", "-o", "json", "--limit", "10/1h", "--limit", "1000/8760h/aligned")
	says(t, j, 0)
	var l lockJSON
	if err := json.Unmarshal([]byte(j.stdout.String()), &l); err != nil || l.Kind != "ratelimit" || *l.Limit.Left != 6 || *l.Limit.NextMS != 0 {
		t.Errorf("%+v, %v", l, err)
	}
	for _, wrong := range [][]string{{"10/1h"}, {"1000/8760h/aligned", "10/1h"}} { // a limit is missing, or the order is wrong
		args := []string{"inspect", "api:alice"}
		for _, l := range wrong {
			args = append(args, "--limit", l)
		}
		says(t, on(t, s, args...), 2, "api:alice has 2 limits (refills in ", "pass each limit of the application, in its order")
	}
	says(t, on(t, s, "inspect", "sms", "--limit", "10/1h"), 1, "sms is not a rate limiter key with used quota: remove --limit")
	for _, bad := range []string{"10", "x/1h", "10/x", "0/1h", "10/1h/x", "10/1h/2/3", "10/0s"} {
		says(t, on(t, s, "inspect", "api:alice", "--limit", bad), 2, "want a limit such as 10/1m")
	}
}

// With the limits of the application, the remaining permits and the time until the next one are those of the limiter.
func TestStanding(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	a, err := admin.New(s.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for round := range 40 {
		var limits []ratelimit.Limit
		for range 1 + random.IntN(3) {
			l := ratelimit.Limit{Rate: 1 + random.Int64N(20), Per: time.Duration(1+random.IntN(50)) * time.Hour}
			if l.Aligned = random.IntN(3) == 0; l.Aligned {
				l.Per = 24 * 365 * time.Hour
			} else {
				l.Burst = 1 + random.Int64N(30)
			}
			limits = append(limits, l)
		}
		limiter, key := c.NewRateLimiter("api", ratelimit.FailClosed().After(promptly), limits...), fmt.Sprint(round)
		for range 1 + random.IntN(6) {
			if _, err := limiter.TakeUpTo(t.Context(), key, 1+random.Int64N(9)); err != nil {
				t.Fatal(err)
			}
		}
		d, err := limiter.Take(t.Context(), key, 1)
		if err != nil {
			t.Fatal(err)
		}
		is, err := a.Inspect(t.Context(), "api:"+key)
		if err != nil || is.Limit == nil {
			t.Fatal(is, err)
		}
		left, next := standing(is.Limit, limits)
		// Time passes between the two, and they read two clocks of the server.
		if left != d.Remaining || !d.OK && (d.RetryAfter-next).Abs() > promptly || d.OK && left > 0 && next != 0 {
			t.Errorf("%+v: %d are left, next in %v, and the limiter says %+v", limits, left, next, d)
		}
	}
}

// An election is listed with its leader value, and inspect shows since when the leader has led.
func TestLs_election(t *testing.T) {
	t.Parallel()
	began := time.Now()
	s := redistest.Start(t)
	c := billing(t, s.Client(t))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.NewElection("boss").Run(ctx, "http://10.0.0.7:8080", func(ctx context.Context) error { <-ctx.Done(); return nil })
	}()
	for end := time.Now().Add(promptly); ; {
		if reply := s.Do(t, "EXISTS", "leasehold_leader:{boss}"); reply.String() != "" {
			if n, err := reply.ToInt64(); err == nil && n == 1 {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatal("nobody leads")
		}
	}
	knows(t, s.Client(t), c)
	mustLock(t, c.NewLock("orders"))
	says(t, on(t, s, "ls"), 0, "boss    election  billing on "+host(t)+", value http://10.0.0.7:8080  ", "orders  plain ")
	names := on(t, s, "ls", "--kind", "election", "-o", "name")
	says(t, names, 0)
	if text := names.stdout.String(); text != "boss\n" {
		t.Errorf("%q", text)
	}
	says(t, on(t, s, "inspect", "boss"), 0, "value   http://10.0.0.7:8080\n        leader for ", ", token ", " expires in ", " unless published again\n")
	j := on(t, s, "inspect", "boss", "-o", "json")
	says(t, j, 0)
	var l lockJSON
	if err := json.Unmarshal([]byte(j.stdout.String()), &l); err != nil || l.Leader == nil || l.Leader.Value != "http://10.0.0.7:8080" || l.Leader.Token == 0 || l.Leader.LeftMS <= 0 || l.Leader.Since.Before(began.Truncate(time.Second)) || l.Leader.Since.After(time.Now()) {
		t.Errorf("%+v, %v", l.Leader, err)
	}
	cancel()
	<-done
	s.Do(t, "HSET", "leasehold_leader:{boss}", "token", "1", "value", "x", "since", "1")
	s.Do(t, "HDEL", "leasehold_leader:{boss}", "over")
	says(t, on(t, s, "inspect", "boss"), 0, "boss: free\n", "of an earlier leader; no leader now")
}

// A time has its two largest units, even if rounding leads to a larger one.
func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 979400 * time.Microsecond: "979ms", 999600 * time.Microsecond: "1s", 1240 * time.Millisecond: "1.2s", 59960 * time.Millisecond: "1m00s",
		61 * time.Second: "1m01s", time.Hour - 400*time.Millisecond: "1h00m", 90 * time.Minute: "1h30m", 48*time.Hour - 20*time.Second: "2d00h", 100 * time.Hour: "4d04h",
	} {
		if got := short(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
