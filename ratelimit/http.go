package ratelimit

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// SetHeader writes d to the headers of a response, under the name of the policy, as the IETF's
// draft-ietf-httpapi-ratelimit-headers-10 defines them. RateLimit-Policy has the limit (q units in w
// seconds). RateLimit has the units that are left (r), and the seconds until all are back, or until the call
// can succeed if d is not OK (t). If d is not OK, Retry-After has the seconds to wait. All seconds are rounded up.
// SetHeader leaves out a header of which d says nothing, as with [Open] or [Never].
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
		h.Set("RateLimit-Policy", words)
	}
	after := d.ResetAfter
	if !d.OK && d.RetryAfter > 0 {
		after = d.RetryAfter
		h.Set("Retry-After", strconv.FormatInt(seconds(after), 10))
	}
	if d.Err == nil {
		h.Set("RateLimit", fmt.Sprintf("%s;r=%d;t=%d", name, min(d.Remaining, mostInHeader), seconds(after)))
	}
}

// mostInHeader is the largest integer of a structured field (RFC 9651).
const mostInHeader = 999_999_999_999_999

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// quoted returns a name as a string of a structured field, which has ASCII characters only.
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

// Handler returns a handler that takes units for each request before it calls next. cost returns the key of
// a request and the number of units that it costs; a request of 0 units is not limited. name is the name of the
// policy in the headers of [Decision.SetHeader], which all other responses have, except those with 503.
//
// If the limiter refuses a request, the answer is 429 Too Many Requests with a problem of the type
// quota-exceeded (RFC 9457). If Redis gives no answer, the Policy of the limiter decides. With [Closed], and after
// any other error, the answer is 503 Service Unavailable, and Handler calls failed, which may be nil, with the error.
//
// A client must not be able to choose its key. Good keys are a user that has logged in and the address
// of the connection. A header that any client can send is a bad one.
func Handler(l *Limiter, name string, cost func(*http.Request) (key string, n int64), next http.Handler, failed func(*http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, n := cost(r)
		if n == 0 {
			next.ServeHTTP(w, r)
			return
		}
		d, err := l.Take(r.Context(), key, n)
		switch {
		case err != nil:
			if failed != nil {
				failed(r, err)
			}
			if errors.Is(err, lock.ErrUnavailable) {
				w.Header().Set("Retry-After", "1")
			}
			http.Error(w, "the rate limit could not be checked", http.StatusServiceUnavailable)
		case d.OK:
			d.SetHeader(w.Header(), name)
			next.ServeHTTP(w, r)
		default:
			d.SetHeader(w.Header(), name)
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(http.StatusTooManyRequests)
			// The status is the answer. An error here means only that the client is gone.
			_, _ = fmt.Fprintf(w, `{"type":%q,"title":"Too many requests","status":429,"violated-policies":[%q]}`+"\n", quotaExceeded, ascii(name))
		}
	})
}

// ascii returns name without the characters that a Go string and a JSON string quote differently.
func ascii(name string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, name)
}
