package client_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// output collects the log of a client and the errors that it returned.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (s *output) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *output) errors(errs ...error) {
	for _, err := range errs {
		if err != nil {
			_, _ = s.Write([]byte(err.Error() + "\n")) // never fails
		}
	}
}

func (s *output) contains(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), what)
}

// No error and no log line contains the password, or an owner string, with which any client could release the owner's
// lock. The cases: no fault, a wrong password, missing permissions, a loss, a key of the wrong type, and a server that
// is down.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const password = "hunter2-hunter2"
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">"+password, "~*", "&*", "+@all")
	s.Do(t, "ACL", "SETUSER", "nobody", "on", ">"+password, "-@all", "+ping")
	var all output
	options := []client.Option{
		client.WithWatchdogTimeout(12 * time.Second), client.WithOpTimeout(3 * time.Second),
		client.WithLogger(slog.New(slog.NewTextHandler(&all, &slog.HandlerOptions{Level: slog.LevelDebug}))),
	}
	open := func(user, password, more string) *client.Client {
		t.Helper()
		c, err := client.Open(t.Context(), "redis://"+user+":"+password+"@"+s.Addr()+more, options...)
		all.errors(err)
		return c
	}
	for _, more := range []string{"/x", "?db=x", "?dial_timeout=x", "/99999"} {
		if open("locks", password, more) != nil {
			t.Errorf("%s: there is no such database", more)
		}
	}
	if open("locks", "not-"+password, "") != nil {
		t.Error("a wrong password opens")
	}
	if c := open("nobody", password, ""); c != nil {
		_, err := c.NewLock("orders").Lock(t.Context())
		all.errors(err, c.Close(t.Context()))
	}

	c := open("locks", password, "")
	if c == nil {
		t.Fatal(all.text.String())
	}
	var owners []string
	take := func(l lock.Locker) lock.Hold {
		t.Helper()
		h, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		owners = append(owners, h.Owner())
		return h
	}
	lose := func(h lock.Hold) {
		t.Helper()
		select {
		case <-h.Context().Done():
		case <-time.After(30 * time.Second):
			t.Fatal("the holder was not notified")
		}
		all.errors(h.Err(), context.Cause(h.Context()), h.Unlock(t.Context()))
	}
	var lost []lock.Hold
	for _, l := range []lock.Locker{c.NewLock("orders"), c.NewFairLock("fair"), c.NewRWLock("shared").Read(), c.NewRWLock("shared").Write()} {
		h := take(l)
		_, busy := l.TryLock(t.Context())
		s.Do(t, "DEL", l.Name())
		all.errors(busy)
		lost = append(lost, h)
	}
	for _, h := range lost {
		lose(h)
	}

	// If the server does not support the command, its error repeats the arguments.
	renamed := redistest.Start(t, "--rename-command", "EVALSHA", "")
	d, err := client.Open(t.Context(), renamed.URL(), options...)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []lock.Locker{d.NewLock("orders"), d.NewFairLock("fair"), d.NewRWLock("shared").Read(), d.NewRWLock("shared").Write(), multilock.New(d.NewLock("a"), d.NewLock("b"))} {
		_, wait := l.Lock(t.Context())
		_, try := l.TryLock(t.Context())
		all.errors(wait, try)
		if wait == nil || !strings.Contains(wait.Error(), "EVALSHA") || !strings.Contains(try.Error(), "EVALSHA") {
			t.Errorf("Lock: %v, TryLock: %v, want errors that name EVALSHA", wait, try)
		}
	}
	_, inspected := d.NewLock("orders").Inspect(t.Context())
	all.errors(inspected, d.Close(t.Context()))
	if all.contains("args beginning") {
		t.Error("the arguments of a command are in an error or in the log")
	}

	s.Do(t, "HSET", "visits", "secret-field", "secret-value")
	for _, o := range []interface {
		Inspect(context.Context) (lock.State, error)
		ForceUnlock(context.Context) (bool, error)
	}{c.NewLock("visits"), c.NewFairLock("visits"), c.NewRWLock("visits")} {
		_, inspect := o.Inspect(t.Context())
		_, force := o.ForceUnlock(t.Context())
		all.errors(inspect, force)
		if !errors.Is(inspect, lock.ErrWrongType) {
			t.Errorf("Inspect of another application's hash: %v", inspect)
		}
	}
	s.Do(t, "SET", "text", "x")
	_, other := c.NewLock("text").Lock(t.Context())
	all.errors(other)
	h := take(c.NewLock("orders"))
	s.Kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, waited := c.NewLock("more").Lock(ctx)
	_, tried := c.NewLock("more").TryLock(t.Context())
	all.errors(waited, tried)
	lose(h)
	all.errors(c.Close(t.Context()))

	for _, want := range []string{"WRONGPASS", "lock lost", "connection refused", lock.ErrWrongType.Error()} {
		if !all.contains(want) {
			t.Errorf("no %q in the output: the test covers too little", want)
		}
	}
	if all.contains("secret-") {
		t.Error("the contents of another application's hash are in an error or in the log")
	}
	if all.contains(password) {
		t.Error("the password is in an error or in the log")
	}
	for _, owner := range owners {
		if client, _, _ := strings.Cut(owner, ":"); all.contains(client) {
			t.Errorf("the owner %s is in an error or in the log", owner)
		}
	}
	if t.Failed() {
		t.Log(all.text.String())
	}
}
