package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// An error of Open names the server, the user and what
// to do; it says that the caller's context is over only if that is so.
func TestOpen_says(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	guarded := redistest.Start(t)
	guarded.Do(t, "CONFIG", "SET", "requirepass", "hunter2")
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">hunter2", "~*", "&*", "+@all")
	s.Do(t, "ACL", "SETUSER", "nobody", "on", ">hunter2", "-@all")
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for name, c := range map[string]struct {
		url         string
		within      time.Duration
		says        []string
		unavailable bool
	}{
		"wrong password":  {"redis://locks:x@" + s.Addr(), time.Minute, []string{"WRONGPASS", s.Addr(), `user "locks"`, "check the user and the password"}, false},
		"no password":     {"redis://" + guarded.Addr(), time.Minute, []string{"NOAUTH", guarded.Addr(), `user "default"`, "redis://user:password@"}, false},
		"no rights":       {"redis://nobody:hunter2@" + s.Addr() + "/1", time.Minute, []string{"NOPERM", s.Addr(), `user "nobody"`, "docs/operate/security.md"}, false},
		"TLS to plain":    {"rediss://" + s.Addr() + "?dial_timeout=1s", time.Minute, []string{s.Addr(), "does not use TLS on this port"}, true},
		"TLS, short":      {"rediss://" + s.Addr(), time.Second, []string{s.Addr(), "TLS handshake", "redis://"}, true},
		"plain to TLS":    {"", time.Minute, []string{"the server uses TLS on this port: use rediss://"}, true},
		"nobody there":    {"redis://127.0.0.1:1", time.Minute, []string{"127.0.0.1:1", "refused"}, true},
		"silence":         {"redis://" + silent.Addr().String() + "?dial_timeout=1s", time.Minute, []string{silent.Addr().String(), "does not respond"}, true},
		"silence, short":  {"redis://" + silent.Addr().String(), time.Second, []string{silent.Addr().String(), "does not respond"}, true},
		"silence for TLS": {"rediss://" + silent.Addr().String() + "?dial_timeout=1s", time.Minute, []string{silent.Addr().String(), "TLS"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.url == "" {
				_, addr := redistest.StartTLS(t, redistest.NewAuthority(t), "--tls-auth-clients", "no")
				c.url, c.says = "redis://"+addr, append(c.says, addr)
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.within)
			defer cancel()
			_, err := client.Open(ctx, c.url)
			if err == nil || !isError(err) {
				t.Fatalf("%v", err)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v: it does not say %q", err, part)
				}
			}
			if short := c.within < time.Minute; errors.Is(err, context.DeadlineExceeded) != short || strings.Contains(err.Error(), "deadline exceeded") != short {
				t.Errorf("%v: is the caller's context over?", err)
			}
			if errors.Is(err, lock.ErrUnavailable) != c.unavailable {
				t.Errorf("%v: does it match ErrUnavailable?", err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

// An error of a lock about a missing right uses the same words.
func TestLock_saysWhatIsDenied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">hunter2", "~*", "&*", "+@all")
	c, err := client.Open(t.Context(), "redis://locks:hunter2@"+s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	says := func(what string, err error, parts ...string) {
		t.Helper()
		for _, part := range append(parts, s.Addr(), `user "locks"`) {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want one that says %q", what, err, part)
			}
		}
		if errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("%s: %v", what, err)
		}
	}
	h, err := c.NewLock("held").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Do(t, "ACL", "SETUSER", "locks", "-evalsha", "-eval")
	_, err = c.NewLock("orders").Lock(t.Context())
	says("Lock", err, "NOPERM", "docs/operate/security.md", `"Permissions"`)
	_, err = c.NewLock("orders").TryLock(t.Context())
	says("TryLock", err, "NOPERM", "docs/operate/security.md", `"Permissions"`)
	_, err = c.NewLock("orders").Inspect(t.Context())
	says("Inspect", err, "NOPERM", "docs/operate/security.md", `"Permissions"`)
	says("Unlock", h.Unlock(t.Context()), "NOPERM", "docs/operate/security.md", `"Permissions"`)
	s.Do(t, "ACL", "SETUSER", "locks", "+evalsha", "+eval", "resetpass", ">another")
	s.Do(t, "CLIENT", "KILL", "USER", "locks")
	for { // the first command may still fail because its connection ended
		_, err = c.NewLock("orders").TryLock(t.Context())
		if !errors.Is(err, lock.ErrUnavailable) {
			break
		}
	}
	says("TryLock with an old password", err, "WRONGPASS", "check the user and the password")
	s.Do(t, "ACL", "SETUSER", "locks", ">hunter2") // so that Close is confirmed
}

// A server that cannot serve now refuses the first commands: it is unavailable, and one that refuses the user is not.
func TestOpen_refused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for reply, want := range map[string]bool{"LOADING Redis is loading the dataset in memory": true, "ERR max number of clients reached": true, "DENIED Redis is running in protected mode": false} {
		p := redistest.NewProxy(t, s.Addr())
		p.OnRequest(func([][]byte) redistest.Action { return redistest.Action{Refuse: reply} })
		c, err := client.Open(t.Context(), "redis://"+p.Addr())
		if err == nil {
			_ = c.Close(t.Context())
		}
		if err == nil || errors.Is(err, lock.ErrUnavailable) != want || !strings.Contains(err.Error(), strings.TrimPrefix(reply, "ERR ")) {
			t.Errorf("%s: %v", reply, err)
		}
	}
}

