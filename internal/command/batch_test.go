package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// distantServer is a simulated server for a batcher, including the client library.
type distantServer struct {
	rueidis.Client
	mode    rueidis.ClientMode
	trip    func() time.Duration
	refuses func(c *luascripts.Change) error // nil refuses nothing

	mu       sync.Mutex
	sizes    []int // of each batch
	executed map[string]int
	order    []string
	inFlight int
	most     int // the maximum number of batches in flight at the same time
}

func (f *distantServer) Mode() rueidis.ClientMode { return f.mode }

// sender returns a sender on f.
func (f *distantServer) sender(t *testing.T) *Sender {
	f.executed = make(map[string]int)
	s := New(f, Config{Timeout: timeout, Idle: Idlers})
	s.change = f.change
	t.Cleanup(func() {
		s.Shut()
		s.Wait()
		s.batchers.Range(func(_, b any) bool {
			if b := b.(*Batcher[luascripts.Change]); b.workers != 0 || len(b.queue) != 0 || b.pause.runs {
				t.Errorf("after the end there are %d workers and %d requests in the queue; a timer runs: %t", b.workers, len(b.queue), b.pause.runs)
			}
			return true
		})
	})
	return s
}

// change executes changes after half of a round trip, and replies after the other half.
func (f *distantServer) change(_ context.Context, _ rueidis.CoreClient, changes []*luascripts.Change, _ int) {
	trip := time.Duration(0)
	if f.trip != nil {
		trip = f.trip()
	}
	f.mu.Lock()
	f.sizes = append(f.sizes, len(changes))
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	f.mu.Unlock()
	time.Sleep(trip / 2)
	f.mu.Lock()
	for _, c := range changes {
		if f.refuses != nil {
			if c.Err = f.refuses(c); c.Err != nil {
				continue
			}
		}
		f.executed[c.Request.Owner]++
		f.order = append(f.order, c.Request.Owner)
		c.Acquired.Token, _ = strconv.ParseUint(c.Request.Owner, 10, 64)
	}
	f.mu.Unlock()
	time.Sleep(trip - trip/2)
	f.mu.Lock()
	f.inFlight--
	f.mu.Unlock()
}

// The first copy of a batch was rejected, and a later copy got a reply. The outcome is Repeated only if the first copy may
// have been executed.
func TestSendWithRetry_rejected(t *testing.T) {
	for _, c := range []struct {
		rejected error
		repeated bool
	}{{nil, false}, {refusal(t, "NOSCRIPT No matching script"), false}, {io.EOF, true}} {
		synctest.Test(t, func(t *testing.T) {
			f := &distantServer{}
			f.refuses = func(change *luascripts.Change) error {
				change.Rejected = c.rejected
				return nil
			}
			s := f.sender(t)
			s.Add()
			defer s.Done()
			if o := SendWithRetry[uint64](t.Context(), s, timeout, step{number: 7}); o.Value != 7 || o.Repeated != c.repeated || o.Err != nil {
				t.Errorf("%v: %+v", c.rejected, o)
			}
		})
	}
}

// step is a change of a plain lock, with its own number.
type step struct {
	number    uint64
	slot      uint16
	isRelease bool
	late      func(token uint64, err error)
}

func (step) Send(context.Context) (uint64, error) { panic("a change is sent alone") }

func (c step) Late(token uint64, err error) {
	if c.late != nil {
		c.late(token, err)
	}
}

func (c step) Batch(change *luascripts.Change) func(*luascripts.Change) uint64 {
	change.Request.Owner, change.IsRelease, change.Slot = strconv.FormatUint(c.number, 10), c.isRelease, c.slot
	return func(change *luascripts.Change) uint64 { return change.Acquired.Token }
}

// sendCounted is Send by a caller that is counted.
func sendCounted(ctx context.Context, s *Sender, limit time.Duration, c step) (token uint64, replied bool, err error) {
	s.Add()
	defer s.Done()
	o := Send[uint64](ctx, s, limit, c)
	return o.Value, o.Answered, o.Err
}

// mustSend is sendCounted for a change that the server executes in time.
func mustSend(t *testing.T, s *Sender, limit time.Duration, c step) {
	t.Helper()
	if _, replied, err := sendCounted(t.Context(), s, limit, c); !replied || err != nil {
		t.Errorf("change %d: %t, %v", c.number, replied, err)
	}
}

