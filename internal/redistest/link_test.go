package redistest

import (
	"net"
	"testing"
)

// A request read from a connection that has been cut is not passed to a hook set later.
func TestLink_cut(t *testing.T) {
	calls := 0
	p := &Proxy{hook: func([][]byte) Action { calls++; return Action{} }}
	client, _ := net.Pipe()
	l := &link{proxy: p, client: client, done: make(chan struct{})}
	if _, ok := l.decide([][]byte{[]byte("PING")}); !ok || calls != 1 {
		t.Errorf("%v, the hook was called %d times", ok, calls)
	}
	l.cut()
	if _, ok := l.decide([][]byte{[]byte("PING")}); ok || calls != 1 {
		t.Errorf("cut: %v, the hook was called %d times", ok, calls)
	}
}
