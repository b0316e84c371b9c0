package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
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
			"p", `"p";q=100;w=60`, `"p";r=3`, ""},
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

// headers returns the fields of d in a response.
func headers(d ratelimit.Decision) (policy, limit, retry string) {
	h := http.Header{}
	d.SetHeader(h, "p")
	return h.Get("RateLimit-Policy"), h.Get("RateLimit"), h.Get("Retry-After")
}

// All parameters belong to one limit: the limit with the least permits left, or the one that rejected the call, even if several
// limits have nothing left.
func TestSetHeader_oneLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := ratelimit.New(redistest.NewMini(t).Client(t), "api", closed, ratelimit.PerSecond(3), ratelimit.PerMinute(6))
		check := func(what string, d ratelimit.Decision, ok bool, policy, limit, retry string) {
			t.Helper()
			p, r, a := headers(d)
			if d.OK != ok || p != policy || r != limit || a != retry {
				t.Errorf("%s: %v, %q, %q, %q; want %v, %q, %q, %q", what, d.OK, p, r, a, ok, policy, limit, retry)
			}
		}
		const second, minute = `"p";q=3;w=1`, `"p";q=6;w=60`
		check("the first", take(t, l, "k", 1), true, second, `"p";r=2;t=1`, "")
		check("the third", take(t, l, "k", 2), true, second, `"p";r=0;t=1`, "")
		check("the fourth", take(t, l, "k", 1), false, second, `"p";r=0;t=1`, "1")
		check("the fourth, from memory", take(t, l, "k", 1), false, second, `"p";r=0;t=1`, "1")
		time.Sleep(time.Second)
		check("the fourth, a second later", take(t, l, "k", 1), true, minute, `"p";r=2;t=9`, "") // both limits have two left
		check("the sixth", take(t, l, "k", 2), true, minute, `"p";r=0;t=9`, "")
		check("the seventh", take(t, l, "k", 1), false, minute, `"p";r=0;t=9`, "9")
		time.Sleep(time.Second)
		check("the seventh, from a limit that is not empty", take(t, l, "k", 3), false, minute, `"p";r=0;t=28`, "28")
		time.Sleep(time.Minute)
		check("more than the burst", take(t, l, "k", 4), false, second, `"p";r=3`, "")

		// The limit that rejects the call has more left than the other one.
		l = l.With(ratelimit.Limit{Rate: 1, Per: time.Second, Burst: 4}, ratelimit.Limit{Rate: 1, Per: 10 * time.Second, Burst: 5})
		take(t, l, "other", 2)
		check("refused later by the second", take(t, l, "other", 4), false, `"p";q=1;w=10`, `"p";r=3;t=10`, "10")
	})
}