// With a distant server, a change waits only for a fraction of a round trip before it is sent,
// however many others there are. Few batches are in flight.
func TestBatch_waitIsShort(t *testing.T) {
	for _, trip := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond} {
		for _, callers := range []int{1, 2, 3, 64, 700} {
			t.Run(fmt.Sprintf("%v/%d", trip, callers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &distantServer{trip: func() time.Duration { return trip }}
					s := f.sender(t)
					var longest atomic.Int64
					var all sync.WaitGroup
					for n := range callers {
						all.Go(func() {
							for i := range 20 {
								number := uint64(n*100 + i + 1)
								start := time.Now()
								token, replied, err := sendCounted(t.Context(), s, timeout, step{number: number})
								if !replied || err != nil || token != number {
									t.Errorf("%d: %d, %t, %v", number, token, replied, err)
								}
								if i > 0 { // nothing is measured for the first ones
									longest.Store(max(longest.Load(), int64(time.Since(start))))
								}
								time.Sleep(rand.N(trip))
							}
						})
					}
					all.Wait()
					if got := time.Duration(longest.Load()); got > trip+trip/2 {
						t.Errorf("a change waits for %v, with a round trip of %v", got, trip)
					}
					if f.most > batchesFar+2*paceParts {
						t.Errorf("%d batches at a time", f.most)
					}
				})
			})
		}
	}
}

// However many changes there are, the size and the number of batches are bounded, and each change is
// sent once.
func TestBatch_isBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &distantServer{trip: func() time.Duration { return time.Second }}
		s := f.sender(t)
		const callers = batchMost * (batchesMost + 8)
		var all sync.WaitGroup
		for n := range callers {
			all.Go(func() {
				if token, replied, err := sendCounted(t.Context(), s, 0, step{number: uint64(n)}); token != uint64(n) || !replied || err != nil {
					t.Errorf("%d: %d, %t, %v", n, token, replied, err)
				}
			})
		}
		all.Wait()
		if slices.Max(f.sizes) > batchMost || f.most > batchesMost || len(f.executed) != callers {
			t.Errorf("%d changes in a batch, %d batches at a time, %d changes of %d", slices.Max(f.sizes), f.most, len(f.executed), callers)
		}
	})
}

// Callers leave at any time, some just as the reply arrives. Each change gets one reply, to its
// caller or to Late, with its own reply. An abandoned acquire is not sent, but a release is.
func TestBatch_abandonedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip, callers = 10, 3000
		ms := func(n int) time.Duration { return time.Duration(rand.IntN(n)) * time.Millisecond } // coarse, so that several things happen at the same time
		f := &distantServer{trip: func() time.Duration { return 2 * ms(trip) }}
		s := f.sender(t)
		var replied, late, unsent, left atomic.Int64
		var all sync.WaitGroup
		for n := range callers {
			number, isRelease := uint64(n+1), n%3 == 0
			all.Go(func() {
				time.Sleep(ms(20 * trip))
				ctx, cancel := context.WithTimeout(t.Context(), ms(3*trip))
				defer cancel()
				var limit time.Duration
				if n%2 == 0 {
					limit = ms(3*trip) + time.Millisecond
				}
				token, ok, err := sendCounted(ctx, s, limit, step{number: number, isRelease: isRelease, late: func(token uint64, err error) {
					late.Add(1)
					switch {
					case err == ErrUnsent && !isRelease:
						unsent.Add(1)
					case err != nil || token != number:
						t.Errorf("Late for %d: got %d, %v", number, token, err)
					}
				}})
				switch {
				case !ok && err != nil:
					left.Add(1)
				case !ok || err != nil || token != number:
					t.Errorf("%d: %d, %t, %v", number, token, ok, err)
				default:
					replied.Add(1)
				}
			})
		}
		all.Wait()
		time.Sleep(10 * timeout)
		if replied.Load()+late.Load() != callers || late.Load() != left.Load() {
			t.Errorf("of %d changes %d got a reply, %d got a late one, and %d callers left", callers, replied.Load(), late.Load(), left.Load())
		}
		if got := int64(len(f.executed)); got != callers-unsent.Load() || replied.Load() == 0 || late.Load() == 0 || unsent.Load() == 0 {
			t.Errorf("%d changes were sent, %d were not; got %d replies, %d late ones", got, unsent.Load(), replied.Load(), late.Load())
		}
		for owner, times := range f.executed {
			if times != 1 {
				t.Errorf("%s was sent %d times", owner, times)
			}
		}
	})
}

