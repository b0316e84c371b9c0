package httplock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/httplock"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// lockOf returns the lock of an order, or nil for requests to other paths.
func lockOf(c *client.Client, opts ...lock.Option) func(*http.Request) lock.Locker {
	return func(r *http.Request) lock.Locker {
		if r.PathValue("id") == "" {
			return nil
		}
		return c.NewLock("orders:"+r.PathValue("id"), opts...)
	}
}

// serve starts a server that handles orders with h.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", h)
	mux.Handle("POST /", h)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// post sends a request and returns its response and the body.
func post(t *testing.T, s *httptest.Server, path string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(s.URL+path, "", nil)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return &http.Response{}, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return resp, string(body)
}

func wantStatus(t *testing.T, s *httptest.Server, path string, want int) {
	t.Helper()
	if resp, _ := post(t, s, path); resp.StatusCode != want {
		t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
	}
}

// fatal returns a failed function for requests that must not fail.
func fatal(t *testing.T) func(*http.Request, error) {
	return func(r *http.Request, err error) { t.Errorf("%s: %v", r.URL.Path, err) }
}

var noContent = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })

// Two replicas process one order at a time. The second request gets 409.
func TestHandler(t *testing.T) {
	redis := locktest.NewServer(t)
	inside, leave := make(chan lock.Hold), make(chan struct{})
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "slow" {
			inside <- lock.HoldFromContext(r.Context())
			<-leave
		}
		noContent(w, r)
	})
	one := serve(t, httplock.Handler(lockOf(redis.Client(t)), next, fatal(t)))
	two := serve(t, httplock.Handler(lockOf(redis.Client(t)), next, fatal(t)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		wantStatus(t, one, "/orders/slow", http.StatusNoContent)
	}()
	if h := <-inside; h == nil || h.Token() == 0 || h.Err() != nil {
		t.Errorf("the hold is %v", h)
	}
	for _, s := range []*httptest.Server{one, two} {
		wantStatus(t, s, "/orders/slow", http.StatusConflict)
		wantStatus(t, s, "/orders/42", http.StatusNoContent)
		wantStatus(t, s, "/elsewhere", http.StatusNoContent)
	}
	close(leave)
	<-done
	for range 20 { // a client that has received the response finds the lock free
		wantStatus(t, two, "/orders/42", http.StatusNoContent)
	}
}

// With a semaphore, the number of concurrent requests is the number of permits.
func TestHandler_permits(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	inside, leave := make(chan lock.Hold), make(chan struct{})
	url := serve(t, httplock.Handler(
		func(*http.Request) lock.Locker { return c.NewSemaphore("reports", 2) },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inside <- lock.HoldFromContext(r.Context())
			<-leave
			noContent(w, r)
		}), fatal(t)))
	var requests sync.WaitGroup
	for range 2 {
		requests.Go(func() { wantStatus(t, url, "/orders/1", http.StatusNoContent) })
	}
	if a, b := <-inside, <-inside; a == nil || b == nil || a.Owner() == b.Owner() {
		t.Errorf("the holds are %v and %v", a, b)
	}
	wantStatus(t, url, "/orders/1", http.StatusConflict)
	close(leave)
	requests.Wait()
}

// A request waits for at most the time of WithWait.
func TestWaitingHandler_busy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := locktest.NewServer(t)
		h, err := redis.Client(t).NewLock("orders:42").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer h.Unlock(context.Background())
		handler := httplock.WaitingHandler(lockOf(redis.Client(t), lock.WithWait(time.Minute)), noContent, fatal(t))
		r := httptest.NewRequest(http.MethodPost, "/orders/42", nil)
		r.SetPathValue("id", "42")
		w, began := httptest.NewRecorder(), time.Now()
		handler.ServeHTTP(w, r)
		if took := time.Since(began); w.Code != http.StatusConflict || took != time.Minute {
			t.Errorf("%d after %v", w.Code, took)
		}
	})
}

