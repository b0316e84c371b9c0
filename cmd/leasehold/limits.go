package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// Rate limiters and filters, which have no holders.

// unheld reports whether nothing of this kind has holders.
func unheld(k admin.Kind) bool {
	return k == admin.RateLimit || k == admin.RedissonRateLimit || k == admin.Bloom
}

// stateHeads are the heads of a list of limiters or filters.
var stateHeads = []string{"NAME", "KIND", "STATE"}

// listStates writes a line for each limiter or filter.
func listStates(w io.Writer, columns int, all []admin.Lock) error {
	t := table{stateHeads}
	for _, l := range all {
		t = append(t, []string{shown(l.Name), string(l.Kind), stateOf(l)})
	}
	return t.write(w, columns)
}

// stateOf returns the state of a limiter or a filter in one line.
func stateOf(l admin.Lock) (text string) {
	switch {
	case l.Limit != nil:
		var parts []string
		for _, o := range l.Limit.Usage {
			parts = append(parts, owedOf(o))
		}
		text = strings.Join(parts, "; ")
		if l.Limit.Ahead > 0 {
			text += fmt.Sprintf("; the last waiter waits %s", short(l.Limit.Ahead))
		}
	case l.RedissonLimit != nil && l.RedissonLimit.PerClient:
		text = l.RedissonLimit.String() + " per Redisson client"
	case l.RedissonLimit != nil:
		text = fmt.Sprintf("%s of %s remaining", number(l.RedissonLimit.Left), l.RedissonLimit.String())
		if l.RedissonLimit.Next > 0 {
			text += ", next in " + short(l.RedissonLimit.Next)
		}
	case l.Filter != nil:
		f := l.Filter
		text = fmt.Sprintf("%s of %s elements, %s false positives", elementsOf(f), number(f.Expected), wrong(f))
		if f.Shards > 0 {
			text += fmt.Sprintf(", %d shards", f.Shards)
		}
	}
	if l.Ambiguous != "" {
		text += "; ambiguous: see inspect"
	}
	return text
}

// owedOf describes the used quota of a limit.
func owedOf(o admin.Usage) string {
	switch {
	case !o.Aligned && o.Full == 0, o.Aligned && o.End == 0:
		return "unused"
	case o.Aligned:
		return fmt.Sprintf("%s used, resets in %s", number(o.Used), short(o.End))
	}
	return "refills in " + short(o.Full)
}

// elementsOf returns the approximate number of elements of a filter.
func elementsOf(f *admin.FilterState) string {
	n := f.Elements()
	switch {
	case n == math.MaxInt64:
		return "too many to count"
	case !f.Exact && n > 0:
		return "about " + number(n)
	}
	return number(n)
}

// number returns n with commas between the thousands.
func number[T int64 | uint64 | int](n T) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// percent formats a share with about two significant digits.
func percent(share float64) string {
	switch p := 100 * share; {
	case p == 0:
		return "0 %"
	case p < 10:
		return strconv.FormatFloat(p, 'g', 2, 64) + " %"
	default:
		return strconv.FormatFloat(p, 'f', 0, 64) + " %"
	}
}

// wrong returns the rate of false positives of a filter. Below 0.1 %, the estimate is unreliable.
func wrong(f *admin.FilterState) string {
	if p := f.FalsePositives(); p >= .001 {
		return percent(p)
	}
	return "under 0.1 %"
}

