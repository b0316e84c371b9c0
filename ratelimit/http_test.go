package ratelimit_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

func TestSetHeader(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		d                    ratelimit.Decision
		name                 string
		policy, limit, retry string
	}{
		"let pass": {ratelimit.Decision{OK: true, Taken: 1, Remaining: 42, ResetAfter: 6100 * time.Millisecond, Limit: ratelimit.PerMinute(100)},
			"p", `"p";q=100;w=60`, `"p";r=42;t=7`, ""},
		"refused": {ratelimit.Decision{RetryAfter: 100 * time.Millisecond, ResetAfter: time.Minute, Limit: ratelimit.PerMinute(100)},
			"p", `"p";q=100;w=60`, `"p";r=0;t=1`, "1"},
		"refused for two seconds": {ratelimit.Decision{RetryAfter: 2 * time.Second, Limit: ratelimit.PerMinute(100)},
			"p", `"p";q=100;w=60`, `"p";r=0;t=2`, "2"},
		"never": {ratelimit.Decision{RetryAfter: ratelimit.Never, Remaining: 3, Limit: ratelimit.PerMinute(100)},
			"p", `"p";q=100;w=60`, `"p";r=3;t=0`, ""},
		"parts of a second": {ratelimit.Decision{OK: true, Limit: ratelimit.Limit{Rate: 10, Per: 100 * time.Millisecond}},
			"p", `"p";q=100;w=1`, `"p";r=0;t=0`, ""},
		"a second and a half": {ratelimit.Decision{OK: true, Limit: ratelimit.Limit{Rate: 10, Per: 1500 * time.Millisecond}},
			"p", `"p";q=10`, `"p";r=0;t=0`, ""},
		"more than a header can say": {ratelimit.Decision{OK: true, Remaining: 1_000_000_000_000_000, Limit: ratelimit.PerSecond(1_000_000_000_000_000)},
			"p", `"p";q=999999999999999;w=1`, `"p";r=999999999999999;t=0`, ""},
		"more than an int64 in a second": {ratelimit.Decision{OK: true, Limit: ratelimit.Limit{Rate: 1_000_000_000_000_000, Per: time.Microsecond}},
			"p", `"p";q=999999999999999;w=1`, `"p";r=0;t=0`, ""},
		"a strange name": {ratelimit.Decision{OK: true, Limit: ratelimit.PerSecond(1)},
			"a\"\\\r\nü", `"a\"\\????";q=1;w=1`, `"a\"\\????";r=0;t=0`, ""},
		"without Redis": {ratelimit.Decision{OK: true, Taken: 1, Err: lock.ErrUnavailable, Limit: ratelimit.PerSecond(1)},
			"p", `"p";q=1;w=1`, "", ""},
	} {
		h := http.Header{}
		c.d.SetHeader(h, c.name)
		if p, l, r := h.Get("RateLimit-Policy"), h.Get("RateLimit"), h.Get("Retry-After"); p != c.policy || l != c.limit || r != c.retry {
			t.Errorf("%s: %q, %q, %q; want %q, %q, %q", what, p, l, r, c.policy, c.limit, c.retry)
		}
	}
}

func TestHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "http", ratelimit.Closed(), ratelimit.PerMinute(2))
		var told error
		served := 0
		h := ratelimit.Handler(l, "per-user", func(r *http.Request) (string, int64) {
			if r.URL.Path == "/health" {
				return "", 0
			}
			return r.Header.Get("User"), 1
		}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { served++ }), func(r *http.Request, err error) { told = err })
		get := func(path, user string) *http.Response {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set("User", user)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Result()
		}
		for i, want := range []int{200, 200, 429, 429} {
			if r := get("/", "ann"); r.StatusCode != want || r.Header.Get("RateLimit") == "" {
				t.Errorf("request %d: %v", i, r)
			}
		}
		refused := get("/", "ann")
		var problem struct {
			Type     string
			Status   int
			Violated []string `json:"violated-policies"`
		}
		if err := json.NewDecoder(refused.Body).Decode(&problem); err != nil || problem.Status != 429 || problem.Type == "" || len(problem.Violated) != 1 || problem.Violated[0] != "per-user" {
			t.Errorf("%+v, %v", problem, err)
		}
		if refused.Header.Get("Retry-After") != "30" || refused.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%v", refused.Header)
		}
		if r := get("/", "bob"); r.StatusCode != 200 {
			t.Errorf("another user: %v", r)
		}
		if r := get("/health", "ann"); r.StatusCode != 200 || r.Header.Get("RateLimit") != "" {
			t.Errorf("not limited: %v", r)
		}
		if served != 4 || told != nil {
			t.Errorf("%d served, %v", served, told)
		}
		wire.Freeze(true)
		if r := get("/", "bob"); r.StatusCode != 503 || r.Header.Get("Retry-After") != "1" || !errors.Is(told, lock.ErrUnavailable) || served != 4 {
			t.Errorf("Redis is silent: %v, %v", r, told)
		}
		thaw(wire)
	})
}
