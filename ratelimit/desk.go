package ratelimit

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/internal/slots"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// desk collects the calls of all callers of a limiter in this process. For each key, one command is in flight at a
// time. The next command carries all callers that arrive in the meantime, first-come, first-served, so the number of
// commands does not grow with the number of callers. If there are more keys than senders, one pipeline carries the
// requests for several keys; without a cluster, one script call does.
//
//	caller ── ask ──▶ lane.next ──▶ group.ready ──▶ a request in flight ──▶ its reply
//	            │         │                                 │
//	            │         │                                 └ the caller has left: a refund goes to the front of lane.next
//	            │         └ the caller leaves: nothing was sent for it
//	            └ rejected here: by a cached rejection, or while a request is overdue
//
// A refund and a reset take the same path, so the next call for the key cannot overtake them. A rejection of a request that
// was sent before them is not cached.
type desk struct {
	send   *command.Sender // set once
	sliced bool            // set once: Redis is a cluster
	asks   sync.Pool       // *ask that is no longer referenced
	unused sync.Pool       // *lane that is no longer referenced

	mu      sync.Mutex
	lanes   map[string]*lane     // by key: those with a request in flight
	refused map[string][]refusal // of each key
	sweep   int                  // number of keys in refused at which the desk removes expired rejections
	groups  [groups]group
}

// bucketID identifies callers that share a count: the same key under the same limits. One command can carry them.
type bucketID struct {
	key   string
	rules string
}

// group holds the keys of neighboring slots. The mutex of the desk guards it.
type group struct {
	ready   []*lane // the lanes to send next, first-come, first-served
	senders int     // number of sending goroutines
	overdue int     // number of overdue requests
}

// lane is a key with pending callers. The mutex of the desk guards it.
type lane struct {
	key    string
	group  *group
	next   []*ask // callers for the next requests
	under  []*ask // callers of the request in flight, who have the same limits
	isLate bool   // the request in flight is overdue
}

// ask is the call of one caller, or a refund for a caller that left.
type ask struct {
	done     chan struct{} // set once; cap 1: receives a token when r and err are set
	patience *time.Timer   // set once; the caller's timeout

	id    bucketID
	rules luascripts.LimitRules
	q     luascripts.LimitRequest // of this caller alone
	r     answer
	err   error

	left bool // guarded by the mutex of the desk: the caller has left
	kept bool // guarded by the same mutex: the Policy admitted the caller, so its permits are not refunded
}

// overdue is the error of a caller whose reply is overdue. The request is in flight until ask.done has a token.
type overdue struct {
	error
	ask *ask
}

// Unwrap returns the underlying error.
func (e overdue) Unwrap() error { return e.error }

// answer is a reply for one caller.
type answer struct {
	luascripts.LimitReply
	at   int64     // by the server's clock, in µs
	sent time.Time // when the request was sent
}

// refusal is a cached rejection that decides later calls without a request.
type refusal struct {
	rules  string    // rules of the rejected caller
	least  int64     // this number of permits cannot be taken
	until  time.Time // before this time
	forget time.Time // the cached rejection is used until then
	r      answer
}

const (
	// groups is the number of groups on a cluster, which has 16,384 slots. Neighboring slots are usually on
	// one node, so an unresponsive node makes the groups of its slots overdue, and hardly any others.
	groups   = 64
	perGroup = 16384 / groups

	// maxSenders is the maximum number of pipelines of a group in flight. maxLanes is the maximum
	// number of keys in one pipeline.
	maxSenders = 8
	maxLanes   = 32

	// maxRequests is the maximum number of requests in one command. Equal requests count as one.
	maxRequests = 64

	// believed is how long the desk uses a cached rejection. After that time it detects a refund by
	// another process, or a deleted key.
	believed = time.Second

	// remembered is the maximum number of keys with cached rejections. sizes is the maximum per key,
	// for different numbers of permits or different limits.
	remembered = 100_000
	sizes      = 4
)

