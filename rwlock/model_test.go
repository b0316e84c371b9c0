package rwlock_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"pgregory.net/rapid"
)

// model is the expected state of some read/write locks: the reading and writing owners, their hold counts, and the
// minimum lease of each hold. After every step the server, Inspect and every hold must agree with it.
type model struct {
	server  *redistest.Server
	t       *testing.T
	clients []*client.Client
	owners  []context.Context
	locks   map[string]*modelLock
	stale   []*modelHold // unlocked or lost; their Unlock must do nothing
}

type modelLock struct {
	name   string
	holds  []*modelHold
	token  uint64 // of the latest writer
	intent bool   // another program's writer waits

	// Keys that a loss leaves in Redis until the lease expires: read leases of a deleted hash, and fields of readers
	// whose leases were deleted.
	orphans, dead map[string]bool
}

type modelHold struct {
	lock.Hold
	lock  *modelLock
	side  lock.Mode
	owner int       // in model.owners
	least time.Time // when its lease expires at the earliest
	lost  bool
}

func (m *model) client(owner int) *client.Client { return m.clients[owner%len(m.clients)] }

func (m *model) anyLock(rt *rapid.T) *modelLock {
	return m.locks[rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")]
}

// of returns the holds of one owner on one side, or of all owners for -1.
func (l *modelLock) of(side lock.Mode, owner int) (holds []*modelHold) {
	for _, h := range l.holds {
		if h.side == side && (owner < 0 || h.owner == owner) {
			holds = append(holds, h)
		}
	}
	return holds
}

// ofOthers reports whether another owner holds l on that side.
func (l *modelLock) ofOthers(side lock.Mode, owner int) bool {
	return len(l.of(side, -1)) > len(l.of(side, owner))
}

// Read makes an owner of either client try to read: it must be granted exactly if the model allows it.
func (m *model) Read(rt *rapid.T) {
	l, owner := m.anyLock(rt), m.anyOwner(rt)
	first := rapid.Bool().Draw(rt, "readers first")
	want := error(nil)
	switch {
	case len(l.of(lock.Read, owner)) > 0:
	case l.ofOthers(lock.Write, owner):
		want = lock.ErrNotAcquired
	case l.intent && !first && len(l.of(lock.Write, owner)) == 0:
		want = lock.ErrNotAcquired
	}
	var opts []lock.Option
	if first {
		opts = append(opts, lock.WithReaderPreference())
	}
	if h := m.try(rt, l, lock.Read, owner, want, opts...); h != nil && h.Token() != 0 {
		rt.Fatalf("a reader has token %d", h.Token())
	}
}

// Write is as Read, for writing.
func (m *model) Write(rt *rapid.T) {
	l, owner := m.anyLock(rt), m.anyOwner(rt)
	mine := l.of(lock.Write, owner)
	want := error(nil)
	switch {
	case len(mine) > 0:
	case len(l.of(lock.Read, owner)) > 0:
		want = lock.ErrUpgrade
	case len(l.holds) > 0:
		want = lock.ErrNotAcquired
	}
	h := m.try(rt, l, lock.Write, owner, want)
	switch {
	case h == nil:
	case len(mine) > 0 && h.Token() != l.token:
		rt.Fatalf("a reentry has token %d, want %d", h.Token(), l.token)
	case len(mine) == 0 && h.Token() <= l.token:
		rt.Fatalf("token %d after %d", h.Token(), l.token)
	default:
		l.token = h.Token()
	}
}

func anyOf(rt *rapid.T, holds []*modelHold) *modelHold {
	return holds[rapid.IntRange(0, len(holds)-1).Draw(rt, "hold")]
}

func (m *model) anyOwner(rt *rapid.T) int {
	return rapid.IntRange(0, len(m.owners)-1).Draw(rt, "owner")
}

// try requests one hold. It must be rejected with want, or granted if want is nil.
func (m *model) try(rt *rapid.T, l *modelLock, side lock.Mode, owner int, want error, opts ...lock.Option) *modelHold {
	lease := rapid.SampledFrom([]time.Duration{0, time.Minute, 10 * time.Minute}).Draw(rt, "lease")
	if lease == 0 && side == lock.Read {
		lease = client.DefaultWatchdogTimeout // without a lease, readers of a client can share a recent grant
	}
	if lease > 0 {
		opts = append(opts, lock.WithFixedLease(lease))
	}
	sent := time.Now()
	h, err := m.locker(l.name, side, owner, opts...).TryLock(m.owners[owner])
	if !errors.Is(err, want) {
		rt.Fatalf("owner %d, %s %q: %v, want %v", owner, side, l.name, err, want)
	}
	if err != nil {
		return nil
	}
	held := &modelHold{Hold: h, lock: l, side: side, owner: owner, least: sent.Add(cmp.Or(lease, client.DefaultWatchdogTimeout))}
	for _, other := range l.of(side, owner) { // one lease for all holds of an owner
		if other.least.After(held.least) {
			held.least = other.least
		}
	}
	for _, other := range l.of(side, owner) {
		other.least = held.least
	}
	l.holds = append(l.holds, held)
	return held
}

func (m *model) locker(name string, side lock.Mode, owner int, opts ...lock.Option) lock.Locker {
	l := m.client(owner).NewRWLock(name, opts...)
	if side == lock.Read {
		return l.Read()
	}
	return l.Write()
}

// Unlock unlocks any hold, in any order.
func (m *model) Unlock(rt *rapid.T) {
	l := m.anyLock(rt)
	if len(l.holds) == 0 {
		rt.Skip("free")
	}
	h := anyOf(rt, l.holds)
	if err := h.Unlock(m.t.Context()); err != nil {
		rt.Fatalf("unlock of one of %d holds (%s) on %q: %v", len(l.holds), h.side, l.name, err)
	}
	l.holds = slices.DeleteFunc(l.holds, func(other *modelHold) bool { return other == h })
	m.stale = append(m.stale, h)
}

// UnlockAgain unlocks a hold that has ended.
func (m *model) UnlockAgain(rt *rapid.T) {
	if len(m.stale) == 0 {
		rt.Skip("no hold has ended")
	}
	h := anyOf(rt, m.stale)
	err := h.Unlock(m.t.Context())
	if !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) != h.lost {
		rt.Fatalf("unlock of an ended hold (lost: %v): %v", h.lost, err)
	}
}

