// Command limits is the program of docs/guides/ratelimit.md.
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

func main() {
	if err := run(os.Getenv("REDIS_URL"), os.Getenv("ADDR"), fetch); err != nil {
		log.Fatal(err)
	}
}

// run serves requests and calls fetch until SIGTERM.
func run(url, addr string, fetch func(ctx context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := client.Open(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(context.Background())
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(c), ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)
	if err := poll(ctx, c, fetch); !errors.Is(err, context.Canceled) {
		return err
	}
	end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return server.Shutdown(end)
}

// handler limits each address: log-ins to 5 per minute, searches to 10 per second and 1000 per hour, across all replicas.
func handler(c *client.Client) http.Handler {
	logins := c.NewRateLimiter("logins", ratelimit.FailClosed().After(time.Second), ratelimit.PerMinute(5))
	searches := c.NewRateLimiter("searches", ratelimit.FailLocal(3), ratelimit.PerSecond(10), ratelimit.PerHour(1000)) // 3 replicas
	failed := func(r *http.Request, err error) { slog.Error("rate limit", "path", r.URL.Path, "err", err) }
	mux := http.NewServeMux()
	mux.Handle("POST /login", ratelimit.Handler(logins, "logins", byAddress, http.HandlerFunc(login), failed))
	mux.Handle("GET /search", ratelimit.Handler(searches, "searches", byAddress, http.HandlerFunc(search), failed))
	return mux
}

// byAddress makes each request use one permit of the address that it comes from.
func byAddress(r *http.Request) (key string, n int64) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "unknown", 1
	}
	addr := from.Addr().Unmap()
	if addr.Is4() {
		return addr.String(), 1
	}
	network, _ := addr.Prefix(64) // a client with IPv6 has a whole network
	return network.String(), 1
}

// poll calls fetch as often as a partner allows: 100 times per hour, and 10 times at once, across all workers.
func poll(ctx context.Context, c *client.Client, fetch func(ctx context.Context) error) error {
	limit := ratelimit.Limit{Rate: 100, Per: time.Hour, Burst: 10}
	partner := c.NewRateLimiter("partner", ratelimit.FailClosed().After(time.Second), limit)
	for ctx.Err() == nil {
		err := partner.Wait(ctx, "prices", 1)
		switch {
		case err == nil:
			if err := fetch(ctx); err != nil {
				slog.Error("fetching prices", "err", err)
			}
		case errors.Is(err, lock.ErrUnavailable): // a connection broke, and the permit may be used
			slog.Error("waiting for the partner's limit", "err", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		default:
			return err
		}
	}
	return ctx.Err()
}

// fetch, login and search are your work.
func fetch(ctx context.Context) error {
	log.Print("fetching prices")
	return ctx.Err()
}

func login(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) }

func search(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) }
