package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/admin"
)

// Rate limiters and filters, which have no holders, have a separate survey. It reads all strings on the server, and runs only
// while a browser shows the page of limits.

// unheld lists the types without holders.
var unheld = []admin.Kind{admin.RateLimit, admin.RedissonRateLimit, admin.Bloom}

// limits is a snapshot of all limiters and filters.
type limits struct {
	at       time.Time
	all      []admin.Lock // by name
	more     bool         // there are more than a survey keeps
	missing  []admin.Missing
	complete bool    // all keys have been scanned at least once
	scanned  float64 // share of the keys that the current pass for rate limiters has scanned
	err      error   // this survey failed, and the rest is from the previous one
}

// limitSurveyor makes surveys of limiters and filters. One goroutine uses it.
type limitSurveyor struct {
	surveys []*admin.Survey // one for each kind; rate limiters are last, because there can be very many
	limit   time.Duration   // how long a look scans keys for one kind
	last    limits
}

func newLimitSurveyor(a *admin.Admin) *limitSurveyor {
	s := &limitSurveyor{limit: firstLook}
	for _, k := range []admin.Kind{admin.RedissonRateLimit, admin.Bloom, admin.RateLimit} {
		s.surveys = append(s.surveys, a.Survey(admin.Query{Kind: k}))
	}
	return s
}

// look continues the surveys. If one fails, it returns the last result with an error.
func (s *limitSurveyor) look(ctx context.Context) *limits {
	now := limits{at: time.Now(), complete: true}
	for _, survey := range s.surveys {
		seen, err := survey.Look(ctx, s.limit)
		if err != nil {
			failed := s.last
			failed.err = err
			return &failed
		}
		now.all = append(now.all, seen.Locks...)
		now.more, now.missing = now.more || seen.More, seen.Missing
		now.complete, now.scanned = now.complete && seen.Complete, seen.Scanned // the last kind takes longest
	}
	if len(now.all) > mostLocks {
		now.all, now.more = now.all[:mostLocks], true
	}
	slices.SortStableFunc(now.all, func(a, b admin.Lock) int { return cmp.Compare(a.Name, b.Name) })
	s.last = now
	return &now
}

func (s *limits) rest(took time.Duration) time.Duration { return restAfter(s.err, s.complete, took) }

func (s *limits) note() note { return noteOf(s.err, s.at, s.missing, s.complete, s.scanned) }

// phrase is a part of the description of a limiter or a filter: a text, followed by a time that the browser counts down.
type phrase struct {
	Text  string
	Until int64 // ms since 1970; 0 if there is no time
	Left  string
}

// in returns a text that is followed by the time until d after at.
func in(text string, d time.Duration, at time.Time, live bool) phrase {
	p := phrase{Text: text, Until: (at.Add(d).UnixMilli() + 500) / 1000 * 1000} // to the second, because reads differ a little
	if !live {
		p.Left = short(d)
	}
	return p
}

// phrasesOf describes the state of a limiter or a filter at a time.
func phrasesOf(l admin.Lock, at time.Time, live bool) (all []phrase) {
	switch {
	case l.Limit != nil:
		for _, o := range l.Limit.Usage {
			switch {
			case !o.Aligned && o.Full == 0, o.Aligned && o.End == 0:
				all = append(all, phrase{Text: "unused"})
			case o.Aligned:
				all = append(all, in(group(int(o.Used))+" used, resets in", o.End, at, live))
			default:
				all = append(all, in("refills in", o.Full, at, live))
			}
		}
		if l.Limit.Ahead > 0 {
			all = append(all, in("the last waiter waits", l.Limit.Ahead, at, live))
		}
	case l.RedissonLimit != nil && l.RedissonLimit.PerClient:
		all = append(all, phrase{Text: l.RedissonLimit.String() + " per Redisson client"})
	case l.RedissonLimit != nil:
		all = append(all, phrase{Text: group(int(l.RedissonLimit.Left)) + " of " + l.RedissonLimit.String() + " remaining"})
		if l.RedissonLimit.Next > 0 {
			all = append(all, in("next in", l.RedissonLimit.Next, at, live))
		}
	case l.Filter != nil:
		all = append(all, phrase{Text: elementsOf(l.Filter) + " of " + group(int(l.Filter.Expected)) + " elements"}, phrase{Text: wrong(l.Filter) + " false positives"})
	}
	return all
}

// elementsOf returns the approximate number of elements of a filter.
func elementsOf(f *admin.FilterState) string {
	switch n := f.Elements(); {
	case n == math.MaxInt64:
		return "too many to count"
	case !f.Exact && n > 0:
		return "about " + group(int(n))
	default:
		return group(int(n))
	}
}

// wrong returns the rate of false positives of a filter. Below 0.1 %, the estimate is unreliable.
func wrong(f *admin.FilterState) string {
	if p := f.FalsePositives(); p >= .001 {
		return percent(p)
	}
	return "under 0.1 %"
}

// percent formats a share with about two significant digits.
func percent(share float64) string {
	if p := 100 * share; p < 10 {
		return strconv.FormatFloat(p, 'g', 2, 64) + " %"
	}
	return strconv.FormatFloat(100*share, 'f', 0, 64) + " %"
}

// meter shows which part of a limit or of a filter is used.
type meter struct {
	Part  float64 // at most 1
	Says  string
	Level string // good, late or low, as for a lease
}