// Force force-unlocks the lock with either client, which notifies its own holders immediately.
func (m *model) Force(rt *rapid.T) {
	l := m.anyLock(rt)
	by := rapid.IntRange(0, len(m.clients)-1).Draw(rt, "client")
	was, err := m.clients[by].NewRWLock(l.name).ForceUnlock(m.t.Context())
	if err != nil || was != (len(l.holds) > 0) && len(l.dead) == 0 { // dead readers do not count
		rt.Fatalf("force unlock of %q with %d holds: %v, %v", l.name, len(l.holds), was, err)
	}
	for _, h := range l.holds {
		if h.owner%len(m.clients) == by && h.Err() == nil {
			rt.Fatalf("a holder (%s) of the client that unlocks %q was not notified", h.side, l.name)
		}
	}
	m.lose(rt, l, l.holds)
}

// Steal deletes the hash without notifying the clients.
func (m *model) Steal(rt *rapid.T) {
	l := m.anyLock(rt)
	if len(l.holds) == 0 {
		rt.Skip("free")
	}
	m.server.Do(m.t, "DEL", l.name)
	for _, h := range l.of(lock.Read, -1) {
		l.orphans[leaseKey(l.name, h.Owner(), len(l.of(lock.Read, h.owner)))] = true
	}
	m.lose(rt, l, l.holds)
}

// StealLease deletes a reader's lease: the reader is dead then, whatever the hash contains.
func (m *model) StealLease(rt *rapid.T) {
	l := m.anyLock(rt)
	readers := l.of(lock.Read, -1)
	if len(readers) == 0 {
		rt.Skip("no reader")
	}
	h := anyOf(rt, readers)
	holds := l.of(lock.Read, h.owner)
	m.server.Do(m.t, "DEL", leaseKey(l.name, h.Owner(), len(holds)))
	l.dead[h.Owner()] = true
	m.lose(rt, l, holds)
}

