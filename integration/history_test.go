//go:build linux

package integration_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/leasehold-go/leasehold/integration/internal/history"
)

// Short names for types of package history.
type (
	op       = history.Op
	claims   = history.Claims
	rwClaims = history.RWClaims
)

const (
	acquire = history.Acquire
	release = history.Release
)

var (
	monotonic   = history.Monotonic
	onMonotonic = history.OnMonotonic
)

// check fails the test if no order of the history's operations explains their results. It returns the state in which the
// next part of the history begins, if no owner held the lock at the end of this part.
func check[S history.State[S]](t *testing.T, name string, first S, ops []op) (last S) {
	t.Helper()
	last, err := history.Check(first, ops)
	if err == nil {
		return last
	}
	t.Errorf("%q: %v", name, err)
	dir := failures(t)
	if err := history.Draw(first, ops, filepath.Join(dir, name+".html")); err != nil {
		t.Error(err)
	}
	save(t, filepath.Join(dir, name+".json"), ops)
	return last
}

func save(t *testing.T, file string, v any) {
	t.Helper()
	text, err := json.MarshalIndent(v, "", "\t")
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
