// Package fencehttp sends fencing tokens over HTTP and rejects requests whose token is stale.
// Package fence documents why, and how to use guards safely.
package fencehttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/lock"
)

// Header is the name of the HTTP header with the token, in decimal. In a 412 response to a stale
// token it has the largest token that was seen.
const Header = "Fencing-Token"

// SetHeader sets the token of a [lock.Hold] or of [FromContext] in the headers of a request.
// SetHeader fails with [fence.ErrNoToken] if the token is 0.
func SetHeader(h http.Header, token uint64) error {
	if token == 0 {
		return wrap(fence.ErrNoToken)
	}
	h.Set(Header, strconv.FormatUint(token, 10))
	return nil
}

// FromResponse returns the [*fence.StaleError] in a response of [WriteError] or [Handler], and nil
// for any other response. It also returns nil if the error given to WriteError matches
// [fence.ErrStale] but is not a *fence.StaleError. That response is a 412 without the header.
func FromResponse(r *http.Response) error {
	highest, err := parse(r.Header)
	if r.StatusCode != http.StatusPreconditionFailed || err != nil {
		return nil // no precondition failed, or a different one
	}
	stale := &fence.StaleError{Highest: highest}
	if r.Request != nil {
		stale.Token, _ = parse(r.Request.Header) // 0 if it is not known
	}
	return wrap(stale)
}

// Handler returns a handler that reads the token of each request and passes it to next in the
// context of the request (see [FromContext]). The response to a request without a valid token is
// 400 Bad Request.
//
// Before next, it calls check, which may be nil. If [WriteError] handles the error of check, it
// responds. Any other error ends the request with 500. For one resource:
//
//	fencehttp.Handler(func(_ *http.Request, token uint64) error { return mark.Check(token) }, next)
//
// and for many, in an [http.ServeMux], with the ID in the path:
//
//	fencehttp.Handler(func(r *http.Request, token uint64) error { return marks.Of(r.PathValue("id")).Check(token) }, next)
//
// A newer holder can overtake a request while next runs. next must therefore write behind a guard,
// in [fence.Mark.Do] or after fencesql.Guard.Advance. Authenticate clients first, because a client
// can send any token, and the largest one wins.
func Handler(check func(r *http.Request, token uint64) error, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := parse(r.Header)
		if err == nil && check != nil {
			err = check(r, token)
		}
		switch {
		case err == nil:
			inner := r.WithContext(NewContext(r.Context(), token))
			defer func() { r.MultipartForm = inner.MultipartForm }() // the server removes its files
			next.ServeHTTP(w, inner)
		case WriteError(w, err):
		default:
			http.Error(w, "the fencing token could not be checked", http.StatusInternalServerError)
		}
	})
}

// WriteError responds to a request whose write was rejected by a guard, and reports whether it did.
// The status is 412 Precondition Failed if err matches [fence.ErrStale], and 400 Bad Request if it
// matches [fence.ErrNoToken]. The caller handles other errors.
//
// The status is 412 because the token is a precondition in a header that failed. A 409 Conflict
// would invite the client to send the request again. That cannot succeed, because the lock is lost.
func WriteError(w http.ResponseWriter, err error) bool {
	var stale *fence.StaleError
	switch {
	case errors.As(err, &stale):
		w.Header().Set(Header, strconv.FormatUint(stale.Highest, 10))
		http.Error(w, stale.Error(), http.StatusPreconditionFailed)
	case errors.Is(err, fence.ErrStale):
		http.Error(w, fence.ErrStale.Error(), http.StatusPreconditionFailed)
	case errors.Is(err, fence.ErrNoToken):
		http.Error(w, fence.ErrNoToken.Error()+" in the header "+Header, http.StatusBadRequest)
	default:
		return false
	}
	return true
}

// parse returns the single token in h.
func parse(h http.Header) (uint64, error) {
	values := h.Values(Header)
	if len(values) != 1 { // with several headers, another server might use a different one
		return 0, fmt.Errorf("%w: got %d headers %s, want 1", fence.ErrNoToken, len(values), Header)
	}
	token, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil || token == 0 {
		return 0, fmt.Errorf("%w: header %s has no valid token", fence.ErrNoToken, Header)
	}
	return token, nil
}

type contextKey struct{}

// NewContext returns a context that carries a token.
func NewContext(ctx context.Context, token uint64) context.Context {
	return context.WithValue(ctx, contextKey{}, token)
}

// FromContext returns the token that ctx carries, or 0, which every guard rejects.
func FromContext(ctx context.Context) uint64 {
	token, _ := ctx.Value(contextKey{}).(uint64)
	return token
}

// wrap adds the operation to err.
func wrap(err error) error { return &lock.Error{Op: "fence", Err: err} }
