package lockstate

// What only the model of the read/write lock (rw.pml) has words for.

// tellUnheard says that no call gets the reply to k, which may be executed yet.
func (w *world) tellUnheard(k *command) {
	if w.cast.model == ofRW {
		w.says(tellBreak, k.number-1, int(bit(!k.ran)), 1)
	}
}

// tellLate says that the reply to a request came for which no call waits.
func (w *world) tellLate(k *command) {
	if w.cast.model == ofRW {
		w.says(tellDoubts, w.nameOf(k.t))
	}
}

// tellBeside returns the writing of the same owner beside which k asks to read.
func (w *world) tellBeside(k *command) int {
	if k.writer == "" {
		return toldNone
	}
	return w.ids[k.writer]
}

// tellJoin says that c joins t, which has the lock for another reader. rode says that it joined it with the request for t.
func (w *world) tellJoin(c *call, t *Acquisition, rode bool) {
	if w.cast.model == ofRW {
		w.says(tellTake, c.id, w.nameOf(t), int(bit(rode)))
	}
}

// tellRide says that c shares a request, if it does so now, and not before.
func (w *world) tellRide(c *call, before *sharedRequest) {
	if f := c.w.joined; w.cast.model == ofRW && f != nil && f != before {
		w.says(tellRides, c.id, w.nameOf(f.t))
	}
}

// tellRiders says that those that joined it with a request came in, if they did.
func (w *world) tellRiders(f *sharedRequest) {
	if w.cast.model != ofRW || f == nil || !f.finished || !f.granted {
		return
	}
	for _, r := range f.joiners {
		c := w.callOf(r)
		c.rides = true
		w.tellJoin(c, f.t, true)
	}
}

// tellDrop says that c leaves a hold that others share.
func (w *world) tellDrop(c *call) {
	if w.cast.model == ofRW {
		w.says(tellUnlock, c.id)
	}
}

// The sets of tellState.
const (
	rwWaits = iota
	rwHolds
	rwBy
	rwOpen
	rwSets
)

func (w *world) tellRW(add func(set int, is bool, caller int)) {
	for _, c := range w.calls {
		h := c.h
		if c.rides {
			h = c.w.Prepared
		}
		switch {
		case h != nil:
			add(rwHolds, h.Acquisition.Lives(), c.id)
			add(rwBy, h.Acquisition.Lives(), w.nameOf(h.Acquisition))
		default:
			add(rwWaits, c.w != nil && c.w.queue != nil, c.id)
		}
	}
	for _, p := range w.procs {
		if t := p.place.side(true).open; t != nil {
			add(rwOpen, true, w.nameOf(t))
		}
	}
}
