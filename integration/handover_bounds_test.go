//go:build linux

package integration_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// Two processes share a plain lock without a pause, and hand it off to each other. A third process has a handicap.
// leasehold limits how long that process waits.

// busy starts two processes that share the lock without a pause.
func (s *handover) busy() []*relayer {
	s.Helper()
	all := []*relayer{s.process(long), s.process(long)}
	for _, p := range all {
		p.do(s.T, request{Do: "relay", Name: handed, Fenced: true, Relay: &relay{Goroutines: 3, Stay: section, Journal: s.journal}})
	}
	return all
}

// visit returns the visit of a grant to the test process, as input of exclusive.
func (s *handover) visit(call int64, h lock.Hold) visit {
	s.Helper()
	return visit{op: op{Kind: acquire, Name: handed, Owner: h.Owner(), Token: h.Token(), Call: call, Return: monotonic()}, gave: true}
}

// endBusy stops the busy processes, and checks that no two owners were inside together. It returns the visits since an
// instant, in order.
func (s *handover) endBusy(busy []*relayer, others []visit, instant int64) []visit {
	s.Helper()
	for _, p := range busy {
		if sum := s.relayed(p); sum.Lost > 0 {
			s.Errorf("%d holders were notified of a loss", sum.Lost)
		}
	}
	history := append(visits(s.T, s.journal), others...)
	slices.SortFunc(history, func(a, b visit) int { return cmp.Compare(a.Return, b.Return) })
	exclusive(s.T, history)
	s.end(busy...)
	return slices.DeleteFunc(history, func(v visit) bool { return v.Return < instant })
}

// The user of one process lacks permission to subscribe, so the process receives no messages: it must send a request at
// the moment when its turn comes. It acquires the lock repeatedly, within 11 s and a turn of the others, and usually
// after about a second. The others have the lock for most of the time.
func TestHandover_deaf(t *testing.T) {
	turns := amount(10)
	s := newHandover(t)
	busy := s.busy()
	s.server.Do(t, "ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "&nothing", "+@all")
	l := ours(t, s.server.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "deaf", "secret" })).NewLock(handed, lock.WithFencing())
	const bound = 11 * time.Second
	var waits []time.Duration
	var own []visit
	start := monotonic()
	for range turns {
		call := monotonic()
		ctx, cancel := context.WithTimeout(t.Context(), bound+hurry)
		h, err := l.Lock(ctx)
		if err != nil {
			t.Fatalf("after %v: %v", waits, err)
		}
		v := s.visit(call, h)
		waits = append(waits, time.Duration(v.Return-call))
		time.Sleep(section)
		v.left = monotonic()
		own = append(own, v)
		if err := h.Unlock(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
	took := time.Duration(monotonic() - start)
	history := s.endBusy(busy, own, start)
	var idle time.Duration // the time between the others' visits and its own
	for i, v := range history[1:] {
		if slices.ContainsFunc(own, func(o visit) bool { return o.Token == v.Token }) {
			idle += time.Duration(v.Return - history[i].left)
		}
	}
	slices.Sort(waits)
	t.Logf("the deaf process had the lock %d times in %v, after %v as a rule and %v at the most; the lock waited for it for %v", turns, took, waits[turns/2], waits[turns-1], idle)
	if idle > took/2 {
		t.Errorf("the lock waited for the process without Pub/Sub for %v of %v", idle, took)
	}
}

// A process only calls TryLock, every four milliseconds, and is not queued. It acquires the lock about once a second: as
// often as the lock is freed.
func TestHandover_poller(t *testing.T) {
	times := amount(10)
	s := newHandover(t)
	busy := s.busy()
	count := s.listen(true)
	l := ours(t, s.rdb).NewLock(handed, lock.WithFencing())
	var own []visit
	start := monotonic()
	tries := time.NewTicker(4 * time.Millisecond)
	defer tries.Stop()
	for len(own) < times {
		<-tries.C
		call := monotonic()
		if time.Duration(call-start) > time.Duration(times)*hurry {
			t.Errorf("the poller acquired the lock %d times in %v, want %d", len(own), time.Duration(call-start), times)
			break
		}
		h, err := l.TryLock(t.Context())
		if errors.Is(err, lock.ErrNotAcquired) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		v := s.visit(call, h)
		time.Sleep(section)
		v.left = monotonic()
		own = append(own, v)
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	took := time.Duration(monotonic() - start)
	yielded := count()
	history := s.endBusy(busy, own, start)
	t.Logf("the poller had the lock %d times in %v, while it was let go %d times; the others had it %d times", len(own), took, yielded, len(history)-len(own))
	if yielded > 5*len(own)+5 { // it may itself be late; if the lock were freed for all, there would be hundreds
		t.Errorf("the lock was freed %d times, and the poller had it %d times", yielded, len(own))
	}
}