// lose ends holds in the model. A holder that was not notified detects the loss by re-entering.
func (m *model) lose(rt *rapid.T, l *modelLock, holds []*modelHold) {
	for _, h := range holds {
		if h.Err() == nil {
			if _, err := m.locker(l.name, h.side, h.owner).TryLock(m.owners[h.owner]); !errors.Is(err, lock.ErrLost) {
				rt.Fatalf("reentry of owner %d (%s) into %q, which is gone: %v", h.owner, h.side, l.name, err)
			}
		}
		h.lost = true
		m.stale = append(m.stale, h)
	}
	l.holds = slices.DeleteFunc(slices.Clone(l.holds), func(h *modelHold) bool { return h.lost })
}

// Intent makes another program's writer wait, or stop waiting.
func (m *model) Intent(rt *rapid.T) {
	l := m.anyLock(rt)
	if l.intent = !l.intent; l.intent {
		m.server.Do(m.t, "SET", intentKey(l.name), "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1 1", "PX", "3600000")
	} else {
		m.server.Do(m.t, "DEL", intentKey(l.name))
	}
}

// Flush makes the server drop the scripts.
func (m *model) Flush(*rapid.T) { m.server.Do(m.t, "SCRIPT", "FLUSH") }

// tick is the maximum difference in ms of two expiries that one script set or read, because the server's clock
// continues and its machine may be slow.
const tick = 1000

// stored is one key as stored on the server.
type stored struct {
	Hash map[string]string
	Left int64 // PTTL
}

// snapshot reads all keys at one instant.
func (m *model) snapshot(rt *rapid.T) map[string]stored {
	reply := m.server.Do(m.t, "EVAL", `
		local all = {}
		for _, key in ipairs(redis.call('KEYS', '*')) do
			all[key] = {Left = redis.call('PTTL', key)}
			if redis.call('TYPE', key).ok == 'hash' then
				local fields = redis.call('HGETALL', key)
				all[key].Hash = {}
				for i = 1, #fields, 2 do all[key].Hash[fields[i]] = fields[i + 1] end
			end
		end
		return cjson.encode(all)`, "0")
	all := make(map[string]stored)
	if err := json.Unmarshal([]byte(kindtest.Text(reply)), &all); err != nil {
		rt.Fatal(err)
	}
	return all
}

// Check compares the server, Inspect and every hold with the model.
func (m *model) Check(rt *rapid.T) {
	all := m.snapshot(rt)
	now := time.Now() // after the snapshot, so nothing in it expires before now+Left
	for _, name := range []string{"a", "b"} {
		m.check(rt, m.locks[name], all, now)
	}
	for key := range all {
		rt.Fatalf("%q should not be there", key)
	}
	for _, h := range m.stale {
		if err := h.Context().Err(); err == nil {
			rt.Fatalf("a hold (%s) of %q has ended, and its context is not canceled", h.side, h.lock.name)
		}
	}
}

