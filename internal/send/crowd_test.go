package send_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/send"
	"github.com/leasehold-go/leasehold/lock"
)

// server answers each number with its double, after a second.
type server struct {
	mu      sync.Mutex
	batches [][]int // guarded by mu
	err     error   // set once
}

func (s *server) ask(ctx context.Context, questions []int) (answers []int, err error) {
	s.mu.Lock()
	s.batches = append(s.batches, slices.Clone(questions))
	s.mu.Unlock()
	time.Sleep(time.Second)
	for _, q := range questions {
		answers = append(answers, 2*q)
	}
	return answers, errors.Join(s.err, ctx.Err())
}

func (s *server) asked() [][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches)
}

// inCrowd runs f with a crowd whose batches have size 10 at most; the size of a question is its
// number.
func inCrowd(t *testing.T, srv *server, f func(t *testing.T, s *send.Sender, c *send.Crowd[int, int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := send.New(nil, "", time.Minute)
		f(t, s, send.NewCrowd(s, srv.ask, func(q int) int { return q }, 10))
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// While two batches are in flight, the questions of other callers collect. They are sent next, in
// order of arrival, as many together as fit.
func TestCrowd(t *testing.T) {
	srv := new(server)
	inCrowd(t, srv, func(t *testing.T, s *send.Sender, c *send.Crowd[int, int]) {
		var callers sync.WaitGroup
		for _, q := range []int{1, 2, 3, 4, 5, 11, 6} {
			callers.Go(func() {
				if a, err := c.Ask(t.Context(), q); a != 2*q || err != nil {
					t.Errorf("%d: %d, %v", q, a, err)
				}
			})
			synctest.Wait()
		}
		callers.Wait()
		if got := fmt.Sprint(srv.asked()); got != "[[1] [2] [3 4] [5] [11] [6]]" {
			t.Errorf("asked %v", got)
		}
	})
}

// If answers take long, one more batch follows the latest after a pause, up to eight.
func TestCrowd_distance(t *testing.T) {
	srv := new(server)
	inCrowd(t, srv, func(t *testing.T, s *send.Sender, c *send.Crowd[int, int]) {
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() { _, _ = c.Ask(t.Context(), 1) })
			time.Sleep(time.Millisecond)
		}
		if n := len(srv.asked()); n != 8 {
			t.Errorf("%d questions are under way, want 8", n)
		}
		callers.Wait()
		if n := len(srv.asked()); n != 9 {
			t.Errorf("%d questions, want 9: two callers together", n)
		}
	})
}

// The question of a caller that leaves before it is sent is dropped. The answer for a caller that
// leaves later is, too.
func TestCrowd_leaves(t *testing.T) {
	srv := new(server)
	inCrowd(t, srv, func(t *testing.T, s *send.Sender, c *send.Crowd[int, int]) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		var callers sync.WaitGroup
		for q := range 4 {
			callers.Go(func() {
				if _, err := c.Ask(ctx, q); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%d: %v", q, err)
				}
			})
			synctest.Wait()
		}
		callers.Wait()
		if a, err := c.Ask(t.Context(), 5); a != 10 || err != nil {
			t.Errorf("%d, %v", a, err)
		}
		if got := fmt.Sprint(srv.asked()); got != "[[0] [1] [5]]" {
			t.Errorf("asked %v", got)
		}
	})
}

// If a batch fails, all of its callers get the error, as Told returns it.
func TestCrowd_fails(t *testing.T) {
	srv := &server{err: context.DeadlineExceeded}
	inCrowd(t, srv, func(t *testing.T, s *send.Sender, c *send.Crowd[int, int]) {
		var callers sync.WaitGroup
		for q := range 4 {
			callers.Go(func() {
				if _, err := c.Ask(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%d: %v", q, err)
				}
			})
		}
		callers.Wait()
	})
}

// No caller waits longer than the timeout. Closing the sender ends the wait, and waits for the
// batches in flight.
func TestCrowd_silence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := send.New(nil, "", time.Minute)
		answer := make(chan struct{})
		c := send.NewCrowd(s, func(context.Context, []int) ([]int, error) {
			<-answer
			return nil, lock.ErrUnavailable
		}, func(int) int { return 1 }, 10)
		start := time.Now()
		if _, err := c.Ask(t.Context(), 1); !errors.Is(err, lock.ErrUnavailable) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := s.Close(ctx); err == nil {
				t.Error("Close does not wait for the questions under way")
			}
			close(answer)
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		if _, err := c.Ask(t.Context(), 2); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("it closes: %v", err)
		}
		<-closed
		if _, err := c.Ask(t.Context(), 3); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("it is closed: %v", err)
		}
	})
}

// A caller whose context is canceled sends no question, even if a batch could start.
func TestCrowd_ended(t *testing.T) {
	srv := new(server)
	inCrowd(t, srv, func(t *testing.T, _ *send.Sender, c *send.Crowd[int, int]) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			if _, err := c.Ask(ctx, 1); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			synctest.Wait()
		}
		if got := srv.asked(); len(got) != 0 {
			t.Errorf("asked %v", got)
		}
	})
}

// Many callers ask one after another, alone and in pairs. Each is answered immediately, however many
// came before.
func TestCrowd_again(t *testing.T) {
	inCrowd(t, new(server), func(t *testing.T, _ *send.Sender, c *send.Crowd[int, int]) {
		for i := range 3 * 8 {
			var callers sync.WaitGroup
			for q := range 1 + i%2 {
				callers.Go(func() {
					start := time.Now()
					if a, err := c.Ask(t.Context(), q); a != 2*q || err != nil || time.Since(start) != time.Second {
						t.Errorf("question %d of caller %d: %d, %v after %v", q, i, a, err, time.Since(start))
					}
				})
			}
			callers.Wait()
		}
	})
}
