package dial

import (
	"context"
	"net"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// Settings of the caller are kept.
func TestLively_keeps(t *testing.T) {
	for name, d := range map[string]net.Dialer{
		"an interval":     {KeepAlive: time.Second},
		"none":            {KeepAlive: -1},
		"a configuration": {KeepAliveConfig: net.KeepAliveConfig{Enable: true}},
	} {
		if got := Lively(d); !reflect.DeepEqual(got, d) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	called := false
	d := Lively(net.Dialer{ControlContext: func(context.Context, string, string, syscall.RawConn) error { called = true; return nil }})
	conn, _ := connection(t, d)
	if conn.Close(); !called || !d.KeepAliveConfig.Enable {
		t.Errorf("called: %v, %+v", called, d.KeepAliveConfig)
	}
}

// connection dials a new listener, and returns both ends.
func connection(t *testing.T, d net.Dialer) (conn, peer net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if conn, err = d.DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if peer, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); peer.Close() })
	return conn, peer
}
