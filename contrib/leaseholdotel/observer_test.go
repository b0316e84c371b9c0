package leaseholdotel_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/leaseholdotel"
	"github.com/leasehold-go/leasehold/contrib/leaseholdprom"
	"github.com/leasehold-go/leasehold/internal/observetest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// scene is an observer with everything it exports.
type scene struct {
	observer lock.Observer
	metrics  *sdkmetric.ManualReader
	spans    *tracetest.SpanRecorder
	tracer   trace.Tracer
	registry *prometheus.Registry // the same metrics, as OpenTelemetry's exporter passes them to Prometheus
}

func newScene(t *testing.T, opts ...leaseholdotel.Option) *scene {
	t.Helper()
	s := &scene{metrics: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder(), registry: prometheus.NewPedanticRegistry()}
	prom, err := exporter.New(exporter.WithRegisterer(s.registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		t.Fatal(err)
	}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.metrics), sdkmetric.WithReader(prom))
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
	s.tracer = tracers.Tracer("test")
	t.Cleanup(func() {
		if err := meters.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := tracers.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if s.observer, err = leaseholdotel.NewObserver(append(opts, leaseholdotel.WithMeterProvider(meters), leaseholdotel.WithTracerProvider(tracers))...); err != nil {
		t.Fatal(err)
	}
	return s
}

// families returns the contents of a Prometheus registry, by name.
func families(t *testing.T, r *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range all {
		byName[f.GetName()] = f
	}
	return byName
}

// series returns the values of families by name and labels. For a histogram, the value is the number of
// observations.
func series(byName map[string]*dto.MetricFamily) map[string]float64 {
	values := make(map[string]float64)
	for name, f := range byName {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			slices.Sort(labels)
			key := name + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				values[key] = float64(m.Histogram.GetSampleCount())
			case dto.MetricType_GAUGE:
				values[key] = m.Gauge.GetValue()
			default:
				values[key] = m.Counter.GetValue()
			}
		}
	}
	return values
}

// bounds returns the buckets of a histogram.
func bounds(f *dto.MetricFamily) (bounds []float64) {
	if f.GetType() == dto.MetricType_HISTOGRAM {
		for _, b := range f.Metric[0].Histogram.Bucket {
			if b.GetUpperBound() < 1e9 {
				bounds = append(bounds, b.GetUpperBound())
			}
		}
	}
	return bounds
}

// The metrics agree with what another observer received on a real server. Those of leaseholdprom
// have the same names, labels, help texts, types and buckets.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	peer, err := leaseholdprom.New()
	if err != nil {
		t.Fatal(err)
	}
	peers := prometheus.NewPedanticRegistry()
	peers.MustRegister(peer)
	r := observetest.Play(t, client.WithObserver(s.observer), client.WithObserver(peer.Observer()))

	ours, theirs := families(t, s.registry), families(t, peers)
	got, same := series(ours), series(theirs)
	for _, values := range []map[string]float64{got, same} {
		maps.DeleteFunc(values, func(_ string, v float64) bool { return v == 0 })
	}
	want := observetest.Metrics(r)
	if !maps.Equal(got, want) {
		t.Errorf("the metrics are\n%v\nwant\n%v", got, want)
	}
	if !maps.Equal(got, same) {
		t.Errorf("the metrics are\n%v\nand those of leaseholdprom\n%v", got, same)
	}
	for name, f := range theirs {
		o := ours[name]
		if o == nil || o.GetType() != f.GetType() || o.GetHelp() != f.GetHelp() || !slices.Equal(bounds(o), bounds(f)) {
			t.Errorf("%s is\n%v\nand in leaseholdprom\n%v", name, o, f)
		}
		delete(ours, name)
	}
	for name := range ours {
		t.Errorf("leaseholdprom has no %s", name)
	}
}

// The names and the units, as OpenTelemetry reports them.
func TestMetrics_units(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	observetest.Play(t, client.WithObserver(s.observer))
	var all metricdata.ResourceMetrics
	if err := s.metrics.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			got[m.Name] = m.Unit
		}
	}
	want := map[string]string{
		"leasehold.lock.acquire.duration": "s", "leasehold.lock.hold.duration": "s", "leasehold.lock.renewal.margin": "s",
		"leasehold.lock.held": "{lock}", "leasehold.lock.draining": "{lock}", "leasehold.lock.waiters": "{waiter}", "leasehold.lock.oldest_hold": "s", "leasehold.lock.oldest_wait": "s", "leasehold.lock.renewals": "{renewal}",
		"leasehold.lock.lost": "{lock}", "leasehold.lock.abandoned": "{lock}", "leasehold.lock.handed_off": "{lock}", "leasehold.lock.kept": "{lock}",
	}
	if !maps.Equal(got, want) {
		t.Errorf("the metrics have the units\n%v\nwant\n%v", got, want)
	}
}

