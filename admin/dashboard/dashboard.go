// Package dashboard serves web pages about locks for operators. They show the locks of a server or
// a cluster with their holders and waiters, the clients, and deadlocks between owners. They also
// show the state of rate limiters and Bloom filters.
//
//	h, err := dashboard.New(rdb)
//	…
//	mux.Handle("/leasehold/", http.StripPrefix("/leasehold", auth(h)))
//
// The pages work under any path that ends in a slash. They do not require JavaScript. With
// JavaScript, they update themselves. All browsers share the commands to Redis. No commands are
// sent while no browser is connected, unless Record runs. On a server with many keys, the first
// page appears immediately, and fills in while the keys are scanned.
//
// Two addresses are for programs, and need the same check as the pages. The address /api/locks
// returns the locks as JSON, with the parameters q and kind of the list of locks. The address
// /api/history?name=N returns who held the lock N in the last hour, as far as the handler has seen
// it.
//
// The handler does not authenticate. Put your own check before it. The pages are read-only unless
// WithForceUnlock is set. They show no owner strings, because a user of Redis could release the
// lock of another owner with them.
//
// The Redis user needs the permissions of the types of locks in use, and those under "admin" in
// docs/operate/security.md. With permission for INFO, the overview also shows the version and the
// eviction policy.
package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// Option configures a Handler.
type Option func(*Handler) error

// WithForceUnlock lets a visitor of the page force-unlock a lock, after typing its name. The
// function who returns the name of the operator from a request that your check has accepted. If who
// is nil, the name is the user of this program and its machine. The name must be one line of at
// most 256 bytes. If it is "", the request is denied.
//
// A form is valid only for the Handler that served its page. If several are behind one address, a
// browser must reach the same one.
//
// Requests from other sites are denied. A site whose name resolves to this machine (DNS rebinding)
// counts as this one. A page without authentication, even on localhost, must therefore reject
// requests whose Host is not its own.
func WithForceUnlock(who func(*http.Request) string) Option {
	return func(h *Handler) error {
		h.unlocks, h.who = true, who
		return nil
	}
}

// WithLogger sets the logger of force-unlocks. The default is slog.Default. Each record has the
// operator from WithForceUnlock, the address of the request, and its X-Forwarded-For, if any.
func WithLogger(l *slog.Logger) Option {
	return func(h *Handler) error {
		if l == nil {
			return errors.New("WithLogger: the logger is nil")
		}
		h.logger = l
		return nil
	}
}

// A Handler serves the pages. It is safe for concurrent use, and has no goroutines while there is
// no request.
type Handler struct {
	rdb     rueidis.Client             // set once
	admin   *admin.Admin               // set once
	logger  *slog.Logger               // set once; nil means slog.Default
	unlocks bool                       // set once
	who     func(*http.Request) string // set once; can be nil
	mux     *http.ServeMux             // set once
	key     [32]byte                   // set once; for the digests of owner strings

	survey  *poll[*survey]
	limits  *poll[*limits]
	streams atomic.Int64 // number of browsers that follow a page
	history history

	mu    sync.Mutex
	locks map[string]*poll[*detail] // by name; locks that a browser shows, or showed a moment ago
}

// The bounds of a Handler.
const (
	every       = time.Second // minimum time between two reads
	mostLocks   = admin.MaxSurveyed
	mostStreams = 256 // maximum number of browsers that follow a page
	mostDetails = 256 // from this number on, locks that no browser shows are dropped
)

// New returns a Handler that uses rdb, a rueidis client of any kind, and never closes it. New sends
// no command.
func New(rdb rueidis.Client, opts ...Option) (*Handler, error) {
	h := &Handler{rdb: rdb, locks: make(map[string]*poll[*detail])}
	_, _ = rand.Read(h.key[:]) // it never fails
	var err error
	if h.admin, err = admin.New(rdb); err != nil {
		return nil, &lock.Error{Op: "new dashboard", Err: errors.Unwrap(err)}
	}
	for i, o := range opts {
		err := fmt.Errorf("option %d of %d is nil", i+1, len(opts))
		if o != nil {
			err = o(h)
		}
		if err != nil {
			return nil, &lock.Error{Op: "new dashboard", Err: err}
		}
	}
	surveyor := &surveyor{server: checkup{rdb: rdb}, admin: h.admin, locks: h.admin.Survey(admin.Query{Idle: true}), limit: firstLook, record: h.history.see}
	h.survey = newPoll(surveyor.look)
	h.survey.rest = (*survey).rest
	h.limits = newPoll(newLimitSurveyor(h.admin).look)
	h.limits.rest = (*limits).rest
	h.mux = http.NewServeMux()
	for name, page := range pages {
		h.mux.HandleFunc("GET /"+page.path, func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, name) })
	}
	h.mux.HandleFunc("GET /events", h.follow)
	h.mux.HandleFunc("GET /api/locks", h.apiLocks)
	h.mux.HandleFunc("GET /api/history", h.apiHistory)
	h.mux.HandleFunc("POST /unlock", h.unlock)
	files, err := fs.Sub(static, "static")
	if err != nil {
		return nil, &lock.Error{Op: "new dashboard", Err: err}
	}
	served := http.StripPrefix("/static", http.FileServerFS(files))
	h.mux.HandleFunc("GET /static/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == build() { // otherwise the page that links the file is from another version
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		served.ServeHTTP(w, r)
	})
	return h, nil
}

