package session

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Inspect shows since when a holder and the waiters of a lock wait for it, including the processes in the queue of a
// plain lock, and their clients as far as Redis stores them.
func TestInspect_since(t *testing.T) {
	inBubble(t, func(w *world) {
		w.mini.HSet(keys.Client(w.a.id), "host", "db7", "name", "billing")
		h := w.lock(w.a, w.Context())
		held := time.Now()
		time.Sleep(time.Minute)
		waiter := w.waiting(w.b, w.Context())
		waits := time.Now()
		time.Sleep(time.Minute)
		state, err := Inspect(w.Context(), w.b, w.b.NewSpec(plain, "orders", nil), luascripts.InspectReentrant)
		if err != nil || len(state.Holders) != 1 || len(state.Waiters) != 1 {
			w.Fatalf("%+v, %v", state, err)
		}
		got := state.Holders[0]
		if !got.Since.Equal(held) || got.Owner != h.Owner() || got.Mode != lock.Exclusive || state.Mode != lock.Exclusive {
			w.Errorf("%+v, want held since %v", state, held)
		}
		if want := (lock.Client{ID: w.a.id, Host: "db7", Name: "billing"}); got.Client != want {
			w.Errorf("%+v holds it, want %+v", got.Client, want)
		}
		if got := state.Waiters[0]; !got.Since.Equal(waits) || got.WaiterTimeout != lock.NoExpiry || !strings.HasPrefix(got.Owner, w.b.id) {
			w.Errorf("%+v waits, want since %v", got, waits)
		} else if want := (lock.Client{ID: w.b.id}); got.Client != want {
			w.Errorf("%+v waits, want %+v", got.Client, want)
		}
		w.unlock(h)
		w.unlock(w.next(waiter))
		w.mini.Del(keys.Client(w.a.id))
	})
}

// Owners created at the same time differ, and an owner of another library has no time, whatever its number is.
func TestOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Session{identity: identity{id: "01a202b8-4bbe-7c35-bc27-051edccf1eeb"}}
		seen := make(map[string]bool)
		for range 5000 {
			owner := s.newOwner(time.Now(), 0, "")
			if seen[owner] {
				t.Fatalf("%s twice", owner)
			}
			seen[owner] = true
			if late := time.Until(AskedSince(owner)); late < 0 || late > 10*time.Microsecond {
				t.Fatalf("%s is %v late", owner, late)
			}
		}
		const java = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b"
		ours := owner.NewClient()
		for _, owner := range []string{
			"", "x", "x:1", s.id, s.id + ":", s.id + ":-1", java + ":7", java + ":1800000000000000",
			"short:1800000000000000", "01a202b8-4bbe-:1800000000000000",
			ours + ":18446744073709551615", ours + ":9223372036854775808", ours + ":many", ours + "::3",
		} {
			if since := AskedSince(owner); !since.IsZero() {
				t.Errorf("%q: got the time %v", owner, since)
			}
		}
	})
}

// An owner of a semaphore has one number per permit, and no other owner has any of them. Their permit numbers
// distinguish owners that were created at the same time.
func TestNewOwner_permits(t *testing.T) {
	s := new(Session)
	s.id = owner.NewClient()
	seen := make(map[string]bool)
	var stored luascripts.SemaphoreState
	var owners []string
	now := time.Now()
	for _, permits := range []int{1, 1000, 3, 1, 1000} {
		o := s.newOwner(now, permits, "")
		owners = append(owners, o)
		for _, id := range luascripts.Permits(o) {
			if seen[id] {
				t.Fatalf("two owners have the permit %x", id)
			}
			seen[id] = true
			stored.Held = append(stored.Held, luascripts.Permit{ID: id, Left: time.Second})
		}
	}
	if len(seen) != 2005 {
		t.Errorf("%d permits", len(seen))
	}
	state, _, _ := SemaphoreStateOf("gpus", stored)
	var held []string
	for _, h := range state.Holders {
		held = append(held, h.Owner)
	}
	if !slices.Equal(held, owners) {
		t.Errorf("%q hold it, want %q", held, owners)
	}
}

// Each test here fails without one guard of reading the state of a lock.

