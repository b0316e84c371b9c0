package session

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/place"
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
		due, waiters := e.line.NextBeat(sent)
		queued := make([]luascripts.Waiter, len(waiters))
		for i, w := range waiters {
			queued[i] = luascripts.Waiter{Owner: w.Queued().Name, Patience: tenureOf(w.Queued()).spec.terms.Patience}
		}
		e.at.unlock()
		if len(queued) > 0 {
			e.at.s.sender.Go(func() { e.keep(spec, waiters, queued, sent) })
		}
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-e.beating:
		}
	}
}

// keep sends one heartbeat for these waiters, due at sent. It has those ask whose turn it is,
// and those that lost their places.
func (e *ears) keep(spec *Spec, waiters []*place.Waiter, queued []luascripts.Waiter, sent time.Time) {
	s := e.at.s
	kept, err := spec.Keep(context.Background(), s.rdb, spec.Keys, queued)
	again := err != nil && command.FaultOf(err).Again
	now := time.Now()
	e.at.lock()
	if again {
		e.line.Beaten(sent, err)
	} else {
		e.line.Beaten(sent, nil)
	}
	quiet, _ := e.line.Silence().Lasts(now, true, 0)
	for i, w := range waiters {
		if err == nil && kept.Asks[i] || err != nil && !again {
			e.at.place.Prompt(w) // after an error that will come again: its own question keeps its place, or says what is wrong
		}
	}
	if err == nil && kept.Left != 0 {
		e.line.BeatIn(now, kept.Left)
	}
	e.at.unlock()
	if err != nil {
		s.silent(spec, quiet, s.sender.Explain(err))
	}
}
