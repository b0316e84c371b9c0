package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
)

var _ lockimpl.Fenced = (*hold)(nil)

// RaiseToken raises the register of the lock, while the acquisition of h holds it.
func (h *hold) RaiseToken(ctx context.Context, token uint64) error {
	t := h.acquisition()
	holder := t.Name
	if t.spec.Mode == lock.Write {
		holder += luascripts.Writing
	}
	_, err := once(ctx, t.s, t.spec, "raise token", func() (luascripts.Verdict, error) {
		if t.spec.Keys.Register == "" {
			return 0, command.Final{Err: fmt.Errorf("%w: lock was created without WithFencing", errors.ErrUnsupported)}
		}
		t.raise(token)
		o := command.SendWithRetry[luascripts.Verdict](ctx, t.s.sender, time.Now(), t.s.OpTimeout, command.Func[luascripts.Verdict](func(ctx context.Context) (luascripts.Verdict, error) {
			return luascripts.RaiseToken(ctx, t.s.rdb, t.spec.Keys, holder, token)
		}))
		switch {
		case o.Err == nil && o.Value == luascripts.Gone:
			o.Err = command.Final{Err: lock.ErrLost}
		case o.Err == nil && o.Value == luascripts.Foreign:
			o.Err = command.Final{Err: lock.ErrWrongType}
		}
		return o.Value, o.Err
	})
	return err
}

// Raised returns to what the register was raised, by this hold or another of its acquisition.
func (h *hold) Raised() uint64 {
	t := h.acquisition()
	t.at.lock()
	defer t.at.unlock()
	return t.Raised()
}

// raise notes that the register is about to be raised. The next holder must have a token
// from it, and so asks Redis.
func (t *acquisition) raise(token uint64) {
	t.at.lock()
	defer t.at.unlock()
	t.Raise(token)
}
