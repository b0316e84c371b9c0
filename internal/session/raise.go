package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
)

var _ lockimpl.Fenced = (*hold)(nil)

// RaiseToken raises the token counter of the lock to token, provided that the acquisition of h holds the lock.
func (h *hold) RaiseToken(ctx context.Context, token uint64) error {
	t := h.acquisition()
	holder, minimum := t.Name, token
	if t.spec.Mode == lock.Write {
		holder += luascripts.Writing
		minimum++ // the token of the readers until the next writer
	}
	_, err := once(ctx, t.at.s, t.spec, "raise token", func() (luascripts.Verdict, error) {
		if t.spec.Keys.TokenCounter == "" {
			return 0, command.Final{Err: fmt.Errorf("%w: lock was created without WithFencing", errors.ErrUnsupported)}
		}
		// The next holder then needs a token from Redis, so the lock is not handed off inside the process.
		t.at.lock()
		t.Raise(token)
		t.at.unlock()
		o := command.SendFuncWithRetry(ctx, t.at.s.sender, t.at.s.OpTimeout, func(ctx context.Context) (luascripts.Verdict, error) {
			return luascripts.RaiseToken(ctx, t.at.s.rdb, t.spec.Keys, holder, minimum)
		})
		switch o.Value {
		case luascripts.Gone:
			o.Err = command.Final{Err: lock.ErrLost}
		case luascripts.Foreign:
			o.Err = command.Final{Err: lock.ErrWrongType}
		}
		return o.Value, o.Err
	})
	return err
}

// Raised returns the value to which the token counter was raised by a hold of this acquisition.
func (h *hold) Raised() uint64 {
	t := h.acquisition()
	return locked(t.at, t.Acquisition.Raised)
}
