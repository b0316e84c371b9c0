// Package leaseholdotel exports metrics and traces of the locks of a leasehold client with
// OpenTelemetry.
//
//	observer, err := leaseholdotel.NewObserver()
//	if err != nil {
//		return err
//	}
//	c, err := client.Open(ctx, url, client.WithObserver(observer))
//
// docs/operate/telemetry.md in the repository lists the metrics with their units and attributes, a Grafana
// dashboard and alert rules. Package leaseholdprom exports the same metrics with Prometheus' client
// library.
//
// Each call of Lock or TryLock is a span, leasehold.lock.acquire, whose parent is the span in the
// context of the call. It has the event "queued" when the call begins to wait. No span lasts as
// long as a lock is held. The span of the caller, if it has not ended, gets the events
// leasehold.lock.renewal_failed, leasehold.lock.still_running, leasehold.lock.abandoned and
// leasehold.lock.lost.
//
// Redis commands are not traced. Wrap the rueidis client for that, for example with rueidisotel.
// The names of locks are in no attribute, because their number is not bounded (see
// [WithNameAttribute]). Owners and fencing tokens never are.
package leaseholdotel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation scope.
const scope = "github.com/leasehold-go/leasehold/contrib/leaseholdotel"

// Attributes.
const (
	kindKey    = attribute.Key("leasehold.lock.kind")
	nameKey    = attribute.Key("leasehold.lock.name")
	outcomeKey = attribute.Key("leasehold.lock.outcome")
	reasonKey  = attribute.Key("leasehold.lock.release.reason")
	errorKey   = attribute.Key("error.type")
)

// Buckets of the histograms, in seconds.
var (
	acquireBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60}
	holdBuckets    = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600}
	marginBuckets  = []float64{.01, .05, .1, .5, 1, 2.5, 5, 7.5, 10, 15, 20, 30, 60}
)

// Option configures an observer.
type Option func(*config) error

type config struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	nameOf  func(string) string
}

// WithMeterProvider sets the meter provider. The default is the global one. The provider of package
// go.opentelemetry.io/otel/metric/noop turns metrics off.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) error {
		c.meters = p
		return given("WithMeterProvider", p != nil)
	}
}

// WithTracerProvider sets the tracer provider. The default is the global one. The provider of
// package go.opentelemetry.io/otel/trace/noop turns traces off.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) error {
		c.tracers = p
		return given("WithTracerProvider", p != nil)
	}
}

// WithNameAttribute adds the attribute leasehold.lock.name to metrics and spans, with the result of
// f for the name of the lock. Each value that f returns is kept while the process lives, with 60 to
// 150 series for each type of lock. f should therefore return few values, such as the part before
// the first colon. Bytes that are not UTF-8 become U+FFFD. f must not block.
func WithNameAttribute(f func(name string) string) Option {
	return func(c *config) error {
		c.nameOf = f
		return given("WithNameAttribute", f != nil)
	}
}

// given returns an error if an option was given nil.
func given(option string, something bool) error {
	if something {
		return nil
	}
	return fmt.Errorf("%s(nil): omit the option", option)
}

// observer has the instruments.
type observer struct {
	config
	tracer trace.Tracer

	acquires, holds, margins                   metric.Float64Histogram
	held, draining, waiters                    metric.Int64UpDownCounter
	renewals, lost, abandoned, handedOff, kept metric.Int64Counter

	known sync.Map // sets by labels: creating attributes costs more than counting
}

// labels determine all attributes of a lock.
type labels struct{ kind, name string }

// sets has the attributes of locks with the same labels.
type sets struct {
	own                []attribute.KeyValue
	plain              metric.MeasurementOption // own
	acquired, unlocked metric.MeasurementOption // with the most frequent outcome and release reason

	oldestHold, oldestWait lock.Oldest
}

// NewObserver returns an observer for client.WithObserver of any number of clients. It fails if the
// meter provider rejects an instrument, or if an option is nil or was given nil.
//
// Call NewObserver once for each meter provider, and share the observer. OpenTelemetry ignores the
// callbacks of a second observer, so its oldest hold and oldest wait are not exported.
func NewObserver(opts ...Option) (lock.Observer, error) {
	o := &observer{}
	for i, opt := range opts {
		err := fmt.Errorf("option %d of %d is nil", i+1, len(opts))
		if opt != nil {
			err = opt(&o.config)
		}
		if err != nil {
			return lock.Observer{}, fmt.Errorf("leaseholdotel: new observer: %w", err)
		}
	}
	if o.meters == nil {
		o.meters = otel.GetMeterProvider()
	}
	if o.tracers == nil {
		o.tracers = otel.GetTracerProvider()
	}
	o.tracer = o.tracers.Tracer(scope)
	if err := o.instruments(o.meters.Meter(scope)); err != nil {
		return lock.Observer{}, fmt.Errorf("leaseholdotel: new observer: %w", err)
	}
	return lock.Observer{
		Waiting:       o.waiting,
		Acquired:      o.granted,
		NotAcquired:   o.ended("not_acquired"),
		TimedOut:      o.ended("timed_out"),
		Canceled:      o.ended("canceled"),
		Unavailable:   o.ended("unavailable"),
		Failed:        o.ended("failed"),
		Renewed:       o.renewed,
		RenewalFailed: o.renewalFailed,
		Draining:      o.drains,
		StillRunning:  o.stillRunning,
		Abandoned:     o.wasAbandoned,
		HandedOff:     o.wasHandedOff,
		Kept:          o.wasKept,
		Released:      o.released,
		Lost:          o.wasLost,
	}, nil
}

