package luascripts_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A replica has old data, or none. What a script reports about a hold, a worker, a latch or a permit is final for its
// caller. Each of these scripts therefore also sends a command that writes, which a replica rejects.
func TestReplica_saysNothingFinal(t *testing.T) {
	const lease = time.Minute
	sem := keys
	sem.Lock, sem.Leases, sem.Queue, sem.Timeouts, sem.Never = "permits", "leases", "queue", "alive", "never"
	sem.Channel, sem.Change, sem.Slots = "channel", "change", "slots"
	latch := luascripts.Keys{Lock: "latch", LatchKeys: luascripts.LatchKeys{Rounds: "rounds", Calls: "calls"}, Never: "never", Channel: "channel", Publish: "PUBLISH"}
	waitGroup := luascripts.Keys{Lock: "waitgroup", Channel: "channel", Publish: "PUBLISH"}
	board := luascripts.Keys{Lock: "board", Channel: "channel", Publish: "PUBLISH"}
	window := luascripts.WindowKeys{Config: "window", Value: "value", Permits: "window-permits", Never: "never"}
	again := luascripts.LatchCall{ID: "call", Keep: time.Minute, Stay: time.Hour}
	request := func(want int) luascripts.Request {
		return luascripts.Request{Owner: ours, Lease: lease, Want: want}
	}
	renewal := func(k luascripts.Keys) []luascripts.Renewal {
		return []luascripts.Renewal{{Keys: &k, Owner: ownerOf(k)}}
	}
	type call = func(ctx context.Context, rdb rueidis.Client) error
	// verdict returns a call of a function that returns a verdict.
	verdict := func(f func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, leave int) (luascripts.Verdict, error), k luascripts.Keys, leave int) call {
		return func(ctx context.Context, rdb rueidis.Client) error {
			_, err := f(ctx, rdb, k, ownerOf(k), leave)
			return err
		}
	}
	acquire := func(f func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error), k luascripts.Keys, q luascripts.Request) call {
		return func(ctx context.Context, rdb rueidis.Client) error { _, err := f(ctx, rdb, k, q); return err }
	}
	renew := func(f func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed, k luascripts.Keys) call {
		return func(ctx context.Context, rdb rueidis.Client) error {
			return f(ctx, rdb, renewal(k), lease, 64)[0].Err
		}
	}
	force := func(f func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.Verdict, error), k luascripts.Keys) call {
		return func(ctx context.Context, rdb rueidis.Client) error { _, err := f(ctx, rdb, k); return err }
	}
	change := func(c luascripts.Change) call {
		return func(ctx context.Context, rdb rueidis.Client) error {
			luascripts.ChangeReentrant(ctx, rdb, []*luascripts.Change{&c}, 64)
			return c.Err
		}
	}
	sets := func(ctx context.Context, rdb rueidis.Client) error {
		_, _, err := luascripts.InitLatch(ctx, rdb, latch, 2, again)
		return err
	}
	hash := func(key string, fields ...string) []string { return append([]string{"HSET", key}, fields...) }
	long := func(key string) []string { return []string{"PEXPIRE", key, "7200000"} }

	for name, c := range map[string]struct {
		old  [][]string // the data of the replica
		call call
	}{
		"plain: a lock that is there already": {[][]string{hash("orders", ours, "1"), long("orders")}, acquire(luascripts.AcquireReentrant, keys, request(1))},
		"plain: reentry into nothing":         {nil, acquire(luascripts.AcquireReentrant, keys, request(2))},
		"plain: reentry into another's":       {[][]string{hash("orders", other, "1"), long("orders")}, acquire(luascripts.AcquireReentrant, keys, request(2))},
		"plain: release":                      {nil, verdict(luascripts.ReleaseReentrant, keys, 0)},
		"plain: release of another's":         {[][]string{hash("orders", other, "1"), long("orders")}, verdict(luascripts.ReleaseReentrant, keys, 0)},
		"plain: release in part":              {nil, verdict(luascripts.ReleaseReentrant, keys, 1)},
		"plain: release in part, again":       {[][]string{hash("orders", ours, "1"), long("orders")}, verdict(luascripts.ReleaseReentrant, keys, 1)},
		"plain: releases in one call":         {nil, change(luascripts.Change{Keys: &keys, IsRelease: true, Request: luascripts.Request{Owner: ours}})},
		"plain: renew":                        {nil, renew(luascripts.RenewReentrant, keys)},
		"plain: renew, long enough":           {[][]string{hash("orders", ours, "1"), long("orders")}, renew(luascripts.RenewReentrant, keys)},
		"plain: retain": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, err := luascripts.RetainReentrant(ctx, rdb, keys, ours, lease)
			return err
		}},
		"plain: force": {nil, force(luascripts.ForceReentrant, keys)},
		"plain: raise the token": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, err := luascripts.RaiseToken(ctx, rdb, fenced("orders"), ours, 7)
			return err
		}},

		"fair: reentry into nothing":   {nil, acquire(luascripts.AcquireFair, fairKeys, request(2))},
		"fair: release":                {nil, verdict(luascripts.ReleaseFair, fairKeys, 0)},
		"fair: release in part":        {nil, verdict(luascripts.ReleaseFair, fairKeys, 1)},
		"fair: release in part, again": {[][]string{hash("orders", ours, "1"), long("orders")}, verdict(luascripts.ReleaseFair, fairKeys, 1)},
		"fair: force":                  {nil, force(luascripts.ForceFair, fairKeys)},
		"fair: heartbeat": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, err := luascripts.KeepFair(ctx, rdb, fairKeys, []luascripts.Waiter{{Owner: ours, WaiterTimeout: lease}})
			return err
		}},

		"read: reentry into nothing":  {nil, acquire(luascripts.AcquireRead, rwKeys, request(2))},
		"read: release":               {nil, verdict(luascripts.ReleaseRead, rwKeys, 0)},
		"read: release in part":       {nil, verdict(luascripts.ReleaseRead, rwKeys, 1)},
		"read: renew":                 {nil, renew(luascripts.RenewRead, rwKeys)},
		"read: renew, long enough":    {[][]string{hash("orders", "mode", "read", ours, "1"), long("orders"), {"SET", "{orders}:" + ours + ":rwlock_timeout:1", "1", "PX", "7200000"}}, renew(luascripts.RenewRead, rwKeys)},
		"write: reentry into nothing": {nil, acquire(luascripts.AcquireWrite, rwKeys, request(2))},
		"write: release":              {nil, verdict(luascripts.ReleaseWrite, rwKeys, 0)},
		"write: renew":                {nil, renew(luascripts.RenewWrite, rwKeys)},
		"read/write: force":           {nil, force(luascripts.ForceRW, rwKeys)},

		"semaphore: another number":  {[][]string{{"SET", "permits", "3"}}, acquire(luascripts.AcquireSemaphore, with(sem, 1, 2), luascripts.Request{Owner: ownerOf(sem), Lease: lease, Want: 1})},
		"semaphore: no number":       {nil, acquire(luascripts.AcquireSemaphore, with(sem, 1, 0), luascripts.Request{Owner: ownerOf(sem), Lease: lease, Want: 1})},
		"semaphore: release":         {nil, verdict(luascripts.ReleaseSemaphore, with(sem, 1, 2), 0)},
		"semaphore: release in part": {nil, verdict(luascripts.ReleaseSemaphore, with(sem, 1, 2), 1)},
		"semaphore: renew":           {nil, renew(luascripts.RenewSemaphore, with(sem, 1, 2))},
		"semaphore: resize": {[][]string{{"SET", "permits", "2"}}, func(ctx context.Context, rdb rueidis.Client) error {
			_, _, err := luascripts.ResizeSemaphore(ctx, rdb, sem, 2, 1<<50)
			return err
		}},
		"semaphore: slots": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, _, err := luascripts.SlotsOfPermits(ctx, rdb, sem, ownerOf(sem))
			return err
		}},

		"wait group: join what is over": {[][]string{{"ZADD", "waitgroup", "1", ours}}, acquire(luascripts.JoinWaitGroup, waitGroup, request(1))},
		"wait group: look": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, _, err := luascripts.WaitGroupStatus(ctx, rdb, waitGroup)
			return err
		}},
		"wait group: leave":              {nil, leaves(waitGroup, 0)},
		"wait group: is it a member":     {nil, leaves(waitGroup, 1)},
		"wait group: leave, again":       {[][]string{{"ZADD", "waitgroup", "1", ours}}, leaves(waitGroup, 0)},
		"wait group: renew":              {nil, renew(luascripts.RenewWaitGroup, waitGroup)},
		"wait group: renew, long enough": {[][]string{{"ZADD", "waitgroup", "8000000000000", ours}}, renew(luascripts.RenewWaitGroup, waitGroup)},
		"wait group: dismiss": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, _, err := luascripts.DismissFromWaitGroup(ctx, rdb, waitGroup, []string{ours})
			return err
		}},
		"wait group: delete": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, err := luascripts.DeleteWaitGroup(ctx, rdb, waitGroup, 7)
			return err
		}},

		"latch: look": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, _, err := luascripts.LatchStatus(ctx, rdb, latch, time.Hour)
			return err
		}},
		"latch: count down": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, _, err := luascripts.CountDownLatch(ctx, rdb, latch, again)
			return err
		}},
		"latch: set again":              {[][]string{{"SET", "latch", "2"}, hash("rounds", "round", "5", "open", "4"), long("rounds"), {"ZADD", "calls", "9000000000", "another"}, long("calls")}, sets},
		"latch: set again, by one call": {[][]string{hash("rounds", "round", "5", "open", "5"), long("rounds"), {"ZADD", "calls", "9000000000", "call"}, long("calls")}, sets},
		"latch: delete": {nil, func(ctx context.Context, rdb rueidis.Client) error {
			_, _, err := luascripts.DeleteLatch(ctx, rdb, latch, again)
			return err
		}},

		"election: a later leader": {[][]string{hash("board", "token", "9")}, func(ctx context.Context, rdb rueidis.Client) error {
			_, err := luascripts.PostLeader(ctx, rdb, board, 8, "me", lease, false, 1, ours)
			return err
		}},
		"window: refund": {[][]string{hash("window", "rate", "5", "interval", "1000", "type", "0")}, func(ctx context.Context, rdb rueidis.Client) error {
			_, err := luascripts.RefundWindow(ctx, rdb, window, 1, "id")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			for _, words := range c.old {
				s.Do(t, words...)
			}
			s.Do(t, "REPLICAOF", "127.0.0.1", "1") // no server is there, so it keeps its data
			if err := c.call(t.Context(), s.Client(t)); err == nil || !strings.Contains(err.Error(), "READONLY") {
				t.Errorf("%v, want an error that says READONLY", err)
			}
		})
	}
}

