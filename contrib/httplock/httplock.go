// Package httplock lets an HTTP server work on one request at a time for each lock, in all its replicas.
//
//	lockOf := func(r *http.Request) lock.Locker { return c.NewLock("orders:" + r.PathValue("id")) }
//	mux.Handle("POST /orders/{id}/payment", httplock.Handler(lockOf, pay, nil))
//
// [Handler] answers 409 Conflict while another holder has the lock; [WaitingHandler] waits for the lock. [WriteError] has the same
// answers, for a handler that takes its lock itself.
//
// # Answers
//
//	the lock is busy                                  409 Conflict
//	Redis is unavailable                              503 Service Unavailable, with Retry-After
//	the context of the request ended before a reply   503 Service Unavailable, with Retry-After
//	the client of leasehold was closed before         503 Service Unavailable, with Retry-After
//	the name cannot be that of a lock                 400 Bad Request
//	next has not answered, and the lock was lost      500 Internal Server Error
//	the same, and the client of leasehold was closed  500 Internal Server Error
//	any other error                                   500 Internal Server Error
//
// A client may repeat a request after a 503: next was not called. After a 409 another request is at work, or has just been. After
// a 500 for a lock that ended before next did, it is not known which steps were taken, so the answer does not invite the client to
// repeat them.
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

// Handler returns a handler that makes one attempt at the lock of a request, and calls next while it holds the lock. If another
// request has the lock, next is not called.
//
// lockOf returns the lock of a request, or nil for a request that needs none. Inside a [http.ServeMux], it knows the values of the
// path. A part of the name that comes from the request belongs behind a prefix, such as "orders:", so that no request reaches
// another lock.
//
// next finds the hold by [lock.HoldFromContext]: for its token, its Until, or Extend. The context of the request that next gets is canceled when the client goes away, and when the lock
// is lost or its client is closed; next checks it before each step that must not be done twice. If the lock ended so, and next
// returns without an answer, the answer is 500 Internal Server Error. An answer of next's own is left as it is.
//
// The lock is held until next returns, even after the client went away: the client's next request finds the lock busy while the first one is still at
// work. So a handler that hangs keeps the lock until its process ends; give the lock lock.WithMaxHold to bound that. A short answer leaves the server after
// the lock is released: a client that has it can send the next request. An answer that next flushes, or that is
// larger than the server's buffers (a few KB), can be with its client whole while the lock is still held: the next request may find it busy.
//
// failed is told, if it is not nil, what went wrong apart from a lock that is busy and a client that went away:
// an error that matches lock.ErrUnavailable, lock.ErrLost or another one. It does not answer the request.
func Handler(lockOf func(*http.Request) lock.Locker, next http.Handler, failed func(*http.Request, error), opts ...Option) http.Handler {
	return newHandler(handler{lockOf: lockOf, do: lock.TryDo, next: next, failed: failed}, opts)
}

// WaitingHandler is a [Handler] that waits until it has the lock, the client goes away, or its lock.WithWait times out. After that
// time the answer is 409 Conflict if another holder has the lock, and 503 Service Unavailable if Redis is unavailable. Each request that waits keeps a connection and a goroutine, so give the lock lock.WithWait.
func WaitingHandler(lockOf func(*http.Request) lock.Locker, next http.Handler, failed func(*http.Request, error), opts ...Option) http.Handler {
	return newHandler(handler{lockOf: lockOf, do: lock.Do, next: next, failed: failed}, opts)
}

// Option configures a [Handler] or a [WaitingHandler].
type Option func(*handler)

// WithErrorResponse makes respond write the responses of the handler, for example as JSON. status is the one of the table above, and
// err why. The handler has set Retry-After if the table says so. By default the responses are short texts. respond is not called if
// next has responded.
func WithErrorResponse(respond func(w http.ResponseWriter, r *http.Request, status int, err error)) Option {
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
	a := &answer{ResponseWriter: w}
	called := false
	err := s.do(r.Context(), l, func(ctx context.Context) error {
		called = true
		panics := true
		defer func() {
			if err := lock.HoldFromContext(ctx).Err(); panics && err != nil {
				s.tell(r, err) // the error of Unlock is not returned
			}
		}()
		s.next.ServeHTTP(a, r.WithContext(ctx))
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

// tell tells failed of an error that is neither a busy lock nor a client that went away.
func (s handler) tell(r *http.Request, err error) {
	away := errors.Is(err, context.Canceled) && r.Context().Err() != nil && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrUnavailable)
	if s.failed == nil || away || errors.Is(err, lock.ErrNotAcquired) {
		return
	}
	s.failed(r, err)
}

// ended reports whether err is about a hold that ended before its holder gave it back: it was lost, or the client was closed.
func ended(err error) bool {
	var e *lock.Error
	closed := errors.Is(err, lock.ErrClosed) && (errors.Is(err, lock.ErrNotHeld) || errors.As(err, &e) && e.Op == "hold")
	return closed || errors.Is(err, lock.ErrLost)
}

// cutShort reports whether err is that of an attempt whose context ended before a reply.
func cutShort(err error) bool {
	var e *lock.Error
	return errors.As(err, &e) && (e.Op == "lock" || e.Op == "trylock") && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// WriteError answers a request whose lock was not obtained or was lost, and reports whether it did. It knows the errors of
// the table above. The caller answers other errors. A handler that takes its lock itself calls it with the error of
// TryLock or Lock, or with [context.Cause] of the context of its hold.
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

// Status returns the status of the table above for an error of Lock, TryLock or Unlock, or for the cause of the context of a hold. It
// returns 200 for nil.
func Status(err error) int {
	status, _ := statusOf(err)
	return status
}

// statusOf returns the status for err, and the text of its response; "" for an error that the table does not name.
func statusOf(err error) (status int, text string) {
	switch {
	case err == nil:
		return http.StatusOK, ""
	case ended(err):
		return http.StatusInternalServerError, "the lock of this request was lost; it is not known what was done"
	case errors.Is(err, lock.ErrNotAcquired):
		return http.StatusConflict, "another request has the lock"
	case errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrClosed), cutShort(err):
		return http.StatusServiceUnavailable, "the lock of this request cannot be acquired now; try again later"
	case errors.Is(err, lock.ErrBadName):
		return http.StatusBadRequest, "the name in this request is not valid"
	default:
		return http.StatusInternalServerError, ""
	}
}

// answer knows whether an answer has begun. It passes on what a ResponseWriter can do besides.
type answer struct {
	http.ResponseWriter
	begun bool
}

// Unwrap is for [http.ResponseController].
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(code int) {
	if code >= 200 || code == http.StatusSwitchingProtocols { // others come before the answer
		a.begun = true
	}
	a.ResponseWriter.WriteHeader(code)
}

func (a *answer) Write(b []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(b)
}

// ReadFrom lets the server copy a file without a buffer, if it can.
func (a *answer) ReadFrom(r io.Reader) (int64, error) {
	a.begun = true
	return io.Copy(a.ResponseWriter, r)
}

// Flush sends what was written, if the server can.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is for [http.ResponseController].
func (a *answer) FlushError() error {
	err := http.NewResponseController(a.ResponseWriter).Flush()
	a.begun = a.begun || !errors.Is(err, http.ErrNotSupported) // another error can come after a part was sent
	return err
}

// Hijack takes over the connection, if the server can.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	a.begun = a.begun || err == nil
	return conn, rw, err
}