// A client that follows the headers is never rejected, and waits no longer than necessary, rounded to a second.
func TestSetHeader_obedientClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := redistest.NewMini(t).Client(t)
		w := newWindow(t, rdb, "w", 4, 20*time.Second)
		second := ratelimit.New(rdb, "second", closed, ratelimit.PerSecond(3), ratelimit.PerMinute(6))
		slow := ratelimit.New(rdb, "slow", closed, ratelimit.Limit{Rate: 1, Per: 10 * time.Second, Burst: 3})
		stock := slow.Prefetch(1, time.Second)
		aligned := ratelimit.New(rdb, "aligned", closed, ratelimit.Limit{Rate: 4, Per: 20 * time.Second, Aligned: true}, ratelimit.PerMinute(100))
		for name, c := range map[string]struct {
			take  func() ratelimit.Decision
			after []time.Duration // when each request is sent
		}{
			"3/s and 6/min": {func() ratelimit.Decision { return take(t, second, "k", 1) },
				[]time.Duration{0, 0, 0, 1, 1, 1, 10, 20, 30, 40}},
			"one limit":              {func() ratelimit.Decision { return take(t, slow, "k", 1) }, []time.Duration{0, 0, 0, 10, 20, 30}},
			"units taken in advance": {func() ratelimit.Decision { return take(t, stock, "stock", 1) }, []time.Duration{0, 0, 0, 10, 20, 30}},
			"an aligned limit":       {func() ratelimit.Decision { return take(t, aligned, "k", 1) }, []time.Duration{0, 0, 0, 0, 20, 20, 20, 20, 40}},
			"a window":               {func() ratelimit.Decision { return takeOf(t, w, 1) }, []time.Duration{0, 0, 0, 0, 20, 20}},
			"a window, little by little": {func() ratelimit.Decision {
				time.Sleep(5 * time.Second)
				return takeOf(t, w, 1)
			}, []time.Duration{5, 10, 15, 20, 30, 35, 40}},
		} {
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(2 * time.Minute))) // a whole minute
			began := time.Now()
			for i, want := range c.after {
				d := c.take()
				if sent := time.Since(began).Round(time.Second); !d.OK || sent != want*time.Second {
					t.Errorf("%s: request %d: sent after %v, want %v; %+v", name, i+1, sent, want*time.Second, d)
				}
				_, limit, _ := headers(d)
				var left, wait int
				if _, err := fmt.Sscanf(limit, `"p";r=%d;t=%d`, &left, &wait); err != nil {
					t.Fatalf("%s: %q: %v", name, limit, err)
				}
				if left == 0 {
					time.Sleep(time.Duration(wait) * time.Second)
				}
			}
		}
	})
}

// The fields are lists. Each policy has its own item, whichever handler wrote it.
func TestSetHeader_list(t *testing.T) {
	t.Parallel()
	h := http.Header{"Ratelimit-Policy": {`"a";q=1, "b, \"c\"";q=2;w=3`, `"d"`}, "Ratelimit": {`"aa";r=1;t=2`}}
	d := ratelimit.Decision{OK: true, Remaining: 4, ResetAfter: time.Second, Limit: ratelimit.PerMinute(5)}
	for _, c := range []struct{ name, policy, limit string }{
		{"e", `"a";q=1, "b, \"c\"";q=2;w=3, "d", "e";q=5;w=60`, `"aa";r=1;t=2, "e";r=4;t=1`},
		{"a", `"b, \"c\"";q=2;w=3, "d", "e";q=5;w=60, "a";q=5;w=60`, `"aa";r=1;t=2, "e";r=4;t=1, "a";r=4;t=1`},
		{`b, "c"`, `"d", "e";q=5;w=60, "a";q=5;w=60, "b, \"c\"";q=5;w=60`, `"aa";r=1;t=2, "e";r=4;t=1, "a";r=4;t=1, "b, \"c\"";r=4;t=1`},
		{"d", `"e";q=5;w=60, "a";q=5;w=60, "b, \"c\"";q=5;w=60, "d";q=5;w=60`, `"aa";r=1;t=2, "e";r=4;t=1, "a";r=4;t=1, "b, \"c\"";r=4;t=1, "d";r=4;t=1`},
	} {
		d.SetHeader(h, c.name)
		if p, l := h["Ratelimit-Policy"], h["Ratelimit"]; len(p) != 1 || p[0] != c.policy || len(l) != 1 || l[0] != c.limit {
			t.Errorf("with %s: %q, %q; want %q, %q", c.name, p, l, c.policy, c.limit)
		}
	}
}

func TestHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "http", ratelimit.FailClosed(), ratelimit.PerMinute(2))
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

