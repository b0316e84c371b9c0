package fence_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/fencetest"
	"github.com/leasehold-go/leasehold/internal/redistest"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

const (
	younger uint64 = fencetest.Younger
	older   uint64 = fencetest.Older
)

func TestStaleError(t *testing.T) {
	var marks fence.Marks
	mark := marks.Of("orders:42")
	if err := mark.Check(9); err != nil {
		t.Fatal(err)
	}
	err := mark.Check(5)
	fencetest.IsStale(t, "check", err, 5, 9)
	if want := `leasehold: fence "orders:42": stale fencing token 5: highest token seen is 9`; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func TestMark(t *testing.T) {
	for name, check := range map[string]func(m *fence.Mark, token uint64) error{
		"Check": (*fence.Mark).Check,
		"Do":    func(m *fence.Mark, token uint64) error { return m.Do(token, func() error { return nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			var m fence.Mark
			for _, c := range []struct {
				token, highest uint64 // after the call
			}{
				{0, 0}, {older, older}, {older, older}, {0, older}, {younger, younger}, {older, younger},
				{1, younger}, {younger, younger}, {math.MaxUint64, math.MaxUint64}, {younger, math.MaxUint64}, {0, math.MaxUint64},
			} {
				err := check(&m, c.token)
				what := fmt.Sprintf("%d, mark %d", c.token, c.highest)
				switch {
				case c.token == 0:
					fencetest.IsNoToken(t, what, err)
				case c.token < c.highest:
					fencetest.IsStale(t, what, err, c.token, c.highest)
				case err != nil:
					t.Errorf("%s: %v", what, err)
				}
				if got := m.Highest(); got != c.highest {
					t.Errorf("%s: the mark is %d", what, got)
				}
			}
		})
	}
}

// Many writers use tokens in all orders. The tokens of the executed writes never decrease, and no
// two writes run at the same time.
func TestMark_Do_inOrder(t *testing.T) {
	var (
		m      fence.Mark
		inside atomic.Int32
		passed []uint64 // tokens of the executed writes; appended by one writer at a time
		wg     sync.WaitGroup
	)
	var tokens atomic.Uint64
	for range 16 {
		wg.Go(func() {
			for i := range 500 {
				token := younger + tokens.Add(1) - uint64(i*i%7) // grows, with some steps back
				err := m.Do(token, func() error {
					if n := inside.Add(1); n != 1 {
						t.Errorf("%d inside", n)
					}
					passed = append(passed, token)
					runtime.Gosched() // let other goroutines arrive and wait
					inside.Add(-1)
					return nil
				})
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range passed[1:] {
		if passed[i+1] < passed[i] {
			t.Fatalf("write %d has token %d, the one before it %d", i+1, passed[i+1], passed[i])
		}
	}
	if n := len(passed); n < 1000 || n == 16*500 || passed[n-1] != m.Highest() {
		t.Errorf("%d writes, the last with %d of %d: that proves little", n, passed[n-1], m.Highest())
	}
}

// together calls f in n goroutines, as close to the same time as possible.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	var ready atomic.Int32
	for i := range n {
		wg.Go(func() {
			for ready.Add(1); ready.Load() < int32(n); {
				runtime.Gosched()
			}
			f(i)
		})
	}
	wg.Wait()
}

// Of two concurrent tokens the larger one stays. The race window is nanoseconds, so the goroutines
// repeat this for a while.
func TestMark_Check_atOnce(t *testing.T) {
	var m fence.Mark
	var arrived atomic.Int64
	meet := func(n int64) { // returns when both goroutines have called it n times
		for arrived.Add(1); arrived.Load() < 2*n; {
			runtime.Gosched()
		}
	}
	var stop atomic.Bool
	end := time.AfterFunc(300*time.Millisecond, func() { stop.Store(true) })
	defer end.Stop()
	together(2, func(i int) {
		for round := int64(1); ; round++ {
			meet(3*round - 2)
			over := stop.Load() && i == 0 // goroutine 0 decides for both
			token := uint64(2*round) + uint64(i)
			if over {
				token = math.MaxUint64
			}
			if err := m.Check(token); err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
			meet(3*round - 1)
			highest := m.Highest()
			if highest < uint64(2*round+1) {
				t.Errorf("round %d: the mark is %d after %d", round, highest, 2*round+1)
			}
			meet(3 * round)
			if highest == math.MaxUint64 || highest < uint64(2*round+1) {
				return
			}
		}
	})
}

// 1. An older holder writes. 2. It tries to write again. 3. A newer holder calls Check. 4. The
// first write ends. The second write must not begin.
func TestMark_Do_overtaken(t *testing.T) {
	var m fence.Mark
	inside, leave := make(chan struct{}), make(chan struct{})
	first, second := make(chan error), make(chan error)
	go func() {
		first <- m.Do(older, func() error { close(inside); <-leave; return nil }) // 1
	}()
	<-inside
	go func() { // 2
		second <- m.Do(older, func() error { t.Error("a stale holder wrote"); return nil })
	}()
	if err := m.Check(younger); err != nil { // 3
		t.Error(err)
	}
	close(leave) // 4
	if err := <-first; err != nil {
		t.Error(err)
	}
	fencetest.IsStale(t, "the second write", <-second, older, younger)
}

// Do returns the error of a write unchanged, and a panic leaves the mark usable.
func TestMark_Do_fails(t *testing.T) {
	var m fence.Mark
	broken := errors.New("disk full")
	if err := m.Do(older, func() error { return broken }); err != broken {
		t.Errorf("%v", err)
	}
	if m.Highest() != older {
		t.Errorf("the mark is %d", m.Highest())
	}
	func() {
		defer func() { _ = recover() }()
		_ = m.Do(older, func() error { panic("oh") })
	}()
	if err := m.Do(older, func() error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestMarks(t *testing.T) {
	var m fence.Marks
	m.Forget("a")
	if err := m.Of("a").Check(younger); err != nil {
		t.Error(err)
	}
	if err := m.Of("b").Check(older); err != nil { // a different resource, a different token counter
		t.Error(err)
	}
	fencetest.IsStale(t, "the same resource", m.Of("a").Check(older), older, younger)
	if m.Len() != 2 {
		t.Errorf("%d marks", m.Len())
	}
	m.Forget("a")
	if m.Len() != 1 {
		t.Errorf("%d marks", m.Len())
	}
	if err := m.Of("a").Check(older); err != nil {
		t.Errorf("a resource that was forgotten: %v", err)
	}

}

// All goroutines that request the mark of one name concurrently get the same mark.
func TestMarks_atOnce(t *testing.T) {
	var m fence.Marks
	for round := range 20_000 {
		name := fmt.Sprint(round)
		var marks [4]*fence.Mark
		together(len(marks), func(i int) { marks[i] = m.Of(name) })
		for _, mark := range marks {
			if mark != marks[0] {
				t.Fatalf("round %d: one name has two marks", round)
			}
		}
	}
}
