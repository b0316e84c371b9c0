package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// A survey is a snapshot of all locks.
type survey struct {
	at        time.Time
	took      time.Duration
	locks     []*row // by name
	more      bool   // there are more locks than a survey keeps
	clients   []lock.Client
	contended []admin.Lock // the locks with the most waiters, and these waiters
	unseen    int          // how many locks with waiters are not in contended, to save time
	unread    []error      // why others are not in contended, one error for each
	graph     graph
	health    health
	happened  []happening // the latest first
	missing   []admin.Missing
	complete  bool    // all keys have been scanned at least once
	scanned   float64 // share of the keys that the current pass has scanned
	err       error   // this survey failed, and the rest is from the previous one
}

// row is a lock of a survey.
type row struct {
	admin.Lock
	span
}

// span is the lease of a lock, as observed so far.
type span struct {
	until time.Time     // when the lease expires, on the clock of this process; zero without an expiry
	full  time.Duration // the longest lease observed, which is the length of the bar
}

// jitter is how far the expiry times from two reads of one lease can be apart.
const jitter = 300 * time.Millisecond

// spanOf returns the span of a lock with this remaining lease at this time, whose last span is before.
func spanOf(left time.Duration, at time.Time, before span) span {
	if left < 0 {
		return span{}
	}
	s := span{until: at.Add(left), full: max(before.full, left)}
	if d := s.until.Sub(before.until); d < jitter && d > -jitter {
		s.until = before.until // so that the page does not change
	}
	return s
}

// happening is a change between two reads of a lock.
type happening struct {
	At   time.Time
	Lock string
	What string
}

// How long a look scans keys. The first look is short, so that a page appears immediately. Once all keys have been scanned, scans take a
// small part of the time, because the known locks are read anyway.
const (
	firstLook = 500 * time.Millisecond
	laterLook = every / 10
)

const (
	mostContended = 100 // maximum number of locks of a survey whose waiters are listed
	mostHappened  = 30
)

// surveyor makes surveys. One goroutine uses it.
type surveyor struct {
	admin  *admin.Admin
	locks  *admin.Survey
	limit  time.Duration // how long the next look scans keys
	record func(*survey)
	last   *survey
	rows   map[lockID]*row // of last
	edges  map[edgeID]sighting
	server checkup
}

// look makes a survey. If that fails, it returns the last survey with the error.
func (s *surveyor) look(ctx context.Context) *survey {
	began := time.Now()
	now := &survey{at: began}
	if err := s.fill(ctx, now); err != nil {
		var failed survey // without a time if there is no last survey
		if s.last != nil {
			failed = *s.last
		}
		failed.err = err
		return &failed
	}
	now.took = time.Since(began)
	rows := make(map[lockID]*row, len(now.locks))
	for _, r := range now.locks {
		rows[idOf(r.Lock)] = r
	}
	now.happened = s.changes(now, rows)
	s.last, s.rows = now, rows
	s.record(now)
	return now
}

func (s *survey) rest(took time.Duration) time.Duration { return restAfter(s.err, s.complete, took) }

// restAfter returns the pause after a survey that took this long. It is shorter until all keys have been scanned once.
func restAfter(err error, complete bool, took time.Duration) time.Duration {
	if err == nil && !complete {
		return max(every/2, took)
	}
	return restOf(took)
}

func (s *surveyor) fill(ctx context.Context, now *survey) error {
	seen, err := s.locks.Look(ctx, s.limit)
	if err != nil {
		return err
	}
	now.missing, now.more, now.complete, now.scanned = seen.Missing, seen.More, seen.Complete, seen.Scanned
	if now.complete {
		s.limit = laterLook
	}
	var waited []admin.Lock
	for _, l := range seen.Locks {
		var before span
		if r := s.rows[idOf(l)]; r != nil {
			before = r.span
		}
		r := &row{Lock: l}
		if l.Locked() {
			r.span = spanOf(l.Lease, time.Now(), before)
		}
		now.locks = append(now.locks, r)
		if l.Waiting > 0 {
			waited = append(waited, l)
		}
	}
	now.clients = seen.Clients
	slices.SortFunc(now.clients, func(a, b lock.Client) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Host, b.Host), a.PID-b.PID, cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(waited, func(a, b admin.Lock) int { return cmp.Or(b.Waiting-a.Waiting, cmp.Compare(a.Name, b.Name)) })
	now.unseen = max(len(waited)-mostContended, 0)
	for _, l := range waited[:min(len(waited), mostContended)] {
		l, err := s.admin.Inspect(ctx, l.Name)
		switch {
		case ctx.Err() != nil || errors.Is(err, lock.ErrUnavailable):
			return err
		case err != nil: // one lock that cannot be read must not hide the others
			now.unread = append(now.unread, err)
		case l.Locked() && len(l.Waiters) > 0:
			now.contended = append(now.contended, l)
		}
	}
	now.graph = graphOf(now.contended, s.lasted(now))
	now.health = s.server.check(ctx)
	return nil
}

