package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// The limiter admits at most three calls per minute for each user, across all processes.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	limiter := c.NewRateLimiter("api", ratelimit.FailClosed().After(time.Second), ratelimit.PerMinute(3))

	for range 4 {
		d, err := limiter.Take(ctx, "ann", 1)
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Println(d.OK, d.Remaining, d.RetryAfter.Round(10*time.Second))
	}
	// Output:
	// true 2 0s
	// true 1 0s
	// true 0 0s
	// false 0 20s
}

// A limiter can use a rueidis client of the application. This one has a limit per second and one per day.
// A call that one of them rejects takes permits of neither.
func ExampleNew() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	limiter := ratelimit.New(rdb, "mail", ratelimit.FailLocal(4).After(time.Second),
		ratelimit.PerSecond(100),
		ratelimit.Limit{Rate: 50, Per: 24 * time.Hour, Aligned: true}, // for each day of UTC
	)

	d, err := limiter.Take(ctx, "ann", 60)
	fmt.Println(d.OK, d.RetryAfter == ratelimit.Never, err)
	d, err = limiter.TakeUpTo(ctx, "ann", 60)
	fmt.Println(d.Taken, d.Remaining, d.Limit.Per, err)
	// Output:
	// false true <nil>
	// 50 0 24h0m0s <nil>
}

// A partner accepts ten messages per second, evenly spaced. Wait queues the callers of all processes.
func ExampleLimiter_Wait() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Print(err)
		return
	}
	defer rdb.Close()
	limiter := ratelimit.New(rdb, "partner", ratelimit.FailOpen().After(time.Second), ratelimit.Limit{Rate: 10, Per: time.Second, Burst: 1})

	start := time.Now()
	for range 4 {
		if err := limiter.Wait(ctx, "acme", 1); errors.Is(err, ratelimit.ErrLimited) {
			fmt.Println("the queue is too long for our five seconds")
		} else if err != nil {
			log.Print(err)
			return
		}
	}
	fmt.Println(time.Since(start) >= 300*time.Millisecond)
	// Output: true
}

// A caller returns permits that it has not used.
func ExampleLimiter_Refund() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	limiter := ratelimit.New(rdb, "export", ratelimit.FailClosed().After(time.Second), ratelimit.Limit{Rate: 5, Per: 24 * time.Hour, Aligned: true})

	d, err := limiter.Take(ctx, "ann", 1)
	if err != nil {
		log.Print(err)
		return
	}
	if nothingToExport := true; nothingToExport {
		if err := limiter.Refund(ctx, "ann", d); err != nil {
			log.Print(err) // the permit counts as used
		}
	}
	d, err = limiter.Peek(ctx, "ann")
	fmt.Println(d.Remaining, err)
	// Output: 5 <nil>
}

// An operator restores the full quota of a user.
func ExampleLimiter_Reset() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	logins := c.NewRateLimiter("login", ratelimit.FailClosed().After(time.Second), ratelimit.PerHour(3))

	d, err := logins.Take(ctx, "bob", 3)
	fmt.Println(d.OK, err)
	if err := logins.Reset(ctx, "bob"); err != nil {
		log.Print(err)
		return
	}
	d, err = logins.Take(ctx, "bob", 3)
	fmt.Println(d.OK, err)
	// Output:
	// true <nil>
	// true <nil>
}

// The handler admits two requests per minute from each address. Behind a proxy, all connections come from the proxy, so use the address that
// the proxy writes into a header.
func ExampleHandler() {
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	limiter := ratelimit.New(rdb, "http", ratelimit.FailOpen().After(time.Second), ratelimit.PerMinute(2))
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	server := httptest.NewServer(ratelimit.Handler(limiter, "per-address", func(r *http.Request) (string, int64) {
		host, _, err := net.SplitHostPort(r.RemoteAddr) // each connection of a client has a different port
		if err != nil {
			host = r.RemoteAddr // for example, of a Unix socket
		}
		return host, 1
	}, hello, nil))
	defer server.Close()

	for range 3 {
		r, err := server.Client().Get(server.URL)
		if err != nil {
			log.Print(err)
			return
		}
		r.Body.Close()
		fmt.Printf("%d %s %s retry after %q\n", r.StatusCode, r.Header.Get("RateLimit-Policy"), r.Header.Get("RateLimit"), r.Header.Get("Retry-After"))
	}
	// Output:
	// 200 "per-address";q=2;w=60 "per-address";r=1;t=30 retry after ""
	// 200 "per-address";q=2;w=60 "per-address";r=0;t=30 retry after ""
	// 429 "per-address";q=2;w=60 "per-address";r=0;t=30 retry after "30"
}

