package lockstate

import (
	"slices"
	"time"
)

// redis models one lock on the server. It replies as the scripts do, as far as a state can tell the
// difference.
type redis struct {
	token       uint64 // the latest
	holder      string // of a lock with one owner at a time, or of the write lock
	readers     []string
	intent      string    // the writer intent that readers wait behind
	intentSince time.Time // when the writer intent was set
	queue       []entry   // for locks with hand-offs: processes; for fair locks: owners
}

// entry is a waiter in Redis.
type entry struct {
	p    *proc
	name string
	late bool // by a delayed duplicate
}

// reply is the reply of Redis to a command.
type reply struct {
	granted bool          // a request: the owner holds the lock
	token   uint64        // for a release: the next owner's token; 0 if another process has the lock or the lock is free
	left    time.Duration // a refusal
	holder  string        // a refusal: who has the lock
	gone    bool          // for a release: the owner had no hold
	aside   bool          // for a release: the lock is free, and other processes come first
	next    []string      // for a grant: the next waiters of the same process in the queue
	turns   []bool        // for a heartbeat: whether it is this waiter's turn
	keep    time.Duration // for a heartbeat: when to send the next one; 0 if unspecified
}

// grown returns the token of a new owner: the clock, or more if that is not larger than the last
// token.
func (r *redis) grown(w *world, last uint64) uint64 {
	r.token = max(uint64(w.now.UnixMicro()), last+1)
	return r.token
}

// ask executes a request.
func (r *redis) ask(w *world, c *command) (a reply) {
	c.ran = true
	switch {
	case c.terms.Reads:
		a.granted = r.read(c)
	case c.terms.WaitPolicy == FairQueue:
		a.granted = r.inQueue(c)
		if a.granted {
			a.next = r.following(c.p)
		}
	default:
		a.granted = r.take(c)
	}
	a.left = -1
	if a.granted {
		a.token = r.grown(w, 0)
	} else if a.holder = r.holder; a.holder != "" {
		w.wants(c)
	}
	return a
}

func (r *redis) take(c *command) bool {
	switch {
	case r.holder == c.name:
		return true
	case r.holder == "" && len(r.readers) == 0:
		r.holder = c.name
		if r.intent == c.name {
			r.intent = ""
		}
		return true
	}
	if c.queued {
		r.enlist(entry{p: c.p, name: c.name})
	}
	if c.terms.Sided && c.waiterTimeout > 0 && (r.intent == "" || r.intent == c.name) {
		r.intent, r.intentSince = c.name, c.came
	}
	return false
}

// enlist updates the entry of a waiting process, or appends one to the queue.
func (r *redis) enlist(e entry) {
	i := slices.IndexFunc(r.queue, func(other entry) bool { return other.p == e.p })
	if i < 0 {
		r.queue = append(r.queue, e)
	} else {
		r.queue[i].name = e.name
	}
}

func (r *redis) read(c *command) bool {
	if slices.Contains(r.readers, c.name) {
		return true
	}
	if r.holder != "" && r.holder != c.writer {
		return false
	}
	if r.holder == "" && c.terms.Yield && r.intent != "" && r.intentSince.Before(c.came) {
		return false
	}
	r.readers = append(r.readers, c.name)
	return true
}

func (r *redis) inQueue(c *command) bool {
	if r.holder == c.name {
		return true
	}
	at := func(e entry) bool { return e.name == c.name }
	i := slices.IndexFunc(r.queue, at)
	if r.holder == "" && (len(r.queue) == 0 || i == 0) {
		r.holder = c.name
		r.queue = slices.DeleteFunc(r.queue, at)
		return true
	}
	if i < 0 && c.waiterTimeout > 0 {
		r.queue = append(r.queue, entry{c.p, c.name, c.copy})
	}
	return false
}

