package client_test

import (
	"bytes"
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
	"github.com/redis/rueidis"
)

// An error of Open names the server, the user and what to do. It matches an error of the caller's context only if that
// context is canceled.
func TestOpen_errors(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	guarded := redistest.Start(t)
	guarded.Do(t, "CONFIG", "SET", "requirepass", "hunter2")
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">hunter2", "~*", "&*", "+@all")
	s.Do(t, "ACL", "SETUSER", "nobody", "on", ">hunter2", "-@all")
	unresponsive, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unresponsive.Close() })
	for name, c := range map[string]struct {
		url         string
		within      time.Duration
		text        []string
		unavailable bool
	}{
		"wrong password":          {"redis://locks:x@" + s.Addr(), time.Minute, []string{"WRONGPASS", s.Addr(), `user "locks"`, "check the user and the password"}, false},
		"password without colon":  {"redis://hunter2@" + guarded.Addr(), time.Minute, []string{"WRONGPASS", guarded.Addr(), "as in redis://:password@host:port"}, false},
		"no password":             {"redis://" + guarded.Addr(), time.Minute, []string{"NOAUTH", guarded.Addr(), `user "default"`, "redis://user:password@"}, false},
		"no permissions":          {"redis://nobody:hunter2@" + s.Addr() + "/1", time.Minute, []string{"NOPERM", s.Addr(), `user "nobody"`, "docs/operate/security.md"}, false},
		"TLS to plain":            {"rediss://" + s.Addr() + "?dial_timeout=3s", time.Minute, []string{s.Addr(), "does not use TLS on this port"}, true},
		"TLS, short":              {"rediss://" + s.Addr() + "?dial_timeout=1m", 3 * time.Second, []string{s.Addr(), "TLS handshake", "redis://"}, true},
		"plain to TLS":            {"", time.Minute, []string{"the server uses TLS on this port: use rediss://"}, true},
		"no listener":             {"redis://127.0.0.1:1", time.Minute, []string{"127.0.0.1:1", "refused"}, true},
		"no reply":                {"redis://" + unresponsive.Addr().String() + "?dial_timeout=3s", time.Minute, []string{unresponsive.Addr().String(), "does not respond"}, true},
		"no reply, short timeout": {"redis://" + unresponsive.Addr().String() + "?dial_timeout=1m", 3 * time.Second, []string{unresponsive.Addr().String(), "does not respond"}, true},
		"no reply to TLS":         {"rediss://" + unresponsive.Addr().String() + "?dial_timeout=3s", time.Minute, []string{unresponsive.Addr().String(), "TLS"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.url == "" {
				_, addr := redistest.StartTLS(t, redistest.NewAuthority(t), "--tls-auth-clients", "no")
				c.url, c.text = "redis://"+addr, append(c.text, addr)
			}
			why := errors.New("the start took too long")
			ctx, cancel := context.WithTimeoutCause(t.Context(), c.within, why)
			defer cancel()
			_, err := client.Open(ctx, c.url)
			if err == nil || !isError(err) {
				t.Fatalf("%v", err)
			}
			for _, part := range c.text {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v does not contain %q", err, part)
				}
			}
			if short := c.within < time.Minute; errors.Is(err, context.DeadlineExceeded) != short || errors.Is(err, why) != short || strings.Contains(err.Error(), "deadline exceeded") != short {
				t.Errorf("%v: wrong match of the caller's context", err)
			}
			if errors.Is(err, lock.ErrUnavailable) != c.unavailable {
				t.Errorf("%v: does it match ErrUnavailable?", err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error contains the password: %v", err)
			}
		})
	}
}

// Sentinels have their own users. The error does not name the user of the servers, and reports where to set the user of the
// Sentinels.
func TestOpen_sentinelPassword(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1)
	sentinel := s.Sentinels[0]
	sentinel.Do(t, "ACL", "SETUSER", "default", "resetpass", ">hunter2")
	option, err := client.ParseURL("redis://app:secret@" + sentinel.Addr() + "?master_set=" + redistest.PrimaryName)
	if err != nil {
		t.Fatal(err)
	}
	for password, parts := range map[string][]string{
		"":        {"the Sentinel at " + sentinel.Addr(), "NOAUTH", "ClientOption.Sentinel"},
		"mistake": {"the Sentinel at " + sentinel.Addr(), "WRONGPASS", "ClientOption.Sentinel"},
		"hunter2": {"Redis at " + s.Nodes[0].Addr() + `, user "app"`, "WRONGPASS"}, // the primary has no such user
	} {
		option.Sentinel.Password = password
		_, err = client.OpenWithOption(t.Context(), option)
		if !isError(err) || errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not contain %q", err, part)
			}
		}
		if password != "hunter2" && strings.Contains(err.Error(), "user \"") {
			t.Errorf("%v names a user of the servers", err)
		}
	}
}

