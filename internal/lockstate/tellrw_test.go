package lockstate

// The terms of only the read/write lock's model (rw.pml).

// tellUnheard tells that no call receives the reply to k, which may still be executed.
func (w *world) tellUnheard(k *command) {
	if w.cast.model == ofRW {
		w.says(tellBreak, k.number-1, int(bit(!k.ran)), 1)
	}
}

// tellLate tells that a late reply to a request arrived.
func (w *world) tellLate(k *command) {
	if w.cast.model == ofRW {
		w.says(tellDoubts, w.nameOf(k.t))
	}
}

// tellBeside returns the write acquisition of the owner for which k requests a read hold.
func (w *world) tellBeside(k *command) int {
	if k.writer == "" {
		return toldNone
	}
	return w.ids[k.writer]
}

// tellJoin tells that c joins t, which holds the lock for another reader. rode says that c joined the
// request for t.
func (w *world) tellJoin(c *call, t *Acquisition, rode bool) {
	if w.cast.model == ofRW {
		w.says(tellTake, c.id, w.nameOf(t), int(bit(rode)))
	}
}

// tellRide tells that c joins a request, if it did so just now.
func (w *world) tellRide(c *call, before *sharedRequest) {
	if f := c.w.joined; w.cast.model == ofRW && f != nil && f != before {
		w.says(tellRides, c.id, w.nameOf(f.t))
	}
}

// tellRiders tells that the joiners of a request were admitted, if they were.
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

// tellUnlockShared tells that c releases a hold of an acquisition that others share.
func (w *world) tellUnlockShared(c *call) {
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
		if t := p.lock.side(true).open; t != nil {
			add(rwOpen, true, w.nameOf(t))
		}
	}
}
