package lockstate

import "slices"

// The terms of only the fair lock's model (fair.pml).

// tellLingered tells that c stops waiting, although the model has it elsewhere: its own offer was
// lost, or the acquisition that it took is lost.
func (w *world) tellLingered(c *call) {
	switch {
	case c.t.Lives():
		w.says(tellLose, w.nameOf(c.t))
	case c.t != c.w.queue.hand.offered:
		w.says(tellGiveBack, w.nameOf(c.t)) // once more
	}
}

// tellLeave tells that c has left the queue.
func (w *world) tellLeave(c *call) {
	if c.lingers {
		c.lingers = false
		w.says(tellLeave, c.id)
	}
}

// tellLost records that the waiter that t, its own acquisition, was offered to has left in the model.
func (w *world) tellLost(t *Acquisition) {
	for _, c := range w.calls {
		if w.cast.model == ofFair && c.w != nil && c.w.queue != nil && c.w.queue.hand.to == c.w && c.w.Acquisition == t {
			c.lingers = true
		}
	}
}

// tellDropped tells that the offer to x, or the offer of its queue to an acquisition other than t, is
// released again. It was lost, and the queue drops it only now.
func (w *world) tellDropped(x *Waiter, t *Acquisition) {
	if w.cast.model != ofFair || x == nil || x.queue == nil || t == nil && x.queue.hand.to != x {
		return
	}
	if lost := x.queue.hand.offered; lost != nil && lost != t && !lost.Lives() {
		w.says(tellGiveBack, w.nameOf(lost))
	}
}

// tellNextOwner records that the release named a next owner that has not entered the queue; its waiter's
// earlier acquisition has.
func (w *world) tellNextOwner(nextOwner *Acquisition) {
	for _, c := range w.calls {
		if w.cast.model == ofFair && nextOwner != nil && c.anew && c.w != nil && c.w.Acquisition == nextOwner && c.w.queued.as != nextOwner {
			w.untold = true
		}
	}
}

// entering returns the waiters of l whose entry has no reply yet.
func entering(l *Queue) (all []*Waiter) {
	for _, x := range l.waiters {
		if x.queued.sent {
			all = append(all, x)
		}
	}
	return all
}

// tellRound tells that a Round is sent: a heartbeat, an entry, or both. again has the waiters whose
// entry has no reply yet; the model does not send these again.
func (w *world) tellRound(k *command, again []*Waiter) {
	if w.cast.model != ofFair {
		return
	}
	keeps, enters := w.among(k, func(i int) bool {
		w.untold = w.untold || k.round.Waiters[i].Enters && slices.Contains(again, k.round.Waiters[i].Waiter)
		return true
	})
	if keeps != 0 {
		k.number = w.numbered()
		w.says(tellBeat, slices.Index(w.procs, k.p), keeps)
	}
	if enters != 0 {
		k.entry = w.numbered()
		w.says(tellEnter, slices.Index(w.procs, k.p), enters)
	}
}

// among returns the owner strings that a Round keeps in the queue, and those that it enters, if
// counts includes them.
func (w *world) among(k *command, counts func(i int) bool) (keeps, enters int) {
	for i, q := range k.round.Waiters {
		switch {
		case !counts(i):
		case q.Enters:
			enters |= 1 << w.nameOf(q.As)
		default:
			keeps |= 1 << w.nameOf(q.As)
		}
	}
	return keeps, enters
}

func (w *world) tellRanRound(k *command) {
	keeps, enters := w.among(k, func(i int) bool { return k.reply.turns[i] })
	if k.number > 0 {
		w.says(tellRun, k.number-1, toldRefuse, keeps)
	}
	if k.entry > 0 {
		w.says(tellRun, k.entry-1, toldRefuse, enters)
	}
}

