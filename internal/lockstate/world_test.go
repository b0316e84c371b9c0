package lockstate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests of histories simulate a session: processes with calls, commands in flight, messages, and
// acquisitions to reconcile. Nothing waits: a history is a list of events, and the world executes
// each event immediately.

const (
	leaseTime = 30 * time.Second
	pollTime  = time.Second
	offerTime = 3 * pollTime
	opTime    = 3 * time.Second
	asideTime = 5 * time.Millisecond
	pauseTime = time.Millisecond      // after an error
	stepTime  = 25 * time.Microsecond // the time of an event
)

var (
	plainTerms = Terms{Kind: Kind{WaitPolicy: OnlyFirst, HandsOff: true}, Lease: leaseTime, Yield: true}
	writeTerms = Terms{Kind: Kind{WaitPolicy: OnlyFirst, Sided: true}, Lease: leaseTime, Yield: true, WaiterTimeout: leaseTime}
	readTerms  = Terms{Kind: Kind{WaitPolicy: AllAtOnce, Reads: true, Sided: true}, Lease: leaseTime, Yield: true, WaiterTimeout: leaseTime}
	fairTerms  = Terms{Kind: Kind{WaitPolicy: FairQueue, HandsOff: true}, Lease: leaseTime, Yield: true, WaiterTimeout: leaseTime}
)

var errBroke = errors.New("the connection broke")

// cast defines the processes and calls of a history, and the faults that may happen.
type cast struct {
	procs    int
	calls    []role
	close    bool  // a state may be closed
	pause    bool  // time may pass for no reason
	faults   int   // the maximum number of the faults below
	fine     bool  // a call is interrupted wherever possible
	aside    bool  // Redis may release the lock for other processes
	noPubSub bool  // no message arrives
	keeps    bool  // no process can transfer a lease
	model    model // the model that the history is for
}

// role is one call of a history, which acquires the lock once and releases it.
type role struct {
	proc  int
	terms *Terms
	owner uint64 // 0 means a separate owner for the call
	how   how
}

type how uint8

const (
	lock how = iota
	tryLock
)

// world has everything that a state interacts with.
type world struct {
	cast   *cast
	now    time.Time
	rules  Rules
	terms  []*Terms // of the calls
	redis  redis
	procs  []*proc
	calls  []*call
	flying []*command
	faults int
	lossy  bool // time must pass before everything is consistent
	named  uint32
	latest uint64           // the largest token of a holder
	marks  map[string]*proc // the processes of owner strings that are marked as lingering
	wrong  error            // the invariant that is broken
	tale
}

// proc is a process.
type proc struct {
	lock        Lock
	listeners   []*listener
	arms        []arm
	reconciling []*reconciliation
	closed      bool
	order       uint32
	came        int // the number of callers, as the models count them
	keeper      keeperEars
	unkept      []*Acquisition // to be released
}

// keeperEars is the subscription of a process whose lock lingers.
type keeperEars struct {
	listens bool // it exists
	channel bool // the server has confirmed the channel, which outlives the subscription
	wanted  bool // a message is in flight
	tries   bool // from a caller that does not wait
}

// listener is the state of a queue's subscriptions and heartbeats.
type listener struct {
	queue   *Queue
	terms   *Terms
	listens bool
	heard   bool     // the subscription is confirmed
	news    bool     // a message is in flight
	told    bool     // a message to this process alone is in flight
	turns   []string // the messages in flight that notify waiters of their turn
	beats   bool     // the queue sends heartbeats
	look    bool     // the queue checks its heartbeats now
	due     time.Time
	over    bool
}

type arm struct {
	queue  *Queue // nil for a RemoveServed and a StartLinger
	due    time.Time
	linger bool
}

// reconciliation is an acquisition to reconcile.
type reconciliation struct {
	t      *Acquisition
	broken bool
}

type state uint8

const (
	idle state = iota
	awake
	sleeping
	asks
	leaving
	holding
	releasing
	done
)

