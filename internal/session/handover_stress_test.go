package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// watched is a lock as seen by its holders.
type watched struct {
	mu     sync.Mutex
	inside lock.Hold
	token  uint64
	freed  time.Time // when it was last released
	forced time.Time // when it was last force-unlocked: earlier holds may not have detected the loss yet
}

func (l *watched) setForced() {
	l.mu.Lock()
	l.forced = time.Now()
	l.mu.Unlock()
}

// stress runs many waiters of several processes for two locks. They wait in every supported way, and come and go at
// random.
type stress struct {
	*testing.T
	kind          *Kind
	free          func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.Verdict, error) // force-unlocks
	faults, force bool
	fenced        bool
	idle          time.Duration // the maximum time that a lock may be free while a caller waits

	locks map[string]*watched
	names []string
}

// enter records the grant of h to a caller that has waited since the given time.
func (e *stress) enter(name string, h lock.Hold, since time.Time) {
	if h.Err() != nil {
		return // already lost
	}
	l := e.locks[name]
	l.mu.Lock()
	defer l.mu.Unlock()
	excused := !l.forced.IsZero() && time.Since(l.forced) < opTime+leaseTime/3 // every holder has detected the loss a renewal interval later
	if l.inside != nil && l.inside.Err() == nil && h.Err() == nil && !excused {
		e.Errorf("%s: %s and %s are inside", name, l.inside.Owner(), h.Owner())
	}
	if h.Token() <= l.token && !excused {
		e.Errorf("%s: token %d after %d", name, h.Token(), l.token)
	}
	if since.Before(l.freed) {
		since = l.freed
	}
	if took := time.Since(since); l.inside == nil && !l.freed.IsZero() && took > e.idle {
		e.Errorf("%s: the lock was free for %v while a caller waited", name, took)
	}
	l.inside, l.token = h, max(l.token, h.Token())
}

func (e *stress) leave(name string, h lock.Hold) {
	l := e.locks[name]
	l.mu.Lock()
	if l.inside == h {
		l.inside = nil
	}
	l.mu.Unlock()
	lost := h.Err() != nil
	err := h.Unlock(context.Background())
	l.mu.Lock()
	l.freed = time.Now()
	l.mu.Unlock()
	if err != nil && !lost && !e.faults && !e.force {
		e.Error(err)
	}
}

// work is one caller in s.
func (e *stress) work(s *Session, r *rand.Rand, rounds int) {
	for range rounds {
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if r.IntN(3) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(30000))*time.Microsecond)
		}
		name := e.names[r.IntN(len(e.names))]
		var opts []lock.Option
		if e.fenced {
			opts = append(opts, lock.WithFencing())
		}
		if r.IntN(6) == 0 {
			opts = append(opts, lock.WithFixedLease(time.Duration(100+r.IntN(4000))*time.Millisecond))
		}
		since := time.Now()
		var h lock.Hold
		var err error
		spec := s.NewSpec(e.kind, name, opts)
		switch how := r.IntN(10); {
		case how == 0:
			h, err = s.TryLock(ctx, spec)
		case how == 3 && e.force:
			e.locks[name].setForced()
			_, err = s.Force(ctx, spec, e.free)
			e.locks[name].setForced()
		default:
			h, err = s.Lock(ctx, spec)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, lock.ErrNotAcquired) && !e.faults {
			e.Errorf("after %v: %v", time.Since(since), err)
		}
		if h != nil {
			e.enter(name, h, since)
			time.Sleep(time.Duration(20+r.IntN(200)) * time.Microsecond)
			if r.IntN(8) == 0 {
				time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
			}
			if r.IntN(5) == 0 {
				if inner, err := s.Lock(h.Context(), s.NewSpec(e.kind, name, opts[:0])); err == nil {
					time.Sleep(time.Duration(r.IntN(50)) * time.Microsecond)
					_ = inner.Unlock(context.Background())
				}
			}
			e.leave(name, h)
		}
		cancel()
		if r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(5000)) * time.Microsecond)
		}
	}
}

// randomFaults returns random actions for a wire. It disconnects subscribers but never delays them, because the in-memory
// server blocks on a slow subscriber.
func randomFaults(seed uint64) func(req [][]byte) redistest.Action {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 1))
	return func(req [][]byte) (a redistest.Action) {
		mu.Lock()
		defer mu.Unlock()
		n := r.IntN(100)
		if string(req[0]) != "EVALSHA" {
			a.DropRequest = n == 0
			return a
		}
		switch n {
		case 0:
			a.DropReply = true
		case 1:
			a.DropRequest = true
		case 2:
			a.DelayReply = time.Duration(r.IntN(100)) * time.Millisecond
		case 3:
			a.DelayRequest = time.Duration(r.IntN(100)) * time.Millisecond
		}
		return a
	}
}

func (e *stress) run(seed uint64) {
	synctest.Test(e.T, func(t *testing.T) {
		e.T = t
		m := redistest.NewMini(t)
		e.locks = make(map[string]*watched)
		for _, name := range e.names {
			e.locks[name] = &watched{}
		}
		var sessions []*Session
		var wires []*redistest.Proxy
		for i := range 4 {
			wire := m.Proxy(t)
			wires = append(wires, wire)
			sessions = append(sessions, New(m.Client(t, redistest.Via(wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = 1 }), testConfig()))
			if e.faults {
				wire.OnRequest(randomFaults(4*seed + uint64(i)))
			}
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { e.work(sessions[i%4], rand.New(rand.NewPCG(seed, uint64(i))), 12) })
		}
		wg.Wait()
		for _, wire := range wires {
			wire.OnRequest(nil)
		}
		for _, s := range sessions {
			if err := s.Close(context.Background()); err != nil {
				t.Errorf("Close: %v", err)
			}
			if len(s.table.known) != 0 || s.hub.Channels() != 0 || s.dog.Len() != 0 {
				t.Errorf("left after Close: %d entries, %d channels, %d leases", len(s.table.known), s.hub.Channels(), s.dog.Len())
			}
		}
		time.Sleep(5 * time.Second) // a fixed lease that was lost expires
		for _, key := range m.Keys() {
			switch m.Type(key) {
			case "hash":
				fields, _ := m.HKeys(key)
				t.Errorf("left in Redis: %q: %q", key, fields)
			case "list":
				queue, _ := m.List(key)
				t.Errorf("left in Redis: %q: %q", key, queue)
			}
		}
	})
}

// All callers acquire the lock, no two hold it at once, tokens increase, the lock is not idle while callers wait, and
// nothing stays in Redis.
func TestStress(t *testing.T) {
	stressOf(t, stress{kind: plain, free: luascripts.ForceReentrant})
}

// The same with fair locks.
func TestEverything_fair(t *testing.T) {
	stressOf(t, stress{kind: fair, free: luascripts.ForceFair})
}

func stressOf(t *testing.T, all stress) {
	rounds := uint64(1)
	if n, err := strconv.ParseUint(os.Getenv("LEASEHOLD_ROUNDS"), 10, 32); err == nil {
		rounds = n
	}
	for name, e := range map[string]stress{
		"quiet":  {idle: pollTime + 50*time.Millisecond},
		"fenced": {idle: pollTime + 50*time.Millisecond, fenced: true},
		"forced": {idle: offerPolls*pollTime + opTime, force: true},
		"faults": {idle: leaseTime, faults: true},
		"all":    {idle: leaseTime, faults: true, force: true},
	} {
		for seed := range rounds {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) {
				e := e
				e.kind, e.free = all.kind, all.free
				e.T, e.names = t, []string{"orders", "others"}
				e.run(seed)
			})
		}
	}
}
