package dashboard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// The bounds of a history.
const (
	mostPast = 4096        // maximum number of ended holds
	pastTime = time.Hour   // how long a page shows an ended hold
	pastGap  = time.Minute // after a longer time without a read, the end of a hold is unknown
)

// A hold is the time for which an owner held a lock, as observed by reads of the lock.
type hold struct {
	holdID
	client lock.Client
	asked  time.Time
	from   time.Time     // the first read that found it
	before bool          // it may have begun before that read
	last   time.Time     // the last read that found it
	lease  time.Duration // remaining lease at that read; negative without an expiry
	ended  time.Time     // the first read that did not find it, or the last one that did if there was none for long; zero while it is held
	how    string
}

// holdID identifies a hold.
type holdID struct {
	lock  lockID
	owner string
	mode  lock.Mode
}

// lockID identifies a lock: a wait group can have the same name as a lock.
type lockID struct {
	name      string
	waitGroup bool
}

func idOf(l admin.Lock) lockID { return lockID{l.Name, l.Kind == admin.WaitGroup} }

// lasted returns for how long the lock was held until now, as far as is known.
func (h *hold) lasted(now time.Time) time.Duration {
	if !h.ended.IsZero() {
		now = h.ended
	}
	return now.Sub(h.from)
}

// minute summarizes the reads of one minute.
type minute struct {
	at            int64 // in minutes since 1970
	held, waiting int   // maximum
	ended         int
	lasted        time.Duration // total of the holds that ended
}

// A history keeps in memory who held which lock. It is safe for concurrent use.
type history struct {
	mu      sync.Mutex
	began   time.Time // the first read
	whole   time.Time // time of the latest survey, if it had all locks
	open    map[lockID]map[holdID]*hold
	past    []hold // ring buffer
	next    int    // index of the next hold in past
	minutes [60]minute
	swept   time.Time // the last time of sweep
}

// A read is a survey, or a read of one lock.
type read struct {
	at     time.Time // its start
	took   time.Duration
	before bool            // a hold that it is the first to find may have begun long ago
	ended  map[holdID]bool // holds that ended after its start: surveys and reads of one lock overlap
}

// see records a survey.
func (h *history) see(s *survey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := read{at: s.at, took: s.took, before: !h.knows(s.at), ended: h.endedAfter(s.at)}
	part := s.more || len(s.missing) > 0 // what is not in the survey may be held
	h.whole = time.Time{}
	if s.complete && !part {
		h.whole = s.at
	}
	h.begin(s.at)
	m := h.minute(s.at)
	held, waiting := 0, 0
	listed := make(map[lockID]bool, len(s.locks))
	for _, r := range s.locks {
		listed[idOf(r.Lock)] = true
		h.take(now, r.Lock)
		waiting += r.Waiting
		if r.Locked() {
			held++
		}
	}
	m.held, m.waiting = max(m.held, held), max(m.waiting, waiting)
	for id := range h.open {
		if !listed[id] {
			h.end(now, id, nil, part, nil)
		}
	}
}

// seeLock records a read of one lock. first means that there was no other read shortly before.
func (h *history) seeLock(l admin.Lock, at time.Time, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begin(at)
	h.take(read{at: at, before: first && !h.knows(at), ended: h.endedAfter(at)}, l)
	if at.Sub(h.swept) > pastGap {
		h.swept = at
		h.sweep(at)
	}
	if l.ForceUnlock != nil {
		h.amend(idOf(l), l.ForceUnlock)
	}
}

// sweep forgets the holds that no read has found for pastTime. A survey ends them, but without surveys nothing else would.
func (h *history) sweep(at time.Time) {
	for key, open := range h.open {
		maps.DeleteFunc(open, func(_ holdID, known *hold) bool { return at.Sub(known.last) > pastTime })
		if len(open) == 0 {
			delete(h.open, key)
		}
	}
}

