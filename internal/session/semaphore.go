package session

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// SemaphoreStateOf decodes the state of the semaphore with this name. Holders are in the order of their requests, followed by
// holders of Redisson. leases has the remaining lease time of each holder. free is the number of available permits,
// including permits whose leases have expired.
func SemaphoreStateOf(name string, s luascripts.SemaphoreState) (state lock.State, leases []time.Duration, free int64) {
	state = lock.State{Name: name}
	free = s.Free
	type hold struct {
		lock.Holder
		number uint64 // of the last of its permits; 0 for Redisson
		left   time.Duration
	}
	var holds []hold
	slices.SortStableFunc(s.Held, func(a, b luascripts.Permit) int { return cmp.Compare(a.ID, b.ID) })
	for _, p := range s.Held {
		if p.Left == 0 {
			free++
			continue
		}
		client, number, ours := permit(p.ID)
		if last := len(holds) - 1; last >= 0 && holds[last].number+1 == number && holds[last].Owner == client {
			h := &holds[last] // the next permit of the same hold; permits of Redisson have no number, so they never match
			h.Count, h.number, h.left = h.Count+1, number, min(h.left, p.Left)
			continue
		}
		h := hold{Holder: lock.Holder{Owner: client, Count: 1, Mode: lock.Permit}, number: number, left: p.Left}
		if ours {
			h.Since = time.UnixMicro(int64(number >> 10))
		}
		holds = append(holds, h)
	}
	slices.SortStableFunc(holds, func(a, b hold) int {
		return cmp.Compare(a.number-1, b.number-1) // underflows, so that 0 sorts last
	})
	for _, h := range holds {
		if h.number > 0 {
			h.Owner += ":" + strconv.FormatUint(h.number-uint64(h.Count)+1, 10) + ":" + strconv.Itoa(h.Count)
		}
		state.Holders, leases = append(state.Holders, h.Holder), append(leases, h.left)
	}
	for _, w := range s.Waiters {
		state.Waiters = append(state.Waiters, lock.Waiter{Owner: w.Owner, WaiterTimeout: w.WaiterTimeout, Since: AskedSince(w.Owner)})
	}
	if len(state.Holders) > 0 {
		state.Mode, state.Lease = lock.Permit, slices.Max(leases)
		if slices.Contains(leases, lock.NoExpiry) {
			state.Lease = lock.NoExpiry
		}
	}
	return state, leases, free
}

// permit returns the client and the number in a permit's ID. For a random ID of Redisson it returns the ID itself.
// About one in a hundred of those has our format. It is then shown as a hold of an unknown client, which is harmless.
func permit(id string) (client string, number uint64, ours bool) {
	if len(id) != 16 {
		return hex.EncodeToString([]byte(id)), 0, false
	}
	number = binary.BigEndian.Uint64([]byte(id[8:]))
	since := time.UnixMicro(int64(number >> 10)).Year()
	if id[0]&0xc0 != 0x80 || since < 2025 || since > 2040 {
		return hex.EncodeToString([]byte(id)), 0, false
	}
	return owner.Client([8]byte([]byte(id[:8]))), number, true
}

// SemaphoreState returns the state of a semaphore. It adds the clients of the holders if Redis replies in time.
func (s *Session) SemaphoreState(ctx context.Context, spec *Spec) (state lock.State, leases []time.Duration, free int64, exists bool, err error) {
	stored, err := Ask(ctx, s, spec, "inspect", luascripts.InspectSemaphore)
	if stored.Foreign {
		err = &lock.Error{Op: "inspect", Name: spec.Name, Err: s.foreign(ctx, spec, lock.ErrWrongType)}
	}
	if err != nil {
		return state, nil, 0, false, err
	}
	state, leases, free = SemaphoreStateOf(spec.Name, stored)
	s.Clients(ctx, &state)
	return state, leases, free, stored.Exists, nil
}
