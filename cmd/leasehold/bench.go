package main

import (
	"bytes"
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/cmd/leasehold/internal/terminal"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/reentrant"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
)

// bencher is one call of bench.
type bencher struct {
	connection
	out    output
	each   time.Duration
	prefix string
	yes    bool
}

// The bounds of bench.
const (
	benchLeast = 100 * time.Millisecond
	benchMost  = 15 * time.Second // for each cell, so that all four stay within a minute
	benchHot   = 8                // goroutines that compete for one lock
	busyOps    = 1000             // commands per second above which the server counts as busy
	mostTaken  = 1 << 20          // maximum number of measurements kept for a cell
	replyLimit = 10 * time.Second // for a call at the end of its cell: if Redis is unavailable, Lock waits without a limit
)

func benchCommand() *cobra.Command {
	b := &bencher{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure lock operations on a server",
		Example: `  leasehold bench --url redis://db1:6379
  leasehold bench --duration 10s -o json`,
		Long: `Measure lock operations from this machine on a server:

  round trip   PING, the minimum for every other cell
  free         Lock and Unlock of a free lock: two round trips
  hot          the same by 8 goroutines of this process that compete for one lock
  hand-off     from Unlock in one client to the return of Lock in a waiting client

Each cell takes --duration, and all four together less than a minute. bench loads the
server as much as one connection can, which other clients notice. If the server already
executes more than 1000 commands per second, bench asks for confirmation on a terminal,
and elsewhere requires --yes. If the user lacks permission for INFO, bench prints that
and continues.

bench writes keys that begin with --prefix and "leasehold-bench:", and leaves no keys,
even if it is interrupted.

Permissions: see leasehold doctor --print-acl application.

Exit codes:
  0  all cells measured
  1  not all cells measured, or you declined
  2  wrong arguments, or a busy server, no terminal and no --yes

` + connectionHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.each < benchLeast || b.each > benchMost {
				return usagef("--duration %v: must be at least %v and at most %v", b.each, benchLeast, benchMost)
			}
			found, err := b.run(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return b.out.write(cmd.OutOrStdout(), found)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&b.each, "duration", 5*time.Second, "time to measure each cell, at most 15s")
	f.StringVar(&b.prefix, "prefix", "", "prefix of the lock names that the user may access (default none)")
	f.BoolVarP(&b.yes, "yes", "y", false, "no confirmation prompt on a busy server")
	b.out.addFlag(cmd)
	b.connection.addFlags(cmd)
	return cmd
}

// benchReport is what bench has measured.
type benchReport struct {
	Server string      `json:"server"`
	Mode   string      `json:"mode"`
	Cells  []benchCell `json:"cells"`
}

// benchCell is one measurement.
type benchCell struct {
	Name      string  `json:"name"`
	Calls     int     `json:"calls"`
	PerSecond float64 `json:"per_second"`
	P50US     float64 `json:"p50_us"`
	P99US     float64 `json:"p99_us"`
	MaxUS     float64 `json:"max_us"`
}

// table writes a line for each cell.
func (r benchReport) table(w io.Writer) error {
	t := table{{"CELL", "CALLS", "PER SECOND", "P50", "P99", "MAX", "ROUND TRIPS"}}
	for _, c := range r.Cells {
		t = append(t, []string{c.Name, strconv.Itoa(c.Calls), fmt.Sprintf("%.0f", c.PerSecond), us(c.P50US), us(c.P99US), us(c.MaxUS), fmt.Sprintf("%.1f", c.P50US/r.Cells[0].P50US)})
	}
	return t.write(w, 0)
}

// us formats a number of microseconds with about three digits.
func us(n float64) string {
	d := time.Duration(n * float64(time.Microsecond))
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

func (b *bencher) run(ctx context.Context, in io.Reader, stderr io.Writer) (benchReport, error) {
	address, err := b.address()
	if err != nil {
		return benchReport{}, err
	}
	var (
		clients []*client.Client
		rdb     rueidis.Client
		notes   notes
		said    bytes.Buffer // until the progress, which uses the line of the terminal, has ended
	)
	notes.begin(&said)
	defer func() {
		notes.flush()
		_, _ = said.WriteTo(stderr)
	}()
	for logger := notes.logger(); len(clients) < 2; logger = slog.New(slog.DiscardHandler) { // the second client would log the same
		if rdb, err = b.dial(ctx, address); err != nil {
			return benchReport{}, err
		}
		defer rdb.Close()
		if len(clients) == 0 {
			if err := b.mayLoad(ctx, rdb, in, stderr); err != nil {
				return benchReport{}, err
			}
		}
		c, err := client.New(rdb, client.WithName("leasehold bench"), client.WithKeyPrefix(b.prefix), client.WithLogger(logger))
		if err != nil {
			return benchReport{}, usage(err)
		}
		defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
		clients = append(clients, c)
	}
	report := benchReport{Server: redacted(address), Mode: string(rdb.Mode())}
	cells := benchCalls(rdb, clients[0], clients[1])
	shows := terminal.NewProgress(stderr)
	for i, cell := range cells {
		end := time.Now().Add(time.Duration(len(cells)-i) * b.each)
		done := shows.Follow(func() string {
			return fmt.Sprintf("measuring %s, %d of %d: %s left", cell.name, i+1, len(cells), max(0, time.Until(end)).Round(time.Second))
		})
		c, err := measure(ctx, b.each, cell.workers, cell.call)
		done()
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		if err != nil {
			return report, fmt.Errorf("%s: %w", cell.name, err)
		}
		c.Name = cell.name
		report.Cells = append(report.Cells, c)
	}
	return report, nil
}

// benchCall is the call that a cell measures.
type benchCall struct {
	name    string // of the cell
	workers int
	call    func(ctx context.Context) (time.Duration, error)
}

// benchCalls returns the calls of all cells. The client b waits for what a holds, and rdb is a connection of one of them.
func benchCalls(rdb rueidis.Client, a, b *client.Client) []benchCall {
	name := "leasehold-bench:" + strings.ToLower(crand.Text()[:12])
	return []benchCall{
		{"round trip", 1, func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			err := rdb.Do(ctx, rdb.B().Ping().Build()).Error()
			return time.Since(began), err
		}},
		{"free", 1, cycle(a.NewLock(name + ":free"))},
		{"hot", benchHot, cycle(a.NewLock(name + ":hot"))},
		{"hand-off", 1, handOver(a.NewLock(name+":pass"), b.NewLock(name+":pass"))},
	}
}

// cycle returns a function that acquires and releases l, and returns the time of both.
func cycle(l lock.Locker) func(ctx context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		h, err := l.Lock(ctx)
		if err != nil {
			return 0, err
		}
		err = h.Unlock(ctx)
		return time.Since(began), err
	}
}

