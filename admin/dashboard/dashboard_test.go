package dashboard_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/admin/dashboard"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// addr is the address of a server in memory, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// patience limits the wait for something that happens immediately, even on a busy machine.
const patience = 20 * time.Second

// site is a dashboard that a server of the test serves under its own path.
type site struct {
	*testing.T
	*httptest.Server
	browser *http.Client
}

func serve(t *testing.T, rdb rueidis.Client, opts ...dashboard.Option) *site {
	t.Helper()
	h, err := dashboard.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/locks/", http.StripPrefix("/ops/locks", h))
	s := &site{T: t, Server: httptest.NewServer(mux)}
	t.Cleanup(s.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.browser = &http.Client{Transport: &http.Transport{}, Jar: jar}
	t.Cleanup(s.browser.CloseIdleConnections)
	return s
}

func (s *site) get(path string) (status int, text string) {
	s.Helper()
	return s.answer(s.browser.Get(s.URL + "/ops/locks/" + path))
}

func (s *site) answer(r *http.Response, err error) (status int, text string) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		s.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// says checks the status and the texts of a page, and returns the page.
func (s *site) says(path string, want int, texts ...string) string {
	s.Helper()
	status, text := s.get(path)
	if status != want {
		s.Errorf("%s: status %d, want %d: %.500s", path, status, want, text)
	}
	for _, part := range texts {
		if !strings.Contains(text, part) {
			s.Errorf("%s does not say %q:\n%s", path, part, text)
		}
	}
	return text
}

// settles waits until a page contains text, because its survey may be incomplete, and returns the page.
func (s *site) settles(path, text string) string {
	s.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		_, page := s.get(path)
		if strings.Contains(page, text) {
			return page
		}
		if time.Now().After(end) {
			s.Fatalf("%s does not say %q:\n%s", path, text, page)
		}
	}
}

func billing(t *testing.T, rdb rueidis.Client, name string) *client.Client {
	t.Helper()
	c, err := client.New(rdb, client.WithName(name), client.WithLabel("zone=a"), client.WithWatchdogTimeout(10*time.Minute)) // no renewal detects a force-unlock before the message about it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func mustLock(t *testing.T, l lock.Locker) lock.Hold {
	t.Helper()
	h, err := l.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// knows waits until Redis has the entry of the client.
func knows(t *testing.T, rdb rueidis.Client, c *client.Client) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if n, err := rdb.Do(t.Context(), rdb.B().Exists().Key("leasehold_client:"+c.ID()).Build()).AsInt64(); err == nil && n == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the client is not known")
		}
	}
}

// The pages show what Redis stores, without owner strings, and escape markup in names. They work under any path.
func TestPages(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(t *testing.T) rueidis.Client{
		"server":  func(t *testing.T) rueidis.Client { return redistest.Start(t).Client(t) },
		"cluster": func(t *testing.T) rueidis.Client { return redistest.StartCluster(t).Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := connect(t)
			s := serve(t, rdb)
			s.settles("", "No held locks.")
			s.says("", 200, "No held locks.", "This page is read-only.")
			c := billing(t, rdb, "<b>bil</b>")
			const odd = `a<script>alert(1)</script>&"'`
			h := mustLock(t, c.NewLock(odd))
			mustLock(t, c.NewRWLock("catalog").Read())
			knows(t, rdb, c)
			s.settles("locks", "2 locks")
			s.settles("clients", "1 client of leasehold")
			escaped := `a&lt;script&gt;alert(1)&lt;/script&gt;&amp;`
			all := []string{
				s.says("", 200, "Oldest request", escaped, "&lt;b&gt;bil&lt;/b&gt; on "),
				s.says("locks?sort=since&kind=plain", 200, escaped, "1 of 2 locks", `aria-sort="descending"`),
				s.says("locks?q=CATA", 200, "1 of 2 locks", "read/write"),
				s.says("locks?q=nothing", 200, "No matching locks."),
				s.says("locks?page=-7&sort=nonsense&client="+c.ID(), 200, "2 locks", "held by &lt;b&gt;bil"),
				s.says("clients", 200, "&lt;b&gt;bil&lt;/b&gt;", "zone=a", "1 client of leasehold"),
				s.says("graph", 200, "No waiters."),
				s.says("lock?name="+url.QueryEscape(odd), 200, escaped, "exclusive", "redis-cli HGETALL", "leasehold_client:"+c.ID()),
				s.says("lock?name=catalog", 200, "held by 1 reader", "--scan --pattern"),
				s.says("lock?name=orders:9", 200, "free", "No keys."),
			}
			s.says("lock?name=leasehold_client:"+c.ID(), 400, "bad lock name")
			s.says("lock", 400, "bad lock name")
			s.says("nothing", 404)
			for _, text := range all {
				if strings.Contains(text, "<script>") || strings.Contains(text, "<b>bil") || strings.Contains(text, " style=") || regexp.MustCompile(` on[a-z]+="`).MatchString(text) {
					t.Errorf("markup that is not ours: %s", text)
				}
				if strings.Contains(text, h.Owner()) {
					t.Error("a page shows an owner")
				}
			}
		})
	}
}