// A request waits for another one.
func TestWaitingHandler(t *testing.T) {
	redis := locktest.NewServer(t)
	c := redis.Client(t)
	holder := redis.Client(t).NewLock("orders:42")
	h, err := holder.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	patient := serve(t, httplock.WaitingHandler(lockOf(c), noContent, fatal(t)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		wantStatus(t, patient, "/orders/42", http.StatusNoContent)
	}()
	for {
		if s, err := holder.Inspect(t.Context()); err != nil {
			t.Fatal(err)
		} else if len(s.Waiters) == 1 {
			break
		}
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	<-done
}

// Each error has its response, and failed is called for faults.
func TestHandler_errors(t *testing.T) {
	silent, err := client.Open(t.Context(), "redis://127.0.0.1:1", client.WithLazyConnect(), client.WithWatchdogTimeout(time.Second)) // no server listens there
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close(context.Background())
	redis := locktest.NewServer(t)
	closed := redis.Client(t)
	if err := closed.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := redis.Redis()
	if err := r.Do(t.Context(), r.B().Set().Key("orders:text").Value("of another program").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		c          *client.Client
		path       string
		status     int
		retryAfter string
		told       error
	}{
		{silent, "/orders/42", http.StatusServiceUnavailable, "5", lock.ErrUnavailable},
		{closed, "/orders/42", http.StatusServiceUnavailable, "5", lock.ErrClosed},
		{redis.Client(t), "/orders/" + strings.Repeat("4", 5000), http.StatusBadRequest, "", lock.ErrBadName},
		{redis.Client(t), "/orders/text", http.StatusInternalServerError, "", lock.ErrWrongType},
	} {
		for name, handler := range map[string]http.Handler{
			"Handler": httplock.Handler(lockOf(test.c), http.NotFoundHandler(), func(_ *http.Request, err error) {
				if !errors.Is(err, test.told) {
					t.Errorf("%s: %v", test.path, err)
				}
			}),
			"nobody is told": httplock.Handler(lockOf(test.c), http.NotFoundHandler(), nil),
			"own responses": httplock.WaitingHandler(lockOf(test.c, lock.WithWait(0)), http.NotFoundHandler(), nil, httplock.WithErrorResponse(func(w http.ResponseWriter, r *http.Request, status int, err error) {
				if status != test.status || status != httplock.Status(err) || !errors.Is(err, test.told) || r.URL.Path != test.path {
					t.Errorf("%s: %d, %v", r.URL.Path, status, err)
				}
				w.WriteHeader(status)
				fmt.Fprint(w, "own")
			})),
		} {
			resp, body := post(t, serve(t, handler), test.path)
			if resp.StatusCode != test.status || resp.Header.Get("Retry-After") != test.retryAfter || (body == "own") != (name == "own responses") {
				t.Errorf("%s, %v: %d, %v, %s", name, test.told, resp.StatusCode, resp.Header, body)
			}
		}
	}
}

// If the lock is lost and the handler returns without a response, the response is 500 instead of an empty 200. A response of the
// handler is not changed.
func TestHandler_lost(t *testing.T) {
	for own, want := range map[int]int{
		0:                              http.StatusInternalServerError,
		http.StatusEarlyHints:          http.StatusInternalServerError, // not the final response
		http.StatusAccepted:            http.StatusAccepted,
		http.StatusTeapot:              http.StatusTeapot,
		http.StatusFailedDependency:    http.StatusFailedDependency,
		http.StatusInsufficientStorage: http.StatusInsufficientStorage,
	} {
		t.Run(fmt.Sprint(own), func(t *testing.T) {
			c := locktest.NewServer(t).Client(t)
			told := make(chan error, 1)
			s := serve(t, httplock.Handler(lockOf(c), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := c.NewLock("orders:42").ForceUnlock(r.Context()); err != nil {
					t.Error(err)
				}
				<-r.Context().Done()
				if err := context.Cause(r.Context()); !errors.Is(err, lock.ErrForceUnlocked) {
					t.Errorf("the cause is %v", err)
				}
				if own != 0 {
					w.WriteHeader(own)
				}
			}), func(_ *http.Request, err error) { told <- err }, httplock.WithErrorResponse(func(w http.ResponseWriter, _ *http.Request, status int, err error) {
				if !errors.Is(err, lock.ErrLost) {
					t.Errorf("a response to %v", err)
				}
				w.WriteHeader(status)
				fmt.Fprint(w, "lost")
			})))
			resp, body := post(t, s, "/orders/42")
			if resp.StatusCode != want || (body == "lost") != (want != own) {
				t.Errorf("%d, %q, want %d", resp.StatusCode, body, want)
			}
			if err := <-told; !errors.Is(err, lock.ErrLost) {
				t.Errorf("told %v", err)
			}
		})
	}
}

// Closing the leasehold client while a handler runs ends the hold like a loss: it is unknown what was done.
func TestHandler_closedMeanwhile(t *testing.T) {
	c, err := client.New(locktest.NewServer(t).Redis())
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	causes := make(chan error, 1)
	told := make(chan error, 1)
	s := serve(t, httplock.Handler(lockOf(c), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		go func() { closed <- c.Close(context.Background()) }()
		<-r.Context().Done()
		causes <- context.Cause(r.Context())
	}), func(_ *http.Request, err error) { told <- err }))
	wantStatus(t, s, "/orders/42", http.StatusInternalServerError)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for _, err := range []error{<-causes, <-told} {
		w := httptest.NewRecorder()
		if !errors.Is(err, lock.ErrClosed) || !httplock.WriteError(w, err) || w.Code != http.StatusInternalServerError || w.Header().Get("Retry-After") != "" {
			t.Errorf("%v: %d, %v", err, w.Code, w.Header())
		}
	}
}