// call is one Lock and its Unlock.
type call struct {
	role
	p       *proc
	state   state
	o       *Owner
	w       *Waiter
	t       *Acquisition // the acquisition of the call's requests
	h       *Hold
	due     time.Time
	order   uint32
	late    int
	quit    bool // the call was canceled, or may fail
	got     bool
	entered bool
	refused string // the owner that had the lock when a request of the call was refused last
	figure
}

type errand uint8

const (
	toAsk errand = iota
	toRelease
	toKeep
	toStrike
)

// command is a command or reply in flight.
type command struct {
	errand        errand
	p             *proc
	c             *call // the call that waits for the reply; nil if none does
	w             *Waiter
	t             *Acquisition
	name          string
	terms         *Terms
	queued        bool
	waiterTimeout time.Duration
	came          time.Time
	writer        string
	nextOwner     *Acquisition
	served        []string // for a release or a RemoveServed
	round         Round    // for a heartbeat
	listener      *listener
	sent          time.Time
	ran           bool
	reply         reply
	late          bool // the lease has expired by now
	copy          bool // no call receives the reply
	copied        bool // a duplicate of it is in flight
	ordinals
}

// The kinds of events.
type verb uint8

const (
	start verb = iota
	look
	leave
	cancel
	unlock
	answer
	answerAside
	run
	breakBefore
	breakAfter
	breakCopy
	timeOut
	cross
	settle
	confirm
	deliver
	drop
	sendHeartbeat
	tick
	pause
	lose
	expire
	shut
	hear
	want
	loseWant
	deafen
	unkeep
	verbs
)

var verbNames = [verbs]string{"start", "look", "leave", "cancel", "unlock", "answer", "answerAside", "run", "breakBefore", "breakAfter", "breakCopy", "timeOut", "cross", "settle", "confirm", "deliver", "drop", "beat", "tick", "pause", "lose", "expire", "close", "hear", "want", "loseWant", "deafen", "unkeep"}

// event is something that happens to a call or a command, for example.
type event struct {
	verb verb
	a, b uint8
}

func (e event) String() string { return fmt.Sprintf("%s %d.%d", verbNames[e.verb], e.a, e.b) }

func newWorld(c *cast) *world {
	w := &world{cast: c, now: time.Unix(1_800_000_000, 0), lossy: c.noPubSub, marks: make(map[string]*proc)}
	w.rules = Rules{Lease: leaseTime, Poll: pollTime, OpTimeout: opTime}
	for range c.procs {
		p := new(proc)
		p.keeper.channel = !c.noPubSub
		p.lock.Init(&w.rules, makerFunc(func(c *Terms) *Acquisition { return w.acquisition(p, c) }))
		w.procs = append(w.procs, p)
	}
	for i, r := range c.calls {
		if r.owner == 0 {
			r.owner = uint64(i + 1)
		}
		w.calls = append(w.calls, &call{role: r, p: w.procs[r.proc]})
		w.terms = append(w.terms, r.terms)
	}
	return w
}

func (w *world) acquisition(p *proc, c *Terms) *Acquisition {
	w.named++
	t := &Acquisition{Terms: c, Name: "p:" + strconv.Itoa(int(w.named)), Came: w.now}
	if c.Linger > 0 {
		w.marks[t.Name] = p
	}
	if c.MayShare() {
		t.Turn = make(chan struct{}, 1)
	}
	return t
}

func (w *world) fail(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf(format, args...)
	}
}

