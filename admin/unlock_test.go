package admin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// say publishes a message as clients do, and returns the number of its receivers.
func (s *scene) say(channel, message string) int64 {
	s.Helper()
	cmd := s.rdb.B().Publish().Channel(channel).Message(message).Build()
	if s.rdb.Mode() == rueidis.ClientModeCluster && !s.plain {
		cmd = s.rdb.B().Spublish().Channel(channel).Message(message).Build()
	}
	n, err := s.rdb.Do(s.Context(), cmd).AsInt64()
	if err != nil {
		s.Fatal(err)
	}
	return n
}

// one reports whether n is the number of receivers of a message that one client received.
func (s *scene) one(n int) bool { return n == 1 || n == 0 && s.plain }

// hears waits until the client is subscribed to messages about its locks, once it has held a lock for a second.
func (s *scene) hears(c *client.Client) {
	s.Helper()
	channel, _ := registry.Taken(c.ID()+":1", "")
	s.until("it listens", func() bool { return s.say(channel, "hello") > 0 })
}

// ForceUnlock immediately notifies the holder of the operator and the reason, and the waiter acquires
// the lock. The cause of the loss has the text of the message, so it does not come from the next renewal.
func TestUnlock(t *testing.T) {
	everywhere(t, func(s *scene) {
		second := s.client("second")
		s.lock(s.c.NewLock("long")) // so that the client is subscribed during the others
		s.hears(s.c)
		for kind, of := range map[string]func(*client.Client) lock.Locker{
			"plain": func(c *client.Client) lock.Locker { return c.NewLock("plain") },
			"fair":  func(c *client.Client) lock.Locker { return c.NewFairLock("fair") },
			"write": func(c *client.Client) lock.Locker { return c.NewRWLock("write").Write() },
			"read":  func(c *client.Client) lock.Locker { return c.NewRWLock("read").Read() },
		} {
			if _, err := s.admin.ForceUnlock(s.Context(), kind, "", ""); !errors.Is(err, lock.ErrNotHeld) {
				s.Errorf("%s, free: %v", kind, err)
			}
			h := s.lock(of(s.c))
			waiter := of(second)
			if kind == "read" {
				waiter = second.NewRWLock(kind).Write()
			}
			next, cancel := s.waits(waiter, 1)
			if _, err := s.admin.ForceUnlock(s.Context(), kind, second.ID()+":1", ""); !errors.Is(err, lock.ErrNotHeld) || h.Err() != nil {
				s.Errorf("%s, of somebody else: %v, %v", kind, err, h.Err())
			}
			u, err := s.admin.ForceUnlock(s.Context(), kind, "", "stuck")
			if err != nil || len(u.Holders) != 1 || u.Holders[0].Owner != h.Owner() || u.Holders[0].Client.Name != "billing" || !s.one(u.Notified) || u.RecordErr != nil {
				s.Fatalf("%s: %+v, %v", kind, u, err)
			}
			<-h.Context().Done()
			if err := h.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrForceUnlocked) || !strings.Contains(err.Error(), "by alice@desk: stuck") {
				s.Errorf("%s: the holder is told %v", kind, err)
			}
			select {
			case h, ok := <-next:
				if !ok {
					s.Errorf("%s: the waiter has given up", kind)
				} else if err := h.Unlock(s.Context()); err != nil {
					s.Error(err)
				}
			case <-time.After(patience):
				s.Errorf("%s: the waiter does not get the lock", kind)
			}
			cancel()
			if f := s.inspect(kind).ForceUnlock; f == nil || f.By != "alice@desk" || f.Reason != "stuck" || len(f.From) != 1 || !strings.HasPrefix(f.From[0], "billing on ") || time.Since(f.At).Abs() > time.Minute {
				s.Errorf("%s: the note is %+v", kind, f)
			}
			if err := h.Unlock(s.Context()); !errors.Is(err, lock.ErrLost) {
				s.Errorf("%s: unlocked later: %v", kind, err)
			}
		}
	})
}

