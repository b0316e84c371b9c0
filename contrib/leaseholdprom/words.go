package leaseholdprom

import (
	"errors"

	"github.com/leasehold-go/leasehold/lock"
)

// Words for errors in labels. A test of package leaseholdotel checks that it has the same.

// reasons has all results of reason.
var reasons = []string{"force_unlocked", "max_hold", "abandoned", "expired", "gone"}

// reason returns one word for why a hold was lost.
func reason(err error) string {
	switch {
	case errors.Is(err, lock.ErrForceUnlocked):
		return "force_unlocked"
	case errors.Is(err, lock.ErrMaxHold):
		return "max_hold"
	case errors.Is(err, lock.ErrAbandoned):
		return "abandoned"
	case errors.Is(err, lock.ErrExpired):
		return "expired"
	default:
		return "gone"
	}
}

// errorType returns the error.type of a call with this outcome. A busy lock, and a caller that stops
// waiting, are not errors.
func errorType(outcome string, err error) string {
	switch outcome {
	case "unavailable", "failed":
		return word(err)
	default:
		return ""
	}
}

// word returns one word for err.
func word(err error) string {
	for _, w := range words {
		if errors.Is(err, w.err) {
			return w.word
		}
	}
	return "_OTHER"
}

var words = []struct {
	err  error
	word string
}{
	{lock.ErrUnavailable, "unavailable"},
	{lock.ErrWrongType, "wrong_type"},
	{lock.ErrReplicas, "replicas"},
	{lock.ErrUpgrade, "upgrade"},
	{lock.ErrBadName, "bad_name"},
	{lock.ErrClosed, "closed"},
	{lock.ErrLost, "lost"},
}
