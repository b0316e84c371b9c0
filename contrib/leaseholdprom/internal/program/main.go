// Command program is the program of docs/guides/metrics.md.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/leaseholdprom"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	metrics, err := leaseholdprom.New()
	if err != nil {
		return err
	}
	prometheus.MustRegister(metrics)
	c, err := client.Open(ctx, os.Getenv("REDIS_URL"), client.WithObserver(metrics.Observer()))
	if err != nil {
		return err
	}
	defer c.Close(context.Background())
	listener, err := net.Listen("tcp", os.Getenv("METRICS_ADDR"))
	if err != nil {
		return err
	}
	http.Handle("GET /metrics", promhttp.Handler())
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)

	for ctx.Err() == nil {
		l := c.NewLock("orders:42", lock.WithWait(5*time.Second))
		err := lock.Do(ctx, l, func(ctx context.Context) error {
			select {
			case <-time.After(time.Second): // the work
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			log.Print(err) // also counted, by its outcome
		}
	}
	return nil
}
