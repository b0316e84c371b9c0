package leaseholdprom_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/leaseholdprom"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Create metrics from the events of the locks of a client, and serve them to Prometheus.
func Example() {
	ctx := context.Background()

	metrics, err := leaseholdprom.New()
	if err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(metrics)
	c, err := client.Open(ctx, "redis://"+addr, client.WithObserver(metrics.Observer()))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	err = lock.Do(ctx, c.NewLock("orders:42"), func(context.Context) error { return nil })
	if err != nil {
		log.Print(err)
		return
	}

	// Prometheus reads this page.
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "leasehold_lock_hold_duration_seconds_count") || strings.HasPrefix(line, "leasehold_lock_held") {
			fmt.Print(line)
		}
	}
	// Output:
	// leasehold_lock_held{leasehold_lock_kind="plain"} 0
	// leasehold_lock_hold_duration_seconds_count{leasehold_lock_kind="plain",leasehold_lock_release_reason="unlocked"} 1
}

// Use a part of the name with few values as a label, here the part before the first colon.
func ExampleWithNameLabel() {
	ctx := context.Background()
	metrics, err := leaseholdprom.New(leaseholdprom.WithNameLabel(func(name string) string {
		kind, _, _ := strings.Cut(name, ":")
		return kind
	}))
	if err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	c, err := client.Open(ctx, "redis://"+addr, client.WithObserver(metrics.Observer()))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	for _, name := range []string{"orders:42", "orders:43"} {
		if err := lock.Do(ctx, c.NewLock(name), func(context.Context) error { return nil }); err != nil {
			log.Print(err)
			return
		}
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "leasehold_lock_hold_duration_seconds_count") {
			fmt.Print(line)
		}
	}
	// Output:
	// leasehold_lock_hold_duration_seconds_count{leasehold_lock_kind="plain",leasehold_lock_name="orders",leasehold_lock_release_reason="unlocked"} 2
}
