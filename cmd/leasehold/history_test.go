package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// history calls leasehold history until its output contains a text.
func history(t *testing.T, page, name, want string) string {
	t.Helper()
	for end := time.Now().Add(promptly); ; {
		c := prepare(t, nil, "history", name, "--from", page).start()
		c.ends(0)
		if text := c.stdout.String() + c.stderr.String(); strings.Contains(text, want) {
			return text
		} else if time.Now().After(end) {
			t.Fatalf("no %q in %s", want, text)
		}
	}
}

// What another server replies in place of serve does not move the cursor.
func TestHistory_escapes(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"holds":[{"mode":"\u001b[2J","ended":"\u001b]0;x\u0007","until":"2026-11-26T12:01:35Z","client":{"name":"\u001b[H","host":"\u001b[H"}}]}`)
	}))
	t.Cleanup(other.Close)
	c := prepare(t, nil, "history", "orders:42", "--from", other.URL).start()
	says(t, c, 0, `"\x1b[2J"`, `"\x1b]0;x\a"`)
	if text := c.stdout.String(); strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
}

// 1: serve --record records who holds a lock, and until when, without a browser. 2: history reports that nothing was recorded, and 3: that there is no
// serve. 4: It sends the password of the URL in its environment.
func TestHistory(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	page := serving(t, s, "--record")
	c := on(t, s, "run", "orders:42", "--", "cat")
	text := history(t, page, "orders:42", "leasehold run on "+host(t)) // 1; until the registry has the client, the hold has no client
	if !strings.Contains(text, "HOLDER") || !strings.Contains(text, "still held") || !strings.Contains(text, "exclusive") {
		t.Errorf("%s", text)
	}
	c.stdin.Close()
	c.ends(0)
	history(t, page, "orders:42", "released")
	says(t, prepare(t, []string{"LEASEHOLD_SERVE_URL=" + page}, "history", "orders:42", "-o", "json").start(), 0, `"recorded_since": "20`, `"ended": "released"`, `"held_ms": `, `"name": "leasehold run"`)

	says(t, prepare(t, nil, "history", "other", "--from", page).start(), 0, "nothing recorded for other in the last hour; serve has recorded since 20")
	says(t, prepare(t, nil, "history", "other", "--from", serving(t, s)).start(), 0, "nothing recorded: no browser has opened", "serve --record") // 2

	says(t, prepare(t, nil, "history", "orders:42", "--from", "http://alice:secret@127.0.0.1:1/").start(), 1, "cannot read the history: no leasehold serve at http://127.0.0.1:1/") // 3
	says(t, prepare(t, nil, "history", "orders:42", "--from", "nonsense").start(), 2, "--from: want a URL such as http://127.0.0.1:8126/")

	guarded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch user, password, _ := r.BasicAuth(); {
		case user+password == "alicesecret" && r.URL.Path == "/locks/api/history" && r.FormValue("name") == "orders:42":
			fmt.Fprint(w, `{"name":"orders:42","recorded_since":"2026-11-26T12:00:00Z","holds":[{"mode":"write","from":"2026-11-26T12:00:00Z","held_ms":95000,"until":"2026-11-26T12:01:35Z","ended":"released","client":{}}]}`)
		case user == "":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer guarded.Close()
	address := strings.TrimPrefix(guarded.URL, "http://")
	says(t, prepare(t, []string{"LEASEHOLD_SERVE_URL=http://alice:secret@" + address + "/locks/"}, "history", "orders:42").start(), 0, "unregistered client  -    write", "1m35s  released") // 4
	says(t, prepare(t, nil, "history", "orders:42", "--from", "http://"+address+"/locks/").start(), 1, "requires a password: put user and password into LEASEHOLD_SERVE_URL, as in http://user:password@host/")
	says(t, prepare(t, nil, "history", "orders:42", "--from", "http://bob:secret@"+address+"/").start(), 1, "replied with 404 Not Found")
}