// lockOnce locks and unlocks a lock that another client held in the meantime, and returns the error
// of Lock.
func lockOnce(t *testing.T, ctx context.Context, s *scene, busy bool, opts ...lock.Option) error {
	t.Helper()
	server := redistest.Start(t)
	r := observetest.NewRecord()
	c, err := client.New(server.Client(t), client.WithObserver(s.observer), client.WithObserver(r.Observer()))
	if err != nil {
		t.Fatal(err)
	}
	rival, err := client.New(server.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	if busy {
		h, err := rival.NewLock("secret-name").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Await(t, "Waiting", "secret-name")
			if len(opts) == 0 {
				_ = h.Unlock(t.Context()) // the Lock below detects a failure
			}
		}()
		defer func() { <-done }()
	}
	h, err := c.NewLock("secret-name", opts...).Lock(ctx)
	if err == nil {
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []*client.Client{c, rival} {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	return err
}

// A call is a span under the caller's span. It lasts as long as the call, includes its wait, and
// does not contain the name of the lock.
func TestSpan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		busy   bool
		opts   []lock.Option
		events []string
		attrs  map[attribute.Key]string
		status codes.Code
	}{
		"free":         {attrs: map[attribute.Key]string{"leasehold.lock.outcome": "acquired"}},
		"not_acquired": {busy: true, events: []string{"queued"}, attrs: map[attribute.Key]string{"leasehold.lock.outcome": "acquired"}},
		"timed_out":    {busy: true, opts: []lock.Option{lock.WithWait(5 * time.Second)}, events: []string{"queued"}, attrs: map[attribute.Key]string{"leasehold.lock.outcome": "timed_out"}},
		"failed":       {opts: []lock.Option{lock.WithWait(1)}, attrs: map[attribute.Key]string{"leasehold.lock.outcome": "failed", "error.type": "_OTHER"}, status: codes.Error},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			ctx, parent := s.tracer.Start(t.Context(), "caller")
			began := time.Now()
			err := lockOnce(t, ctx, s, c.busy, c.opts...)
			took := time.Since(began)
			parent.End()
			var span sdktrace.ReadOnlySpan
			for _, ended := range s.spans.Ended() {
				if ended.Name() == "leasehold.lock.acquire" {
					span = ended
				}
			}
			if span == nil {
				t.Fatalf("no span, and Lock returned %v", err)
			}
			if span.Parent().SpanID() != parent.SpanContext().SpanID() || span.SpanKind() != trace.SpanKindInternal {
				t.Errorf("parent %v, kind %v", span.Parent(), span.SpanKind())
			}
			if d := span.EndTime().Sub(span.StartTime()); d > took || d < 0 || span.StartTime().Before(began) {
				t.Errorf("it lasts %v, and the call %v", d, took)
			}
			if span.Status().Code != c.status {
				t.Errorf("status %+v", span.Status())
			}
			var events []string
			for _, e := range span.Events() {
				events = append(events, e.Name)
				if e.Time.Before(span.StartTime()) || e.Time.After(span.EndTime()) {
					t.Errorf("%s at %v, outside of the span", e.Name, e.Time)
				}
			}
			if !slices.Equal(events, c.events) {
				t.Errorf("events %q, want %q", events, c.events)
			}
			c.attrs["leasehold.lock.kind"] = "plain"
			got := make(map[attribute.Key]string)
			for _, a := range span.Attributes() {
				got[a.Key] = a.Value.AsString()
			}
			if !maps.Equal(got, c.attrs) {
				t.Errorf("attributes %v, want %v", got, c.attrs)
			}
			if text := fmt.Sprint(span.Attributes(), span.Events(), span.Status()); strings.Contains(text, "secret") {
				t.Errorf("the span has the name of the lock: %s", text)
			}
		})
	}
}

// The caller's span gets an event for a loss.
func TestSpan_lost(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	r := observetest.NewRecord()
	c, err := client.New(redistest.Start(t).Client(t), client.WithObserver(s.observer), client.WithObserver(r.Observer()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, parent := s.tracer.Start(t.Context(), "caller")
	h, err := c.NewLock("orders", lock.WithFixedLease(5*time.Second)).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	<-h.Context().Done()
	r.Await(t, "Lost", "orders")
	parent.End()
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, span := range s.spans.Ended() {
		if span.Name() != "caller" {
			continue
		}
		if events := span.Events(); len(events) != 1 || events[0].Name != "leasehold.lock.lost" || !slices.Contains(events[0].Attributes, attribute.String("leasehold.lock.release.reason", "expired")) {
			t.Errorf("%+v", events)
		}
	}
}

// With the option, metrics and spans contain the result of the function for the name. Bytes that are not
// UTF-8 are replaced, because exporters would reject all metrics.
func TestWithNameAttribute(t *testing.T) {
	t.Parallel()
	s := newScene(t, leaseholdotel.WithNameAttribute(func(name string) string { return name[:3] + "\xe9" }))
	if err := lockOnce(t, t.Context(), s, false); err != nil {
		t.Fatal(err)
	}
	if key := "leasehold_lock_held{leasehold_lock_kind=plain,leasehold_lock_name=sec\uFFFD}"; !slices.Contains(slices.Collect(maps.Keys(series(families(t, s.registry)))), key) {
		t.Errorf("no %s in %v", key, series(families(t, s.registry)))
	}
	for _, span := range s.spans.Ended() {
		if !slices.Contains(span.Attributes(), attribute.String("leasehold.lock.name", "sec\uFFFD")) {
			t.Errorf("%v", span.Attributes())
		}
	}
}

// broken is a provider whose meters reject counters.
type broken struct{ noop.MeterProvider }

func (broken) Meter(string, ...metric.MeterOption) metric.Meter { return refusing{} }

type refusing struct{ noop.Meter }

func (refusing) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, fmt.Errorf("no counter %s today", name)
}

func TestNewObserver_badInput(t *testing.T) {
	for want, o := range map[string]leaseholdotel.Option{
		"option 1 of 1 is nil":    nil,
		"WithMeterProvider(nil)":  leaseholdotel.WithMeterProvider(nil),
		"WithTracerProvider(nil)": leaseholdotel.WithTracerProvider(nil),
		"WithNameAttribute(nil)":  leaseholdotel.WithNameAttribute(nil),
	} {
		if _, err := leaseholdotel.NewObserver(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := leaseholdotel.NewObserver(leaseholdotel.WithMeterProvider(broken{}), leaseholdotel.WithTracerProvider(tracenoop.NewTracerProvider())); err == nil || !strings.Contains(err.Error(), "leasehold.lock.lost today") {
		t.Errorf("a meter that refuses: %v", err)
	}
}