// check checks the keys of l, and removes them from all.
func (m *model) check(rt *rapid.T, l *modelLock, all map[string]stored, now time.Time) {
	hash, exists := all[l.name]
	delete(all, l.name)
	if !exists {
		clear(l.dead)
	}

	// The hash: mode and counts, and the fields that dead readers may have left.
	want, holders := map[string]string{}, []lock.Holder{}
	for owner := range m.owners {
		for side, suffix := range map[lock.Mode]string{lock.Read: "", lock.Write: ":write"} {
			if holds := l.of(side, owner); len(holds) > 0 {
				want[holds[0].Owner()+suffix] = strconv.Itoa(len(holds))
				holders = append(holders, lock.Holder{Owner: holds[0].Owner(), Count: len(holds), Mode: side})
			}
		}
	}
	mode := lock.Free
	switch {
	case len(l.of(lock.Write, -1)) > 0:
		mode = lock.Write
	case len(l.holds) > 0:
		mode = lock.Read
	}
	got := maps.Clone(hash.Hash)
	maps.DeleteFunc(got, func(field, _ string) bool {
		return l.dead[field] || mode == lock.Free && len(l.dead) > 0 && field == "mode"
	})
	if mode != lock.Free {
		want["mode"] = string(mode)
	}
	if !maps.Equal(got, want) {
		rt.Fatalf("%q is %v on the server, want %v (dead: %v)", l.name, hash.Hash, want, l.dead)
	}

	// The leases: one key for each owner that reads. The hash lives as long as the longest lease, and not longer after
	// the writer has left.
	var longest int64
	for _, h := range l.of(lock.Read, -1) {
		key := leaseKey(l.name, h.Owner(), len(l.of(lock.Read, h.owner)))
		lease, ok := all[key]
		if _, seen := want[key]; seen {
			continue // by another hold of the same owner
		}
		want[key] = ""
		delete(all, key)
		if !ok {
			rt.Fatalf("%q is not there", key)
		}
		if hash.Left < lease.Left-tick {
			rt.Fatalf("the TTL of %q is %d ms, and of its reader's %q %d ms", l.name, hash.Left, key, lease.Left)
		}
		m.checkLease(rt, h, lease.Left, now)
		longest = max(longest, lease.Left)
	}
	for _, h := range l.of(lock.Write, -1) {
		m.checkLease(rt, h, hash.Left, now)
	}
	if mode == lock.Read && len(l.dead) == 0 && hash.Left > longest+tick {
		rt.Fatalf("the TTL of %q is %d ms, and of its last reader %d ms", l.name, hash.Left, longest)
	}
	if exists && hash.Left <= 0 {
		rt.Fatalf("%q has no expiry", l.name)
	}

	// All other keys.
	for key := range all {
		if l.orphans[key] && strings.HasPrefix(key, "{"+l.name+"}") {
			delete(all, key)
		}
	}
	waiters := 0
	if l.intent {
		waiters = 1
		if _, ok := all[intentKey(l.name)]; !ok {
			rt.Fatalf("the intent for %q is gone", l.name)
		}
		delete(all, intentKey(l.name))
	}

	state, err := m.clients[0].NewRWLock(l.name).Inspect(m.t.Context())
	slices.SortFunc(holders, func(a, b lock.Holder) int {
		return cmp.Or(-cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.Owner, b.Owner)) // the writer first
	})
	for i := range state.Holders {
		state.Holders[i].Since = time.Time{} // depends on the clock
		state.Holders[i].Client = lock.Client{}
	}
	if err != nil || !slices.Equal(state.Holders, holders) || state.Mode != mode || len(state.Waiters) != waiters {
		rt.Fatalf("Inspect of %q: %+v, %v, want %s by %v", l.name, state, err, mode, holders)
	}
}

// checkLease fails the test unless h is valid. Its lease on the server, with left ms remaining, must be at least as
// long as requested, and must not expire before Until.
func (m *model) checkLease(rt *rapid.T, h *modelHold, left int64, now time.Time) {
	if err := h.Err(); err != nil {
		rt.Fatalf("a hold (%s) of %q: %v", h.side, h.lock.name, err)
	}
	ends := now.Add(time.Duration(left+1) * time.Millisecond) // PTTL is rounded
	if ends.Before(h.least) {
		rt.Fatalf("the lease of a hold (%s) of %q ends %v earlier than requested", h.side, h.lock.name, h.least.Sub(ends))
	}
	if until := h.Until(); until.After(ends) {
		rt.Fatalf("Until of a hold (%s) of %q is %v after the end of its lease", h.side, h.lock.name, until.Sub(ends))
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	rapid.Check(t, func(rt *rapid.T) {
		s.Do(t, "FLUSHALL")
		m := &model{server: s, t: t, clients: []*client.Client{a, b}, locks: map[string]*modelLock{}}
		for _, name := range []string{"a", "b"} {
			m.locks[name] = &modelLock{name: name, orphans: map[string]bool{}, dead: map[string]bool{}}
		}
		for range 4 {
			m.owners = append(m.owners, lock.ContextWithNewOwner(t.Context()))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"Read": m.Read, "Read again": m.Read, "Write": m.Write, "Write again": m.Write,
			"Unlock": m.Unlock, "Unlock another": m.Unlock, "UnlockAgain": m.UnlockAgain,
			"Force": m.Force, "Steal": m.Steal, "StealLease": m.StealLease, "Intent": m.Intent, "Flush": m.Flush, "": m.Check,
		})
		for _, l := range m.locks {
			for _, h := range l.holds {
				if err := h.Unlock(t.Context()); err != nil {
					rt.Error(err)
				}
			}
		}
	})
}