// A server that stops replying delays no caller beyond its limit. When it replies again, each change
// gets one reply.
func TestBatch_unavailableServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &distantServer{trip: func() time.Duration { return max(5*timeout-time.Since(start), time.Millisecond) }}
		s := f.sender(t)
		var late atomic.Int64
		var all sync.WaitGroup
		const callers = 2000
		for n := range callers {
			all.Go(func() {
				limit := timeout
				if n%2 == 0 {
					limit = timeout / 4
				}
				time.Sleep(rand.N(timeout))
				came := time.Now()
				_, replied, err := sendCounted(t.Context(), s, limit, step{number: uint64(n), isRelease: true, late: func(uint64, error) { late.Add(1) }})
				if replied || !errors.As(err, new(NoReply)) || time.Since(came) > limit || time.Since(came) < limit-timeout/8 {
					t.Errorf("%v after %v of %v", err, time.Since(came), limit)
				}
			})
		}
		all.Wait()
		if f.most != batchesMost {
			t.Errorf("%d batches", f.most)
		}
		time.Sleep(10 * timeout)
		if late.Load() != callers || len(f.executed) != callers {
			t.Errorf("got late replies to %d of %d changes, and %d were executed", late.Load(), callers, len(f.executed))
		}
		mustSend(t, s, timeout, step{number: 1})
	})
}

// An immediate failure does not make the server seem near.
func TestBatch_measuresReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 80 * time.Millisecond
		fails := false
		f := &distantServer{mode: rueidis.ClientModeCluster}
		f.trip = func() time.Duration {
			if fails {
				return 0
			}
			return trip
		}
		f.refuses = func(*luascripts.Change) error {
			if fails {
				return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return nil
		}
		s := f.sender(t)
		for number := range uint64(10) {
			fails = number%2 == 1
			_, _, _ = sendCounted(t.Context(), s, timeout, step{number: number})
		}
		synctest.Wait()
		if got := s.batcherOf(0).pause.trip; got != trip {
			t.Errorf("got a round trip of %v, want %v", got, trip)
		}
	})
}

// A request is reused. A caller has its own limit, whatever the limit of the earlier caller.
func TestBatch_limitPerCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trip := time.Duration(0)
		f := &distantServer{trip: func() time.Duration { return trip }}
		s := f.sender(t)
		mustSend(t, s, timeout, step{number: 1})
		time.Sleep(timeout)
		trip = timeout / 4
		mustSend(t, s, timeout/3, step{number: 2})
	})
}

// Each node of a cluster has its own batcher, and keeps it.
func TestBatcher_onePerNode(t *testing.T) {
	s := New(nil, Config{Timeout: timeout, Node: func(slot uint16) uint16 { return slot / 3 }})
	all := make(map[*Batcher[luascripts.Change]]uint16)
	for range 3 {
		for slot := range uint16(15) {
			b := s.batcherOf(slot)
			if node, known := all[b]; known && node != slot/3 {
				t.Errorf("nodes %d and %d have the same batcher", node, slot/3)
			}
			all[b] = slot / 3
		}
	}
	if len(all) != 5 {
		t.Errorf("%d batchers for 5 nodes", len(all))
	}
}

// The memory of a change is reused. It starts without the earlier reply or error.
func TestBatch_reusedRequestIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broke := errors.New("broke")
		f := &distantServer{}
		f.refuses = func(c *luascripts.Change) error {
			if c.Err != nil || c.Acquired.Token != 0 {
				t.Errorf("%s begins with %d, %v", c.Request.Owner, c.Acquired.Token, c.Err)
			}
			if number, _ := strconv.Atoi(c.Request.Owner); number%2 == 0 {
				return broke
			}
			return nil
		}
		s := f.sender(t)
		for number := range uint64(20) {
			var want error
			if number%2 == 0 {
				want = broke
			}
			if _, replied, err := sendCounted(t.Context(), s, timeout, step{number: number}); !replied || err != want {
				t.Errorf("%d: %t, %v", number, replied, err)
			}
		}
	})
}