// A fixed lease is never renewed, so only the message can notify its holder. A client subscribes as soon as one of its
// holds is a second old, even if it has checked a younger one first.
func TestUnlock_fixedLease(t *testing.T) {
	everywhere(t, func(s *scene) {
		if err := s.lock(s.c.NewLock("before")).Unlock(s.Context()); err != nil { // so that the first check finds a young hold, or none
			s.Fatal(err)
		}
		h := s.lock(s.c.NewLock("fixed", lock.WithFixedLease(time.Hour)))
		s.hears(s.c)
		if u, err := s.admin.ForceUnlock(s.Context(), "fixed", "", "stuck"); err != nil || !s.one(u.Notified) {
			s.Fatalf("%+v, %v", u, err)
		}
		<-h.Context().Done()
		if err := h.Err(); !errors.Is(err, lock.ErrForceUnlocked) {
			s.Errorf("the holder is told %v", err)
		}
	})
}

// If a hold is younger than a second and its client is not subscribed yet, the client detects the force-unlock when it subscribes: long before its
// next renewal, if there is one. The audit record names the operator. It also does so for an earlier Unlock, and for a client that never subscribes.
func TestUnlock_youngHold(t *testing.T) {
	everywhere(t, func(s *scene) {
		quick := s.client("quick")
		deaf, err := client.New(s.connect(), client.WithoutRegistry(), client.WithWatchdogTimeout(18*time.Second))
		s.must(err)
		defer deaf.Close(context.Background())
		for name, c := range map[string]struct {
			l    lock.Locker
			told bool
		}{
			"fixed":           {s.c.NewLock("fixed", lock.WithFixedLease(time.Hour)), true},
			"fair":            {s.c.NewFairLock("fair"), true},
			"read":            {s.c.NewRWLock("read").Read(), true},
			"semaphore":       {s.c.NewSemaphore("semaphore", 2), true},
			"unlocked":        {quick.NewLock("unlocked"), false},
			"by a handle":     {s.c.NewLock("by a handle", lock.WithFixedLease(time.Hour)), true},
			"renewed":         {deaf.NewLock("renewed"), true},
			"several permits": {s.c.NewSemaphore("several permits", 3).N(2), true},
		} {
			h := s.lock(c.l)
			says := "by alice@desk: stuck"
			if name == "by a handle" {
				says = ", pid "
				if done, err := quick.NewLock(name).ForceUnlock(s.Context()); err != nil || !done {
					s.Fatal(done, err)
				}
				if f := s.inspect(name).ForceUnlock; f == nil || !slices.Equal(f.From, []string{s.c.ID()}) || time.Since(f.At).Abs() > time.Minute {
					s.Errorf("the note is %+v", f)
				}
			} else if u, err := s.admin.ForceUnlock(s.Context(), name, "", "stuck"); err != nil || u.RecordErr != nil {
				s.Fatalf("%s: %+v, %v", name, u, err)
			}
			if c.told {
				<-h.Context().Done()
			}
			err := h.Unlock(s.Context())
			if c.told {
				err = h.Err()
			}
			if !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrForceUnlocked) || !errors.Is(err, lock.ErrGone) || !strings.Contains(err.Error(), says) {
				s.Errorf("%s: the holder is told %v", name, err)
			}
		}
	})
}

// An audit record about an earlier holder, or one that is older than the hold, does not explain a loss.
func TestUnlock_notesOfOthers(t *testing.T) {
	everywhere(t, func(s *scene) {
		for name, note := range map[string]string{
			"another":  `{"by":"eve","from":["other on host, pid 1"]}`,
			"garbage":  `{"by":`,
			"nobody's": `{"by":"eve"}`,
		} {
			h := s.lock(s.c.NewLock(name, lock.WithFixedLease(time.Hour)))
			s.do("SET", "leasehold_forced:{"+name+"}", note, "PX", "604800000")
			s.do("DEL", name)
			if err := h.Unlock(s.Context()); !errors.Is(err, lock.ErrGone) || errors.Is(err, lock.ErrForceUnlocked) {
				s.Errorf("%s: %v", name, err)
			}
		}
		first := s.lock(s.c.NewLock("twice"))
		if _, err := s.admin.ForceUnlock(s.Context(), "twice", "", ""); err != nil {
			s.Fatal(err)
		}
		_ = first.Unlock(s.Context())
		h := s.lock(s.c.NewLock("twice", lock.WithFixedLease(time.Hour)))
		s.do("PEXPIRE", "leasehold_forced:{twice}", "604700000") // as if the force-unlock was 100 s ago
		s.do("DEL", "twice")
		if err := h.Unlock(s.Context()); !errors.Is(err, lock.ErrGone) || errors.Is(err, lock.ErrForceUnlocked) {
			s.Errorf("an older note: %v", err)
		}
	})
}

