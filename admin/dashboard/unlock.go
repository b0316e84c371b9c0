package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// A request to unlock has the CSRF token in its form and in a cookie, which another site can neither read nor send. In
// addition, if the browser sends the origin of the request, the origin must be this site.

type csrfKey struct{} // context key of the CSRF token

const csrfCookie = "leasehold_csrf"

// csrf returns the CSRF token of the browser, and sets one if there is none.
func (h *Handler) csrf(w http.ResponseWriter, r *http.Request) string {
	if token := cookieOf(r); token != "" {
		return token
	}
	token := rand.Text()
	// Lax, not Strict: a browser that follows a link from another site must send the cookie. Otherwise the page would set a new
	// one, and the forms in other tabs would become invalid.
	http.SetCookie(w, &http.Cookie{Name: csrfCookie, Value: token, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteLaxMode})
	return token
}

// cookieOf returns the CSRF token of the browser, or "" if there is none.
func cookieOf(r *http.Request) string {
	c, err := r.Cookie(csrfCookie)
	if err != nil || len(c.Value) < 20 || len(c.Value) > 64 {
		return ""
	}
	return c.Value
}

// unlock force-unlocks a lock: it removes the holders that the page displayed.
func (h *Handler) unlock(w http.ResponseWriter, r *http.Request) {
	if !h.unlocks {
		http.Error(w, "this page is read-only: start leasehold serve with --allow-unlock", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := r.ParseForm(); err != nil {
		http.Error(w, "cannot read the form", http.StatusBadRequest)
		return
	}
	if !fromPage(r) {
		http.Error(w, "request not from this page: reload the page, and allow its cookie", http.StatusForbidden)
		return
	}
	name, reason := r.PostForm.Get("name"), r.PostForm.Get("reason")
	if r.PostForm.Get("typed") != name {
		h.answer(w, name, url.Values{"failed": {"typed"}})
		return
	}
	log := h.log().With("lock", name, "address", r.RemoteAddr)
	if via := strings.Join(r.Header.Values("X-Forwarded-For"), ", "); via != "" {
		log = log.With("forwarded_for", cut(via, 200))
	}
	var opts []admin.Option
	if h.who != nil {
		who := h.who(r)
		if who == "" {
			http.Error(w, "no user name: sign in first", http.StatusForbidden)
			return
		}
		log = log.With("operator", who)
		opts = append(opts, admin.WithOperator(who))
	}
	a, err := admin.New(h.rdb, opts...)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// A browser that leaves must not stop it between two holders. Each command has its own timeout, and the first failure ends it.
	u, err := h.forceUnlock(context.WithoutCancel(r.Context()), a, name, r.PostForm["seen"], reason)
	if len(u.Holders) > 0 {
		log.InfoContext(r.Context(), "lock force-unlocked", "holders", len(u.Holders), "notified", u.Notified, "reason", reason)
		if u.RecordErr != nil {
			log.WarnContext(r.Context(), "audit record not written", "err", u.RecordErr)
		}
	}
	q := outcomeOf(u, err)
	if q.Get("failed") == "error" {
		log.WarnContext(r.Context(), "force-unlock failed", "err", err)
	}
	h.answer(w, name, q)
}

// fromPage reports whether the form of a page sent r.
func fromPage(r *http.Request) bool {
	token := cookieOf(r)
	same := subtle.ConstantTimeCompare([]byte(token), []byte(r.PostForm.Get("csrf"))) == 1
	return token != "" && same && new(http.CrossOriginProtection).Check(r) == nil
}

// forceUnlock removes the holders with the digests in seen.
func (h *Handler) forceUnlock(ctx context.Context, a *admin.Admin, name string, seen []string, reason string) (admin.ForceUnlockResult, error) {
	l, err := a.Inspect(ctx, name)
	if err != nil {
		return admin.ForceUnlockResult{}, err
	}
	var from []string
	for _, holder := range l.Holders {
		if slices.Contains(seen, h.digest(holder.Owner)) {
			from = append(from, holder.Owner)
		}
	}
	return a.ForceUnlockOwners(ctx, name, from, reason)
}

// answer sends the browser back to the page of a lock, with the outcome for resultOf.
func (h *Handler) answer(w http.ResponseWriter, name string, outcome url.Values) {
	outcome.Set("name", name)
	h.detailOf(name).expire()
	h.survey.expire()
	w.Header().Set("Location", "./lock?"+outcome.Encode()) // http.Redirect would drop the path prefix of the pages
	w.WriteHeader(http.StatusSeeOther)
}

// outcomeOf returns the outcome of a force-unlock for resultOf.
func outcomeOf(u admin.ForceUnlockResult, err error) url.Values {
	done := strconv.Itoa(len(u.Holders))
	switch {
	case errors.Is(err, lock.ErrNotHeld):
		return url.Values{"failed": {"gone"}}
	case errors.Is(err, admin.ErrBadReason):
		return url.Values{"failed": {"reason"}}
	case err != nil:
		return url.Values{"failed": {"error"}, "unlocked": {done}}
	}
	q := url.Values{"unlocked": {done}, "notified": {strconv.Itoa(u.Notified)}}
	if u.RecordErr != nil {
		q.Set("note", "none")
	}
	return q
}

func (h *Handler) log() *slog.Logger {
	if h.logger != nil {
		return h.logger
	}
	return slog.Default()
}

// worksOn warns about what a notification cannot prevent: Redis counts a paused process as notified, too.
const worksOn = ". A paused process, or one that ignores its context, keeps running alongside the next holder. Stop it before you trust the data."

// resultOf returns the result of a force-unlock for the page. It consists of fixed phrases, so that a link cannot inject text.
func resultOf(q url.Values) (text string, failed bool) {
	done, err1 := strconv.Atoi(q.Get("unlocked"))
	told, err2 := strconv.Atoi(q.Get("notified"))
	switch q.Get("failed") {
	case "typed":
		return "Nothing was changed: the typed name does not match.", true
	case "gone":
		return "Nothing was changed: the holders displayed when you opened the form no longer hold the lock. Check the current ones below.", true
	case "reason":
		return "Nothing was changed: the reason must be one line of at most 256 bytes.", true
	case "error":
		const look = "Check the holders below, and the log of the page's server."
		if err1 == nil && done > 0 {
			return "The lock was force-unlocked for " + plural(done, "holder") + ". Then Redis was unavailable or rejected the command. " + look, true
		}
		return "Redis is unavailable or rejected the command. " + look, true
	}
	if err1 != nil || err2 != nil || done < 1 {
		return "", false
	}
	text = "Unlocked. Notification sent to " + plural(done, "holder")
	if told < done {
		text = "Unlocked. Notification sent to " + strconv.Itoa(told) + " of " + plural(done, "holder") + "; the others are dead, or detect the force-unlock at their next renewal or release"
	}
	if q.Get("note") == "none" {
		text += ". The audit record was not written: check the log of the page's server"
	}
	return text + worksOn, false
}
