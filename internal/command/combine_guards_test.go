package command

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Each node of a cluster has a combiner of its own, and keeps it.
func TestCombiner_oneForEachNode(t *testing.T) {
	s := New(nil, Config{Timeout: timeout})
	all := make(map[*combiner]bool)
	for range 3 {
		for node := range uint16(5) {
			c := s.combinerOf(node)
			if c.node != node {
				t.Errorf("node %d has the combiner of %d", node, c.node)
			}
			all[c] = true
		}
	}
	if len(all) != 5 {
		t.Errorf("%d combiners for 5 nodes", len(all))
	}
}

// A caller whose time is over says that the server is silent, and the next change does not go inline. That a caller leaves says nothing of the server.
func TestTogether_saysThatTheServerIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return 10 * timeout }}
		s := f.sender(t)
		for _, limit := range []time.Duration{0, timeout / 4, timeout} {
			s.answering.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
			_, answered, err := await(ctx, s, limit, step{number: 1})
			cancel()
			if silent := errors.As(err, new(NoAnswer)); answered || silent != (limit > 0) || s.Load().Answering == silent {
				t.Errorf("with a limit of %v: %t, %v, %+v", limit, answered, err, s.Load())
			}
		}
	})
}

// What a change is made of is used again. It begins with nothing of an earlier one: no answer, and no error.
func TestTogether_beginsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broke := errors.New("broke")
		f := &far{}
		f.refuses = func(c *luascripts.Change) error {
			if c.Err != nil || c.Acquired.Token != 0 {
				t.Errorf("%s begins with %d, %v", c.Question.Owner, c.Acquired.Token, c.Err)
			}
			if number, _ := strconv.Atoi(c.Question.Owner); number%2 == 0 {
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
			if _, answered, err := await(t.Context(), s, timeout, step{number: number}); !answered || err != want {
				t.Errorf("%d: %t, %v", number, answered, err)
			}
		}
	})
}

// Each caller has all of its time, also after a pause and after another with the same joint, and leaves when that is over.
func TestTogether_countsFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trip := time.Duration(0)
		f := &far{trip: func() time.Duration { return trip }}
		s := f.sender(t)
		for number := range uint64(10) {
			trip = timeout * 3 / 4
			began := time.Now()
			if _, answered, err := await(t.Context(), s, timeout, step{number: number}); !answered || err != nil || time.Since(began) != trip {
				t.Errorf("%t, %v after %v", answered, err, time.Since(began))
			}
			time.Sleep(time.Duration(number) * timeout)
		}
		trip = 10 * timeout
		if _, answered, err := await(t.Context(), s, 0, step{number: 11}); !answered || err != nil {
			t.Errorf("without a limit: %t, %v", answered, err)
		}
		began := time.Now()
		if _, answered, err := await(t.Context(), s, timeout, step{number: 10}); answered || !errors.As(err, new(NoAnswer)) || time.Since(began) > timeout {
			t.Errorf("a silent server: %t, %v after %v", answered, err, time.Since(began))
		}
	})
}

// The sweeper looks again as long as something is in the queue or under way, and then it stops.
func TestTogether_looksAsLongAsSomebodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, queued := range []int{0, 1} {
			for _, under := range []int{0, 1} {
				c := newCombiner(New(nil, Config{Timeout: timeout}))
				for range queued {
					c.queue = append(c.queue, new(joint))
				}
				for range under {
					c.under = append(c.under, new(batch))
				}
				c.sweep()
				if c.sweeper.armed != (queued+under > 0) {
					t.Errorf("%d in the queue, %d under way; it looks again: %t", queued, under, c.sweeper.armed)
				}
				c.stop()
			}
		}
	})
}