// ForceUnlock with an owner removes one of several readers, and the others keep the lock.
func TestUnlock_oneOfSeveral(t *testing.T) {
	everywhere(t, func(s *scene) {
		second := s.client("second")
		a, b := s.lock(s.c.NewRWLock("rw").Read()), s.lock(second.NewRWLock("rw").Read())
		u, err := s.admin.ForceUnlock(s.Context(), "rw", a.Owner(), "")
		if err != nil || len(u.Holders) != 1 || u.Holders[0].Owner != a.Owner() {
			s.Fatalf("%+v, %v", u, err)
		}
		if l := s.inspect("rw"); len(l.Holders) != 1 || l.Holders[0].Owner != b.Owner() || b.Err() != nil {
			s.Errorf("%+v, and its hold: %v", l, b.Err())
		}
		<-a.Context().Done() // the client is not subscribed yet: its next renewal detects the loss
		if u, err := s.admin.ForceUnlock(s.Context(), "rw", "", ""); err != nil || len(u.Holders) != 1 || u.Holders[0].Owner != b.Owner() {
			s.Errorf("the rest: %+v, %v", u, err)
		}
		if l := s.inspect("rw"); l.Locked() {
			s.Errorf("%+v", l)
		}
	})
}

// ForceUnlock also removes Redisson owners, for any type of lock.
func TestUnlock_redissons(t *testing.T) {
	everywhere(t, func(s *scene) {
		for name, words := range map[string][]string{
			"plain": {redissons + ":84", "2"},
			"write": {"mode", "write", redissons + ":84:write", "1", redissons + ":84", "1"},
			"read":  {"mode", "read", redissons + ":84", "1"},
		} {
			s.do(append([]string{"HSET", name}, words...)...)
			s.do("SET", "{"+name+"}:"+redissons+":84:rwlock_timeout:1", "1")
			if u, err := s.admin.ForceUnlock(s.Context(), name, "", ""); err != nil || u.Holders[0].Owner != redissons+":84" || u.Notified != 0 {
				s.Errorf("%s: %+v, %v", name, u, err)
			}
			if l := s.inspect(name); l.Locked() {
				s.Errorf("%s: %+v", name, l)
			}
		}
	})
}

// A message is only a reason to check the lock in Redis: a forged message removes no holder.
func TestUnlock_forged(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	h, fixed := sc.lock(sc.c.NewLock("orders")), sc.lock(sc.c.NewRWLock("rw", lock.WithFixedLease(time.Hour)).Read())
	sc.hears(sc.c)
	calls := s.CommandCallsByClients(t, "evalsha")
	for _, h := range []lock.Hold{h, fixed} {
		channel, message := registry.Taken(h.Owner(), "mallory")
		for _, m := range []string{message, "taken", "taken ", "taken x", "taken 1 \x00\xff", "nonsense", ""} {
			sc.say(channel, m)
		}
	}
	sc.until("it has asked", func() bool { return s.CommandCallsByClients(t, "evalsha") >= calls+2 })
	if h.Err() != nil || fixed.Err() != nil {
		t.Errorf("%v, %v", h.Err(), fixed.Err())
	}
	if l := sc.inspect("rw"); l.Lease > time.Hour {
		t.Errorf("the question changed the lease to %v", l.Lease)
	}
	if err := errors.Join(h.Unlock(t.Context()), fixed.Unlock(t.Context())); err != nil {
		t.Error(err)
	}
}