func newDesk(s *command.Sender) *desk {
	return &desk{
		send:    s,
		sliced:  s.Redis != nil && s.Redis.Mode() == rueidis.ClientModeCluster,
		lanes:   make(map[string]*lane),
		refused: make(map[string][]refusal),
		sweep:   1024,
		asks: sync.Pool{New: func() any {
			return &ask{done: make(chan struct{}, 1), patience: time.NewTimer(0)}
		}},
		unused: sync.Pool{New: func() any { return new(lane) }},
	}
}

// ask sends the request of one caller, and returns the reply. A refund is sent even if its caller leaves.
func (d *desk) ask(ctx context.Context, lim *Limiter, id bucketID, q luascripts.LimitRequest) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, command.Ended(ctx, 0)
	}
	d.mu.Lock()
	if q.TakesOrReads() {
		if r, ok := d.knows(id, q); ok && q.Least <= lim.most {
			d.mu.Unlock()
			return r, nil
		}
		if d.groups[d.groupOf(id.key)].overdue > 0 {
			d.mu.Unlock()
			return answer{}, command.Final{Err: fmt.Errorf("%w: an earlier command is overdue", lock.ErrUnavailable)}
		}
	}
	err := d.send.Enter()
	if err != nil {
		d.mu.Unlock()
		return answer{}, err
	}
	a := d.join(id, lim.rules, q)
	d.send.Done()
	d.mu.Unlock()

	a.patience.Reset(lim.policy.after)
	began, late := time.Now(), false
	select {
	case <-a.done:
		r, err := a.r, a.err
		a.patience.Stop()
		a.r, a.err = answer{}, nil
		d.asks.Put(a)
		if err != nil { // mutant: always: speed
			err = d.send.Foreign(ctx, err, command.Key{Name: id.key})
		}
		return r, err
	case <-ctx.Done():
		err = d.send.Failed(ctx, began, command.ErrOf(ctx))
	case <-a.patience.C:
		err, late = d.send.Explain(command.NoReply{After: lim.policy.after}), true
	case <-d.send.Closing():
		err = lock.ErrClosed
	}
	return d.leave(a, err, late, late && lim.policy.mode == open)
}

// undo returns the permits of a caller that left its Wait. It does not wait for the reply; if the refund fails, the permits are
// refilled over time. The caller has entered the sender, which may be closing.
func (d *desk) undo(id bucketID, rules luascripts.LimitRules, units, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.join(id, rules, luascripts.RefundRequest(units, at))
}

// newAsk returns an ask that is not in a lane yet.
func (d *desk) newAsk(id bucketID, rules luascripts.LimitRules, q luascripts.LimitRequest) *ask {
	a := d.asks.Get().(*ask)
	a.id, a.rules, a.q = id, rules, q
	return a
}

// join puts an ask at the end of the lane of its key, and returns it. The mutex is held, and the caller has entered the sender.
func (d *desk) join(id bucketID, rules luascripts.LimitRules, q luascripts.LimitRequest) *ask {
	if !q.TakesOrReads() {
		d.forget(id.key)
	}
	a := d.newAsk(id, rules, q)
	l := d.lanes[id.key]
	if l == nil {
		g := &d.groups[d.groupOf(id.key)]
		if g.senders < maxSenders {
			g.senders++
			d.send.Go(func() { d.run(g) })
		}
		l = d.unused.Get().(*lane)
		l.key, l.group = id.key, g
		d.lanes[id.key] = l
		g.ready = append(g.ready, l)
	}
	l.next = append(l.next, a)
	return a
}

// leave ends the wait of a caller with err, unless its reply has just arrived.
func (d *desk) leave(a *ask, err error, late, keep bool) (answer, error) {
	a.patience.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-a.done:
		return a.r, a.err
	default:
	}
	l := d.lanes[a.id.key]
	a.left, a.kept = true, keep
	if i := slices.Index(l.next, a); i >= 0 && a.q.Units >= 0 {
		l.next = slices.Delete(l.next, i, i+1) // nothing was sent for this caller
	} else if late {
		err = overdue{err, a}
	}
	// A caller whose whole timeout passed arrived before the request in flight was sent, or while it was in
	// flight. That request is therefore overdue.
	if late && !l.isLate {
		l.isLate = true
		l.group.overdue++
	}
	return answer{}, err
}