// instruments creates the instruments.
func (o *observer) instruments(m metric.Meter) error {
	var errs []error
	histogram := func(name, help string, buckets []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(help), metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	upDown := func(name, unit, help string) metric.Int64UpDownCounter {
		c, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
		errs = append(errs, err)
		return c
	}
	counter := func(name, unit, help string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(help))
		errs = append(errs, err)
		return c
	}
	oldest := func(name, help string, of func(*sets) *lock.Oldest) {
		_, err := m.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(help), metric.WithFloat64Callback(func(_ context.Context, to metric.Float64Observer) error {
			o.known.Range(func(_, known any) bool {
				s := known.(*sets)
				to.Observe(of(s).Age().Seconds(), s.plain)
				return true
			})
			return nil
		}))
		errs = append(errs, err)
	}
	o.acquires = histogram("leasehold.lock.acquire.duration", "Duration of Lock and TryLock calls, by outcome.", acquireBuckets)
	o.holds = histogram("leasehold.lock.hold.duration", "Duration of holds, by the reason for their end.", holdBuckets)
	o.held = upDown("leasehold.lock.held", "{lock}", "Number of locks currently held. Each reentry counts.")
	o.draining = upDown("leasehold.lock.draining", "{lock}", "Number of holds that are still held after their context was canceled.")
	o.waiters = upDown("leasehold.lock.waiters", "{waiter}", "Number of Lock calls currently waiting for another owner.")
	oldest("leasehold.lock.oldest_hold", "Age of the oldest hold that has not ended.", func(s *sets) *lock.Oldest { return &s.oldestHold })
	oldest("leasehold.lock.oldest_wait", "Age of the oldest wait that has not ended.", func(s *sets) *lock.Oldest { return &s.oldestWait })
	o.renewals = counter("leasehold.lock.renewals", "{renewal}", "Number of lease renewals. error_type is set for failed ones.")
	o.margins = histogram("leasehold.lock.renewal.margin", "Remaining lease time when a renewal was confirmed.", marginBuckets)
	o.lost = counter("leasehold.lock.lost", "{lock}", "Number of holds lost, by reason.")
	o.abandoned = counter("leasehold.lock.abandoned", "{lock}", "Number of holds abandoned because they were not unlocked in time after their context was canceled.")
	o.handedOff = counter("leasehold.lock.handed_off", "{lock}", "Number of hand-offs inside a process, without a command to Redis.")
	o.kept = counter("leasehold.lock.kept", "{lock}", "Number of Unlock calls that kept the lock idle for the next caller of the process.")
	return errors.Join(errs...)
}

// of returns the attributes of the lock in e.
func (o *observer) of(ctx context.Context, e lock.Event) *sets {
	l := labels{kind: e.Kind}
	if o.nameOf != nil {
		l.name = strings.ToValidUTF8(o.nameOf(e.Name), "\uFFFD") // otherwise exporters reject all metrics
	}
	if s, ok := o.known.Load(l); ok {
		return s.(*sets)
	}
	s := &sets{own: []attribute.KeyValue{kindKey.String(l.kind)}}
	if o.nameOf != nil {
		s.own = append(s.own, nameKey.String(l.name))
	}
	s.plain = s.with()
	s.acquired, s.unlocked = s.with(outcomeKey.String("acquired")), s.with(reasonKey.String("unlocked"))
	known, others := o.known.LoadOrStore(l, s)
	if others {
		return known.(*sets)
	}
	// Create the counters at zero. Prometheus does not count an increase from no series to one, so
	// the first loss would not trigger an alert.
	o.abandoned.Add(ctx, 0, s.plain)
	o.handedOff.Add(ctx, 0, s.plain)
	o.kept.Add(ctx, 0, s.plain)
	o.waiters.Add(ctx, 0, s.plain)
	o.draining.Add(ctx, 0, s.plain)
	o.renewals.Add(ctx, 0, s.plain)
	o.renewals.Add(ctx, 0, s.with(errorKey.String("unavailable")))
	for _, reason := range reasons {
		o.lost.Add(ctx, 0, s.with(reasonKey.String(reason)))
	}
	return s
}

// with returns the attributes of a measurement with additional attributes.
func (s *sets) with(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(s.own[:len(s.own):len(s.own)], more...)...))
}