// A sighting records since when, and in how many surveys, an edge of the graph has been present without a break.
type sighting struct {
	since   time.Time
	surveys int
}

// The minimum number of surveys and the minimum time for which a lasting edge has been present.
const (
	lastingSurveys = 3
	lastingTime    = 5 * time.Second
)

// lasted records the edges of a survey, and returns a function that reports whether an edge is lasting.
func (s *surveyor) lasted(now *survey) func(edgeID) bool {
	edges := make(map[edgeID]sighting)
	for _, id := range edgeIDs(now.contended) {
		seen, ok := s.edges[id]
		if !ok {
			seen.since = now.at
		}
		seen.surveys++
		edges[id] = seen
	}
	s.edges = edges
	return func(id edgeID) bool {
		return edges[id].surveys >= lastingSurveys && now.at.Sub(edges[id].since) >= lastingTime
	}
}

// changes returns the changes since the last survey, followed by earlier ones.
func (s *surveyor) changes(now *survey, rows map[lockID]*row) (all []happening) {
	if s.last == nil {
		return nil
	}
	for _, r := range now.locks {
		before := s.rows[idOf(r.Lock)]
		switch {
		case before == nil && (len(s.last.missing) > 0 || !s.last.complete): // its server is back, or the first pass has just reached it
		case before == nil && r.Kind == admin.Latch:
			all = append(all, happening{now.at, r.Name, "is closed: " + countOf(r.Lock)})
		case before == nil && r.Kind == admin.WaitGroup:
			all = append(all, happening{now.at, r.Name, "has workers: " + waitGroupOf(r.Lock)})
		case before == nil:
			all = append(all, happening{now.at, r.Name, "is held by " + clientName(r.Holders[0].Client)})
		case r.Kind == admin.WaitGroup && len(r.Lost) > len(before.Lost):
			all = append(all, happening{now.at, r.Name, "lost a worker: " + clientName(r.Lost[len(r.Lost)-1].Client)})
		case only(before.Mode) && r.Locked() && before.Holders[0].Owner != r.Holders[0].Owner:
			all = append(all, happening{now.at, r.Name, "passed from " + clientName(before.Holders[0].Client) + " to " + clientName(r.Holders[0].Client)})
		}
	}
	for _, before := range s.last.locks {
		switch {
		case rows[idOf(before.Lock)] != nil || now.more || len(now.missing) > 0:
		case before.Kind == admin.Latch:
			all = append(all, happening{now.at, before.Name, "was released or deleted"})
		case before.Kind == admin.WaitGroup:
			all = append(all, happening{now.at, before.Name, "completed or was deleted"})
		default:
			all = append(all, happening{now.at, before.Name, "is free; last holder: " + clientName(before.Holders[0].Client)})
		}
	}
	return append(all[:min(len(all), mostHappened)], s.last.happened[:min(len(s.last.happened), max(mostHappened-len(all), 0))]...)
}

// only reports whether a lock in this mode has a single holder.
func only(m lock.Mode) bool { return m == lock.Exclusive || m == lock.Write }

// health is the state of the server, as far as the user is allowed to read it.
type health struct {
	Mode, Version, Policy, Memory string
	Evicts                        bool
	Replica                       bool // which can show a held lock as free, if it has lost its primary
	Reply                         time.Duration
}

// checkup reads the health of a server from time to time.
type checkup struct {
	rdb   rueidis.Client
	asked time.Time // when it was last read
	last  health
}

func (c *checkup) check(ctx context.Context) health {
	if time.Since(c.asked) > 10*time.Second {
		c.last, c.asked = healthOf(ctx, c.rdb), time.Now()
	}
	return c.last
}