// run sends the requests of a group until there are none left.
func (d *desk) run(g *group) {
	for {
		d.mu.Lock()
		if len(g.ready) == 0 {
			g.senders--
			d.mu.Unlock()
			return
		}
		n := min(len(g.ready), maxLanes)
		lanes := make([]*lane, 0, n)
		calls := make([]luascripts.LimitCall, 0, n)
		requests := make([]luascripts.LimitRequest, 0, n) // of all calls; most calls have one
		for _, l := range g.ready[:n] {
			if len(l.next) == 0 { // all callers have left
				d.end(l)
				continue
			}
			first := len(requests)
			requests = l.board(requests)
			lanes = append(lanes, l)
			calls = append(calls, luascripts.LimitCall{Key: l.key, Rules: l.under[0].rules, Requests: requests[first:]})
		}
		g.ready = append([]*lane(nil), g.ready[n:]...)
		d.mu.Unlock()
		if len(lanes) == 0 {
			continue
		}
		sent := time.Now()
		again := func(err error) bool { return resend(err, time.Since(sent)) }
		for i, a := range luascripts.SendLimits(context.Background(), d.send.Redis, calls, !d.sliced, again) {
			if a.Err = d.send.Explain(command.DetectClosed(context.Background(), d.send.Redis, a.Err)); a.Err == nil && a.Verdict == luascripts.Foreign {
				a.Err = lock.ErrWrongType
			}
			d.answer(lanes[i], calls[i].Requests, a, sent)
		}
		if len(lanes) > 1 || calls[0].Requests[0].Times > 1 {
			runtime.Gosched() // let the callers run first, so that their next requests join the next pipeline
		}
	}
}

// resend reports whether a call for several keys is repeated separately for each key after err. took is the time until err was
// returned. A proxy can send an error reply after the server executed the call, and rueidis can have sent the call twice.
func resend(err error, took time.Duration) bool {
	f := retry.FaultOf(err)
	return !f.Temporary || !f.MayHaveRun() && !command.Resent(took)
}

// end removes a lane without callers. The mutex is held.
func (d *desk) end(l *lane) {
	d.onTime(l)
	delete(d.lanes, l.key)
	*l = lane{next: l.next[:0], under: l.under[:0]}
	d.unused.Put(l)
}

// board moves the callers for the next command from l.next to l.under, first-come, first-served. They are the callers with the
// same limits as the first one, up to a refund or reset by a caller with other limits. It appends their requests to requests.
// Each request stands for the next Times callers in l.under. The mutex is held.
func (l *lane) board(requests []luascripts.LimitRequest) []luascripts.LimitRequest {
	rules, most := l.next[0].id.rules, len(requests)+maxRequests
	l.under = l.under[:0]
	stay, full := l.next[:0], false
	for _, a := range l.next {
		if full || a.id.rules != rules {
			full = full || !a.q.TakesOrReads()
			stay = append(stay, a)
			continue
		}
		last := len(requests) - 1
		single := luascripts.LimitRequest{}
		if len(l.under) > 0 {
			single = requests[last]
			single.Times = 1
		}
		all := a.q.Units > 0 && a.q.Least == a.q.Units && a.q.Wait == 0
		if all && len(l.under) > 0 && single == a.q {
			requests[last].Times++
		} else if len(requests) == most {
			full = true
			stay = append(stay, a)
			continue
		} else {
			requests = append(requests, a.q)
		}
		l.under = append(l.under, a)
	}
	clear(l.next[len(stay):])
	l.next = stay
	return requests
}

