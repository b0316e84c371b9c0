package observetest

import (
	"errors"
	"strings"

	"github.com/leasehold-go/leasehold/lock"
)

// Metrics returns the expected values of the metrics of docs/operate/telemetry.md after the events of r, by
// their names in Prometheus and their labels. For a histogram, the value is the number of observations.
// Values of 0 are omitted.
func Metrics(r *Record) map[string]float64 {
	values := make(map[string]float64)
	for _, t := range r.All(func(Told) bool { return true }) {
		add := func(name string, by float64, labels ...string) {
			// The labels are in alphabetical order.
			key := name + "{" + strings.Join(labels, ",") + "}"
			if values[key] += by; values[key] == 0 {
				delete(values, key)
			}
		}
		kind := "leasehold_lock_kind=" + t.Kind
		acquired := func(outcome, errorType string) {
			labels := []string{kind, "leasehold_lock_outcome=" + outcome}
			if errorType != "" {
				labels = append([]string{"error_type=" + errorType}, labels...)
			}
			add("leasehold_lock_acquire_duration_seconds", 1, labels...)
			if t.Waited > 0 {
				add("leasehold_lock_waiters", -1, kind)
			}
		}
		reason := func(r string) string { return "leasehold_lock_release_reason=" + r }
		switch t.What {
		case "Waiting":
			add("leasehold_lock_waiters", 1, kind)
		case "Acquired":
			acquired("acquired", "")
			add("leasehold_lock_held", 1, kind)
		case "NotAcquired":
			acquired("not_acquired", "")
		case "TimedOut":
			acquired("timed_out", "")
		case "Canceled":
			acquired("canceled", "")
		case "Unavailable":
			acquired("unavailable", "unavailable")
		case "Failed":
			acquired("failed", map[bool]string{true: "wrong_type", false: "_OTHER"}[errors.Is(t.Err, lock.ErrWrongType)])
		case "Renewed":
			add("leasehold_lock_renewals_total", 1, kind)
			add("leasehold_lock_renewal_margin_seconds", 1, kind)
		case "RenewalFailed":
			add("leasehold_lock_renewals_total", 1, "error_type=unavailable", kind)
		case "Draining":
			add("leasehold_lock_draining", 1, kind)
		case "Abandoned":
			add("leasehold_lock_abandoned_total", 1, kind)
		case "HandedOff":
			add("leasehold_lock_handed_off_total", 1, kind)
		case "Kept":
			add("leasehold_lock_kept_total", 1, kind)
		case "Released":
			if t.Draining > 0 {
				add("leasehold_lock_draining", -1, kind)
			}
			add("leasehold_lock_held", -1, kind)
			add("leasehold_lock_hold_duration_seconds", 1, kind, reason(map[bool]string{true: "unlocked", false: "unconfirmed"}[t.Err == nil]))
		case "Lost":
			if t.Draining > 0 {
				add("leasehold_lock_draining", -1, kind)
			}
			why := "gone"
			for word, err := range map[string]error{"force_unlocked": lock.ErrForceUnlocked, "max_hold": lock.ErrMaxHold, "abandoned": lock.ErrAbandoned, "expired": lock.ErrExpired} {
				if errors.Is(t.Err, err) {
					why = word
				}
			}
			add("leasehold_lock_held", -1, kind)
			add("leasehold_lock_hold_duration_seconds", 1, kind, reason(why))
			add("leasehold_lock_lost_total", 1, kind, reason(why))
		}
	}
	return values
}