// act applies the effects of p's state.
func (w *world) act(p *proc) {
	p.lock.Drain(func(a Effect) {
		if a.Queue != nil && a.Queue.Ended() && a.Kind != Unsubscribe && a.Kind != Heartbeat {
			w.fail("action %d is about a queue that has ended", a.Kind)
		}
		switch a.Kind {
		case Wake:
			select {
			case a.Waiter.Wake <- struct{}{}:
			default:
			}
		case Release:
			if a.Acquisition.Lives() {
				w.fail("an acquisition that lives is given back")
			}
			w.reconcile(p, a.Acquisition, a.Acquisition.Uncertain())
		case Subscribe:
			e := p.listenerOf(a.Queue)
			if e.listens {
				w.fail("it listens twice")
			}
			e.listens, e.terms = true, a.Terms
		case Unsubscribe:
			e := p.listenerOf(a.Queue)
			if !e.listens {
				w.fail("a queue that does not listen stops listening")
			}
			*e = listener{queue: a.Queue, over: !e.beats, beats: e.beats, look: e.look, due: e.due}
		case Heartbeat:
			e := p.listenerOf(a.Queue)
			if !e.beats && a.Terms == nil {
				w.fail("no heartbeat has begun")
			}
			e.beats, e.look = true, true
		case StartTimer:
			if slices.ContainsFunc(p.arms, func(b arm) bool { return b.queue == a.Queue }) {
				w.fail("the timer of a queue is set twice")
			}
			p.arms = append(p.arms, arm{queue: a.Queue, due: a.Due})
		case StartLinger:
			if slices.ContainsFunc(p.arms, func(b arm) bool { return b.linger }) {
				w.fail("the timer of a lock that is kept is set twice")
			}
			p.arms = append(p.arms, arm{due: a.Due, linger: true})
		case ReleaseKept:
			if a.Acquisition.Lives() {
				w.fail("a kept acquisition that lives is released")
			}
			p.unkept = append(p.unkept, a.Acquisition)
		case RemoveServed:
			if !p.lock.removing || slices.ContainsFunc(p.arms, func(b arm) bool { return b.queue == nil && !b.linger }) {
				w.fail("served waiters are taken out of the queue twice")
			}
			p.arms = append(p.arms, arm{due: a.Due})
		case SubscribeOwner:
			if a.Waiter.Queued() == nil || a.Waiter.Of != nil {
				w.fail("a waiter that does not stand in the queue hears of its turn, or does so twice")
			}
			a.Waiter.Of = p
		case UnsubscribeOwner:
			if a.Waiter.Of == nil {
				w.fail("a waiter that hears nothing of its own stops doing so")
			}
			a.Waiter.Of = nil
		}
	})
}

func (p *proc) listenerOf(l *Queue) *listener {
	for _, e := range p.listeners {
		if e.queue == l && !e.over {
			return e
		}
	}
	e := &listener{queue: l}
	p.listeners = append(p.listeners, e)
	return e
}

func (w *world) reconcile(p *proc, t *Acquisition, broken bool) {
	for _, d := range p.reconciling {
		w.untold = w.untold || d.t != t && d.t.Name == t.Name // the models reconcile an owner string once
		if d.t == t {
			d.broken = d.broken || broken
			return
		}
	}
	p.reconciling = append(p.reconciling, &reconciliation{t, broken})
}

// publish sends a message to all subscribers of the lock.
func (w *world) publish() {
	for _, p := range w.procs {
		for _, e := range p.listeners {
			e.news = e.news || e.heard
		}
	}
}

// tell sends a message to one process.
func (w *world) tell(p *proc) {
	for _, e := range p.listeners {
		e.told = e.told || e.heard
	}
}

func (w *world) turn(next entry) {
	for _, e := range next.p.listeners {
		if e.heard && !slices.Contains(e.turns, next.name) {
			e.turns = append(e.turns, next.name)
		}
	}
}

func (w *world) stepAside() {
	for _, p := range w.procs {
		for _, e := range p.listeners {
			if e.heard {
				e.queue.YieldUntil(w.now.Add(asideTime))
				w.act(p)
			}
		}
	}
}