// ForceUnlock fails in time if the server does not respond. If the server denies a command, the error says what to do.
func TestUnlock_fails(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client {
		return s.Client(t, s.AddUser(t, "ops", "~orders:*", "+@all", "-scan"))
	})
	for _, err := range []error{
		func() error { _, err := sc.admin.Inspect(t.Context(), "else"); return err }(),
		func() error { _, err := sc.admin.ForceUnlock(t.Context(), "else", "", ""); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "NOPERM") || !strings.Contains(err.Error(), "docs/operate/security.md") || !strings.Contains(err.Error(), `"else"`) {
			t.Errorf("%v", err)
		}
	}
	for _, err := range sc.admin.Locks(t.Context(), admin.Query{}) {
		if err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%v", err)
		}
	}
	for _, bad := range []string{"", "a{", strings.Repeat("x", 5000)} {
		if _, err := sc.admin.ForceUnlock(t.Context(), bad, "", ""); !errors.Is(err, lock.ErrBadName) {
			t.Errorf("%.10q: %v", bad, err)
		}
	}
	if _, err := sc.admin.ForceUnlock(t.Context(), "orders:1", "", "two\nlines"); err == nil || !strings.Contains(err.Error(), "reason") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sc.admin.Inspect(ctx, "orders:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A release that the server denies removes no holder, so the audit record names none, and the earlier record stays.
func TestUnlock_denied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	a, err := admin.New(s.Client(t, s.AddUser(t, "ops", "~*", "&*", "+@all", "-hdel")))
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{"", "stuck"} {
		if before != "" {
			sc.lock(sc.c.NewLock("orders"))
			if _, err := sc.admin.ForceUnlock(t.Context(), "orders", "", before); err != nil {
				t.Fatal(err)
			}
		}
		h := sc.lock(sc.c.NewLock("orders"))
		if _, err := a.ForceUnlock(t.Context(), "orders", "", "again"); err == nil || errors.Is(err, lock.ErrNotHeld) {
			t.Fatalf("%v, want a denial", err)
		}
		l := sc.inspect("orders")
		if !l.Locked() || (l.ForceUnlock == nil) != (before == "") || l.ForceUnlock != nil && l.ForceUnlock.Reason != before {
			t.Errorf("after %q: %+v, held: %v", before, l.ForceUnlock, l.Locked())
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A holder releases the lock after ForceUnlock has read it. The audit record does not name the
// holder, and an earlier record stays.
func TestUnlock_givenBackMeanwhile(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	a, err := admin.New(s.Client(t, redistest.Via(proxy)), admin.WithOperator("alice"))
	if err != nil {
		t.Fatal(err)
	}
	take := func() { s.Do(t, "HSET", "orders", redissons+":84", "1") }
	forced := func() string {
		t.Helper()
		l, err := a.Inspect(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		if l.ForceUnlock == nil {
			return ""
		}
		return l.ForceUnlock.Reason
	}
	inVain := func() {
		t.Helper()
		proxy.OnRequest(func(req [][]byte) redistest.Action {
			if strings.EqualFold(string(req[0]), "SET") { // the audit record
				s.Do(t, "DEL", "orders")
			}
			return redistest.Action{}
		})
		take()
		if u, err := a.ForceUnlock(t.Context(), "orders", "", "in vain"); !errors.Is(err, lock.ErrNotHeld) || len(u.Holders) != 0 || u.RecordErr != nil {
			t.Errorf("%+v, %v", u, err)
		}
		proxy.OnRequest(nil)
	}
	inVain()
	if reason := forced(); reason != "" {
		t.Errorf("noted: %q", reason)
	}
	take()
	if _, err := a.ForceUnlock(t.Context(), "orders", "", "first"); err != nil {
		t.Fatal(err)
	}
	inVain()
	if reason := forced(); reason != "first" {
		t.Errorf("noted: %q", reason)
	}
}

// The ForceUnlock of a lock immediately notifies holders of other clients, too: the cause of the loss has the text of the message.
func TestForceUnlock_tellsOthers(t *testing.T) {
	everywhere(t, func(s *scene) {
		second := s.client("second")
		s.lock(s.c.NewLock("long")) // so that the client is subscribed
		s.hears(s.c)
		type forced interface {
			ForceUnlock(context.Context) (bool, error)
		}
		for kind, of := range map[string]func(*client.Client) (lock.Locker, forced){
			"plain": func(c *client.Client) (lock.Locker, forced) { l := c.NewLock("plain"); return l, l },
			"fair":  func(c *client.Client) (lock.Locker, forced) { l := c.NewFairLock("fair"); return l, l },
			"write": func(c *client.Client) (lock.Locker, forced) { l := c.NewRWLock("write"); return l.Write(), l },
			"read":  func(c *client.Client) (lock.Locker, forced) { l := c.NewRWLock("read"); return l.Read(), l },
		} {
			mine, _ := of(s.c)
			h := s.lock(mine)
			_, theirs := of(second)
			if ok, err := theirs.ForceUnlock(s.Context()); !ok || err != nil {
				s.Fatalf("%s: %v, %v", kind, ok, err)
			}
			<-h.Context().Done()
			if err := h.Err(); !errors.Is(err, lock.ErrForceUnlocked) || !strings.Contains(err.Error(), "force-unlocked by ") || !strings.Contains(err.Error(), ", pid ") {
				s.Errorf("%s: the holder is told %v", kind, err)
			}
		}
	})
}

// readers lets three clients read a lock, and returns them in the order in which ForceUnlock removes them.
func (s *scene) readers(name string) []lock.Holder {
	s.Helper()
	for _, who := range []string{"a", "b", "c"} {
		s.lock(s.client(who).NewRWLock(name).Read())
	}
	var readers []lock.Holder
	s.until("all are known", func() bool {
		readers = s.inspect(name).Holders
		return !slices.ContainsFunc(readers, func(h lock.Holder) bool { return !h.Client.Known() })
	})
	return readers
}

// ForceUnlockOwners removes exactly the given owners. One audit record names all of them.
func TestForceUnlockOwners(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	readers := sc.readers("rw")
	if _, err := sc.admin.ForceUnlockOwners(t.Context(), "rw", nil, ""); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("from nobody: %v", err)
	}
	u, err := sc.admin.ForceUnlockOwners(t.Context(), "rw", []string{readers[2].Owner, redissons + ":1", readers[0].Owner}, "stuck")
	if err != nil || len(u.Holders) != 2 || u.RecordErr != nil {
		t.Errorf("%+v, %v", u, err)
	}
	l := sc.inspect("rw")
	if len(l.Holders) != 1 || l.Holders[0].Owner != readers[1].Owner {
		t.Errorf("it is held by %+v", l.Holders)
	}
	if want := []string{readers[0].Client.String(), readers[2].Client.String()}; l.ForceUnlock == nil || !slices.Equal(l.ForceUnlock.From, want) {
		t.Errorf("the note: %+v, want %q", l.ForceUnlock, want)
	}
}

// If a reply is lost during a ForceUnlock, the result has the holders that lost the lock, and the error names the one whose outcome is unknown.
func TestUnlock_noAnswer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	a, err := admin.New(s.Client(t, redistest.Via(proxy)))
	if err != nil {
		t.Fatal(err)
	}
	readers := newScene(t, func() rueidis.Client { return s.Client(t) }).readers("rw")
	// unlock removes two of the readers, and applies act to the command about the second one.
	unlock := func(ctx context.Context, i, j int, act func() redistest.Action) (admin.ForceUnlockResult, error) {
		proxy.OnRequest(func(req [][]byte) redistest.Action {
			if strings.EqualFold(string(req[0]), "EVALSHA") && slices.ContainsFunc(req, func(b []byte) bool { return string(b) == readers[j].Owner }) {
				return act()
			}
			return redistest.Action{}
		})
		u, err := a.ForceUnlockOwners(ctx, "rw", []string{readers[i].Owner, readers[j].Owner}, "")
		if err == nil || !strings.Contains(err.Error(), "unknown outcome for holder "+readers[j].Client.String()) || errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("%v", err)
		}
		return u, err
	}
	u, _ := unlock(t.Context(), 0, 1, func() redistest.Action { return redistest.Action{DropReply: true} })
	if len(u.Holders) != 1 || u.Holders[0].Owner != readers[0].Owner {
		t.Errorf("before that: %+v", u.Holders)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("the operator had enough")
	_, err = unlock(ctx, 1, 2, func() redistest.Action {
		cancel(enough)
		return redistest.Action{HoldReply: t.Context().Done()}
	})
	if !errors.Is(err, enough) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, and not why it ended", err)
	}
	if a, err = admin.New(s.Client(t, redistest.Via(proxy)), admin.WithOpTimeout(time.Second)); err != nil {
		t.Fatal(err)
	}
	proxy.OnRequest(nil)
	readers = newScene(t, func() rueidis.Client { return s.Client(t) }).readers("rw")
	_, err = unlock(t.Context(), 0, 1, func() redistest.Action { return redistest.Action{HoldReply: t.Context().Done()} })
	if !errors.Is(err, lock.ErrUnavailable) || !strings.HasSuffix(err.Error(), "has not responded for 1s") {
		t.Errorf("%v, and not that there was no reply", err)
	}
}
