package session

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// withForceUnlocks returns a session that listens for force-unlocks, of a client called alice. The wire is between it and
// the server.
func (w *world) withForceUnlocks() *Session {
	c := testConfig()
	c.WatchForced, c.ClientName = true, "alice"
	return w.session(c)
}

// lockListening acquires the lock as kind in s, and returns the hold when s has subscribed to force-unlock messages.
func (w *world) lockListening(s *Session, kind *Kind) lock.Hold {
	w.Helper()
	h := w.take(s, kind, w.Context())
	time.Sleep(forcedAfter + time.Millisecond)
	synctest.Wait()
	if n := w.mini.PubSubNumSub(keys.Client(s.id))[keys.Client(s.id)]; n != 1 {
		w.Fatalf("%d listen", n)
	}
	return h
}

// close closes sessions that a test made.
func (w *world) close(all ...*Session) {
	w.Helper()
	for _, s := range all {
		if err := s.Close(w.within(time.Minute)); err != nil {
			w.Errorf("Close: %v", err)
		}
	}
}

// A force-unlock notifies the holder in another process long before its next renewal, and names the operator.
func TestForce_notifiesTheHolder(t *testing.T) {
	inBubble(t, func(w *world) {
		holder, other := w.withForceUnlocks(), w.withForceUnlocks()
		h := w.lockListening(holder, plain)
		w.force(other, plain)
		synctest.Wait()
		w.forced(h, "force-unlocked by alice")
		w.close(holder, other)
	})
}

// forced fails the test unless h was lost by a force-unlock, and its error contains text and no advice about other causes.
func (w *world) forced(h lock.Hold, text string) {
	w.Helper()
	err := h.Err()
	w.wantErr(err, lock.ErrLost, lock.ErrGone, lock.ErrForceUnlocked)
	if !strings.Contains(errText(err), text) || strings.Contains(errText(err), "evicted") {
		w.Errorf("the holder gets the cause %v", err)
	}
}

// An operator force-unlocked the lock while the machine of its holder slept, longer ago than the holder's monotonic clock
// says it has held the lock. The cause of the loss names the operator.
func TestForce_duringASleep(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	config := testConfig()
	config.OpTimeout = time.Minute
	holder := New(rdb, config)
	defer holder.Close(context.Background())
	h, err := holder.Lock(t.Context(), holder.NewSpec(plain, "orders", nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.Do(t.Context(), registry.SetNote(rdb, keys.Forced("orders"), "eve", []string{h.Owner()})).Error(); err != nil {
		t.Fatal(err)
	}
	m.SetTTL(keys.Forced("orders"), registry.NoteKept-40*time.Minute)
	a := h.(*hold).acquisition()
	for slept, named := range map[time.Duration]bool{0: false, time.Hour: true} {
		since := (*time.Time)(unsafe.Pointer(reflect.ValueOf(&a.Acquisition).Elem().FieldByName("grant").FieldByName("since").UnsafeAddr()))
		before := *since
		*since = redistest.BeforeSleep(before, slept)
		if err := holder.sender.Enter(); err != nil {
			t.Fatal(err)
		}
		if cause := holder.gone(a, luascripts.Gone); errors.Is(cause, lock.ErrForceUnlocked) != named {
			t.Errorf("slept for %v: the cause is %v", slept, cause)
		}
		holder.sender.Done()
		*since = before
	}
}

// A force-unlock fails because Redis is unavailable. After that no command is in flight, so Close need not wait.
func TestForce_unavailable(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, kind := range []*Kind{plain, reading} {
			s := w.withForceUnlocks()
			w.cut()
			_, err := s.Force(w.Context(), s.NewSpec(kind, "orders", nil), luascripts.ForceReentrant)
			w.wantErr(err, lock.ErrUnavailable)
			w.close(s)
			w.wire.Refuse(false)
		}
	})
}

// Redis becomes unavailable when the session reads something that an error or a result should name: the audit record of a
// lost lock, what a key of another type is, or the client of a holder. Close need not wait for that.
func TestReads_unavailable(t *testing.T) {
	type test struct {
		command string
		read    func(w *world) error
		want    error
	}
	forEach(t, map[string]test{
		"audit record": {"GET", func(w *world) error {
			h := w.lock(w.a, w.Context())
			w.mini.Del("orders")
			time.Sleep(leaseTime / 2)
			return h.Err()
		}, lock.ErrGone},
		"type": {"TYPE", func(w *world) error {
			w.wantNoErr(w.mini.Set("orders", "x"))
			defer w.mini.Del("orders")
			_, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil))
			return err
		}, lock.ErrWrongType},
		"client": {"HMGET", func(w *world) error {
			h := w.lock(w.b, w.Context())
			defer w.unlock(h)
			_, err := Inspect(w.Context(), w.a, w.a.NewSpec(plain, "orders", nil), luascripts.InspectReentrant)
			return err
		}, nil},
	}, func(w *world, c test) {
		asked := false
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			if string(req[0]) != c.command {
				return redistest.Action{}
			}
			asked = true
			w.wire.Refuse(true)
			return redistest.Action{DropRequest: true}
		})
		if err := c.read(w); !errors.Is(err, c.want) || !asked {
			w.Errorf("%v, asked: %t", err, asked)
		}
		w.close(w.a)
	})
}

