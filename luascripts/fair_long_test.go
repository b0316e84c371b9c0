package luascripts_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// These tests use queues with more owners than one script reads.

// names returns "G1 G2 …", from the first to the last number.
func names(first, last int) (all []string) {
	for n := first; n <= last; n++ {
		all = append(all, fmt.Sprint("G", n))
	}
	return all
}

// queuedMany puts many owners into the queue with one command.
func (q fair) queuedMany(deadline time.Duration, names ...string) {
	q.t.Helper()
	push, add := []string{"RPUSH", fairKeys.Queue}, []string{"ZADD", fairKeys.Timeouts}
	for _, name := range names {
		push = append(push, owner(name))
		add = append(add, fmt.Sprint(now(q.t, q.rdb)+deadline.Milliseconds()), owner(name))
	}
	do(q.t, q.rdb, push...)
	do(q.t, q.rdb, add...)
	for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
		do(q.t, q.rdb, "PEXPIRE", key, "3600000")
	}
}

func (q fair) length() int64 {
	q.t.Helper()
	return number(q.t, q.rdb, "LLEN", fairKeys.Queue)
}

// Hundreds of dead owners are at the front. No script removes more than a hundred of them, and no
// caller is affected: the first living owner acquires the lock, or is notified.
func TestFair_manyDead(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		dead := names(1001, 1350)
		e := listen(t, q.rdb)
		story := func(name string, f func(t *testing.T, q fair)) {
			t.Run(name, func(t *testing.T) {
				q := fair{t, q.rdb}
				q.clear()
				q.queuedMany(-time.Second, dead...)
				f(t, q)
			})
		}
		oneScript := func(t *testing.T, q fair, what string) {
			t.Helper()
			if got := q.length(); got < 250 {
				t.Errorf("%s: one script left %d of 350 in the queue", what, got)
			}
		}
		story("a request, script by script", func(t *testing.T, q fair) {
			for _, left := range []int64{250, 150, 50} {
				m := eval(t, q.rdb, luascripts.Text("fair_acquire"), []string{fairKeys.Lock, fairKeys.Queue, fairKeys.Timeouts, fairKeys.Never}, owner("G1"), "60000", "1", "60000")
				if n, err := m.ToInt64(); err != nil || n != -5 || q.length() != left {
					t.Fatalf("the script answers %d, %v, and %d are in the queue; want -5 and %d", n, err, q.length(), left)
				}
			}
			q.gets("G1")
		})
		story("a request", func(t *testing.T, q fair) {
			if got := q.ask("G1", 0); got.Verdict != luascripts.Done || q.length() != 0 {
				t.Errorf("%+v, and %d are in the queue", got, q.length())
			}
		})
		story("a request, and another has it", func(t *testing.T, q fair) {
			q.held("G9", long)
			q.waits("G1")
			oneScript(t, q, "a request")
		})
		story("a request of one that waits behind them, and another has it", func(t *testing.T, q fair) {
			q.queuedMany(waiterTimeout, "G1")
			q.held("G9", long)
			q.waits("G1")
			oneScript(t, q, "a request")
		})
		story("a request behind a living owner", func(t *testing.T, q fair) {
			q.queuedMany(waiterTimeout, "J2")
			q.waits("G1")
			if q.queue() != "J2 G1" {
				t.Errorf("in the queue: %s", q.queue())
			}
			q.lasts("one of Redisson is first")
		})
		story("a release", func(t *testing.T, q fair) {
			q.queuedMany(waiterTimeout, "G1", "G2")
			q.held("G9", long)
			e.heard()
			q.releases("G9", luascripts.Done)
			e.expect(notified("G1")...)
		})
		story("a waiter leaves", func(t *testing.T, q fair) {
			q.queuedMany(waiterTimeout, "G1", "G2")
			e.heard()
			q.releases("G1", luascripts.Gone)
			e.expect(notified("G2")...)
		})
		story("a release, and all are dead", func(t *testing.T, q fair) {
			q.held("G9", long)
			q.releases("G9", luascripts.Done)
			if all := contents(t, q.rdb); all != "" {
				t.Errorf("left behind:\n%s", all)
			}
		})
		story("by force", func(t *testing.T, q fair) {
			q.queuedMany(waiterTimeout, "G1")
			q.held("G9", long)
			e.heard()
			got, err := luascripts.ForceFair(t.Context(), q.rdb, fairKeys)
			check(t, "force", got, luascripts.Done, err)
			e.expect(notified("G1")...)
		})
		story("by force, and another owner acquires the lock before all dead ones are removed", func(t *testing.T, q fair) {
			q.queuedMany(waiterTimeout, "G1")
			q.held("G9", long)
			e.heard()
			afterFirst := between{q.rdb, sync.OnceFunc(func() { do(t, q.rdb, "HSET", fairKeys.Lock, owner("G1"), "1") })}
			got, err := luascripts.ForceFair(t.Context(), afterFirst, fairKeys)
			check(t, "force", got, luascripts.Done, err)
			if number(t, q.rdb, "HEXISTS", fairKeys.Lock, owner("G1")) != 1 {
				t.Error("it freed the lock of that owner, too")
			}
			e.expect(notified("G1")...)
		})
		story("a heartbeat", func(t *testing.T, q fair) {
			q.queuedMany(waiterTimeout, "G1", "G2")
			e.heard()
			if kept := q.keeps("G2"); kept.Left != time.Millisecond {
				t.Errorf("look again in %v, and the first is not known", kept.Left)
			}
			oneScript(t, q, "a heartbeat")
			q.outlives("though the first is not known")
			e.expect()
			for range 3 {
				q.keeps("G2")
			}
			e.expect(notified("G1")...)
		})
	})
}

