//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

const (
	streamName      = "rw"
	streamReleases  = "released" // the key that counts releases
	streamProcesses = 4
	streamChains    = 2 // of each process
)

// A writer enters while readers come and go without a gap. Eight readers in four processes do not leave before they
// have entered again, as another owner, or were refused. There is therefore always a reader, unless a writer makes them
// wait. The test counts how many readers leave while the writer waits, because times vary on a busy machine.
//
//	writer preference      each reader inside leaves once, and one may enter in
//	                       the millisecond in which the writer comes; and readers of a
//	                       process that sent a request before the writer came may
//	                       share its reply for another ten milliseconds, in which each
//	                       chain can stay for one or two at a time
//	reader preference      hundreds leave while the writer waits, and it does not enter
func TestPreference(t *testing.T) {
	const (
		chains = streamProcesses * streamChains
		rounds = 20
	)
	server := redistest.Start(t)
	workers := make([]*worker, streamProcesses)
	for i := range workers {
		workers[i] = startWorker(t)
		workers[i].do(t, request{Do: "open", Addr: server.Addr()})
	}
	t.Run("writers first", func(t *testing.T) {
		s := startStream(t, server, workers, false)
		var left []int
		for range amount(rounds * 10) {
			w := s.write()
			before := s.left(t)
			h := soon(t, w)
			left = append(left, int(s.left(t)-before))
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			after := s.left(t) // the stream continues
			until(t, func() bool { return s.left(t) > after+chains })
		}
		slices.Sort(left)
		if most := left[len(left)-1]; most > (3+10)*chains {
			t.Errorf("%d readers left until the writer was in, and there were %d", most, chains)
		}
		s.stop(t)
		t.Logf("%d waits of the writer; readers that left during a wait: median %d, max %d; readers were held back %d times", len(left), left[len(left)/2], left[len(left)-1], s.gaps)
	})
	for _, test := range []struct {
		name            string
		readers, writer bool
	}{
		{"readers first, by the writer's handle", false, true},
		{"readers first, by the readers' handles", true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			const enough = 100 * chains
			var options []lock.Option
			if test.writer {
				options = append(options, lock.WithReaderPreference())
			}
			s := startStream(t, server, workers, test.readers)
			w := s.write(options...)
			before := s.left(t)
			until(t, func() bool { return s.left(t) > before+enough })
			select {
			case <-w:
				t.Error("the writer entered while readers come and go without a gap")
				return
			default:
			}
			s.stop(t)
			if err := soon(t, w).Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if s.gaps > 0 {
				t.Errorf("%d times a reader was held back", s.gaps)
			}
		})
	}
	for _, w := range workers {
		w.do(t, request{Do: "close"})
	}
	server.Do(t, "DEL", streamReleases)
	noKeys(t, server)
}

// stream is readers that come and go without a gap, in workers.
type stream struct {
	N                int           // goroutines in each worker
	ReaderPreference bool          // of the durations
	Seed             uint64        // of how long each stays
	Stay             time.Duration // how long each stays inside
	For              time.Duration // for loop: the duration
}

// streaming is a running stream.
type streaming struct {
	rdb     rueidis.Client
	c       *client.Client
	waits   chan struct{} // has a value when the writer has been refused
	t       *testing.T
	workers []*worker
	answers []<-chan reply
	gaps    int // set by stop: how often a reader was refused when it tried to enter again
}

func startStream(t *testing.T, server *redistest.Server, workers []*worker, readersFirst bool) *streaming {
	s := &streaming{t: t, rdb: server.Client(t), waits: make(chan struct{}, 1), workers: workers}
	s.c = ours(t, s.rdb, client.WithObserver(lock.Observer{Waiting: func(context.Context, lock.Event) { s.waits <- struct{}{} }}))
	for i, w := range workers {
		s.answers = append(s.answers, w.send(t, request{Do: "stream", Name: streamName, Stream: &stream{
			N: streamChains, ReaderPreference: readersFirst, Seed: uint64(i), Stay: 2 * time.Millisecond,
		}}))
	}
	before := s.left(t)
	until(t, func() bool { return s.left(t) > before+10*streamProcesses*streamChains }) // it has started
	return s
}

// write requests the write lock, and returns when it waits.
func (s *streaming) write(options ...lock.Option) <-chan lock.Hold {
	s.t.Helper()
	got := make(chan lock.Hold, 1)
	go func() {
		h, err := s.c.NewRWLock(streamName, options...).Write().Lock(s.t.Context())
		if err != nil {
			s.t.Error(err)
			close(got)
			return
		}
		got <- h
	}()
	soon(s.t, s.waits)
	return got
}

