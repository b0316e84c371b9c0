package semaphore

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Script is a Lua script for [Semaphore.Run].
type Script struct{ permitted *luascripts.Permitted }

// NewScript returns a script with the Lua text. Do not build the text from input. Pass input as
// KEYS and ARGV instead.
func NewScript(lua string) *Script { return &Script{luascripts.NewPermitted(lua)} }

// Run runs script on the server of the semaphore if h holds its permits there at that moment, by
// the clock of the server. Otherwise the script does not run, and the error matches lock.ErrLost. A
// holder that was paused for longer than its lease therefore cannot write late.
//
// Use it in place of fencing tokens, which cannot order simultaneous holders. If each holder works
// on separate data, [Semaphore.Slots] has tokens for that. On a cluster, the keys must be in the
// slot of the semaphore, as "{name}:data" is for a semaphore "name". Any other key is an error.
//
// The hold h must be of this semaphore, by this handle or another one. The script is sent once. If
// no reply arrives, it may have run.
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
		if script == nil || script.permitted == nil {
			return reply{}, command.Final{Err: errors.New("no script: call NewScript")}
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

// A Slot is a number that belongs to one permit at a time, and a fencing token.
type Slot struct {
	Number int    // starts at 0
	Token  uint64 // larger than the token of every earlier holder of this slot
}

// Slots returns a slot for each permit of h. Use it if the work has numbered parts, and each holder
// does the part with its number. At no time do two held permits have the same number. The next
// permit in a slot has a larger token. Package fence can compare the tokens, with a separate token
// counter for each slot.
//
// A permit receives the lowest free number when Slots is called for the first time, and keeps it. The
// number of an expired permit becomes free when another call needs that permit. The numbers are
// below the total number of permits, except after a Resize to fewer permits than are held. Permits
// of Redisson have no slots. Redis stores the latest token of each slot, so tokens grow even if the
// clock of the server moves backward.
//
// If the server does not have the permits of h as held, the error matches lock.ErrLost. The command
// is retried within the operation timeout. It takes the server about 1 µs per slot that was ever
// used.
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