// Custom responses have the same status and headers, and get the error.
func TestHandler_ownResponses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "http", ratelimit.FailClosed(), ratelimit.PerMinute(2))
		cost := func(r *http.Request) (string, int64) {
			if r.Header.Get("User") == "dear" {
				return "dear", 3
			}
			return r.Header.Get("User"), 2
		}
		var why error
		h := ratelimit.Handler(l, "per-user", cost, http.NotFoundHandler(), nil, ratelimit.WithErrorResponse(func(w http.ResponseWriter, _ *http.Request, status int, err error) {
			why = err
			w.WriteHeader(status)
			_, _ = w.Write([]byte("own"))
		}))
		want := func(user string, status int, is error, retryAfter string) {
			t.Helper()
			r := request(t.Context(), h, user)
			body, _ := io.ReadAll(r.Body)
			if r.StatusCode != status || string(body) != "own" || !errors.Is(why, is) || r.Header.Get("Retry-After") != retryAfter {
				t.Errorf("%s: %d, %s, %v, %v", user, r.StatusCode, body, why, r.Header)
			}
		}
		if r := request(t.Context(), h, "ann"); r.StatusCode != http.StatusNotFound {
			t.Errorf("%d", r.StatusCode)
		}
		want("ann", http.StatusTooManyRequests, ratelimit.ErrLimited, "60")
		var limited *ratelimit.LimitedError
		if !errors.As(why, &limited) || limited.RetryAfter != time.Minute {
			t.Errorf("%v", why)
		}
		want("dear", http.StatusRequestEntityTooLarge, ratelimit.ErrLimited, "")
		want(strings.Repeat("x", 5000), http.StatusBadRequest, lock.ErrBadName, "")
		wire.Freeze(true)
		want("bob", http.StatusServiceUnavailable, lock.ErrUnavailable, "1")
		thaw(wire)
	})
}

// request sends a request with this key to h.
func request(ctx context.Context, h http.Handler, key string) *http.Response {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.Header.Set("User", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// handler returns a handler whose requests cost n permits of a user. It also returns the errors passed to failed, and the number
// of calls of next.
func handler(l *ratelimit.Limiter, name string, n int64, next http.Handler) (h http.Handler, told *[]error, served *int) {
	told, served = new([]error), new(int)
	cost := func(r *http.Request) (string, int64) { return r.Header.Get("User"), n }
	return ratelimit.Handler(l, name, cost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*served++
		if next != nil {
			next.ServeHTTP(w, r)
		}
	}), func(_ *http.Request, err error) { *told = append(*told, err) }), told, served
}

// A missing function is a bug of the program, and is detected at startup.
func TestWithErrorResponse_nil(t *testing.T) {
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "ratelimit: WithErrorResponse(nil)") {
			t.Errorf("%s", said)
		}
	}()
	ratelimit.WithErrorResponse(nil)
}

// A client that disconnects before the request or before the reply is not a fault. If the server is shutting down, the client is
// still connected, and can repeat the request.
func TestHandler_clientGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "http", closed, ratelimit.PerMinute(2))
		h, told, served := handler(l, "p", 1, nil)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		soon, cancel := context.WithCancel(t.Context())
		wire.Freeze(true)
		time.AfterFunc(time.Second, cancel)
		for what, ctx := range map[string]context.Context{"before the request": over, "before the answer": soon} {
			if r := request(ctx, h, "ann"); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || len(*told) > 0 || *served > 0 {
				t.Errorf("%s: %v, told %v, %d served", what, r, *told, *served)
			}
		}
		// The server's own time limit is different: the client is still connected.
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := request(late, h, "ann"); r.StatusCode != 503 || len(*told) != 1 || !errors.Is((*told)[0], context.DeadlineExceeded) {
			t.Errorf("a deadline: %v, told %v", r, *told)
		}
		thaw(wire)
	})
}

// A request for more than the share of FailLocal can succeed when Redis is available again, so the response reports when to
// retry.
func TestHandler_costAboveTheShare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "http", ratelimit.FailLocal(5), ratelimit.PerMinute(10))
		h, told, served := handler(l, "p", 3, nil)
		wire.Freeze(true)
		if r := request(t.Context(), h, "ann"); r.StatusCode != 429 || r.Header.Get("Retry-After") != "1" || len(*told) > 0 || *served > 0 {
			t.Errorf("without Redis: %v, told %v, %d served", r, *told, *served)
		}
		thaw(wire)
		if r := request(t.Context(), h, "ann"); r.StatusCode != 200 {
			t.Errorf("with Redis: %v", r)
		}
	})
}