// Each caller has its full limit, even after a pause or with a reused request, and leaves when it has
// passed.
func TestBatch_limitCountsFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trip := time.Duration(0)
		f := &distantServer{trip: func() time.Duration { return trip }}
		s := f.sender(t)
		for number := range uint64(10) {
			trip = timeout * 3 / 4
			start := time.Now()
			if _, replied, err := sendCounted(t.Context(), s, timeout, step{number: number}); !replied || err != nil || time.Since(start) != trip {
				t.Errorf("%t, %v after %v", replied, err, time.Since(start))
			}
			time.Sleep(time.Duration(number) * timeout)
		}
		trip = 10 * timeout
		mustSend(t, s, 0, step{number: 11})
		start := time.Now()
		if _, replied, err := sendCounted(t.Context(), s, timeout, step{number: 10}); replied || !errors.As(err, new(NoReply)) || time.Since(start) > timeout {
			t.Errorf("an unavailable server: %t, %v after %v", replied, err, time.Since(start))
		}
	})
}

// The measured round trip drops to a shorter one immediately, and grows slowly towards a longer one.
func TestBatch_measuresTheShortest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const near, far1 = 20 * time.Millisecond, 80 * time.Millisecond
		trip := far1
		f := &distantServer{mode: rueidis.ClientModeCluster, trip: func() time.Duration { return trip }}
		s := f.sender(t)
		send := func() time.Duration {
			mustSend(t, s, timeout, step{number: 1})
			synctest.Wait()
			return s.batcherOf(0).pause.trip
		}
		if got := send(); got != far1 {
			t.Errorf("the first: %v", got)
		}
		trip = near
		if got := send(); got != near {
			t.Errorf("a shorter one: %v", got)
		}
		trip = far1
		if got, want := send(), near+(far1-near)/tripSlow; got != want {
			t.Errorf("a longer one: %v, and not %v", got, want)
		}
	})
}

// A change without a reply keeps its batch in flight. Changes that come in the meantime are in the
// next batches, and none is sent alone.
func TestBatch_behindASlowBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 40
		first := true
		f := &distantServer{trip: func() time.Duration {
			if first {
				first = false
				return timeout / 2
			}
			return 10 * time.Millisecond
		}}
		s := f.sender(t)
		var all sync.WaitGroup
		all.Go(func() { mustSend(t, s, timeout, step{number: callers}) })
		synctest.Wait()
		for number := range uint64(callers) {
			start := time.Now()
			if _, replied, err := sendCounted(context.Background(), s, timeout, step{number: number}); !replied || err != nil || time.Since(start) != 10*time.Millisecond {
				t.Errorf("%d: %t, %v after %v", number, replied, err, time.Since(start))
			}
		}
		all.Wait()
	})
}

// leavingContext is the context of a caller that leaves as its reply arrives: when the caller checks it,
// both have happened.
type leavingContext struct{ context.Context }

func (leavingContext) Done() <-chan struct{} {
	time.Sleep(time.Millisecond)
	ended := make(chan struct{})
	close(ended)
	return ended
}

func (leavingContext) Err() error { return context.Canceled }

// A reply arrives as its caller leaves. The caller receives it, and nothing of it is left for the
// next change.
func TestBatch_replyAsTheCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trip := time.Duration(0)
		f := &distantServer{trip: func() time.Duration { return trip }}
		s := f.sender(t)
		for number := range uint64(100) {
			ctx := t.Context()
			if trip = time.Second; number%2 == 0 {
				ctx, trip = leavingContext{ctx}, 0
			}
			if token, replied, err := sendCounted(ctx, s, timeout, step{number: number}); token != number || !replied || err != nil {
				t.Fatalf("%d: %d, %t, %v", number, token, replied, err)
			}
		}
	})
}

