package session

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/luascripts"
)

// heartbeat wakes the goroutine that sends the heartbeats of a queue, and starts it if there is none. The caller holds
// the mutex of the state.
func (at *entry) heartbeat(a lockstate.Effect) {
	e := at.subscriptions(a.Queue)
	if e.beating == nil {
		e.beating = make(chan struct{}, 1)
		spec := specOf(a.Terms)
		at.s.sender.Go(func() { e.sendHeartbeats(spec) })
	}
	select {
	case e.beating <- struct{}{}:
	default:
	}
}

// sendHeartbeats sends heartbeats for all waiters that are queued in Redis, until the queue ends. It does not wait for
// replies.
func (e *subscriptions) sendHeartbeats(spec *Spec) {
	timer := time.NewTimer(0)
	defer timer.Stop() // mutant: removed: memory
	for {
		sent := time.Now()
		e.at.lock()
		if e.queue.Ended() {
			e.at.unlock()
			return
		}
		due, round := e.queue.NextHeartbeat(sent)
		queued := make([]luascripts.Waiter, len(round.Waiters))
		for i, q := range round.Waiters {
			queued[i] = luascripts.Waiter{Owner: q.As.Name, WaiterTimeout: q.As.Terms.WaiterTimeout, Enters: q.Enters, Total: specOf(q.As.Terms).Keys.Total}
		}
		e.at.unlock()
		if len(queued) > 0 {
			e.at.s.sender.Go(func() { e.keep(spec, round, queued) })
		}
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-e.beating:
		}
	}
}

// keep sends one heartbeat, which also queues new waiters. It wakes the waiters whose turn it is, and those that lost
// their queue position.
func (e *subscriptions) keep(spec *Spec, round lockstate.Round, queued []luascripts.Waiter) {
	s := e.at.s
	kept, err := spec.Keep(context.Background(), s.rdb, spec.Keys, queued)
	err = command.DetectClosed(context.Background(), s.rdb, err)
	now := time.Now()
	resent := command.Resent(now.Sub(round.Sent))
	fault := retry.FaultOf(err) // has no effect if there is no error
	// After several calls, the error is that of one of them.
	// mutant: always, border: speed
	mayHaveRun := fault.MayHaveRun() || resent || len(queued) > luascripts.KeepAtOnce
	var left []*acquisition // entered the queue after their waiters had left, or may enter it again
	e.at.lock()
	if fault.Temporary {
		e.queue.HeartbeatDone(round, err)
	} else {
		e.queue.HeartbeatDone(round, nil)
	}
	quiet, _ := e.queue.Outage(now, 0)
	for i, q := range round.Waiters {
		switch {
		case !q.Enters:
		case err != nil:
			e.at.state.NotEntered(q, mayHaveRun, err)
		case e.at.state.Entered(q, kept.Own[i], round.Sent, now) || resent && !q.As.MarkUncertain():
			left = append(left, acquisitionOf(q.As))
		}
		// mutant: operand 5: the fault of no error passes
		if err == nil && kept.MustRetry[i] || err != nil && !fault.Temporary {
			e.at.state.Wakeup(q.Waiter) // after a permanent error, the waiter's own request keeps its position or returns the error
		}
	}
	if kept.Left != 0 { // 0 after an error
		e.queue.HeartbeatIn(round, now, kept.Left)
	}
	e.at.unlock()
	for _, t := range left {
		s.reconcile(t, resent)
	}
	if err != nil {
		s.reportUnavailable(spec, quiet, s.sender.Explain(err))
	}
}

// removeServed removes owners that already had the lock from the queue in Redis, if that is due.
func (at *entry) removeServed() {
	at.lock()
	defer at.unlock()
	of, served := at.state.RemoveServed(time.Now())
	if of == nil {
		return
	}
	t := acquisitionOf(of)
	at.s.sender.Go(func() {
		err := t.removeServed(context.Background(), served)
		at.lock()
		at.state.ServedRemoved(&t.Acquisition, len(served), err == nil, time.Now())
		at.unlock()
	})
}

// removeServed removes these owners from the queue in Redis. They hold nothing, so releasing them does only that.
func (t *acquisition) removeServed(ctx context.Context, served []string) error {
	_, err := t.spec.HandOff(ctx, t.at.s.rdb, t.spec.Keys, served[0], luascripts.Release{Served: served[1:]})
	return err
}