// If the client disconnects, the work ends, failed is not called, and the lock is released.
func TestHandler_clientGoesAway(t *testing.T) {
	redis := locktest.NewServer(t)
	inside, ended := make(chan struct{}), make(chan struct{})
	s := serve(t, httplock.WaitingHandler(lockOf(redis.Client(t)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-r.Context().Done()
		close(ended)
	}), fatal(t)))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/orders/42", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-inside
		cancel()
	}()
	if _, err := s.Client().Do(r); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-ended
	h, err := redis.Client(t).NewLock("orders:42").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// A missing function is a bug of the program, and is detected at startup.
func TestWithErrorResponse_nil(t *testing.T) {
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "httplock: WithErrorResponse(nil)") {
			t.Errorf("%s", said)
		}
	}()
	httplock.WithErrorResponse(nil)
}

// A panic reaches the server, and the lock is released.
func TestHandler_panics(t *testing.T) {
	redis := locktest.NewServer(t)
	s := serve(t, httplock.Handler(lockOf(redis.Client(t)), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	}), fatal(t)))
	if resp, err := http.Post(s.URL+"/orders/42", "", nil); err == nil {
		t.Errorf("it has an answer: %s", resp.Status)
		resp.Body.Close()
	}
	h, err := redis.Client(t).NewLock("orders:42").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// If the handler panics after a loss, the outer handler writes the response.
func TestHandler_panicsAfterLoss(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	inner := httplock.Handler(lockOf(c), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := c.NewLock("orders:42").ForceUnlock(r.Context()); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
		panic("out of paper")
	}), nil)
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusTeapot)
			}
		}()
		inner.ServeHTTP(w, r)
	}))
	wantStatus(t, s, "/orders/42", http.StatusTeapot)
}

// The ResponseWriter passed to next supports the same operations as without the lock.
func TestHandler_responseWriter(t *testing.T) {
	redis := locktest.NewServer(t)
	var handling sync.WaitGroup // the server drops a hijacked connection, so its Close does not wait for the handler
	handler := httplock.Handler(lockOf(redis.Client(t)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.PathValue("id") {
		case "flush":
			fmt.Fprint(w, "one ")
			w.(http.Flusher).Flush()
			fmt.Fprint(w, "two")
		case "copy":
			n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("a file"))
			if n != 6 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		case "deadline":
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			fmt.Fprint(w, "in time")
		case "hijack":
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprint(rw, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nown")
			rw.Flush()
		}
	}), fatal(t))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handling.Add(1)
		defer handling.Done()
		handler.ServeHTTP(w, r)
	}))
	for path, want := range map[string]string{"flush": "one two", "copy": "a file", "deadline": "in time", "hijack": "own"} {
		if _, body := post(t, s, "/orders/"+path); body != want {
			t.Errorf("%s: %q", path, body)
		}
	}
	handling.Wait()
}

// plainWriter supports neither Flush nor Hijack.
type plainWriter struct{ http.ResponseWriter }

