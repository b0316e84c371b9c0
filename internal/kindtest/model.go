package kindtest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"pgregory.net/rapid"
)

// model is the expected state of the locks of a few names, for a type that one owner holds at a
// time: the owner, and its hold count. After every step the server must match it.
type model struct {
	kind    Kind
	server  *redistest.Server
	t       *testing.T
	clients []*client.Client
	owners  []context.Context
	holds   map[string][]*modelHold // by name; after each step all have the same owner
	stale   []*modelHold            // unlocked or lost; their Unlock must do nothing
	tokens  map[string]uint64
}

type modelHold struct {
	lock.Hold
	name  string
	owner int
	lost  bool
}

var modelNames = []string{"a", "b"}

// Model makes random calls by several owners of two clients, and compares the
// server with a model after each.
func Model(t *testing.T, k Kind) {
	s := redistest.Start(t)
	a, b := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
	rapid.Check(t, func(rt *rapid.T) {
		s.Do(t, "FLUSHALL")
		m := &model{kind: k, server: s, t: t, clients: []*client.Client{a, b}, holds: map[string][]*modelHold{}, tokens: map[string]uint64{}}
		for range 4 {
			m.owners = append(m.owners, lock.ContextWithNewOwner(t.Context()))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"TryLock": m.TryLock, "TryLock again": m.TryLock, "Unlock": m.Unlock, "UnlockAgain": m.UnlockAgain,
			"Force": m.Force, "Steal": m.Steal, "Flush": m.Flush, "": m.Check,
		})
		for _, held := range m.holds {
			for _, h := range held {
				if err := h.Unlock(t.Context()); err != nil {
					rt.Error(err)
				}
			}
		}
		if keys := Keys(t, s); len(keys) != 0 {
			rt.Errorf("keys left: %q", keys)
		}
	})
}

func (m *model) anyName(rt *rapid.T) string {
	return rapid.SampledFrom(modelNames).Draw(rt, "name")
}

// client returns the client of an owner.
func (m *model) client(owner int) *client.Client { return m.clients[owner%len(m.clients)] }

// TryLock tries to acquire the lock for any owner of either client. It must be granted exactly if
// the model allows it.
func (m *model) TryLock(rt *rapid.T) {
	name, owner := m.anyName(rt), rapid.IntRange(0, len(m.owners)-1).Draw(rt, "owner")
	h, err := m.kind.New(m.client(owner), name).TryLock(m.owners[owner])
	held := m.holds[name]
	if len(held) > 0 && held[0].owner != owner {
		if !errors.Is(err, lock.ErrNotAcquired) {
			rt.Fatalf("owner %d got %q, which owner %d holds: %v", owner, name, held[0].owner, err)
		}
		return
	}
	if err != nil {
		rt.Fatalf("owner %d on %q: %v", owner, name, err)
	}
	switch token := h.Token(); {
	case len(held) > 0 && token != held[0].Token():
		rt.Fatalf("a reentry has token %d, the outer hold %d", token, held[0].Token())
	case len(held) == 0 && token <= m.tokens[name]:
		rt.Fatalf("token %d after %d", token, m.tokens[name])
	}
	m.tokens[name] = h.Token()
	m.holds[name] = append(held, &modelHold{Hold: h, name: name, owner: owner})
}

// Unlock unlocks any hold, in any order.
func (m *model) Unlock(rt *rapid.T) {
	name := m.anyName(rt)
	held := m.holds[name]
	if len(held) == 0 {
		rt.Skip("free")
	}
	i := rapid.IntRange(0, len(held)-1).Draw(rt, "hold")
	h := held[i]
	if err := h.Unlock(m.t.Context()); err != nil {
		rt.Fatalf("unlock of hold %d on %q: %v", i, name, err)
	}
	m.holds[name] = append(held[:i:i], held[i+1:]...)
	m.stale = append(m.stale, h)
}