// between calls after behind each command that the server has executed.
type between struct {
	rueidis.Client
	after func()
}

func (b between) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	reply := b.Client.Do(ctx, cmd)
	if reply.Error() == nil {
		b.after()
	}
	return reply
}

// A process with many waiters was paused for longer than their waiter timeout, and no other process
// detected it. Its heartbeat takes several scripts. None of them treats the waiters of a later script as
// dead, whatever their order.
func TestFair_manyOfOneProcessAreLate(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		all := names(1, 450)
		q.held("G999", long)
		for _, late := range []bool{false, true} {
			do(t, q.rdb, "DEL", fairKeys.Queue, fairKeys.Timeouts)
			left := waiterTimeout
			if late {
				left = -time.Second
			}
			q.queuedMany(left, all...)
			backwards := slices.Clone(all)
			slices.Reverse(backwards)
			kept := q.keeps(append(backwards, "G998")...) // and one owner that is not in the queue
			if len(kept.MustRetry) != 451 || slices.Contains(kept.MustRetry[:450], true) || !kept.MustRetry[450] {
				t.Errorf("late %v: asks %v", late, kept.MustRetry)
			}
			if got := q.queue(); got != strings.Join(all, " ") {
				t.Errorf("late %v: in the queue are %s", late, got)
			}
			for _, name := range []string{"G1", "G200", "G450"} {
				about(t, name, q.left(name), waiterTimeout)
			}
		}
	})
}

// Our waiters and Redisson's wait in a long queue. Ours at the end derive from their deadlines how
// many of Redisson's are ahead. Each stays alive until its turn, without a heartbeat, and a dead
// one delays the others by at most its waiter timeout.
func TestPeers_longQueue(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		q.gets("G9999")
		var queue []string
		for n := 1; n <= 260; n++ {
			name := fmt.Sprint("G", n)
			if n%4 == 0 {
				name = fmt.Sprint("J", n)
			}
			q.queues(name)
			queue = append(queue, name)
		}
		right := func(what string) {
			t.Helper()
			foreign := time.Duration(0)
			for i, name := range queue {
				if name[0] == 'J' {
					foreign++
				} else if i%7 == 0 || i > len(queue)-5 {
					about(t, what+": "+name, q.left(name), waiterTimeout+foreign*javaWait)
				}
			}
		}
		beat := func() {
			t.Helper()
			kept := q.keeps(slices.DeleteFunc(slices.Clone(queue), func(name string) bool { return name[0] == 'J' })...)
			if slices.Contains(kept.MustRetry, true) {
				t.Errorf("an owner should ask: %v", kept.MustRetry)
			}
		}
		right("when all have come")
		q.waits("G258", "G259", "G150", "G3")
		right("after some asked again")
		beat()
		right("after a heartbeat")
		q.lasts("with Redisson's in the queue")
		for range 90 {
			q.letsGo(map[bool]string{true: "G9999", false: strings.TrimSuffix(q.holder(), "=1")}[q.holder() == "G9999=1"])
			q.takes(queue[0])
			queue = queue[1:]
		}
		right("when ninety were served")
		beat()
		right("after another heartbeat")
		if served, want := q.serve(strings.TrimSuffix(q.holder(), "=1")), strings.Join(queue, " "); served != want {
			t.Errorf("served: %s\nwant:   %s", served, want)
		}
	})
}