// with returns the keys of a semaphore for an owner of some of its permits.
func with(k luascripts.Keys, permits, total int) luascripts.Keys {
	k.Permits, k.Total = permits, total
	return k
}

// ownerOf returns an owner of a lock. For a semaphore, it has one permit.
func ownerOf(k luascripts.Keys) string {
	if k.Leases != "" {
		return ours + ":1"
	}
	return ours
}

// leaves returns a call in which ours leaves a wait group, or only checks.
func leaves(k luascripts.Keys, leave int) func(ctx context.Context, rdb rueidis.Client) error {
	return func(ctx context.Context, rdb rueidis.Client) error {
		_, err := luascripts.LeaveWaitGroup(ctx, rdb, k, ours, leave, luascripts.WorkerDone)
		return err
	}
}

// The command that a replica would reject is sent only before the reply. Before the first write, it would allow new data despite
// full memory.
func TestFullMemory_newLatchesAndMembers(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	full(t, s)
	latch := luascripts.Keys{Lock: "latch", LatchKeys: luascripts.LatchKeys{Rounds: "rounds", Calls: "calls"}, Never: "never", Channel: "channel", Publish: "PUBLISH"}
	_, _, made := luascripts.InitLatch(t.Context(), rdb, latch, 2, luascripts.LatchCall{ID: "call", Keep: time.Minute, Stay: time.Hour})
	_, joined := luascripts.JoinWaitGroup(t.Context(), rdb, luascripts.Keys{Lock: "waitgroup"}, luascripts.Request{Owner: ours, Lease: time.Minute, Want: 1})
	for what, err := range map[string]error{"a latch": made, "a member": joined} {
		if err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s: %v, want an error that says OOM", what, err)
		}
	}
	if left := contents(t, rdb); left != "" {
		t.Errorf("left %q", left)
	}
}

// A key of the wrong type is reported even where a partial release would only read.
func TestSemaphore_foreignPermits(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	k := luascripts.Keys{Lock: "permits", Queue: "queue", Timeouts: "alive", Never: "never", SemaphoreKeys: luascripts.SemaphoreKeys{Leases: "leases", Permits: 1, Total: 2}}
	do(t, rdb, "SET", "leases", "of another program")
	v, err := luascripts.ReleaseSemaphore(t.Context(), rdb, k, ownerOf(k), 1)
	check(t, "release in part", v, luascripts.Foreign, err)
}
