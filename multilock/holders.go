package multilock

import (
	"context"
	"sync"

	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// holder is an owner that holds a quorum of some name.
type holder struct {
	owner uint64
	name  string
}

// holders has the holds of all quorums of this process. An owner that holds a quorum re-enters it,
// even through another Quorum of the same name. It must not wait in a queue behind callers that
// wait for it.
var holders = struct {
	sync.Mutex
	of map[holder]map[*quorumHold]bool
}{of: make(map[holder]map[*quorumHold]bool)}

// holderOf returns the owner that ctx carries as a holder of q. The caller must not hold the mutex
// of holders: ctx may be the context of a hold, which then checks itself and calls unregister if it
// has ended.
func holderOf(ctx context.Context, q *Quorum) holder {
	owner, _ := lockimpl.OwnerFrom(ctx)
	return holder{owner, q.name}
}

// register adds h to holders.
func (h *quorumHold) register() {
	of := holderOf(h.base, h.q)
	holders.Lock()
	defer holders.Unlock()
	if holders.of[of] == nil {
		holders.of[of] = make(map[*quorumHold]bool)
	}
	holders.of[of][h] = true
}

// unregister removes h from holders.
func (h *quorumHold) unregister() {
	of := holderOf(h.base, h.q)
	holders.Lock()
	defer holders.Unlock()
	delete(holders.of[of], h)
	if len(holders.of[of]) == 0 {
		delete(holders.of, of)
	}
}

// held returns the holds of quorums with the name of q that belong to the owner of ctx.
func (q *Quorum) held(ctx context.Context) (all []*quorumHold) {
	of := holderOf(ctx, q)
	holders.Lock()
	defer holders.Unlock()
	for h := range holders.of[of] {
		all = append(all, h)
	}
	return all
}
