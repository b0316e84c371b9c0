package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// SetHeader adds d to the headers of a response, under the name of the policy, as defined by the
// IETF's draft-ietf-httpapi-ratelimit-headers-11. Both fields are lists. SetHeader replaces the
// item of the same name and keeps the items of other policies.
//
//   - RateLimit-Policy has the limit: q permits in w seconds.
//   - RateLimit has the remaining permits of this limit (r), and a time in seconds (t). If d is OK,
//     t is the time until the limit has one more permit. Otherwise it is the time until the call
//     can succeed.
//   - Retry-After has the seconds to wait if d is not OK.
//
// The limit is [Decision].Limit. Seconds are rounded up. SetHeader omits values that d does not
// have, as with [FailOpen], and omits t and Retry-After with [Never]. For a Decision that no
// limiter has created, t is its ResetAfter.
func (d Decision) SetHeader(h http.Header, policy string) {
	quota, window := d.Limit.Rate, d.Limit.Per
	if window > 0 && window < time.Second { // the header has whole seconds only
		quota, window = int64(min(float64(quota)*float64(time.Second)/float64(window), mostInHeader)), time.Second
	}
	name := quoted(policy)
	if quota > 0 {
		words := fmt.Sprintf("%s;q=%d", name, min(quota, mostInHeader))
		if window%time.Second == 0 {
			words += fmt.Sprintf(";w=%d", window/time.Second)
		}
		setItem(h, "RateLimit-Policy", name, words)
	}
	left, after := d.Remaining, d.ResetAfter
	if d.at != 0 || d.id != "" {
		after = d.next
		if !d.OK {
			left = d.left
		}
	}
	if !d.OK && d.RetryAfter > 0 {
		after = d.RetryAfter
		h.Set("Retry-After", strconv.FormatInt(seconds(after), 10))
	}
	if d.Err == nil {
		words := fmt.Sprintf("%s;r=%d", name, min(left, mostInHeader))
		if d.OK || d.RetryAfter != Never {
			words += fmt.Sprintf(";t=%d", seconds(after))
		}
		setItem(h, "RateLimit", name, words)
	}
}

// setItem sets the item of a list field (RFC 9651) that begins with name, and keeps the other items.
func setItem(h http.Header, field, name, item string) {
	var items []string
	for _, value := range h.Values(field) {
		for _, other := range listItems(value) {
			if other != name && !strings.HasPrefix(other, name+";") {
				items = append(items, other)
			}
		}
	}
	h.Set(field, strings.Join(append(items, item), ", "))
}