// handOver returns a function that measures the time from the release by one client until the other client, which
// waits, has the lock. The two take turns.
func handOver(a, b *reentrant.Lock) func(ctx context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		defer func() { a, b = b, a }()
		h, err := a.Lock(ctx)
		if err != nil {
			return 0, err
		}
		type granted struct {
			h   lock.Hold
			at  time.Time
			err error
		}
		waits := make(chan granted, 1)
		go func() {
			h, err := b.Lock(ctx)
			waits <- granted{h, time.Now(), err}
		}()
		for { // until b waits
			s, err := a.Inspect(ctx)
			if err != nil {
				err = errors.Join(err, h.Unlock(ctx))
				if g := <-waits; g.err == nil {
					err = errors.Join(err, g.h.Unlock(ctx))
				}
				return 0, err
			}
			if len(s.Waiters) > 0 || len(waits) > 0 {
				break
			}
		}
		began := time.Now()
		err = h.Unlock(ctx)
		g := <-waits
		if g.err == nil {
			err = errors.Join(err, g.h.Unlock(ctx))
		}
		return g.at.Sub(began), errors.Join(err, g.err)
	}
}

// measure calls call repeatedly from the given number of goroutines, for the given time and until at least one call is counted.
func measure(ctx context.Context, long time.Duration, workers int, call func(context.Context) (time.Duration, error)) (benchCell, error) {
	var (
		mu     sync.Mutex
		taken  sample
		failed error
		wg     sync.WaitGroup
	)
	ctx, cancel := context.WithTimeoutCause(ctx, long+replyLimit, fmt.Errorf("no reply from Redis within %v", replyLimit))
	defer cancel()
	warm := time.Now().Add(long / 10)
	end := time.Now().Add(long)
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				now := time.Now()
				mu.Lock()
				over := failed != nil || now.After(end) && taken.calls > 0 // on a slow server, the first call can outlast the cell
				mu.Unlock()
				if over {
					return
				}
				d, err := call(ctx)
				mu.Lock()
				if failed = cmp.Or(failed, err); failed == nil && now.After(warm) {
					taken.add(d, mostTaken)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return benchCell{}, failed
	}
	if taken.calls == 0 {
		return benchCell{}, context.Cause(ctx)
	}
	took := time.Since(warm)
	slices.Sort(taken.of)
	at := func(p float64) float64 {
		return float64(taken.of[int(math.Ceil(p*float64(len(taken.of))))-1]) / float64(time.Microsecond)
	}
	return benchCell{Calls: taken.calls, PerSecond: float64(taken.calls) / took.Seconds(), P50US: at(.5), P99US: at(.99), MaxUS: at(1)}, nil
}

// sample has the durations of all calls, or of a random choice of them.
type sample struct {
	of    []time.Duration
	calls int
}

// add adds a call to a sample that keeps at most this number of durations.
func (s *sample) add(d time.Duration, most int) {
	if s.calls++; len(s.of) < most {
		s.of = append(s.of, d)
	} else if i := rand.IntN(s.calls); i < most { // so each call is in the sample with the same probability
		s.of[i] = d
	}
}

// mayLoad returns an error if the server is busy with other clients and the user has not agreed.
func (b *bencher) mayLoad(ctx context.Context, rdb rueidis.Client, in io.Reader, stderr io.Writer) error {
	ops, err := opsPerSecond(ctx, rdb)
	if ops > busyOps && !b.yes { // the server counts the last 1.6 s, which may be those of another bench
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		ops, err = opsPerSecond(ctx, rdb)
	}
	switch {
	case b.yes:
		return nil
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		warn(stderr, "server load unknown: the user lacks permission for INFO")
		return nil
	case ops <= busyOps:
		return nil
	case !terminal.Is(in):
		return usagef("the server executes %d commands per second for other clients, which bench would slow down: use --yes", ops)
	}
	question := fmt.Sprintf("The server executes %d commands per second for other clients, which bench slows down. Continue", ops)
	return agreed(ctx, in, stderr, question, errors.New("nothing was measured"))
}

// opsPerSecond returns the number of commands that the busiest node executes per second.
func opsPerSecond(ctx context.Context, rdb rueidis.Client) (most int, err error) {
	nodes := map[string]rueidis.Client{"": rdb}
	if rdb.Mode() == rueidis.ClientModeCluster {
		nodes = rdb.Nodes()
	}
	for _, node := range nodes {
		text, err := node.Do(ctx, node.B().Info().Section("stats").Build()).ToString()
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(text) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "instantaneous_ops_per_sec:"); ok {
				n, _ := strconv.Atoi(value)
				most = max(most, n)
			}
		}
	}
	return most, nil
}
