package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// gated is a standard error that blocks until the channel gate is closed.
type gated struct {
	gate chan struct{}
	strings.Builder
}

func (g *gated) Write(b []byte) (int, error) {
	<-g.gate
	return g.Builder.Write(b)
}

// A message does not wait for standard error. flush waits for it, for a limited time.
func TestNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &gated{gate: make(chan struct{})}
		var n notes
		n.begin(w)
		defer close(n.queue)
		n.trouble("first")
		synctest.Wait()
		n.flush()
		for range 2 * cap(n.queue) {
			n.trouble("another")
		}
		n.flush()
		go func() {
			time.Sleep(closeLimit / 2)
			close(w.gate)
		}()
		n.flush()
		if got := w.String(); !strings.HasPrefix(got, "leasehold: first\nleasehold: another\n") || strings.Count(got, "another") != cap(n.queue)-1 {
			t.Errorf("%q", got)
		}
	})
}
