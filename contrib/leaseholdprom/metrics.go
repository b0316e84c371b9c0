// Package leaseholdprom exports metrics of the locks of a leasehold client with Prometheus' client
// library, for applications that register their metrics with that library. Package leaseholdotel
// exports the same metrics with OpenTelemetry.
//
//	metrics, err := leaseholdprom.New()
//	if err != nil {
//		return err
//	}
//	prometheus.MustRegister(metrics)
//	c, err := client.Open(ctx, url, client.WithObserver(metrics.Observer()))
//
// docs/operate/telemetry.md in the repository lists the metrics with their units and labels, a
// Grafana dashboard and alert rules. The names of locks are in no label, because their number is
// not bounded (see [WithNameLabel]).
package leaseholdprom

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/prometheus/client_golang/prometheus"
)

// Labels of all metrics, as OpenTelemetry's exporter writes those of package leaseholdotel.
const (
	labelKind    = "leasehold_lock_kind"
	labelName    = "leasehold_lock_name"
	labelOutcome = "leasehold_lock_outcome"
	labelReason  = "leasehold_lock_release_reason"
	labelError   = "error_type"
)

// Buckets of the histograms, in seconds.
var (
	acquireBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60}
	holdBuckets    = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600}
	marginBuckets  = []float64{.01, .05, .1, .5, 1, 2.5, 5, 7.5, 10, 15, 20, 30, 60}
)

// Option configures a Metrics.
type Option func(*Metrics) error

// WithNameLabel adds the label leasehold_lock_name to each metric, with the result of f for the
// name of the lock. Each value that f returns requires 80 to 160 series for each type of lock while
// the process lives. f should therefore return few values, such as the part before the first colon.
// Bytes that are not UTF-8 become U+FFFD. f must not block.
func WithNameLabel(f func(name string) string) Option {
	return func(m *Metrics) error {
		if m.nameOf = f; f == nil {
			return errors.New("WithNameLabel(nil): omit the option")
		}
		return nil
	}
}

// Metrics collects the metrics of the locks of one client, or of several together. It is a
// [prometheus.Collector]. Its methods are safe for concurrent use.
type Metrics struct {
	nameOf func(string) string // set once; nil without a label for the name
	all    []prometheus.Collector

	acquires, holds, margins  *prometheus.HistogramVec
	held, draining, waiters   *prometheus.GaugeVec
	oldestHolds, oldestWaits  *prometheus.GaugeVec // set by Collect
	renewals, lost, abandoned *prometheus.CounterVec
	handedOff, kept           *prometheus.CounterVec
	known                     sync.Map // series by labels: looking up a series by its labels costs more than counting
}

// labels are common to all metrics.
type labels struct{ kind, name string }

// series has the labels, and the frequently counted metrics, of locks with the same labels.
type series struct {
	values                   []string
	acquired, held0, margins prometheus.Observer
	held, draining, waiters  prometheus.Gauge
	renewals                 prometheus.Counter
	handedOff, kept          prometheus.Counter
	oldestHold, oldestWait   lock.Oldest
}

var _ prometheus.Collector = (*Metrics)(nil)

// New returns metrics whose counters are zero. It fails if an option is nil or was given nil.
func New(opts ...Option) (*Metrics, error) {
	m := new(Metrics)
	for i, o := range opts {
		err := fmt.Errorf("option %d of %d is nil", i+1, len(opts))
		if o != nil {
			err = o(m)
		}
		if err != nil {
			return nil, fmt.Errorf("leaseholdprom: new metrics: %w", err)
		}
	}
	histogram := func(name, help string, buckets []float64, more ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, m.labels(more))
		m.all = append(m.all, v)
		return v
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, m.labels(nil))
		m.all = append(m.all, v)
		return v
	}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, m.labels(more))
		m.all = append(m.all, v)
		return v
	}
	m.acquires = histogram("leasehold_lock_acquire_duration_seconds", "Duration of Lock and TryLock calls, by outcome.", acquireBuckets, labelOutcome, labelError)
	m.holds = histogram("leasehold_lock_hold_duration_seconds", "Duration of holds, by the reason for their end.", holdBuckets, labelReason)
	m.held = gauge("leasehold_lock_held", "Number of locks currently held. Each reentry counts.")
	m.draining = gauge("leasehold_lock_draining", "Number of holds that are still held after their context was canceled.")
	m.waiters = gauge("leasehold_lock_waiters", "Number of Lock calls currently waiting for another owner.")
	m.oldestHolds = gauge("leasehold_lock_oldest_hold_seconds", "Age of the oldest hold that has not ended.")
	m.oldestWaits = gauge("leasehold_lock_oldest_wait_seconds", "Age of the oldest wait that has not ended.")
	m.renewals = counter("leasehold_lock_renewals_total", "Number of lease renewals. error_type is set for failed ones.", labelError)
	m.margins = histogram("leasehold_lock_renewal_margin_seconds", "Remaining lease time when a renewal was confirmed.", marginBuckets)
	m.lost = counter("leasehold_lock_lost_total", "Number of holds lost, by reason.", labelReason)
	m.abandoned = counter("leasehold_lock_abandoned_total", "Number of holds abandoned because they were not unlocked in time after their context was canceled.")
	m.handedOff = counter("leasehold_lock_handed_off_total", "Number of hand-offs inside a process, without a command to Redis.")
	m.kept = counter("leasehold_lock_kept_total", "Number of Unlock calls that kept the lock idle for the next caller of the process.")
	return m, nil
}

