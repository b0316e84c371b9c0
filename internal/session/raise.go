package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

var _ lock.Fenced = (*hold)(nil)

// RaiseToken raises the register of the lock, while the tenure of h holds it.
func (h *hold) RaiseToken(ctx context.Context, token uint64) error {
	t := h.t
	holder := t.owner
	if t.spec.Mode == lock.Write {
		holder += luascripts.Writing
	}
	_, err := once(ctx, t.s, t.spec, "raise token", func() (luascripts.Verdict, error) {
		if t.spec.Keys.Register == "" {
			return 0, fmt.Errorf("%w: the lock was made without WithFencing", errors.ErrUnsupported)
		}
		t.raise()
		o := insist(ctx, t.s, t.s.OpTimeout, func(ctx context.Context) (luascripts.Verdict, error) {
			return luascripts.RaiseToken(ctx, t.s.rdb, t.spec.Keys, holder, token)
		}, nil)
		switch {
		case o.err == nil && o.value == luascripts.Gone:
			o.err = lock.ErrLost
		case o.err == nil && o.value == luascripts.Foreign:
			o.err = lock.ErrForeignKey
		}
		return o.value, o.err
	})
	return err
}

// raise notes that the register is about to be raised. Who comes after t must have a token
// from it, and so asks Redis.
func (t *tenure) raise() {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.raised = true
}
