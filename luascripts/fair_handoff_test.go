package luascripts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// These tests show how a fair lock is handed off between owners of one client. Owners 1:1, 1:2 …
// belong to one client.

// own returns owner string number n of our client. another returns one of another client.
func own(n int) string     { return fmt.Sprintf("0192d3a4-7b1c-7e5f-8a6b-00000000000a:%d", n) }
func another(n int) string { return fmt.Sprintf("0192d3a4-7b1c-7e5f-8a6b-00000000000b:%d", n) }

// waiting creates a queue of these owners, all alive.
func (q fair) waiting(owners ...string) {
	q.t.Helper()
	for _, o := range owners {
		do(q.t, q.rdb, "RPUSH", fairKeys.Queue, o)
		do(q.t, q.rdb, "ZADD", fairKeys.Timeouts, fmt.Sprint(now(q.t, q.rdb)+waiterTimeout.Milliseconds()), o)
	}
	if len(owners) > 0 {
		do(q.t, q.rdb, "PEXPIRE", fairKeys.Queue, "60000")
		do(q.t, q.rdb, "PEXPIRE", fairKeys.Timeouts, "60000")
	}
}

func (q fair) members() []string { return list(q.t, q.rdb, "LRANGE", fairKeys.Queue, "0", "-1") }

// hold makes o the holder of the lock.
func (q fair) hold(o string) {
	q.t.Helper()
	do(q.t, q.rdb, "HSET", fairKeys.Lock, o, "1")
	do(q.t, q.rdb, "PEXPIRE", fairKeys.Lock, "60000")
}

func (q fair) holders() []string { return list(q.t, q.rdb, "HKEYS", fairKeys.Lock) }

// The release grants the lock to the next owner if it is first in the queue, and to no other owner.
func TestHandOffFair(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		for _, c := range []struct {
			name      string
			queue     []string
			nextOwner string
			served    []string
			holder    []string
			after     []string
			next      string
			notified  []string
		}{
			{"the next owner is alone", []string{own(2)}, own(2), nil, []string{own(2)}, nil, "", nil},
			{"others of its client come next", []string{own(2), own(3), own(4), another(1), own(5)}, own(2), nil, []string{own(2)}, []string{own(3), own(4), another(1), own(5)}, "3 4", nil},
			{"behind those that were served", []string{own(2), own(3), own(4), own(5)}, own(4), []string{own(2), own(3)}, []string{own(4)}, []string{own(5)}, "5", nil},
			{"some of those have left", []string{own(3), own(4)}, own(4), []string{own(2), own(3)}, []string{own(4)}, nil, "", nil},
			{"those stand in another order", []string{own(3), another(1), own(2)}, "", []string{own(2), own(3)}, nil, []string{another(1)}, "", []string{another(1)}},
			{"another is the first", []string{another(1), own(2)}, own(2), nil, nil, []string{another(1), own(2)}, "", []string{another(1)}},
			{"another of its client is the first", []string{own(3), own(2)}, own(2), nil, nil, []string{own(3), own(2)}, "", []string{own(3)}},
			{"it does not wait any more", []string{another(1)}, own(2), nil, nil, []string{another(1)}, "", []string{another(1)}},
			{"no next owner", []string{own(2)}, "", nil, nil, []string{own(2)}, "", []string{own(2)}},
			{"nobody waits", nil, own(2), nil, nil, nil, "", nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.hold(own(1))
				q.waiting(c.queue...)
				r := luascripts.Release{NextOwner: c.nextOwner, Offer: lease, Served: c.served, Last: 5}
				got, err := luascripts.HandOffFair(t.Context(), q.rdb, fairKeys, own(1), r)
				if err != nil || got.Verdict != luascripts.Done || (got.Token != 0) != (c.holder != nil) || got.Next != c.next {
					t.Errorf("%+v, %v", got, err)
				}
				if holder, after := q.holders(), q.members(); !slices.Equal(holder, c.holder) || !slices.Equal(after, c.after) {
					t.Errorf("%q has it, and %q wait, want %q and %q", holder, after, c.holder, c.after)
				}
				if c.holder != nil {
					about(t, "the lease", pttl(t, q.rdb, fairKeys.Lock), lease)
				}
				var notified []string
				for _, o := range c.notified {
					notified = append(notified, turnOf(o))
				}
				if heard := e.heard(); !slices.Equal(heard, notified) {
					t.Errorf("published %q, want %q", heard, notified)
				}

				// A second copy finds that the owner holds nothing, and grants nothing.
				got, err = luascripts.HandOffFair(t.Context(), q.rdb, fairKeys, own(1), r)
				if err != nil || got.Verdict != luascripts.Gone || got.Token != 0 {
					t.Errorf("a second copy: %+v, %v", got, err)
				}
				if holder := q.holders(); !slices.Equal(holder, c.holder) {
					t.Errorf("a second copy gave the lock to %q", holder)
				}
				e.heard()

				// If the reply is lost, the next owner sends a request, and finds that it has the
				// lock.
				if c.holder != nil {
					a, err := luascripts.AcquireFair(t.Context(), q.rdb, fairKeys, luascripts.Request{Owner: c.nextOwner, Lease: lease, Want: 1, WaiterTimeout: waiterTimeout})
					if err != nil || a.Verdict != luascripts.Done || a.Token == 0 || a.Next != c.next {
						t.Errorf("the next owner asks: %+v, %v", a, err)
					}
				}
			})
		}
	})
}

