package session

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Each test here fails without one guard of reading the state of a semaphore.

// permitsOf returns permits with this lease, in the order of the owner's numbers.
func permitsOf(owner string, left ...time.Duration) (held []luascripts.Permit) {
	for i, id := range luascripts.Permits(owner) {
		held = append(held, luascripts.Permit{ID: id, Left: left[i]})
	}
	return held
}

// The permits of an owner are one hold, whose lease is the shortest of theirs. Each permit of Redisson is a separate
// hold.
func TestSemaphoreStateOf(t *testing.T) {
	const number = 1830000000000000000
	requests := time.UnixMicro(number >> 10)
	one, two, three := owner.Client([8]byte{0x80, 1}), owner.Client([8]byte{0x80, 2}), owner.Client([8]byte{0x80, 3})
	own := func(client string, number uint64, permits int) string {
		return client + ":" + strconv.FormatUint(number, 10) + ":" + strconv.Itoa(permits)
	}
	first, third, fourth := own(one, number, 3), own(one, number+4, 1), own(two, number+5, 1) // of two clients; the last number follows the one before
	second := own(three, number+3, 1)
	holder := func(owner string, n uint64, count int) lock.Holder {
		return lock.Holder{Owner: owner, Count: count, Mode: lock.Permit, Since: time.UnixMicro(int64(n >> 10))}
	}
	foreign := func(id string) luascripts.Permit { return luascripts.Permit{ID: id, Left: time.Minute} }
	const java = "\x01\x02\x03\x04\x05\x06\x07\x08\x01\x02\x03\x04\x05\x06\x07\x08"
	javas := lock.Holder{Owner: "01020304050607080102030405060708", Count: 1, Mode: lock.Permit}
	for name, c := range map[string]struct {
		stored luascripts.SemaphoreState
		want   lock.State
		leases []time.Duration
		free   int64
	}{
		"no holder":           {stored: luascripts.SemaphoreState{Free: 3}, free: 3},
		"a lease has expired": {stored: luascripts.SemaphoreState{Free: 3, Held: permitsOf(third, 0)}, free: 4},
		"one owner": {luascripts.SemaphoreState{Free: 2, Held: permitsOf(first, 3*time.Second, time.Second, 2*time.Second)},
			lock.State{Mode: lock.Permit, Lease: time.Second, Holders: []lock.Holder{holder(first, number, 3)}}, []time.Duration{time.Second}, 2},
		"one owner, in the order of the leases": {luascripts.SemaphoreState{Held: slices.SortedFunc(slices.Values(permitsOf(first, 3*time.Second, time.Second, 2*time.Second)), func(a, b luascripts.Permit) int { return cmp.Compare(a.Left, b.Left) })},
			lock.State{Mode: lock.Permit, Lease: time.Second, Holders: []lock.Holder{holder(first, number, 3)}}, []time.Duration{time.Second}, 0},
		"in the order of their requests": {luascripts.SemaphoreState{Held: slices.Concat(permitsOf(fourth, 4*time.Second), permitsOf(third, 3*time.Second), permitsOf(second, 2*time.Second), permitsOf(first, time.Second, time.Second, time.Second))},
			lock.State{Mode: lock.Permit, Lease: 4 * time.Second, Holders: []lock.Holder{holder(first, number, 3), holder(second, number+3, 1), holder(third, number+4, 1), holder(fourth, number+5, 1)}},
			[]time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, 0},
		"Redisson's": {luascripts.SemaphoreState{Held: append(permitsOf(third, time.Second), luascripts.Permit{ID: java, Left: lock.NoExpiry})},
			lock.State{Mode: lock.Permit, Lease: lock.NoExpiry, Holders: []lock.Holder{holder(third, number+4, 1), javas}}, []time.Duration{time.Second, lock.NoExpiry}, 0},
		"those that wait": {stored: luascripts.SemaphoreState{Waiters: []luascripts.Waiter{{Owner: first, WaiterTimeout: time.Second}}},
			want: lock.State{Waiters: []lock.Waiter{{Owner: first, WaiterTimeout: time.Second, Since: requests}}}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Name = "gpus"
			state, leases, free := SemaphoreStateOf("gpus", c.stored)
			if !reflect.DeepEqual(state, c.want) || !slices.Equal(leases, c.leases) || free != c.free {
				t.Errorf("%+v, leases %v, %d free\nwant %+v, leases %v, %d free", state, leases, free, c.want, c.leases, c.free)
			}
		})
	}

	ours := luascripts.Permits(third)[0]
	at := func(year int) string {
		return luascripts.Permits(own(one, uint64(time.Date(year, 7, 1, 0, 0, 0, 0, time.UTC).UnixMicro())<<10, 1))[0]
	}
	for name, id := range map[string]string{
		"too short": "short", "too long": ours + "x", "no uuid": "\x40" + ours[1:], "no uuid at all": "\xc0" + ours[1:], "before the first": at(2024), "long after": at(2041),
	} {
		state, _, _ := SemaphoreStateOf("gpus", luascripts.SemaphoreState{Held: []luascripts.Permit{foreign(id), foreign(java)}})
		if len(state.Holders) != 2 || slices.ContainsFunc(state.Holders, func(h lock.Holder) bool { return !h.Since.IsZero() || strings.Contains(h.Owner, ":") }) {
			t.Errorf("%s: %+v, want two of Redisson's", name, state.Holders)
		}
	}
	for _, year := range []int{2025, 2040} {
		if state, _, _ := SemaphoreStateOf("gpus", luascripts.SemaphoreState{Held: []luascripts.Permit{foreign(at(year))}}); state.Holders[0].Since.Year() != year {
			t.Errorf("of %d: %+v", year, state.Holders)
		}
	}
}

