package luascripts

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	crewJoin    = load("crew_join")
	crewLeave   = load("crew_leave")
	crewLook    = load("crew_look")
	crewInspect = load("crew_inspect")
	crewDismiss = load("crew_dismiss")
	crewDelete  = load("crew_delete")
	crewRenew   = renewer{script: load("crew_renew"), argsOf: func(args []string, r *Renewal) []string { return append(args, r.Owner) }}
)

// CrewStay is for how long a crew stays in Redis when nothing happens. crew_renew.lua has the number, too.
const CrewStay = 24 * time.Hour

// Mark is what a member of a crew leaves behind.
type Mark string

// The marks of include_crew.
const (
	MemberDone Mark = "9000000000000001"
	MemberLost Mark = "1"
	NoMember   Mark = "0" // it never began
)

// JoinCrew makes an owner a member. It never has to wait. The verdict is Done; Gone if the owner was a member before, and is over; or Foreign.
//
// If an earlier copy of the question made the owner a member, and its lease has ended, the script says when. JoinCrew says that back, and so takes up
// the lease. A copy that comes when nobody waits for its answer cannot.
func JoinCrew(ctx context.Context, rdb rueidis.Client, k Keys, q Question) (Acquired, error) {
	ended := "0"
	for range 3 { // more only if copies take up each other's leases, and let them end
		a, err := acquire(ctx, rdb, crewJoin, []string{k.Lock}, []string{q.Owner, ms(q.Lease), ms(CrewStay), ended}, q)
		if err != nil || a.Verdict != Held {
			return a, err
		}
		ended = ms(a.Left) // it reads as what is left of a lease
	}
	return Acquired{}, &ReplyError{crewJoin.name, ended}
}

// LeaveCrew ends the membership of an owner with a mark, if leave is 0; else it changes nothing. It returns Done if the owner was
// a living member, Gone if not, or Foreign.
func LeaveCrew(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int, as Mark) (Verdict, error) {
	args := []string{owner, bit(leave > 0), string(as), ms(CrewStay), k.Channel, k.Publish}
	return verdict(crewLeave, crewLeave.exec(ctx, rdb, []string{k.Lock}, args), Done, Gone, Foreign)
}

// RenewCrew lengthens the leases of the members of batch.
func RenewCrew(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return crewRenew.renew(ctx, rdb, batch, lease, perCall)
}

// CrewState is a crew as it stands in Redis.
type CrewState struct {
	Round int64         // when it began, in the server's µs; 0 if there is none
	Done  int64         // how many members are done
	Alive int64         // how many members are alive
	Next  time.Duration // until the next lease ends, if nobody renews it; NoExpiry if there is none
	Lost  int64         // how many members are lost
	Some  []string      // a hundred of them at most
}

// LookAtCrew tells how a crew stands. The verdict is Done or Foreign.
func LookAtCrew(ctx context.Context, rdb rueidis.Client, k Keys) (CrewState, Verdict, error) {
	msg, err := crewLook.exec(ctx, rdb, []string{k.Lock}, nil).ToMessage()
	if err != nil {
		return CrewState{}, 0, err
	}
	if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
		return CrewState{}, Foreign, nil
	}
	words, err := msg.ToArray()
	bad := &ReplyError{crewLook.name, "a list of " + strconv.Itoa(len(words))} // the reply has owners, which belong in no error
	if err != nil || len(words) < 5 {
		return CrewState{}, 0, bad
	}
	var n [5]int64
	for i := range n {
		if n[i], err = words[i].ToInt64(); err != nil {
			return CrewState{}, 0, bad
		}
	}
	s := CrewState{Round: n[0], Done: n[1], Alive: n[2], Next: remaining(n[3]), Lost: n[4]}
	for i := range words[5:] {
		owner, err := words[5+i].ToString()
		if err != nil {
			return CrewState{}, 0, bad
		}
		s.Some = append(s.Some, owner)
	}
	return s, Done, nil
}

// CrewMember is a member of a crew.
type CrewMember struct {
	Owner string
	Left  time.Duration // of its lease; 0 if it is lost, NoExpiry if it is done
}

// InspectCrew reads the members of a crew, more than a thousand in parts. The verdict is Done or Foreign.
func InspectCrew(ctx context.Context, rdb rueidis.Client, k Keys) (all []CrewMember, v Verdict, err error) {
	const atOnce = 1000 // as in the script
	for from := int64(0); ; {
		msg, err := crewInspect.exec(ctx, rdb, []string{k.Lock}, []string{strconv.FormatInt(from, 10)}).ToMessage()
		if err != nil {
			return nil, 0, err
		}
		if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
			return nil, Foreign, nil
		}
		words, err := msg.ToArray()
		bad := &ReplyError{crewInspect.name, "a list of " + strconv.Itoa(len(words))}
		if err != nil || len(words) == 0 {
			return nil, 0, bad
		}
		looked, err := words[0].ToInt64()
		some, ok := waiters(words[1:])
		if err != nil || !ok || looked < int64(len(some)) || looked > atOnce {
			return nil, 0, bad
		}
		for _, m := range some {
			all = append(all, CrewMember{m.Owner, m.Patience})
		}
		switch from += looked; {
		case looked < atOnce:
			return all, Done, nil
		case len(some) == 0: // of so many entries, nearly all are members
			return nil, 0, bad
		}
	}
}

// DismissFromCrew takes lost members out of a crew, and returns how many. The verdict is Done or Foreign.
func DismissFromCrew(ctx context.Context, rdb rueidis.Client, k Keys, owners []string) (int64, Verdict, error) {
	n, err := crewDismiss.exec(ctx, rdb, []string{k.Lock}, append([]string{ms(CrewStay), k.Channel, k.Publish}, owners...)).ToInt64()
	switch {
	case err != nil:
		return 0, 0, err
	case n == int64(Foreign):
		return 0, Foreign, nil
	}
	return n, Done, nil
}

// DeleteCrew deletes a round of a crew: Done, or Foreign.
func DeleteCrew(ctx context.Context, rdb rueidis.Client, k Keys, round int64) (Verdict, error) {
	return verdict(crewDelete, crewDelete.exec(ctx, rdb, []string{k.Lock}, []string{strconv.FormatInt(round, 10), k.Channel, k.Publish}), Done, Foreign)
}