// An operator removed the expiry of the keys. A message that makes the client check its hold does not end the hold.
func TestForce_checkChangesNothing(t *testing.T) {
	forEach(t, map[string]*Kind{"plain": plain, "read": reading, "write": writing}, func(w *world, k *Kind) {
		s := w.withForceUnlocks()
		h := w.lockListening(s, k)
		for _, key := range w.mini.Keys() {
			if err := w.a.rdb.Do(w.Context(), w.a.rdb.B().Persist().Key(key).Build()).Error(); err != nil {
				w.Fatal(err)
			}
		}
		w.mini.Publish(registry.Taken(h.Owner(), "eve"))
		time.Sleep(100 * time.Millisecond)
		w.wantFail(w.b.TryLock, w.Context(), w.b.NewSpec(rival(k), "orders", nil), lock.ErrNotAcquired)
		w.unlock(h)
		w.close(s)
	})
}

// A force-unlock by the holder's own process ends the hold with the same cause, which names the operator: the name of the
// client, or the ID of a client without a name. It may take most of the operation timeout, here with a script that the
// server has to load.
func TestForce_notifiesALocalHolder(t *testing.T) {
	inBubble(t, func(w *world) {
		named := w.withForceUnlocks()
		h := w.take(named, plain, w.Context())
		w.force(named, plain)
		w.forced(h, "force-unlocked by alice")
		w.close(named)

		h = w.lock(w.a, w.Context())
		w.slowScripts(opTime * 2 / 5)
		w.force(w.a, plain)
		w.forced(h, "force-unlocked by "+w.a.id)
	})
}

// A process without Pub/Sub waits for a lock and force-unlocks it. Its waiter sends a request immediately.
func TestForce_wakesWaiters(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub()
		h := w.lock(w.b, w.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(pollTime * 3 / 2)
		w.force(w.a, plain)
		w.unlock(w.next(next))
		w.wantErr(h.Unlock(w.Context()), lock.ErrLost)
	})
}

// A force-unlock notifies each owner of another client, and no one else: no other field of the hash is an owner. A
// session that does not listen itself notifies no one and does not read the owners.
func TestForce_notifiesOwners(t *testing.T) {
	inBubble(t, func(w *world) {
		listens := w.withForceUnlocks()
		for s, want := range map[*Session]int{listens: 1, w.a: 0} {
			h := w.take(w.b, reading, w.Context())
			commands := w.countCommands()
			w.force(s, writing)
			if commands["PUBLISH"] != want || commands["HSCAN"] != want {
				w.Errorf("got %d messages after %d reads, want %d", commands["PUBLISH"], commands["HSCAN"], want)
			}
			w.wantErr(h.Unlock(w.Context()), lock.ErrLost)
		}
		w.close(listens)
	})
}

// The holder releases the lock after a force-unlock has read its owner, and before the script. The lock was not held, so no
// one is notified, and there is no audit record.
func TestForce_releasedBefore(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		h := w.take(w.b, plain, w.Context())
		requests := w.countCommands()
		done, err := s.Force(w.Context(), s.NewSpec(plain, "orders", nil), func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (luascripts.Verdict, error) {
			w.unlock(h)
			return luascripts.ForceReentrant(ctx, rdb, k)
		})
		if done || err != nil {
			w.Errorf("%t, %v", done, err)
		}
		if requests["HGETALL"] != 1 || requests["SET"] != 0 || requests["PUBLISH"] != 0 {
			w.Errorf("got commands %v", requests)
		}
		w.close(s)
	})
}

// A lock is force-unlocked, or its key is deleted, before its session has subscribed to force-unlock messages. The session
// detects the loss when it has subscribed. The cause names the operator, if there was one.
func TestForceMessages_missed(t *testing.T) {
	forEach(t, map[string]bool{"force-unlocked": true, "deleted": false}, func(w *world, forced bool) {
		s, other := w.withForceUnlocks(), w.withForceUnlocks()
		h := w.take(s, plain, w.Context())
		if forced {
			w.force(other, plain)
		} else {
			w.mini.Del("orders")
		}
		time.Sleep(forcedAfter + time.Millisecond)
		synctest.Wait()
		if err := h.Err(); !errors.Is(err, lock.ErrGone) || errors.Is(err, lock.ErrForceUnlocked) != forced {
			w.Errorf("the cause is %v", err)
		}
		w.close(s, other)
	})
}