// A server or a proxy need not have CLIENT, and the user need no permission for it: the connection has no name then.
func TestOpen_withoutTheName(t *testing.T) {
	t.Parallel()
	without, neither := redistest.Start(t, "--rename-command", "CLIENT", ""), redistest.Start(t, "--rename-command", "CLIENT", "", "--rename-command", "HELLO", "")
	denies := redistest.Start(t)
	denies.Do(t, "ACL", "SETUSER", "locks", "on", ">hunter2", "~*", "&*", "+@all", "-client")
	for _, url := range []string{without.URL() + "?protocol=2", neither.URL(), neither.URL() + "?protocol=2&client_name=app", "redis://locks:hunter2@" + denies.Addr() + "?protocol=2"} {
		for name, opts := range map[string][]client.Option{"at once": nil, "lazily": {client.WithLazyConnect()}} {
			t.Run(url+", "+name, func(t *testing.T) {
				c, err := client.Open(t.Context(), url, opts...)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(lock.Do(t.Context(), c.NewLock("orders"), func(context.Context) error { return nil }), c.Close(t.Context())); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What stands at the address is named: a Sentinel, a server that is none, TLS, another protocol, a server that is full. An Open in the
// background says the same with each call.
func TestOpen_saysWhatIsThere(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1)
	sentinel, server := s.Sentinels[0].Addr(), s.Nodes[0].Addr()
	full := redistest.Start(t)
	full.Do(t, "CONFIG", "SET", "maxclients", "1")
	taken, err := net.Dial("tcp", full.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	reply := func(text string) (addr string) { // a server that replies so to anything
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		t.Cleanup(func() { l.Close(); all.Wait() })
		all.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = conn.Write([]byte(text))
				conn.Close()
			}
		})
		return l.Addr().String()
	}
	authority := redistest.NewAuthority(t)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{authority.Issue(t)}})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake() // to plain text it replies with an alert
			conn.Close()
		}
	}()
	defer listener.Close()
	_, tlsAddr := redistest.StartTLS(t, authority)
	for name, c := range map[string]struct {
		url, says   string
		unavailable bool
	}{
		"Sentinel":              {"redis://" + sentinel, "the server is a Sentinel, which stores no locks: name its master, as in redis://sentinel:26379?master_set=NAME", false},
		"Sentinel, user":        {"redis://jobs:secret@" + sentinel, sentinel + ": the server is a Sentinel", false},
		"Sentinel, database":    {"redis://" + sentinel + "/1", sentinel + ": the server is a Sentinel", false},
		"no Sentinel":           {"redis://" + server + "?master_set=primary", "the server at " + server + " is not a Sentinel", false},
		"no such master":        {"redis://" + sentinel + "?master_set=other", `the Sentinel at ` + sentinel + ` has no master named "other"`, false},
		"TLS, with certificate": {"redis://" + tlsAddr, tlsAddr + ": the server uses TLS on this port: use rediss://", true},
		"TLS, alert":            {"redis://" + listener.Addr().String(), "the server uses TLS on this port: use rediss://", true},
		"HTTP":                  {"redis://" + reply("HTTP/1.0 400 Bad Request\r\n\r\n"), "the server does not speak the Redis protocol", false},
		"protected mode":        {"redis://" + reply("-DENIED Redis is running in protected mode\r\n"), "DENIED Redis is running in protected mode", false},
		"closed":                {"redis://" + reply(""), "the server closed the connection without a reply", true},
		"full":                  {"redis://" + full.Addr(), "the server at " + full.Addr() + " has reached its maxclients limit", true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.Open(t.Context(), c.url)
			if err == nil || !isError(err) || !strings.Contains(err.Error(), c.says) || errors.Is(err, lock.ErrUnavailable) != c.unavailable {
				t.Errorf("%v, want an error that says %q", err, c.says)
			}
			if strings.Contains(c.says, "not a Sentinel") || strings.Contains(c.says, "no master") || strings.HasPrefix(name, "Sentinel,") {
				return // a reply, which a call explains
			}
			_, err = openLazily(t, c.url, client.WithOpTimeout(time.Second)).NewLock("orders").TryLock(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("in the background: %v, want an error that says %q", err, c.says)
			}
		})
	}
}
