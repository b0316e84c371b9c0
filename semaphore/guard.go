package semaphore

import (
	"context"
	"fmt"

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
// once, so no token is the latest, and none is stale because another one was seen. On a cluster the keys must be in the slot
// of the semaphore, as "{name}:data" is for a semaphore "name".
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
			return reply{}, final{fmt.Errorf("%v is no hold of a semaphore", h)}
		}
		msg, had, err := script.permitted.Exec(ctx, rdb, k, owner, keys, args)
		return reply{msg, had}, err
	})
	if err == nil && !r.had {
		err = &lock.Error{Op: "run", Name: s.one.name, Err: fmt.Errorf("%w: the server does not have these permits as held", lock.ErrLost)}
	}
	return r.msg, err
}
