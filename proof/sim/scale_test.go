package sim

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/redis/rueidis"
)

// The formulas of docs/operate/scale.md, in commands per second of a process, for a lease of 30 s.
const (
	heartbeat      = 0.1 // of the registry entry
	innerHeartbeat = 0.2 // executed by the heartbeat's script
	innerRenewals  = 0.3 // executed by scripts, for each lock
	waits          = 0.5 // for each lock that it waits for, after 10 s
	innerWaits     = 2   // executed by their scripts
)

// renewals returns how many commands a process sends each second to renew its locks. On one server, one
// command renews up to 100 locks. On a cluster, each slot needs its own command.
func renewals(nodes, locks int) float64 {
	if nodes == 1 {
		return 0.1 * math.Ceil(float64(locks)/100)
	}
	return 0.1 * float64(locks)
}

// fleet is a cluster in memory, and the processes that use it.
type fleet struct {
	nodes map[string]*miniredis.Miniredis // by address

	mu       sync.Mutex
	commands map[string]int // how often each command was executed, on all nodes
}

// newFleet starts nodes that share the slots equally. A single node is not a cluster.
func newFleet(t *testing.T, nodes int) *fleet {
	t.Cleanup(func() { time.Sleep(time.Second) }) // rueidis delays the refresh of a cluster's topology
	f := &fleet{nodes: make(map[string]*miniredis.Miniredis), commands: make(map[string]int)}
	var slots strings.Builder
	fmt.Fprintf(&slots, "*%d\r\n", nodes)
	for i := range nodes {
		m, err := memredis.StartInside()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		port := 7001 + i
		f.nodes["10.0.0.1:"+strconv.Itoa(port)] = m
		fmt.Fprintf(&slots, "*3\r\n:%d\r\n:%d\r\n*2\r\n$8\r\n10.0.0.1\r\n:%d\r\n", i*16384/nodes, (i+1)*16384/nodes-1, port)
	}
	for _, m := range f.nodes {
		m.Server().SetPreHook(func(c *server.Peer, name string, _ ...string) (done bool) {
			f.mu.Lock()
			f.commands[name]++
			f.mu.Unlock()
			switch {
			case name == "CLUSTER" && nodes > 1:
				c.WriteRaw(slots.String())
			case name == "CLUSTER", name == "HELLO":
				c.WriteError("ERR unknown command '" + name + "'")
			default:
				return false
			}
			return true
		})
	}
	return f
}

// open opens a client with the settings of client.Open for RESP2, and small buffers.
func (f *fleet) open(t *testing.T) *client.Client {
	option := rueidis.ClientOption{
		DialCtxFn: func(_ context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return f.dial(addr)
		},
		Dialer:              net.Dialer{KeepAlive: 5 * time.Second},
		DisableCache:        true,
		ForceSingleClient:   len(f.nodes) == 1,
		AlwaysRESP2:         true,
		PipelineMultiplex:   -1,
		RingScaleEachConn:   6,
		ReadBufferEachConn:  4 << 10,
		WriteBufferEachConn: 4 << 10,
	}
	for addr := range f.nodes {
		option.InitAddress = append(option.InitAddress, addr)
	}
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(rdb, client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		rdb.Close()
	})
	return c
}

// dial connects to a node. The connection buffers what is written: rueidis writes several commands before it reads.
func (f *fleet) dial(addr string) (net.Conn, error) {
	conn, err := f.nodes[addr].Dial()
	if err != nil {
		return nil, err
	}
	c := &buffered{Conn: conn, written: make(chan []byte, 1024), closed: make(chan struct{})}
	go c.run()
	return c, nil
}

// buffered is a connection whose Write does not wait for the other end to read.
type buffered struct {
	net.Conn
	written chan []byte
	closed  chan struct{}
	once    sync.Once
}

func (c *buffered) Write(b []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
		c.written <- bytes.Clone(b) // the buffer is far larger than the data in flight here
		return len(b), nil
	}
}

func (c *buffered) run() {
	for {
		select {
		case b := <-c.written:
			if _, err := c.Conn.Write(b); err != nil {
				return
			}
		case <-c.closed:
			return
		}
	}
}

func (c *buffered) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// during returns how often each command was executed in d, per second.
func (f *fleet) during(d time.Duration) map[string]float64 {
	f.mu.Lock()
	clear(f.commands)
	f.mu.Unlock()
	time.Sleep(d)
	f.mu.Lock()
	defer f.mu.Unlock()
	rate := make(map[string]float64)
	for name, n := range f.commands {
		rate[name] = float64(n) / d.Seconds()
	}
	return rate
}

// scripts lists the commands that only the scripts of plain locks execute: clients do not send them.
var scripts = []string{"EXISTS", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HLEN", "HMGET", "HSET", "PEXPIRE", "PTTL", "PUBLISH", "PUBSUB", "TIME"}

// check compares the command rates with the formulas: scripts that were sent, and commands that they executed.
func (f *fleet) check(t *testing.T, sent, inner float64) {
	rate := f.during(time.Minute)
	executed := 0.0
	for _, name := range scripts {
		executed += rate[name]
	}
	for _, c := range []struct {
		what      string
		got, want float64
	}{{"scripts sent", rate["EVALSHA"], sent}, {"commands in scripts", executed, inner}} {
		if math.Abs(c.got-c.want) > 0.05*c.want {
			t.Errorf("%s: %.2f/s, and %.2f by the formula; all: %v", c.what, c.got, c.want, rate)
		}
	}
}

// The command rates of processes that hold locks follow the formulas, however many processes and nodes there are.
func TestScale(t *testing.T) {
	for _, of := range []struct{ nodes, processes, locks int }{
		{1, 20, 1}, {1, 5, 250}, {6, 20, 10}, {6, 60, 10}, {24, 10, 10},
	} {
		t.Run(fmt.Sprintf("%d nodes, %d processes with %d locks", of.nodes, of.processes, of.locks), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, of.nodes)
				for p := range of.processes {
					c := f.open(t)
					for l := range of.locks {
						if _, err := c.NewLock(fmt.Sprintf("scale:%d:%d", p, l)).Lock(context.Background()); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(37 * time.Millisecond) // processes do not start at the same instant
				}
				time.Sleep(30 * time.Second)
				n := float64(of.processes)
				f.check(t, n*(heartbeat+renewals(of.nodes, of.locks)), n*(innerHeartbeat+innerRenewals*float64(of.locks)))
			})
		})
	}
}

// The same for processes that wait for a lock.
func TestScale_waiting(t *testing.T) {
	for _, processes := range []int{5, 50} {
		t.Run(fmt.Sprintf("%d processes", processes), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1)
				holder := f.open(t)
				if _, err := holder.NewLock("scale").Lock(context.Background()); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				var waiting sync.WaitGroup
				defer waiting.Wait()
				defer cancel()
				for range processes {
					l := f.open(t).NewLock("scale")
					waiting.Go(func() {
						if _, err := l.Lock(ctx); err == nil {
							t.Error("the lock was granted twice")
						}
					})
					time.Sleep(37 * time.Millisecond)
				}
				time.Sleep(30 * time.Second)
				n := float64(processes)
				f.check(t, heartbeat+renewals(1, 1)+n*(heartbeat+waits), innerHeartbeat+innerRenewals+n*(innerHeartbeat+innerWaits))
			})
		})
	}
}
