package lockstate

import (
	"fmt"
	"slices"
	"time"
)

// enabled returns the events that may happen now.
func (w *world) enabled() (all []event) {
	add := func(v verb, a, b int) { all = append(all, event{v, uint8(a), uint8(b)}) }
	mayFail := w.faults < w.cast.faults
	for i, c := range w.calls {
		switch c.state {
		case idle:
			if w.mayStart(i) {
				add(start, i, 0)
			}
		case awake:
			add(look, i, 0)
			add(cancel, i, 0)
		case sleeping:
			if len(c.w.Wake) > 0 {
				add(look, i, 0)
			}
			add(cancel, i, 0)
		case asks:
			add(cancel, i, 0)
		case leaving:
			add(leave, i, 0)
		case holding:
			add(unlock, i, 0)
		}
	}
	for i, k := range w.flying {
		if k.copy {
			add(run, i, 0)
			continue
		}
		add(answer, i, 0)
		if !k.ran {
			add(run, i, 0)
		}
		if w.cast.aside && k.errand == toRelease && !k.ran && k.terms.Tickets() {
			add(answerAside, i, 0)
		}
		if k.errand == toAsk && k.c != nil && k.reply.granted {
			add(cross, i, 0)
		}
		if mayFail {
			if !k.ran {
				add(breakBefore, i, 0)
				add(breakCopy, i, 0)
			}
			add(breakAfter, i, 0)
			if k.errand == toAsk && k.c != nil {
				add(timeOut, i, 0)
			}
		}
	}
	for i, p := range w.procs {
		for j := range p.reconciling {
			add(settle, i, j)
		}
		for j, e := range p.listeners {
			if e.listens && !e.heard {
				add(confirm, i, j)
			}
			if e.news || e.told || len(e.turns) > 0 {
				add(deliver, i, j)
				if mayFail {
					add(drop, i, j)
				}
			}
			if e.look {
				add(sendHeartbeat, i, j)
			}
		}
		if mayFail {
			for j := range p.lock.granted() {
				add(lose, i, j)
			}
		}
		for j := range p.unkept {
			add(unkeep, i, j)
		}
		if e := p.keeper; e.listens {
			switch {
			case !e.channel && !w.cast.noPubSub:
				add(hear, i, 0)
			case e.wanted:
				add(want, i, 0)
			}
			if e.wanted && mayFail {
				add(loseWant, i, 0)
			}
			if e.channel && mayFail {
				add(deafen, i, 0)
			}
		}
		if w.cast.close && !p.closed {
			add(shut, i, 0)
		}
	}
	if mayFail && w.orphaned() {
		add(expire, 0, 0)
	}
	if w.next() >= 0 {
		add(tick, 0, 0)
	}
	if w.cast.pause && len(all) > 0 {
		add(pause, 0, 0)
	}
	return all
}

// mayStart reports whether call i may start. Identical calls start in order.
func (w *world) mayStart(i int) bool {
	c := w.calls[i]
	for _, other := range w.calls[:i] {
		if other.state == idle && other.role == w.like(other, c.role) {
			return false
		}
	}
	if c.terms.Reads {
		for _, other := range w.calls {
			if other.owner == c.owner && other != c && other.terms.Reads && other.state != idle && other.state != done {
				return false
			}
		}
	} else if o := c.p.lock.side(true).owners[c.owner]; o != nil {
		return false // the call would wait for itself
	}
	if o := c.p.lock.side(c.terms.Reads).owners[c.owner]; o != nil && (len(o.Turn) > 0 || o.acquisition != nil) {
		return false // the call's own turn is handled first
	}
	return !c.p.closed
}

// like returns r with the owner of other, unless one of the two owners is shared by several calls.
func (w *world) like(other *call, r role) role {
	if other.owner < 100 && r.owner < 100 {
		r.owner = other.owner
	}
	return r
}

// orphaned reports whether Redis has the lock for an owner that does not know it, or has lost it. No
// process renews such a lock.
func (w *world) orphaned() bool {
	return w.redis.holder != "" && !w.trusted(w.redis.holder)
}

func (w *world) trusted(name string) bool {
	for _, p := range w.procs {
		for _, t := range p.lock.granted() {
			if t.Name == name {
				return true
			}
		}
	}
	return false
}

