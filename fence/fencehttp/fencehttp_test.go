package fencehttp_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/fence/fencehttp"
	"github.com/leasehold-go/leasehold/internal/fencetest"
	"github.com/leasehold-go/leasehold/lock"
)

const (
	younger uint64 = fencetest.Younger
	older   uint64 = fencetest.Older
)

// tells responds with the token in the request's context.
var tells = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, fencehttp.FromContext(r.Context()))
})

func TestHandler(t *testing.T) {
	newMark := func() func(*http.Request, uint64) error {
		var m fence.Mark
		if err := m.Check(older); err != nil {
			t.Fatal(err)
		}
		return func(_ *http.Request, token uint64) error { return m.Check(token) }
	}
	for _, c := range []struct {
		name    string
		tokens  []string
		nocheck bool
		status  int
		body    string // a part of the response body
		highest string
	}{
		{name: "younger", tokens: []string{fmt.Sprint(younger)}, status: 200, body: fmt.Sprint(younger)},
		{name: "the same", tokens: []string{fmt.Sprint(older)}, status: 200, body: fmt.Sprint(older)},
		{name: "older", tokens: []string{"7"}, status: 412, body: "stale fencing token 7", highest: fmt.Sprint(older)},
		{name: "older, unchecked", tokens: []string{"7"}, nocheck: true, status: 200, body: "7"},
		{name: "the largest", tokens: []string{"18446744073709551615"}, status: 200, body: "18446744073709551615"},
		{name: "none", status: 400},
		{name: "none, unchecked", nocheck: true, status: 400},
		{name: "empty", tokens: []string{""}, status: 400},
		{name: "zero", tokens: []string{"0"}, status: 400},
		{name: "zero, unchecked", tokens: []string{"0"}, nocheck: true, status: 400},
		{name: "zeros", tokens: []string{"000"}, status: 400},
		{name: "text", tokens: []string{"many"}, status: 400},
		{name: "negative", tokens: []string{"-1"}, status: 400},
		{name: "signed", tokens: []string{"+9000000000000000"}, status: 400},
		{name: "a fraction", tokens: []string{"9e15"}, status: 400},
		{name: "underscores", tokens: []string{"9_000_000_000_000_000"}, status: 400},
		{name: "hexadecimal", tokens: []string{"0x7fffffffffffffff"}, status: 400},
		{name: "too large", tokens: []string{"18446744073709551616"}, status: 400},
		{name: "a list", tokens: []string{"9000000000000000, 9000000000000000"}, status: 400},
		{name: "two", tokens: []string{"9000000000000000", "9000000000000000"}, status: 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			check := newMark()
			if c.nocheck {
				check = nil
			}
			called := false
			h := fencehttp.Handler(check, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				called = true
				tells(w, r)
			}))
			r := httptest.NewRequest(http.MethodPut, "/stock", nil)
			for _, token := range c.tokens {
				r.Header.Add(fencehttp.Header, token)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) || w.Header().Get(fencehttp.Header) != c.highest {
				t.Errorf("%d %q %s, want %d %q %s", w.Code, w.Body, w.Header().Get(fencehttp.Header), c.status, c.body, c.highest)
			}
			if called != (c.status == 200) {
				t.Errorf("next was called: %v", called)
			}
		})
	}
}