// A snapshot shows who holds the lock, how, and for how long, and who waits.
func TestStateOf(t *testing.T) {
	const java = "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:7"
	const ours = "01a202b8-4bbe-7c35-bc27-051edccf1eeb:1830000000000000000"
	requests := time.UnixMicro(1830000000000000000 >> 10)
	left := 20 * time.Second
	waits := []luascripts.Waiter{{Owner: ours, WaiterTimeout: time.Second}, {Owner: java, WaiterTimeout: lock.NoExpiry}}
	waiters := []lock.Waiter{{Owner: ours, WaiterTimeout: time.Second, Since: requests}, {Owner: java, WaiterTimeout: lock.NoExpiry}}
	for name, c := range map[string]struct {
		sided    bool
		snapshot luascripts.Snapshot
		want     lock.State
	}{
		"no key":                      {false, luascripts.Snapshot{Left: lock.NoExpiry, Waiters: waits}, lock.State{Waiters: waiters}},
		"no key of a read/write lock": {true, luascripts.Snapshot{Left: lock.NoExpiry, Waiters: waits}, lock.State{Waiters: waiters}},
		"nothing but a queue":         {false, luascripts.Snapshot{Exists: true, Left: left, Waiters: waits}, lock.State{Waiters: waiters}},
		"dead readers":                {true, luascripts.Snapshot{Exists: true, Left: left, Mode: "read"}, lock.State{}},
		"ours": {false, luascripts.Snapshot{Exists: true, Left: left, Fields: []luascripts.Field{{Name: ours, Value: "2"}}, Waiters: waits},
			lock.State{Mode: lock.Exclusive, Lease: left, Holders: []lock.Holder{{Owner: ours, Count: 2, Mode: lock.Exclusive, Since: requests}}, Waiters: waiters}},
		"Redisson's, without end": {false, luascripts.Snapshot{Exists: true, Left: lock.NoExpiry, Fields: []luascripts.Field{{Name: java, Value: "1"}}},
			lock.State{Mode: lock.Exclusive, Lease: lock.NoExpiry, Holders: []lock.Holder{{Owner: java, Count: 1, Mode: lock.Exclusive}}}},
		"a plain lock whose owner ends as a writer's field does": {false, luascripts.Snapshot{Exists: true, Left: left, Fields: []luascripts.Field{{Name: java + ":write", Value: "1"}}},
			lock.State{Mode: lock.Exclusive, Lease: left, Holders: []lock.Holder{{Owner: java + ":write", Count: 1, Mode: lock.Exclusive}}}},
		"readers": {true, luascripts.Snapshot{Exists: true, Left: left, Mode: "read", Fields: []luascripts.Field{{Name: java, Value: "1"}, {Name: ours, Value: "3"}}},
			lock.State{Mode: lock.Read, Lease: left, Holders: []lock.Holder{{Owner: ours, Count: 3, Mode: lock.Read, Since: requests}, {Owner: java, Count: 1, Mode: lock.Read}}}},
		"a writer that reads": {true, luascripts.Snapshot{Exists: true, Left: left, Mode: "write", Fields: []luascripts.Field{{Name: ours, Value: "1"}, {Name: ours + ":write", Value: "2"}}},
			lock.State{Mode: lock.Write, Lease: left, Holders: []lock.Holder{{Owner: ours, Count: 2, Mode: lock.Write, Since: requests}, {Owner: ours, Count: 1, Mode: lock.Read, Since: requests}}}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Name = "orders"
			got, err := StateOf("orders", c.sided, c.snapshot)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
	for name, snapshot := range map[string]luascripts.Snapshot{
		"a string": {Foreign: true},
		"a hash":   {Exists: true, Left: left, Fields: []luascripts.Field{{Name: "name", Value: "Alice"}}},
	} {
		if state, err := StateOf("orders", false, snapshot); !errors.Is(err, lock.ErrWrongType) || state.Mode != lock.Free || state.Holders != nil {
			t.Errorf("%s: %+v, %v", name, state, err)
		}
	}
}

// wantAbout fails the test unless err is the error of the operation op on the lock with this name.
func (w *world) wantAbout(op, name string, err error) {
	w.Helper()
	if e := new(lock.Error); !errors.As(err, &e) || e.Op != op || e.Name != name {
		w.Errorf("%v, which is not about %s of %q", err, op, name)
	}
}

// errText returns the text of an error.
func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A failed Inspect reports why, and for which lock. If it cannot succeed, it sends no command.
func TestInspect_fails(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", nil)
		inspect := func(ctx context.Context, spec *Spec) error {
			state, err := Inspect(ctx, w.a, spec, luascripts.InspectReentrant)
			if state.Name != "" {
				w.Errorf("got %+v with an error", state)
			}
			w.wantAbout("inspect", spec.Name, err)
			return err
		}
		w.mini.SetError("ERR out of order")
		if err := inspect(w.Context(), spec); !strings.Contains(errText(err), "out of order") {
			w.Error(err)
		}
		w.mini.SetError("")

		w.wantNoErr(w.mini.Set("orders", "1"))
		if err := inspect(w.Context(), spec); !errors.Is(err, lock.ErrWrongType) || !strings.Contains(errText(err), "a number") {
			w.Errorf("%v, which does not say what the key holds", err)
		}
		w.mini.Del("orders")

		w.sendsNothing(func() {
			w.wantErr(inspect(w.Context(), w.a.NewSpec(plain, "", nil)), lock.ErrBadName)
			done, cancel := context.WithCancel(w.Context())
			cancel()
			w.wantEnd("Inspect", inspect(done, spec), []error{context.Canceled}, lock.ErrUnavailable)
			w.close(w.a)
			w.wantErr(inspect(w.Context(), spec), lock.ErrClosed)
		})
	})
}