// do executes one event.
func (w *world) do(e event) {
	w.now = w.now.Add(stepTime)
	if e.verb >= breakBefore && e.verb <= timeOut || e.verb == drop || e.verb == lose || e.verb == expire || e.verb == loseWant || e.verb == deafen {
		w.faults++
		w.lossy = true
	}
	var c *call
	var k *command
	switch e.verb {
	case start, look, leave, cancel, unlock:
		c = w.calls[e.a]
	case answer, answerAside, run, breakBefore, breakAfter, breakCopy, timeOut, cross:
		k = w.flying[e.a]
		c = k.c
	}
	switch e.verb {
	case start:
		w.begin(c)
		w.act(c.p)
	case look:
		w.look(c)
	case leave:
		w.parts(c)
	case cancel:
		w.cancel(c)
	case unlock:
		w.unlock(c)
	case answer, answerAside:
		w.carryOut(k, e.verb == answerAside)
		w.answered(k, false, false)
	case run:
		w.carryOut(k, false)
		if k.copy {
			w.flying = slices.DeleteFunc(w.flying, func(other *command) bool { return other == k })
		}
	case breakBefore:
		w.answered(k, true, true)
	case breakAfter:
		w.carryOut(k, false)
		w.answered(k, true, true)
	case breakCopy:
		dup := *k
		dup.copy, dup.c = true, nil
		k.copied = true
		w.answered(k, true, true)
		w.flying = append(w.flying, &dup)
	case timeOut:
		k.c = nil
		w.tellTimeOut(k)
		c.p.lock.Abandoned(c.w, k.t)
		w.unanswered(c, errBroke)
	case cross:
		w.flying = slices.DeleteFunc(w.flying, func(other *command) bool { return other == k })
		w.tellCross(c, k)
		c.p.lock.Failed(c.w, k.t, true, nil)
		w.crossing = true
		w.cancel(c)
		w.crossing = false
	case settle:
		p := w.procs[e.a]
		w.reconciles(p, p.reconciling[e.b])
	case confirm:
		p := w.procs[e.a]
		x := p.listeners[e.b]
		x.heard = true
		x.queue.Notify()
		w.act(p)
	case deliver:
		w.deliver(w.procs[e.a], w.procs[e.a].listeners[e.b])
	case drop:
		x := w.procs[e.a].listeners[e.b]
		x.news, x.told, x.turns = false, false, nil
	case sendHeartbeat:
		w.heartbeats(w.procs[e.a], w.procs[e.a].listeners[e.b])
	case tick:
		w.passes(w.next())
	case pause:
		w.passes(11 * time.Millisecond)
	case lose:
		p := w.procs[e.a]
		w.lost(p, p.lock.granted()[e.b])
	case expire:
		w.tellExpire()
		w.redis.holder = ""
		if w.terms[0].Tickets() {
			w.redis.queue = nil // the queue is in the same key
		}
		for _, k := range w.flying {
			k.late = k.late || k.ran
		}
	case shut:
		w.closes(w.procs[e.a])
	case hear:
		w.procs[e.a].keeper.channel = true
		w.procs[e.a].lock.Wanted(false)
	case want:
		x := &w.procs[e.a].keeper
		tries := x.tries
		x.wanted, x.tries = false, false
		w.procs[e.a].lock.Wanted(tries)
	case unkeep:
		p := w.procs[e.a]
		t := p.unkept[e.b]
		p.unkept = slices.Delete(p.unkept, int(e.b), int(e.b)+1)
		w.release(p, nil, t)
	case loseWant:
		w.procs[e.a].keeper.wanted, w.procs[e.a].keeper.tries = false, false
	case deafen:
		x := &w.procs[e.a].keeper
		x.channel, x.wanted, x.tries = false, false, false
	}
	for _, p := range w.procs {
		w.act(p)
		if p.keeper.listens && p.lock.Unused() {
			p.keeper = keeperEars{channel: p.keeper.channel}
		}
		p.listeners = slices.DeleteFunc(p.listeners, func(e *listener) bool { return e.over })
	}
	// A process ignores the grant of a request that took too long.
	for _, k := range w.flying {
		k.late = k.late || w.now.Sub(k.sent) > offerTime/3
	}
}

// step executes one event, and checks the invariants.
func (w *world) step(e event) {
	w.do(e)
	w.check()
	w.tellState()
}

