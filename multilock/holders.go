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

// holders has the holds of all quorums of this process. An owner that holds a quorum
// re-enters it, also by another handle of it. It must not stand in line behind callers that
// wait for it.
var holders struct {
	sync.Mutex
	of       map[holder]map[*quorumHold]bool
	deciding map[holder]chan struct{} // the owners of which an attempt decides about its token; closed when it has
}

// holderOf returns the owner that ctx carries as a holder of q. It is called without the mutex of holders: ctx may be
// that of a hold, which looks at itself then, and leaves if it is over.
func holderOf(ctx context.Context, q *Quorum) holder {
	owner, _ := lockimpl.OwnerFrom(ctx)
	return holder{owner, q.name}
}

// enter notes that h is held.
func (h *quorumHold) enter() {
	of := holderOf(h.base, h.q)
	holders.Lock()
	defer holders.Unlock()
	if holders.of == nil {
		holders.of = make(map[holder]map[*quorumHold]bool)
	}
	if holders.of[of] == nil {
		holders.of[of] = make(map[*quorumHold]bool)
	}
	holders.of[of][h] = true
}

// leave notes that h is over.
func (h *quorumHold) leave() {
	of := holderOf(h.base, h.q)
	holders.Lock()
	defer holders.Unlock()
	delete(holders.of[of], h)
	if len(holders.of[of]) == 0 {
		delete(holders.of, of)
	}
}

// held returns the holds that the owner of ctx has of quorums with the name of q.
func (q *Quorum) held(ctx context.Context) (all []*quorumHold) {
	of := holderOf(ctx, q)
	holders.Lock()
	defer holders.Unlock()
	for h := range holders.of[of] {
		all = append(all, h)
	}
	return all
}