// size formats a number of bytes.
func size(n int64) string {
	for _, unit := range []string{"bytes", "KB"} {
		if n < 10_000 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%d MB", n)
}

// stateTable writes the state of a limiter or a filter. limits are the limits of the limiter, or nil if they are unknown.
func stateTable(w io.Writer, l admin.Lock, limits []ratelimit.Limit) error {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	line := func(head, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", head, fmt.Sprintf(format, args...)) }
	what := ""
	switch {
	case l.Limit != nil:
		what = limitLines(l.Limit, limits, line)
	case l.RedissonLimit != nil:
		what = "a Redisson-compatible rate limiter, " + l.RedissonLimit.String()
		if l.RedissonLimit.PerClient {
			line("remaining", "unknown: each Redisson client has its own quota")
			break
		}
		line("remaining", "%s", number(l.RedissonLimit.Left))
		line("next", "%s", when(l.RedissonLimit.Next))
		line("reset", "%s", when(l.RedissonLimit.Reset))
	case l.Filter != nil:
		what = filterLines(l.Filter, line)
	}
	if l.Ambiguous != "" {
		line("ambiguous", "%s", l.Ambiguous)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return titled(w, l.Name, what, text.String())
}

// when formats the time until an event.
func when(d time.Duration) string {
	if d == 0 {
		return "now"
	}
	return "in " + short(d)
}

// limitLines describes the used quota of a key.
func limitLines(s *admin.LimitState, limits []ratelimit.Limit, line func(head, format string, args ...any)) (what string) {
	for i, o := range s.Usage {
		line(fmt.Sprintf("limit %d", i+1), "%s", owedOf(o))
	}
	if s.Ahead > 0 {
		line("queue", "the last waiter is admitted in %s", short(s.Ahead))
	}
	if limits == nil {
		line("remaining", "unknown: pass the limits of the application, such as --limit 10/1m")
	} else {
		left, next := standing(s, limits)
		line("remaining", "%s", number(left))
		line("next", "%s", when(next))
	}
	line("reset", "%s", when(s.Reset))
	return "a key of a rate limiter"
}

// filterLines describes a filter.
func filterLines(f *admin.FilterState, line func(head, format string, args ...any)) (what string) {
	line("elements", "%s, estimated from the %s of bits that are set%s", elementsOf(f), percent(f.Fill), map[bool]string{false: " in a sample"}[f.Exact])
	line("error", "%s false positives; %s with %s elements", wrong(f), percent(f.P), number(f.Expected))
	line("bits", "%s, %d per element, %s in memory", number(f.Size), f.Hashes, size(f.Bytes))
	if f.Missing > 0 {
		line("missing", "%d of %d shards: their elements are reported as absent", f.Missing, f.Shards)
	}
	what = fmt.Sprintf("a Bloom filter for %s elements", number(f.Expected))
	switch {
	case f.Shards > 0:
		what += fmt.Sprintf(", made of %d shards", f.Shards)
	case f.OneOf > 0:
		what += fmt.Sprintf(", one of %d shards of another filter", f.OneOf)
	}
	return what
}

// fits reports whether these can be the limits of a key, in their order. The application may have added limits since it used the key.
func fits(s *admin.LimitState, limits []ratelimit.Limit) bool {
	for i, o := range s.Usage {
		if i == len(limits) || limits[i].Aligned != o.Aligned {
			return false
		}
	}
	return true
}

// standing returns the remaining permits under these limits, and the time until one is available. It computes them as the limiter does.
func standing(s *admin.LimitState, limits []ratelimit.Limit) (left int64, next time.Duration) {
	left, next = math.MaxInt64, s.Ahead
	for i, l := range limits {
		var o admin.Usage
		if i < len(s.Usage) {
			o = s.Usage[i]
		}
		if l.Aligned {
			n := max(l.Rate-o.Used, 0)
			if left = min(left, n); n == 0 {
				next = max(next, o.End)
			}
			continue
		}
		burst := l.Burst
		if burst == 0 {
			burst = l.Rate
		}
		unit := float64(l.Per) / float64(l.Rate)
		have := float64(burst)*unit - float64(o.Full)
		left = min(left, max(int64(math.Floor(have/unit+1e-9)), 0))
		next = max(next, time.Duration(math.Ceil(unit-have)))
	}
	if s.Ahead > 0 {
		left = 0
	}
	if left > 0 {
		next = 0
	}
	return left, next
}

// limitFlag is the flag --limit: limits of a rate limiter, in their order.
type limitFlag []ratelimit.Limit

// String returns "", because there are no limits by default.
func (f *limitFlag) String() string { return "" }

// Type returns the name of a value in the help.
func (f *limitFlag) Type() string { return "rate/time" }

// Set adds a limit: 10/1m, 10/1m/20 with a burst of 20, or 10/24h/aligned.
func (f *limitFlag) Set(text string) error {
	words := strings.Split(text, "/")
	if len(words) < 2 || len(words) > 3 {
		return errors.New("want a limit such as 10/1m, 10/1m/20 with a burst, or 10/24h/aligned")
	}
	var l ratelimit.Limit
	var err1, err2, err3 error
	l.Rate, err1 = strconv.ParseInt(words[0], 10, 64)
	l.Per, err2 = time.ParseDuration(words[1])
	if l.Aligned = len(words) == 3 && words[2] == "aligned"; len(words) == 3 && !l.Aligned {
		l.Burst, err3 = strconv.ParseInt(words[2], 10, 64)
	}
	if errors.Join(err1, err2, err3) != nil || l.Rate < 1 || l.Per <= 0 || l.Burst < 0 {
		return errors.New("want a limit such as 10/1m, 10/1m/20 with a burst, or 10/24h/aligned")
	}
	*f = append(*f, l)
	return nil
}
