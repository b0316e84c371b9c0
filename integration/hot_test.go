//go:build linux

package integration_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"golang.org/x/sys/unix"
)

// A hot lock, which is mostly handed off inside a process, never has two owners. A history of so many acquisitions is
// too long to keep. Instead, the processes share a page of memory, and each owner checks that no other owner is
// inside, that its token is larger than the previous owner's, and increments a counter by reading and writing it. At
// the end, the counter must equal the number of acquisitions.
//
// The checker is exact: two owners at once are detected by the one that enters second, or by the one that leaves
// first.
func TestFigures_hotLock(t *testing.T) {
	total := 100_000
	if os.Getenv("LEASEHOLD_FIGURES") != "" {
		total = 8_500_000
	}
	sum, took := hotLock(t, total, func(int) string { return "hot" })
	if sum.Wrong > 0 || sum.Counted != uint64(sum.Grants) {
		t.Errorf("%d findings, and %d of %d acquisitions were counted", sum.Wrong, sum.Counted, sum.Grants)
	}
	t.Logf("figure: %d acquisitions of one lock by %d goroutines in %d processes in %v, %.0f per second; each checked shared memory for another owner, a token that did not grow, and lost updates: %d found",
		sum.Grants, hotProcesses*hotGoroutines, hotProcesses, took.Round(100*time.Millisecond), float64(sum.Grants)/took.Seconds(), sum.Wrong)
}

// The checker detects violations: here each process has a separate lock.
func TestFigures_hotLockBites(t *testing.T) {
	sum, _ := hotLock(t, 20_000, func(process int) string { return "hot" + strconv.Itoa(process) })
	if sum.Wrong == 0 {
		t.Errorf("no process saw another owner: %+v", sum)
	}
}

const (
	hotProcesses  = 4
	hotGoroutines = 8 // of each process
)

// hot is the work of one process.
type hot struct {
	Name, File string
	Me, Grants int
}

// heat is the result. Counted covers all processes.
type heat struct {
	Grants, Wrong int
	Counted       uint64
}

// hotLock makes processes acquire locks, until there were total acquisitions.
func hotLock(t *testing.T, total int, name func(process int) string) (sum heat, took time.Duration) {
	t.Helper()
	server := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "page")
	if err := os.WriteFile(file, make([]byte, os.Getpagesize()), 0o600); err != nil {
		t.Fatal(err)
	}
	var workers []*worker
	for range hotProcesses {
		w := startWorker(t)
		w.do(t, request{Do: "open", Addr: server.Addr()})
		workers = append(workers, w)
	}
	start := time.Now()
	var answers []<-chan reply
	for i, w := range workers {
		answers = append(answers, w.send(t, request{Do: "hot", Hot: &hot{name(i), file, i + 1, total / hotProcesses}}))
	}
	for _, answer := range answers {
		part := value[heat](t, must(t, receiveWithin(t, answer, 25*time.Minute)))
		sum.Grants += part.Grants
		sum.Wrong += part.Wrong
		sum.Counted = max(sum.Counted, part.Counted)
	}
	took = time.Since(start)
	for _, w := range workers {
		w.do(t, request{Do: "close"})
	}
	noKeys(t, server)
	return sum, took
}

// The words of the page.
const (
	hotInside  = iota // the owner that is inside; 0 if there is none
	hotToken          // of the latest owner
	hotCounter        // incremented by reading and writing
	hotWords
)

// hot acquires the lock repeatedly, on the worker's side.
func (p *process) hot(ctx context.Context, r hot) (sum heat, err error) {
	file, err := os.OpenFile(r.File, os.O_RDWR, 0)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	memory, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(memory)) }()
	page := (*[hotWords]uint64)(unsafe.Pointer(&memory[0]))
	var grants, wrong atomic.Int64
	var left atomic.Int64
	left.Store(int64(r.Grants))
	var wg sync.WaitGroup
	errs := make([]error, hotGoroutines)
	for i := range hotGoroutines {
		wg.Go(func() {
			me := uint64(r.Me*hotGoroutines + i)
			l := p.client.NewLock(r.Name)
			for left.Add(-1) >= 0 {
				h, err := l.Lock(ctx)
				if err != nil {
					errs[i] = err
					return
				}
				grants.Add(1)
				if !atomic.CompareAndSwapUint64(&page[hotInside], 0, me) {
					wrong.Add(1)
				}
				if atomic.SwapUint64(&page[hotToken], h.Token()) >= h.Token() {
					wrong.Add(1)
				}
				n := atomic.LoadUint64(&page[hotCounter])
				if h.Err() != nil {
					wrong.Add(1)
				}
				atomic.StoreUint64(&page[hotCounter], n+1)
				if !atomic.CompareAndSwapUint64(&page[hotInside], me, 0) {
					wrong.Add(1)
				}
				if err := h.Unlock(ctx); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return heat{int(grants.Load()), int(wrong.Load()), atomic.LoadUint64(&page[hotCounter])}, errors.Join(errs...)
}