// begin starts a call.
func (w *world) begin(c *call) {
	p := &c.p.lock
	c.p.order++
	c.order = c.p.order
	w.tellStart(c, false)
	if c.terms.MayShare() {
		h := &Hold{Of: c}
		if t := p.Open(c.terms, w.now, w.now); t != nil && p.JoinOpen(t, h, c.owner) {
			w.tellJoin(c, t, false)
			w.holds(c, h)
			return
		}
	}
	c.o = p.Enter(c.terms.Reads, c.owner, true)
	c.o.Turn <- struct{}{}
	c.entered = true
	if t := p.Kept(); t != nil {
		if !w.now.Before(t.TokenDue()) && p.TakeKept(c.terms, c.o, w.now) == t {
			h := &Hold{Of: c}
			p.Add(t, c.o, h)
			w.holds(c, h)
			return
		}
		w.release(c.p, nil, p.EndKept())
	}
	first := true
	if c.how == tryLock {
		c.w, first = p.Try(c.terms, c.o, w.now)
	} else {
		c.w = p.Join(c.terms, c.o, w.now)
	}
	if c.t = c.w.Acquisition; c.t != nil {
		w.names(c)
	}
	if c.terms.MayShare() {
		c.w.Prepared = &Hold{Of: c}
	}
	if !first {
		c.quit = true
		w.part(c)
		return
	}
	w.awake(c)
}

// holds records that a call has its hold.
func (w *world) holds(c *call, h *Hold) {
	c.h, c.got = h, true
	if t := h.Acquisition; !c.terms.Reads {
		if t.Token() <= w.latest {
			w.fail("token %d after %d", t.Token(), w.latest)
		}
		w.latest = t.Token()
	}
	if c.w != nil && c.w.queue != nil && !c.w.once && c.terms.WaitPolicy == OnlyFirst {
		for _, other := range c.w.queue.waiters {
			if !other.once && w.callOf(other).order < c.order && other != c.w {
				w.fail("a waiter that came sooner is passed")
			}
		}
	}
	if len(h.Acquisition.Served()) > 0 {
		w.inTurn(h.Acquisition)
	}
	w.part(c)
}

// inTurn checks that t was handed off to the next waiter in the queue.
func (w *world) inTurn(t *Acquisition) {
	me := t.Served()[len(t.Served())-1]
	at := slices.IndexFunc(w.redis.queue, func(e entry) bool { return e.name == me })
	if at < 0 || w.redis.queue[at].late {
		return // its position has changed
	}
	for _, e := range w.redis.queue[:at] {
		waits := slices.ContainsFunc(w.calls, func(c *call) bool {
			return c.w != nil && c.w.queue != nil && c.w.Acquisition != nil && c.w.Acquisition.Name == e.name && !c.quit && c.h == nil
		})
		if waits && !slices.Contains(t.Served(), e.name) {
			w.fail("%q has the lock before %q, which came sooner", me, e.name)
		}
	}
}

func (w *world) callOf(x *Waiter) *call {
	for _, c := range w.calls {
		if c.w == x {
			return c
		}
	}
	return nil
}

// part ends a wait: the call leaves its queue.
func (w *world) part(c *call) {
	c.state = leaving
	if !w.cast.fine {
		w.parts(c)
	}
}

func (w *world) parts(c *call) {
	p := &c.p.lock
	if c.w != nil {
		w.tellDropped(c.w, nil)
		p.Quit(c.w, w.now)
		w.act(c.p)
		if c.w.Of != nil {
			w.fail("it has left, and hears of its turn")
		}
		c.w = nil
	}
	w.tellLeave(c)
	if c.entered {
		<-c.o.Turn
		c.o.Leave()
		c.entered = false
	}
	c.o, c.t, c.due, c.late = nil, nil, time.Time{}, 0
	c.state = done
	if c.h != nil {
		c.state = holding
	}
}

// awake wakes a call, which then uses Next.
func (w *world) awake(c *call) {
	c.state = awake
	w.act(c.p)
	if !w.cast.fine {
		w.look(c)
	}
}

