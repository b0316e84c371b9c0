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

// SetHeader puts d into the headers of a response, under the name of the policy, in the words of the
// IETF's draft-ietf-httpapi-ratelimit-headers-10: RateLimit-Policy with the limit (q units in w
// seconds), RateLimit with what is left (r) and after how many seconds that changes (t); and if d is not OK,
// Retry-After in seconds, rounded up. Where d says nothing of them, as with [Open] or [Never],
// they are left out.
func (d Decision) SetHeader(h http.Header, policy string) {
	quota, window := d.Limit.Rate, d.Limit.Per
	if window > 0 && window < time.Second { // there are no parts of a second
		quota, window = int64(float64(quota)*float64(time.Second)/float64(window)), time.Second
	}
	name := quoted(policy)
	if quota > 0 {
		words := fmt.Sprintf("%s;q=%d", name, quota)
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
		h.Set("RateLimit", fmt.Sprintf("%s;r=%d;t=%d", name, d.Remaining, seconds(after)))
	}
}

// seconds is d in seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// quoted is a name as a string of a structured field, which is of ASCII only.
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

// quotaExceeded is the type of the problem in RFC 9457's words, as the draft names it.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// Handler takes units for each request before next has it. cost says which key a request counts
// for and how many units it costs; a request of 0 units is not limited. name is that of the policy in the
// headers of [Decision.SetHeader], which every response has.
//
// A request that is refused is answered by 429 Too Many Requests with a problem of the type quota-exceeded
// (RFC 9457). Where Redis gives no answer, the Policy of the limiter decides; with [Closed], and after any other
// error, the answer is 503 Service Unavailable, and failed, which may be nil, is told the error.
//
// The key should be what nobody can choose at will: a user who has logged in, or the address of
// the connection; not a header that anybody can send.
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
			// The answer is the status; that the client is gone is not our matter.
			_, _ = fmt.Fprintf(w, `{"type":%q,"title":"Too many requests","status":429,"violated-policies":[%q]}`+"\n", quotaExceeded, ascii(name))
		}
	})
}

// ascii is name as both a Go and a JSON string can quote it.
func ascii(name string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, name)
}