func healthOf(ctx context.Context, rdb rueidis.Client) health {
	h := health{Mode: string(rdb.Mode())}
	ctx, cancel := context.WithTimeout(ctx, admin.DefaultOpTimeout)
	defer cancel()
	began := time.Now()
	if rdb.Do(ctx, rdb.B().Exists().Key("leasehold_client:none").Build()).Error() == nil {
		h.Reply = time.Since(began)
	}
	text, err := rdb.Do(ctx, rdb.B().Info().Build()).ToString()
	if err != nil {
		return h
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "redis_version":
			if h.Version == "" {
				h.Version = "Redis " + value
			}
		case "valkey_version":
			h.Version = "Valkey " + value
		case "maxmemory_policy":
			h.Policy, h.Evicts = value, value != "noeviction"
		case "used_memory_human":
			h.Memory = value
		case "role":
			h.Replica = value == "slave" && rdb.Mode() != rueidis.ClientModeCluster // INFO goes to any node of a cluster
		}
	}
	return h
}

// A detail is a snapshot of one lock.
type detail struct {
	at       time.Time
	counted  time.Time // when the lock and its keys had been read: their leases count from then
	lock     admin.Lock
	span     span
	keys     []admin.Key
	happened []happening // while a browser showed the lock, the latest first
	replica  bool        // as in health
	err      error       // this read failed, and the rest is from the last one, if any
}

// inspector reads one lock. One goroutine uses it.
type inspector struct {
	admin  *admin.Admin
	record func(l admin.Lock, at time.Time, first bool)
	name   string
	server checkup
	last   *detail
}

func (i *inspector) look(ctx context.Context) *detail {
	d := &detail{at: time.Now()}
	l, err := i.admin.Inspect(ctx, i.name)
	if err == nil {
		d.keys, err = i.admin.Keys(ctx, l)
	}
	if err != nil {
		var failed detail // without a time if there is no last read
		if i.last != nil {
			failed = *i.last
		}
		failed.err = err
		return &failed
	}
	d.lock, d.counted = l, time.Now()
	var before span
	if last := i.last; last != nil {
		before = last.span
		// The lease counts from the beginning of this read, and in the span of the last read from its end. So a slow read
		// does not look like a renewal.
		d.happened = append(changes(last.lock, l, d.at, before, spanOf(l.Lease, d.at, before)), last.happened...)
		d.happened = d.happened[:min(len(d.happened), mostHappened)]
	}
	if l.Locked() {
		d.span = spanOf(l.Lease, d.counted, before)
	}
	d.replica = i.server.check(ctx).Replica
	first := i.last == nil || d.at.Sub(i.last.at) > pastGap
	i.last = d
	i.record(l, d.at, first)
	return d
}

// ownersOf returns the owners as a set, because a lock can have thousands.
func ownersOf(all []lock.Holder) map[string]bool {
	owners := make(map[string]bool, len(all))
	for _, h := range all {
		owners[h.Owner] = true
	}
	return owners
}

// changes returns the changes between two reads of a lock.
func changes(before, now admin.Lock, at time.Time, was, is span) (all []happening) {
	add := func(format string, args ...any) {
		all = append(all, happening{at, now.Name, fmt.Sprintf(format, args...)})
	}
	held, holds, lost := ownersOf(before.Holders), ownersOf(now.Holders), ownersOf(now.Lost)
	waited, waits := make(map[string]bool), make(map[string]bool)
	for _, w := range before.Waiters {
		waited[w.Owner] = true
	}
	for _, w := range now.Waiters {
		waits[w.Owner] = true
	}
	if now.Kind == admin.Latch && before.Kind == admin.Latch && now.Left != before.Left {
		add("%s", countOf(now))
	}
	forced := now.ForceUnlock != nil && (before.ForceUnlock == nil || now.ForceUnlock.At.After(before.ForceUnlock.At))
	for _, h := range before.Holders {
		if !holds[h.Owner] {
			how := "released or lost it"
			switch {
			case forced && now.ForceUnlock.Removed(h.Client):
				how = "lost it: force-unlocked by " + now.ForceUnlock.By
			case now.Kind == admin.WaitGroup && lost[h.Owner]:
				how = "is lost"
			case now.Kind == admin.WaitGroup:
				how = "is done"
			}
			add("%s %s", clientName(h.Client), how)
		}
	}
	for _, h := range now.Holders {
		if !held[h.Owner] {
			does := "acquired it"
			if now.Kind == admin.WaitGroup {
				does = "has joined"
			}
			add("%s %s", clientName(h.Client), does)
		}
	}
	for _, w := range before.Waiters {
		if !waits[w.Owner] && !holds[w.Owner] {
			add("%s stopped waiting", clientName(w.Client))
		}
	}
	for _, w := range now.Waiters {
		if !waited[w.Owner] {
			add("%s began to wait", clientName(w.Client))
		}
	}
	if len(all) == 0 && now.Locked() && is.until.Sub(was.until) >= jitter && !was.until.IsZero() {
		add("lease renewed")
	}
	slices.Reverse(all)
	return all
}