// left returns how many readers have left so far.
func (s *streaming) left(t *testing.T) int64 {
	t.Helper()
	n, err := orNil(s.rdb.Do(t.Context(), s.rdb.B().Get().Key(streamReleases).Build()).AsInt64())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *streaming) stop(t *testing.T) {
	t.Helper()
	for _, w := range s.workers {
		w.do(t, request{Do: "enough"})
	}
	for _, answer := range s.answers {
		s.gaps += value[int](t, must(t, receive(t, answer)))
	}
}

// stream reads without a gap, until enough is set. It returns the number of gaps, which occur when a reader is refused
// to enter again.
func (p *process) stream(ctx context.Context, r request) (int, error) {
	p.enough.Store(false)
	var options []lock.Option
	if r.Stream.ReaderPreference {
		options = append(options, lock.WithReaderPreference())
	}
	l := p.client.NewRWLock(r.Name, options...).Read()
	var gaps atomic.Int64
	errs := make(chan error, r.Stream.N)
	for i := range r.Stream.N {
		go func() { errs <- p.chain(ctx, l, rand.New(rand.NewPCG(r.Stream.Seed, uint64(i))), r.Stream.Stay, &gaps) }()
	}
	var all []error
	for range r.Stream.N {
		all = append(all, <-errs)
	}
	return int(gaps.Load()), errors.Join(all...)
}

// chain reads as one owner after the other; each comes before the previous one leaves.
func (p *process) chain(ctx context.Context, l lock.Locker, random *rand.Rand, stay time.Duration, gaps *atomic.Int64) error {
	h, err := l.Lock(ctx)
	for err == nil && !p.enough.Load() {
		time.Sleep(stay/2 + time.Duration(random.Int64N(int64(stay/2)))) // the work
		next, refused := l.TryLock(ctx)
		if refused != nil && !errors.Is(refused, lock.ErrNotAcquired) {
			return refused
		}
		if err := p.side.Do(ctx, p.side.B().Incr().Key(streamReleases).Build()).Error(); err != nil {
			return err
		}
		if err := h.Unlock(ctx); err != nil {
			return err
		}
		if h = next; refused != nil {
			gaps.Add(1)
			h, err = l.Lock(ctx)
		}
	}
	if err != nil {
		return err
	}
	return h.Unlock(ctx)
}

// BenchmarkPreference measures the cost of writer preference to readers: sixteen readers in four processes, with none,
// one and four writers that write repeatedly. All of them hold the lock for the time in the name.
//
//	go test -run '^$' -bench Preference -benchtime 4x -count 6
func BenchmarkPreference(b *testing.B) {
	const readers, readerProcesses, slice = 16, 4, 500 * time.Millisecond
	for _, stay := range []time.Duration{0, time.Millisecond} {
		for _, writers := range []int{0, 1, 4} {
			for _, first := range []string{"writers pass", "readers first"} {
				b.Run(fmt.Sprintf("hold %v/%d writers/%s", stay, writers, first), func(b *testing.B) {
					server := redistest.Start(b)
					var workers []*worker
					var requests []request
					add := func(k kind, n int) {
						w := startWorker(b)
						w.do(b, request{Do: "open", Addr: server.Addr()})
						workers = append(workers, w)
						requests = append(requests, request{Do: "loop", Kind: k, Name: streamName, Stream: &stream{
							N: n, ReaderPreference: first == "readers first", Stay: stay, For: slice,
						}})
					}
					for range readerProcesses {
						add(read, readers/readerProcesses)
					}
					for range writers {
						add(write, 1)
					}
					var reads, writes int
					for b.Loop() {
						var answers []<-chan reply
						for i, w := range workers {
							answers = append(answers, w.send(b, requests[i]))
						}
						for i, answer := range answers {
							n := value[int](b, must(b, receive(b, answer)))
							if requests[i].Kind == read {
								reads += n
							} else {
								writes += n
							}
						}
					}
					b.ReportMetric(float64(reads)/b.Elapsed().Seconds(), "reads/s")
					b.ReportMetric(float64(writes)/b.Elapsed().Seconds(), "writes/s")
				})
			}
		}
	}
}

// loop locks and unlocks for a while, and returns the number of times.
func (p *process) loop(ctx context.Context, r request) (int, error) {
	var options []lock.Option
	if r.Stream.ReaderPreference {
		options = append(options, lock.WithReaderPreference())
	}
	l := r.Kind.lock(p.client, r.Name, options...)
	end := time.Now().Add(r.Stream.For)
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range r.Stream.N {
		wg.Go(func() {
			for time.Now().Before(end) {
				h, err := l.Lock(ctx)
				if err == nil {
					if r.Stream.Stay > 0 {
						time.Sleep(r.Stream.Stay) // the work
					}
					err = h.Unlock(ctx)
				}
				if err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return int(n.Load()), nil
}
