package luascripts_test

import (
	"strconv"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
	"pgregory.net/rapid"
)

// dated has the scripts that set a number before a deadline of the server. set returns the server's time once that has passed. is
// returns the stored number.
var dated = map[string]struct {
	set func(t *testing.T, rdb rueidis.Client, n, before int64) (now int64, err error)
	is  func(t *testing.T, rdb rueidis.Client) int64
}{
	"permits": {
		func(t *testing.T, rdb rueidis.Client, n, before int64) (int64, error) {
			_, now, err := luascripts.ResizeSemaphore(t.Context(), rdb, semaphoreKeys(0), int(n), before)
			return now, err
		},
		freePermits,
	},
	"rate": {
		func(t *testing.T, rdb rueidis.Client, n, before int64) (int64, error) {
			_, now, err := luascripts.InitWindow(t.Context(), rdb, keynames.Window("w"), n, time.Hour, true, before)
			return now, err
		},
		func(t *testing.T, rdb rueidis.Client) int64 {
			n, _ := strconv.ParseInt(text(do(t, rdb, "HGET", "w", "rate")), 10, 64)
			return n
		},
	},
}

// However delayed the duplicates of earlier calls are, Redis stores the number of the latest call.
func TestDated_model(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, script := range dated {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				do(t, rdb, "FLUSHALL")
				m.SetTime(now)
				type sent struct{ n, before int64 }
				var late []sent // copies that were sent and have not arrived
				var want int64
				// set sends a copy, and returns the server's time if the copy had no effect.
				set := func(rt *rapid.T, c sent) int64 {
					at, err := script.set(t, rdb, c.n, c.before)
					if err != nil || at != 0 && at != now.UnixMilli() {
						rt.Fatalf("%+v at %d: %d, %v", c, now.UnixMilli(), at, err)
					}
					return at
				}
				wait := func(d time.Duration) { now = now.Add(d); m.SetTime(now) }
				if set(rt, sent{1, now.UnixMilli() + 1}) != 0 {
					rt.Fatal("the first one did nothing")
				}
				want = 1
				rt.Repeat(map[string]func(*rapid.T){
					"set": func(rt *rapid.T) {
						c := sent{n: rapid.Int64Range(1, 4).Draw(rt, "n")}
						if rapid.Bool().Draw(rt, "the request comes late, too") {
							late = append(late, c)
						}
						at := set(rt, c)
						if at == 0 {
							if want != c.n {
								rt.Fatalf("the request set %d, and %d was there", c.n, want)
							}
							return
						}
						life := time.Duration(rapid.IntRange(1, 1000).Draw(rt, "life")) * time.Millisecond
						c.before = at + life.Milliseconds()
						switch rapid.SampledFrom([]string{"answered", "repeated", "given up"}).Draw(rt, "the copy is") {
						case "answered":
							if set(rt, c) != 0 {
								rt.Fatalf("%+v did nothing at %d", c, now.UnixMilli())
							}
							want = c.n
						case "repeated": // the call returns when the first copy can no longer have an effect
							if set(rt, c) != 0 {
								rt.Fatalf("%+v did nothing at %d", c, now.UnixMilli())
							}
							want = c.n
							late = append(late, c)
							wait(life)
						case "given up":
							late = append(late, c)
							wait(life)
						}
					},
					"a late copy comes": func(rt *rapid.T) {
						if len(late) == 0 {
							rt.Skip("none is late")
						}
						i := rapid.IntRange(0, len(late)-1).Draw(rt, "which")
						set(rt, late[i])
						late = append(late[:i], late[i+1:]...)
					},
					"time goes by": func(*rapid.T) { wait(time.Duration(rapid.IntRange(1, 1000).Draw(rt, "ms")) * time.Millisecond) },
					"": func(rt *rapid.T) {
						if got := script.is(t, rdb); got != want {
							rt.Fatalf("%d, want %d", got, want)
						}
					},
				})
			})
		})
	}
}