// The measured way to the server is the shortest one at once, and grows slowly when the server is farther.
func TestTogether_measuresTheShortest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const near, far1 = 20 * time.Millisecond, 80 * time.Millisecond
		trip := far1
		f := &far{mode: rueidis.ClientModeCluster, trip: func() time.Duration { return trip }}
		s := f.sender(t)
		send := func() time.Duration {
			if _, answered, err := await(t.Context(), s, timeout, step{number: 1}); !answered || err != nil {
				t.Errorf("%t, %v", answered, err)
			}
			return s.combinerOf(0).trip
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

// A change whose server does not answer keeps a batch under way. Those that come meanwhile go by the next ones, and none of them alone.
func TestTogether_behindASlowBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 40
		first := true
		f := &far{trip: func() time.Duration {
			if first {
				first = false
				return timeout / 2
			}
			return 10 * time.Millisecond
		}}
		s := f.sender(t)
		s.answering.Store(true)
		var all sync.WaitGroup
		all.Go(func() {
			if _, answered, err := await(t.Context(), s, timeout, step{number: callers}); !answered || err != nil {
				t.Errorf("the slow one: %t, %v", answered, err)
			}
		})
		synctest.Wait()
		for number := range uint64(callers) {
			s.latest.Store(int64(time.Since(s.began)))
			began := time.Now()
			if _, answered, err := await(context.Background(), s, timeout, step{number: number}); !answered || err != nil || time.Since(began) != 10*time.Millisecond {
				t.Errorf("%d: %t, %v after %v", number, answered, err, time.Since(began))
			}
		}
		all.Wait()
	})
}

// A batch that broke off says that the server does not answer, and the next one that is answered says that it does.
func TestTogether_saysWhetherTheServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails error
		f := &far{refuses: func(*luascripts.Change) error { return fails }}
		s := f.sender(t)
		for number, fails1 := range []error{nil, io.EOF, nil} {
			fails = fails1
			if _, answered, err := await(t.Context(), s, timeout, step{number: uint64(number)}); !answered || err != fails || s.Load().Answering != (err == nil) {
				t.Errorf("%t, %v, and not %v; %+v", answered, err, fails, s.Load())
			}
		}
	})
}

// leaving is the context of a caller that leaves as its answer comes: when the caller looks whether it ended, both have happened.
type leaving struct{ context.Context }

func (leaving) Done() <-chan struct{} {
	time.Sleep(time.Millisecond)
	ended := make(chan struct{})
	close(ended)
	return ended
}

func (leaving) Err() error { return context.Canceled }

// An answer comes as its caller leaves. The caller has it, and nothing of it is left for the next change.
func TestTogether_anAnswerAsTheCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trip := time.Duration(0)
		f := &far{trip: func() time.Duration { return trip }}
		s := f.sender(t)
		for number := range uint64(100) {
			ctx := t.Context()
			if trip = time.Second; number%2 == 0 {
				ctx, trip = leaving{ctx}, 0
			}
			if token, answered, err := await(ctx, s, timeout, step{number: number}); token != number || !answered || err != nil {
				t.Fatalf("%d: %d, %t, %v", number, token, answered, err)
			}
		}
	})
}

