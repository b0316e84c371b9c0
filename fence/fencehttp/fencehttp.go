// Package fencehttp carries fencing tokens over HTTP, and refuses requests whose token is stale.
// Package fence says why, and what to mind.
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

// Header is the name of the HTTP header that carries a token, in decimal. In a
// 412 response to a stale token it carries the largest one that was seen.
const Header = "Fencing-Token"

// SetHeader puts a token, that of a [lock.Hold] or of [FromContext],
// into the headers of a request. It fails with [fence.ErrNoToken] when it is 0.
func SetHeader(h http.Header, token uint64) error {
	if token == 0 {
		return wrap(fence.ErrNoToken)
	}
	h.Set(Header, strconv.FormatUint(token, 10))
	return nil
}

// FromResponse returns the [*fence.StaleError] in a response of [WriteError] or [Handler],
// and nil for every other response.
func FromResponse(r *http.Response) error {
	highest, err := parse(r.Header)
	if r.StatusCode != http.StatusPreconditionFailed || err != nil {
		return nil // another precondition failed, or none
	}
	stale := &fence.StaleError{Highest: highest}
	if r.Request != nil {
		stale.Token, _ = parse(r.Request.Header) // 0 when it is not known
	}
	return wrap(stale)
}

// Handler reads the token of each request and gives it to next in the
// request's context; see [FromContext]. A request with no token, or one that
// cannot be read, is answered with 400 Bad Request.
//
// Before next, it calls check, which may be nil. An error ends the request as
// [WriteError] says; an error that WriteError does not know ends it with 500. For one resource:
//
//	fencehttp.Handler(func(_ *http.Request, token uint64) error { return mark.Check(token) }, next)
//
// and for many, inside a [http.ServeMux], which knows the path:
//
//	fencehttp.Handler(func(r *http.Request, token uint64) error { return marks.Of(r.PathValue("id")).Check(token) }, next)
//
// A newer holder can overtake a request while next runs. So let next write
// behind a guard of its own: in [fence.Mark.Do], or after fencesql.Guard.Advance. And admit
// only clients that may write at all: a token is whatever a client sends, and
// the largest one wins.
func Handler(check func(r *http.Request, token uint64) error, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := parse(r.Header)
		if err == nil && check != nil {
			err = check(r, token)
		}
		switch {
		case err == nil:
			next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), token)))
		case WriteError(w, err):
		default:
			http.Error(w, "the fencing token could not be checked", http.StatusInternalServerError)
		}
	})
}

// WriteError answers a request whose write a guard refused, and reports whether it
// did: with 412 Precondition Failed where err matches [fence.ErrStale], with 400 Bad
// Request where it matches [fence.ErrNoToken]. The caller answers other errors.
//
// It is 412, because the token is a condition in a header that turned out to be false.
// A 409 Conflict would invite the client to mend its request and send it again,
// and there is nothing to mend: the lock is lost.
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

// parse reads the one token that is in h.
func parse(h http.Header) (uint64, error) {
	values := h.Values(Header)
	if len(values) != 1 { // of two, another server might choose the other
		return 0, fmt.Errorf("%w: %d headers %s", fence.ErrNoToken, len(values), Header)
	}
	token, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil || token == 0 {
		return 0, fmt.Errorf("%w: the header %s has none", fence.ErrNoToken, Header)
	}
	return token, nil
}

type contextKey struct{}

// NewContext returns a context that carries a token.
func NewContext(ctx context.Context, token uint64) context.Context {
	return context.WithValue(ctx, contextKey{}, token)
}

// FromContext returns the token that ctx carries, or 0, which every guard refuses.
func FromContext(ctx context.Context) uint64 {
	token, _ := ctx.Value(contextKey{}).(uint64)
	return token
}

// wrap returns err as every error of this module is.
func wrap(err error) error { return &lock.Error{Op: "fence", Err: err} }
