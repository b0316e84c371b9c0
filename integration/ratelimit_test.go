//go:build linux

package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// proven is the limit of the next test: at most Burst + Rate·W permits are granted in any time W.
var proven = ratelimit.Limit{Rate: 500, Per: time.Second, Burst: 100}

// Eight processes together are never granted more than the limit, while some of them are killed.
//
//	1 eight processes take, wait, cancel and refund, as fast as they can. Each writes
//	what it was allowed to use, and between which two instants, to a file
//	2 one of them is killed repeatedly, in the middle of a call, and another replaces it
//	3 the files show for each window how much was certainly granted in it
func TestRateLimit_neverMore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dir := t.TempDir()
	start := func(i int) *worker { // 1
		w := startWorker(t)
		w.send(t, request{Do: "limit", Addr: server.Addr(), Name: filepath.Join(dir, fmt.Sprint(i))})
		return w
	}
	const processes = 8
	var workers []*worker
	for i := range processes {
		workers = append(workers, start(i))
	}
	kills := amount(20)
	const between = 200    // permits granted between two kills
	for i := range kills { // 2
		until(t, func() bool { return unitsOf(used(t, dir)) >= int64(between*(i+1)) })
		at := rand.IntN(processes)
		workers[at].kill()
		workers[at] = start(processes + i)
	}
	for _, w := range workers {
		w.kill()
	}
	log := used(t, dir) // 3
	began := slices.MinFunc(log, func(a, b use) int { return int(a.sent - b.sent) }).sent
	ended := log[len(log)-1].heard
	worst := 0.0
	for _, from := range log {
		var n int64
		for _, to := range log { // in the order of the replies
			if to.sent < from.sent {
				continue // it may have been granted before
			}
			n += to.n
			allowed := allowedIn(to.heard - from.sent)
			if float64(n) > allowed+1e-6 {
				t.Fatalf("%d permits admitted in %v; %.1f are allowed", n, time.Duration(to.heard-from.sent), allowed)
			}
			worst = max(worst, float64(n)/allowed)
		}
	}
	sum := unitsOf(log)
	t.Logf("%d permits in %v by %d processes, of which %d were killed: at most %.3f of the limit in any window, %.3f in total",
		sum, time.Duration(ended-began), processes+kills, kills, worst, float64(sum)/allowedIn(ended-began))
	if worst < 0.5 {
		t.Errorf("at most %.3f of the limit was admitted in a window: the test shows little", worst)
	}
}

// allowedIn returns the maximum number of permits in this many nanoseconds.
func allowedIn(ns int64) float64 {
	return float64(proven.Burst) + float64(proven.Rate)*float64(ns)/float64(proven.Per)
}

// use is a number of permits that a process was allowed to use at an instant between two, by monotonic.
type use struct{ sent, heard, n int64 }

func unitsOf(log []use) (sum int64) {
	for _, u := range log {
		sum += u.n
	}
	return sum
}

// used returns what all processes wrote, in the order of their replies.
func used(t *testing.T, dir string) (log []use) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		content = content[:bytes.LastIndexByte(content, '\n')+1] // a write may be in progress
		for line := range strings.Lines(string(content)) {
			var u use
			if _, err := fmt.Sscan(line, &u.sent, &u.heard, &u.n); err != nil {
				t.Fatalf("%s: %q: %v", name, line, err)
			}
			log = append(log, u)
		}
	}
	slices.SortFunc(log, func(a, b use) int { return int(a.heard - b.heard) })
	return log
}

// limit uses the limiter until the process is killed. It writes each use to the file called Name with a
// single write, so that no line is truncated.
func (p *process) limit(ctx context.Context, r request) error {
	file, err := os.OpenFile(r.Name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{r.Addr}, DisableCache: true})
	if err != nil {
		return err
	}
	l := ratelimit.New(rdb, "api", ratelimit.FailClosed().After(promptTimeout), proven)
	failed := make(chan error)
	for range 4 {
		go func() {
			for {
				sent := monotonic()
				n, err := useSome(ctx, l)
				if err == nil && n > 0 {
					_, err = fmt.Fprintf(file, "%d %d %d\n", sent, monotonic(), n)
				}
				if err != nil {
					failed <- err
				}
			}
		}()
	}
	err = <-failed
	fmt.Fprintln(os.Stderr, "a process of the rate limiter's test:", err) // the test detects that it does not continue
	return err
}

// useSome makes a random call, and returns how many permits the caller may use.
func useSome(ctx context.Context, l *ratelimit.Limiter) (int64, error) {
	const key = "hot"
	n := 1 + rand.Int64N(3)
	switch rand.IntN(16) { // most permits are used: permits refunded behind later callers are lost
	case 0, 1, 2, 3, 4, 5, 6, 7: // wait
		err := l.Wait(ctx, key, n)
		return n, err
	case 8: // wait, sometimes canceled
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		time.AfterFunc(time.Duration(rand.IntN(20))*time.Millisecond, cancel)
		if err := l.Wait(ctx, key, n); err != nil {
			if errors.Is(err, context.Canceled) {
				err = nil
			}
			return 0, err
		}
		return n, nil
	case 9: // take, and refund
		d, err := l.TakeUpTo(ctx, key, n)
		if err == nil && d.OK {
			err = l.Refund(ctx, key, d)
		}
		return 0, err
	case 10: // reserve, and refund
		r, err := l.Reserve(ctx, key, n)
		if err == nil {
			err = r.Cancel(ctx)
		}
		return 0, err
	case 11, 12:
		d, err := l.TakeUpTo(ctx, key, 2*n)
		return d.Taken, err
	default:
		d, err := l.Take(ctx, key, n)
		return d.Taken, err
	}
}
