package lockstate

import (
	"slices"
	"time"
)

// redis is the state of one lock on the server. It replies as the scripts do, as far as a state
// can tell the difference.
type redis struct {
	token   uint64 // the latest
	holder  string // of a lock that one owner has at a time, or of its writing side
	readers []string
	wish    string    // the writer that readers let pass
	wished  time.Time // when the wish was written
	queue   []entry   // of a kind that is handed off: processes; of a fair one: owners
}

// entry is a waiter in Redis.
type entry struct {
	p    *proc
	name string
	late bool // by a copy that was executed late
}

// reply is the reply of Redis to a command.
type reply struct {
	granted bool          // a request: the owner holds the lock
	token   uint64        // of a release: that of the next owner, 0 if another process has the lock or the lock is free
	left    time.Duration // a refusal
	gone    bool          // a release: the owner held nothing
	aside   bool          // a release: the lock is free, and others come first
	next    []string      // a grant: who is next in the queue, of the same process
	turns   []bool        // a heartbeat: whether this waiter should ask
	keep    time.Duration // a heartbeat: when to look again; 0 is nothing
}

// grown returns the token of a new holder: the clock, or more than the last that is known.
func (r *redis) grown(w *world, last uint64) uint64 {
	r.token = max(uint64(w.now.UnixMicro()), last+1)
	return r.token
}

// ask carries a request out.
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
	}
	return a
}

func (r *redis) take(c *command) bool {
	switch {
	case r.holder == c.name:
		return true
	case r.holder == "" && len(r.readers) == 0:
		r.holder = c.name
		if r.wish == c.name {
			r.wish = ""
		}
		return true
	}
	if c.queued {
		r.enlist(entry{p: c.p, name: c.name})
	}
	if c.terms.Sided && c.patience > 0 && (r.wish == "" || r.wish == c.name) {
		r.wish, r.wished = c.name, c.came
	}
	return false
}

// enlist puts a waiting process into the queue: in the state that it has, or at the end.
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
	if r.holder == "" && c.terms.Yield && r.wish != "" && r.wished.Before(c.came) {
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
	if i < 0 && c.patience > 0 {
		r.queue = append(r.queue, entry{c.p, c.name, c.copy})
	}
	return false
}

// following returns the first in the queue, as far as they are of process p.
func (r *redis) following(p *proc) (names []string) {
	for _, e := range r.queue {
		if e.p != p {
			break
		}
		names = append(names, e.name)
	}
	return names
}

// release carries a release out. next owner is the ticket that stands for the process, if any. If
// aside, the lock is released for others.
func (r *redis) release(w *world, c *command, aside bool) (a reply) {
	c.ran = true
	heir := ""
	if c.heir != nil {
		heir = c.heir.Name
	}
	switch {
	case c.terms.Reads:
		return r.leave(w, c)
	case c.terms.Sided:
		wished := r.wish == c.name
		if wished {
			r.wish = ""
		}
		if r.holder != c.name {
			a.gone = true
		} else {
			r.holder = ""
		}
		if wished || !a.gone {
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
		case !a.gone && r.queue[0].name == heir:
			r.holder, a.token = heir, r.grown(w, c.t.Token())
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
	if aside && (heir != "" || len(r.queue) > 0) {
		r.queue = nil
		w.stepAside()
		w.publish()
		return reply{aside: true}
	}
	next := entry{p: c.p, name: heir}
	if len(r.queue) > 0 {
		next = r.queue[0]
		r.queue = r.queue[1:]
		if next.p == c.p && heir != "" {
			next.name = heir
		}
	}
	switch {
	case next.name == "":
		w.publish()
	case next.name == heir:
		r.holder, a.token = heir, r.grown(w, c.t.Token())
	default:
		r.holder = next.name
		if heir != "" {
			r.enlist(entry{p: c.p, name: heir})
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

// keep carries a heartbeat out.
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
		a.keep = w.rules.Lease
	case len(r.queue) > 0:
		a.keep = w.terms[0].WaiterTimeout
	}
	return a
}

// strike takes served waiters out of the queue.
func (r *redis) strike(c *command) {
	c.ran = true
	r.queue = slices.DeleteFunc(r.queue, func(e entry) bool { return slices.Contains(c.served, e.name) })
}

// empty reports whether the lock has no keys left.
func (r *redis) empty() bool {
	return r.holder == "" && len(r.readers) == 0 && r.wish == "" && len(r.queue) == 0
}
