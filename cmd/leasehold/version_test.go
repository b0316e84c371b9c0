package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	c := prepare(t, nil, "version").start()
	c.ends(0)
	if said := c.stdout.String(); !strings.HasPrefix(said, "leasehold ") || strings.Count(said, "\n") != 1 {
		t.Errorf("it says %q", said)
	}
	c = prepare(t, nil, "version", "-o", "json").start()
	c.ends(0)
	var v version
	if err := json.Unmarshal([]byte(c.stdout.String()), &v); err != nil || v.Go == "" || v.Version == "" || v.Platform == "" {
		t.Errorf("%v: %s", err, c.stdout)
	}
}