func (w *world) deliver(p *proc, e *listener) {
	news, told, turns := e.news, e.told, e.turns
	e.news, e.told, e.turns = false, false, nil
	if w.cast.noPubSub {
		return
	}
	if news {
		e.queue.Notify()
	}
	if told {
		e.queue.OnHandOff()
	}
	for _, name := range turns {
		w.tellCalled(e.queue, name)
		e.queue.OnTurn(name)
	}
	w.act(p)
}

// check checks the invariants.
func (w *world) check() {
	var writers, readers []*Acquisition
	for _, p := range w.procs {
		for _, t := range p.lock.granted() {
			if t.Terms.Reads {
				readers = append(readers, t)
			} else {
				writers = append(writers, t)
			}
		}
		w.checkPlace(p)
	}
	if len(writers) > 1 {
		w.fail("%d acquisitions have the lock", len(writers))
	}
	w.checkKept()
	for _, t := range writers {
		if w.redis.holder != t.Name {
			w.fail("an acquisition trusts that it has the lock, and Redis has it for %q", w.redis.holder)
		}
		for _, r := range readers {
			if o := r.holds[0].By.other(); o == nil || o.acquisition != t {
				w.fail("others read while an owner writes")
			}
		}
	}
	for _, t := range readers {
		if !slices.Contains(w.redis.readers, t.Name) {
			w.fail("an acquisition trusts that it reads, and Redis does not know it")
		}
	}
}

// checkKept checks that no process keeps the lock while a caller of another one waits for it, unless a message to the
// keeper was lost, or is in flight.
func (w *world) checkKept() {
	for _, p := range w.procs {
		t := p.lock.Kept()
		if t == nil {
			continue
		}
		if len(p.lock.sides[0].queues) > 0 || p.lock.readersHere() {
			w.fail("the lock is kept, and a caller of the process waits")
		}
		for _, c := range w.calls {
			if c.p == p || c.state != sleeping || w.lossy || p.keeper.wanted {
				continue
			}
			if c.refused == t.Name || c.t != nil && slices.ContainsFunc(w.redis.queue, func(e entry) bool { return e.name == c.t.Name }) {
				w.fail("call %d waits for a lock that is kept, and the keeper is not told", c.order)
			}
		}
	}
}

// checkPlace checks the invariants of one state.
func (w *world) checkPlace(p *proc) {
	flying := 0
	for _, k := range w.flying {
		if k.p != p || k.copy {
			continue
		}
		flying += k.round.enterings()
		if k.errand != toAsk {
			continue
		}
		flying++
		pending := 0
		for _, other := range w.flying {
			if other.t == k.t && other.errand == toAsk && !other.copy {
				pending++
			}
			if slices.ContainsFunc(other.round.Waiters, func(q Queuing) bool { return q.Enters && q.As == k.t }) && !other.copy {
				pending++
			}
		}
		if int(k.t.pending) != pending {
			w.fail("%d requests for one acquisition are under way, and it counts %d", pending, k.t.pending)
		}
	}
	if p.lock.inFlight != flying {
		w.fail("%d requests are under way, and the state counts %d", flying, p.lock.inFlight)
	}
	for _, t := range p.lock.granted() {
		if len(t.Served()) > 0 && !p.lock.removing && !p.closed {
			w.fail("served waiters stay in the queue for as long as %q has the lock", t.Name)
		}
	}
	for i := range p.lock.sides {
		s := &p.lock.sides[i]
		w.checkSide(p, s)
	}
}

func (w *world) checkSide(p *proc, s *side) {
	for _, o := range s.owners {
		n := 0
		if o.acquisition != nil {
			for _, h := range o.acquisition.holds {
				if h.By == o {
					n++
				}
			}
			if !o.acquisition.Lives() {
				w.fail("the acquisition of an owner is over")
			}
			if o.acquisition.Terms.HandsOff && s.held != o.acquisition && o.acquisition.phase == Held {
				w.fail("the state does not know what has the lock")
			}
		}
		if n != int(o.holds) && o.acquisition != nil {
			w.fail("an owner has %d holds, and counts %d", n, o.holds)
		}
	}
	if t := s.open; t != nil && (!t.Lives() || len(t.holds) == 0) {
		w.fail("an acquisition without a hold is open to others")
	}
	if s.requests < 0 || s.request != nil && s.requests == 0 {
		w.fail("%d trips are under way", s.requests)
	}
	for _, l := range s.queues {
		if len(l.waiters) == 0 {
			w.fail("an empty queue")
		}
		if t := l.hand.ticket; t != nil && t.phase != Ticket {
			w.fail("a ticket in phase %d", t.phase)
		}
		if t := l.hand.offered; t != nil && t.Lives() && (t.phase != Offered || s.held != t) {
			w.fail("an offer in phase %d", t.phase)
		}
		w.checkLine(p, l)
	}
}

