package leader_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// addr is the address of a server in memory, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(withServer{m}) }

type withServer struct{ m *testing.M }

func (w withServer) Run() int {
	server, err := memredis.Start()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	addr = server.Addr()
	return w.m.Run()
}