// The response to a request that costs more than the burst never suggests a retry, and failed is called.
func TestHandler_costAboveTheBurst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		l := ratelimit.New(m.Client(t, redistest.Via(wire)), "http", ratelimit.FailOpen(), ratelimit.PerMinute(100), ratelimit.Limit{Rate: 20, Per: time.Second, Burst: 5})
		for _, n := range []int64{6, 1 << 60} {
			h, told, served := handler(l, "p", n, nil)
			for _, frozen := range []bool{false, true} {
				*told = nil
				wire.Freeze(frozen)
				r := request(t.Context(), h, "ann")
				if r.StatusCode != 413 || r.Header.Get("Retry-After") != "" || r.Header.Get("RateLimit-Policy") != `"p";q=20;w=1` || strings.Contains(r.Header.Get("RateLimit"), "t=") {
					t.Errorf("%d units: %v", n, r)
				}
				var problem struct{ Status int }
				if err := json.NewDecoder(r.Body).Decode(&problem); err != nil || problem.Status != 413 {
					t.Errorf("%+v, %v", problem, err)
				}
				var limited *ratelimit.LimitedError
				var e *lock.Error
				if len(*told) != 1 || !errors.As((*told)[0], &limited) || limited.RetryAfter != ratelimit.Never || !errors.As((*told)[0], &e) || e.Name != "http:ann" || *served != 0 {
					t.Errorf("%d units: told %v, %d served", n, *told, *served)
				}
			}
			thaw(wire)
		}
		h, told, served := handler(l, "p", 5, nil)
		if r := request(t.Context(), h, "ann"); r.StatusCode != 200 || len(*told) > 0 || *served != 1 {
			t.Errorf("as much as the burst: %v, told %v", r, *told)
		}
	})
}

// If the client chose a key that is not valid, the client gets a 400. A bad name of the limiter is not the client's fault.
func TestHandler_badKey(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewMini(t).Client(t)
	for name, c := range map[string]struct {
		l      *ratelimit.Limiter
		key    string
		status int
	}{
		"too long":   {ratelimit.New(rdb, "http", closed, ratelimit.PerMinute(2)), strings.Repeat("k", 5000), 400},
		"reserved":   {ratelimit.New(rdb, "http", closed, ratelimit.PerMinute(2)), "{k}:permits", 400},
		"a bad name": {ratelimit.New(rdb, "a:b", closed, ratelimit.PerMinute(2)), "ann", 503},
	} {
		h, told, served := handler(c.l, "p", 1, nil)
		if r := request(t.Context(), h, c.key); r.StatusCode != c.status || r.Header.Get("Retry-After") != "" || *served != 0 {
			t.Errorf("%s: %v", name, r)
		}
		if len(*told) != 1 || !errors.Is((*told)[0], lock.ErrBadName) {
			t.Errorf("%s: told %v", name, *told)
		}
	}
}

// Nested handlers each have their item in the headers.
func TestHandler_aroundAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := redistest.NewMini(t).Client(t)
		inner, _, served := handler(ratelimit.New(rdb, "user", closed, ratelimit.PerMinute(1)), "user", 1, nil)
		outer, _, _ := handler(ratelimit.New(rdb, "all", closed, ratelimit.PerSecond(10)), "all", 1, inner)
		for i, want := range []struct {
			status int
			limit  string
		}{{200, `"all";r=9;t=1, "user";r=0;t=60`}, {429, `"all";r=8;t=1, "user";r=0;t=60`}} {
			r := request(t.Context(), outer, "ann")
			if r.StatusCode != want.status || r.Header.Get("RateLimit-Policy") != `"all";q=10;w=1, "user";q=1;w=60` || r.Header.Get("RateLimit") != want.limit || *served != 1 {
				t.Errorf("request %d: %v", i+1, r)
			}
		}
	})
}
