package leaseholdprom_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/leaseholdprom"
	"github.com/leasehold-go/leasehold/internal/observetest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

func newMetrics(t *testing.T, opts ...leaseholdprom.Option) *leaseholdprom.Metrics {
	t.Helper()
	m, err := leaseholdprom.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestNew_badInput(t *testing.T) {
	for want, o := range map[string]leaseholdprom.Option{"option 1 of 1 is nil": nil, "WithNameLabel(nil)": leaseholdprom.WithNameLabel(nil)} {
		if _, err := leaseholdprom.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// gather returns the metrics of m by name and labels, as `name{label="value"}`. For a histogram,
// the value is the number of observations.
func gather(t *testing.T, m *leaseholdprom.Metrics) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			key := f.GetName() + "{" + strings.Join(labels, ",") + "}"
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

// The metrics agree with the events that another observer of the same client received on a real
// server.
func TestMetrics(t *testing.T) {
	t.Parallel()
	m := newMetrics(t)
	r := observetest.Play(t, client.WithObserver(m.Observer()))
	want := make(map[string]float64)
	for key, n := range observetest.Metrics(r) {
		want[key] = n
	}
	got := gather(t, m)
	maps.DeleteFunc(got, func(_ string, v float64) bool { return v == 0 })
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			t.Errorf("%s is %v, want %v", key, got[key], want[key])
		}
		delete(got, key)
	}
	for key, v := range got {
		t.Errorf("%s is %v, and no event says so", key, v)
	}
}

// Prometheus' own linter accepts the names, and no metric contains the name or the owner of a lock.
func TestMetrics_lint(t *testing.T) {
	t.Parallel()
	m := newMetrics(t)
	r := observetest.NewRecord()
	c, err := client.New(redistest.Start(t).Client(t), client.WithObserver(m.Observer()), client.WithObserver(r.Observer()))
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewLock("secret-name").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	problems, err := testutil.CollectAndLint(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for key := range gather(t, m) {
		if strings.Contains(key, "secret") || strings.Contains(key, c.ID()) {
			t.Errorf("told: %s", key)
		}
	}
}

// With a label for names there is one series for each result of the function. Bytes that are not
// UTF-8, which Prometheus rejects, are replaced.
func TestWithNameLabel(t *testing.T) {
	t.Parallel()
	m := newMetrics(t, leaseholdprom.WithNameLabel(func(name string) string {
		kind, _, _ := strings.Cut(name, ":")
		return kind
	}))
	c, err := client.New(redistest.Start(t).Client(t), client.WithObserver(m.Observer()))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"orders:1", "orders:2", "reports:1", "caf\xe9:1"} {
		h, err := c.NewLock(name).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	got := gather(t, m)
	for key, want := range map[string]float64{
		"leasehold_lock_hold_duration_seconds{leasehold_lock_kind=plain,leasehold_lock_name=orders,leasehold_lock_release_reason=unlocked}":    2,
		"leasehold_lock_hold_duration_seconds{leasehold_lock_kind=plain,leasehold_lock_name=reports,leasehold_lock_release_reason=unlocked}":   1,
		"leasehold_lock_hold_duration_seconds{leasehold_lock_kind=plain,leasehold_lock_name=caf\uFFFD,leasehold_lock_release_reason=unlocked}": 1,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}

// Losses, failures and abandoned holds are counted from zero. Otherwise Prometheus would miss the
// first of them.
func TestMetrics_countFromZero(t *testing.T) {
	t.Parallel()
	m := newMetrics(t)
	c, err := client.New(redistest.Start(t).Client(t), client.WithObserver(m.Observer()))
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewFairLock("a").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := gather(t, m)
	for _, key := range []string{
		"leasehold_lock_lost_total{leasehold_lock_kind=fair,leasehold_lock_release_reason=expired}",
		"leasehold_lock_abandoned_total{leasehold_lock_kind=fair}",
		"leasehold_lock_renewals_total{error_type=unavailable,leasehold_lock_kind=fair}",
		"leasehold_lock_acquire_duration_seconds{error_type=unavailable,leasehold_lock_kind=fair,leasehold_lock_outcome=unavailable}",
	} {
		if v, there := got[key]; !there || v != 0 {
			t.Errorf("%s is there: %v, %v", key, there, v)
		}
	}
	if v := got["leasehold_lock_held{leasehold_lock_kind=fair}"]; v != 1 {
		t.Errorf("%v are held", v)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// While a hold or a wait lasts, its age is exported, and 0 after it has ended. A leader has a different kind from other
// holders.
func TestMetrics_oldest(t *testing.T) {
	t.Parallel()
	m, r := newMetrics(t), observetest.NewRecord()
	c, err := client.New(redistest.Start(t).Client(t), client.WithObserver(r.Observer()), client.WithObserver(m.Observer()))
	if err != nil {
		t.Fatal(err)
	}
	age := func(what, kind string) float64 {
		return gather(t, m)["leasehold_lock_oldest_"+what+"_seconds{leasehold_lock_kind="+kind+"}"]
	}
	h, err := c.NewLock("a").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waits, give := context.WithCancel(t.Context())
	gave := make(chan error)
	go func() {
		_, err := c.NewLock("a").Lock(waits)
		gave <- err
	}()
	r.Await(t, "Waiting", "a")
	until := func(what, kind string, lasts bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); (age(what, kind) > 0) != lasts; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the oldest %s of the kind %s is %v old", what, kind, age(what, kind))
			}
		}
	}
	until("hold", "plain", true)
	until("wait", "plain", true)
	give()
	<-gave
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	until("hold", "plain", false)
	until("wait", "plain", false)

	err = c.NewElection("b").Run(t.Context(), "", func(context.Context) error {
		until("hold", "election", true)
		until("hold", "fair", false)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	until("hold", "election", false)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
