package redistest

import (
	"net"
	"testing"
)

// What was read from a connection that is cut does not count as the request that a new hook waits for.
func TestLink_cut(t *testing.T) {
	asked := 0
	p := &Proxy{hook: func([][]byte) Action { asked++; return Action{} }}
	client, _ := net.Pipe()
	l := &link{proxy: p, client: client, done: make(chan struct{})}
	if _, ok := l.decide([][]byte{[]byte("PING")}); !ok || asked != 1 {
		t.Errorf("%v, the hook was asked %d times", ok, asked)
	}
	l.cut()
	if _, ok := l.decide([][]byte{[]byte("PING")}); ok || asked != 1 {
		t.Errorf("cut: %v, the hook was asked %d times", ok, asked)
	}
}
