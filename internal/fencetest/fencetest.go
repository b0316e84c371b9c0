// Package fencetest provides what the tests of all guards share: two tokens, and checks of a rejection.
package fencetest

import (
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/lock"
)

// Tokens of two consecutive holders. Like real ones, they are times in µs.
const (
	Younger = 1_795_225_388_576_200
	Older   = Younger - 1
)

// IsStale fails the test unless err reports that token was used after highest, in every way in which a caller
// can check.
func IsStale(t testing.TB, what string, err error, token, highest uint64) {
	t.Helper()
	var stale *fence.StaleError
	var e *lock.Error
	switch {
	case !errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrNoToken):
		t.Errorf("%s: %v, want ErrStale", what, err)
	case !errors.As(err, &stale) || *stale != (fence.StaleError{Token: token, Highest: highest}):
		t.Errorf("%s: %+v, want token %d after %d", what, stale, token, highest)
	case !errors.As(err, &e):
		t.Errorf("%s: %T is no lock.Error", what, err)
	}
}

// IsNoToken fails the test unless err reports a missing token.
func IsNoToken(t testing.TB, what string, err error) {
	t.Helper()
	var e *lock.Error
	if !errors.Is(err, fence.ErrNoToken) || errors.Is(err, fence.ErrStale) || !errors.As(err, &e) {
		t.Errorf("%s: %v, want ErrNoToken", what, err)
	}
}
