package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/send"
	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// desk is where the callers of a limiter in this process stand. For each key one question
// is under way at a time. Callers who come meanwhile go together in the next
// one, first come first served; so the number of commands does not grow with that of the callers. The questions of
// several keys travel in one pipeline, if more keys are asked for than there are senders.
//
//	caller ── ask ──▶ lane.next ──▶ group.ready ──▶ a question under way ──▶ its answer
//	            │         │                                 │
//	            │         │                                 └ the caller has left: what it got is refunded
//	            │         └ the caller leaves: nothing was sent for it
//	            └ refused here: by an answer that still holds, or while a question is overdue
type desk struct {
	send   *send.Sender // set once
	sliced bool         // set once: it is a cluster

	mu      sync.Mutex
	lanes   map[laneID]*lane     // those with a question under way
	refused map[laneID][]refusal // what is known of a key, by how much was refused
	sweep   int                  // how many refusals there are before those that are over are removed
	groups  [groups]group
}

// laneID is what callers who can go together have in common.
type laneID struct {
	key   string
	rules string
}

// group is the keys of neighbouring slots. The mutex of the desk guards it.
type group struct {
	ready   []*lane // who goes next, first come first served
	senders int     // how many goroutines send
	overdue int     // how many questions are overdue
}

// lane is a key that callers ask about. The mutex of the desk guards it.
type lane struct {
	id     laneID
	group  *group
	rules  luascripts.LimitRules
	next   []*ask // who comes with the next question
	isLate bool   // the question under way is overdue
}

// ask is what one caller wants.
type ask struct {
	q    luascripts.LimitQuestion // of one caller
	done chan struct{}            // closed when the rest is set
	r    answer
	err  error

	left bool // guarded by the mutex of the desk: the caller has left
	kept bool // guarded by it, too: and was let pass, so what it gets is not refunded
}

// answer is a reply for one caller.
type answer struct {
	luascripts.LimitReply
	at   int64     // by the server's clock, in µs
	sent time.Time // the question
}

// refusal is what is known of a key without asking.
type refusal struct {
	least  int64     // so many units cannot be had
	until  time.Time // before this
	forget time.Time // when it is not believed any more
	r      answer
}

const (
	// A cluster has 16,384 slots. As a rule, neighbours are at one node, so a node that is silent
	// makes the groups of its slots overdue, and hardly any others.
	groups   = 64
	perGroup = 16384 / groups

	// maxSenders is how many pipelines of a group are under way, and maxLanes of how many keys are the
	// questions in one.
	maxSenders = 8
	maxLanes   = 16

	// maxQuestions is how many questions travel in one command. Equal ones count as one.
	maxQuestions = 64

	// believed is for how long a refusal is believed. A refund elsewhere, or a key that
	// somebody deletes, is noticed after that.
	believed = time.Second

	// remembered is of how many keys refusals are remembered, and sizes of how many different
	// numbers of units of a key.
	remembered = 100_000
	sizes      = 4
)

func newDesk(s *send.Sender) *desk {
	return &desk{
		send:    s,
		sliced:  s.Redis != nil && s.Redis.Mode() == rueidis.ClientModeCluster,
		lanes:   make(map[laneID]*lane),
		refused: make(map[laneID][]refusal),
		sweep:   1024,
	}
}

// ask asks for what one caller of a limiter wants, and returns the answer.
func (d *desk) ask(ctx context.Context, lim *Limiter, id laneID, q luascripts.LimitQuestion) (answer, error) {
	if err := ctx.Err(); err != nil {
		return answer{}, err
	}
	q.Times = 1
	a := &ask{q: q, done: make(chan struct{})}
	g := &d.groups[d.groupOf(id.key)]

	d.mu.Lock()
	if r, ok := d.knows(id, q); ok && q.Least <= lim.most {
		d.mu.Unlock()
		return r, nil
	}
	if g.overdue > 0 {
		d.mu.Unlock()
		return answer{}, fmt.Errorf("%w: a question before this one is overdue", lock.ErrUnavailable)
	}
	l := d.lanes[id]
	if l == nil {
		if g.senders < maxSenders {
			if err := d.send.Go(func() { d.run(g) }); err != nil {
				d.mu.Unlock()
				return answer{}, err
			}
			g.senders++
		}
		l = &lane{id: id, group: g, rules: lim.rules}
		d.lanes[id] = l
		g.ready = append(g.ready, l)
	}
	l.next = append(l.next, a)
	d.mu.Unlock()

	timer := time.NewTimer(lim.policy.after)
	defer timer.Stop()
	var err error
	late := false
	select {
	case <-a.done:
		return a.r, a.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err, late = send.Silent(lim.policy.after), true
	case <-d.send.Closing():
		err = lock.ErrClosed
	}
	return d.leave(l, a, err, late, late && lim.policy.mode == open)
}

