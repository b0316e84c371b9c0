package dashboard

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// note describes whether the read that a page shows is current and complete.
type note struct {
	Error   string // why the page shows an older read, or none
	At      string // the time of that read; empty if there was none
	Missing []string
	Replica bool // of a survey or of a lock, if the server is a replica

	Scanning string // share of the keys that have been scanned; empty once all have been
}

func noteOf(err error, at time.Time, missing []admin.Missing, complete bool, scanned float64) (n note) {
	for _, m := range missing {
		n.Missing = append(n.Missing, fmt.Sprintf("%s does not respond (%v)", m.Server, m.Err))
	}
	if err != nil {
		n.Error = err.Error()
		if !at.IsZero() {
			n.At = at.UTC().Format("15:04:05 UTC")
		}
	} else if !complete {
		n.Scanning = fmt.Sprintf("%.0f %%", 100*scanned)
	}
	return n
}

// note returns the note about s.
func (s *survey) note() note {
	n := noteOf(s.err, s.at, s.missing, s.complete, s.scanned)
	n.Replica = s.health.Replica
	return n
}

// Well reports whether the read is current and complete.
func (n note) Well() bool { return n.Error == "" && n.Missing == nil && n.Scanning == "" }

// count formats a number of things that the read found. Zero means unknown unless the read is current and complete.
func (n note) count(i int) string {
	switch {
	case i == 0 && !n.Well():
		return "unknown"
	case n.Missing != nil || n.Scanning != "":
		return "at least " + group(i)
	}
	return group(i)
}

// lockRow is a lock in a list.
type lockRow struct {
	Path, Last string // the name, cut at the last colon
	URL        string
	Kind       admin.Kind
	Mode       lock.Mode
	Holder     string
	More       int // number of other holders
	Age        age
	Held       bool // otherwise there is no lease
	Lease      lease
	Waiting    int
	Full       bool // the queue is full, so more processes may wait
	Gone       int  // number of waiters that are gone
	Leads      bool
	Word       string // the leader value
}

func rowOf(r *row, live bool) lockRow {
	l := lockRow{URL: lockURL(r.Name), Kind: r.Kind, Mode: r.Mode, Age: ageOf(oldest(r.Lock), live), Held: r.Locked(), Lease: leaseOf(r.span, live), Waiting: r.Waiting, Full: r.IsFull(), Gone: r.Gone}
	switch {
	case r.Kind == admin.Latch:
		l.Holder = countOf(r.Lock)
	case len(r.Lost) > 0:
		l.Holder = waitGroupOf(r.Lock)
	default:
		l.Holder, l.More = clientName(r.Holders[0].Client), r.Holding-1
	}
	if l.Leads = leads(r.Lock); l.Leads {
		l.Word = shown(r.Leader.Value)
	}
	l.Path, l.Last = split(r.Name)
	return l
}

// leads reports whether the lock is held and has a leader value.
func leads(l admin.Lock) bool { return l.Locked() && l.Leader != nil }

// split cuts a name at its last colon.
func split(name string) (path, last string) {
	name = shown(name)
	if i := strings.LastIndexByte(strings.TrimSuffix(name, ":"), ':'); i >= 0 {
		return name[:i+1], name[i+1:]
	}
	return "", name
}

// countOf describes the state of a latch.
func countOf(l admin.Lock) string {
	if l.Left == 0 {
		return "released"
	}
	return "count " + group(int(l.Left))
}

// waitGroupOf describes the state of a wait group.
func waitGroupOf(l admin.Lock) string {
	text := group(l.Holding) + " active"
	if l.Done > 0 {
		text += ", " + group(l.Done) + " done"
	}
	if len(l.Lost) > 0 {
		text += ", " + group(len(l.Lost)) + " lost"
	}
	return text
}

// oldest returns the earliest time at which a current holder requested the lock, or zero if it is unknown.
func oldest(l admin.Lock) (t time.Time) {
	for _, h := range l.Holders {
		if !h.Since.IsZero() && (t.IsZero() || h.Since.Before(t)) {
			t = h.Since
		}
	}
	return t
}

// plural formats a number of things that the read found, with their noun.
func (n note) plural(i int, word string) string {
	says := n.count(i)
	switch {
	case says == "unknown":
		return "unknown number of " + word + "s"
	case i == 1:
		return says + " " + word
	}
	return says + " " + word + "s"
}