// batchesFar batches are in flight: the next one follows a pace after the latest. It is not sent earlier
// because of a reply, or because a batch was sent after the pacer was set.
func TestBatch_pace(t *testing.T) {
	const trip, pace, ms = 80 * time.Millisecond, 80 * time.Millisecond / paceParts, time.Millisecond
	type change struct{ comes, sent time.Duration }
	atOnce := func(from time.Duration, n int) (changes []change) {
		for i := range time.Duration(n) {
			changes = append(changes, change{from + i*ms, from + i*ms})
		}
		return changes
	}
	for what, changes := range map[string][]change{
		"one has a reply": append(atOnce(0, batchesFar), []change{
			{8 * ms, 7*ms + pace},
			{77 * ms, 77 * ms},
			{79 * ms, 77*ms + pace}, // not at the first reply, after 80 ms
		}...),
		"one is sent before the pacer checks": append(atOnce(20*ms, batchesFar-2), []change{
			{0, 0}, {1, 1},
			{78 * ms, 78 * ms},
			{79 * ms, 80*ms + 1}, // one more has a reply now
			{81 * ms, 80*ms + 1 + pace},
		}...),
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &distantServer{trip: func() time.Duration { return trip }}
				s := f.sender(t)
				s.batcherOf(0).pause.trip = trip
				var all sync.WaitGroup
				for i, change := range changes {
					all.Go(func() {
						time.Sleep(change.comes)
						start := time.Now()
						_, replied, err := sendCounted(t.Context(), s, timeout, step{number: uint64(i)})
						if sent := change.comes + time.Since(start) - trip; !replied || err != nil || sent != change.sent {
							t.Errorf("change %d: %t, %v, sent after %v, and not %v", i, replied, err, sent, change.sent)
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// On a cluster the changes of a slot are adjacent in their batch, because they share a script, and those
// of a lock stay in order. Elsewhere all stay in order of arrival.
func TestBatch_groupsSlots(t *testing.T) {
	for mode, runs := range map[rueidis.ClientMode]int{rueidis.ClientModeCluster: 5, rueidis.ClientModeStandalone: 50} {
		synctest.Test(t, func(t *testing.T) {
			f := &distantServer{mode: mode, trip: func() time.Duration { return time.Second }}
			s := f.sender(t)
			pieces, change := 0, s.change
			s.change = func(ctx context.Context, rdb rueidis.CoreClient, changes []*luascripts.Change, perCall int) {
				change(ctx, rdb, changes, perCall)
				if len(changes) == 50 {
					for i, c := range changes {
						if i == 0 || c.Slot != changes[i-1].Slot {
							pieces++
						}
					}
				}
			}
			var all sync.WaitGroup
			for number := range uint64(50 + batchesNear) {
				all.Go(func() { mustSend(t, s, timeout, step{number: number, slot: uint16(number % 5)}) })
				synctest.Wait() // the first ones are sent immediately, the others together
			}
			all.Wait()
			if pieces != runs {
				t.Errorf("mode %v: got %d runs of equal slots, want %d", mode, pieces, runs)
			}
			latest := make(map[int]int)
			for _, owner := range f.order {
				number, _ := strconv.Atoi(owner)
				if before, later := latest[number%5]; later && before > number && before >= batchesNear {
					t.Errorf("mode %v: %d is sent before %d", mode, before, number)
				}
				latest[number%5] = number
			}
		})
	}
}

// The only caller of a batch leaves before its request is sent. Late is notified of that, and the
// next batches are sent.
func TestBatch_nothingToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &distantServer{trip: func() time.Duration { return time.Second }}
		s := f.sender(t)
		var all sync.WaitGroup
		send := func() {
			all.Go(func() { mustSend(t, s, timeout, step{number: 1}) })
		}
		for range batchesNear {
			send()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), paceNear/2)
		defer cancel()
		late := make(chan error, 2)
		if _, replied, err := sendCounted(ctx, s, timeout, step{number: 2, late: func(_ uint64, err error) { late <- err }}); replied || err != ctx.Err() {
			t.Errorf("%t, %v", replied, err)
		}
		time.Sleep(paceNear)
		if len(late) != 1 || !errors.Is(<-late, ErrUnsent) {
			t.Error("Late was not called for the unsent request")
		}
		send()
		all.Wait()
		if len(f.sizes) != batchesNear+1 || f.executed["2"] != 0 {
			t.Errorf("batches of %v; %v were executed", f.sizes, f.executed)
		}
	})
}

// locked is a change that acquires its own lock.
type locked struct{ step }

func (c locked) Batch(change *luascripts.Change) func(*luascripts.Change) uint64 {
	reply := c.step.Batch(change)
	key := "lock" + change.Request.Owner
	change.Keys, change.Request.Lease, change.Request.Want = &luascripts.Keys{Lock: key, Channel: key + ":channel", QueueChannel: "line", Publish: "PUBLISH"}, time.Minute, 1
	return reply
}

// A sender sends its changes to the server, and each caller receives the reply for its own lock.
func TestBatch_reachesTheServer(t *testing.T) {
	m := redistest.NewMini(t)
	s := New(m.Client(t), Config{Timeout: timeout})
	defer s.Wait()
	defer s.Shut()
	var all sync.WaitGroup
	for number := range uint64(20) {
		all.Go(func() {
			s.Add()
			defer s.Done()
			o := Send[uint64](t.Context(), s, 0, locked{step{number: number}})
			if key := "lock" + strconv.FormatUint(number, 10); !o.Answered || o.Err != nil || !m.Exists(key) {
				t.Errorf("%s: %+v; it is there: %t", key, o, m.Exists(key))
			}
		})
	}
	all.Wait()
}

// double is a request for the double of a number.
type double struct{ n, double int }

// doublingServer is a simulated server that doubles numbers. A batch takes a second.
type doublingServer struct {
	mu      sync.Mutex
	batches [][]int // guarded by mu
}

func (d *doublingServer) exec(batch []*double) (replied bool) {
	var numbers []int
	for _, q := range batch {
		numbers = append(numbers, q.n)
	}
	d.mu.Lock()
	d.batches = append(d.batches, numbers)
	d.mu.Unlock()
	time.Sleep(time.Second)
	for _, q := range batch {
		q.double = 2 * q.n
	}
	return true
}

func (d *doublingServer) sent() [][]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.batches)
}

