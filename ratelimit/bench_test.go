package ratelimit_test

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// barest is GCRA for a single limit and nothing else. It is the lower bound for the other benchmarks.
const barest = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now)) + ARGV[1]
if tat - now > tonumber(ARGV[2]) then return {0, tat - now - ARGV[2]} end
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.max(1, math.ceil((tat - now) / 1000)))
return {1, 0}`

// Each call requires one round trip, unless callers of a hot key share one, or the limiter rejects the call
// without a command.
func BenchmarkTake(b *testing.B) {
	s := redistest.Start(b)
	for _, bench := range []struct {
		name string
		keys int
		rate int64
	}{{"many keys", 100_000, 1_000_000}, {"a hot key", 1, 100_000_000}, {"a hot key, refused", 1, 100}} {
		limit := ratelimit.Limit{Rate: bench.rate, Per: time.Second}
		for _, parallel := range []int{1, 64, 512} {
			run := func(name string, take func(key string) error) {
				b.Run(fmt.Sprintf("%s/%d/%s", bench.name, parallel, name), func(b *testing.B) {
					var n atomic.Int64
					calls := s.CommandCalls(b, "evalsha")
					b.SetParallelism((parallel + 1) / 2)
					if parallel == 1 {
						for b.Loop() {
							if err := take("k" + strconv.FormatInt(n.Add(1)%int64(bench.keys), 10)); err != nil {
								b.Fatal(err)
							}
						}
					} else {
						b.RunParallel(func(pb *testing.PB) {
							for pb.Next() {
								if err := take("k" + strconv.FormatInt(n.Add(1)%int64(bench.keys), 10)); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					b.ReportMetric(float64(s.CommandCalls(b, "evalsha")-calls)/float64(b.N), "commands/op")
				})
			}
			rdb := s.Client(b, func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
			l := ratelimit.New(rdb, "bench"+strconv.Itoa(int(bench.rate)), closed, limit)
			run("ratelimit", func(key string) error { _, err := l.Take(b.Context(), key, 1); return err })
			lua := rueidis.NewLuaScript(barest)
			unit := strconv.FormatFloat(1e6/float64(bench.rate), 'f', -1, 64)
			run("barest script", func(key string) error {
				return lua.Exec(b.Context(), rdb, []string{"floor:" + key}, []string{unit, "1000000"}).Error()
			})
		}
	}
}