// unknown checks that no page shows what could not be read as zero or empty.
func (s *site) unknown() {
	s.Helper()
	for page, want := range map[string]string{"": `<span class="much">unknown</span>`, "locks": "unknown number of locks", "clients": "unknown number of clients", "graph": "Unknown.", "limits": "Unknown."} {
		_, text := s.get(page)
		if !strings.Contains(text, want) || strings.Contains(text, "Nobody") || strings.Contains(text, ">0<") || strings.Contains(text, "There are no") {
			s.Errorf("%q does not say %s: %s", page, want, text)
		}
	}
}

// If a key is not a lock, the server is unavailable, or the user lacks permissions, the page says only that.
func TestPages_faults(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	wire := redistest.NewProxy(t, server.Addr())
	server.Do(t, "SET", "text", "x")
	s := serve(t, server.Client(t, redistest.Via(wire)))
	s.says("lock?name=text", 404, "not a lock")
	s.says("", 200)
	s.says("lock?name=orders:2", 200, "free")
	wire.Refuse(true)
	wire.CutAll()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if status, text := s.get("locks"); status == 503 && strings.Contains(text, "Cannot read from Redis.") {
			break
		} else if time.Now().After(end) {
			t.Fatal(status, text)
		}
	}
	s.says("lock?name=orders:1", 503, "Cannot read from Redis.")
	s.settles("lock?name=orders:2", "This page shows the state at")
	s.says("lock?name=orders:2", 200, "Cannot read from Redis.", "free")
	s.unknown()
	as := server.AddUser(t, "nobody", "~*", "+ping")
	s = serve(t, server.Client(t, as))
	s.says("", 503, "NOPERM")
	s.unknown()
}

// The headers of each response forbid what the pages do not need. Static files may be cached under the addresses in the pages. Pages
// may not be cached, and neither may a static file under the address of another version.
func TestHeaders(t *testing.T) {
	t.Parallel()
	s := serve(t, redistest.Start(t).Client(t))
	_, text := s.get("")
	linked := regexp.MustCompile(`static/[^"]+`).FindAllString(text, -1)
	if len(linked) < 3 {
		t.Fatalf("static files: %v", linked)
	}
	for _, path := range append(linked, "", "nothing", "static/page.js", "static/page.js?0123456789abcdef") {
		r, err := s.browser.Get(s.URL + "/ops/locks/" + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if csp := r.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", path, csp)
		}
		if kept := strings.Contains(r.Header.Get("Cache-Control"), "immutable"); kept != slices.Contains(linked, path) {
			t.Errorf("%s: Cache-Control %q", path, r.Header.Get("Cache-Control"))
		}
		if r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may be sniffed", path)
		}
		if got := r.Header.Get("Referrer-Policy"); got != "same-origin" {
			t.Errorf("%s: Referrer-Policy %q: with another one, the form has no origin, or a link tells the name of a lock", path, got)
		}
	}
}

