package dashboard_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/admin/dashboard"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// The pages show the state of limiters, filters and elections, and escape markup in texts of applications.
func TestLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := billing(t, rdb, "billing")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := serve(t, rdb)
	s.says("limits", 200, "No rate limiters with used quota, and no Bloom filters.", "0 limiters and filters")
	soon := ratelimit.FailClosed().After(patience)
	must(c.NewRateLimiter("api", soon, ratelimit.PerHour(10), ratelimit.Limit{Rate: 1000, Per: 24 * 365 * time.Hour, Aligned: true}).Take(t.Context(), "<b>}a", 4))
	for range 2 {
		must(c.NewRateLimiter("mail", soon, ratelimit.Limit{Rate: 4, Per: time.Hour, Burst: 1}).Reserve(t.Context(), "x", 1))
	}
	must(c.NewRedissonRateLimiter("sms").Init(t.Context(), 10, time.Hour))
	must(c.NewRedissonRateLimiter("sms").Take(t.Context(), 10))
	must(c.NewRedissonRateLimiter("calls").Init(t.Context(), 5, time.Minute))
	server.Do(t, "HSET", "java", "rate", "1000", "interval", "1000", "type", "1")
	elements := make([][]byte, 90)
	for i := range elements {
		elements[i] = fmt.Append(nil, i)
	}
	must(c.NewBloomFilter("seen").Init(t.Context(), 100, .01))
	must(c.NewBloomFilter("seen").Add(t.Context(), elements...))
	must(c.NewShardedBloomFilter("crawl", 2).Init(t.Context(), 8000, .01))
	text := s.settles("limits", "7 limiters and filters")
	flat := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(text, "")
	for _, want := range []string{`api:&lt;b&gt;}a\s+rate limiter\s+refills in (24m 00s|23m 5\ds); 4 used, resets in \d+[dhm] \d\d[hms]\s+–`, `mail:x\s+rate limiter\s+refills in \d+m \d+s; the last waiter waits \d+m \d+s`,
		`sms\s+redisson-ratelimit\s+0 of 10 per 1h remaining; next in \d+m \d+s\s+100 %`, `calls\s+redisson-ratelimit\s+5 of 5 per 1m remaining ambiguous\s+0 %`, `java\s+redisson-ratelimit\s+1000 per 1s per Redisson client\s+–`,
		`seen\s+Bloom filter\s+(8\d|9\d) of 100 elements; 0\.\d+ % false positives\s+(8|9)\d %`, `crawl\s+Bloom filter\s+0 of 8,000 elements; under 0.1 % false positives\s+0 %`} {
		if !regexp.MustCompile(want).MatchString(flat) {
			t.Errorf("the list does not say %s:\n%s", want, flat)
		}
	}
	if strings.Contains(text, "<b>") || strings.Contains(text, " style=") {
		t.Errorf("markup that is not ours: %s", text)
	}
	s.says("limits?kind=redisson-ratelimit", 200, "3 of 7 limiters and filters")
	s.says("limits?q=SEEN", 200, "1 of 7 limiters and filters")
	s.says("limits?q=nothing", 200, "No matches.")
	s.says("lock?name=sms", 200, `href="./limits"`, "10 per 1h", "ZRANGE &#39;{sms}:permits&#39;", `class="low" max="1"`)
	s.says("lock?name=calls", 200, "Ambiguous:", "unused: only")
	s.says("lock?name=seen", 200, "STRLEN &#39;seen&#39;", "HGETALL &#39;{seen}:config&#39;", "1 % with 100 elements", "120 bytes", `class="late" max="1"`)
	s.says("lock?name=crawl", 200, "Shards</dt><dd>2")
	s.says("lock?name=api:%3Cb%3E%7Da", 200, "Limit 1", "Limit 2", "4 used, resets in", "unknown: Redis stores the used quota", "GET &#39;api:&lt;b&gt;}a&#39;")
	s.says("lock?name=java", 200, "each Redisson client has its own quota")
	server.Do(t, "SET", "views", "1234567")
	s.says("lock?name=views", 200, "Ambiguous:", "a counter of an application")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.NewElection("boss").Run(ctx, "<i>http://a</i>", func(ctx context.Context) error { <-ctx.Done(); return nil })
	}()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, text = s.get("locks?kind=election"); strings.Contains(text, ">&lt;i&gt;http://a&lt;/i&gt;</span>") && strings.Contains(text, `<span class="tag">election</span>`) {
			break
		} else if time.Now().After(end) {
			t.Fatal(text)
		}
	}
	s.says("lock?name=boss", 200, "Election", "<code>&lt;i&gt;http://a&lt;/i&gt;</code>", "Leader for", "with token ")
	cancel()
	<-done
	server.Do(t, "HSET", "leasehold_leader:{old}", "token", "1", "value", "x", "since", "1000")
	s.says("lock?name=old", 200, "Earlier leader (no leader now)")
}

// On a server with many keys, the list fills in with each look.
func TestLimits_fill(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	var keys rueidis.Commands
	for i := range 3000 {
		keys = append(keys, rdb.B().Set().Key(fmt.Sprint("key", i)).Value("x").Build())
	}
	for _, r := range rdb.DoMulti(t.Context(), keys...) {
		if err := r.Error(); err != nil {
			t.Fatal(err)
		}
	}
	c := billing(t, rdb, "billing")
	for i := range 40 {
		if _, err := c.NewRateLimiter("api", ratelimit.FailClosed().After(patience), ratelimit.PerHour(10)).Take(t.Context(), fmt.Sprint(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.NewRedissonRateLimiter("sms").Init(t.Context(), 10, time.Hour); err != nil {
		t.Fatal(err)
	}
	a, err := admin.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	look := dashboard.LimitSurvey(a, 0) // one step of SCAN for each kind
	before, share, steps := -1, 0, 0
	for {
		n, scanning, err := look(t.Context())
		if err != nil || n < before {
			t.Fatalf("%d after %d: %v", n, before, err)
		}
		before = n
		if scanning == "" {
			break
		}
		last := share
		if _, err := fmt.Sscanf(scanning, "%d %%", &share); err != nil || share < last {
			t.Fatalf("scanned %q after %d %%", scanning, last)
		}
		steps++
	}
	if before != 41 || steps < 3 {
		t.Errorf("found %d limiters in %d looks", before, steps)
	}
	if n, scanning, err := look(t.Context()); n != 41 || scanning != "" || err != nil {
		t.Errorf("in the next pass: %d, %q, %v", n, scanning, err)
	}
	server.Do(t, "DEL", "api:7")
	server.Do(t, "DEL", "sms")
	if n, _, err := look(t.Context()); n != 39 || err != nil { // although the scan is elsewhere
		t.Errorf("after the deletion of two: %d, %v", n, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if n, _, err := look(canceled); n != 39 || err == nil {
		t.Errorf("a look that fails: %d, %v", n, err)
	}
}
