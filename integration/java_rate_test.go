//go:build linux

package integration_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/ratelimit"
)

// asks makes a client of Redisson call a method of an object that is not a lock. The call must succeed.
func asks[T any](tb testing.TB, r *redisson, q javaRequest) (v T) {
	tb.Helper()
	q.Client = r.name
	answer := must(tb, receive(tb, r.java.send(tb, q)))
	if err := json.Unmarshal(answer.Value, &v); err != nil {
		tb.Fatalf("%s: Java's reply %s: %v", q.Do, answer.Value, err)
	}
	return v
}

// Java and Go take permits of one rate limiter. Each side sees the permits that the other takes and refunds.
func TestJavaWindow(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		tries := func(name string, n int64) bool {
			t.Helper()
			return asks[bool](t, s.java, javaRequest{Do: "rate.tryAcquire", Name: name, N: n})
		}
		available := func(name string) int64 {
			t.Helper()
			return asks[int64](t, s.java, javaRequest{Do: "rate.availablePermits", Name: name})
		}
		takes := func(w *ratelimit.RedissonLimiter, n int64) ratelimit.Decision {
			t.Helper()
			d, err := w.Take(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		for _, name := range []string{"calls", "{calls}:of:ann"} {
			w := s.c.NewRedissonRateLimiter(name)
			t.Run(name+" made by Go", func(t *testing.T) {
				if _, err := w.Init(t.Context(), 10, time.Hour); err != nil {
					t.Fatal(err)
				}
				if asks[bool](t, s.java, javaRequest{Do: "rate.trySetRate", Name: name, N: 7, Interval: 1000}) {
					t.Error("Java created the limiter again")
				}
				if got := asks[[]int64](t, s.java, javaRequest{Do: "rate.getConfig", Name: name}); got[0] != 10 || got[1] != time.Hour.Milliseconds() {
					t.Errorf("Java reads %d", got)
				}
				first := takes(w, 4)
				if !first.OK || available(name) != 6 || !tries(name, 5) || tries(name, 2) {
					t.Errorf("%+v; for Java %d are left", first, available(name))
				}
				if d := takes(w, 2); d.OK || d.Remaining != 1 || d.RetryAfter > time.Hour || d.RetryAfter < 50*time.Minute {
					t.Errorf("two of one: %+v", d)
				}
				if err := w.Refund(t.Context(), first); err != nil {
					t.Fatal(err)
				}
				if got := available(name); got != 5 {
					t.Errorf("Java has %d permits left, want 5", got)
				}
				if !tries(name, 5) || takes(w, 1).OK {
					t.Error("Java cannot take the five permits that were returned")
				}
			})
		}
		t.Run("made by Java", func(t *testing.T) {
			if !asks[bool](t, s.java, javaRequest{Do: "rate.trySetRate", Name: "java", N: 70_000, Interval: 3_600_000}) {
				t.Fatal("Java could not make the limiter")
			}
			w := s.c.NewRedissonRateLimiter("java")
			if created, err := w.Init(t.Context(), 70_000, time.Hour); created || err != nil {
				t.Errorf("init: %v, %v", created, err)
			}
			if _, err := w.Init(t.Context(), 1, time.Hour); !errors.Is(err, ratelimit.ErrRateMismatch) {
				t.Errorf("init with another rate: %v", err)
			}
			// The number of permits needs more than two bytes of an entry.
			if !tries("java", 66_000) || takes(w, 5_000).OK || !takes(w, 4_000).OK || tries("java", 1) {
				t.Error("both sides together take more than the rate")
			}
			if err := w.SetRate(t.Context(), 71_000, time.Hour); err != nil {
				t.Fatal(err)
			}
			if got := available("java"); got != 1_000 {
				t.Errorf("after another rate %d are left for Java, want 1000", got)
			}
			if err := w.SetRate(t.Context(), 60_000, time.Hour); err != nil {
				t.Fatal(err)
			}
			if got := available("java"); got != -10_000 || tries("java", 1) {
				t.Errorf("after a lower rate %d are left for Java, want -10,000", got)
			}
		})
		t.Run("made by Java without a limit", func(t *testing.T) {
			if !asks[bool](t, s.java, javaRequest{Do: "rate.trySetRate", Name: "unlimited", N: math.MaxInt64, Interval: 1000}) {
				t.Fatal("Java could not make the limiter")
			}
			w := s.c.NewRedissonRateLimiter("unlimited")
			for range 3 {
				if !tries("unlimited", 1000) || !takes(w, 1000).OK {
					t.Error("the limiter rejects a call")
				}
			}
		})
		t.Run("deleted", func(t *testing.T) {
			w := s.c.NewRedissonRateLimiter("gone")
			for who, remove := range map[string]func(){
				"Go": func() {
					if err := w.Delete(t.Context()); err != nil {
						t.Fatal(err)
					}
				},
				"Java": func() {
					if !asks[bool](t, s.java, javaRequest{Do: "rate.delete", Name: "gone"}) {
						t.Error("Java deleted nothing")
					}
				},
			} {
				if _, err := w.Init(t.Context(), 10, time.Hour); err != nil {
					t.Fatal(err)
				}
				if !tries("gone", 4) || !takes(w, 6).OK {
					t.Errorf("before %s deletes it: ten units are too many", who)
				}
				remove()
				if _, err := w.Take(t.Context(), 1); !errors.Is(err, ratelimit.ErrNotInitialized) {
					t.Errorf("%s deleted it, and Go takes: %v", who, err)
				}
				answer := receive(t, s.java.java.send(t, javaRequest{Client: s.java.name, Do: "rate.tryAcquire", Name: "gone", N: 1}))
				if !strings.Contains(answer.Err, "not initialized") {
					t.Errorf("%s deleted it, and Java takes: %+v", who, answer)
				}
				if !asks[bool](t, s.java, javaRequest{Do: "rate.trySetRate", Name: "gone", N: 10, Interval: 3_600_000}) {
					t.Errorf("%s deleted it, and Java cannot make it again", who)
				}
				if !tries("gone", 10) {
					t.Errorf("%s deleted it, and permits taken before still count", who)
				}
				if err := w.Delete(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
}

// Both sides take permits concurrently, for several windows. By the list in Redis, they take no more than the rate in
// any window, and no permit is lost permanently.
func TestJavaWindow_together(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	const rate, per = 40, 500 * time.Millisecond
	w := s.c.NewRedissonRateLimiter("both")
	if _, err := w.Init(t.Context(), rate, per); err != nil {
		t.Fatal(err)
	}
	type use struct {
		sent, heard time.Time
		n           int64
	}
	java, ours := make(chan []use), make(chan []use)
	const takes = 30 // of each side, however long that takes
	end := time.Now().Add(time.Minute)
	go func() {
		var log []use
		for len(log) < takes && time.Now().Before(end) {
			n, sent := 1+rand.Int64N(4), time.Now()
			if asks[bool](t, s.java, javaRequest{Do: "rate.tryAcquire", Name: "both", N: n}) {
				log = append(log, use{sent, time.Now(), n})
			} else {
				time.Sleep(10 * time.Millisecond)
			}
		}
		java <- log
	}()
	go func() {
		var log []use
		for i := 0; len(log) < takes && time.Now().Before(end); i++ {
			n, sent := 1+rand.Int64N(4), time.Now()
			d, err := w.Take(t.Context(), n)
			if err != nil {
				t.Error(err)
				break
			}
			switch {
			case d.OK && i%5 == 0:
				if err := w.Refund(t.Context(), d); err != nil {
					t.Error(err)
				}
			case d.OK:
				log = append(log, use{sent, time.Now(), n})
			default:
				time.Sleep(min(d.RetryAfter, 20*time.Millisecond))
			}
		}
		ours <- log
	}()
	a, b := <-java, <-ours
	all := append(a, b...)
	sum := int64(0)
	for _, from := range all {
		n := int64(0)
		for _, to := range all {
			// The calls from one to the other lie within a window. Redisson measures in ms, and uses this host's clock,
			// too.
			if !to.sent.Before(from.sent) && to.heard.Sub(from.sent) < per-2*time.Millisecond {
				n += to.n
			}
		}
		if n > rate {
			t.Fatalf("%d in %v, the rate is %d", n, per, rate)
		}
		sum += from.n
	}
	if len(a) < takes || len(b) < takes || sum < 2*rate {
		t.Errorf("Java took %d times, Go %d, %d permits: the test shows little", len(a), len(b), sum)
	}
	until(t, func() bool {
		return asks[int64](t, s.java, javaRequest{Do: "rate.availablePermits", Name: "both"}) == rate
	})
	if d, err := w.Peek(t.Context()); err != nil || d.Remaining != rate {
		t.Errorf("%+v, %v: at last all must be there again", d, err)
	}
}