// An owner that holds nothing hands off nothing. Its next owner is notified.
func TestHandOffFair_gone(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		e := listen(t, q.rdb)
		q.waiting(own(2))
		got, err := luascripts.HandOffFair(t.Context(), q.rdb, fairKeys, own(1), luascripts.Release{NextOwner: own(2), Offer: lease})
		if err != nil || got.Verdict != luascripts.Gone || got.Token != 0 || len(q.holders()) > 0 {
			t.Errorf("%+v, %v, and %q has the lock", got, err, q.holders())
		}
		e.expect(turnOf(own(2)))
	})
}

// turnOf returns the message that notifies o of its turn.
func turnOf(o string) string {
	client, number, _ := strings.Cut(o, ":")
	return fairKeys.Channel + ":" + client + luascripts.TurnChannelSuffix + " " + number
}

// A grant names at most 63 owners.
func TestFair_nextAreFew(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		var owners, numbers []string
		for n := range 100 {
			owners, numbers = append(owners, own(n)), append(numbers, fmt.Sprint(n))
		}
		for _, n := range []int{1, 2, 8, 9, 10, 63, 64, 65, 100} {
			q.clear()
			q.waiting(owners[:n]...)
			a, err := luascripts.AcquireFair(t.Context(), q.rdb, fairKeys, luascripts.Request{Owner: own(0), Lease: lease, Want: 1, WaiterTimeout: waiterTimeout})
			if want := strings.Join(numbers[1:min(n, 64)], " "); err != nil || a.Next != want {
				t.Errorf("of %d: %q, %v, want %q", n, a.Next, err, want)
			}
		}
	})
}

// The token of a next owner comes from the token counter, and is larger than all tokens before. A
// token counter that cannot be incremented does not prevent the release.
func TestHandOffFair_tokenCounter(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		keys := fairKeys
		keys.TokenCounter = "redisson_lock_token:{orders}"
		last := uint64(now(t, q.rdb)) * 2000
		for _, c := range []struct {
			tokenCounter string
			token        uint64
			raised       string
		}{
			{fmt.Sprint(last + 10), last + 11, fmt.Sprint(last + 75)},
			{"9007199254740991", 0, "9007199254740991"},
		} {
			q.clear()
			do(t, q.rdb, "SET", keys.TokenCounter, c.tokenCounter)
			q.hold(own(1))
			q.waiting(own(2))
			got, err := luascripts.HandOffFair(t.Context(), q.rdb, keys, own(1), luascripts.Release{NextOwner: own(2), Offer: lease, Last: last, Spare: 64})
			if err != nil || got.Verdict != luascripts.Done || got.Token != c.token {
				t.Errorf("%+v, %v, want token %d", got, err, c.token)
			}
			m := do(t, q.rdb, "GET", keys.TokenCounter)
			if raised, _ := m.ToString(); raised != c.raised {
				t.Errorf("the token counter is at %s, want %s", raised, c.raised)
			}
			if c.token == 0 && len(q.holders()) > 0 {
				t.Error("the lock is granted without a token")
			}
			do(t, q.rdb, "DEL", keys.TokenCounter)
		}
		got, err := luascripts.HandOffFair(t.Context(), q.rdb, fairKeys, own(9), luascripts.Release{})
		check(t, "release", got.Verdict, luascripts.Gone, err)
	})
}

// Without permission for PEXPIRE, no lock is granted that would never expire.
func TestHandOffFair_denied(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.hold(own(1))
	q.waiting(own(2))
	e := listen(t, q.rdb)
	got, err := luascripts.HandOffFair(t.Context(), denied(t, s, "pexpire"), fairKeys, own(1), luascripts.Release{NextOwner: own(2), Offer: lease})
	if err != nil || got.Verdict != luascripts.Done || got.Token != 0 || len(q.holders()) != 0 {
		t.Errorf("%+v, %v, and %q has the lock", got, err, q.holders())
	}
	e.expect(turnOf(own(2)))

	full(t, s) // a release is allowed, and so is its grant
	q.clear()
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	q.hold(own(1))
	q.waiting(own(2))
	full(t, s)
	got, err = luascripts.HandOffFair(t.Context(), q.rdb, fairKeys, own(1), luascripts.Release{NextOwner: own(2), Offer: lease})
	if err != nil || got.Token == 0 || !slices.Equal(q.holders(), []string{own(2)}) {
		t.Errorf("with full memory: %+v, %v, and %q has the lock", got, err, q.holders())
	}
}

