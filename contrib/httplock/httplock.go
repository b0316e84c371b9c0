// Package httplock makes an HTTP server handle one request at a time per lock, across all replicas.
//
//	lockOf := func(r *http.Request) lock.Locker { return c.NewLock("orders:" + r.PathValue("id")) }
//	mux.Handle("POST /orders/{id}/payment", httplock.Handler(lockOf, pay, nil))
//
// [Handler] responds with 409 Conflict while another holder has the lock. [WaitingHandler] waits
// for the lock. [WriteError] writes the same responses, for a handler that acquires its lock
// itself.
//
// # Responses
//
//	the lock is busy                                        409 Conflict
//	Redis is unavailable                                    503 Service Unavailable, with Retry-After
//	the context of the request was canceled before a reply  503 Service Unavailable, with Retry-After
//	the client of leasehold is closed                       503 Service Unavailable, with Retry-After
//	the name of the lock is not valid                       400 Bad Request
//	the lock was lost before next responded                 500 Internal Server Error
//	the client of leasehold was closed before that          500 Internal Server Error
//	any other error                                         500 Internal Server Error
//
// A client may repeat a request after 503, because next was not called. After 409 another request
// is being handled, or was until just now. After 500 the hold ended before next responded, and it
// is unknown which steps were done. The response therefore does not invite the client to repeat
// them.
package httplock

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/leasehold-go/leasehold/lock"
)

// retryAfter is the value of the header Retry-After, in seconds.
const retryAfter = "5"

// Handler returns a handler that makes one attempt at the lock of a request, and calls next while
// it holds the lock. If another request has the lock, next is not called.
//
// lockOf returns the lock of a request, or nil for a request that needs none. In a [http.ServeMux],
// it can use the path values. Put a prefix such as "orders:" before a part of the name that comes
// from the request, so that no request reaches another lock. Each request is its own owner, even if
// the BaseContext of the server is the context of a hold. A request that next sends to the same
// server is another request, and finds the lock busy. With a [WaitingHandler], it waits for itself.
//
// In next, [lock.HoldFromContext] returns the hold. The context of the request is canceled when the
// client disconnects, and when the lock is lost or its client is closed. next must check it before
// each step that must not be done twice. If the lock ended that way, and next returns without a
// response, the response is 500 Internal Server Error. A response of next is not changed.
//
// The lock is held until next returns, even after the client disconnected. A second request of the
// client finds the lock busy while the first one is still being handled. A handler that hangs
// therefore keeps the lock until its process ends. Use lock.WithMaxHold to limit that. A short
// response leaves the server after the lock is released. A response that next flushes can reach its
// client while the lock is still held. So can a response that is larger than the buffers of the
// server (a few KB).
//
// If failed is not nil, it is called with all errors other than a busy lock and a disconnected
// client. The error matches lock.ErrUnavailable, lock.ErrLost or another one. failed does not write
// the response.
func Handler(lockOf func(*http.Request) lock.Locker, next http.Handler, failed func(*http.Request, error), opts ...Option) http.Handler {
	return newHandler(handler{lockOf: lockOf, do: lock.TryDo, next: next, failed: failed}, opts)
}

// WaitingHandler is a [Handler] that waits until it has the lock, the client disconnects, or its
// lock.WithWait times out. After that timeout the response is 409 Conflict if another holder has
// the lock, and 503 Service Unavailable if Redis is unavailable. Each waiting request uses a
// connection and a goroutine, so use lock.WithWait.
func WaitingHandler(lockOf func(*http.Request) lock.Locker, next http.Handler, failed func(*http.Request, error), opts ...Option) http.Handler {
	return newHandler(handler{lockOf: lockOf, do: lock.Do, next: next, failed: failed}, opts)
}

// Option configures a [Handler] or a [WaitingHandler].
type Option func(*handler)

// WithErrorResponse sets the function that writes the responses of the handler, for example as
// JSON. The argument status is the status of the table above, and err is the reason. The handler
// has set Retry-After if the table says so. By default the responses are short texts. respond is
// not called if next has responded.
func WithErrorResponse(respond func(w http.ResponseWriter, r *http.Request, status int, err error)) Option {
	if respond == nil {
		panic("httplock: WithErrorResponse(nil): omit the option")
	}
	return func(s *handler) { s.respond = respond }
}

func newHandler(s handler, opts []Option) http.Handler {
	s.respond = func(w http.ResponseWriter, _ *http.Request, status int, err error) {
		if _, text := statusOf(err); text != "" {
			http.Error(w, text, status)
		} else {
			http.Error(w, "the lock of this request could not be acquired", status)
		}
	}
	for _, opt := range opts {
		opt(&s)
	}
	return s
}

type handler struct {
	lockOf func(*http.Request) lock.Locker
	do     func(context.Context, lock.Locker, func(context.Context) error) error
	next   http.Handler
	failed func(*http.Request, error)

	respond func(w http.ResponseWriter, r *http.Request, status int, err error)
}

