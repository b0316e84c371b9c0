//go:build linux

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// stage is a contender in a cell: its worker processes, and the cell's server.
type stage struct {
	*bench
	cell      *cell
	contender string
	server    *server
	way       *delay // nil without an added round trip
	board     *board
	boardFile string
	unmap     func()
	workers   []*worker
	warm      bool // warmUp is done
}

// sample is the result of one slice of one contender, by metric.
type sample map[string]float64

func (b *bench) newStage(c *cell, contender string, s *server, way *delay) (*stage, error) {
	st := &stage{bench: b, cell: c, contender: contender, server: s, way: way}
	st.boardFile = filepath.Join(b.dir, "board-"+contender)
	var err error
	if st.board, st.unmap, err = openBoard(st.boardFile); err != nil {
		return nil, err
	}
	if err := st.start(); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// start starts the worker processes, and waits until they are up: a worker that is still starting would slow down other
// contenders, and lose its locks when they delete all keys.
func (s *stage) start() error {
	addr := s.server.addr
	if s.way != nil {
		addr = s.way.addr()
	}
	for p := range s.cell.processes {
		r := role{Contender: s.contender, Settings: s.cell.settings, Process: p, Board: s.boardFile}
		r.Settings.Addr = addr
		r.Settings.Cluster = s.cell.masters > 1
		r.Settings.Lease = s.lease()
		r.Redisson = s.redisson
		r.CPU, r.Mem = profiles(s.cpuprofile, s.memprofile, s.cell.name, s.contender, p)
		w, err := startWorker(r)
		if err != nil {
			return err
		}
		s.workers = append(s.workers, w)
	}
	_, err := s.all(job{Do: "look"})
	return err
}

// lease returns the lease of locks.
func (s *stage) lease() time.Duration {
	return cmp.Or(s.cell.settings.Lease, 30*time.Second)
}

func (s *stage) stop() {
	var wg sync.WaitGroup
	for _, w := range s.workers {
		wg.Go(w.stop)
	}
	wg.Wait()
	s.workers, s.warm = nil, false
}

func (s *stage) close() {
	s.stop()
	s.unmap()
	os.Remove(s.boardFile)
}

// slice runs the cell's work once, with nothing left over from the previous slice.
func (s *stage) slice() (sample, error) {
	if s.workers == nil {
		if err := s.start(); err != nil {
			s.stop()
			return nil, err
		}
	}
	if err := s.server.flush(); err != nil {
		return nil, err
	}
	*s.board = board{}
	if _, err := s.all(job{Do: "look"}); err != nil { // workers collect their garbage
		return nil, err
	}
	if _, err := s.server.counted(); err != nil {
		return nil, err
	}
	got, err := s.cell.slice(s)
	if err != nil || got["hung"] > 0 {
		s.stop() // the next slice starts new workers
	}
	return got, err
}

// all gives a job to all workers, and waits for all.
func (s *stage) all(j job) ([]result, error) {
	for _, w := range s.workers {
		if err := w.send(j); err != nil {
			return nil, err
		}
	}
	results := make([]result, len(s.workers))
	for i, w := range s.workers {
		var err error
		if results[i], err = w.receive(); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// allMeasured is all, plus round-trip measurements and, if not nil, beside, both running in parallel with the job.
func (s *stage) allMeasured(j job, beside func() error) (results []result, roundTrips []time.Duration, err error) {
	var besideErr, tripErr error
	var wg sync.WaitGroup
	if beside != nil {
		wg.Go(func() {
			sleepUntil(j.Begin)
			besideErr = beside()
		})
	}
	wg.Go(func() { roundTrips, tripErr = s.roundTrips(j) })
	results, err = s.all(j)
	wg.Wait()
	return results, roundTrips, cmp.Or(err, besideErr, tripErr)
}

// one gives a job to one worker, and waits.
func (s *stage) one(process int, j job) (result, error) {
	if err := s.workers[process].send(j); err != nil {
		return result{}, err
	}
	return s.workers[process].receive()
}

// ready is the time that workers have to prepare a job.
const ready = 50 * time.Millisecond

// warmUp makes a Java worker run the job once per process before it is measured, so that its code is compiled.
func (s *stage) warmUp(j job) error {
	if contenders[s.contender].kind != java || s.warm {
		return nil
	}
	s.warm = true
	_, err := s.one(0, s.timed(j, s.time(3*time.Second)))
	return err
}

// timed returns j with an end, and with the same begin for all workers.
func (s *stage) timed(j job, d time.Duration) job {
	j.ComeBack = s.comeBack()
	j.Begin = monotonic() + int64(ready)
	j.End = j.Begin + int64(d)
	return j
}

// loop is a slice of cells in which all workers lock and unlock for d.
func loop(j job, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) { return s.loop(j, s.time(d), nil) }
}

// loop runs j for d, and calls beside once j has begun.
func (s *stage) loop(j job, d time.Duration, beside func() error) (sample, error) {
	j = s.timed(j, d)
	results, roundTrips, err := s.allMeasured(j, beside)
	if err != nil {
		return nil, err
	}
	counted, err := s.server.counted()
	if err != nil {
		return nil, err
	}

	var sum result
	for _, r := range results {
		sum.Counts = append(sum.Counts, r.Counts...)
		sum.Total += r.Total
		sum.Switches += r.Switches
		sum.Moves += r.Moves
		sum.AllMoves += r.AllMoves
		sum.Violations += r.Violations
		sum.Failed += r.Failed
		sum.Hung += r.Hung
		sum.CPU += r.CPU
		sum.Mallocs += r.Mallocs
		sum.Bytes += r.Bytes
		sum.Waits.add(&r.Waits)
		sum.Longest = max(sum.Longest, r.Longest)
	}
	if sum.Total == 0 && sum.Hung == 0 {
		return nil, fmt.Errorf("no lock in %v; %d calls failed", d, sum.Failed)
	}
	var count int64
	starved := 0
	for _, n := range sum.Counts {
		count += n
		if n == 0 {
			starved++
		}
	}
	total, seconds := float64(sum.Total), d.Seconds()
	commands := float64(counted.sentBy(contenders[s.contender]))
	got := sample{
		"locks/s":    float64(count) / seconds,
		"switches/s": float64(sum.Switches) / seconds,
		"moves/s":    float64(sum.Moves) / seconds,
		"locks/rtt":  float64(count) / seconds * mean(roundTrips).Seconds(),
		"moves/rtt":  float64(sum.Moves) / seconds * mean(roundTrips).Seconds(),
		"sent/lock":  commands / total,
		"sent/move":  commands / float64(sum.AllMoves),
		"busy/lock":  us(counted.busyBy(contenders[s.contender])) / total,
		"cpu/lock":   us(sum.CPU) / total,
		"allocs":     float64(sum.Mallocs) / total,
		"bytes":      float64(sum.Bytes) / total,
		"p50 us":     us(sum.Waits.quantile(0.5)),
		"p99 ms":     ms(sum.Waits.quantile(0.99)),
		"longest ms": ms(sum.Longest),
		"jain":       jain(sum.Counts),
		"starved":    float64(starved),
		"violations": float64(sum.Violations),
		"failed":     float64(sum.Failed),
		"hung":       float64(sum.Hung),
	}
	if contenders[s.contender].kind == java { // Java does not report these
		delete(got, "allocs")
		delete(got, "bytes")
	}
	return got, nil
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// jain returns Jain's fairness index: 1 if all counts are equal, 1/n if one has everything, NaN if all are 0.
func jain(counts []int64) float64 {
	var sum, squares float64
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(counts)) * squares)
}

// roundTrips measures the round trip to the server during the job, because a busy machine makes it longer. Without a
// proxy, it measures nothing.
func (s *stage) roundTrips(j job) (took []time.Duration, err error) {
	if s.way == nil {
		return nil, nil
	}
	w, err := dial(s.way.addr())
	if err != nil {
		return nil, err
	}
	defer w.conn.Close()
	for sleepUntil(j.Begin); len(took) == 0 || monotonic() < j.End; wait(monotonic() + 5_000_000) {
		began := time.Now()
		if _, err := w.ask("PING"); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// median and mean return 0 for no durations.
func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func mean(all []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(max(len(all), 1))
}

// handover is the slice of callers that hand a lock back and forth for d, goroutines of them in each process. The
// holder works long enough for the other to be waiting.
func handover(goroutines int, inside, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		d := max(s.time(d), 100*inside)
		j := s.timed(job{Do: "handover", Goroutines: goroutines, Inside: inside}, d)
		results, roundTrips, err := s.allMeasured(j, nil)
		if err != nil {
			return nil, err
		}
		counted, err := s.server.counted()
		if err != nil {
			return nil, err
		}
		var took []time.Duration
		var total, violations, failed, hung float64
		for _, r := range results {
			took = append(took, r.Handovers...)
			total += float64(r.Total)
			violations += float64(r.Violations)
			failed += float64(r.Failed)
			hung += float64(r.Hung)
		}
		if hung > 0 { // the times measured before that mean little
			return sample{"hung": hung}, nil
		}
		if len(took) == 0 {
			return nil, fmt.Errorf("not once passed on in %v", d)
		}
		p50 := median(took) // also sorts took
		got := sample{
			"p50 us":     us(p50),
			"p99 us":     us(took[len(took)*99/100]),
			"sent/lock":  float64(counted.sentBy(contenders[s.contender])) / total,
			"violations": violations,
			"failed":     failed,
		}
		if s.way != nil {
			got["p50 rtt"] = float64(p50) / float64(median(roundTrips))
		}
		return got, nil
	}
}

// waiters is the slice of n goroutines that wait for d for a lock held by another process, and then acquire it one
// after the other.
func waiters(n int, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		n, d := s.many(n), s.time(d)
		const holds, waits = 0, 1
		if took, err := s.one(holds, job{Do: "take", Names: 1, ComeBack: s.comeBack()}); err != nil || took.Hung > 0 {
			return sample{"hung": float64(took.Hung)}, err
		}
		empty, err := s.one(waits, job{Do: "look"})
		if err != nil {
			return nil, err
		}
		if _, err := s.one(waits, job{Do: "queue", Goroutines: n}); err != nil {
			return nil, err
		}
		time.Sleep(s.time(time.Second)) // for all to send a request and subscribe
		before, err := s.one(waits, job{Do: "look"})
		if err != nil {
			return nil, err
		}
		if _, err := s.server.counted(); err != nil {
			return nil, err
		}
		time.Sleep(d)
		waiting, err := s.server.counted()
		if err != nil {
			return nil, err
		}
		after, err := s.one(waits, job{Do: "look"})
		if err != nil {
			return nil, err
		}
		if err := s.workers[waits].send(job{Do: "drain", ComeBack: 12 * s.comeBack()}); err != nil {
			return nil, err
		}
		time.Sleep(ready)
		gave, err := s.one(holds, job{Do: "give"})
		if err != nil {
			return nil, err
		}
		drained, err := s.workers[waits].receive()
		if err != nil {
			return nil, err
		}
		draining, err := s.server.counted()
		if err != nil {
			return nil, err
		}
		e := contenders[s.contender]
		return sample{
			"sent/s":     float64(waiting.sentBy(e)) / d.Seconds(),
			"cpu/s":      ms(after.CPU-before.CPUAfter) / d.Seconds(),
			"KB":         float64(before.RSS-empty.RSS) / 1024 / float64(n),
			"drain ms":   float64(drained.At-gave.At) / 1e6,
			"sent/drain": float64(draining.sentBy(e)),
			"violations": float64(drained.Violations),
			"failed":     float64(drained.Failed + gave.Failed),
			"hung":       float64(drained.Hung),
		}, nil
	}
}

// holding is the slice of n locks that are held for d.
func holding(n int, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		n, d := s.many(n), max(s.time(d), 2*time.Second) // at least one renewal
		empty, err := s.one(0, job{Do: "look"})
		if err != nil {
			return nil, err
		}
		if took, err := s.one(0, job{Do: "take", Names: n, ComeBack: 12 * s.comeBack()}); err != nil || took.Hung > 0 {
			return sample{"hung": float64(took.Hung)}, err
		}
		before, err := s.one(0, job{Do: "look"})
		if err != nil {
			return nil, err
		}
		var others time.Duration
		counted, busy, err := s.server.during(func() (err error) {
			others, err = probe(s.server.addr, d)
			return err
		})
		if err != nil {
			return nil, err
		}
		after, err := s.one(0, job{Do: "look"})
		if err != nil {
			return nil, err
		}
		gave, err := s.one(0, job{Do: "give"})
		if err != nil {
			return nil, err
		}
		return sample{
			"sent/s":     float64(counted.sentBy(contenders[s.contender])) / d.Seconds(),
			"cpu/s":      ms(after.CPU-before.CPUAfter) / d.Seconds(),
			"server/s":   ms(busy) / d.Seconds(),
			"goroutines": float64(after.Routines),
			"KB":         float64(after.RSS-empty.RSS) / 1024 / float64(n),
			"lost":       float64(gave.Failed),
			"others ms":  ms(others),
		}, nil
	}
}

// probe sends its own commands for d, and returns the 99th percentile of the latencies of those that coincided with
// renewals: the server executed other commands since the previous one.
func probe(addr string, d time.Duration) (time.Duration, error) {
	w, err := dial(addr)
	if err != nil {
		return 0, err
	}
	defer w.conn.Close()
	var met histogram
	var before int64
	for end := monotonic() + int64(d); monotonic() < end; wait(monotonic() + 300_000) {
		began := time.Now()
		info, err := w.ask("INFO stats")
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(info, "total_commands_processed:")
		number, _, _ := strings.Cut(rest, "\r")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, err
		}
		if before > 0 && n-before > 5 { // more than a few PINGs
			met.note(took)
		}
		before = n
	}
	return met.quantile(0.99), nil
}

// stall is a slice in which the server is paused for a while, several times.
func stall(j job, still, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		d := max(s.time(d), 10*still)
		return s.loop(j, d, func() error {
			for range 3 {
				time.Sleep(d / 6)
				if err := s.server.freeze(still); err != nil {
					return err
				}
			}
			return nil
		})
	}
}