// enters puts these owners into the queue with one heartbeat.
func (q fair) enters(owners ...string) luascripts.Kept {
	q.t.Helper()
	var all []luascripts.Waiter
	for _, o := range owners {
		all = append(all, luascripts.Waiter{Owner: o, WaiterTimeout: waiterTimeout, Enters: true})
	}
	kept, err := luascripts.KeepFair(q.t.Context(), q.rdb, fairKeys, all)
	if err != nil {
		q.t.Fatal(err)
	}
	return kept
}

// Owners enter the queue together, in order, and each one once.
func TestKeepFair_enters(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.hold(another(1))
		q.waiting(another(2))
		var owners []string
		for n := range 250 { // three scripts
			owners = append(owners, own(n))
		}
		for range 2 {
			kept := q.enters(owners...)
			if slices.Contains(kept.MustRetry, true) || slices.Contains(kept.Own, true) {
				t.Errorf("%+v", kept)
			}
			if got := q.members(); !slices.Equal(got, append([]string{another(2)}, owners...)) {
				t.Fatalf("%d wait: %q", len(got), got)
			}
			about(t, "a place", scoreLeft(q, own(200)), waiterTimeout)
			if left := pttl(t, q.rdb, fairKeys.Queue); left < time.Hour {
				t.Errorf("the queue is gone in %v", left)
			}
		}

		// The first owner of a free lock must send a request.
		q.clear()
		if kept := q.enters(own(1), own(2)); !slices.Equal(kept.MustRetry, []bool{true, false}) {
			t.Errorf("%+v", kept)
		}
		// An owner that has the lock does not enter.
		q.clear()
		q.hold(own(1))
		if kept := q.enters(own(1), own(2)); !slices.Equal(kept.MustRetry, []bool{true, false}) || !slices.Equal(q.members(), []string{own(2)}) {
			t.Errorf("%+v, %q", kept, q.members())
		}
		// Behind an owner of Redisson, or while one has the lock, Redisson may notify them.
		q.clear()
		q.queued("J1")
		if kept := q.enters(own(1)); !kept.Own[0] {
			t.Errorf("%+v", kept)
		}
		about(t, "a place behind one of Redisson", scoreLeft(q, own(1)), waiterTimeout+javaWait)
		q.clear()
		q.held("J1", time.Minute)
		if kept := q.enters(own(1), own(2)); !kept.Own[0] || !kept.Own[1] {
			t.Errorf("%+v", kept)
		}
	})
}

func scoreLeft(q fair, o string) time.Duration {
	m := do(q.t, q.rdb, "ZSCORE", fairKeys.Timeouts, o)
	score, err := m.AsFloat64()
	if err != nil {
		q.t.Fatalf("%s has no deadline: %v", o, err)
	}
	return time.Duration(int64(score)-now(q.t, q.rdb)) * time.Millisecond
}

// A server that is full, or denies a command, lets no owner enter and reports it. The owners then
// send their own requests, which return the error. Waiting owners keep their positions.
func TestKeepFair_entersRefused(t *testing.T) {
	s := redistest.Start(t)
	q := fair{t, s.Client(t)}
	q.hold(another(1))
	q.waiting(own(1))
	waiting := []luascripts.Waiter{{Owner: own(1), WaiterTimeout: waiterTimeout}, {Owner: own(2), WaiterTimeout: waiterTimeout, Enters: true}, {Owner: own(3), WaiterTimeout: waiterTimeout, Enters: true}}
	refused := func(what string, kept luascripts.Kept, err error) {
		t.Helper()
		if err != nil || !slices.Equal(kept.MustRetry, []bool{false, true, true}) || !slices.Equal(q.members(), []string{own(1)}) {
			t.Errorf("%s: %+v, %v, and %q wait", what, kept, err, q.members())
		}
	}
	full(t, s)
	kept, err := luascripts.KeepFair(t.Context(), q.rdb, fairKeys, waiting)
	refused("full memory", kept, err)
	about(t, "the place of one that waits", scoreLeft(q, own(1)), waiterTimeout)
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	kept, err = luascripts.KeepFair(t.Context(), denied(t, s, "rpush"), fairKeys, waiting)
	refused("without rpush", kept, err)
	if _, err = luascripts.KeepFair(t.Context(), denied(t, s, "zadd"), fairKeys, waiting); err == nil || !slices.Equal(q.members(), []string{own(1)}) {
		t.Errorf("without zadd: %v, and %q wait", err, q.members())
	}
}

// A heartbeat detects that a waiter of Redisson is behind the first one, although it only mentions
// our waiters. The queue still has no expiry.
func TestKeepFair_leavesTheQueueOfOthers(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G9", time.Minute)
		q.queued("G1 J1 G2")
		for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
			do(t, q.rdb, "PERSIST", key)
		}
		q.keeps("G1")
		for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
			if left := pttl(t, q.rdb, key); left >= 0 {
				t.Errorf("%s is gone in %v", key, left)
			}
		}
	})
}
