// Package fencetest has what the tests of all guards share: two tokens, and how a refusal must look.
package fencetest

import (
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/lock"
)

// The tokens of two holders, one after the other. They look like real ones, which are times in µs.
const (
	Younger = 1_795_225_388_576_200
	Older   = Younger - 1
)

// IsStale fails the test unless err says that token came after highest, in every way in which a caller can ask.
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

// IsNoToken fails the test unless err says that there was no token.
func IsNoToken(t testing.TB, what string, err error) {
	t.Helper()
	var e *lock.Error
	if !errors.Is(err, fence.ErrNoToken) || errors.Is(err, fence.ErrStale) || !errors.As(err, &e) {
		t.Errorf("%s: %v, want ErrNoToken", what, err)
	}
}