// An operation that the ResponseWriter does not support fails, and does not count as a response. The response for the lost lock
// follows.
func TestHandler_plainResponseWriter(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	for name, f := range map[string]func(http.ResponseWriter) error{
		"Flush": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
		"Flush without an error": func(w http.ResponseWriter) error {
			w.(http.Flusher).Flush()
			return http.ErrNotSupported
		},
		"Hijack": func(w http.ResponseWriter) error { _, _, err := http.NewResponseController(w).Hijack(); return err },
	} {
		h := httplock.Handler(func(*http.Request) lock.Locker { return c.NewLock("orders") }, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := f(w); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := c.NewLock("orders").ForceUnlock(r.Context()); err != nil {
				t.Error(err)
			}
			<-r.Context().Done()
		}), nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(plainWriter{w}, httptest.NewRequest(http.MethodPost, "/", nil))
		if w.Code != http.StatusInternalServerError {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}

// WriteError leaves other errors to its caller.
func TestRefuse(t *testing.T) {
	for _, err := range []error{nil, io.EOF, lock.ErrWrongType, context.Canceled} {
		w := httptest.NewRecorder()
		if httplock.WriteError(w, err) || w.Body.Len() > 0 {
			t.Errorf("%v: %d", err, w.Code)
		}
	}
	w := httptest.NewRecorder()
	if !httplock.WriteError(w, &lock.Error{Op: "hold", Name: "x", Err: lock.ErrLost}) || w.Code != http.StatusInternalServerError {
		t.Errorf("lost: %d", w.Code)
	}
	if _, err := bufio.NewReader(w.Body).ReadString('\n'); err != nil {
		t.Errorf("no text: %v", err)
	}
}

// Status returns a status for each error, and 200 for nil.
func TestStatus(t *testing.T) {
	for err, want := range map[error]int{
		nil:                 http.StatusOK,
		lock.ErrNotAcquired: http.StatusConflict,
		lock.ErrUnavailable: http.StatusServiceUnavailable,
		lock.ErrLost:        http.StatusInternalServerError,
		lock.ErrBadName:     http.StatusBadRequest,
		lock.ErrWrongType:   http.StatusInternalServerError,
		io.ErrUnexpectedEOF: http.StatusInternalServerError,

		&lock.Error{Op: "lock", Name: "orders:42", Err: lock.ErrUnavailable}:   http.StatusServiceUnavailable,
		&lock.Error{Op: "unlock", Name: "orders:42", Err: lock.ErrUnavailable}: http.StatusInternalServerError, // after the work
	} {
		if got := httplock.Status(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// The handler proxies the response of another server, and the loss interrupts it before the first byte. The response is 500, and
// not an empty 200.
func TestHandler_lostBeforeTheFirstByte(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	s := httptest.NewServer(httplock.Handler(func(*http.Request) lock.Locker { return c.NewLock("orders:42") }, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := c.NewLock("orders:42").ForceUnlock(context.Background()); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
		if n, err := io.Copy(w, iotest.ErrReader(context.Cause(r.Context()))); n != 0 || err == nil {
			t.Errorf("copied %d, %v", n, err)
		}
	}), nil))
	defer s.Close()
	resp, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusInternalServerError {
		t.Errorf("status %d, want %d", resp.StatusCode, http.StatusInternalServerError)
	}
	http.DefaultClient.CloseIdleConnections()
}

// The client disconnects, and repeats its request while the first handler is still running. Only one handler runs at a time,
// however long it takes, and the first one still has the lock.
func TestHandler_worksOnAfterItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := locktest.NewServer(t)
		handler := func(next http.HandlerFunc) http.Handler {
			return httplock.Handler(lockOf(redis.Client(t)), next, fatal(t))
		}
		request := func(ctx context.Context) *http.Request {
			r := httptest.NewRequest(http.MethodPost, "/orders/42", nil).WithContext(ctx)
			r.SetPathValue("id", "42")
			return r
		}
		again := func(want int) {
			t.Helper()
			w := httptest.NewRecorder()
			handler(noContent).ServeHTTP(w, request(t.Context()))
			if w.Code != want {
				t.Errorf("another request: %d, want %d", w.Code, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		handler(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
			for range 10 {
				time.Sleep(time.Minute)
				if err := lock.HoldFromContext(r.Context()).Err(); err != nil {
					t.Error(err)
				}
				again(http.StatusConflict)
			}
		}).ServeHTTP(httptest.NewRecorder(), request(ctx))
		again(http.StatusNoContent)
	})
}

// Requests exclude each other even if the base context of the server is the context of a hold, and all of them carry its owner.
// Handlers of one request share its owner.
func TestHandler_ownerOfTheServer(t *testing.T) {
	c := locktest.NewServer(t).Client(t)
	leader, err := c.NewLock("leader").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Unlock(context.Background())
	request := func(next http.HandlerFunc) int {
		one := httplock.Handler(lockOf(c), next, fatal(t))
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(leader.Context(), "POST", "/orders/42", nil)
		r.SetPathValue("id", "42")
		httplock.Handler(lockOf(c), one, fatal(t)).ServeHTTP(w, r)
		return w.Code
	}
	first := request(func(w http.ResponseWriter, _ *http.Request) {
		if second := request(func(http.ResponseWriter, *http.Request) { t.Error("two requests at once") }); second != http.StatusConflict {
			t.Errorf("the second request: %d", second)
		}
	})
	if first != http.StatusOK {
		t.Errorf("the first request: %d", first)
	}
}

// The server removes the temporary files of an upload that next parses.
func TestHandler_upload(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	files := func() int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		return len(entries)
	}
	next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil || files() != 1 {
			t.Errorf("%v, and %d files while next runs", err, files())
		}
	})
	c := locktest.NewServer(t).Client(t)
	s := serve(t, httplock.Handler(lockOf(c), httplock.Handler(lockOf(c), next, fatal(t)), fatal(t)))
	resp, err := http.Post(s.URL+"/orders/42", "multipart/form-data; boundary=b", strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"scan\"; filename=\"bill.pdf\"\r\n\r\nmore than one byte\r\n--b--\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	s.Close() // waits until the server has finished the request
	if n := files(); n != 0 {
		t.Errorf("%d files are left", n)
	}
}
