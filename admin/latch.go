package admin

import (
	"context"
	"strconv"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The key of a latch is a number. A latch is recognized by the hash that package latch writes next to it, so a latch that only
// Redisson has used is not listed. A wait group has a separate key.

// latch reads name as a latch. ok is false if package latch has not used it, or if it was deleted.
func (a *Admin) latch(ctx context.Context, name string) (l Lock, ok bool, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	if keys.CheckLatch("", name) != nil {
		return Lock{}, false, nil
	}
	k := keys.Latch(name)
	replies := a.rdb.DoMulti(ctx, a.rdb.B().Get().Key(k.Lock).Build(), a.rdb.B().Hmget().Key(k.Rounds).Field("round", "open", "gone").Build())
	text, err1 := replies[0].ToString()
	if rueidis.IsRedisNil(err1) {
		err1, text = nil, "0"
	}
	fields, err2 := replies[1].AsStrSlice()
	for _, err := range []error{err1, err2} {
		if err != nil && wrongType(err) {
			return Lock{}, false, nil
		}
		if err != nil {
			return Lock{}, false, err
		}
	}
	var n [3]int64
	for i := range min(len(fields), len(n)) {
		n[i], _ = strconv.ParseInt(fields[i], 10, 64)
	}
	count, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n[0] == 0 || count <= 0 && n[2] == n[0] {
		return Lock{}, false, nil
	}
	return Lock{State: lock.State{Name: name}, Kind: Latch, Left: max(count, 0)}, true, nil
}

// waitGroup reads name as a wait group. ok is false if no worker has joined it.
func (a *Admin) waitGroup(ctx context.Context, name string) (l Lock, ok bool, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	members, v, err := luascripts.InspectWaitGroup(ctx, a.rdb, keys.WaitGroup(name))
	if err != nil || v == luascripts.Foreign {
		return Lock{}, false, err
	}
	l = Lock{State: lock.State{Name: name}, Kind: WaitGroup}
	for _, m := range members {
		h := lock.Holder{Owner: m.Owner, Count: 1, Mode: lock.Worker, Since: session.AskedSince(m.Owner)}
		switch m.Left {
		case luascripts.NoExpiry:
			l.Done++
		case 0:
			l.Lost = append(l.Lost, h)
		default:
			l.Holders = append(l.Holders, h)
			l.Mode, l.Lease = lock.Worker, max(l.Lease, m.Left)
			l.lease(h, m.Left)
		}
	}
	l.Holding = len(l.Holders)
	return l, len(members) > 0, nil
}

// zsets returns the semaphores and the wait groups among the keys zsets that q selects, and whose names match pattern.
func (a *Admin) zsets(ctx context.Context, zsets []string, q Query, pattern string) (found []Lock, err error) {
	if q.Kind != WaitGroup {
		if found, err = a.semaphores(ctx, zsets, pattern); err != nil {
			return nil, err
		}
	}
	if q.Kind == Semaphore {
		return found, nil
	}
	var names []string
	for _, key := range zsets {
		if name, ok := keys.WaitGroupOf(key); ok && matches(pattern, name) && keys.Check("", name) == nil {
			names = append(names, name)
		}
	}
	groups, err := each(names, func(name string) (Lock, bool, error) {
		l, ok, err := a.waitGroup(ctx, name)
		l.Holders, l.Lost = l.Holders[:min(len(l.Holders), someHolds)], l.Lost[:min(len(l.Lost), someHolds)]
		return l, ok && (l.Locked() || q.lists(WaitGroup) && len(l.Lost) > 0), err
	})
	return append(found, groups...), err
}

// latches returns the latches with the hashes rounds that are not released, and whose names match pattern.
func (a *Admin) latches(ctx context.Context, rounds []string, pattern string) ([]Lock, error) {
	var names []string
	for _, key := range rounds {
		if name, ok := keys.LatchOf(key); ok && matches(pattern, name) {
			names = append(names, name)
		}
	}
	return each(names, func(name string) (Lock, bool, error) {
		l, ok, err := a.latch(ctx, name)
		return l, ok && l.Left > 0, err
	})
}