// A process that was killed while it waited for a plain lock is marked once its entry is gone: by ls, by inspect, and on the pages.
func TestGone(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	holder := on(t, s, "run", "orders:42", "--", "cat")
	awaitHeld(t, s, "orders:42")
	waiter := on(t, s, "run", "orders:42", "--", "cat")
	entry := registered(t, s, waiter)
	await(t, "the second process does not wait", func() bool { return strings.Contains(lsJSON(t, s), `"waiting":1`) })
	waiter.signal(os.Kill)
	waiter.killed(syscall.SIGKILL)
	s.Do(t, "DEL", entry) // it would otherwise expire within a minute
	if text := lsJSON(t, s); !strings.Contains(text, `"waiting":1,"gone":1`) {
		t.Errorf("%s", text)
	}
	says(t, on(t, s, "ls"), 0, "1, 1 gone")
	says(t, on(t, s, "inspect", "orders:42"), 0, "; gone: no registry entry")
	says(t, on(t, s, "inspect", "orders:42", "-o", "json"), 0, `"gone": true`)
	page := serving(t, s)
	for path, want := range map[string]string{"locks": "1 gone", "lock?name=orders:42": "gone: no registry entry"} {
		if text := body(t, page+path); !strings.Contains(text, want) {
			t.Errorf("%s does not say %q: %s", path, want, text)
		}
	}
	holder.stdin.Close()
	holder.ends(0)
}

// The queue of a plain lock has room for 64 processes, so with 64 waiters more may wait.
func TestFull(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	queue := "0 1|"
	for i := range luascripts.MaxQueued - 1 {
		queue += fmt.Sprintf("01a20376-5c32-7c6b-b43e-%012d:001 30000 0 0 9999999999999;", i)
	}
	const last = "01a20376-5c32-7c6b-b43e-999999999999:001 30000 0 0 9999999999999;"
	page := serving(t, s)
	for _, full := range []bool{false, true} {
		if full {
			queue += last
		}
		s.Do(t, "HSET", "orders:42", "01a20376-5c32-7c6b-b43e-a07f69b48111:001", "1", luascripts.QueueField, queue)
		for _, args := range []string{"ls", "inspect orders:42"} {
			c := on(t, s, strings.Fields(args)...)
			c.ends(0)
			if text := c.stdout.String(); strings.Contains(text, "64+") != (full && args == "ls") || strings.Contains(text, "the queue is full: more processes may wait") != (full && args != "ls") {
				t.Errorf("%s, full %v: %s", args, full, text)
			}
		}
		for path, want := range map[string]string{"locks": "64+", "lock?name=orders:42": "The queue is full: more processes may wait.", "graph": "plain, at least 64 waiters"} {
			if full {
				await(t, path+" does not say "+want, func() bool { return strings.Contains(body(t, page+path), want) })
			} else if text := body(t, page+path); strings.Contains(text, want) {
				t.Errorf("%s says %q: %s", path, want, text)
			}
		}
	}
}

// lsJSON returns the output of ls -o jsonl.
func lsJSON(t *testing.T, s *redistest.Server) string {
	t.Helper()
	c := on(t, s, "ls", "-o", "jsonl")
	c.ends(0)
	return c.stdout.String()
}

// On a server with a million keys, the page appears immediately, fills, and says so. At the end, the tool and the page agree.
func TestPage_scans(t *testing.T) {
	s := redistest.Start(t)
	for i := range 20 { // a script with all of them would take longer than a client waits
		s.Do(t, "EVAL", "for i = 1, 50000 do redis.call('SET', ARGV[1] .. ':' .. i, i) end return 1", "0", fmt.Sprint("noise:", i))
	}
	for i := range 20 {
		s.Do(t, "HSET", fmt.Sprint("orders:", i), redissonOwner, "1")
	}
	proxy := redistest.NewProxy(t, s.Addr())
	proxy.OnRequest(func(req [][]byte) (a redistest.Action) {
		if strings.EqualFold(string(req[0]), "SCAN") {
			a.DelayReply = 20 * time.Millisecond // so that the scan does not end before the browser shows the page
		}
		return a
	})
	b := browse(t, s, "--url", "redis://"+proxy.Addr())
	b.open("locks")
	b.shows("Scanning:")
	proxy.OnRequest(nil)
	b.until("!document.body.innerText.includes('Scanning:')")
	b.shows("20 locks")
	if n := strings.Count(lsJSON(t, s), "\n"); n != 20 {
		t.Errorf("ls lists %d locks", n)
	}
	b.quiet()
}

// body returns the response body of a URL.
func body(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Transport: &http.Transport{}}
	defer browser.CloseIdleConnections()
	reply, err := browser.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