// Inspect shows the clients of a semaphore's holders, and the number of free permits.
func TestSemaphoreState(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.b.NewSpec(many, "orders", nil)
		if state, leases, free, exists, err := w.b.SemaphoreState(w.Context(), spec); err != nil || exists || free != 0 || leases != nil || state.Mode != lock.Free {
			w.Errorf("before there is one: %+v, %v, %d free, %v, %v", state, leases, free, exists, err)
		}
		w.wantNoErr(w.mini.Set("orders", "3"))
		held := w.a.newOwner(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), 2, "") // the bubble's clock is earlier than any permit
		for _, id := range luascripts.Permits(held) {
			if _, err := w.mini.ZAdd(spec.Keys.Leases, float64(time.Now().Add(leaseTime).UnixMilli()), id); err != nil {
				w.Fatal(err)
			}
		}
		w.mini.HSet(keys.Client(w.a.id), "host", "gpu1", "name", "trainer")
		state, leases, free, exists, err := w.b.SemaphoreState(w.Context(), spec)
		if err != nil || !exists || free != 3 || !slices.Equal(leases, []time.Duration{leaseTime}) || len(state.Holders) != 1 {
			w.Fatalf("%+v, %v, %d free, %v, %v", state, leases, free, exists, err)
		}
		if h := state.Holders[0]; h.Owner != held || h.Count != 2 || h.Client != (lock.Client{ID: w.a.id, Host: "gpu1", Name: "trainer"}) {
			w.Errorf("%+v", h)
		}
		w.rdb.Do(w.Context(), w.rdb.B().Flushall().Build())
	})
}

// A failed Inspect of a semaphore reports why, and for which semaphore.
func TestSemaphoreState_fails(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(many, "orders", nil)
		fails := func() error {
			w.Helper()
			state, _, _, exists, err := w.a.SemaphoreState(w.Context(), spec)
			if exists || state.Name != "" {
				w.Errorf("got %+v with an error", state)
			}
			w.wantAbout("inspect", "orders", err)
			return err
		}
		w.mini.SetError("ERR out of order")
		if err := fails(); !strings.Contains(errText(err), "out of order") || errors.Is(err, lock.ErrWrongType) {
			w.Error(err)
		}
		w.mini.SetError("")
		w.mini.HSet("orders", "name", "Alice")
		if err := fails(); !errors.Is(err, lock.ErrWrongType) || !strings.Contains(errText(err), "a hash") {
			w.Errorf("%v, which does not say what the key holds", err)
		}
		w.mini.Del("orders")
		w.wantNoErr(w.mini.Set("orders", "3"))
		w.wantNoErr(w.mini.Set(spec.Keys.Leases, "Alice"))
		if err := fails(); !errors.Is(err, lock.ErrWrongType) || !strings.Contains(errText(err), fmt.Sprintf("%q is a string", spec.Keys.Leases)) {
			w.Errorf("%v, which does not say which key is of the wrong type", err)
		}
		w.mini.Del("orders")
		w.mini.Del(spec.Keys.Leases)
	})
}
