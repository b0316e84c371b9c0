package semaphore

import (
	"context"
	"fmt"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Script is a script for [Semaphore.Run].
type Script struct{ permitted *luascripts.Permitted }

// NewScript makes a script of Lua code. The text must not be put together from input: input belongs into KEYS and
// ARGV.
func NewScript(lua string) *Script { return &Script{luascripts.NewPermitted(lua)} }

// Run runs script on the server of the semaphore if h has its permits there at that moment, by the server's clock. Otherwise
// nothing is done, and the error matches lock.ErrLost. So a holder that was stopped for longer than its lease
// cannot write late.
//
// This is what fencing tokens are for locks that one owner holds at a time. The holders of a semaphore hold it at
// once, so no token is the latest, and none is stale because another one was seen. Where each holder works on data of its own,
// [Semaphore.Slots] has tokens for these. On a cluster the keys must be in the slot
// of the semaphore, as "{name}:data" is for a semaphore "name"; another key is an error.
//
// h must be a hold of this semaphore, by this handle or another one. When no answer comes, the script may have been carried
// out; it is sent once.
func (s *Semaphore) Run(ctx context.Context, h lock.Hold, script *Script, keys []string, args ...string) (rueidis.RedisMessage, error) {
	type reply struct {
		msg rueidis.RedisMessage
		had bool
	}
	owner, spec := h.Owner(), s.one.spec()
	r, err := session.AskOnce(ctx, s.one.session, spec, "run", func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (reply, error) {
		if len(luascripts.Permits(owner)) == 0 {
			return reply{}, command.Final{Err: fmt.Errorf("%v is not a hold of this semaphore", h)}
		}
		if key, is := s.one.session.Elsewhere(spec, keys); is {
			return reply{}, command.Final{Err: fmt.Errorf("key %q is in a different hash slot than the semaphore", key)}
		}
		msg, had, err := script.permitted.Exec(ctx, rdb, k, owner, keys, args)
		return reply{msg, had}, err
	})
	if err == nil && !r.had {
		err = &lock.Error{Op: "run", Name: s.one.name, Err: fmt.Errorf("%w: permits no longer held on the server", lock.ErrLost)}
	}
	return r.msg, err
}

// A Slot is a number that a permit has to itself, and a fencing token.
type Slot struct {
	Number int    // from 0 on
	Token  uint64 // larger than that of every earlier holder of this slot
}

// Slots returns a slot for each permit of h: for work in parts, of which each holder takes the one with its number. At no
// moment do two permits that are held have the same number, and a permit that is lost is followed in its slot by one with a
// larger token, which package fence can compare, with a register for each slot.
//
// A permit gets the lowest number that is free when Slots is called for the first time, and keeps it. So the
// numbers are below the number of permits in all, except after a Resize to fewer than are held. Permits of Redisson have
// no slots. Token grows as that of a plain lock does: by the server's clock, and by the hash of slots, which stays in Redis.
//
// If the server does not have the permits of h as held, the error matches lock.ErrLost. The command can be repeated, and
// is, within the operation time-out; it takes the server about a µs for each slot that was ever in use.
func (s *Semaphore) Slots(ctx context.Context, h lock.Hold) ([]Slot, error) {
	owner, spec := h.Owner(), s.one.spec()
	found, err := session.Ask(ctx, s.one.session, spec, "slots", func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) ([]luascripts.Slot, error) {
		if len(luascripts.Permits(owner)) == 0 {
			return nil, command.Final{Err: fmt.Errorf("%v is not a hold of this semaphore", h)}
		}
		verdict, slots, err := luascripts.SlotsOfPermits(ctx, rdb, k, owner)
		switch {
		case err != nil, verdict == luascripts.Foreign:
			return nil, command.Foreign(verdict, err)
		case verdict == luascripts.Gone:
			return nil, command.Final{Err: fmt.Errorf("%w: permits no longer held on the server", lock.ErrLost)}
		}
		return slots, nil
	})
	slots := make([]Slot, len(found))
	for i, slot := range found {
		slots[i] = Slot(slot)
	}
	return slots, err
}