// The client does not see an error that is not about the token.
func TestHandler_checkFails(t *testing.T) {
	h := fencehttp.Handler(func(*http.Request, uint64) error { return errors.New("dial tcp 10.1.2.3: refused") }, tells)
	r, w := httptest.NewRequest(http.MethodPut, "/", nil), httptest.NewRecorder()
	r.Header.Set(fencehttp.Header, "5")
	h.ServeHTTP(w, r)
	if w.Code != 500 || strings.Contains(w.Body.String(), "10.1.2.3") {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

// Behind a mux, each path has its own mark, and the client receives both tokens.
func TestHandler_overTheWire(t *testing.T) {
	var marks fence.Marks
	mux := http.NewServeMux()
	mux.Handle("PUT /stock/{id}", fencehttp.Handler(func(r *http.Request, token uint64) error {
		return marks.Of(r.PathValue("id")).Check(token)
	}, tells))
	s := httptest.NewServer(mux)
	defer s.Close()
	put := func(path string, token uint64) (int, error) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := fencehttp.SetHeader(r.Header, token); err != nil {
			t.Fatal(err)
		}
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, fencehttp.FromResponse(resp)
	}
	for _, c := range []struct {
		path   string
		token  uint64
		status int
	}{
		{"/stock/1", younger, 200}, {"/stock/2", older, 200}, {"/stock/1", older, 412}, {"/stock/2", younger, 200}, {"/elsewhere", older, 404},
	} {
		status, err := put(c.path, c.token)
		if status != c.status {
			t.Errorf("%s with %d: %d, want %d", c.path, c.token, status, c.status)
		}
		if c.status == 412 {
			fencetest.IsStale(t, c.path, err, c.token, younger)
		} else if err != nil {
			t.Errorf("%s with %d: %v", c.path, c.token, err)
		}
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
	s := httptest.NewServer(fencehttp.Handler(nil, next))
	defer s.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"scan\"; filename=\"bill.pdf\"\r\n\r\nmore than one byte\r\n--b--\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	if err := fencehttp.SetHeader(r.Header, younger); err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	s.Close() // waits until the server has finished the request
	if n := files(); n != 0 {
		t.Errorf("%d files are left", n)
	}
}

func TestFromResponse_ofOthers(t *testing.T) {
	for name, r := range map[string]*http.Response{
		"another precondition":      {StatusCode: 412, Header: http.Header{}},
		"a header that is no token": {StatusCode: 412, Header: http.Header{fencehttp.Header: {"soon"}}},
		"not refused":               {StatusCode: 200, Header: http.Header{fencehttp.Header: {"5"}}},
	} {
		if err := fencehttp.FromResponse(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	fencetest.IsStale(t, "without its request", fencehttp.FromResponse(&http.Response{StatusCode: 412, Header: http.Header{fencehttp.Header: {"5"}}}), 0, 5)
}

func TestRefuse(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
	}{
		{&lock.Error{Op: "fence", Err: &fence.StaleError{Token: 1, Highest: 2}}, 412},
		{fmt.Errorf("save: %w", &fence.StaleError{Token: 1, Highest: 2}), 412},
		{fmt.Errorf("a guard of its own: %w", fence.ErrStale), 412}, // without the tokens
		{fmt.Errorf("save: %w", fence.ErrNoToken), 400},
		{lock.ErrLost, 0},
		{nil, 0},
	} {
		w := httptest.NewRecorder()
		w.Code = 0
		if refused := fencehttp.WriteError(w, c.err); refused != (c.status != 0) || w.Code != c.status {
			t.Errorf("%v: %v, %d, want %d", c.err, refused, w.Code, c.status)
		}
	}
}

func TestSetHeader(t *testing.T) {
	h := http.Header{}
	fencetest.IsNoToken(t, "0", fencehttp.SetHeader(h, 0))
	if len(h) != 0 {
		t.Errorf("%v", h)
	}
	for _, token := range []uint64{older, younger} { // the second header replaces the first
		if err := fencehttp.SetHeader(h, token); err != nil || len(h[fencehttp.Header]) != 1 || h.Get(fencehttp.Header) != fmt.Sprint(token) {
			t.Errorf("%v, %v", h, err)
		}
	}
	if http.CanonicalHeaderKey(fencehttp.Header) != fencehttp.Header {
		t.Error("the name is not as net/http keeps it")
	}
}

func TestContext(t *testing.T) {
	if token := fencehttp.FromContext(t.Context()); token != 0 {
		t.Errorf("none: %d", token)
	}
	ctx := fencehttp.NewContext(fencehttp.NewContext(t.Context(), older), younger)
	if token := fencehttp.FromContext(ctx); token != younger {
		t.Errorf("%d, want the inner one", token)
	}
}
