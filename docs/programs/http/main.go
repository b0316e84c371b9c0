// Command http is a program of docs/guides/http.md and docs/guides/shutdown.md.
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/httplock"
	"github.com/leasehold-go/leasehold/lock"
)

func main() {
	if err := run(os.Getenv("REDIS_URL"), os.Getenv("ADDR"), charge); err != nil {
		log.Fatal(err)
	}
}

// charge is your work.
func charge(ctx context.Context, order string) error {
	log.Print("charging order ", order)
	return ctx.Err()
}

// run serves payments until SIGTERM.
func run(url, addr string, charge func(ctx context.Context, order string) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := client.Open(ctx, url) // one client for the whole process
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return errors.Join(err, c.Close(ctx))
	}
	server := &http.Server{Handler: payments(c, charge), ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)
	log.Print("serving ", listener.Addr())
	<-ctx.Done()

	// Without this, orders in progress stay locked until their leases expire.
	end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(
		server.Shutdown(end), // waits for requests, which release their locks
		c.Close(end),         // releases the rest
	)
}

// payments serves payments of orders: one at a time per order, across all replicas.
func payments(c *client.Client, charge func(ctx context.Context, order string) error) http.Handler {
	pay := func(w http.ResponseWriter, r *http.Request) {
		// The context is canceled when the client goes away, and when the lock is lost.
		if err := charge(r.Context(), r.PathValue("id")); err != nil {
			if r.Context().Err() != nil {
				return // the client is gone, or the lock is lost: httplock responds and reports
			}
			slog.Error("charging an order", "err", err)
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/payment", httplock.Handler(
		func(r *http.Request) lock.Locker { return c.NewLock("orders:" + r.PathValue("id")) },
		http.HandlerFunc(pay),
		func(r *http.Request, err error) { slog.Error("locking an order", "path", r.URL.Path, "err", err) },
	))
	return mux
}
