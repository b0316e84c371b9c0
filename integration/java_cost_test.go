//go:build linux

package integration_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// serverCPU returns the CPU time that the server has used for commands.
func serverCPU(t *testing.T, s *redistest.Server) time.Duration {
	t.Helper()
	info := s.Do(t, "INFO", "cpu")
	text, err := info.ToString()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, field := range []string{"used_cpu_sys_main_thread:", "used_cpu_user_main_thread:"} {
		_, rest, _ := strings.Cut(text, field)
		number, _, _ := strings.Cut(rest, "\r")
		seconds, err := strconv.ParseFloat(number, 64)
		if err != nil {
			t.Skipf("this server does not report the cost of its commands: %s%q", field, number)
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second))
}

// commandTime returns the time that the server has spent in these commands since its last reset.
func commandTime(t *testing.T, s *redistest.Server, commands ...string) (sum time.Duration) {
	t.Helper()
	info := s.Do(t, "INFO", "commandstats")
	text, err := info.ToString()
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range commands {
		_, rest, ok := strings.Cut(text, "cmdstat_"+command+":calls=")
		_, rest, _ = strings.Cut(rest, ",usec=")
		number, _, _ := strings.Cut(rest, ",")
		if us, err := strconv.ParseInt(number, 10, 64); ok && err == nil {
			sum += time.Duration(us) * time.Microsecond
		}
	}
	return sum
}

// Measures the server's cost of a filter query, from Redisson and from leasehold, on the same filter. The figures are
// informative: the test fails only if the replies differ.
func TestJavaBloom_cost(t *testing.T) {
	t.Parallel()
	s := newJavaScene(t, oneServer(t))
	server := s.nodes[0]
	const n, p = 10_000, 0.01 // seven bits
	if _, err := s.c.NewBloomFilter("seen").Init(t.Context(), n, p); err != nil {
		t.Fatal(err)
	}
	f := s.c.NewBloomFilter("seen")
	var elements []string
	for i := range 1000 {
		elements = append(elements, fmt.Sprint("element ", i))
	}
	var some [][]byte
	for _, e := range elements {
		some = append(some, []byte(e))
	}
	if _, err := f.Add(t.Context(), some...); err != nil {
		t.Fatal(err)
	}
	type cost struct{ cpu, commands time.Duration }
	measure := func(do func()) cost {
		t.Helper()
		do() // a warm-up: loads the scripts, and compiles Java's code
		server.ResetStats(t)
		before := serverCPU(t, server)
		const rounds = 3
		for range rounds {
			do()
		}
		return cost{
			(serverCPU(t, server) - before) / (rounds * time.Duration(len(elements))),
			commandTime(t, server, "evalsha", "eval", "bitfield_ro", "getrange", "hmget", "hgetall", "getbit") / (rounds * time.Duration(len(elements))),
		}
	}
	found := func(who string, got int) {
		t.Helper()
		if got != len(elements) {
			t.Errorf("%s found %d of %d", who, got, len(elements))
		}
	}
	java := func(q javaRequest) javaRequest { q.Name, q.Elements = "seen", elements; return q }
	for what, both := range map[string][2]func(){
		"one at a time": {
			func() {
				all := asks[[]bool](t, s.java, java(javaRequest{Do: "bloom.contains"}))
				found("Redisson", len(all))
			},
			func() {
				n := 0
				for _, e := range some {
					there, err := f.Contains(t.Context(), e)
					if err != nil {
						t.Fatal(err)
					}
					if there[0] {
						n++
					}
				}
				found("Go", n)
			},
		},
		"a thousand at a time": {
			func() {
				found("Redisson", int(asks[int64](t, s.java, java(javaRequest{Do: "bloom.containsAll"}))))
			},
			func() {
				all, err := f.Contains(t.Context(), some...)
				if err != nil {
					t.Fatal(err)
				}
				found("Go", len(all))
			},
		},
	} {
		theirs, ours := measure(both[0]), measure(both[1])
		t.Logf("%s: server time per element: Redisson %v (%v of it in commands), leasehold %v (%v): %.1f × (%.1f ×)",
			what, theirs.cpu, theirs.commands, ours.cpu, ours.commands, float64(theirs.cpu)/float64(ours.cpu), float64(theirs.commands)/float64(ours.commands))
	}
}