// checkLine checks that a queue waits for an event that is guaranteed to happen.
func (w *world) checkLine(p *proc, l *Queue) {
	if p.closed {
		return
	}
	for _, x := range l.waiters {
		if c := w.callOf(x); c != nil && c.state == sleeping && w.comes(p, l, c) == "" {
			w.fail("call %d waits for nothing", c.order)
		}
	}
}

// comes returns the event that a sleeping call waits for.
func (w *world) comes(p *proc, l *Queue, c *call) string {
	x := c.w
	switch {
	case len(x.Wake) > 0:
		return "it is awake"
	case !c.due.IsZero():
		return "its time"
	case x.joined != nil:
		return "the answer to another"
	case c.terms.WaitPolicy == FairQueue:
		if (x.queued.as != nil || x.queued.enters) && slices.ContainsFunc(p.listeners, func(e *listener) bool { return e.queue == l && e.beats }) {
			return "a heartbeat"
		}
		return ""
	case !x.isFirst():
		return "the first of the queue"
	case !l.when.active && slices.ContainsFunc(p.arms, func(a arm) bool { return a.queue == l }):
		return "a timer"
	}
	return ""
}

// drain completes everything that is in flight, without further faults, and checks the final state.
func (w *world) drain() {
	began := w.now
	w.faults = w.cast.faults
	for n := 0; w.wrong == nil; n++ {
		if n == 1000 {
			w.fail("the history does not come to an end")
		}
		e, ok := w.calm()
		if !ok {
			break
		}
		w.step(e)
	}
	took := w.now.Sub(began)
	if w.wrong == nil && !w.lossy && took > pollTime/2 {
		w.fail("nothing was lost, and it took %v: a call was not woken", took)
	}
	for _, c := range w.calls {
		if c.state != idle && c.state != done {
			w.fail("call %d is in state %d for ever", c.order, c.state)
		}
		if c.state == done && !c.got && !c.quit {
			w.fail("call %d has not had the lock", c.order)
		}
	}
	if !w.redis.empty() {
		w.fail("something is left in Redis: %+v", w.redis)
	}
	for _, p := range w.procs {
		if !p.lock.Unused() {
			w.fail("the state is in use")
		}
		if p.lock.inFlight != 0 {
			w.fail("%d requests are under way for ever", p.lock.inFlight)
		}
		if !p.lock.Idle(w.now.Add(asideTime)) {
			w.fail("the state is never idle")
		}
	}
}

// calm returns the next event if there are no faults. Time passes only if no other event can happen.
func (w *world) calm() (event, bool) {
	best, found := event{}, false
	for _, e := range w.enabled() {
		switch e.verb {
		case start, cancel, shut, pause, answerAside, cross:
			continue
		case run:
			if !w.flying[e.a].copy {
				continue
			}
		case tick:
			if found {
				continue
			}
		}
		if !found {
			best, found = e, true
		}
	}
	return best, found
}

// story formats a history for a failure message.
func (c *cast) story(path []event) string {
	s := fmt.Sprintf("processes %d, faults %d, close %t, pause %t, fine %t, aside %t, noPubSub %t, keeps %t\n", c.procs, c.faults, c.close, c.pause, c.fine, c.aside, c.noPubSub, c.keeps)
	for i, r := range c.calls {
		t := r.terms
		s += fmt.Sprintf("call %d: process %d, how %d, owner %d, reads %t, sided %t, fixed %t, replicas %t, token counter %q, yield %t\n", i, r.proc, r.how, r.owner, t.Reads, t.Sided, t.Fixed, t.Replicas, t.TokenCounter, t.Yield)
	}
	for i, e := range path {
		s += fmt.Sprintf("%3d %v\n", i+1, e)
	}
	return s
}