// form returns the values of the form on the page of a lock.
func (s *site) form(name string) url.Values {
	s.Helper()
	_, text := s.get("lock?name=" + url.QueryEscape(name))
	v := url.Values{}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`).FindAllStringSubmatch(text, -1) {
		v.Add(m[1], m[2])
	}
	v.Set("typed", name)
	return v
}

func (s *site) post(v url.Values, edit ...func(*http.Request)) (int, string) {
	s.Helper()
	r, err := http.NewRequest("POST", s.URL+"/ops/locks/unlock", strings.NewReader(v.Encode()))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, f := range edit {
		f(r)
	}
	return s.answer(s.browser.Do(r))
}

// Only a request with the name typed on this page unlocks a lock, and it removes only the displayed holder.
func TestUnlock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := billing(t, rdb, "billing")
	h := mustLock(t, c.NewLock("orders:42"))

	token := strings.Repeat("A", 26)
	cookie := func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "leasehold_csrf", Value: token}) }
	if status, text := serve(t, rdb).post(url.Values{"name": {"orders:42"}, "typed": {"orders:42"}, "csrf": {token}}, cookie); status != 403 || !strings.Contains(text, "read-only") {
		t.Errorf("a page that only shows: %d %s", status, text)
	}
	const reloads = `http-equiv="refresh"` // without JavaScript
	if text := serve(t, rdb).says("lock?name=orders:42", 200, reloads); strings.Contains(text, "<form method=\"post\"") {
		t.Error("a page that only shows has a form")
	}
	var said bytes.Buffer
	s := serve(t, rdb, dashboard.WithForceUnlock(func(r *http.Request) string { return r.Header.Get("X-User") }), dashboard.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	alice := func(r *http.Request) {
		r.Header.Set("X-User", "alice")
		r.Header["X-Forwarded-For"] = []string{"203.0.113.9", "10.0.0.1"}
	}
	with := func(name, value string) url.Values {
		v := s.form("orders:42")
		v.Del(name)
		if value != "" {
			v.Set(name, value)
		}
		return v
	}
	s.says("locks", 200, reloads)
	if text := s.says("lock?name=orders:42", 200); strings.Contains(text, reloads) {
		t.Error("the page with the form reloads, which empties the form")
	}
	if seen := s.form("orders:42")["seen"]; len(seen) != 1 || strings.Contains(h.Owner(), seen[0]) {
		t.Fatalf("the form says %q", seen)
	} else if other := serve(t, rdb, dashboard.WithForceUnlock(nil)).form("orders:42")["seen"]; slices.Equal(other, seen) {
		t.Errorf("two handlers say %q: a visitor finds the owner string by trial", seen)
	}
	stranger := &site{T: t, Server: s.Server, browser: &http.Client{Transport: s.browser.Transport}}
	for name, f := range map[string]func() (int, string){
		"without a token":    func() (int, string) { return s.post(with("csrf", ""), alice) },
		"with another token": func() (int, string) { return s.post(with("csrf", strings.Repeat("A", 26)), alice) },
		"without the cookie": func() (int, string) { return stranger.post(with("", ""), alice) },
		"from another site": func() (int, string) {
			return s.post(with("", ""), alice, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") })
		},
		"by a browser's word": func() (int, string) {
			return s.post(with("", ""), alice, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
		},
		"by nobody": func() (int, string) { return s.post(with("", "")) },
		"by a name with lines": func() (int, string) {
			return s.post(with("", ""), func(r *http.Request) { r.Header.Set("X-User", strings.Repeat("x", 300)) })
		},
		"by GET": func() (int, string) { return s.get("unlock?" + s.form("orders:42").Encode()) },
	} {
		if status, text := f(); status < 400 || status >= 500 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	for name, test := range map[string]struct {
		form url.Values
		says string
	}{
		"another name": {with("typed", "orders:43"), "the typed name does not match"},
		"no name":      {with("typed", ""), "the typed name does not match"},
		"nobody seen":  {with("seen", ""), "no longer hold the lock"},
		"other seen":   {with("seen", strings.Repeat("0", 32)), "no longer hold the lock"},
		"long reason":  {with("reason", strings.Repeat("x", 300)), "the reason must be one line of at most 256 bytes"},
	} {
		if status, text := s.post(test.form, alice); status != 200 || !strings.Contains(text, test.says) {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if h.Err() != nil {
		t.Fatalf("the holder has lost it: %v", h.Err())
	}

	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // it subscribes once the lock was held for a second
		reply := server.Do(t, "PUBLISH", "leasehold_client:"+c.ID(), "hello")
		if n, err := reply.ToInt64(); err == nil && n > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the client does not listen")
		}
	}
	if status, text := s.post(with("reason", "stuck <since> 3"), alice); status != 200 || !strings.Contains(text, "Unlocked. Notification sent to 1 holder. A paused process, or one that ignores its context, keeps running alongside") || !strings.Contains(text, "by alice: “stuck &lt;since&gt; 3”") {
		t.Errorf("%d %s", status, text)
	}
	<-h.Context().Done()
	if err := h.Err(); !errors.Is(err, lock.ErrForceUnlocked) || !strings.Contains(err.Error(), "by alice: stuck <since> 3") {
		t.Errorf("the holder is told %v", err)
	}
	for _, want := range []string{"lock force-unlocked", "operator=alice", "address=127.0.0.1:", `forwarded_for="203.0.113.9, 10.0.0.1"`} {
		if !strings.Contains(said.String(), want) || strings.Contains(said.String(), h.Owner()) {
			t.Errorf("the log says %s, and not %s", &said, want)
		}
	}
	page, err := http.NewRequest("GET", s.URL+"/ops/locks/locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	page.Header.Set("X-User", "al<ice>")
	if _, text := s.answer(s.browser.Do(page)); !strings.Contains(text, "recorded under the name al&lt;ice&gt;.") {
		t.Errorf("the page does not say as whom: %s", text)
	}
	s.says("lock?name=orders:42&unlocked=2&failed=error", 200, "The lock was force-unlocked for 2 holders. Then Redis was unavailable or rejected the command.")
	s.says("lock?name=orders:42&unlocked=1&notified=0&failed=<b>", 200, "Notification sent to 0 of 1 holder; the others are dead, or detect the force-unlock at")
}

// A browser that disconnects after it has sent the form does not stop the force-unlock between two holders.
func TestUnlock_disconnected(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for _, name := range []string{"billing", "ledger"} {
		mustLock(t, billing(t, rdb, name).NewRWLock("orders:42").Read())
	}
	s := serve(t, rdb, dashboard.WithForceUnlock(func(*http.Request) string { return "alice" }))
	form := s.form("orders:42")
	ctx, leave := context.WithCancel(t.Context())
	leave()
	r := httptest.NewRequestWithContext(ctx, "POST", s.URL+"/ops/locks/unlock", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.AddCookie(&http.Cookie{Name: "leasehold_csrf", Value: form.Get("csrf")})
	s.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
	a, err := admin.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := a.Inspect(t.Context(), "orders:42"); err != nil || l.Locked() || l.ForceUnlock == nil || len(l.ForceUnlock.From) != 2 {
		t.Errorf("%+v, %v", l, err)
	}
}

// A browser keeps its cookie when it follows a link to the page, so that the forms in its other tabs stay valid.
func TestUnlock_cookie(t *testing.T) {
	t.Parallel()
	s := serve(t, redistest.Start(t).Client(t), dashboard.WithForceUnlock(nil))
	for _, want := range []int{1, 0} { // the second request has the cookie
		r, err := s.browser.Get(s.URL + "/ops/locks/lock?name=orders:42")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		cookies := r.Cookies()
		if len(cookies) != want {
			t.Fatalf("cookies %v, want %d", cookies, want)
		}
		for _, c := range cookies {
			if c.SameSite != http.SameSiteLaxMode || !c.HttpOnly {
				t.Errorf("the cookie is %v", c)
			}
		}
	}
}

// A name need not be valid UTF-8. The page shows the command line for exactly that name.
func TestLock_nameOfBytes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Do(t, "HSET", "a'\xffb", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:84", "1")
	serve(t, server.Client(t)).says("lock?name=a%27%FFb", 200, "redis-cli HGETALL $&#39;a\\&#39;\\xffb&#39;")
}

// If the audit record cannot be written, the page and the log say so.
func TestUnlock_noNote(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	mustLock(t, billing(t, server.Client(t), "billing").NewLock("orders:42"))
	var said bytes.Buffer
	s := serve(t, server.Client(t, server.AddUser(t, "ops", "~*", "&*", "+@all", "-set")), dashboard.WithForceUnlock(nil), dashboard.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	if status, text := s.post(s.form("orders:42")); status != 200 || !strings.Contains(text, "Unlocked. ") || !strings.Contains(text, "The audit record was not written") {
		t.Errorf("%d %s", status, text)
	}
	if !strings.Contains(said.String(), "audit record not written") || !strings.Contains(said.String(), "NOPERM") {
		t.Errorf("the log says %s", &said)
	}
}

// follow follows a page, and returns the HTML of each of its events.
func (s *site) follow(t *testing.T, query string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, "GET", s.URL+"/ops/locks/events?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{Transport: s.browser.Transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(answer.Status)
	}
	events := make(chan string, 1000)
	t.Cleanup(func() {
		cancel()
		for range events {
		}
		answer.Body.Close()
	})
	go func() {
		defer close(events)
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var e struct{ HTML string }
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					e.HTML = err.Error()
				}
				events <- e.HTML
			}
		}
	}()
	return events
}

func await(t *testing.T, events <-chan string, f func(html string) bool) {
	t.Helper()
	limit := time.After(patience)
	latest := ""
	for {
		select {
		case html, ok := <-events:
			if !ok {
				t.Fatal("the stream has ended")
			}
			if f(html) {
				return
			}
			if html != "" { // otherwise only the time is new
				latest = html
			}
		case <-limit:
			t.Fatalf("it did not come; the latest was\n%s", latest)
		}
	}
}

// A page that is followed sends changes, and sends no content again while nothing changes.
func TestFollow(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	s := serve(t, rdb)
	c := billing(t, rdb, "billing")
	locks, one := s.follow(t, "view=locks&q=orders"), s.follow(t, "view=lock&name=orders:1")
	await(t, locks, func(html string) bool { return strings.Contains(html, "No held locks.") })
	await(t, one, func(html string) bool { return strings.Contains(html, ">free<") })
	h := mustLock(t, c.NewLock("orders:1", lock.WithFixedLease(time.Hour)))
	knows(t, rdb, c)
	await(t, locks, func(html string) bool { return strings.Contains(html, "billing on ") })
	await(t, one, func(html string) bool {
		return strings.Contains(html, "billing on ") && strings.Contains(html, "acquired it")
	})
	await(t, locks, func(html string) bool { return html == "" })
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	await(t, locks, func(html string) bool { return strings.Contains(html, "No held locks.") })
	await(t, one, func(html string) bool { return strings.Contains(html, "released or lost it") })
	s.says("events?view=nothing", 404)
}

// Any number of browsers causes as many commands to Redis as one browser. Without browsers, no commands are sent.
func TestFollow_manyBrowsers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	s := serve(t, rdb)
	mustLock(t, billing(t, rdb, "billing").NewLock("orders:1"))
	var all []<-chan string
	for range 40 {
		all = append(all, s.follow(t, "view=locks"), s.follow(t, "view=overview"))
	}
	for _, events := range all {
		await(t, events, func(html string) bool { return html != "" })
	}
	server.ResetStats(t)
	const rounds = 3
	for range rounds {
		await(t, all[0], func(string) bool { return true })
	}
	// A survey takes two calls of SCAN, and a stream can miss a survey. At each end, one may be in progress.
	const most = 4 * (rounds + 2)
	if n := server.CommandCallsByClients(t, "scan"); n > most {
		t.Errorf("%d calls of SCAN in %d rounds", n, rounds)
	}
	for range 100 {
		s.says("locks", 200, "1 lock")
	}
	if n := server.CommandCallsByClients(t, "scan"); n > most+20 {
		t.Errorf("%d calls of SCAN after 100 pages", n)
	}
}

// A bounded number of browsers can follow a page.
func TestFollow_bounded(t *testing.T) {
	t.Parallel()
	s := serve(t, redistest.Start(t).Client(t))
	for range 257 { // a HEAD request does not count
		resp, err := s.browser.Head(s.URL + "/ops/locks/events?view=clients")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%s, %v", resp.Status, resp.Header)
		}
	}
	for range 256 {
		s.follow(t, "view=clients")
	}
	s.says("events?view=clients", 503, "too many open pages")
}

// Two clients that each hold what the other waits for, for some time, may be deadlocked. A client that waits for its own lock is not.
func TestGraph(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	s := serve(t, rdb)
	a, b := billing(t, rdb, "alpha"), billing(t, rdb, "beta")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 3)
	wait := func(l lock.Locker) {
		_, _ = l.Lock(ctx)
		done <- struct{}{}
	}
	mustLock(t, a.NewFairLock("x"))
	mustLock(t, b.NewLock("y"))
	go wait(a.NewFairLock("x"))
	go wait(b.NewFairLock("x"))
	events := s.follow(t, "view=graph")
	await(t, events, func(html string) bool { return strings.Contains(html, "No deadlock found.") })
	go wait(a.NewLock("y"))
	knows(t, rdb, a)
	knows(t, rdb, b)
	await(t, events, func(html string) bool {
		return strings.Contains(html, "Possible deadlock:") && strings.Contains(html, "y is held by beta") && strings.Count(html, "inring") >= 8
	})
	await(t, s.follow(t, "view=overview"), func(html string) bool { return strings.Contains(html, "Possible deadlock:") })
	cancel()
	for range 3 {
		<-done
	}
}

// A lock that the user is allowed to list but not to read does not hide the others, and the page does not show it as one without waiters.
func TestGraph_unread(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	a, b := billing(t, rdb, "alpha"), billing(t, rdb, "beta")
	mustLock(t, a.NewLock("plain"))
	mustLock(t, a.NewRWLock("rw").Read())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	for _, l := range []lock.Locker{b.NewLock("plain"), b.NewRWLock("rw").Write()} {
		go func() {
			_, _ = l.Lock(ctx)
			done <- struct{}{}
		}()
	}
	rights := []string{"+@all", "~plain", "~rw", "~leasehold_client:*", "~redisson_*", "~leasehold_rwlock_wish:*"} // but not leasehold_rwlock_turn
	s := serve(t, server.Client(t, server.AddUser(t, "narrow", rights...)))
	await(t, s.follow(t, "view=graph"), func(html string) bool {
		return strings.Contains(html, "plain is held by") && strings.Contains(html, "the waiters of 1 lock cannot be read") && strings.Contains(html, "inspect &#34;rw&#34;: Redis at "+server.Addr()+": NOPERM") &&
			strings.Contains(html, "No deadlock found so far.")
	})
	s.says("locks", 200, "2 locks")
	cancel()
	for range 2 {
		<-done
	}
}

// The pages show semaphores, even one with only the keys of dead owners. A ring through a semaphore counts only if all
// of its holders are in the ring.
func TestSemaphore(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	s := serve(t, rdb)
	a, b, c := billing(t, rdb, "alpha"), billing(t, rdb, "beta"), billing(t, rdb, "gamma")
	for _, words := range [][]string{
		{"SET", "left", "0"}, {"ZADD", "{left}:timeout", "1000", "expired permit 1"},
		{"RPUSH", "leasehold_semaphore_queue:{left}", "018f0000-0000-7000-8000-000000000000:5:1"},
	} {
		if err := rdb.Do(t.Context(), rdb.B().Arbitrary(words...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	mustLock(t, a.NewSemaphore("gpus", 4).N(2))
	third := mustLock(t, c.NewSemaphore("gpus", 4))
	mustLock(t, b.NewLock("y"))
	await(t, s.follow(t, "view=locks&kind=semaphore"), func(html string) bool {
		return strings.Contains(html, "1 of 2 locks") && strings.Contains(html, "gpus") && !strings.Contains(html, "name=left") && strings.Contains(html, `value="semaphore" selected`)
	})
	s.says("lock?name=gpus", 200, "1 of 4 permits free", "2 permits", "1 permit<", "{gpus}:timeout")
	s.says("lock?name=left", 200, "1 of 1 permit free", "Waiters, in queue order")
	s.says("", 200, "gpus")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	wait := func(l lock.Locker) {
		_, _ = l.Lock(ctx)
		done <- struct{}{}
	}
	go wait(a.NewLock("y"))                 // beta holds it,
	go wait(b.NewSemaphore("gpus", 4).N(3)) // and waits for alpha or gamma
	knows(t, rdb, a)
	knows(t, rdb, b)
	events := s.follow(t, "view=graph")
	await(t, events, func(html string) bool {
		return strings.Contains(html, "gpus is held by") && strings.Contains(html, "y is held by beta") && strings.Contains(html, "No deadlock found.")
	})
	if err := third.Unlock(t.Context()); err != nil { // now beta waits only for alpha
		t.Fatal(err)
	}
	await(t, events, func(html string) bool { return strings.Contains(html, "Possible deadlock:") })
	cancel()
	for range 2 {
		<-done
	}
}

// A page shows some of many holders and keys, and its force-unlock removes the displayed holders.
func TestLock_manyHolders(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	words := []string{"ZADD", "{many}:timeout"}
	for i := range 150 {
		words = append(words, "9000000000000", fmt.Sprintf("permit %09d", i))
	}
	server.Do(t, "SET", "many", "0")
	server.Do(t, words...)
	for i := range 150 {
		id := fmt.Sprintf("01a20376-5c32-7c6b-b43e-%012d", i)
		server.Do(t, "HSET", "leasehold_client:"+id, "host", "host-1", "name", "billing")
		server.Do(t, "HSET", "read", "mode", "read", id+":1", "1")
		server.Do(t, "SET", "{read}:"+id+":1:rwlock_timeout:1", "1", "EX", "600")
	}
	s := serve(t, server.Client(t), dashboard.WithForceUnlock(nil))
	if text := s.says("lock?name=read", 200, "held by 150 readers", "50 more holders.", "<code>read</code>", "51 more keys."); strings.Count(text, "<dt><code>") != 100 {
		t.Errorf("the page shows %d keys", strings.Count(text, "<dt><code>"))
	}
	text := s.says("lock?name=many", 200, "0 of 150 permits free", "50 more holders.", "removes only the displayed holders")
	if n := strings.Count(text, `name="seen"`); n != 100 || strings.Count(text, "1 permit</td>") != n {
		t.Errorf("the page shows %d holders, and unlocks %d", strings.Count(text, "1 permit</td>"), n)
	}
}

// The longest lease says nothing about the other holders, so the page of a lock with several holders shows the lease of each.
func TestLock_leases(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	s := serve(t, rdb)
	a, b := billing(t, rdb, "alpha"), billing(t, rdb, "beta")
	for _, c := range []*client.Client{a, b} {
		mustLock(t, c.NewLock(c.ID()))
		knows(t, rdb, c)
	}
	for name, hold := range map[string]func(c *client.Client, opts ...lock.Option) lock.Locker{
		"gpus": func(c *client.Client, opts ...lock.Option) lock.Locker { return c.NewSemaphore("gpus", 3, opts...) },
		"rw":   func(c *client.Client, opts ...lock.Option) lock.Locker { return c.NewRWLock("rw", opts...).Read() },
	} {
		mustLock(t, hold(a, lock.WithFixedLease(26*time.Hour)))
		if text := s.says("lock?name="+name, 200); strings.Contains(text, "Remaining lease") {
			t.Errorf("of one holder: %s", text)
		}
		mustLock(t, hold(b, lock.WithFixedLease(time.Hour)))
		for _, h := range []struct{ client, left, ms string }{{"alpha", `(26h 00m|25h 59m)`, `93[56]\d{5}`}, {"beta", `(1h 00m|59m \d\ds)`, `3[56]\d{5}`}} {
			text := s.settles("lock?name="+name, "Remaining lease")
			row := regexp.MustCompile(`<th scope="row">` + h.client + `</th>.*data-label="Lease"> <span class="left" data-until="(\d+)">` + h.left + `</span></td></tr>`).FindStringSubmatch(text)
			if row == nil || strings.Contains(text, `<span class="lease" data-until="`+row[1]+`"`) != (h.client == "alpha") {
				t.Errorf("%s: the lease of %s is not %s, or not that of the lock: %s", name, h.client, h.left, text)
			}
			if strings.Contains(text, "Held in the last hour") {
				t.Errorf("%s: the holders are listed twice: %s", name, text)
			}
			text = s.until("api/locks?q="+name, func(text string) bool { return strings.Contains(text, `"holding":2`) })
			if !regexp.MustCompile(`"lease_ms":` + h.ms + `,"client":{"name":"` + h.client + `"`).MatchString(text) {
				t.Errorf("%s: the lease of %s is not %s ms: %s", name, h.client, h.ms, text)
			}
		}
	}
}

// The pages show latches with their count, and wait groups with their active, done and lost workers, even if none is active.
func TestLatchAndWaitGroup(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	s := serve(t, rdb, dashboard.WithForceUnlock(func(*http.Request) string { return "nobody" }))
	a, b := billing(t, rdb, "alpha"), billing(t, rdb, "beta")
	l := a.NewLatch("import:done")
	if created, err := l.TrySetCount(t.Context(), 1200); !created || err != nil {
		t.Fatal(created, err)
	}
	join := func(c *client.Client) *latch.Worker {
		m, err := c.NewWaitGroup("workers").Add(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first, second, third := join(a), join(b), join(a)
	knows(t, rdb, a)
	knows(t, rdb, b)
	mustLock(t, a.NewLock("orders"))
	locks, one, overview := s.follow(t, "view=locks&sort=lease"), s.follow(t, "view=lock&name=workers"), s.follow(t, "view=overview")
	await(t, locks, func(html string) bool {
		return strings.Contains(html, "3 locks") && strings.Contains(html, "count 1,200") && strings.Contains(html, "+2") && strings.Count(html, "data-until") == 2
	})
	await(t, one, func(html string) bool {
		return strings.Contains(html, "3 active<") && strings.Count(html, `"Mode">worker<`) == 0 && strings.Count(html, `data-label="Joined"`) == 3 && strings.Contains(html, "This marks the workers displayed when you opened this form as lost")
	})
	s.says("lock?name=import:done", 200, "count 1,200", "leasehold_latch_calls:{import:done}")
	if text := s.says("", 200, `<span class="much">2</span>`); strings.Contains(text, "No expiry") {
		t.Error("a latch counts as a lock whose expiry is gone")
	}
	s.says("locks?kind=latch", 200, "1 of 3 locks", `value="latch" selected`)
	s.says("locks?kind=waitgroup", 200, "1 of 3 locks", `value="waitgroup" selected`)
	if err := second.Fail(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, one, func(html string) bool {
		return strings.Contains(html, "2 active, 1 lost<") && strings.Contains(html, "Lost <span") && strings.Contains(html, "is lost</li>")
	})
	await(t, overview, func(html string) bool { return strings.Contains(html, "lost a worker: beta on") })
	for _, m := range []*latch.Worker{first, third} {
		if err := m.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	await(t, one, func(html string) bool {
		return strings.Contains(html, "0 active, 2 done, 1 lost<") && strings.Contains(html, "is done</li>") && !strings.Contains(html, "Force-unlock…")
	})
	await(t, locks, func(html string) bool {
		return strings.Contains(html, "0 active, 2 done, 1 lost") && strings.Count(html, "data-until") == 1
	})
	if err := l.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.NewWaitGroup("workers").Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, overview, func(html string) bool {
		return strings.Contains(html, "was released or deleted") && strings.Contains(html, "completed or was deleted")
	})
}

func TestNew_wrongly(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for name, f := range map[string]func() (*dashboard.Handler, error){
		"no client":    func() (*dashboard.Handler, error) { return dashboard.New(nil) },
		"a nil option": func() (*dashboard.Handler, error) { return dashboard.New(rdb, nil) },
		"no logger":    func() (*dashboard.Handler, error) { return dashboard.New(rdb, dashboard.WithLogger(nil)) },
	} {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), "new dashboard") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A browser that does not read cannot keep its stream open: each write has a deadline.
func TestFollow_writesHaveAnEnd(t *testing.T) {
	t.Parallel()
	h, err := dashboard.New(redistest.Start(t).Client(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &limited{ResponseRecorder: httptest.NewRecorder(), cancel: cancel}
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/events?view=overview", nil))
	if w.writes == 0 || w.endless > 0 {
		t.Errorf("of %d writes, %d had no end", w.writes, w.endless)
	}
}

// limited is a response that records its write deadline. It ends the request after a few writes.
type limited struct {
	*httptest.ResponseRecorder
	cancel          context.CancelFunc
	until           time.Time
	writes, endless int
}

func (w *limited) SetWriteDeadline(t time.Time) error {
	w.until = t
	return nil
}

func (w *limited) Write(b []byte) (int, error) {
	if left := time.Until(w.until); left <= 0 || left > time.Hour {
		w.endless++
	}
	if w.writes++; w.writes == 2 {
		w.cancel()
	}
	w.until = time.Time{} // the next write must set it again
	return len(b), nil
}
