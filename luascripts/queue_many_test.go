package luascripts_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// TestQueue_table prints the cost of a queue of many processes, on request:
//
//	LEASEHOLD_TABLE=1 go test -run TestQueue_table -v ./luascripts
//
// A round of requests is what the processes send in one poll interval while the holder stays the
// same. Bytes are those written to the append-only file, which each replica receives as well.
func TestQueue_table(t *testing.T) {
	if os.Getenv("LEASEHOLD_TABLE") == "" {
		t.Skip("LEASEHOLD_TABLE is not set")
	}
	scattered := keys
	scattered.Scattered = true
	fmt.Println("| waiting processes | | bytes a second | µs a request | µs a release |\n|---:|---|---:|---:|---:|")
	for _, n := range []int{10, 80, 1_000, 10_000} {
		for _, c := range []struct {
			name  string
			k     luascripts.Keys
			alive bool
		}{{"one server", keys, true}, {"one server, all dead", keys, false}, {"cluster", scattered, true}} {
			s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
			rdb := s.Client(t)
			owners := make([]string, n)
			for i := range owners {
				owners[i] = fmt.Sprintf("%08x-1111-7111-8111-111111111111:5", i)
			}
			leave := func() {}
			if !c.k.Scattered {
				leave = crowd(t, s, owners)
			}
			hold(t, rdb)
			pass(t, rdb, c.k, holder) // loads the scripts on the server
			do(t, rdb, "HSET", keys.Lock, holder, "1")
			round := func() {
				for _, owner := range owners {
					q := luascripts.Request{Owner: owner, Lease: lease, Want: 1, Offer: 3 * time.Second, RetryAfter: time.Second, WaiterTimeout: 10 * time.Second}
					if _, err := luascripts.AcquireReentrant(t.Context(), rdb, c.k, q); err != nil {
						t.Fatal(err)
					}
				}
			}
			round() // the processes arrive
			const rounds = 3
			before := appended(t, rdb)
			do(t, rdb, "CONFIG", "RESETSTAT")
			for range rounds {
				round()
			}
			request := scriptTime(t, rdb)
			bytes := (appended(t, rdb) - before) / rounds
			if !c.alive {
				leave()
			}
			do(t, rdb, "PERSIST", keys.Lock)
			do(t, rdb, "CONFIG", "RESETSTAT")
			pass(t, rdb, c.k, holder)
			fmt.Printf("| %d | %s | %d | %.0f | %.0f |\n", n, c.name, bytes, request, scriptTime(t, rdb))
			leave()
		}
	}
}

// crowd subscribes to the channels of all processes of these owners, until leave is called.
func crowd(t *testing.T, s *redistest.Server, owners []string) (leave func()) {
	t.Helper()
	rdb := s.Client(t)
	conn, release := rdb.Dedicate()
	var channels []string
	for _, owner := range owners {
		channels = append(channels, process(owner))
	}
	conn.SetPubSubHooks(rueidis.PubSubHooks{})
	if err := conn.Do(t.Context(), conn.B().Subscribe().Channel(channels...).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for listeners(t, rdb, channels[len(channels)-1]) == 0 {
	}
	left := false
	return func() {
		if left {
			return
		}
		left = true
		conn.Close()
		release()
		for listeners(t, rdb, channels[len(channels)-1]) > 0 {
		}
	}
}

// appended returns the size of the append-only file.
func appended(t *testing.T, rdb rueidis.Client) int64 {
	return info(t, rdb, "persistence", "aof_current_size:")
}

// scriptTime returns the mean time of a script, in µs, since the statistics were reset.
func scriptTime(t *testing.T, rdb rueidis.Client) float64 {
	t.Helper()
	for queue := range strings.SplitSeq(text(do(t, rdb, "INFO", "commandstats")), "\r\n") {
		if _, stats, ok := strings.Cut(queue, "cmdstat_evalsha:"); ok {
			_, rest, _ := strings.Cut(stats, "usec_per_call=")
			us, _, _ := strings.Cut(rest, ",")
			mean, err := strconv.ParseFloat(us, 64)
			if err != nil {
				t.Fatal(err)
			}
			return mean
		}
	}
	t.Fatal("no script ran")
	return 0
}

// info returns a number of INFO.
func info(t *testing.T, rdb rueidis.Client, section, name string) int64 {
	t.Helper()
	for queue := range strings.SplitSeq(text(do(t, rdb, "INFO", section)), "\r\n") {
		if n, ok := strings.CutPrefix(queue, name); ok {
			number, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return number
		}
	}
	t.Fatalf("INFO does not say %s", name)
	return 0
}