func (o *observer) waiting(ctx context.Context, e lock.Event) {
	s := o.of(ctx, e)
	o.waiters.Add(ctx, 1, s.plain)
	s.oldestWait.Begin(e)
}

func (o *observer) granted(ctx context.Context, e lock.Event) {
	s := o.of(ctx, e)
	o.acquires.Record(ctx, seconds(e.Took), s.acquired)
	o.held.Add(ctx, 1, s.plain)
	s.oldestHold.Begin(e)
	o.endWait(ctx, e, s)
	o.span(ctx, e, s, "acquired", "")
}

// ended returns the observer function for calls that end with outcome and without a hold.
func (o *observer) ended(outcome string) func(context.Context, lock.Event) {
	return func(ctx context.Context, e lock.Event) {
		s, errorType := o.of(ctx, e), errorType(outcome, e.Err)
		more := []attribute.KeyValue{outcomeKey.String(outcome)}
		if errorType != "" {
			more = append(more, errorKey.String(errorType))
		}
		o.acquires.Record(ctx, seconds(e.Took), s.with(more...))
		o.endWait(ctx, e, s)
		o.span(ctx, e, s, outcome, errorType)
	}
}

// endWait counts the end of a wait, if the call waited.
func (o *observer) endWait(ctx context.Context, e lock.Event, s *sets) {
	if e.Waited > 0 {
		o.waiters.Add(ctx, -1, s.plain)
		s.oldestWait.End(e)
	}
}

// endHold counts the end of a hold.
func (o *observer) endHold(ctx context.Context, e lock.Event, s *sets) {
	o.held.Add(ctx, -1, s.plain)
	s.oldestHold.End(e)
	if e.Draining > 0 {
		o.draining.Add(ctx, -1, s.plain)
	}
}

// span records the span of a call that has just ended. errorType is empty if its outcome is not an error.
func (o *observer) span(ctx context.Context, e lock.Event, s *sets, outcome, errorType string) {
	now := time.Now()
	_, span := o.tracer.Start(ctx, "leasehold.lock.acquire", trace.WithTimestamp(now.Add(-e.Took)), trace.WithAttributes(s.own...))
	if span.IsRecording() {
		if e.Waited > 0 {
			span.AddEvent("queued", trace.WithTimestamp(now.Add(-e.Waited)))
		}
		span.SetAttributes(outcomeKey.String(outcome))
		if errorType != "" {
			span.SetAttributes(errorKey.String(errorType))
			span.SetStatus(codes.Error, errorType) // the error itself contains the name of the lock
		}
	}
	span.End(trace.WithTimestamp(now))
}

// note adds an event to the span of the caller, if that span has not ended.
func note(ctx context.Context, name string, s *sets, more ...attribute.KeyValue) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent(name, trace.WithAttributes(s.own...), trace.WithAttributes(more...))
	}
}

func (o *observer) renewed(ctx context.Context, e lock.Event) {
	s := o.of(ctx, e)
	o.renewals.Add(ctx, 1, s.plain)
	o.margins.Record(ctx, seconds(e.Left), s.plain)
}

func (o *observer) renewalFailed(ctx context.Context, e lock.Event) {
	s, errorType := o.of(ctx, e), errorKey.String(word(e.Err))
	o.renewals.Add(ctx, 1, s.with(errorType))
	note(ctx, "leasehold.lock.renewal_failed", s, errorType)
}

func (o *observer) drains(ctx context.Context, e lock.Event) {
	o.draining.Add(ctx, 1, o.of(ctx, e).plain)
}

func (o *observer) stillRunning(ctx context.Context, e lock.Event) {
	note(ctx, "leasehold.lock.still_running", o.of(ctx, e))
}

func (o *observer) wasAbandoned(ctx context.Context, e lock.Event) {
	s := o.of(ctx, e)
	o.abandoned.Add(ctx, 1, s.plain)
	note(ctx, "leasehold.lock.abandoned", s)
}

func (o *observer) wasHandedOff(ctx context.Context, e lock.Event) {
	o.handedOff.Add(ctx, 1, o.of(ctx, e).plain)
}

func (o *observer) wasKept(ctx context.Context, e lock.Event) {
	o.kept.Add(ctx, 1, o.of(ctx, e).plain)
}

func (o *observer) released(ctx context.Context, e lock.Event) {
	s := o.of(ctx, e)
	o.endHold(ctx, e, s)
	reason := s.unlocked
	if e.Err != nil {
		reason = s.with(reasonKey.String("unconfirmed"))
	}
	o.holds.Record(ctx, seconds(e.Held), reason)
}

func (o *observer) wasLost(ctx context.Context, e lock.Event) {
	s, why := o.of(ctx, e), reasonKey.String(reason(e.Err))
	reason := s.with(why)
	o.endHold(ctx, e, s)
	o.holds.Record(ctx, seconds(e.Held), reason)
	o.lost.Add(ctx, 1, reason)
	note(ctx, "leasehold.lock.lost", s, why)
}

func seconds(d time.Duration) float64 { return max(d, 0).Seconds() }