// Error responses in the format of an API.
func ExampleWithErrorResponse() {
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	limiter := ratelimit.New(rdb, "json", ratelimit.FailOpen().After(time.Second), ratelimit.PerMinute(1))
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	handler := ratelimit.Handler(limiter, "per-user", func(*http.Request) (string, int64) { return "alice", 1 }, hello, nil,
		ratelimit.WithErrorResponse(func(w http.ResponseWriter, r *http.Request, status int, err error) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":"rate_limited"}`)
		}))
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 hello
	// 429 {"error":"rate_limited"}
}

// A bucket of 20 permits that is refilled with 10 per second, and a window that restarts each day.
func ExampleLimit() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	limiter := c.NewRateLimiter("search", ratelimit.FailClosed().After(time.Second),
		ratelimit.Limit{Rate: 10, Per: time.Second, Burst: 20},
		ratelimit.Limit{Rate: 1000, Per: 24 * time.Hour, Aligned: true},
	)
	d, err := limiter.Take(ctx, "ann", 15) // immediately, because the bucket is full
	fmt.Println(d.OK, err)
	// Output: true <nil>
}

// Show the remaining permits, and set the headers of an HTTP response.
func ExampleDecision() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	limiter := c.NewRateLimiter("export", ratelimit.FailClosed().After(time.Second), ratelimit.PerHour(2))

	w := httptest.NewRecorder()
	for range 3 {
		d, err := limiter.Take(ctx, "ann", 1)
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Println(d.OK, d.Taken, d.Remaining)
		d.SetHeader(w.Header(), "export")
	}
	fmt.Println(w.Header().Get("RateLimit-Policy"), w.Header().Get("Retry-After") != "")
	// Output:
	// true 1 1
	// true 1 0
	// false 0 0
	// "export";q=2;w=3600 true
}

// A call that would wait past its deadline fails immediately, and reports when to retry.
func ExampleLimitedError() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	limiter := c.NewRateLimiter("partner", ratelimit.FailClosed().After(time.Second), ratelimit.PerHour(1))
	if err := limiter.Wait(ctx, "ann", 1); err != nil {
		log.Print(err)
		return
	}

	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = limiter.Wait(short, "ann", 1)
	var limited *ratelimit.LimitedError
	fmt.Println(errors.Is(err, ratelimit.ErrLimited), errors.As(err, &limited) && limited.RetryAfter > 50*time.Minute)
	// Output: true true
}

// Reserve a permit for later. The caller does something else until then, or cancels the reservation.
func ExampleReservation() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	limiter := c.NewRateLimiter("render", ratelimit.FailClosed().After(time.Second), ratelimit.Limit{Rate: 6, Per: time.Hour, Burst: 1})
	for range 2 {
		r, err := limiter.Reserve(ctx, "ann", 1)
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Println(r.Delay().Round(time.Minute))
		if r.Delay() > time.Minute {
			fmt.Println(r.Cancel(ctx))
		}
	}
	// Output:
	// 0s
	// 10m0s
	// <nil>
}

// A limiter that Java services share. Its rate is stored in Redis.
func ExampleRedissonLimiter() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	window := c.NewRedissonRateLimiter("shared")
	created, err := window.Init(ctx, 2, time.Hour)
	fmt.Println(created, err)
	for range 3 {
		d, err := window.Take(ctx, 1)
		fmt.Println(d.OK, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// true <nil>
	// false <nil>
}

// Init fails if another process has set a different rate.
func ExampleRateError() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	window := c.NewRedissonRateLimiter("rates")
	if _, err := window.Init(ctx, 2, time.Hour); err != nil {
		log.Print(err)
		return
	}
	_, err = window.Init(ctx, 5, time.Hour)
	var other *ratelimit.RateError
	if errors.As(err, &other) {
		fmt.Println(errors.Is(err, ratelimit.ErrRateMismatch), other.Rate, other.Per)
	}
	// Output: true 2 1h0m0s
}