// Few batches are under way: while there are some, the next one follows a pace after the latest, and neither at once when one is answered nor
// when one was sent since the pacer was set.
func TestTogether_followsInItsTime(t *testing.T) {
	const trip, pace, ms = 80 * time.Millisecond, 80 * time.Millisecond / paceParts, time.Millisecond
	type change struct{ comes, sent time.Duration }
	for what, c := range map[string]struct {
		alone   time.Duration // how long one takes that is sent by its caller, at the start; 0 if there is none
		changes []change
	}{
		"one is answered": {0, []change{
			{0, 0}, {1, 1}, // as many as may be under way at any time
			{2, 1 + pace},
			{75 * ms, 75 * ms},
			{79 * ms, 75*ms + pace}, // and not with the first answer, after 80 ms
		}},
		"one goes before the pacer looks": {0, []change{
			{0, 0}, {1, 1},
			{75 * ms, 75 * ms},
			{76 * ms, 80*ms + 1}, // only one is under way now
			{81 * ms, 80*ms + 1 + pace},
		}},
		"one that was sent alone is answered": {35 * ms, []change{
			{1, 1},
			{2, 1 + pace},
			{12 * ms, 1 + 2*pace},
			{33 * ms, 33 * ms},
			{34 * ms, 33*ms + pace}, // and not after 35 ms
		}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &far{trip: func() time.Duration { return trip }}
				s := f.sender(t)
				s.combinerOf(0).trip = trip
				var all sync.WaitGroup
				if c.alone > 0 {
					s.answering.Store(true)
					all.Go(func() {
						if _, answered, err := await(context.Background(), s, timeout, step{alone: func() { time.Sleep(c.alone) }}); !answered || err != nil {
							t.Errorf("alone: %t, %v", answered, err)
						}
					})
				}
				for i, change := range c.changes {
					all.Go(func() {
						time.Sleep(change.comes)
						began := time.Now()
						_, answered, err := await(t.Context(), s, timeout, step{number: uint64(i)})
						if sent := change.comes + time.Since(began) - trip; !answered || err != nil || sent != change.sent {
							t.Errorf("change %d: %t, %v, sent after %v, and not %v", i, answered, err, sent, change.sent)
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// On a cluster the changes of a slot stand side by side in their batch, as they share a script then. Elsewhere they stay as they came.
func TestTogether_slotsSideBySide(t *testing.T) {
	for mode, runs := range map[rueidis.ClientMode]int{rueidis.ClientModeCluster: 5, rueidis.ClientModeStandalone: 50} {
		synctest.Test(t, func(t *testing.T) {
			f := &far{mode: mode, trip: func() time.Duration { return time.Second }}
			s := f.sender(t)
			pieces, change := 0, s.change
			s.change = func(conn rueidis.CoreClient, changes []*luascripts.Change) {
				change(conn, changes)
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
				all.Go(func() {
					if _, answered, err := await(t.Context(), s, timeout, step{number: number, slot: uint16(number % 5)}); !answered || err != nil {
						t.Errorf("%d: %t, %v", number, answered, err)
					}
				})
				synctest.Wait() // the first ones go at once, and the others together
			}
			all.Wait()
			if pieces != runs {
				t.Errorf("mode %v: the slots stand in %d pieces, and not in %d", mode, pieces, runs)
			}
		})
	}
}

// The caller of a question leaves before it is sent, and nothing else is in its batch. Late hears that it was not sent, and the next batches go on.
func TestTogether_nothingToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return time.Second }}
		s := f.sender(t)
		var all sync.WaitGroup
		send := func() {
			all.Go(func() {
				if _, answered, err := await(t.Context(), s, timeout, step{number: 1}); !answered || err != nil {
					t.Errorf("%t, %v", answered, err)
				}
			})
		}
		for range batchesNear {
			send()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), paceNear/2)
		defer cancel()
		late := make(chan error, 2)
		if _, answered, err := await(ctx, s, timeout, step{number: 2, late: func(_ uint64, err error) { late <- err }}); answered || err != ctx.Err() {
			t.Errorf("%t, %v", answered, err)
		}
		time.Sleep(paceNear)
		if len(late) != 1 || !errors.Is(<-late, ErrUnsent) {
			t.Error("nobody hears that it was not sent")
		}
		send()
		all.Wait()
		if len(f.sizes) != batchesNear+1 || f.carried["2"] != 0 {
			t.Errorf("batches of %v; %v were carried out", f.sizes, f.carried)
		}
	})
}

// locked is a change that takes a lock of its own.
type locked struct{ step }

func (c locked) Fill(change *luascripts.Change) {
	c.step.Fill(change)
	key := "lock" + change.Question.Owner
	change.Keys, change.Question.Lease, change.Question.Want = &luascripts.Keys{Lock: key, Channel: key + ":channel", Line: "line", Publish: "PUBLISH"}, time.Minute, 1
}

// A sender sends its changes to the server, and each caller hears of its own lock.
func TestTogether_reachesTheServer(t *testing.T) {
	m := redistest.NewMini(t)
	closing := make(chan struct{})
	s := New(m.Client(t), Config{Timeout: timeout, Closing: closing})
	defer s.Wait()
	defer close(closing)
	var all sync.WaitGroup
	for number := range uint64(20) {
		all.Go(func() {
			s.Add()
			defer s.Done()
			_, answered, err := Await[uint64](t.Context(), s, 0, locked{step{number: number}})
			if key := "lock" + strconv.FormatUint(number, 10); !answered || err != nil || !m.Exists(key) {
				t.Errorf("%s: %t, %v; it is there: %t", key, answered, err, m.Exists(key))
			}
		})
	}
	all.Wait()
}