// labels returns the label names of a metric: the common ones and more.
func (m *Metrics) labels(more []string) []string {
	names := []string{labelKind}
	if m.nameOf != nil {
		names = append(names, labelName)
	}
	return append(names, more...)
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(to)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.known.Range(func(_, known any) bool {
		s := known.(*series)
		m.oldestHolds.WithLabelValues(s.values...).Set(s.oldestHold.Age().Seconds())
		m.oldestWaits.WithLabelValues(s.values...).Set(s.oldestWait.Age().Seconds())
		return true
	})
	for _, c := range m.all {
		c.Collect(to)
	}
}

// of returns the series of the lock in e.
func (m *Metrics) of(e lock.Event) *series {
	l := labels{kind: e.Kind}
	if m.nameOf != nil {
		l.name = strings.ToValidUTF8(m.nameOf(e.Name), "\uFFFD") // otherwise creating the series panics
	}
	if s, ok := m.known.Load(l); ok {
		return s.(*series)
	}
	s := &series{values: []string{l.kind}}
	if m.nameOf != nil {
		s.values = append(s.values, l.name)
	}
	s.acquired = m.acquires.WithLabelValues(s.with("acquired", "")...)
	s.held0 = m.holds.WithLabelValues(s.with("unlocked")...)
	s.margins = m.margins.WithLabelValues(s.values...)
	s.held, s.draining, s.waiters = m.held.WithLabelValues(s.values...), m.draining.WithLabelValues(s.values...), m.waiters.WithLabelValues(s.values...)
	s.renewals = m.renewals.WithLabelValues(s.with("")...)
	s.handedOff, s.kept = m.handedOff.WithLabelValues(s.values...), m.kept.WithLabelValues(s.values...)
	// Create the counters at zero. Prometheus does not count an increase from no series to one, so
	// the first loss would not trigger an alert.
	m.abandoned.WithLabelValues(s.values...)
	m.renewals.WithLabelValues(s.with("unavailable")...)
	m.acquires.WithLabelValues(s.with("unavailable", "unavailable")...)
	for _, reason := range reasons {
		m.lost.WithLabelValues(s.with(reason)...)
	}
	known, _ := m.known.LoadOrStore(l, s)
	return known.(*series)
}

// with returns the label values of a metric with additional labels.
func (s *series) with(more ...string) []string {
	return append(s.values[:len(s.values):len(s.values)], more...)
}

// Observer returns an observer for client.WithObserver. Any number of clients can share it.
func (m *Metrics) Observer() lock.Observer {
	ended := func(outcome string) func(context.Context, lock.Event) {
		return func(_ context.Context, e lock.Event) {
			s := m.of(e)
			m.acquires.WithLabelValues(s.with(outcome, errorType(outcome, e.Err))...).Observe(seconds(e.Took))
			s.endWait(e)
		}
	}
	return lock.Observer{
		Waiting: func(_ context.Context, e lock.Event) {
			s := m.of(e)
			s.waiters.Inc()
			s.oldestWait.Begin(e)
		},
		Acquired: func(_ context.Context, e lock.Event) {
			s := m.of(e)
			s.acquired.Observe(seconds(e.Took))
			s.held.Inc()
			s.oldestHold.Begin(e)
			s.endWait(e)
		},
		NotAcquired: ended("not_acquired"),
		TimedOut:    ended("timed_out"),
		Canceled:    ended("canceled"),
		Unavailable: ended("unavailable"),
		Failed:      ended("failed"),
		Renewed: func(_ context.Context, e lock.Event) {
			s := m.of(e)
			s.renewals.Inc()
			s.margins.Observe(seconds(e.Left))
		},
		RenewalFailed: func(_ context.Context, e lock.Event) {
			m.renewals.WithLabelValues(m.of(e).with(word(e.Err))...).Inc()
		},
		Draining: func(_ context.Context, e lock.Event) { m.of(e).draining.Inc() },
		Abandoned: func(_ context.Context, e lock.Event) {
			m.abandoned.WithLabelValues(m.of(e).values...).Inc()
		},
		HandedOff: func(_ context.Context, e lock.Event) { m.of(e).handedOff.Inc() },
		Kept:      func(_ context.Context, e lock.Event) { m.of(e).kept.Inc() },
		Released: func(_ context.Context, e lock.Event) {
			s := m.of(e)
			s.endHold(e)
			if e.Err == nil {
				s.held0.Observe(seconds(e.Held))
			} else {
				m.holds.WithLabelValues(s.with("unconfirmed")...).Observe(seconds(e.Held))
			}
		},
		Lost: func(_ context.Context, e lock.Event) {
			s, reason := m.of(e), reason(e.Err)
			s.endHold(e)
			m.holds.WithLabelValues(s.with(reason)...).Observe(seconds(e.Held))
			m.lost.WithLabelValues(s.with(reason)...).Inc()
		},
	}
}

// endHold counts the end of a hold.
func (s *series) endHold(e lock.Event) {
	s.held.Dec()
	s.oldestHold.End(e)
	if e.Draining > 0 {
		s.draining.Dec()
	}
}

// endWait counts the end of a wait, if the call waited.
func (s *series) endWait(e lock.Event) {
	if e.Waited > 0 {
		s.waiters.Dec()
		s.oldestWait.End(e)
	}
}

func seconds(d time.Duration) float64 { return max(d, 0).Seconds() }