// answer passes each caller its reply.
func (d *desk) answer(l *lane, requests []luascripts.LimitRequest, a luascripts.LimitCallReply, sent time.Time) {
	var back []answer // replies whose permits are refunded
	of := answer{at: a.At, sent: sent}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onTime(l)
	id, rules := l.under[0].id, l.under[0].rules
	n := 0
	for i, q := range requests {
		callers := max(1, q.Times)
		for j, c := range l.under[n : n+callers] {
			if c.err = a.Err; a.Err == nil {
				c.r = of
				c.r.LimitReply = share(a.Replies[i], q, j)
				if c.left && !c.kept && c.r.Taken > 0 {
					back = append(back, c.r)
				}
			}
			c.done <- struct{}{} // from now on only its caller refers to it
		}
		n += callers
	}
	clear(l.under)
	if back != nil {
		var refunds []*ask
		for _, r := range sum(back) {
			refunds = append(refunds, d.newAsk(id, rules, luascripts.RefundRequest(r.Taken, r.at+r.Delay.Microseconds())))
		}
		l.next = slices.Insert(l.next, 0, refunds...) // if a refund fails, the permits are refilled over time
	}
	if a.Err == nil {
		// The reply to the last request is the most recent state.
		last := len(requests) - 1
		of.LimitReply = a.Replies[last]
		d.learn(l, id, requests[last], of)
	}
	if len(l.next) > 0 {
		l.group.ready = append(l.group.ready, l)
	} else {
		d.end(l)
	}
}

// onTime records that no request of l is overdue. The mutex is held.
func (d *desk) onTime(l *lane) {
	if l.isLate {
		l.isLate = false
		l.group.overdue--
	}
}

// share returns the reply for the j-th of several callers with the same request. The first callers
// get everything they requested, and the others get nothing.
func share(r luascripts.LimitReply, q luascripts.LimitRequest, j int) luascripts.LimitReply {
	if q.Times <= 1 {
		return r
	}
	served := int(r.Taken / q.Units)
	if j < served {
		r.Taken, r.Retry = q.Units, 0
		r.Remaining += q.Units * int64(served-1-j)
		r.Left += q.Units * int64(served-1-j)
	} else {
		r.Taken = 0
	}
	return r
}

// sum merges replies whose permits were taken at the same time.
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

// knows returns a reply to q if a cached rejection covers it: the permits are not available before
// a known time. The mutex is held.
func (d *desk) knows(id bucketID, q luascripts.LimitRequest) (answer, bool) {
	if q.Units == 0 {
		return answer{}, false
	}
	all := d.refused[id.key]
	if len(all) == 0 {
		return answer{}, false
	}
	now := time.Now()
	for _, known := range all {
		left := known.until.Sub(now)
		// For a different number of permits the time is different.
		if known.rules != id.rules || known.least != q.Least || q.Wait >= left || since(known.forget, now) >= 0 {
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

// since returns the time from t to now by whichever clock shows more. The monotonic clock stops while
// the machine sleeps, and Redis refills the permits in that time.
func since(t, now time.Time) time.Duration {
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// learn caches a rejection of a caller of l. The mutex is held.
func (d *desk) learn(l *lane, id bucketID, q luascripts.LimitRequest, r answer) {
	// A rejected reservation means that the permits are available too late for it. They may still
	// be available now.
	if r.Retry <= 0 || q.Wait > 0 || r.Taken > 0 && q.Times == 1 {
		return
	}
	// Permits that are about to be returned would make the rejection outdated.
	if slices.ContainsFunc(l.next, func(a *ask) bool { return !a.q.TakesOrReads() }) {
		return
	}
	over := func(known refusal) bool {
		return !r.sent.Before(known.forget) || known.rules == id.rules && known.least == q.Least
	}
	if len(d.refused) >= d.sweep {
		for key, all := range d.refused {
			if !slices.ContainsFunc(all, func(known refusal) bool { return r.sent.Before(known.forget) }) {
				delete(d.refused, key)
			}
		}
		d.sweep = max(1024, 2*len(d.refused))
		if len(d.refused) >= remembered {
			return
		}
	}
	// The server replied after the request was sent, so until is not too late.
	until := r.sent.Add(r.Retry)
	forget := r.sent.Add(believed)
	if until.Before(forget) {
		forget = until
	}
	all := slices.DeleteFunc(d.refused[id.key], over)
	if len(all) == sizes {
		all = all[1:]
	}
	d.refused[id.key] = append(all, refusal{rules: id.rules, least: q.Least, until: until, forget: forget, r: r})
}

// forget drops the cached rejections of a key, under any limits. The mutex is held.
func (d *desk) forget(key string) { delete(d.refused, key) }

// groupOf returns the group of a key's slot.
func (d *desk) groupOf(key string) int {
	if !d.sliced {
		return 0
	}
	return int(slots.OfKey(d.send.Redis, key)) / perGroup
}