// tile is a number at the top of the overview.
type tile struct {
	Title, Text, URL string
	Age              age
	Note             string
}

type overview struct {
	Note                      note
	Tiles                     []tile
	Rings                     int
	Oldest, Contended, NoEnds []lockRow
	Happened                  []event
	Sparks                    []spark
	Health                    health
	Reply                     string
	More                      bool
	Empty                     bool
}

type event struct {
	At, Lock, URL, What string
	Stamp               string
}

func eventsOf(all []happening) (events []event) {
	for _, h := range all {
		events = append(events, event{At: h.At.UTC().Format("15:04:05"), Stamp: h.At.UTC().Format(time.RFC3339), Lock: shown(h.Lock), URL: lockURL(h.Lock), What: h.What})
	}
	return events
}

// brief is the maximum number of locks in each list of the overview.
const brief = 5

func (h *Handler) overviewPage(ctx context.Context, _ url.Values, live bool) (any, int, error) {
	s, err := h.survey.get(ctx)
	if err != nil {
		return nil, 0, err
	}
	locked, waiting, first, noEnds := 0, 0, time.Time{}, []*row{}
	for _, r := range s.locks {
		waiting += r.Waiting
		if r.Locked() {
			locked++
		}
		if t := oldest(r.Lock); !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
		if r.Locked() && r.until.IsZero() {
			noEnds = append(noEnds, r)
		}
	}
	n := s.note()
	held := n.count(locked)
	if s.more {
		held = "over " + group(locked)
	}
	o := overview{Note: n, Rings: s.graph.Rings, Health: s.health, Reply: short2(s.health.Reply), More: s.more, Empty: len(s.locks) == 0 && n.Error == "" && n.Scanning == "", Happened: eventsOf(s.happened), Sparks: h.history.sparks(time.Now())}
	if n.Error != "" {
		o.Reply = ""
	}
	o.Tiles = []tile{
		{Title: "Held", Text: held, URL: "./locks"},
		{Title: "Waiting", Text: n.count(waiting), URL: "./locks?sort=waiting"},
		{Title: "Oldest request", Age: ageOf(first, live), URL: "./locks?sort=since"},
		{Title: "Clients", Text: n.count(len(s.clients)), URL: "./clients"},
	}
	if first.IsZero() && !n.Well() {
		o.Tiles[2].Text = "unknown"
	}
	o.Oldest = top(s.locks, live, func(r *row) bool { return !oldest(r.Lock).IsZero() }, bySort["since"])
	o.Contended = top(s.locks, live, func(r *row) bool { return r.Waiting > 0 }, bySort["waiting"])
	o.NoEnds = top(noEnds, live, func(*row) bool { return true }, bySort["name"])
	return o, statusOf(s.err, len(s.locks)), nil
}

