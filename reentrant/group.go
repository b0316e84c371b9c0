package reentrant

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
)

var _ lockimpl.Grouper = (*Lock)(nil)

// Group returns a way to acquire all of lockers with one script in one round trip. It returns nil
// unless they are different plain locks of this client that share a slot on a cluster and use
// neither lock.WithFencing nor lock.WithReplicas. The multi-lock uses it.
func (l *Lock) Group(lockers []lock.Locker) lockimpl.Group {
	g := &group{session: l.session}
	for _, other := range lockers {
		o, ok := other.(*Lock)
		if !ok || o.session != l.session {
			return nil
		}
		g.specs = append(g.specs, o.spec)
	}
	if !l.session.CanGroup(g.specs) {
		return nil
	}
	return g
}

type group struct {
	session *session.Session
	specs   []*session.Spec
}

func (g *group) Lock(ctx context.Context) ([]lock.Hold, error) {
	return g.session.LockAll(ctx, g.specs, luascripts.AcquireAllReentrant, true)
}

func (g *group) TryLock(ctx context.Context) ([]lock.Hold, error) {
	return g.session.LockAll(ctx, g.specs, luascripts.AcquireAllReentrant, false)
}
