package main

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/bcrypt"
)

// A gate decides who is allowed to open the page of serve. It returns the user of a request, or rejects the request and returns "".
type gate interface {
	admit(w http.ResponseWriter, r *http.Request) (user string)
}

type userKey struct{} // context key of the user that a gate has admitted

// userOf returns the user that a gate has admitted.
func userOf(r *http.Request) string {
	user, _ := r.Context().Value(userKey{}).(string)
	return user
}

// behind serves h to the users that the gate admits.
func behind(g gate, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user := g.admit(w, r); user != "" {
			h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
		}
	})
}

// proxies is the gate behind a proxy that names the user in a header. Any client can send that header, so it counts only if the
// request comes from the proxy.
type proxies struct {
	header  string
	trusted []netip.Prefix
}

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

func newProxies(header string, trusted []string) (*proxies, error) {
	if !headerName.MatchString(header) {
		return nil, fmt.Errorf("--user-header %q: want a header name such as X-Forwarded-User", header)
	}
	p := &proxies{header: header}
	for _, text := range trusted {
		prefix, err := netip.ParsePrefix(text)
		if addr, failed := netip.ParseAddr(text); failed == nil {
			prefix, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("--trusted-proxy %q: want an IP address or a network such as 10.0.0.0/8", text)
		}
		p.trusted = append(p.trusted, prefix)
	}
	return p, nil
}

func (p *proxies) admit(w http.ResponseWriter, r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	addr := peer.Addr().Unmap().WithZone("")
	if err != nil || !slices.ContainsFunc(p.trusted, func(trusted netip.Prefix) bool { return trusted.Contains(addr) }) {
		http.Error(w, "request not from a trusted proxy: open the page through the proxy, or set leasehold serve --trusted-proxy", http.StatusForbidden)
		return ""
	}
	// If there are two, the browser may have sent one of them.
	if users := r.Header.Values(p.header); len(users) == 1 && users[0] != "" {
		return users[0]
	}
	http.Error(w, "the proxy must name exactly one user in the header "+p.header, http.StatusUnauthorized)
	return ""
}

// passwords is the gate of a password file. Each request has a password, and bcrypt is slow on purpose. The gate therefore caches the
// passwords that were right, and compares one at a time.
type passwords struct {
	hashes    map[string][]byte // set once, like the next three
	decoy     []byte            // the hash to compare with for an unknown user: the time must not show that
	key       []byte            // of the sums
	logger    *slog.Logger
	comparing chan struct{} // a semaphore of one

	mu    sync.Mutex
	right map[string][]byte // the sum of the password of each user that was admitted
}

func readPasswords(path string, logger *slog.Logger) (*passwords, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--auth: %w", err)
	}
	defer f.Close()
	p := &passwords{hashes: make(map[string][]byte), key: make([]byte, 32), logger: logger, comparing: make(chan struct{}, 1), right: make(map[string][]byte)}
	_, _ = rand.Read(p.key) // it never fails
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		user, hash, _ := strings.Cut(line, ":")
		if _, err := bcrypt.Cost([]byte(hash)); err != nil || user == "" {
			return nil, fmt.Errorf("--auth: %s:%d: want a user, a colon and a bcrypt hash, as written by htpasswd -B", path, n)
		}
		if p.hashes[user] != nil {
			return nil, fmt.Errorf("--auth: %s:%d: duplicate user %s", path, n, shown(user))
		}
		p.hashes[user], p.decoy = []byte(hash), []byte(hash)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--auth: %s: %w", path, err)
	}
	if len(p.hashes) == 0 {
		return nil, fmt.Errorf("--auth: %s has no users: add one with htpasswd -B", path)
	}
	return p, nil
}

func (p *passwords) admit(w http.ResponseWriter, r *http.Request) string {
	user, password, given := r.BasicAuth()
	if given && p.fits(r.Context(), user, password) {
		return user
	}
	if given && r.Context().Err() == nil {
		p.logger.WarnContext(r.Context(), "login failed", "user", user[:min(len(user), 100)], "address", r.RemoteAddr)
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="leasehold", charset="UTF-8"`)
	http.Error(w, "user and password required", http.StatusUnauthorized)
	return ""
}

// fits reports whether the password is that of the user.
func (p *passwords) fits(ctx context.Context, user, password string) bool {
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte(password))
	sum := mac.Sum(nil)
	p.mu.Lock()
	known := hmac.Equal(p.right[user], sum)
	p.mu.Unlock()
	if known {
		return true
	}
	select {
	case p.comparing <- struct{}{}:
		defer func() { <-p.comparing }()
	case <-ctx.Done():
		return false
	}
	hash, exists := p.hashes[user]
	if !exists {
		hash = p.decoy
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !exists {
		return false
	}
	p.mu.Lock()
	p.right[user] = sum
	p.mu.Unlock()
	return true
}