// listItems returns the items of a list field. Strings in it can contain commas.
func listItems(value string) (items []string) {
	inString, escaped := false, false
	fields := strings.FieldsFunc(value, func(c rune) bool {
		switch {
		case escaped:
			escaped = false
		case c == '"':
			inString = !inString
		case inString:
			escaped = c == '\\'
		}
		return c == ',' && !inString
	})
	for _, item := range fields {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// mostInHeader is the largest integer of a structured field (RFC 9651).
const mostInHeader = 999_999_999_999_999

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// quoted returns a name as a string of a structured field, which can only contain ASCII characters.
func quoted(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(name) {
		switch {
		case c < ' ' || c > '~':
			b.WriteByte('?')
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// quotaExceeded is the problem type (RFC 9457) that the draft defines.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// Handler returns a handler that takes permits for each request before it calls next. The function
// cost returns the key of a request and its number of permits. A request with 0 permits is not
// limited. The parameter name is the name of the policy in the headers of [Decision.SetHeader].
// Handlers can be nested, each with a different name.
//
//	the limiter rejects the request                         429 Too Many Requests, with Retry-After
//	it costs more than a Burst                              413 Content Too Large
//	the key is not valid                                    400 Bad Request
//	Redis is unavailable, and the Policy is FailClosed      503 Service Unavailable, with Retry-After
//	the context of the request was canceled before a reply  503 Service Unavailable, with Retry-After
//	any other error                                         503 Service Unavailable
//
// The responses 429 and 413 have the headers too, and a problem of the type quota-exceeded (RFC
// 9457). A client can repeat a request after 429 or 503. A request with the response 413 or 400
// never succeeds.
//
// Handler calls failed, which may be nil, with the error that led to 413, 400 or 503. For 413 the
// error matches [ErrLimited], and for 400 [lock.ErrBadName]. A request over its limit, a
// disconnected client and the end of the server's BaseContext are not errors.
//
// A client must not be able to choose its key. Use the authenticated user, or the address of the
// connection. That is r.RemoteAddr without its port ([net.SplitHostPort]). Behind a proxy it is the
// address of the proxy. Use the header in which the proxy writes the address of its client,
// provided that the proxy replaces what the client sent. A client with IPv6 has many addresses, so
// limit their first 64 bits.
func Handler(l *Limiter, name string, cost func(*http.Request) (key string, n int64), next http.Handler, failed func(*http.Request, error), opts ...HandlerOption) http.Handler {
	c := handlerConfig{respond: func(w http.ResponseWriter, _ *http.Request, status int, _ error) { respond(w, name, status) }}
	for _, opt := range opts {
		opt(&c)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, n := cost(r)
		if n == 0 {
			next.ServeHTTP(w, r)
			return
		}
		tell := func(err error) {
			if failed != nil {
				failed(r, err)
			}
		}
		if limit, ok := l.below(n); ok {
			err := l.wrap("take", key, &LimitedError{RetryAfter: Never})
			tell(err)
			d := Decision{RetryAfter: Never, Limit: limit, Err: ErrLimited} // with an error, SetHeader omits the remaining permits
			d.SetHeader(w.Header(), name)
			c.respond(w, r, http.StatusRequestEntityTooLarge, err)
			return
		}
		d, err := l.Take(r.Context(), key, n)
		switch {
		case err == nil && d.OK:
			d.SetHeader(w.Header(), name)
			next.ServeHTTP(w, r)
		case err == nil:
			if d.RetryAfter == Never { // the share of FailLocal is too small, but the request can succeed when Redis is available again
				d.RetryAfter = time.Second
			}
			d.SetHeader(w.Header(), name)
			c.respond(w, r, http.StatusTooManyRequests, l.wrap("take", key, &LimitedError{RetryAfter: d.RetryAfter}))
		case errors.Is(err, lock.ErrBadName) && l.bad == nil: // the key is invalid
			tell(err)
			c.respond(w, r, http.StatusBadRequest, err)
		default:
			canceled := errors.Is(err, context.Canceled) && r.Context().Err() != nil // the client disconnected, or the server is shutting down
			if !canceled {
				tell(err)
			}
			if canceled || errors.Is(err, lock.ErrUnavailable) {
				w.Header().Set("Retry-After", "1")
			}
			c.respond(w, r, http.StatusServiceUnavailable, err)
		}
	})
}

// below returns the limit that can never grant n permits at once, if there is one.
func (l *Limiter) below(n int64) (limit Limit, ok bool) {
	if l.bad != nil || n <= l.most {
		return Limit{}, false
	}
	i := slices.IndexFunc(l.limits, func(limit Limit) bool { return limit.Burst == l.most })
	return l.limits[i], true
}

// HandlerOption configures a [Handler].
type HandlerOption func(*handlerConfig)

type handlerConfig struct {
	respond func(w http.ResponseWriter, r *http.Request, status int, err error)
}

// WithErrorResponse sets the function that writes the responses 400, 413, 429 and 503 of a
// [Handler], for example in the format of an API. The argument err is the reason. For 429 and 413
// it is also a [*LimitedError]. The handler has set the headers, Retry-After among them. By default
// the responses are short texts, and problems (RFC 9457) for 429 and 413.
func WithErrorResponse(respond func(w http.ResponseWriter, r *http.Request, status int, err error)) HandlerOption {
	if respond == nil {
		panic("ratelimit: WithErrorResponse(nil): omit the option")
	}
	return func(c *handlerConfig) { c.respond = respond }
}

// respond is the default of WithErrorResponse. name is the name of the policy.
func respond(w http.ResponseWriter, name string, status int) {
	var title string
	switch status {
	case http.StatusBadRequest:
		http.Error(w, "the rate limit key of this request is not valid", status)
		return
	case http.StatusServiceUnavailable:
		http.Error(w, "the rate limit could not be checked", status)
		return
	case http.StatusTooManyRequests:
		title = "Too many requests"
	default:
		title = "The request costs more than the limit ever allows at once"
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// The status has been sent. An error here only means that the client disconnected.
	_, _ = fmt.Fprintf(w, `{"type":%q,"title":%q,"status":%d,"violated-policies":[%q]}`+"\n", quotaExceeded, title, status, ascii(name))
}

// ascii removes the characters that Go strings and JSON strings quote differently.
func ascii(name string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, name)
}