// With a credentials function the user is not known, so the error names none.
func TestOpen_credentialsFunction(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">hunter2", "~*", "&*", "+@all")
	password := "mistake"
	option := rueidis.ClientOption{InitAddress: []string{s.Addr()}, AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Username: "locks", Password: password}, nil
	}}
	names := func(err error) {
		t.Helper()
		if !isError(err) || !strings.Contains(err.Error(), s.Addr()) || strings.Contains(err.Error(), ", user") {
			t.Errorf("got %v, want the server without a user", err)
		}
	}
	_, err := client.OpenWithOption(t.Context(), option)
	names(err)
	password = "hunter2"
	c, err := client.OpenWithOption(t.Context(), option)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	s.Do(t, "ACL", "SETUSER", "locks", "-evalsha", "-eval")
	_, err = c.NewLock("orders").TryLock(t.Context())
	names(err)
	s.Do(t, "ACL", "SETUSER", "locks", "+@all") // so that Close is confirmed
}

// An error of a lock about a missing permission uses the same words.
func TestLock_permissionErrors(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">hunter2", "~*", "&*", "+@all")
	c, err := client.Open(t.Context(), "redis://locks:hunter2@"+s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	text := func(what string, err error, parts ...string) {
		t.Helper()
		for _, part := range append(parts, s.Addr(), `user "locks"`) {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got %v, want %q in it", what, err, part)
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
	text("Lock", err, "NOPERM", "docs/operate/security.md", `"Permissions"`)
	_, err = c.NewLock("orders").TryLock(t.Context())
	text("TryLock", err, "NOPERM", "docs/operate/security.md", `"Permissions"`)
	_, err = c.NewLock("orders").Inspect(t.Context())
	text("Inspect", err, "NOPERM", "docs/operate/security.md", `"Permissions"`)
	text("Unlock", h.Unlock(t.Context()), "NOPERM", "docs/operate/security.md", `"Permissions"`)
	s.Do(t, "ACL", "SETUSER", "locks", "+evalsha", "+eval", "resetpass", ">another")
	s.Do(t, "CLIENT", "KILL", "USER", "locks")
	for { // the first command may still fail because its connection ended
		_, err = c.NewLock("orders").TryLock(t.Context())
		if !errors.Is(err, lock.ErrUnavailable) {
			break
		}
	}
	text("TryLock with an old password", err, "WRONGPASS", "check the user and the password")
	s.Do(t, "ACL", "SETUSER", "locks", ">hunter2") // so that Close is confirmed
}

// A server that temporarily rejects the first commands is unavailable. A server that rejects the user is not.
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

// If the server or a proxy does not support CLIENT, or the user lacks permission for it, the client connects without a connection
// name.
func TestOpen_withoutClientSetName(t *testing.T) {
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

// onlyClient connects to a server that accepts a single client. While the server still counts a connection that its client
// closed, it rejects a new one.
func onlyClient(t *testing.T, addr string) net.Conn {
	t.Helper()
	for {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		reply := make([]byte, 64)
		if _, err = conn.Write([]byte("PING\r\n")); err == nil {
			_, err = conn.Read(reply)
		}
		if err == nil && bytes.HasPrefix(reply, []byte("+PONG")) {
			return conn
		}
		conn.Close()
	}
}

// The error names what is at the address: a Sentinel, a server other than Redis, a TLS port, another protocol, or a
// server at its client limit. If Open connects in the background, each call returns the same error.
func TestOpen_wrongServers(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1)
	sentinel, server := s.Sentinels[0].Addr(), s.Nodes[0].Addr()
	full := redistest.Start(t)
	full.Do(t, "CONFIG", "SET", "maxclients", "1")
	only := onlyClient(t, full.Addr())
	t.Cleanup(func() { only.Close() })
	reply := func(text string) (addr string) { // a server that sends this reply to any request
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
			_ = conn.(*tls.Conn).Handshake() // it replies to plain text with an alert
			conn.Close()
		}
	}()
	t.Cleanup(func() { listener.Close() })
	_, tlsAddr := redistest.StartTLS(t, authority)
	for name, c := range map[string]struct {
		url, text   string
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
			t.Parallel()
			_, err := client.Open(t.Context(), c.url)
			if err == nil || !isError(err) || !strings.Contains(err.Error(), c.text) || errors.Is(err, lock.ErrUnavailable) != c.unavailable {
				t.Errorf("got %v, want %q in it", err, c.text)
			}
			if strings.Contains(c.text, "not a Sentinel") || strings.Contains(c.text, "no master") || strings.HasPrefix(name, "Sentinel,") {
				return // each call explains an error reply
			}
			_, err = openLazily(t, c.url, client.WithOpTimeout(5*time.Second)).NewLock("orders").TryLock(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("in the background: got %v, want %q in it", err, c.text)
			}
		})
	}
}

// A paused cluster is unavailable for New, which queries it for sharded Pub/Sub, as for any other call. If the caller's context
// is canceled, the error is the caller's.
func TestNew_clusterPaused(t *testing.T) {
	t.Parallel()
	node := redistest.Start(t, "--cluster-enabled", "yes")
	node.AddSlots(t, 0, 16384)
	rdb := node.Client(t)
	node.Freeze(t)
	_, err := client.New(rdb, client.WithOpTimeout(300*time.Millisecond))
	node.Thaw(t)
	if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want %v", err, lock.ErrUnavailable)
	}
}
