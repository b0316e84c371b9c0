package main

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"golang.org/x/crypto/bcrypt"
)

// visitor is a minimal browser.
type visitor struct {
	*testing.T
	http.Client
	url            string
	user, password string
	header         http.Header // of each request
}

func visit(t *testing.T, url string) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := &visitor{T: t, url: url, header: http.Header{}, Client: http.Client{Jar: jar, Transport: &http.Transport{}}}
	t.Cleanup(v.CloseIdleConnections)
	return v
}

// answer sends a request, with a form if there is one.
func (v *visitor) answer(method, path string, form url.Values) (int, string) {
	v.Helper()
	r, err := http.NewRequestWithContext(v.Context(), method, v.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		v.Fatal(err)
	}
	r.Header = v.header.Clone()
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if v.user != "" {
		r.SetBasicAuth(v.user, v.password)
	}
	answer, err := v.Do(r)
	if err != nil {
		v.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		v.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// gets checks the status of a page.
func (v *visitor) gets(path string, want int, texts ...string) {
	v.Helper()
	status, text := v.answer("GET", path, nil)
	if status != want {
		v.Errorf("%q as %q: status %d, want %d: %.200s", path, v.user, status, want, text)
	}
	for _, part := range texts {
		if !strings.Contains(text, part) {
			v.Errorf("%q does not say %q: %s", path, part, text)
		}
	}
}

// unlocks force-unlocks a lock with the form of its page, and returns the page that follows.
func (v *visitor) unlocks(name string) string {
	v.Helper()
	_, text := v.answer("GET", "lock?name="+name, nil)
	form := url.Values{"typed": {name}, "reason": {"stuck"}}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`).FindAllStringSubmatch(text, -1) {
		form.Add(m[1], m[2])
	}
	status, text := v.answer("POST", "unlock", form)
	if status != 200 || !strings.Contains(text, "Unlocked. ") {
		v.Errorf("unlock: %d %s", status, text)
	}
	return text
}

// page starts leasehold serve, and returns it with the URL of its page.
func page(t *testing.T, s *redistest.Server, flags ...string) (*tool, string) {
	t.Helper()
	c := on(t, s, append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...)
	c.stderr.await(t, "serving http://")
	return c, regexp.MustCompile(`http://[0-9.:]+/`).FindString(c.stderr.String())
}

// users writes a password file.
func users(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// hashOf returns the hash of a password, as htpasswd -B writes it.
func hashOf(t *testing.T, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(hash), "$2a$", "$2y$", 1)
}

// Only the users of the file can open the page and its files. A force-unlock is recorded with the user, and logged with the address.
func TestServe_auth(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "HSET", "orders:42", redissonOwner, "1")
	hash := hashOf(t, "right")
	c, url := page(t, s, "--allow-unlock", "--auth", users(t, "# operators", "", "alice:"+hash, "bob:"+hashOf(t, "other")))
	v := visit(t, url)
	for _, path := range []string{"", "locks", "static/page.js", "events?view=locks", "lock?name=orders:42"} {
		v.gets(path, 401)
	}
	if status, text := v.answer("POST", "unlock", nil); status != 401 {
		t.Errorf("an unlock by a stranger: %d %s", status, text)
	}
	for user, password := range map[string]string{"alice": "wrong", "bob": "right", "mallory": "other", "": "right", "alice ": "right", "# operators": ""} {
		v.user, v.password = user, password
		v.gets("", 401)
	}
	c.stderr.await(t, "login failed\" user=mallory address=127.0.0.1:")
	v.user, v.password = "alice", "right"
	for range 2 { // the second time, the password is cached
		v.gets("", 200, "recorded under the name alice.")
	}
	v.password = "wrong"
	v.gets("", 401)
	v.password = "right"
	if text := v.unlocks("orders:42"); !strings.Contains(text, "by alice: “stuck”") {
		t.Errorf("the note says %s", text)
	}
	c.stderr.await(t, "lock force-unlocked\" lock=orders:42 address=127.0.0.1:")
	c.stderr.await(t, " operator=alice ")
	if strings.Contains(c.stderr.String(), "right") {
		t.Errorf("the log has a password: %s", c.stderr)
	}
	c.signal(os.Interrupt)
	c.ends(exitInterrupted)

	for says, file := range map[string]string{
		":2: want a user, a colon and a bcrypt hash": users(t, "alice:"+hash, "bob:$apr1$zoOdmFvE$xkCzpgLMVGiTQEFBoBeuC/"),
		":1: want a user":          users(t, hash),
		":1: want a user, a colon": users(t, ":"+hash),
		":2: duplicate user alice": users(t, "alice:"+hash, "alice:"+hash),
		"has no user":              users(t, "# none"),
		"no such file":             filepath.Join(t.TempDir(), "nothing"),
	} {
		rejects(t, on(t, s, "serve", "--auth", file), says)
	}
	open := on(t, s, "serve", "--listen", "0.0.0.0:0", "--auth", users(t, "alice:"+hash))
	open.stderr.await(t, "passwords are sent unencrypted")
	open.signal(os.Interrupt)
	says(t, open, exitInterrupted)
}

func rejects(t *testing.T, c *tool, text string) {
	t.Helper()
	says(t, c, exitUsage, text)
	if strings.Contains(c.stderr.String(), "$2y$") || strings.Contains(c.stderr.String(), "$apr1$") {
		t.Errorf("it shows a hash: %s", c.stderr)
	}
}

// authProxy is a proxy like an OIDC proxy: it authenticates its users, and names the user to the page behind it. It shows how a proxy
// must handle the header: a value that a browser sends never reaches the page.
func authProxy(t *testing.T, page, header string) *httptest.Server {
	t.Helper()
	behind, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		user, _, _ := r.In.BasicAuth() // an OIDC proxy would use the user of its session
		r.SetURL(behind)
		r.SetXForwarded()
		r.Out.Host = r.In.Host // the page compares it with the Origin of an unlock
		r.Out.Header.Set(header, user)
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != "secret" {
			http.Error(w, "log in", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// Behind a proxy that names the user, a force-unlock is recorded with that user. The header counts only from the proxy, and only once.
func TestServe_userHeader(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "HSET", "orders:42", redissonOwner, "1")
	const header = "X-Forwarded-Email"
	c, url := page(t, s, "--allow-unlock", "--user-header", header)
	v := visit(t, authProxy(t, url, header).URL+"/")
	v.gets("", 401, "log in")
	v.user, v.password = "alice@example.com", "secret"
	v.header.Set(header, "root") // the proxy replaces it
	v.header.Set("Origin", strings.TrimSuffix(v.url, "/"))
	v.gets("", 200, "recorded under the name alice@example.com.")
	if text := v.unlocks("orders:42"); !strings.Contains(text, "by alice@example.com: “stuck”") {
		t.Errorf("the note says %s", text)
	}
	c.stderr.await(t, "forwarded_for=127.0.0.1 operator=alice@example.com ")

	direct := visit(t, url) // from this machine, like the proxy
	direct.gets("", 401, "the proxy must name exactly one user in the header X-Forwarded-Email")
	direct.header = http.Header{header: {""}}
	direct.gets("", 401)
	direct.header = http.Header{header: {"root", "alice"}}
	direct.gets("", 401)

	_, far := page(t, s, "--allow-unlock", "--user-header", header, "--trusted-proxy", "192.0.2.1,198.51.100.0/24")
	forged := visit(t, far)
	forged.header = http.Header{header: {"root"}}
	for _, path := range []string{"", "static/page.js", "events?view=locks"} {
		forged.gets(path, 403, "request not from a trusted proxy")
	}
	_, near := page(t, s, "--user-header", header, "--trusted-proxy", "192.0.2.1,127.0.0.1")
	mine := visit(t, near)
	mine.header = http.Header{header: {"alice"}}
	mine.gets("", 200)

	for args, want := range map[string]string{
		"--user-header a:b":                                 "want a header name",
		"--user-header X-User --trusted-proxy far":          "want an IP address or a network",
		"--trusted-proxy 10.0.0.1":                          "--trusted-proxy requires --user-header",
		"--user-header X-User --auth users":                 "use one of them",
		"--user-header X-User --operator al --allow-unlock": "use one of them",
		"--auth users --operator alice --allow-unlock":      "use one of them",
	} {
		says(t, on(t, s, append([]string{"serve"}, strings.Fields(args)...)...), exitUsage, want)
	}
}