// fail writes the response to a request that failed with err.
func (s handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := Status(err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	s.respond(w, r, status, err)
}

func (s handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l := s.lockOf(r)
	if l == nil {
		s.next.ServeHTTP(w, r)
		return
	}
	ctx := r.Context()
	if ctx.Value(ownerKey{}) == nil { // no other Handler has set the owner of this request
		ctx = context.WithValue(lock.ContextWithNewOwner(ctx), ownerKey{}, true)
	}
	a := &answer{ResponseWriter: w}
	called := false
	err := s.do(ctx, l, func(ctx context.Context) error {
		called = true
		inner := r.WithContext(ctx)
		panics := true
		defer func() {
			r.MultipartForm = inner.MultipartForm // the server removes its files
			if err := lock.HoldFromContext(ctx).Err(); panics && err != nil {
				s.tell(r, err) // the error of Unlock is not returned
			}
		}()
		s.next.ServeHTTP(a, inner)
		panics = false
		return nil
	})
	switch {
	case err == nil:
	case !called:
		s.tell(r, err)
		s.fail(w, r, err)
	default:
		s.tell(r, err)
		if !a.begun && ended(err) {
			s.fail(w, r, err)
		}
	}
}

// ownerKey is the key of a context value that marks a request with its own owner.
type ownerKey struct{}

// tell calls failed, unless err means that the lock was busy or the client disconnected.
func (s handler) tell(r *http.Request, err error) {
	away := errors.Is(err, context.Canceled) && r.Context().Err() != nil && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrUnavailable)
	if s.failed == nil || away || errors.Is(err, lock.ErrNotAcquired) {
		return
	}
	s.failed(r, err)
}

// ended reports whether err means that a hold ended before its holder released it: it was lost, or the client was closed.
func ended(err error) bool {
	var e *lock.Error
	closed := errors.Is(err, lock.ErrClosed) && (errors.Is(err, lock.ErrNotHeld) || errors.As(err, &e) && e.Op == "hold")
	return closed || errors.Is(err, lock.ErrLost)
}

// cutShort reports whether err is the error of an attempt whose context was canceled before a reply.
func cutShort(err error) bool {
	var e *lock.Error
	return errors.As(err, &e) && (e.Op == "lock" || e.Op == "trylock") && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// notUnlocked reports whether err is an error of Unlock. The work is done, so the client must not repeat the request.
func notUnlocked(err error) bool {
	var e *lock.Error
	return errors.As(err, &e) && e.Op == "unlock"
}

// WriteError responds to a request whose lock was not acquired or was lost, and reports whether it
// did. It handles the errors of the table above. The caller handles others. A handler that acquires
// its lock itself calls it with the error of TryLock or Lock, or with [context.Cause] of the
// context of its hold.
func WriteError(w http.ResponseWriter, err error) bool {
	status, text := statusOf(err)
	if text == "" {
		return false
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	http.Error(w, text, status)
	return true
}

// Status returns the status of the table above for an error of Lock, TryLock or Unlock. It also
// accepts the cause of the context of a hold. It returns 200 for nil.
func Status(err error) int {
	status, _ := statusOf(err)
	return status
}

// statusOf returns the status for err and the text of its response, or "" for an error that is not in the table.
func statusOf(err error) (status int, text string) {
	switch {
	case err == nil:
		return http.StatusOK, ""
	case ended(err):
		return http.StatusInternalServerError, "the lock of this request was lost; it is not known what was done"
	case errors.Is(err, lock.ErrNotAcquired):
		return http.StatusConflict, "another request has the lock"
	case notUnlocked(err):
		return http.StatusInternalServerError, ""
	case errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrClosed), cutShort(err):
		return http.StatusServiceUnavailable, "the lock of this request cannot be acquired now; try again later"
	case errors.Is(err, lock.ErrBadName):
		return http.StatusBadRequest, "the name in this request is not valid"
	default:
		return http.StatusInternalServerError, ""
	}
}

// answer is a ResponseWriter that records whether a response has begun. It keeps the optional methods of the ResponseWriter
// it wraps.
type answer struct {
	http.ResponseWriter
	begun bool
}

// Unwrap is for [http.ResponseController].
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(code int) {
	if code >= 200 || code == http.StatusSwitchingProtocols { // other codes precede the response
		a.begun = true
	}
	a.ResponseWriter.WriteHeader(code)
}

func (a *answer) Write(b []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(b)
}

// ReadFrom lets the server copy a file without a buffer, if supported.
func (a *answer) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(a.ResponseWriter, r)
	a.begun = a.begun || n > 0 // a body that fails immediately has sent nothing
	return n, err
}

// Flush sends what was written, if supported.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is for [http.ResponseController].
func (a *answer) FlushError() error {
	err := http.NewResponseController(a.ResponseWriter).Flush()
	a.begun = a.begun || !errors.Is(err, http.ErrNotSupported) // after any other error, a part may have been sent
	return err
}

// Hijack takes over the connection, if supported.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	a.begun = a.begun || err == nil
	return conn, rw, err
}