// policy is the Content-Security-Policy of every response: nothing from other sites, and nothing inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP serves a page.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "same-origin") // with no-referrer, a form's POST has "Origin: null", which unlock cannot tell from another site
	head.Set("Cache-Control", "no-store")
	h.mux.ServeHTTP(w, r)
}

// Record reads the locks until ctx is canceled, as if a browser were connected. The pages and
// /api/history then show what happened before anyone opened them. Without Record, they show what
// happened while a page was open.
func (h *Handler) Record(ctx context.Context) { h.survey.each(ctx, func() bool { return true }) }

// page is one of the pages.
type page struct {
	path  string
	title string // empty if the page is not in the menu
	build func(h *Handler, ctx context.Context, q url.Values, live bool) (any, int, error)
}

// pages are the pages, by the names of their templates.
var pages map[string]page

func init() { // an initializer at the declaration would depend on itself
	pages = map[string]page{
		"overview": {"{$}", "Overview", (*Handler).overviewPage},
		"locks":    {"locks", "Locks", (*Handler).locksPage},
		"lock":     {"lock", "", (*Handler).lockPage},
		"limits":   {"limits", "Limits", (*Handler).limitsPage},
		"clients":  {"clients", "Clients", (*Handler).clientsPage},
		"graph":    {"graph", "Waits", (*Handler).graphPage},
	}
}

//go:embed static
var static embed.FS

//go:embed pages
var texts embed.FS

// templates has the templates of the pages, and the shared ones.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"clientName": clientName,
	"kindName":   kindName,
	"lockURL":    lockURL,
	"plural":     plural,
	"list":       func(all ...any) []any { return all },
	"inc":        func(i int) int { return i + 1 },
	"cut":        cut,
	"parts":      func(name string) []string { return strings.SplitAfter(name, ":") }, // a line may break between them
}).ParseFS(texts, "pages/*.html"))

// build returns a hash of the static files. It is in their addresses, so that a browser caches them until they change.
var build = sync.OnceValue(func() string {
	sum := fnv.New64a()
	_ = fs.WalkDir(static, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var b []byte
			if b, err = static.ReadFile(path); err == nil {
				sum.Write(b)
			}
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))
})

// layout is the frame around the content of a page.
type layout struct {
	View, Title, Build string
	Menu               []link
	Now                int64
	Content            template.HTML
	Unlocks            bool
	Operator           string // name of the operator, if WithForceUnlock provides it
}

type link struct {
	URL, Title string
	Here       bool
}

// content returns the content of a page. If live is true, it omits the times that the browser
// counts by itself, so that the content does not change while nothing happens.
func (h *Handler) content(ctx context.Context, name string, q url.Values, live bool) (template.HTML, int, error) {
	model, status, err := pages[name].build(h, ctx, q, live)
	if err != nil {
		return "", 0, err
	}
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, model); err != nil {
		return "", 0, err
	}
	return template.HTML(b.String()), status, nil
}

// serve serves a complete page.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, name string) {
	if name == "lock" && h.unlocks {
		r = r.WithContext(context.WithValue(r.Context(), csrfKey{}, h.csrf(w, r)))
	}
	content, status, err := h.content(r.Context(), name, r.URL.Query(), false)
	if err != nil {
		if r.Context().Err() == nil {
			http.Error(w, "cannot render the page: "+err.Error(), http.StatusInternalServerError)
		}
		return
	}
	l := layout{View: name, Title: pages[name].title, Build: build(), Now: time.Now().UnixMilli(), Content: content, Unlocks: h.unlocks}
	if l.Title == "" {
		l.Title = r.URL.Query().Get("name")
	}
	if h.unlocks && h.who != nil {
		l.Operator = h.who(r)
	}
	for _, n := range []string{"overview", "locks", "limits", "graph", "clients"} {
		p := pages[n]
		l.Menu = append(l.Menu, link{URL: "./" + strings.TrimSuffix(p.path, "{$}"), Title: p.title, Here: n == name})
	}
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, "layout", l); err != nil {
		http.Error(w, "cannot render the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = b.WriteTo(w) // the browser may have disconnected
}

// detailOf returns the poll of the lock called name.
func (h *Handler) detailOf(name string) *poll[*detail] {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p, ok := h.locks[name]; ok {
		return p
	}
	if len(h.locks) >= mostDetails {
		for other, p := range h.locks {
			if p.idle() {
				delete(h.locks, other)
			}
		}
	}
	d := &inspector{admin: h.admin, record: h.history.seeLock, name: name, server: checkup{rdb: h.rdb}}
	p := newPoll(d.look)
	h.locks[name] = p
	return p
}
