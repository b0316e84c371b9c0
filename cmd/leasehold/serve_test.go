package main

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// serve accepts only requests for its own names, ends at a signal while a browser follows a page, and reports each
// error in one line.
func TestServe(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := on(t, s, "serve", "--listen", "127.0.0.1:0", "--host", "Locks.example")
	c.stderr.await(t, "serving http://127.0.0.1:")
	url := regexp.MustCompile(`http://[0-9.:]+/`).FindString(c.stderr.String())
	browser := &http.Client{Transport: &http.Transport{}}
	defer browser.CloseIdleConnections()
	get := func(path, host string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), "GET", url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		answer, err := browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for host, want := range map[string]int{
		"": 200, "localhost": 200, "localhost:8126": 200, "127.0.0.1": 200, "[::1]:80": 200, "10.0.0.7:8126": 200, "locks.example": 200,
		"evil.example": 421, "localhost.evil.example": 421, "locks.example.evil": 421,
	} {
		r := get("", host)
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("for %q: %s, want %d", host, r.Status, want)
		}
	}
	follows := get("events?view=overview", "")
	first := make([]byte, 16)
	if _, err := io.ReadFull(follows.Body, first); err != nil || !strings.HasPrefix(string(first), "data: ") {
		t.Errorf("%q, %v", first, err)
	}
	c.signal(os.Interrupt)
	says(t, c, exitInterrupted)
	if _, err := io.ReadAll(follows.Body); err != nil {
		t.Errorf("the page that a browser follows ends by %v", err)
	}
	follows.Body.Close()

	says(t, on(t, s, "serve", "--listen", "nonsense"), 1, "cannot listen")
	says(t, on(t, s, "serve", "--operator", "alice"), 2, "--operator requires --allow-unlock")
	says(t, on(t, s, "serve", "--allow-unlock", "--operator", "a\nb"), 2, "--operator (\"a\\nb\"): must be a single line")
	open := on(t, s, "serve", "--listen", "0.0.0.0:0")
	open.stderr.await(t, "without a password")
	open.signal(os.Interrupt)
	says(t, open, exitInterrupted, "http://localhost:")
}