// amend corrects the holds that a force-unlock ended. A survey has no audit records, and recorded them as released.
func (h *history) amend(of lockID, forced *admin.ForceUnlockRecord) {
	for i := range h.past {
		p := &h.past[i]
		if p.lock != of || p.how != released || !forced.Removed(p.client) {
			continue
		}
		if !forced.At.Before(p.last.Add(-skew)) && !forced.At.After(p.ended.Add(skew)) {
			p.how = forcedBy(forced)
		}
	}
}

// released is the end of a hold that is not known to be lost.
const released = "released"

// skew is the tolerated clock skew between the operator and this process when a force-unlock is matched with the end of a hold.
const skew = time.Second

func forcedBy(forced *admin.ForceUnlockRecord) string {
	return "force-unlocked by " + shown(forced.By)
}

// knows reports whether a survey shortly before at had all locks. Otherwise a new hold may have begun long ago.
func (h *history) knows(at time.Time) bool { return at.Sub(h.whole) <= pastGap }

func (h *history) begin(at time.Time) {
	if h.began.IsZero() {
		h.began, h.open = at, make(map[lockID]map[holdID]*hold)
	}
}

// minute returns the entry for the minute of at. If a later minute has replaced it, minute returns an entry that is discarded.
func (h *history) minute(at time.Time) *minute {
	n := at.Unix() / 60
	m := &h.minutes[n%int64(len(h.minutes))]
	if m.at > n {
		return new(minute)
	}
	if m.at < n {
		*m = minute{at: n}
	}
	return m
}

// take updates the holds of a lock from a read.
func (h *history) take(r read, l admin.Lock) {
	key := idOf(l)
	open, now := h.open[key], make(map[holdID]bool, len(l.Holders))
	part := len(l.Holders) < l.Holding // a list has only some of them
	for _, holder := range l.Holders {
		id := holdID{key, holder.Owner, holder.Mode}
		now[id] = true
		known := open[id]
		if known == nil {
			if r.ended[id] {
				continue
			}
			if open == nil {
				open = make(map[holdID]*hold)
				h.open[key] = open
			}
			known = &hold{holdID: id, client: holder.Client, asked: holder.Since, from: r.at, before: r.before || part}
			open[id] = known
		}
		if r.at.After(known.last) {
			known.client, known.last, known.lease = holder.Client, r.at, l.HolderLease(holder)
			if known.lease == admin.UnknownLease {
				known.lease = l.Lease // the longest
			}
		}
	}
	h.end(r, key, now, part, l.ForceUnlock)
}

// end ends the holds of a lock that are not in now. If part is true, now has only some of the holds, and a hold ends after no read has
// found it for pastGap. Otherwise, holds would stay open indefinitely if no read returns all of them. A lease that expired during this
// read counts as expired.
func (h *history) end(r read, key lockID, now map[holdID]bool, part bool, forced *admin.ForceUnlockRecord) {
	open := h.open[key]
	for id, known := range open {
		gap := r.at.Sub(known.last)
		if now[id] || gap <= 0 || part && gap <= pastGap { // gap <= 0: a later read has found it
			continue
		}
		delete(open, id)
		known.ended, known.how = r.at, released
		switch {
		case part:
			known.ended, known.how = known.last, "unknown: not checked since, may still be held"
		case gap > pastGap:
			known.ended, known.how = known.last, "unknown: not checked until "+r.at.UTC().Format("15:04:05 UTC")
		case forced != nil && forced.At.After(known.from) && forced.Removed(known.client):
			known.how = forcedBy(forced)
		case known.lease >= 0 && gap+r.took >= known.lease:
			known.how = "lease expired"
		}
		m := h.minute(known.ended)
		m.ended, m.lasted = m.ended+1, m.lasted+known.lasted(r.at)
		if len(h.past) < mostPast {
			h.past = append(h.past, *known)
		} else {
			h.past[h.next] = *known
		}
		h.next = (h.next + 1) % mostPast
	}
	if len(open) == 0 {
		delete(h.open, key)
	}
}