// look makes a call use Next once.
func (w *world) look(c *call) {
	if c.p.closed && c.how != tryLock {
		w.cancel(c)
		return
	}
	select {
	case <-c.w.Wake:
	default:
	}
	p := &c.p.lock
	rode, own := c.w.joined, c.w.Acquisition
	step := p.Next(c.w, w.now)
	if c.w.Acquisition != own && step.Do == Send {
		w.anew(c)
	}
	switch step.Do {
	case Wait:
		w.tellRide(c, rode)
		c.state, c.due = sleeping, step.Due
	case Send:
		w.ask(c, step)
	case Take:
		c.t = step.Acquisition
		h := &Hold{Of: c}
		p.Add(c.t, c.o, h)
		w.tellTake(c)
		w.holds(c, h)
	case Join:
		w.tellJoin(c, step.Acquisition, false)
		p.Admit(c.w, step.Acquisition, w.now)
		w.holds(c, c.w.Prepared)
	case Share:
		c.rides = false
		w.holds(c, c.w.Prepared)
	case Refuse:
		if c.how == tryLock {
			w.giveUp(c)
			c.quit = true
			w.part(c)
			return
		}
		w.awake(c)
	case Fail:
		w.unanswered(c, errBroke)
	}
	w.act(c.p)
}

// ask sends the request of a call.
func (w *world) ask(c *call, step Step) {
	t := step.Acquisition
	if !t.Lives() {
		w.fail("a request for an acquisition that is over")
	}
	c.t = t
	k := &command{p: c.p, c: c, w: c.w, t: t, name: t.Name, terms: c.terms, queued: step.Ticket, came: t.Came, sent: w.now}
	lease := c.terms.Lease
	switch {
	case step.Ticket:
		lease, k.waiterTimeout = max(lease, offerTime), 10*pollTime
	case c.how == lock:
		k.waiterTimeout = c.terms.WaiterTimeout
	}
	if step.Sibling != nil {
		k.writer = step.Sibling.Name
	}
	c.p.lock.WillSend(t, lease, k.waiterTimeout)
	if c.terms.Linger > 0 {
		w.willLinger(c.p, t)
	}
	w.flying = append(w.flying, k)
	c.state = asks
	w.tellAsk(c, k)
}

// willLinger subscribes, and reports that a request for t is about to be sent.
func (w *world) willLinger(p *proc, t *Acquisition) {
	if e := &p.keeper; !e.listens {
		*e = keeperEars{listens: true, channel: e.channel}
	}
	p.lock.WillLinger(t, p.keeper.channel && w.marks[t.Name] == p)
}

// wants tells the process of the holder that a request is refused, if the holder's owner string is marked.
func (w *world) wants(k *command) {
	p := w.marks[w.redis.holder]
	if p != nil && p != k.p && p.keeper.listens && p.keeper.channel {
		p.keeper.wanted, p.keeper.tries = true, p.keeper.tries || k.errand == toAsk && k.waiterTimeout == 0
	}
}

// giveUp abandons the request of a call.
func (w *world) giveUp(c *call) {
	if c.w != nil {
		if hold := c.p.lock.GiveUp(c.w, c.t); hold != nil && c.h == nil {
			c.h, c.rides = hold, false // is released at once
		}
	} else if c.t != nil {
		c.p.lock.Fail(c.t)
	}
	w.act(c.p)
}

// cancel ends the wait of a call.
func (w *world) cancel(c *call) {
	w.tellCancel(c)
	for _, k := range w.flying {
		if k.c == c {
			w.tellUnheard(k)
			k.c = nil
			if c.w != nil {
				c.p.lock.Abandoned(c.w, k.t)
			}
		}
	}
	c.quit = true
	w.giveUp(c)
	w.part(c)
}

// unanswered makes a call retry later.
func (w *world) unanswered(c *call, err error) {
	p := &c.p.lock
	if c.how == tryLock {
		w.giveUp(c)
		c.quit = true
		w.part(c)
		return
	}
	c.w.Failed(err)
	p.Retry(c.w, w.now.Add(pauseTime))
	w.awake(c)
}

// unlock releases the hold of c.
func (w *world) unlock(c *call) {
	p, h := &c.p.lock, c.h
	t := h.Acquisition
	c.h, c.state = nil, done
	left := p.Unlock(t, h, w.now, func(t *Acquisition) bool { return w.pass(c.p, t) })
	switch left {
	case NextHolds:
		w.tellPass(c)
	case SharersHold:
		w.tellUnlockShared(c)
	}
	w.act(c.p)
	if left == NobodyHolds {
		w.release(c.p, c, t)
	}
}

