package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// The demo plays the chosen scenes on the server of --url.
func TestDemo(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"demo", "--only", "nested", "--url", s.URL()}, &stdout, &stderr); code != exitOK {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
	for _, want := range []string{"Redis: the server at " + s.URL() + "\n", "\n1. A call within a call\n", "✓ all 4 checks passed in "} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &stdout)
		}
	}
}