// leave ends the waiting of a caller with err, unless its answer has come just now.
func (d *desk) leave(l *lane, a *ask, err error, late, keep bool) (answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-a.done:
		return a.r, a.err
	default:
	}
	a.left, a.kept = true, keep
	if i := slices.Index(l.next, a); i >= 0 {
		l.next = slices.Delete(l.next, i, i+1) // it was never sent
	}
	// Whoever waited for so long came before the question under way or while it was.
	if late && !l.isLate {
		l.isLate = true
		l.group.overdue++
	}
	return answer{}, err
}

// flight is the question of one lane.
type flight struct {
	lane *lane
	asks [][]*ask // by the questions of the call
}

// run asks the questions of a group until there is none.
func (d *desk) run(g *group) {
	for {
		d.mu.Lock()
		if len(g.ready) == 0 {
			g.senders--
			d.mu.Unlock()
			return
		}
		var flights []flight
		var calls []luascripts.LimitCall
		n := min(len(g.ready), maxLanes)
		for _, l := range g.ready[:n] {
			if len(l.next) == 0 { // all have left
				d.end(l)
				continue
			}
			asks, questions := together(&l.next)
			flights = append(flights, flight{l, asks})
			calls = append(calls, luascripts.LimitCall{Key: l.id.key, Rules: l.rules, Questions: questions})
		}
		g.ready = append([]*lane(nil), g.ready[n:]...)
		d.mu.Unlock()
		if len(flights) == 0 {
			continue
		}
		sent := time.Now()
		for i, a := range luascripts.AskLimits(context.Background(), d.send.Redis, calls) {
			if a.Err = send.Told(a.Err); a.Err == nil && a.Verdict == luascripts.Foreign {
				a.Err = lock.ErrForeignKey
			}
			d.answer(flights[i], calls[i].Questions, a, sent)
		}
	}
}

// end ends a lane that nobody waits in. The mutex is held.
func (d *desk) end(l *lane) {
	d.onTime(l)
	delete(d.lanes, l.id)
}

// together takes from next who goes in one command, in the order in which they came, and returns
// them by question.
func together(next *[]*ask) (asks [][]*ask, questions []luascripts.LimitQuestion) {
	n := 0
	for _, a := range *next {
		last := len(questions) - 1
		single := luascripts.LimitQuestion{}
		if last >= 0 {
			single = questions[last]
			single.Times = 1
		}
		switch all := a.q.Units > 0 && a.q.Least == a.q.Units && a.q.Wait == 0; {
		case all && last >= 0 && single == a.q:
			questions[last].Times++
			asks[last] = append(asks[last], a)
		case last+1 == maxQuestions:
			*next = (*next)[n:]
			return asks, questions
		default:
			questions = append(questions, a.q)
			asks = append(asks, []*ask{a})
		}
		n++
	}
	*next = nil
	return asks, questions
}

