// Command leader is a program of docs/guides/leader.md and docs/guides/shutdown.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
)

func main() {
	if err := run(os.Getenv("REDIS_URL"), os.Getenv("ADDR"), bill); err != nil {
		log.Fatal(err)
	}
}

// bill is your task.
func bill(ctx context.Context) error {
	log.Print("billing")
	return ctx.Err()
}

// run calls task once per minute while this process leads. Every process reports who leads.
func run(url, addr string, task func(ctx context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := client.Open(ctx, url, client.WithName("billing"))
	if err != nil {
		return err
	}
	defer c.Close(context.Background())
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	self := "http://" + listener.Addr().String()
	election := c.NewElection("billing", lock.WithMaxHold(24*time.Hour))
	server := &http.Server{Handler: discovery(election), ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)
	defer server.Close()

	log.Print("candidate ", self)
	err = election.Run(ctx, self, func(ctx context.Context) error {
		held := lock.HoldFromContext(ctx).Context() // canceled by a loss, but not by SIGTERM
		for {
			if err := task(held); err != nil {
				return err // the task failed, or the lock is lost
			}
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done(): // SIGTERM, or the lock is lost
				return nil
			}
		}
	})
	if errors.Is(err, context.Canceled) {
		return nil // SIGTERM while another process leads
	}
	return err
}

// discovery responds with the address of the leader.
func discovery(election *leader.Election) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader", func(w http.ResponseWriter, r *http.Request) {
		l, leads, err := election.Leader(r.Context())
		switch {
		case err != nil:
			http.Error(w, "Redis unavailable", http.StatusServiceUnavailable)
		case !leads:
			http.Error(w, "no leader", http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, l.Value)
		}
	})
	return mux
}
