package session

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/luascripts"
)

// beat has the goroutine that sends the heartbeats of a line look again, and starts it if
// there is none. The mutex of the place is held.
func (at *spot) beat(a place.Action) {
	e := at.ears(a.Line)
	if e.beating == nil {
		e.beating = make(chan struct{}, 1)
		spec := a.Terms.Of.(*Spec)
		at.s.sender.Go(func() { e.beats(spec) })
	}
	select {
	case e.beating <- struct{}{}:
	default:
	}
}

// beats sends heartbeats for all waiters of the line that stand in the queue in Redis, until
// the line ends. A heartbeat does not wait for the answer to the one before.
func (e *ears) beats(spec *Spec) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		sent := time.Now()
		e.at.lock()
		if e.line.Ended() {
			e.at.unlock()
			return
		}
		due, round := e.line.NextBeat(sent)
		queued := make([]luascripts.Waiter, len(round.Waiters))
		for i, q := range round.Waiters {
			queued[i] = luascripts.Waiter{Owner: q.As.Name, WaiterTimeout: q.As.Terms.WaiterTimeout, Enters: q.Enters}
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

// keep sends one heartbeat, or has waiters enter the queue. It has those ask whose turn it is,
// and those that lost their places.
func (e *ears) keep(spec *Spec, round place.Round, queued []luascripts.Waiter) {
	s := e.at.s
	kept, err := spec.Keep(context.Background(), s.rdb, spec.Keys, queued)
	err = command.Sure(context.Background(), s.rdb, err)
	again, mayHaveRun := false, false
	if err != nil {
		fault := retry.FaultOf(err)
		again, mayHaveRun = fault.Passes, fault.MayHaveRun()
	}
	var left []*tenure // their waiters left meanwhile
	now := time.Now()
	e.at.lock()
	if again {
		e.line.Beaten(round, err)
	} else {
		e.line.Beaten(round, nil)
	}
	quiet, _ := e.line.Silence().Lasts(now, 0)
	for i, q := range round.Waiters {
		switch {
		case !q.Enters:
		case err != nil:
			e.at.place.NotEntered(q, mayHaveRun, err)
		case e.at.place.Entered(q, kept.Own[i], round.Sent, now):
			left = append(left, tenureOf(q.As))
		}
		if err == nil && kept.Asks[i] || err != nil && !again {
			e.at.place.Prompt(q.Waiter) // after an error that will come again: its own question keeps its place, or says what is wrong
		}
	}
	if err == nil && kept.Left != 0 {
		e.line.BeatIn(round, now, kept.Left)
	}
	e.at.unlock()
	for _, t := range left {
		s.settle(t, false)
	}
	if err != nil {
		s.silent(spec, quiet, s.sender.Explain(err))
	}
}

// follow notes which waiters of this process are next in the queue in Redis after t, which was
// granted the lock.
func (s *Session) follow(t *tenure, next string) {
	t.at.lock()
	defer t.at.unlock()
	t.at.place.Follow(&t.Tenure, next, len(s.id)+1)
}

// strike takes waiters that were served out of the queue in Redis, if that is due.
func (at *spot) strike() {
	at.lock()
	defer at.unlock()
	of, served := at.place.Strike(time.Now())
	if of == nil {
		return
	}
	t := tenureOf(of)
	at.s.sender.Go(func() {
		err := t.strike(context.Background(), served)
		at.lock()
		at.place.Struck(&t.Tenure, len(served), err == nil, time.Now())
		at.unlock()
	})
}

// strike takes these owners out of the queue in Redis. They hold nothing, so that is all that
// their release does.
func (t *tenure) strike(ctx context.Context, served []string) error {
	_, err := t.spec.Pass(ctx, t.s.rdb, t.spec.Keys, served[0], luascripts.Pass{Served: served[1:]})
	return err
}