// inBatches runs f with a batcher whose batches have at most size 10. The size of a request is its
// number.
func inBatches(t *testing.T, f func(t *testing.T, d *doublingServer, b *Batcher[double])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, d := New(one, Config{Timeout: time.Minute}), new(doublingServer)
		f(t, d, NewBatcher(s, d.exec, func(q *double) int { return q.n }, 10, func(*double) bool { return true }))
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// While two batches are in flight, the requests of other callers collect. They are sent next, in
// order of arrival, as many together as fit. Those that do not fit follow after a pause, and do not
// wait for a reply.
func TestBatcher_size(t *testing.T) {
	inBatches(t, func(t *testing.T, d *doublingServer, b *Batcher[double]) {
		start := time.Now()
		var callers sync.WaitGroup
		for _, n := range []int{1, 2, 3, 7, 5, 11, 6} {
			callers.Go(func() {
				if q, err := b.Ask(t.Context(), double{n: n}); q.double != 2*n || err != nil {
					t.Errorf("%d: %d, %v", n, q.double, err)
				}
			})
			synctest.Wait()
		}
		callers.Wait()
		if took, got := time.Since(start), fmt.Sprint(d.sent()); got != "[[1] [2] [3 7] [5] [11] [6]]" || took != time.Second+4*paceNear {
			t.Errorf("sent %v in %v", got, took)
		}
	})
}

// The request of a caller that leaves before it is sent is dropped. The reply for a caller that
// leaves later is, too.
func TestBatcher_callerLeaves(t *testing.T) {
	inBatches(t, func(t *testing.T, d *doublingServer, b *Batcher[double]) {
		ctx, cancel := context.WithTimeout(t.Context(), paceNear/2)
		defer cancel()
		var callers sync.WaitGroup
		for n := range 4 {
			callers.Go(func() {
				if _, err := b.Ask(ctx, double{n: n}); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		callers.Wait()
		if q, err := b.Ask(t.Context(), double{n: 5}); q.double != 10 || err != nil {
			t.Errorf("%d, %v", q.double, err)
		}
		if got := fmt.Sprint(d.sent()); got != "[[0] [1] [5]]" {
			t.Errorf("sent %v", got)
		}
	})
}

// No caller waits longer than the timeout. Shutting the sender ends the wait, and Close waits for the
// batches in flight.
func TestBatcher_timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(one, Config{Timeout: time.Minute})
		reply := make(chan struct{})
		b := NewBatcher(s, func([]*double) bool {
			<-reply
			return false
		}, func(*double) int { return 1 }, 10, func(*double) bool { return true })
		start := time.Now()
		if _, err := b.Ask(t.Context(), double{n: 1}); !errors.Is(err, lock.ErrUnavailable) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := s.Close(ctx); err == nil {
				t.Error("Close does not wait for the requests in flight")
			}
			close(reply)
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		if _, err := b.Ask(t.Context(), double{n: 2}); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("while it closes: %v", err)
		}
		<-closed
		if _, err := b.Ask(t.Context(), double{n: 3}); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// A caller whose context is canceled sends no request, even if a batch could start.
func TestBatcher_canceled(t *testing.T) {
	inBatches(t, func(t *testing.T, d *doublingServer, b *Batcher[double]) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			if _, err := b.Ask(ctx, double{n: 1}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			synctest.Wait()
		}
		if got := d.sent(); len(got) != 0 {
			t.Errorf("sent %v", got)
		}
	})
}