func (w *world) tellAnswerRound(k *command, broken bool) {
	for _, n := range []int{k.number, k.entry} {
		switch {
		case n == 0:
		case broken:
			w.says(tellBreak, n-1, int(bit(k.copied)))
		default:
			w.says(tellAnswerBeat, n-1)
		}
	}
}

// tellTurn records that a restarted waiter is notified of the turn of its earlier acquisition.
func (w *world) tellTurn(q Queuing) {
	w.untold = w.untold || q.Waiter.queue != nil && q.Waiter.Acquisition != q.As
}

// tellStrike tells that a command removes served waiters from the queue. In the model that takes no
// time; tellStrike reports whether it takes none here.
func (w *world) tellStrike(k *command) bool {
	if w.cast.model != ofFair {
		return false
	}
	w.says(tellStrike, slices.Index(w.procs, k.p), w.namesOf(k.served))
	return true
}

// tellCalled tells that a waiter of l is notified of its turn. If the reply that queued it has not
// arrived, the model notifies it later, by tellEarly.
func (w *world) tellCalled(l *Queue, name string) {
	for _, x := range l.waiters {
		if w.cast.model == ofFair && (x.queued.as != nil || x.queued.sent) && x.Acquisition.Name == name && !w.callOf(x).lingers {
			w.untold = w.untold || !x.queued.sent && x.queued.as != x.Acquisition // it restarted
			w.says(tellMessage, w.ids[name])
		}
	}
}

// tellEarly tells that x, which was queued as this acquisition, now knows that, and that it is its
// turn.
func (w *world) tellEarly(p *proc, x *Waiter, was *Acquisition) {
	if as := x.queued.as; w.cast.model == ofFair && as != nil && as != was && as == x.queued.early {
		w.says(tellMessage, w.nameOf(as))
		w.untold = w.untold || slices.Contains(p.listenerOf(x.queue).turns, as.Name) // another one, and the model has one at a time
	}
}

// The sets of tellState.
const (
	fairWaits = iota
	fairHolds
	fairAsking
	fairReason
	fairQueued
	fairSent
	fairEnters
	fairHeld
	fairOffered
	fairTo
	fairHas
	fairOver
	fairUnsure
	fairGot
	fairTraced
	fairTaken
	fairDoubt
	fairSets
)

func (w *world) tellFair(add func(set int, is bool, caller int)) {
	for _, t := range w.acquisitions {
		id := w.nameOf(t)
		add(fairTraced, t.traced, id)
		add(fairTaken, t.taken, id)
		t = t.Latest()
		add(fairHas, t.phase == Held || t.phase == Offered, id)
		add(fairOver, !t.Lives(), id)
		add(fairUnsure, t.uncertain, id)
		add(fairGot, !t.grant.since.IsZero(), id)
	}
	for _, c := range w.calls {
		x := c.w
		switch {
		case c.state == holding:
			add(fairHolds, true, c.id)
		case x == nil || x.queue == nil || c.lingers:
		default:
			lost := x.queue.hand.to == x && !x.queue.hand.offered.Lives()
			add(fairWaits, true, c.id)
			add(fairAsking, c.state == asks, c.id)
			add(fairReason, x.reason || !x.retryAt.IsZero() || lost, c.id)
			add(fairQueued, x.queued.as != nil && x.queued.as == x.Acquisition, c.id)
			add(fairSent, x.queued.sent && !c.anew, c.id) // otherwise it belongs to the earlier acquisition
			add(fairEnters, x.queued.enters && !x.queued.sent, c.id)
			add(fairTo, x.queue.hand.to == x && !lost, c.id)
		}
	}
	for _, p := range w.procs {
		for _, d := range p.reconciling {
			add(fairDoubt, true, w.nameOf(d.t))
		}
		if t := p.lock.side(false).held; t != nil {
			add(fairHeld, true, w.nameOf(t))
		}
		for _, t := range p.lock.Offered() {
			add(fairOffered, t.Lives(), w.nameOf(t))
		}
	}
}
