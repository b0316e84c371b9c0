package luascripts_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// BenchmarkFair_serverTime prints how long one script occupies the server, by the length of the
// queue, in µs as measured by the server. If a call of this package needs several scripts, it
// prints the longest one. The result is the minimum of all rounds, to exclude other work of the
// machine.
func BenchmarkFair_serverTime(b *testing.B) {
	s := redistest.Start(b, "--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000")
	rdb := s.Client(b)
	waiter := func(n int) string { return fmt.Sprintf("0192d3a4-7b1c-7e5f-8a6b-000000000001:%d", n) }
	foreign := func(n int) string { return fmt.Sprintf("0192d3a4-7b1c-4e5f-8a6b-000000000001:%d", n) }
	alive := strconv.FormatInt(now(b, rdb)+waiterTimeout.Milliseconds(), 10)
	const dead = "1"
	holder := waiter(1 << 40)

	// fill creates a queue of n owners. If mixed, every tenth one is of Redisson.
	fill := func(n int, mixed bool, deadline string) {
		do(b, rdb, "FLUSHALL")
		for i := 0; i < n; {
			push, add := []string{"RPUSH", fairKeys.Queue}, []string{"ZADD", fairKeys.Timeouts}
			for ; i < n && len(push) < 1000; i++ {
				o := waiter(i)
				if mixed && i%10 == 5 {
					o = foreign(i)
				}
				push, add = append(push, o), append(add, deadline, o)
			}
			do(b, rdb, push...)
			do(b, rdb, add...)
		}
	}
	held := func() { do(b, rdb, "HSET", fairKeys.Lock, holder, "1"); do(b, rdb, "PEXPIRE", fairKeys.Lock, "600000") }
	ask := func(o string, p time.Duration) {
		if _, err := luascripts.AcquireFair(b.Context(), rdb, fairKeys, luascripts.Request{Owner: o, Lease: lease, Want: 1, WaiterTimeout: p}); err != nil {
			b.Fatal(err)
		}
	}
	release := func(o string) {
		if _, err := luascripts.ReleaseFair(b.Context(), rdb, fairKeys, o, 0); err != nil {
			b.Fatal(err)
		}
	}
	keep := func(from, n int) {
		var all []luascripts.Waiter
		for i := from; i < from+n; i++ {
			all = append(all, luascripts.Waiter{Owner: waiter(i), WaiterTimeout: waiterTimeout})
		}
		if _, err := luascripts.KeepFair(b.Context(), rdb, fairKeys, all); err != nil {
			b.Fatal(err)
		}
	}
	for _, c := range []struct {
		name         string
		before, call func(n int)
	}{
		{"asks again, the last", func(n int) { fill(n, false, alive); held() }, func(n int) { ask(waiter(n-1), waiterTimeout) }},
		{"comes anew", func(n int) { fill(n, false, alive); held() }, func(int) { ask(holder+"0", waiterTimeout) }},
		{"comes anew, mixed", func(n int) { fill(n, true, alive); held() }, func(int) { ask(holder+"0", waiterTimeout) }},
		{"heartbeat of 1", func(n int) { fill(n, false, alive); held() }, func(n int) { keep(n-1, 1) }},
		{"heartbeat of 100", func(n int) { fill(n, false, alive); held() }, func(n int) { keep(max(n-100, 0), min(n, 100)) }},
		{"heartbeat of 100, mixed", func(n int) { fill(n, true, alive); held() }, func(n int) { keep(max(n-100, 0), min(n, 100)) }},
		{"release", func(n int) { fill(n, false, alive); held() }, func(int) { release(holder) }},
		{"the first gets it", func(n int) { fill(n, false, alive) }, func(int) { ask(waiter(0), waiterTimeout) }},
		{"leaves from the middle", func(n int) { fill(n, false, alive); held() }, func(n int) { release(waiter(n / 2)) }},
		{"all are dead", func(n int) { fill(n, false, dead) }, func(int) { ask(holder, 0) }},
		{"Inspect", func(n int) { fill(n, false, alive); held() }, func(int) {
			if _, err := luascripts.InspectFair(b.Context(), rdb, fairKeys); err != nil {
				b.Fatal(err)
			}
		}},
	} {
		for _, n := range []int{10, 100, 1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				c.before(n)
				c.call(n) // loads the script on the server
				var longest []int64
				for b.Loop() {
					c.before(n)
					do(b, rdb, "SLOWLOG", "RESET")
					c.call(n)
					longest = append(longest, slowest(b, do(b, rdb, "SLOWLOG", "GET", "-1")))
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(slices.Min(longest)), "µs/script")
			})
		}
	}
}

// slowest returns the duration of the longest script in the server's log, in µs.
func slowest(b *testing.B, log rueidis.RedisMessage) (most int64) {
	b.Helper()
	entries, err := log.ToArray()
	if err != nil {
		b.Fatal(err)
	}
	for _, entry := range entries {
		fields, err := entry.ToArray()
		if err != nil || len(fields) < 4 {
			b.Fatalf("SLOWLOG: %v, %v", entry, err)
		}
		micros, err1 := fields[2].ToInt64()
		words, err2 := fields[3].AsStrSlice()
		if err1 != nil || err2 != nil {
			b.Fatalf("SLOWLOG: %v, %v", err1, err2)
		}
		if words[0] == "EVALSHA" {
			most = max(most, micros)
		}
	}
	return most
}