// following returns the first entries of the queue, up to the first one of a process other than p.
func (r *redis) following(p *proc) (names []string) {
	for _, e := range r.queue {
		if e.p != p {
			break
		}
		names = append(names, e.name)
	}
	return names
}

// release executes a release. nextOwner is the ticket that represents the process, if any. If aside, the
// lock is released for other processes.
func (r *redis) release(w *world, c *command, aside bool) (a reply) {
	c.ran = true
	nextOwner := ""
	if c.nextOwner != nil {
		nextOwner = c.nextOwner.Name
	}
	switch {
	case c.terms.Reads:
		return r.leave(w, c)
	case c.terms.Sided:
		hadIntent := r.intent == c.name
		if hadIntent {
			r.intent = ""
		}
		if r.holder != c.name {
			a.gone = true
		} else {
			r.holder = ""
		}
		if hadIntent || !a.gone {
			w.publish()
		}
		return a
	case c.terms.WaitPolicy == FairQueue:
		r.queue = slices.DeleteFunc(r.queue, func(e entry) bool { return e.name == c.name || slices.Contains(c.served, e.name) })
		if r.holder == c.name {
			r.holder = ""
		} else {
			a.gone = true
		}
		switch {
		case r.holder != "" || len(r.queue) == 0:
		case !a.gone && r.queue[0].name == nextOwner:
			r.holder, a.token = nextOwner, r.grown(w, c.t.Token())
			r.queue = r.queue[1:]
			a.next = r.following(c.p)
		default:
			w.turn(r.queue[0])
		}
		return a
	case r.holder != c.name:
		r.queue = slices.DeleteFunc(r.queue, func(e entry) bool { return e.name == c.name })
		return reply{gone: true}
	}
	r.holder = ""
	if aside && (nextOwner != "" || len(r.queue) > 0) {
		r.queue = nil
		w.stepAside()
		w.publish()
		return reply{aside: true}
	}
	next := entry{p: c.p, name: nextOwner}
	if len(r.queue) > 0 {
		next = r.queue[0]
		r.queue = r.queue[1:]
		if next.p == c.p && nextOwner != "" {
			next.name = nextOwner
		}
	}
	switch {
	case next.name == "":
		w.publish()
	case next.name == nextOwner:
		r.holder, a.token = nextOwner, r.grown(w, c.t.Token())
	default:
		r.holder = next.name
		if nextOwner != "" {
			r.enlist(entry{p: c.p, name: nextOwner})
		}
		w.tell(next.p)
	}
	return a
}

func (r *redis) leave(w *world, c *command) (a reply) {
	i := slices.Index(r.readers, c.name)
	if i < 0 {
		return reply{gone: true}
	}
	r.readers = slices.Delete(r.readers, i, i+1)
	if len(r.readers) == 0 {
		w.publish()
	}
	return a
}

// keep executes a heartbeat.
func (r *redis) keep(w *world, c *command) (a reply) {
	c.ran = true
	for _, q := range c.round.Waiters {
		i := slices.IndexFunc(r.queue, func(e entry) bool { return e.name == q.As.Name })
		if i < 0 && q.Enters && r.holder != q.As.Name {
			i = len(r.queue)
			r.queue = append(r.queue, entry{c.p, q.As.Name, c.copy})
		}
		a.turns = append(a.turns, i < 0 || i == 0 && r.holder == "")
	}
	switch {
	case r.holder != "":
		w.wants(c)
		a.keep = w.rules.Lease
	case len(r.queue) > 0:
		a.keep = w.terms[0].WaiterTimeout
	}
	return a
}

// removeServed removes served waiters from the queue.
func (r *redis) removeServed(c *command) {
	c.ran = true
	r.queue = slices.DeleteFunc(r.queue, func(e entry) bool { return slices.Contains(c.served, e.name) })
}

// empty reports whether the lock has no keys left.
func (r *redis) empty() bool {
	return r.holder == "" && len(r.readers) == 0 && r.intent == "" && len(r.queue) == 0
}