// UnlockAgain unlocks a hold that has ended.
func (m *model) UnlockAgain(rt *rapid.T) {
	if len(m.stale) == 0 {
		rt.Skip("none is over")
	}
	h := rapid.SampledFrom(m.stale).Draw(rt, "stale")
	err := h.Unlock(m.t.Context())
	if !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) != h.lost {
		rt.Fatalf("unlock of a hold that is over (lost: %v): %v", h.lost, err)
	}
}

// Force force-unlocks a lock with either client. The holders must end as lost.
func (m *model) Force(rt *rapid.T) {
	name := m.anyName(rt)
	held := m.holds[name]
	c := m.clients[0]
	if len(held) > 0 {
		c = m.client(held[0].owner) // its client detects the loss immediately
	}
	was, err := m.kind.Operator(c, name).ForceUnlock(m.t.Context())
	if err != nil || was != (len(held) > 0) {
		rt.Fatalf("force unlock of %q with %d holds: %v, %v", name, len(held), was, err)
	}
	m.lose(name)
}

// Steal deletes the key without notifying the clients, and the holder detects the loss by
// re-entering.
func (m *model) Steal(rt *rapid.T) {
	name := m.anyName(rt)
	held := m.holds[name]
	if len(held) == 0 {
		rt.Skip("free")
	}
	m.server.Do(m.t, "DEL", name)
	owner := held[0].owner
	if held[0].Err() != nil { // a renewal has detected the loss
		m.lose(name)
		return
	}
	if _, err := m.kind.New(m.client(owner), name).TryLock(m.owners[owner]); !errors.Is(err, lock.ErrLost) {
		rt.Fatalf("reentry into %q, which is gone: %v", name, err)
	}
	m.lose(name)
}

func (m *model) lose(name string) {
	for _, h := range m.holds[name] {
		h.lost = true
		m.stale = append(m.stale, h)
	}
	m.holds[name] = nil
}

// Flush makes the server drop the scripts.
func (m *model) Flush(*rapid.T) { m.server.Do(m.t, "SCRIPT", "FLUSH") }

// Check compares the server, the result of Inspect, and every hold with the
// model.
func (m *model) Check(rt *rapid.T) {
	var keys []string
	for _, name := range modelNames {
		held := m.holds[name]
		var want map[string]string
		var holders []lock.Holder
		if len(held) > 0 {
			owner := held[0].Owner()
			want = m.kind.Hash(owner, len(held))
			holders = []lock.Holder{{Owner: owner, Count: len(held), Mode: m.kind.Mode}}
			keys = append(keys, m.kind.Keys(name, owner, len(held))...)
			if Number(m.server.Do(m.t, "PTTL", name)) <= 0 {
				rt.Fatalf("%q has no expiry", name)
			}
		}
		if got := Hash(m.t, m.server, name); !maps.Equal(got, want) {
			rt.Fatalf("%q is %v on the server, want %v", name, got, want)
		}
		state, err := m.kind.Operator(m.clients[0], name).Inspect(m.t.Context())
		for i := range state.Holders {
			state.Holders[i].Since = time.Time{} // depends on the clock
			state.Holders[i].Client = lock.Client{}
		}
		if err != nil || !slices.Equal(state.Holders, holders) || len(state.Waiters) != 0 {
			rt.Fatalf("Inspect of %q: %+v, %v, want %v", name, state, err, holders)
		}
		for _, h := range held {
			if err := h.Err(); err != nil {
				rt.Fatalf("a hold of %q: %v", name, err)
			}
		}
	}
	if got := Keys(m.t, m.server); !slices.Equal(got, slices.Sorted(slices.Values(keys))) {
		rt.Fatalf("the keys are %q, want %q", got, keys)
	}
	for _, h := range m.stale {
		if err := h.Context().Err(); err == nil {
			rt.Fatalf("a hold of %q is over, and its context is not", h.name)
		}
	}
}
