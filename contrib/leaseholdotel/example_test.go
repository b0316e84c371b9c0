package leaseholdotel_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/leaseholdotel"
	"github.com/leasehold-go/leasehold/lock"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// Create spans and metrics from the events of the locks of a client.
func Example() {
	ctx := context.Background()

	// The providers of the application. Without the options, the observer uses the global ones.
	spans, metrics := tracetest.NewSpanRecorder(), metric.NewManualReader()
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	observer, err := leaseholdotel.NewObserver(
		leaseholdotel.WithTracerProvider(tracers),
		leaseholdotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metrics))),
	)
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.Open(ctx, "redis://"+addr, client.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	ctx, request := tracers.Tracer("shop").Start(ctx, "POST /orders")
	err = lock.Do(ctx, c.NewLock("orders:42"), func(context.Context) error { return nil })
	if err != nil {
		log.Print(err)
		return
	}
	request.End()

	for _, span := range spans.Ended() {
		fmt.Println("span", span.Name(), "under the request:", span.Parent().Equal(request.SpanContext()))
	}
	var all metricdata.ResourceMetrics
	if err := metrics.Collect(ctx, &all); err != nil {
		log.Print(err)
		return
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if held, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "leasehold.lock.hold.duration" {
			kind, _ := held.DataPoints[0].Attributes.Value(attribute.Key("leasehold.lock.kind"))
			fmt.Println("metric", m.Name, "of", held.DataPoints[0].Count, kind.AsString(), "lock")
		}
	}
	// Output:
	// span leasehold.lock.acquire under the request: true
	// span POST /orders under the request: false
	// metric leasehold.lock.hold.duration of 1 plain lock
}

// Use a part of the name with few values as an attribute, here the part before the first colon.
func ExampleWithNameAttribute() {
	ctx := context.Background()
	spans := tracetest.NewSpanRecorder()
	observer, err := leaseholdotel.NewObserver(
		leaseholdotel.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans))),
		leaseholdotel.WithMeterProvider(metric.NewMeterProvider()),
		leaseholdotel.WithNameAttribute(func(name string) string {
			kind, _, _ := strings.Cut(name, ":")
			return kind
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.Open(ctx, "redis://"+addr, client.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	fmt.Println(lock.Do(ctx, c.NewLock("orders:42"), func(context.Context) error { return nil }))
	// Output: <nil>
}
