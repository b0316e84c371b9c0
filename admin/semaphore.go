package admin

import (
	"context"
	"path"
	"strings"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/luascripts"
)

// The key of a semaphore is a number, as the key of any counter. A semaphore is recognized by the zset of its permits,
// {name}:timeout, or by its queue. They exist while a permit is held or an owner waits.

// held is the suffix of the zset that stores a semaphore's permits.
const held = ":timeout"

// semaphore reads name as a semaphore. ok is false if no permit is held and no owner waits.
func (a *Admin) semaphore(ctx context.Context, name string) (l Lock, ok bool, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	stored, err := luascripts.InspectSemaphore(ctx, a.rdb, keys.Semaphore(name))
	if err != nil || stored.Foreign {
		return Lock{}, false, err
	}
	state, leases, free := session.SemaphoreStateOf(name, stored)
	l = Lock{State: state, Kind: Semaphore, Holding: len(state.Holders), Waiting: len(state.Waiters), Permits: free, Free: free}
	for i, h := range state.Holders {
		l.Permits += int64(h.Count)
		l.lease(h, leases[i])
	}
	return l, stored.Exists && (l.Locked() || l.Waiting > 0), nil
}

// idleSemaphore reads name as a semaphore that no owner holds or waits for.
func (a *Admin) idleSemaphore(ctx context.Context, name string) (l Lock, ok bool, err error) {
	l, used, err := a.semaphore(ctx, name)
	l.Ambiguous = "the key is a number: an idle semaphore, or a counter of an application"
	return l, err == nil && !used && l.Free > 0, err
}

// semaphores returns the held semaphores whose permits are in zsets, and whose names match pattern.
func (a *Admin) semaphores(ctx context.Context, zsets []string, pattern string) ([]Lock, error) {
	var names []string
	for _, zset := range zsets {
		for _, name := range namesOf(zset, held) {
			if keys.Check("", name) == nil && matches(pattern, name) {
				names = append(names, name)
			}
		}
	}
	return each(names, func(name string) (Lock, bool, error) {
		l, ok, err := a.semaphore(ctx, name)
		l.Holders, l.Waiters = l.Holders[:min(len(l.Holders), someHolds)], nil
		return l, ok && l.Locked(), err // a list has only held semaphores
	})
}

// namesOf returns the names to which a key with this suffix can belong. In Redisson's scheme, x and {x} share it.
func namesOf(key, suffix string) []string {
	name, ok := strings.CutSuffix(key, suffix)
	if !ok {
		return nil
	}
	if inner, open := strings.CutPrefix(name, "{"); open && strings.IndexByte(inner, '}') == len(inner)-1 {
		return []string{strings.TrimSuffix(inner, "}"), name}
	}
	return []string{name}
}

// matches reports whether name matches a pattern of Redis.
func matches(pattern, name string) bool {
	flat := strings.NewReplacer("/", "\x00") // path.Match treats / as a separator, and Redis does not
	ok, err := path.Match(flat.Replace(pattern), flat.Replace(name))
	return ok && err == nil
}