// A lock is force-unlocked by a client that is not allowed to write the audit record. The cause of the loss names the
// operator of the message.
func TestForceMessages_withoutRecord(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		h := w.lockListening(s, plain)
		w.mini.Del("orders")
		w.mini.Publish(registry.Taken(h.Owner(), "eve"))
		synctest.Wait()
		w.forced(h, "force-unlocked by eve")
		w.close(s)
	})
}

// The cause of a loss names the operator only if the audit record is about the holder, and can be decoded.
func TestForce_records(t *testing.T) {
	type test struct {
		record string
		named  bool
	}
	forEach(t, map[string]test{
		"of this holder": {`{"by":"eve","from":["this client"]}`, true},
		"of another":     {`{"by":"eve","from":["another client"]}`, false},
		"invalid":        {`{"by":5,"from":["this client"]}`, false},
	}, func(w *world, c test) {
		h := w.take(w.a, plain, w.Context())
		w.mini.Del("orders")
		key := keys.Forced("orders")
		w.wantNoErr(w.mini.Set(key, strings.Replace(c.record, "this client", w.a.id, 1)))
		w.mini.SetTTL(key, registry.NoteKept)
		<-h.Context().Done()
		if err := h.Err(); !errors.Is(err, lock.ErrGone) || errors.Is(err, lock.ErrForceUnlocked) != c.named {
			w.Errorf("the cause is %v", err)
		}
	})
}

// verify returns when the holds have ended, so that few locks are looked up at a time, even if all are gone.
func TestForceMessages_verifyWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.mini.FlushAll()
		w.a.verify([]*acquisition{h.(*hold).acquisition()}, "")
		w.wantErr(h.Err(), lock.ErrGone)
	})
}

// While a session closes, it ignores force-unlock messages and new subscriptions, and does not subscribe. Close still waits
// for the release.
func TestForceMessages_whileClosing(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		releases, goes := make(chan struct{}), make(chan struct{})
		k := onRelease(plain, func(r release) (luascripts.Released, error) {
			close(releases)
			<-goes
			return r.send()
		})
		h := w.lockListening(s, k)
		closed := w.begin(func() error { return s.Close(w.Context()) })
		<-releases
		w.mini.Publish(registry.Taken(h.Owner(), "eve"))
		s.onForcedSubscribed()
		s.subscribeForcedIfDue()
		synctest.Wait()
		if len(closed) > 0 {
			w.Error("Close returned before the release")
		}
		close(goes)
		w.wantNoErr(<-closed)
	})
}

// When a session checks whether it must subscribe, it holds nothing, or a lock that it has just acquired. It checks
// again later.
func TestForceMessages_subscribesLater(t *testing.T) {
	forEach(t, map[string]time.Duration{"a young hold": forcedAfter / 2, "no hold": 2 * forcedAfter}, func(w *world, later time.Duration) {
		s := w.withForceUnlocks()
		w.unlock(w.take(s, plain, w.Context()))
		time.Sleep(later)
		h := w.take(s, plain, w.Context())
		time.Sleep(forcedAfter/2 + time.Millisecond)
		if s.hub.Subscribed(keys.Client(s.id)) {
			w.Error("the session is subscribed for a young hold")
		}
		time.Sleep(forcedAfter * 3 / 2)
		if !s.hub.Subscribed(keys.Client(s.id)) {
			w.Error("the session is not subscribed")
		}
		w.unlock(h)
		w.close(s)
	})
}

// A force-unlock message is verified with Redis, and only if it names an owner that has a lock here. It does not end a
// hold by itself.
func TestForceMessages_forged(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		h := w.lockListening(s, plain)
		channel, forged := registry.Taken(h.Owner(), "eve")
		scripts := w.scripts()
		for _, message := range []string{"", "nonsense", "taken", "taken  eve", "taken 1 eve"} {
			w.mini.Publish(channel, message)
		}
		synctest.Wait()
		w.wantSent(scripts, 0)
		w.mini.Publish(channel, forged)
		synctest.Wait()
		if n := scripts.Load(); n == 0 || h.Err() != nil {
			w.Errorf("got %d queries; the hold: %v", n, h.Err())
		}
		w.unlock(h)
		w.close(s)
	})
}