// endedAfter returns the holds that ended after at.
func (h *history) endedAfter(at time.Time) map[holdID]bool {
	ended := make(map[holdID]bool)
	for i := range h.past {
		if p := &h.past[i]; p.ended.After(at) {
			ended[p.holdID] = true
		}
	}
	return ended
}

// of returns the holds of the locks with a name in the last hour, the latest first.
func (h *history) of(name string, now time.Time) (all []hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.past {
		if p.lock.name == name && now.Sub(p.ended) < pastTime {
			all = append(all, p)
		}
	}
	for _, waitGroup := range []bool{false, true} {
		for _, o := range h.open[lockID{name, waitGroup}] {
			all = append(all, *o)
		}
	}
	slices.SortFunc(all, func(a, b hold) int {
		if a.ended.IsZero() != b.ended.IsZero() {
			if a.ended.IsZero() {
				return -1
			}
			return 1
		}
		if c := b.from.Compare(a.from); c != 0 {
			return c
		}
		return strings.Compare(a.owner, b.owner)
	})
	return all
}

// since returns the time of the first read, or zero if there was none.
func (h *history) since() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.began
}

// pastRow is a hold on the page of its lock.
type pastRow struct {
	ownerRow
	From, Stamp string
	Held, Ended string // Held is empty while it is held
}

// pastRows returns up to mostRows rows of holds.
func pastRows(all []hold, live bool) (rows []pastRow) {
	if len(all) == 0 || all[len(all)-1].ended.IsZero() { // the holders are on the page already
		return nil
	}
	for _, p := range all[:min(len(all), mostRows)] {
		r := pastRow{ownerRow: personOf(p.owner, p.client), From: p.from.UTC().Format("15:04:05"), Stamp: p.from.UTC().Format(time.RFC3339), Ended: p.how}
		r.How, r.Age = string(p.mode), ageOf(p.from, live)
		if p.before {
			r.From = "before " + r.From
		}
		if !p.ended.IsZero() {
			r.Held = short(p.lasted(p.ended))
		}
		rows = append(rows, r)
	}
	return rows
}

// spark is a small chart of the last hour.
type spark struct {
	Title, Most string
	Lines       []string // the points of polylines, one for each period of reads without a break
}

// sparks returns the charts of the overview, or none until two minutes have been recorded.
func (h *history) sparks(now time.Time) []spark {
	h.mu.Lock()
	defer h.mu.Unlock()
	var held, waiting, lasted [60]float64
	var known [60]bool
	this, some := now.Unix()/60, 0
	for _, m := range h.minutes {
		i := 59 - int(this-m.at)
		if m.at == 0 || i < 0 || i > 59 {
			continue
		}
		some++
		known[i], held[i], waiting[i] = true, float64(m.held), float64(m.waiting)
		if m.ended > 0 {
			lasted[i] = m.lasted.Seconds() / float64(m.ended)
		}
	}
	if some < 2 {
		return nil
	}
	count := func(most float64) string { return group(int(most)) }
	return []spark{
		sparkOf("Held", held, known, count),
		sparkOf("Waiting", waiting, known, count),
		sparkOf("Mean hold time", lasted, known, func(most float64) string { return short(time.Duration(most * float64(time.Second))) }),
	}
}

// sparkOf draws values on a scale from 0 to the largest value.
func sparkOf(title string, values [60]float64, known [60]bool, says func(float64) string) spark {
	most := slices.Max(values[:])
	s := spark{Title: title, Most: says(most)}
	var points []string
	for i := range values {
		if known[i] {
			points = append(points, fmt.Sprintf("%d,%.1f", i, 19-18*values[i]/max(most, 1e-9)))
		}
		if len(points) > 0 && (!known[i] || i == len(values)-1) {
			if len(points) == 1 {
				points = append(points, points[0])
			}
			s.Lines, points = append(s.Lines, strings.Join(points, " ")), nil
		}
	}
	return s
}