// More waiters of Redisson than a script reads are ahead of ours. The script does not count fewer than there are.
func TestPeers_longQueueOfTheirs(t *testing.T) {
	withPeers(t, func(t *testing.T, q fair) {
		q.gets("G9999")
		q.waits(names(1, 30)...)
		var theirs []string
		for n := range 130 {
			theirs = append(theirs, fmt.Sprint("J", 100+n))
		}
		q.javaWaits(theirs...)
		q.waits("G31")
		if left := q.left("G31"); left < 130*javaWait+waiterTimeout-slow || left > 161*javaWait+waiterTimeout {
			t.Errorf("G31 counts as alive for %v", left)
		}
		if served := q.serve("G9999"); served != strings.Join(slices.Concat(names(1, 30), theirs, []string{"G31"}), " ") {
			t.Errorf("served: %s", served)
		}
	})
}

// The waiter timeout of others does not remain part of a deadline, so it does not add up.
func TestFair_waiterTimeoutInALongQueue(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.gets("G999")
		q.waits(names(1, 210)...)
		for n := 211; n <= 270; n++ {
			p := waiterTimeout
			if n%2 == 0 {
				p = time.Hour
			}
			name := fmt.Sprint("G", n)
			q.ask(name, p)
			about(t, name, q.left(name), p)
		}
		q.outlives("in a long queue")
	})
}

// Like TestFair_deletedByHand.
func TestFair_deletedByHandInALongQueue(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		all := names(1, 150)
		for _, key := range []string{fairKeys.Queue, fairKeys.Timeouts} {
			for _, comes := range []string{"", "G151"} {
				do(t, q.rdb, "DEL", fairKeys.Queue, fairKeys.Timeouts)
				q.held("G999", long)
				q.queuedMany(waiterTimeout, all...)
				want := slices.Clone(all)
				if key == fairKeys.Queue { // the deadlines stay
					q.queuedMany(waiterTimeout, names(201, 300)...)
				}
				do(t, q.rdb, "DEL", key)
				if comes != "" {
					q.waits(comes) // before any heartbeat
					want = append(want, comes)
				}
				for i, asks := range q.keeps(all...).MustRetry {
					if asks {
						q.waits(all[i])
					}
				}
				got := strings.Fields(q.queue())
				if key == fairKeys.Queue {
					slices.Sort(got)
					slices.Sort(want)
				}
				if !slices.Equal(got, want) {
					t.Errorf("without %s: in the queue are %s", key, got)
				}
				if asks := q.keeps(all...).MustRetry; slices.Contains(asks, true) {
					t.Errorf("without %s, all are back in the queue, and yet: %v", key, asks)
				}
			}
		}
	})
}

// A long queue is read in parts.
func TestInspectFair_longQueue(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		for _, n := range []int{99, 100, 101, 450} {
			q.clear()
			q.held("G9999", long)
			q.queuedMany(waiterTimeout, names(1, n)...)
			s, err := luascripts.InspectFair(t.Context(), q.rdb, fairKeys)
			if err != nil || len(s.Waiters) != n || len(s.Fields) != 1 {
				t.Fatalf("%d wait, %d seen, %v", n, len(s.Waiters), err)
			}
			for i, w := range s.Waiters {
				if short(w.Owner) != fmt.Sprint("G", i+1) {
					t.Fatalf("%d of %d is %s", i+1, n, short(w.Owner))
				}
			}
			about(t, "the patience of the last", s.Waiters[n-1].WaiterTimeout, waiterTimeout)
		}
	})
}

// Some owners are removed from the queue manually, and their deadlines remain. The reply to their heartbeat makes them
// send requests, and they enter the queue again.
func TestFair_removedFromALongQueue(t *testing.T) {
	onFair(t, func(t *testing.T, q fair) {
		q.held("G999", long)
		q.queuedMany(waiterTimeout, names(1, 150)...)
		do(t, q.rdb, "LTRIM", fairKeys.Queue, "0", "119")
		for _, name := range names(121, 150) {
			if !q.keeps(name).MustRetry[0] {
				t.Fatalf("%s waits on, and is not in the queue", name)
			}
			q.waits(name)
		}
		if got, want := q.queue(), strings.Join(names(1, 150), " "); got != want {
			t.Errorf("in the queue: %s", got)
		}
	})
}