// pass hands off the lease of an acquisition.
func (w *world) pass(p *proc, t *Acquisition) bool {
	if w.cast.keeps || t.Lingers() && !(p.keeper.listens && p.keeper.channel) {
		return false
	}
	next := &Acquisition{Terms: t.Terms, Name: t.Name}
	next.Follows(t)
	p.lock.HandOffTo(t, next)
	return true
}

// release sends the release of an acquisition that has ended.
func (w *world) release(p *proc, c *call, t *Acquisition) {
	k := &command{errand: toRelease, p: p, c: c, t: t, name: t.Name, terms: t.Terms, sent: w.now, served: slices.Clone(t.Served())}
	if t.Terms.HandsOff {
		_, k.nextOwner = p.lock.NextOwner(t, offerTime, 10*pollTime, time.Time{})
	}
	w.flying = append(w.flying, k)
	w.tellRelease(c, k)
	if c != nil {
		c.state = releasing
	}
	w.act(p)
}

// carryOut executes a command in Redis.
func (w *world) carryOut(k *command, aside bool) {
	if k.ran {
		return
	}
	switch k.errand {
	case toAsk:
		k.reply = w.redis.ask(w, k)
	case toRelease:
		for _, p := range w.procs {
			for _, t := range p.lock.granted() {
				if t.Name == k.name {
					w.fail("the lock that %q still has is released", k.name)
				}
			}
		}
		k.reply = w.redis.release(w, k, aside)
	case toKeep:
		k.reply = w.redis.keep(w, k)
	case toStrike:
		w.redis.removeServed(k)
	}
	w.tellRun(k)
}

