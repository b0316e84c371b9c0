package lockstate

import "slices"

// What only the model of the fair lock (fair.pml) has words for.

// tellLingered says that the wait of c ends, which the model has elsewhere: its own offer was lost, or it has taken an offer, and that
// is lost now, or was.
func (w *world) tellLingered(c *call) {
	switch {
	case c.t.Lives():
		w.says(tellLose, w.nameOf(c.t))
	case c.t != c.w.queue.hand.offered:
		w.says(tellGiveBack, w.nameOf(c.t)) // once more
	}
}

// tellLeave says that c is not in the queue any more.
func (w *world) tellLeave(c *call) {
	if c.lingers {
		c.lingers = false
		w.says(tellLeave, c.id)
	}
}

// tellLost notes that the waiter to which t, its own acquisition, was offered is out in the model.
func (w *world) tellLost(t *Acquisition) {
	for _, c := range w.calls {
		if w.cast.model == ofFair && c.w != nil && c.w.queue != nil && c.w.queue.hand.to == c.w && c.w.Acquisition == t {
			c.lingers = true
		}
	}
}

// tellDropped says that what was offered to x, or in its queue to others than t, is released once more: it was lost, and the queue has
// it still, and drops it now.
func (w *world) tellDropped(x *Waiter, t *Acquisition) {
	if w.cast.model != ofFair || x == nil || x.queue == nil || t == nil && x.queue.hand.to != x {
		return
	}
	if lost := x.queue.hand.offered; lost != nil && lost != t && !lost.Lives() {
		w.says(tellGiveBack, w.nameOf(lost))
	}
}

// tellHeir notes that an next owner is named that has not entered the queue; the acquisition before of its waiter has.
func (w *world) tellHeir(heir *Acquisition) {
	for _, c := range w.calls {
		if w.cast.model == ofFair && heir != nil && c.anew && c.w != nil && c.w.Acquisition == heir && c.w.queued.as != heir {
			w.untold = true
		}
	}
}

// entering returns the waiters of l of which an entry has no reply yet.
func entering(l *Queue) (all []*Waiter) {
	for _, x := range l.waiters {
		if x.queued.sent {
			all = append(all, x)
		}
	}
	return all
}

// tellRound says that a Round is sent: a heartbeat, an entry, or both. again has the waiters of which an entry has no reply yet. The
// model does not send it again.
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

// among returns the owner strings that a Round keeps in the queue, and those that enter it, as far as they count.
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

// tellTurn notes that a waiter that has begun anew gets that it is the turn of its acquisition before.
func (w *world) tellTurn(q Queuing) {
	w.untold = w.untold || q.Waiter.queue != nil && q.Waiter.Acquisition != q.As
}

// tellStrike says that served waiters leave the queue by a command. In the model that takes no time; tellStrike reports whether it
// takes none here.
func (w *world) tellStrike(k *command) bool {
	if w.cast.model != ofFair {
		return false
	}
	w.says(tellStrike, slices.Index(w.procs, k.p), w.namesOf(k.served))
	return true
}

// tellCalled says that a waiter of l gets that it is its turn. One that does not know yet that it stands in the queue gets it in
// the model when it knows, by tellEarly.
func (w *world) tellCalled(l *Queue, name string) {
	for _, x := range l.waiters {
		if w.cast.model == ofFair && (x.queued.as != nil || x.queued.sent) && x.Acquisition.Name == name && !w.callOf(x).lingers {
			w.untold = w.untold || !x.queued.sent && x.queued.as != x.Acquisition // it began anew
			w.says(tellMessage, w.ids[name])
		}
	}
}

// tellEarly says that x, which stood in the queue as this acquisition, knows now that it stands there, and that its turn has come.
func (w *world) tellEarly(p *proc, x *Waiter, was *Acquisition) {
	if as := x.queued.as; w.cast.model == ofFair && as != nil && as != was && as.Name == x.queue.heartbeat.early {
		w.says(tellMessage, w.nameOf(as))
		w.untold = w.untold || slices.Contains(p.earsOf(x.queue).turns, as.Name) // another one, and the model has one at a time
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
	for _, t := range w.tenures {
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
			add(fairSent, x.queued.sent && !c.anew, c.id) // else it is of the acquisition before
			add(fairEnters, x.queued.enters && !x.queued.sent, c.id)
			add(fairTo, x.queue.hand.to == x && !lost, c.id)
		}
	}
	for _, p := range w.procs {
		for _, d := range p.settling {
			add(fairDoubt, true, w.nameOf(d.t))
		}
		if t := p.place.side(false).held; t != nil {
			add(fairHeld, true, w.nameOf(t))
		}
		for _, t := range p.place.Offered() {
			add(fairOffered, t.Lives(), w.nameOf(t))
		}
	}
}
