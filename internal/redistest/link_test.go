package redistest

import (
	"net"
	"testing"
)

// What was read from a connection that is cut does not count as the request that a new hook waits for.
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