// Inspect of a plain lock rejects the key of a fair lock, and the other way around. An owner of Redisson can be of either.
func TestInspect_plainOrFair(t *testing.T) {
	inBubble(t, func(w *world) {
		inspect := func(k string) error {
			q := map[string]inquiry[luascripts.Snapshot]{"plain": luascripts.InspectReentrant, "fair": luascripts.InspectFair}[k]
			_, err := Inspect(w.Context(), w.a, w.a.NewSpec(lingerKinds[k], "orders", nil), q)
			return err
		}
		for _, kind := range []string{"plain", "fair"} {
			h := w.take(w.a, lingerKinds[kind], w.Context())
			for _, as := range []string{"plain", "fair"} {
				if err := inspect(as); errors.Is(err, lock.ErrWrongType) != (as != kind) {
					w.Errorf("a %s lock as a %s lock: %v", kind, as, err)
				}
			}
			w.unlock(h)
			w.mini.HSet("orders", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:7", "1")
			if err := inspect(kind); err != nil {
				w.Errorf("of Redisson, as a %s lock: %v", kind, err)
			}
			w.mini.Del("orders")
		}
	})
}

// The client is closed while Inspect reads the state. Its holder then has no details of its client.
func TestInspect_duringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		var closed <-chan error
		state, err := Inspect(w.Context(), w.a, w.a.NewSpec(plain, "orders", nil), func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.Snapshot, error) {
			closed = w.beginClose()
			return luascripts.InspectReentrant(ctx, rdb, k)
		})
		if err != nil || len(state.Holders) != 1 || state.Holders[0].Client != (lock.Client{ID: w.b.id}) {
			w.Errorf("%+v, %v", state, err)
		}
		w.wantNoErr(<-closed)
		w.unlock(h)
	})
}

// A server reports its uptime in whole seconds, which can be up to a second too long. Its start time is never reported
// too early or in the future, even if the server's clock was moved backward since.
func TestServer(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", nil)
		for uptime, want := range map[string]time.Duration{"0": 0, "1": 0, "90": 89 * time.Second, "-5": 0} {
			w.mini.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
				switch {
				case cmd != "INFO":
					return false
				case args[0] == "server":
					c.WriteBulk("run_id:5eed\r\nuptime_in_seconds:" + uptime + "\r\n")
				default:
					c.WriteBulk("role:master\r\n")
				}
				return true
			})
			got, err := w.a.Server(w.Context(), spec)
			if err != nil || got.ID != "5eed" || !got.Primary || time.Since(got.Since) != want {
				w.Errorf("up for %s s: %+v, %v, want since %v", uptime, got, err, want)
			}
		}
		w.mini.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			if cmd != "INFO" {
				return false
			}
			c.WriteBulk("run_id:5eed\r\nuptime_in_seconds:1\r\nrole:slave\r\n")
			return true
		})
		if got, err := w.a.Server(w.Context(), spec); err != nil || got.Primary {
			w.Errorf("a replica: %+v, %v", got, err)
		}
		w.mini.SetError("ERR out of order")
		got, err := w.a.Server(w.Context(), spec)
		if !strings.Contains(errText(err), "out of order") || !got.Since.IsZero() {
			w.Errorf("%+v, %v", got, err)
		}
		w.wantAbout("server", "orders", err)
		w.mini.SetError("")
	})
}