// granted returns the acquisitions that hold the lock in p.
func (p *Lock) granted() (all []*Acquisition) {
	for _, t := range append(p.Held(), p.Offered()...) {
		if t.Lives() && (t.phase == Held || t.phase == Offered || t.phase == Kept) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *Acquisition) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// answered delivers the reply to a command, or an error if broken.
func (w *world) answered(k *command, broken, mayHaveRun bool) {
	w.flying = slices.DeleteFunc(w.flying, func(other *command) bool { return other == k })
	w.tellAnswer(k, broken)
	switch k.errand {
	case toAsk:
		w.answeredRequest(k, broken, mayHaveRun)
	case toRelease:
		w.answeredRelease(k, broken)
	case toKeep:
		w.answeredBeat(k, broken, mayHaveRun)
	case toStrike:
		k.p.lock.ServedRemoved(k.t, len(k.served), !broken, w.now)
	}
	w.act(k.p)
}

func (w *world) answeredRequest(k *command, broken, mayHaveRun bool) {
	p, c := &k.p.lock, k.c
	if c == nil { // late
		w.tellLate(k)
		wrote := k.reply.granted || k.waiterTimeout > 0
		if p.LateReply(k.w, k.t, !broken && wrote || broken && mayHaveRun) {
			w.reconcile(k.p, k.t, broken)
		}
		return
	}
	switch {
	case broken:
		p.Failed(c.w, k.t, mayHaveRun, errBroke)
		w.unanswered(c, errBroke)
	case k.reply.granted:
		w.granted(k)
	default:
		c.refused = k.reply.holder
		own := c.terms.WaitPolicy == FairQueue && w.cast.keeps
		was := c.w.queued.as
		p.Refused(c.w, k.t, Refusal{Sent: k.sent, Left: k.reply.left, NoPubSub: w.cast.noPubSub, Own: own, Trace: k.waiterTimeout > 0}, w.now)
		w.tellEarly(c.p, c.w, was)
		if c.how == tryLock {
			w.giveUp(c)
			c.quit = true
			w.part(c)
			return
		}
		w.awake(c)
	}
}

func (w *world) granted(k *command) {
	p, c, h := &k.p.lock, k.c, &Hold{Of: k.c}
	w.tellDropped(c.w, k.t)
	var f *sharedRequest
	if c.w != nil {
		f = c.w.own
	}
	switch p.Granted(c.w, k.t, c.o, h, k.reply.token, k.late, w.now) {
	case Holds:
		w.tellHold(c)
		w.tellRiders(f)
		w.follow(k, k.t)
		w.act(k.p)
		w.holds(c, h)
	case TooLate:
		if c.late++; c.late > 2 {
			w.giveUp(c)
			w.tellTired(c)
			c.quit = true
			w.part(c)
			return
		}
		p.Restart(c.w, c.t, w.now)
		w.anew(c)
		w.awake(c)
	case Shut:
		w.giveUp(c)
		c.quit = true
		w.part(c)
	}
}

// anew records that a call has a new acquisition, unless it uses the ticket of its queue.
func (w *world) anew(c *call) {
	if c.t = c.w.Acquisition; c.t != nil {
		w.tellStart(c, true)
		w.names(c)
	}
}

func (w *world) answeredRelease(k *command, broken bool) {
	p := &k.p.lock
	if k.c != nil {
		k.c.state = done
	}
	if k.nextOwner != nil {
		i := ReleaseResult{Broke: broken, Done: !broken && !k.reply.gone, Sent: k.sent, Late: k.late}
		if !broken {
			i.Token = k.reply.token
		}
		if k.reply.aside {
			i.Aside = w.now.Add(asideTime)
		}
		if p.OnRelease(k.nextOwner, i, w.now) {
			w.follow(k, k.nextOwner)
		}
	}
	if !broken && k.nextOwner == nil && k.p.keeper.listens && p.YieldsAfter(k.t, w.cast.aside, w.now) {
		p.YieldUntil(k.terms, w.now.Add(asideTime))
	}
	p.NoLongerHeld(k.t)
	switch {
	case broken:
		w.reconcile(k.p, k.t, true)
	default:
		if k.nextOwner == nil {
			p.Free(k.terms)
		}
		if k.t.Uncertain() {
			w.reconcile(k.p, k.t, true)
		}
	}
}

// follow records in p's state which waiters are next in the queue after t.
func (w *world) follow(k *command, t *Acquisition) {
	var numbers []string
	for _, name := range k.reply.next {
		numbers = append(numbers, strings.TrimPrefix(name, "p:"))
	}
	k.p.lock.Follow(t, strings.Join(numbers, " "), len("p:"))
}

func (w *world) answeredBeat(k *command, broken, mayHaveRun bool) {
	p, l := &k.p.lock, k.listener.queue
	if broken {
		l.HeartbeatDone(k.round, errBroke)
	} else {
		l.HeartbeatDone(k.round, nil)
	}
	for i, q := range k.round.Waiters {
		was := q.Waiter.queued.as
		switch {
		case !q.Enters:
		case broken:
			p.NotEntered(q, mayHaveRun, errBroke)
		case p.Entered(q, w.cast.keeps, k.sent, w.now):
			w.reconcile(k.p, q.As, false)
		default:
			w.tellEarly(k.p, q.Waiter, was)
		}
		if !broken && k.reply.turns[i] {
			w.tellTurn(q)
			p.Wakeup(q.Waiter)
		}
	}
	if broken {
		return
	}
	if k.reply.keep != 0 {
		l.HeartbeatIn(k.round, w.now, k.reply.keep)
	}
}

// lost ends an acquisition, because its lease expired or the server no longer has it.
func (w *world) lost(p *proc, t *Acquisition) {
	ended, before := p.lock.End(t, Lost)
	if !before.Lives() {
		return
	}
	w.tellLose(t, ended)
	for _, h := range ended {
		h.Of.(*call).ended(h)
	}
	p.lock.NoLongerHeld(t)
	p.lock.Free(t.Terms)
	w.reconcile(p, t, t.Uncertain())
	w.act(p)
}

// ended handles a hold that ended before the call released it.
func (c *call) ended(h *Hold) {
	if c.h != h {
		return
	}
	if c.h = nil; c.state == holding {
		c.state = done
	}
}

// about reports whether a command may have acquired the lock or a queue position for t.
func (k *command) about(t *Acquisition) bool {
	return k.name == t.Name || k.nextOwner == t || slices.ContainsFunc(k.round.Waiters, func(q Queuing) bool { return q.Enters && q.As == t })
}

// reconciles executes one step of reconciling.
func (w *world) reconciles(p *proc, d *reconciliation) {
	p.reconciling = slices.DeleteFunc(p.reconciling, func(other *reconciliation) bool { return other == d })
	t := d.t.Latest()
	if t != d.t && t.Lives() {
		return
	}
	k := &command{errand: toRelease, p: p, t: t, name: t.Name, terms: t.Terms, served: t.Served()}
	holds := t.Reconciling()
	if holds > 0 {
		return
	}
	w.tellSettle(k)
	w.carryOut(k, false)
	w.tellSettled(k)
	p.lock.Free(t.Terms)
	w.act(p)
	if d.broken && slices.ContainsFunc(w.flying, func(k *command) bool { return !k.ran && k.about(t) }) {
		w.reconcile(p, t, true) // it checks again
	}
}

// closes closes the state of p.
func (w *world) closes(p *proc) {
	p.closed = true
	held := p.lock.Close()
	for _, t := range held {
		ended, before := p.lock.End(t, Closed)
		w.act(p)
		for _, h := range ended {
			h.Of.(*call).ended(h)
		}
		if before != Released {
			w.release(p, nil, t)
		}
	}
	w.act(p)
}

// passes lets time pass.
func (w *world) passes(d time.Duration) {
	w.now = w.now.Add(d)
	for _, p := range w.procs {
		for i := 0; i < len(p.arms); {
			if a := p.arms[i]; !w.now.Before(a.due) {
				p.arms = slices.Delete(p.arms, i, i+1)
				if a.queue != nil {
					a.queue.TimerFired()
				} else if a.linger {
					p.lock.LingerOver(w.now)
				} else if t, served := p.lock.RemoveServed(w.now); t != nil {
					k := &command{errand: toStrike, p: p, t: t, served: served, terms: t.Terms, sent: w.now}
					w.flying = append(w.flying, k)
					if w.tellStrike(k) {
						w.carryOut(k, false)
						w.answered(k, false, false)
					}
				}
				w.act(p)
			} else {
				i++
			}
		}
		for _, e := range p.listeners {
			if e.beats && !w.now.Before(e.due) {
				e.look = true
			}
		}
	}
	for _, c := range w.calls {
		if c.state == sleeping && !c.due.IsZero() && !w.now.Before(c.due) {
			c.state = awake
		}
	}
}

// next returns the time until something happens by itself, or a negative number if nothing does.
func (w *world) next() time.Duration {
	first := time.Time{}
	at := func(due time.Time) {
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	for _, c := range w.calls {
		if c.state == sleeping {
			at(c.due)
		}
	}
	for _, p := range w.procs {
		for _, a := range p.arms {
			if a.queue == nil || !a.queue.Ended() {
				at(a.due)
			}
		}
		for _, e := range p.listeners {
			if e.beats && !e.over {
				at(e.due)
			}
		}
	}
	if first.IsZero() {
		return -1
	}
	return max(first.Sub(w.now), 0)
}

// beats handles the heartbeats of a queue once.
func (w *world) heartbeats(p *proc, e *listener) {
	e.look = false
	if e.over || e.queue.Ended() {
		e.beats, e.over = false, true
		return
	}
	sent := entering(e.queue)
	due, round := e.queue.NextHeartbeat(w.now)
	e.due = due
	if len(round.Waiters) == 0 {
		return
	}
	k := &command{errand: toKeep, p: p, listener: e, round: round, terms: e.terms, sent: w.now}
	w.flying = append(w.flying, k)
	w.tellRound(k, sent)
}