// Redis is slow, and many messages arrive. The session verifies some of them, and the renewals detect the rest. Close
// does not wait for the renewals.
func TestForceMessages_many(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		var requests atomic.Int64
		reply := make(chan struct{})
		k := onRenewal(hookable(), func(r renews) []luascripts.Renewed {
			requests.Add(1)
			<-reply
			return r.send()
		})
		h := w.lockListening(s, k)
		first := requests.Load() // one after the subscription
		channel, message := registry.Taken(h.Owner(), "eve")
		for range 2 * forcedMost {
			w.mini.Publish(channel, message)
			synctest.Wait()
		}
		if n := requests.Load() - first; n != forcedMost {
			w.Errorf("got %d concurrent queries, want %d", n, forcedMost)
		}
		close(reply)
		synctest.Wait()
		w.mini.Publish(channel, message)
		synctest.Wait()
		if n := requests.Load() - first; n != forcedMost+1 {
			w.Errorf("got %d queries, want one for the last message", n-forcedMost)
		}
		w.unlock(h)
		w.close(s)
	})
}

// countCommands counts the commands sent through the wire from now on, by name.
func (w *world) countCommands() map[string]int {
	requests := make(map[string]int)
	w.wire.OnRequest(func(args [][]byte) redistest.Action {
		requests[string(args[0])]++
		return redistest.Action{}
	})
	return requests
}

// Force notifies each owner of another client once, up to notifyMost owners, and skips its own owners and other fields.
// It reads a lock of one owner with HGETALL and a shared lock with HSCAN, so each needs only one permission.
func TestForce_recipients(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		requests := w.countCommands()
		other := w.b.id + ":7"
		for _, field := range []string{other, other + luascripts.Writing, s.id + ":8", "mode", "not an owner"} {
			w.mini.HSet("orders", field, "1")
		}
		for kind, command := range map[*Kind]string{plain: "HGETALL", writing: "HSCAN"} {
			clear(requests)
			if got := s.otherOwners(w.Context(), s.NewSpec(kind, "orders", nil), opTime); !slices.Equal(got, []string{other}) {
				w.Errorf("%s: %q, want %q", command, got, other)
			}
			if len(requests) != 1 || requests[command] != 1 {
				w.Errorf("got commands %v, want %s", requests, command)
			}
		}
		for i := range 2 * notifyMost {
			w.mini.HSet("orders", fmt.Sprint(w.b.id, ":", i), "1")
		}
		if got := s.otherOwners(w.Context(), s.NewSpec(plain, "orders", nil), opTime); len(got) != notifyMost {
			w.Errorf("%d owners, want %d", len(got), notifyMost)
		}
		w.mini.Del("orders")
		w.close(s)
	})
}

// Force-unlock messages use the same type of Pub/Sub as the notifications of the lock. Without time or owners, none is
// published.
func TestForce_publishes(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		requests := w.countCommands()
		owners := []string{w.b.id + ":1", w.b.id + ":2"}
		spec := s.NewSpec(plain, "orders", nil)
		s.notifyOwners(w.Context(), spec, owners, 0)
		s.notifyOwners(w.Context(), spec, nil, opTime)
		synctest.Wait()
		if len(requests) != 0 {
			w.Errorf("got commands %v", requests)
		}
		s.notifyOwners(w.Context(), spec, owners, opTime)
		spec.Keys.Publish = "SPUBLISH"
		s.notifyOwners(w.Context(), spec, owners, opTime)
		if len(requests) != 3 || requests["SET"] != 2 || requests["PUBLISH"] != 2 || requests["SPUBLISH"] != 2 {
			w.Errorf("got commands %v", requests)
		}
		w.close(s)
	})
}

// doneHook is a context that calls f before the first Done.
type doneHook struct {
	context.Context
	once sync.Once
	f    func()
}

func (c *doneHook) Done() <-chan struct{} {
	c.once.Do(c.f)
	return c.Context.Done()
}

// The process of an operator is paused between the two commands of a force-unlock, and then Redis does not respond. The
// call fails in time.
func TestForce_paused(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.withForceUnlocks()
		defer w.close(s)
		var resumed time.Time
		ctx := &doneHook{Context: w.Context(), f: func() {
			time.Sleep(2 * opTime)
			w.wire.Freeze(true)
			resumed = time.Now()
		}}
		_, err := s.Force(ctx, s.NewSpec(plain, "orders", nil), luascripts.ForceReentrant)
		if took := time.Since(resumed); !errors.Is(err, lock.ErrUnavailable) || took > opTime {
			w.Errorf("%v after %v", err, took)
		}
		w.resume()
	})
}