// Arbitrary messages on the channels of a session neither grant nor end a hold, and each waiter acquires its lock after
// the release.
func FuzzMessages(f *testing.F) {
	for _, m := range []string{"", "0", "aside", "taken 1 eve", "taken 18446744073709551616 eve", "taken  ", "granted", "0190b5a2-7e2f-7abc-8def-0123456789ab:1 9", "\x00\xff\r\n", "1 2 3"} {
		f.Add(m, byte(0))
		f.Add(m, byte(2))
	}
	f.Fuzz(func(t *testing.T, message string, times byte) {
		inBubble(t, func(w *world) {
			kinds := []*Kind{plain, fair}
			for _, kind := range kinds {
				held := w.take(w.b, kind, w.Context())
				ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
				waiter := w.waitingFor(w.a, ctx, w.a.NewSpec(kind, "orders", nil))
				channels := w.mini.PubSubChannels("*")
				if len(channels) == 0 {
					w.Fatal("no subscription, so the test shows nothing")
				}
				for i := range int(times%4) + 1 {
					for _, channel := range channels {
						for _, payload := range []string{message, "taken " + message, w.a.id + ":" + strconv.Itoa(i) + " " + message} {
							w.mini.Publish(channel, payload)
						}
					}
					synctest.Wait()
				}
				select {
				case <-waiter:
					w.Errorf("the message %q granted the lock", message)
				default:
				}
				if held.Context().Err() != nil {
					w.Errorf("the message %q ended the hold", message)
				}
				w.unlock(held)
				time.Sleep(pollTime)
				w.unlock(w.next(waiter))
				cancel()
			}
		})
	})
}

// A new caller subscribes to a channel that is still subscribed for an earlier caller. Messages in between may be
// missed, so it checks again.
func TestSubscribe_lingering(t *testing.T) {
	inBubble(t, func(w *world) {
		checks := 0
		for range 2 {
			sub := w.a.Subscribe("channel", func() { checks++ })
			synctest.Wait()
			sub.CloseSoon()
			time.Sleep(time.Second)
		}
		if checks != 2 {
			w.Errorf("got %d checks", checks)
		}
	})
}

// The wall clock was an hour ahead when the session requested its first lock, so the numbers in its owner strings are
// ahead, too. It still listens for force-unlocks.
func TestForceMessages_clockWasSetBack(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		s.number.Store(uint64(time.Now().Add(time.Hour).UnixMicro()) << 10)
		h := w.lock(s, w.Context())
		time.Sleep(2*forcedAfter + time.Millisecond)
		if !s.hub.Subscribed(keys.Client(s.id)) {
			w.Error("the session is not subscribed")
		}
		w.unlock(h)
		w.close(s)
	})
}

// A call that waits without an owner checks its state after the subscription and after each message. Close waits for
// it, and then no call begins.
func TestSubscribe_checksAfterEachMessage(t *testing.T) {
	inBubble(t, func(w *world) {
		s := New(w.mini.Client(w), testConfig())
		if err := s.Enter(); err != nil {
			w.Fatal(err)
		}
		checks := 0
		sub := s.Subscribe("channel", func() { checks++ })
		want := func(n int, what string) {
			w.Helper()
			if synctest.Wait(); checks != n {
				w.Errorf("%s: got %d checks, want %d", what, checks, n)
			}
		}
		want(1, "the subscription is confirmed")
		w.mini.Publish("channel", "whatever")
		want(2, "something is published")
		sub.Close()
		ctx := w.within(time.Hour)
		closed := w.begin(func() error { return s.Close(ctx) })
		<-s.Closing()
		if len(closed) > 0 {
			w.Error("Close does not wait for the call")
		}
		s.Leave()
		w.wantNoErr(<-closed)
		if err := s.Enter(); err != lock.ErrClosed {
			w.Errorf("after Close: %v", err)
		}
	})
}

// Clients adds the host of a holder, which is in the entry of the holder's client.
func TestClients(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keys.Client(w.b.id)
		w.mini.HSet(key, "host", "host-7")
		state := lock.State{Holders: []lock.Holder{{Owner: w.b.id + ":7"}}}
		w.a.Clients(w.Context(), &state)
		if c := state.Holders[0].Client; c.ID != w.b.id || c.Host != "host-7" {
			w.Errorf("%+v", c)
		}
		w.mini.Del(key)
	})
}
