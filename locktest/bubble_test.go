package locktest

import (
	"strings"
	"testing"
	"testing/synctest"
)

// A test that uses a server outside its bubble fails, and the error says what to do. Otherwise the runtime ends the program.
func TestServer_outsideTheBubble(t *testing.T) {
	t.Parallel()
	s := NewServer(t)
	synctest.Test(t, func(t *testing.T) {
		v := &recorder{}
		done := make(chan struct{})
		go func() { // in a separate goroutine, because Fatal ends it
			defer close(done)
			s.Client(v)
		}()
		<-done
		if got := strings.Join(v.said, "\n"); !strings.Contains(got, "call NewServer in the bubble") {
			t.Errorf("Client fails with %q", got)
		}
	})
}