// short2 formats a short time in µs or ms.
func short2(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// statusOf returns the status of a page: 503 if the read failed and there is no older one to show.
func statusOf(err error, shown int) int {
	if err != nil && shown == 0 {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

func top(locks []*row, live bool, take func(*row) bool, by func(a, b *row) int) (rows []lockRow) {
	var some []*row
	for _, r := range locks {
		if take(r) {
			some = append(some, r)
		}
	}
	slices.SortStableFunc(some, by)
	for _, r := range some[:min(len(some), brief)] {
		rows = append(rows, rowOf(r, live))
	}
	return rows
}

// bySort has the sort orders of a list of locks. The survey is sorted by name, and equal locks keep that order.
var bySort = map[string]func(a, b *row) int{
	"name": func(a, b *row) int { return 0 },
	"since": func(a, b *row) int {
		x, y := oldest(a.Lock), oldest(b.Lock)
		if x.IsZero() != y.IsZero() { // unknown times come last
			if x.IsZero() {
				return 1
			}
			return -1
		}
		return x.Compare(y)
	},
	"lease": func(a, b *row) int {
		if a.until.IsZero() != b.until.IsZero() {
			if a.until.IsZero() {
				return 1
			}
			return -1
		}
		return a.until.Compare(b.until)
	},
	"waiting": func(a, b *row) int { return cmp.Compare(b.Waiting, a.Waiting) },
}

// perPage is the maximum number of locks or clients on a page.
const perPage = 50

type locksView struct {
	Note           note
	Text, Kind     string
	Client         string
	ClientName     string
	Sort           string
	Heads          []head
	Rows           []lockRow
	All            int
	Summary        string
	Pages          pager
	More           bool
	Limit          int
	Kinds          []choice
	ClearClientURL string
}

type head struct{ Title, URL, Sorted, Class string }

type choice struct {
	Value, Title string
	Chosen       bool
}

type pager struct {
	Page, Of     int
	Prev, Next   string
	First, Until int
}

func pagerOf(q url.Values, path string, found int) (p pager, from, to int) {
	p.Of = max((found+perPage-1)/perPage, 1)
	p.Page, _ = strconv.Atoi(q.Get("page"))
	p.Page = min(max(p.Page, 1), p.Of)
	with := func(page int) string { return path + "?" + changed(q, "page", strconv.Itoa(page)).Encode() }
	if p.Page > 1 {
		p.Prev = with(p.Page - 1)
	}
	if p.Page < p.Of {
		p.Next = with(p.Page + 1)
	}
	from, to = (p.Page-1)*perPage, min(p.Page*perPage, found)
	p.First, p.Until = min(from+1, to), to
	return p, from, to
}

// changed returns q with a parameter changed, and without the one that only the stream of a page needs.
func changed(q url.Values, name, value string) url.Values {
	other := url.Values{}
	for k, v := range q {
		if k != "view" && len(v) > 0 && v[0] != "" {
			other[k] = v[:1]
		}
	}
	other.Del(name)
	if value != "" {
		other.Set(name, value)
	}
	return other
}

func (h *Handler) locksPage(ctx context.Context, q url.Values, live bool) (any, int, error) {
	s, err := h.survey.get(ctx)
	if err != nil {
		return nil, 0, err
	}
	v := locksView{Note: s.note(), Text: q.Get("q"), Kind: q.Get("kind"), Client: q.Get("client"), Sort: q.Get("sort"), All: len(s.locks), More: s.more, Limit: mostLocks}
	by := bySort[v.Sort]
	if by == nil {
		v.Sort, by = "name", bySort["name"]
	}
	var found []*row
	matches := matching(v.Text)
	for _, r := range s.locks {
		if matches(r.Lock) && ofKind(r.Lock, v.Kind) && (v.Client == "" || heldBy(r.Lock, v.Client)) {
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, by)
	pages, from, to := pagerOf(q, "./locks", len(found))
	v.Pages = pages
	for _, r := range found[from:to] {
		v.Rows = append(v.Rows, rowOf(r, live))
	}
	v.Summary = v.Note.plural(v.All, "lock")
	if len(found) != v.All {
		v.Summary = group(len(found)) + " of " + v.Summary
	}
	for _, c := range []struct{ title, sort, class string }{{"Name", "name", ""}, {"Kind", "", ""}, {"Holder", "", ""}, {"Requested", "since", "number"}, {"Remaining lease", "lease", ""}, {"Waiting", "waiting", "number"}} {
		hd := head{Title: c.title, Class: c.class}
		if c.sort != "" {
			hd.URL = "./locks?" + changed(changed(q, "page", ""), "sort", c.sort).Encode()
			if c.sort == v.Sort {
				hd.Sorted = "ascending"
				if c.sort != "name" && c.sort != "lease" {
					hd.Sorted = "descending"
				}
			}
		}
		v.Heads = append(v.Heads, hd)
	}
	for _, k := range []choice{{"", "any kind", false}, {"plain", "plain", false}, {"fair", "fair", false}, {"rw", "read/write", false}, {"semaphore", "semaphore", false}, {"latch", "latch", false}, {"waitgroup", "waitgroup", false}, {"election", "election", false}} {
		k.Chosen = k.Value == v.Kind
		v.Kinds = append(v.Kinds, k)
	}
	if v.Client != "" {
		v.ClientName = clientName(lock.Client{ID: v.Client})
		for _, c := range s.clients {
			if c.ID == v.Client {
				v.ClientName = clientName(c)
			}
		}
		v.ClearClientURL = "./locks?" + changed(changed(q, "page", ""), "client", "").Encode()
	}
	return v, statusOf(s.err, len(s.locks)), nil
}

// matching returns a function that reports whether text occurs in the name of a lock, or in the name, host, label or ID of the client
// of a holder.
func matching(text string) func(admin.Lock) bool {
	text = strings.ToLower(text)
	has := func(part string) bool { return strings.Contains(strings.ToLower(part), text) }
	return func(l admin.Lock) bool {
		return has(l.Name) || slices.ContainsFunc(l.Holders, func(h lock.Holder) bool {
			return has(h.Client.Name) || has(h.Client.Host) || has(h.Client.Label) || has(h.Client.ID)
		})
	}
}

// ofKind reports whether a lock matches the type in the address of a page.
func ofKind(l admin.Lock, kind string) bool {
	return kind == "" || string(l.Kind) == kind || kind == string(admin.Election) && leads(l)
}

func heldBy(l admin.Lock, client string) bool {
	return slices.ContainsFunc(l.Holders, func(h lock.Holder) bool { return h.Client.ID == client })
}

type clientsView struct {
	Note    note
	Rows    []clientRow
	Pages   pager
	Summary string
}

type clientRow struct {
	Name, Host, Label, Version, ID string
	PID                            int
	Up                             age
	Holds                          int
	URL                            string
}

func (h *Handler) clientsPage(ctx context.Context, q url.Values, live bool) (any, int, error) {
	s, err := h.survey.get(ctx)
	if err != nil {
		return nil, 0, err
	}
	holds := make(map[string]int)
	for _, r := range s.locks {
		ids := make(map[string]bool)
		for _, h := range r.Holders {
			ids[h.Client.ID] = true
		}
		for id := range ids {
			holds[id]++
		}
	}
	v := clientsView{Note: s.note()}
	v.Summary = v.Note.plural(len(s.clients), "client")
	pages, from, to := pagerOf(q, "./clients", len(s.clients))
	v.Pages = pages
	for _, c := range s.clients[from:to] {
		v.Rows = append(v.Rows, clientRow{Name: shown(c.Name), Host: shown(c.Host), Label: c.Label, Version: c.Version, ID: shortID(c.ID), PID: c.PID,
			Up: ageOf(c.Started, live), Holds: holds[c.ID], URL: "./locks?client=" + url.QueryEscape(c.ID)})
	}
	return v, statusOf(s.err, len(s.locks)), nil
}

type graphView struct {
	Note note
	graph
	Unseen int
	Unread []error
}

func (h *Handler) graphPage(ctx context.Context, _ url.Values, _ bool) (any, int, error) {
	s, err := h.survey.get(ctx)
	if err != nil {
		return nil, 0, err
	}
	return graphView{s.note(), s.graph, s.unseen, s.unread}, statusOf(s.err, len(s.locks)), nil
}

type lockView struct {
	Name, Shown  string
	Note         note
	NoLock       string // why the page shows no lock
	Kind         admin.Kind
	Held         bool
	Says         string
	Lease        lease
	Holders      []ownerRow
	Waiters      []waiterRow
	Past         []pastRow
	Lost         []ownerRow // workers of a wait group
	Waiting      string
	More         int  // waiters that are not shown
	Full         bool // the queue is full, so more processes may wait
	MoreHolders  int
	MoreKeys     int
	Token        uint64
	HighestToken uint64
	ForceUnlock  *forcedView
	Keys         []keyRow
	Happened     []event
	Unlocks      bool
	CSRF         string
	Seen         []string
	Result       string
	Failed       bool
	Readers      string
	Leader       *leaderView

	// Of a limiter or a filter.
	State     []phrase
	Meter     *meter
	Facts     []fact
	Ambiguous string
}

type leaderView struct {
	Value, Role string
	Age         age
	Token       uint64
}

type ownerRow struct {
	Name, Host, Label, Thread string
	PID                       int
	Age                       age
	How                       string // how it holds the lock
	Lease                     phrase // of one of several holders
	WaiterTimeout             string
}

// waiterRow is a waiter, or several consecutive ones that count as dead.
type waiterRow struct {
	ownerRow
	Place string
	Dead  string // which waiters count as dead; empty if the row is one waiter
}

// waiterRows returns up to mostRows rows of waiters, and the number of waiters without a row.
func waiterRows(l *admin.Lock, live bool) (rows []waiterRow, more int) {
	all := l.Waiters
	for i := 0; i < len(all); {
		if len(rows) == mostRows {
			return rows, len(all) - i
		}
		dead := 0
		for dead < len(all)-i && all[i+dead].WaiterTimeout == 0 {
			dead++
		}
		if dead > 1 {
			counts := make(map[string]int)
			for _, w := range all[i : i+dead] {
				counts[clientName(w.Client)]++
			}
			var parts []string
			for _, name := range slices.Sorted(maps.Keys(counts)) {
				parts = append(parts, group(counts[name])+" of "+name)
			}
			rows = append(rows, waiterRow{Place: fmt.Sprintf("%s to %s", group(i+1), group(i+dead)), Dead: plural(dead, "waiter") + " timed out: " + strings.Join(parts, ", ")})
			i += dead
			continue
		}
		w := all[i]
		i++
		r := waiterRow{ownerRow: personOf(w.Owner, w.Client), Place: group(i)}
		r.Age = ageOf(w.Since, live)
		switch {
		case l.IsGone(w):
			r.WaiterTimeout = "gone: no registry entry"
		case w.WaiterTimeout == lock.NoExpiry:
			r.WaiterTimeout = "none while subscribed"
		case w.WaiterTimeout == 0:
			r.WaiterTimeout = "timed out"
		default:
			// Rounded, because every retry of the waiter resets it.
			r.WaiterTimeout = w.WaiterTimeout.Round(time.Second).String()
		}
		rows = append(rows, r)
	}
	return rows, 0
}

type forcedView struct {
	Age        age
	By, Reason string
	From       []string
}

type keyRow struct {
	Name, Type, Role string
	Left             phrase
	Line             string
}

// mostRows is the maximum number of rows in a table of the page: holders, waiters, past holds, keys.
const mostRows = 100

func (h *Handler) lockPage(ctx context.Context, q url.Values, live bool) (any, int, error) {
	name := q.Get("name")
	v := lockView{Name: name, Shown: shown(name), Unlocks: h.unlocks}
	v.CSRF, _ = ctx.Value(csrfKey{}).(string)
	d, err := h.detailOf(name).get(ctx)
	if err != nil {
		return nil, 0, err
	}
	if !live {
		v.Result, v.Failed = resultOf(q)
	}
	if d.err != nil {
		switch {
		case errors.Is(d.err, lock.ErrBadName):
			v.NoLock = d.err.Error()
			return v, http.StatusBadRequest, nil
		case errors.Is(d.err, lock.ErrWrongType):
			v.NoLock = "This key is not a lock, a rate limiter or a Bloom filter."
			return v, http.StatusNotFound, nil
		}
	}
	v.Note = noteOf(d.err, d.at, nil, true, 0)
	if d.at.IsZero() {
		return v, http.StatusServiceUnavailable, nil
	}
	v.Note.Replica = d.replica
	h.fill(&v, d, live)
	return v, http.StatusOK, nil
}

// fill adds what was read of a lock to its page.
func (h *Handler) fill(v *lockView, d *detail, live bool) {
	l := d.lock
	v.Kind, v.Held, v.Ambiguous, v.Token, v.HighestToken = l.Kind, l.Locked(), l.Ambiguous, l.Token, l.HighestToken
	if slices.Contains(unheld, l.Kind) {
		v.State, v.Meter, v.Facts = phrasesOf(l, d.at, live), meterOf(l), factsOf(l, d.at, live)
	} else {
		v.Says = saysOf(l)
	}
	if v.Held {
		v.Lease = leaseOf(d.span, live)
	}
	v.Leader = leaderOf(l, live)
	v.Holders = holderRows(d, live)
	v.MoreHolders = len(l.Holders) - len(v.Holders)
	for _, o := range l.Holders[:len(v.Holders)] {
		if s := h.digest(o.Owner); !slices.Contains(v.Seen, s) {
			v.Seen = append(v.Seen, s)
		}
	}
	for _, o := range l.Lost[:min(len(l.Lost), mostRows)] {
		r := personOf(o.Owner, o.Client)
		r.Age = ageOf(o.Since, live)
		v.Lost = append(v.Lost, r)
	}
	v.Waiters, v.More = waiterRows(&l, live)
	v.Waiting, v.Full = group(l.Waiting), l.IsFull()
	v.Past, v.Happened = pastRows(h.history.of(l.Name, d.at), live), eventsOf(d.happened)
	if f := l.ForceUnlock; f != nil {
		v.ForceUnlock = &forcedView{Age: ageOf(f.At, live), By: shown(f.By), Reason: f.Reason, From: f.From}
	}
	v.Keys = keyRows(d, live)
	v.MoreKeys = len(d.keys) - len(v.Keys)
	if l.Mode == lock.Read {
		v.Readers = "redis-cli --scan --pattern " + quoted(admin.Prefix(tagged(l.Name)+":")+":rwlock_timeout:*")
	}
}

// leaderOf describes the leader value of a lock, or returns nil if there is none.
func leaderOf(l admin.Lock, live bool) *leaderView {
	s := l.Leader
	if s == nil {
		return nil
	}
	v := &leaderView{Value: shown(s.Value), Role: "Leader for", Age: ageOf(s.Since, live), Token: s.Token}
	switch {
	case !l.Locked():
		v.Role = "Earlier leader (no leader now), since"
	case s.Token > 0 && l.Token > s.Token:
		v.Role = "Earlier leader (the holder published none), since"
	}
	return v
}

// holderRows returns up to mostRows rows of holders.
func holderRows(d *detail, live bool) (rows []ownerRow) {
	all := d.lock.Holders
	for _, o := range all[:min(len(all), mostRows)] {
		r := personOf(o.Owner, o.Client)
		r.Age, r.How = ageOf(o.Since, live), string(o.Mode)
		switch {
		case d.lock.Kind == admin.Semaphore:
			r.How = plural(o.Count, "permit")
		case o.Count > 1:
			r.How += fmt.Sprintf(", %d times", o.Count)
		}
		if o.Lingers {
			r.How += "; in use, or kept idle"
		}
		if len(all) > 1 { // the lease of the lock is the longest of theirs
			r.Lease = d.expiry(d.lock.HolderLease(o), live)
		}
		rows = append(rows, r)
	}
	return rows
}

// keyRows returns up to mostRows rows of keys. Registry entries come last.
func keyRows(d *detail, live bool) (rows []keyRow) {
	for _, k := range d.keys[:min(len(d.keys), mostRows)] {
		r := keyRow{Name: shown(k.Name), Type: k.Type, Role: k.Role, Left: d.expiry(k.Left, live), Line: redisCLI(k)}
		if d.lock.Kind == admin.Bloom && k.Type == "string" { // too long for a terminal: up to 512 MB
			r.Line = "redis-cli STRLEN " + quoted(k.Name)
		}
		rows = append(rows, r)
	}
	return rows
}

// expiry returns the time until an expiry that was this far away when the keys of d had been read.
func (d *detail) expiry(left time.Duration, live bool) phrase {
	switch left {
	case lock.NoExpiry:
		return phrase{Text: "no expiry"}
	case admin.UnknownLease:
		return phrase{Text: "unknown"}
	}
	p := in("", left, d.counted, live)
	if lease := d.span.until.UnixMilli(); max(lease-p.Until, p.Until-lease) < 1000 { // the lease of the lock, in another read
		p.Until = lease
	}
	return p
}

// tagged returns the prefix of the lease keys of readers.
func tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

func saysOf(l admin.Lock) string {
	switch {
	case l.Kind == admin.Semaphore:
		return fmt.Sprintf("%d of %s free", l.Free, plural(int(l.Permits), "permit"))
	case l.Kind == admin.Latch:
		return countOf(l)
	case l.Kind == admin.WaitGroup:
		return waitGroupOf(l)
	case !l.Locked():
		return "free"
	case l.Mode == lock.Read:
		return "held by " + plural(l.Holding, "reader")
	case l.Mode == lock.Write:
		return "held by a writer"
	}
	return "held"
}

// personOf returns the row of an owner.
func personOf(owner string, c lock.Client) ownerRow {
	r := ownerRow{Name: clientName(c), Label: c.Label, PID: c.PID}
	if c.Known() {
		r.Name, r.Host = shown(c.Name), shown(c.Host)
	}
	if _, thread, ok := strings.Cut(owner, ":"); ok && redissons(c) {
		r.Thread = shown(thread)
	}
	return r
}

// digest identifies an owner on a page, which must not show owner strings. It is keyed, because the rest of the page shows
// enough of the string to find it by brute force.
func (h *Handler) digest(owner string) string {
	sum := hmac.New(sha256.New, h.key[:])
	sum.Write([]byte(owner))
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// redisCLI returns the command line that prints the content of a key.
func redisCLI(k admin.Key) string {
	name := quoted(k.Name)
	switch k.Type {
	case "hash":
		return "redis-cli HGETALL " + name
	case "list":
		return "redis-cli LRANGE " + name + " 0 -1"
	case "zset":
		return "redis-cli ZRANGE " + name + " 0 -1 WITHSCORES"
	}
	return "redis-cli GET " + name
}
