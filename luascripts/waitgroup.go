package luascripts

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	waitGroupJoin    = load("waitgroup_join")
	waitGroupLeave   = load("waitgroup_leave")
	waitGroupStatus  = load("waitgroup_status")
	waitGroupInspect = load("waitgroup_inspect")
	waitGroupDismiss = load("waitgroup_dismiss")
	waitGroupDelete  = load("waitgroup_delete")
	waitGroupRenew   = renewer{script: load("waitgroup_renew"), argsOf: func(args []string, r *Renewal) []string { return append(args, r.Owner) }}
)

// WaitGroupStay is the TTL of a wait group. The scripts renew it when less than half is left, so a
// wait group stays in Redis for a day after each change. waitgroup_renew.lua has the number, too.
const WaitGroupStay = 48 * time.Hour

// Mark is what a worker that has ended leaves in a wait group.
type Mark string

// Marks, as in include_waitgroup.
const (
	WorkerDone Mark = "9000000000000001"
	WorkerLost Mark = "1"
	NoWorker   Mark = "0" // it never started
)

// JoinWaitGroup makes an owner a worker. It never waits. The verdict is Done, Foreign, or Gone if
// the owner was a worker before and has ended.
//
// If an earlier copy of the request made the owner a worker, and its lease has expired, the script
// returns when. JoinWaitGroup sends that time back, and so resumes the lease. A copy that arrives
// when no caller waits for its reply cannot.
func JoinWaitGroup(ctx context.Context, rdb rueidis.Client, k Keys, q Request) (Acquired, error) {
	ended := "0"
	for range 3 { // more only if copies of the request resume each other's leases, and these expire
		a, err := acquire(ctx, rdb, waitGroupJoin, []string{k.Lock}, []string{q.Owner, ms(q.Lease), ms(WaitGroupStay), ended}, q)
		if err != nil || a.Verdict != Held {
			return a, err
		}
		ended = ms(a.Left) // read as a remaining lease
	}
	return Acquired{}, &ReplyError{waitGroupJoin.name, ended}
}

// LeaveWaitGroup ends the work of an owner with a mark, if leave is 0. Otherwise it changes
// nothing. It returns Done if the owner was a living worker, Gone if not, or Foreign.
func LeaveWaitGroup(ctx context.Context, rdb rueidis.Client, k Keys, owner string, leave int, as Mark) (Verdict, error) {
	args := []string{owner, bit(leave > 0), string(as), ms(WaitGroupStay), k.Channel, k.Publish}
	return verdict(waitGroupLeave, waitGroupLeave.exec(ctx, rdb, []string{k.Lock}, args), Done, Gone, Foreign)
}

// RenewWaitGroup extends the leases of the workers of batch.
func RenewWaitGroup(ctx context.Context, rdb rueidis.Client, batch []Renewal, lease time.Duration, perCall int) []Renewed {
	return waitGroupRenew.renew(ctx, rdb, batch, lease, perCall)
}

// WaitGroupState is the state of a wait group in Redis.
type WaitGroupState struct {
	Round int64         // when it began, in the server's µs; 0 if there is none
	Done  int64         // the number of workers that are done
	Alive int64         // the number of workers that are alive
	Next  time.Duration // time until the next lease expires if it is not renewed; NoExpiry if there is none
	Lost  int64         // the number of workers that are lost
	Some  []string      // up to 100 of them
}

// WaitGroupStatus returns the state of a wait group, and extends its TTL. The verdict is Done or Foreign.
func WaitGroupStatus(ctx context.Context, rdb rueidis.Client, k Keys) (WaitGroupState, Verdict, error) {
	msg, err := waitGroupStatus.exec(ctx, rdb, []string{k.Lock}, []string{ms(WaitGroupStay)}).ToMessage()
	if err != nil {
		return WaitGroupState{}, 0, err
	}
	if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
		return WaitGroupState{}, Foreign, nil
	}
	words, err := msg.ToArray()
	bad := &ReplyError{waitGroupStatus.name, "a list of " + strconv.Itoa(len(words))} // the reply has owner strings, which must not be in an error
	if err != nil || len(words) < 5 {
		return WaitGroupState{}, 0, bad
	}
	var n [5]int64
	for i := range n {
		if n[i], err = words[i].ToInt64(); err != nil {
			return WaitGroupState{}, 0, bad
		}
	}
	s := WaitGroupState{Round: n[0], Done: n[1], Alive: n[2], Next: remaining(n[3]), Lost: n[4]}
	for i := range words[5:] {
		owner, err := words[5+i].ToString()
		if err != nil {
			return WaitGroupState{}, 0, bad
		}
		s.Some = append(s.Some, owner)
	}
	return s, Done, nil
}

// WaitGroupWorker is a worker of a wait group.
type WaitGroupWorker struct {
	Owner string
	Left  time.Duration // remaining lease time; 0 if it is lost, NoExpiry if it is done
}

// InspectWaitGroup reads the workers of a wait group, more than a thousand in parts. The verdict is Done or Foreign.
func InspectWaitGroup(ctx context.Context, rdb rueidis.Client, k Keys) (all []WaitGroupWorker, v Verdict, err error) {
	const atOnce = 1000 // as in the script
	for {
		msg, err := waitGroupInspect.exec(ctx, rdb, []string{k.Lock}, []string{strconv.Itoa(len(all))}).ToMessage()
		if err != nil {
			return nil, 0, err
		}
		if n, err := msg.ToInt64(); err == nil && n == int64(Foreign) {
			return nil, Foreign, nil
		}
		words, err := msg.ToArray()
		some, ok := waiters(words)
		if err != nil || !ok || len(some) > atOnce {
			return nil, 0, &ReplyError{waitGroupInspect.name, "a list of " + strconv.Itoa(len(words))}
		}
		for _, m := range some {
			all = append(all, WaitGroupWorker{m.Owner, m.WaiterTimeout})
		}
		if len(some) < atOnce {
			return all, Done, nil
		}
	}
}

// DismissFromWaitGroup removes lost workers from a wait group, and returns their number. The
// verdict is Done or Foreign.
func DismissFromWaitGroup(ctx context.Context, rdb rueidis.Client, k Keys, owners []string) (int64, Verdict, error) {
	n, err := waitGroupDismiss.exec(ctx, rdb, []string{k.Lock}, append([]string{ms(WaitGroupStay), k.Channel, k.Publish}, owners...)).ToInt64()
	switch {
	case err != nil:
		return 0, 0, err
	case n == int64(Foreign):
		return 0, Foreign, nil
	}
	return n, Done, nil
}

// DeleteWaitGroup deletes a round of a wait group, and returns Done or Foreign.
func DeleteWaitGroup(ctx context.Context, rdb rueidis.Client, k Keys, round int64) (Verdict, error) {
	return verdict(waitGroupDelete, waitGroupDelete.exec(ctx, rdb, []string{k.Lock}, []string{strconv.FormatInt(round, 10), k.Channel, k.Publish}), Done, Foreign)
}