// answer gives each caller its answer.
func (d *desk) answer(f flight, questions []luascripts.LimitQuestion, a luascripts.LimitAnswer, sent time.Time) {
	var back []answer // what is refunded
	of := answer{at: a.At, sent: sent}
	l := f.lane
	d.mu.Lock()
	d.onTime(l)
	for i, callers := range f.asks {
		for j, c := range callers {
			if c.err = a.Err; a.Err == nil {
				c.r = of
				c.r.LimitReply = share(a.Replies[i], questions[i], j)
				if c.left && !c.kept && c.r.Taken > 0 {
					back = append(back, c.r)
				}
			}
			close(c.done)
		}
	}
	if a.Err == nil {
		// The last question says how things stand.
		last := len(questions) - 1
		of.LimitReply = a.Replies[last]
		d.learn(l.id, questions[last], of)
	}
	if len(l.next) > 0 {
		l.group.ready = append(l.group.ready, l)
	} else {
		d.end(l)
	}
	d.mu.Unlock()
	if back == nil {
		return
	}
	d.send.Behind(func() {
		for _, r := range sum(back) {
			// It may fail: then time gives the units back.
			_, _ = luascripts.RefundUnits(context.Background(), d.send.Redis, l.id.key, l.rules, r.Taken, r.at+r.Delay.Microseconds())
		}
	})
}

// onTime says that no question of l is overdue any more. The mutex is held.
func (d *desk) onTime(l *lane) {
	if l.isLate {
		l.isLate = false
		l.group.overdue--
	}
}

// share returns what the j-th of several callers with the same question gets: the first
// of them get all they want, the others nothing.
func share(r luascripts.LimitReply, q luascripts.LimitQuestion, j int) luascripts.LimitReply {
	if q.Times == 1 {
		return r
	}
	served := int(r.Taken / q.Units)
	if j < served {
		r.Taken, r.Retry = q.Units, 0
		r.Remaining += q.Units * int64(served-1-j)
	} else {
		r.Taken = 0
	}
	return r
}

// sum puts together what was taken at the same time.
func sum(back []answer) (sums []answer) {
	for _, r := range back {
		if n := len(sums); n > 0 && r.Delay == 0 && sums[n-1].Delay == 0 {
			sums[n-1].Taken += r.Taken
		} else {
			sums = append(sums, r)
		}
	}
	return sums
}

// knows returns the answer to a question that a refusal answers: nobody can have
// as much before its time. The mutex is held.
func (d *desk) knows(id laneID, q luascripts.LimitQuestion) (answer, bool) {
	if q.Units == 0 {
		return answer{}, false
	}
	now := time.Now()
	for _, known := range d.refused[id] {
		left := known.until.Sub(now)
		// Somebody who wants more has to come back later than that.
		if known.least != q.Least || q.Wait >= left || !now.Before(known.forget) {
			continue
		}
		r := known.r
		r.Taken, r.Delay = 0, 0
		r.Retry = left
		r.Reset = max(left, r.Reset-now.Sub(r.sent))
		return r, true
	}
	return answer{}, false
}

// learn remembers a refusal. The mutex is held.
func (d *desk) learn(id laneID, q luascripts.LimitQuestion, r answer) {
	// A reservation is refused what is too late for it, not what cannot be had at once.
	if r.Retry <= 0 || q.Wait > 0 || r.Taken > 0 && q.Times == 1 {
		return
	}
	over := func(known refusal) bool { return !r.sent.Before(known.forget) || known.least == q.Least }
	if len(d.refused) >= d.sweep {
		for id, all := range d.refused {
			if !slices.ContainsFunc(all, func(known refusal) bool { return !over(known) }) {
				delete(d.refused, id)
			}
		}
		d.sweep = max(1024, 2*len(d.refused))
		if len(d.refused) >= remembered {
			return
		}
	}
	// The server looked after the question was sent.
	until := r.sent.Add(r.Retry)
	forget := r.sent.Add(believed)
	if until.Before(forget) {
		forget = until
	}
	all := slices.DeleteFunc(d.refused[id], over)
	if len(all) == sizes {
		all = all[1:]
	}
	d.refused[id] = append(all, refusal{least: q.Least, until: until, forget: forget, r: r})
}

// forget forgets what a refusal said of a key.
func (d *desk) forget(id laneID) {
	d.mu.Lock()
	delete(d.refused, id)
	d.mu.Unlock()
}

// groupOf returns the group of a key's slot.
func (d *desk) groupOf(key string) int {
	if !d.sliced {
		return 0
	}
	return int(slots.OfKey(d.send.Redis, key)) / perGroup
}