// meterOf returns the meter of a Redisson-compatible rate limiter or a filter, or nil if the part is unknown.
func meterOf(l admin.Lock) *meter {
	var part float64
	switch {
	case l.RedissonLimit != nil && !l.RedissonLimit.PerClient:
		part = 1 - float64(l.RedissonLimit.Left)/float64(l.RedissonLimit.Rate)
	case l.Filter != nil:
		part = float64(l.Filter.Elements()) / float64(l.Filter.Expected)
	default:
		return nil
	}
	m := &meter{Part: min(part, 1), Says: strconv.FormatFloat(100*part, 'f', 0, 64) + " %", Level: "good"}
	switch {
	case part > 10:
		m.Says, m.Level = "over 1,000 %", "low"
	case part >= 1:
		m.Level = "low"
	case part >= .8:
		m.Level = "late"
	}
	return m
}

// limitRow is a limiter or a filter in the list.
type limitRow struct {
	Path, Last string // the name, cut at the last colon
	URL        string
	Kind       admin.Kind
	Phrases    []phrase
	Meter      *meter
	Ambiguous  string
}

type limitsView struct {
	Note       note
	Text, Kind string
	Rows       []limitRow
	Summary    string
	Kinds      []choice
	Pages      pager
	More       bool
	Limit      int
	Any        bool // there are some, even if none matches Text and Kind
}

func (h *Handler) limitsPage(ctx context.Context, q url.Values, live bool) (any, int, error) {
	s, err := h.limits.get(ctx)
	if err != nil {
		return nil, 0, err
	}
	v := limitsView{Note: s.note(), Text: q.Get("q"), Kind: q.Get("kind"), More: s.more, Limit: mostLocks, Any: len(s.all) > 0}
	var found []admin.Lock
	text := strings.ToLower(v.Text)
	for _, l := range s.all {
		if strings.Contains(strings.ToLower(l.Name), text) && (v.Kind == "" || string(l.Kind) == v.Kind) {
			found = append(found, l)
		}
	}
	pages, from, to := pagerOf(q, "./limits", len(found))
	v.Pages = pages
	for _, l := range found[from:to] {
		r := limitRow{URL: lockURL(l.Name), Kind: l.Kind, Phrases: phrasesOf(l, s.at, live), Meter: meterOf(l), Ambiguous: l.Ambiguous}
		r.Path, r.Last = split(l.Name)
		v.Rows = append(v.Rows, r)
	}
	v.Summary = v.Note.count(len(s.all)) + " limiters and filters"
	if len(s.all) == 1 {
		v.Summary = v.Note.count(1) + " limiter or filter"
	}
	if len(found) != len(s.all) {
		v.Summary = group(len(found)) + " of " + v.Summary
	}
	v.Kinds = []choice{{"", "any kind", v.Kind == ""}}
	for _, k := range unheld {
		v.Kinds = append(v.Kinds, choice{string(k), kindName(k), string(k) == v.Kind})
	}
	return v, statusOf(s.err, len(s.all)), nil
}

// kindName returns the display name of a type.
func kindName(k admin.Kind) string {
	switch k {
	case admin.ReadWrite:
		return "read/write"
	case admin.RateLimit:
		return "rate limiter"
	case admin.Bloom:
		return "Bloom filter"
	}
	return string(k)
}

// fact is a line about a limiter or a filter on its page.
type fact struct {
	Name    string
	Phrases []phrase
}

// factsOf returns the facts about a limiter or a filter for its page.
func factsOf(l admin.Lock, at time.Time, live bool) (all []fact) {
	add := func(name string, phrases ...phrase) { all = append(all, fact{name, phrases}) }
	text := func(format string, args ...any) phrase { return phrase{Text: fmt.Sprintf(format, args...)} }
	switch {
	case l.Limit != nil:
		for i, p := range phrasesOf(l, at, live) {
			if i < len(l.Limit.Usage) {
				add(fmt.Sprintf("Limit %d", i+1), p)
			} else {
				add("Queue", p)
			}
		}
		add("Remaining", text("unknown: Redis stores the used quota, and not the limits of the application"))
	case l.RedissonLimit != nil:
		add("Rate", text("%s", l.RedissonLimit.String()))
		if l.RedissonLimit.PerClient {
			add("Remaining", text("unknown: each Redisson client has its own quota"))
			break
		}
		add("Remaining", text("%s", group(int(l.RedissonLimit.Left))))
		if l.RedissonLimit.Next > 0 {
			add("Next", in("in", l.RedissonLimit.Next, at, live))
		}
		if l.RedissonLimit.Reset > 0 {
			add("Reset", in("in", l.RedissonLimit.Reset, at, live))
		}
	case l.Filter != nil:
		f := l.Filter
		sample := ""
		if !f.Exact {
			sample = ", in a sample"
		}
		add("Elements", text("%s of %s", elementsOf(f), group(int(f.Expected))))
		add("False positives", text("%s; %s with %s elements", wrong(f), percent(f.P), group(int(f.Expected))))
		add("Bits", text("%s, %d per element; %s of them are set%s", group(int(f.Size)), f.Hashes, percent(f.Fill), sample))
		add("Memory", text("%s", plural(int(f.Bytes), "byte")))
		switch {
		case f.Missing > 0:
			add("Shards", text("%d, of which %d are missing: their elements are reported as absent", f.Shards, f.Missing))
		case f.Shards > 0:
			add("Shards", text("%d", f.Shards))
		case f.OneOf > 0:
			add("Shard", text("one of %d shards of another filter", f.OneOf))
		}
	}
	return all
}
